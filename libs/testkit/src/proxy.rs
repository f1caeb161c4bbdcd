//! A connection that can be broken on purpose.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Where the proxy leads to.
#[derive(Debug, Clone)]
pub enum ProxyTarget {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// How the proxy treats what passes through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyFault {
    /// Passes everything on.
    None,
    /// Closes every connection, and each new one at once.
    Cut,
    /// Takes everything and passes nothing on, in neither direction. The swallowed bytes are lost.
    BlackHole,
    /// Passes requests on and swallows the answers: the outcome is unknown.
    SwallowAnswers,
    /// Passes every piece on later.
    Delay(Duration),
    /// Keeps what passes, in both directions, until another fault or none is in force.
    Hold,
    /// Passes requests on and keeps the answers, until another fault or none is in force.
    HoldAnswers,
}

impl ProxyFault {
    /// Returns true if the fault keeps back the data in this direction.
    fn holds(self, answers: bool) -> bool {
        self == Self::Hold || answers && self == Self::HoldAnswers
    }
}

/// The fault in force, and how often everything was cut: a cut that was restored at once still closes
/// what was open.
#[derive(Debug, Clone, Copy)]
struct ProxyState {
    fault: ProxyFault,
    cuts: u64,
}

/// A listener on a port of the loopback interface that passes everything to its target, as far as the
/// [`ProxyFault`] in force allows.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    state: watch::Sender<ProxyState>,
    held: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl FaultProxy {
    /// Listens on a free port. Needs a runtime.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start(target: ProxyTarget) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("the address just bound");
        let (state, watch) = watch::channel(ProxyState { fault: ProxyFault::None, cuts: 0 });
        let held = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(accept(listener, Arc::new(target), watch, Arc::clone(&held)));
        Self { address, state, held, task }
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how it treats what passes, for open connections as well.
    pub fn set(&self, fault: ProxyFault) {
        self.state.send_modify(|state| {
            state.fault = fault;
            state.cuts += u64::from(fault == ProxyFault::Cut);
        });
    }

    /// How many pieces it kept back so far, by [`ProxyFault::Hold`] and [`ProxyFault::HoldAnswers`].
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Closes all connections; new ones pass.
    pub fn cut_once(&self) {
        self.set(ProxyFault::Cut);
        self.set(ProxyFault::None);
    }

    /// Passes everything on again.
    pub fn restore(&self) {
        self.set(ProxyFault::None);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.set(ProxyFault::Cut);
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    target: Arc<ProxyTarget>,
    state: watch::Receiver<ProxyState>,
    held: Arc<AtomicU64>,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let now = *state.borrow();
        if now.fault != ProxyFault::Cut {
            let passage = ProxyConnection { state: state.clone(), cuts: now.cuts, held: Arc::clone(&held) };
            tokio::spawn(connect(client, Arc::clone(&target), passage));
        }
    }
}

/// State that one connection is subject to.
#[derive(Debug, Clone)]
struct ProxyConnection {
    state: watch::Receiver<ProxyState>,
    /// Cuts that came before it.
    cuts: u64,
    held: Arc<AtomicU64>,
}

async fn connect(client: TcpStream, target: Arc<ProxyTarget>, passage: ProxyConnection) {
    // A client that cannot reach the target sees its connection closed, as it would without the proxy.
    let _ = client.set_nodelay(true);
    match &*target {
        ProxyTarget::Tcp(address) => {
            if let Ok(server) = TcpStream::connect(address).await {
                let _ = server.set_nodelay(true);
                serve(client, server, passage).await;
            }
        }
        ProxyTarget::Unix(path) => {
            if let Ok(server) = UnixStream::connect(path).await {
                serve(client, server, passage).await;
            }
        }
    }
}

async fn serve(client: TcpStream, server: impl AsyncRead + AsyncWrite, passage: ProxyConnection) {
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = tokio::io::split(server);
    let (mut watched, cuts) = (passage.state.clone(), passage.cuts);
    tokio::select! {
        () = carry(client_read, server_write, passage.clone(), false) => {}
        () = carry(server_read, client_write, passage, true) => {}
        // An error means that the proxy is gone, which closes the connection as well.
        _ = watched.wait_for(|state| state.cuts != cuts) => {}
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut passage: ProxyConnection,
    answers: bool,
) {
    let mut piece = vec![0; 64 * 1024];
    loop {
        let Ok(n @ 1..) = from.read(&mut piece).await else { return };
        if passage.state.borrow().fault.holds(answers) {
            passage.held.fetch_add(1, Ordering::Relaxed);
        }
        // An error means that the proxy is gone, and its connections with it.
        let lifted = passage.state.wait_for(|state| !state.fault.holds(answers)).await;
        let Ok(ProxyState { fault, cuts }) = lifted.map(|state| *state) else { return };
        // A piece that is read after a cut is not passed on, whatever is in force since.
        if cuts != passage.cuts {
            return;
        }
        match fault {
            ProxyFault::BlackHole => continue,
            ProxyFault::SwallowAnswers if answers => continue,
            ProxyFault::Delay(pause) => tokio::time::sleep(pause).await,
            ProxyFault::None
            | ProxyFault::Cut
            | ProxyFault::SwallowAnswers
            | ProxyFault::Hold
            | ProxyFault::HoldAnswers => {}
        }
        if to.write_all(&piece[..n]).await.is_err() {
            return;
        }
    }
}
