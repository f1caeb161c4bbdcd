//! Leases, and the owners of flows, change as the tables of `specs/states/lease.md` say: each event is tried in each state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use keys::{GlobalKeys, Layout};
use kv::Cmd;
use model::{FlowId, FlowUid, OwnerId};
use proto::internal::v1 as wire;
use testkit::pages::first_cells;
use testkit::{PATIENCE, RedisServer, wait_until};
use tonic::Code;

use crate::creation::whole;
use crate::leases::{Replica, start, with_lease};
use crate::stage::{CONTEXT, Running, Stage, failure, script};

const PAGE: &str = "states/lease.md";

/// Name under which the lease is held that is looked at.
const NAME: &str = "a";
/// Lease that no test outlives.
const LEASE: Duration = Duration::from_secs(3600);
const STATES: [&str; 3] = ["none", "held", "over"];
const EVENTS: [&str; 6] = ["hello", "again", "beat", "expire", "end", "sweep"];

/// The start of the replica that the entry is of.
const OWN: &str = "its own start";
/// A start of the replica that the entry is not of.
const ANOTHER: &str = "another start";

/// Answer to a start that does not hold the lease.
fn lease_lost() -> (Code, String) {
    (Code::Aborted, "LEASE_LOST".to_owned())
}

/// Makers of an event: each may make it happen.
fn makers(event: &str) -> &'static [&'static str] {
    match event {
        "hello" | "again" | "beat" | "end" => &[OWN, ANOTHER],
        "expire" => &["the clock"],
        _ => &["another replica"],
    }
}

/// Names those who make a change in one cell.
fn cell(makers: &BTreeSet<&str>) -> String {
    if makers.contains(OWN) && makers.contains(ANOTHER) {
        return "any start".to_owned();
    }
    makers.iter().copied().collect::<Vec<_>>().join(", ")
}

/// An entry before and after an event.
struct LeaseStep {
    before: Option<String>,
    after: Option<String>,
    to: &'static str,
}

/// The entry in Redis under [`NAME`].
struct LeaseEntry<'a> {
    stage: &'a Stage,
    key: String,
    /// Start that the entry is of, if there is one.
    owner: String,
}

impl<'a> LeaseEntry<'a> {
    fn new(stage: &'a Stage) -> Self {
        let key = GlobalKeys::new(stage.layout).replicas();
        Self { stage, key, owner: OwnerId::random().to_string() }
    }

    /// Start that makes an event happen.
    fn owner_of(&self, maker: &str) -> String {
        if maker == OWN { self.owner.clone() } else { OwnerId::random().to_string() }
    }

    async fn command(&self, cmd: Cmd) -> kv::Value {
        self.stage.kv.database(0).cmd(cmd).await.expect("Redis answers")
    }

    async fn read(&self) -> Option<String> {
        self.command(Cmd::new("HGET").arg(&self.key).arg(NAME)).await.optional_text().expect("a text")
    }

    /// The clock of Redis, in milliseconds.
    async fn now(&self) -> u64 {
        let [secs, micros] = self.command(Cmd::new("TIME")).await.tuple().expect("two numbers");
        secs.uint().expect("seconds") * 1000 + micros.uint().expect("microseconds") / 1000
    }

