//! Random operations on the tails of what attempts print, against a short reference of which bytes are kept.

use std::collections::BTreeMap;

use keys::ContextKey;
use model::id::Uid;
use model::limits::LOG_TAIL_BYTES_MAX;
use model::{Attempt, ContextUid, FlowId, FlowUid, JobId, JobKey};
use proptest::prelude::*;
use proto::internal::v1 as wire;
use tonic::Code;

use crate::conformance::{self, Family, Kept};
use crate::places::Redis;
use crate::stage::{CONTEXT, EXECUTOR, READER, Running, STRANGER, Stage, failure, json};

/// Nodes of each flow.
const NODES: u32 = 2;
/// Attempts that each node has had.
const ATTEMPTS: u32 = 2;

/// Where a piece begins.
#[derive(Debug, Clone, Copy)]
enum From {
    Beginning,
    /// So far before what is kept.
    Before,
    /// So far behind where that begins.
    Within,
    /// So far before its end.
    End,
    /// So far behind its end.
    Beyond,
}

#[derive(Debug, Clone)]
pub(crate) struct Piece {
    node: u32,
    attempt: u32,
    from: From,
    by: u64,
    bytes: usize,
    runner_id: u32,
}

/// Why a piece belongs to nothing that is there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Foreign {
    Context,
    ContextUid,
    Flow,
    FlowUid,
    Job,
    Attempt,
}

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Append(Vec<Piece>),
    /// The last append again, since its answer was lost. A piece that reached nothing then may do so now.
    Again,
    Foreign(Foreign),
    /// The flow ends and goes with all its output.
    Remove,
}

/// Stored bytes of an output, and the supervisor that sent them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tail {
    from: u64,
    till: u64,
    runner_id: u32,
}

impl Tail {
    fn add(&mut self, from: u64, till: u64) {
        if from > self.till {
            // What lies between has not come.
            (self.from, self.till) = (from, till);
        } else if till >= self.from {
            (self.from, self.till) = (self.from.min(from), self.till.max(till));
        }
    }

    fn trim(&mut self) {
        self.from = self.from.max(self.till.saturating_sub(LOG_TAIL_BYTES_MAX as u64));
    }
}

/// A piece where it belongs: of which output, from where to where, and by whom.
#[derive(Debug, Clone, Copy)]
struct Sent {
    place: (u32, u32),
    from: u64,
    till: u64,
    runner_id: u32,
}

/// Bytes of an output: those at each position are always the same.
fn bytes((node, attempt): (u32, u32), from: u64, till: u64) -> Vec<u8> {
    let seed = u64::from(node * 7 + attempt);
    (from..till).map(|place| (place.wrapping_mul(31) ^ (place >> 8) ^ seed).to_le_bytes()[0]).collect()
}

pub(crate) struct Logs {
    flow: Running,
    /// By place of the node, and attempt.
    tails: BTreeMap<(u32, u32), Tail>,
    last: Vec<Sent>,
    revision: u64,
}

async fn append(stage: &Stage<impl Redis>, chunks: Vec<wire::LogChunk>) {
    stage.messages().append_logs(wire::AppendLogsRequest { chunks }).await.unwrap();
}

/// A flow whose nodes have had their attempts.
async fn tried(stage: &Stage<impl Redis>) -> Running {
    let mut flow = stage.started(NODES).await;
    let node = |place| {
        let mut node = flow.node(place);
        node.attempt = Attempt(ATTEMPTS);
        wire::NodeCommit {
            job_id: node.job_id.0,
            node_json: json(&node),
            job_status: "started".to_owned(),
            ..Default::default()
        }
    };
    let step = wire::CommitRequest { nodes: (0..NODES).map(node).collect(), ..flow.step() };
    stage.apply(&mut flow, step).await;
    flow
}

impl Logs {
    fn key(&self, (node, attempt): (u32, u32)) -> JobKey {
        JobKey {
            context: self.flow.context_uid.parse().unwrap(),
            flow: self.flow.uid.parse().unwrap(),
            job: JobId(self.flow.first_job + node),
            attempt: Attempt(attempt),
        }
    }

