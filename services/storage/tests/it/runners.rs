//! Changes of runner records, and their watches.

use identity::Identity;
use kv::Cmd;
use model::{ActorId, RunnerId};
use proto::internal::v1 as wire;
use proto::internal::v1::change_runner_request::Change;
use proto::v1;
use tonic::{Code, Status, Streaming};

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure};

const ADDRESS: &str = "grpc://host:7706";

async fn put(stage: &Stage<impl Redis>, runner_id: u32) -> Result<v1::Runner, Status> {
    let runner = v1::RegisterRunnerRequest {
        context_id: CONTEXT,
        runner_id,
        address: ADDRESS.into(),
        ..Default::default()
    };
    let put = wire::PutRunnerRequest { runner: Some(runner), on_behalf_of: ADMIN };
    Ok(stage.runners().put_runner(put).await?.into_inner().runner.unwrap())
}

fn update(label: &str) -> v1::UpdateRunnerRequest {
    v1::UpdateRunnerRequest {
        context_id: CONTEXT,
        runner_id: 1,
        address: ADDRESS.into(),
        labels: [("zone".to_owned(), label.to_owned())].into(),
        ..Default::default()
    }
}

fn drain(resume: bool) -> v1::DrainRunnerRequest {
    v1::DrainRunnerRequest { context_id: CONTEXT, runner_id: 1, resume, ..Default::default() }
}

fn delete() -> v1::DeleteRunnerRequest {
    v1::DeleteRunnerRequest { context_id: CONTEXT, runner_id: 1, ..Default::default() }
}

async fn change(stage: &Stage<impl Redis>, actor: u32, change: Change) -> Result<v1::Runner, Status> {
    let change = wire::ChangeRunnerRequest { change: Some(change), on_behalf_of: actor };
    Ok(stage.runners().change_runner(change).await?.into_inner().runner.unwrap())
}

async fn read(stage: &Stage<impl Redis>) -> Vec<v1::Runner> {
    let read = wire::ReadRunnersRequest { context_id: CONTEXT, on_behalf_of: READER, ..Default::default() };
    stage.runners().read_runners(read).await.unwrap().into_inner().runners
}

async fn a_record_is_changed_drained_and_deleted(stage: Stage<impl Redis>) {
    let made = put(&stage, 1).await.unwrap();
    let changed = change(&stage, ADMIN, Change::Update(update("a"))).await.unwrap();
    assert!(changed.revision > made.revision && changed.labels["zone"] == "a");
    assert_eq!(changed.create_time, made.create_time);
    let drained = change(&stage, ADMIN, Change::Drain(drain(false))).await.unwrap();
    let again = change(&stage, ADMIN, Change::Drain(drain(false))).await.unwrap();
    assert!(drained.drain_time.is_some() && again == drained, "it is drained since then");
    let changed = change(&stage, ADMIN, Change::Update(update("b"))).await.unwrap();
    assert_eq!(changed.drain_time, drained.drain_time, "a change of it ends no drain");
    let resumed = change(&stage, ADMIN, Change::Drain(drain(true))).await.unwrap();
    assert!(resumed.drain_time.is_none() && resumed.revision > changed.revision);

    let gone = change(&stage, ADMIN, Change::Delete(delete())).await.unwrap();
    assert!(gone.delete_time.is_some() && read(&stage).await.is_empty());
    for refused in [Change::Update(update("c")), Change::Drain(drain(false)), Change::Delete(delete())] {
        assert_eq!(failure(change(&stage, ADMIN, refused).await).0, Code::NotFound);
    }
    assert_eq!(
        failure(put(&stage, 1).await).0,
        Code::AlreadyExists,
        "those who listen still mean the old one"
    );
    assert_eq!(put(&stage, 0).await.unwrap().id, 2);
    let keys = stage.keys();
    let left = stage.command(Cmd::new("TTL").arg(&keys.runner(RunnerId(1)))).await.int().unwrap();
    assert!((600_000..=604_800).contains(&left), "{left}");
    let deleted = stage.command(Cmd::new("ZRANGE").arg(&keys.runners_deleted()).arg(0).arg(-1)).await;
    assert_eq!(deleted.texts().unwrap(), ["1"]);
}

