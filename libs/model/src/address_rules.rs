//! Rules for which `grpc://` addresses the coordinator dials.
//!
//! Actors choose the addresses of runners and mail recipients, and the coordinator connects there. Without rules any actor
//! could make it probe ports of its own machine, a cloud's metadata service, or anything else that only the coordinator
//! reaches.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::address::Address;
use crate::address_range::{AddressBlock, split_port};
use crate::inner_address::inner_kind;

/// Rules in the order in which they are tried: the first match decides. Without a match, every address is dialed except
/// those special to the machine or its network, such as loopback and link-local addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressRules(Vec<AddressRule>);

/// One rule, as `[!]HOST[:PORT]`; HOST is a name, an IP address, a network such as `10.0.0.0/8`, or `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRule {
    /// True if the rule refuses the addresses that it fits.
    refuses: bool,
    host: HostPattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Any,
    Name(String),
    Network(AddressBlock),
}

/// The text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no rule for addresses; write [!]HOST[:PORT], where HOST is a name, an IP address, a network or *"
)]
pub struct AddressRuleError(String);

/// The coordinator does not dial an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedAddress {
    /// A rule refuses it.
    #[error("this coordinator does not dial {0}: one of its rules for addresses refuses it")]
    ByRule(String),
    /// No rule allows it, and it is special.
    #[error("this coordinator does not dial {address}, {kind}, unless its rules for addresses list it")]
    Special {
        /// The address.
        address: String,
        /// Why it is special.
        kind: &'static str,
    },
}

impl AddressRules {
    /// These rules, in this order.
    #[must_use]
    pub const fn new(rules: Vec<AddressRule>) -> Self {
        Self(rules)
    }

    /// Adds rules that allow exactly these addresses, after the present ones.
    #[must_use]
    pub fn with_addresses<'a>(mut self, addresses: impl IntoIterator<Item = &'a Address>) -> Self {
        for address in addresses {
            if let Address::Grpc { host, port } = address {
                let host = HostPattern::of_host(host);
                self.0.push(AddressRule { refuses: false, host, port: Some(*port) });
            }
        }
        self
    }

    /// Checks an address as given. A name is resolved when it is dialed, and its addresses are checked then.
    ///
    /// # Errors
    /// When the address is certain not to be dialed.
    pub fn check(&self, address: &Address) -> Result<(), RefusedAddress> {
        let Address::Grpc { host, port } = address else { return Ok(()) };
        if let Some(ip) = ip_of(host) {
            return self.check_resolved(host, SocketAddr::new(ip, *port));
        }
        let fits = |rule: &&AddressRule| rule.fits_port(*port) && rule.host.fits_name(host);
        match self.0.iter().find(fits) {
            Some(rule) if rule.refuses => Err(RefusedAddress::ByRule(address.to_string())),
            Some(_) => Ok(()),
            // The name may resolve to an address in a listed network.
            None if is_this_machine(host) && !self.0.iter().any(|rule| !rule.refuses) => {
                Err(RefusedAddress::Special { address: address.to_string(), kind: "this machine" })
            }
            None => Ok(()),
        }
    }

    /// Checks an address that the name of a host resolved to.
    ///
    /// # Errors
    /// When it is not dialed.
    pub fn check_resolved(&self, host: &str, address: SocketAddr) -> Result<(), RefusedAddress> {
        let ip = address.ip().to_canonical();
        let fits = |rule: &&AddressRule| {
            rule.fits_port(address.port()) && (rule.host.fits_name(host) || rule.host.contains(ip))
        };
        match self.0.iter().find(fits) {
            Some(rule) if rule.refuses => Err(RefusedAddress::ByRule(address.to_string())),
            Some(_) => Ok(()),
            None => match inner_kind(ip) {
                Some(kind) => Err(RefusedAddress::Special { address: address.to_string(), kind }),
                None => Ok(()),
            },
        }
    }
}

impl AddressRule {
    fn fits_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }
}

impl HostPattern {
    fn of_host(host: &str) -> Self {
        match ip_of(host) {
            Some(ip) => Self::Network(AddressBlock::of(ip)),
            None => Self::Name(host.to_ascii_lowercase()),
        }
    }

    fn fits_name(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(name) => name.eq_ignore_ascii_case(host.trim_end_matches('.')),
            Self::Network(..) => false,
        }
    }

    fn contains(&self, ip: IpAddr) -> bool {
        matches!(self, Self::Network(block) if block.contains(ip))
    }
}

impl FromStr for AddressRule {
    type Err = AddressRuleError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || AddressRuleError(text.chars().take(200).collect());
        let (refuses, rest) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest));
        let (host, port) = split_port(rest).ok_or_else(error)?;
        let host = match host {
            "*" => HostPattern::Any,
            host => parse_host(host).ok_or_else(error)?,
        };
        Ok(Self { refuses, host, port })
    }
}

