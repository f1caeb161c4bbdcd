//! Permissions of actors, and what others learn of them.

use identity::{Identity, ServiceName};
use keys::Layout;
use kv::Cmd;
use model::{ActorId, FlowInput};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::{Code, Status};

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, Running, STRANGER, Stage, create, failure};

fn code<T>(result: Result<T, Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}

fn cancel(flow: &Running) -> wire::PushInputRequest {
    flow.push(&FlowInput::Cancel { grace_secs: 5 })
}

/// Answers to an actor that reads and cancels a flow of the executor, creates its own and one for another actor,
/// registers a runner, puts a blob and reads the context.
async fn answers_in_context(stage: &Stage, flow: &Running, actor: u32) -> [(&'static str, Code); 7] {
    let read =
        wire::ReadFlowRequest { context_id: CONTEXT, flow_id: flow.id, on_behalf_of: actor, purpose: 0 };
    let cancel = wire::PushInputRequest { on_behalf_of: actor, ..cancel(flow) };
    let own = wire::CreateFlowRequest { caller_id: actor, on_behalf_of: actor, ..create(1) };
    let others = wire::CreateFlowRequest { caller_id: 9, on_behalf_of: actor, ..create(1) };
    let runner = v1::RegisterRunnerRequest {
        context_id: CONTEXT,
        address: "grpc://host:1".to_owned(),
        ..Default::default()
    };
    let runner = wire::PutRunnerRequest { runner: Some(runner), on_behalf_of: actor };
    let piece = v1::PutBlobRequest { context_id: CONTEXT, data: b"x".to_vec().into(), ..Default::default() };
    let blob = stage.jobs(actor).put_blob(tokio_stream::iter([piece])).await;
    let get = v1::GetContextRequest { id: CONTEXT };
    let context = stage.contexts(Identity::Actor(ActorId(actor))).get_context(get).await;
    let mut flows = stage.flows();
    [
        ("reads", code(flows.read_flow(read).await)),
        ("cancels the executor's", code(flows.push_input(cancel).await)),
        ("creates its own", code(flows.create_flow(own).await)),
        ("creates for another", code(flows.create_flow(others).await)),
        ("registers a runner", code(stage.runners().put_runner(runner).await)),
        ("puts a blob", code(blob)),
        ("reads the context", code(context)),
    ]
}

/// Answers to an actor that fills a new flow of the executor, starts it, loads it and runs it again.
async fn answers_about_a_flow(stage: &Stage, actor: u32) -> [(&'static str, Code); 4] {
    let created = stage.created(1).await;
    let fill = wire::AddNodesRequest { on_behalf_of: actor, ..created.add_nodes(&crate::stage::script("x")) };
    let start = wire::StartFlowRequest {
        context_id: CONTEXT,
        flow_id: created.id,
        flow_uid: created.uid.clone(),
        on_behalf_of: actor,
        ..Default::default()
    };
    let load = wire::LoadFlowRequest { context_id: CONTEXT, flow_id: created.id, on_behalf_of: actor };
    let restart = wire::RestartFlowRequest {
        context_id: CONTEXT,
        flow_id: created.id,
        flow_uid: created.uid.clone(),
        on_behalf_of: actor,
        rerun_json: r#"{"scope":"all"}"#.to_owned(),
        generation: 1,
        ..Default::default()
    };
    let mut flows = stage.flows();
    [
        ("fills", code(flows.add_nodes(fill).await)),
        ("starts", code(flows.start_flow(start).await)),
        ("loads", code(flows.load_flow(load).await)),
        ("runs again", code(flows.restart_flow(restart).await)),
    ]
}

#[tokio::test]
async fn the_table_of_roles() {
    let stage = Stage::new(Layout::Database).await;
    let flow = stage.started(1).await;
    let (ok, denied, unseen, early) =
        (Code::Ok, Code::PermissionDenied, Code::NotFound, Code::FailedPrecondition);
    for (actor, in_context, of_flow) in [
        (ADMIN, [ok, ok, ok, ok, ok, ok, ok], [ok, ok, ok, early]),
        (EXECUTOR, [ok, ok, ok, denied, denied, ok, ok], [ok, ok, ok, early]),
        (READER, [ok, denied, denied, denied, denied, denied, ok], [denied, denied, ok, denied]),
        (STRANGER, [unseen; 7], [unseen; 4]),
    ] {
        for ((what, answer), expected) in
            answers_in_context(&stage, &flow, actor).await.into_iter().zip(in_context)
        {
            assert_eq!(answer, expected, "actor {actor} {what}");
        }
        for ((what, answer), expected) in answers_about_a_flow(&stage, actor).await.into_iter().zip(of_flow) {
            assert_eq!(answer, expected, "actor {actor} {what} a flow");
        }
    }
    // A flow of another actor: only admins.
    let other = wire::CreateFlowRequest { caller_id: ADMIN, on_behalf_of: ADMIN, ..create(1) };
    let other = stage.flows().create_flow(other).await.unwrap().into_inner().flow.unwrap().flow.unwrap();
    let cancel = wire::PushInputRequest { flow_id: other.id, ..cancel(&flow) };
    assert_eq!(code(stage.flows().push_input(cancel).await), denied);
}

#[tokio::test]
async fn a_context_may_let_only_admins_submit() {
    let stage = Stage::new(Layout::Database).await;
    let settings = r#"{"executors_may_submit":false,"raw_publish":false}"#;
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg("settings").arg(settings)).await;
    let refused = failure(stage.flows().create_flow(create(1)).await);
    assert_eq!(refused, (Code::PermissionDenied, "ROLE_INSUFFICIENT".to_owned()));
    let admin = wire::CreateFlowRequest { on_behalf_of: ADMIN, ..create(1) };
    stage.flows().create_flow(admin).await.unwrap();
}

#[tokio::test]
async fn a_context_that_is_going_takes_no_changes() {
    let stage = Stage::new(Layout::Database).await;
    let flow = stage.started(1).await;
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg("state").arg("deleting")).await;
    let refused = failure(stage.flows().create_flow(create(1)).await);
    assert_eq!(refused, (Code::FailedPrecondition, "CONTEXT_DELETING".to_owned()));
    assert_eq!(stage.commit(flow.step()).await.refusal(), wire::CommitRefusal::ContextDeleting);
    let read =
        wire::ReadFlowRequest { context_id: CONTEXT, flow_id: flow.id, on_behalf_of: READER, purpose: 0 };
    stage.flows().read_flow(read).await.unwrap();
}

