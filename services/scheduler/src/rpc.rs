//! The scheduler's gRPC services: parse, call, convert.

mod flow_service;
mod report_intake;

pub use flow_service::FlowRpc;
pub use report_intake::ReportRpc;

use ::rpc::{Allow, PolicyTable};
use identity::ServiceName;

/// Who may call what.
pub const POLICY: PolicyTable<'static> = &[
    ("/mycora.v1.FlowService/*", &[Allow::AnyActor]),
    ("/mycora.internal.v1.ReportIntakeService/*", &[Allow::Service(ServiceName::Router)]),
];
