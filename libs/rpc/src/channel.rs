//! The one client type: over mTLS, or straight into the same process.

pub(crate) mod answer;
pub(crate) mod certificate_probe;
pub(crate) mod health;
pub(crate) mod local;
mod transparent_retry;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use identity::Identity;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::Endpoint;
use tower::{Service, service_fn};

use crate::caller::Caller;
use crate::channel::answer::{not_reached, received};
use crate::channel::local::LocalHandle;
use crate::channel::transparent_retry::{RetainedRequest, TRIES_MAX, is_unprocessed};
use crate::gate::Gate;
use crate::gate::deadline::{pass_on, shorten_timeout};
use crate::tls::{ALPN_H2, ClientTls, TlsError, TlsFiles};

/// The longest pause before a service asks another one of its suite again that could not be reached. They are few, so asking
/// costs little, and one often waits for another that waits as well: what has long been away is in use again within seconds.
pub const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Other stacks' servers refuse pings that come more often.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Decides whether an address is connected to; else says why not.
pub type AddressCheck = Arc<dyn Fn(SocketAddr) -> Result<(), String> + Send + Sync>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A way to a service, for every generated client: `FlowServiceClient::new(channel)`.
///
/// Cheap to clone. Messages are decoded up to 4 MiB unless the client is configured otherwise.
///
/// In the same process the call goes straight into the handler, polled by the
/// caller: a handler whose stream has to go on while its answer is not polled
/// spawns a task, as it should for a remote caller as well.
///
/// A caller that leaves a bidirectional stream must drop both ends: HTTP/2 does not
/// report a dropped answer to the other side while requests could still come.
#[derive(Debug, Clone)]
pub struct Channel(ChannelTransport);

#[derive(Debug, Clone)]
enum ChannelTransport {
    Remote { channel: tonic::transport::Channel, target: Arc<str> },
    Local { handle: LocalHandle, caller: Caller },
}

impl ChannelTransport {
    fn target(&self) -> &str {
        match self {
            Self::Remote { target, .. } => target,
            Self::Local { handle, .. } => handle.name(),
        }
    }
}

impl Channel {
    /// A way to `https://host:port`, or in a mesh ([`TlsFiles::in_mesh`]) to `http://host:port`, which a sidecar takes
    /// up. Connects when first used, and again whenever the connection was lost. Has to be made within a runtime.
    ///
    /// The server's certificate has to carry `server_name`, or the host of the address when there is none.
    /// Which service answers is not part of that check: any holder of a certificate with that name is believed.
    ///
    /// # Errors
    /// When the address or a certificate file cannot be used.
    pub fn remote(address: &str, tls: &TlsFiles, server_name: Option<&str>) -> Result<Self, ChannelError> {
        Self::remote_where(address, tls, server_name, any_address())
    }

    /// Acts like [`Channel::remote`] for an address from others. With each connection, `check` is given every address of the
    /// host; when it refuses any of them no connection is made, and what was checked is what is connected to.
    ///
    /// # Errors
    /// As [`Channel::remote`].
    pub fn remote_where(
        address: &str,
        tls: &TlsFiles,
        server_name: Option<&str>,
        check: AddressCheck,
    ) -> Result<Self, ChannelError> {
        if let Some(authority) = plaintext_address(address) {
            return if tls.allows_plaintext() {
                Ok(Self::to_sidecar(&authority, check))
            } else {
                Err(ChannelError::Plaintext { address: address.to_owned() })
            };
        }
        let authority = parse_address(address)?;
        let name = name_of(&authority, server_name)?;
        let tls = Arc::new(ClientTls::load(tls).map_err(ChannelError::Tls)?);

        // The connector does TLS itself, which tonic accepts for `http` only; requests still say `https`.
        let endpoint = endpoint(&authority).origin(uri(Scheme::HTTPS, &authority));
        let target = authority.clone();
        let channel = endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
            let (authority, name, tls) = (authority.clone(), name.clone(), tls.clone());
            let check = Arc::clone(&check);
            async move { connect(&authority, name, &tls, &check).await.map(TokioIo::new) }
        }));
        Ok(Self(ChannelTransport::Remote { channel, target: target.as_str().into() }))
    }

    fn to_sidecar(authority: &Authority, check: AddressCheck) -> Self {
        let (endpoint, target) = (endpoint(authority), authority.clone());
        let channel = endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
            let (authority, check) = (target.clone(), Arc::clone(&check));
            async move { open(&authority, &check).await.map(TokioIo::new) }
        }));
        Self(ChannelTransport::Remote { channel, target: authority.as_str().into() })
    }

    /// A way to a service of the same process, which will see this identity.
    #[must_use]
    pub const fn local(handle: LocalHandle, identity: Identity) -> Self {
        Self(ChannelTransport::Local { handle, caller: Caller::local(identity) })
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        match &mut self.0 {
            ChannelTransport::Remote { channel, target } => {
                channel.poll_ready(cx).map_err(|error| not_reached(target, &error))
            }
            ChannelTransport::Local { .. } => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Err(error) = pass_on(request.headers_mut(), self.0.target()) {
            return Box::pin(std::future::ready(Err(error.into())));
        }
        match &mut self.0 {
            ChannelTransport::Remote { channel, target } => {
                let (request, retained) = RetainedRequest::retain(request);
                let (answer, channel, target) = (channel.call(request), channel.clone(), target.clone());
                Box::pin(async move {
                    let answer = retry_unprocessed(answer, retained, channel, &target).await?;
                    received(answer, &target)
                })
            }
            ChannelTransport::Local { handle, caller } => {
                // The extensions of the caller's own request stay with the caller.
                *request.extensions_mut() = http::Extensions::new();
                request.extensions_mut().insert(*caller);
                if let Some(gate) = handle.now() {
                    return Box::pin(call_gate(gate, request));
                }
                let published = handle.clone().when_published();
                Box::pin(async move { call_gate(published.await?, request).await })
            }
        }
    }
}

