//! Common parts of the references of all families: random operations, and a look at everything that is kept.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use keys::{ContextKey, ContextKeys, GlobalKey, GlobalKeys, Layout};
use kv::{Cmd, KvConnection, Pipeline};
use model::{ActorId, ContextId, FlowId, FlowStatus, JobId};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use storage::Config;
use testkit::{RedisCluster, RedisServer};
use tonic::{Code, Status};

use crate::places::Redis;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, Running, STRANGER, Stage, failure};

/// Expected state of one family of objects, and the operations on them.
pub(crate) trait Family: Sized {
    type Op: fmt::Debug + Clone;

    /// How storage is set up; the layout is chosen elsewhere.
    fn config() -> Config {
        Config::default()
    }

    fn any_op() -> impl Strategy<Value = Self::Op>;

    /// On a stage that is as new.
    async fn new(stage: &Stage<impl Redis>) -> Self;

    /// Does it, and checks that it came to what it should.
    async fn apply(&mut self, stage: &Stage<impl Redis>, op: Self::Op);

    /// Checks what the API says of everything.
    async fn check(&mut self, stage: &Stage<impl Redis>);

    /// Expected keys, and the number of changes that each stream of events reports.
    fn kept(&self) -> Kept;
}

/// Chances, of which each operation takes those that it needs.
#[derive(Debug, Clone)]
pub(crate) struct Chances<W> {
    pub(crate) what: W,
    pub(crate) who: u32,
    pub(crate) object: usize,
    pub(crate) mask: u8,
    pub(crate) number: u8,
    request: Option<u8>,
    pub(crate) other: bool,
}

impl<W: fmt::Debug> Chances<W> {
    pub(crate) fn any(
        what: impl Strategy<Value = W>,
        who: impl Strategy<Value = u32>,
    ) -> impl Strategy<Value = Self> {
        let request = prop::option::of(any::<u8>());
        let chances = (what, who, 0_usize..1000, any::<u8>(), any::<u8>(), request, any::<bool>());
        chances.prop_map(|(what, who, object, mask, number, request, other)| Self {
            what,
            who,
            object,
            mask,
            number,
            request,
            other,
        })
    }

    /// Empty for what cannot be repeated.
    pub(crate) fn request_id(&self) -> String {
        self.request.map(|n| format!("r{n}")).unwrap_or_default()
    }
}

/// Requests of actors, of a family whose requests have ids.
pub(crate) trait Requesting {
    type Call: fmt::Debug + Clone;
    type Answer: fmt::Debug;

    /// Expected outcome of a call.
    fn expect(&self, who: u32, call: &Self::Call) -> End;

    async fn perform(
        &self,
        stage: &Stage<impl Redis>,
        who: u32,
        call: Self::Call,
    ) -> Result<Self::Answer, Status>;

    /// Applies a call that was carried out.
    fn take(&mut self, who: u32, call: &Self::Call, answer: &Self::Answer);

    /// Checks the answer against the expected state; a repeated request has the answer of its first call.
    fn check_answer(&self, who: u32, call: &Self::Call, answer: &Self::Answer, end: End);

    /// Asks, and checks that it came to what it should.
    async fn request(&mut self, stage: &Stage<impl Redis>, who: u32, call: Self::Call) {
        let end = self.expect(who, &call);
        let answer = self.perform(stage, who, call.clone()).await;
        let Some(answer) = end.meets(answer, &format!("{who} asks {call:?}")) else { return };
        if end == End::Made {
            self.take(who, &call, &answer);
        }
        self.check_answer(who, &call, &answer, end);
    }
}

/// Everything that is kept: where, what, and whether it goes by itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    keys: BTreeMap<String, bool>,
    /// Last change of each context, and of what belongs to none.
    revisions: BTreeMap<u32, u64>,
    /// Changes of a stage's context without an event.
    without_events: BTreeSet<u64>,
}

