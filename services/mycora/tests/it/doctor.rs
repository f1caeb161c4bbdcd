//! Findings of `doctor`.

use std::time::{Duration, SystemTime};

use identity::{Identity, IssueOptions, Pki};
use mycora_cli::up::{self, UpOptions};
use serde_json::Value;
use stand_in::{Overlay, StandIn, Traps};
use testkit::{NatsServer, RedisCluster, RedisSentinels, RedisServer};

use crate::commands::CommandFixture;
use crate::coordinator::{ACTOR_KEY, CoordinatorScript};
use crate::{home, mycora, stderr, stdout};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How a check went, and what was found.
fn found(document: &Value, check: &str) -> (String, String) {
    let findings = document["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["check"] == check);
    let finding = finding.unwrap_or_else(|| panic!("no `{check}` in {document:#}"));
    let text = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    (text("level"), text("found"))
}

fn level(document: &Value, check: &str) -> String {
    found(document, check).0
}

#[test]
fn a_coordinator_that_is_well_is_found_well() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let document = place.document(&["doctor"], 0);
    assert_eq!(document["well"], true);
    for check in ["profile", "authority", "certificate", "service scheduler", "service router", "clock"] {
        assert_eq!(level(&document, check), "ok", "{check}: {document:#}");
    }
    assert_eq!(level(&document, "service supervisor"), "warn", "there is none");
    let (level_of, coordinator) = found(&document, "coordinator");
    assert_eq!(level_of, "ok");
    assert!(coordinator.contains("spiffe://mycora/service/mycora, until "), "{coordinator}");
    let (_, identity) = found(&document, "identity");
    assert_eq!(identity, "spiffe://mycora/actor/1, with a role in 1 context");
    let (_, scripts) = found(&document, "scripts");
    assert!(scripts.contains("shell") && scripts.contains("rhai"), "{scripts}");
    assert!(["ok", "warn"].contains(&level(&document, "isolation").as_str()));

    let document = place.document(&["doctor", "--token-key", ACTOR_KEY], 0);
    let (_, key) = found(&document, "signing key");
    assert!(key.ends_with("every call shows tokens of actor 1 for spiffe://mycora"), "{key}");
    let text = stdout(&place.run_command(&["doctor"], 0));
    assert!(
        text.starts_with("ok    profile") && text.contains("\n                                → "),
        "{text}"
    );
}

#[test]
fn an_expired_certificate_and_an_unknown_authority_are_reported() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let pki = Pki::open(&place.home.path().join("pki")).expect("an authority");
    let past = IssueOptions { validity: DAY, ..IssueOptions::from(SystemTime::now() - 3 * DAY) };
    pki.issue(Identity::Actor(model::ActorId(1)), &past).expect("issued");
    let document = place.document(&["doctor"], 1);
    assert_eq!(document["well"], false);
    let (level_of, certificate) = found(&document, "certificate");
    assert_eq!(level_of, "fail");
    assert!(certificate.contains("actor/1 ended at "), "{certificate}");
    assert_eq!(level(&document, "identity"), "fail", "the coordinator does not believe it either");
    assert_eq!(level(&document, "coordinator"), "ok");

    assert!(place.run_command(&["pki", "init", "--dir", "stranger"], 0).status.success());
    let document = place.document(&["doctor", "--ca", "stranger/ca.pem"], 1);
    let (level_of, coordinator) = found(&document, "coordinator");
    assert_eq!(level_of, "fail");
    assert!(coordinator.contains("invalid peer certificate"), "{coordinator}");
}

#[test]
fn without_a_profile_the_machine_is_looked_at() {
    let home = home();
    let output = mycora(home.path()).args(["--output", "json", "doctor"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(level(&document, "profile"), "fail");
    assert_eq!(level(&document, "scripts"), "ok");
    assert!(document["findings"].as_array().is_some_and(|all| all.iter().all(|one| one["check"] != "clock")));
}

#[test]
fn an_absent_coordinator_is_reported_once() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let profile = place.home.path().join("client.toml");
    let text = std::fs::read_to_string(&profile).expect("a profile");
    let nobody = format!("127.0.0.1:{}", testkit::free_port());
    let begin = text.find("127.0.0.1:").expect("where the coordinator is");
    let length = text[begin..].find('"').expect("its end");
    let address = &text[begin..begin + length];
    std::fs::write(&profile, text.replace(address, &nobody)).expect("written");
    let document = place.document(&["doctor"], 1);
    let failed: Vec<_> = document["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter(|one| {
            let text = one.to_string();
            text.contains(&nobody) || text.contains("no server told the time")
        })
        .collect();
    assert_eq!(failed.len(), 1, "{failed:#?}");
    let (level_of, printed) = found(&document, "coordinator");
    assert!(level_of == "fail" && printed.contains(&nobody) && printed.contains("scheduler"), "{printed}");
    assert_eq!(level(&document, "scripts"), "ok", "the machine is looked at all the same");
}

