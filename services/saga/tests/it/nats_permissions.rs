//! A server with the permissions that the service prints: a saga runs over it, and no user reaches messages of another.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use broker::{JetStream, JetStreamLogin, JetStreamOptions};
use model::TenantId;
use saga::nats_permissions::{SERVICE_USER, nats_permissions};
use testkit::{NatsServer, PATIENCE};
use workflow::Json;
use workflow::input::CommandOutcome;

use crate::world::World;

const SAGA: &str = r#"
kind: Saga
name: order
version: 1
sources: [{ aggregate: Order }]
start: { on: Placed, goto: reserve }
steps: { reserve: { effect: reserve, on_success: { end: completed } } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://127.0.0.1:1", allow_hosts: ["127.0.0.1:1"], private: true }
effects: { reserve: { request: { method: POST, path: / } } }
"#;
/// Has the stream made that is not the service's, as an operator does.
const OPERATOR: &str = "    { user: \"operator\", password: \"operator\" }\n";
const PASSWORDS: [(&str, &str); 3] = [
    ("MYCORA_NATS_MYCORA_SAGA", "of-the-service"),
    ("MYCORA_NATS_PUBLISHER_ACME", "of-acme"),
    ("MYCORA_NATS_PUBLISHER_OTHER", "of-other"),
];

/// A connection of one user, as the protocol has it.
struct Client(BufReader<TcpStream>);

impl Client {
    fn of(nats: &NatsServer, user: &str, password: &str) -> Self {
        let stream = TcpStream::connect(nats.address()).expect("the server is there");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut client = Self(BufReader::new(stream));
        assert!(client.line().starts_with("INFO "));
        client.send(&format!(
            "CONNECT {{\"verbose\":false,\"user\":\"{user}\",\"pass\":\"{password}\"}}\r\nPING\r\n"
        ));
        assert_eq!(client.line(), "PONG", "{user} may come in");
        client
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).expect("written");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    }

    /// Subscribes; gives why it may not.
    fn subscribe(&mut self, subject: &str) -> Result<(), String> {
        self.send(&format!("SUB {subject} 1\r\nPING\r\n"));
        self.settled().map(drop)
    }

    /// Publishes, to be answered at an inbox; gives the answer, or why it may not.
    fn publish(&mut self, subject: &str, inbox: &str, payload: &str) -> Result<String, String> {
        self.send(&format!("PUB {subject} {inbox} {}\r\n{payload}\r\nPING\r\n", payload.len()));
        match self.settled()? {
            Some(answer) => Ok(answer),
            None => loop {
                let line = self.line();
                if let Some(answer) = self.message(&line) {
                    return Ok(answer);
                }
            },
        }
    }

    /// Reads up to the answer to a ping; gives the message that came before, or why something was refused.
    fn settled(&mut self) -> Result<Option<String>, String> {
        let (mut refusal, mut message) = (None, None);
        loop {
            match self.line() {
                line if line == "PONG" => return refusal.map_or(Ok(message), Err),
                line if line.starts_with("-ERR") => refusal = Some(line),
                line => message = self.message(&line).or(message),
            }
        }
    }

    fn message(&mut self, line: &str) -> Option<String> {
        let length = line.strip_prefix("MSG ")?.split_whitespace().next_back()?.parse().expect("a length");
        let mut body: Vec<u8> = vec![0; length];
        self.0.read_exact(&mut body).expect("the body");
        assert_eq!(self.line(), "");
        Some(String::from_utf8(body).expect("text"))
    }
}

