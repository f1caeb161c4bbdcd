//! Deadlines of calls.
//!
//! Tonic's own timeout answers `CANCELLED` where every other stack answers
//! `DEADLINE_EXCEEDED`, and the handler never learns of it. So the gate reads
//! `grpc-timeout` itself, ends the call a moment before tonic would, and hands
//! the deadline on: to the handler, and to the calls that the handler makes.
//!
//! The calls of a handler are held to the deadline as long as they are polled by the handler itself, or by the stream that it
//! answered with. A task that it spawns is on its own: work that has to go on when the caller is gone belongs into one.
//! [`Deadline::of`] gives the deadline to pass to it.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use model::TraceParent;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, RpcReason};
use crate::gate::request_headers::RequestIdHeader;
use crate::traces::pass_trace_on;

const TIMEOUT_HEADER: HeaderName = HeaderName::from_static("grpc-timeout");
/// Time that an answer needs on its way back: a call that is made on behalf of another has to end that much earlier.
const MARGIN: Duration = Duration::from_millis(50);
/// The protocol has room for eight digits.
const TIMEOUT_VALUE_MAX: u128 = 99_999_999;

tokio::task_local! {
    /// The call that is being answered.
    static ANSWERING: RpcCallContext;
}

/// Context that calls inherit when they are made while another is answered.
#[derive(Debug, Clone)]
pub(crate) struct RpcCallContext {
    pub(crate) deadline: Option<Deadline>,
    pub(crate) request_id: RequestIdHeader,
    pub(crate) trace: Option<TraceParent>,
}

/// Returns the trace context for what the call causes that this code answers: that of its span where a collector is configured,
/// otherwise that of its caller. `None` outside of a trace, and in a task that was spawned.
#[must_use]
pub fn current_trace() -> Option<TraceParent> {
    ANSWERING.try_with(|ambient| ambient.trace).ok().flatten()
}

impl RpcCallContext {
    /// Answers within it.
    pub(crate) fn scope<F: Future>(&self, answering: F) -> impl Future<Output = F::Output> + use<F> {
        ANSWERING.scope(self.clone(), answering)
    }

    /// Polls within it.
    pub(crate) fn sync_scope<T>(&self, polling: impl FnOnce() -> T) -> T {
        ANSWERING.sync_scope(self.clone(), polling)
    }
}

/// Until when the caller waits, or may wait. In the extensions of every request that has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(pub Instant);

impl Deadline {
    /// The deadline of this request; none for a stream whose caller set none.
    #[must_use]
    pub fn of<T>(request: &tonic::Request<T>) -> Option<Self> {
        request.extensions().get::<Self>().copied()
    }

    /// The deadline of the call that this code answers; none in a task that was spawned.
    #[must_use]
    pub fn current() -> Option<Self> {
        ANSWERING.try_with(|ambient| ambient.deadline).ok().flatten()
    }

    /// Returns the deadline that the caller asked for, but no later than `patience` from now.
    pub(crate) fn from_headers(headers: &HeaderMap, patience: Option<Duration>) -> Option<Self> {
        let requested = timeout_of(headers);
        let timeout = match (requested, patience) {
            (Some(requested), Some(patience)) => requested.min(patience),
            (requested, patience) => requested.or(patience)?,
        };
        // A deadline that far away that the clock cannot express it is none.
        Instant::now().checked_add(timeout).map(Self)
    }
}

/// Hands the deadline, the id and the trace of the call that is being answered on to one that is made meanwhile.
///
/// # Errors
/// DEADLINE_EXCEEDED when there is no time left: then there is nothing to call for.
pub(crate) fn pass_on(headers: &mut HeaderMap, target: &str) -> Result<(), Error> {
    let Ok(ambient) = ANSWERING.try_with(Clone::clone) else { return Ok(()) };
    headers
        .entry(crate::gate::request_headers::REQUEST_ID_HEADER)
        .or_insert_with(|| ambient.request_id.header());
    if let Some(trace) = ambient.trace {
        pass_trace_on(headers, trace);
    }
    let Some(Deadline(deadline)) = ambient.deadline else { return Ok(()) };
    let left = deadline.saturating_duration_since(Instant::now()).saturating_sub(MARGIN);
    if left.is_zero() {
        let message = format!("{target} was not called: the deadline of the call that needs it has passed");
        return Err(Error::new(ErrorKind::DeadlineExceeded, RpcReason::DeadlineExceeded, message));
    }
    let own = timeout_of(headers);
    if own.is_none_or(|own| own > left) {
        headers.insert(TIMEOUT_HEADER, written(left));
    }
    Ok(())
}