#[tokio::test]
async fn methods_are_for_those_who_need_them() {
    let stage = Stage::new(Layout::Database).await;
    let actor = Identity::Actor(ActorId(ADMIN));
    let register = v1::RegisterActorRequest { pubkey: "0".repeat(64), ..Default::default() };
    assert_eq!(failure(stage.actors(actor).register_actor(register).await).0, Code::PermissionDenied);
    let get = |id| v1::GetActorRequest { id };
    for visible in [ADMIN, EXECUTOR, READER] {
        stage.actors(actor).get_actor(get(visible)).await.unwrap();
    }
    assert_eq!(failure(stage.actors(actor).get_actor(get(STRANGER)).await).0, Code::NotFound);
    stage.actors(Identity::Admin).get_actor(get(STRANGER)).await.unwrap();
    let router = stage.channel(Identity::Service(ServiceName::Router));
    let mut flows = wire::flow_store_service_client::FlowStoreServiceClient::new(router);
    assert_eq!(failure(flows.create_flow(create(1)).await).0, Code::PermissionDenied);
    let who = stage.actors(actor).who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
    assert_eq!((who.spiffe_id.as_str(), who.actor.unwrap().id), ("spiffe://mycora/actor/1", ADMIN));
}

#[tokio::test]
async fn contexts_are_made_once_and_only_where_redis_has_room() {
    let stage = Stage::new(Layout::Database).await;
    let mut contexts = stage.contexts(Identity::Actor(ActorId(EXECUTOR)));
    let new = v1::CreateContextRequest { request_id: "c".to_owned(), ..Default::default() };
    let first = contexts.create_context(new.clone()).await.unwrap().into_inner().context.unwrap();
    let again = contexts.create_context(new.clone()).await.unwrap().into_inner().context.unwrap();
    assert_eq!(first, again);
    assert_eq!((first.id, first.admins.as_slice()), (2, [EXECUTOR].as_slice()), "its creator is its admin");
    let reused = v1::CreateContextRequest { readers: vec![READER], ..new };
    assert_eq!(failure(contexts.create_context(reused).await).1, "REQUEST_ID_REUSED");
    let taken = v1::CreateContextRequest { id: CONTEXT, ..Default::default() };
    assert_eq!(failure(contexts.create_context(taken).await).0, Code::AlreadyExists);
    for id in [4095, 5000] {
        let beyond = v1::CreateContextRequest { id, ..Default::default() };
        let status = contexts.create_context(beyond).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        for word in ["databases 4096", "hash-tag"] {
            assert!(status.message().contains(word), "{}", status.message());
        }
    }
    let mut admin = stage.contexts(Identity::Admin);
    assert_eq!(
        failure(admin.create_context(v1::CreateContextRequest::default()).await).0,
        Code::InvalidArgument
    );
    let mut unknown = stage.contexts(Identity::Actor(ActorId(77)));
    let refused = unknown.create_context(v1::CreateContextRequest::default()).await;
    assert_eq!(failure(refused).0, Code::PermissionDenied);
}

