//! Errors of a store.

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A batch, a key or a value is beyond its limit. It never fits.
    #[error("{what} has {size}, at most {most} are allowed")]
    TooLarge {
        /// Name of the thing that is too large.
        what: String,
        /// Size of the thing.
        size: usize,
        /// The limit.
        most: usize,
    },
    /// There is no room. Batches that only delete rows still succeed.
    #[error("the store is full: {why}")]
    Full {
        /// Which room is used up, and the way out.
        why: String,
    },
    /// The change may or may not have been made.
    #[error("whether the change was made is not known: {why}")]
    Indeterminate {
        /// Cause of the failure.
        why: String,
    },
    /// The store cannot be reached, or is ending. Nothing has happened.
    #[error("the store cannot be reached: {why}")]
    Unavailable {
        /// Why.
        why: String,
    },
    /// The stored data cannot be read.
    #[error("the store is damaged: {why}")]
    Damaged {
        /// Description of the damage.
        why: String,
    },
    /// Another process has it.
    #[error("the store in {dir} belongs to another process: end that first")]
    Owned {
        /// The directory.
        dir: String,
    },
}
