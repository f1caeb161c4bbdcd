//! The allocator of every program of the suite.

/// Takes a fifth of the suite's processor time less on the road of a job than glibc's (`specs/performance.md`).
///
/// Each program names it in its `main.rs`; not those with the runner in them, whose allocator counts what scripts hold, and asks
/// this one.
pub use mimalloc::MiMalloc as Allocator;
