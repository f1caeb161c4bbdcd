//! Serving a mount: over mTLS, and to the sidecar of a mesh.

pub(crate) mod accept;
pub(crate) mod actor_connections;
pub(crate) mod connection_state;
pub(crate) mod connection_table;
pub(crate) mod health;
pub(crate) mod lingering;
pub(crate) mod mount;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

use crate::caller::mesh::MeshTrust;
use crate::gate::Gate;
use crate::gate::request_headers::HEADER_LIST_BYTES_MAX;
use crate::server::accept::{
    AcceptContext, AcceptedConnection, CONNECTIONS_LEAVING_MAX, CONNECTIONS_MAX, ConnectionLimiter,
    ListenerSecurity, RpcListener, TlsMode, accept,
};
use crate::server::connection_state::{DisconnectReason, StrangerConnectionState};
use crate::server::connection_table::ConnectionTable;
use crate::server::mount::Mount;
use crate::tls::{ServerTls, TlsError, TlsFiles};

/// Ping a silent peer after this long, and give it up when it does not answer in `KEEPALIVE_TIMEOUT`.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams of one connection at once.
pub(crate) const CONNECTION_STREAMS_MAX: u32 = 1024;
/// Streams of one connection that a client may give up before this server has come to look at them. H2 would end the
/// connection after 20, which a client is beyond that was stopped for a moment, or found this process stopped, with more
/// calls under way. As many as it may have open are its right.
const PENDING_RESETS_MAX: usize = CONNECTION_STREAMS_MAX as usize;
/// Headers up to this size are read, so that the gate can report which limit they exceed; beyond it
/// HTTP/2 itself answers, with status 431.
const HEADERS_READ_BYTES_MAX: u32 = 4 * HEADER_LIST_BYTES_MAX as u32;
/// Bytes of bodies that a connection may send before its request is admitted and read.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// After about this long a client is asked to reconnect, so that load spreads over new replicas and
/// new certificates take effect. Streams that are open stay.
const CONNECTION_AGE_SECS: u64 = 15 * 60;
/// Replicas that were started together must not send everybody away together.
const CONNECTION_AGE_JITTER_SECS: u64 = 90;
/// Connections between handshake and first request.
const READY_QUEUE: usize = 64;
/// How long calls and streams may go on after the shutdown began, by default.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOutcome {
    /// Every call and stream had ended.
    Completely,
    /// The deadline passed, and the remaining calls were cut.
    Cut,
}

/// Serves one [`Mount`] on one listener or several.
pub struct Server {
    mount: Mount,
    tls: Option<Arc<ServerTls>>,
    mode: TlsMode,
    listeners: Vec<RpcListener>,
    drain_deadline: Duration,
}

impl Server {
    /// Prepares to serve with these certificates.
    ///
    /// # Errors
    /// When a file cannot be used; the error names it.
    pub fn new(mount: Mount, tls: &TlsFiles) -> Result<Self, TlsError> {
        let tls = Arc::new(ServerTls::load(tls)?);
        Ok(Self { tls: Some(tls), ..Self::without_tls(mount) })
    }

    /// Prepares to serve without certificates, only to a sidecar ([`Server::mesh`]).
    #[must_use]
    pub fn without_tls(mount: Mount) -> Self {
        let (tls, mode, doors) = (None, TlsMode::Strict, Vec::new());
        Self { mount, tls, mode, listeners: doors, drain_deadline: DRAIN_DEADLINE }
    }

    /// Sets the demands of ports with TLS; [`TlsMode::Strict`] when not set.
    #[must_use]
    pub const fn tls_mode(mut self, mode: TlsMode) -> Self {
        self.mode = mode;
        self
    }

    /// Serves on this port as well, in plaintext: it is for the sidecar, which says who calls, and is believed.
    #[must_use]
    pub fn mesh(mut self, listener: TcpListener, trust: MeshTrust) -> Self {
        self.listeners.push(RpcListener { listener, security: ListenerSecurity::Mesh(Arc::new(trust)) });
        self
    }

    /// How long calls and streams may go on after the shutdown began; 10 s when not set.
    #[must_use]
    pub const fn drain_deadline(mut self, deadline: Duration) -> Self {
        self.drain_deadline = deadline;
        self
    }

