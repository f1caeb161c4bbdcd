//! Requests to JetStream's API, and what its answers say.

use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind, RequestErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RawMessage, RetentionPolicy, StorageType};
use async_nats::jetstream::{Error, ErrorCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::connect::NatsLink;
use crate::{
    BrokerError, ConsumerListing, CursorState, Headers, StoredMessage, StreamDiscard, StreamRetention,
    StreamSettings, StreamState, StreamStorage,
};

/// Status code of a server that is starting or too busy.
const TRY_AGAIN: usize = 503;

/// Answer to a request for a message.
#[derive(Deserialize)]
pub(super) struct GetMessageReply {
    pub(super) message: RawMessage,
}

/// Answer to the making of a consumer.
#[derive(Deserialize)]
pub(super) struct CreateConsumerReply {
    pub(super) config: Map<String, Value>,
}

/// Answer to a request for the state of a consumer.
#[derive(Deserialize)]
pub(super) struct ConsumerInfo {
    delivered: ConsumerPosition,
    num_pending: u64,
    num_ack_pending: u64,
}

/// Answer to a request for consumers: a page of them.
#[derive(Deserialize)]
pub(super) struct ConsumerPage {
    pub(super) total: usize,
    pub(super) consumers: Option<Vec<ConsumerListing>>,
}

/// Position of a consumer: in its own numbers, and in those of the stream.
#[derive(Deserialize)]
struct ConsumerPosition {
    consumer_seq: u64,
    stream_seq: u64,
}

impl From<ConsumerInfo> for CursorState {
    fn from(info: ConsumerInfo) -> Self {
        Self {
            delivered: info.delivered.consumer_seq,
            delivered_sequence: info.delivered.stream_seq,
            pending: info.num_pending,
            unacknowledged: info.num_ack_pending,
        }
    }
}

/// Sends a request to JetStream's API, whose answer may be a refusal.
pub(super) async fn ask<T: DeserializeOwned>(
    link: &NatsLink,
    what: &str,
    subject: String,
    request: &Value,
) -> Result<Result<T, Error>, BrokerError> {
    match link.context.request(subject, request).await {
        Ok(Response::Ok(answer)) => Ok(Ok(answer)),
        Ok(Response::Err { error }) => Ok(Err(error)),
        Err(error) => {
            let what = what.to_owned();
            Err(match error.kind() {
                RequestErrorKind::NoResponders => {
                    let why = "the server has no JetStream, or is starting it".to_owned();
                    BrokerError::Unavailable { what, why }
                }
                RequestErrorKind::TimedOut => {
                    BrokerError::Unavailable { what, why: "it took too long".to_owned() }
                }
                _ if is_unreadable(&error) => BrokerError::Unreadable { what, why: chain(&error) },
                _ => BrokerError::Unavailable { what, why: chain(&error) },
            })
        }
    }
}

/// Turns the refusal of a request into an error.
pub(super) fn refusal(what: &str, error: &Error) -> BrokerError {
    let (what, why) = (what.to_owned(), error.to_string());
    if error.code() == TRY_AGAIN {
        BrokerError::Unavailable { what, why }
    } else {
        BrokerError::Refused { what, why }
    }
}

/// Turns the refusal of a message, or a missing acknowledgement, into an error.
pub(super) fn unpublished(what: String, error: &PublishError) -> BrokerError {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    match source {
        Some(refused) => refusal(&what, refused),
        None if error.kind() == PublishErrorKind::BrokenPipe => {
            BrokerError::Unavailable { what, why: "the connection was lost".to_owned() }
        }
        None => BrokerError::Unavailable { what, why: chain(error) },
    }
}

/// Returns whether a request failed because its consumer, or its stream, does not exist.
pub(super) fn is_consumer_missing(error: &Error) -> bool {
    error.error_code() == ErrorCode::CONSUMER_NOT_FOUND || is_stream_missing(error)
}

/// Returns whether a consumer was refused because its stream may have no more of them.
pub(super) fn is_full(error: &Error) -> bool {
    error.error_code() == ErrorCode::MAXIMUM_CONSUMERS_LIMIT
}

/// Returns whether a request failed because its stream does not exist.
pub(super) fn is_stream_missing(error: &Error) -> bool {
    error.error_code() == ErrorCode::STREAM_NOT_FOUND
}

pub(super) fn read_stream(what: &str, info: &Info) -> Result<StreamState, BrokerError> {
    let config = &info.config;
    Ok(StreamState {
        incarnation: millis(what, info.created)?,
        first_sequence: info.state.first_sequence,
        last_sequence: info.state.last_sequence,
        messages: info.state.messages,
        consumers: info.state.consumer_count,
        settings: StreamSettings {
            subjects: config.subjects.clone(),
            retention: match config.retention {
                RetentionPolicy::Limits => StreamRetention::Limits,
                RetentionPolicy::Interest => StreamRetention::Interest,
                RetentionPolicy::WorkQueue => StreamRetention::WorkQueue,
            },
            storage: match config.storage {
                StorageType::File => StreamStorage::File,
                StorageType::Memory => StreamStorage::Memory,
            },
            discard: match config.discard {
                DiscardPolicy::Old => StreamDiscard::Old,
                DiscardPolicy::New => StreamDiscard::New,
            },
            duplicate_window: config.duplicate_window,
            max_age: config.max_age,
            max_consumers: config.max_consumers.into(),
            replicas: config.num_replicas,
        },
    })
}

pub(super) fn stream_config(name: &str, settings: &StreamSettings) -> Config {
    Config {
        name: name.to_owned(),
        subjects: settings.subjects.clone(),
        retention: match settings.retention {
            StreamRetention::Limits => RetentionPolicy::Limits,
            StreamRetention::Interest => RetentionPolicy::Interest,
            StreamRetention::WorkQueue => RetentionPolicy::WorkQueue,
        },
        storage: match settings.storage {
            StreamStorage::File => StorageType::File,
            StreamStorage::Memory => StorageType::Memory,
        },
        discard: match settings.discard {
            StreamDiscard::Old => DiscardPolicy::Old,
            StreamDiscard::New => DiscardPolicy::New,
        },
        duplicate_window: settings.duplicate_window,
        max_age: settings.max_age,
        max_consumers: i32::try_from(settings.max_consumers).unwrap_or(i32::MAX),
        num_replicas: settings.replicas,
        ..Config::default()
    }
}

pub(super) fn read_message(what: &str, raw: RawMessage) -> Result<StoredMessage, BrokerError> {
    let stored_millis = millis(what, raw.time)?;
    let message = StreamMessage::try_from(raw);
    let message = message.map_err(|error| unreadable(what, &error.to_string()))?;
    Ok(StoredMessage {
        subject: message.subject.into_string(),
        headers: read_headers(&message.headers),
        payload: message.payload,
        sequence: message.sequence,
        stored_millis,
    })
}

pub(super) fn read_headers(map: &async_nats::HeaderMap) -> Headers {
    let mut headers = Headers::new();
    for (name, values) in map.iter() {
        if let Some(value) = values.last() {
            headers.insert(name.as_ref(), value.as_str());
        }
    }
    headers
}

fn millis(what: &str, moment: OffsetDateTime) -> Result<u64, BrokerError> {
    let millis = moment.unix_timestamp_nanos() / i128::from(Duration::from_millis(1).as_nanos() as u64);
    u64::try_from(millis).map_err(|_| unreadable(what, &format!("{moment} is before 1970")))
}

fn unreadable(what: &str, why: &str) -> BrokerError {
    BrokerError::Unreadable { what: what.to_owned(), why: why.to_owned() }
}

/// Returns whether an answer is not JSON of the expected form.
fn is_unreadable(error: &(dyn std::error::Error + 'static)) -> bool {
    sources(error).any(|error| error.downcast_ref::<serde_json::Error>().is_some())
}

/// Writes an error with all that brought it about, each once.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    for error in sources(error) {
        let part = error.to_string();
        if text.is_empty() {
            text = part;
        } else if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
    }
    text
}

fn sources<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}
