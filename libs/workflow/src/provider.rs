//! Providers of effects as they stand in manifests, read and checked.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use model::EffectName;

use crate::Json;
use crate::definition::TenantSet;
use crate::formula::{Formula, ValueTemplate};

/// A provider: one transport, and the effects that it offers.
#[derive(Debug, Clone)]
pub struct EffectProvider {
    /// Name of the provider.
    pub name: EffectName,
    /// Tenants that may use it.
    pub tenants: TenantSet,
    /// The way.
    pub transport: ProviderTransport,
    /// Effects of the provider.
    pub effects: Vec<Arc<Effect>>,
}

/// A way to the outside world.
#[derive(Debug, Clone)]
pub enum ProviderTransport {
    /// Requests by HTTP.
    Http(HttpTransport),
    /// Mail by SMTP.
    Smtp(SmtpTransport),
    /// Flows of this suite.
    Flow(FlowTransport),
}

impl ProviderTransport {
    /// The name in manifests.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Smtp(_) => "smtp",
            Self::Flow(_) => "flow",
        }
    }
}

/// A secret by its name. Its value is read when it is used, and no manifest contains it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName(String);

impl SecretName {
    /// Prefix of a reference to a secret.
    pub const PREFIX: &'static str = "secret:";

    /// Reads `secret:<name>`; the name has 1 to 64 characters of `[A-Za-z0-9_-]`.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let name = text.strip_prefix(Self::PREFIX)?;
        let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let is_name = (1..=64).contains(&name.len()) && name.chars().all(is_safe);
        is_name.then(|| Self(name.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.0)
    }
}

/// A text of a manifest, or a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextOrSecret {
    /// A text.
    Text(String),
    /// A secret.
    Secret(SecretName),
}

/// Requests by HTTP.
#[derive(Debug, Clone)]
pub struct HttpTransport {
    /// Base that paths are appended to: `https://pay.internal`.
    pub base_url: String,
    /// Hosts that may be connected to, each with a port unless it is the scheme's default.
    pub allow_hosts: Vec<String>,
    /// True if addresses of private networks and of this machine may be connected to.
    pub is_private: bool,
    /// How requests are authorized.
    pub auth: Option<HttpAuth>,
    /// Headers of every request.
    pub headers: BTreeMap<String, TextOrSecret>,
    /// Certificates of the authorities that servers are checked against, in place of the public ones.
    pub ca: Option<SecretName>,
}

/// How requests are authorized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpAuth {
    /// `Authorization: Bearer …`.
    Bearer(SecretName),
    /// `Authorization: Basic …`.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: SecretName,
    },
}

/// Mail by SMTP.
#[derive(Debug, Clone)]
pub struct SmtpTransport {
    /// The server.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Encryption of the connection.
    pub tls: SmtpTls,
    /// Allowed senders: an address, or `*@domain`. The first one is used unless an effect names another.
    pub from: Vec<String>,
    /// Credentials for the server.
    pub auth: Option<SmtpAuth>,
    /// True if addresses of private networks and of this machine may be connected to.
    pub is_private: bool,
    /// Certificates of the authorities that the server is checked against, in place of the public ones.
    pub ca: Option<SecretName>,
}

/// Encryption of mail on its way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmtpTls {
    /// By STARTTLS, or not at all.
    Required,
    /// From the first byte on.
    Implicit,
    /// Never: for servers on this machine.
    None,
}

/// Credentials for an SMTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmtpAuth {
    /// The user.
    pub user: String,
    /// The password.
    pub password: SecretName,
}

/// Flows in the tenant's own context.
#[derive(Debug, Clone)]
pub struct FlowTransport {
    /// The actor that submits them.
    pub actor: u32,
    /// The key by which the actor signs its tokens.
    pub signing_key: SecretName,
}

/// An effect.
#[derive(Debug, Clone)]
pub struct Effect {
    /// Name of the effect.
    pub name: EffectName,
    /// Action that a call carries out.
    pub call: EffectAction,
    /// Policy for a call whose outcome is unknown.
    pub unknown: UnknownOutcomePolicy,
    /// How long things may take.
    pub timeouts: CallTimeouts,
    /// When a call is made again.
    pub retry: CallRetryPolicy,
    /// How many calls there may be.
    pub limits: CallLimits,
    /// Limits shared by all effects of its provider; `None` where the provider sets none.
    pub shared: Option<Arc<ProviderLimits>>,
    /// When an upstream is left alone.
    pub breaker: CircuitBreakerPolicy,
    /// Fields that are never stored, as paths: `input.card`, `result.token`.
    pub redact: Vec<Vec<String>>,
}

impl Effect {
    /// Returns a value without the fields that are never stored: those whose paths start with this root, `input` or
    /// `result`. Redaction applies to each object in a list.
    #[must_use]
    pub fn redacted(&self, root: &str, value: &Json) -> Json {
        let mut value = value.clone();
        self.redact(root, &mut value);
        value
    }

    /// Removes the fields that are never stored from a value, as [`Effect::redacted`] does.
    pub fn redact(&self, root: &str, value: &mut Json) {
        for path in &self.redact {
            if let Some((first, fields)) = path.split_first()
                && first == root
            {
                remove(value, fields);
            }
        }
    }
}

/// Removes the value at a path.
fn remove(value: &mut Json, path: &[String]) {
    match (value, path) {
        (Json::List(items), path) => items.iter_mut().for_each(|item| remove(item, path)),
        (Json::Map(fields), [last]) => drop(fields.remove(last)),
        (Json::Map(fields), [first, rest @ ..]) => {
            if let Some(value) = fields.get_mut(first) {
                remove(value, rest);
            }
        }
        _ => {}
    }
}

