//! Storage over a cluster: what its primaries' deaths cost, and what it takes to use one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keys::{ContextKeys, Layout};
use kv::{Cmd, Durability};
use model::id::Uid;
use model::{ContextId, FlowId, OwnerId};
use proto::internal::v1::flow_store_service_client::FlowStoreServiceClient;
use proto::internal::v1::{self as wire, CommitRefusal};
use proto::v1;
use rpc::Channel;
use storage::{Config, Deps, StorageStartError};
use testkit::{PATIENCE, RedisCluster, RedisServer, wait_until, wait_until_blocking};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, Running, Stage, create, script};

/// Contexts that are served by all three primaries.
const CONTEXTS: u32 = 6;
/// Concurrent submitters.
const SUBMITTERS: u32 = 4;
/// How often a primary is killed while changes are replicated, and while they are not.
const KILLS: usize = 20;
const KILLS_UNREPLICATED: usize = 2;

async fn refusal(url: &str, layout: Layout) -> String {
    let deps = Deps { kv: kv::Kv::new(url.parse().unwrap()), trust_domain: Default::default() };
    match (Config { layout, ..Config::default() }).build(deps).await {
        Err(StorageStartError::Unusable(why)) => why.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{url} is not refused"),
    }
}

/// A flow whose end was answered, and the step that ended it.
struct Ended {
    context: u32,
    flow: u32,
    uid: String,
    commit_id: String,
}

/// Why a submission was given up.
#[derive(Debug)]
enum SubmissionFailure {
    /// The test is over.
    Stopped,
    /// The submission was refused: something that was answered is gone.
    Refused,
}

struct Submitter {
    flows: FlowStoreServiceClient<Channel>,
    contexts: BTreeMap<u32, String>,
    answered: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl Submitter {
    /// Submits until it is stopped. Gives what was answered, and how much was refused.
    async fn run(self, place: u32) -> (Vec<Ended>, usize) {
        let (mut ended, mut refused) = (Vec::new(), 0);
        for round in place.. {
            if self.stop.is_cancelled() {
                break;
            }
            let context = 1 + round % CONTEXTS;
            match self.submit(context).await {
                Ok(one) => ended.push(one),
                Err(SubmissionFailure::Stopped) => break,
                Err(SubmissionFailure::Refused) => refused += 1,
            }
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        (ended, refused)
    }

    /// A flow from its creation to one of two ends that are wished for it.
    async fn submit(&self, context: u32) -> Result<Ended, SubmissionFailure> {
        let uid = Uid::random().to_string();
        let request = wire::CreateFlowRequest {
            request_id: uid.clone(),
            request_hash: "aa".to_owned(),
            context_id: context,
            ..create(1)
        };
        let made = self
            .insist(|mut flows| {
                let ask = request.clone();
                async move { flows.create_flow(ask).await }
            })
            .await?;
        let flow = made.flow.and_then(|record| record.flow).unwrap();
        let mut running = Running {
            id: flow.id,
            uid: flow.uid,
            context_uid: self.contexts[&context].clone(),
            first_job: made.first_job_id,
            count: 1,
            owner: OwnerId::random().to_string(),
            epoch: 0,
            last_commit: String::new(),
            revision: 0,
        };
        let nodes = wire::AddNodesRequest { context_id: context, ..running.add_nodes(&script("true")) };
        self.insist(|mut flows| {
            let ask = nodes.clone();
            async move { flows.add_nodes(ask).await }
        })
        .await?;
        let start = wire::StartFlowRequest {
            context_id: context,
            flow_id: running.id,
            flow_uid: running.uid.clone(),
            owner: running.owner.clone(),
            on_behalf_of: EXECUTOR,
            ..Default::default()
        };
        let started = self
            .insist(|mut flows| {
                let ask = start.clone();
                async move { flows.start_flow(ask).await }
            })
            .await?;
        let started = started.flow.unwrap();
        (running.epoch, running.last_commit) = (started.epoch, started.last_commit);
        let end = || wire::CommitRequest { context_id: context, ..running.end() };
        let (one, other) = tokio::join!(self.end(end()), self.end(end()));
        match (one?, other?) {
            (Some(commit_id), None) | (None, Some(commit_id)) => {
                Ok(Ended { context, flow: running.id, uid: running.uid, commit_id })
            }
            // The one that was accepted first is gone, or both were accepted.
            (Some(_), Some(_)) | (None, None) => Err(SubmissionFailure::Refused),
        }
    }

    /// Asks for an end until it is known what became of it; gives its id when it was accepted.
    async fn end(&self, request: wire::CommitRequest) -> Result<Option<String>, SubmissionFailure> {
        loop {
            let answers = self.flows.clone().commit(tokio_stream::iter([request.clone()])).await;
            let answer = answers.unwrap().into_inner().message().await.unwrap().unwrap();
            match answer.refusal() {
                CommitRefusal::Unspecified => return Ok(Some(request.commit_id)),
                CommitRefusal::UnknownOutcome => self.pause().await?,
                CommitRefusal::Fenced | CommitRefusal::Gone => return Ok(None),
                other => panic!("{other:?}: {}", answer.detail),
            }
        }
    }

    /// Asks again until the store has answered.
    async fn insist<T, F>(
        &self,
        mut ask: impl FnMut(FlowStoreServiceClient<Channel>) -> F,
    ) -> Result<T, SubmissionFailure>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        loop {
            match ask(self.flows.clone()).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if status.code() == Code::Unavailable => self.pause().await?,
                Err(status) => {
                    eprintln!("refused: {status}");
                    return Err(SubmissionFailure::Refused);
                }
            }
        }
    }

