//! Requests as upstreams see them.

use saga::providers::CallProvider as _;
use workflow::Json;
use workflow::ledger::ProviderAnswer;

use crate::stage::{CANARY, COMMAND, Stage, call, failure, json, passing, provider};
use crate::upstream::{Upstream, answer, without_canary};

#[tokio::test]
async fn a_request_carries_its_key_its_payload_and_its_authorization() {
    let stage = Stage::new();
    let upstream =
        Upstream::always(&stage, answer(201, &["X-Trace: t-1", "X-Two: a", "X-Two: b"], r#"{"id":"p-7"}"#));
    let upstream = upstream.await;
    let definition = provider(&format!(
        "{}effects:\n  reserve:\n    request: {{ method: POST, path: /v1/reservations, body: \"${{{{ input }}}}\", \
         headers: {{ X-Order: \"o-${{{{ input.order }}}}\" }} }}\n    \
         result: {{ id: \"${{{{ body.id }}}}\", status: \"${{{{ status }}}}\", trace: \"${{{{ headers[\\\"x-trace\\\"] }}}}\", \
         two: \"${{{{ headers[\\\"x-two\\\"] }}}}\", order: \"${{{{ input.order }}}}\", command: \"${{{{ command_id }}}}\" }}\n",
        upstream.transport()
    ));
    let mut call = call(&definition, r#"{"order":"ü7","cents":1250}"#);
    call.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    let answer = stage.http(&definition).call(&call).await;
    let expected = format!(
        r#"{{"id":"p-7","status":201,"trace":"t-1","two":"a, b","order":"ü7","command":"{COMMAND}"}}"#
    );
    assert_eq!(answer, ProviderAnswer::Succeeded(json(&expected)));
    assert!(call.sent.is_raised());
    let request = upstream.only();
    assert_eq!(request.line, "POST /v1/reservations");
    assert_eq!(request.body, r#"{"cents":1250,"order":"ü7"}"#);
    for (name, value) in [
        ("idempotency-key", COMMAND),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("authorization", &format!("Bearer {CANARY}")),
        ("content-type", "application/json"),
        ("x-order", "o-ü7"),
        ("host", &format!("localhost:{}", upstream.port)),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn a_provider_has_headers_of_its_own_and_logs_in_with_a_password() {
    let stage = Stage::new();
    stage.keep("acme/api-key", "of-acme");
    stage.keep("api-key", "of-all");
    stage.keep("password", "pass:word");
    let upstream = Upstream::always(&stage, answer(200, &[], "")).await;
    let port = upstream.port;
    let definition = provider(&format!(
        "transport: http\nhttp:\n  base_url: \"https://localhost:{port}/api/\"\n  allow_hosts: [\"localhost:{port}\"]\n  \
         private: true\n  ca: \"secret:ca\"\n  auth: {{ user: shop, password: \"secret:password\" }}\n  \
         headers: {{ X-Api-Key: \"secret:api-key\", X-Version: \"7\" }}\n\
         effects:\n  e: {{ request: {{ method: PUT, path: /x }} }}\n"
    ));
    let provider = stage.http(&definition);
    assert_eq!(provider.call(&call(&definition, "{}")).await, ProviderAnswer::Succeeded(Json::Null));
    // A changed secret takes effect with the next call.
    stage.keep("acme/api-key", "of-acme-2");
    provider.call(&call(&definition, "{}")).await;
    let requests = upstream.requests();
    assert_eq!(requests[0].line, "PUT /api/x");
    assert_eq!(requests[0].header("authorization"), Some("Basic c2hvcDpwYXNzOndvcmQ="));
    assert_eq!(requests[0].header("x-version"), Some("7"));
    assert_eq!(requests[0].header("x-api-key"), Some("of-acme"));
    assert_eq!(requests[1].header("x-api-key"), Some("of-acme-2"));
}

#[tokio::test]
async fn hostile_input_changes_no_request() {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, answer(200, &[], "{}")).await;
    let definition = provider(&format!(
        "{}effects:\n  e: {{ request: {{ method: DELETE, path: \"/v1/things/${{{{ input.id }}}}?by=${{{{ input.by }}}}&fixed=1\" }} }}\n",
        upstream.transport()
    ));
    let provider = stage.http(&definition);
    let hostile = r#"{"id":"../../admin?x=1#y\r\nHost: evil","by":"a&fixed=2#\n"}"#;
    provider.call(&call(&definition, hostile)).await;
    let request = upstream.only();
    assert_eq!(
        request.line,
        "DELETE /v1/things/..%2F..%2Fadmin%3Fx%3D1%23y%0D%0AHost%3A%20evil?by=a%26fixed%3D2%23%0A&fixed=1"
    );
    for id in [r#""""#, r#"".""#, r#""..""#] {
        let call = call(&definition, &format!(r#"{{"id":{id},"by":"x"}}"#));
        let answer = provider.call(&call).await;
        assert!(failure(&answer).1.contains("another path"), "{answer:?}");
        assert!(!call.sent.is_raised());
    }
    for id in ["null", "[1]", "{}"] {
        let answer = provider.call(&call(&definition, &format!(r#"{{"id":{id},"by":"x"}}"#))).await;
        assert_eq!(failure(&answer).0, "formula", "{answer:?}");
    }
    assert_eq!(upstream.requests().len(), 1, "the others were never sent");
}

#[tokio::test]
async fn an_effect_sets_only_headers_that_are_its_own() {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, answer(200, &[], "{}")).await;
    for (header, value, part) in [
        ("Authorization", "Bearer mine", "not for effects"),
        ("idempotency-key", "other", "not for effects"),
        ("HOST", "evil.test", "not for effects"),
        ("Content-Length", "0", "not for effects"),
        ("Transfer-Encoding", "chunked", "not for effects"),
        ("traceparent", "x", "not for effects"),
        ("X y", "x", "is no header"),
        ("X-Input", "${{ input.text }}", "control character"),
        ("X-Input", "${{ input }}", "not an object"),
    ] {
        let definition = provider(&format!(
            "{}effects:\n  e: {{ request: {{ method: GET, path: /, headers: {{ \"{header}\": \"{value}\" }} }} }}\n",
            upstream.transport()
        ));
        let call = call(&definition, r#"{"text":"a\r\nX-Evil: 1"}"#);
        let answer = stage.http(&definition).call(&call).await;
        let (code, payload) = failure(&answer);
        assert!(code == "request" && payload.contains(part), "{header}: {payload}");
        assert!(!call.sent.is_raised());
    }
    assert_eq!(upstream.connections().await, 0);
}

#[tokio::test]
async fn a_formula_without_an_answer_fails_before_anything_is_sent() {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, answer(200, &[], "{}")).await;
    for part in [
        "path: \"/${{ input.a.b }}\"",
        "path: /, body: { x: \"${{ input.a.b }}\" }",
        "path: /, headers: { x: \"${{ input.a.b }}\" }",
    ] {
        let definition = provider(&format!(
            "{}effects:\n  e: {{ request: {{ method: POST, {part} }} }}\n",
            upstream.transport()
        ));
        let call = call(&definition, "{}");
        let answer = stage.http(&definition).call(&call).await;
        let (code, payload) = failure(&answer);
        assert!(code == "formula" && payload.contains("input.a.b"), "{payload}");
        assert!(!call.sent.is_raised());
    }
    assert_eq!(upstream.connections().await, 0);
}

#[tokio::test]
async fn bodies_have_a_limit() {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, answer(200, &[], "{}")).await;
    let many = ["\"${{ input.x }}\""; 6].join(", ");
    let definition = provider(&format!(
        "{}effects:\n  e: {{ request: {{ method: POST, path: /, body: [{many}] }} }}\n",
        upstream.transport()
    ));
    let input = format!(r#"{{"x":"{}"}}"#, "x".repeat(200_000));
    let answer = stage.http(&definition).call(&call(&definition, &input)).await;
    let (code, payload) = failure(&answer);
    assert!(code == "request" && payload.contains("at most 1048576 are sent"), "{payload}");
    assert_eq!(upstream.connections().await, 0);
}

#[tokio::test]
async fn a_missing_secret_passes_and_is_named() {
    let stage = Stage::new();
    let upstream = Upstream::always(&stage, answer(200, &[], "{}")).await;
    let transport = upstream.transport().replace("secret:token", "secret:no-such");
    let definition =
        provider(&format!("{transport}effects:\n  e: {{ request: {{ method: GET, path: / }} }}\n"));
    let call = call(&definition, "{}");
    let answer = stage.http(&definition).call(&call).await;
    let why = passing(&answer);
    assert!(
        why.contains("secret:no-such") && why.contains(&stage.directory().display().to_string()),
        "{why}"
    );
    assert!(!call.sent.is_raised());
    assert_eq!(upstream.connections().await, 0);
}

#[tokio::test]
async fn no_answer_error_or_log_shows_a_secret() {
    let logs = crate::secrets::Logs::record();
    let stage = Stage::new();
    let upstream =
        Upstream::start(Some(stage.acceptor("localhost")), |request| match request.line.as_str() {
            "GET /lost" => crate::upstream::Act::Send(String::new()),
            "GET /500" => answer(500, &[], "{}"),
            "GET /402" => answer(402, &[], r#"{"code":"declined"}"#),
            _ => answer(200, &[], "{}"),
        })
        .await;
    let good = upstream.transport();
    stage.keep("broken", &format!("{CANARY}\r\nX-Evil: 1"));
    stage.keep("open", CANARY);
    stage.set_mode("open", 0o644);
    let mut shown = Vec::new();
    for (transport, path) in [
        (good.clone(), "/ok"),
        (good.clone(), "/lost"),
        (good.clone(), "/500"),
        (good.clone(), "/402"),
        (good.clone(), "/${{ input.none.here }}"),
        (good.replace("private: true", "private: false"), "/denied"),
        (good.replace("secret:ca", "secret:other-ca"), "/strange"),
        (good.replace("secret:ca", "secret:token"), "/no-pem"),
        (good.replace("secret:token", "secret:broken"), "/broken"),
        (good.replace("secret:token", "secret:open"), "/open"),
    ] {
        let definition = provider(&format!(
            "{transport}effects:\n  e: {{ request: {{ method: GET, path: \"{path}\" }}, \
             unknown_outcome: {{ query: {{ path: \"{path}\", absent: status == 404 }} }} }}\n"
        ));
        let (provider, call) = (stage.http(&definition), call(&definition, "{}"));
        let (answer, queried) = (provider.call(&call).await, provider.ask(&call).await);
        shown.push(format!("{path}: {answer:?} {queried:?} {provider:?} {call:?}"));
    }
    assert!(upstream.requests().iter().all(|request| request.header("authorization").is_some()));
    shown.iter().for_each(|text| without_canary(text));
    assert!(shown[8].contains("`secret:broken` is no line"), "{}", shown[8]);
    assert!(shown[9].contains("can be read by every user"), "{}", shown[9]);
    let logged = logs.text();
    assert!(logged.contains("the query had no answer"), "{logged}");
    without_canary(&logged);
}

#[tokio::test]
async fn a_transport_that_cannot_work_is_refused() {
    for (old, new, part) in [
        ("X-A: b", "Idempotency-Key: b", "set by the provider itself"),
        ("X-A: b", "Host: b", "set by the provider itself"),
        ("X-A: b", "Authorization: b", "set by the provider itself"),
        ("X-A: b", "\"X A\": b", "is no header"),
        ("https://a.test", "https://a test", "cannot be a base URL"),
        ("https://a.test", "https://a.test:port", "cannot be a base URL"),
    ] {
        let good = "transport: http\nhttp: { base_url: \"https://a.test\", allow_hosts: [a.test], \
                    auth: { bearer: \"secret:token\" }, headers: { X-A: b } }\n\
                    effects:\n  e: { request: { method: GET, path: / } }\n";
        let documents = workflow::manifest::read(
            "it.yaml",
            &format!("kind: EffectProvider\nname: it\n{}", good.replace(old, new)),
        );
        // What the manifest's reader refuses needs no provider.
        let Ok(documents) = documents else { continue };
        let workflow::manifest::ManifestDefinition::Provider(definition) = &documents[0].definition else {
            panic!()
        };
        let workflow::provider::ProviderTransport::Http(transport) = &definition.transport else { panic!() };
        let secrets = std::sync::Arc::new(saga::secrets::Secrets::in_environment());
        let made =
            saga::providers::http::HttpProvider::new(transport, secrets, egress::TrustAnchors::from_system());
        let why = made.expect_err(new).to_string();
        assert!(why.contains(part), "{new}: {why}");
    }
}
