//! One message on its way.

use std::collections::BTreeMap;

use bytes::Bytes;
use model::{ContextId, ExecutionHead, FlowId, JobKey, RunnerId};
use proto::internal::v1::HeldMessage;
use tokio::time::Instant;

use crate::runners::RunnerEndpoint;
use crate::send_queue::RunnerRoute;

/// Names a message everywhere: its context and its key.
pub type MessageName = (ContextId, String);

/// Executions that travel together end at this size; a larger one goes alone.
pub const PART_BYTES_MAX: usize = model::limits::PAGE_BYTES_MAX;

/// An execution, as it will be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryNode {
    /// Attempt that the execution is.
    pub key: JobKey,
    /// The execution as JSON.
    pub json: Bytes,
    /// A report has shown that the supervisor has the node, whatever becomes of its delivery.
    pub arrived: bool,
}

/// A message that storage has given into this router's care.
#[derive(Debug)]
pub struct NodeMessage {
    /// Context and key of the message.
    pub name: MessageName,
    /// The uid of its context.
    pub context_uid: String,
    /// The flow whose nodes it carries.
    pub flow: FlowId,
    /// Destination of the message.
    pub route: RunnerRoute,
    /// Nodes that are neither delivered nor under way.
    pub nodes: Vec<DeliveryNode>,
    /// Nodes under way, by delivery.
    pub parts: BTreeMap<u64, Vec<DeliveryNode>>,
    /// How many nodes of the lane's window it takes while it is under way.
    pub window_nodes: usize,
    /// When it was made.
    pub created_millis: u64,
    /// When it was made, by the clock of this process; absent before that clock begins, and once the delivery was measured.
    pub made_at: Option<Instant>,
    /// Until when it has to be accepted.
    pub deadline: Option<Instant>,
    /// Where the message was sent last: the nodes that are left of it may have arrived there all the same.
    pub sent_to: Option<RunnerEndpoint>,
    /// No other router, and no earlier life of this one, can have sent it.
    pub is_fresh: bool,
    /// How often its delivery failed.
    pub failures: u32,
    /// Last error of a delivery.
    pub last_error: String,
    /// Reports about its nodes that are not acknowledged yet.
    pub reports_open: usize,
    /// Nodes that are given up and may have arrived.
    pub unresolved: usize,
    /// Why it was given up.
    pub error: Option<String>,
    /// The supervisor has accepted one of the nodes.
    pub taken: bool,
    /// Reason that the supervisor gave when it refused nodes; empty when it did not.
    pub refusal: String,
}

/// Storage gave something that is no message.
#[derive(Debug, thiserror::Error)]
#[error("a node of message {message} cannot be read")]
pub struct NodeMessageError {
    /// Key of the message.
    pub message: String,
    /// Error in the node's JSON.
    #[source]
    pub source: serde_json::Error,
}

impl NodeMessage {
    /// Reads what storage gave; the deadline is the caller's to compute.
    ///
    /// # Errors
    /// [`NodeMessageError`] when a node is no execution.
    pub fn read(held: HeldMessage, deadline: Option<Instant>) -> Result<Self, NodeMessageError> {
        let HeldMessage {
            context_id,
            context_uid,
            message_key,
            flow_id,
            runner_id,
            timeout_ack_secs: _,
            nodes,
            created_millis,
            kind: _,
        } = held;
        let nodes: Result<Vec<_>, _> = nodes
            .into_iter()
            .map(|json| {
                ExecutionHead::read(&json).map(|head| DeliveryNode {
                    key: head.job_key,
                    json,
                    arrived: false,
                })
            })
            .collect();
        let nodes = nodes.map_err(|source| NodeMessageError { message: message_key.clone(), source })?;
        let context = ContextId(context_id);
        Ok(Self {
            name: (context, message_key),
            context_uid,
            flow: FlowId(flow_id),
            route: (context, RunnerId(runner_id)),
            window_nodes: nodes.len(),
            nodes,
            parts: BTreeMap::new(),
            created_millis,
            made_at: None,
            deadline,
            sent_to: None,
            is_fresh: false,
            failures: 0,
            last_error: String::new(),
            reports_open: 0,
            unresolved: 0,
            error: None,
            taken: false,
            refusal: String::new(),
        })
    }

    /// Finds one of the message's nodes, wherever it is.
    pub fn node_mut(&mut self, key: JobKey) -> Option<&mut DeliveryNode> {
        let mut nodes = self.nodes.iter_mut().chain(self.parts.values_mut().flatten());
        nodes.find(|node| node.key == key)
    }

    /// Notes that the supervisor has answered for this many nodes, of which it refused `refused_count`.
    pub fn note_answer(&mut self, nodes: usize, refused_count: u32, refusal: String) {
        self.taken |= usize::try_from(refused_count).is_ok_and(|refused| refused < nodes);
        if self.refusal.is_empty() {
            self.refusal = refusal;
        }
    }

    /// Returns why the message did not arrive: given up, or refused as a whole. Empty when it did arrive.
    #[must_use]
    pub fn verdict(&self) -> String {
        match &self.error {
            Some(error) => error.clone(),
            None if self.taken => String::new(),
            None => self.refusal.clone(),
        }
    }

    /// Returns true when nothing is left to be done for the message.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.nodes.is_empty() && self.parts.is_empty() && self.reports_open == 0 && self.unresolved == 0
    }

    /// Returns true when the remaining nodes may have arrived somewhere.
    #[must_use]
    pub const fn may_have_been_sent(&self) -> bool {
        self.sent_to.is_some() || !self.is_fresh
    }

    /// Takes the nodes in parts that fit into a gRPC message.
    pub fn take_parts(&mut self) -> Vec<Vec<DeliveryNode>> {
        let mut parts: Vec<Vec<DeliveryNode>> = Vec::new();
        let mut bytes = 0;
        for node in std::mem::take(&mut self.nodes) {
            bytes += node.json.len();
            match parts.last_mut() {
                Some(part) if bytes <= PART_BYTES_MAX => part.push(node),
                _ => {
                    bytes = node.json.len();
                    parts.push(vec![node]);
                }
            }
        }
        parts
    }
}