fn event(correlation: &str) -> String {
    format!(
        "{{\"event_id\":\"e-{correlation}\",\"type\":\"Placed\",\"data\":{{}},\"metadata\":{{\"correlation_id\":\"{correlation}\"}}}}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_runs_with_the_printed_permissions_and_no_user_reaches_what_is_anothers() {
    let tenants: Vec<TenantId> = ["acme", "other"].map(|tenant| tenant.parse().expect("a tenant")).into();
    let permissions =
        nats_permissions(Some(&tenants)).replacen("users = [\n", &format!("users = [\n{OPERATOR}"), 1);
    let nats = NatsServer::configured(&permissions, &PASSWORDS);
    let login = |user: &str, password: &str| {
        let login = JetStreamLogin::Password { user: user.to_owned(), password: password.to_owned() };
        JetStreamOptions { login: Some(login), ..JetStreamOptions::new(&nats.url()) }
    };
    let operator = JetStream::start(login("operator", "operator")).expect("options");
    operator.connected(PATIENCE).await.expect("the operator may come in");
    let made = broker::MessageBroker::ensure_stream(&operator, &crate::streams::aggregates())
        .await
        .expect("a stream");
    assert_eq!(made, []);
    let service = JetStream::start(login(SERVICE_USER, "of-the-service")).expect("options");
    service.connected(PATIENCE).await.expect("the service may come in");

    // All that a saga needs goes through: streams, cursors, events, commands, results, facts, and a request with its answer.
    let mut publisher = Client::of(&nats, "publisher-acme", "of-acme");
    publisher.subscribe("_INBOX_acme.1").expect("its own inbox");
    let mut world = World::over(service).await;
    world.apply(SAGA).await;
    world.serve(|_| Some((CommandOutcome::Succeeded, Json::object([])))).await;
    world.follow().await;
    world.own();
    let stored = publisher.publish("tenant.acme.aggregate.Order.o-1", "_INBOX_acme.1", &event("o-1"));
    assert!(stored.expect("its own events").contains("AGGREGATE_EVENTS"));
    world.wait_for("o-1", "completed").await;
    let verb = workflow::input::Verb::Start { data: Json::object([]) };
    assert_eq!(world.ask("r-1", "o-2", verb).await.outcome, saga::sagas::VerbOutcome::Applied);

    // A publisher can neither publish for another tenant, nor publish messages of the service, nor read.
    for subject in [
        "tenant.other.aggregate.Order.o-1",
        "tenant.acme.effect.reserve.c-1",
        "tenant.acme.effect_result.reserve.c-1",
        "tenant.acme.workflow.order.o-1",
        "tenant.acme.workflow_event.order.o-1",
        "aggregate.Order.o-1",
        "$JS.API.STREAM.INFO.AGGREGATE_EVENTS",
        "$JS.API.CONSUMER.MSG.NEXT.WORKFLOW_EVENTS.c",
        "_INBOX.anothers",
    ] {
        let refused = publisher.publish(subject, "_INBOX_acme.1", &event("foreign")).expect_err(subject);
        assert!(refused.contains("Permissions Violation for Publish"), "{subject}: {refused}");
    }
    for subject in ["_INBOX.>", "_INBOX_other.>", "tenant.acme.aggregate.*.*", "tenant.>", ">"] {
        let refused = publisher.subscribe(subject).expect_err(subject);
        assert!(refused.contains("Permissions Violation for Subscription"), "{subject}: {refused}");
    }
    // Nor does the service do what it never has to.
    let mut service = Client::of(&nats, SERVICE_USER, "of-the-service");
    service.subscribe("_INBOX.2").expect("an inbox");
    for subject in [
        "tenant.acme.aggregate.Order.o-1",
        "$JS.API.STREAM.DELETE.AGGREGATE_EVENTS",
        "$JS.API.STREAM.PURGE.WORKFLOW_EVENTS",
        "$JS.API.STREAM.UPDATE.AGGREGATE_EVENTS",
        "$JS.API.STREAM.CREATE.AGGREGATE_EVENTS",
        "$JS.API.STREAM.INFO.ANOTHERS",
    ] {
        let refused = service.publish(subject, "_INBOX.2", "{}").expect_err(subject);
        assert!(refused.contains("Permissions Violation for Publish"), "{subject}: {refused}");
    }
    assert!(service.subscribe("tenant.>").is_err(), "it reads by its cursors");
    assert_eq!(world.record("foreign").await, None);
}
