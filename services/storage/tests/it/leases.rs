//! Scheduler replicas: leases, who lives, and what is touched.

use std::time::Duration;

use keys::{GlobalKeys, Layout};
use kv::Cmd;
use model::{FlowInput, FlowUid, OwnerId, placement};
use proto::internal::v1 as wire;
use proto::internal::v1::join_response::News;
use storage::Config;
use testkit::{PATIENCE, RedisServer, wait_until};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use crate::stage::{CONTEXT, EXECUTOR, Running, Stage, failure};

/// A replica with its stream.
pub(crate) struct Replica {
    name: &'static str,
    owner: String,
    pub(crate) beats: Option<mpsc::Sender<wire::JoinRequest>>,
    pub(crate) answers: Streaming<wire::JoinResponse>,
}

impl Replica {
    async fn join(stage: &Stage, name: &'static str) -> Self {
        Self::join_as(stage, name, OwnerId::random().to_string()).await
    }

    /// Says `hello` or `again`, whatever is answered.
    pub(crate) async fn open(stage: &Stage, name: &'static str, owner: String, again: bool) -> Self {
        let (beats, requests) = mpsc::channel(16);
        let address = format!("https://{name}:7702");
        let hello = wire::JoinHello { name: name.to_owned(), owner: owner.clone(), address, again };
        beats.send(wire::JoinRequest { hello: Some(hello) }).await.unwrap();
        let answers = stage.flows().join(ReceiverStream::new(requests)).await.unwrap().into_inner();
        Self { name, owner, beats: Some(beats), answers }
    }

    pub(crate) async fn join_as(stage: &Stage, name: &'static str, owner: String) -> Self {
        let mut replica = Self::open(stage, name, owner, false).await;
        assert!(replica.replicas().await.contains(&name.to_owned()), "who lives comes first");
        assert_eq!(replica.next().await, News::Resync(wire::Resync {}));
        replica
    }

    pub(crate) async fn beat(&self) {
        self.beats.as_ref().unwrap().send(wire::JoinRequest { hello: None }).await.unwrap();
    }

    async fn next(&mut self) -> News {
        self.answers.message().await.unwrap().unwrap().news.unwrap()
    }

    async fn replicas(&mut self) -> Vec<String> {
        match self.next().await {
            News::Replicas(replicas) => replicas.names,
            other => panic!("not who lives but {other:?}"),
        }
    }

    /// The first news that says that just these live.
    async fn sees(&mut self, names: &[&str]) {
        loop {
            if let News::Replicas(replicas) = self.next().await
                && replicas.names == names
            {
                return;
            }
        }
    }

    /// Flows that are touched, up to the first news of `count` of them.
    async fn touched(&mut self, count: usize) -> Vec<String> {
        let mut flows = Vec::new();
        while flows.len() < count {
            if let News::Touched(touched) = self.next().await {
                assert!(touched.flows.iter().all(|flow| flow.context_id == CONTEXT && flow.due_millis == 0));
                flows.extend(touched.flows.into_iter().map(|flow| flow.flow_uid));
            }
        }
        flows
    }

    pub(crate) async fn end(&mut self) -> (Code, String) {
        loop {
            match self.answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return (Code::Ok, String::new()),
                Err(status) => return failure::<()>(Err(status)),
            }
        }
    }
}

pub(crate) async fn with_lease(layout: Layout, lease: Duration) -> Stage {
    Stage::with(RedisServer::start(), Config { layout, lease, ..Config::default() }).await
}

/// Makes a lease look as if it had not been prolonged for long.
async fn lapse(stage: &Stage, replica: &Replica) {
    let lease = format!("{} 1.000 https://{}:7702", replica.owner, replica.name);
    let key = GlobalKeys::new(stage.layout).replicas();
    let set = Cmd::new("HSET").arg(&key).arg(replica.name).arg(&lease);
    stage.kv.database(0).cmd(set).await.unwrap();
}