async fn a_change_builds_on_the_revision_that_it_names(stage: Stage<impl Redis>) {
    let made = put(&stage, 1).await.unwrap();
    let expecting = |revision| v1::UpdateRunnerRequest { expected_revision: revision, ..update("x") };
    let changes = (0..8).map(|_| change(&stage, ADMIN, Change::Update(expecting(made.revision))));
    let changes = futures_util::future::join_all(changes).await;
    let (won, lost): (Vec<_>, Vec<_>) = changes.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 7));
    for lost in lost {
        assert_eq!(failure(lost), (Code::Aborted, "REVISION_MISMATCH".to_owned()));
    }
    let late = v1::DeleteRunnerRequest { expected_revision: made.revision, ..delete() };
    assert_eq!(failure(change(&stage, ADMIN, Change::Delete(late)).await).0, Code::Aborted);
}

async fn a_repeated_change_has_one_effect(stage: Stage<impl Redis>) {
    put(&stage, 1).await.unwrap();
    let before = stage.revision().await;
    let request_id = "r".to_owned();
    let asked = v1::UpdateRunnerRequest { request_id: request_id.clone(), ..update("x") };
    let changes = (0..100).map(|_| change(&stage, ADMIN, Change::Update(asked.clone())));
    let changes = futures_util::future::join_all(changes).await;
    let first = changes[0].as_ref().unwrap().clone();
    assert!(changes.into_iter().all(|changed| changed.unwrap() == first));
    assert_eq!(stage.revision().await, before + 1);
    let other = v1::UpdateRunnerRequest { request_id: request_id.clone(), ..update("y") };
    let refused = failure(change(&stage, ADMIN, Change::Update(other)).await);
    assert_eq!(refused, (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned()));

    // A drain and a deletion say the same of themselves, and are not the same.
    let drained = v1::DrainRunnerRequest { request_id: "d".to_owned(), ..drain(false) };
    change(&stage, ADMIN, Change::Drain(drained)).await.unwrap();
    let gone = v1::DeleteRunnerRequest { request_id: "d".to_owned(), ..delete() };
    assert_eq!(failure(change(&stage, ADMIN, Change::Delete(gone)).await).1, "REQUEST_ID_REUSED");
    let gone = v1::DeleteRunnerRequest { request_id: "e".to_owned(), ..delete() };
    let deleted = change(&stage, ADMIN, Change::Delete(gone.clone())).await.unwrap();
    assert_eq!(change(&stage, ADMIN, Change::Delete(gone)).await.unwrap(), deleted, "also when it is gone");
}

async fn only_admins_change_runners(stage: Stage<impl Redis>) {
    put(&stage, 1).await.unwrap();
    for (actor, code) in
        [(EXECUTOR, Code::PermissionDenied), (READER, Code::PermissionDenied), (STRANGER, Code::NotFound)]
    {
        for asked in [Change::Update(update("c")), Change::Drain(drain(false)), Change::Delete(delete())] {
            assert_eq!(failure(change(&stage, actor, asked).await).0, code, "actor {actor}");
        }
    }
    assert_eq!(failure(follow(&stage, STRANGER, "").await).0, Code::NotFound);
}

async fn follow(
    stage: &Stage<impl Redis>,
    actor: u32,
    position: &str,
) -> Result<Streaming<wire::FollowRunnersResponse>, Status> {
    let request = wire::FollowRunnersRequest {
        context_id: CONTEXT,
        on_behalf_of: actor,
        position: position.to_owned(),
    };
    Ok(stage.runners().follow_runners(request).await?.into_inner())
}

