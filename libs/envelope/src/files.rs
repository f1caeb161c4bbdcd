//! Keys and certificates in files.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use identity::exposure;
use identity::{SigningKey, SigningKeyError, VerifyingKey};
use model::Timestamp;

use crate::root_rotation::CHANGES_MAX;
use crate::{Envelope, GatewayCertificate, Refusal, RootChain, RootChange, Sealer};

/// The coordinator's root key, in the directory of its authority.
pub const ROOT_KEY_FILE: &str = "coordinator.key";
/// How the coordinator came to that root, in the same directory: a change on each line, oldest first.
pub const ROOT_CHANGE_FILE: &str = "coordinator.changes";
/// The next root key, while it is being made the root.
const NEXT_ROOT_KEY_FILE: &str = "coordinator.next.key";
/// Changes of root in one file, at most.
const CHANGES_BYTES_MAX: u64 = 256 * 1024;

/// Files that a gateway signs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningFiles {
    /// Key of the gateway.
    pub key: PathBuf,
    /// The root's certificate for it.
    pub certificate: PathBuf,
}

/// Why files are of no use.
#[derive(Debug, thiserror::Error)]
pub enum SigningFilesError {
    /// A key cannot be read or made.
    #[error(transparent)]
    Key(#[from] SigningKeyError),
    /// The certificate cannot be read or written.
    #[error("{} cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The root key is kept elsewhere.
    #[error("{} is not here, and another root would be another coordinator: bring it, or remove the certificates", path.display())]
    RootMissing {
        /// Where it was.
        path: PathBuf,
    },
    /// There is no root that another could come after.
    #[error("{} is not here: there is no root", path.display())]
    NoRoot {
        /// Where it would be.
        path: PathBuf,
    },
    /// The changes of root are none, or do not lead to where they should.
    #[error("{} cannot be used: {refusal}", path.display())]
    Changes {
        /// The file.
        path: PathBuf,
        /// Description of what is wrong with the file.
        refusal: Refusal,
    },
    /// The certificate is none, or is not for the key.
    #[error("{} is no certificate for this key: {refusal}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Description of what is wrong with the certificate.
        refusal: Refusal,
    },
}

impl SigningFiles {
    /// Returns the paths of the files of `name` in `dir`, whether they are there or not.
    #[must_use]
    pub fn within(dir: &Path, name: &str) -> Self {
        Self {
            key: dir.join(format!("{name}.signing.key")),
            certificate: dir.join(format!("{name}.signing.json")),
        }
    }

    /// Has the root key in `dir`, which is made when it is not there, vouch for the key of `name`, which is made as
    /// well.
    ///
    /// # Errors
    /// [`SigningFilesError::Key`], [`SigningFilesError::File`], [`SigningFilesError::RootMissing`] when there was one.
    pub fn issue(
        dir: &Path,
        name: &str,
        not_before: Timestamp,
        not_after: Timestamp,
    ) -> Result<Self, SigningFilesError> {
        let files = Self::within(dir, name);
        let root = dir.join(ROOT_KEY_FILE);
        if files.certificate.exists() && !root.exists() {
            // A new root would be a new coordinator.
            return Err(SigningFilesError::RootMissing { path: root });
        }
        let root = SigningKey::load_or_make(&root)?;
        let key = SigningKey::load_or_make(&files.key)?;
        let certificate = GatewayCertificate::issue(&root, key.verifying_key(), not_before, not_after);
        replace(&files.certificate, &certificate.to_json())?;
        Ok(files)
    }

    /// Reads them.
    ///
    /// # Errors
    /// Any [`SigningFilesError`].
    pub fn sealer(&self) -> Result<Sealer, SigningFilesError> {
        let key = SigningKey::load(&self.key)?;
        let path = &self.certificate;
        let read = exposure::check_trusted(path).map_err(io::Error::from).and_then(|()| std::fs::read(path));
        let text = read.map_err(|source| SigningFilesError::File { path: path.clone(), source })?;
        let sealer = Envelope::from_json(&text).and_then(|certificate| {
            GatewayCertificate::read(&certificate)?.check(key.verifying_key(), Timestamp::now())?;
            Sealer::certified(key, &certificate)
        });
        sealer.map_err(|refusal| SigningFilesError::Certificate { path: path.clone(), refusal })
    }
}

/// Files that were made for a coordinator that has another root from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRoot {
    /// The key that was the root.
    pub old: VerifyingKey,
    /// The file that it is kept in from now on.
    pub old_key: PathBuf,
    /// The key that is the root.
    pub new: VerifyingKey,
    /// The file with that.
    pub new_key: PathBuf,
    /// The changes, which the old root has signed.
    pub changes: PathBuf,
}

/// Reads the root key of the coordinator whose root is in `dir`.
///
/// # Errors
/// [`SigningFilesError::NoRoot`], [`SigningFilesError::Key`].
pub fn read_root_key(dir: &Path) -> Result<VerifyingKey, SigningFilesError> {
    let path = dir.join(ROOT_KEY_FILE);
    if !path.exists() {
        return Err(SigningFilesError::NoRoot { path });
    }
    Ok(SigningKey::load(&path)?.verifying_key())
}

