//! Chance that comes out the same every time.

/// A small generator of its own: the same numbers for the same seed.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// Numbers of a seed, for a purpose: what one purpose draws changes nothing for the others.
    #[must_use]
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut draw = Self(seed ^ purpose.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        // Seeds that lie close together begin far apart.
        for _ in 0..4 {
            draw.next();
        }
        draw
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A number below `bound`.
    #[must_use]
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number from `from` to before `to`.
    #[must_use]
    pub const fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// One of these.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let at = self.below(all.len() as u64);
        &all[usize::try_from(at).expect("below a length")]
    }
}
