//! Accepting connections: TCP, handshake, and who is there.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::caller::{Peer, PeerIdentity};
use crate::tls::ServerTls;

/// A handshake that takes longer is given up.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes under way at once; the others wait in the kernel's backlog.
const HANDSHAKES_MAX: usize = 256;
/// Pause after an error of `accept`, as when the process has no descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Accepts until `stop`, and hands connections with a finished handshake to `ready`.
///
/// Each handshake is a task of its own: a slow peer holds up nobody else.
pub(crate) async fn accept(
    listener: TcpListener,
    tls: Arc<ServerTls>,
    ready: mpsc::Sender<io::Result<Connection>>,
    stop: CancellationToken,
    sever: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let next = async {
            let permit = permits.clone().acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            () = stop.cancelled() => return,
            next = next => next,
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let (tls, ready, sever) = (tls.clone(), ready.clone(), sever.clone());
        tokio::spawn(async move {
            let greeted = tokio::time::timeout(HANDSHAKE_TIMEOUT, greet(socket, address, &tls, sever)).await;
            drop(permit);
            match greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                // Nobody receives any more when the server has stopped meanwhile.
                Ok(connection) => drop(ready.send(Ok(connection)).await),
                Err(error) => tracing::info!(peer = %address, %error, "TLS handshake failed"),
            }
        });
    }
}

async fn greet(
    socket: TcpStream,
    address: SocketAddr,
    tls: &ServerTls,
    sever: CancellationToken,
) -> io::Result<Connection> {
    // Without it every small answer waits some 40 ms for an acknowledgement.
    socket.set_nodelay(true)?;
    let current = tls.current();
    let (config, trust_domain) = &*current;
    let stream = TlsAcceptor::from(config.clone()).accept(socket).await?;
    let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let identity = PeerIdentity::from_leaf(leaf.map(AsRef::as_ref), trust_domain);
    let peer = Peer { address, identity, trust_domain: trust_domain.clone() };
    Ok(Connection { stream, peer, severed: Box::pin(sever.cancelled_owned()) })
}

/// A connection after its handshake. It breaks when the server severs it.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    severed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    fn poll_severed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.severed.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;
    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_severed(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
