//! Connections: where they may lead, and making them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use addresses::{is_inner, leads_here};
use model::AddressRange;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::caller::SyscallCaller;
use super::notification::PendingSyscall;
use super::send::SocketMessage;
use super::{AllowedSyscall, checked};

/// The longest address that the kernel takes.
const ADDRESS_BYTES_MAX: usize = 128;
/// The shortest addresses of IPv4 and IPv6.
const V4_BYTES: usize = 16;
const V6_BYTES: usize = 24;

/// Something done on a duplicate of a script's socket.
pub(super) enum SocketOperation {
    Connect {
        socket: OwnedFd,
        address: Vec<u8>,
        /// The call completes only when the other side has answered.
        waits: bool,
    },
    Bind {
        socket: OwnedFd,
        address: Vec<u8>,
    },
    Send {
        socket: OwnedFd,
        message: SocketMessage,
        waits: bool,
    },
}

impl SocketOperation {
    /// Does it, unless it could take its time.
    pub(super) fn attempt(&self) -> Option<Result<i64, Errno>> {
        match self {
            Self::Connect { waits: true, .. } => None,
            Self::Connect { .. } | Self::Bind { .. } => Some(self.execute()),
            // One that connects as well would be half done.
            Self::Send { message, waits: true, .. } if message.connects() => None,
            Self::Send { socket, message, waits } => match message.send(socket, libc::MSG_DONTWAIT) {
                Err(Errno::AGAIN) if *waits => None,
                other => Some(other),
            },
        }
    }

    /// Does it, however long that takes.
    pub(super) fn execute(&self) -> Result<i64, Errno> {
        let length = |address: &[u8]| libc::socklen_t::try_from(address.len()).map_err(|_| Errno::INVAL);
        match self {
            Self::Connect { socket, address, .. } => {
                // SAFETY: the kernel copies as many bytes as there are.
                checked(unsafe {
                    libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length(address)?)
                })
            }
            Self::Bind { socket, address } => {
                // SAFETY: the kernel copies as many bytes as there are.
                checked(unsafe { libc::bind(socket.as_raw_fd(), address.as_ptr().cast(), length(address)?) })
            }
            Self::Send { socket, message, .. } => message.send(socket, 0),
        }
    }
}

/// Destination that a socket address names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SocketDestination {
    /// Nothing: a connection is given up.
    Nothing,
    /// A port of an address.
    Port(IpAddr, u16),
}

