//! The private NATS server of an all-in-one, for sagas.
//!
//! It listens on a free port of the loopback interface, lets one user in, whose name and password are new with each start, and
//! keeps its streams in the data directory. Its configuration is a file that only its owner reads. It speaks TLS with the
//! certificate of the suite: a process that takes its port while it is away learns no password. When it ends by itself it is
//! started again on the same port and data: nothing of ours rests on what it had in memory.

mod program;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use broker::{JetStreamLogin, JetStreamOptions, JetStreamTls};
use identity::IssuedFiles;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;
use zeroize::Zeroizing;

pub use self::program::NatsProgram;
use super::child::{self, ChildHandle, ChildNames, ChildStartState, secret};
use super::directory::DataDir;
use super::{UpError, UpReporter};

/// Where it keeps its streams, its configuration and its log.
pub(super) const FILES: &str = "nats";
const CONFIGURATION: &str = "nats/nats.conf";
const LOG: &str = "nats/nats.log";
const STORE: &str = "nats/store";
/// Where its address is, for programs of others.
const URL: &str = "nats.url";
/// File of the user that may log in, and file of the password.
const USER: &str = "nats.user";
const PASSWORD: &str = "nats.password";
const NAMES: ChildNames = ChildNames {
    program: "nats-server",
    record: "nats.pid",
    log: LOG,
    meanwhile: "sagas wait for it, and go on from where they were",
};
/// Memory for streams that are kept there: those of sagas are on the disk.
const MEMORY_STORE_BYTES: u64 = 64 * 1024 * 1024;
/// Time limit of a client's handshake; the server's own two seconds are short for a busy machine.
const TLS_TIMEOUT_SECS: u32 = 10;
/// Tries to start on another port, if another process took the free one meanwhile.
const PORTS_MAX: u32 = 5;
/// Time for which one look at it may last.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest greeting that the server sends to a client that connects, in bytes.
const INFO_BYTES_MAX: u64 = 64 * 1024;

/// Way to the server, for programs that read and write streams there.
#[derive(Debug, Clone)]
pub struct NatsAccess {
    /// Address of the server, as `nats://127.0.0.1:PORT`.
    pub url: String,
    /// The user.
    pub user: String,
    /// The user's password.
    pub password: Zeroizing<String>,
    /// The authority of its certificate.
    pub ca: PathBuf,
}

impl NatsAccess {
    /// Options of a connection of this name.
    #[must_use]
    pub fn options(&self, name: &str) -> JetStreamOptions {
        let login = JetStreamLogin::Password { user: self.user.clone(), password: self.password.to_string() };
        let tls = JetStreamTls { ca: Some(self.ca.clone()), identity: None };
        let url = JetStreamOptions::new(&self.url);
        JetStreamOptions { login: Some(login), tls: Some(tls), name: name.to_owned(), ..url }
    }
}

/// The server, kept running, and how to reach it.
#[derive(Debug)]
pub(super) struct PrivateNats {
    access: NatsAccess,
    kept: ChildHandle,
}

impl PrivateNats {
    /// Stops an orphan of an earlier life, starts the server on the directory's data, and keeps it running.
    ///
    /// # Errors
    /// When its files cannot be written, or it does not start.
    pub(super) async fn start(
        dir: &Arc<DataDir>,
        program: &NatsProgram,
        shown: &IssuedFiles,
        notice: &UpReporter,
    ) -> Result<Self, UpError> {
        child::stop_orphan(dir, NAMES, notice).await?;
        dir.private(FILES)?;
        let (user, password) = (secret().to_string(), secret());
        dir.write_secret(USER, &user)?;
        dir.write_secret(PASSWORD, &password)?;
        let mut tries = 1;
        loop {
            let port = free_port().await.map_err(UpError::Address)?;
            dir.write_secret(CONFIGURATION, &configuration(dir, program, port, (&user, &password), shown))?;
            let server = NatsChild { dir: Arc::clone(dir), program: program.clone(), port };
            let child = match child::start(&server).await {
                Ok(child) => child,
                Err(UpError::ChildEarlyEnd { last, .. }) if is_taken(&last) && tries < PORTS_MAX => {
                    tries += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let url = format!("nats://{}", server.address());
            dir.write_secret(URL, &url)?;
            let kept = ChildHandle::keep(server, child, *notice, std::future::pending());
            return Ok(Self { access: NatsAccess { url, user, password, ca: shown.ca.clone() }, kept });
        }
    }

    /// The way to it.
    #[must_use]
    pub(super) const fn access(&self) -> &NatsAccess {
        &self.access
    }

    /// The command that lists its streams.
    #[must_use]
    pub(super) fn cli_line(&self, dir: &DataDir) -> String {
        let NatsAccess { url, user, ca, .. } = &self.access;
        let (ca, password) = (ca.display(), dir.join(PASSWORD));
        let password = password.display();
        format!(
            "NATS_URL={url} NATS_CA={ca} NATS_USER={user} NATS_PASSWORD=\"$(cat {password})\" nats stream list"
        )
    }

    /// Returns when it has ended by itself and cannot be started again. Cancel safe.
    pub(super) async fn wait_until_lost(&mut self) -> UpError {
        self.kept.wait_until_lost().await
    }

    /// Lets it write what it has and end.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub(super) async fn stop(self) -> Result<(), UpError> {
        self.kept.stop().await
    }
}

/// Parts that the server is started from, as often as necessary.
#[derive(Debug)]
struct NatsChild {
    dir: Arc<DataDir>,
    program: NatsProgram,
    port: u16,
}

impl NatsChild {
    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns true when the server greets with JetStream. It listens only once its streams were read.
    async fn greets(&self) -> io::Result<bool> {
        let stream = TcpStream::connect(self.address()).await?;
        let mut line = String::new();
        BufReader::new(stream).take(INFO_BYTES_MAX).read_line(&mut line).await?;
        Ok(line.starts_with("INFO ") && line.contains("\"jetstream\":true"))
    }
}

impl child::ChildServer for NatsChild {
    const NAMES: ChildNames = NAMES;