impl fmt::Display for AddressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.refuses { "!" } else { "" })?;
        match &self.host {
            HostPattern::Any => f.write_str("*")?,
            HostPattern::Name(name) => f.write_str(name)?,
            HostPattern::Network(AddressBlock { address: ip @ IpAddr::V4(_), prefix }) => {
                write!(f, "{ip}/{prefix}")?;
            }
            HostPattern::Network(AddressBlock { address: ip @ IpAddr::V6(_), prefix }) => {
                write!(f, "[{ip}/{prefix}]")?;
            }
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

fn parse_host(host: &str) -> Option<HostPattern> {
    let plain = host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
    let name = || (plain && !host.is_empty()).then(|| HostPattern::Name(host.to_ascii_lowercase()));
    AddressBlock::parse(host).map(HostPattern::Network).or_else(name)
}

/// The address that a host is, when it is no name.
fn ip_of(host: &str) -> Option<IpAddr> {
    host.trim_matches(['[', ']']).parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

fn is_this_machine(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> AddressRules {
        AddressRules::new(texts.iter().map(|text| text.parse().expect(text)).collect())
    }

    fn dials(rules: &AddressRules, address: &str) -> bool {
        rules.check(&address.parse().expect(address)).is_ok()
    }

    fn resolves(rules: &AddressRules, host: &str, to: &str) -> bool {
        rules.check_resolved(host, to.parse().expect(to)).is_ok()
    }

    #[test]
    fn what_is_special_is_not_dialed_however_it_is_written() {
        let rules = AddressRules::default();
        for special in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "0.0.0.0:1",
            "0.1.2.3:1",
            "169.254.169.254:80",
            "100.100.100.200:80",
            "224.0.0.1:1",
            "255.255.255.255:1",
            "[::1]:1",
            "[::]:1",
            "[fe80::1]:1",
            "[ff02::1]:1",
            "[fd00:ec2::254]:80",
            "[::ffff:127.0.0.1]:1",
            "[::127.0.0.1]:1",
            "[64:ff9b::7f00:1]:1",
            "[64:ff9b::a9fe:a9fe]:80",
            "[2002:7f00:1::]:1",
        ] {
            assert!(!dials(&rules, &format!("grpc://{special}")), "{special}");
            assert!(!resolves(&rules, "a.example", special), "{special}");
        }
        for name in ["localhost", "LOCALHOST", "a.localhost"] {
            assert!(!dials(&rules, &format!("grpc://{name}:1")), "{name}");
        }
        for other in ["10.0.0.1:1", "192.0.2.7:1", "[2001:db8::1]:1", "[fd12::1]:1", "[2002:c000:207::]:1"] {
            assert!(dials(&rules, &format!("grpc://{other}")) && resolves(&rules, "a", other), "{other}");
        }
        assert!(dials(&rules, "grpc://a.example:7706"), "it is checked when it is dialed");
        assert!(dials(&rules, &format!("mycelium:{}", "ab".repeat(32))));
    }

    #[test]
    fn rules_list_what_is_dialed_and_what_is_not() {
        let listed = rules(&["127.0.0.1:7706", "machine-a", "[fe80::1]", "!10.0.0.0/8"]);
        for (address, dialed) in [
            ("grpc://127.0.0.1:7706", true),
            ("grpc://[::ffff:127.0.0.1]:7706", true),
            ("grpc://127.0.0.1:7707", false),
            ("grpc://127.0.0.2:7706", false),
            ("grpc://[fe80::1]:9", true),
            ("grpc://10.1.2.3:1", false),
            ("grpc://11.1.2.3:1", true),
            ("grpc://localhost:7706", true),
        ] {
            assert_eq!(dials(&listed, address), dialed, "{address}");
        }
        // What a name leads to counts, unless the name itself is listed.
        assert!(resolves(&listed, "localhost", "127.0.0.1:7706"));
        assert!(!resolves(&listed, "localhost", "127.0.0.1:7707"));
        assert!(!resolves(&listed, "rebinding.example", "10.0.0.1:1"));
        assert!(resolves(&listed, "machine-a", "127.0.0.1:1"));
        // Only listed addresses.
        let only = rules(&["192.0.2.0/24", "b.example:7706", "!*"]);
        for (address, dialed) in [
            ("grpc://192.0.2.200:1", true),
            ("grpc://192.0.3.1:1", false),
            ("grpc://B.example:7706", true),
            ("grpc://b.example:7707", false),
            ("grpc://c.example:1", false),
        ] {
            assert_eq!(dials(&only, address), dialed, "{address}");
        }
        // A mapped address is the IPv4 address that it stands for.
        let mapped = rules(&["![::ffff:192.0.2.1]"]);
        assert!(!dials(&mapped, "grpc://192.0.2.1:1") && dials(&mapped, "grpc://192.0.2.2:1"));
        let given = ["grpc://127.0.0.1:1".parse().expect("an address")];
        let with = AddressRules::default().with_addresses(&given);
        assert!(dials(&with, "grpc://127.0.0.1:1") && !dials(&with, "grpc://127.0.0.1:2"));
    }

    #[test]
    fn rules_have_a_text() {
        for (text, written) in [
            ("*", "*"),
            ("!*", "!*"),
            ("host-a.example:1", "host-a.example:1"),
            ("127.0.0.1", "127.0.0.1/32"),
            ("10.0.0.0/8:7706", "10.0.0.0/8:7706"),
            ("::1", "[::1/128]"),
            ("![fe80::/10]:9", "![fe80::/10]:9"),
        ] {
            let rule: AddressRule = text.parse().expect(text);
            assert_eq!(rule.to_string(), written);
            assert_eq!(written.parse(), Ok(rule));
        }
        for text in ["", "!", "a b", "10.0.0.0/33", "10.0.0.0/x", "a:0", "a:x", "[::1", "[::1]x", "a/8"] {
            assert!(text.parse::<AddressRule>().is_err(), "{text}");
        }
    }
}
