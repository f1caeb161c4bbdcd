//! The document of a provider: its transport, and the settings that all its effects share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::EffectName;
use yaml::{YamlEntry, YamlFields, YamlNode, YamlValue, did_you_mean};

use super::fields::ManifestReader;
use crate::definition::EFFECTS_MAX;
use crate::provider::{
    CallLimits, CallRateLimit, CallRetryPolicy, CallTimeouts, CircuitBreakerPolicy, Effect, EffectAction,
    EffectProvider, FlowTransport, HEARTBEAT_MIN, HttpAuth, HttpTransport, ProviderLimits, ProviderTransport,
    SecretName, SmtpAuth, SmtpTls, SmtpTransport, TextOrSecret, UnknownOutcomePolicy,
};

/// Keys of a provider.
pub(super) const PROVIDER_KEYS: &[&str] =
    &["kind", "name", "tenants", "transport", "http", "smtp", "flow", "limits", "effects"];
/// Keys of `http`.
pub(super) const HTTP_KEYS: &[&str] = &["base_url", "allow_hosts", "private", "auth", "headers", "ca"];
/// Keys of `auth` of `http`.
pub(super) const HTTP_AUTH_KEYS: &[&str] = &["bearer", "user", "password"];
/// Keys of `smtp`.
pub(super) const SMTP_KEYS: &[&str] = &["host", "port", "starttls", "tls", "from", "auth", "private", "ca"];
/// Keys of `flow`.
pub(super) const FLOW_KEYS: &[&str] = &["actor", "signing_key"];
/// Keys that every effect may have.
pub(super) const EFFECT_KEYS: &[&str] =
    &["unknown_outcome", "timeouts", "retry", "limits", "breaker", "redact"];
/// Keys of `timeouts`.
pub(super) const TIMEOUT_KEYS: &[&str] =
    &["schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat"];
/// Keys of `retry`.
pub(super) const RETRY_KEYS: &[&str] = &["initial", "factor", "max", "attempts"];
/// Keys of `limits`.
pub(super) const CALL_LIMIT_KEYS: &[&str] = &["concurrency", "per_tenant", "rate"];
/// Keys of `breaker`.
pub(super) const BREAKER_KEYS: &[&str] = &["window", "failure_ratio", "open", "probes"];

const TRANSPORTS: [&str; 3] = ["http", "smtp", "flow"];
/// Transports of a later day.
const LATER: [&str; 3] = ["grpc", "sql", "saga"];

impl ManifestReader {
    /// Reads a provider; `None` where a part that everything else depends on is missing.
    pub(super) fn provider(&mut self, tree: &YamlNode) -> Option<EffectProvider> {
        let fields = self.fields(tree, "a provider", PROVIDER_KEYS);
        let name: Option<EffectName> = self.required(tree, &fields, "a provider", "name", "payment");
        let kind = self.transport_kind(tree, &fields);
        for other in TRANSPORTS.into_iter().filter(|other| Some(*other) != kind) {
            if let (Some(entry), Some(kind)) = (fields.get(other), kind) {
                self.problem(entry.place, format!("`{other}` is for that transport, this one is `{kind}`"));
            }
        }
        let tenants = self.tenants(fields.get("tenants").copied());
        let kind = kind?;
        let transport = match fields.get(kind) {
            Some(entry) => match kind {
                "http" => self.http(entry).map(ProviderTransport::Http),
                "smtp" => self.smtp(entry).map(ProviderTransport::Smtp),
                _ => self.flow(entry).map(ProviderTransport::Flow),
            },
            None => {
                self.missing(tree.place, &format!("a provider with `transport: {kind}`"), kind, "{ … }");
                None
            }
        };
        let limits = fields.get("limits").map(|entry| self.call_limits(entry));
        let shared = name.clone().zip(limits);
        let shared = shared.map(|(provider, limits)| Arc::new(ProviderLimits { provider, limits }));
        let effects = self.effects(tree, &fields, kind, shared.as_ref());
        Some(EffectProvider { name: name?, tenants, transport: transport?, effects })
    }

