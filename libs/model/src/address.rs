//! Where something can be reached. One syntax everywhere.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::actor::is_key;
use crate::limits;
use serde::{Deserialize, Serialize};

/// `mycelium:<64 hex>`, `mycelium:[<ipv6>]` or `grpc://host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A node of the overlay by its public key, 64 lower-case hex digits.
    MyceliumKey(String),
    /// A node of the overlay by its address in `400::/7`.
    MyceliumIp(Ipv6Addr),
    /// A gRPC server reached over mTLS.
    Grpc {
        /// Host name, IPv4 address, or IPv6 address in brackets.
        host: String,
        /// TCP port, never 0.
        port: u16,
    },
}

/// The text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address; write mycelium:<64 hex digits>, mycelium:[<ipv6>] or grpc://host:port")]
pub struct AddressError(pub String);

/// Reason why an address is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressInputError {
    /// The text is not an address.
    #[error("{0}")]
    NoAddress(AddressError),
    /// The host is longer than names are.
    #[error("a host has at most {max} bytes, not {found}", max = limits::HOST_BYTES_MAX)]
    LongHost {
        /// How long it is.
        found: usize,
    },
}

impl Address {
    /// Parses an address that is to be stored. Addresses stored before hosts had a limit are read without it.
    ///
    /// # Errors
    /// When it is no address, or too long.
    pub fn from_input(text: &str) -> Result<Self, AddressInputError> {
        match text.parse().map_err(AddressInputError::NoAddress)? {
            Self::Grpc { host, .. } if host.len() > limits::HOST_BYTES_MAX => {
                Err(AddressInputError::LongHost { found: host.len() })
            }
            address => Ok(address),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || AddressError(text.chars().take(200).collect());
        if let Some(rest) = text.strip_prefix("grpc://") {
            let (host, port) = rest.rsplit_once(':').ok_or_else(error)?;
            let port: u16 = port.parse().ok().filter(|port| *port != 0).ok_or_else(error)?;
            let in_brackets = host.starts_with('[') && host.ends_with(']');
            let plain = host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
            let valid = if in_brackets { host[1..host.len() - 1].parse::<Ipv6Addr>().is_ok() } else { plain };
            if host.is_empty() || !valid {
                return Err(error());
            }
            return Ok(Self::Grpc { host: host.to_owned(), port });
        }
        let rest = text.strip_prefix("mycelium:").ok_or_else(error)?;
        if let Some(ip) = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return ip.parse().map(Self::MyceliumIp).map_err(|_| error());
        }
        if is_key(rest) { Ok(Self::MyceliumKey(rest.to_owned())) } else { Err(error()) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MyceliumKey(key) => write!(f, "mycelium:{key}"),
            Self::MyceliumIp(ip) => write!(f, "mycelium:[{ip}]"),
            Self::Grpc { host, port } => write!(f, "grpc://{host}:{port}"),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_given_has_a_limit_and_one_that_was_kept_is_read() {
        let address = |len: usize| format!("grpc://{}:1", "h".repeat(len));
        assert!(Address::from_input(&address(limits::HOST_BYTES_MAX)).is_ok());
        let longer = address(limits::HOST_BYTES_MAX + 1);
        assert_eq!(Address::from_input(&longer), Err(AddressInputError::LongHost { found: 254 }));
        assert!(longer.parse::<Address>().is_ok());
        assert!(matches!(Address::from_input("x"), Err(AddressInputError::NoAddress(_))));
    }

    #[test]
    fn the_three_forms() {
        let key = format!("mycelium:{}", "ab".repeat(32));
        for text in [
            key.as_str(),
            "mycelium:[4e3:e7db::1]",
            "grpc://127.0.0.1:7706",
            "grpc://[::1]:1",
            "grpc://host-a.example:9",
        ] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "grpc://",
            "grpc://host",
            "grpc://host:0",
            "grpc://a b:1",
            "grpc://[x]:1",
            "mycelium:12",
            "http://a:1",
            "grpc://:1",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
