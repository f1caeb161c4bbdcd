//! Random operations on the leases of scheduler replicas against a short reference of who has which.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::FutureExt as _;
use keys::{ContextKey, GlobalKey};
use kv::Cmd;
use model::{FlowId, FlowInput, OwnerId, placement};
use proptest::prelude::*;
use proto::internal::v1 as wire;
use proto::internal::v1::join_response::News;
use storage::Config;
use testkit::{PATIENCE, wait_until};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::conformance::{self, Chances, Family, Kept, noticed};
use crate::places::Redis;
use crate::stage::{CONTEXT, EXECUTOR, Running, Stage, failure};

const NAMES: [&str; 3] = ["a", "b", "c"];
/// Flows that are touched.
const FLOWS: usize = 4;
/// Replicas at most.
const REPLICAS: usize = 6;

#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// A replica begins, or joins again without naming the lease it held.
    Join,
    /// A replica goes on with the lease that it thinks it has.
    Again,
    Beat,
    End,
    /// The stream of a replica breaks.
    Break,
    /// A lease was not prolonged for long.
    Lapse,
    /// Another storage gives a lease to a new start, without a hint arriving here.
    Usurp,
    /// A caller asks which replicas are alive.
    Look,
    /// A flow has something new for its owner.
    Touch,
}

#[derive(Debug)]
struct Lease {
    owner: String,
    is_over: bool,
}

/// A stream that stands.
struct Replica {
    name: &'static str,
    owner: String,
    beats: mpsc::Sender<wire::JoinRequest>,
    answers: Streaming<wire::JoinResponse>,
    /// Live replicas, as last sent to the replica.
    received: BTreeSet<String>,
}

pub(crate) struct Leases {
    leases: BTreeMap<&'static str, Lease>,
    /// Names that live, as storage has seen it last.
    seen: BTreeSet<String>,
    replicas: Vec<Replica>,
    /// Every start that there was, the last one last.
    starts: Vec<(&'static str, String)>,
    flows: Vec<Running>,
    /// Flows that were touched.
    touched: BTreeSet<u32>,
    signals: usize,
    revision: u64,
}

fn address(name: &str) -> String {
    format!("https://{name}:7702")
}

fn lost() -> (Code, String) {
    (Code::Aborted, "LEASE_LOST".to_owned())
}

async fn read(stage: &Stage<impl Redis>) -> BTreeMap<String, String> {
    let (keys, connection) = stage.global();
    connection.cmd(Cmd::new("HGETALL").arg(&keys.replicas())).await.unwrap().hash().unwrap()
}

/// Makes a lease end at another time.
async fn write(stage: &Stage<impl Redis>, name: &str, owner: &str, end: &str) {
    let (keys, connection) = stage.global();
    let lease = format!("{owner} {end} {}", address(name));
    connection.cmd(Cmd::new("HSET").arg(&keys.replicas()).arg(name).arg(&lease)).await.unwrap();
}

impl Replica {
    async fn join(
        stage: &Stage<impl Redis>,
        (name, owner): (&'static str, String),
        again: bool,
    ) -> Result<Self, Status> {
        let (beats, requests) = mpsc::channel(16);
        let hello =
            wire::JoinHello { name: name.to_owned(), owner: owner.clone(), address: address(name), again };
        beats.send(wire::JoinRequest { hello: Some(hello) }).await.unwrap();
        let mut answers = stage.flows().join(ReceiverStream::new(requests)).await?.into_inner();
        let mut next = async || Ok::<_, Status>(answers.message().await?.unwrap().news.unwrap());
        let News::Replicas(live) = next().await? else { panic!("who lives comes first") };
        assert_eq!(next().await?, News::Resync(wire::Resync {}));
        Ok(Self { name, owner, beats, answers, received: BTreeSet::from_iter(live.names) })
    }

    async fn next(&mut self) -> Result<Option<News>, Status> {
        let next = tokio::time::timeout(PATIENCE, self.answers.message()).await.expect("there is news");
        Ok(next?.map(|answer| answer.news.unwrap()))
    }

    /// The end of its stream, after any news.
    async fn end(&mut self) -> (Code, String) {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return (Code::Ok, String::new()),
                Err(status) => return failure::<()>(Err(status)),
            }
        }
    }

    /// Waits until the replica has received exactly this list of live replicas.
    async fn sees(&mut self, names: &BTreeSet<String>) {
        while self.received != *names {
            match self.next().await.unwrap().unwrap() {
                News::Replicas(live) => self.received = BTreeSet::from_iter(live.names),
                other => panic!("{} received {other:?}", self.name),
            }
        }
    }

