//! `mycora context audit`.

use clap::Args;
use model::Timestamp;
use proto::convert::time as wire_time;
use proto::v1;

use crate::command::values::PointInTime;
use crate::command::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, PageSummary, json, objects};

pub(super) const AFTER_HELP: &str = "\
Changes are kept for 90 days; reads are not recorded.

Examples:
  mycora context audit 3 --action flow. --since 7d
  mycora context audit 0 --as admin";

/// Arguments of `context audit`.
#[derive(Debug, Args)]
pub struct ContextAuditArgs {
    /// The context's number; 0 for what was done to actors and contexts themselves, which only the admin may see
    pub id: u32,
    /// Only what this actor did
    #[arg(long, value_name = "ID", value_parser = values::id)]
    pub actor: Option<u32>,
    /// Only actions that begin with this, as in `flow.`
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub action: String,
    /// Only changes at or after this time: a time, a day (UTC), or how long ago, such as 90s, 15m, 2h or 7d
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub since: Option<PointInTime>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

pub(super) async fn run(session: &CliSession, args: &ContextAuditArgs) -> Result<(), CliError> {
    let now = Timestamp::now();
    let request = v1::ListAuditEntriesRequest {
        context_id: args.id,
        actor_id: args.actor.unwrap_or_default(),
        action_prefix: args.action.clone(),
        since_time: args.since.map(|moment| wire_time::to_wire(moment.from(now))),
        ..Default::default()
    };
    let answer = session.clients.list_audit_entries(request, args.limit).await?;
    let v1::ListAuditEntriesResponse { entries, next_page_token } = &answer;
    let none = "nothing of that kind was done";
    let listed = PageSummary { count: entries.len(), limit: args.limit, next_page_token, none };
    output::list(session.global.output, listed, || json::of(&answer), || objects::audit(entries))
}
