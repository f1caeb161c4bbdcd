//! Messages to an address: copied, and sent in the script's place.

use std::os::fd::{AsRawFd as _, OwnedFd};

use model::AddressRange;
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};

use super::caller::SyscallCaller;
use super::network::{
    SocketDestination, SocketOperation, check, copied, is_blocking, is_of_network, parse_address,
};
use super::notification::PendingSyscall;
use super::{AllowedSyscall, SyscallBroker, checked};

/// The most of one message that is taken. A stream takes the rest with the next call, a datagram is never longer.
const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// How many parts a message may have, as the kernel has it.
const PARTS_MAX: usize = 1024;
/// How many messages of one call are sent.
const MESSAGES_MAX: u32 = 64;
/// The most that may go with a message: all the descriptors that the kernel passes on at once fit.
const EXTRA_BYTES_MAX: usize = 2048;
/// Size of `msghdr`, and of `mmsghdr`, which ends with the number of bytes sent.
const HEADER_BYTES: usize = 56;
const COUNTED_HEADER_BYTES: u64 = 64;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("messages are read as they lie in memory where addresses have 64 bits");

/// A message, copied.
pub(super) struct SocketMessage {
    address: Option<Vec<u8>>,
    bytes: Vec<u8>,
    extra: Vec<u8>,
    /// Descriptors that `extra` passes on, kept open until the message is sent.
    _passed: Vec<OwnedFd>,
    flags: i32,
}

impl SocketMessage {
    /// Returns whether it makes a connection and is the first that goes over it.
    pub(super) const fn connects(&self) -> bool {
        self.flags & libc::MSG_FASTOPEN != 0
    }

    /// Sends it, with more flags.
    pub(super) fn send(&self, socket: &OwnedFd, flags: i32) -> Result<i64, Errno> {
        // A signal would be this process's; the script sees the error alone.
        let flags = self.flags | flags | libc::MSG_NOSIGNAL;
        let mut part =
            libc::iovec { iov_base: self.bytes.as_ptr().cast_mut().cast(), iov_len: self.bytes.len() };
        // SAFETY: all of it may be zero.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        if let Some(address) = &self.address {
            header.msg_name = address.as_ptr().cast_mut().cast();
            header.msg_namelen = libc::socklen_t::try_from(address.len()).map_err(|_| Errno::INVAL)?;
        }
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if !self.extra.is_empty() {
            header.msg_control = self.extra.as_ptr().cast_mut().cast();
            header.msg_controllen = self.extra.len() as _;
        }
        // SAFETY: everything that the header points to outlives the call, which only reads it.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
        checked(i64::try_from(sent).unwrap_or(-1))
    }
}

/// `sendto(socket, bytes, length, flags, address, length)`, with an address.
pub(super) fn send_to(
    caller: &SyscallCaller<'_>,
    call: &PendingSyscall,
    listed: &[AddressRange],
) -> Result<AllowedSyscall, Errno> {
    let socket = caller.descriptor(call.int(0))?;
    let address = copied(caller, call.args[4], call.int(5))?;
    allow(&socket, &address, listed)?;
    let length = taken(&socket, usize::try_from(call.args[2]).map_err(|_| Errno::MSGSIZE)?)?;
    let bytes = caller.bytes(call.args[1], length)?;
    let flags = call.int(3);
    let message =
        SocketMessage { address: Some(address), bytes, extra: Vec::new(), _passed: Vec::new(), flags };
    act(socket, message)
}

/// `sendmsg(socket, header, flags)`
pub(super) fn send_message(
    caller: &SyscallCaller<'_>,
    call: &PendingSyscall,
    listed: &[AddressRange],
) -> Result<AllowedSyscall, Errno> {
    let socket = caller.descriptor(call.int(0))?;
    let message = message(caller, &socket, call.args[1], call.int(2), listed)?;
    act(socket, message)
}

