//! Ed25519 keys: those that actors, gateways, supervisors and whole coordinators sign with.
//!
//! A key file holds PKCS#8 version 1 in PEM (RFC 8410, 7), which every OpenSSL and every other library reads.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use ed25519_dalek::{Signature, Signer as _};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::exposure::{self, FileExposure};
use crate::file;

/// Bytes that PKCS#8 version 1 has before the seed. Version 2, with the public key behind it, is refused by OpenSSL before
/// 3.0 and by some other libraries.
const PKCS8_V1_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// The length of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// A key to sign with. Its `Debug` form shows the public half only, and its memory is wiped when it is dropped.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// Makes a new one, from the operating system's random bytes.
    #[must_use]
    pub fn generate() -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&Zeroizing::new(rand::random())))
    }

    /// Reads one from a PEM file (`BEGIN PRIVATE KEY`).
    ///
    /// # Errors
    /// [`SigningKeyError::Read`] when the file cannot be read, or holds no Ed25519 key; [`SigningKeyError::Exposed`]
    /// when others can read or change it.
    pub fn load(path: &Path) -> Result<Self, SigningKeyError> {
        let refused = |message: String| SigningKeyError::Read { path: path.to_owned(), message };
        let pem = std::fs::read(path).map(Zeroizing::new).map_err(|error| refused(error.to_string()))?;
        let key = Self::from_pem(&pem).map_err(|BadSigningKey(message)| refused(message))?;
        // After parsing: a file that is no key at all is reported as that.
        exposure::check_secret(path).map_err(SigningKeyError::Exposed)?;
        Ok(key)
    }

    /// Reads one from PEM (`BEGIN PRIVATE KEY`).
    ///
    /// # Errors
    /// The bytes hold no Ed25519 key.
    pub fn from_pem(pem: &[u8]) -> Result<Self, BadSigningKey> {
        let refused = |error: &dyn fmt::Display| BadSigningKey(error.to_string());
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|error| refused(&error))?;
        let der = Zeroizing::new(der);
        let key = ed25519_dalek::SigningKey::from_pkcs8_der(der.secret_pkcs8_der());
        key.map(Self).map_err(|error| refused(&error))
    }

    /// Reads the one in a file, which is made with a new one when it is not there.
    ///
    /// # Errors
    /// Any [`SigningKeyError`] but [`SigningKeyError::Exists`].
    pub fn load_or_make(path: &Path) -> Result<Self, SigningKeyError> {
        if !path.exists() {
            match Self::generate().write(path) {
                // Another process was faster.
                Ok(()) | Err(SigningKeyError::Exists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Self::load(path)
    }

    /// Writes it as PEM, readable by its owner only. Never replaces a file.
    ///
    /// # Errors
    /// [`SigningKeyError::Exists`], [`SigningKeyError::Write`].
    pub fn write(&self, path: &Path) -> Result<(), SigningKeyError> {
        file::write_new(path, &self.to_pem(), file::SECRET).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => SigningKeyError::Exists { path: path.to_owned() },
            _ => SigningKeyError::Write { path: path.to_owned(), source },
        })
    }

    /// The public half.
    #[must_use]
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey(self.0.verifying_key())
    }

    /// Signs these bytes.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> [u8; SIGNATURE_BYTES] {
        self.0.sign(bytes).to_bytes()
    }

    /// The secret half as PKCS#8 in PEM, which is wiped when it is dropped.
    #[must_use]
    pub fn to_pem(&self) -> Zeroizing<String> {
        let der = Zeroizing::new([&PKCS8_V1_PREFIX[..], self.0.as_bytes()].concat());
        let base64 = Zeroizing::new(STANDARD.encode(&*der));
        // 48 bytes are exactly one line of 64 characters.
        Zeroizing::new(format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", *base64))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(of {})", self.verifying_key())
    }
}

/// A public key, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct VerifyingKey(ed25519_dalek::VerifyingKey);

impl VerifyingKey {
    /// Returns true when the holder of the secret half has signed these bytes. Strict: one signature has one spelling.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.0.verify_strict(bytes, &signature).is_ok())
    }

    /// Returns the bytes of the key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// Returns the key's name in the `kid` of a token: the thumbprint of RFC 7638, as RFC 8037 writes such keys.
    #[must_use]
    pub fn thumbprint(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.as_bytes());
        let jwk = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
        URL_SAFE_NO_PAD.encode(Sha256::digest(jwk))
    }
}