#[test]
fn settings_of_redis_are_read_and_judged() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let redis = RedisServer::builder().config("maxmemory-policy allkeys-lru").config("databases 16").start();
    let document = place.document(&["doctor", "--redis-url", &redis.url()], 1);
    assert_eq!(level(&document, "redis"), "ok");
    assert_eq!(level(&document, "redis appendonly"), "warn");
    assert_eq!(level(&document, "redis maxmemory-policy"), "fail");
    let (level_of, databases) = found(&document, "redis databases");
    assert_eq!(
        (level_of.as_str(), databases.as_str()),
        ("warn", "16: contexts 1 to 14, in the layout `database`")
    );
    let nowhere = format!("unix://{}", place.home.path().join("none.sock").display());
    assert_eq!(level(&place.document(&["doctor", "--redis-url", &nowhere], 1), "redis"), "fail");
}

/// Such a server's guarantee depends on its version; the advice helps with every version.
#[test]
fn a_disk_synced_once_a_second_is_judged_by_the_required_durability() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let redis = RedisServer::builder().config("appendonly yes").config("appendfsync everysec").start();
    let info = redis.raw(0, &["INFO", "server"]);
    let is_one_of = |versions: &[&str]| versions.iter().any(|version| info.contains(version));
    let is_early = is_one_of(&["redis_version:7.4.0\r", "redis_version:7.4.1\r", "redis_version:7.4.2\r"])
        || is_one_of(&["valkey_version:8.", "valkey_version:9."]);
    let (level_wanted, code) = match (is_one_of(&["redis_version:7.0."]), is_early) {
        (true, _) => ("fail", 1),
        (false, true) => ("warn", 0),
        (false, false) => ("ok", 0),
    };
    let ask = ["doctor", "--redis-url", &redis.url(), "--durability", "synced"];
    let document = place.document(&ask, code);
    let (level_of, printed) = found(&document, "redis durability");
    assert_eq!(level_of, level_wanted, "{printed}");
    let is_advised = document.to_string().contains("`appendfsync always`");
    assert_eq!(is_advised, level_wanted != "ok", "{document}");
    assert_eq!(redis.raw(0, &["CONFIG", "SET", "appendfsync", "always"]), "+OK\r\n");
    assert_eq!(level(&place.document(&ask, 0), "redis durability"), "ok");
}

#[test]
fn every_node_of_a_cluster_is_examined() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let mut cluster = RedisCluster::of(
        &RedisServer::builder().password("hunter2hunter2").config("masterauth hunter2hunter2"),
    );
    let url = cluster.url();
    assert!(url.contains("hunter2"), "there is something to be kept secret");
    let output =
        place.run_command(&["doctor", "--redis-url", &url, "--durability", "synced", "--output", "json"], 1);
    assert!(
        !stdout(&output).contains("hunter2") && !stderr(&output).contains("hunter2"),
        "{}",
        stdout(&output)
    );
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let (level_of, slots) = found(&document, "redis cluster");
    assert_eq!(level_of, "ok", "{slots}");
    assert!(slots.contains("16384 of 16384 slots served by "), "{slots}");
    assert_eq!(level(&document, "redis replicas"), "ok");
    let node = format!("redis 127.0.0.1:{}", cluster.nodes()[cluster.primary_of("a")].port());
    let product = found(&document, &node).1;
    assert!(["Redis ", "Valkey "].iter().any(|name| product.starts_with(name)), "{product}");
    assert_eq!(level(&document, &format!("{node} appendonly")), "warn");
    let (level_of, durability) = found(&document, &format!("{node} durability"));
    assert!(level_of == "fail" && durability.contains("needs an append-only file"), "{durability}");

    // The last node is a replica: its loss is only a warning.
    let last = cluster.nodes().len() - 1;
    let away = format!("redis 127.0.0.1:{}", cluster.nodes()[last].port());
    cluster.kill9(last);
    assert_eq!(level(&place.document(&["doctor", "--redis-url", &url], 0), &away), "warn");
}

