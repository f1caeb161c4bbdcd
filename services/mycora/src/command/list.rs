//! `mycora flow list`.

use clap::{Args, ValueEnum};
use model::Timestamp;
use proto::convert::time as wire_time;
use proto::v1;

use super::CliSession;
use super::values::{self, PointInTime};
use crate::failure::CliError;
use crate::output::{self, PageSummary, json, summary};

/// Arguments of `flow list`.
#[derive(Debug, Args)]
pub struct FlowListArgs {
    /// Only flows of this status
    #[arg(long, value_enum)]
    pub status: Option<FlowStatusFilter>,
    /// Only flows of this actor
    #[arg(long, value_name = "ACTOR", value_parser = values::id)]
    pub caller: Option<u32>,
    /// Only flows whose name begins with this
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub name: String,
    /// Only flows created at or after this time: a time, a day (UTC), or how long ago, such as 90s, 15m, 2h or 7d
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub since: Option<PointInTime>,
    /// Only flows created before this time
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub until: Option<PointInTime>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// A status as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FlowStatusFilter {
    /// Being filled.
    Created,
    /// Under way.
    #[value(alias = "started")]
    Running,
    /// Ended well.
    #[value(alias = "finished")]
    Completed,
    /// Ended with a failure.
    #[value(alias = "error")]
    Failed,
    /// Cancelled on request.
    Cancelled,
}

impl From<FlowStatusFilter> for v1::FlowStatus {
    fn from(filter: FlowStatusFilter) -> Self {
        match filter {
            FlowStatusFilter::Created => Self::Created,
            FlowStatusFilter::Running => Self::Started,
            FlowStatusFilter::Completed => Self::Finished,
            FlowStatusFilter::Failed => Self::Error,
            FlowStatusFilter::Cancelled => Self::Cancelled,
        }
    }
}

pub(super) async fn run(session: &CliSession, args: &FlowListArgs) -> Result<(), CliError> {
    let now = Timestamp::now();
    let time = |moment: Option<PointInTime>| moment.map(|moment| wire_time::to_wire(moment.from(now)));
    let request = v1::ListFlowsRequest {
        context_id: session.context()?,
        status: args.status.map_or(v1::FlowStatus::Unspecified, v1::FlowStatus::from).into(),
        caller_id: args.caller.unwrap_or_default(),
        name_prefix: args.name.clone(),
        created_from: time(args.since),
        created_before: time(args.until),
        ..Default::default()
    };
    let answer = session.clients.list_flows(request, args.limit).await?;
    let v1::ListFlowsResponse { flows, next_page_token } = &answer;
    let none = "there are no such flows; `mycora flow submit FILE` makes one";
    let listed = PageSummary { count: flows.len(), limit: args.limit, next_page_token, none };
    let text = || summary::flows(flows, now);
    output::list(session.global.output, listed, || json::of(&answer), text)
}
