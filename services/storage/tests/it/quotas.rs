//! How much an actor and a context may have: counted exactly, refused by name, free again when it is gone.

use std::time::Duration;

use futures_util::future::join_all;
use identity::Identity;
use keys::Layout;
use kv::Cmd;
use model::{ActorId, BlobHash, ContextId, FlowId, FlowInput, Timestamp};
use proto::internal::v1 as wire;
use proto::internal::v1::change_runner_request::Change;
use proto::v1;
use rpc::ErrorView;
use storage::{Config, Quota, QuotaSetting, StorageQuotas};
use testkit::{PATIENCE, RedisServer, wait_until};
use tonic::{Code, Status};

use crate::actors::rotate;
use crate::identities::spend;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, Running, Stage, create, failure};

const LAYOUTS: [Layout; 2] = [Layout::Database, Layout::HashTag];

async fn stage(layout: Layout, quotas: &[(Quota, u64)]) -> Stage {
    let settings: Vec<_> = quotas.iter().map(|(quota, value)| QuotaSetting::new(*quota, *value)).collect();
    let config = Config { layout, quotas: StorageQuotas::with(&settings), ..Config::default() };
    Stage::with(RedisServer::start(), config).await
}

/// The limit that a refusal names, and whether waiting helps.
fn refused(status: &Status) -> (String, bool) {
    let view = ErrorView::from(status);
    assert_eq!((view.code, view.reason.as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"), "{status}");
    assert!(view.metadata.contains_key("max") && view.metadata.contains_key("asked"), "{status:?}");
    (view.metadata["limit"].clone(), view.retry_after.is_some())
}

async fn try_create(stage: &Stage, count: u32) -> Result<Running, Status> {
    let answer = stage.flows().create_flow(create(count)).await?.into_inner();
    let flow = answer.flow.unwrap().flow.unwrap();
    Ok(Running {
        id: flow.id,
        uid: flow.uid,
        context_uid: stage.context_uid.clone(),
        first_job: answer.first_job_id,
        count,
        owner: String::new(),
        epoch: 0,
        last_commit: String::new(),
        revision: 0,
    })
}

async fn remove(stage: &Stage, flow: &Running) {
    let request = wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    stage.flows().remove_flow(request).await.unwrap();
}

async fn cancel(stage: &Stage, flow: &Running) {
    stage.push(flow, &FlowInput::Cancel { grace_secs: 0 }).await;
}

async fn put(stage: &Stage, data: Vec<u8>) -> Result<String, Status> {
    let piece = v1::PutBlobRequest { context_id: CONTEXT, data: data.into(), ..Default::default() };
    let put = stage.jobs(EXECUTOR).put_blob(tokio_stream::iter([piece])).await?;
    Ok(put.into_inner().blob.unwrap().sha256)
}

#[tokio::test]
async fn flows_that_have_not_ended_are_bounded() {
    for layout in LAYOUTS {
        let mut stage = stage(layout, &[(Quota::ContextFlowsOpen, 3)]).await;
        let given_up = stage.created(1).await;
        let mut ends = stage.started(1).await;
        stage.started(1).await;
        let status = try_create(&stage, 1).await.err().unwrap();
        assert_eq!(refused(&status), ("context_flows_open_max".to_owned(), true));
        assert!(status.message().contains("context_flows_open_max is 3, and this would be 4"), "{status}");
        // A start of storage changes nothing.
        stage.start().await;
        assert!(try_create(&stage, 1).await.is_err());
        // One that ends makes room, and takes it again when it is run again.
        let end = ends.end();
        stage.apply(&mut ends, end).await;
        stage.flows().restart_flow(ends.restart()).await.unwrap();
        assert!(try_create(&stage, 1).await.is_err());
        // So does one that was never started and is not wanted any more.
        cancel(&stage, &given_up).await;
        remove(&stage, &given_up).await;
        assert_eq!(stage.counted("flows_open").await, 2);
        try_create(&stage, 1).await.unwrap();
        assert_eq!(failure(stage.flows().restart_flow(ends.restart()).await).0, Code::FailedPrecondition);
    }
}

#[tokio::test]
async fn creations_a_second_are_bounded() {
    let stage = stage(Layout::Database, &[(Quota::ContextFlowsPerSec, 1)]).await;
    // Two seconds' worth may come at once, and more where the machine takes its time.
    let mut made = 0;
    let status = loop {
        match try_create(&stage, 1).await {
            Ok(_) => made += 1,
            Err(status) => break status,
        }
    };
    assert!(made >= 2, "{made}");
    assert_eq!(refused(&status), ("context_flows_per_sec".to_owned(), true));
    let again = || async { try_create(&stage, 1).await.ok() };
    wait_until(again, PATIENCE, "a flow may be created again").await;
}

#[tokio::test]
async fn an_ended_flow_is_not_run_again_beyond_the_limit() {
    let stage = stage(Layout::Database, &[(Quota::ContextFlowsOpen, 1)]).await;
    let mut ended = stage.started(1).await;
    let end = ended.end();
    stage.apply(&mut ended, end).await;
    stage.started(1).await;
    let status = stage.flows().restart_flow(ended.restart()).await.err().unwrap();
    assert_eq!(refused(&status), ("context_flows_open_max".to_owned(), true));
}

#[tokio::test]
async fn nodes_of_flows_that_have_not_ended_are_bounded() {
    for layout in LAYOUTS {
        let stage = stage(layout, &[(Quota::ContextJobsOpen, 10)]).await;
        let mut ends = stage.started(4).await;
        stage.started(5).await;
        let status = try_create(&stage, 2).await.err().unwrap();
        assert_eq!(refused(&status), ("context_jobs_open_max".to_owned(), true));
        try_create(&stage, 1).await.unwrap();
        let end = ends.end();
        stage.apply(&mut ends, end).await;
        assert_eq!(stage.counted("jobs_open").await, 6);
        try_create(&stage, 4).await.unwrap();
    }
}

#[tokio::test]
async fn of_many_that_come_at_once_as_many_are_taken_as_may_be() {
    let stage = stage(Layout::Database, &[(Quota::ContextFlowsOpen, 7)]).await;
    let made = join_all((0..40).map(|_| try_create(&stage, 1))).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 7);
    for status in made.into_iter().filter_map(Result::err) {
        assert_eq!(refused(&status).0, "context_flows_open_max");
    }
    assert_eq!(stage.counted("flows_open").await, 7);
}

#[tokio::test]
async fn kept_flows_and_jobs_are_bounded() {
    let quotas = [(Quota::ContextFlows, 2), (Quota::ContextJobsKept, 1)];
    let stage = stage(Layout::HashTag, &quotas).await;
    for _ in 0..2 {
        let mut flow = stage.started(1).await;
        let end = flow.end();
        stage.apply(&mut flow, end).await;
        if flow.id == 1 {
            continue;
        }
        let status = try_create(&stage, 1).await.err().unwrap();
        // Only a deletion makes room, so the error gives no retry delay.
        assert_eq!(refused(&status), ("context_flows_max".to_owned(), false));
        remove(&stage, &flow).await;
        try_create(&stage, 1).await.unwrap();
    }
    let job = || {
        let source = v1::script::Source::Text("true".to_owned());
        let spec = v1::JobSpec {
            script_type: v1::ScriptType::Shell.into(),
            script: Some(v1::Script { source: Some(source) }),
            ..Default::default()
        };
        v1::CreateJobRequest { context_id: CONTEXT, spec: Some(spec), ..Default::default() }
    };
    let kept = stage.jobs(EXECUTOR).create_job(job()).await.unwrap().into_inner().job.unwrap();
    let status = stage.jobs(EXECUTOR).create_job(job()).await.err().unwrap();
    assert_eq!(refused(&status), ("context_jobs_kept_max".to_owned(), false));
    let delete = v1::DeleteJobRequest { context_id: CONTEXT, job_id: kept.id, ..Default::default() };
    stage.jobs(EXECUTOR).delete_job(delete).await.unwrap();
    stage.jobs(EXECUTOR).create_job(job()).await.unwrap();
}

#[tokio::test]
async fn runner_records_are_bounded_also_those_that_were_deleted() {
    let quotas = [(Quota::ContextRunners, 2), (Quota::ContextRunnersDeleted, 3)];
    let stage = stage(Layout::Database, &quotas).await;
    let put = || {
        let runner = v1::RegisterRunnerRequest {
            context_id: CONTEXT,
            address: "grpc://host:7706".to_owned(),
            script_types: vec![v1::ScriptType::Shell.into()],
            ..Default::default()
        };
        wire::PutRunnerRequest { runner: Some(runner), on_behalf_of: ADMIN }
    };
    let mut there = Vec::new();
    for _ in 0..2 {
        there.push(stage.runners().put_runner(put()).await.unwrap().into_inner().runner.unwrap().id);
    }
    let status = stage.runners().put_runner(put()).await.err().unwrap();
    assert_eq!(refused(&status), ("context_runners_max".to_owned(), false));
    for deleted in 1..=4 {
        let runner_id = there.remove(0);
        let delete = v1::DeleteRunnerRequest { context_id: CONTEXT, runner_id, ..Default::default() };
        let delete = wire::ChangeRunnerRequest { change: Some(Change::Delete(delete)), on_behalf_of: ADMIN };
        stage.runners().change_runner(delete).await.unwrap();
        let again = stage.runners().put_runner(put()).await;
        if deleted < 4 {
            there.push(again.unwrap().into_inner().runner.unwrap().id);
        } else {
            assert_eq!(refused(&again.err().unwrap()), ("context_runners_deleted_max".to_owned(), false));
        }
    }
}

#[tokio::test]
async fn bytes_of_blobs_are_bounded_and_nothing_is_left_of_what_was_refused() {
    for layout in LAYOUTS {
        let stage = stage(layout, &[(Quota::ContextBlobBytes, 1000)]).await;
        let kept = put(&stage, vec![1; 600]).await.unwrap();
        let status = put(&stage, vec![2; 401]).await.err().unwrap();
        assert_eq!(refused(&status), ("context_blob_bytes_max".to_owned(), true));
        // The same bytes are the same blob, however often they come.
        assert_eq!(put(&stage, vec![1; 600]).await.unwrap(), kept);
        put(&stage, vec![3; 400]).await.unwrap();
        // Outputs of jobs count like everything else.
        let output = vec![4; 10];
        let write = wire::WriteBlobRequest {
            context_uid: stage.context_uid.clone(),
            context_id: CONTEXT,
            sha256: BlobHash::of(&output).to_string(),
            size: 10,
            offset: 0,
            data: output.into(),
        };
        let status = stage.blobs().write_blob(write).await.err().unwrap();
        assert_eq!(refused(&status).0, "context_blob_bytes_max");
        let chunks = stage.command(Cmd::new("KEYS").arg(&stage.key_of("blob:*:*"))).await.texts().unwrap();
        assert_eq!(chunks.len(), 2, "{chunks:?}");
        assert_eq!(stage.sweep(Timestamp::now() + Duration::from_secs(660)).await.blobs, 2);
        assert_eq!(stage.counted("blob_bytes").await, 0);
        put(&stage, vec![2; 1000]).await.unwrap();
    }
}

#[tokio::test]
async fn blobs_that_come_at_once_do_not_share_the_last_room() {
    let stage = stage(Layout::Database, &[(Quota::ContextBlobBytes, 1000)]).await;
    let put_all = (0..4_u8).map(|n| put(&stage, vec![n; 400]));
    let made = join_all(put_all).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 2);
    assert_eq!(stage.counted("blob_bytes").await, 800);
    let chunks = stage.command(Cmd::new("KEYS").arg("blob:*:*")).await.texts().unwrap();
    assert_eq!(chunks.len(), 2, "{chunks:?}");
}