/// Waits for an answer; sends the request again as long as no server has processed it and its deadline lasts.
async fn retry_unprocessed(
    first: impl Future<Output = Result<Response<Body>, tonic::transport::Error>>,
    mut retained: RetainedRequest,
    mut channel: tonic::transport::Channel,
    target: &str,
) -> Result<Response<Body>, Status> {
    let mut sent = Instant::now();
    let mut failure = match first.await {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    for _ in 1..TRIES_MAX {
        if !is_unprocessed(&failure) {
            break;
        }
        shorten_timeout(retained.headers_mut(), sent.elapsed(), target)?;
        sent = Instant::now();
        let Some((request, again)) = retained.again().await else { break };
        retained = again;
        poll_fn(|cx| channel.poll_ready(cx)).await.map_err(|error| not_reached(target, &error))?;
        failure = match channel.call(request).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
    }
    Err(not_reached(target, &failure))
}

async fn call_gate(mut gate: Gate, request: Request<Body>) -> Result<Response<Body>, Status> {
    let answer = gate.call(request).await;
    answer.map_err(|never| match never {})
}

pub(crate) async fn connect(
    authority: &Authority,
    name: ServerName<'static>,
    tls: &ClientTls,
    check: &AddressCheck,
) -> Result<TlsStream<TcpStream>, BoxError> {
    let socket = open(authority, check).await?;
    let config = Arc::clone(&*tls.current());
    let stream = TlsConnector::from(config).connect(name, socket).await?;
    if stream.get_ref().1.alpn_protocol() != Some(ALPN_H2) {
        return Err("the server does not speak gRPC (no h2 in the TLS handshake)".into());
    }
    Ok(stream)
}

/// Connects wherever a name leads to.
pub(crate) fn any_address() -> AddressCheck {
    Arc::new(|_| Ok(()))
}

async fn open(authority: &Authority, check: &AddressCheck) -> Result<TcpStream, BoxError> {
    let port = authority.port_u16().unwrap_or(443);
    let found = tokio::net::lookup_host((authority.host().trim_matches(['[', ']']), port)).await?;
    let addresses: Vec<_> = found.collect();
    addresses.iter().try_for_each(|address| check(*address))?;
    let socket = TcpStream::connect(addresses.as_slice()).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

fn endpoint(authority: &Authority) -> Endpoint {
    Endpoint::from(uri(Scheme::HTTP, authority))
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
}

pub(crate) fn parse_address(address: &str) -> Result<Authority, ChannelError> {
    let refused = || ChannelError::Address { address: address.to_owned() };
    let rest = match address.split_once("://") {
        Some(("https", rest)) => rest.strip_suffix('/').unwrap_or(rest),
        Some(_) => return Err(refused()),
        None => address,
    };
    let authority: Authority = rest.parse().map_err(|_| refused())?;
    let good = authority.port_u16().is_some() && !authority.host().is_empty() && !rest.contains('@');
    if good { Ok(authority) } else { Err(refused()) }
}

/// The host and the port behind `http://`.
fn plaintext_address(address: &str) -> Option<Authority> {
    address.strip_prefix("http://").and_then(|rest| parse_address(rest).ok())
}

/// Returns the name that the server's certificate has to carry.
pub(crate) fn name_of(
    authority: &Authority,
    server_name: Option<&str>,
) -> Result<ServerName<'static>, ChannelError> {
    let name = server_name.unwrap_or_else(|| authority.host().trim_matches(['[', ']']));
    ServerName::try_from(name.to_owned()).map_err(|_| ChannelError::ServerName { name: name.to_owned() })
}

fn uri(scheme: Scheme, authority: &Authority) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(scheme);
    parts.authority = Some(authority.clone());
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    Uri::from_parts(parts).expect("scheme, authority and path make a URI")
}

/// Why there is no way to a service.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The address is of another form.
    #[error("`{address}` is no address of a service: write https://host:port")]
    Address {
        /// The address.
        address: String,
    },
    /// Plaintext is for meshes.
    #[error(
        "`{address}` would be called in plaintext, which is for processes behind a sidecar (`--mesh`): write https://"
    )]
    Plaintext {
        /// The address.
        address: String,
    },
    /// The name cannot stand in a certificate.
    #[error("`{name}` is no name that a server's certificate can have")]
    ServerName {
        /// The name.
        name: String,
    },
    /// The certificate files cannot be used.
    #[error("the TLS files cannot be used")]
    Tls(#[source] TlsError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for address in ["https://localhost:7701", "127.0.0.1:7701", "https://[::1]:1/", "storage:7701"] {
            assert!(parse_address(address).is_ok(), "{address}");
        }
        for address in ["", "http://localhost:1", "localhost", "https://h:1/path", "https://u@h:1", ":1"] {
            assert!(parse_address(address).is_err(), "{address}");
        }
    }
}
