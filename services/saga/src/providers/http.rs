//! Requests by HTTP: one request for each call, with its idempotency key.
//!
//! A request that was sent may have been carried out. So a failure before the first byte of the request is retried, a failure after it
//! leaves the outcome unknown, and only an answer can say that a call failed.

mod request;
mod response;

use std::fmt;
use std::sync::Arc;

use ::http::header::{self, HeaderName, HeaderValue};
use ::http::uri::Scheme;
use ::http::{Method, Uri};
use async_trait::async_trait;
use egress::{
    DeniedHost, EgressFailure, EgressRequest, EgressResponse, HostAllowlist, HostDenialReason, HostResolver,
    SendObserver, TrustAnchors, is_connection_header, send_once,
};
use service::error_chain;
use workflow::Json;
use workflow::formula::FormulaValueError;
use workflow::ledger::ProviderAnswer;
use workflow::provider::{
    EffectAction as CallKind, HttpAuth, HttpCall, HttpRequestTemplate, HttpTransport, SecretName,
    TextOrSecret, UnknownOutcomePolicy,
};

use self::response::{EffectHttpResponse, RedirectDecision, answer_to_call, answer_to_query};
use super::{CallProvider, ProviderCall};
use crate::secrets::{SecretError, Secrets};

/// Body of a request or an answer, in bytes.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Largest number of redirects that are followed.
const REDIRECTIONS_MAX: usize = 5;

/// The name of the header that carries the key of a call.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The name of the header that carries the trace context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A transport that cannot work for any call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTransport(pub(super) String);

/// Provider of effects by HTTP.
pub struct HttpProvider {
    base: Uri,
    hosts: HostAllowlist,
    auth: Option<HttpAuth>,
    headers: Vec<(HeaderName, TextOrSecret)>,
    ca: Option<SecretName>,
    trust: TrustAnchors,
    secrets: Arc<Secrets>,
}

impl fmt::Debug for HttpProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpProvider")
            .field("base", &self.base)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Reason why no request could be built for a call. Nothing was sent.
#[derive(Debug)]
pub(super) enum RequestBuildError {
    /// A formula failed.
    Formula(FormulaValueError),
    /// The values of the formulas make no valid request.
    Request(String),
    /// A secret cannot be used now.
    Secret(SecretError),
}

impl From<RequestBuildError> for ProviderAnswer {
    fn from(unmade: RequestBuildError) -> Self {
        match unmade {
            RequestBuildError::Formula(error) => failed("formula", &error.to_string()),
            RequestBuildError::Request(why) => failed("request", &why),
            // The operator can add or repair the secret, so the call is retried.
            RequestBuildError::Secret(error) => Self::Passing { why: error_chain(&error), after: None },
        }
    }
}

