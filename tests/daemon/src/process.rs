//! A daemon as a process of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{PATIENCE, TestProcess, wait_until_blocking};

/// Names the real daemon's binary; without it tests use the stand-in.
pub const REAL: &str = "MYCELIUM_BIN";

/// A daemon, and where it is. Killed when dropped.
#[derive(Debug)]
pub struct Program {
    binary: PathBuf,
    dir: PathBuf,
    /// Where others link to it.
    port: u16,
    api: SocketAddr,
    rest: SocketAddr,
    peers: Vec<u16>,
    process: Option<TestProcess>,
}

impl Program {
    /// The real daemon, where there is one.
    #[must_use]
    pub fn real() -> Option<PathBuf> {
        std::env::var_os(REAL).map(PathBuf::from)
    }

    /// Starts a daemon that keeps its key in `dir`, and links to those that listen on `peers`. Both
    /// programs understand the same arguments.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(binary: &Path, dir: &Path, peers: &[u16]) -> Self {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut program = Self {
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            port: testkit::free_port(),
            api: local(testkit::free_port()),
            rest: local(testkit::free_port()),
            peers: peers.to_vec(),
            process: None,
        };
        program.launch();
        program
    }

    /// Starts it again, with the same key on the same ports, once they are free.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn launch(&mut self) {
        let mut command = Command::new(&self.binary);
        command
            .arg("--no-tun")
            .arg("--disable-quic")
            .arg("--disable-peer-discovery")
            .args(["-t", &self.port.to_string()])
            .args(["--jsonrpc-addr", &self.api.to_string()])
            .args(["--api-addr", &self.rest.to_string()])
            .arg("-k")
            .arg(self.dir.join("priv_key.bin"))
            .env("HOME", &self.dir)
            .current_dir(&self.dir);
        if !self.peers.is_empty() {
            command.arg("--peers").args(self.peers.iter().map(|port| format!("tcp://127.0.0.1:{port}")));
        }
        self.process = Some(TestProcess::spawn("mycelium", &mut command));
        let answers = || std::net::TcpStream::connect(self.api).ok();
        drop(wait_until_blocking(answers, PATIENCE, "the daemon listens"));
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill9();
        }
    }

    /// Where others link to it.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Where its API is: `http` or `ws`.
    #[must_use]
    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.api)
    }
}