    /// Checks that the replica has received everything.
    fn check_received(&mut self) {
        while let Some(next) = self.answers.message().now_or_never() {
            match next.unwrap().unwrap().news.unwrap() {
                // That it changed and is as before.
                News::Replicas(live) => assert_eq!(BTreeSet::from_iter(live.names), self.received),
                other => panic!("{} received {other:?}", self.name),
            }
        }
    }
}

impl Leases {
    fn is_held(&self, name: &str, owner: &str) -> bool {
        self.leases.get(name).is_some_and(|lease| lease.owner == owner && !lease.is_over)
    }

    /// Storage reads the live replicas; sessions of others learn that their lease is lost.
    async fn read(&mut self) {
        let live = self.leases.iter().filter(|(_, lease)| !lease.is_over);
        self.seen = live.map(|(name, _)| (*name).to_owned()).collect();
        let mut remaining = Vec::new();
        for mut replica in std::mem::take(&mut self.replicas) {
            if self.is_held(replica.name, &replica.owner) {
                replica.sees(&self.seen).await;
                remaining.push(replica);
            } else {
                assert_eq!(replica.end().await, lost(), "{} {}", replica.name, replica.owner);
            }
        }
        self.replicas = remaining;
    }

    async fn join(&mut self, stage: &Stage<impl Redis>, op: &Chances<What>) {
        let again = matches!(op.what, What::Again);
        let known = self.starts.iter().rev().nth(op.object % 4).filter(|_| again || op.other).cloned();
        let start = known.unwrap_or_else(|| {
            let new = (NAMES[op.object % NAMES.len()], OwnerId::random().to_string());
            self.starts.push(new.clone());
            new
        });
        let joined = Replica::join(stage, start.clone(), again).await;
        let (name, owner) = start;
        if again && !self.is_held(name, &owner) {
            assert_eq!(failure(joined), lost());
            return;
        }
        // Leases of vanished replicas are swept.
        self.leases.retain(|_, lease| !lease.is_over);
        self.leases.insert(name, Lease { owner, is_over: false });
        let joined = joined.unwrap();
        assert!(joined.received.iter().map(String::as_str).eq(self.leases.keys().copied()));
        self.replicas.push(joined);
        self.read().await;
        if self.replicas.len() > REPLICAS {
            self.break_off(0).await;
        }
    }

    async fn beat(&mut self, stage: &Stage<impl Redis>, place: usize) {
        let Replica { name, owner, beats, .. } = &self.replicas[place];
        let is_held = self.is_held(name, owner);
        if is_held {
            write(stage, name, owner, "9999999999.000").await;
        }
        beats.send(wire::JoinRequest { hello: None }).await.unwrap();
        if is_held {
            let is_prolonged =
                || async { (!read(stage).await[*name].contains(" 9999999999.000 ")).then_some(()) };
            wait_until(is_prolonged, PATIENCE, "the lease is prolonged").await;
        } else {
            assert_eq!(self.replicas.remove(place).end().await, lost());
        }
    }

    async fn end(&mut self, place: usize) {
        let Replica { name, owner, beats, answers, received } = self.replicas.remove(place);
        drop(beats);
        // The clean end of a former start takes nothing from the present one.
        let is_its_own = self.leases.get(name).is_some_and(|lease| lease.owner == owner);
        let mut replica = Replica { name, owner, beats: mpsc::channel(1).0, answers, received };
        assert_eq!(replica.end().await.0, Code::Ok);
        if is_its_own {
            self.leases.remove(name);
            self.read().await;
        }
    }

    async fn break_off(&mut self, place: usize) {
        let Replica { beats, answers, .. } = self.replicas.remove(place);
        drop(answers);
        noticed().await;
        drop(beats);
    }

    async fn lapse(&mut self, stage: &Stage<impl Redis>, name: &'static str) {
        let Some(lease) = self.leases.get_mut(name) else { return };
        lease.is_over = true;
        write(stage, name, &lease.owner, "1.000").await;
    }

    async fn usurp(&mut self, stage: &Stage<impl Redis>, name: &'static str) {
        let owner = OwnerId::random().to_string();
        write(stage, name, &owner, "9999999999.000").await;
        self.starts.push((name, owner.clone()));
        self.leases.insert(name, Lease { owner, is_over: false });
    }

    async fn look(&mut self, stage: &Stage<impl Redis>) {
        let watch = stage.messages().watch_schedulers(wire::WatchSchedulersRequest {}).await;
        let said = watch.unwrap().into_inner().message().await.unwrap().unwrap().replicas;
        let live = self.leases.iter().filter(|(_, lease)| !lease.is_over);
        let live =
            live.map(|(name, _)| wire::SchedulerReplica { name: (*name).to_owned(), address: address(name) });
        assert_eq!(said, live.collect::<Vec<_>>());
        self.read().await;
    }

