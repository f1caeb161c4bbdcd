//! The API, as the real daemon's: methods, parameters, answers and error codes.

use std::io;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jsonrpsee_server::{Extensions, RegisterMethodError, RpcModule, Server, ServerHandle};
use jsonrpsee_types::{ErrorObjectOwned, Params};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::identity::ip_of;
use crate::node::{Node, Received, State};
use crate::packet::MessageId;

const TOPIC_BYTES_MAX: usize = 255;

type Answer = Result<Value, ErrorObjectOwned>;

/// Shared state of all methods.
#[derive(Debug)]
struct Api {
    node: Node,
    /// Held by every call, and by a pop for as long as it waits.
    lock: Mutex<()>,
}

/// Serves the API on a listener that does not block, as long as the handle lives. Must be called within
/// a runtime.
///
/// # Errors
/// When the listener cannot be used.
///
/// # Panics
/// Never: each method has a name of its own.
pub fn serve(node: Node, listener: TcpListener) -> io::Result<ServerHandle> {
    let api = Api { node, lock: Mutex::default() };
    let module = methods(api).expect("each method has a name of its own");
    Ok(Server::builder().build_from_tcp(listener)?.start(module))
}

fn methods(api: Api) -> Result<RpcModule<Api>, RegisterMethodError> {
    let mut module = RpcModule::new(api);
    macro_rules! method {
        ($($name:literal => $function:ident),+ $(,)?) => {
            $(module.register_async_method($name, |params, api, _: Extensions| async move {
                $function(&api, &Arguments::read(&params)?).await
            })?;)+
        };
    }
    method! {
        "pushMessage" => push,
        "popMessage" => pop,
        "pushMessageReply" => reply,
        "getMessageInfo" => info_of_message,
        "getInfo" => info,
        "getPeers" => peers,
        "getPublicKeyFromIp" => key_of,
        "getDefaultTopicAction" => default_action,
        "setDefaultTopicAction" => set_default_action,
        "getTopics" => topics,
        "addTopic" => add_topic,
        "removeTopic" => remove_topic,
        "getTopicSources" => topic_sources,
        "addTopicSource" => add_topic_source,
        "removeTopicSource" => remove_topic_source,
    }
    Ok(module)
}

/// Parameters by place or by name.
struct Arguments(Value);

impl Arguments {
    fn read(params: &Params<'_>) -> Result<Self, ErrorObjectOwned> {
        params.parse::<Option<Value>>().map(|value| Self(value.unwrap_or(Value::Null)))
    }

    fn optional<T: DeserializeOwned>(&self, place: usize, name: &str) -> Result<Option<T>, ErrorObjectOwned> {
        let camel: String = name.split('_').enumerate().map(|(n, part)| capital(part, n > 0)).collect();
        let value = match &self.0 {
            Value::Array(list) => list.get(place),
            Value::Object(fields) => fields.get(name).or_else(|| fields.get(&camel)),
            _ => None,
        };
        match value {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value).map(Some).map_err(|error| invalid(error.to_string())),
        }
    }

    fn required<T: DeserializeOwned>(&self, place: usize, name: &str) -> Result<T, ErrorObjectOwned> {
        self.optional(place, name)?.ok_or_else(|| invalid(format!("missing `{name}`")))
    }
}

fn capital(part: &str, big: bool) -> String {
    let mut rest = part.chars();
    let first = rest.next().filter(|_| big).map(|first| first.to_ascii_uppercase());
    first.map_or_else(|| part.to_owned(), |first| first.to_string() + rest.as_str())
}

fn invalid(data: String) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(-32602, "Invalid params", Some(data))
}

fn server_error(code: i32) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(code, "Server error", None::<()>)
}

