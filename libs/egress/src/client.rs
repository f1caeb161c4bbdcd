//! One request and its answer, through redirections.
//!
//! A connection for each request, to an address that was looked at: nothing decides anew where a name leads.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::Hosts;

/// How often an answer may lead elsewhere.
const REDIRECTIONS_MAX: usize = 10;
/// Where systems keep the certificates that they trust.
const CERTIFICATES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Whom requests trust.
#[derive(Clone)]
pub struct Trust(Option<TlsConnector>);

impl Trust {
    /// What the machine trusts; `SSL_CERT_FILE` names another file.
    #[must_use]
    pub fn find() -> Self {
        let named = std::env::var_os("SSL_CERT_FILE");
        let places = named.iter().map(Path::new).chain(CERTIFICATES.iter().map(Path::new));
        for place in places {
            let Ok(certificates) = CertificateDer::pem_file_iter(place) else { continue };
            let mut roots = RootCertStore::empty();
            let (added, _) = roots.add_parsable_certificates(certificates.flatten());
            if added > 0 {
                return Self::with(roots);
            }
        }
        Self(None)
    }

    /// Returns `true` where no certificate is trusted, so that no request over https succeeds.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn with(roots: RootCertStore) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map(|config| config.with_root_certificates(roots).with_no_client_auth());
        Self(config.ok().map(|config| TlsConnector::from(Arc::new(config))))
    }
}

/// An HTTP request.
#[derive(Debug, Clone)]
pub struct Ask {
    method: Method,
    uri: Uri,
    /// Headers of the request, without those of the connection ([`is_of_connection`]).
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: Bytes,
}