impl HttpProvider {
    /// Makes the provider. `trust` is for transports that name no authority of their own.
    ///
    /// # Errors
    /// The transport has an invalid base or header, or a header that the provider sets itself.
    pub fn new(
        transport: &HttpTransport,
        secrets: Arc<Secrets>,
        trust: TrustAnchors,
    ) -> Result<Self, BadTransport> {
        let text = transport.base_url.trim_end_matches('/');
        let base: Option<Uri> = text.parse().ok();
        let port = |base: &Uri| match base.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => Some(443),
            Some(scheme) if *scheme == Scheme::HTTP => Some(80),
            _ => None,
        };
        let base = base.filter(|base| base.query().is_none() && egress::has_valid_port(base));
        let base = base.and_then(|base| Some((port(&base)?, base)));
        let (port, base) = base.ok_or_else(|| BadTransport(format!("`{text}` cannot be a base URL")))?;
        let mut headers = Vec::new();
        for (name, value) in &transport.headers {
            let header = HeaderName::from_bytes(name.as_bytes());
            let header = header.map_err(|_| BadTransport(format!("`{name}` is no header")))?;
            let is_auth = header == header::AUTHORIZATION && transport.auth.is_some();
            if is_auth || is_reserved(&header) && header != header::AUTHORIZATION {
                return Err(BadTransport(format!("the header `{header}` is set by the provider itself")));
            }
            headers.push((header, value.clone()));
        }
        Ok(Self {
            base,
            hosts: HostAllowlist::exact(&transport.allow_hosts, port, transport.is_private),
            auth: transport.auth.clone(),
            headers,
            ca: transport.ca.clone(),
            trust,
            secrets,
        })
    }

    /// Resolves host names with this resolver instead of the system's.
    #[must_use]
    pub fn resolved_by(self, resolver: Arc<dyn HostResolver>) -> Self {
        Self { hosts: self.hosts.with_resolver(resolver), ..self }
    }

    /// Sends a request, and follows redirects as far as that repeats no change and reaches no other host.
    async fn exchange(
        &self,
        mut request: EgressRequest,
        call: &ProviderCall,
        departure: impl SendObserver + Clone,
    ) -> Result<EffectHttpResponse, ProviderAnswer> {
        let trust = match &self.ca {
            None => self.trust.clone(),
            Some(name) => self.private_trust(call, name)?,
        };
        for _ in 0..REDIRECTIONS_MAX {
            let response = self.send_once(&trust, &request, departure.clone()).await?;
            let RedirectDecision::On(to) = response.lead else { return Ok(response) };
            request.redirect_to(to);
        }
        self.send_once(&trust, &request, departure).await
    }

    async fn send_once(
        &self,
        trust: &TrustAnchors,
        request: &EgressRequest,
        departure: impl SendObserver,
    ) -> Result<EffectHttpResponse, ProviderAnswer> {
        let cause = match send_once(trust, &self.hosts, request, BODY_BYTES_MAX, departure).await {
            Ok(reply) => return Ok(EffectHttpResponse::whole(self.lead(request, &reply), reply)),
            Err(cause) => cause,
        };
        let why = error_chain(&cause);
        Err(match cause {
            EgressFailure::Refused(_) => failed("request", &why),
            EgressFailure::Denied(denied) => denied_by(&denied),
            EgressFailure::Unreachable(_) => ProviderAnswer::Passing { why, after: None },
            EgressFailure::Http(_) => ProviderAnswer::Unknown { why: format!("no answer: {why}") },
            EgressFailure::TooLong { reply, .. } | EgressFailure::Body { reply, .. } => {
                return Ok(EffectHttpResponse::cut(self.lead(request, &reply), *reply, why));
            }
        })
    }

    /// Returns the target of a redirect. It is followed to the same server with the same method; a GET also to another allowed port of
    /// that host, unless encryption would be lost. A redirect to another host is never followed.
    fn lead(&self, request: &EgressRequest, reply: &EgressResponse) -> RedirectDecision {
        let Some(to) = request.redirection(reply) else { return RedirectDecision::Nowhere };
        if (to.scheme(), to.authority()) == (request.uri().scheme(), request.uri().authority()) {
            let keeps_method = matches!(reply.status.as_u16(), 307 | 308);
            return if keeps_method || *request.method() == Method::GET {
                RedirectDecision::On(to)
            } else {
                RedirectDecision::Nowhere
            };
        }
        let is_tls = to.scheme() == Some(&Scheme::HTTPS);
        let port = to.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let (host, here) = (to.host().unwrap_or_default(), request.uri().host().unwrap_or_default());
        let elsewhere = |rule, why| {
            let message = format!("the upstream leads on to {host}:{port}, {why}");
            RedirectDecision::Elsewhere(refusal(rule, host, port, &message))
        };
        if !self.hosts.permits_host(host, port) {
            return elsewhere("allow_hosts", "which is not among the hosts that are allowed");
        }
        if !host.eq_ignore_ascii_case(here) {
            return elsewhere("redirect", "and redirections to other hosts are not followed");
        }
        let is_followed =
            *request.method() == Method::GET && (is_tls || request.uri().scheme() == to.scheme());
        if is_followed { RedirectDecision::On(to) } else { RedirectDecision::Nowhere }
    }

    fn private_trust(&self, call: &ProviderCall, name: &SecretName) -> Result<TrustAnchors, ProviderAnswer> {
        let pem = self.secrets.read(&call.tenant, name).map_err(RequestBuildError::Secret)?;
        let trust = TrustAnchors::from_pem(pem.expose());
        trust.map_err(|why| ProviderAnswer::Passing {
            why: format!("the authorities of `{name}`: {why}"),
            after: None,
        })
    }

    async fn make(&self, call: &ProviderCall, http: &HttpCall) -> Result<ProviderAnswer, ProviderAnswer> {
        let mut request = self.render(call, &http.request)?;
        let key = HeaderValue::from_str(&call.command.to_string());
        let key = key.map_err(|error| RequestBuildError::Request(error.to_string()))?;
        request.headers.insert(IDEMPOTENCY_KEY, key);
        let response = self.exchange(request, call, call.sent.clone()).await?;
        Ok(answer_to_call(call, http, &response))
    }

    async fn query(
        &self,
        call: &ProviderCall,
        http: &HttpCall,
    ) -> Result<Option<ProviderAnswer>, ProviderAnswer> {
        let UnknownOutcomePolicy::Query(query) = &call.effect.unknown else { return Ok(None) };
        // Without the idempotency key, which belongs to the request of the call itself.
        let request = self.render(call, &query.request)?;
        let response = self.exchange(request, call, ()).await?;
        match (answer_to_query(call, http, query, &response), response.lead) {
            (None, RedirectDecision::Elsewhere(refusal)) => Err(refusal),
            (answer, _) => Ok(answer),
        }
    }

    fn render(
        &self,
        call: &ProviderCall,
        template: &HttpRequestTemplate,
    ) -> Result<EgressRequest, RequestBuildError> {
        request::HttpRequestRenderer { provider: self, call }.render(template)
    }
}