/// Puts a blob into this context.
async fn put_into(stage: &Stage, context_id: u32, data: Vec<u8>) -> Result<(), Status> {
    let piece = v1::PutBlobRequest { context_id, data: data.into(), ..Default::default() };
    stage.jobs(EXECUTOR).put_blob(tokio_stream::iter([piece])).await.map(drop)
}

#[tokio::test]
async fn bytes_of_all_contexts_that_an_actor_created_are_bounded_together() {
    for layout in LAYOUTS {
        let stage = stage(layout, &[(Quota::ActorBlobBytes, 1000)]).await;
        let actor = Identity::Actor(ActorId(EXECUTOR));
        let (one, other) =
            (create_context(&stage, actor).await.unwrap(), create_context(&stage, actor).await.unwrap());
        put_into(&stage, one, vec![1; 600]).await.unwrap();
        let status = put_into(&stage, other, vec![2; 401]).await.unwrap_err();
        assert_eq!(refused(&status), ("actor_blob_bytes_max".to_owned(), true));
        assert!(status.message().contains("is 1000, and this would be 1001"), "{status}");
        put_into(&stage, other, vec![2; 400]).await.unwrap();
        // Contexts created by others do not count, whoever puts blobs there.
        put(&stage, vec![3; 5000]).await.unwrap();
        // A sweep, and the removal of a context, make room.
        assert_eq!(stage.sweep(Timestamp::now() + Duration::from_secs(660)).await.blobs, 3);
        put_into(&stage, other, vec![4; 900]).await.unwrap();
        assert!(put_into(&stage, one, vec![5; 200]).await.is_err());
        let delete = v1::DeleteContextRequest { context_id: other, ..Default::default() };
        stage.contexts(actor).delete_context(delete).await.unwrap();
        let free = || async { put_into(&stage, one, vec![5; 200]).await.ok() };
        wait_until(free, PATIENCE, "the other context is gone").await;
        let (keys, zero) = stage.global();
        let stored = zero.cmd(Cmd::new("HLEN").arg(&keys.blob_bytes())).await.unwrap();
        assert_eq!(stored.int(), Ok(1), "nothing is kept of a context that is gone");
    }
}

