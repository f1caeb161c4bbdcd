//! Identities: SPIFFE ids, contents of certificates, keys to sign with, tokens of
//! actors, and the development PKI behind `mycora pki`.
//!
//! Nothing here opens a connection. `rpc` verifies chains and asks this crate
//! what the verified leaf means.

pub mod certificate;
pub mod exposure;
mod file;
pub mod key_proof;
pub mod pki;
pub mod signing_key;
pub mod spiffe;
pub mod token;

pub use certificate::{CertificateError, CertificateSummary, LeafIdentity};
pub use exposure::FileExposure;
pub use key_proof::KeyProofError;
pub use pki::{IssueOptions, IssuedCertificate, IssuedFiles, Pki, PkiError};
pub use signing_key::{
    BadSigningKey, BadVerifyingKey, SIGNATURE_BYTES, SigningKey, SigningKeyError, VerifyingKey,
};
pub use spiffe::{Identity, ServiceName, SpiffeError, SpiffeId, TrustDomain};
pub use token::{ActorVerifyingKey, Token, TokenError};