    async fn state(&self) -> &'static str {
        let Some(entry) = self.read().await else { return "none" };
        let end: f64 =
            entry.split(' ').nth(1).and_then(|end| end.parse().ok()).expect("the end of the lease");
        if end * 1000.0 > self.now().await as f64 { "held" } else { "over" }
    }

    /// Has the lease of `owner` end at this moment of the clock of Redis.
    async fn write(&self, end_millis: u64) {
        let (secs, millis) = (end_millis / 1000, end_millis % 1000);
        let entry = format!("{} {secs}.{millis:03} https://{NAME}:7702", self.owner);
        self.command(Cmd::new("HSET").arg(&self.key).arg(NAME).arg(&entry)).await;
    }

    async fn put(&self, state: &str) {
        match state {
            "none" => drop(self.command(Cmd::new("HDEL").arg(&self.key).arg(NAME)).await),
            // Another end than that of a lease that was prolonged just now.
            "held" => self.write(self.now().await + 1_000_000).await,
            _ => self.write(1000).await,
        }
        assert_eq!(self.state().await, state);
    }

    async fn step(&self, before: Option<String>) -> LeaseStep {
        LeaseStep { before, after: self.read().await, to: self.state().await }
    }

    /// Says `hello` or `again`.
    async fn joins(&self, from: &str, again: bool, maker: &str) -> LeaseStep {
        self.put(from).await;
        let (before, owner) = (self.read().await, self.owner_of(maker));
        let mut replica = Replica::open(self.stage, NAME, owner.clone(), again).await;
        let answer = replica.answers.message().await;
        // While its stream stands: it leaves with that.
        let step = self.step(before).await;
        match answer {
            Ok(_) => {
                assert!(
                    step.after.as_ref().is_some_and(|entry| entry.starts_with(&owner)),
                    "it has the lease"
                );
                assert_ne!(step.before, step.after);
            }
            refused => {
                assert_eq!(failure(refused), lease_lost());
                assert_eq!(step.before, step.after);
            }
        }
        step
    }

    async fn beats(&self, from: &str, maker: &str) -> LeaseStep {
        let mut replica = Replica::join_as(self.stage, NAME, self.owner_of(maker)).await;
        self.put(from).await;
        let before = self.read().await;
        replica.beat().await;
        let prolonged = || async { (self.read().await != before).then_some(()) };
        tokio::select! {
            ended = replica.end() => assert_eq!(ended, lease_lost()),
            () = wait_until(prolonged, PATIENCE, "a beat is answered") => {}
        }
        self.step(before).await
    }

    async fn ends(&self, from: &str, maker: &str) -> LeaseStep {
        for _ in 0..1000 {
            let mut replica = Replica::join_as(self.stage, NAME, self.owner_of(maker)).await;
            self.put(from).await;
            let before = self.read().await;
            replica.beats = None;
            let ended = replica.end().await;
            if ended.0 == Code::Ok {
                return self.step(before).await;
            }
            // Storage has noticed before it heard of the end, and has said so: the lease was asked for, not ended.
            assert_eq!(ended, lease_lost());
        }
        panic!("{from}: storage hears of no end");
    }

    /// Lets the time of a lease pass, which is short from here on if there is one.
    async fn expires(&self, from: &str) -> LeaseStep {
        self.put(from).await;
        let end = self.now().await + 100;
        if from == "held" {
            self.write(end).await;
            assert_eq!(self.state().await, "held");
        }
        let before = self.read().await;
        let over = || async { (self.now().await >= end).then_some(()) };
        wait_until(over, PATIENCE, "the lease is over").await;
        self.step(before).await
    }

    /// Another replica says `hello` or `again`.
    async fn is_swept(&self, from: &str, again: bool) -> LeaseStep {
        let owner = OwnerId::random().to_string();
        let other = if again { Some(Replica::join_as(self.stage, "b", owner.clone()).await) } else { None };
        self.put(from).await;
        let before = self.read().await;
        let mut joined = Replica::open(self.stage, "b", owner, again).await;
        joined.answers.message().await.expect("it may join");
        drop(other);
        self.step(before).await
    }

    async fn happens(&self, from: &str, event: &str, maker: &str) -> LeaseStep {
        match event {
            "hello" => self.joins(from, false, maker).await,
            "again" => self.joins(from, true, maker).await,
            "beat" => self.beats(from, maker).await,
            "end" => self.ends(from, maker).await,
            "expire" => self.expires(from).await,
            _ => {
                let swept = self.is_swept(from, false).await;
                assert_eq!(self.is_swept(from, true).await.to, swept.to, "`again` sweeps as `hello` does");
                swept
            }
        }
    }
}

#[tokio::test]
async fn leases_change_as_written() {
    let stage = with_lease(Layout::Database, LEASE).await;
    let mut seen: BTreeMap<[&str; 3], BTreeSet<&str>> = BTreeMap::new();
    for from in STATES {
        for event in EVENTS {
            for maker in makers(event) {
                let step = LeaseEntry::new(&stage).happens(from, event, maker).await;
                println!("{from}, {event} by {maker}: {:?} -> {:?}", step.before, step.after);
                if step.before != step.after || from != step.to {
                    seen.entry([from, event, step.to]).or_default().insert(maker);
                }
            }
        }
    }
    let seen: BTreeSet<Vec<String>> = seen
        .iter()
        .map(|(change, makers)| change.iter().map(|cell| (*cell).to_owned()).chain([cell(makers)]).collect())
        .collect();
    assert_eq!(first_cells(PAGE, "States of a lease", 4), seen);
}