async fn create_context(stage: &Stage, identity: Identity) -> Result<u32, Status> {
    let request = v1::CreateContextRequest { admins: vec![ADMIN], ..Default::default() };
    let made = stage.contexts(identity).create_context(request).await?.into_inner();
    Ok(made.context.unwrap().id)
}

#[tokio::test]
async fn contexts_that_an_actor_creates_are_bounded() {
    for layout in LAYOUTS {
        let mut stage = stage(layout, &[(Quota::ActorContexts, 3)]).await;
        let actor = Identity::Actor(ActorId(EXECUTOR));
        let made = join_all((0..10).map(|_| create_context(&stage, actor))).await;
        let made: Vec<u32> = made.into_iter().filter_map(Result::ok).collect();
        assert_eq!(made.len(), 3);
        stage.start().await;
        let status = create_context(&stage, actor).await.err().unwrap();
        assert_eq!(refused(&status), ("actor_contexts_max".to_owned(), false));
        // Others may create contexts, and being an admin of contexts that others created does not count.
        create_context(&stage, Identity::Admin).await.unwrap();
        create_context(&stage, Identity::Actor(ActorId(ADMIN))).await.unwrap();
        // One that is removed does not count any more.
        let delete = v1::DeleteContextRequest { context_id: made[0], ..Default::default() };
        stage.contexts(actor).delete_context(delete).await.unwrap();
        let free = || async { create_context(&stage, actor).await.ok() };
        wait_until(free, PATIENCE, "the context is gone").await;
        assert!(create_context(&stage, actor).await.is_err());
    }
}

