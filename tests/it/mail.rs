//! Mail of unknown coordinators, delivered to `mycora up` over gRPC; and mail without a recipient.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use envelope::Sealer;
use identity::SigningKey;
use model::id::Uid;
use model::supervision::method;
use model::{
    ActorId, ContextUid, DirectMessage, DirectMessageOrigin, MessageFormat, MessageId, MessageType, Timestamp,
};
use mycelium::JsonRpcCall;
use mycelium::json_rpc::{JsonRpcMessage, JsonRpcPayload, parse, request};
use proto::convert::envelope as envelope_convert;
use proto::v1;
use proto::v1::gateway_service_client::GatewayServiceClient;
use rpc::{Channel, ErrorView, TlsFiles};
use serde_json::Value;
use testkit::wait_until_blocking;
use tonic::{Code, Status};

use crate::suite::{PATIENCE, Up, stderr, stdout};

const MINUTE: Duration = Duration::from_secs(60);

/// A made-up coordinator.
struct Stranger {
    sealer: Sealer,
    gateway: GatewayServiceClient<Channel>,
    /// The root of the coordinator that it writes to.
    there: String,
    messages_sent: u32,
}

impl Stranger {
    async fn before(up: &Up, data: &Path) -> Self {
        let tls = TlsFiles::anonymous(data.join("pki/ca.pem"));
        let channel = Channel::remote(&format!("https://127.0.0.1:{}", up.port()), &tls, None);
        let mut gateway = GatewayServiceClient::new(channel.expect("an address"));
        let response = gateway.deliver(v1::DeliverRequest { envelope: None }).await.expect("open to anybody");
        let there = response.into_inner().coordinator;
        Self { sealer: Sealer::of_root(SigningKey::generate()), gateway, there, messages_sent: 0 }
    }

    /// Delivers unsigned mail. Returns the reason of the refusal.
    async fn writes(&mut self, from: &str, to: &str) -> Result<Result<(), String>, Status> {
        self.messages_sent += 1;
        let now = Timestamp::now();
        let message = DirectMessage {
            origin: DirectMessageOrigin {
                coordinator: self.sealer.root().to_string(),
                context_uid: ContextUid(Uid::from_bits(1)),
                caller_id: ActorId(1),
                message_id: MessageId(self.messages_sent),
            },
            from: from.to_owned(),
            to: to.to_owned(),
            target_context: None,
            message_type: MessageType::Mail,
            format: MessageFormat::Text,
            topic: "urgent".to_owned(),
            text: format!("number {}", self.messages_sent),
            created_at: now,
            expires_at: now + MINUTE,
            signature: None,
        };
        let call = JsonRpcCall::new(method::MESSAGE_DELIVER, &message).expect("JSON");
        let sealed = self.sealer.seal(&self.there, &request(7, &call), now, MINUTE).expect("JSON");
        let sealed = v1::DeliverRequest { envelope: Some(envelope_convert::to_wire(sealed)) };
        let answer = self.gateway.deliver(sealed).await?.into_inner();
        let envelope = envelope_convert::from_wire(answer.envelope.expect("signed")).expect("an envelope");
        let own = self.sealer.root().to_string();
        let opened = envelope::open_envelope(&envelope, &[own], Timestamp::now()).expect("for us");
        let Ok(JsonRpcPayload::Single(Ok(JsonRpcMessage::Response(response)))) = parse(&opened.body) else {
            panic!("an answer")
        };
        Ok(response.answer.map(drop).map_err(|refused| refused.reason().to_owned()))
    }
}