/// `sendmmsg(socket, headers, count, flags)`: as many as go without waiting, or one that waits.
pub(super) fn send_messages(
    caller: &SyscallCaller<'_>,
    call: &PendingSyscall,
    listed: &[AddressRange],
    broker: &SyscallBroker,
) -> Result<AllowedSyscall, Errno> {
    let socket = caller.descriptor(call.int(0))?;
    let count = call.int(2).cast_unsigned().min(MESSAGES_MAX);
    let mut sent = 0;
    for at in 0..u64::from(count) {
        let header = at.checked_mul(COUNTED_HEADER_BYTES).and_then(|at| call.args[1].checked_add(at));
        let header = header.ok_or(Errno::FAULT)?;
        let done = message(caller, &socket, header, call.int(3), listed).and_then(|message| {
            let bytes = broker.unprivileged(|| message.send(&socket, libc::MSG_DONTWAIT))?;
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            caller.write(header + HEADER_BYTES as u64, &bytes.to_ne_bytes())
        });
        match done {
            Ok(()) => sent += 1,
            Err(error) if sent == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(AllowedSyscall::Sent(sent))
}

fn act(socket: OwnedFd, message: SocketMessage) -> Result<AllowedSyscall, Errno> {
    let waits = message.flags & libc::MSG_DONTWAIT == 0 && is_blocking(&socket)?;
    Ok(AllowedSyscall::Act(SocketOperation::Send { socket, message, waits }))
}

/// Looks where a message goes.
fn allow(socket: &OwnedFd, address: &[u8], listed: &[AddressRange]) -> Result<(), Errno> {
    if !is_of_network(socket)? {
        return Err(Errno::ISCONN);
    }
    match parse_address(address)? {
        SocketDestination::Port(address, port) => check(address, port, listed),
        // Some take it for an address of IPv4.
        SocketDestination::Nothing => Err(Errno::AFNOSUPPORT),
    }
}

/// How many bytes are taken of as many.
fn taken(socket: &OwnedFd, length: usize) -> Result<usize, Errno> {
    if length <= MESSAGE_BYTES_MAX {
        Ok(length)
    } else if sockopt::socket_type(socket)? == SocketType::STREAM {
        Ok(MESSAGE_BYTES_MAX)
    } else {
        Err(Errno::MSGSIZE)
    }
}

fn number(bytes: &[u8], at: usize) -> Result<u64, Errno> {
    let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_ne_bytes).ok_or(Errno::INVAL)
}

/// Copies the message that a header describes.
fn message(
    caller: &SyscallCaller<'_>,
    socket: &OwnedFd,
    header: u64,
    flags: i32,
    listed: &[AddressRange],
) -> Result<SocketMessage, Errno> {
    // The data would be sent later from our copy, and we could not tell when that is free.
    if flags & libc::MSG_ZEROCOPY != 0 {
        return Err(Errno::NOBUFS);
    }
    let header = caller.bytes(header, HEADER_BYTES)?;
    let (name, parts, extra) = (number(&header, 0)?, number(&header, 16)?, number(&header, 32)?);
    let length = |at| Ok::<_, Errno>(usize::try_from(number(&header, at)?).unwrap_or(usize::MAX));
    let (part_count, extra_length) = (length(24)?, length(40)?);
    #[expect(clippy::cast_possible_truncation, reason = "a number of 32 bits, with nothing behind it")]
    let name_length = (number(&header, 8)? as u32).cast_signed();
    let address = match name {
        0 => None,
        _ if name_length == 0 => None,
        _ => {
            let address = copied(caller, name, name_length)?;
            allow(socket, &address, listed)?;
            Some(address)
        }
    };
    if part_count > PARTS_MAX {
        return Err(Errno::MSGSIZE);
    }
    let parts = caller.bytes(parts, part_count * 16)?;
    let mut total = 0_usize;
    for part in parts.chunks_exact(16) {
        total = total.saturating_add(usize::try_from(number(part, 8)?).unwrap_or(usize::MAX));
    }
    let mut bytes = vec![0; taken(socket, total)?];
    let mut filled = 0;
    for part in parts.chunks_exact(16) {
        let length = usize::try_from(number(part, 8)?).unwrap_or(usize::MAX).min(bytes.len() - filled);
        caller.read(number(part, 0)?, &mut bytes[filled..filled + length])?;
        filled += length;
    }
    if extra_length > EXTRA_BYTES_MAX {
        return Err(Errno::NOBUFS);
    }
    let extra = if extra == 0 { Vec::new() } else { caller.bytes(extra, extra_length)? };
    let (extra, passed) = accompany(caller, is_of_network(socket)?, extra)?;
    Ok(SocketMessage { address, bytes, extra, _passed: passed, flags })
}

/// Options of one message that change nothing of where it goes.
const HARMLESS: &[(i32, i32)] = &[
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG),
    (libc::SOL_UDP, libc::UDP_SEGMENT),
];
/// The length, level and kind of what goes with a message; each begins at a multiple of its first field's size.
const EXTRA_HEADER_BYTES: usize = 16;

/// Looks at what goes with a message: options on the network, descriptors to the other end of a pair. These are passed on
/// as duplicates of ours.
fn accompany(
    caller: &SyscallCaller<'_>,
    of_network: bool,
    mut extra: Vec<u8>,
) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut passed = Vec::new();
    let mut at = 0;
    while extra.len() - at >= EXTRA_HEADER_BYTES {
        let length = usize::try_from(number(&extra, at)?).map_err(|_| Errno::INVAL)?;
        let [level, kind] = [8, 12].map(|field| {
            let bytes = extra[at + field..at + field + 4].try_into();
            bytes.map_or(-1, i32::from_ne_bytes)
        });
        if length < EXTRA_HEADER_BYTES || length > extra.len() - at {
            return Err(Errno::INVAL);
        }
        if !of_network && (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for number in extra[at + EXTRA_HEADER_BYTES..at + length].chunks_exact_mut(4) {
                let theirs = number.as_ref().try_into().map_or(-1, i32::from_ne_bytes);
                let ours = caller.descriptor(theirs)?;
                number.copy_from_slice(&ours.as_raw_fd().to_ne_bytes());
                passed.push(ours);
            }
        } else if !of_network || !HARMLESS.contains(&(level, kind)) {
            return Err(Errno::PERM);
        }
        at = (at + length.next_multiple_of(8)).min(extra.len());
    }
    // The kernel passes over a rest that is too short for a header as well.
    extra.truncate(at);
    Ok((extra, passed))
}