async fn next(followed: &mut Streaming<wire::FollowRunnersResponse>) -> (Option<v1::Runner>, String) {
    let wire::FollowRunnersResponse { runner, position } = followed.message().await.unwrap().unwrap();
    (runner, position)
}

async fn records_are_followed_from_a_position_and_nothing_else_is_sent(stage: Stage<impl Redis>) {
    let mut followed = follow(&stage, READER, "").await.unwrap();
    let (first, begin) = next(&mut followed).await;
    assert_eq!(first, None);
    let made = put(&stage, 1).await.unwrap();
    stage.started(1).await;
    let gone = change(&stage, ADMIN, Change::Delete(delete())).await.unwrap();
    assert_eq!(next(&mut followed).await.0.map(|runner| runner.id), Some(made.id));
    let (last, end) = loop {
        let (runner, position) = next(&mut followed).await;
        if runner.as_ref().is_some_and(|runner| runner.revision == gone.revision) {
            break (runner.unwrap(), position);
        }
    };
    assert!(last.delete_time.is_some() && last == gone);

    // From its beginning on, everything is sent again in its present state.
    let mut again = follow(&stage, READER, &begin).await.unwrap();
    assert_eq!(next(&mut again).await, (None, begin.clone()));
    assert_eq!(next(&mut again).await.0, Some(gone.clone()));
    assert_eq!(next(&mut again).await, (Some(gone), end));
    let other_bits = format!("{}{}", &begin[..begin.len() - 16], "0123456789abcdef");
    assert_eq!(
        failure(follow(&stage, READER, &other_bits).await),
        (Code::OutOfRange, "POSITION_GONE".to_owned())
    );
}

async fn addresses_that_the_coordinator_does_not_dial_are_refused(stage: Stage<impl Redis>) {
    put(&stage, 1).await.unwrap();
    for address in
        ["grpc://127.0.0.1:7706", "grpc://169.254.169.254:80", "grpc://[::1]:1", "grpc://localhost:1"]
    {
        let register = v1::RegisterRunnerRequest {
            context_id: CONTEXT,
            runner_id: 2,
            address: address.into(),
            ..Default::default()
        };
        let put = wire::PutRunnerRequest { runner: Some(register), on_behalf_of: ADMIN };
        let update = v1::UpdateRunnerRequest { address: address.into(), ..update("a") };
        let to = format!("{}@{address}", "ab".repeat(32));
        let message = v1::SendMessageRequest {
            context_id: CONTEXT,
            to,
            message_type: v1::MessageType::Chat.into(),
            ..Default::default()
        };
        let send = wire::PublishRequest { message: Some(message), on_behalf_of: EXECUTOR };
        let actor =
            v1::UpdateActorRequest { id: READER, address: vec![address.into()], ..Default::default() };
        let refused = [
            (stage.runners().put_runner(put).await.unwrap_err(), "address"),
            (self::change(&stage, ADMIN, Change::Update(update)).await.unwrap_err(), "address"),
            (stage.message_box().publish(send).await.unwrap_err(), "to"),
            (
                stage.actors(Identity::Actor(ActorId(READER))).update_actor(actor).await.unwrap_err(),
                "address[0]",
            ),
        ];
        for (status, field) in refused {
            let view = rpc::ErrorView::from(&status);
            let fields: Vec<_> = view.violations.iter().map(|violation| violation.field.as_str()).collect();
            assert_eq!((view.code, fields), (Code::InvalidArgument, vec![field]), "{address}: {status}");
        }
    }
    assert_eq!(read(&stage).await.len(), 1);
}

scenarios!(
    a_record_is_changed_drained_and_deleted,
    addresses_that_the_coordinator_does_not_dial_are_refused,
    a_change_builds_on_the_revision_that_it_names,
    a_repeated_change_has_one_effect,
    only_admins_change_runners,
    records_are_followed_from_a_position_and_nothing_else_is_sent
);