    async fn pause(&self) -> Result<(), SubmissionFailure> {
        // Before it asks again: others have something to do as well.
        tokio::task::yield_now().await;
        if self.stop.is_cancelled() { Err(SubmissionFailure::Stopped) } else { Ok(()) }
    }
}

async fn contexts_of(stage: &Stage<RedisCluster>) -> BTreeMap<u32, String> {
    let mut contexts = BTreeMap::from([(1, stage.context_uid.clone())]);
    for id in 2..=CONTEXTS {
        let request = v1::CreateContextRequest {
            id,
            admins: vec![ADMIN],
            executors: vec![EXECUTOR],
            ..Default::default()
        };
        let made =
            stage.contexts(identity::Identity::Admin).create_context(request).await.unwrap().into_inner();
        contexts.insert(id, made.context.unwrap().uid);
    }
    contexts
}

/// Kills primaries while flows are submitted. Gives what was answered, and how much was refused.
async fn killed(
    stage: &mut Stage<RedisCluster>,
    contexts: &BTreeMap<u32, String>,
    kills: usize,
) -> (Vec<Ended>, usize) {
    let (stop, answered) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
    let mut submitters = JoinSet::new();
    for place in 0..SUBMITTERS {
        let submitter = Submitter {
            flows: stage.flows(),
            contexts: contexts.clone(),
            answered: Arc::clone(&answered),
            stop: stop.clone(),
        };
        submitters.spawn(submitter.run(place));
    }
    let more = async |than: u64| {
        let more = || async { (answered.load(Ordering::Relaxed) > than).then_some(()) };
        wait_until(more, PATIENCE, "submissions go on").await;
    };
    for kill in 0..kills {
        more(answered.load(Ordering::Relaxed) + 20).await;
        let key = format!("{{{}}}:", 1 + kill as u32 % CONTEXTS);
        let redis = &mut stage.redis;
        tokio::task::block_in_place(|| {
            redis.settle();
            let primary = redis.primary_of(&key);
            redis.kill9(primary);
            let _ = redis.successor_of(primary, &key);
            redis.restart(primary);
        });
    }
    more(answered.load(Ordering::Relaxed) + 20).await;
    stop.cancel();
    let (mut ended, mut refused) = (Vec::new(), 0);
    while let Some(submitted) = submitters.join_next().await {
        let (more, given_up) = submitted.unwrap();
        ended.extend(more);
        refused += given_up;
    }
    tokio::task::block_in_place(|| stage.redis.settle());
    (ended, refused)
}

