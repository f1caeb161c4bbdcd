//! The Redis layout is a wire contract: every key and field of the specification, in the form it says.

use std::collections::BTreeMap;

use keys::{GlobalKeys, Layout};
use kv::Cmd;
use model::{ActorId, FlowId, JobId, MessageId, RunnerId, Timestamp};
use proto::internal::v1 as wire;
use proto::v1;
use storage::Config;
use testkit::RedisCluster;

use crate::places::Redis;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, Stage, json};

fn assert_fields(hash: &BTreeMap<String, String>, fields: &str) {
    for field in fields.split_whitespace() {
        assert!(hash.contains_key(field), "`{field}` is missing in {hash:?}");
    }
    for field in ["created_at", "updated_at"] {
        let text = &hash[field];
        assert_eq!(text.parse::<Timestamp>().unwrap().to_string(), *text, "Unix seconds with three decimals");
    }
}

async fn check<R: Redis>(stage: Stage<R>) {
    let global = GlobalKeys::new(stage.layout);
    let keys = stage.keys();
    context_and_runner_are_as_specified(&stage, &global).await;
    flow_and_job_are_as_specified(&stage).await;

    // Every change has raised the counter by one and left its events, without a gap.
    let events =
        stage.command(Cmd::new("XRANGE").arg(&keys.events()).arg("-").arg("+")).await.entries().unwrap();
    let mut revisions: Vec<u64> = Vec::new();
    for event in &events {
        assert_eq!(event.text("b").unwrap().len(), 16);
        serde_json::from_str::<model::ContextEvent>(event.text("e").unwrap()).unwrap();
        revisions.push(event.id.split_once('-').unwrap().0.parse().unwrap());
    }
    revisions.dedup();
    assert_eq!(revisions, (1..=stage.revision().await).collect::<Vec<_>>());
    for server in stage.kv.primaries().await.unwrap() {
        for text in server.cmd(Cmd::new("KEYS").arg("*")).await.unwrap().texts().unwrap() {
            let known = keys.parse(&text).is_some() || global.parse(&text).is_some();
            assert!(known, "{text} is no key of ours");
        }
    }
}

async fn context_and_runner_are_as_specified(stage: &Stage<impl Redis>, global: &GlobalKeys) {
    let (zero, keys) = (stage.kv.at(global.database(), &global.tag()), stage.keys());
    let contexts = zero.cmd(Cmd::new("SMEMBERS").arg(&global.contexts())).await.unwrap().texts().unwrap();
    assert_eq!(contexts, ["1"]);
    let actor =
        zero.cmd(Cmd::new("HGETALL").arg(&global.actor(ActorId(ADMIN)))).await.unwrap().hash().unwrap();
    assert_fields(&actor, "id pubkey address keys home_context created_at updated_at revision");
    let context = stage.hash(&keys.context()).await;
    assert_fields(&context, "id uid state admins readers executors settings created_at updated_at revision");
    assert_eq!((context["state"].as_str(), context["admins"].as_str()), ("active", "[1]"));

    let runner = v1::RegisterRunnerRequest {
        context_id: CONTEXT,
        address: "grpc://host:7706".to_owned(),
        script_types: vec![v1::ScriptType::Shell.into()],
        ..Default::default()
    };
    let put = wire::PutRunnerRequest { runner: Some(runner), on_behalf_of: ADMIN };
    stage.runners().put_runner(put).await.unwrap();
    let runner = stage.hash(&keys.runner(RunnerId(1))).await;
    assert_fields(
        &runner,
        "id pubkey address topic signing_key script_types group labels local envelope secret_ref created_at \
         updated_at drained_at deleted_at revision",
    );
    assert_eq!(runner["script_types"], r#"["shell"]"#);
}

async fn flow_and_job_are_as_specified(stage: &Stage<impl Redis>) {
    let keys = stage.keys();
    let mut flow = stage.started(2).await;
    let message = wire::CommitRequest {
        messages: vec![flow.message(101)],
        due_millis: 1_763_690_001_000,
        ..flow.step()
    };
    stage.apply(&mut flow, message).await;
    let record = stage.hash(&keys.flow(FlowId(flow.id))).await;
    assert_fields(
        &record,
        "id uid name caller_id context_id jobs env_vars result fail_fast deadline cancel_requested_time cancel_timeout \
         created_at updated_at status generation revision owner epoch",
    );
    assert_eq!((record["jobs"].as_str(), record["status"].as_str()), ("[1,2]", "started"));
    assert_eq!(record["env_vars"], r#"{"A":"1"}"#);
    let deadline: Timestamp = record["deadline"].parse().unwrap();
    let created: Timestamp = record["created_at"].parse().unwrap();
    assert!(deadline.since(created).as_secs() >= 60, "a minute after the start");
    let nodes = stage.hash(&keys.flow_nodes(FlowId(flow.id))).await;
    assert_eq!(nodes["1"].as_bytes(), &json(&flow.node(0))[..]);
    let due = stage.command(Cmd::new("ZSCORE").arg(&keys.due()).arg(&flow.member())).await.text().unwrap();
    assert!(due.starts_with("1763690001"), "{due}");

    let job = stage.hash(&keys.job(ActorId(EXECUTOR), JobId(1))).await;
    assert_fields(
        &job,
        "id caller_id context_id flow_id script script_type timeout retries env_vars files outputs result \
         prerequisites depends signature created_at updated_at status",
    );
    assert_eq!((job["script"].as_str(), job["script_type"].as_str()), ("true", "shell"));
    assert_eq!(job["status"], "waiting_for_prerequisites");
    message_is_as_specified(stage).await;
}

/// The one that carries nodes of the flow.
async fn message_is_as_specified(stage: &Stage<impl Redis>) {
    let keys = stage.keys();
    let key = keys.message(ActorId(EXECUTOR), MessageId(101));
    let message = stage.hash(&key).await;
    assert_fields(
        &message,
        "id caller_id context_id flow_id to message_type timeout_ack nodes created_at updated_at status transport_status \
         router",
    );
    let no_value = "target_context topic from_pubkey origin signature message message_format_type timeout timeout_result logs \
                    error transport_id";
    let written: Vec<&str> = no_value.split(' ').filter(|name| message.contains_key(*name)).collect();
    assert_eq!(written, [""; 0], "what has no value, or always the same one");
    assert_eq!((message["status"].as_str(), message["message_type"].as_str()), ("dispatched", "job"));
    assert_eq!(message["nodes"], r#"[{"n":101},{"m": 1}]"#);
    assert_eq!(message["created_at"], "1763690000.125");
    let out = stage.command(Cmd::new("LRANGE").arg(&keys.msg_out()).arg(0).arg(-1)).await.texts().unwrap();
    assert_eq!(out, [key]);
}

#[tokio::test]
async fn the_database_layout_is_as_specified() {
    check(Stage::new(Layout::Database).await).await;
}

#[tokio::test]
async fn the_hash_tag_layout_is_as_specified() {
    check(Stage::new(Layout::HashTag).await).await;
}

#[tokio::test]
async fn a_cluster_is_as_specified() {
    let config = Config { layout: Layout::HashTag, ..Config::default() };
    check(Stage::with(RedisCluster::start(), config).await).await;
}
