//! Memory accounting for the script on this thread.
//!
//! The engine bounds each value, but neither the number of values nor their memory. So this allocator counts all
//! allocations of a script's thread; the engine checks the count at every step. It also bounds what one step may
//! allocate beyond that: an allocation cannot be unwound, so the process ends.
//!
//! A program has one allocator, so every program with this crate uses this one. Outside of
//! engines nothing is counted: an allocation costs one check of a thread-local flag.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use service::Allocator;

use super::EXIT_OUT_OF_MEMORY;

/// Number of bytes that one step of a script may allocate beyond the script's own limit.
pub(crate) const STEP_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// The allocator of the suite, with an account for each thread that wants one.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

thread_local! {
    /// True for a thread whose allocations are counted.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    /// Number of bytes that this thread has allocated and not freed since counting began.
    static HELD: Cell<i64> = const { Cell::new(0) };
    /// Number of bytes that this thread may not exceed.
    static MOST: Cell<i64> = const { Cell::new(i64::MAX) };
}

fn count(bytes: i64) {
    if COUNTS.get() {
        let held = HELD.get().saturating_add(bytes);
        HELD.set(held);
        if held > MOST.get() {
            end_process();
        }
    }
}

/// Passes on the allocator's pointer; ends the process when a counted thread gets none.
fn given(pointer: *mut u8) -> *mut u8 {
    if pointer.is_null() && COUNTS.get() {
        end_process();
    }
    pointer
}

/// Ends the process in a way that tells the runner why; an abort would not.
fn end_process() -> ! {
    // SAFETY: ends the process, and needs no memory for it.
    unsafe { libc::_exit(EXIT_OUT_OF_MEMORY) }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// SAFETY: every call goes to the suite's allocator with the same arguments. Counting touches two cells
// that need neither memory nor to be dropped, so it works at any moment of a thread's life.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as for this function.
        given(unsafe { Allocator.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as for this function.
        given(unsafe { Allocator.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as for this function.
        unsafe { Allocator.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size) - signed(layout.size()));
        // SAFETY: as for this function.
        given(unsafe { Allocator.realloc(pointer, layout, size) })
    }
}

/// Counts on this thread from zero, for a script that may hold this much.
pub(super) fn begin(bytes_max: u64) {
    HELD.set(0);
    MOST.set(i64::try_from(bytes_max.saturating_add(STEP_BYTES_MAX)).unwrap_or(i64::MAX));
    COUNTS.set(true);
}

/// Counts no more.
pub(super) fn end() {
    COUNTS.set(false);
}

/// Returns the number of bytes that this thread holds since counting began.
pub(super) fn held() -> u64 {
    u64::try_from(HELD.get()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_counted_until_it_is_freed() {
        begin(1 << 30);
        let first = held();
        let block = vec![0_u8; 1_000_000];
        assert_eq!(held() - first, 1_000_000);
        let longer = {
            let mut block = block;
            block.reserve_exact(1_000_000);
            block
        };
        assert_eq!(held() - first, 2_000_000);
        drop(longer);
        assert_eq!(held(), first);
        let elsewhere = std::thread::spawn(|| drop(vec![0_u8; 3_000_000]));
        elsewhere.join().expect("it ends");
        assert!(held() < first + 100_000, "other threads have accounts of their own");
        end();
        let uncounted = vec![0_u8; 5_000_000];
        assert!(held() < first + 100_000);
        drop(uncounted);
    }

    const ROLE: &str = "MYCORA_TEST_ALLOCATES";

    /// Does nothing unless the test below starts this program anew for it.
    #[test]
    fn a_process_that_allocates() {
        let Some(bytes) = std::env::var_os(ROLE) else { return };
        let bytes = bytes.to_str().and_then(|bytes| bytes.parse().ok()).expect("a number");
        begin(1 << 20);
        let block: Vec<u8> = Vec::with_capacity(std::hint::black_box(bytes));
        end();
        drop(std::hint::black_box(block));
    }

    #[test]
    fn one_step_that_takes_too_much_ends_the_process_by_name() {
        let exits = |bytes: u64| {
            let mut again = std::process::Command::new(std::env::current_exe().expect("this program"));
            let test = "engine::memory::tests::a_process_that_allocates";
            again.args(["--exact", test]).env(ROLE, bytes.to_string());
            again.output().expect("it is started").status.code()
        };
        assert_eq!(exits(STEP_BYTES_MAX), Some(0));
        assert_eq!(exits(STEP_BYTES_MAX + (2 << 20)), Some(EXIT_OUT_OF_MEMORY));
        // More than any machine has: the system refuses it.
        assert_eq!(exits(1 << 60), Some(EXIT_OUT_OF_MEMORY));
    }
}