/// Which of what was answered is gone; and no flow has two ends in the record.
async fn lost(stage: &Stage<RedisCluster>, ended: &[Ended]) -> usize {
    for context in 1..=CONTEXTS {
        let keys = ContextKeys::new(Layout::HashTag, ContextId(context));
        let connection = stage.kv.at(keys.database(), &keys.tag());
        let range = Cmd::new("XRANGE").arg(&keys.events()).arg("-").arg("+");
        let mut seen = BTreeSet::new();
        for event in connection.cmd(range).await.unwrap().entries().unwrap() {
            let text = event.text("e").unwrap();
            if text.contains("\"finished\"") {
                let event: serde_json::Value = serde_json::from_str(text).unwrap();
                assert!(seen.insert(event["flow_id"].to_string()), "two ends in context {context}: {text}");
            }
        }
    }
    let mut lost = 0;
    for one in ended {
        let keys = ContextKeys::new(Layout::HashTag, ContextId(one.context));
        let ask = Cmd::new("HMGET").arg(&keys.flow(FlowId(one.flow))).args(["uid", "status", "last_commit"]);
        let [uid, status, last] = stage.kv.at(0, &keys.tag()).cmd(ask).await.unwrap().tuple().unwrap();
        let found = [uid, status, last].map(|value| value.optional_text().unwrap().unwrap_or_default());
        lost += usize::from(found != [one.uid.clone(), "finished".to_owned(), one.commit_id.clone()]);
    }
    lost
}

/// Waits until the replica of a node has what the node has, and gives it.
fn replica_of(cluster: &RedisCluster, primary: usize) -> usize {
    let info_of = |node: usize, name: &str| {
        let info = cluster.nodes()[node].raw(0, &["INFO", "replication"]);
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u64>().ok())
    };
    let port = cluster.nodes()[primary].port();
    let nodes = 0..cluster.nodes().len();
    let replica = nodes.clone().find(|node| info_of(*node, "master_port") == Some(port.into())).unwrap();
    let written = info_of(primary, "master_repl_offset");
    let has_all = || (info_of(replica, "slave_repl_offset") >= written).then_some(());
    wait_until_blocking(has_all, PATIENCE, "the replica has everything");
    replica
}

