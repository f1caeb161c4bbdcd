//! How much memory the script on this thread holds.
//!
//! The engine bounds each value, but neither how many of them there are nor what they cost. So whatever a
//! script's thread allocates is counted where it is allocated; the engine looks at the count at every step.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with an account for each thread that wants one.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Whether this thread counts.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    /// What it has allocated and not freed since it began to.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    if COUNTS.get() {
        HELD.set(HELD.get().saturating_add(bytes));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// SAFETY: everything is the system's allocator, which gets what this one is given. Counting touches two cells
// that need neither memory nor to be dropped, so it works at any moment of a thread's life.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as for this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as for this function.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size) - signed(layout.size()));
        // SAFETY: as for this function.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Counts on this thread from zero.
pub(crate) fn begin() {
    HELD.set(0);
    COUNTS.set(true);
}

/// What this thread holds since it began to count.
pub(crate) fn held() -> u64 {
    u64::try_from(HELD.get()).unwrap_or(0)
}

/// Does something of ours whose memory goes to other threads, or comes from them: not the script's.
pub(crate) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    /// Counts again, however `work` ends.
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            COUNTS.set(self.0);
        }
    }
    let _back = Back(COUNTS.replace(false));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_counted_until_it_is_freed() {
        begin();
        let first = held();
        let block = vec![0_u8; 1_000_000];
        assert_eq!(held() - first, 1_000_000);
        let longer = {
            let mut block = block;
            block.reserve_exact(1_000_000);
            block
        };
        assert_eq!(held() - first, 2_000_000);
        let foreign = uncounted(|| vec![0_u8; 5_000_000]);
        assert_eq!(held() - first, 2_000_000);
        uncounted(|| drop(foreign));
        drop(longer);
        assert_eq!(held(), first);
        let elsewhere = std::thread::spawn(|| drop(vec![0_u8; 3_000_000]));
        elsewhere.join().expect("it ends");
        assert!(held() < first + 100_000, "other threads have accounts of their own");
    }
}
