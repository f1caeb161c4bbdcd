//! The exchanges that were written down, word for word.

use jsonrpsee_core::client::ClientT;
use jsonrpsee_ws_client::WsClientBuilder;
use serde_json::{Value, json};
use stand_in::{Overlay, StandIn, Traps};

use crate::client::{Naive, b64};

struct Two {
    a: Naive,
    b: Naive,
    a_key: String,
    b_key: String,
    nodes: (StandIn, StandIn),
}

async fn two() -> Two {
    let overlay = Overlay::default();
    let nodes = (StandIn::start(&overlay, Traps::ARMED), StandIn::start(&overlay, Traps::ARMED));
    let (a, b) = (Naive::new(&nodes.0.url("http")), Naive::new(&nodes.1.url("http")));
    let (a_key, b_key) = (a.key().await, b.key().await);
    Two { a, b, a_key, b_key, nodes }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_pushed_peeked_at_and_popped() {
    let two = two().await;
    let id = two.a.push(&two.b_key, "job.run", r#"{"hello":1}"#).await;
    assert_eq!(id.len(), 16);
    two.a.until_state(&id, "received").await;
    let peeked = two.b.call("popMessage", json!([true, 0, null])).await.unwrap();
    let popped = two.b.call("popMessage", json!({ "peek": false, "timeout": 0 })).await.unwrap();
    assert_eq!(peeked, popped);
    let (own, other) = (two.nodes.1.identity(), two.nodes.0.identity());
    let expected = json!({
        "id": id, "srcIp": other.ip, "srcPk": two.a_key, "dstIp": own.ip, "dstPk": two.b_key,
        "topic": b64("job.run"), "payload": b64(r#"{"hello":1}"#),
    });
    assert_eq!(popped, expected);
    assert_eq!(two.b.call("popMessage", json!([false, 0, null])).await.unwrap(), Value::Null);
    let info = two.a.call("getMessageInfo", json!([id])).await.unwrap();
    assert_eq!((&info["dst"], &info["msgLen"]), (&json!(own.ip), &json!(11)));
    assert_eq!(info["deadline"].as_u64().unwrap() - info["created"].as_u64().unwrap(), 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_matched_exactly_and_its_absence_is_one() {
    let two = two().await;
    for (topic, payload) in [("a", "1"), ("", "2"), ("ab", "3")] {
        let id = two.a.push(&two.b_key, topic, payload).await;
        two.a.until_state(&id, "received").await;
    }
    for (topic, payload) in [("ab", "3"), ("", "2"), ("a", "1")] {
        let popped = two.b.popped(Some(topic)).await;
        assert_eq!(popped["payload"], b64(payload));
        assert_eq!(popped.get("topic").is_none(), topic.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_over_a_websocket() {
    let two = two().await;
    let socket = WsClientBuilder::new().build(two.nodes.0.url("ws")).await.unwrap();
    let message = json!({ "dst": { "pk": two.b_key }, "topic": b64("job"), "payload": b64("req") });
    let mut params = jsonrpsee_core::params::ObjectParams::new();
    params.insert("message", message).unwrap();
    params.insert("replyTimeout", 20).unwrap();
    let asking = socket.request::<Value, _>("pushMessage", params);
    let answering = async {
        let request = two.b.popped(Some("job")).await;
        two.b.reply(&request["id"], &two.a_key, "the-reply").await;
        request
    };
    let (answer, request) = tokio::join!(asking, answering);
    let answer = answer.unwrap();
    assert_eq!((&answer["id"], &answer["payload"]), (&request["id"], &json!(b64("the-reply"))));
    assert!(answer["srcPk"] == *two.b_key && answer.get("topic").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_their_numbers() {
    let Two { a, b_key, nodes, .. } = two().await;
    let message =
        |dst: Value, topic: &str, payload: &str| json!([{ "dst": dst, "topic": topic, "payload": payload }]);
    let to = json!({ "pk": b_key });
    let long = b64("x".repeat(256));
    for (method, params, code) in [
        ("pushMessage", message(to.clone(), "aQ", "aQ=="), -32602),
        ("pushMessage", message(json!({ "pk": "12" }), "", ""), -32602),
        ("pushMessage", message(to.clone(), &long, "aQ=="), -32015),
        ("pushMessage", json!([]), -32602),
        ("popMessage", json!([false, 0, "?"]), -32013),
        ("pushMessageReply", json!(["zz", { "dst": to, "payload": "" }]), -32018),
        ("getMessageInfo", json!(["0011223344556677"]), -32019),
        ("getMessageInfo", json!(["zz"]), -32020),
        ("getPublicKeyFromIp", json!(["no"]), -32007),
        ("getPublicKeyFromIp", json!(["400::1"]), -32008),
        ("addTopic", json!(["?"]), -32021),
        ("addTopicSource", json!([b64("t"), "400::/64"]), -32030),
        ("noSuchMethod", json!([]), -32601),
    ] {
        assert_eq!(a.refused(method, params.clone()).await, code, "{method} {params}");
    }
    let ip = nodes.1.identity().ip;
    assert_eq!(a.call("getPublicKeyFromIp", json!([ip])).await.unwrap(), b_key);
    assert_eq!(a.call("getDefaultTopicAction", json!([])).await.unwrap(), true);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_can_be_closed_and_opened_for_some() {
    let two = two().await;
    let topic = json!([b64("job")]);
    two.b.call("setDefaultTopicAction", json!([false])).await.unwrap();
    let denied = two.a.push(&two.b_key, "other", "1").await;
    two.b.call("addTopic", topic.clone()).await.unwrap();
    let subnet = two.a.call("getInfo", json!([])).await.unwrap()["nodeSubnet"].clone();
    two.b.call("addTopicSource", json!([b64("job"), subnet])).await.unwrap();
    assert_eq!(two.b.call("getTopicSources", topic).await.unwrap(), json!([subnet]));
    let allowed = two.a.push(&two.b_key, "job", "2").await;
    two.a.until_state(&allowed, "received").await;
    assert!(two.a.state(&denied).await["sending"].is_object());
    // It goes through when it is allowed in time.
    two.b.call("setDefaultTopicAction", json!([true])).await.unwrap();
    two.a.until_state(&denied, "received").await;
}
