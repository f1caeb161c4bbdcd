//! Answers of upstreams, their absence, and what calls become by them.

use std::time::Duration;

use saga::providers::{CallProvider as _, ProviderCall};
use testkit::free_port;
use tokio::net::TcpListener;
use workflow::Json;
use workflow::ledger::ProviderAnswer;
use workflow::provider::EffectProvider;

use crate::stage::{Stage, call, failure, json, passing, provider, unknown};
use crate::upstream::{Act, Upstream, answer};

const MIB: usize = 1024 * 1024;

/// An effect that says nothing but its request.
fn plain(upstream: &Upstream) -> std::sync::Arc<EffectProvider> {
    with(upstream, "")
}

/// An effect with something more to say.
fn with(upstream: &Upstream, more: &str) -> std::sync::Arc<EffectProvider> {
    let request = "request: { method: POST, path: /x, body: \"${{ input }}\" }";
    provider(&format!("{}effects:\n  e: {{ {request}{more} }}\n", upstream.transport()))
}

/// Makes a call of what always gets the same answer.
async fn after(act: Act, more: &str) -> (ProviderAnswer, ProviderCall) {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, act).await;
    let definition = with(&upstream, more);
    let call = call(&definition, "{}");
    (stage.http(&definition).call(&call).await, call)
}

/// Drops a call once the server was asked, and says whether it may have happened.
async fn dropped(act: Act) -> bool {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, act).await;
    let definition = plain(&upstream);
    let (provider, call) = (stage.http(&definition), call(&definition, "{}"));
    tokio::select! {
        answer = provider.call(&call) => panic!("it has an answer: {answer:?}"),
        () = upstream.until_answered() => {}
    }
    call.sent.is_raised()
}

