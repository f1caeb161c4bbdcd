//! Errors of the registry.

/// Why the registry cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A metric of the same name is registered already.
    #[error("the metrics cannot be registered")]
    Metrics(#[source] prometheus::Error),
}
