//! The first step of a flow, which its owner has made before the flow had its numbers.

use model::{ContextId, ContextUid, Event, Execution, FlowId, JobId, NodeEvent, Timestamp};

use crate::flows::commits::{Outgoing, RECORD_OVERHEAD_BYTES};

/// What is stored of a first step besides the nodes themselves. Jobs are numbered from 1 on.
#[derive(Debug, Clone)]
pub(crate) struct FirstStep {
    /// What the nodes went through.
    pub(crate) events: Vec<NodeEvent>,
    /// Messages to send.
    pub(crate) messages: Vec<Parcel>,
    /// When to look at the flow again.
    pub(crate) due: Option<Timestamp>,
    /// When the flow must have ended.
    pub(crate) deadline: Option<Timestamp>,
    /// How many bytes came.
    pub(crate) bytes: usize,
}

/// A message whose executions do not know where they belong.
#[derive(Debug, Clone)]
pub(crate) struct Parcel {
    /// The message, without them.
    pub(crate) message: Outgoing,
    /// What it carries.
    pub(crate) executions: Vec<Execution>,
}

/// The numbers that a flow is stored under.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    /// Its context.
    pub(crate) context: ContextId,
    /// The context's uid.
    pub(crate) context_uid: ContextUid,
    /// The flow.
    pub(crate) flow: FlowId,
    /// How much more the ids of its jobs are.
    pub(crate) by: u32,
}

/// A step as it is stored.
#[derive(Debug, Default)]
pub(crate) struct Numbered {
    /// Events as JSON.
    pub(crate) events: Vec<Vec<u8>>,
    /// Messages to send.
    pub(crate) messages: Vec<Outgoing>,
}

impl FirstStep {
    /// The step of a flow with these numbers.
    pub(crate) fn numbered(&self, numbers: Numbers) -> Numbered {
        let event = |event: &NodeEvent| {
            let job_id = numbers.job(event.job_id);
            json(&Event::Node(NodeEvent { flow_id: numbers.flow, job_id, ..event.clone() }))
        };
        Numbered {
            events: self.events.iter().map(event).collect(),
            messages: self.messages.iter().map(|parcel| parcel.numbered(numbers)).collect(),
        }
    }

    /// How many records it adds to a script.
    pub(crate) fn records(&self) -> usize {
        self.messages.len()
    }

    /// What it adds to a script, about.
    pub(crate) fn script_bytes(&self) -> usize {
        self.bytes + self.messages.len() * RECORD_OVERHEAD_BYTES
    }
}

impl Parcel {
    fn numbered(&self, numbers: Numbers) -> Outgoing {
        let execution = |execution: &Execution| {
            let mut execution = execution.clone();
            execution.job_key.context = numbers.context_uid;
            execution.job_key.job = numbers.job(execution.job_key.job);
            (execution.context_id, execution.flow_id) = (numbers.context, numbers.flow);
            json(&execution).into()
        };
        Outgoing { nodes: self.executions.iter().map(execution).collect(), ..self.message.clone() }
    }
}

impl Numbers {
    fn job(self, JobId(id): JobId) -> JobId {
        JobId(id.saturating_add(self.by))
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("values of the model are JSON")
}
