//! Classification of addresses: public, or leading back to this machine or to services that only its owner may reach.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use model::inner_address::{embedded_v4, inner_kind};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Returns whether an address belongs to the public network, by the registry of special addresses of the IANA.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match (address.segments(), embedded_v4(address)) {
            // An obsolete form (IPv4-compatible addresses).
            ([0, 0, 0, 0, 0, 0, ..], _) => false,
            (_, Some(inside)) => is_public_v4(inside),
            (_, None) => is_public_v6(address),
        },
    }
}

/// Returns whether an address is an inner one ([`inner_kind`]), which scripts may reach only if it is listed. Does not
/// cover the addresses assigned to this machine; [`leads_here`] knows those.
#[must_use]
pub fn is_inner(address: IpAddr) -> bool {
    inner_kind(address).is_some()
}

/// Asks the kernel whether it would deliver packets for an address to this machine, or to several at once. Neither holds
/// for an address without a route.
///
/// # Errors
/// When the kernel does not answer.
pub fn leads_here(address: IpAddr) -> io::Result<bool> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // Routes, which are number 0.
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    rustix::net::sendto(&socket, &route_request(address), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    route_answer(&socket)
}

/// Returns the name servers of this machine that are inner addresses: jobs may query them only where they are listed.
#[must_use]
pub fn inner_name_servers() -> Vec<IpAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    name_servers(&text).filter(|server| is_inner(*server) || leads_here(*server).unwrap_or(false)).collect()
}

fn name_servers(text: &str) -> impl Iterator<Item = IpAddr> {
    let servers = text.lines().filter_map(|line| line.trim_start().strip_prefix("nameserver"));
    // A link-local address may carry the name of its interface.
    servers.filter_map(|rest| rest.split_ascii_whitespace().next()?.split('%').next()?.parse().ok())
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(a == 0
        || a >= 240
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || (a, b & 0xc0) == (100, 64)
        || (a, b, c) == (192, 0, 0)
        || (a, b & 0xfe) == (198, 18))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // Teredo, benchmarks, documentation.
        [0x2001, 0 | 2 | 0xdb8, ..] => false,
        // Global unicast, as assigned to the public.
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

/// `RTM_GETROUTE` for one address: a header of 16 bytes, a route of 12, and the destination.
fn route_request(address: IpAddr) -> Vec<u8> {
    let (family, bytes) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let bits = u8::try_from(bytes.len() * 8).unwrap_or(u8::MAX);
    let attribute = u16::try_from(4 + bytes.len()).unwrap_or(u16::MAX);
    let mut request = Vec::with_capacity(HEADER_BYTES + ROUTE_BYTES + 20);
    request.extend(
        u32::try_from(HEADER_BYTES + ROUTE_BYTES)
            .unwrap_or_default()
            .saturating_add(attribute.into())
            .to_ne_bytes(),
    );
    request.extend(libc::RTM_GETROUTE.to_ne_bytes());
    request.extend(u16::try_from(libc::NLM_F_REQUEST).unwrap_or_default().to_ne_bytes());
    // Sequence number and port id: neither is needed for one question.
    request.extend([0; 8]);
    request.extend([u8::try_from(family).unwrap_or_default(), bits]);
    request.extend([0; ROUTE_BYTES - 2]);
    request.extend(attribute.to_ne_bytes());
    request.extend(libc::RTA_DST.to_ne_bytes());
    request.extend(bytes);
    request
}

const HEADER_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;
/// Offset of the route's type behind the header.
const ROUTE_KIND_AT: usize = HEADER_BYTES + 7;

fn route_answer(socket: &OwnedFd) -> io::Result<bool> {
    let mut answer = [0; 4096];
    let (length, _) = rustix::net::recv(socket, &mut answer[..], RecvFlags::empty())?;
    let answer = &answer[..length];
    let malformed =
        || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer about a route is cut off");
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    match kind.ok_or_else(malformed)? {
        libc::RTM_NEWROUTE => {
            let route = *answer.get(ROUTE_KIND_AT).ok_or_else(malformed)?;
            Ok(!matches!(
                route,
                libc::RTN_UNICAST
                    | libc::RTN_UNREACHABLE
                    | libc::RTN_BLACKHOLE
                    | libc::RTN_PROHIBIT
                    | libc::RTN_THROW
            ))
        }
        // An error reply: the negative error number comes first behind the header.
        _ => {
            let number = answer.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|number| number.try_into().ok());
            let number = -i32::from_ne_bytes(number.ok_or_else(malformed)?);
            match number {
                libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES => Ok(false),
                _ => Err(io::Error::from_raw_os_error(number)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn inner_addresses_are_never_public() {
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "100.100.100.200",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
        ] {
            assert!(is_inner(address(text)) && !is_public(address(text)), "{text}");
        }
        for text in [
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "2001:db8::1",
        ] {
            assert!(!is_inner(address(text)) && !is_public(address(text)), "{text}");
        }
        for text in ["1.1.1.1", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(!is_inner(address(text)) && is_public(address(text)), "{text}");
        }
    }

    #[test]
    fn the_kernel_decides_which_addresses_lead_here() {
        for text in ["127.0.0.1", "127.200.0.1", "224.0.0.251", "255.255.255.255"] {
            assert!(leads_here(address(text)).expect("an answer"), "{text}");
        }
        for text in ["192.0.2.1", "2001:db8::1"] {
            assert!(!leads_here(address(text)).expect("an answer"), "{text}");
        }
    }

    #[test]
    fn name_servers_are_read_as_resolvers_read_them() {
        let text = "# nameserver 9.9.9.9\nnameserver 127.0.0.53\n nameserver\tfe80::1%eth0 # x\nsearch a\nnameserver\nnameserver x\n";
        assert_eq!(name_servers(text).collect::<Vec<_>>(), [address("127.0.0.53"), address("fe80::1")]);
    }
}