#[test]
fn the_master_is_read_from_the_sentinels() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let sentinels = RedisSentinels::start();
    let url = sentinels.url();
    let document = place.document(&["doctor", "--redis-url", &url, "--durability", "fast"], 0);
    let (level_of, master) = found(&document, "redis master");
    let port = sentinels.servers()[sentinels.master()].port();
    assert!(level_of == "ok" && master.ends_with(&format!(":{port}")), "{master}");
    // The durability is met, and the cost of losing this Redis is reported.
    let (level_of, durability) = found(&document, "redis durability");
    assert!(level_of == "warn" && durability.contains("`fast` keeps what Redis keeps"), "{durability}");
    assert_eq!(level(&document, "redis databases"), "ok");
    let (place_of, _) = url.rsplit_once('/').expect("the master's name");
    let document = place.document(&["doctor", "--redis-url", &format!("{place_of}/nobody")], 1);
    assert_eq!(level(&document, "redis master"), "fail");
}

#[test]
fn a_port_for_sidecars_is_looked_at() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let nobody = testkit::free_port();
    let document = place.document(&["doctor", "--mesh-address", &format!("http://127.0.0.1:{nobody}")], 0);
    let (level_of, found_there) = found(&document, "mesh port");
    assert!(level_of == "ok" && found_there.starts_with("not reached from here"), "{found_there}");
    assert_eq!(level(&place.document(&["doctor", "--mesh-address", "https://h:1"], 1), "mesh port"), "fail");
}

#[test]
fn a_daemon_is_reported_with_its_key() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let daemon = StandIn::start(&Overlay::default(), Traps::default());
    let url = daemon.url("ws");
    let (_, port) = url.rsplit_once(':').expect("a port");
    let (level_of, mycelium) = found(&place.document(&["doctor", "--mycelium-port", port], 0), "mycelium");
    assert_eq!(level_of, "ok");
    assert!(mycelium.contains(&daemon.identity().key_text()), "{mycelium}");
    drop(daemon);
    let document = place.document(&["doctor", "--mycelium-ip", "127.0.0.1", "--mycelium-port", port], 1);
    assert_eq!(level(&document, "mycelium"), "fail");
}

/// A broker as the saga service leaves it: its streams, that of aggregates, and the consumers of two lanes.
async fn furnish(server: &NatsServer) {
    use broker::MessageBroker as _;
    use workflow::WorkflowLane;
    use workflow::subject::ConsumerSource;

    let broker = broker::JetStream::start(broker::JetStreamOptions::new(&server.url())).expect("options");
    broker.connected(testkit::PATIENCE).await.expect("a connection");
    let subjects = ["tenant.*.aggregate.*.*"];
    let aggregates = broker::StreamSpec::managed(saga::lane::AGGREGATE_EVENTS, &subjects, DAY);
    for stream in saga::lane::streams(true).into_iter().chain([aggregates]) {
        assert_eq!(broker.ensure_stream(&stream).await, Ok(vec![]));
    }
    let tenant: model::TenantId = "acme".parse().expect("a tenant");
    let effect: model::EffectName = "mail".parse().expect("a name");
    let of_saga =
        WorkflowLane::Saga { tenant: tenant.clone(), saga: "order".parse().expect("a name"), shard: 0 };
    let of_effect = WorkflowLane::Effect { tenant: tenant.clone(), effect: effect.clone() };
    for (stream, lane, source) in [
        (saga::lane::AGGREGATE_EVENTS, &of_saga, ConsumerSource::Aggregate("Order".to_owned())),
        (saga::lane::WORKFLOW_EVENTS, &of_saga, ConsumerSource::Results(effect.clone())),
        (saga::lane::WORKFLOW_COMMANDS, &of_saga, ConsumerSource::Verbs("order".parse().expect("a name"))),
        (saga::lane::WORKFLOW_COMMANDS, &of_effect, ConsumerSource::Commands(effect)),
    ] {
        let (name, filter) = (source.consumer(lane), source.filter(&tenant));
        let mut cursor = broker::CursorSpec::new(stream, &name, &filter, broker::CursorStart::After(0));
        "epoch 3".clone_into(&mut cursor.description);
        drop(broker.open(&cursor).await.expect("a cursor"));
    }
}

