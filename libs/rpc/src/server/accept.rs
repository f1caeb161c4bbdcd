//! Accepting connections: TCP, protocol detection, handshake, and the peer's identity.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::caller::mesh::MeshTrust;
use crate::caller::{ConnectionPeer, PeerIdentity};
use crate::metrics::Metrics;
use crate::server::actor_connections::{ActorConnectionGuard, ActorConnections};
use crate::server::connection_state::StrangerConnectionState;
use crate::server::connection_table::{ConnectionTable, ConnectionTableGuard};
use crate::server::lingering::LingeringStream;
use crate::tls::ServerTls;

/// A handshake that takes longer is given up.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes under way at once; beyond them one that is under way gives way to the next. Of one place only some
/// ([`ConnectionTable`]).
pub(crate) const HANDSHAKES_MAX: usize = 1280;
/// Connections at once of peers that showed a certificate of ours, or stand behind the sidecar.
pub(crate) const CONNECTIONS_MAX: usize = 4096;
/// Connections at once of peers without a certificate; they cannot take the others' places. Of one place only some
/// ([`ConnectionTable`]).
pub(crate) const CONNECTIONS_ANONYMOUS_MAX: usize = 1024;
/// Connections at once whose place was given to a newer one, and that are asked to leave before they are cut; beyond it they
/// are cut at once.
pub(crate) const CONNECTIONS_LEAVING_MAX: usize = 256;
/// Connections that are accepted in a row. They are served before more are accepted, which could take their places.
const STRETCH_MAX: usize = 32;
/// Pause after an error of `accept`, as when the process has no descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How every TLS connection begins: a record with a handshake in it.
const TLS_FIRST_BYTE: u8 = 0x16;

/// Demands of a port on those who connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// TLS, and nothing else.
    #[default]
    Strict,
    /// Plaintext as well, for the time of a migration. Who comes that way has no identity.
    Permissive,
}

/// A port, and what happens at it.
pub(crate) struct RpcListener {
    pub(crate) listener: TcpListener,
    pub(crate) security: ListenerSecurity,
}

/// How connections of a port begin.
#[derive(Clone)]
pub(crate) enum ListenerSecurity {
    /// With a handshake.
    Tls(Arc<ServerTls>, TlsMode),
    /// Straight with HTTP/2: it is our own sidecar, and says of each call who makes it.
    Mesh(Arc<MeshTrust>),
}

/// State that every listener of a server shares.
#[derive(Clone)]
pub(crate) struct AcceptContext {
    pub(crate) ready: mpsc::Sender<AcceptedConnection>,
    pub(crate) stop: CancellationToken,
    pub(crate) sever: CancellationToken,
    pub(crate) limiter: ConnectionLimiter,
    pub(crate) metrics: Metrics,
}

/// Places for connections. Of those for peers that are known a quarter is for others than actors.
#[derive(Clone)]
pub(crate) struct ConnectionLimiter {
    known: Arc<Semaphore>,
    kept_from_actors: usize,
    strangers: ConnectionTable,
    actors: ActorConnections,
}

/// A place that is taken, until it is dropped.
#[derive(Debug)]
enum ConnectionPermit {
    Known { _permit: OwnedSemaphorePermit, _of_actor: Option<ActorConnectionGuard> },
    Stranger { _entered: ConnectionTableGuard },
}

impl ConnectionLimiter {
    pub(crate) fn new(known: usize, strangers: ConnectionTable) -> Self {
        let (known, kept_from_actors) = (Arc::new(Semaphore::new(known)), known / 4);
        Self { known, kept_from_actors, strangers, actors: ActorConnections::default() }
    }

    fn take(
        &self,
        peer: &ConnectionPeer,
        state: &Arc<StrangerConnectionState>,
    ) -> io::Result<ConnectionPermit> {
        if peer.is_stranger() {
            let entered = self.strangers.enter(peer.address.ip(), state).ok_or_else(|| {
                io::Error::other("too many known actors are calling over connections from that address")
            })?;
            return Ok(ConnectionPermit::Stranger { _entered: entered });
        }
        let actor = match &peer.identity {
            PeerIdentity::Known(caller) => caller.actor(),
            PeerIdentity::Anonymous | PeerIdentity::Unusable(_) => None,
        };
        let kept = if actor.is_some() { self.kept_from_actors } else { 0 };
        let of_actor = actor.map(|actor| self.actors.take(actor)).transpose().map_err(io::Error::other)?;
        // Nothing is looked up here: a certificate that was revoked takes a place as well.
        let permit =
            self.known.clone().try_acquire_owned().ok().filter(|_| self.known.available_permits() >= kept);
        let permit = permit.ok_or_else(|| io::Error::other("there are too many connections"))?;
        Ok(ConnectionPermit::Known { _permit: permit, _of_actor: of_actor })
    }
}

