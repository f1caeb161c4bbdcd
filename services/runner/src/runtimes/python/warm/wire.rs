//! Messages between the runner and a warm interpreter, beside those of every init.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Deserialize;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// The longest message.
const MESSAGE_BYTES_MAX: usize = 1024;
/// The most descriptors that are handed over at once: a job's socket, its request, two outputs, its rules.
const DESCRIPTORS_MAX: usize = 5;

/// Message from a warm interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum InterpreterMessage {
    /// The interpreter has imported everything, and may be asked for inits.
    Warm,
    /// The init with this pid can take a job.
    Free { pid: u32 },
}

/// The runner's end of a socket to one of an interpreter's processes.
#[derive(Debug)]
pub(super) struct InterpreterSocket(UnixDatagram);

/// Two ends of a socket that keeps the boundaries of what is sent and tells when the other end is closed.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl InterpreterSocket {
    /// A line, and its other end.
    pub(super) fn open() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = pair()?;
        let ours = std::os::unix::net::UnixDatagram::from(ours);
        ours.set_nonblocking(true)?;
        Ok((Self(UnixDatagram::from_std(ours)?), theirs))
    }

    /// Hands descriptors over.
    pub(super) async fn hand(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut extra = SendAncillaryBuffer::new(&mut space);
            if !extra.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            // Of nothing but descriptors nobody would learn.
            rustix::net::sendmsg(&self.0, &[io::IoSlice::new(b"{}")], &mut extra, SendFlags::NOSIGNAL)?;
            Ok(())
        };
        self.0.async_io(Interest::WRITABLE, send).await
    }

    /// Hears the next that is said.
    pub(super) async fn receive(&self, patience: Duration) -> io::Result<InterpreterMessage> {
        let mut text = [0; MESSAGE_BYTES_MAX];
        let length = tokio::time::timeout(patience, self.0.recv(&mut text)).await??;
        parse(&text[..length])
    }

    /// Hears what was said already.
    pub(super) fn try_receive(&self) -> io::Result<InterpreterMessage> {
        let mut text = [0; MESSAGE_BYTES_MAX];
        // Not by way of the event loop, which may not have seen it yet.
        let (length, _) = rustix::net::recv(self.0.as_fd(), &mut text[..], RecvFlags::DONTWAIT)?;
        parse(&text[..length])
    }
}

fn parse(text: &[u8]) -> io::Result<InterpreterMessage> {
    if text.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(text)?)
}
