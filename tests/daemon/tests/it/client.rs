//! A client that knows nothing of its server.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonrpsee_core::client::{ClientT, Error};
use jsonrpsee_core::traits::ToRpcParams;
use jsonrpsee_http_client::{HttpClient, HttpClientBuilder};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use testkit::{PATIENCE, wait_until};

pub(crate) struct Naive(HttpClient);

struct Raw(Value);

impl ToRpcParams for Raw {
    fn to_rpc_params(self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        serde_json::value::to_raw_value(&self.0).map(Some)
    }
}

pub(crate) fn b64(text: impl AsRef<[u8]>) -> String {
    STANDARD.encode(text)
}

impl Naive {
    pub(crate) fn new(url: &str) -> Self {
        Self(HttpClientBuilder::new().request_timeout(Duration::from_secs(120)).build(url).unwrap())
    }

    pub(crate) async fn call(&self, method: &str, params: Value) -> Result<Value, Error> {
        self.0.request(method, Raw(params)).await
    }

    /// The code that a call is refused with.
    pub(crate) async fn refused(&self, method: &str, params: Value) -> i32 {
        match self.call(method, params).await {
            Err(Error::Call(error)) => error.code(),
            other => panic!("{method} gave {other:?}"),
        }
    }

    pub(crate) async fn key(&self) -> String {
        let info = self.call("getInfo", json!([])).await.unwrap();
        info["nodePubkey"].as_str().unwrap().to_owned()
    }

    /// Pushes without waiting for anything; gives the id.
    pub(crate) async fn push(&self, to: &str, topic: &str, payload: impl AsRef<[u8]>) -> String {
        let message = json!({ "dst": { "pk": to }, "topic": b64(topic), "payload": b64(payload) });
        let pushed = self.call("pushMessage", json!([message])).await.unwrap();
        pushed["id"].as_str().unwrap().to_owned()
    }

    /// Pushes and waits for a reply.
    pub(crate) async fn ask(&self, to: &str, topic: &str, payload: &str, secs: u64) -> Value {
        let message = json!({ "dst": { "pk": to }, "topic": b64(topic), "payload": b64(payload) });
        self.call("pushMessage", json!([message, secs])).await.unwrap()
    }

    pub(crate) async fn reply(&self, id: &Value, to: &str, payload: &str) {
        let message = json!({ "dst": { "pk": to }, "payload": b64(payload) });
        let said = self.call("pushMessageReply", json!([id, message])).await.unwrap();
        assert_eq!(said, true);
    }

    pub(crate) async fn pop(&self, topic: Option<&str>) -> Option<Value> {
        let topic = topic.map(b64);
        let popped = self.call("popMessage", json!([false, 0, topic])).await.unwrap();
        (!popped.is_null()).then_some(popped)
    }

    /// Pops until something comes.
    pub(crate) async fn popped(&self, topic: Option<&str>) -> Value {
        wait_until(|| self.pop(topic), PATIENCE, "a message comes").await
    }

    pub(crate) async fn state(&self, id: &str) -> Value {
        self.call("getMessageInfo", json!([id])).await.unwrap()["state"].clone()
    }

    /// Waits until a message has arrived, whether or not it was looked at since.
    pub(crate) async fn until_arrived(&self, id: &str) {
        let arrived =
            async || (["received", "read"].map(Value::from).contains(&self.state(id).await)).then_some(());
        wait_until(arrived, PATIENCE, "a message has arrived").await;
    }

    pub(crate) async fn until_state(&self, id: &str, state: &str) {
        let reached = async || (self.state(id).await == state).then_some(());
        wait_until(reached, PATIENCE, format!("a message is {state}")).await;
    }
}
