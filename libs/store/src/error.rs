//! What can go wrong with a store.

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A batch, a key or a value is beyond its limit. It never fits.
    #[error("{what} has {size}, at most {most} are allowed")]
    TooLarge {
        /// What it is.
        what: String,
        /// Its size.
        size: usize,
        /// The limit.
        most: usize,
    },
    /// There is no room. What only frees is still taken.
    #[error("the store is full: {why}")]
    Full {
        /// Which room is used up, and the way out.
        why: String,
    },
    /// It may or may not have happened.
    #[error("whether the change was made is not known: {why}")]
    Indeterminate {
        /// What went wrong.
        why: String,
    },
    /// It cannot be reached, or is ending. Nothing has happened.
    #[error("the store cannot be reached: {why}")]
    Unavailable {
        /// Why.
        why: String,
    },
    /// What it has cannot be read.
    #[error("the store is damaged: {why}")]
    Damaged {
        /// What is wrong with it.
        why: String,
    },
    /// Another process has it.
    #[error("the store in {dir} belongs to another process: end that first")]
    Owned {
        /// The directory.
        dir: String,
    },
}