impl Kept {
    /// With what there is of every coordinator, after so many changes.
    pub(crate) fn globally(revision: u64) -> Self {
        let mut kept = Self::default();
        for key in [GlobalKey::Coordinator, GlobalKey::Events, GlobalKey::Audit, GlobalKey::Ids] {
            kept.global(&key);
        }
        kept.revisions.insert(0, revision);
        kept
    }

    /// With what there is of every context, after so many changes.
    pub(crate) fn context(&mut self, context: u32, revision: u64) {
        let own = ContextKey::Context(ContextId(context));
        for key in [own, ContextKey::Events, ContextKey::Audit, ContextKey::Ids] {
            self.key(context, &key);
        }
        self.revisions.insert(context, revision);
    }

    /// With what there is of a stage whose actors and context stay as they are, after so many changes in the context.
    pub(crate) fn on_stage(revision: u64) -> Self {
        // Four registrations, and a context.
        let mut kept = Self::globally(5);
        for key in [GlobalKey::Actors, GlobalKey::ActorKeys, GlobalKey::Contexts] {
            kept.global(&key);
        }
        for id in [ADMIN, EXECUTOR, READER, STRANGER] {
            kept.global(&GlobalKey::Actor(ActorId(id)));
        }
        kept.context(CONTEXT, revision);
        kept
    }

    /// Notes changes of a stage's context that have no event.
    pub(crate) fn without_events(&mut self, revisions: &BTreeSet<u64>) {
        self.without_events.clone_from(revisions);
    }

    /// A flow that has its nodes and is not over.
    pub(crate) fn started(&mut self, flow: &Running) {
        for key in [ContextKey::Flows, ContextKey::FlowsOf(FlowStatus::Started), ContextKey::FlowsActive] {
            self.key(CONTEXT, &key);
        }
        self.filled(flow);
    }

    /// A flow that has its nodes.
    pub(crate) fn filled(&mut self, flow: &Running) {
        self.key(CONTEXT, &ContextKey::Flow(FlowId(flow.id)));
        self.key(CONTEXT, &ContextKey::FlowNodes(FlowId(flow.id)));
        for job in flow.first_job..flow.first_job + flow.count {
            self.key(CONTEXT, &ContextKey::Job(ActorId(EXECUTOR), JobId(job)));
        }
    }

    pub(crate) fn global(&mut self, key: &GlobalKey) {
        let expires = matches!(key, GlobalKey::Request(..) | GlobalKey::Token(..));
        self.keys.insert(format!("0 {key}"), expires);
    }

    pub(crate) fn key(&mut self, context: u32, key: &ContextKey) {
        let expires = matches!(key, ContextKey::Request(..) | ContextKey::Seen(_) | ContextKey::BlobPart(..));
        self.keys.insert(format!("{context} {key}"), expires);
    }

    /// One that goes by itself by now.
    pub(crate) fn fading(&mut self, context: u32, key: &ContextKey) {
        self.keys.insert(format!("{context} {key}"), true);
    }

    /// Reads everything that is kept. How far the events had come is noted at each sweep, and which ended flows were measured
    /// depends on when: their lists are left out here.
    async fn read(stage: &Stage<impl Redis>) -> Self {
        let mut kept = Self::default();
        for (context, connection) in places(stage).await {
            let names = connection.cmd(Cmd::new("KEYS").arg("*")).await.unwrap().texts().unwrap();
            let mut query = Pipeline::new();
            for name in &names {
                query.cmd(Cmd::new("TTL").arg(name));
            }
            for (name, left) in names.iter().zip(connection.pipeline(&query).await.unwrap()) {
                let name = name_of(stage.layout, context, name);
                if ![" event_marks", " flows_ended", " flows_unmeasured"]
                    .iter()
                    .any(|list| name.ends_with(list))
                {
                    kept.keys.insert(name, left.unwrap().int().unwrap() >= 0);
                }
            }
        }
        kept
    }

