//! One request and its answer, through redirections.
//!
//! A connection for each request, to an address that was checked: no second lookup decides where a name leads.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::send_observer::{EgressBody, ObservedStream};
use crate::{ConnectError, DeniedHost, HostAllowlist, SendObserver, TrustAnchors, connect};

/// How often an answer may lead elsewhere.
const REDIRECTIONS_MAX: usize = 10;
/// An HTTP request.
#[derive(Debug, Clone)]
pub struct EgressRequest {
    method: Method,
    uri: Uri,
    /// Headers of the request, without those of the connection ([`is_connection_header`]).
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: Bytes,
}

impl EgressRequest {
    /// Builds a request without headers or body.
    #[must_use]
    pub fn new(method: Method, uri: Uri) -> Self {
        Self { method, uri, headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// Returns the method.
    #[must_use]
    pub const fn method(&self) -> &Method {
        &self.method
    }

    /// Returns the target.
    #[must_use]
    pub const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Returns where an answer to this request leads, when it is a redirection to an URL.
    #[must_use]
    pub fn redirection(&self, reply: &EgressResponse) -> Option<Uri> {
        join(&self.uri, redirect_location(reply)?.to_str().ok()?)
    }

    /// Turns to another target, without the headers that are secret when that is another server's.
    pub fn redirect_to(&mut self, uri: Uri) {
        if (uri.scheme(), uri.authority()) != (self.uri.scheme(), self.uri.authority()) {
            // These were for the other one.
            for secret in [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION] {
                self.headers.remove(secret);
            }
            let marked: Vec<_> = self.headers.iter().filter(|(_, value)| value.is_sensitive()).collect();
            let marked: Vec<_> = marked.into_iter().map(|(name, _)| name.clone()).collect();
            for secret in marked {
                self.headers.remove(secret);
            }
        }
        self.uri = uri;
    }
}

/// An HTTP answer.
#[derive(Debug, Clone)]
pub struct EgressResponse {
    /// Status of the answer.
    pub status: StatusCode,
    /// Headers of the answer.
    pub headers: HeaderMap,
    /// Body of the answer, read to its end.
    pub body: Bytes,
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// One request of the chain of redirections failed.
    #[error("{uri}")]
    Failed {
        /// Target of that request.
        uri: Uri,
        /// Cause of the failure.
        #[source]
        cause: EgressFailure,
    },
    /// Every answer led elsewhere.
    #[error("more than {REDIRECTIONS_MAX} redirections")]
    Redirections,
}

/// Cause of a failed request.
#[derive(Debug, thiserror::Error)]
pub enum EgressFailure {
    /// No request can be made of it. Nothing was sent.
    #[error("{0}")]
    Refused(String),
    /// A rule is against it. Nothing was sent.
    #[error(transparent)]
    Denied(DeniedHost),
    /// There is no connection to the host, or the host is not who it should be. Nothing was sent.
    #[error("{0}")]
    Unreachable(String),
    /// HTTP broke off, before there was an answer.
    #[error(transparent)]
    Http(hyper::Error),
    /// The body of the answer has more bytes than are taken.
    #[error("the answer has more than {most} bytes")]
    TooLong {
        /// The answer, without its body.
        reply: Box<EgressResponse>,
        /// How many bytes are taken.
        most: usize,
    },
    /// The body of the answer broke off.
    #[error("the answer broke off")]
    Body {
        /// The answer, without its body.
        reply: Box<EgressResponse>,
        /// Why.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl EgressFailure {
    #[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
    fn refused(why: impl ToString) -> Self {
        Self::Refused(why.to_string())
    }
}

/// Returns `true` for a header of the connection, which the caller may not set.
#[must_use]
pub fn is_connection_header(name: &HeaderName) -> bool {
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
/// [`EgressError`]. It may have been carried out, unless nothing was sent at all.
pub async fn send(
    trust: &TrustAnchors,
    hosts: &HostAllowlist,
    mut ask: EgressRequest,
    body_max: usize,
) -> Result<EgressResponse, EgressError> {
    for _ in 0..=REDIRECTIONS_MAX {
        let failed = |cause: EgressFailure, uri: &Uri| EgressError::Failed { uri: uri.clone(), cause };
        let reply = send_once(trust, hosts, &ask, body_max, ()).await;
        let reply = reply.map_err(|cause| failed(cause, &ask.uri))?;
        let Some(location) = redirect_location(&reply) else { return Ok(reply) };
        let led = redirect(&mut ask, reply.status, location);
        led.map_err(|why| failed(EgressFailure::Refused(why), &ask.uri))?;
    }
    Err(EgressError::Redirections)
}

fn redirect_location(reply: &EgressResponse) -> Option<&HeaderValue> {
    let redirects = matches!(reply.status.as_u16(), 301 | 302 | 303 | 307 | 308);
    redirects.then(|| reply.headers.get(header::LOCATION)).flatten()
}

fn redirect(ask: &mut EgressRequest, status: StatusCode, location: &HeaderValue) -> Result<(), String> {
    let shown = String::from_utf8_lossy(location.as_bytes());
    let to = join(&ask.uri, &shown).ok_or_else(|| format!("it leads to {shown:?}, which is no URL"))?;
    let asks_again = matches!(status.as_u16(), 307 | 308) || ask.method == Method::HEAD;
    if !asks_again && (status == StatusCode::SEE_OTHER || ask.method == Method::POST) {
        ask.method = Method::GET;
        ask.body = Bytes::new();
        ask.headers.remove(header::CONTENT_TYPE);
    }
    ask.redirect_to(to);
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

/// Sends once, and follows no redirection. `departure` is notified when the request leaves, and when it has left.
///
/// # Errors
/// [`EgressFailure`].
pub async fn send_once(
    trust: &TrustAnchors,
    hosts: &HostAllowlist,
    ask: &EgressRequest,
    body_max: usize,
    departure: impl SendObserver,
) -> Result<EgressResponse, EgressFailure> {
    let is_tls = match ask.uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => false,
        Some(scheme) if *scheme == Scheme::HTTPS => true,
        _ => return Err(EgressFailure::refused("it is neither http nor https")),
    };
    let authority = ask.uri.authority().filter(|authority| !authority.host().is_empty());
    let authority = authority.ok_or_else(|| EgressFailure::refused("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(EgressFailure::refused("who asks stands in a header, not in the URL"));
    }
    if !has_valid_port(&ask.uri) {
        return Err(EgressFailure::refused("its port is not a valid port number"));
    }
    let request = request(ask, authority)?;
    let host = authority.host();
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let stream = connect(hosts, host, port).await.map_err(|error| match error {
        ConnectError::Denied(denied) => EgressFailure::Denied(denied),
        ConnectError::Failed(why) => EgressFailure::Unreachable(why),
    })?;
    if !is_tls {
        return exchange(stream, request, body_max, departure).await;
    }
    let stream = trust.encrypt(host, stream).await.map_err(EgressFailure::Unreachable)?;
    exchange(stream, request, body_max, departure).await
}

/// Returns `true` for a target whose port is the scheme's or a number of a port. [`Uri`] takes anything for one.
#[must_use]
pub fn has_valid_port(uri: &Uri) -> bool {
    let Some(authority) = uri.authority() else { return true };
    let host_and_port = authority.as_str().rsplit('@').next().unwrap_or_default();
    let port = host_and_port.strip_prefix(authority.host()).unwrap_or_default();
    matches!(port, "" | ":") || authority.port_u16().is_some()
}

/// The request as it goes over a connection.
fn request(ask: &EgressRequest, authority: &Authority) -> Result<Request<EgressBody>, EgressFailure> {
    let path = ask.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let request = Request::builder().method(&ask.method).uri(path).body(EgressBody::new(ask.body.clone()));
    let mut request = request.map_err(EgressFailure::refused)?;
    let headers = request.headers_mut();
    headers.extend(ask.headers.clone());
    let host = HeaderValue::from_str(authority.as_str()).map_err(EgressFailure::refused)?;
    headers.insert(header::HOST, host);
    headers.entry(header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    let agent = concat!("mycora/", env!("CARGO_PKG_VERSION"));
    headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(agent));
    Ok(request)
}

async fn exchange<S>(
    stream: S,
    request: Request<EgressBody>,
    body_max: usize,
    departure: impl SendObserver,
) -> Result<EgressResponse, EgressFailure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = ObservedStream::new(stream, departure, request.body());
    let made = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = made.map_err(|error| EgressFailure::Unreachable(error.to_string()))?;
    let exchange = async {
        let (head, body) = sender.send_request(request).await.map_err(EgressFailure::Http)?.into_parts();
        let reply = EgressResponse { status: head.status, headers: head.headers, body: Bytes::new() };
        match Limited::new(body, body_max).collect().await {
            Ok(body) => Ok(EgressResponse { body: body.to_bytes(), ..reply }),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(EgressFailure::TooLong { reply: Box::new(reply), most: body_max })
            }
            Err(cause) => Err(EgressFailure::Body { reply: Box::new(reply), cause }),
        }
    };
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        reply = &mut exchange => reply,
        // It ends before everything is read only in trouble, or when the server closes at the end.
        _ = &mut connection => exchange.await,
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
    fn ports_are_numbers() {
        for (uri, expected) in [
            ("http://a.test/x", true),
            ("http://a.test:/x", true),
            ("http://a.test:81/x", true),
            ("http://[::1]:81/x", true),
            ("http://[::1]/x", true),
            ("http://me@a.test:81/x", true),
            ("http://a.test:port/x", false),
            ("http://a:a/x", false),
            ("http://a.test:99999/x", false),
        ] {
            assert_eq!(has_valid_port(&uri.parse().expect(uri)), expected, "{uri}");
        }
    }

    #[test]
    fn secrets_are_for_whom_they_were_meant() {
        let ask = || {
            let mut ask = EgressRequest::new(Method::POST, "http://a.test/x".parse().expect("a url"));
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

    #[test]
    fn what_is_marked_as_secret_stays_with_its_server() {
        let mut ask = EgressRequest::new(Method::GET, "https://a.test/x".parse().expect("a url"));
        let mut key = HeaderValue::from_static("hush");
        key.set_sensitive(true);
        ask.headers.insert("x-api-key", key);
        ask.headers.insert("x-other", HeaderValue::from_static("1"));
        ask.redirect_to("https://a.test/y".parse().expect("a url"));
        assert!(ask.headers.contains_key("x-api-key"));
        ask.redirect_to("https://a.test:8443/y".parse().expect("a url"));
        assert_eq!(ask.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-other"]);
    }
}
