//! NATS JetStream.
//!
//! Each connection has its own client, which ends with it (see [`connect`]). Requests go through JetStream's API in JSON;
//! deliveries are pulled by our own requests, since the stream of the client library would continue silently after a lost
//! connection.

mod api;
mod connect;
mod pull;

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{ErrorCode, stream};
use async_nats::{HeaderName, HeaderValue};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use self::api::{
    ConsumerInfo, ConsumerPage, CreateConsumerReply, GetMessageReply, is_consumer_missing, is_full,
    is_stream_missing, read_message, read_stream, stream_config,
};
use self::connect::Connector;
use self::pull::PullSubscription;
use crate::cursor::check_name;
use crate::message::check_subject;
use crate::{
    BrokerConnectionStatus, BrokerDescription, BrokerError, BrokerInbox, BrokerVersion, ConsumerListing,
    CursorSpec, CursorState, Deliveries, Headers, MessageBroker, Publication, PublicationAck,
    PublicationFuture, StoredMessage, StreamSpec, StreamState,
};

/// Time that a request waits for its answer, and a message for room and for its acknowledgement.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages that were handed over and not written to the connection yet, in bytes of all of them.
const UNSENT_BYTES_MAX: u32 = 64 * 1024 * 1024;
/// Memory of a message beyond its payload and its headers, in bytes.
const MESSAGE_BYTES: usize = 512;

/// Addresses of servers, and the login to them.
#[derive(Debug, Clone)]
pub struct JetStreamOptions {
    /// URLs such as `nats://host:4222`, tried in turn.
    pub urls: Vec<String>,
    /// Login; `None` where the server requires none.
    pub login: Option<JetStreamLogin>,
    /// TLS; `None` where a plain connection is enough.
    pub tls: Option<JetStreamTls>,
    /// Name of the connection, for the server's operator.
    pub name: String,
    /// Interval at which a server without messages sends heartbeats, at least 100 ms. Deliveries end after two intervals
    /// without one.
    pub heartbeat: Duration,
}

impl JetStreamOptions {
    /// Reaches a server at this URL with the usual settings.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            urls: vec![url.to_owned()],
            login: None,
            tls: None,
            name: "mycora".to_owned(),
            heartbeat: Duration::from_secs(5),
        }
    }
}

/// Login to a server.
#[derive(Clone)]
pub enum JetStreamLogin {
    /// A user and its password.
    Password {
        /// The user.
        user: String,
        /// Password of the user.
        password: String,
    },
    /// A token.
    Token(String),
}

impl std::fmt::Debug for JetStreamLogin {
    /// Names the kind, and no secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Password { user, .. } => write!(f, "Password {{ user: {user:?}, .. }}"),
            Self::Token(_) => f.write_str("Token(..)"),
        }
    }
}

/// TLS of a connection.
#[derive(Debug, Clone, Default)]
pub struct JetStreamTls {
    /// Certificates of authorities in PEM, by their path; `None` for those of the system.
    pub ca: Option<std::path::PathBuf>,
    /// Own certificate and its key in PEM, by their paths.
    pub identity: Option<(std::path::PathBuf, std::path::PathBuf)>,
}

/// NATS JetStream, over one connection that is reopened whenever it is lost.
pub struct JetStream {
    connector: Connector,
    unsent: Arc<Semaphore>,
    heartbeat: Duration,
}

impl JetStream {
    /// Starts connecting, and retries forever: [`MessageBroker::connection`] shows when there is a connection. Needs a
    /// runtime.
    ///
    /// # Errors
    /// [`BrokerError::Refused`] when an option can never work.
    pub fn start(options: JetStreamOptions) -> Result<Self, BrokerError> {
        let heartbeat = options.heartbeat;
        let connector = Connector::start(options)?;
        Ok(Self { connector, unsent: Arc::new(Semaphore::new(UNSENT_BYTES_MAX as usize)), heartbeat })
    }

    /// Waits until there is a connection, at most for `patience`.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`BrokerError::Unavailable`] states why there is none.
    pub async fn connected(&self, patience: Duration) -> Result<(), BrokerError> {
        let mut connection = self.connector.connection();
        let waited = timeout(patience, connection.wait_for(|connection| connection.connected)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => self.connector.link("the connection").map(drop),
        }
    }

    /// Lists the consumers of a stream, by name. Nothing is changed.
    ///
    /// # Errors
    /// [`BrokerError::StreamNotFound`] without such a stream; may be repeated.
    pub async fn consumers(&self, stream: &str) -> Result<Vec<ConsumerListing>, BrokerError> {
        check_name("the stream", stream)?;
        let what = format!("the consumers of stream {stream}");
        let mut all = Vec::new();
        loop {
            let request = json!({ "offset": all.len() });
            let answer = self.ask::<ConsumerPage>(&what, format!("CONSUMER.LIST.{stream}"), &request).await?;
            let ConsumerPage { total, consumers } = match answer {
                Ok(page) => page,
                Err(error) if is_stream_missing(&error) => {
                    return Err(BrokerError::StreamNotFound { stream: stream.to_owned() });
                }
                Err(error) => return Err(api::refusal(&what, &error)),
            };
            let consumers = consumers.unwrap_or_default();
            let is_last = consumers.is_empty();
            all.extend(consumers);
            if is_last || all.len() >= total {
                return Ok(all);
            }
        }
    }

