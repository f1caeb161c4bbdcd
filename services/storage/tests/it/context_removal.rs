//! A context is removed with everything in it, by any storage.

use identity::Identity;
use kv::Cmd;
use model::{ActorId, FlowInput, RunnerId};
use proto::internal::v1 as wire;
use proto::internal::v1::change_runner_request::Change;
use proto::v1;
use testkit::{PATIENCE, wait_until};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, Router, STRANGER, Stage, create, failure};

async fn delete(stage: &Stage<impl Redis>, identity: Identity) -> Result<(), Status> {
    let request = v1::DeleteContextRequest { context_id: CONTEXT, ..Default::default() };
    stage.contexts(identity).delete_context(request).await.map(drop)
}

fn deleting(stage: &Stage<impl Redis>) -> JoinHandle<Result<(), Status>> {
    let mut contexts = stage.contexts(Identity::Admin);
    let request = v1::DeleteContextRequest { context_id: CONTEXT, ..Default::default() };
    tokio::spawn(async move { contexts.delete_context(request).await.map(drop) })
}

async fn add_runner(stage: &Stage<impl Redis>, id: u32) {
    let runner = v1::RegisterRunnerRequest {
        context_id: CONTEXT,
        runner_id: id,
        address: format!("grpc://host:{id}"),
        topic: format!("topic-{id}"),
        ..Default::default()
    };
    let put = wire::PutRunnerRequest { runner: Some(runner), on_behalf_of: ADMIN };
    stage.runners().put_runner(put).await.unwrap();
}

async fn delete_runner(stage: &Stage<impl Redis>, id: u32) {
    let delete = v1::DeleteRunnerRequest { context_id: CONTEXT, runner_id: id, ..Default::default() };
    let change = wire::ChangeRunnerRequest { change: Some(Change::Delete(delete)), on_behalf_of: ADMIN };
    stage.runners().change_runner(change).await.unwrap();
}

/// The runner records of the next drops, each of this context.
async fn drops(stage: &Stage<impl Redis>, router: &mut Router) -> Vec<u32> {
    loop {
        let drops = router.answers.message().await.unwrap().unwrap().drops;
        if !drops.is_empty() {
            for drop in &drops {
                assert_eq!((drop.context_id, &drop.context_uid), (CONTEXT, &stage.context_uid));
                assert_eq!(drop.address, format!("grpc://host:{}", drop.runner_id));
                assert_eq!(drop.topic, format!("topic-{}", drop.runner_id));
            }
            return drops.iter().map(|drop| drop.runner_id).collect();
        }
    }
}

/// Nothing is left of the context.
async fn assert_gone(stage: &Stage<impl Redis>) {
    let all = Cmd::new("KEYS").arg(&format!("{}*", stage.keys().prefix()));
    assert_eq!(stage.command(all).await.texts().unwrap(), [""; 0]);
    let (global, zero) = stage.global();
    let listed = zero.cmd(Cmd::new("SISMEMBER").arg(&global.contexts()).arg(CONTEXT)).await.unwrap();
    assert_eq!(listed.int(), Ok(0));
    // The last to go.
    let unmarked = || async {
        let marks = zero.cmd(Cmd::new("HKEYS").arg(&global.ids())).await.unwrap().texts().unwrap();
        (!marks.iter().any(|mark| mark.starts_with("removing:"))).then_some(())
    };
    wait_until(unmarked, PATIENCE, "no mark is left").await;
}

async fn a_context_goes_with_everything_in_it(stage: Stage<impl Redis>) {
    let piece = v1::PutBlobRequest { context_id: CONTEXT, data: b"x".to_vec().into(), ..Default::default() };
    stage.jobs(EXECUTOR).put_blob(tokio_stream::iter([piece])).await.unwrap();
    let mut running = stage.started(500).await;
    let step = wire::CommitRequest { messages: vec![running.message(1)], ..running.step() };
    stage.apply(&mut running, step).await;
    stage.push(&running, &FlowInput::Signal { name: "go".parse().unwrap() }).await;
    stage.created(20).await;
    let other = v1::CreateContextRequest { id: 2, admins: vec![ADMIN], ..Default::default() };
    stage.contexts(Identity::Admin).create_context(other).await.unwrap();

    let actor = |id| Identity::Actor(ActorId(id));
    for (id, code) in
        [(EXECUTOR, Code::PermissionDenied), (READER, Code::PermissionDenied), (STRANGER, Code::NotFound)]
    {
        assert_eq!(failure(delete(&stage, actor(id)).await).0, code);
    }
    delete(&stage, actor(ADMIN)).await.unwrap();
    assert_gone(&stage).await;
    assert_eq!(failure(delete(&stage, actor(ADMIN)).await).0, Code::NotFound);
    assert_eq!(stage.commit(running.step()).await.refusal(), wire::CommitRefusal::Gone);
    let get = v1::GetContextRequest { id: 2 };
    stage.contexts(Identity::Admin).get_context(get).await.unwrap();

    // The number is free, for a context that is another one.
    let again = v1::CreateContextRequest { id: CONTEXT, admins: vec![ADMIN], ..Default::default() };
    let again = stage.contexts(Identity::Admin).create_context(again).await.unwrap().into_inner();
    assert_ne!(again.context.unwrap().uid, stage.context_uid);
    assert_eq!(stage.commit(running.step()).await.refusal(), wire::CommitRefusal::Gone);
    let flow = wire::CreateFlowRequest { on_behalf_of: ADMIN, caller_id: ADMIN, ..create(1) };
    stage.flows().create_flow(flow).await.unwrap();
}

