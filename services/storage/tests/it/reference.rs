//! Random operations on flows against a short reference of what a flow is.

mod asking;

use std::collections::{BTreeMap, BTreeSet};

use keys::ContextKey;
use kv::{Cmd, Pipeline};
use model::id::Uid;
use model::{FlowId, FlowStatus, OwnerId};
use proptest::prelude::*;
use proto::internal::v1 as wire;
use proto::internal::v1::CommitRefusal;
use proto::v1;
use tonic::Code;

use crate::conformance::{self, Chances, End, Family, Kept, PastRequests, Requesting as _};
use crate::places::Redis;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, Running, STRANGER, Stage};

#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Create,
    Add,
    Start,
    Take,
    Commit,
    /// The last commit once more, as after a lost answer.
    CommitAgain,
    Cancel,
    Signal,
    Restart,
    Remove,
    /// An earlier request, with the same body or with another one.
    Again,
}

/// Defect of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    Nothing,
    Owner,
    Epoch,
    LastCommit,
    Uid,
}

#[derive(Debug, Clone, PartialEq)]
enum Operation {
    Create {
        nodes: u32,
    },
    Add,
    /// Without an owner, or with one of the two.
    Start {
        owner: Option<usize>,
    },
    Cancel {
        grace_secs: u32,
    },
    Signal {
        name: u8,
    },
    Restart {
        generation: u32,
        expected_revision: u64,
    },
    Remove {
        expected_revision: u64,
    },
}

/// Request of an actor for one flow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    request_id: String,
    flow: usize,
    operation: Operation,
}

#[derive(Debug)]
pub(crate) enum Answer {
    /// The flow, and the first of its jobs where it says that.
    Flow(Box<wire::FlowRecord>, u32),
    /// And whether nothing changed.
    Pushed(Box<wire::FlowRecord>, bool),
    /// And whether this call has done it.
    Restarted(Box<wire::FlowRecord>, bool),
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Created,
    Started,
    Finished,
    Gone,
}

impl Status {
    /// The list that it stands in.
    const fn list(self) -> Option<FlowStatus> {
        match self {
            Self::Created => Some(FlowStatus::Created),
            Self::Started => Some(FlowStatus::Started),
            Self::Finished => Some(FlowStatus::Finished),
            Self::Gone => None,
        }
    }
}

/// Expected state of one flow.
#[derive(Debug)]
struct Expected {
    running: Running,
    status: Status,
    has_nodes: bool,
    /// With which grace.
    requested_grace_secs: Option<u32>,
    signals: BTreeSet<u8>,
    /// How many wait for the owner.
    inputs: usize,
    /// The flow has something to do now.
    active: bool,
    generation: u32,
    is_owned: bool,
    last: Option<(wire::CommitRequest, u64)>,
}

impl Expected {
    /// Something was brought for its owner.
    fn pushed(&mut self) {
        if self.status == Status::Started {
            self.inputs += 1;
            self.active = true;
        }
    }

    /// Returns true if the flow was started so, and nothing came after it: then it is the same call again.
    fn is_started_by(&self, owner: Option<&String>) -> bool {
        let is_content = owner.is_none_or(|owner| self.running.owner == *owner && self.running.epoch == 1);
        self.status == Status::Started && is_content
    }

    fn is_given_up(&self) -> bool {
        self.status == Status::Created && self.requested_grace_secs.is_some()
    }

    /// Returns true if a cancellation changes anything.
    fn is_new_cancel(&self, grace_secs: u32) -> bool {
        match self.status {
            Status::Created => self.requested_grace_secs.is_none(),
            Status::Started => self.requested_grace_secs.is_none_or(|requested| grace_secs < requested),
            Status::Finished | Status::Gone => false,
        }
    }

    /// Leaves the flow without an owner until one takes it.
    fn is_left_alone(&mut self) {
        self.running.owner = Uid::random().to_string();
        self.is_owned = false;
        self.last = None;
    }

    fn check(&self, said: &wire::FlowRecord) {
        let flow = said.flow.as_ref().unwrap();
        let status = match self.status {
            Status::Created => v1::FlowStatus::Created,
            Status::Started => v1::FlowStatus::Started,
            Status::Finished | Status::Gone => v1::FlowStatus::Finished,
        };
        assert_eq!((&flow.uid, flow.status()), (&self.running.uid, status));
        let is = (flow.revision, flow.generation, said.epoch, said.first_job_id);
        let Running { revision, epoch, first_job, .. } = self.running;
        assert_eq!(is, (revision, self.generation, epoch, first_job), "flow {}", flow.id);
        assert_eq!(flow.cancel_requested_time.is_some(), self.requested_grace_secs.is_some());
        assert_eq!(said.cancel_grace_secs, self.requested_grace_secs.unwrap_or(0));
        assert!(!self.is_owned || self.status == Status::Created || said.owner == self.running.owner);
    }
}

