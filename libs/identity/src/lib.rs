//! Who somebody is: SPIFFE ids, what a certificate says, actor keys, and the
//! development PKI behind `mycora pki`.
//!
//! Nothing here opens a connection. `rpc` verifies chains and asks this crate
//! what the verified leaf means.

pub mod actor_key;
pub mod certificate;
mod file;
pub mod pki;
pub mod spiffe;

pub use actor_key::{ActorKeyError, ActorKeyPair};
pub use certificate::{CertificateError, CertificateSummary, LeafIdentity};
pub use pki::{IssueOptions, IssuedCertificate, IssuedFiles, Pki, PkiError};
pub use spiffe::{Identity, ServiceName, SpiffeError, SpiffeId, TrustDomain};