#[tokio::test]
async fn replicas_see_each_other_come_and_go() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let mut watch =
            stage.messages().watch_schedulers(wire::WatchSchedulersRequest {}).await.unwrap().into_inner();
        assert!(watch.message().await.unwrap().unwrap().replicas.is_empty());
        let mut a = Replica::join(&stage, "a").await;
        let mut b = Replica::join(&stage, "b").await;
        a.sees(&["a", "b"]).await;
        let both = loop {
            let replicas = watch.message().await.unwrap().unwrap().replicas;
            if replicas.len() == 2 {
                break replicas;
            }
        };
        let expected = wire::SchedulerReplica { name: "b".to_owned(), address: "https://b:7702".to_owned() };
        assert_eq!(both[1], expected);
        // A clean end gives the lease back at once.
        a.beats = None;
        assert_eq!(a.end().await.0, Code::Ok);
        b.sees(&["b"]).await;
        assert_eq!(watch.message().await.unwrap().unwrap().replicas, [expected]);
    }
}

#[tokio::test]
async fn another_start_takes_the_name_over() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let mut first = Replica::join(&stage, "a").await;
        let mut second = Replica::join(&stage, "a").await;
        assert_eq!(first.end().await, (Code::Aborted, "LEASE_LOST".to_owned()), "without a beat of its own");
        second.beat().await;
        // The same start joins again, since its stream broke.
        let mut again = Replica::join_as(&stage, "a", second.owner.clone()).await;
        again.beat().await;
        second.beat().await;
        // The clean end of a former start takes nothing from the present one.
        first.beats = None;
        again.beats = None;
        assert_eq!(again.end().await.0, Code::Ok);
        let key = GlobalKeys::new(layout).replicas();
        let left = stage.kv.database(0).cmd(Cmd::new("EXISTS").arg(&key)).await.unwrap();
        assert_eq!(left.int(), Ok(0));
        assert_eq!(second.end().await.1, "LEASE_LOST");
    }
}

#[tokio::test]
async fn a_replica_without_heartbeats_is_lost() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = with_lease(layout, Duration::from_secs(1)).await;
        let mut silent = Replica::join(&stage, "silent").await;
        let mut beating = Replica::join(&stage, "beating").await;
        // The list changes by itself when the lease ends, while the other replica sends heartbeats.
        let heard = async {
            loop {
                beating.beat().await;
                if let Ok(Ok(Some(answer))) =
                    tokio::time::timeout(Duration::from_millis(50), beating.answers.message()).await
                    && answer.news
                        == Some(News::Replicas(wire::Replicas { names: vec!["beating".to_owned()] }))
                {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, heard).await.unwrap();
        assert_eq!(silent.end().await, (Code::Aborted, "LEASE_LOST".to_owned()));
    }
}

#[tokio::test]
async fn a_beat_that_comes_too_late_prolongs_nothing() {
    let stage = with_lease(Layout::Database, Duration::from_secs(3600)).await;
    let mut late = Replica::join(&stage, "late").await;
    lapse(&stage, &late).await;
    late.beat().await;
    assert_eq!(late.end().await, (Code::Aborted, "LEASE_LOST".to_owned()));
    // It joins again, and the lease of the vanished replica is swept.
    let other = Replica::join(&stage, "other").await;
    lapse(&stage, &other).await;
    let _late = Replica::join(&stage, "late").await;
    let key = GlobalKeys::new(stage.layout).replicas();
    let names = stage.kv.database(0).cmd(Cmd::new("HKEYS").arg(&key)).await.unwrap().texts().unwrap();
    assert_eq!(names, ["late"]);
}

#[tokio::test]
async fn a_replica_that_joins_again_must_not_have_lost_the_lease() {
    let stage = with_lease(Layout::Database, Duration::from_secs(3600)).await;
    let mut replica = Replica::join(&stage, "a").await;
    let again =
        async |owner: &str| Replica::open(&stage, "a", owner.to_owned(), true).await.answers.message().await;
    again(&replica.owner).await.expect("the lease stands");
    let other = OwnerId::random().to_string();
    let refused = (Code::Aborted, "LEASE_LOST".to_owned());
    assert_eq!(failure(again(&other).await), refused, "another start has it");
    lapse(&stage, &replica).await;
    assert_eq!(failure(again(&replica.owner).await), refused, "it has ended");
    replica.beat().await;
    assert_eq!(replica.end().await, refused);
}

#[tokio::test]
async fn a_hello_comes_first_and_once() {
    let stage = Stage::new(Layout::Database).await;
    for first in
        [wire::JoinRequest { hello: None }, wire::JoinRequest { hello: Some(wire::JoinHello::default()) }]
    {
        let mut answers = stage.flows().join(tokio_stream::iter([first])).await.unwrap().into_inner();
        assert_eq!(failure(answers.message().await).0, Code::InvalidArgument);
    }
    let mut replica = Replica::join(&stage, "a").await;
    let hello = wire::JoinHello { name: "a".to_owned(), owner: replica.owner.clone(), ..Default::default() };
    replica.beats.as_ref().unwrap().send(wire::JoinRequest { hello: Some(hello) }).await.unwrap();
    assert_eq!(replica.end().await.0, Code::InvalidArgument);
}

