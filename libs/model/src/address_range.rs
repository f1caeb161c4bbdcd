//! Addresses of the network, as a policy lists them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address, or a block of those that share its leading bits. IPv4 addresses mapped into IPv6 are IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AddressBlock {
    pub(crate) address: IpAddr,
    /// How many leading bits an address shares with it.
    pub(crate) prefix: u8,
}

impl AddressBlock {
    /// The block of one address.
    pub(crate) fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, prefix: longest(address) }
    }

    /// Reads `ADDRESS` or `ADDRESS/BITS`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let Some((address, prefix)) = text.split_once('/') else { return text.parse().ok().map(Self::of) };
        let address: IpAddr = address.parse().ok()?;
        let prefix = digits(prefix)?.parse().ok().filter(|prefix| *prefix <= longest(address))?;
        // A block of mapped addresses would have two readings.
        (address.to_canonical() == address).then_some(Self { address, prefix })
    }

    /// Returns whether an address lies in it.
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        let bits = u32::from(self.prefix);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

const fn longest(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Splits a host, or a block of addresses, from the port behind it. IPv6 addresses with a port stand in brackets.
pub(crate) fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        // A bare IPv6 address has colons of its own, and no port.
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some(port) => Some(digits(port)?.parse().ok().filter(|port| *port != 0)?),
        None => None,
    };
    Some((host, port))
}

/// A number without a sign, which the library would read as well.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

/// An address or a block of them, with one port or every port: `127.0.0.53:53`, `10.0.0.0/8`, `[::1]:6379`,
/// `[fd00::/8]:443`. IPv4 addresses mapped into IPv6 are IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange {
    block: AddressBlock,
    port: Option<u16>,
}

/// The text is no range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no range of addresses; write ADDRESS or ADDRESS/BITS, and :PORT for one port (IPv6 in brackets then)"
)]
pub struct AddressRangeError(String);

impl AddressRange {
    /// Returns whether a port of an address lies in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr, port: u16) -> bool {
        self.block.contains(address) && self.port.is_none_or(|own| own == port)
    }
}

impl FromStr for AddressRange {
    type Err = AddressRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (block, port) = split_port(text)?;
            Some(Self { block: AddressBlock::parse(block)?, port })
        };
        parse().ok_or_else(|| AddressRangeError(text.chars().take(200).collect()))
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block: AddressBlock { address, prefix }, port } = self;
        let block =
            if *prefix == longest(*address) { address.to_string() } else { format!("{address}/{prefix}") };
        match port {
            Some(port) if address.is_ipv6() => write!(f, "[{block}]:{port}"),
            Some(port) => write!(f, "{block}:{port}"),
            None => f.write_str(&block),
        }
    }
}

impl TryFrom<String> for AddressRange {
    type Error = AddressRangeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> Self {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        text.parse().expect(text)
    }

    #[test]
    fn ranges_are_written_as_they_are_read() {
        for text in [
            "127.0.0.53:53",
            "10.0.0.0/8",
            "10.0.0.0/8:443",
            "::1",
            "[::1]:6379",
            "[fd00::/8]:443",
            "0.0.0.0/0",
        ] {
            assert_eq!(range(text).to_string(), text);
        }
        assert_eq!(range("[::ffff:127.0.0.1]:80").to_string(), "127.0.0.1:80");
        assert_eq!(range("10.0.0.1/32").to_string(), "10.0.0.1");
        for text in [
            "",
            "localhost",
            "10.0.0.0/33",
            "::1/129",
            "10.0.0.1:0",
            "10.0.0.1:",
            "10.0.0.1:+1",
            "[::1",
            "[::1]80",
            "::ffff:1.2.3.4/8",
            "10.0.0.0/",
        ] {
            assert!(text.parse::<AddressRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_block_has_the_addresses_that_share_its_bits() {
        let has =
            |text: &str, address: &str, port| range(text).contains(address.parse().expect(address), port);
        assert!(has("10.0.0.0/8", "10.255.0.1", 1) && !has("10.0.0.0/8", "11.0.0.0", 1));
        assert!(has("0.0.0.0/0", "255.255.255.255", 1) && !has("0.0.0.0/0", "::1", 1));
        assert!(has("::/0", "fe80::1", 1) && !has("fe80::/10", "fec0::1", 1));
        assert!(has("127.0.0.1:80", "::ffff:127.0.0.1", 80) && !has("127.0.0.1:80", "127.0.0.1", 81));
        assert!(has("127.0.0.1", "127.0.0.1", 9) && !has("127.0.0.1", "127.0.0.2", 9));
    }
}