    fn dir(&self) -> &DataDir {
        &self.dir
    }

    fn spawn(&self) -> Result<Child, UpError> {
        let mut command = child::command(self.program.path(), &self.dir, LOG);
        command.arg("-c").arg(self.dir.join(CONFIGURATION)).stdin(std::process::Stdio::null());
        command.spawn().map_err(|source| UpError::ChildStart { program: NAMES.program, source })
    }

    async fn progress(&self) -> ChildStartState {
        match tokio::time::timeout(LOOK_TIMEOUT, self.greets()).await {
            Ok(Ok(true)) => ChildStartState::Ready,
            _ => ChildStartState::Silent,
        }
    }
}

/// Has the private server of a data directory show its renewed certificate; does nothing where there is none.
///
/// # Errors
/// When it cannot be signalled.
pub(super) fn reload(dir: &DataDir) -> io::Result<()> {
    child::reload(dir, NAMES)
}

/// A port of the loopback interface that is free now.
async fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?.port())
}

fn is_taken(output: &str) -> bool {
    output.contains("address already in use")
}

fn configuration(
    dir: &DataDir,
    program: &NatsProgram,
    port: u16,
    (user, password): (&str, &str),
    shown: &IssuedFiles,
) -> Zeroizing<String> {
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    // Version 2.9 does not know the key, and does not start with it; later ones lose two minutes at the end of the machine without.
    let sync = if program.syncs_always() { "\n  sync_interval: always" } else { "" };
    Zeroizing::new(format!(
        "listen: \"127.0.0.1:{port}\"\n\
         server_name: \"mycora-up\"\n\
         log_file: {log}\n\
         authorization {{\n  user: \"{user}\"\n  password: \"{password}\"\n}}\n\
         tls {{\n  cert_file: {certificate}\n  key_file: {key}\n  timeout: {TLS_TIMEOUT_SECS}\n}}\n\
         jetstream {{\n  store_dir: {store}\n  max_memory_store: {MEMORY_STORE_BYTES}{sync}\n}}\n",
        certificate = quoted(&shown.certificate),
        key = quoted(&shown.key),
        log = quoted(&dir.join(LOG)),
        store = quoted(&dir.join(STORE)),
    ))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use broker::JetStream;
    use identity::{Pki, TrustDomain};
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// The first byte of a TLS record of a handshake.
    const HANDSHAKE: u8 = 0x16;

    #[tokio::test]
    async fn a_stranger_on_the_port_receives_no_password() {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = dir.path().join("pki");
        Pki::init(&pki, &TrustDomain::default(), SystemTime::now()).expect("an authority");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let url = format!("nats://{}", listener.local_addr().expect("bound"));
        let ca = pki.join(identity::pki::CA_CERTIFICATE_FILE);
        let access =
            NatsAccess { url, user: "u".to_owned(), password: Zeroizing::new("s3cret".to_owned()), ca };
        let _asks = JetStream::start(access.options("me")).expect("options");
        let (mut stream, _) = listener.accept().await.expect("it comes");
        // The listener answers like a server that requires no TLS.
        let info = r#"INFO {"server_id":"x","version":"2.9.10","max_payload":1048576,"auth_required":true}"#;
        stream.write_all(format!("{info}\r\n").as_bytes()).await.expect("told");
        let mut received = vec![0; 4096];
        let read = tokio::time::timeout(LOOK_TIMEOUT, stream.read(&mut received))
            .await
            .expect("in time")
            .expect("read");
        assert_eq!(received.first(), Some(&HANDSHAKE), "{}", String::from_utf8_lossy(&received[..read]));
    }
}
