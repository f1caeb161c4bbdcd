//! What can go wrong here.

use std::io;
use std::path::PathBuf;

use model::BlobHash;

/// Why the supervisor cannot be built, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its metrics cannot be registered.
    #[error("the supervisor's metrics cannot be registered")]
    Metrics(#[source] prometheus::Error),
    /// Its policy cannot be used.
    #[error("the supervisor cannot start without its policy")]
    Policy(#[source] crate::policy::PolicyFileError),
    /// The key that it signs with cannot be made or read.
    #[error("the supervisor has no key to sign with")]
    SigningKey(#[source] identity::SigningKeyError),
    /// Its work directory cannot be made.
    #[error("{} cannot be made", .0.display())]
    WorkDir(PathBuf, #[source] io::Error),
    /// The bus has no room for it.
    #[error("the supervisor cannot listen on the bus")]
    Bus(#[source] mycelium::BusError),
}

/// Why the bytes of a job are not on this machine.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// What came is not what was named.
    #[error("the bytes that came for blob {0} are others")]
    Mismatch(BlobHash),
    /// What came inline is no base64.
    #[error("what came inline for blob {0} is no base64")]
    Encoding(BlobHash),
    /// The coordinator does not give it.
    #[error("the coordinator does not give blob {hash}: {source}")]
    Refused {
        /// Which.
        hash: BlobHash,
        /// What it answered.
        source: mycelium::json_rpc::CallError,
    },
    /// What the coordinator gave cannot be read.
    #[error("what the coordinator gave for blob {0} cannot be read")]
    Malformed(BlobHash),
    /// It should be on this machine, and is not.
    #[error("blob {0} is not on this machine")]
    Missing(BlobHash),
    /// The directory gives trouble.
    #[error("{} cannot be used", path.display())]
    Directory {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl BlobError {
    /// Whether there was no room for it.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        let Self::Directory { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Whether trying again cannot help.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Mismatch(_) | Self::Encoding(_) | Self::Malformed(_) | Self::Missing(_) => true,
            Self::Refused { source: mycelium::json_rpc::CallError::Refused(error), .. } => error.is_lasting(),
            Self::Refused { .. } | Self::Directory { .. } => false,
        }
    }
}