/// Takes the time that a call has already lasted off its timeout, before it is sent again.
///
/// # Errors
/// DEADLINE_EXCEEDED when there is no time left.
pub(crate) fn shorten_timeout(headers: &mut HeaderMap, lasted: Duration, target: &str) -> Result<(), Error> {
    let Some(timeout) = timeout_of(headers) else {
        return Ok(());
    };
    let left = timeout.saturating_sub(lasted);
    if left.is_zero() {
        return Err(deadline_exceeded(target));
    }
    headers.insert(TIMEOUT_HEADER, written(left));
    Ok(())
}

/// `who` is the method or the server that did not answer.
pub(crate) fn deadline_exceeded(who: &str) -> Error {
    let message = format!(
        "{who} did not answer within the deadline of the call; whether it had an effect is not known"
    );
    Error::new(ErrorKind::DeadlineExceeded, RpcReason::DeadlineExceeded, message)
}

/// Returns the timeout that the headers of a call set.
fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get(TIMEOUT_HEADER)?.to_str().ok()?)
}

/// `TimeoutValue TimeoutUnit` of the gRPC protocol: up to eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

/// Formats a timeout for the header, in the finest unit that fits; rounding makes it shorter, never longer.
fn written(timeout: Duration) -> HeaderValue {
    let units = [
        (timeout.as_micros(), 'u'),
        (timeout.as_millis(), 'm'),
        (timeout.as_secs().into(), 'S'),
        ((timeout.as_secs() / 3600).into(), 'H'),
    ];
    let fits = units.into_iter().find(|(value, _)| *value <= TIMEOUT_VALUE_MAX);
    let (value, unit) = fits.unwrap_or((TIMEOUT_VALUE_MAX, 'H'));
    HeaderValue::from_str(&format!("{value}{unit}")).expect("digits and a letter make a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_in_the_format_of_the_protocol() {
        assert_eq!(parse("3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        for text in ["", "S", "3", "3s", "+3S", "-3S", "123456789S", "3 S", "3é"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        for (timeout, want) in [
            (Duration::from_millis(1500), "1500000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(200_000), "200000S"),
            (Duration::from_secs(1_000_000_000), "277777H"),
            (Duration::MAX, "99999999H"),
        ] {
            let text = written(timeout);
            assert_eq!(text, want);
            assert!(parse(want).is_some_and(|read| read <= timeout));
        }
    }

    fn ambient(left: Option<Duration>) -> RpcCallContext {
        let deadline = left.map(|left| Deadline(Instant::now() + left));
        let trace = Some(TraceParent::sampled(7, 2));
        RpcCallContext { deadline, request_id: RequestIdHeader::of(&HeaderMap::new()), trace }
    }

    fn passed_on(left: Option<Duration>, own: Option<&'static str>) -> Result<Option<Duration>, Error> {
        let mut headers = HeaderMap::new();
        if let Some(own) = own {
            headers.insert(TIMEOUT_HEADER, HeaderValue::from_static(own));
        }
        ambient(left).sync_scope(|| pass_on(&mut headers, "storage"))?;
        assert!(headers.contains_key(crate::gate::request_headers::REQUEST_ID_HEADER));
        assert_eq!(headers["traceparent"], TraceParent::sampled(7, 2).to_string());
        Ok(timeout_of(&headers))
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_is_passed_on() {
        let second = Some(Duration::from_secs(1));
        let left = Some(Duration::from_millis(950));
        assert_eq!(passed_on(second, None).expect("time"), left);
        assert_eq!(passed_on(second, Some("5S")).expect("time"), left);
        assert_eq!(passed_on(second, Some("3m")).expect("time"), Some(Duration::from_millis(3)));
        assert_eq!(passed_on(None, None).expect("time"), None);
        assert_eq!(passed_on(None, Some("5S")).expect("time"), Some(Duration::from_secs(5)));
        let refused = passed_on(Some(Duration::from_millis(50)), None).expect_err("no time");
        assert_eq!(refused.reason(), RpcReason::DeadlineExceeded);
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_of_the_server_bounds_the_requested_timeout() {
        let mut headers = HeaderMap::new();
        let minute = Some(Duration::from_secs(60));
        let after = |headers: &HeaderMap, patience| {
            Deadline::from_headers(headers, patience).map(|deadline| deadline.0 - Instant::now())
        };
        assert_eq!(after(&headers, None), None);
        assert_eq!(after(&headers, minute), minute);
        headers.insert(TIMEOUT_HEADER, HeaderValue::from_static("2M"));
        assert_eq!(after(&headers, minute), minute);
        assert_eq!(after(&headers, None), Some(Duration::from_secs(120)));
        headers.insert(TIMEOUT_HEADER, HeaderValue::from_static("5S"));
        assert_eq!(after(&headers, minute), Some(Duration::from_secs(5)));
        headers.insert(TIMEOUT_HEADER, HeaderValue::from_static("soon"));
        assert_eq!(after(&headers, minute), minute);
    }
}
