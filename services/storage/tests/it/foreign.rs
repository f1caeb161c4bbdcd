//! Records that programs write with plain Redis commands, with the fields that they know.

use identity::{Identity, SigningKey};
use keys::Layout;
use kv::Cmd;
use model::{ActorId, FlowId, JobId, RunnerId};
use proto::internal::v1 as wire;
use proto::v1;
use rpc::ErrorView;
use tonic::{Code, Status};

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, Stage};

async fn hset(stage: &Stage<impl Redis>, key: &str, fields: &[(&str, &str)]) {
    let set = fields.iter().fold(Cmd::new("HSET").arg(key), |set, (name, value)| set.arg(*name).arg(*value));
    stage.command(set).await;
}

/// A refusal that names the record, and what of it is wrong.
fn names(result: Result<impl std::fmt::Debug, Status>, parts: &[&str]) {
    let view = ErrorView::from(&result.unwrap_err());
    assert_eq!(
        (view.code, view.reason.as_str()),
        (Code::FailedPrecondition, "RECORD_UNREADABLE"),
        "{view:?}"
    );
    for part in parts.iter().chain(&["specs/redis-layout.md"]) {
        assert!(view.message.contains(part), "{part}: {}", view.message);
    }
}

#[tokio::test]
async fn an_actor_with_the_fields_of_the_source_is_read_and_changed() {
    let stage = Stage::new(Layout::HashTag).await;
    let (global, zero) = stage.global();
    let write = async |id: u32, fields: &[(&str, &str)]| {
        let key = global.actor(ActorId(id));
        let set = Cmd::new("HSET").arg(&key);
        let set = fields.iter().fold(set, |set, (name, value)| set.arg(*name).arg(*value));
        zero.cmd(set).await.unwrap();
        zero.cmd(Cmd::new("SADD").arg(&global.actors()).arg(id)).await.unwrap();
    };
    let key = SigningKey::generate().verifying_key().to_string();
    let address = r#"["mycelium:[400::1]"]"#;
    let fields = [("id", "20"), ("pubkey", &key), ("address", address), ("created_at", "1735689600")];
    write(20, &[&fields[..], &[("updated_at", "1735689600")]].concat()).await;

    let mut admin = stage.actors(Identity::Admin);
    let get = |id| v1::GetActorRequest { id };
    let actor = admin.get_actor(get(20)).await.unwrap().into_inner().actor.unwrap();
    assert_eq!((&actor.pubkey, actor.revision, actor.address.len()), (&key, 0, 1));
    assert_eq!(actor.create_time.map(|time| time.seconds), Some(1_735_689_600));
    // Its one key counts from its beginning, for tokens as well.
    let request = wire::ReadActorRequest { actor_id: 20 };
    let known = stage.identities().read_actor(request).await.unwrap().into_inner();
    assert_eq!(known.keys.iter().map(|known| known.key.as_str()).collect::<Vec<_>>(), [key.as_str()]);

    // It may be changed as others, and then has a revision.
    let change = v1::UpdateActorRequest { id: 20, address: Vec::new(), ..Default::default() };
    let changed = admin.update_actor(change).await.unwrap().into_inner().actor.unwrap();
    assert!(changed.revision > 0 && changed.pubkey == key && changed.address.is_empty());
    let taken = v1::RegisterActorRequest { id: 20, pubkey: key.clone(), ..Default::default() };
    assert_eq!(admin.register_actor(taken).await.unwrap_err().code(), Code::AlreadyExists);

    // A record that cannot be read is refused by name, and hides no other actor.
    write(21, &[("id", "21"), ("pubkey", &key), ("address", "here")]).await;
    write(22, &[("id", "5"), ("pubkey", &key)]).await;
    write(23, &[("pubkey", &key)]).await;
    names(admin.get_actor(get(21)).await, &["actor:21", "`address`"]);
    names(admin.get_actor(get(22)).await, &["actor:22", "`id`", "but its key says 22"]);
    names(admin.get_actor(get(23)).await, &["actor:23", "`id`", "missing"]);
    zero.cmd(Cmd::new("SET").arg(&global.actor(ActorId(24))).arg("x")).await.unwrap();
    zero.cmd(Cmd::new("SADD").arg(&global.actors()).arg(24)).await.unwrap();
    names(admin.get_actor(get(24)).await, &["actor:24", "is not a hash"]);
    let list = v1::ListActorsRequest { page_size: 100, ..Default::default() };
    let actors = admin.list_actors(list).await.unwrap().into_inner().actors;
    assert_eq!(actors.iter().map(|actor| actor.id).collect::<Vec<_>>(), [1, 2, 3, 4, 20]);
    let remove = v1::DeleteActorRequest { id: 20, ..Default::default() };
    admin.delete_actor(remove).await.unwrap();
    assert_eq!(admin.get_actor(get(20)).await.unwrap_err().code(), Code::NotFound);
}