    async fn check(self, stage: &Stage<impl Redis>) {
        let there = Self::read(stage).await.keys;
        let keys = |all: &BTreeMap<String, bool>, others: &BTreeMap<String, bool>| {
            let differing = all.iter().filter(|(key, expires)| others.get(*key) != Some(*expires));
            differing.map(|(key, expires)| format!("{key} expires={expires}")).collect::<Vec<_>>()
        };
        let (lost, left) = (keys(&self.keys, &there), keys(&there, &self.keys));
        assert!(lost.is_empty() && left.is_empty(), "missing: {lost:?}; nobody owns: {left:?}");
        for (context, revision) in self.revisions {
            let revisions = event_revisions(stage, ContextId(context)).await;
            let has_events = |revision: &u64| context != CONTEXT || !self.without_events.contains(revision);
            let changes: Vec<u64> = (1..=revision).filter(has_events).collect();
            assert_eq!(revisions, changes, "the changes of context {context}");
        }
    }
}

/// Everywhere where keys are, with the context where the place itself names one.
async fn places(stage: &Stage<impl Redis>) -> Vec<(Option<u32>, KvConnection)> {
    if stage.layout == Layout::HashTag {
        return stage.kv.primaries().await.unwrap().into_iter().map(|node| (None, node)).collect();
    }
    let info = stage.kv.database(0).cmd(Cmd::new("INFO").arg("keyspace")).await.unwrap().text().unwrap();
    let databases = info.lines().filter_map(|line| line.strip_prefix("db")?.split_once(':'));
    databases.map(|(n, _)| n.parse().unwrap()).map(|n| (Some(n), stage.kv.database(n))).collect()
}

/// `<context> <key>`, as builders of keys write it; all else as it is.
fn name_of(layout: Layout, context: Option<u32>, key: &str) -> String {
    let tagged = || key.strip_prefix('{')?.split_once('}')?.0.parse().ok();
    let Some(context) = context.or_else(tagged) else { return key.to_owned() };
    let parsed = if context == 0 {
        GlobalKeys::new(layout).parse(key).map(|key| key.to_string())
    } else {
        ContextKeys::new(layout, ContextId(context)).parse(key).map(|key| key.to_string())
    };
    parsed.map_or_else(|| format!("{context} ?{key}"), |key| format!("{context} {key}"))
}

/// The changes that have events in a context; checks that the events of each are counted from 1.
async fn event_revisions(stage: &Stage<impl Redis>, context: ContextId) -> Vec<u64> {
    let (layout, global) = (stage.layout, GlobalKeys::new(stage.layout));
    let keys = ContextKeys::new(layout, context);
    let events = if context.0 == 0 { global.events() } else { keys.events() };
    let connection = stage.kv.at(layout.database(context), &layout.tag(context));
    let events = connection.cmd(Cmd::new("XRANGE").arg(&events).arg("-").arg("+")).await.unwrap();
    let (mut revisions, mut last) = (Vec::new(), 0);
    for event in events.entries().unwrap() {
        let (revision, n) = event.id.split_once('-').unwrap();
        let n: u64 = n.parse().unwrap();
        assert_eq!(n, if n == 1 { 1 } else { last + 1 }, "event {} of context {context}", event.id);
        if n == 1 {
            revisions.push(revision.parse().unwrap());
        }
        assert_eq!(revisions.last().map(ToString::to_string).as_deref(), Some(revision));
        last = n;
    }
    revisions
}

/// Lets the service, which is on the same thread, notice who came and who left.
pub(crate) async fn noticed() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// So many sequences of operations, all on one stage.
fn run<F: Family>(redis: impl Redis, layout: Layout, cases: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config { layout, ..F::config() };
    let stage = runtime.block_on(Stage::with(redis, config));
    let family = RefCell::new(runtime.block_on(F::new(&stage)));
    // What has failed left its traces: to try less of it would be something else.
    let mut config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(RandomState::new().hash_one(cases));
    }
    // Captured, and so read only with a failure.
    println!("again with PROPTEST_RNG_SEED={}", config.rng_seed);
    let sequences = prop::collection::vec(F::any_op(), 1..40);
    let result = TestRunner::new(config).run(&sequences, |ops| {
        let mut family = family.borrow_mut();
        runtime.block_on(async {
            for op in ops {
                family.apply(&stage, op).await;
            }
            family.check(&stage).await;
            family.kept().check(&stage).await;
        });
        Ok(())
    });
    result.unwrap();
    let _guard = runtime.enter();
    drop(stage);
}

