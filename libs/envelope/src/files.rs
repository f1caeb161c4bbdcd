//! Keys and certificates in files.

use std::io;
use std::path::{Path, PathBuf};

use identity::{SigningKey, SigningKeyError};
use model::Timestamp;

use crate::{Certificate, Envelope, Refusal, Sealer};

/// The coordinator's root key, in the directory of its authority.
pub const ROOT_KEY_FILE: &str = "coordinator.key";

/// What a gateway signs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningFiles {
    /// Its key.
    pub key: PathBuf,
    /// The root's certificate for it.
    pub certificate: PathBuf,
}

/// Why files are of no use.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A key cannot be read or made.
    #[error(transparent)]
    Key(#[from] SigningKeyError),
    /// The certificate cannot be read or written.
    #[error("{} cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The root key is kept elsewhere.
    #[error("{} is not here, and another root would be another coordinator: bring it, or remove the certificates", path.display())]
    RootMissing {
        /// Where it was.
        path: PathBuf,
    },
    /// The certificate is none, or is not for the key.
    #[error("{} is no certificate for this key: {refusal}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        refusal: Refusal,
    },
}

impl SigningFiles {
    /// Has the root key in `dir`, which is made when it is not there, vouch for the key of `name`, which is made as
    /// well.
    ///
    /// # Errors
    /// [`FilesError::Key`], [`FilesError::File`], [`FilesError::RootMissing`] when there was one.
    pub fn issue(
        dir: &Path,
        name: &str,
        not_before: Timestamp,
        not_after: Timestamp,
    ) -> Result<Self, FilesError> {
        let files = Self {
            key: dir.join(format!("{name}.signing.key")),
            certificate: dir.join(format!("{name}.signing.json")),
        };
        let root = dir.join(ROOT_KEY_FILE);
        if files.certificate.exists() && !root.exists() {
            // Another root would be another coordinator.
            return Err(FilesError::RootMissing { path: root });
        }
        let root = SigningKey::load_or_make(&root)?;
        let key = SigningKey::load_or_make(&files.key)?;
        let certificate = Certificate::issue(&root, key.verifying_key(), not_before, not_after);
        let fresh = files.certificate.with_extension("new");
        let written = std::fs::write(&fresh, certificate.to_json())
            .and_then(|()| std::fs::rename(&fresh, &files.certificate));
        written.map_err(|source| FilesError::File { path: files.certificate.clone(), source })?;
        Ok(files)
    }

    /// Reads them.
    ///
    /// # Errors
    /// Any [`FilesError`].
    pub fn sealer(&self) -> Result<Sealer, FilesError> {
        let key = SigningKey::load(&self.key)?;
        let path = &self.certificate;
        let text = std::fs::read(path).map_err(|source| FilesError::File { path: path.clone(), source })?;
        let sealer = Envelope::from_json(&text).and_then(|certificate| {
            Certificate::read(&certificate)?.check(key.verifying_key(), Timestamp::now())?;
            Sealer::certified(key, &certificate)
        });
        sealer.map_err(|refusal| FilesError::Certificate { path: path.clone(), refusal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_gateway_signs_with_what_was_issued() {
        let dir = tempfile::tempdir().expect("a directory");
        let now = Timestamp::now();
        let until = now + Duration::from_secs(60);
        let issue = |name| SigningFiles::issue(dir.path(), name, now, until).expect("issued");
        let (first, second) = (issue("a"), issue("b"));
        let (one, other) = (first.sealer().expect("a sealer"), second.sealer().expect("a sealer"));
        assert_eq!(one.root(), other.root(), "one coordinator");
        assert_ne!(one.key(), other.key());
        assert_eq!(issue("a").sealer().expect("a sealer").key(), one.key(), "renewed");
        std::fs::remove_file(dir.path().join(ROOT_KEY_FILE)).expect("it was there");
        let renewed = SigningFiles::issue(dir.path(), "a", now, until);
        assert!(matches!(renewed, Err(FilesError::RootMissing { .. })), "not another coordinator");
        let mixed = SigningFiles { key: first.key, certificate: second.certificate };
        assert!(matches!(mixed.sealer(), Err(FilesError::Certificate { .. })));
    }
}