#[test]
fn the_broker_of_sagas_is_looked_at() {
    let home = home();
    let server = NatsServer::start();
    let look = |code: i32| {
        let arguments =
            ["--output", "json", "doctor", "--address", "https://127.0.0.1:1", "--nats-url", &server.url()];
        let output = mycora(home.path()).args(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        serde_json::from_slice::<Value>(&output.stdout).expect("one document")
    };
    // The coordinator is not there, which is another finding.
    let document = look(1);
    let (level_of, version) = found(&document, "nats");
    assert!(level_of == "ok" && version.starts_with("nats-server 2."), "{version}");
    assert_eq!(level(&document, "nats max_payload"), "ok");
    assert_eq!(level(&document, "stream WORKFLOW_COMMANDS"), "warn");
    let (level_of, aggregates) = found(&document, "stream AGGREGATE_EVENTS");
    assert!(level_of == "warn" && aggregates.contains("is not there"), "{aggregates}");

    tokio::runtime::Runtime::new().expect("a runtime").block_on(furnish(&server));
    let document = look(1);
    for stream in ["WORKFLOW_COMMANDS", "WORKFLOW_EVENTS", "AGGREGATE_EVENTS"] {
        assert_eq!(level(&document, &format!("stream {stream}")), "ok", "{document:#}");
        assert_eq!(level(&document, &format!("consumers of {stream}")), "ok", "{document:#}");
    }
    let (_, consumers) = found(&document, "consumers of WORKFLOW_COMMANDS");
    assert!(consumers.starts_with("2 consumers of lanes, as wanted"), "{consumers}");

    let stray = r#"{"stream_name":"WORKFLOW_EVENTS","config":{"durable_name":"sg_order_0_r00000000_acme","ack_policy":"none","filter_subject":"tenant.acme.effect_result.mail.*"}}"#;
    let made = server.ask("$JS.API.CONSUMER.DURABLE.CREATE.WORKFLOW_EVENTS.sg_order_0_r00000000_acme", stray);
    assert!(made.contains("\"name\""), "{made}");
    let changed = r#"{"name":"WORKFLOW_COMMANDS","subjects":["tenant.*.effect.*.*"],"retention":"limits","discard":"old","storage":"file","num_replicas":1,"duplicate_window":120000000000,"max_consumers":100000}"#;
    let made = server.ask("$JS.API.STREAM.UPDATE.WORKFLOW_COMMANDS", changed);
    assert!(made.contains("\"config\""), "{made}");
    let document = look(1);
    let (level_of, consumers) = found(&document, "consumers of WORKFLOW_EVENTS");
    assert!(level_of == "fail" && consumers.contains("is that of the consumer sg_order_0_r"), "{consumers}");
    let (level_of, stream) = found(&document, "stream WORKFLOW_COMMANDS");
    assert!(level_of == "fail" && stream.contains("discard") && stream.contains("max_age"), "{stream}");
}

#[test]
fn an_unreachable_broker_is_reported() {
    let home = home();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let arguments = ["--output", "json", "doctor", "--address", "https://127.0.0.1:1", "--nats-url", &url];
    let output = mycora(home.path()).args(arguments).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let (level_of, nats) = found(&document, "nats");
    assert!(level_of == "fail" && nats.contains("does not answer"), "{nats}");
}

/// Findings of a check of records, each with its level.
fn records(document: &Value, check: &str) -> Vec<(String, String)> {
    let findings = document["findings"].as_array().expect("findings").iter();
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    findings
        .filter(|finding| text(finding, "check").starts_with(check))
        .map(|finding| (text(finding, "level"), text(finding, "found")))
        .collect()
}

#[test]
fn a_broken_record_is_found_and_repaired_once_that_is_confirmed() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let document = place.document(&["doctor", "--deep"], 1);
    assert_eq!(document["well"], false);
    let whole = ("ok".to_owned(), "30 keys, and no record that breaks an invariant".to_owned());
    assert_eq!(records(&document, "actors and contexts"), [whole]);
    let asleep = "FLOW_ASLEEP: inputs wait, and the flow is not in flows_active";
    assert_eq!(records(&document, "context 1 flow:7"), [("fail".to_owned(), asleep.to_owned())]);
    assert_eq!(records(&document, "context 1").len(), 2);
    let advice =
        "repair with `mycora doctor --deep --repair --as admin`: a scheduler is told to go on with it";
    assert!(document.to_string().contains(advice), "{document:#}");
    let checks = |place: &CommandFixture| {
        let calls = place.calls().into_iter();
        calls.filter(|call| call.starts_with("check ")).collect::<Vec<_>>()
    };
    assert_eq!(checks(&place), ["check 0 false", "check 1 false"]);

    // There is no terminal to ask at.
    let refused = stderr(&place.run_command(&["doctor", "--deep", "--repair"], 2));
    assert!(refused.contains("this repairs 1 record;") && refused.contains("--yes"), "{refused}");
    assert!(!checks(&place).iter().any(|call| call.ends_with("true")), "nothing is repaired unasked");

    let document = place.document(&["doctor", "--deep", "--repair", "--yes"], 0);
    let repaired = format!("{asleep} (repaired: a scheduler is told to go on with it)");
    assert_eq!(records(&document, "context 1 flow:7"), [("ok".to_owned(), repaired)]);
    assert_eq!(checks(&place)[4..], ["check 0 true", "check 1 true"]);
    place.document(&["doctor", "--deep"], 0);
}

