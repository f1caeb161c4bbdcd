//! Serving a mount over mTLS.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::accept::accept;
use crate::mount::Mount;
use crate::tls::{ServerTls, TlsError, TlsFiles};

/// Ping a silent peer after this long, and give it up when it does not answer in `KEEPALIVE_TIMEOUT`.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams of one connection at once.
const STREAMS_MAX: u32 = 1024;
/// Metadata of one request.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// After about this long a client is asked to connect anew, so that load spreads over new replicas and
/// new certificates take effect. Streams that are open stay.
const CONNECTION_AGE_SECS: u64 = 15 * 60;
/// Replicas that were started together must not send everybody away together.
const CONNECTION_AGE_JITTER_SECS: u64 = 90;
/// Connections between handshake and first request.
const READY_QUEUE: usize = 64;
/// How long calls and streams may go on after the shutdown began, when nobody says.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every call and stream had ended.
    Completely,
    /// The deadline passed, and what was left was cut.
    Cut,
}

/// Serves one [`Mount`] on one listener.
pub struct Server {
    mount: Mount,
    tls: Arc<ServerTls>,
    drain_deadline: Duration,
}

impl Server {
    /// Prepares to serve with these certificates.
    ///
    /// # Errors
    /// When a file cannot be used; the error names it.
    pub fn new(mount: Mount, tls: &TlsFiles) -> Result<Self, TlsError> {
        let tls = Arc::new(ServerTls::load(tls)?);
        Ok(Self { mount, tls, drain_deadline: DRAIN_DEADLINE })
    }

    /// How long calls and streams may go on after the shutdown began; 10 s when not set.
    #[must_use]
    pub const fn drain_deadline(mut self, deadline: Duration) -> Self {
        self.drain_deadline = deadline;
        self
    }

    /// Serves until `shutdown`. Then health says NOT_SERVING, the port is closed, and calls and streams
    /// may end by themselves until the deadline; handlers of endless streams have to watch for the
    /// shutdown themselves.
    ///
    /// # Errors
    /// When serving itself fails; what goes wrong with one connection is not an error.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<Drained> {
        let (stop, sever) = (CancellationToken::new(), CancellationToken::new());
        // Connections never outlive this future, also when it is dropped.
        let _severing = sever.clone().drop_guard();
        let (sender, connections) = mpsc::channel(READY_QUEUE);
        let accepting = accept(listener, self.tls, sender, stop.clone(), sever.clone());

        let health = self.mount.health().clone();
        let jitter = rand::random_range(0..=2 * CONNECTION_AGE_JITTER_SECS);
        let age = Duration::from_secs(CONNECTION_AGE_SECS - CONNECTION_AGE_JITTER_SECS + jitter);
        // No `timeout` (the gate has deadlines) and no `max_connection_age_grace`: with it tonic 0.14.9
        // closes connections hard instead of asking clients to leave.
        let serving = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .max_concurrent_streams(STREAMS_MAX)
            .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
            .max_connection_age(age)
            .serve_with_incoming_shutdown(
                self.mount.gate,
                ReceiverStream::new(connections),
                stop.clone().cancelled_owned(),
            );
        let stopping = async {
            shutdown.await;
            health.end();
            stop.cancel();
            tokio::time::sleep(self.drain_deadline).await;
            sever.cancel();
        };
        let mut both = std::pin::pin!(async { tokio::join!(accepting, serving).1 });
        let drained = tokio::select! {
            result = &mut both => result.map(|()| Drained::Completely),
            () = stopping => both.await.map(|()| Drained::Cut),
        };
        drained.map_err(io::Error::other)
    }
}
