//! The daemon's API, typed: the methods that the bus needs, and what their errors mean.

use std::net::Ipv6Addr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jsonrpsee_core::client::{ClientT, Error as ClientError};
use jsonrpsee_core::traits::ToRpcParams;
use jsonrpsee_http_client::{HttpClient, HttpClientBuilder, transport};
use jsonrpsee_ws_client::{WsClient, WsClientBuilder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::bus::{BusNeighbour, BusNode, PublicKey};

/// Time limit to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a call, beyond what the call itself waits for. The daemon answers one call at a time while
/// another client's pop waits on it.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Calls at once on an HTTP connection; the daemon gives up HTTP connections beyond 100.
pub(super) const HTTP_CALLS_MAX: usize = 48;
/// Calls at once on a WebSocket connection; 300 were measured to work.
pub(super) const WS_CALLS_MAX: usize = 256;

/// Why a call of the daemon failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DaemonApiError {
    /// The daemon is not there, or does not answer.
    #[error("{0}")]
    Down(String),
    /// The daemon has too many connections.
    #[error("it has too many connections")]
    Busy,
    /// The daemon does not know that message, or forgot it.
    #[error("it does not know that message")]
    UnknownMessage,
    /// The daemon knows no route to that address.
    #[error("it knows no route there")]
    NoRoute,
    /// There is no message, as daemons before 0.6.2 say it.
    #[error("there is no message")]
    NoMessage,
    /// The daemon's answer is too long to be read.
    #[error("a message is too long to be read")]
    AnswerTooLong,
    /// The daemon permanently refuses the call.
    #[error("{0}")]
    Refused(String),
}

/// The daemon's id of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct DaemonMessageId(pub(super) String);

/// An incoming message, read.
#[derive(Debug, Clone)]
pub(super) struct DaemonMessage {
    pub(super) id: DaemonMessageId,
    pub(super) from: PublicKey,
    /// Absent for messages without one, replies among them.
    pub(super) topic: Option<Vec<u8>>,
    pub(super) payload: Bytes,
}

/// Result of a push.
#[derive(Debug)]
pub(super) enum PushResult {
    /// A reply came. Any node that knows the id can send one.
    Reply(DaemonMessage),
    /// No reply came in time. The message may arrive all the same.
    Silence(DaemonMessageId),
}

/// Progress of a message that was pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PushProgress {
    /// The daemon still tries to reach the other one.
    Trying,
    /// All or a part of it has left.
    Sending,
    /// The message is in the memory of the other daemon.
    Received,
    /// The daemon gave up.
    Aborted,
}

/// Which messages a pop is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PopFilter<'a> {
    Any,
    Topic(&'a str),
    NoTopic,
}

/// A connection to a daemon.
#[derive(Debug)]
pub(super) enum DaemonApi {
    Http(Box<HttpClient>),
    Ws(Box<WsClient>),
}

impl DaemonApi {
    /// Connects, to `ws://…` or `http://…`. Calls may wait for `wait` beyond what they need otherwise.
    pub(super) async fn connect(url: &str, wait: Duration) -> Result<Self, DaemonApiError> {
        let timeout = CALL_TIMEOUT + wait;
        if url.starts_with("ws://") {
            let builder = WsClientBuilder::new()
                .request_timeout(timeout)
                .connection_timeout(CONNECT_TIMEOUT)
                .max_concurrent_requests(WS_CALLS_MAX * 2);
            return builder.build(url).await.map(|ws| Self::Ws(Box::new(ws))).map_err(map_error);
        }
        let builder = HttpClientBuilder::new().request_timeout(timeout).connect_timeout(CONNECT_TIMEOUT);
        builder.build(url).map(|http| Self::Http(Box::new(http))).map_err(map_error)
    }

    /// Waits until the connection is gone; for ever where there is none to watch.
    pub(super) async fn gone(&self) -> String {
        match self {
            Self::Ws(client) => client.on_disconnect().await.to_string(),
            Self::Http(_) => std::future::pending().await,
        }
    }

    /// Hands a message over, and waits for a reply for so many seconds.
    pub(super) async fn push(
        &self,
        to: PublicKey,
        topic: &str,
        payload: &[u8],
        reply_secs: u64,
    ) -> Result<PushResult, DaemonApiError> {
        let dst = KeyOut { pk: to.to_string() };
        let topic = Some(STANDARD.encode(topic));
        let message = MessageOut { dst, topic, payload: STANDARD.encode(payload) };
        let answer: PushedIn = self.call("pushMessage", &(message, reply_secs)).await?;
        match answer {
            PushedIn { id, reply: Some(rest) } => rest.read(id).map(PushResult::Reply),
            PushedIn { id, reply: None } => Ok(PushResult::Silence(id)),
        }
    }

    /// Replies to a message.
    pub(super) async fn reply(
        &self,
        id: &DaemonMessageId,
        to: PublicKey,
        payload: &[u8],
    ) -> Result<(), DaemonApiError> {
        let dst = KeyOut { pk: to.to_string() };
        let message = MessageOut { dst, topic: None, payload: STANDARD.encode(payload) };
        self.call::<bool>("pushMessageReply", &(id, message)).await.map(drop)
    }

