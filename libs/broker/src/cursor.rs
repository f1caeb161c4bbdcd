//! Cursors, and the consumers that a server makes of them.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::{BrokerError, Headers, ReceiptHandle, SettingDifference, StreamState};

/// Maximum number of messages of one pull: they have to fit the buffer of its subscription, together with heartbeats.
pub(crate) const PULL_MESSAGES_MAX: usize = 512;
/// Name of a stream or a consumer, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Settings that servers add by themselves, which change nothing in the deliveries.
const ADDED: [&str; 3] = ["max_waiting", "metadata", "num_replicas"];

/// A cursor that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorSpec {
    /// The stream.
    pub stream: String,
    /// Name of the durable consumer.
    pub consumer: String,
    /// The only filter. Some servers accept several filters for one consumer and ignore them.
    pub filter: String,
    /// Position at which the cursor starts.
    pub start: CursorStart,
    /// Description of the consumer, for people.
    pub description: String,
    /// Most deliveries without an acknowledgement.
    pub max_ack_pending: u32,
    /// Time after which the server redelivers a message that was not acknowledged.
    pub ack_wait: Duration,
    /// Time without pulls after which the server deletes the consumer; `None` for one that stays.
    pub inactive_after: Option<Duration>,
}

/// Beginning of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CursorStart {
    /// Behind this sequence; 0 for the beginning of the stream.
    After(u64),
    /// At the first message stored at this moment or later, in milliseconds since 1970.
    Since(u64),
}

impl CursorSpec {
    /// Specifies a cursor with the usual limits: 256 deliveries in flight, 30 seconds for each.
    #[must_use]
    pub fn new(stream: &str, consumer: &str, filter: &str, start: CursorStart) -> Self {
        Self {
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            filter: filter.to_owned(),
            start,
            description: String::new(),
            max_ack_pending: 256,
            ack_wait: Duration::from_secs(30),
            inactive_after: None,
        }
    }

    /// Checks names and filter, and builds the configuration that is sent to the server.
    pub(crate) fn configuration(&self) -> Result<Map<String, Value>, BrokerError> {
        check_name("the stream", &self.stream)?;
        check_name("the consumer", &self.consumer)?;
        check_filter(&self.filter)?;
        let start = match self.start {
            CursorStart::After(sequence) => json!({
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": sequence.saturating_add(1),
            }),
            CursorStart::Since(millis) => json!({
                "deliver_policy": "by_start_time",
                "opt_start_time": self.moment(millis)?,
            }),
        };
        let nanos = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let inactive = match self.inactive_after {
            Some(length) => json!({ "inactive_threshold": nanos(length) }),
            None => json!({}),
        };
        let rest = json!({
            "durable_name": self.consumer,
            "name": self.consumer,
            "description": self.description,
            "ack_policy": "explicit",
            "ack_wait": nanos(self.ack_wait),
            "max_deliver": -1,
            "filter_subject": self.filter,
            "replay_policy": "instant",
            "max_ack_pending": self.max_ack_pending,
        });
        let fields = [start, inactive, rest].into_iter().filter_map(|part| match part {
            Value::Object(fields) => Some(fields),
            _ => None,
        });
        Ok(fields.flatten().collect())
    }

    /// Refuses a start behind the stream's end: older servers would use its end instead, newer ones would skip the next
    /// messages.
    pub(crate) fn check_start(&self, state: &StreamState) -> Result<(), BrokerError> {
        match self.start {
            CursorStart::After(after) if after > state.last_sequence => Err(BrokerError::StartBeyondEnd {
                stream: self.stream.clone(),
                consumer: self.consumer.clone(),
                after,
                last: state.last_sequence,
            }),
            CursorStart::After(_) | CursorStart::Since(_) => Ok(()),
        }
    }

    /// The refusal of a stream that may have no more consumers.
    pub(crate) fn full(&self) -> BrokerError {
        BrokerError::ConsumerLimitReached { stream: self.stream.clone(), consumer: self.consumer.clone() }
    }

    /// Compares the configuration that the server reports with the requested one.
    pub(crate) fn check_created(
        &self,
        requested: &Map<String, Value>,
        made: &Map<String, Value>,
    ) -> Result<(), BrokerError> {
        let differences = self.compare(requested, made);
        if differences.is_empty() {
            return Ok(());
        }
        Err(BrokerError::ConsumerMismatch { consumer: self.consumer.clone(), differences })
    }

