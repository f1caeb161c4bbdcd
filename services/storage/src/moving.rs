//! Moving of contexts: exports as snapshots, and imports of them.
//!
//! - `snapshot`: a context is frozen while its records are read, key by key; `values` reads what a key has;
//! - `records`: which keys an archive has, of which kind, and how names of keys in values are written;
//! - `import`: frames are checked and written into a context that nobody sees until the last one; `actors`: those that records name.

pub(crate) mod actors;
pub(crate) mod import;
pub(crate) mod records;
pub(crate) mod snapshot;
mod values;

use archive::ArchiveError;

/// Why an import is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ImportRefusal {
    /// The file is truncated, altered, or none at all.
    #[error(transparent)]
    Unusable(ArchiveError),
    /// The number or the uid of the context is taken.
    #[error("{0}: delete it first, or import into another coordinator")]
    ContextExists(String),
    /// An actor has another key here, or its key belongs to another actor.
    #[error("{0}")]
    ActorConflict(String),
    /// Another export of the context is being imported.
    #[error(
        "another export of {0} is being imported: finish that import with the same file, or remove what it has written with \
         `mycora context import --abort`"
    )]
    UnderWay(String),
    /// The import was given up, or another call has gone on with it.
    #[error("the import cannot go on: {0}")]
    Gone(String),
}

impl From<ImportRefusal> for crate::error::Error {
    fn from(refusal: ImportRefusal) -> Self {
        Self::Import(refusal)
    }
}

impl From<ArchiveError> for crate::error::Error {
    fn from(error: ArchiveError) -> Self {
        Self::Import(ImportRefusal::Unusable(error))
    }
}
