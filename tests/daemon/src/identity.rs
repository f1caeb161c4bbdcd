//! Identity of a node: a secret in a file, a key, an overlay address.

use std::io;
use std::net::Ipv6Addr;
use std::path::Path;

use sha2::{Digest, Sha256};

/// A node's identity. The real daemon makes the key on a curve and the address with another hash; here
/// both only have to follow from the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Public key of the node.
    pub key: [u8; 32],
    /// Overlay address of the node, within `400::/7`.
    pub ip: Ipv6Addr,
}

impl Identity {
    /// From a secret.
    #[must_use]
    pub fn from_secret(secret: &[u8; 32]) -> Self {
        let key = Sha256::digest(secret).into();
        Self { key, ip: ip_of(&key) }
    }

    /// A new one.
    #[must_use]
    pub fn random() -> Self {
        Self::from_secret(&rand::random())
    }

    /// From a file with 32 bytes, which is made if need be.
    ///
    /// # Errors
    /// When it can neither be read nor written, or is of another length.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        if !path.exists() {
            std::fs::write(path, rand::random::<[u8; 32]>())?;
        }
        let bytes = std::fs::read(path)?;
        let secret = <[u8; 32]>::try_from(bytes.as_slice())
            .map_err(|_| io::Error::other("a key file has 32 bytes"))?;
        Ok(Self::from_secret(&secret))
    }

    /// Returns the public key as hexadecimal text.
    #[must_use]
    pub fn key_text(&self) -> String {
        hex::encode(self.key)
    }
}

/// The address of the node with this key.
pub(crate) fn ip_of(key: &[u8; 32]) -> Ipv6Addr {
    let hash: [u8; 32] = Sha256::digest(key).into();
    let mut octets = [0; 16];
    octets.copy_from_slice(&hash[..16]);
    octets[0] = 0x04 | (octets[0] & 1);
    Ipv6Addr::from(octets)
}
