//! Observations of a suite from outside, as plain data; the [checker](crate::check) judges them without calling it.

use std::collections::BTreeMap;

use model::NodeState;

/// Everything that clients, watchers, the witness and the final look at the suite saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The flows that clients meant to submit, by name.
    pub planned: BTreeMap<String, PlannedFlow>,
    /// Each answer to a submission. A call that was repeated with its request id has several.
    pub submissions: Vec<Submission>,
    /// Changes that each watcher was sent.
    pub watches: Vec<Watch>,
    /// Calls of an actor without a role in the context.
    pub strangers: Vec<StrangerCall>,
    /// Lines that the scripts wrote, in the order of writing.
    pub witness: Vec<Line>,
    /// All flows as they stood at the end.
    pub flows: Vec<FinalFlow>,
    /// Messages that were on their way when all flows had ended and time had passed; absent when they could not be counted.
    pub messages_left: Option<u64>,
    /// How many scripts may run at once.
    pub slots: usize,
}

/// A flow as its client meant it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFlow {
    /// Jobs of the flow. Each depends on earlier ones only.
    pub jobs: Vec<PlannedJob>,
}

/// A job as its client meant it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedJob {
    /// Name of the job within the flow. Unique in the whole history.
    pub name: String,
    /// Secret that the job's script writes with each line, so that no other script can run under its name unseen.
    pub token: String,
    /// How long its script takes, in milliseconds.
    pub millis: u64,
    /// Positions of the jobs before it.
    pub depends: Vec<usize>,
    /// How often it may be tried after the first failure of its own.
    pub retries: u32,
    /// Milliseconds before each of these, at most.
    pub wait_millis: u32,
    /// True if each try of the job fails by itself.
    pub fails: bool,
}

/// One answer to a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The flow's name.
    pub flow: String,
    /// Answer to the submission.
    pub answer: Answer,
}

/// Known outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The flow was accepted, with this number.
    Taken(u32),
    /// The flow was refused, and the call had no effect.
    Refused(String),
    /// Outcome unknown: the answer was lost, or late.
    Unknown(String),
}

/// Changes that one watcher of one flow was sent, over all its streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// The flow's number.
    pub flow: u32,
    /// Which watcher.
    pub watcher: String,
    /// The position behind its snapshot.
    pub from: String,
    /// The nodes in that: their numbers, states and attempts.
    pub snapshot: Vec<(u32, NodeState, u32)>,
    /// The changes, in the order in which they were reported.
    pub reported: Vec<Change>,
    /// Changes that an uninterrupted watcher is sent from the same position on, requested after the flow's end. They
    /// may begin with changes that the snapshot shows already.
    pub replayed: Vec<Change>,
    /// How often it resumed.
    pub resumed: u32,
    /// How its streams broke, but for those that it dropped itself.
    pub breaks: Vec<String>,
    /// The status that the stream ended with; absent when it was still open when everything ended.
    pub status: Option<String>,
    /// Why a position was refused, if one was: the watch started over there.
    pub refused: Option<String>,
}

/// A change of a node, as a watch reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where to resume after it.
    pub position: String,
    /// The node.
    pub job_id: u32,
    /// State of the node.
    pub state: NodeState,
    /// Attempt of the node.
    pub attempt: u32,
    /// The code of the reason; empty when there is none.
    pub reason: String,
}

/// How far an attempt has come in this state.
#[must_use]
pub const fn rank(state: NodeState) -> u8 {
    match state {
        NodeState::Pending => 0,
        NodeState::Ready => 1,
        NodeState::Dispatched => 2,
        NodeState::Running => 3,
        NodeState::Completed | NodeState::Failed | NodeState::Cancelled | NodeState::Skipped => 4,
    }
}

/// A call of an actor without a role in the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrangerCall {
    /// The method.
    pub method: String,
    /// True if the call was answered as to a member.
    pub allowed: bool,
}

/// One line of the witness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A script began.
    Start(Ran),
    /// A script came to its end.
    End(Ran),
    /// A process that runs scripts was killed: its scripts may have been cut off; the next attempt need not know when.
    Killed,
}

/// Which execution a line is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The job's name.
    pub job: String,
    /// Secret that only the job's script knows.
    pub token: String,
    /// Which attempt.
    pub attempt: u32,
}

/// A flow as it stood at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalFlow {
    /// Number of the flow.
    pub id: u32,
    /// Name of the flow.
    pub name: String,
    /// Status of the flow.
    pub status: String,
    /// True if the status is final.
    pub has_ended: bool,
    /// Nodes of the flow.
    pub nodes: Vec<FinalNode>,
}

/// A node as it stood at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalNode {
    /// Number of the node.
    pub job_id: u32,
    /// Name of the node.
    pub name: String,
    /// State of the node.
    pub state: NodeState,
    /// Last attempt of the node.
    pub attempt: u32,
    /// The code of its reason; empty when it has none.
    pub reason: String,
}
