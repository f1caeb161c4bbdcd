//! HTTP, to the hosts that the job was granted.

use std::time::{Duration, Instant};

use ::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use ::http::{Method, Uri};
use bytes::Bytes;
use egress::{EgressRequest, EgressResponse, HostAllowlist, TrustAnchors};
use model::limits::FILE_BYTES_MAX;
use rhai::{Dynamic, INT, Map};
use service::error_chain;
use tokio::runtime::Handle;

use crate::engine::to_json;
use crate::runtime::ScriptJob;
use crate::runtimes::rhai::{ScriptFunctionResult, ScriptLimits};

/// How long a request may take, unless it says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request may say that it may take.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The most that a request or an answer may carry.
pub(super) const BODY_BYTES_MAX: usize = FILE_BYTES_MAX;
/// Steps that one request counts as.
const STEPS: u64 = 1000;

/// HTTP client for a job's requests.
pub(super) struct ScriptHttpClient {
    trust: TrustAnchors,
    runtime: Handle,
    /// Nothing when the job did not ask for the network.
    hosts: Option<HostAllowlist>,
    limits: ScriptLimits,
}

impl ScriptHttpClient {
    pub(super) fn new(trust: &TrustAnchors, runtime: Handle, job: &ScriptJob, limits: &ScriptLimits) -> Self {
        let hosts = job.execution.network.then(|| HostAllowlist::new(&job.grants.hosts));
        Self { trust: trust.clone(), runtime, hosts, limits: limits.clone() }
    }

    /// `http_get(url)`.
    pub(super) fn get(&self, url: &str) -> ScriptFunctionResult<Map> {
        let uri = uri(url).map_err(|why| format!("http_get: {why}"))?;
        self.send("http_get", EgressRequest::new(Method::GET, uri), TIMEOUT)
    }

    /// `http_post(url, body)`.
    pub(super) fn post(&self, url: &str, body: &Dynamic) -> ScriptFunctionResult<Map> {
        let ask = || -> Result<EgressRequest, String> {
            let mut ask = EgressRequest::new(Method::POST, uri(url)?);
            carry(&mut ask, body)?;
            Ok(ask)
        };
        self.send("http_post", ask().map_err(|why| format!("http_post: {why}"))?, TIMEOUT)
    }

    /// `http(#{…})`.
    pub(super) fn ask(&self, request: &Map) -> ScriptFunctionResult<Map> {
        let (ask, timeout) = read(request).map_err(|why| format!("http: {why}"))?;
        self.send("http", ask, timeout)
    }

    fn send(&self, called: &str, ask: EgressRequest, timeout: Duration) -> ScriptFunctionResult<Map> {
        self.limits.spend(STEPS)?;
        let Some(hosts) = &self.hosts else {
            return Err(format!("{called}: the job did not ask for the network (network: true)").into());
        };
        let until = Instant::now() + timeout;
        let until = self.limits.deadline().map_or(until, |deadline| until.min(deadline));
        let asking = async {
            tokio::select! {
                biased;
                () = self.limits.interrupt().raised() => Err("the job has to end".to_owned()),
                () = tokio::time::sleep_until(until.into()) => {
                    Err(format!("no answer within {} s", timeout.as_secs_f64()))
                }
                reply = egress::send(&self.trust, hosts, ask, BODY_BYTES_MAX) => {
                    reply.map_err(|error| error_chain(&error))
                }
            }
        };
        let reply = self.runtime.block_on(asking);
        self.limits.look()?;
        let reply = reply.map_err(|why| format!("{called}: {why}"))?;
        Ok(answer(&reply))
    }
}

fn answer(reply: &EgressResponse) -> Map {
    let mut headers = Map::new();
    for name in reply.headers.keys() {
        let values = reply.headers.get_all(name).iter();
        let values: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        headers.insert(name.as_str().into(), values.join(", ").into());
    }
    Map::from([
        ("status".into(), Dynamic::from(INT::from(reply.status.as_u16()))),
        ("headers".into(), headers.into()),
        ("body".into(), String::from_utf8_lossy(&reply.body).into_owned().into()),
    ])
}

fn uri(url: &str) -> Result<Uri, String> {
    url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))
}

/// Reads `#{method, url, headers, body, timeout}`.
fn read(request: &Map) -> Result<(EgressRequest, Duration), String> {
    const KEYS: [&str; 5] = ["method", "url", "headers", "body", "timeout"];
    if let Some(unknown) = request.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("`{unknown}` is none of {}", KEYS.join(", ")));
    }
    let text = |key: &str| match request.get(key) {
        None => Ok(None),
        Some(value) => value
            .clone()
            .into_immutable_string()
            .map(Some)
            .map_err(|kind| format!("`{key}` is {kind}, not a text")),
    };
    let url = text("url")?.ok_or("it has no `url`")?;
    let method = match text("method")? {
        None => Method::GET,
        Some(name) => Method::from_bytes(name.to_ascii_uppercase().as_bytes())
            .map_err(|_| format!("{name:?} is no method"))?,
    };
    if method == Method::CONNECT {
        return Err("CONNECT is not for scripts".to_owned());
    }
    let mut ask = EgressRequest::new(method, uri(&url)?);
    if let Some(headers) = request.get("headers") {
        let headers = headers.as_map_ref().map_err(|kind| format!("`headers` is {kind}, not a map"))?;
        ask.headers = read_headers(&headers)?;
    }
    if let Some(body) = request.get("body") {
        carry(&mut ask, body)?;
    }
    let timeout = match request.get("timeout") {
        None => TIMEOUT,
        Some(secs) => {
            #[expect(clippy::cast_precision_loss, reason = "seconds")]
            let secs = secs.as_float().or_else(|_| secs.as_int().map(|secs| secs as f64));
            let secs = secs.map_err(|kind| format!("`timeout` is {kind}, not a number of seconds"))?;
            Duration::try_from_secs_f64(secs).map_err(|error| format!("`timeout`: {error}"))?.min(TIMEOUT_MAX)
        }
    };
    Ok((ask, timeout))
}

fn read_headers(headers: &Map) -> Result<HeaderMap, String> {
    let mut read = HeaderMap::new();
    for (name, value) in headers {
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header"))?;
        if egress::is_connection_header(&header) {
            return Err(format!("the header `{header}` is not for scripts"));
        }
        let value = HeaderValue::from_str(&value.to_string());
        read.insert(header, value.map_err(|_| format!("the value of `{name}` is none"))?);
    }
    Ok(read)
}

/// Gives a request its body: a text as it is, everything else as JSON.
fn carry(ask: &mut EgressRequest, body: &Dynamic) -> Result<(), String> {
    let bytes = match body.as_immutable_string_ref() {
        Ok(text) => Bytes::copy_from_slice(text.as_bytes()),
        Err(_) if body.is_unit() => Bytes::new(),
        Err(_) => {
            let json = to_json(body).map_err(|why| format!("the body: {why}"))?;
            ask.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            json.to_string().into()
        }
    };
    if bytes.len() > BODY_BYTES_MAX {
        return Err(format!("the body has {} bytes, the limit is {BODY_BYTES_MAX}", bytes.len()));
    }
    ask.body = bytes;
    Ok(())
}