/// A primary has an end that its replica does not receive, and dies; then another owner ends the flow. Returns both ends, the
/// first of which was answered with `answered`.
async fn ends_around_a_death(stage: &mut Stage<RedisCluster>, answered: CommitRefusal) -> [Ended; 2] {
    let mut flow = stage.started(1).await;
    let key = stage.keys().context();
    let (primary, replica) = tokio::task::block_in_place(|| {
        stage.redis.settle();
        let primary = stage.redis.primary_of(&key);
        (primary, replica_of(&stage.redis, primary))
    });
    stage.redis.nodes()[replica].pause();
    // What is on its way to a process that is stopped it would find later.
    let cut = stage.redis.nodes()[primary].raw(0, &["CLIENT", "KILL", "TYPE", "replica"]);
    assert!(cut.starts_with(":1"), "{cut}");
    let end = flow.end();
    assert_eq!(stage.commit(end.clone()).await.refusal(), answered);
    tokio::task::block_in_place(|| {
        stage.redis.kill9(primary);
        stage.redis.nodes()[replica].resume();
        assert_eq!(stage.redis.successor_of(primary, &key), replica);
        // The old primary comes back with the end that no other server has.
        stage.redis.restart(primary);
        stage.redis.settle();
    });
    let owner = OwnerId::random().to_string();
    let take = wire::TakeFlowRequest { context_id: CONTEXT, flow_id: flow.id, owner: owner.clone() };
    let taken = || async { stage.flows().take_flow(take.clone()).await.ok() };
    let taken = wait_until(taken, PATIENCE, "somebody else owns the flow, which has not ended").await;
    let taken = taken.into_inner().flow.unwrap();
    (flow.owner, flow.epoch, flow.last_commit) = (owner, taken.epoch, taken.last_commit);
    let other = flow.end();
    let known = async |end: &wire::CommitRequest| {
        let known = || async {
            let answer = stage.commit(end.clone()).await;
            (answer.refusal() != CommitRefusal::UnknownOutcome).then_some(answer.refusal())
        };
        wait_until(known, PATIENCE, "it is known what became of an end").await
    };
    assert_eq!(known(&other).await, CommitRefusal::Unspecified);
    assert_eq!(known(&end).await, CommitRefusal::Fenced, "the first end is not made up for");
    let of = |commit_id| Ended { context: CONTEXT, flow: flow.id, uid: flow.uid.clone(), commit_id };
    [of(end.commit_id), of(other.commit_id)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_primaries_cost_nothing_that_was_replicated() {
    let setup = RedisServer::builder().persistent();
    let config = Config { layout: Layout::HashTag, durability: Durability::Replicated, ..Config::default() };
    let mut stage = Stage::with(RedisCluster::of(&setup), config).await;
    let contexts = contexts_of(&stage).await;
    let (ended, refused) = killed(&mut stage, &contexts, KILLS).await;
    let gone = lost(&stage, &ended).await;
    eprintln!("replicated: {} ends answered in {KILLS} deaths, {refused} refused, {gone} lost", ended.len());
    assert_eq!((gone, refused), (0, 0));
    assert!(ended.len() > KILLS * 20);
    let [_, kept] = ends_around_a_death(&mut stage, CommitRefusal::UnknownOutcome).await;
    assert_eq!(lost(&stage, &[kept]).await, 0);
    // What is not replicated may be gone; but none has two ends.
    for durability in [Durability::Fast, Durability::Synced] {
        stage.config.durability = durability;
        stage.start().await;
        let [gone, kept] = ends_around_a_death(&mut stage, CommitRefusal::Unspecified).await;
        assert_eq!((lost(&stage, &[gone]).await, lost(&stage, &[kept]).await), (1, 0), "{durability}");
        let (ended, refused) = killed(&mut stage, &contexts, KILLS_UNREPLICATED).await;
        let gone = lost(&stage, &ended).await;
        eprintln!("{durability}: {} ends answered, {refused} refused, {gone} lost", ended.len());
    }
}

/// A change that is made at that node meanwhile would be missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_watch_relies_on_what_was_read_while_a_node_is_not_subscribed() {
    let config = Config { layout: Layout::HashTag, ..Config::default() };
    let stage = Stage::with(RedisCluster::start(), config).await;
    let begun = || async { stage.identities().watch_identities(wire::WatchIdentitiesRequest {}).await.ok() };
    let mut changes = wait_until(begun, PATIENCE, "every node is heard").await.into_inner();
    let node = &stage.redis.nodes()[stage.redis.primary_of("{1}:x")];
    let cut = node.raw(0, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert!(cut.starts_with(':') && !cut.starts_with(":0"), "{cut}");
    let ended = async { while changes.message().await.is_ok_and(|answer| answer.is_some()) {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the watch goes on as if nothing was missed");
    wait_until(begun, PATIENCE, "every node is heard again").await;
}

#[tokio::test]
async fn a_layout_or_url_that_does_not_fit_a_cluster_is_refused_by_name() {
    let bus = format!("cluster-port {}", testkit::free_port());
    let node = RedisServer::builder().tcp().config("cluster-enabled yes").config(&bus).start();
    let cluster = format!("redis+cluster://127.0.0.1:{}", node.port());
    let why = refusal(&cluster, Layout::Database).await;
    assert!(why.contains("`database`") && why.contains("`hash-tag`"), "{why}");
    let why = refusal(&node.tcp_url(), Layout::HashTag).await;
    assert!(why.contains("redis+cluster://"), "{why}");
    let alone = RedisServer::builder().tcp().start();
    let why = refusal(&format!("redis+cluster://127.0.0.1:{}", alone.port()), Layout::HashTag).await;
    assert!(why.contains("is no cluster"), "{why}");
}