#[tokio::test]
async fn a_context_that_was_never_written_does_not_count_for_good() {
    let stage = stage(Layout::Database, &[(Quota::ActorContexts, 1)]).await;
    let (keys, zero) = stage.global();
    // What a storage leaves that dies between the reservation and the context, a minute ago.
    let created = keys.contexts_of(ActorId(EXECUTOR));
    zero.cmd(Cmd::new("SADD").arg(&created).arg(7)).await.unwrap();
    zero.cmd(Cmd::new("HSET").arg(&keys.context_creators()).arg(7).arg(EXECUTOR)).await.unwrap();
    let lapsed = Timestamp::from_millis(Timestamp::now().as_millis() - 61_000);
    let reserved = format!("{} {lapsed}", "0".repeat(32));
    zero.cmd(Cmd::new("HSET").arg(&keys.ids()).arg("context:7").arg(&reserved)).await.unwrap();
    let actor = Identity::Actor(ActorId(EXECUTOR));
    create_context(&stage, actor).await.unwrap();
    assert!(create_context(&stage, actor).await.is_err());
    assert_eq!(zero.cmd(Cmd::new("SCARD").arg(&created)).await.unwrap().int(), Ok(1));
}

/// Everything as an earlier version leaves it, which marks nothing and counts nothing.
async fn as_if_uncounted(stage: &Stage, flows: &[u32], blobs: &[String]) {
    for flow in flows {
        stage.command(Cmd::new("HDEL").arg(&stage.keys().flow(FlowId(*flow))).arg("counted")).await;
    }
    for blob in blobs {
        stage.command(Cmd::new("HDEL").arg(&stage.keys().blob(blob.parse().unwrap())).arg("counted")).await;
    }
    let fields = ["counted", "flows_open", "jobs_open", "blob_bytes"];
    stage.command(Cmd::new("HDEL").arg(&stage.keys().ids()).args(fields)).await;
}

