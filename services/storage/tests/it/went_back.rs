//! A Redis that lost changes is noticed by everyone who relied on them.

use std::path::Path;
use std::time::Duration;

use identity::Identity;
use keys::{GlobalKeys, Layout};
use model::{FlowInput, OwnerId};
use proto::internal::v1 as wire;
use proto::internal::v1::join_response::News;
use proto::v1;
use storage::Config;
use testkit::{PATIENCE, RedisServer, wait_until};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use crate::stage::{CONTEXT, EXECUTOR, READER, Stage, failure};

const LAYOUTS: [Layout; 2] = [Layout::Database, Layout::HashTag];

fn copy(from: &Path, to: &Path) {
    if to.exists() {
        std::fs::remove_dir_all(to).unwrap();
    }
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Keeps a copy of what Redis has on disk.
fn keep(stage: &Stage) {
    copy(&stage.redis.dir().join("appendonlydir"), &stage.redis.dir().join("kept"));
}

/// Redis dies and restarts with what it had saved. Nothing reconnects meanwhile: this blocks the only thread.
fn go_back(stage: &mut Stage) {
    stage.redis.kill9();
    copy(&stage.redis.dir().join("kept"), &stage.redis.dir().join("appendonlydir"));
    stage.redis.restart();
}

async fn stage(layout: Layout) -> Stage {
    // No heartbeats are sent here.
    let config = Config { layout, lease: Duration::from_secs(3600), ..Config::default() };
    Stage::with(RedisServer::builder().persistent().start(), config).await
}

async fn join(stage: &Stage) -> (mpsc::Sender<wire::JoinRequest>, Streaming<wire::JoinResponse>) {
    let (beats, requests) = mpsc::channel(4);
    let owner = OwnerId::random().to_string();
    let hello = wire::JoinHello { name: "a".to_owned(), owner, ..Default::default() };
    beats.send(wire::JoinRequest { hello: Some(hello) }).await.unwrap();
    let mut answers = stage.flows().join(ReceiverStream::new(requests)).await.unwrap().into_inner();
    for _ in 0..2 {
        answers.message().await.unwrap().unwrap();
    }
    (beats, answers)
}

/// The line was lost, and nothing else.
async fn assert_resync(answers: &mut Streaming<wire::JoinResponse>) {
    loop {
        match answers.message().await.unwrap().unwrap().news.unwrap() {
            News::Resync(_) => break,
            News::Replicas(_) | News::Touched(_) => {}
        }
    }
}

async fn end(answers: &mut Streaming<wire::JoinResponse>) -> (Code, String) {
    loop {
        match answers.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return (Code::Ok, String::new()),
            Err(status) => return failure::<()>(Err(status)),
        }
    }
}

#[tokio::test]
async fn lost_changes_end_everything_that_was_built_on_them() {
    for layout in LAYOUTS {
        let mut stage = stage(layout).await;
        let mut flow = stage.started(1).await;
        let (_beats, mut answers) = join(&stage).await;
        let watch = wire::WatchEventsRequest {
            context_id: CONTEXT,
            flow_id: flow.id,
            on_behalf_of: READER,
            position: String::new(),
            only_flows: false,
            first_nodes: 0,
        };
        let mut events = stage.flows().watch_events(watch).await.unwrap().into_inner();
        events.message().await.unwrap().unwrap();
        keep(&stage);
        let step = flow.step();
        stage.apply(&mut flow, step).await;
        assert!(!events.message().await.unwrap().unwrap().event_json.is_empty());
        go_back(&mut stage);
        assert_eq!(end(&mut answers).await, (Code::Aborted, "STORE_WENT_BACK".to_owned()));
        assert_eq!(failure(events.message().await), (Code::OutOfRange, "POSITION_GONE".to_owned()));
        // What the owner builds on is not there; it joins again and takes the flow as it is.
        assert_eq!(stage.commit(flow.step()).await.refusal(), wire::CommitRefusal::Fenced);
        let (_beats, mut answers) = join(&stage).await;
        let take = wire::TakeFlowRequest { context_id: CONTEXT, flow_id: flow.id, owner: flow.owner.clone() };
        let taken = stage.flows().take_flow(take).await.unwrap().into_inner().flow.unwrap();
        (flow.epoch, flow.last_commit) = (taken.epoch, taken.last_commit);
        let step = flow.step();
        stage.apply(&mut flow, step).await;
        // Once only: another loss of the line is no loss of changes.
        stage.redis.restart();
        assert_resync(&mut answers).await;
        let step = flow.step();
        let again = || async {
            let answer = stage.commit(step.clone()).await;
            (answer.refusal() == wire::CommitRefusal::Unspecified).then_some(())
        };
        wait_until(again, PATIENCE, "commits go on").await;
    }
}

/// The settlement of a message with nodes has no event of its own, only the events of its nodes.
#[tokio::test]
async fn the_loss_of_a_change_without_an_event_is_detected() {
    for layout in LAYOUTS {
        let mut stage = stage(layout).await;
        let mut flow = stage.started(1).await;
        let (_beats, mut answers) = join(&stage).await;
        stage.settle_one(&mut flow).await;
        stage.redis.restart();
        assert_resync(&mut answers).await;
    }
}

#[tokio::test]
async fn a_kept_job_that_is_gone_is_missed() {
    for layout in LAYOUTS {
        let mut stage = stage(layout).await;
        let (_beats, mut answers) = join(&stage).await;
        keep(&stage);
        let spec = v1::JobSpec {
            script_type: v1::ScriptType::Shell.into(),
            script: Some(v1::Script { source: Some(v1::script::Source::Text("true".to_owned())) }),
            ..Default::default()
        };
        let kept = v1::CreateJobRequest { context_id: CONTEXT, spec: Some(spec), ..Default::default() };
        stage.jobs(EXECUTOR).create_job(kept).await.unwrap();
        go_back(&mut stage);
        assert_eq!(end(&mut answers).await.1, "STORE_WENT_BACK");
    }
}

