//! Values of secrets go to their upstreams and nowhere else: no row, message, line of the log, trace, error or page of the ops port has
//! them, whether calls succeed or fail.

use std::path::Path;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use identity::{Identity, IssueOptions, Pki};
use proto::v1;
use proto::v1::saga_service_client::SagaServiceClient;
use rpc::{Channel, TlsFiles};
use testkit::{NatsServer, PATIENCE, RedisServer, TestCollector, wait_until};

use crate::canary::{is_in_files, messages};
use crate::process::{self, ReplicaProcess, SECRET};
use crate::sink::{Answers, SmtpSink, Tls};
use crate::stage::{CANARY, Stage};
use crate::streams::{aggregates, connect, publish_event};
use crate::upstream::{Act, Upstream, answer};

/// Text that upstreams answer, which is kept.
const WITNESS: &str = "witness-5f0c1d";
/// Calls of every kind, one after the other, whatever their outcomes.
const STEPS: [&str; 9] =
    ["pay", "refuse", "busy", "cut", "basic", "plain", "strange", "mail-receipt", "mail-refused"];

/// A saga that orders all of them, and stops at a wait.
fn saga() -> String {
    let mut text = "kind: Saga\nname: order\nversion: 1\nstate: { id: text, seen: any }\nsources: [{ aggregate: Order }]\n\
                    start: { on: OrderPlaced, set: { id: \"${{ event.data.id }}\" }, goto: pay }\nsteps:\n"
        .to_owned();
    for (step, next) in STEPS.iter().zip(STEPS[1..].iter().chain(&["hold"])) {
        text.push_str(&format!(
            "  {step}: {{ effect: {step}, input: {{ order: \"${{{{ state.id }}}}\" }}, \
             on_done: {{ set: {{ seen: \"${{{{ result }}}}\" }}, goto: {next} }} }}\n"
        ));
    }
    text + "  hold: { on: { Wrong: { dead_letter: \"${{ event.data.id }} is wrong\" } } }\n"
}

/// Providers that use the secret in every way in which one is used.
fn providers(port: u16, [taking, refusing]: [u16; 2]) -> String {
    let http = |name: &str, secret: &str, effects: &[&str]| {
        let effects = effects.iter().map(|effect| {
            format!(
                "  {effect}: {{ request: {{ method: POST, path: /{effect}, body: \"${{{{ input }}}}\" }}, unknown_outcome: fail, \
                 retry: {{ initial: 1ms, max: 5ms, attempts: 2 }} }}\n"
            )
        });
        let at = format!("localhost:{port}");
        format!(
            "---\nkind: EffectProvider\nname: {name}\ntransport: http\n\
             http: {{ base_url: \"https://{at}\", allow_hosts: [\"{at}\"], private: true, {secret} }}\neffects:\n{}",
            effects.collect::<String>()
        )
    };
    let mail = |name: &str, port: u16| {
        format!(
            "---\nkind: EffectProvider\nname: {name}\ntransport: smtp\nsmtp: {{ host: localhost, port: {port}, private: true, \
             starttls: required, from: [shop@shop.test], ca: \"secret:ca\", auth: {{ user: shop, password: \"secret:token\" }} }}\n\
             effects:\n  {name}: {{ to: ann@home.test, subject: s, text: t, retry: {{ initial: 1ms, max: 5ms, attempts: 2 }} }}\n"
        )
    };
    let bearer = "ca: \"secret:ca\", auth: { bearer: \"secret:token\" }";
    let basic = "ca: \"secret:ca\", auth: { user: shop, password: \"secret:token\" }, headers: { X-Api-Key: \"secret:token\" }";
    let plain = http("plain", "headers: { X-Token: \"secret:token\" }", &["plain"]);
    [
        http("bearer", bearer, &["pay", "refuse", "busy", "cut"]),
        http("basic", basic, &["basic"]),
        plain
            .replace(&format!("https://localhost:{port}"), "http://ADDRESS")
            .replace(&format!("localhost:{port}"), "ADDRESS"),
        // An authority that is none.
        http("strange", "ca: \"secret:token\", auth: { bearer: \"secret:token\" }", &["strange"]),
        mail("mail-receipt", taking),
        mail("mail-refused", refusing),
    ]
    .concat()
}

/// The secret as it is, and as it goes through what carries it.
fn forms() -> Vec<String> {
    let encoded = |text: String| BASE64.encode(text).trim_end_matches('=').to_owned();
    vec![
        CANARY.to_owned(),
        hex::encode(CANARY),
        encoded(CANARY.to_owned()),
        encoded(format!("shop:{CANARY}")),
        encoded(format!("\0shop\0{CANARY}")),
    ]
}

fn has(bytes: &[u8], wanted: &str) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

/// Returns what the process says of itself to the operator, by a call that becomes a span.
async fn server_info(saga: &mut ReplicaProcess, dir: &Path) -> String {
    let line = saga.process.wait_for_line("--listen is bound", PATIENCE);
    let address = line.rsplit('=').next().expect("an address");
    let pki = Pki::open(&dir.join("pki")).expect("an authority");
    let issued = pki.issue(Identity::Admin, &IssueOptions::from(SystemTime::now())).expect("issued");
    let tls = TlsFiles::new(pki.ca_file(), issued.certificate, issued.key);
    let channel = Channel::remote(&format!("https://{address}"), &tls, None).expect("a way");
    let server = SagaServiceClient::new(channel).get_saga_server(v1::GetSagaServerRequest {}).await;
    format!("{:?}", server.expect("told").into_inner())
}