    fn chunk(&self, Sent { place, from, till, runner_id }: Sent) -> wire::LogChunk {
        wire::LogChunk {
            job_key: self.key(place).to_string(),
            context_id: CONTEXT,
            flow_id: self.flow.id,
            offset: from,
            data: bytes(place, from, till).into(),
            runner_id,
            print_millis: 0,
        }
    }

    fn chunks(&self, sent: &[Sent]) -> Vec<wire::LogChunk> {
        sent.iter().map(|sent| self.chunk(*sent)).collect()
    }

    /// Where pieces of one call belong, each after those before it.
    fn place(&self, pieces: Vec<Piece>) -> Vec<Sent> {
        let mut tails = self.tails.clone();
        let mut sent = Vec::new();
        for Piece { node, attempt, from, by, bytes, runner_id } in pieces {
            let tail = tails.entry((node, attempt)).or_default();
            let from = match from {
                From::Beginning => 0,
                From::Before => tail.from.saturating_sub(by),
                From::Within => tail.from + by,
                From::End => tail.till.saturating_sub(by),
                From::Beyond => tail.till + by,
            };
            let till = from + bytes as u64;
            tail.add(from, till);
            sent.push(Sent { place: (node, attempt), from, till, runner_id });
        }
        sent
    }

    /// Pieces of one call count together: those of one output in their order.
    async fn append(&mut self, stage: &Stage<impl Redis>, sent: Vec<Sent>) {
        append(stage, self.chunks(&sent)).await;
        let mut tails: BTreeMap<(u32, u32), Tail> = BTreeMap::new();
        for Sent { place, from, till, runner_id } in &sent {
            let before = self.tails.get(place).copied().unwrap_or_default();
            let tail = tails.entry(*place).or_insert(Tail { runner_id: 0, ..before });
            tail.add(*from, *till);
            if *runner_id > 0 {
                tail.runner_id = *runner_id;
            }
        }
        self.last = sent;
        for (place, mut tail) in tails {
            tail.trim();
            let before = self.tails.get(&place).copied().unwrap_or_default();
            // Only a supervisor that sends something new is stored.
            if (tail.from, tail.till) != (before.from, before.till) {
                if tail.runner_id == 0 {
                    tail.runner_id = before.runner_id;
                }
                self.tails.insert(place, tail);
                self.revision += 1;
            }
        }
    }

    async fn append_foreign(&self, stage: &Stage<impl Redis>, foreign: Foreign) {
        let chunk = self.chunk(Sent { place: (0, 1), from: 0, till: 9, runner_id: 7 });
        let (mut key, mut context_id, mut flow_id) = (self.key((0, 1)), chunk.context_id, chunk.flow_id);
        match foreign {
            Foreign::Context => context_id = 99,
            Foreign::ContextUid => key.context = ContextUid(Uid::random()),
            Foreign::Flow => flow_id += 1,
            Foreign::FlowUid => key.flow = FlowUid::random(),
            Foreign::Job => key.job.0 += NODES,
            Foreign::Attempt => key.attempt = Attempt(ATTEMPTS + 1),
        }
        let job_key = key.to_string();
        append(stage, vec![wire::LogChunk { job_key, context_id, flow_id, ..chunk }]).await;
    }

    async fn remove(&mut self, stage: &Stage<impl Redis>) {
        let end = self.flow.end();
        stage.apply(&mut self.flow, end).await;
        let remove = wire::RemoveFlowRequest {
            context_id: CONTEXT,
            flow_id: self.flow.id,
            on_behalf_of: EXECUTOR,
            ..Default::default()
        };
        stage.flows().remove_flow(remove).await.unwrap();
        let gone = failure(stage.flows().read_log(self.read((0, 1), 0, READER)).await).0;
        assert_eq!(gone, Code::NotFound);
        // What was under way is dropped, also when there is another flow.
        let under_way = self.chunks(&self.last);
        append(stage, under_way.clone()).await;
        self.tails.clear();
        self.flow = tried(stage).await;
        append(stage, under_way).await;
        self.last.clear();
        // The end of the one, and its removal; the other one was made, filled, started, and went on.
        self.revision += 6;
    }

