//! Watches by actors of the runners of their contexts.

use std::time::Duration;

use model::Presence;
use proto::internal::v1 as internal;
use proto::v1;
use proto::v1::watch_runners_response::Event;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::{Suite, gone, presence};

type Watch = Streaming<v1::WatchRunnersResponse>;

async fn watch(suite: &Suite, actor: u32, position: &str) -> Result<Watch, Status> {
    let request = v1::WatchRunnersRequest { context_id: 1, resume_position: position.to_owned() };
    Ok(suite.actor(actor).watch_runners(request).await?.into_inner())
}

async fn next(watch: &mut Watch) -> (Event, String) {
    let answer = watch.message().await.expect("no error").expect("no end");
    (answer.event.expect("always given"), answer.resume_position)
}

fn runner(event: Event) -> v1::Runner {
    match event {
        Event::Runner(runner) => runner,
        other => panic!("a runner was expected: {other:?}"),
    }
}

async fn change(suite: &Suite, runner_id: u32, resume: bool) -> v1::Runner {
    let request = v1::DrainRunnerRequest { context_id: 1, runner_id, resume, ..Default::default() };
    suite.actor(1).drain_runner(request).await.expect("admin").into_inner().runner.expect("given")
}

async fn delete(suite: &Suite, runner_id: u32) -> v1::Runner {
    let request = v1::DeleteRunnerRequest { context_id: 1, runner_id, ..Default::default() };
    suite.actor(1).delete_runner(request).await.expect("admin").into_inner().runner.expect("given")
}

#[tokio::test(start_paused = true)]
async fn a_watch_begins_with_a_snapshot_and_sends_each_change_once() {
    let suite = Suite::start();
    suite.register(1, 1).await;
    suite.register(1, 2).await;
    suite.register(2, 7).await;
    let mut watched = watch(&suite, 1, "").await.expect("a reader");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (event, position) = next(&mut watched).await;
        seen.push((runner(event).id, position));
    }
    seen.sort_unstable();
    assert_eq!(seen, [(1, String::new()), (2, String::new())]);
    let (end, position) = next(&mut watched).await;
    assert_eq!((end, position.as_str()), (Event::SnapshotEnd(v1::SnapshotEnd {}), "3"));

    let gateway = suite.gateway().await;
    gateway.send(Some(&presence())).await;
    for _ in 0..2 {
        let (event, position) = next(&mut watched).await;
        assert!(runner(event).live && position == "3", "that one lives moves no position");
    }
    assert!(change(&suite, 2, false).await.drain_time.is_some());
    let (event, position) = next(&mut watched).await;
    assert!(runner(event).drain_time.is_some() && position == "4");
    assert!(delete(&suite, 1).await.delete_time.is_some());
    let (event, position) = next(&mut watched).await;
    assert_eq!((event, position.as_str()), (Event::Removed(v1::RemovedRunner { runner_id: 1 }), "5"));

    // Whoever resumes is told what there is now, as changes.
    let mut resumed = watch(&suite, 1, "4").await.expect("a reader");
    let (event, position) = next(&mut resumed).await;
    assert_eq!((runner(event).id, position.as_str()), (2, "4"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_refused_and_ended_with_the_errors_of_storage() {
    let suite = Suite::start();
    let refused = watch(&suite, 2, "").await.expect_err("a stranger");
    assert_eq!(refused.code(), Code::NotFound);
    let refused = watch(&suite, 1, "gone").await.expect_err("gone");
    assert_eq!(rpc::ErrorView::from(&refused).reason, "POSITION_GONE");

    let mut watched = watch(&suite, 1, "").await.expect("a reader");
    assert!(matches!(next(&mut watched).await.0, Event::SnapshotEnd(_)));
    {
        let kept = suite.storage.0.lock().expect("not poisoned");
        let (_, follower) = kept.followers.last().expect("one");
        let idle = internal::FollowRunnersResponse { runner: None, position: "9".into() };
        follower.send(Ok(idle)).expect("read");
        let ended = rpc::Error::not_found("context 1");
        follower.send(Err(ended.into())).expect("read");
    }
    assert_eq!(next(&mut watched).await, (Event::Heartbeat(v1::Heartbeat {}), "9".to_owned()));
    assert_eq!(watched.message().await.expect_err("ended").code(), Code::NotFound);

    let mut watched = watch(&suite, 1, "").await.expect("a reader");
    assert!(matches!(next(&mut watched).await.0, Event::SnapshotEnd(_)));
    suite.shutdown.cancel();
    let ended = rpc::ErrorView::from(&watched.message().await.expect_err("ended"));
    assert_eq!((ended.code, ended.reason.as_str()), (Code::Unavailable, "DRAINING"));
}

impl Suite {
    /// Breaks off every stream of records, as storage does when it dies.
    fn break_off(&self) {
        let followers = std::mem::take(&mut self.storage.0.lock().expect("not poisoned").followers);
        for (_, follower) in followers {
            let _ = follower.send(Err(Status::unavailable("storage is gone")));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_outlives_broken_storage_streams_and_sends_each_change_once() {
    let suite = Suite::start();
    suite.register(1, 1).await;
    suite.register(1, 2).await;
    let mut watched = watch(&suite, 1, "").await.expect("a reader");
    while !matches!(next(&mut watched).await.0, Event::SnapshotEnd(_)) {}
    for (resume, expected) in [(false, "3"), (true, "4"), (false, "5")] {
        suite.break_off();
        // Nobody hears of this one as it happens.
        assert_eq!(change(&suite, 1, resume).await.drain_time.is_none(), resume);
        let (event, position) = next(&mut watched).await;
        assert_eq!((runner(event).drain_time.is_none(), position.as_str()), (resume, expected));
    }
    assert!(delete(&suite, 2).await.delete_time.is_some());
    let (event, position) = next(&mut watched).await;
    assert_eq!((event, position.as_str()), (Event::Removed(v1::RemovedRunner { runner_id: 2 }), "6"));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_runner_is_listened_to_while_its_supervisor_works() {
    let suite = Suite::start();
    suite.register(1, 1).await;
    let mut watched = suite.watch().await;
    let gateway = suite.gateway().await;
    let busy = Presence { queued: 1, ..presence() };
    gateway.send(Some(&busy)).await;
    while !crate::next(&mut watched).await[0].1.live {}
    delete(&suite, 1).await;
    let received = crate::next(&mut watched).await;
    assert!(received[0].1.delete_time.is_some(), "those who listen go on");
    let before = Instant::now();
    assert_eq!(gone(&mut watched).await, [(1, 1)]);
    assert!(before.elapsed() >= Duration::from_secs(59), "the clock went on by itself");
}