#[async_trait]
impl CallProvider for HttpProvider {
    async fn call(&self, call: &ProviderCall) -> ProviderAnswer {
        let CallKind::Http(http) = &call.effect.call else {
            return failed("request", "the effect is not one by HTTP");
        };
        self.make(call, http).await.unwrap_or_else(|answer| answer)
    }

    async fn ask(&self, call: &ProviderCall) -> Option<ProviderAnswer> {
        let CallKind::Http(http) = &call.effect.call else { return None };
        match self.query(call, http).await {
            Ok(answer) => answer,
            Err(answer) => {
                // The failure concerns the query, not the call.
                let why = why_not(&answer);
                tracing::info!(effect = %call.effect.name, command = %call.command, why, "the query had no answer");
                None
            }
        }
    }

    /// A request has no life beyond its answer.
    async fn stop(&self, _: &ProviderCall, _: &str) {}
}

/// Reason why a request had no answer, for people.
fn why_not(answer: &ProviderAnswer) -> &str {
    match answer {
        ProviderAnswer::Passing { why, .. } | ProviderAnswer::Unknown { why } => why,
        ProviderAnswer::Failed { payload, .. } => {
            payload.get("message").and_then(Json::as_text).unwrap_or_default()
        }
        ProviderAnswer::Succeeded(_) | ProviderAnswer::Waiting { .. } | ProviderAnswer::Cancelled => "",
    }
}

/// Returns `true` for a header that only providers set.
fn is_reserved(name: &HeaderName) -> bool {
    is_connection_header(name)
        || *name == header::AUTHORIZATION
        || *name == IDEMPOTENCY_KEY
        || *name == TRACEPARENT
}

/// The answer to a call that cannot be made as it stands.
pub(super) fn failed(code: &str, why: &str) -> ProviderAnswer {
    let payload = Json::object([("code", Json::text(code)), ("message", Json::text(why))]);
    ProviderAnswer::Failed { code: code.to_owned(), payload }
}

/// The answer to a call that the rules of egress deny.
pub(super) fn denied_by(denied: &DeniedHost) -> ProviderAnswer {
    let rule = match denied.reason {
        HostDenialReason::NotListed => "allow_hosts",
        HostDenialReason::NotPublic { .. } => "private",
    };
    refusal(rule, &denied.host, denied.port, &denied.to_string())
}

/// The failure of a call to a host that a rule denies.
fn refusal(rule: &str, host: &str, port: u16, message: &str) -> ProviderAnswer {
    let code = "egress";
    let payload = Json::object([
        ("code", Json::text(code)),
        ("message", Json::text(message)),
        ("host", Json::text(format_args!("{host}:{port}"))),
        ("rule", Json::text(rule)),
    ]);
    ProviderAnswer::Failed { code: code.to_owned(), payload }
}