pub(crate) struct Flows {
    flows: Vec<Expected>,
    owners: [String; 2],
    revision: u64,
    past_requests: PastRequests<Call>,
    /// Flows that requests made, or whether they changed nothing.
    results: BTreeMap<(u32, String), (usize, bool)>,
}

impl Flows {
    /// One of the last, of which some are gone; mostly one to which it can be done.
    fn some(&self, op: &Chances<What>) -> Option<usize> {
        let status = match op.what {
            What::Add | What::Start => Status::Created,
            What::Restart | What::Remove => Status::Finished,
            _ => Status::Started,
        };
        let fitting = || self.flows.iter().rposition(|flow| flow.status == status);
        let any = || self.flows.len().checked_sub(1 + op.object % 4);
        if op.number.is_multiple_of(2) { fitting().or_else(any) } else { any() }
    }

    async fn take_over(&mut self, stage: &Stage<impl Redis>, op: &Chances<What>) {
        let Some(flow) = self.some(op) else { return };
        let owner = self.owners[usize::from(op.other)].clone();
        let expected = &mut self.flows[flow];
        let flow_id = expected.running.id;
        let request = wire::TakeFlowRequest { context_id: CONTEXT, flow_id, owner: owner.clone() };
        let end = match expected.status {
            Status::Started => End::Made,
            Status::Created => End::Refused(Code::FailedPrecondition, "FLOW_NOT_STARTED"),
            Status::Finished => End::Refused(Code::FailedPrecondition, "FLOW_ENDED"),
            Status::Gone => End::UNSEEN,
        };
        let answer = stage.flows().take_flow(request).await;
        let Some(answer) = end.meets(answer, "somebody takes it") else { return };
        let record = answer.into_inner().flow.unwrap();
        expected.running.owner = owner;
        expected.running.epoch += 1;
        expected.running.last_commit.clone_from(&record.last_commit);
        // What the former owner sends again is fenced.
        expected.is_owned = true;
        expected.last = None;
        self.raise(flow);
        self.flows[flow].check(&record);
    }

    async fn commit(&mut self, stage: &Stage<impl Redis>, op: &Chances<What>, wrong: Wrong) {
        let Some(flow) = self.some(op) else { return };
        let expected = &mut self.flows[flow];
        let end = op.mask < 60;
        let mut request = if end { expected.running.end() } else { expected.running.step() };
        request.rests = op.other;
        let taken = usize::from(op.number) % 3;
        request.inputs_taken = u32::try_from(taken.min(expected.inputs)).unwrap();
        match wrong {
            Wrong::Nothing => {}
            Wrong::Owner => request.owner = Uid::random().to_string(),
            Wrong::Epoch => request.epoch += 1,
            Wrong::LastCommit => request.last_commit = Uid::random().to_string(),
            Wrong::Uid => request.flow_uid = Uid::random().to_string(),
        }
        let answer = stage.commit(request.clone()).await;
        let refusal = match (expected.status, wrong) {
            (Status::Gone, _) | (_, Wrong::Uid) => CommitRefusal::Gone,
            // A flow that was started again has no owner.
            (Status::Started, Wrong::Nothing) if expected.is_owned => CommitRefusal::Unspecified,
            _ => CommitRefusal::Fenced,
        };
        assert_eq!(answer.refusal(), refusal, "{:?} {wrong:?}: {}", expected.status, answer.detail);
        assert_eq!(answer.commit_id, request.commit_id);
        if refusal == CommitRefusal::Unspecified {
            assert_eq!(answer.revision, self.revision + 1);
            expected.running.last_commit = request.commit_id.clone();
            expected.inputs -= request.inputs_taken as usize;
            expected.active = !(end || request.rests && expected.inputs == 0);
            if end {
                expected.inputs = 0;
                expected.status = Status::Finished;
            }
            expected.last = Some((request, answer.revision));
            self.raise(flow);
        }
    }

    async fn commit_again(&self, stage: &Stage<impl Redis>, op: &Chances<What>) {
        let Some(expected) = self.some(op).map(|flow| &self.flows[flow]) else { return };
        let Some((request, revision)) = &expected.last else { return };
        let answer = stage.commit(request.clone()).await;
        if expected.status == Status::Gone {
            assert_eq!(answer.refusal(), CommitRefusal::Gone);
        } else {
            assert_eq!((answer.refusal(), answer.revision), (CommitRefusal::Unspecified, *revision));
        }
    }
}

impl Family for Flows {
    type Op = (Chances<What>, Wrong);