async fn what_belongs_to_a_context_is_read_or_refused_by_name(stage: Stage<impl Redis>) {
    let keys = stage.keys();
    let times = [("created_at", "1735689600"), ("updated_at", "1735689600")];
    let flow =
        [("id", "77"), ("caller_id", "2"), ("context_id", "1"), ("jobs", "[5]"), ("status", "Created")];
    hset(&stage, &keys.flow(FlowId(77)), &[&flow[..], &times].concat()).await;
    stage.command(Cmd::new("ZADD").arg(&keys.flows()).arg(9_000_000).arg(77)).await;
    stage.command(Cmd::new("SET").arg(&keys.flow(FlowId(78))).arg("x")).await;
    stage.command(Cmd::new("ZADD").arg(&keys.flows()).arg(9_000_001).arg(78)).await;
    let read = |flow_id| wire::ReadFlowRequest {
        context_id: CONTEXT,
        flow_id,
        on_behalf_of: ADMIN,
        ..Default::default()
    };
    names(stage.flows().read_flow(read(77)).await, &["flow 77", "`uid`", "missing"]);
    names(stage.flows().read_flow(read(78)).await, &["flow 78", "is not a hash"]);
    let ours = stage.started(1).await;
    let list = wire::ReadFlowsRequest {
        context_id: CONTEXT,
        page_size: 100,
        on_behalf_of: ADMIN,
        ..Default::default()
    };
    let listed = stage.flows().read_flows(list).await.unwrap().into_inner().flows;
    assert_eq!(listed.iter().map(|flow| flow.id).collect::<Vec<_>>(), [ours.id], "the others are left out");

    let runner = [("id", "9"), ("pubkey", ""), ("address", "mycelium:[400::1]"), ("topic", "runner9")];
    hset(&stage, &keys.runner(RunnerId(9)), &[&runner[..], &times].concat()).await;
    stage.command(Cmd::new("SADD").arg(&keys.runners()).arg(9)).await;
    let get = wire::ReadRunnerRequest { context_id: CONTEXT, runner_id: 9, on_behalf_of: ADMIN };
    names(stage.runners().read_runner(get).await, &["runner 9", "`revision`"]);
    let put = v1::RegisterRunnerRequest {
        context_id: CONTEXT,
        address: "grpc://host:7706".to_owned(),
        script_types: vec![v1::ScriptType::Shell.into()],
        ..Default::default()
    };
    let put = wire::PutRunnerRequest { runner: Some(put), on_behalf_of: ADMIN };
    let registered = stage.runners().put_runner(put).await.unwrap().into_inner().runner.unwrap();
    let list = wire::ReadRunnersRequest {
        context_id: CONTEXT,
        page_size: 100,
        on_behalf_of: ADMIN,
        ..Default::default()
    };
    let found = stage.runners().read_runners(list).await.unwrap().into_inner().runners;
    assert_eq!(found.iter().map(|runner| runner.id).collect::<Vec<_>>(), [registered.id]);

    // A job has no constants.
    let job =
        [("id", "5"), ("caller_id", "2"), ("context_id", "1"), ("script", "echo"), ("script_type", "shell")];
    let job =
        [&job[..], &[("timeout", "60"), ("retries", "0"), ("env_vars", "{}"), ("dependends", "[]")]].concat();
    hset(&stage, &keys.job(ActorId(EXECUTOR), JobId(5)), &[&job[..], &times].concat()).await;
    let mut jobs = stage.jobs(ADMIN);
    let get = |id| v1::GetJobRequest { context_id: CONTEXT, caller_id: EXECUTOR, job_id: id };
    assert_eq!(jobs.get_job(get(5)).await.unwrap().into_inner().job.unwrap().id, 5);
    hset(&stage, &keys.job(ActorId(EXECUTOR), JobId(6)), &[("id", "6"), ("script", "x")]).await;
    names(jobs.get_job(get(6)).await, &["job 2:6", "missing"]);
}

#[tokio::test]
async fn a_context_that_a_program_wrote_is_refused_and_hides_no_other() {
    let stage = Stage::new(Layout::HashTag).await;
    let (global, zero) = stage.global();
    zero.cmd(Cmd::new("SADD").arg(&global.contexts()).arg(7)).await.unwrap();
    let set = Cmd::new("HSET").arg("{7}:context:7").args(["id", "7", "admins", "[1]"]);
    stage.kv.at(0, "{7}").cmd(set).await.unwrap();
    let mut own = stage.contexts(Identity::Actor(ActorId(ADMIN)));
    names(own.get_context(v1::GetContextRequest { id: 7 }).await, &["context:7", "`uid`"]);
    let list = v1::ListContextsRequest { page_size: 100, ..Default::default() };
    let contexts = own.list_contexts(list).await.unwrap().into_inner().contexts;
    assert_eq!(contexts.iter().map(|context| context.id).collect::<Vec<_>>(), [CONTEXT]);
}

scenarios!(what_belongs_to_a_context_is_read_or_refused_by_name);