#[tokio::test]
async fn the_status_decides_the_outcome_without_formulas() {
    for status in [200, 201, 204, 299] {
        let body = if status == 204 { "" } else { r#"{"id":1.5}"# };
        let expected = if status == 204 { Json::Null } else { json(r#"{"id":"1.5"}"#) };
        assert_eq!(
            after(answer(status, &[], body), "").await.0,
            ProviderAnswer::Succeeded(expected),
            "{status}"
        );
    }
    for status in [400, 401, 403, 404, 409, 422, 499] {
        let (found, _) = after(answer(status, &[], "nothing for machines"), "").await;
        let expected = ProviderAnswer::Failed {
            code: format!("http_{status}"),
            payload: Json::text("nothing for machines"),
        };
        assert_eq!(found, expected);
    }
    for status in [300, 302, 304, 408, 425, 429, 500, 502, 503, 504, 599] {
        let (found, call) = after(answer(status, &[], ""), "").await;
        assert!(passing(&found).contains(&status.to_string()), "{found:?}");
        assert!(call.sent.is_raised());
    }
}

#[tokio::test]
async fn formulas_decide_the_outcome_where_they_are_set() {
    let more = ", success: status == 404 || body.state == \"done\", terminal: status == 402, \
                result: { id: \"${{ body.id }}\", code: \"${{ body.code }}\" }";
    for (status, body, expected) in [
        (404, r#"{"id":7}"#, ProviderAnswer::Succeeded(json(r#"{"id":7,"code":null}"#))),
        (500, r#"{"state":"done"}"#, ProviderAnswer::Succeeded(json(r#"{"id":null,"code":null}"#))),
        (
            402,
            r#"{"code":"declined"}"#,
            ProviderAnswer::Failed {
                code: "declined".to_owned(),
                payload: json(r#"{"id":null,"code":"declined"}"#),
            },
        ),
        (
            402,
            "{}",
            ProviderAnswer::Failed {
                code: "http_402".to_owned(),
                payload: json(r#"{"id":null,"code":"http_402"}"#),
            },
        ),
        (200, "{}", ProviderAnswer::Passing { why: "the upstream answered 200".to_owned(), after: None }),
        (422, "{}", ProviderAnswer::Passing { why: "the upstream answered 422".to_owned(), after: None }),
    ] {
        assert_eq!(after(answer(status, &[], body), more).await.0, expected, "{status} {body}");
    }
}

#[tokio::test]
async fn formulas_that_have_no_answer_leave_open_what_was_sent() {
    let result = ", result: { id: \"${{ body.id.deep }}\" }";
    let (found, _) = after(answer(200, &[], "not json"), result).await;
    assert!(unknown(&found).contains("body.id.deep"), "{found:?}");
    let (found, _) = after(answer(200, &[], "{}"), ", success: body.id.deep == 1").await;
    assert!(unknown(&found).contains("body.id.deep == 1"), "{found:?}");
    // A refused call has not happened, whatever a formula makes of the answer.
    let (found, _) = after(answer(422, &[], "<html>"), result).await;
    let (code, payload) = failure(&found);
    assert!(code == "formula" && payload.contains("422") && payload.contains("body.id.deep"), "{payload}");
}

#[tokio::test]
async fn a_retry_after_header_sets_the_pause_for_429_and_503() {
    for status in [429, 503] {
        let (found, _) = after(answer(status, &["Retry-After: 7"], ""), "").await;
        let pause = Some(Duration::from_secs(7));
        assert_eq!(
            found,
            ProviderAnswer::Passing { why: format!("the upstream answered {status}"), after: pause }
        );
    }
    let dates = ["Date: Sun, 06 Nov 1994 08:49:37 GMT", "Retry-After: Sun, 06 Nov 1994 08:51:37 GMT"];
    let (found, _) = after(answer(503, &dates, ""), "").await;
    assert!(
        matches!(found, ProviderAnswer::Passing { after: Some(pause), .. } if pause.as_secs() == 120),
        "{found:?}"
    );
    let (found, _) = after(answer(500, &["Retry-After: 7"], ""), "").await;
    assert!(matches!(found, ProviderAnswer::Passing { after: None, .. }), "{found:?}");
}

#[tokio::test]
async fn an_answer_that_is_lost_leaves_it_open() {
    for (act, part) in [
        // Read, and closed without a word.
        (Act::Send(String::new()), "no answer"),
        (Act::Send("HTTP/1.1 200 O".to_owned()), "no answer"),
        (Act::Send("SMTP ready\r\n\r\n".to_owned()), "no answer"),
        (Act::Send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"id\"".to_owned()), "broke off"),
        (Act::Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a".to_owned()), "broke off"),
        (answer(200, &[], &"x".repeat(MIB + 1)), "more than 1048576 bytes"),
    ] {
        let (found, call) = after(act.clone(), "").await;
        assert!(unknown(&found).contains(part), "{found:?}");
        assert!(call.sent.is_raised());
        // No formula makes a failure of a success whose body could not be read.
        let (found, _) = after(act, ", success: status == 299, terminal: status == 200").await;
        unknown(&found);
    }
}

#[tokio::test]
async fn a_failure_is_one_without_its_body() {
    let cut = |status: u16, more: &str| {
        Act::Send(format!(
            "HTTP/1.1 {status} So\r\n{more}Content-Length: 9999999\r\n\r\n{}",
            "x".repeat(MIB + 1)
        ))
    };
    assert_eq!(failure(&after(cut(422, ""), "").await.0).0, "http_422");
    let (found, _) = after(cut(503, "Retry-After: 9\r\n"), "").await;
    assert!(
        matches!(found, ProviderAnswer::Passing { after: Some(pause), .. } if pause.as_secs() == 9),
        "{found:?}"
    );
    // Whether a formula calls it a success depends on what could not be read.
    unknown(&after(cut(404, ""), ", success: status == 404").await.0);
    unknown(&after(cut(500, ""), ", success: body.n > 1").await.0);
}

#[tokio::test]
async fn a_body_of_a_mebibyte_is_read() {
    let text = "x".repeat(MIB - 2);
    let (found, _) = after(answer(200, &[], &format!("\"{text}\"")), "").await;
    assert_eq!(found, ProviderAnswer::Succeeded(Json::Text(text)));
}

#[tokio::test]
async fn a_slow_answer_is_waited_for() {
    let stage = Stage::new();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"id\"".to_owned();
    let upstream = Upstream::always(&stage, Act::SendSlowly(head, ":7}".to_owned())).await;
    let definition = plain(&upstream);
    let (provider, call) = (stage.http(&definition), call(&definition, "{}"));
    let release = async {
        upstream.until_answered().await;
        upstream.open_gate();
    };
    let (found, ()) = tokio::join!(provider.call(&call), release);
    assert_eq!(found, ProviderAnswer::Succeeded(json(r#"{"id":7}"#)));
}

#[tokio::test]
async fn a_call_that_is_dropped_may_have_happened_once_it_was_sent() {
    assert!(dropped(Act::SendAndHang(String::new())).await, "no answer");
    assert!(
        dropped(Act::SendAndHang("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_owned())).await,
        "a slow one"
    );
}

#[tokio::test]
async fn a_call_that_is_dropped_before_it_was_sent_has_not_happened() {
    let stage = Stage::new();
    // Accepts, and says nothing: no handshake.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let upstream = Upstream::always(&stage, answer(200, &[], "")).await;
    let transport = upstream.transport().replace(&upstream.port.to_string(), &port.to_string());
    let definition =
        provider(&format!("{transport}effects:\n  e: {{ request: {{ method: POST, path: / }} }}\n"));
    let (provider, call) = (stage.http(&definition), call(&definition, "{}"));
    let hello = async {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.readable().await.expect("it begins a handshake");
    };
    tokio::select! {
        answer = provider.call(&call) => panic!("it has an answer: {answer:?}"),
        () = hello => {}
    }
    assert!(!call.sent.is_raised());
}

#[tokio::test]
async fn what_cannot_be_reached_passes() {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, answer(200, &[], "{}")).await;
    let strange = Upstream::start(Some(stage.acceptor("other.test")), |_| answer(200, &[], "{}")).await;
    let plain = Upstream::start(None, |_| answer(200, &[], "{}")).await;
    let good = upstream.transport();
    let to = |port: u16| good.replace(&upstream.port.to_string(), &port.to_string());
    for (transport, part) in [
        (to(free_port()), "refused"),
        (good.replace("localhost", "no-such-host.invalid"), "no-such-host.invalid"),
        (to(strange.port), "certificate"),
        (to(plain.port), "tls handshake"),
        (good.replace("secret:ca", "secret:other-ca"), "certificate"),
        (good.replace("secret:ca", "secret:token"), "has no certificate"),
    ] {
        let definition =
            provider(&format!("{transport}effects:\n  e: {{ request: {{ method: POST, path: / }} }}\n"));
        let call = call(&definition, "{}");
        let found = stage.http(&definition).call(&call).await;
        assert!(passing(&found).contains(part), "{part}: {found:?}");
        assert!(!call.sent.is_raised(), "{part}");
    }
    assert!(upstream.requests().is_empty() && strange.requests().is_empty() && plain.requests().is_empty());
}

#[tokio::test]
async fn an_answer_that_comes_later_is_waited_for() {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, answer(202, &[], "{}")).await;
    let path = "path: \"/x?token=${{ callback_token }}\"";
    let definition = provider(&format!(
        "{}effects:\n  e: {{ request: {{ method: POST, {path} }}, callback: true }}\n",
        upstream.transport()
    ));
    let call = ProviderCall { callback_token: Some("t+/1".to_owned()), ..call(&definition, "{}") };
    let found = stage.http(&definition).call(&call).await;
    assert_eq!(found, ProviderAnswer::Waiting { external: None });
    assert_eq!(upstream.only().line, "POST /x?token=t%2B%2F1");
}

#[tokio::test]
async fn an_upstream_is_queried_for_an_unknown_outcome() {
    let query = ", terminal: status == 402, result: { id: \"${{ body.id }}\" }, \
                 unknown_outcome: { query: { path: \"/x?key=${{ command_id }}\", absent: status == 404 } }";
    let done = ProviderAnswer::Succeeded(json(r#"{"id":7}"#));
    let refused = ProviderAnswer::Failed {
        code: "http_402".to_owned(),
        payload: json(r#"{"code":"http_402","id":null}"#),
    };
    for (act, expected) in [
        (answer(200, &[], r#"{"id":7}"#), Some(done)),
        (answer(402, &[], "{}"), Some(refused)),
        (answer(401, &[], "{}"), None),
        (answer(500, &[], "{}"), None),
        (answer(302, &["Location: https://elsewhere.test/"], ""), None),
        (Act::Send(String::new()), None),
        (answer(200, &[], "no object"), None),
        (answer(200, &[], &"x".repeat(MIB + 1)), None),
    ] {
        let stage = Stage::new();
        let upstream = Upstream::always(&stage, act.clone()).await;
        let definition = with(&upstream, query);
        let call = call(&definition, "{}");
        assert_eq!(stage.http(&definition).ask(&call).await, expected, "{act:?}");
        let request = upstream.only();
        assert_eq!(request.line, format!("GET /x?key={}", crate::stage::COMMAND));
        assert_eq!(request.header("idempotency-key"), None, "that is the key of another request");
        assert!(request.header("authorization").is_some());
        assert!(!call.sent.is_raised());
    }
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, answer(404, &[], "")).await;
    let definition = with(&upstream, query);
    let found = stage.http(&definition).ask(&call(&definition, "{}")).await;
    assert!(passing(&found.expect("an answer")).contains("does not know it"));
}

#[tokio::test]
async fn a_question_that_is_not_declared_or_answered_by_a_formula_is_open() {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, answer(404, &[], "{}")).await;
    for more in [
        "",
        ", unknown_outcome: { query: { path: /x, absent: body.id.deep == 1 } }",
        // A status alone fails nothing: it may be about the question.
        ", unknown_outcome: { query: { path: /x, absent: status == 410 } }",
        ", unknown_outcome: { query: { path: \"/${{ input.none.deep }}\", absent: status == 404 } }",
    ] {
        let definition = with(&upstream, more);
        assert_eq!(stage.http(&definition).ask(&call(&definition, "{}")).await, None, "{more}");
    }
}
