//! The scheduler's gRPC services: parse, call, convert.

mod flow_service;
mod report_intake;
mod unbroken;

pub use flow_service::FlowRpc;
pub use report_intake::ReportRpc;

use std::time::Duration;

use ::rpc::{Allow, PatienceTable, PolicyTable};
use identity::ServiceName;
use model::limits::RUN_JOB_WAIT_SECS_MAX;

/// What actors may call.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[("/mycora.v1.FlowService/*", &[Allow::AnyActor])];

/// Calls that wait for a job's end, or have up to 100,000 nodes to go through.
pub(crate) const PUBLIC_PATIENCE: PatienceTable<'static> = &[
    ("/mycora.v1.FlowService/RunJob", Duration::from_secs(RUN_JOB_WAIT_SECS_MAX as u64 + 60)),
    ("/mycora.v1.FlowService/SubmitFlow", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/CreateFlow", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/AddFlowNodes", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/StartFlow", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/RetryFlow", Duration::from_secs(120)),
    ("/mycora.v1.FlowService/DeleteFlow", Duration::from_secs(120)),
];

/// The same for flows that come with letters.
pub(crate) const INTERNAL_PATIENCE: PatienceTable<'static> =
    &[("/mycora.internal.v1.ReportIntakeService/SubmitFor", Duration::from_secs(120))];

/// What only services may call.
pub const INTERNAL_POLICY: PolicyTable<'static> =
    &[("/mycora.internal.v1.ReportIntakeService/*", &[Allow::Service(ServiceName::Router)])];