    /// Lists which of these settings differ from the request.
    pub(crate) fn compare(
        &self,
        requested: &Map<String, Value>,
        made: &Map<String, Value>,
    ) -> Vec<SettingDifference> {
        let mut fields: Vec<&String> = requested.keys().chain(made.keys()).collect();
        fields.sort();
        fields.dedup();
        let differs = |field: &String| {
            let (wanted, found) = (requested.get(field), made.get(field));
            let is_free = wanted.is_none() && ADDED.contains(&field.as_str());
            (!is_free && !is_same(wanted, found)).then(|| SettingDifference {
                stream: self.stream.clone(),
                field: field.clone(),
                wanted: shown(wanted),
                found: shown(found),
            })
        };
        fields.into_iter().filter_map(differs).collect()
    }

    fn moment(&self, millis: u64) -> Result<String, BrokerError> {
        let moment = OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000);
        let text = moment.ok().and_then(|moment| moment.format(&Rfc3339).ok());
        text.ok_or_else(|| BrokerError::Refused {
            what: format!("the cursor {}", self.consumer),
            why: format!("{millis} ms since 1970 is no moment that can be written"),
        })
    }
}

/// A consumer as the server sees it now. Good for waiting and for metrics: the position is its owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CursorState {
    /// Number of deliveries that it has made, as [`StreamDelivery::count`] counts them.
    pub delivered: u64,
    /// The last sequence that it has delivered, or passed over.
    pub delivered_sequence: u64,
    /// Number of messages that it has not delivered yet.
    pub pending: u64,
    /// Number of deliveries without an acknowledgement.
    pub unacknowledged: u64,
}

/// Limit of one pull: the room that there is for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullLimit {
    /// Number of messages; more than 512 count as 512.
    pub messages: usize,
    /// Bytes of those messages. A larger message is pulled alone.
    pub bytes: usize,
}

impl PullLimit {
    /// No room: nothing is pulled.
    pub const NONE: Self = Self { messages: 0, bytes: 0 };

    /// Tells whether something may be pulled.
    pub(crate) const fn is_open(self) -> bool {
        self.messages > 0 && self.bytes > 0
    }
}

/// A message that was delivered.
#[derive(Debug, Clone)]
pub struct StreamDelivery {
    /// Subject of the message. Receivers verify its owner again: the filter is only one of several barriers.
    pub subject: String,
    /// Headers of the message.
    pub headers: Headers,
    /// Payload of the message.
    pub payload: Bytes,
    /// Sequence of the message in the stream.
    pub sequence: u64,
    /// Number of the delivery, as the consumer counts from 1: a gap means that deliveries were lost.
    pub count: u64,
    /// Number of times that this consumer has delivered the message, this time included.
    pub attempt: u64,
    /// Moment at which the message was stored, in milliseconds since 1970.
    pub stored_millis: u64,
    /// Number of messages that the consumer has not delivered yet.
    pub pending: u64,
    /// Handle with which it is acknowledged.
    pub receipt: ReceiptHandle,
}

/// How far the server has looked for the next message of a cursor, as it reports while there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CursorProgress {
    /// Number of deliveries until then: the progress holds only for a receiver that has got all of them.
    pub count: u64,
    /// Sequence up to which every message of the cursor was delivered.
    pub sequence: u64,
}

/// Checks that a text can stand in a subject of the server's API as one token.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), BrokerError> {
    let is_safe = |byte: u8| byte.is_ascii_graphic() && !b".*>/\\".contains(&byte);
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_safe) {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(BrokerError::Refused {
        what: format!("{what} {shown:?}"),
        why: format!("names are of 1 to {NAME_BYTES_MAX} printable ASCII characters without . * > / \\"),
    })
}

fn check_filter(filter: &str) -> Result<(), BrokerError> {
    let tokens: Vec<&str> = filter.split('.').collect();
    let is_token = |at: usize, token: &str| {
        let is_wild = token.contains(['*', '>']);
        !token.is_empty() && (!is_wild || token == "*" || token == ">" && at + 1 == tokens.len())
    };
    let is_safe = !filter.contains(|c: char| c.is_whitespace() || c.is_control());
    if is_safe && tokens.iter().enumerate().all(|(at, token)| is_token(at, token)) {
        return Ok(());
    }
    Err(BrokerError::Refused {
        what: format!("the filter {filter:?}"),
        why: "filters are tokens between dots, of which a whole one may be *, and the last >".to_owned(),
    })
}

