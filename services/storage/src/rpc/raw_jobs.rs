//! Jobs that were pushed to Redis, as the submission that a router sends to a scheduler.

use model::ContextId;
use proto::convert;
use proto::internal::v1::RawJobs;
use proto::v1;

use crate::record::routed_message;

/// Builds the submission. The message's key and the revision at which it was taken up make a repetition the same request. The key
/// alone is not enough: a program may remove a message and use its key for another one.
pub(super) fn to_wire(jobs: routed_message::RawJobs, context: ContextId, message_key: &str) -> RawJobs {
    let routed_message::RawJobs { caller, flow, bytes: _, taken_revision } = jobs;
    let request_id = match taken_revision.as_str() {
        "" => message_key.to_owned(),
        revision => format!("{message_key}@{revision}"),
    };
    let submit = v1::SubmitFlowRequest {
        request_id,
        context_id: context.0,
        flow_id: 0,
        caller_id: caller.0,
        flow: Some(convert::flow_spec::to_wire(flow)),
    };
    RawJobs { caller_id: caller.0, submit: Some(submit) }
}