impl NewRoot {
    /// Makes another root for the coordinator whose root is in `dir`: signs the change with the old root, then puts the new one into
    /// its place. After an interruption the next call goes on with the same new key. Certificates have to be issued again.
    ///
    /// # Errors
    /// [`SigningFilesError::NoRoot`], [`SigningFilesError::Key`], [`SigningFilesError::File`], [`SigningFilesError::Changes`] when
    /// those that are there do not lead to the old root.
    pub fn make(dir: &Path) -> Result<Self, SigningFilesError> {
        let [new_key, next, changes] =
            [ROOT_KEY_FILE, NEXT_ROOT_KEY_FILE, ROOT_CHANGE_FILE].map(|name| dir.join(name));
        if !new_key.exists() {
            return Err(SigningFilesError::NoRoot { path: new_key });
        }
        let (old, new) = (SigningKey::load(&new_key)?, SigningKey::load_or_make(&next)?);
        let old_name = old.verifying_key().to_string();
        let old_key = dir.join(format!("coordinator.{}.key", &old_name[..8]));
        let mut known = if changes.exists() { read_changes(&changes)?.0 } else { Vec::new() };
        let refused = |refusal| SigningFilesError::Changes { path: changes.clone(), refusal };
        let leads_to = |known: &[Envelope]| match known {
            [] => Ok(None),
            known => RootChain::read(known).map(|known| Some(known.current_root())).map_err(refused),
        };
        if leads_to(&known)? != Some(new.verifying_key()) {
            known.push(RootChange::announce(&old, &new));
            // The oldest go: the operator of a supervisor that was away for that long has to enter the new root.
            known.drain(..known.len().saturating_sub(CHANGES_MAX));
            leads_to(&known)?;
            let lines = known.iter().flat_map(|change| [change.to_json(), "\n".into()]);
            replace(&changes, &lines.collect::<Vec<_>>().concat())?;
        }
        let moved = std::fs::hard_link(&new_key, &old_key).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        });
        let moved = moved.and_then(|()| std::fs::rename(&next, &new_key));
        moved.map_err(|source| SigningFilesError::File { path: new_key.clone(), source })?;
        Ok(Self { old: old.verifying_key(), old_key, new: new.verifying_key(), new_key, changes })
    }
}

/// Reads changes of root, one on each line and oldest first: themselves, and what they lead to.
///
/// # Errors
/// [`SigningFilesError::File`], [`SigningFilesError::Changes`].
pub fn read_changes(path: &Path) -> Result<(Vec<Envelope>, RootChain), SigningFilesError> {
    let unreadable = |source| SigningFilesError::File { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(unreadable)?.len() > CHANGES_BYTES_MAX {
        return Err(unreadable(io::Error::other(format!("it has more than {CHANGES_BYTES_MAX} bytes"))));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let read = lines.map(|line| Envelope::from_json(line.as_bytes())).collect::<Result<Vec<_>, _>>();
    let read = read.and_then(|changes| Ok((RootChain::read(&changes)?, changes)));
    let read = read.map_err(|refusal| SigningFilesError::Changes { path: path.to_owned(), refusal });
    read.map(|(succession, changes)| (changes, succession))
}

/// Puts another text into the place of a file's, in one step.
fn replace(path: &Path, text: &[u8]) -> Result<(), SigningFilesError> {
    let fresh = path.with_extension("new");
    let write = || {
        // Not with whatever a umask would let others do.
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o644).open(&fresh)?;
        file.write_all(text)?;
        std::fs::rename(&fresh, path)
    };
    let written = write();
    written.map_err(|source| SigningFilesError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_root_follows_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path();
        assert!(matches!(NewRoot::make(path), Err(SigningFilesError::NoRoot { .. })));
        assert!(matches!(read_root_key(path), Err(SigningFilesError::NoRoot { .. })), "and makes none");
        let first = SigningKey::load_or_make(&path.join(ROOT_KEY_FILE)).expect("made").verifying_key();
        assert_eq!(read_root_key(path).expect("there"), first);
        let second = NewRoot::make(path).expect("made");
        assert_eq!(second.old, first);
        assert_eq!(SigningKey::load(&second.old_key).expect("kept").verifying_key(), first);
        let third = NewRoot::make(path).expect("made");
        assert_eq!(SigningKey::load(&third.new_key).expect("in place").verifying_key(), third.new);
        let (changes, succession) = read_changes(&third.changes).expect("written");
        assert_eq!((changes.len(), succession.retired_roots()), (2, &[first, second.new][..]));
        assert_eq!(succession.current_root(), third.new);

        // The change was written, and no more: the root is still the third.
        let (old, next) = (SigningKey::load(&third.new_key).expect("there"), SigningKey::generate());
        next.write(&path.join(NEXT_ROOT_KEY_FILE)).expect("written");
        let begun = RootChange::announce(&old, &next);
        let lines = changes.iter().chain([&begun]).flat_map(|change| [change.to_json(), "\n".into()]);
        replace(&third.changes, &lines.collect::<Vec<_>>().concat()).expect("written");
        let fourth = NewRoot::make(path).expect("gone on with");
        assert_eq!((fourth.old, fourth.new), (third.new, next.verifying_key()));
        assert_eq!(read_changes(&fourth.changes).expect("written").0.len(), 3);

        std::fs::write(&fourth.changes, changes[0].to_json()).expect("written");
        assert!(
            matches!(NewRoot::make(path), Err(SigningFilesError::Changes { .. })),
            "they lead to another"
        );
    }

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
        assert!(matches!(renewed, Err(SigningFilesError::RootMissing { .. })), "not another coordinator");
        let mixed = SigningFiles { key: first.key, certificate: second.certificate };
        assert!(matches!(mixed.sealer(), Err(SigningFilesError::Certificate { .. })));
    }
}
