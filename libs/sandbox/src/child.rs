//! A job's processes, as the runner holds them.

use std::fs::File;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use zeroize::Zeroizing;

use crate::confinement::SandboxRequest;
use crate::init::ARGUMENT;
use crate::protocol::{DATAGRAM_BYTES_MAX, InitCommand, InitEvent};

/// The program that becomes the first process of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxLauncher {
    /// One that calls [`crate::launch_if_asked`] first thing.
    pub program: PathBuf,
}

impl SandboxLauncher {
    /// Returns a launcher that runs this very program, even when its file was replaced meanwhile.
    #[must_use]
    pub fn this_program() -> Self {
        Self::at("/proc/self/exe".into())
    }

    /// A program that calls [`crate::launch_if_asked`] first thing.
    #[must_use]
    pub fn at(program: PathBuf) -> Self {
        Self { program }
    }
}

/// The processes of one job: dropped, they end.
#[derive(Debug)]
pub struct SandboxedJob {
    socket: AsyncFd<OwnedFd>,
    pid: u32,
    /// Absent for one that another process waits for.
    process: Option<tokio::process::Child>,
}

impl SandboxedJob {
    /// Starts a program by way of the launcher. What it prints goes to `stdout` and `stderr`. Whether it runs is
    /// the first event.
    ///
    /// # Errors
    /// When the launcher cannot be started.
    pub fn start(
        launcher: &SandboxLauncher,
        request: &SandboxRequest,
        stdout: Stdio,
        stderr: Stdio,
    ) -> io::Result<Self> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        hand_over(&ours, request)?;
        let process = tokio::process::Command::new(&launcher.program)
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            // Not in the runner's group: keys typed at its terminal, such as Ctrl-C, are not for a job's init.
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(stdout)
            .stderr(stderr)
            .spawn()?;
        let pid = process.id().ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { process: Some(process), ..Self::adopt(ours, pid)? })
    }

    /// Takes over an init that another process has started, by the socket to it.
    ///
    /// # Errors
    /// When the socket cannot be waited for.
    pub fn adopt(socket: OwnedFd, pid: u32) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // SAFETY: the descriptor is owned by what it is registered with, which closes it last.
        let socket =
            unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE | Interest::WRITABLE) };
        let socket = socket.map_err(|error| error.into_parts().1)?;
        Ok(Self { socket, pid, process: None })
    }

    /// The number of its init.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Receives the next event of the init; nothing once the init is gone. Cancel safe.
    ///
    /// # Errors
    /// When the init sends something that cannot be understood, or nothing can be received.
    pub async fn next(&mut self) -> io::Result<Option<InitEvent>> {
        let receive = |socket: &OwnedFd| {
            let mut text = vec![0; DATAGRAM_BYTES_MAX];
            loop {
                match rustix::net::recv(socket, &mut text[..], RecvFlags::empty()) {
                    // Reported once, when the init ended before it read our last order; its earlier events follow.
                    Err(rustix::io::Errno::CONNRESET) => {}
                    other => {
                        text.truncate(other?.0);
                        return Ok(text);
                    }
                }
            }
        };
        let text = self.socket.async_io(Interest::READABLE, receive).await?;
        if text.is_empty() {
            if let Some(process) = &mut self.process {
                // It has closed its socket by ending, or does so now.
                process.wait().await?;
            }
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&text)?))
    }

    /// Sends a command to the init.
    ///
    /// # Errors
    /// When it is gone.
    pub async fn send_command(&self, order: InitCommand) -> io::Result<()> {
        let text = serde_json::to_vec(&order)?;
        let send = |socket: &OwnedFd| Ok(rustix::net::send(socket, &text, SendFlags::NOSIGNAL)?);
        self.socket.async_io(Interest::WRITABLE, send).await.map(drop)
    }
}

fn hand_over(socket: &OwnedFd, request: &SandboxRequest) -> io::Result<()> {
    let file = rustix::fs::memfd_create("request", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    // It has the secrets of the job in it.
    file.write_all(&Zeroizing::new(serde_json::to_vec(request)?))?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    let descriptors = [file.as_fd()];
    extra.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[io::IoSlice::new(b"r")], &mut extra, SendFlags::NOSIGNAL)?;
    Ok(())
}