    fn transport_kind(&mut self, tree: &YamlNode, fields: &YamlFields<'_>) -> Option<&'static str> {
        let Some(entry) = fields.get("transport") else {
            self.missing(tree.place, "a provider", "transport", "http");
            return None;
        };
        let written = self.yaml.text(entry)?;
        let found = TRANSPORTS.into_iter().find(|known| *known == written);
        if found.is_none() {
            let message = if LATER.contains(&written) {
                format!("the transport `{written}` is not there yet; there are {}", TRANSPORTS.join(", "))
            } else {
                let hint = did_you_mean(written, &TRANSPORTS);
                format!("there is no transport `{written}`{hint}; there are {}", TRANSPORTS.join(", "))
            };
            self.problem(entry.value.place, message);
        }
        found
    }

    fn effects(
        &mut self,
        tree: &YamlNode,
        fields: &YamlFields<'_>,
        kind: &str,
        shared: Option<&Arc<ProviderLimits>>,
    ) -> Vec<Arc<Effect>> {
        let Some(entry) = fields.get("effects") else {
            self.missing(tree.place, "a provider", "effects", "{ my-effect: { … } }");
            return Vec::new();
        };
        let entries = self.yaml.entries(entry, "a mapping from names to effects");
        if !(1..=EFFECTS_MAX).contains(&entries.len()) {
            let message =
                format!("a provider has 1 to {EFFECTS_MAX} effects, this one has {}", entries.len());
            self.problem(entry.place, message);
        }
        let effects = entries.iter().take(EFFECTS_MAX).filter_map(|entry| self.effect(entry, kind));
        effects.map(|effect| Arc::new(Effect { shared: shared.map(Arc::clone), ..effect })).collect()
    }

    fn effect(&mut self, entry: &YamlEntry, kind: &str) -> Option<Effect> {
        let name = self.parsed::<EffectName>(&entry.key, entry.place);
        let what = format!("the effect `{}`", entry.key);
        let (call, fields) = match kind {
            "http" => self.http_call(entry, &what),
            "smtp" => self.mail(entry, &what),
            _ => self.flow_call(entry, &what),
        };
        let timeouts = fields.get("timeouts").map(|entry| self.timeouts(entry)).unwrap_or_default();
        if let (Some(entry), Some(call)) = (fields.get("timeouts"), &call) {
            self.heartbeat(entry, &timeouts, call, &what);
        }
        let unknown = self.unknown(fields.get("unknown_outcome").copied(), call.as_ref());
        let retry = fields.get("retry").map(|entry| self.retry(entry)).unwrap_or_default();
        let limits = fields.get("limits").map(|entry| self.call_limits(entry)).unwrap_or_default();
        let breaker = fields.get("breaker").map(|entry| self.breaker(entry)).unwrap_or_default();
        let redact = fields.get("redact").map(|entry| self.redact(entry)).unwrap_or_default();
        let (name, unknown, call) = (name?, unknown?, call?);
        Some(Effect { name, unknown, timeouts, retry, limits, shared: None, breaker, redact, call })
    }

    /// Reads the policy for a call with an unknown outcome. The default depends on the transport: requests that carry their
    /// key are retried; a mail cannot be queried.
    fn unknown(
        &mut self,
        entry: Option<&YamlEntry>,
        call: Option<&EffectAction>,
    ) -> Option<UnknownOutcomePolicy> {
        let Some(entry) = entry else {
            return match call? {
                EffectAction::Http(_) | EffectAction::Flow(_) => Some(UnknownOutcomePolicy::Retry),
                EffectAction::Mail(_) => Some(UnknownOutcomePolicy::Fail),
            };
        };
        if entry.value.value.as_text().is_none() {
            return self.query(entry, call);
        }
        match self.yaml.text(entry)? {
            "retry" => Some(UnknownOutcomePolicy::Retry),
            "fail" => Some(UnknownOutcomePolicy::Fail),
            "manual" => Some(UnknownOutcomePolicy::Manual),
            _ => {
                self.yaml.wrong_kind(entry, "retry, fail, manual or { query: { … } }");
                None
            }
        }
    }

    /// Refuses a heartbeat for calls that send none, and one that is shorter than their interval may be.
    fn heartbeat(&mut self, timeouts: &YamlEntry, times: &CallTimeouts, call: &EffectAction, what: &str) {
        let Some(length) = times.heartbeat else { return };
        let keys = if let YamlValue::Map(entries) = &timeouts.value.value { entries.as_slice() } else { &[] };
        let place =
            keys.iter().find(|entry| entry.key == "heartbeat").map_or(timeouts.place, |entry| entry.place);
        let why = match call {
            EffectAction::Flow(_) if length < HEARTBEAT_MIN => {
                let least = HEARTBEAT_MIN.as_secs();
                format!("`heartbeat` is at least {least}s: signs of life of flows may be so far apart")
            }
            EffectAction::Flow(_) => return,
            EffectAction::Http(http) if http.is_callback => format!(
                "a callback completes {what} without heartbeats; leave `heartbeat` out, \
                 `schedule_to_close` bounds the wait"
            ),
            EffectAction::Http(_) | EffectAction::Mail(_) => {
                format!(
                    "`heartbeat` is for flows: the answer of {what} comes with its call, within `start_to_close`"
                )
            }
        };
        self.problem(place, why);
    }

    fn timeouts(&mut self, entry: &YamlEntry) -> CallTimeouts {
        let fields = self.fields(&entry.value, "`timeouts`", TIMEOUT_KEYS);
        let mut time = |key: &str| fields.get(key).and_then(|entry| self.positive(entry));
        let default = CallTimeouts::default();
        let timeouts = CallTimeouts {
            schedule_to_start: time("schedule_to_start"),
            start_to_close: time("start_to_close").unwrap_or(default.start_to_close),
            schedule_to_close: time("schedule_to_close").unwrap_or(default.schedule_to_close),
            heartbeat: time("heartbeat"),
        };
        if timeouts.start_to_close > timeouts.schedule_to_close {
            self.problem(
                entry.place,
                "`start_to_close` is one call, it is not longer than `schedule_to_close`",
            );
        }
        timeouts
    }

    fn positive(&mut self, entry: &YamlEntry) -> Option<Duration> {
        let length = self.duration(entry)?;
        if length.is_zero() {
            self.yaml.wrong_kind(entry, "longer than nothing");
        }
        Some(length)
    }

    fn positive_number(&mut self, entry: &YamlEntry) -> Option<u32> {
        let wanted = "a whole number from 1 on";
        let number: u32 = self.yaml.whole(entry, wanted)?;
        if number == 0 {
            self.yaml.wrong_kind(entry, wanted);
        }
        Some(number.max(1))
    }

    fn retry(&mut self, entry: &YamlEntry) -> CallRetryPolicy {
        let fields = self.fields(&entry.value, "`retry`", RETRY_KEYS);
        let default = CallRetryPolicy::default();
        let mut time = |key: &str| fields.get(key).and_then(|entry| self.positive(entry));
        let (initial, max) = (time("initial"), time("max"));
        let mut number = |key: &str| fields.get(key).and_then(|entry| self.positive_number(entry));
        CallRetryPolicy {
            initial: initial.unwrap_or(default.initial),
            factor: number("factor").unwrap_or(default.factor),
            max: max.unwrap_or(default.max),
            attempts: number("attempts").unwrap_or(default.attempts),
        }
    }

    fn call_limits(&mut self, entry: &YamlEntry) -> CallLimits {
        let fields = self.fields(&entry.value, "`limits`", CALL_LIMIT_KEYS);
        let default = CallLimits::default();
        let mut number = |key: &str| fields.get(key).and_then(|entry| self.positive_number(entry));
        let concurrency = number("concurrency").unwrap_or(default.concurrency);
        let per_tenant = number("per_tenant").unwrap_or(concurrency);
        let rate = fields.get("rate").and_then(|entry| {
            let text = self.yaml.text(entry)?;
            let rate = rate(text);
            if rate.is_none() {
                self.yaml.wrong_kind(entry, "so many in a time, as 100/s, 20/m or 5/h");
            }
            rate
        });
        CallLimits { concurrency, per_tenant, rate }
    }

    fn breaker(&mut self, entry: &YamlEntry) -> CircuitBreakerPolicy {
        let fields = self.fields(&entry.value, "`breaker`", BREAKER_KEYS);
        let default = CircuitBreakerPolicy::default();
        let ratio = fields.get("failure_ratio").and_then(|entry| {
            let ratio = entry.value.value.as_text().and_then(per_mille);
            if ratio.is_none() {
                self.yaml
                    .wrong_kind(entry, "a share from 0.001 to 1, with three digits behind the point at most");
            }
            ratio
        });
        let open = fields.get("open").and_then(|entry| self.positive(entry));
        let mut number = |key: &str| fields.get(key).and_then(|entry| self.positive_number(entry));
        CircuitBreakerPolicy {
            window: number("window").unwrap_or(default.window).min(10_000),
            failures_per_mille: ratio.unwrap_or(default.failures_per_mille),
            open: open.unwrap_or(default.open),
            probes: number("probes").unwrap_or(default.probes),
        }
    }

    fn redact(&mut self, entry: &YamlEntry) -> Vec<Vec<String>> {
        let mut paths = Vec::new();
        for (place, text) in self.yaml.texts(entry) {
            let path: Vec<_> = text.split('.').map(str::to_owned).collect();
            let is_known = matches!(path.first().map(String::as_str), Some("input" | "result"));
            if path.len() < 2 || !is_known || path.iter().any(String::is_empty) {
                let message = format!("`{text}` is no field; write input.<field> or result.<field>");
                self.problem(place, message);
            }
            paths.push(path);
        }
        paths
    }

    fn http(&mut self, entry: &YamlEntry) -> Option<HttpTransport> {
        let fields = self.fields(&entry.value, "`http`", HTTP_KEYS);
        let base_url = match fields.get("base_url") {
            Some(entry) => self.base_url(entry),
            None => {
                self.missing(entry.place, "`http`", "base_url", "https://api.example.com");
                None
            }
        };
        let allow_hosts = self.hosts(entry, &fields);
        let auth = fields.get("auth").and_then(|entry| self.http_auth(entry));
        let headers = fields.get("headers").map(|entry| self.headers(entry)).unwrap_or_default();
        Some(HttpTransport {
            base_url: base_url?,
            allow_hosts,
            is_private: fields.get("private").and_then(|entry| self.yaml.boolean(entry)).unwrap_or_default(),
            auth,
            headers,
            ca: fields.get("ca").and_then(|entry| self.secret(entry)),
        })
    }

    fn base_url(&mut self, entry: &YamlEntry) -> Option<String> {
        let text = self.yaml.text(entry)?;
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let is_base = host.is_some_and(|host| !host.is_empty() && !host.contains(['@', '?', '#', ' ', '{']));
        if !is_base {
            self.yaml.wrong_kind(entry, "http:// or https:// and a host, without a user and a query");
        }
        Some(text.trim_end_matches('/').to_owned())
    }

    fn hosts(&mut self, entry: &YamlEntry, fields: &YamlFields<'_>) -> Vec<String> {
        let Some(hosts) = fields.get("allow_hosts") else {
            self.missing(entry.place, "`http`", "allow_hosts", "[api.example.com]");
            return Vec::new();
        };
        let texts = self.yaml.texts(hosts);
        if texts.is_empty() {
            self.problem(hosts.place, "`allow_hosts` names at least one host; nothing else is connected to");
        }
        for (place, text) in &texts {
            if text.contains(['/', '*', '@', ' ']) || text.is_empty() {
                let message = format!("`{text}` is no host; write api.example.com or api.example.com:8443");
                self.problem(*place, message);
            }
        }
        texts.into_iter().map(|(_, text)| text.to_owned()).collect()
    }

    fn http_auth(&mut self, entry: &YamlEntry) -> Option<HttpAuth> {
        let fields = self.fields(&entry.value, "`auth`", HTTP_AUTH_KEYS);
        match (fields.get("bearer"), fields.get("user"), fields.get("password")) {
            (Some(bearer), None, None) => self.secret(bearer).map(HttpAuth::Bearer),
            (None, Some(user), Some(password)) => {
                let user = self.yaml.text(user)?.to_owned();
                Some(HttpAuth::Basic { user, password: self.secret(password)? })
            }
            _ => {
                self.problem(entry.place, "`auth` is either `bearer`, or `user` and `password`");
                None
            }
        }
    }

    /// Reads a secret, by its name.
    fn secret(&mut self, entry: &YamlEntry) -> Option<SecretName> {
        let secret = entry.value.value.as_text().and_then(SecretName::read);
        if secret.is_none() {
            // The value may be the secret itself, so the message does not repeat it.
            let message =
                format!("`{}` names a secret, as `secret:name`; its value is in no manifest", entry.key);
            self.problem(entry.value.place, message);
        }
        secret
    }

    fn headers(&mut self, entry: &YamlEntry) -> BTreeMap<String, TextOrSecret> {
        let mut headers = BTreeMap::new();
        for entry in self.yaml.entries(entry, "a mapping from names to texts or secrets") {
            let Some(text) = self.yaml.text(entry) else { continue };
            let value = if text.starts_with(SecretName::PREFIX) {
                let Some(secret) = self.secret(entry) else { continue };
                TextOrSecret::Secret(secret)
            } else {
                TextOrSecret::Text(text.to_owned())
            };
            headers.insert(entry.key.clone(), value);
        }
        headers
    }

    fn smtp(&mut self, entry: &YamlEntry) -> Option<SmtpTransport> {
        let fields = self.fields(&entry.value, "`smtp`", SMTP_KEYS);
        let host = match fields.get("host") {
            Some(entry) => self.yaml.text(entry).map(str::to_owned),
            None => {
                self.missing(entry.place, "`smtp`", "host", "smtp.example.com");
                None
            }
        };
        let tls = self.smtp_tls(&fields);
        let from = match fields.get("from") {
            Some(from) => self.yaml.texts(from).into_iter().map(|(_, text)| text.to_owned()).collect(),
            None => {
                self.missing(entry.place, "`smtp`", "from", "[\"shop@example.com\"]");
                Vec::new()
            }
        };
        let auth = fields.get("auth").and_then(|entry| {
            let fields = self.fields(&entry.value, "`auth`", &["user", "password"]);
            let (Some(user), Some(password)) = (fields.get("user"), fields.get("password")) else {
                self.problem(entry.place, "`auth` needs `user` and `password`");
                return None;
            };
            Some(SmtpAuth { user: self.yaml.text(user)?.to_owned(), password: self.secret(password)? })
        });
        let default = if tls == SmtpTls::Implicit { 465 } else { 587 };
        let port = fields.get("port").and_then(|entry| self.yaml.whole(entry, "a port")).unwrap_or(default);
        Some(SmtpTransport {
            host: host?,
            port,
            tls,
            from,
            auth,
            is_private: fields.get("private").and_then(|entry| self.yaml.boolean(entry)).unwrap_or_default(),
            ca: fields.get("ca").and_then(|entry| self.secret(entry)),
        })
    }

    fn smtp_tls(&mut self, fields: &YamlFields<'_>) -> SmtpTls {
        let written = match (fields.get("starttls"), fields.get("tls")) {
            (Some(entry), None) | (None, Some(entry)) => Some((*entry, self.yaml.text(entry))),
            (Some(_), Some(second)) => {
                self.problem(second.place, "`starttls` and `tls` are two ways; keep one of them");
                None
            }
            (None, None) => None,
        };
        match written {
            Some((entry, Some("implicit"))) if entry.key == "tls" => SmtpTls::Implicit,
            Some((_, Some("none"))) => SmtpTls::None,
            Some((_, Some("required") | None)) | None => SmtpTls::Required,
            Some((entry, Some(_))) => {
                self.yaml.wrong_kind(entry, "`starttls: required`, `tls: implicit` or `tls: none`");
                SmtpTls::Required
            }
        }
    }

    fn flow(&mut self, entry: &YamlEntry) -> Option<FlowTransport> {
        let fields = self.fields(&entry.value, "`flow`", FLOW_KEYS);
        let actor = match fields.get("actor") {
            Some(entry) => self.positive_number(entry),
            None => {
                self.missing(entry.place, "`flow`", "actor", "1");
                None
            }
        };
        let signing_key = match fields.get("signing_key") {
            Some(entry) => self.secret(entry),
            None => {
                self.missing(entry.place, "`flow`", "signing_key", "\"secret:actor-1\"");
                None
            }
        };
        Some(FlowTransport { actor: actor?, signing_key: signing_key? })
    }
}

/// Reads `100/s`.
fn rate(text: &str) -> Option<CallRateLimit> {
    let (count, unit) = text.split_once('/')?;
    let each = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let count = count.trim().parse().ok().filter(|count| *count > 0)?;
    Some(CallRateLimit { count, each: Duration::from_secs(each) })
}

/// Reads `0.5` as 500: shares of manifests are digits, nothing is rounded.
fn per_mille(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_short = fraction.len() <= 3 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let whole: u32 = whole.parse().ok()?;
    let fraction: u32 = format!("{fraction:0<3}").parse().ok()?;
    let share = whole.checked_mul(1000)?.checked_add(fraction)?;
    (is_short && (1..=1000).contains(&share)).then_some(share)
}