/// Accepts until the server stops, and hands on connections that are ready for HTTP/2.
///
/// Each handshake is a task of its own, so that a slow peer holds up no other. Where too many are under way, one of them is given
/// up for the next.
pub(crate) async fn accept(door: RpcListener, hall: AcceptContext) {
    let handshakes = ConnectionTable::of_handshakes();
    for count in 1_usize.. {
        if count.is_multiple_of(STRETCH_MAX) {
            tokio::task::yield_now().await;
        }
        let accepted = tokio::select! {
            () = hall.stop.cancelled() => return,
            accepted = door.listener.accept() => accepted,
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let state = StrangerConnectionState::accepted(hall.limiter.actors.clone());
        let handshake = match &door.security {
            // A sidecar carries the calls of many, and there is no handshake with it.
            ListenerSecurity::Mesh(_) => None,
            ListenerSecurity::Tls(..) => handshakes.enter(address.ip(), &state),
        };
        let (entrance, hall) = (door.security.clone(), hall.clone());
        tokio::spawn(async move {
            match begin(socket, address, entrance, handshake, &hall, &state).await {
                // The receiver is gone when the server has stopped meanwhile.
                Ok(connection) => drop(hall.ready.send(connection).await),
                Err(error) => {
                    hall.metrics.connections_refused.inc();
                    // Peers that cause evictions must not be able to fill the log with them.
                    match state.is_evicted() {
                        true => tracing::debug!(peer = %address, %error, "a connection did not come about"),
                        false => tracing::info!(peer = %address, %error, "a connection did not come about"),
                    }
                }
            }
        });
    }
}

/// Does the handshake, as long as it has a place among those under way, and takes a place for the connection.
async fn begin(
    socket: TcpStream,
    address: SocketAddr,
    entrance: ListenerSecurity,
    handshake: Option<ConnectionTableGuard>,
    hall: &AcceptContext,
    state: &Arc<StrangerConnectionState>,
) -> io::Result<AcceptedConnection> {
    let greeting = tokio::time::timeout(HANDSHAKE_TIMEOUT, greet(socket, address, entrance, state));
    let greeted = tokio::select! {
        greeted = greeting => greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        () = state.evicted() => Err(io::Error::other("its handshake gave way to a newer one")),
    };
    let (wire, mut peer, kind) = greeted?;
    drop(handshake);
    let permit = hall.limiter.take(&peer, state)?;
    hall.metrics.connections.with_label_values(&[kind]).inc();
    peer.connection = peer.is_stranger().then(|| Arc::clone(state));
    Ok(AcceptedConnection::new(wire, peer, permit, hall))
}

async fn greet(
    socket: TcpStream,
    address: SocketAddr,
    entrance: ListenerSecurity,
    state: &Arc<StrangerConnectionState>,
) -> io::Result<(AcceptedStream, ConnectionPeer, &'static str)> {
    // Without it every small answer waits some 40 ms for an acknowledgement.
    socket.set_nodelay(true)?;
    let (tls, mode) = match entrance {
        ListenerSecurity::Mesh(trust) => {
            return Ok((
                AcceptedStream::Plain(LingeringStream::new(socket)),
                ConnectionPeer::behind_sidecar(address, trust),
                "mesh",
            ));
        }
        ListenerSecurity::Tls(tls, mode) => (tls, mode),
    };
    if begins_with_tls(&socket).await? {
        let (stream, peer) = handshake(socket, address, &tls, state).await?;
        return Ok((AcceptedStream::Tls(Box::new(LingeringStream::new(stream))), peer, "tls"));
    }
    if mode == TlsMode::Strict {
        return Err(io::Error::other("the peer does not use TLS, which this port requires"));
    }
    tracing::info!(peer = %address, "a connection in plaintext; `--tls-mode strict` will refuse it");
    let peer = ConnectionPeer::new(address, PeerIdentity::Anonymous, tls.current().1.clone());
    Ok((AcceptedStream::Plain(LingeringStream::new(socket)), peer, "plaintext"))
}

/// Looks at the first byte and leaves it where it is.
async fn begins_with_tls(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    match socket.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0] == TLS_FIRST_BYTE),
    }
}

async fn handshake(
    socket: TcpStream,
    address: SocketAddr,
    tls: &ServerTls,
    state: &Arc<StrangerConnectionState>,
) -> io::Result<(TlsStream<TcpStream>, ConnectionPeer)> {
    let begun = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
    let _greeting = state.greet();
    let current = tls.current();
    let (config, trust_domain) = &*current;
    let stream = begun.into_stream(config.clone()).await?;
    let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let identity = PeerIdentity::from_leaf(leaf.map(AsRef::as_ref), trust_domain);
    Ok((stream, ConnectionPeer::new(address, identity, trust_domain.clone())))
}