impl Ask {
    /// Builds a request without headers or body.
    #[must_use]
    pub fn new(method: Method, uri: Uri) -> Self {
        Self { method, uri, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

/// An HTTP answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status of the answer.
    pub status: StatusCode,
    /// Headers of the answer.
    pub headers: HeaderMap,
    /// Body of the answer, read to its end.
    pub body: Bytes,
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// One request of the chain of redirections failed.
    #[error("{uri}")]
    Failed {
        /// Target of that request.
        uri: Uri,
        /// Cause of the failure.
        #[source]
        cause: Cause,
    },
    /// Every answer led elsewhere.
    #[error("more than {REDIRECTIONS_MAX} redirections")]
    Redirections,
}

/// Cause of a failed request.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// It may not be made, cannot be made, or its answer is not taken.
    #[error("{0}")]
    Refused(String),
    /// HTTP broke off.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The answer broke off.
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl Cause {
    #[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
    fn refused(why: impl ToString) -> Self {
        Self::Refused(why.to_string())
    }
}

/// Returns `true` for a header of the connection, which the caller may not set.
#[must_use]
pub fn is_of_connection(name: &HeaderName) -> bool {
    [
        header::HOST,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
    ]
    .contains(name)
}

/// Asks, and follows where the answer leads, as long as these hosts are allowed. An answer carries at most `body_max` bytes. Not to be
/// dropped lightly: whether it was carried out is not known then.
///
/// # Errors
/// [`RequestError`]; beside [`Cause::Refused`] it may have been carried out.
pub async fn send(
    trust: &Trust,
    hosts: &Hosts,
    mut ask: Ask,
    body_max: usize,
) -> Result<Reply, RequestError> {
    for _ in 0..=REDIRECTIONS_MAX {
        let failed = |cause: Cause, uri: &Uri| RequestError::Failed { uri: uri.clone(), cause };
        let reply = send_once(trust, hosts, &ask, body_max).await;
        let reply = reply.map_err(|cause| failed(cause, &ask.uri))?;
        let Some(location) = leads_elsewhere(&reply) else { return Ok(reply) };
        let led = redirect(&mut ask, reply.status, location);
        led.map_err(|why| failed(Cause::Refused(why), &ask.uri))?;
    }
    Err(RequestError::Redirections)
}

fn leads_elsewhere(reply: &Reply) -> Option<&HeaderValue> {
    let redirects = matches!(reply.status.as_u16(), 301 | 302 | 303 | 307 | 308);
    redirects.then(|| reply.headers.get(header::LOCATION)).flatten()
}

fn redirect(ask: &mut Ask, status: StatusCode, location: &HeaderValue) -> Result<(), String> {
    let shown = String::from_utf8_lossy(location.as_bytes());
    let to = join(&ask.uri, &shown).ok_or_else(|| format!("it leads to {shown:?}, which is no URL"))?;
    let asks_again = matches!(status.as_u16(), 307 | 308) || ask.method == Method::HEAD;
    if !asks_again && (status == StatusCode::SEE_OTHER || ask.method == Method::POST) {
        ask.method = Method::GET;
        ask.body = Bytes::new();
        ask.headers.remove(header::CONTENT_TYPE);
    }
    if (to.scheme(), to.authority()) != (ask.uri.scheme(), ask.uri.authority()) {
        // These were for the other one.
        for secret in [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION] {
            ask.headers.remove(secret);
        }
    }
    ask.uri = to;
    Ok(())
}

/// Where a reference leads from here.
fn join(from: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next()?;
    // A colon that soon separates a scheme.
    if reference.split(['/', '?']).next()?.contains(':') {
        return reference.parse().ok();
    }
    let scheme = from.scheme()?;
    if let Some(rest) = reference.strip_prefix("//") {
        return format!("{scheme}://{rest}").parse().ok();
    }
    let path = match reference {
        "" => from.path_and_query()?.to_string(),
        _ if reference.starts_with('/') => reference.to_owned(),
        _ if reference.starts_with('?') => format!("{}{reference}", from.path()),
        _ => format!("{}/{reference}", from.path().rsplit_once('/')?.0),
    };
    let path: PathAndQuery = path.parse().ok()?;
    Uri::builder()
        .scheme(scheme.clone())
        .authority(from.authority()?.clone())
        .path_and_query(path)
        .build()
        .ok()
}

async fn send_once(trust: &Trust, hosts: &Hosts, ask: &Ask, body_max: usize) -> Result<Reply, Cause> {
    let is_tls = match ask.uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => false,
        Some(scheme) if *scheme == Scheme::HTTPS => true,
        _ => return Err(Cause::refused("it is neither http nor https")),
    };
    let authority = ask.uri.authority().filter(|authority| !authority.host().is_empty());
    let authority = authority.ok_or_else(|| Cause::refused("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(Cause::refused("who asks stands in a header, not in the URL"));
    }
    let stream = connect(hosts, authority, is_tls).await.map_err(Cause::Refused)?;
    if !is_tls {
        return exchange(stream, ask, authority, body_max).await;
    }
    let no_trust = || Cause::refused("this machine has no certificates to trust");
    let connector = trust.0.as_ref().ok_or_else(no_trust)?;
    let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(name).map_err(Cause::refused)?;
    let stream = connector.connect(name, stream).await.map_err(Cause::refused)?;
    exchange(stream, ask, authority, body_max).await
}

async fn connect(hosts: &Hosts, authority: &Authority, is_tls: bool) -> Result<TcpStream, String> {
    let host = authority.host();
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    if !hosts.allow(host, port) {
        return Err(format!("the host {host} is not among those that this supervisor allows"));
    }
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let found = tokio::net::lookup_host((name, port)).await.map_err(|error| format!("{host}: {error}"))?;
    let found: Vec<SocketAddr> = found.collect();
    let mut why = format!("{host} has no address that may be reached: the list does not name a private one");
    for address in found.into_iter().filter(|address| hosts.reach(address.ip(), port)) {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => why = format!("{address}: {error}"),
        }
    }
    Err(why)
}

async fn exchange<S>(stream: S, ask: &Ask, authority: &Authority, body_max: usize) -> Result<Reply, Cause>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let path = ask.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut request = Request::builder().method(&ask.method).uri(path).body(Full::new(ask.body.clone()));
    let request = request.as_mut().map_err(Cause::refused)?;
    let headers = request.headers_mut();
    headers.extend(ask.headers.clone());
    let host = HeaderValue::from_str(authority.as_str()).map_err(Cause::refused)?;
    headers.insert(header::HOST, host);
    headers.entry(header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    let agent = concat!("mycora/", env!("CARGO_PKG_VERSION"));
    headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(agent));
    let request = std::mem::take(request);
    let asking = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, body_max).collect().await.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                Cause::Refused(format!("the answer has more than {body_max} bytes"))
            } else {
                Cause::Body(error)
            }
        })?;
        Ok(Reply { status: head.status, headers: head.headers, body: body.to_bytes() })
    };
    tokio::pin!(asking, connection);
    tokio::select! {
        biased;
        reply = &mut asking => reply,
        // It ends before everything is read only in trouble, or when the server closes at the end.
        _ = &mut connection => asking.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_lead_on_from_where_they_stand() {
        let from: Uri = "http://a.test:81/b/c?d=1".parse().expect("a url");
        for (reference, expected) in [
            ("https://x.test/y", "https://x.test/y"),
            ("//x.test/y", "http://x.test/y"),
            ("/y?z=2#f", "http://a.test:81/y?z=2"),
            ("y", "http://a.test:81/b/y"),
            ("?z", "http://a.test:81/b/c?z"),
            ("", "http://a.test:81/b/c?d=1"),
        ] {
            assert_eq!(join(&from, reference).expect(reference).to_string(), expected, "{reference}");
        }
        assert_eq!(join(&from, "http://"), None);
    }

    #[test]
    fn secrets_are_for_whom_they_were_meant() {
        let ask = || {
            let mut ask = Ask::new(Method::POST, "http://a.test/x".parse().expect("a url"));
            ask.headers.insert(header::AUTHORIZATION, HeaderValue::from_static("secret"));
            ask.body = Bytes::from_static(b"body");
            ask
        };
        let go = |status: u16, to: &'static str| {
            let mut ask = ask();
            let status = StatusCode::from_u16(status).expect("a status");
            redirect(&mut ask, status, &HeaderValue::from_static(to)).expect("a url");
            (ask.method.to_string(), ask.headers.contains_key(header::AUTHORIZATION), ask.body.len())
        };
        assert_eq!(go(302, "/y"), ("GET".to_owned(), true, 0));
        assert_eq!(go(307, "/y"), ("POST".to_owned(), true, 4));
        assert_eq!(go(308, "http://b.test/y"), ("POST".to_owned(), false, 4));
        assert_eq!(go(303, "https://a.test/x"), ("GET".to_owned(), false, 0));
    }
}
