//! An actor's own Ed25519 key: its public half is what `actor:<id>` keeps.

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData as _};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;

use crate::file;

/// PKCS#8 version 1 around a 32 byte seed (RFC 8410, 7). The generator writes version 2, with the public
/// key appended, which OpenSSL before 3.0 and some other libraries refuse to read.
const PKCS8_V1_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// The length of an Ed25519 seed.
const SEED_BYTES: usize = 32;

/// An Ed25519 key pair. Its `Debug` form shows the public half only.
pub struct ActorKeyPair {
    pkcs8: Vec<u8>,
    public: [u8; 32],
}

impl ActorKeyPair {
    /// Makes a new one with the operating system's generator.
    ///
    /// # Errors
    /// When the operating system gives no random bytes.
    pub fn generate() -> Result<Self, ActorKeyError> {
        let pair =
            KeyPair::generate_for(&PKCS_ED25519).map_err(|e| ActorKeyError::Generate(e.to_string()))?;
        let generated = pair.serialize_der();
        let seed = generated
            .get(PKCS8_V1_PREFIX.len()..PKCS8_V1_PREFIX.len() + SEED_BYTES)
            .ok_or_else(|| ActorKeyError::Generate("the generator's answer is too short".to_owned()))?;
        Self::from_pkcs8([&PKCS8_V1_PREFIX[..], seed].concat()).map_err(ActorKeyError::Generate)
    }

    /// Reads one from a PEM file (`BEGIN PRIVATE KEY`).
    ///
    /// # Errors
    /// When the file cannot be read, or holds no Ed25519 key.
    pub fn load(path: &Path) -> Result<Self, ActorKeyError> {
        let refused = |message: String| ActorKeyError::Read { path: path.to_owned(), message };
        let der = PrivatePkcs8KeyDer::from_pem_file(path).map_err(|e| refused(e.to_string()))?;
        Self::from_pkcs8(der.secret_pkcs8_der().to_vec()).map_err(refused)
    }

    /// Writes it as PEM, readable by its owner only. Never replaces a file.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), ActorKeyError> {
        file::write_new(path, &self.to_pem(), file::SECRET).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => ActorKeyError::Exists { path: path.to_owned() },
            _ => ActorKeyError::Write { path: path.to_owned(), source },
        })
    }

    /// The public half as it stands in an actor's record: 64 lower-case hex digits.
    #[must_use]
    pub fn public_hex(&self) -> String {
        hex::encode(self.public)
    }

    /// The secret half as PKCS#8 in PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        // 48 bytes are exactly one line of 64 characters.
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(&self.pkcs8))
    }

    fn from_pkcs8(pkcs8: Vec<u8>) -> Result<Self, String> {
        let der = PrivatePkcs8KeyDer::from(pkcs8.as_slice());
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ED25519).map_err(|e| e.to_string())?;
        let public = pair.der_bytes().try_into().map_err(|_| "its public key has not 32 bytes".to_owned())?;
        Ok(Self { pkcs8, public })
    }
}

impl std::fmt::Debug for ActorKeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActorKeyPair").field("public", &self.public_hex()).finish_non_exhaustive()
    }
}

/// What can go wrong with an actor's key.
#[derive(Debug, thiserror::Error)]
pub enum ActorKeyError {
    /// None could be made.
    #[error("cannot make an Ed25519 key: {0}")]
    Generate(String),
    /// The file holds no such key.
    #[error("{} holds no Ed25519 private key in PEM (PKCS#8): {message}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        message: String,
    },
    /// A key is never replaced.
    #[error("{} exists already; a key is never overwritten: choose another name or move it away", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_survives_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("alice.key");
        let key = ActorKeyPair::generate().expect("a key");
        key.write(&path).expect("written");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(ActorKeyPair::load(&path).expect("read").public_hex(), key.public_hex());
        assert_eq!(key.public_hex().len(), 64);
        assert!(matches!(key.write(&path), Err(ActorKeyError::Exists { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1, "a draft was left behind");
    }

    #[test]
    fn a_key_does_not_show_itself() {
        let key = ActorKeyPair::generate().expect("a key");
        assert_eq!(format!("{key:?}"), format!("ActorKeyPair {{ public: {:?}, .. }}", key.public_hex()));
    }

    #[test]
    fn another_kind_of_key_is_refused_by_file_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p256.key");
        std::fs::write(&path, KeyPair::generate().expect("a key").serialize_pem()).expect("written");
        let error = ActorKeyPair::load(&path).expect_err("no Ed25519 key").to_string();
        assert!(error.contains("p256.key") && error.contains("Ed25519"), "{error}");
    }
}