/// A connection that is ready for HTTP/2. It breaks when the server severs it.
pub(crate) struct AcceptedConnection {
    wire: AcceptedStream,
    peer: ConnectionPeer,
    severing: CancellationToken,
    severed: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: CancellationToken,
    _ending: DropGuard,
    _permit: ConnectionPermit,
}

enum AcceptedStream {
    Tls(Box<LingeringStream<TlsStream<TcpStream>>>),
    Plain(LingeringStream<TcpStream>),
}

/// Makes one call on a connection's wire, whichever kind that is.
macro_rules! on_wire {
    ($connection:expr, $wire:ident => $call:expr) => {
        match &mut $connection.wire {
            AcceptedStream::Tls(stream) => {
                let $wire = Pin::new(stream.as_mut());
                $call
            }
            AcceptedStream::Plain(socket) => {
                let $wire = Pin::new(socket);
                $call
            }
        }
    };
}

impl AcceptedConnection {
    fn new(
        wire: AcceptedStream,
        peer: ConnectionPeer,
        permit: ConnectionPermit,
        hall: &AcceptContext,
    ) -> Self {
        let (severing, ended) = (hall.sever.child_token(), CancellationToken::new());
        let severed = Box::pin(severing.clone().cancelled_owned());
        let ending = ended.clone().drop_guard();
        Self { wire, peer, severing, severed, ended, _ending: ending, _permit: permit }
    }

    /// State of the connection, when it is a stranger's.
    pub(crate) fn state(&self) -> Option<Arc<StrangerConnectionState>> {
        self.peer.connection.clone()
    }

    /// Cuts the connection, when it is cancelled.
    pub(crate) fn severing(&self) -> CancellationToken {
        self.severing.clone()
    }

    /// Cancelled with the end of the connection.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    fn poll_severed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.severed.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for AcceptedConnection {
    type ConnectInfo = ConnectionPeer;
    fn connect_info(&self) -> ConnectionPeer {
        self.peer.clone()
    }
}

impl AsyncRead for AcceptedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_severed(cx)?;
        on_wire!(self, wire => wire.poll_read(cx, buffer))
    }
}

impl AsyncWrite for AcceptedConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_wire!(self, wire => wire.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_wire!(self, wire => wire.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            AcceptedStream::Tls(stream) => stream.is_write_vectored(),
            AcceptedStream::Plain(socket) => socket.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_wire!(self, wire => wire.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_severed(cx)?;
        on_wire!(self, wire => wire.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Caller;
    use identity::{Identity, ServiceName, TrustDomain};
    use model::ActorId;

    #[test]
    fn strangers_do_not_take_the_places_of_others() {
        let peer =
            |identity| ConnectionPeer::new(([127, 0, 0, 1], 1).into(), identity, TrustDomain::default());
        let (stranger, unusable) =
            (peer(PeerIdentity::Anonymous), peer(PeerIdentity::Unusable("why".into())));
        let known = peer(PeerIdentity::Known(Caller::local(Identity::Admin)));
        let limiter = ConnectionLimiter::new(1, ConnectionTable::bounded(2, 2, 2));
        let states = [(); 3].map(|()| StrangerConnectionState::accepted(ActorConnections::default()));
        let [first, second, third] = &states;
        let taken = [limiter.take(&stranger, first), limiter.take(&unusable, second)];
        assert!(taken.iter().all(Result::is_ok));
        let newest = limiter.take(&stranger, third).expect("one of them gives way");
        assert_eq!(states.each_ref().map(|state| state.is_evicted()), [true, false, false]);
        let permit = limiter.take(&known, first).expect("a place of its own");
        assert!(limiter.take(&known, first).is_err());
        drop((taken, newest, permit));
        assert!(limiter.take(&known, first).is_ok() && limiter.take(&stranger, first).is_ok());
    }

    #[test]
    fn actors_leave_some_places_to_services() {
        let peer = |identity| {
            let identity = PeerIdentity::Known(Caller::local(identity));
            ConnectionPeer::new(([127, 0, 0, 1], 1).into(), identity, TrustDomain::default())
        };
        let (actor, service) =
            (peer(Identity::Actor(ActorId(7))), peer(Identity::Service(ServiceName::Router)));
        let limiter = ConnectionLimiter::new(4, ConnectionTable::of_strangers());
        let state = StrangerConnectionState::accepted(ActorConnections::default());
        let take = |peer| limiter.take(peer, &state);
        let taken: Vec<_> = (0..3).map(|_| take(&actor).expect("room")).collect();
        assert!(take(&actor).is_err());
        let permit = take(&service).expect("a place of its own");
        assert!(take(&service).is_err());
        drop((taken, permit));
        assert!(take(&actor).is_ok());
    }
}