#[derive(Deserialize)]
struct MessageIn {
    dst: DestinationIn,
    topic: Option<String>,
    payload: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum DestinationIn {
    Pk(String),
    Ip(IpAddr),
}

impl MessageIn {
    fn to(&self) -> Result<IpAddr, ErrorObjectOwned> {
        match &self.dst {
            DestinationIn::Ip(ip) => Ok(*ip),
            DestinationIn::Pk(text) => {
                let mut key = [0; 32];
                hex::decode_to_slice(text, &mut key).map_err(|error| invalid(error.to_string()))?;
                Ok(ip_of(&key).into())
            }
        }
    }
}

fn decode(text: &str) -> Result<Bytes, ErrorObjectOwned> {
    STANDARD.decode(text).map(Bytes::from).map_err(|error| invalid(error.to_string()))
}

fn received_json(received: &Received, node: &Node) -> Value {
    let (own, message) = (node.identity(), &received.message);
    let mut answer = json!({
        "id": message.id.text(),
        "srcIp": ip_of(&received.from),
        "srcPk": hex::encode(received.from),
        "dstIp": own.ip,
        "dstPk": own.key_text(),
        "payload": STANDARD.encode(&message.payload),
    });
    if !message.topic.is_empty() {
        answer["topic"] = STANDARD.encode(&message.topic).into();
    }
    answer
}

async fn push(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let message: MessageIn = arguments.required(0, "message")?;
    let wait: Option<u64> = arguments.optional(1, "reply_timeout")?;
    let topic = message.topic.as_deref().map(decode).transpose()?.unwrap_or_default();
    let (to, payload) = (message.to()?, decode(&message.payload)?);
    let (id, reply) = {
        let _held = api.lock.lock().await;
        if topic.len() > TOPIC_BYTES_MAX {
            return Err(server_error(-32015));
        }
        api.node.push(to, topic, payload, wait.is_some())
    };
    let Some(wait) = wait else { return Ok(json!({ "id": id.text() })) };
    let waiting = Waiting { api, id };
    let reply = tokio::time::timeout(Duration::from_secs(wait), reply).await;
    drop(waiting);
    match reply {
        Ok(Ok(reply)) => Ok(received_json(&reply, &api.node)),
        Ok(Err(_)) => Err(server_error(-32016)),
        Err(_) => Ok(json!({ "id": id.text() })),
    }
}

/// Guard of a call that waits for a reply: a caller that hangs up does not get the reply either.
struct Waiting<'a> {
    api: &'a Api,
    id: MessageId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.api.node.stop_waiting(self.id);
    }
}

async fn pop(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let peek = arguments.optional(0, "peek")?.unwrap_or(false);
    let timeout = Duration::from_secs(arguments.optional(1, "timeout")?.unwrap_or(0));
    let topic: Option<String> = arguments.optional(2, "topic")?;
    let topic = topic.map(|text| STANDARD.decode(text)).transpose().map_err(|_| server_error(-32013))?;
    let mut held = Some(api.lock.lock().await);
    if !api.node.traps().blocking_pop {
        held = None;
    }
    let found = if timeout.is_zero() {
        api.node.oldest(peek, topic.as_deref())
    } else {
        api.node.oldest_within(peek, topic.as_deref(), timeout).await
    };
    drop(held);
    Ok(found.map_or(Value::Null, |found| received_json(&found, &api.node)))
}

async fn reply(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let id: String = arguments.required(0, "id")?;
    let message: MessageIn = arguments.required(1, "message")?;
    let (to, payload) = (message.to()?, decode(&message.payload)?);
    let id = MessageId::parse(&id).ok_or_else(|| server_error(-32018))?;
    let _held = api.lock.lock().await;
    api.node.reply(id, to, payload);
    Ok(true.into())
}

async fn info_of_message(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let id: String = arguments.required(0, "id")?;
    let id = MessageId::parse(&id).ok_or_else(|| server_error(-32020))?;
    let _held = api.lock.lock().await;
    let sent = api.node.sent(id).ok_or_else(|| server_error(-32019))?;
    let state = match sent.state {
        State::Sending { pending, sent, acked } => {
            json!({ "sending": { "pending": pending, "sent": sent, "acked": acked } })
        }
        State::Received => "received".into(),
        State::Read => "read".into(),
        State::Aborted => "aborted".into(),
    };
    Ok(json!({
        "dst": sent.to,
        "state": state,
        "created": sent.created,
        "deadline": sent.created + 300,
        "msgLen": sent.message.payload.len(),
    }))
}