/// Reads an address as the kernel does.
pub(super) fn parse_address(address: &[u8]) -> Result<SocketDestination, Errno> {
    let number = |at: usize| Some([*address.get(at)?, *address.get(at + 1)?]);
    let family = number(0).map(u16::from_ne_bytes).ok_or(Errno::INVAL)?;
    let port = || number(2).map(u16::from_be_bytes).ok_or(Errno::INVAL);
    match AddressFamily::from_raw(family) {
        AddressFamily::UNSPEC => Ok(SocketDestination::Nothing),
        AddressFamily::INET if address.len() >= V4_BYTES => {
            let bytes: [u8; 4] = address[4..8].try_into().map_err(|_| Errno::INVAL)?;
            Ok(SocketDestination::Port(Ipv4Addr::from(bytes).into(), port()?))
        }
        AddressFamily::INET6 if address.len() >= V6_BYTES => {
            let bytes: [u8; 16] = address[8..24].try_into().map_err(|_| Errno::INVAL)?;
            Ok(SocketDestination::Port(Ipv6Addr::from(bytes).into(), port()?))
        }
        AddressFamily::INET | AddressFamily::INET6 => Err(Errno::INVAL),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Copies an address of this length.
pub(super) fn copied(caller: &SyscallCaller<'_>, address: u64, length: i32) -> Result<Vec<u8>, Errno> {
    let length = usize::try_from(length).ok().filter(|length| *length <= ADDRESS_BYTES_MAX);
    caller.bytes(address, length.ok_or(Errno::INVAL)?)
}

/// Refuses an inner address, or one of this machine, unless it is listed.
pub(super) fn check(address: IpAddr, port: u16, listed: &[AddressRange]) -> Result<(), Errno> {
    if listed.iter().any(|range| range.contains(address, port)) {
        return Ok(());
    }
    let address = address.to_canonical();
    // Where the kernel does not say it, it is refused as well.
    if is_inner(address) || leads_here(address).unwrap_or(true) { Err(Errno::ACCESS) } else { Ok(()) }
}

/// Returns whether a socket is one of the network, and not the end of a pair.
pub(super) fn is_of_network(socket: &OwnedFd) -> Result<bool, Errno> {
    let family = sockopt::socket_domain(socket)?;
    Ok(family == AddressFamily::INET || family == AddressFamily::INET6)
}

/// Returns whether calls on it wait until they are done.
pub(super) fn is_blocking(socket: &OwnedFd) -> Result<bool, Errno> {
    Ok(!rustix::fs::fcntl_getfl(socket)?.contains(rustix::fs::OFlags::NONBLOCK))
}

/// `connect(socket, address, length)`
pub(super) fn connect(
    caller: &SyscallCaller<'_>,
    call: &PendingSyscall,
    listed: &[AddressRange],
) -> Result<AllowedSyscall, Errno> {
    let socket = caller.descriptor(call.int(0))?;
    let mut address = copied(caller, call.args[1], call.int(2))?;
    if !is_of_network(&socket)? {
        return Err(Errno::ACCESS);
    }
    match parse_address(&address)? {
        // Nothing else of it means anything.
        SocketDestination::Nothing => address[2..].fill(0),
        SocketDestination::Port(address, port) => check(address, port, listed)?,
    }
    let waits = sockopt::socket_type(&socket)? == SocketType::STREAM && is_blocking(&socket)?;
    Ok(AllowedSyscall::Act(SocketOperation::Connect { socket, address, waits }))
}

/// `bind(socket, address, length)`: only a port that the kernel chooses, as a connection has one anyway. Others are those of
/// services, and who has one is taken for it.
pub(super) fn bind(caller: &SyscallCaller<'_>, call: &PendingSyscall) -> Result<AllowedSyscall, Errno> {
    let socket = caller.descriptor(call.int(0))?;
    let address = copied(caller, call.args[1], call.int(2))?;
    if !is_of_network(&socket)? {
        return Err(Errno::ACCESS);
    }
    match parse_address(&address)? {
        SocketDestination::Port(_, 0) => Ok(AllowedSyscall::Act(SocketOperation::Bind { socket, address })),
        SocketDestination::Port(..) => Err(Errno::ACCESS),
        SocketDestination::Nothing => Err(Errno::AFNOSUPPORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(family: i32, address: [u8; 4], port: u16) -> Vec<u8> {
        let mut bytes = u16::try_from(family).expect("a family").to_ne_bytes().to_vec();
        bytes.extend(port.to_be_bytes());
        bytes.extend(address);
        bytes.extend([0; 8]);
        bytes
    }

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        let loopback = v4(libc::AF_INET, [127, 0, 0, 1], 80);
        assert_eq!(parse_address(&loopback), Ok(SocketDestination::Port(Ipv4Addr::LOCALHOST.into(), 80)));
        assert_eq!(parse_address(&loopback[..15]), Err(Errno::INVAL));
        assert_eq!(parse_address(&v4(libc::AF_UNSPEC, [127, 0, 0, 1], 80)), Ok(SocketDestination::Nothing));
        assert_eq!(parse_address(&v4(libc::AF_UNIX, [127, 0, 0, 1], 80)), Err(Errno::AFNOSUPPORT));
        assert_eq!(parse_address(&[]), Err(Errno::INVAL));
        let mut six = u16::try_from(libc::AF_INET6).expect("a family").to_ne_bytes().to_vec();
        six.extend(443_u16.to_be_bytes());
        six.extend([0; 4]);
        six.extend(Ipv6Addr::LOCALHOST.octets());
        assert_eq!(
            parse_address(&six),
            Ok(SocketDestination::Port(Ipv6Addr::LOCALHOST.into(), 443)),
            "without a scope"
        );
        assert_eq!(parse_address(&six[..23]), Err(Errno::INVAL));
    }

    #[test]
    fn what_is_listed_is_reached() {
        let listed = ["127.0.0.1:80".parse().expect("a range")];
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(check(loopback, 80, &listed), Ok(()));
        assert_eq!(check(loopback, 81, &listed), Err(Errno::ACCESS));
        let mapped = IpAddr::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        assert_eq!(check(mapped, 80, &listed), Ok(()));
        assert_eq!(check(mapped, 80, &[]), Err(Errno::ACCESS));
        assert_eq!(check("192.0.2.1".parse().expect("an address"), 80, &[]), Ok(()));
    }
}
