//! The first step of a flow, which its owner has made before the flow had its numbers.
//!
//! Only the numbers in its events and executions are parsed. The rest is kept as received, including fields unknown to this version.

use bytes::Bytes;
use model::{ContextId, ContextUid, ExecutionHead, FlowId, JobId, JobKey, JsonCursor, Timestamp};

use crate::flows::commits::{DispatchMessage, RECORD_OVERHEAD_BYTES};

/// First step of a flow, besides the nodes themselves. Jobs are numbered from 1.
#[derive(Debug, Clone)]
pub(crate) struct FirstStep {
    /// Events of the nodes.
    pub(crate) events: Vec<StepEvent>,
    /// Messages to send.
    pub(crate) messages: Vec<UnnumberedMessage>,
    /// When to look at the flow again.
    pub(crate) due: Option<Timestamp>,
    /// When the flow must have ended.
    pub(crate) deadline: Option<Timestamp>,
    /// When it was made.
    pub(crate) made: Timestamp,
    /// Number of bytes received.
    pub(crate) bytes: usize,
}

/// Event of a node, as JSON without its head.
#[derive(Debug, Clone)]
pub(crate) struct StepEvent {
    job: JobId,
    rest: Bytes,
}

/// Message whose executions lack the numbers of their flow.
#[derive(Debug, Clone)]
pub(crate) struct UnnumberedMessage {
    /// The message without its executions.
    pub(crate) message: DispatchMessage,
    /// Executions in the message.
    pub(crate) executions: Vec<StepExecution>,
}

/// An execution as JSON without its head.
#[derive(Debug, Clone)]
pub(crate) struct StepExecution {
    job_key: JobKey,
    rest: Bytes,
}

/// The numbers that a flow is stored under.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowNumbering {
    /// Context of the flow.
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
pub(crate) struct NumberedStep {
    /// Events as JSON.
    pub(crate) events: Vec<Vec<u8>>,
    /// Messages to send.
    pub(crate) messages: Vec<DispatchMessage>,
}

impl FirstStep {
    /// The step of a flow with these numbers.
    pub(crate) fn numbered(&self, numbers: FlowNumbering) -> NumberedStep {
        NumberedStep {
            events: self.events.iter().map(|event| event.numbered(numbers)).collect(),
            messages: self.messages.iter().map(|message| message.numbered(numbers)).collect(),
        }
    }

    /// How many records it adds to a script.
    pub(crate) fn records(&self) -> usize {
        self.messages.len()
    }

    /// Approximate bytes that the step adds to a script.
    pub(crate) fn script_bytes(&self) -> usize {
        self.bytes + self.messages.len() * RECORD_OVERHEAD_BYTES
    }
}

impl StepEvent {
    /// The event in this JSON; nothing when it is not one of a node.
    pub(crate) fn read(json: &Bytes) -> Option<Self> {
        let mut begin = JsonCursor::of(json);
        begin.skip(r#"{"kind":"node","flow_id":"#)?;
        begin.number()?;
        begin.skip(r#","job_id":"#)?;
        let job = JobId(begin.number()?);
        Some(Self { job, rest: json.slice_ref(begin.rest()?) })
    }

    fn numbered(&self, numbers: FlowNumbering) -> Vec<u8> {
        let (flow, job) = (numbers.flow, numbers.job(self.job));
        let head = format!(r#"{{"kind":"node","flow_id":{flow},"job_id":{job}"#);
        [head.as_bytes(), &self.rest].concat()
    }
}

impl StepExecution {
    /// The execution in this JSON; nothing when it does not begin as one.
    pub(crate) fn read(json: &Bytes) -> Option<Self> {
        let (head, rest) = ExecutionHead::split(json)?;
        Some(Self { job_key: head.job_key, rest: json.slice_ref(rest) })
    }

    fn numbered(&self, numbers: FlowNumbering) -> Bytes {
        let JobKey { flow, job, attempt, .. } = self.job_key;
        let job_key = JobKey { context: numbers.context_uid, flow, job: numbers.job(job), attempt };
        let head = ExecutionHead { job_key, context_id: numbers.context, flow_id: numbers.flow };
        [head.to_string().as_bytes(), &self.rest].concat().into()
    }
}

impl UnnumberedMessage {
    fn numbered(&self, numbers: FlowNumbering) -> DispatchMessage {
        let nodes = self.executions.iter().map(|execution| execution.numbered(numbers)).collect();
        DispatchMessage { nodes, ..self.message.clone() }
    }
}

impl FlowNumbering {
    fn job(self, JobId(id): JobId) -> JobId {
        JobId(id.saturating_add(self.by))
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uid;
    use model::{Attempt, FlowUid};

    use super::*;

    #[test]
    fn only_numbers_change() {
        let (context_uid, flow_uid) = (ContextUid(Uid::from_bits(0xab)), FlowUid(Uid::from_bits(0xcd)));
        let numbers = FlowNumbering { context: ContextId(7), context_uid, flow: FlowId(8), by: 40 };
        let key = |context, job| JobKey { context, flow: flow_uid, job: JobId(job), attempt: Attempt(1) };
        let before = key(ContextUid(Uid::from_bits(0)), 2);
        let json = format!(r#"{{"job_key":"{before}","context_id":0,"flow_id":0,"node":"a","new":[1]}}"#);
        let execution = StepExecution::read(&json.into()).expect("it is one").numbered(numbers);
        let after = key(context_uid, 42);
        let expected = format!(r#"{{"job_key":"{after}","context_id":7,"flow_id":8,"node":"a","new":[1]}}"#);
        assert_eq!(execution, expected);
        let json = Bytes::from_static(br#"{"kind":"node","flow_id":0,"job_id":2,"state":"ready","new":{}}"#);
        let event = StepEvent::read(&json).expect("it is one").numbered(numbers);
        assert_eq!(event, br#"{"kind":"node","flow_id":8,"job_id":42,"state":"ready","new":{}}"#);
    }

    #[test]
    fn what_begins_otherwise_is_none() {
        for json in [
            "",
            "{}",
            r#"{"kind":"flow","flow_id":0,"status":null}"#,
            r#"{"kind":"node","flow_id":-1,"job_id":2}"#,
            r#"{"kind":"node","flow_id":0,"job_id":2.5}"#,
            r#"{"kind":"node","flow_id":0,"job_id":99999999999}"#,
        ] {
            assert!(StepEvent::read(&Bytes::from_static(json.as_bytes())).is_none(), "{json}");
        }
        for json in ["", "{}", r#"{"job_key":"x","context_id":0,"flow_id":0}"#, r#"{"job_key":"#] {
            assert!(StepExecution::read(&Bytes::from_static(json.as_bytes())).is_none(), "{json}");
        }
    }
}
