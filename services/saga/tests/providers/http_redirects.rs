//! Where answers lead, and how far they are followed.

use std::sync::Arc;

use saga::providers::Provider as _;
use workflow::ledger::Answer;
use workflow::provider::Provider;

use crate::stage::{COMMAND, Stage, call, json, passing, provider};
use crate::upstream::{Upstream, answer};

/// A server that leads away, another one where it may lead, and the provider between them.
struct Two {
    stage: Stage,
    first: Upstream,
    second: Upstream,
    headers: &'static str,
}

impl Two {
    /// `to` says where the first server leads, by the port of the second.
    async fn start(status: u16, to: &'static str) -> Self {
        let stage = Stage::new();
        let second = Upstream::always(&stage, answer(200, &[], r#"{"at":2}"#)).await;
        let port = second.port;
        let first = Upstream::start(Some(stage.acceptor("localhost")), move |asked| {
            if asked.line.ends_with("/there") {
                return answer(200, &[], r#"{"at":1}"#);
            }
            answer(status, &[&format!("Location: {}", to.replace("PORT", &port.to_string()))], "{}")
        })
        .await;
        Self { stage, first, second, headers: "X-Api-Key: \"secret:token\", X-Open: o" }
    }

    /// An effect that may reach both servers, or the first one only.
    fn effect(&self, method: &str, is_second_allowed: bool) -> Arc<Provider> {
        let hosts =
            if is_second_allowed { format!(", \"localhost:{}\"", self.second.port) } else { String::new() };
        let transport = self
            .first
            .transport()
            .replace("], private", &format!("{hosts}], private"))
            .replace("auth:", &format!("headers: {{ {} }}, auth:", self.headers));
        provider(&format!("{transport}effects:\n  e: {{ request: {{ method: {method}, path: /here }} }}\n"))
    }

    async fn after(&self, method: &str, is_second_allowed: bool) -> Answer {
        let definition = self.effect(method, is_second_allowed);
        self.stage.http(&definition).call(&call(&definition, "{}")).await
    }
}

#[tokio::test]
async fn within_a_server_it_is_followed_by_the_same_method() {
    for (status, method) in
        [(301, "GET"), (302, "GET"), (303, "GET"), (307, "GET"), (307, "POST"), (308, "DELETE")]
    {
        let two = Two::start(status, "/there").await;
        assert_eq!(
            two.after(method, false).await,
            Answer::Succeeded(json(r#"{"at":1}"#)),
            "{status} {method}"
        );
        let asked = two.first.asked();
        assert_eq!(asked[1].line, format!("{method} /there"));
        assert_eq!(asked[1].header("idempotency-key"), Some(COMMAND));
        assert!(asked[1].header("authorization").is_some() && asked[1].header("x-api-key").is_some());
    }
    for (status, method) in [(301, "POST"), (302, "POST"), (303, "POST"), (302, "PUT"), (303, "DELETE")] {
        let two = Two::start(status, "/there").await;
        let found = two.after(method, false).await;
        assert!(passing(&found).contains(&status.to_string()), "{found:?}");
        assert_eq!(two.first.asked().len(), 1, "{status} {method}: nothing is sent by another method");
    }
}

#[tokio::test]
async fn to_a_server_that_is_not_allowed_nothing_goes() {
    for method in ["GET", "POST"] {
        let two = Two::start(307, "https://localhost:PORT/there").await;
        let found = two.after(method, false).await;
        assert!(passing(&found).contains("307"), "{found:?}");
        assert_eq!(two.second.connections().await, 0, "{method}");
    }
}

#[tokio::test]
async fn to_another_allowed_server_only_questions_go_and_no_secrets() {
    let two = Two::start(307, "https://localhost:PORT/there").await;
    assert_eq!(two.after("GET", true).await, Answer::Succeeded(json(r#"{"at":2}"#)));
    let asked = two.second.only();
    assert_eq!((asked.header("authorization"), asked.header("x-api-key")), (None, None));
    assert_eq!(asked.header("x-open"), Some("o"));

    let two = Two::start(307, "https://localhost:PORT/there").await;
    passing(&two.after("POST", true).await);
    assert_eq!(two.second.connections().await, 0);
}

#[tokio::test]
async fn out_of_encryption_nothing_goes() {
    let two = Two::start(302, "http://localhost:PORT/there").await;
    let found = two.after("GET", true).await;
    assert!(passing(&found).contains("302"), "{found:?}");
    assert_eq!(two.second.connections().await, 0);
}

#[tokio::test]
async fn going_round_comes_to_an_end() {
    let two = Two::start(302, "/here").await;
    let found = two.after("GET", false).await;
    assert!(passing(&found).contains("302"), "{found:?}");
    assert_eq!(two.first.asked().len(), 6);
}