    /// Sends a request to JetStream's API, whose answer may be a refusal.
    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        subject: String,
        request: &Value,
    ) -> Result<Result<T, async_nats::jetstream::Error>, BrokerError> {
        let link = self.connector.link(what)?;
        api::ask(&link, what, subject, request).await
    }

    /// Waits until the buffer of bytes not yet written to the connection has room for this many.
    async fn reserve_send_buffer(
        &self,
        what: &str,
        bytes: usize,
    ) -> Result<OwnedSemaphorePermit, BrokerError> {
        let bytes = u32::try_from(bytes).unwrap_or(UNSENT_BYTES_MAX).min(UNSENT_BYTES_MAX);
        let room = timeout(ANSWER_TIMEOUT, Arc::clone(&self.unsent).acquire_many_owned(bytes)).await;
        room.ok().and_then(Result::ok).ok_or_else(|| BrokerError::Unavailable {
            what: what.to_owned(),
            why: format!("{UNSENT_BYTES_MAX} bytes are waiting to be sent for {ANSWER_TIMEOUT:?}"),
        })
    }
}

/// A payload that frees its room in the buffer once the client has written or dropped it.
struct UnsentPayload {
    payload: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for UnsentPayload {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

#[async_trait]
impl MessageBroker for JetStream {
    fn server(&self) -> Result<BrokerDescription, BrokerError> {
        let link = self.connector.link("the server's description")?;
        let info = &link.info;
        Ok(BrokerDescription {
            version_text: info.version.clone(),
            version: BrokerVersion::parse(&info.version),
            max_payload: info.max_payload,
        })
    }

    fn connection(&self) -> watch::Receiver<BrokerConnectionStatus> {
        self.connector.connection()
    }

    async fn stream(&self, name: &str) -> Result<Option<StreamState>, BrokerError> {
        check_name("the stream", name)?;
        let what = format!("the state of stream {name}");
        match self.ask::<stream::Info>(&what, format!("STREAM.INFO.{name}"), &json!({})).await? {
            Ok(info) => read_stream(&what, &info).map(Some),
            Err(error) if is_stream_missing(&error) => Ok(None),
            Err(error) => Err(api::refusal(&what, &error)),
        }
    }

    async fn create_stream(&self, spec: &StreamSpec) -> Result<(), BrokerError> {
        check_name("the stream", &spec.name)?;
        let what = format!("making stream {}", spec.name);
        let config = serde_json::to_value(stream_config(&spec.name, &spec.settings()));
        let config =
            config.map_err(|error| BrokerError::Refused { what: what.clone(), why: error.to_string() })?;
        match self.ask::<Value>(&what, format!("STREAM.CREATE.{}", spec.name), &config).await? {
            Err(error) if error.error_code() != ErrorCode::STREAM_NAME_EXIST => {
                Err(api::refusal(&what, &error))
            }
            // The stream may exist already because another process created it first; the caller compares it.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn message(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        check_name("the stream", stream)?;
        let what = format!("message {sequence} of stream {stream}");
        if sequence == 0 {
            // Servers take it for a request without a sequence.
            return Ok(None);
        }
        match self
            .ask::<GetMessageReply>(&what, format!("STREAM.MSG.GET.{stream}"), &json!({ "seq": sequence }))
            .await?
        {
            Ok(got) => read_message(&what, got.message).map(Some),
            Err(error) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
            Err(error) if is_stream_missing(&error) => {
                Err(BrokerError::StreamNotFound { stream: stream.to_owned() })
            }
            Err(error) => Err(api::refusal(&what, &error)),
        }
    }

    async fn publish(&self, outgoing: Publication) -> Result<PublicationFuture, BrokerError> {
        let what = format!("publishing {} to {}", outgoing.message_id, outgoing.subject);
        let link = self.connector.link(&what)?;
        let headers = outgoing.validated_headers(link.info.max_payload)?;
        let Publication { subject, payload, .. } = outgoing;
        let room = self.reserve_send_buffer(&what, payload.len() + headers.bytes() + MESSAGE_BYTES).await?;
        let message = PublishMessage::build()
            .headers(wire_headers(&what, &headers)?)
            .payload(Bytes::from_owner(UnsentPayload { payload, _room: room }));
        let sent = timeout(ANSWER_TIMEOUT, link.context.send_publish(subject.clone(), message)).await;
        let unavailable = |what, why: String| BrokerError::Unavailable { what, why };
        let acknowledgement = match sent {
            Ok(Ok(acknowledgement)) => acknowledgement,
            Ok(Err(error)) => return Err(unavailable(what, error.to_string())),
            Err(_) => return Err(unavailable(what, format!("nothing can be sent for {ANSWER_TIMEOUT:?}"))),
        };
        Ok(PublicationFuture::new(async move {
            match acknowledgement.await {
                Ok(ack) => Ok(PublicationAck {
                    stream: ack.stream,
                    sequence: ack.sequence,
                    is_duplicate: ack.duplicate,
                }),
                Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                    Err(BrokerError::UnroutedSubject { subject })
                }
                Err(error) => Err(api::unpublished(what, &error)),
            }
        }))
    }

    async fn open(&self, spec: &CursorSpec) -> Result<Box<dyn Deliveries>, BrokerError> {
        let requested = spec.configuration()?;
        let link = self.connector.link(&format!("the cursor {}", spec.consumer))?;
        let state = self.stream(&spec.stream).await?;
        let state = state.ok_or_else(|| BrokerError::StreamNotFound { stream: spec.stream.clone() })?;
        spec.check_start(&state)?;
        self.delete_cursor(&spec.stream, &spec.consumer).await?;
        let what = format!("making the consumer {} of stream {}", spec.consumer, spec.stream);
        let request = json!({ "stream_name": spec.stream, "config": requested, "action": "create" });
        let subject = format!("CONSUMER.CREATE.{}.{}.{}", spec.stream, spec.consumer, spec.filter);
        let made = match api::ask::<CreateConsumerReply>(&link, &what, subject, &request).await? {
            Ok(made) => made.config,
            Err(error) if is_stream_missing(&error) => {
                return Err(BrokerError::StreamNotFound { stream: spec.stream.clone() });
            }
            Err(error) if is_full(&error) => return Err(spec.full()),
            Err(error) => return Err(api::refusal(&what, &error)),
        };
        self.verify_created(spec, &requested, &made).await?;
        Ok(Box::new(PullSubscription::start(link, spec, self.heartbeat).await?))
    }

    async fn cursor(&self, stream: &str, consumer: &str) -> Result<Option<CursorState>, BrokerError> {
        check_name("the stream", stream)?;
        check_name("the consumer", consumer)?;
        let what = format!("the state of the consumer {consumer} of stream {stream}");
        let subject = format!("CONSUMER.INFO.{stream}.{consumer}");
        match self.ask::<ConsumerInfo>(&what, subject, &json!({})).await? {
            Ok(info) => Ok(Some(info.into())),
            Err(error) if is_consumer_missing(&error) => Ok(None),
            Err(error) => Err(api::refusal(&what, &error)),
        }
    }

    async fn delete_cursor(&self, stream: &str, consumer: &str) -> Result<(), BrokerError> {
        check_name("the stream", stream)?;
        check_name("the consumer", consumer)?;
        let what = format!("deleting the consumer {consumer} of stream {stream}");
        match self.ask::<Value>(&what, format!("CONSUMER.DELETE.{stream}.{consumer}"), &json!({})).await? {
            Ok(_) => Ok(()),
            Err(error) if is_consumer_missing(&error) => Ok(()),
            Err(error) => Err(api::refusal(&what, &error)),
        }
    }

    async fn inbox(&self) -> Result<BrokerInbox, BrokerError> {
        let what = "an inbox";
        let link = self.connector.link(what)?;
        let subject = link.client.new_inbox();
        let replies = link.subscribe(what, &subject).await?;
        // Status messages of the server, such as that a subject has no listeners, are not replies.
        let replies = replies.filter_map(async |message| message.status.is_none().then_some(message.payload));
        Ok(BrokerInbox::new(subject, Box::pin(replies)))
    }

    async fn reply(&self, subject: &str, payload: Bytes) -> Result<(), BrokerError> {
        check_subject(subject)?;
        let what = format!("a reply to {subject}");
        let link = self.connector.link(&what)?;
        let (size, most) = (payload.len(), link.info.max_payload);
        if size > most {
            return Err(BrokerError::TooLarge { what, size, most });
        }
        let room = self.reserve_send_buffer(&what, size + MESSAGE_BYTES).await?;
        let payload = Bytes::from_owner(UnsentPayload { payload, _room: room });
        link.send(&what, subject, None, payload).await
    }
}

impl JetStream {
    /// Compares a new consumer with the request, and deletes it if it differs.
    async fn verify_created(
        &self,
        spec: &CursorSpec,
        requested: &Map<String, Value>,
        made: &Map<String, Value>,
    ) -> Result<(), BrokerError> {
        let checked = spec.check_created(requested, made);
        if checked.is_err()
            && let Err(error) = self.delete_cursor(&spec.stream, &spec.consumer).await
        {
            tracing::warn!(consumer = spec.consumer, %error, "a consumer that nobody asked for stays");
        }
        checked
    }
}

fn wire_headers(what: &str, headers: &Headers) -> Result<async_nats::HeaderMap, BrokerError> {
    let mut map = async_nats::HeaderMap::new();
    for (name, value) in headers.iter() {
        let parsed = name.parse::<HeaderName>().ok().zip(value.parse::<HeaderValue>().ok());
        let refused = || BrokerError::Refused {
            what: what.to_owned(),
            why: format!("the header {name} cannot be written"),
        };
        let (name, value) = parsed.ok_or_else(refused)?;
        map.insert(name, value);
    }
    Ok(map)
}
