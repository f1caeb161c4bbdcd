//! Where answers lead, and how far they are followed.

use std::sync::Arc;

use saga::providers::CallProvider as _;
use workflow::ledger::ProviderAnswer;
use workflow::provider::EffectProvider;

use crate::stage::{COMMAND, Names, Stage, call, failure, json, passing, provider};
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
        let first = Upstream::start(Some(stage.acceptor("localhost")), move |request| {
            if request.line.ends_with("/there") {
                return answer(200, &[], r#"{"at":1}"#);
            }
            answer(status, &[&format!("Location: {}", to.replace("PORT", &port.to_string()))], "{}")
        })
        .await;
        Self { stage, first, second, headers: "X-Api-Key: \"secret:token\", X-Open: o" }
    }

    /// An effect that may reach both servers, or the first one only.
    fn effect(&self, method: &str, is_second_allowed: bool) -> Arc<EffectProvider> {
        let hosts =
            if is_second_allowed { format!(", \"localhost:{}\"", self.second.port) } else { String::new() };
        let transport = self
            .first
            .transport()
            .replace("], private", &format!("{hosts}], private"))
            .replace("auth:", &format!("headers: {{ {} }}, auth:", self.headers));
        provider(&format!("{transport}effects:\n  e: {{ request: {{ method: {method}, path: /here }} }}\n"))
    }

    async fn after(&self, method: &str, is_second_allowed: bool) -> ProviderAnswer {
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
            ProviderAnswer::Succeeded(json(r#"{"at":1}"#)),
            "{status} {method}"
        );
        let requests = two.first.requests();
        assert_eq!(requests[1].line, format!("{method} /there"));
        assert_eq!(requests[1].header("idempotency-key"), Some(COMMAND));
        assert!(requests[1].header("authorization").is_some() && requests[1].header("x-api-key").is_some());
    }
    for (status, method) in [(301, "POST"), (302, "POST"), (303, "POST"), (302, "PUT"), (303, "DELETE")] {
        let two = Two::start(status, "/there").await;
        let found = two.after(method, false).await;
        assert!(passing(&found).contains(&status.to_string()), "{found:?}");
        assert_eq!(two.first.requests().len(), 1, "{status} {method}: nothing is sent by another method");
    }
}

#[tokio::test]
async fn to_a_server_that_is_not_allowed_nothing_goes() {
    for method in ["GET", "POST"] {
        for status in [301, 302, 303, 307, 308] {
            let two = Two::start(status, "https://localhost:PORT/there").await;
            let found = two.after(method, false).await;
            let (code, payload) = failure(&found);
            assert_eq!(code, "egress", "{payload}");
            let host = format!("\"host\":\"localhost:{}\"", two.second.port);
            assert!(payload.contains(&host) && payload.contains("\"rule\":\"allow_hosts\""), "{payload}");
            assert_eq!(two.first.requests().len(), 1, "{method} {status}: it is refused for good");
            assert_eq!(two.second.connections().await, 0, "{method} {status}");
        }
    }
}

#[tokio::test]
async fn to_another_host_nothing_goes_even_where_it_is_allowed() {
    let names = Names::from([("pay.test", "127.0.0.1"), ("other.test", "127.0.0.1")]);
    for (method, to, is_tls) in [
        ("GET", "https://other.test:PORT/there", true),
        ("POST", "https://other.test:PORT/there", true),
        ("GET", "//other.test:PORT/there", true),
        ("GET", "http://other.test:PORT/there", false),
    ] {
        let stage = Stage::new();
        let (tls, other) = (is_tls.then(|| stage.acceptor("other.test")), answer(200, &[], "{}"));
        let second = Upstream::start(tls, move |_| other.clone()).await;
        let location = format!("Location: {}", to.replace("PORT", &second.port.to_string()));
        let leads = answer(307, &[&location], "{}");
        let first = Upstream::start(Some(stage.acceptor("pay.test")), move |_| leads.clone()).await;
        let definition = provider(&format!(
            "transport: http\nhttp: {{ base_url: \"https://pay.test:{0}\", allow_hosts: [\"pay.test:{0}\", \"other.test:{1}\"], \
             private: true, ca: \"secret:ca\" }}\neffects:\n  e: {{ request: {{ method: {method}, path: /here }} }}\n",
            first.port, second.port
        ));
        let http = stage.http(&definition).resolved_by(Arc::new(names.clone()));
        let found = http.call(&call(&definition, "{}")).await;
        let (code, payload) = failure(&found);
        assert_eq!(code, "egress", "{payload}");
        let host = format!("\"host\":\"other.test:{}\"", second.port);
        assert!(payload.contains(&host) && payload.contains("\"rule\":\"redirect\""), "{payload}");
        assert_eq!(first.requests().len(), 1, "{to}");
        assert_eq!(second.connections().await, 0, "{to}");
    }
}

#[tokio::test]
async fn a_formula_decides_the_outcome_of_a_redirection() {
    for (more, is_success) in [(", success: status == 303", true), (", terminal: status == 303", false)] {
        let stage = Stage::new();
        let away = answer(303, &["Location: https://elsewhere.test/done"], r#"{"code":"seen"}"#);
        let upstream = Upstream::always(&stage, away).await;
        let definition = provider(&format!(
            "{}effects:\n  e: {{ request: {{ method: POST, path: /here }}{more} }}\n",
            upstream.transport()
        ));
        let found = stage.http(&definition).call(&call(&definition, "{}")).await;
        if is_success {
            assert_eq!(found, ProviderAnswer::Succeeded(json(r#"{"code":"seen"}"#)));
        } else {
            assert_eq!(failure(&found).0, "seen");
        }
    }
}

#[tokio::test]
async fn to_another_allowed_port_only_questions_go_and_no_secrets() {
    let two = Two::start(307, "https://localhost:PORT/there").await;
    assert_eq!(two.after("GET", true).await, ProviderAnswer::Succeeded(json(r#"{"at":2}"#)));
    let request = two.second.only();
    assert_eq!((request.header("authorization"), request.header("x-api-key")), (None, None));
    assert_eq!(request.header("x-open"), Some("o"));

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
    assert_eq!(two.first.requests().len(), 6);
}