#[tokio::test]
async fn what_an_earlier_version_made_is_counted_once() {
    for layout in LAYOUTS {
        let mut stage = stage(layout, &[]).await;
        let mut ended = stage.started(2).await;
        let end = ended.end();
        stage.apply(&mut ended, end).await;
        let (created, mut started) = (stage.created(3).await, stage.started(4).await);
        let blobs = [put(&stage, vec![1; 5]).await.unwrap(), put(&stage, vec![2; 7]).await.unwrap()];
        as_if_uncounted(&stage, &[ended.id, created.id, started.id], &blobs).await;
        // A flow that ends before it was counted is not subtracted either.
        let mut early = stage.started(6).await;
        stage.command(Cmd::new("HDEL").arg(&stage.keys().flow(FlowId(early.id))).arg("counted")).await;
        stage.command(Cmd::new("HDEL").arg(&stage.keys().ids()).arg("flows_open").arg("jobs_open")).await;
        let end = early.end();
        stage.apply(&mut early, end).await;
        assert_eq!(stage.counted("flows_open").await, 0);
        // By two at once, of which each may meet what the other has counted.
        for _ in 0..2 {
            stage.command(Cmd::new("HDEL").arg(&stage.keys().ids()).arg("counted")).await;
            stage.start().await;
            stage.sweep(Timestamp::now()).await;
            let counted = ["flows_open", "jobs_open", "blob_bytes"];
            let counted = join_all(counted.map(|what| stage.counted(what))).await;
            assert_eq!(counted, [2, 7, 12]);
        }
        let end = started.end();
        stage.apply(&mut started, end).await;
        assert_eq!(stage.counted("jobs_open").await, 3);
        assert_eq!(stage.sweep(Timestamp::now() + Duration::from_secs(660)).await.blobs, 2);
        assert_eq!(stage.counted("blob_bytes").await, 0);
        assert_eq!(stage.counted("counted").await, 1, "and nobody looks again");
    }
}