#[tokio::test]
async fn no_named_id_takes_the_ids_of_others_away() {
    let stage = Stage::new(Layout::Database).await;
    let mut contexts = stage.contexts(Identity::Actor(ActorId(EXECUTOR)));
    let zero = stage.kv.database(0);
    let mut make = async |id| {
        let request = v1::CreateContextRequest { id, ..Default::default() };
        contexts.create_context(request).await.map(|made| made.into_inner().context.unwrap().id)
    };
    // The last that there is, and one that is next.
    assert_eq!((make(4094).await.unwrap(), make(2).await.unwrap()), (4094, 2));
    assert_eq!(make(0).await.unwrap(), 3, "what was named moved nothing, and is left out");
    // After the last come those that are free again.
    zero.cmd(Cmd::new("HSET").arg("ids").arg("context").arg(4093)).await.unwrap();
    assert_eq!(make(0).await.unwrap(), 4);
    let all = (1..=4094).map(|id: u32| id.to_string());
    zero.cmd(all.fold(Cmd::new("SADD").arg("contexts"), |add, id| add.arg(&id))).await.unwrap();
    let full = make(0).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(full.message().contains("databases 4096"), "{}", full.message());
}

#[tokio::test]
async fn a_context_whose_maker_died_is_taken_up_again() {
    let stage = Stage::new(Layout::Database).await;
    let mut contexts = stage.contexts(Identity::Actor(ActorId(EXECUTOR)));
    let new = v1::CreateContextRequest { request_id: "c".to_owned(), id: 7, ..Default::default() };
    let made = contexts.create_context(new.clone()).await.unwrap().into_inner();
    // As if the service had died before the last of the three writes.
    let zero = stage.kv.database(0);
    zero.cmd(Cmd::new("SREM").arg("contexts").arg(7)).await.unwrap();
    let reserved = format!("{} 1763690000.000", made.context.as_ref().unwrap().uid);
    zero.cmd(Cmd::new("HSET").arg("ids").arg("context:7").arg(&reserved)).await.unwrap();
    assert_eq!(contexts.create_context(new).await.unwrap().into_inner(), made);
    let members = zero.cmd(Cmd::new("SISMEMBER").arg("contexts").arg(7)).await.unwrap();
    assert_eq!(members.int(), Ok(1));
    // And as if storage had died, and another request names the same id.
    zero.cmd(Cmd::new("SREM").arg("contexts").arg(7)).await.unwrap();
    let other = v1::CreateContextRequest { id: 7, ..Default::default() };
    assert_eq!(failure(contexts.create_context(other).await).0, Code::AlreadyExists);
    let members = zero.cmd(Cmd::new("SISMEMBER").arg("contexts").arg(7)).await.unwrap();
    assert_eq!(members.int(), Ok(1));
}