fn document(up: &Up, arguments: &[&str]) -> Value {
    let answer = up.mycora(&[&["--output", "json"], arguments].concat());
    serde_json::from_str(&stdout(&answer, 0)).expect("one document")
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_do_not_write_in_the_name_of_an_actor_here() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let up = Up::start(&data, &[]);
    let actor = document(&up, &["actor", "show"])["actor"]["pubkey"].as_str().expect("a key").to_owned();
    let somebody = SigningKey::generate().verifying_key().to_string();

    // Mail of strangers is refused unless the operator allows it.
    let mut stranger = Stranger::before(&up, &data).await;
    for from in [&actor, &somebody] {
        assert_eq!(stranger.writes(from, &actor).await.expect("heard"), Err("STRANGER".to_owned()));
    }
    up.stop();

    // Where they are, they have to sign.
    let up = Up::start(&data, &["--mail-from-strangers", "signed"]);
    let mut stranger = Stranger::before(&up, &data).await;
    for from in [&actor, &somebody] {
        assert_eq!(stranger.writes(from, &actor).await.expect("heard"), Err("UNVERIFIED".to_owned()));
    }
    up.stop();

    // Where signatures are optional, unsigned mail in the name of an actor of this coordinator is still refused.
    let up = Up::start(&data, &["--mail-from-strangers", "any"]);
    let mut stranger = Stranger::before(&up, &data).await;
    assert_eq!(stranger.writes(&actor, &actor).await.expect("heard"), Err("FORGED_SENDER".to_owned()));
    assert_eq!(stranger.writes(&somebody, &actor).await.expect("heard"), Ok(()));
    assert_eq!(
        stdout(&up.mycora(&["message", "send", "--wait", "--to", "1", "from here"]), 0).lines().count(),
        1
    );
    let listed = document(&up, &["message", "list"]);
    let received = document(&up, &["message", "receive"]);
    let (theirs, ours) = (&received[0], &received[1]);
    let root = stranger.sealer.root().to_string();
    assert_eq!(theirs["origin"]["coordinator"], root.as_str(), "{received}");
    assert_eq!((&theirs["origin"]["own"], &theirs["verified"]), (&Value::Null, &Value::Null), "{received}");
    assert_eq!(ours["origin"]["own"], true, "{received}");
    let messages = listed["messages"].as_array().expect("a list");
    assert!(messages.iter().any(|message| message["origin"]["coordinator"] == root.as_str()), "{listed}");
    let shown = stdout(&up.mycora(&["message", "receive"]), 0);
    assert!(shown.contains(&format!("{root}, not verified")) && shown.contains("origin  here"), "{shown}");
    let shown = stdout(&up.mycora(&["message", "list"]), 0);
    assert!(
        shown.contains("ORIGIN") && shown.contains(&format!("{}…, not verified", &root[..12])),
        "{shown}"
    );

    // And no sender fills an inbox.
    let mut taken = 1;
    let refused = loop {
        match stranger.writes(&somebody, &actor).await {
            Ok(answer) => assert_eq!(answer, Ok(())),
            Err(refused) => break refused,
        }
        taken += 1;
        assert!(taken < 100, "there is no end to it");
    };
    let view = ErrorView::from(&refused);
    assert_eq!((view.code, view.reason.as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"));
    assert!(view.retry_after.is_some(), "{refused}");
    up.stop();
}

#[test]
fn what_names_no_recipient_reaches_every_admin_of_the_context() {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(&dir.path().join("data"), &[]);
    let key = dir.path().join("second.ed25519");
    let key = key.to_str().expect("a plain path");
    stdout(&up.mycora(&["actor", "register", "--new-key", key, "--as", "admin"]), 0);
    stdout(&up.mycora(&["context", "update", "1", "--add-admin", "2", "--set", "raw-publish=true"]), 0);
    let sent = document(&up, &["message", "send", "--wait", "from a person"])["message"].take();
    assert_eq!((&sent["to"], &sent["status"]), (&"admins".into(), &"MESSAGE_STATUS_ACKNOWLEDGED".into()));
    let shown = stdout(&up.mycora(&["message", "get", sent["key"].as_str().expect("a key")]), 0);
    assert!(shown.contains("the context's admins"), "{shown}");

    // As the source documents have it: no `to` at all.
    let fields = ["message_type", "mail", "message", "from a program", "message_format_type", "text"];
    up.redis(1, &[&["HSET", "message:1:7"][..], &fields].concat());
    up.redis(1, &["LPUSH", "msg_out", "message:1:7"]);
    let arrived = || {
        let messages = document(&up, &["message", "list"])["messages"].take();
        let copies: BTreeSet<(String, String)> = messages
            .as_array()
            .expect("a list")
            .iter()
            .filter(|message| message["callerId"].is_null())
            .map(|message| (message["to"].to_string(), message["messageType"].to_string()))
            .collect();
        (copies.len() == 4).then_some(copies)
    };
    let copies = wait_until_blocking(arrived, PATIENCE, "each admin has both");
    let both = |to: &str| {
        ["MESSAGE_TYPE_CHAT", "MESSAGE_TYPE_MAIL"].map(|kind| (format!("\"{to}\""), format!("\"{kind}\"")))
    };
    assert_eq!(copies, both("1").into_iter().chain(both("2")).collect());
    let texts = |received: &Value| -> Vec<String> {
        let messages = received.as_array().expect("a list");
        messages.iter().map(|message| message["text"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let received = document(&up, &["message", "receive", "--acknowledge"]);
    assert_eq!(texts(&received), ["from a person", "from a program"]);
    let left = document(&up, &["message", "list", "--status", "acknowledged"])["messages"].take();
    let left = left.as_array().expect("a list").iter().filter(|message| message["to"] == "2").count();
    assert_eq!(left, 2, "the other admin's copies are not read");

    // What cannot be meant is refused by name.
    for (arguments, expected) in [
        (&["message", "send", "x", "--signing-key", key][..], "--to"),
        (&["message", "send", "x", "--target-context", "2"], "--to"),
    ] {
        let refused = stderr(&up.mycora(arguments), 2);
        assert!(refused.contains(expected), "{refused}");
    }
    up.stop();
}
