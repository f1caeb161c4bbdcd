//! Events: what the script that makes a change appends to its context's stream.

use serde::{Deserialize, Serialize};

use crate::flow::{FlowStatus, ResultMap};
use crate::id::{ActorId, Attempt, FlowId, Generation, JobId, RunnerId};
use crate::message::MessageStatus;
use crate::name::Name;
use crate::node::NodeState;
use crate::reason::Reason;
use crate::time::Timestamp;

/// One change, as JSON in the field `e` of an entry in `events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ContextEvent {
    /// A flow was created, started, ended or removed.
    Flow(FlowEvent),
    /// A node changed.
    Node(NodeEvent),
    /// Cancellation of a flow was requested.
    CancelRequested {
        /// Which flow.
        flow_id: FlowId,
        /// Actor that requested it.
        actor: ActorId,
        /// When.
        time: Timestamp,
    },
    /// There is more of an attempt's output.
    Log {
        /// Which flow.
        flow_id: FlowId,
        /// Which node.
        job_id: JobId,
        /// Which attempt.
        attempt: Attempt,
        /// Where the output ends now, in bytes.
        end: u64,
    },
    /// A runner record changed.
    Runner {
        /// Which record.
        runner_id: RunnerId,
    },
    /// Chat, mail, or what others pushed, changed: sent, received, read, sent again or removed.
    Message {
        /// Which one, as `message:<caller>:<id>`.
        message_key: String,
        /// Where it stands now; absent when it is gone.
        status: Option<MessageStatus>,
    },
    /// A job that belongs to no flow was created or removed. Jobs of a flow are created and removed with it.
    Job {
        /// Actor that owns the job.
        caller_id: ActorId,
        /// Which of that actor's.
        job_id: JobId,
        /// True if the job was removed.
        removed: bool,
    },
    /// The context itself changed.
    Context {},
}

/// A change of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowEvent {
    /// Which flow.
    pub flow_id: FlowId,
    /// Where it stands now; absent when it is gone.
    pub status: Option<FlowStatus>,
    /// How often it was run.
    pub generation: Generation,
    /// Name of the flow; absent in events from before it was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Actor that owns the flow; absent in events from before it was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_id: Option<ActorId>,
    /// When it was made; absent in events from before it was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// When it fails unless it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// When its cancellation was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_time: Option<Timestamp>,
    /// Result, with the flow's end: absent where incomplete or of more than a kibibyte, and in events from before it was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultMap>,
    /// When.
    pub time: Timestamp,
}

/// A change of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// Which flow.
    pub flow_id: FlowId,
    /// Which node.
    pub job_id: JobId,
    /// Name of the node within the flow; absent in events from before it was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Where it stands now.
    pub state: NodeState,
    /// The attempt that is current now.
    pub attempt: Attempt,
    /// Why, when there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// How the script ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Instance that runs or ran the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Attempts of this generation that count against its retries.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tries: u32,
    /// Attempts of this generation whose instance vanished.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deaths: u32,
    /// Attempts of this generation that ended with their supervisor or with a drain.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub losses: u32,
    /// When.
    pub time: Timestamp,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl ContextEvent {
    /// The flow it is about, when it is about one.
    #[must_use]
    pub const fn flow_id(&self) -> Option<FlowId> {
        match self {
            Self::Flow(event) => Some(event.flow_id),
            Self::Node(event) => Some(event.flow_id),
            Self::CancelRequested { flow_id, .. } | Self::Log { flow_id, .. } => Some(*flow_id),
            Self::Runner { .. } | Self::Message { .. } | Self::Job { .. } | Self::Context {} => None,
        }
    }
}