/// Action of an effect.
#[derive(Debug, Clone)]
pub enum EffectAction {
    /// A request by HTTP.
    Http(Box<HttpCall>),
    /// A mail.
    Mail(Box<MailTemplate>),
    /// A flow.
    Flow(FlowCall),
}

/// A call by HTTP.
#[derive(Debug, Clone)]
pub struct HttpCall {
    /// The request.
    pub request: HttpRequestTemplate,
    /// Condition under which an answer is a success; without it, status 200 to 299.
    pub success: Option<Formula>,
    /// Condition under which any other answer is a permanent failure; without it, 400 to 499 except 408, 425 and 429.
    pub terminal: Option<Formula>,
    /// Result that the saga is given; without it, the body.
    pub result: Option<ValueTemplate>,
    /// True if the answer comes later, by the call's token.
    pub is_callback: bool,
}

/// A request by HTTP.
#[derive(Debug, Clone)]
pub struct HttpRequestTemplate {
    /// The method.
    pub method: HttpMethod,
    /// The path with its query, behind the provider's base.
    pub path: ValueTemplate,
    /// The body, as JSON; none.
    pub body: Option<ValueTemplate>,
    /// Headers beside those of the provider.
    pub headers: BTreeMap<String, ValueTemplate>,
}

/// A method of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMethod {
    /// `GET`.
    Get,
    /// `PUT`.
    Put,
    /// `POST`.
    Post,
    /// `PATCH`.
    Patch,
    /// `DELETE`.
    Delete,
}

impl HttpMethod {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Get, Self::Put, Self::Post, Self::Patch, Self::Delete];

    /// The name in requests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// A mail.
#[derive(Debug, Clone)]
pub struct MailTemplate {
    /// Sender; without it, the provider's first sender.
    pub from: Option<ValueTemplate>,
    /// Recipients: an address, or a list of addresses.
    pub to: ValueTemplate,
    /// The subject.
    pub subject: ValueTemplate,
    /// The text.
    pub text: ValueTemplate,
}

/// A flow that is submitted.
#[derive(Debug, Clone)]
pub struct FlowCall {
    /// The flow file, beside the manifest.
    pub file: String,
    /// Variables of the flow.
    pub env: BTreeMap<String, ValueTemplate>,
}

/// Policy for a call whose outcome is unknown.
#[derive(Debug, Clone)]
pub enum UnknownOutcomePolicy {
    /// The call is made again, under the same idempotency key.
    Retry,
    /// The upstream is queried.
    Query(Box<OutcomeQuery>),
    /// The call counts as failed, and as one that may have taken effect.
    Fail,
    /// A person decides.
    Manual,
}

impl UnknownOutcomePolicy {
    /// The name in manifests and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Query(_) => "query",
            Self::Fail => "fail",
            Self::Manual => "manual",
        }
    }
}

/// Query that asks an upstream whether a call happened.
#[derive(Debug, Clone)]
pub struct OutcomeQuery {
    /// The request.
    pub request: HttpRequestTemplate,
    /// Condition on the answer that means that the call did not happen.
    pub absent: Formula,
}

/// The shortest heartbeat of a flow: flows may report 15 s apart, and a broken watch needs time to be restored.
pub const HEARTBEAT_MIN: Duration = Duration::from_secs(60);

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTimeouts {
    /// From the command to the first call.
    pub schedule_to_start: Option<Duration>,
    /// One call.
    pub start_to_close: Duration,
    /// From the command to its result, all calls and pauses together.
    pub schedule_to_close: Duration,
    /// Between two signs of life of a flow.
    pub heartbeat: Option<Duration>,
}

impl Default for CallTimeouts {
    fn default() -> Self {
        Self {
            schedule_to_start: None,
            start_to_close: Duration::from_secs(10),
            schedule_to_close: Duration::from_secs(24 * 3600),
            heartbeat: None,
        }
    }
}

/// When a call is made again after a failure that passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallRetryPolicy {
    /// The first pause, at most.
    pub initial: Duration,
    /// How much longer each next one is.
    pub factor: u32,
    /// The longest pause.
    pub max: Duration,
    /// Calls in all.
    pub attempts: u32,
}

impl Default for CallRetryPolicy {
    fn default() -> Self {
        Self { initial: Duration::from_millis(500), factor: 2, max: Duration::from_secs(60), attempts: 8 }
    }
}

/// How many calls there may be, by each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallLimits {
    /// At a time.
    pub concurrency: u32,
    /// At a time, of one tenant.
    pub per_tenant: u32,
    /// Number in a length of time; unlimited when absent.
    pub rate: Option<CallRateLimit>,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self { concurrency: 32, per_tenant: 32, rate: None }
    }
}

/// How many calls there may be of all effects of a provider, by each process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderLimits {
    /// The provider.
    pub provider: EffectName,
    /// The limits.
    pub limits: CallLimits,
}

/// So many in a length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallRateLimit {
    /// How many.
    pub count: u32,
    /// The length of time.
    pub each: Duration,
}

/// When an upstream is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitBreakerPolicy {
    /// The last calls that count.
    pub window: u32,
    /// Failures per thousand calls at which it opens.
    pub failures_per_mille: u32,
    /// How long it stays open.
    pub open: Duration,
    /// Number of calls that have to succeed for it to close.
    pub probes: u32,
}

impl Default for CircuitBreakerPolicy {
    fn default() -> Self {
        Self { window: 20, failures_per_mille: 500, open: Duration::from_secs(30), probes: 1 }
    }
}