    /// Serves on this port, with TLS, until `shutdown`; see [`Server::run`].
    ///
    /// # Errors
    /// As [`Server::run`]; and when there are no certificates.
    pub async fn serve(
        mut self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<DrainOutcome> {
        let tls = self.tls.clone().ok_or_else(|| io::Error::other(TlsError::ServerNeedsCertificate))?;
        self.listeners.push(RpcListener { listener, security: ListenerSecurity::Tls(tls, self.mode) });
        self.run(shutdown).await
    }

    /// Serves on the ports that were given until `shutdown`. Then health says NOT_SERVING, the ports are closed,
    /// and calls and streams may end by themselves until the deadline; handlers of endless streams have to watch
    /// for the shutdown themselves.
    ///
    /// # Errors
    /// When serving itself fails; what goes wrong with one connection is not an error.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> io::Result<DrainOutcome> {
        let (stop, sever) = (CancellationToken::new(), CancellationToken::new());
        // Connections never outlive this future, also when it is dropped.
        let _severing = sever.clone().drop_guard();
        let (ready, connections) = mpsc::channel(READY_QUEUE);
        let limiter = ConnectionLimiter::new(CONNECTIONS_MAX, ConnectionTable::of_strangers());
        let metrics = self.mount.metrics().clone();
        let hall = AcceptContext { ready, stop: stop.clone(), sever: sever.clone(), limiter, metrics };
        let accepting = join_all(self.listeners.into_iter().map(|door| accept(door, hall.clone())));
        // The channel ends with the last door.
        drop(hall);

        let health = self.mount.health().clone();
        let serving = ConnectionServer {
            server: http2_server(),
            gate: self.mount.gate,
            stop: stop.clone(),
            leaving: Arc::new(Semaphore::new(CONNECTIONS_LEAVING_MAX)),
        };
        let serving = serving.serve_all(connections);
        let stopping = async {
            shutdown.await;
            health.end();
            stop.cancel();
            tokio::time::sleep(self.drain_deadline).await;
            sever.cancel();
        };
        let mut both = std::pin::pin!(async { drop(tokio::join!(accepting, serving)) });
        Ok(tokio::select! {
            () = &mut both => DrainOutcome::Completely,
            () = stopping => {
                both.await;
                DrainOutcome::Cut
            }
        })
    }
}

fn http2_server() -> tonic::transport::Server {
    let jitter = rand::random_range(0..=2 * CONNECTION_AGE_JITTER_SECS);
    let age = Duration::from_secs(CONNECTION_AGE_SECS - CONNECTION_AGE_JITTER_SECS + jitter);
    // No `timeout` (the gate has deadlines) and no `max_connection_age_grace`: with it tonic 0.14.9
    // closes connections hard instead of asking clients to leave.
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(CONNECTION_STREAMS_MAX)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(HEADERS_READ_BYTES_MAX)
        .max_connection_age(age)
}

/// Serves connections, each by a server of its own: tonic sends GOAWAY to all connections of a server, and to no single
/// one.
#[derive(Clone)]
struct ConnectionServer {
    server: tonic::transport::Server,
    gate: Gate,
    stop: CancellationToken,
    /// Permits of evicted connections that are asked to leave before they are cut.
    leaving: Arc<Semaphore>,
}

impl ConnectionServer {
    /// Serves what comes until the stop, and ends with the last connection.
    async fn serve_all(self, mut connections: mpsc::Receiver<AcceptedConnection>) {
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                Some(_) = open.join_next() => {}
                next = connections.recv() => match next {
                    Some(connection) => drop(open.spawn(self.clone().serve(connection))),
                    None => break,
                },
            }
        }
        drop(connections);
        while open.join_next().await.is_some() {}
    }

    /// Serves one connection to its end.
    async fn serve(self, connection: AcceptedConnection) {
        let Self { server, gate, stop, leaving } = self;
        let (ended, severing, state) = (connection.ended(), connection.severing(), connection.state());
        let (leave, metrics) = (CancellationToken::new(), gate.metrics().clone());
        let leave_requested = leave.clone();
        let until = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = ended.cancelled() => {}
                () = leave_requested.cancelled() => {}
            }
        };
        let incoming = stream::iter([Ok::<_, io::Error>(connection)]).chain(stream::pending());
        let serving = async {
            // What goes wrong with one connection is its own affair.
            if let Err(error) = server.serve_with_incoming_shutdown(gate, incoming, until).await {
                tracing::debug!(%error, "a connection cannot be served");
            }
        };
        let Some(state) = state else { return serving.await };
        let sending_away = async {
            let why = state.disconnect_requested().await;
            metrics.connections_given_up.with_label_values(&[why.label()]).inc();
            leave.cancel();
            say_farewell(&state, why, &leaving).await;
            severing.cancel();
            std::future::pending().await
        };
        tokio::select! {
            () = serving => {}
            () = sending_away => {}
        }
    }
}

/// Waits as long as a connection that has to leave may take.
async fn say_farewell(state: &StrangerConnectionState, why: DisconnectReason, leaving: &Semaphore) {
    match why {
        // It has its place until it is gone.
        DisconnectReason::Unidentified => state.farewell(why).await,
        DisconnectReason::Evicted => {
            if let Ok(_permit) = leaving.try_acquire() {
                state.farewell(why).await;
            }
        }
    }
}
