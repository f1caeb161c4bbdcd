//! Errors of the supervisor.

use std::io;
use std::path::PathBuf;

use model::BlobHash;

/// Why the supervisor cannot be built, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The supervisor's metrics cannot be registered.
    #[error("the supervisor's metrics cannot be registered")]
    Metrics(#[source] prometheus::Error),
    /// The supervisor's policy cannot be used.
    #[error("the supervisor cannot start without its policy")]
    Policy(#[source] crate::policy::PolicyFileError),
    /// The key that it signs with cannot be made or read.
    #[error("the supervisor's signing key cannot be made or read")]
    SigningKey(#[source] identity::SigningKeyError),
    /// The work directory cannot be created.
    #[error("the work directory {} cannot be created", .0.display())]
    WorkDir(PathBuf, #[source] io::Error),
    /// The bus has no room for it.
    #[error("the supervisor cannot listen on the bus")]
    Bus(#[source] mycelium::BusError),
}

/// Why the bytes of a job are not on this machine.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The bytes received do not match the hash.
    #[error("the bytes received for blob {0} do not match its hash")]
    Mismatch(BlobHash),
    /// The inline bytes are not base64.
    #[error("the inline bytes of blob {0} are no base64")]
    Encoding(BlobHash),
    /// The coordinator does not give it.
    #[error("the coordinator does not give blob {hash}: {source}")]
    Refused {
        /// Which.
        hash: BlobHash,
        /// Error of the call.
        source: mycelium::json_rpc::CallError,
    },
    /// The coordinator's response cannot be read.
    #[error("the coordinator's answer for blob {0} cannot be read")]
    Malformed(BlobHash),
    /// The blob should be on this machine, and is not.
    #[error("blob {0} is not on this machine")]
    Missing(BlobHash),
    /// The directory cannot be used.
    #[error("{} cannot be used", path.display())]
    Directory {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl BlobError {
    /// Returns true if the disk had no room for the blob.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        let Self::Directory { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Returns true if a retry cannot succeed.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Mismatch(_) | Self::Encoding(_) | Self::Malformed(_) | Self::Missing(_) => true,
            Self::Refused { source: mycelium::json_rpc::CallError::Refused(error), .. } => error.is_lasting(),
            Self::Refused { .. } | Self::Directory { .. } => false,
        }
    }
}
