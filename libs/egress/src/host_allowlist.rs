//! Which hosts may be reached, and which addresses.

use std::net::IpAddr;
use std::sync::Arc;

use addresses::{is_public, leads_here};

use crate::resolve::{HostResolver, SystemResolver};

/// The hosts that may be reached.
#[derive(Debug, Clone)]
pub struct HostAllowlist {
    entries: Vec<HostAllowlistEntry>,
    reach: AllowedAddresses,
    resolver: Arc<dyn HostResolver>,
}

/// Addresses to which the names of a list may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AllowedAddresses {
    /// Public ones, and those that stand in the list themselves.
    PublicOrListed,
    /// Public ones.
    Public,
    /// All.
    Any,
}

/// `*`, `example.com`, `*.example.com`, `10.0.0.7`, `[::1]`, each with `:port` or without.
#[derive(Debug, Clone)]
struct HostAllowlistEntry {
    host: String,
    port: Option<u16>,
}

impl HostAllowlist {
    /// From the texts of a list: `*`, `example.com`, `*.example.com`, `10.0.0.7`, `[::1]`, each with `:port` or without.
    #[must_use]
    pub fn new(hosts: &[String]) -> Self {
        Self::with(
            hosts.iter().map(|host| HostAllowlistEntry::new(host)).collect(),
            AllowedAddresses::PublicOrListed,
        )
    }

    /// A list whose entries hold for one port each: their own, or else `port`. Addresses that are not public, or are this
    /// machine's, are reached only with `is_private`, even when they stand in the list themselves.
    #[must_use]
    pub fn exact(hosts: &[String], port: u16, is_private: bool) -> Self {
        let entry = |text: &String| {
            let entry = HostAllowlistEntry::new(text);
            HostAllowlistEntry { port: entry.port.or(Some(port)), ..entry }
        };
        let reach = if is_private { AllowedAddresses::Any } else { AllowedAddresses::Public };
        Self::with(hosts.iter().map(entry).collect(), reach)
    }

    fn with(entries: Vec<HostAllowlistEntry>, reach: AllowedAddresses) -> Self {
        Self { entries, reach, resolver: Arc::new(SystemResolver) }
    }

    /// Has another resolver than the system's say where names lead. Its answers are looked at like the system's.
    #[must_use]
    pub fn with_resolver(self, resolver: Arc<dyn HostResolver>) -> Self {
        Self { resolver, ..self }
    }

    /// Returns what says where names lead.
    pub(crate) fn resolver(&self) -> &dyn HostResolver {
        &*self.resolver
    }

    /// Returns true if the list has this host (a name or an address) with this port.
    #[must_use]
    pub fn permits_host(&self, host: &str, port: u16) -> bool {
        let host = bare(host);
        self.entries
            .iter()
            .any(|entry| entry.matches(&host) && entry.port.is_none_or(|allowed| allowed == port))
    }

    /// Returns true if an allowed host may be reached at this address: a public one that is not this machine's, or one
    /// that the list names itself. So no name can lead into the networks behind this machine, or to its own ports.
    /// A list of [`HostAllowlist::exact`] says by itself whether those are reached.
    #[must_use]
    pub fn permits_address(&self, address: IpAddr, port: u16) -> bool {
        let is_outside = || is_public(address) && !leads_here(address).unwrap_or(true);
        let is_listed = || {
            self.entries.iter().any(|entry| {
                entry.host.parse() == Ok(address) && entry.port.is_none_or(|allowed| allowed == port)
            })
        };
        match self.reach {
            AllowedAddresses::PublicOrListed => is_outside() || is_listed(),
            AllowedAddresses::Public => is_outside(),
            AllowedAddresses::Any => true,
        }
    }
}

impl HostAllowlistEntry {
    fn new(text: &str) -> Self {
        let (host, port) = match text.rsplit_once(':') {
            // The colons of a bare IPv6 address separate no port.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port.parse().ok()),
            _ => (text, None),
        };
        Self { host: bare(host), port }
    }

    fn matches(&self, host: &str) -> bool {
        match self.host.strip_prefix('*') {
            Some("") => true,
            Some(domain) if domain.starts_with('.') => {
                host.strip_suffix(domain).is_some_and(|name| !name.is_empty())
            }
            _ => self.host == host,
        }
    }
}

/// A host as it is compared: in lower case, without brackets or a dot at the end.
fn bare(host: &str) -> String {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let host = host.strip_suffix('.').unwrap_or(host);
    // An address has several forms.
    host.parse::<IpAddr>().map_or_else(|_| host.to_ascii_lowercase(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &[&str]) -> HostAllowlist {
        HostAllowlist::new(&list.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_list_has_names_and_ports() {
        let hosts =
            hosts(&["Example.com", "api.test:8443", "*.many.test", "10.0.0.7", "[::1]:80", "fe80::1"]);
        for (host, port) in [
            ("example.com", 80),
            ("EXAMPLE.COM.", 443),
            ("api.test", 8443),
            ("a.many.test", 1),
            ("10.0.0.7", 9),
            ("[::1]", 80),
            ("[0:0::1]", 80),
            ("[fe80::1]", 7),
        ] {
            assert!(hosts.permits_host(host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("sub.example.com", 80),
            ("api.test", 443),
            ("many.test", 1),
            (".many.test", 1),
            ("notmany.test", 1),
            ("[::1]", 81),
            ("10.0.0.8", 9),
            ("*", 1),
        ] {
            assert!(!hosts.permits_host(host, port), "{host}:{port}");
        }
    }

    #[test]
    fn an_exact_list_has_one_port_for_each_entry() {
        let list = ["pay.test".to_owned(), "api.test:8443".to_owned()];
        let hosts = HostAllowlist::exact(&list, 443, false);
        assert!(hosts.permits_host("pay.test", 443) && hosts.permits_host("api.test", 8443));
        assert!(!hosts.permits_host("pay.test", 22) && !hosts.permits_host("api.test", 443));
    }

    #[test]
    fn private_addresses_have_to_be_named() {
        let any = hosts(&["*"]);
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "::7f00:1",
        ] {
            let address: IpAddr = address.parse().expect("an address");
            assert!(any.permits_host(&address.to_string(), 80));
            assert!(!any.permits_address(address, 80), "{address}");
            assert!(hosts(&["*", &address.to_string()]).permits_address(address, 80), "{address}");
        }
        for address in ["1.1.1.1", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(any.permits_address(address.parse().expect("an address"), 80), "{address}");
        }
        for address in ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1"] {
            let list = [address.to_owned()];
            let address = address.parse().expect("an address");
            assert!(
                !HostAllowlist::exact(&list, 80, false).permits_address(address, 80),
                "{address} is only listed"
            );
            assert!(HostAllowlist::exact(&list, 80, true).permits_address(address, 80), "{address}");
        }
        let with_port = hosts(&["localhost", "127.0.0.1:81"]);
        let loopback = "127.0.0.1".parse().expect("an address");
        assert!(with_port.permits_address(loopback, 81) && !with_port.permits_address(loopback, 80));
    }
}