    fn read(&self, (node, attempt): (u32, u32), offset: u64, on_behalf_of: u32) -> wire::ReadLogRequest {
        wire::ReadLogRequest {
            context_id: CONTEXT,
            flow_id: self.flow.id,
            job_id: self.flow.first_job + node,
            attempt,
            offset,
            on_behalf_of,
        }
    }

    async fn check_tail(&self, stage: &Stage<impl Redis>, place: (u32, u32)) {
        let tail = self.tails.get(&place);
        let Tail { from, till, runner_id } = tail.copied().unwrap_or_default();
        for offset in [0, from, from / 2 + till / 2, till, till + 9] {
            let read = stage.flows().read_log(self.read(place, offset, READER)).await.unwrap().into_inner();
            let begin = if tail.is_some() { offset.max(from) } else { offset };
            assert_eq!((read.offset, read.runner_id), (begin, runner_id), "{place:?} from {offset}");
            assert!(read.data == bytes(place, begin.min(till), till), "{place:?} from {offset}: {tail:?}");
        }
    }
}

impl Family for Logs {
    type Op = Op;

    fn any_op() -> impl Strategy<Value = Op> {
        let from = prop_oneof![
            1 => Just(From::Beginning),
            2 => Just(From::Before),
            2 => Just(From::Within),
            6 => Just(From::End),
            1 => Just(From::Beyond),
        ];
        let bytes = prop_oneof![8 => 0..30_usize, 1 => LOG_TAIL_BYTES_MAX - 9..LOG_TAIL_BYTES_MAX + 9];
        let by = prop_oneof![3 => Just(0_u64), 4 => 0..30_u64];
        let runner = prop_oneof![Just(0_u32), Just(7), Just(9)];
        let piece = (0..NODES, 1..=ATTEMPTS, from, by, bytes, runner).prop_map(
            |(node, attempt, from, by, bytes, runner_id)| Piece { node, attempt, from, by, bytes, runner_id },
        );
        let foreign = prop_oneof![
            Just(Foreign::Context),
            Just(Foreign::ContextUid),
            Just(Foreign::Flow),
            Just(Foreign::FlowUid),
            Just(Foreign::Job),
            Just(Foreign::Attempt),
        ];
        prop_oneof![
            20 => prop::collection::vec(piece, 1..5).prop_map(Op::Append),
            3 => Just(Op::Again),
            3 => foreign.prop_map(Op::Foreign),
            1 => Just(Op::Remove),
        ]
    }

    async fn new(stage: &Stage<impl Redis>) -> Self {
        let flow = tried(stage).await;
        Self { revision: flow.revision, flow, tails: BTreeMap::new(), last: Vec::new() }
    }

    async fn apply(&mut self, stage: &Stage<impl Redis>, op: Op) {
        match op {
            Op::Append(pieces) => self.append(stage, self.place(pieces)).await,
            Op::Again => self.append(stage, self.last.clone()).await,
            Op::Foreign(foreign) => self.append_foreign(stage, foreign).await,
            Op::Remove => self.remove(stage).await,
        }
        for node in 0..NODES {
            for attempt in 1..=ATTEMPTS + 1 {
                self.check_tail(stage, (node, attempt)).await;
            }
        }
        assert_eq!(stage.revision().await, self.revision, "one change, one revision");
    }

    async fn check(&mut self, stage: &Stage<impl Redis>) {
        let unseen = failure(stage.flows().read_log(self.read((0, 1), 0, STRANGER)).await).0;
        assert_eq!(unseen, Code::NotFound);
    }

    fn kept(&self) -> Kept {
        let mut kept = Kept::on_stage(self.revision);
        kept.started(&self.flow);
        for (node, attempt) in self.tails.keys() {
            let (flow, job) = (FlowId(self.flow.id), JobId(self.flow.first_job + node));
            kept.key(CONTEXT, &ContextKey::Log(flow, job, Attempt(*attempt)));
        }
        kept
    }
}

#[test]
fn logs_match_the_reference() {
    conformance::with_databases::<Logs>(15);
}

#[test]
fn logs_match_the_reference_with_hash_tags() {
    conformance::with_hash_tags::<Logs>(15);
}

#[test]
fn logs_match_the_reference_in_a_cluster() {
    conformance::in_a_cluster::<Logs>(15);
}