    /// Looks at the oldest message.
    pub(super) async fn peek(&self, filter: PopFilter<'_>) -> Result<Option<DaemonMessage>, DaemonApiError> {
        self.oldest(true, filter).await
    }

    /// Takes the oldest message out.
    pub(super) async fn pop(&self, filter: PopFilter<'_>) -> Result<Option<DaemonMessage>, DaemonApiError> {
        self.oldest(false, filter).await
    }

    /// Never waits: while a pop waits the daemon does nothing else.
    async fn oldest(
        &self,
        peek: bool,
        filter: PopFilter<'_>,
    ) -> Result<Option<DaemonMessage>, DaemonApiError> {
        let topic = match filter {
            PopFilter::Any => None,
            PopFilter::Topic(topic) => Some(STANDARD.encode(topic)),
            PopFilter::NoTopic => Some(String::new()),
        };
        let answer: Option<MessageIn> = match self.call("popMessage", &(peek, 0, topic)).await {
            Err(DaemonApiError::NoMessage) => None,
            answer => answer?,
        };
        answer.map(|message| message.rest.read(message.id)).transpose()
    }

    /// Where a message stands that was pushed here.
    pub(super) async fn progress(&self, id: &DaemonMessageId) -> Result<PushProgress, DaemonApiError> {
        let info: MessageInfoIn = self.call("getMessageInfo", &(id,)).await?;
        Ok(match info.state {
            StateIn::Pending => PushProgress::Trying,
            // Nothing of it was taken yet: the daemon asks whether it may, ten times a second.
            StateIn::Sending { sent: 0, acked: 0, .. } => PushProgress::Trying,
            StateIn::Sending { .. } => PushProgress::Sending,
            StateIn::Received | StateIn::Read => PushProgress::Received,
            StateIn::Aborted => PushProgress::Aborted,
        })
    }

    /// Looks up the node with this overlay address.
    pub(super) async fn key_of(&self, ip: Ipv6Addr) -> Result<PublicKey, DaemonApiError> {
        let text: String = self.call("getPublicKeyFromIp", &(ip,)).await?;
        parse_key(&text)
    }

    /// The daemon's description of itself.
    pub(super) async fn node(&self) -> Result<BusNode, DaemonApiError> {
        let info: InfoIn = self.call("getInfo", &NO_PARAMETERS).await?;
        let takes_any_topic = self.call("getDefaultTopicAction", &NO_PARAMETERS).await?;
        let links: Vec<PeerIn> = self.call("getPeers", &NO_PARAMETERS).await?;
        let link = |PeerIn { endpoint, connection_state }: PeerIn| BusNeighbour {
            endpoint: describe(&endpoint),
            alive: connection_state.eq_ignore_ascii_case("alive"),
        };
        Ok(BusNode {
            key: parse_key(&info.node_pubkey)?,
            ip: info.node_ip,
            subnet: info.node_subnet,
            version: info.version,
            start_secs: info.node_start_time,
            takes_any_topic,
            links: links.into_iter().map(link).collect(),
        })
    }

