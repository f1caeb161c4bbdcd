//! Judgement of an upstream's answer: the outcome of the call.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use ::http::Uri;
use ::http::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use egress::EgressResponse;
use workflow::Json;
use workflow::formula::{Formula, FormulaValueError, VariableScope};
use workflow::ledger::ProviderAnswer;
use workflow::provider::{HttpCall, OutcomeQuery};

use super::{BODY_BYTES_MAX, failed};
use crate::providers::ProviderCall;

/// The longest pause that an upstream may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Statuses of the 4xx class that are retried: timeout, too early, too many.
const PASSING: [u16; 3] = [408, 425, 429];

/// Redirect of an answer.
#[derive(Debug)]
pub(super) enum RedirectDecision {
    /// No redirect, or one that is not followed and is no failure.
    Nowhere,
    /// Redirect that is followed.
    On(Uri),
    /// Redirect to a server where calls do not go: fails with this answer, unless a formula judges otherwise.
    Elsewhere(ProviderAnswer),
}

/// An upstream's answer.
#[derive(Debug)]
pub(super) struct EffectHttpResponse {
    /// Redirect of the answer.
    pub(super) lead: RedirectDecision,
    status: u16,
    headers: HeaderMap,
    /// The body, or the reason why it could not be read.
    body: Result<Json, String>,
}

/// Judgement of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpResponseClass {
    Success,
    Terminal,
    Neither,
}

impl EffectHttpResponse {
    /// An answer that was read to its end.
    pub(super) fn whole(lead: RedirectDecision, reply: EgressResponse) -> Self {
        let body = if reply.body.is_empty() {
            Json::Null
        } else {
            let text = || Json::Text(String::from_utf8_lossy(&reply.body).into_owned());
            workflow::json::read(&reply.body, BODY_BYTES_MAX).unwrap_or_else(|_| text())
        };
        Self { lead, status: reply.status.as_u16(), headers: reply.headers, body: Ok(body) }
    }

    /// An answer whose body could not be read, which is not followed.
    pub(super) fn cut(lead: RedirectDecision, reply: EgressResponse, why: String) -> Self {
        let lead = if matches!(lead, RedirectDecision::On(_)) { RedirectDecision::Nowhere } else { lead };
        Self { lead, status: reply.status.as_u16(), headers: reply.headers, body: Err(why) }
    }

    /// Returns how long to wait, if the upstream says so: in seconds, or until a time by its own clock.
    fn retry_after(&self) -> Option<Duration> {
        if !matches!(self.status, 429 | 503) {
            return None;
        }
        let text = |name: &HeaderName| self.headers.get(name).and_then(|value| value.to_str().ok());
        let wanted = text(&RETRY_AFTER)?.trim();
        let pause = match wanted.parse().map(Duration::from_secs) {
            Ok(pause) => pause,
            Err(_) if wanted.bytes().all(|byte| byte.is_ascii_digit()) => RETRY_AFTER_MAX,
            Err(_) => {
                let until = httpdate::parse_http_date(wanted).ok()?;
                let now = text(&DATE).and_then(|date| httpdate::parse_http_date(date).ok());
                until.duration_since(now.unwrap_or_else(SystemTime::now)).unwrap_or_default()
            }
        };
        Some(pause.min(RETRY_AFTER_MAX))
    }
}

/// Values that formulas see of an answer.
struct HttpResponseValues {
    status: Json,
    body: Json,
    headers: Json,
    command: Json,
}

impl HttpResponseValues {
    fn new(call: &ProviderCall, response: &EffectHttpResponse) -> Self {
        let mut headers = BTreeMap::new();
        for name in response.headers.keys() {
            let values = response.headers.get_all(name).iter();
            let values: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
            headers.insert(name.as_str().to_owned(), Json::Text(values.join(", ")));
        }
        Self {
            status: Json::Int(response.status.into()),
            body: response.body.clone().unwrap_or(Json::Null),
            headers: Json::Map(headers),
            command: Json::text(call.command),
        }
    }

    fn scope<'a>(&'a self, call: &'a ProviderCall) -> VariableScope<'a> {
        VariableScope::new()
            .with("status", &self.status)
            .with("body", &self.body)
            .with("headers", &self.headers)
            .with("input", &call.input)
            .with("command_id", &self.command)
    }
}

/// Judges an answer by declared formulas, or by its status where there are none.
fn verdict(
    success: Option<&Formula>,
    terminal: Option<&Formula>,
    status: u16,
    scope: &VariableScope<'_>,
) -> Result<HttpResponseClass, FormulaValueError> {
    let is_success =
        success.map_or_else(|| Ok((200..300).contains(&status)), |formula| formula.is_true(scope));
    if is_success? {
        return Ok(HttpResponseClass::Success);
    }
    let is_fault = (400..500).contains(&status) && !PASSING.contains(&status);
    let is_terminal = terminal.map_or_else(|| Ok(is_fault), |formula| formula.is_true(scope));
    Ok(if is_terminal? { HttpResponseClass::Terminal } else { HttpResponseClass::Neither })
}