async fn info(api: &Arc<Api>, _: &Arguments) -> Answer {
    let _held = api.lock.lock().await;
    let own = api.node.identity();
    let segments = own.ip.segments();
    Ok(json!({
        "nodeSubnet": format!("{:x}:{:x}:{:x}:{:x}::/64", segments[0], segments[1], segments[2], segments[3]),
        "nodeIp": own.ip,
        "nodePubkey": own.key_text(),
        "nodeStartTime": api.node.start_secs(),
    }))
}

async fn peers(api: &Arc<Api>, _: &Arguments) -> Answer {
    let _held = api.lock.lock().await;
    let neighbors = api.node.neighbors();
    let listed = neighbors.iter().map(|neighbor| {
        json!({
            "endpoint": { "proto": "tcp", "socketAddr": neighbor.address },
            "type": "static",
            "connectionState": if neighbor.alive { "alive" } else { "dead" },
            "txBytes": 0,
            "rxBytes": 0,
        })
    });
    Ok(listed.collect())
}

async fn key_of(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let text: String = arguments.required(0, "ip")?;
    let ip: IpAddr = text.parse().map_err(|_| server_error(-32007))?;
    let _held = api.lock.lock().await;
    let key = api.node.key_of(ip).ok_or_else(|| server_error(-32008))?;
    Ok(hex::encode(key).into())
}

async fn default_action(api: &Arc<Api>, _: &Arguments) -> Answer {
    let _held = api.lock.lock().await;
    Ok(api.node.accepts_by_default().into())
}

async fn set_default_action(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let accept = arguments.required(0, "accept")?;
    let _held = api.lock.lock().await;
    api.node.accept_by_default(accept);
    Ok(true.into())
}

fn topic(arguments: &Arguments) -> Result<Vec<u8>, ErrorObjectOwned> {
    let text: String = arguments.required(0, "topic")?;
    STANDARD.decode(text).map_err(|_| server_error(-32021))
}

async fn topics(api: &Arc<Api>, _: &Arguments) -> Answer {
    let _held = api.lock.lock().await;
    Ok(api.node.with_topics(|topics| topics.keys().map(|topic| STANDARD.encode(topic)).collect()))
}

async fn add_topic(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let topic = topic(arguments)?;
    let _held = api.lock.lock().await;
    api.node.with_topics(|topics| {
        topics.entry(topic).or_default();
    });
    Ok(true.into())
}

async fn remove_topic(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let topic = topic(arguments)?;
    let _held = api.lock.lock().await;
    api.node.with_topics(|topics| topics.remove(&topic));
    Ok(true.into())
}

async fn topic_sources(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let topic = topic(arguments)?;
    let _held = api.lock.lock().await;
    let sources = api.node.with_topics(|topics| topics.get(&topic).cloned());
    let sources = sources.ok_or_else(|| server_error(-32030))?;
    Ok(sources.iter().map(|source| format!("{source}/64")).collect())
}

/// A subnet, or an address within it.
fn source(arguments: &Arguments) -> Result<Ipv6Addr, ErrorObjectOwned> {
    let text: String = arguments.required(1, "subnet")?;
    let address = text.split('/').next().unwrap_or_default();
    address.parse().map_err(|_| server_error(-32023))
}

async fn add_topic_source(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let (topic, source) = (topic(arguments)?, source(arguments)?);
    let _held = api.lock.lock().await;
    let added = api.node.with_topics(|topics| topics.get_mut(&topic).map(|sources| sources.insert(source)));
    added.map(|_| true.into()).ok_or_else(|| server_error(-32030))
}

async fn remove_topic_source(api: &Arc<Api>, arguments: &Arguments) -> Answer {
    let (topic, source) = (topic(arguments)?, source(arguments)?);
    let _held = api.lock.lock().await;
    let removed =
        api.node.with_topics(|topics| topics.get_mut(&topic).map(|sources| sources.remove(&source)));
    removed.map(|_| true.into()).ok_or_else(|| server_error(-32030))
}