/// Compares two values of a setting: servers omit empty values, and write times in several ways.
fn is_same(wanted: Option<&Value>, found: Option<&Value>) -> bool {
    let empty = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::Bool(value)) => !value,
        Some(Value::Number(value)) => value.as_f64() == Some(0.0),
        Some(Value::String(value)) => value.is_empty(),
        Some(Value::Array(values)) => values.is_empty(),
        Some(Value::Object(fields)) => fields.is_empty(),
    };
    let moment = |value: &Value| OffsetDateTime::parse(value.as_str()?, &Rfc3339).ok();
    match (wanted, found) {
        (Some(wanted), Some(found)) => {
            wanted == found || moment(wanted).is_some_and(|wanted| moment(found) == Some(wanted))
        }
        (one, other) => empty(one) && empty(other),
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(start: CursorStart) -> CursorSpec {
        CursorSpec::new("S", "c", "a.*", start)
    }

    fn made(change: impl FnOnce(&mut Map<String, Value>)) -> Result<(), BrokerError> {
        let spec = spec(CursorStart::Since(1_700_000_000_120));
        let requested = spec.configuration().expect("it can be asked for");
        let mut made = requested.clone();
        change(&mut made);
        spec.check_created(&requested, &made)
    }

    #[test]
    fn what_servers_add_or_leave_out_is_no_difference() {
        assert_eq!(made(|_| {}), Ok(()));
        let harmless = |made: &mut Map<String, Value>| {
            made.remove("description");
            made.insert("num_replicas".to_owned(), json!(0));
            made.insert("max_waiting".to_owned(), json!(512));
            made.insert("metadata".to_owned(), json!({"_nats.ver": "2.15.1"}));
            made.insert("mem_storage".to_owned(), json!(false));
            made.insert("opt_start_time".to_owned(), json!("2023-11-14T22:13:20.120000Z"));
        };
        assert_eq!(made(harmless), Ok(()));
    }

    #[test]
    fn a_difference_names_field_wanted_and_found() {
        for (field, value, expected) in [
            ("ack_wait", json!(1), "ack_wait is 1, wanted is 30000000000"),
            ("filter_subject", json!("a.b"), "filter_subject is \"a.b\", wanted is \"a.*\""),
            ("filter_subjects", json!(["a.b"]), "filter_subjects is [\"a.b\"], wanted is absent"),
            ("backoff", json!([1]), "backoff is [1], wanted is absent"),
            ("headers_only", json!(true), "headers_only is true, wanted is absent"),
            (
                "opt_start_time",
                json!("2023-11-14T22:13:20.121Z"),
                "opt_start_time is \"2023-11-14T22:13:20.121Z\", wanted is \"2023-11-14T22:13:20.12Z\"",
            ),
        ] {
            let differs = made(|made| drop(made.insert(field.to_owned(), value)));
            let expected = format!("the server made the consumer c differently: S: {expected}");
            assert_eq!(differs.map_err(|error| error.to_string()), Err(expected));
        }
        let missing = made(|made| drop(made.remove("max_deliver")));
        assert!(matches!(missing, Err(BrokerError::ConsumerMismatch { .. })), "{missing:?}");
    }

    #[test]
    fn names_and_filters_are_checked() {
        for (stream, consumer, filter, part) in [
            ("", "c", "a", "the stream"),
            ("S.x", "c", "a", "the stream"),
            ("S", "c*", "a", "the consumer"),
            ("S", "c d", "a", "the consumer"),
            ("S", "c", "", "the filter"),
            ("S", "c", "a..b", "the filter"),
            ("S", "c", "a.>.b", "the filter"),
            ("S", "c", "a.b*", "the filter"),
            ("S", "c", "a b", "the filter"),
        ] {
            let refused = CursorSpec::new(stream, consumer, filter, CursorStart::After(0)).configuration();
            let Err(error @ BrokerError::Refused { .. }) = refused else { panic!("{part}: {refused:?}") };
            assert!(error.to_string().starts_with(part), "{error}");
        }
        for filter in ["a", "a.*.b", "a.>", ">", "a.%h0.*"] {
            assert!(
                CursorSpec::new("S", "c", filter, CursorStart::After(0)).configuration().is_ok(),
                "{filter}"
            );
        }
        let refused = spec(CursorStart::Since(u64::MAX)).configuration();
        assert!(matches!(refused, Err(BrokerError::Refused { .. })), "{refused:?}");
    }
}