    fn any_op() -> impl Strategy<Value = Self::Op> {
        let what = prop_oneof![
            2 => Just(What::Create),
            3 => Just(What::Add),
            3 => Just(What::Start),
            1 => Just(What::Take),
            5 => Just(What::Commit),
            2 => Just(What::CommitAgain),
            1 => Just(What::Cancel),
            2 => Just(What::Signal),
            3 => Just(What::Restart),
            2 => Just(What::Remove),
            6 => Just(What::Again),
        ];
        let who = prop_oneof![3 => Just(ADMIN), 9 => Just(EXECUTOR), 1 => Just(READER), 1 => Just(STRANGER)];
        let wrong = prop_oneof![
            4 => Just(Wrong::Nothing),
            1 => Just(Wrong::Owner),
            1 => Just(Wrong::Epoch),
            1 => Just(Wrong::LastCommit),
            1 => Just(Wrong::Uid),
        ];
        (Chances::any(what, who), wrong)
    }

    async fn new(_: &Stage<impl Redis>) -> Self {
        Self {
            flows: Vec::new(),
            owners: [OwnerId::random().to_string(), OwnerId::random().to_string()],
            revision: 1,
            past_requests: PastRequests::default(),
            results: BTreeMap::new(),
        }
    }

    /// Applies an operation, which makes at most one change.
    async fn apply(&mut self, stage: &Stage<impl Redis>, (op, wrong): Self::Op) {
        match op.what {
            What::Take => self.take_over(stage, &op).await,
            What::Commit => self.commit(stage, &op, wrong).await,
            What::CommitAgain => self.commit_again(stage, &op).await,
            _ => {
                if let Some((who, call)) = self.call(&op) {
                    self.request(stage, who, call).await;
                }
            }
        }
        assert_eq!(stage.revision().await, self.revision, "one change, one revision");
    }

    async fn check(&mut self, stage: &Stage<impl Redis>) {
        let keys = stage.keys();
        for expected in self.flows.iter().rev().take(12) {
            let flow_id = expected.running.id;
            let read = wire::ReadFlowRequest { context_id: CONTEXT, flow_id, on_behalf_of: 0, purpose: 0 };
            match stage.flows().read_flow(read).await {
                Err(status) => assert_eq!((status.code(), expected.status), (Code::NotFound, Status::Gone)),
                Ok(answer) => expected.check(&answer.into_inner().flow.unwrap()),
            }
            let mut ask = Pipeline::new();
            ask.cmd(Cmd::new("SISMEMBER").arg(&keys.flows_active()).arg(&expected.running.member()));
            ask.cmd(Cmd::new("LLEN").arg(&keys.flow_inputs(FlowId(flow_id))));
            for status in FlowStatus::ALL {
                ask.cmd(Cmd::new("ZSCORE").arg(&keys.flows_of(status)).arg(flow_id));
            }
            let mut answers = stage.connection().pipeline(&ask).await.unwrap();
            let lists = answers.split_off(2).into_iter().zip(FlowStatus::ALL);
            let listed: Vec<_> = lists
                .filter(|(place, _)| !place.as_ref().unwrap().is_nil())
                .map(|(_, status)| status)
                .collect();
            assert_eq!(listed, Vec::from_iter(expected.status.list()), "in the list of its status alone");
            let [active, inputs] =
                answers.into_iter().map(|n| n.unwrap().uint().unwrap()).collect::<Vec<_>>()[..]
            else {
                panic!("two answers")
            };
            assert_eq!(active, u64::from(expected.active));
            assert_eq!(inputs, expected.inputs as u64, "inputs are trimmed exactly");
        }
        let open = self.flows.iter().filter(|flow| matches!(flow.status, Status::Created | Status::Started));
        let nodes: u64 = open.clone().map(|flow| u64::from(flow.running.count)).sum();
        let counted = (stage.counted("flows_open").await, stage.counted("jobs_open").await);
        assert_eq!(counted, (open.count() as u64, nodes), "flows that have not ended, and their nodes");
    }

    fn kept(&self) -> Kept {
        let mut kept = Kept::on_stage(self.revision);
        self.past_requests.keep(CONTEXT, &mut kept);
        for expected in self.flows.iter().filter(|expected| expected.status != Status::Gone) {
            let id = FlowId(expected.running.id);
            if let Some(status) = expected.status.list() {
                kept.key(CONTEXT, &ContextKey::FlowsOf(status));
            }
            let keys = [
                (true, ContextKey::Flow(id)),
                (true, ContextKey::Flows),
                (expected.active, ContextKey::FlowsActive),
                (!expected.signals.is_empty(), ContextKey::FlowSignals(id)),
                (expected.inputs > 0, ContextKey::FlowInputs(id)),
            ];
            for (_, key) in keys.iter().filter(|(is_there, _)| *is_there) {
                kept.key(CONTEXT, key);
            }
            if expected.has_nodes {
                kept.filled(&expected.running);
            }
        }
        kept
    }
}

#[test]
fn flows_match_the_reference() {
    conformance::with_databases::<Flows>(40);
}

#[test]
fn flows_match_the_reference_with_hash_tags() {
    conformance::with_hash_tags::<Flows>(40);
}

#[test]
fn flows_match_the_reference_in_a_cluster() {
    conformance::in_a_cluster::<Flows>(40);
}