/// Places of a flow in the table of owners: the state, and after a colon what else matters.
const FLOWS: [&str; 5] = ["none", "none: created", "owned", "owned: ended", "unowned"];
/// Events of an owner, written in the same way.
const FLOW_EVENTS: [&str; 5] = ["create", "start", "start: without an owner", "take", "run_again"];

async fn flow_at(stage: &Stage, place: &str) -> Running {
    let mut flow = match place {
        "owned" | "owned: ended" => stage.started(1).await,
        _ => stage.created(1).await,
    };
    match place {
        // Another one, which nobody has created.
        "none" => (flow.id, flow.uid) = (flow.id + 1_000_000, FlowUid::random().to_string()),
        "owned: ended" => {
            let end = flow.end();
            stage.apply(&mut flow, end).await;
        }
        "unowned" => start(stage, &flow).await,
        _ => {}
    }
    flow
}

/// The state of a flow, its owner and its epoch.
async fn ownership(stage: &Stage, flow: &Running) -> (&'static str, String, u64) {
    let fields = stage.hash(&stage.keys().flow(FlowId(flow.id))).await;
    let field = |name: &str| fields.get(name).map_or("", String::as_str);
    let state = match (field("status"), field("owner")) {
        ("" | "created", "") => "none",
        (_, "") => "unowned",
        _ => "owned",
    };
    (state, field("owner").to_owned(), field("epoch").parse().unwrap_or_default())
}

/// Makes an event happen to a flow; a refusal is an answer as well.
async fn asks(stage: &Stage, flow: &Running, event: &str) {
    let (mut flows, owner) = (stage.flows(), OwnerId::random().to_string());
    let (context_id, flow_id, flow_uid) = (CONTEXT, flow.id, flow.uid.clone());
    let started =
        |owner| wire::StartFlowRequest { context_id, flow_id, flow_uid, owner, ..Default::default() };
    match event {
        "create" => {
            let request = whole(1, &script("true"));
            let request = wire::CreateFlowRequest { flow_id, flow_uid: flow.uid.clone(), ..request };
            drop(flows.create_flow(request).await);
        }
        "start" => drop(flows.start_flow(started(owner)).await),
        "start: without an owner" => drop(flows.start_flow(started(String::new())).await),
        "take" => drop(flows.take_flow(wire::TakeFlowRequest { context_id, flow_id, owner }).await),
        _ => drop(flows.restart_flow(flow.restart()).await),
    }
}

#[tokio::test]
async fn owners_of_flows_change_as_written() {
    let stage = Stage::new(Layout::Database).await;
    let mut seen = BTreeSet::new();
    for place in FLOWS {
        for event in FLOW_EVENTS {
            let flow = flow_at(&stage, place).await;
            let (from, owner, epoch) = ownership(&stage, &flow).await;
            asks(&stage, &flow, event).await;
            let (to, owner_then, epoch_then) = ownership(&stage, &flow).await;
            println!(
                "{place}, {event}: {from} of {owner} in {epoch} -> {to} of {owner_then} in {epoch_then}"
            );
            assert!(place.starts_with(from), "{place} is {from}");
            let event = event.split(':').next().expect("a name");
            if (&owner, epoch) == (&owner_then, epoch_then) {
                assert_eq!(from, to, "an owner comes with an epoch");
                continue;
            }
            let expected = if matches!(event, "create" | "start") { 1 } else { epoch + 1 };
            assert_eq!(epoch_then, expected, "{place}, {event}");
            seen.insert([from, event, to].map(str::to_owned).to_vec());
        }
    }
    assert_eq!(first_cells(PAGE, "Which flows that means", 3), seen);
}

#[tokio::test]
async fn a_lease_is_stored_in_the_format_that_the_page_gives() {
    let stage = Stage::over(RedisServer::start(), Layout::Database).await;
    let lease = LeaseEntry::new(&stage);
    let _replica = Replica::join_as(&stage, NAME, lease.owner.clone()).await;
    let entry = lease.read().await.expect("a lease");
    let [owner, end, address] = entry.split(' ').collect::<Vec<_>>().try_into().expect("three words");
    assert_eq!((owner, address), (&*lease.owner, "https://a:7702"));
    let left = end.parse::<f64>().expect("seconds") - lease.now().await as f64 / 1000.0;
    assert!(
        (0.0..=5.0).contains(&left) && end.split_once('.').is_some_and(|(_, millis)| millis.len() == 3),
        "{end}"
    );
}
