//! What was seen of a suite from outside, as plain data: what the [checker](crate::check) judges, without asking anybody.

use std::collections::BTreeMap;

use model::NodeState;

/// Everything that clients, watchers, the witness and the final look at the suite saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The flows that clients meant to submit, by name.
    pub planned: BTreeMap<String, PlannedFlow>,
    /// Each answer to a submission. A call that was repeated with its request id has several.
    pub submissions: Vec<Submission>,
    /// What each watcher was told.
    pub watches: Vec<Watch>,
    /// Calls of somebody who has no role in the context.
    pub strangers: Vec<StrangerCall>,
    /// What the scripts wrote, in the order in which they did.
    pub witness: Vec<Line>,
    /// All flows as they stood at the end.
    pub flows: Vec<FinalFlow>,
    /// Messages that were on their way when all flows had ended and time had passed; absent when nobody could count them.
    pub messages_left: Option<u64>,
    /// How many scripts may run at once.
    pub slots: usize,
}

/// A flow as its client meant it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFlow {
    /// Its jobs. Each depends on earlier ones only.
    pub jobs: Vec<PlannedJob>,
}

/// A job as its client meant it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedJob {
    /// Its name within the flow. Unique in the whole history.
    pub name: String,
    /// What its script writes with each line: nobody can run another script under its name unseen.
    pub token: String,
    /// How long its script takes, in milliseconds.
    pub millis: u64,
    /// Positions of the jobs before it.
    pub depends: Vec<usize>,
    /// How often it may be tried after the first failure of its own.
    pub retries: u32,
    /// Milliseconds before each of these, at most.
    pub wait_millis: u32,
    /// Whether each of its tries fails by itself.
    pub fails: bool,
}

/// One answer to a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The flow's name.
    pub flow: String,
    /// What was answered.
    pub answer: Answer,
}

/// What is known of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was taken, as the flow of this number.
    Taken(u32),
    /// It was refused, and had no effect.
    Refused(String),
    /// Nobody knows: the answer was lost, or late.
    Unknown(String),
}

/// What one watcher of one flow was told, over all its streams.
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
    /// The changes, in the order in which they were told.
    pub told: Vec<Change>,
    /// What one who was never cut off is told from the same position on, asked after the flow's end. It may begin with changes that
    /// the snapshot shows already.
    pub replayed: Vec<Change>,
    /// How often it resumed.
    pub resumed: u32,
    /// How its streams broke, but for those that it dropped itself.
    pub breaks: Vec<String>,
    /// The status that the stream ended with; absent when it was still open when everything ended.
    pub status: Option<String>,
    /// Why a position was refused, if one was: the watch began anew there.
    pub refused: Option<String>,
}

/// A change of a node, as a watch tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where to resume after it.
    pub position: String,
    /// The node.
    pub job_id: u32,
    /// Its state.
    pub state: NodeState,
    /// Its attempt.
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

/// A call of somebody who has no role in the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrangerCall {
    /// The method.
    pub method: String,
    /// Whether it was answered as to a member.
    pub allowed: bool,
}

/// One line of the witness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A script began.
    Start(Ran),
    /// A script came to its end.
    End(Ran),
    /// What runs scripts was killed: those that ran then may have been cut off, and the next attempt need not know when.
    Killed,
}

/// Which execution a line is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The job's name.
    pub job: String,
    /// What only its script knows.
    pub token: String,
    /// Which attempt.
    pub attempt: u32,
}

/// A flow as it stood at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalFlow {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its status.
    pub status: String,
    /// Whether that is one that nothing follows.
    pub has_ended: bool,
    /// Its nodes.
    pub nodes: Vec<FinalNode>,
}

/// A node as it stood at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalNode {
    /// Its number.
    pub job_id: u32,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: NodeState,
    /// Its last attempt.
    pub attempt: u32,
    /// The code of its reason; empty when it has none.
    pub reason: String,
}