pub(crate) fn with_databases<F: Family>(cases: u32) {
    run::<F>(RedisServer::start(), Layout::Database, cases);
}

pub(crate) fn with_hash_tags<F: Family>(cases: u32) {
    run::<F>(RedisServer::start(), Layout::HashTag, cases);
}

pub(crate) fn in_a_cluster<F: Family>(cases: u32) {
    run::<F>(RedisCluster::start(), Layout::HashTag, cases);
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The call is carried out.
    Made,
    /// An earlier call of the same request was carried out.
    MadeBefore,
    /// The code, and the reason where it says more.
    Refused(Code, &'static str),
}

impl End {
    pub(crate) const REUSED: Self = Self::Refused(Code::AlreadyExists, "REQUEST_ID_REUSED");
    pub(crate) const UNSEEN: Self = Self::refused(Code::NotFound);
    pub(crate) const DENIED: Self = Self::refused(Code::PermissionDenied);

    pub(crate) const fn refused(code: Code) -> Self {
        Self::Refused(code, "")
    }

    /// The answer of a call that is not refused; else that it is refused for this.
    pub(crate) fn meets<T: fmt::Debug>(self, answer: Result<T, Status>, what: &str) -> Option<T> {
        match (answer, self) {
            (Ok(answer), Self::Made | Self::MadeBefore) => Some(answer),
            (Err(status), Self::Refused(code, reason)) => {
                let detail = status.message().to_owned();
                let got = failure::<()>(Err(status));
                assert_eq!(got.0, code, "{what}: {detail}");
                assert!(reason.is_empty() || got.1 == reason, "{what}: {} instead of {reason}", got.1);
                None
            }
            (answer, expected) => panic!("{what}: {answer:?} instead of {expected:?}"),
        }
    }
}

/// The requests that were carried out, by who asked and their ids.
#[derive(Debug)]
pub(crate) struct PastRequests<C> {
    calls: BTreeMap<(u32, String), C>,
    /// The last one last.
    order: Vec<(u32, String)>,
}

impl<C> Default for PastRequests<C> {
    fn default() -> Self {
        Self { calls: BTreeMap::new(), order: Vec::new() }
    }
}

impl<C: PartialEq + Clone> PastRequests<C> {
    /// Expected outcome of a call whose request id was used before.
    pub(crate) fn before(&self, who: u32, request_id: &str, call: &C) -> Option<End> {
        let known = self.calls.get(&(who, request_id.to_owned()))?;
        Some(if known == call { End::MadeBefore } else { End::REUSED })
    }

    pub(crate) fn remember(&mut self, who: u32, request_id: &str, call: &C) {
        if !request_id.is_empty() {
            self.calls.insert((who, request_id.to_owned()), call.clone());
            self.order.push((who, request_id.to_owned()));
        }
    }

    /// One of them once more, mostly one of the last: as it was, or `changed`.
    pub(crate) fn again<W>(&self, op: &Chances<W>, changed: impl FnOnce(C) -> C) -> Option<(u32, C)> {
        let among = if op.number.is_multiple_of(4) { self.order.len() } else { self.order.len().min(8) };
        let asked = self.order.iter().rev().nth(op.object.checked_rem(among)?)?;
        let call = self.calls[asked].clone();
        Some((asked.0, if op.other { changed(call) } else { call }))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (ActorId, String)> {
        self.calls.keys().map(|(who, request_id)| (ActorId(*who), request_id.clone()))
    }

    pub(crate) fn keep(&self, context: u32, kept: &mut Kept) {
        for (who, request_id) in self.keys() {
            kept.key(context, &ContextKey::Request(who, request_id));
        }
    }
}
