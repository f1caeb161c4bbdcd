//! The daemon's API without a bus, for tests that stand at the other end themselves.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jsonrpsee_core::client::{ClientT, Error};
use jsonrpsee_core::traits::ToRpcParams;
use jsonrpsee_http_client::{HttpClient, HttpClientBuilder};
use mycelium::PublicKey;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use testkit::{PATIENCE, wait_until};

pub(crate) struct Raw(HttpClient);

struct Params(Value);

impl ToRpcParams for Params {
    fn to_rpc_params(self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        serde_json::value::to_raw_value(&self.0).map(Some)
    }
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) from: PublicKey,
    pub(crate) payload: Bytes,
}

impl Raw {
    pub(crate) fn new(url: &str) -> Self {
        Self(HttpClientBuilder::new().request_timeout(Duration::from_secs(60)).build(url).unwrap())
    }

    pub(crate) async fn call(&self, method: &str, params: Value) -> Result<Value, Error> {
        self.0.request(method, Params(params)).await
    }

    pub(crate) async fn key(&self) -> PublicKey {
        let info = self.call("getInfo", json!([])).await.unwrap();
        info["nodePubkey"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) async fn push(&self, to: PublicKey, topic: &str, payload: &[u8]) -> String {
        let topic = STANDARD.encode(topic);
        let message =
            json!({ "dst": { "pk": to.to_string() }, "topic": topic, "payload": STANDARD.encode(payload) });
        let pushed = self.call("pushMessage", json!([message])).await.unwrap();
        pushed["id"].as_str().unwrap().to_owned()
    }

    /// Pushes, and waits for the reply.
    pub(crate) async fn ask(&self, to: PublicKey, topic: &str, payload: &[u8]) -> Bytes {
        let topic = STANDARD.encode(topic);
        let message =
            json!({ "dst": { "pk": to.to_string() }, "topic": topic, "payload": STANDARD.encode(payload) });
        let replied = self.call("pushMessage", json!([message, 30])).await.unwrap();
        STANDARD.decode(replied["payload"].as_str().expect("a reply")).unwrap().into()
    }

    pub(crate) async fn reply(&self, id: &str, to: PublicKey, payload: &[u8]) {
        let message = json!({ "dst": { "pk": to.to_string() }, "payload": STANDARD.encode(payload) });
        self.call("pushMessageReply", json!([id, message])).await.unwrap();
    }

    pub(crate) async fn oldest(&self, peek: bool, topic: Option<&str>) -> Option<Message> {
        let topic = topic.map(|topic| STANDARD.encode(topic));
        let found = self.call("popMessage", json!([peek, 0, topic])).await.unwrap();
        let text = |name: &str| found[name].as_str().map(str::to_owned);
        Some(Message {
            id: text("id")?,
            from: text("srcPk")?.parse().unwrap(),
            payload: STANDARD.decode(text("payload")?).unwrap().into(),
        })
    }

    pub(crate) async fn popped(&self, topic: &str) -> Message {
        wait_until(|| self.oldest(false, Some(topic)), PATIENCE, "a message comes").await
    }
}

/// The acknowledgement of a frame, that says that it was taken.
pub(crate) fn acknowledgement(frame: &[u8]) -> Vec<u8> {
    let mut head = frame[..36].to_vec();
    head[3] = 2;
    head[20..28].fill(0);
    head[32..36].copy_from_slice(&1u32.to_be_bytes());
    head.push(0);
    head
}

/// Returns the body of a frame.
pub(crate) fn body(frame: &[u8]) -> &[u8] {
    let length = u32::from_be_bytes(frame[32..36].try_into().unwrap()) as usize;
    &frame[36..36 + length]
}
