//! The scheduler's gRPC services: parse, call, convert.

mod flow_service;
mod report_intake;

pub use flow_service::FlowRpc;
pub use report_intake::ReportRpc;

use ::rpc::{Allow, PolicyTable};
use identity::ServiceName;

/// What actors may call.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[("/mycora.v1.FlowService/*", &[Allow::AnyActor])];

/// What only services may call.
pub const INTERNAL_POLICY: PolicyTable<'static> =
    &[("/mycora.internal.v1.ReportIntakeService/*", &[Allow::Service(ServiceName::Router)])];
