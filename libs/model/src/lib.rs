//! The nouns of Mycora: typed ids, objects, states, permissions and limits.
//!
//! Values here cannot be built wrong: what comes from outside is parsed into
//! them once, at the edge, and every later reader may rely on that. Nothing
//! here does I/O, reads a clock or draws a random number except
//! [`id::Uid::random`], which is only called where an object is made.

pub mod actor;
pub mod address;
pub mod address_range;
pub mod address_rules;
pub mod context;
pub mod draft;
pub mod event;
pub mod execution;
pub mod flow;
pub mod flow_input;
pub mod id;
pub mod inner_address;
pub mod isolation;
pub mod job;
pub mod labels;
pub mod limits;
pub mod mail;
pub mod message;
pub mod name;
pub mod node;
pub mod placement;
pub mod prerequisite;
pub mod printable;
pub mod reason;
pub mod request_id;
pub mod rerun;
pub mod runner;
pub mod saga;
pub mod script_type;
pub mod supervision;
pub mod time;
pub mod trace_parent;
pub mod violation;

pub use actor::Actor;
pub use address::Address;
pub use address_range::{AddressRange, AddressRangeError};
pub use context::{Context, ContextRetention, ContextState, Role};
pub use draft::{FlowDraft, NodeDraft};
pub use event::{ContextEvent, FlowEvent, NodeEvent};
pub use execution::{
    AttemptEnd, EndedProcess, Execution, ExecutionHead, ExecutionRecord, FileSource, Grants, JsonCursor,
    NodeReport, ReportKind, ReportSource,
};
pub use flow::{Flow, FlowSpec, FlowStatus};
pub use flow_input::FlowInput;
pub use id::{
    ActorId, Attempt, BlobHash, ContextId, ContextUid, Epoch, FlowId, FlowUid, Generation, JobId, JobKey,
    MessageId, OwnerId, Revision, RunnerId,
};
pub use isolation::Isolation;
pub use job::{JobRecord, JobSpec, ScriptSource};
pub use mail::{DirectMessage, DirectMessageAccepted, DirectMessageOrigin};
pub use message::{Message, MessageFormat, MessageKey, MessageStatus, MessageType, TransportStatus};
pub use name::Name;
pub use node::{BackoffPolicy, FlowNode, NodePolicy, NodeSpec, NodeState, NodeTarget, RunIf};
pub use prerequisite::{Prerequisite, SignalName};
pub use reason::{Reason, ReasonCode};
pub use request_id::RequestId;
pub use rerun::Rerun;
pub use runner::{EnvelopeForm, InstanceInfo, Presence, Runner, RunnerView};
pub use saga::{
    CommandId, CorrelationId, EffectName, EffectState, SagaName, SagaNameError, SagaStatus, StepName,
    TenantId, TimerName,
};
pub use script_type::ScriptType;
pub use time::Timestamp;
pub use trace_parent::TraceParent;
pub use violation::{Violation, Violations};