/// Turns an answer into the outcome of the call. A formula that fails leaves the outcome unknown: the call was made, and may have
/// happened.
pub(super) fn answer_to_call(
    call: &ProviderCall,
    http: &HttpCall,
    response: &EffectHttpResponse,
) -> ProviderAnswer {
    let (values, status) = (HttpResponseValues::new(call, response), response.status);
    let scope = values.scope(call);
    let judged = verdict(http.success.as_ref(), http.terminal.as_ref(), status, &scope);
    match (judged, &response.body) {
        (Err(error), Ok(_)) => unknown(status, &error.to_string()),
        // The formulas saw no body, since it could not be read.
        (Err(_), Err(why)) => unknown(status, why),
        (Ok(HttpResponseClass::Success), Err(why)) => unknown(status, why),
        (Ok(HttpResponseClass::Terminal), Err(why)) if !(200..300).contains(&status) => {
            failed(&format!("http_{status}"), why)
        }
        (Ok(_), Err(why)) if (200..300).contains(&status) => unknown(status, why),
        (Ok(HttpResponseClass::Success), Ok(_)) => success(http, &scope, &values.body, status),
        (Ok(HttpResponseClass::Terminal), _) => terminal(http, &scope, &values.body, status),
        (Ok(HttpResponseClass::Neither), _) => match &response.lead {
            RedirectDecision::Elsewhere(refusal) => refusal.clone(),
            RedirectDecision::Nowhere | RedirectDecision::On(_) => ProviderAnswer::Passing {
                why: format!("the upstream answered {status}"),
                after: response.retry_after(),
            },
        },
    }
}

/// Turns the answer to a query into the outcome of the call in question; `None` where it does not show it. A status alone does not fail
/// the call here, since it may concern the query.
pub(super) fn answer_to_query(
    call: &ProviderCall,
    http: &HttpCall,
    query: &OutcomeQuery,
    response: &EffectHttpResponse,
) -> Option<ProviderAnswer> {
    let (values, status) = (HttpResponseValues::new(call, response), response.status);
    let scope = values.scope(call);
    response.body.as_ref().ok()?;
    if query.absent.is_true(&scope).ok()? {
        return Some(ProviderAnswer::Passing {
            why: format!("the upstream does not know it ({status})"),
            after: None,
        });
    }
    let answer = match verdict(http.success.as_ref(), http.terminal.as_ref(), status, &scope).ok()? {
        HttpResponseClass::Success => success(http, &scope, &values.body, status),
        HttpResponseClass::Terminal if http.terminal.is_some() => {
            terminal(http, &scope, &values.body, status)
        }
        HttpResponseClass::Terminal | HttpResponseClass::Neither => return None,
    };
    Some(answer).filter(|answer| !matches!(answer, ProviderAnswer::Unknown { .. }))
}

fn unknown(status: u16, why: &str) -> ProviderAnswer {
    ProviderAnswer::Unknown { why: format!("the upstream answered {status}, but {why}") }
}

fn success(http: &HttpCall, scope: &VariableScope<'_>, body: &Json, status: u16) -> ProviderAnswer {
    if http.is_callback {
        return ProviderAnswer::Waiting { external: None };
    }
    match result(http, scope, body) {
        Ok(result) => ProviderAnswer::Succeeded(result),
        Err(error) => unknown(status, &error.to_string()),
    }
}

/// A permanent failure, with the code of its result, or else that of its status.
fn terminal(http: &HttpCall, scope: &VariableScope<'_>, body: &Json, status: u16) -> ProviderAnswer {
    let mut payload = match result(http, scope, body) {
        Ok(payload) => payload,
        Err(error) => {
            return failed("formula", &format!("the upstream refused it with {status}; its result: {error}"));
        }
    };
    let code = payload.get("code").and_then(Json::as_text).filter(|code| !code.is_empty());
    let code = code.map_or_else(|| format!("http_{status}"), str::to_owned);
    if let Json::Map(fields) = &mut payload
        && fields.get("code").is_none_or(|code| *code == Json::Null)
    {
        fields.insert("code".to_owned(), Json::text(&code));
    }
    ProviderAnswer::Failed { code, payload }
}

fn result(http: &HttpCall, scope: &VariableScope<'_>, body: &Json) -> Result<Json, FormulaValueError> {
    http.result.as_ref().map_or_else(|| Ok(body.clone()), |template| template.value(scope))
}

#[cfg(test)]
mod tests {
    use ::http::StatusCode;
    use bytes::Bytes;

    use super::*;

    fn pause(status: u16, retry_after: &'static str) -> Option<u64> {
        let status = StatusCode::from_u16(status).expect("a status");
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, retry_after.parse().expect("a value"));
        headers.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().expect("a value"));
        let response = EffectHttpResponse::whole(
            RedirectDecision::Nowhere,
            EgressResponse { status, headers, body: Bytes::new() },
        );
        response.retry_after().map(|pause| pause.as_secs())
    }

    #[test]
    fn pauses_are_seconds_or_dates() {
        let month = RETRY_AFTER_MAX.as_secs();
        for (text, expected) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:51:37 GMT", Some(120)),
            ("Sunday, 06-Nov-94 08:51:37 GMT", Some(120)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("99999999999", Some(month)),
            ("99999999999999999999999999", Some(month)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(month)),
            ("soon", None),
            ("-1", None),
            ("1.5", None),
        ] {
            assert_eq!(pause(429, text), expected, "{text}");
            assert_eq!(pause(503, text), expected, "{text}");
        }
        assert_eq!(pause(500, "7"), None);
    }
}