    async fn call<R: DeserializeOwned>(
        &self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<R, DaemonApiError> {
        let params = serde_json::value::to_raw_value(params);
        let params = Params(params.map_err(|error| DaemonApiError::Refused(error.to_string()))?);
        let answer = match self {
            Self::Http(client) => client.request::<Box<RawValue>, _>(method, params).await,
            Self::Ws(client) => client.request::<Box<RawValue>, _>(method, params).await,
        };
        let answer = answer.map_err(map_error)?;
        serde_json::from_str(answer.get()).map_err(|error| bad_answer(format!("{method}: {error}")))
    }
}

fn map_error(error: ClientError) -> DaemonApiError {
    match error {
        ClientError::Call(error) => map_code(error.code(), error.message(), error.data().map(RawValue::get)),
        ClientError::Transport(error) => {
            let rejected = error.downcast_ref::<transport::Error>();
            match rejected {
                Some(transport::Error::Rejected { status_code: 429 }) => DaemonApiError::Busy,
                Some(transport::Error::Rejected { status_code: 413 } | transport::Error::RequestTooLarge) => {
                    DaemonApiError::Refused("the request is too large".to_owned())
                }
                _ if error.to_string().contains("429") => DaemonApiError::Busy,
                _ => DaemonApiError::Down(with_sources(&*error)),
            }
        }
        ClientError::RequestTimeout => DaemonApiError::Down("it does not answer".to_owned()),
        other => DaemonApiError::Down(with_sources(&other)),
    }
}

/// The daemon says little more than a number, and two numbers are used twice.
fn map_code(code: i32, message: &str, data: Option<&str>) -> DaemonApiError {
    match (code, message) {
        (-32008, "Response is too big") => DaemonApiError::AnswerTooLong,
        (-32008, _) => DaemonApiError::NoRoute,
        (-32014, _) => DaemonApiError::NoMessage,
        (-32019, _) => DaemonApiError::UnknownMessage,
        // Its reply channel broke: it is about to end.
        (-32016 | -32017, _) => DaemonApiError::Down(format!("{message} ({code})")),
        _ => DaemonApiError::Refused(match data {
            Some(data) => format!("{message} ({code}): {data}"),
            None => format!("{message} ({code})"),
        }),
    }
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

fn bad_answer(what: impl std::fmt::Display) -> DaemonApiError {
    DaemonApiError::Down(format!("it answers what is not understood: {what}"))
}

fn parse_key(text: &str) -> Result<PublicKey, DaemonApiError> {
    text.parse().map_err(|error| bad_answer(format!("{text}: {error}")))
}

const NO_PARAMETERS: [u8; 0] = [];

struct Params(Box<RawValue>);

impl ToRpcParams for Params {
    fn to_rpc_params(self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        Ok(Some(self.0))
    }
}

#[derive(Serialize)]
struct KeyOut {
    pk: String,
}

#[derive(Serialize)]
struct MessageOut {
    dst: KeyOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    payload: String,
}

#[derive(Deserialize)]
struct PushedIn {
    id: DaemonMessageId,
    #[serde(flatten)]
    reply: Option<RestIn>,
}

#[derive(Deserialize)]
struct MessageIn {
    id: DaemonMessageId,
    #[serde(flatten)]
    rest: RestIn,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RestIn {
    src_pk: String,
    topic: Option<String>,
    payload: String,
}

impl RestIn {
    fn read(self, id: DaemonMessageId) -> Result<DaemonMessage, DaemonApiError> {
        let decode = |text: &str| STANDARD.decode(text).map_err(|error| bad_answer(error.to_string()));
        let topic = self.topic.as_deref().map(decode).transpose()?.filter(|topic| !topic.is_empty());
        Ok(DaemonMessage {
            id,
            from: parse_key(&self.src_pk)?,
            topic,
            payload: decode(&self.payload)?.into(),
        })
    }
}

#[derive(Deserialize)]
struct MessageInfoIn {
    state: StateIn,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum StateIn {
    Pending,
    Sending { sent: u64, acked: u64 },
    Received,
    Read,
    Aborted,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InfoIn {
    node_subnet: String,
    node_ip: Option<Ipv6Addr>,
    node_pubkey: String,
    node_start_time: Option<u64>,
    /// The known versions do not report it.
    #[serde(default, alias = "nodeVersion")]
    version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PeerIn {
    endpoint: serde_json::Value,
    connection_state: String,
}

/// Protocol and address of a neighbour; how the second is called depends on the daemon's version.
fn describe(endpoint: &serde_json::Value) -> String {
    let Some(fields) = endpoint.as_object() else { return endpoint.to_string() };
    let texts = fields.values().filter_map(serde_json::Value::as_str);
    texts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_with_two_meanings_are_distinguished_by_their_message() {
        assert_eq!(map_code(-32008, "Response is too big", None), DaemonApiError::AnswerTooLong);
        assert_eq!(map_code(-32008, "Server error", None), DaemonApiError::NoRoute);
        assert_eq!(map_code(-32019, "Server error", None), DaemonApiError::UnknownMessage);
        for (code, message) in
            [(-32007, "Request is too big"), (-32007, "Server error"), (-32015, "Server error")]
        {
            assert_eq!(map_code(code, message, None), DaemonApiError::Refused(format!("{message} ({code})")));
        }
        let refused = map_code(-32602, "Invalid params", Some("\"Invalid padding\""));
        assert_eq!(
            refused,
            DaemonApiError::Refused("Invalid params (-32602): \"Invalid padding\"".to_owned())
        );
        assert!(matches!(map_code(-32016, "Server error", None), DaemonApiError::Down(_)));
    }

    #[test]
    fn a_push_gives_a_reply_or_an_id() {
        let silence: PushedIn = serde_json::from_str(r#"{"id":"8df22733e4cc6c86"}"#).expect("as measured");
        assert!(silence.reply.is_none());
        let reply = format!(
            r#"{{"id":"42ca7c03c9167b7c","srcIp":"4b0::1","srcPk":"{0}","dstIp":"4e3::1","dstPk":"{0}","payload":"dGhlLXJlcGx5"}}"#,
            "ab".repeat(32)
        );
        let PushedIn { id, reply } = serde_json::from_str(&reply).expect("as measured");
        let reply = reply.expect("there is one").read(id).expect("it can be read");
        assert_eq!((&reply.payload[..], reply.topic), (&b"the-reply"[..], None));
    }

    #[test]
    fn states_are_read() {
        let state = |text: &str| serde_json::from_str::<StateIn>(text).expect("as measured");
        assert!(matches!(state(r#""pending""#), StateIn::Pending));
        assert!(matches!(
            state(r#"{"sending":{"pending":0,"sent":1,"acked":3}}"#),
            StateIn::Sending { sent: 1, acked: 3 }
        ));
        assert!(matches!(state(r#""aborted""#), StateIn::Aborted));
    }
}
