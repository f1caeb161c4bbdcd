//! Changes inputs: a few at a time, at random, and the same ones for the same seed.

use crate::Target;
use crate::input::BREAK;

/// Values that numbers are changed to.
const NUMBERS: [&str; 16] = [
    "0",
    "1",
    "-1",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "0.5",
    "1e308",
];
/// How many changes are made to one input at once; mostly few, so that much of it stays good.
const CHANGES: [usize; 4] = [1, 1, 2, 5];

/// Numbers that look random (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Returns a generator that gives the same numbers for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next below `end`; 0 when that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.draw()).unwrap_or_default().checked_rem(end).unwrap_or_default()
    }

    /// One of several.
    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> Option<&'a T> {
        of.get(self.below(of.len())).copied()
    }
}

/// Changes an input, which stays below `bytes_max`; `other` is one that parts may come from.
pub fn mutate(target: &Target, input: &mut Vec<u8>, other: &[u8], bytes_max: usize, random: &mut Random) {
    for _ in 0..CHANGES[random.below(CHANGES.len())] {
        change(target, input, other, random);
    }
    input.truncate(bytes_max);
}

fn change(target: &Target, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(input.len() + 1);
    match random.below(10) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = random.draw().to_le_bytes()[0];
            }
        }
        2 => drop(input.drain(at..(at + 1 + random.below(8)).min(input.len()).max(at))),
        3 => drop(input.drain(at..at + random.below(input.len() - at + 1))),
        4 => insert(input, at, random.pick(target.dictionary).unwrap_or(",").as_bytes()),
        5 => replace_token(target, input, at, random),
        6 => replace_number(input, at, random),
        7 => {
            let from = random.below(other.len() + 1);
            let to = from + random.below((other.len() - from).min(64) + 1);
            insert(input, at, &other[from..to]);
        }
        8 => repeat(input, at, random),
        _ => insert(input, at, &[if random.below(2) == 0 { BREAK } else { random.draw().to_le_bytes()[0] }]),
    }
}

fn insert(input: &mut Vec<u8>, at: usize, what: &[u8]) {
    drop(input.splice(at..at, what.iter().copied()));
}

/// Another word replacing the one that begins at or behind `at`.
fn replace_token(target: &Target, input: &mut Vec<u8>, at: usize, random: &mut Random) {
    let begins = |token: &&str| input[at..].starts_with(token.as_bytes());
    let Some(old) = target.dictionary.iter().copied().filter(begins).max_by_key(|token| token.len()) else {
        return insert(input, at, random.pick(target.dictionary).unwrap_or(" ").as_bytes());
    };
    let new = random.pick(target.dictionary).unwrap_or_default();
    drop(input.splice(at..at + old.len(), new.bytes()));
}

fn replace_number(input: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(begin) = input[at..].iter().position(u8::is_ascii_digit).map(|found| at + found) else { return };
    let digits = input[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let new = random.pick(&NUMBERS).unwrap_or_default();
    drop(input.splice(begin..begin + digits, new.bytes()));
}

/// Writes a piece several times, now and then thousands of times: what is read in more than linear time shows.
fn repeat(input: &mut Vec<u8>, at: usize, random: &mut Random) {
    let end = at + random.below((input.len() - at).min(48) + 1);
    let piece = input[at..end].to_vec();
    let times = if random.below(64) == 0 { random.below(4096) } else { random.below(8) };
    insert(input, at, &piece.repeat(times));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_mutations() {
        let target = &crate::TARGETS[0];
        let changed = |seed| {
            let (mut random, mut inputs) = (Random::new(seed), Vec::new());
            for _ in 0..1000 {
                let mut input = b"a text with 7 words in it".to_vec();
                mutate(target, &mut input, b"another one", 100, &mut random);
                assert!(input.len() <= 100, "{} bytes", input.len());
                inputs.push(input);
            }
            inputs
        };
        assert_eq!(changed(1), changed(1));
        assert_ne!(changed(1), changed(2));
        let mut empty = Vec::new();
        mutate(target, &mut empty, &[], 0, &mut Random::new(3));
        assert!(empty.is_empty());
    }
}