#[test]
fn one_context_is_checked_alone() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let deep = |context: &str, code| place.document(&["doctor", "--deep", "--context", context], code);
    let document = deep("5", 1);
    let other = ("fail".to_owned(), "BLOB_CONTENT: other bytes".to_owned());
    assert_eq!(records(&document, "context 5 blob:ab"), [other]);
    assert!(!document.to_string().contains("doctor --deep --repair"), "it cannot be repaired");
    let repaired = place.document(&["doctor", "--deep", "--context", "5", "--repair", "--yes"], 1);
    assert_eq!(records(&repaired, "context 5 blob:ab").len(), 1);
    let uncounted = records(&deep("6", 0), "context 6");
    let found = "not counted, since the context changed meanwhile: flows_open";
    assert_eq!(uncounted[1], ("warn".to_owned(), found.to_owned()));

    let forbidden = records(&deep("7", 1), "context 7");
    let found = "only the bootstrap identity may check records";
    assert_eq!(forbidden, [("fail".to_owned(), found.to_owned())]);
    let needless = place.run_command(&["doctor", "--repair"], 2);
    assert!(stderr(&needless).contains("--deep"), "{}", stderr(&needless));
}

#[test]
fn a_break_in_redis_is_found_by_the_bootstrap_identity_and_repaired() {
    let (redis, dir) = (RedisServer::start(), tempfile::tempdir().expect("a directory"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let launcher = sandbox::SandboxLauncher::at(env!("CARGO_BIN_EXE_mycora").into());
    let redis_url = Some(redis.url().parse().expect("an endpoint"));
    let options = UpOptions { launcher, supervisor: false, redis_url, ..UpOptions::private(dir.path()) };
    let running = runtime.block_on(up::start(options)).expect("it starts");
    let deep = |more: &[&str]| {
        let output = mycora(dir.path())
            .env("MYCORA_CONFIG", dir.path().join("client.toml"))
            .args(["--output", "json", "doctor", "--deep"])
            .args(more)
            .output()
            .expect("it starts");
        let document = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        (output.status.code(), document, stderr(&output))
    };
    let (code, document, _) = deep(&["--as", "admin"]);
    let levels: Vec<_> = records(&document, "context 1").into_iter().map(|(level, _)| level).collect();
    assert_eq!((code, levels), (Some(0), vec!["ok".to_owned()]), "{document:#}");
    assert_eq!(records(&document, "actors and contexts")[0].0, "ok", "{document:#}");

    assert_eq!(redis.raw(1, &["ZADD", "flows:error", "4000000000", "4444"]), ":1\r\n");
    let (code, document, _) = deep(&["--as", "admin"]);
    let gone = "FLOW_GONE: the flow does not exist, and is named in flows:error";
    assert_eq!(records(&document, "context 1 flow:4444"), [("fail".to_owned(), gone.to_owned())]);
    assert_eq!((code, &document["well"]), (Some(1), &false.into()));
    // The actor of the profile may not check, and nobody repairs unasked.
    let (code, document, _) = deep(&["--context", "1"]);
    assert_eq!((code, records(&document, "context 1")[0].0.as_str()), (Some(1), "fail"), "{document:#}");
    let (code, _, printed) = deep(&["--repair", "--as", "admin"]);
    assert!(code == Some(2) && printed.contains("--yes"), "{printed}");

    let (code, document, _) = deep(&["--repair", "--yes", "--as", "admin"]);
    assert_eq!((code, &records(&document, "context 1 flow:4444")[0].0), (Some(0), &"ok".to_owned()));
    assert_eq!(redis.raw(1, &["ZCARD", "flows:error"]), ":0\r\n");
    let (code, document, _) = deep(&["--as", "admin"]);
    assert_eq!((code, records(&document, "context 1 flow:4444").len()), (Some(0), 0), "{document:#}");
    runtime.block_on(running.stop()).expect("it ends");
}
