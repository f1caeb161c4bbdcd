//! Addresses that lead to a machine itself, or to services that only its neighbors may use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The metadata service of Alibaba's machines; those of others are link-local.
const METADATA_V4: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
/// The metadata services of Amazon's and Google's machines.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// Returns why an address is an inner one, if it is: it leads to the machine that uses it, to its neighbors on one link, to
/// several machines at once, or to the service that gives a virtual machine its secrets. Scripts reach none of these, and
/// the coordinator dials none, unless the address is listed. Private networks are not among them.
#[must_use]
pub fn inner_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => inner_kind_v4(address),
        IpAddr::V6(address) => match embedded_v4(address) {
            Some(inside) => inner_kind_v4(inside),
            None => inner_kind_v6(address),
        },
    }
}

/// Returns the IPv4 address that an IPv6 address represents, or is translated to on its way: mapped, compatible, NAT64,
/// 6to4.
#[must_use]
pub fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let from = |high: u16, low: u16| Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match address.segments() {
        // Not the unspecified address and loopback, which are IPv6's own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => from(high, low),
        [0x2002, high, low, ..] => from(high, low),
        _ => None,
    }
}

fn inner_kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    match address {
        // 0.0.0.0/8 is this network; Linux connects to this machine.
        _ if address.octets()[0] == 0 => Some("an unspecified address"),
        _ if address.is_loopback() => Some("a loopback address"),
        _ if address.is_link_local() => Some("a link-local address, as of metadata services"),
        METADATA_V4 => Some("an address of a metadata service"),
        _ if address.is_multicast() => Some("a multicast address"),
        _ if address.is_broadcast() => Some("the broadcast address"),
        _ if address.octets()[0] >= 240 => Some("a reserved address"),
        _ => None,
    }
}

fn inner_kind_v6(address: Ipv6Addr) -> Option<&'static str> {
    let [first, ..] = address.segments();
    match address {
        Ipv6Addr::UNSPECIFIED => Some("an unspecified address"),
        Ipv6Addr::LOCALHOST => Some("a loopback address"),
        _ if METADATA_V6.contains(&address) => Some("an address of a metadata service"),
        // Includes the former site-local addresses.
        _ if first & 0xff80 == 0xfe80 => Some("a link-local address"),
        _ if address.is_multicast() => Some("a multicast address"),
        _ => None,
    }
}