/// Runs all calls in a process that keeps its rows as these arguments say, in files of this directory; looks everywhere.
async fn keeps_its_secrets(rows: &[&str], files: &Path, what: &str) {
    let (dir, nats, stage) = (tempfile::tempdir().expect("a directory"), NatsServer::start(), Stage::new());
    let done = format!(r#"{{"id":"{WITNESS}"}}"#);
    let upstream = Upstream::start(Some(stage.acceptor("localhost")), move |request| {
        match request.line.rsplit('/').next().expect("a path") {
            "refuse" => answer(422, &[], &format!(r#"{{"code":"no","why":"{WITNESS}"}}"#)),
            "busy" => answer(503, &[], "{}"),
            "cut" => Act::Send(String::new()),
            _ => answer(200, &[], &done),
        }
    })
    .await;
    let taking = SmtpSink::start(Tls::Later(stage.acceptor("localhost")), Answers::new()).await;
    let refuses = Answers::from([("AUTH", format!("535 {CANARY} is wrong"))]);
    let refusing = SmtpSink::start(Tls::Later(stage.acceptor("localhost")), refuses).await;
    let plain = process::Upstream::start();
    let manifest = format!("{}{}", saga(), providers(upstream.port, [taking.port, refusing.port]));
    process::prepare(dir.path(), &manifest, &plain);
    let broker = connect(&nats).await;
    broker.ensure_stream(&aggregates()).await.expect("a stream");
    let (collector, admin) = (TestCollector::default(), dir.path().join("admin.secret"));
    let traces = collector.serve().await;
    std::fs::write(&admin, SECRET).expect("written");
    std::fs::set_permissions(&admin, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("closed");
    let log = "trace,hyper=trace,hyper_util=trace,rustls=trace,tokio_rustls=trace";
    let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
    let (secrets, admin) = (text(stage.directory()), text(&admin));
    let flags = [
        "--log-level",
        log,
        "--otlp-endpoint",
        &traces,
        "--secrets",
        &secrets,
        "--admin-secret-file",
        &admin,
    ];
    let arguments: Vec<_> = rows.iter().chain(&flags).copied().collect();
    let mut saga = ReplicaProcess::over(dir.path(), &nats, &arguments, "alone", 5);
    saga.until_lanes(|lanes| lanes == 1 + STEPS.len(), "it owns its lanes").await;
    publish_event(&*broker, "Order", "e-1", "OrderPlaced", "o-1", r#"{"id":"o-1"}"#).await;
    let held = async || messages(&broker).await.contains(r#""step":"hold""#).then_some(());
    wait_until(held, PATIENCE, "the instance holds").await;
    publish_event(&*broker, "Order", "e-2", "Wrong", "o-1", r#"{"id":"o-1"}"#).await;
    let written = async || (saga.metric("letters_written_total") == Some(1.0)).then_some(());
    wait_until(written, PATIENCE, "a letter is written").await;

    let bearer = format!("authorization: Bearer {SECRET}\r\n");
    let of_tenant = format!("{bearer}x-tenant-id: {}\r\n", crate::world::TENANT);
    let mut pages = String::new();
    for (path, headers) in [
        ("/info", ""),
        ("/info", &*bearer),
        ("/info", &*of_tenant),
        ("/metrics", ""),
        ("/health", ""),
        ("/health", &*bearer),
        ("/ready", ""),
    ] {
        pages.push_str(&saga.ask_with(path, headers).expect("told").1);
    }
    pages.push_str(&server_info(&mut saga, dir.path()).await);
    let messages = messages(&broker).await;
    saga.process.terminate();
    assert!(saga.process.wait(PATIENCE).success());

    // The secret was where it is for, in each way.
    let headers = |path: &str| {
        upstream.requests().into_iter().find(|request| request.line.ends_with(path)).expect(path).headers
    };
    for path in ["/pay", "/refuse", "/busy", "/cut"] {
        assert_eq!(headers(path)["authorization"], format!("Bearer {CANARY}"), "{what}");
    }
    assert_eq!(
        headers("/basic")["authorization"],
        format!("Basic {}", BASE64.encode(format!("shop:{CANARY}")))
    );
    assert_eq!((headers("/basic")["x-api-key"].as_str(), plain.calls()[0].token.as_str()), (CANARY, CANARY));
    assert_eq!((taking.only().is_encrypted, taking.only().login.len(), refusing.mails().len()), (true, 1, 0));
    // Every place was written to.
    let (log, traces) = (saga.process.output(), collector.bytes());
    assert!(
        messages.contains(WITNESS) && is_in_files(files, WITNESS),
        "{what}: what upstreams answered is kept"
    );
    assert!(log.contains("saga started") && log.contains("TRACE"), "{what}: {log}");
    assert!(has(&traces, "SagaService/GetSagaServer"), "{what}: {}", String::from_utf8_lossy(&traces));
    assert!(pages.contains("order"), "{pages}");
    for form in forms() {
        assert!(!is_in_files(files, &form), "{what}: a row has {form}");
        assert!(!messages.contains(&form), "{what}: {messages}");
        assert!(!log.contains(&form), "{what}: {log}");
        assert!(!has(&traces, &form), "{what}: {}", String::from_utf8_lossy(&traces));
        assert!(!pages.contains(&form), "{what}: {pages}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_found_in_no_row_message_log_trace_error_or_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().to_str().expect("a plain path");
    keeps_its_secrets(&["--store-dir", store], dir.path(), "in a directory").await;
    // Its log of appended commands has everything that was ever written.
    let redis = RedisServer::builder().persistent().start();
    keeps_its_secrets(&["--redis-url", &redis.url(), "--replica", "alone"], redis.dir(), "in Redis").await;
}
