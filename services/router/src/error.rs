//! Errors of the router.

/// Why the router cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The router's name has characters or a length that records do not allow.
    #[error("`{0}` is no router name: write 1 to 64 letters, digits, `-`, `_` and `.`")]
    Name(String),
    /// A metric of the same name is registered already.
    #[error("the metrics cannot be registered")]
    Metrics(#[source] prometheus::Error),
}