/// Keeps storage from hearing that Redis is back.
fn silence(stage: &Stage) {
    let answer = stage.raw(&["ACL", "SETUSER", "default", "-psubscribe"]);
    assert!(answer.starts_with("+OK"), "{answer}");
}

/// A change that is made before any check must not hide what is gone.
#[tokio::test]
async fn nothing_is_changed_before_the_rollback_is_reported() {
    for layout in LAYOUTS {
        let mut stage = stage(layout).await;
        let flow = stage.started(1).await;
        let (_beats, mut answers) = join(&stage).await;
        keep(&stage);
        let signal = |name: &str| flow.push(&FlowInput::Signal { name: name.parse().unwrap() });
        let mut lost = flow.clone();
        let step = lost.step();
        stage.apply(&mut lost, step).await;
        go_back(&mut stage);
        silence(&stage);
        let refused = || async {
            let refused = failure(stage.flows().push_input(signal("go")).await);
            (refused.0 != Code::Unavailable).then_some(refused)
        };
        let refused = wait_until(refused, PATIENCE, "Redis is back").await;
        let went_back = (Code::Aborted, "STORE_WENT_BACK".to_owned());
        assert_eq!(refused, went_back);
        assert_eq!(end(&mut answers).await, went_back);
        // From then on it is what is there.
        for name in ["go", "on", "and-on"] {
            stage.flows().push_input(signal(name)).await.unwrap();
        }
        assert_eq!(stage.commit(lost.step()).await.refusal(), wire::CommitRefusal::Fenced);
    }
}

#[tokio::test]
async fn nothing_outside_of_contexts_is_changed_before_the_rollback_is_reported() {
    for layout in LAYOUTS {
        let mut stage = stage(layout).await;
        let (_beats, mut answers) = join(&stage).await;
        keep(&stage);
        let change = || v1::UpdateActorRequest { id: READER, ..Default::default() };
        stage.actors(Identity::Admin).update_actor(change()).await.unwrap();
        go_back(&mut stage);
        silence(&stage);
        let changed = || async { stage.actors(Identity::Admin).update_actor(change()).await.ok() };
        wait_until(changed, PATIENCE, "an actor is changed").await;
        assert_eq!(end(&mut answers).await, (Code::Aborted, "STORE_WENT_BACK".to_owned()));
    }
}

#[tokio::test]
async fn a_store_that_caught_up_meanwhile_is_recognised() {
    for layout in LAYOUTS {
        let mut stage = stage(layout).await;
        let mut flow = stage.started(1).await;
        let (_beats, mut answers) = join(&stage).await;
        keep(&stage);
        let step = flow.step();
        stage.apply(&mut flow, step).await;
        go_back(&mut stage);
        // Another storage made as many changes before this one is back.
        let (database, keys) = (stage.keys().database(), stage.keys());
        let id = format!("{}-1", flow.revision);
        let event = r#"{"kind":"context"}"#;
        let added =
            stage.redis.raw(database, &["XADD", &keys.events(), &id, "e", event, "b", "00000000000000aa"]);
        assert!(added.contains(&id), "{added}");
        assert_eq!(end(&mut answers).await.1, "STORE_WENT_BACK");
    }
}

#[tokio::test]
async fn a_store_that_forgot_everything_is_recognised() {
    for layout in LAYOUTS {
        let mut stage = Stage::new(layout).await;
        let (_beats, mut answers) = join(&stage).await;
        stage.redis.restart();
        // The lease is gone as well; either way what is in memory is void.
        let (code, reason) = end(&mut answers).await;
        assert_eq!(code, Code::Aborted);
        assert!(["STORE_WENT_BACK", "LEASE_LOST"].contains(&reason.as_str()), "{reason}");
    }
}

#[tokio::test]
async fn the_loss_of_redis_and_its_return_are_reported() {
    let mut stage = stage(Layout::Database).await;
    let mut connected = stage.connected.clone();
    connected.wait_for(|connected| *connected).await.unwrap();
    stage.redis.kill9();
    connected.wait_for(|connected| !connected).await.unwrap();
    stage.redis.restart();
    connected.wait_for(|connected| *connected).await.unwrap();
}

#[tokio::test]
async fn a_trimmed_stream_lost_nothing() {
    for layout in LAYOUTS {
        let mut stage = stage(layout).await;
        let mut flow = stage.started(1).await;
        let (_beats, mut answers) = join(&stage).await;
        // Another storage writes, and what this one wrote last is trimmed away.
        let (database, keys) = (stage.keys().database(), stage.keys());
        let id = format!("{}-1", flow.revision + 1);
        let event = r#"{"kind":"context"}"#;
        let events = keys.events();
        let added = stage.redis.raw(database, &["XADD", &events, &id, "e", event, "b", "00000000000000aa"]);
        assert!(added.contains(&id), "{added}");
        let _ = stage.redis.raw(database, &["HINCRBY", &keys.ids(), "revision", "1"]);
        let _ = stage.redis.raw(database, &["XTRIM", &events, "MAXLEN", "1"]);
        stage.redis.restart();
        assert_resync(&mut answers).await;
        let step = flow.step();
        stage.apply(&mut flow, step).await;
        let replicas = GlobalKeys::new(layout).replicas();
        assert!(stage.redis.raw(0, &["HGET", &replicas, "a"]).contains(' '), "the lease is still there");
    }
}