    async fn touch(&mut self, stage: &Stage<impl Redis>, op: &Chances<What>) {
        let flow = &self.flows[op.object % FLOWS];
        self.signals += 1;
        self.touched.insert(flow.id);
        let name = format!("s{}", self.signals).parse().unwrap();
        assert!(!stage.push(flow, &FlowInput::Signal { name }).await);
        let owner = placement::owner_of(self.seen.iter().map(String::as_str), flow.uid.parse().unwrap());
        for replica in self.replicas.iter_mut().filter(|replica| Some(replica.name) == owner) {
            loop {
                match replica.next().await.unwrap().unwrap() {
                    News::Replicas(_) => {}
                    News::Resync(_) => panic!("{} has missed nothing", replica.name),
                    News::Touched(touched) => {
                        assert!(touched.flows.iter().map(|flow| &flow.flow_uid).eq([&flow.uid]));
                        break;
                    }
                }
            }
        }
    }

    async fn check_leases(&self, stage: &Stage<impl Redis>) {
        let kept = read(stage).await;
        assert!(kept.keys().map(String::as_str).eq(self.leases.keys().copied()), "{kept:?}");
        for (name, lease) in &self.leases {
            let [owner, ends, place] = kept[*name].splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
            assert_eq!((owner, ends == "1.000", place), (&*lease.owner, lease.is_over, &*address(name)));
        }
    }
}

impl Family for Leases {
    type Op = Chances<What>;

    /// No lease ends by itself.
    fn config() -> Config {
        Config { lease: Duration::from_secs(3600), ..Config::default() }
    }

    fn any_op() -> impl Strategy<Value = Chances<What>> {
        let what = prop_oneof![
            5 => Just(What::Join),
            4 => Just(What::Again),
            4 => Just(What::Beat),
            2 => Just(What::End),
            2 => Just(What::Break),
            3 => Just(What::Lapse),
            2 => Just(What::Usurp),
            2 => Just(What::Look),
            3 => Just(What::Touch),
        ];
        Chances::any(what, Just(EXECUTOR))
    }

    async fn new(stage: &Stage<impl Redis>) -> Self {
        let mut flows = Vec::new();
        for _ in 0..FLOWS {
            flows.push(stage.started(1).await);
        }
        Self {
            leases: BTreeMap::new(),
            seen: BTreeSet::new(),
            replicas: Vec::new(),
            starts: Vec::new(),
            revision: flows[FLOWS - 1].revision,
            flows,
            touched: BTreeSet::new(),
            signals: 0,
        }
    }

    async fn apply(&mut self, stage: &Stage<impl Redis>, op: Chances<What>) {
        let place = op.object.checked_rem(self.replicas.len());
        match (op.what, place) {
            (What::Join | What::Again, _) => self.join(stage, &op).await,
            (What::Beat, Some(place)) => self.beat(stage, place).await,
            (What::End, Some(place)) => self.end(place).await,
            (What::Break, Some(place)) => self.break_off(place).await,
            (What::Lapse, _) => self.lapse(stage, NAMES[op.object % NAMES.len()]).await,
            (What::Usurp, _) => self.usurp(stage, NAMES[op.object % NAMES.len()]).await,
            (What::Look, _) => self.look(stage).await,
            (What::Touch, _) => self.touch(stage, &op).await,
            (What::Beat | What::End | What::Break, None) => {}
        }
        self.check_leases(stage).await;
        self.replicas.iter_mut().for_each(Replica::check_received);
    }

    async fn check(&mut self, stage: &Stage<impl Redis>) {
        assert_eq!(stage.revision().await, self.revision, "leases are no changes");
    }

    fn kept(&self) -> Kept {
        let mut kept = Kept::on_stage(self.revision);
        if !self.leases.is_empty() {
            kept.global(&GlobalKey::Replicas);
        }
        for flow in &self.flows {
            kept.started(flow);
        }
        for flow in &self.touched {
            kept.key(CONTEXT, &ContextKey::FlowSignals(FlowId(*flow)));
            kept.key(CONTEXT, &ContextKey::FlowInputs(FlowId(*flow)));
        }
        kept
    }
}

#[test]
fn leases_match_the_reference() {
    conformance::with_databases::<Leases>(15);
}

#[test]
fn leases_match_the_reference_with_hash_tags() {
    conformance::with_hash_tags::<Leases>(15);
}

#[test]
fn leases_match_the_reference_in_a_cluster() {
    conformance::in_a_cluster::<Leases>(15);
}
