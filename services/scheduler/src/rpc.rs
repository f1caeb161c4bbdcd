//! The scheduler's gRPC services: parse, call, convert.

mod completion;
mod flow_service;
mod report_intake;

pub use flow_service::FlowRpc;
pub use report_intake::ReportRpc;

use std::time::Duration;

use ::rpc::{Allow, MethodTimeoutTable, PolicyTable};
use identity::ServiceName;
use model::limits::RUN_JOB_WAIT_SECS_MAX;

/// Policy for calls by actors.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[("/mycora.v1.FlowService/*", &[Allow::AnyActor])];

/// Calls that wait for a job's end, or have up to 100,000 nodes to go through.
pub(crate) const PUBLIC_PATIENCE: MethodTimeoutTable<'static> = &[
    ("/mycora.v1.FlowService/RunJob", Duration::from_secs(RUN_JOB_WAIT_SECS_MAX as u64 + 60)),
    ("/mycora.v1.FlowService/SubmitFlow", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/CreateFlow", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/AddFlowNodes", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/StartFlow", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/RetryFlow", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/DeleteFlow", Duration::from_secs(120)),
];

/// Time limits of calls for flows that arrive as messages.
pub(crate) const INTERNAL_PATIENCE: MethodTimeoutTable<'static> =
    &[("/mycora.internal.v1.ReportIntakeService/SubmitFor", Duration::from_secs(120))];

/// Policy for calls that only services may make.
pub const INTERNAL_POLICY: PolicyTable<'static> =
    &[("/mycora.internal.v1.ReportIntakeService/*", &[Allow::Service(ServiceName::Router)])];