#[tokio::test]
async fn what_is_counted_goes_with_the_context() {
    let stage = stage(Layout::HashTag, &[(Quota::ContextFlowsOpen, 1)]).await;
    stage.started(1).await;
    let delete = v1::DeleteContextRequest { context_id: CONTEXT, ..Default::default() };
    stage.contexts(Identity::Admin).delete_context(delete).await.unwrap();
    let create_again = || async {
        let request = v1::CreateContextRequest { id: CONTEXT, admins: vec![EXECUTOR], ..Default::default() };
        stage.contexts(Identity::Admin).create_context(request).await.ok()
    };
    wait_until(create_again, PATIENCE, "the number is free").await;
    assert_eq!(keys::ContextKeys::new(stage.layout, ContextId(CONTEXT)), stage.keys());
    try_create(&stage, 1).await.unwrap();
    assert_eq!(stage.counted("flows_open").await, 1);
}

/// Bounds the memory of Redis at a multiple of what it uses now.
async fn bound_memory(stage: &Stage, numerator: u64, denominator: u64) {
    let info = stage.command(Cmd::new("INFO").arg("memory")).await.text().unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let bound = used.trim().parse::<u64>().unwrap() * numerator / denominator;
    stage.command(Cmd::new("CONFIG").arg("SET").arg("maxmemory").arg(bound)).await;
}

fn store_full(status: &Status) -> bool {
    let view = ErrorView::from(status);
    view.reason == "STORE_FULL" && view.code == Code::ResourceExhausted && view.retry_after.is_some()
}

#[tokio::test]
async fn what_is_there_goes_on_and_can_be_deleted_when_nothing_new_is_taken() {
    let stage = stage(Layout::Database, &[]).await;
    let (mut runs, mut ended) = (stage.started(1).await, stage.started(1).await);
    let end = ended.end();
    stage.apply(&mut ended, end).await;
    // More than four fifths are used. Without so much that takes memory, a buffer of a connection would be all that is left.
    stage.command(Cmd::new("SETRANGE").arg("ballast").arg(16 << 20).arg("x")).await;
    bound_memory(&stage, 16, 15).await;
    let full = || async { try_create(&stage, 1).await.err().filter(store_full) };
    wait_until(full, PATIENCE, "nothing new is taken").await;
    assert!(store_full(&put(&stage, vec![1; 10]).await.err().unwrap()));
    assert!(store_full(&create_context(&stage, Identity::Admin).await.err().unwrap()));
    let end = runs.end();
    stage.apply(&mut runs, end).await;
    remove(&stage, &ended).await;
    let key = stage.keys().flow(FlowId(ended.id));
    let gone = || async {
        stage.command(Cmd::new("EXISTS").arg(&key)).await.int().is_ok_and(|n| n == 0).then_some(())
    };
    wait_until(gone, PATIENCE, "it is removed").await;
    stage.command(Cmd::new("CONFIG").arg("SET").arg("maxmemory").arg(0)).await;
    let free = || async { try_create(&stage, 1).await.ok() };
    wait_until(free, PATIENCE, "there is room again").await;
}

#[tokio::test]
async fn a_redis_that_is_out_of_memory_is_no_defect() {
    let stage = stage(Layout::Database, &[]).await;
    let created = stage.created(1).await;
    bound_memory(&stage, 1, 2).await;
    let signal = created.push(&FlowInput::Signal { name: "go".parse().unwrap() });
    let status = stage.flows().push_input(signal).await.err().unwrap();
    assert!(store_full(&status), "{status:?}");
}