#[tokio::test]
async fn touched_flows_find_their_owner() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let mut a = Replica::join(&stage, "a").await;
        let mut b = Replica::join(&stage, "b").await;
        a.sees(&["a", "b"]).await;
        // A signal, a start without an owner, a flow run again, the end of an awaited flow.
        let signalled = stage.started(1).await;
        let started = stage.created(1).await;
        let mut again = stage.started(1).await;
        let (mut awaited, waiting) = (stage.started(1).await, stage.started(1).await);
        let end = again.end();
        stage.apply(&mut again, end).await;
        stage.push(&signalled, &FlowInput::Signal { name: "go".parse().unwrap() }).await;
        start(&stage, &started).await;
        stage.flows().restart_flow(again.restart()).await.unwrap();
        let ask = wire::AwaitFlowRequest {
            context_id: CONTEXT,
            flow_id: waiting.id,
            flow_uid: waiting.uid.clone(),
            awaited_flow_id: awaited.id,
        };
        stage.flows().await_flow(ask).await.unwrap();
        let end = awaited.end();
        stage.apply(&mut awaited, end).await;

        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        for flow in [&signalled, &started, &again, &waiting] {
            let uid: FlowUid = flow.uid.parse().unwrap();
            match placement::owner_of(["a", "b"], uid) {
                Some("a") => of_a.push(flow.uid.clone()),
                _ => of_b.push(flow.uid.clone()),
            }
        }
        assert_eq!(a.touched(of_a.len()).await, of_a);
        assert_eq!(b.touched(of_b.len()).await, of_b);
    }
}

#[tokio::test]
async fn a_replica_that_may_have_missed_touches_lists_again() {
    let mut stage = Stage::over(RedisServer::builder().persistent().start(), Layout::Database).await;
    let mut replica = Replica::join(&stage, "a").await;
    // Very many flows that waited for one are not named one by one.
    let mut awaited = stage.started(1).await;
    let members: Vec<String> = (0..101).map(|n| format!("{n}-{}", FlowUid::random())).collect();
    let waiters = stage.keys().flow_waiters(model::FlowId(awaited.id));
    stage.command(Cmd::new("SADD").arg(&waiters).args(&members)).await;
    let end = awaited.end();
    stage.apply(&mut awaited, end).await;
    assert_eq!(replica.next().await, News::Resync(wire::Resync {}));
    let active = Cmd::new("SCARD").arg(&stage.keys().flows_active());
    assert_eq!(stage.command(active).await.int(), Ok(101));
    // The line to Redis was lost, and nothing else.
    stage.redis.restart();
    while replica.next().await != News::Resync(wire::Resync {}) {}
    let flow = stage.started(1).await;
    stage.push(&flow, &FlowInput::Signal { name: "go".parse().unwrap() }).await;
    assert_eq!(replica.touched(1).await, [flow.uid]);
}

#[tokio::test]
async fn storage_that_ends_leaves_the_lease() {
    let mut stage = with_lease(Layout::Database, Duration::from_secs(3600)).await;
    let mut replica = Replica::join(&stage, "a").await;
    stage.start().await;
    assert_eq!(replica.end().await, (Code::Unavailable, "DRAINING".to_owned()));
    let again = Replica::join_as(&stage, "a", replica.owner.clone()).await;
    again.beat().await;
    let mut other = Replica::join(&stage, "b").await;
    let live = || async {
        let key = GlobalKeys::new(stage.layout).replicas();
        let count = stage.kv.database(0).cmd(Cmd::new("HLEN").arg(&key)).await.unwrap().int();
        (count == Ok(2)).then_some(())
    };
    wait_until(live, PATIENCE, "both hold a lease").await;
    other.beats = None;
    assert_eq!(other.end().await.0, Code::Ok);
}

/// Starts a flow that has its nodes, without an owner.
pub(crate) async fn start(stage: &Stage, flow: &Running) {
    let request = wire::StartFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        flow_uid: flow.uid.clone(),
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    stage.flows().start_flow(request).await.unwrap();
}