/// Bytes that are no private key. Holds the parser's message, and nothing of the bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no Ed25519 private key in PEM (PKCS#8): {0}")]
pub struct BadSigningKey(String);

/// The text is no public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadVerifyingKey {
    /// The text has another form.
    #[error("an Ed25519 public key is written as 64 lower-case hex digits")]
    Form,
    /// These bytes are no point of the curve, or one that many signatures fit.
    #[error("these 64 digits are not the public half of an Ed25519 key")]
    Weak,
}

impl FromStr for VerifyingKey {
    type Err = BadVerifyingKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(BadVerifyingKey::Form);
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| BadVerifyingKey::Form)?;
        let key = ed25519_dalek::VerifyingKey::from_bytes(&bytes).map_err(|_| BadVerifyingKey::Weak)?;
        if key.is_weak() {
            return Err(BadVerifyingKey::Weak);
        }
        Ok(Self(key))
    }
}

impl fmt::Display for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Errors of a key file.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    /// Others can read or change the file.
    #[error("the key cannot be used")]
    Exposed(#[source] FileExposure),
    /// The file holds no such key.
    #[error("{} holds no Ed25519 private key in PEM (PKCS#8): {message}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Message of the reader.
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
        /// Error of the operating system.
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
        let key = SigningKey::load_or_make(&path).expect("a key");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(SigningKey::load_or_make(&path).expect("read").verifying_key(), key.verifying_key());
        let read = SigningKey::from_pem(key.to_pem().as_bytes()).expect("its own form");
        assert_eq!(read.verifying_key(), key.verifying_key());
        let refused = SigningKey::from_pem(b"canary").expect_err("no key").to_string();
        assert!(refused.starts_with("no Ed25519 private key") && !refused.contains("canary"), "{refused}");
        assert!(matches!(key.write(&path), Err(SigningKeyError::Exists { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1, "a draft was left behind");
    }

    /// A key that loses this bound is no longer wiped.
    #[test]
    fn keys_are_wiped_when_they_are_dropped() {
        fn is_wiped<T: zeroize::ZeroizeOnDrop>(_: &T) {}
        let key = SigningKey::generate();
        is_wiped(&key.0);
        is_wiped(&key.to_pem());
    }

    #[test]
    fn a_key_that_others_read_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("alice.key");
        SigningKey::generate().write(&path).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).expect("it is ours");
        assert!(matches!(SigningKey::load(&path), Err(SigningKeyError::Exposed(_))));
    }

    #[test]
    fn other_keys_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p256.key");
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
        crate::file::write(&path, &pair.serialize_pem(), crate::file::SECRET).expect("written");
        let error = SigningKey::load(&path).expect_err("no Ed25519 key").to_string();
        assert!(error.contains("p256.key") && error.contains("Ed25519"), "{error}");
    }

    /// RFC 8032, 7.1, test 2.
    #[test]
    fn signatures_are_those_of_the_standard() {
        let hex32 = |text: &str| -> [u8; 32] { hex::decode(text).expect("hex").try_into().expect("32") };
        let seed = hex32("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb");
        let key = SigningKey(ed25519_dalek::SigningKey::from_bytes(&seed));
        let public = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
        assert_eq!(key.verifying_key().to_string(), public);
        let signature = key.sign(&[0x72]);
        assert_eq!(
            hex::encode(signature),
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
             085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        );
        let public: VerifyingKey = public.parse().expect("a key");
        assert!(public.verifies(&[0x72], &signature));
        assert!(!public.verifies(&[0x73], &signature));
        assert!(!public.verifies(&[0x72], &signature[..63]));
    }

    /// RFC 8037, appendix A.3.
    #[test]
    fn thumbprints_are_those_of_the_standard() {
        let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        let key: VerifyingKey = key.parse().expect("a key");
        assert_eq!(key.thumbprint(), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    #[test]
    fn weak_keys_are_refused() {
        // The neutral element, for which a signature of zeros fits everything.
        let neutral = format!("01{}", "00".repeat(31));
        assert_eq!(neutral.parse::<VerifyingKey>(), Err(BadVerifyingKey::Weak));
        assert_eq!("AB".repeat(32).parse::<VerifyingKey>(), Err(BadVerifyingKey::Form));
        assert_eq!("ab".repeat(31).parse::<VerifyingKey>(), Err(BadVerifyingKey::Form));
    }
}