#[tokio::test]
async fn what_frees_works_where_redis_is_out_of_memory() {
    for layout in LAYOUTS {
        let stage = stage(layout, &[]).await;
        let (mut runs, mut waits, mut ended) =
            (stage.started(1).await, stage.started(1).await, stage.started(1).await);
        let end = ended.end();
        stage.apply(&mut ended, end).await;
        put(&stage, b"nobody refers to it".to_vec()).await.unwrap();
        bound_memory(&stage, 1, 2).await;

        // What is cancelled ends, and is removed. What goes on waits.
        let cancelled = runs.push(&FlowInput::Cancel { grace_secs: 0 });
        stage.flows().push_input(cancelled).await.unwrap();
        let end = runs.end();
        stage.apply(&mut runs, end).await;
        let end = waits.end();
        let answer = stage.commit(end.clone()).await;
        assert_eq!(answer.refusal(), wire::CommitRefusal::UnknownOutcome, "{answer:?}");
        for flow in [&ended, &runs] {
            remove(&stage, flow).await;
            let key = stage.keys().flow(FlowId(flow.id));
            assert_eq!(stage.command(Cmd::new("EXISTS").arg(&key)).await.int().unwrap(), 0);
        }
        // A sweep frees, and so does the end of a context.
        let later = Timestamp::from_millis(Timestamp::now().as_millis() + 11 * 60 * 1000);
        assert_eq!(stage.sweep(later).await.blobs, 1);
        stage.command(Cmd::new("CONFIG").arg("SET").arg("maxmemory").arg(0)).await;
        stage.apply(&mut waits, end).await;
        bound_memory(&stage, 1, 2).await;
        let delete = v1::DeleteContextRequest { context_id: CONTEXT, ..Default::default() };
        stage.contexts(Identity::Admin).delete_context(delete).await.unwrap();
        let context = stage.keys().context();
        let gone = || async {
            stage.command(Cmd::new("EXISTS").arg(&context)).await.int().is_ok_and(|n| n == 0).then_some(())
        };
        wait_until(gone, PATIENCE, "the context is removed").await;
    }
}

#[tokio::test]
async fn who_may_do_what_is_taken_away_where_redis_is_out_of_memory() {
    for layout in LAYOUTS {
        let stage = stage(layout, &[]).await;
        bound_memory(&stage, 1, 2).await;
        // A token that counts once counts there as well, and once.
        for fresh in [true, false] {
            let spent = stage.identities().spend_token(spend(READER, "one")).await.unwrap().into_inner();
            assert_eq!(spent.fresh, fresh);
        }
        // Keys are revoked by whose they are, addresses changed by the operator alone: an actor may do that again and again.
        let own = Identity::Actor(ActorId(READER));
        let key = rotate(READER, &identity::SigningKey::generate(), 0);
        stage.actors(own).rotate_actor_key(key).await.unwrap();
        let moved = v1::UpdateActorRequest { id: READER, ..Default::default() };
        assert!(store_full(&stage.actors(own).update_actor(moved.clone()).await.unwrap_err()));
        stage.actors(Identity::Admin).update_actor(moved).await.unwrap();
        // Roles are taken away, and not given.
        let mut admin = stage.contexts(Identity::Actor(ActorId(ADMIN)));
        let readers = |ids: &[u32]| v1::UpdateContextRequest {
            context_id: CONTEXT,
            readers: Some(v1::ActorList { ids: ids.to_vec() }),
            ..Default::default()
        };
        let left = admin.update_context(readers(&[])).await.unwrap().into_inner().context.unwrap();
        assert!(left.readers.is_empty());
        for given in [&[][..], &[READER]] {
            assert!(store_full(&admin.update_context(readers(given)).await.unwrap_err()));
        }
        // An actor goes, with its roles.
        let delete = v1::DeleteActorRequest { id: EXECUTOR, ..Default::default() };
        stage.actors(Identity::Admin).delete_actor(delete).await.unwrap();
        let get = v1::GetContextRequest { id: CONTEXT };
        let left = admin.get_context(get).await.unwrap().into_inner().context.unwrap();
        assert!(left.executors.is_empty(), "{left:?}");
    }
}