async fn supervisors_forget_it_first(stage: Stage<impl Redis>) {
    for id in [3, 8] {
        add_runner(&stage, id).await;
    }
    let mut running = stage.started(1).await;
    let mut records = stage.runners().watch_runners(wire::WatchRunnersRequest {}).await.unwrap().into_inner();
    assert_eq!(records.message().await.unwrap().unwrap().runners.len(), 2);
    assert!(records.message().await.unwrap().unwrap().snapshot_end);
    let watch = |flow_id| wire::WatchEventsRequest {
        context_id: CONTEXT,
        flow_id,
        on_behalf_of: READER,
        position: String::new(),
        only_flows: false,
        first_nodes: 0,
    };
    let mut events = stage.flows().watch_events(watch(0)).await.unwrap().into_inner();
    let mut of_flow = stage.flows().watch_events(watch(running.id)).await.unwrap().into_inner();
    for events in [&mut events, &mut of_flow] {
        assert!(events.message().await.unwrap().unwrap().event_json.is_empty());
    }
    let mut router = stage.router("r").await;
    let deleted = deleting(&stage);
    let mut runners = drops(&stage, &mut router).await;
    runners.sort_unstable();
    assert_eq!(runners, [3, 8]);

    // Meanwhile it can be read, takes no changes, and cannot be watched.
    assert_eq!(&events.message().await.unwrap().unwrap().event_json[..], br#"{"kind":"context"}"#);
    let gone = (Code::FailedPrecondition, "CONTEXT_DELETING".to_owned());
    assert_eq!(failure(events.message().await), gone);
    assert_eq!(failure(of_flow.message().await), gone);
    assert_eq!(failure(stage.flows().watch_events(watch(0)).await), gone);
    assert_eq!(failure(stage.flows().create_flow(create(1)).await), gone);
    let signal = running.push(&FlowInput::Signal { name: "go".parse().unwrap() });
    assert_eq!(failure(stage.flows().push_input(signal).await), gone);
    assert_eq!(stage.commit(running.end()).await.refusal(), wire::CommitRefusal::ContextDeleting);
    let read =
        wire::ReadFlowRequest { context_id: CONTEXT, flow_id: running.id, on_behalf_of: READER, purpose: 0 };
    stage.flows().read_flow(read).await.unwrap();
    running.epoch += 1;

    // One supervisor answers, twice; the next router asks the other one again.
    router.dropped(&stage.context_uid, 3).await;
    router.dropped(&stage.context_uid, 3).await;
    router.dropped(&model::ContextUid::random().to_string(), 8).await;
    let left = || async {
        let left = stage.command(Cmd::new("SMEMBERS").arg(&stage.keys().drops())).await.texts().unwrap();
        (left == ["8"]).then_some(())
    };
    wait_until(left, PATIENCE, "one supervisor is left").await;
    drop(router);
    let mut router = stage.router("r").await;
    assert_eq!(drops(&stage, &mut router).await, [8]);
    assert!(!deleted.is_finished());
    router.dropped(&stage.context_uid, 8).await;
    deleted.await.unwrap().unwrap();
    assert_gone(&stage).await;
    let mut gone = records.message().await.unwrap().unwrap().runners;
    gone.sort_unstable_by_key(|record| record.runner.as_ref().map(|runner| runner.id));
    let removed = |id| wire::RunnerRecord {
        context_id: CONTEXT,
        runner: Some(v1::Runner { id, ..Default::default() }),
    };
    assert_eq!(gone, [removed(3), removed(8)]);
    // A record of the same number and revision in a new context of the same id is a new record.
    let again = v1::CreateContextRequest { id: CONTEXT, admins: vec![ADMIN], ..Default::default() };
    stage.contexts(Identity::Admin).create_context(again).await.unwrap();
    add_runner(&stage, 3).await;
    let fresh = records.message().await.unwrap().unwrap().runners;
    assert_eq!(fresh[0].runner.as_ref().map(|runner| runner.id), Some(3));
    assert_ne!(fresh, [removed(3)]);
}

async fn supervisors_of_deleted_runners_forget_it_as_well(stage: Stage<impl Redis>) {
    for id in [3, 8, 9] {
        add_runner(&stage, id).await;
    }
    for id in [8, 9] {
        delete_runner(&stage, id).await;
    }
    // As after some days: the record that says where its supervisor was is gone.
    stage.command(Cmd::new("DEL").arg(&stage.keys().runner(RunnerId(9)))).await;
    let mut router = stage.router("r").await;
    let deleted = deleting(&stage);
    let mut runners = drops(&stage, &mut router).await;
    runners.sort_unstable();
    assert_eq!(runners, [3, 8]);
    router.dropped(&stage.context_uid, 3).await;
    let left = || async {
        let left = stage.command(Cmd::new("SMEMBERS").arg(&stage.keys().drops())).await.texts().unwrap();
        (left == ["8"]).then_some(())
    };
    wait_until(left, PATIENCE, "only one is waited for").await;
    // The days may also pass meanwhile.
    stage.command(Cmd::new("DEL").arg(&stage.keys().runner(RunnerId(8)))).await;
    drop(router);
    let _other = stage.router("s").await;
    deleted.await.unwrap().unwrap();
    assert_gone(&stage).await;
}

/// More than one script takes at once.
async fn many_deleted_runners_are_no_obstacle(stage: Stage<impl Redis>) {
    let long_gone = (1..=9000).fold(Cmd::new("ZADD").arg(&stage.keys().runners_deleted()), |all, id: u32| {
        all.arg(u64::from(id)).arg(u64::from(id))
    });
    stage.command(long_gone).await;
    let _router = stage.router("r").await;
    delete(&stage, Identity::Admin).await.unwrap();
    assert_gone(&stage).await;
}

async fn another_storage_goes_on_where_one_stopped(mut stage: Stage<impl Redis>) {
    add_runner(&stage, 3).await;
    stage.created(20).await;
    let mut router = stage.router("r").await;
    let deleted = deleting(&stage);
    assert_eq!(drops(&stage, &mut router).await, [3]);
    stage.start().await;
    let ended = failure(deleted.await.unwrap());
    assert_eq!(ended, (Code::Unavailable, "DRAINING".to_owned()), "it goes on: ask again");
    let mut router = stage.router("r").await;
    assert_eq!(drops(&stage, &mut router).await, [3]);
    let deleted = deleting(&stage);
    router.dropped(&stage.context_uid, 3).await;
    deleted.await.unwrap().unwrap();
    assert_gone(&stage).await;
}

async fn until_no_record(stage: &Stage<impl Redis>) {
    let gone = || async {
        let there = stage.command(Cmd::new("EXISTS").arg(&stage.keys().context())).await.int().unwrap();
        (there == 0).then_some(())
    };
    wait_until(gone, PATIENCE, "the context is gone").await;
}

async fn each_step_is_taken_up_again(mut stage: Stage<impl Redis>) {
    stage.created(5).await;
    let keys = stage.keys();
    // As if a storage had died when all but the last two steps were done.
    let set = Cmd::new("HSET").arg(&keys.context()).arg("state").arg("deleting").arg("emptied").arg("1");
    stage.command(set).await;
    stage.start().await;
    until_no_record(&stage).await;
    assert_gone(&stage).await;

    // As if storage had died after the context was unpublished, or after its record was gone as well.
    let (global, zero) = stage.global();
    let uid = model::ContextUid::random().to_string();
    for left in [true, false] {
        if left {
            let record =
                Cmd::new("HSET").arg(&keys.context()).arg("uid").arg(&uid).arg("state").arg("deleting");
            stage.command(record.arg("emptied").arg("1")).await;
        }
        let mark = Cmd::new("HSET").arg(&global.ids()).arg(&format!("removing:{CONTEXT}")).arg(&uid);
        zero.cmd(mark).await.unwrap();
        stage.start().await;
        until_no_record(&stage).await;
        assert_gone(&stage).await;
    }

    // An unpublished context may have left its record: the creation of a new context overwrites it.
    let old = Cmd::new("HSET").arg(&keys.context()).arg("uid").arg(&uid).arg("state").arg("deleting");
    stage.command(old.arg("emptied").arg("1")).await;
    let again = v1::CreateContextRequest {
        request_id: "again".to_owned(),
        id: CONTEXT,
        admins: vec![ADMIN],
        ..Default::default()
    };
    let made = stage.contexts(Identity::Admin).create_context(again.clone()).await.unwrap().into_inner();
    assert_ne!(made.context.as_ref().unwrap().uid, uid);
    // A storage that is late with its last steps hides nothing.
    let late = Cmd::new("HGET").arg(&global.ids()).arg(&format!("removing:{CONTEXT}"));
    assert!(zero.cmd(late).await.unwrap().is_nil());

    // Once it is gone, its request makes no context with the same uid.
    stage.context_uid = made.context.unwrap().uid;
    delete(&stage, Identity::Admin).await.unwrap();
    assert_gone(&stage).await;
    let refused = failure(stage.contexts(Identity::Admin).create_context(again).await);
    assert_eq!(refused.0, Code::NotFound);
}

scenarios!(sentinels: a_context_goes_with_everything_in_it, supervisors_forget_it_first, supervisors_of_deleted_runners_forget_it_as_well, many_deleted_runners_are_no_obstacle, another_storage_goes_on_where_one_stopped, each_step_is_taken_up_again);
