//! `mycora saga replay`.

use clap::Args;
use model::Timestamp;
use proto::convert::time as wire_time;
use proto::v1;
use proto::v1::replay_lane_request::Replay;
use proto::v1::replay_lane_response::Event;
use proto::v1::saga_replay_from::Position;

use super::scope::{self, SagaCommandScope, SagaRequestIdFlag};
use crate::clients::sagas::unanswered;
use crate::command::values;
use crate::failure::CliError;
use crate::output::saga::lane;
use crate::output::{self, OutputFormat, json};

pub(super) const AFTER_HELP: &str = "\
Needs the role admin. --verify runs journals again and compares them, and changes nothing; the exit code is 1 if one differs. --from reads sources again from a position, to find missed events; events already applied are not applied again. Neither makes a call twice. With --output json each answer is a document on a line of its own.

Examples:
  mycora saga replay s:acme:order-fulfilment:0 --confirm s:acme:order-fulfilment:0 --verify
  mycora saga replay s:acme:order-fulfilment:0 --confirm s:acme:order-fulfilment:0 --from 2h
  mycora saga replay s:acme:order-fulfilment:0 --confirm s:acme:order-fulfilment:0 --source 'aggregate.Order' --from 4711";

/// Arguments of `saga replay`.
#[derive(Debug, Args)]
#[group(id = "kind", required = true, multiple = false, args = ["verify", "position"])]
pub struct SagaReplayArgs {
    /// Name of the lane, as `saga lanes` gives it
    pub lane: String,
    /// Name of the lane once more
    #[arg(long, value_name = "LANE")]
    pub confirm: String,
    /// Compare journals with their definitions; only of a saga's lane
    #[arg(long)]
    pub verify: bool,
    /// Only the journal of this correlation, not all of them
    #[arg(long, value_parser = scope::correlation, requires = "verify")]
    pub correlation: Option<String>,
    /// Read again from here: a sequence of the source's stream, a time, a day (UTC), or how long ago
    #[arg(id = "position", long = "from", value_name = "SEQUENCE|TIME", value_parser = position)]
    pub position: Option<ReplayPositionArg>,
    /// Only this source, as `saga lanes` gives it; a sequence needs one
    #[arg(long, default_value = "", hide_default_value = true, conflicts_with = "verify")]
    pub source: String,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

/// Where reading begins, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayPositionArg {
    /// A sequence of the stream.
    Sequence(u64),
    /// A moment at which messages were stored.
    Time(values::PointInTime),
}

fn position(text: &str) -> Result<ReplayPositionArg, String> {
    match text.parse() {
        Ok(sequence) => Ok(ReplayPositionArg::Sequence(sequence)),
        Err(_) => values::moment(text)
            .map(ReplayPositionArg::Time)
            .map_err(|advice| format!("write a sequence as 4711, or {advice}")),
    }
}

pub(super) async fn run(scope: &SagaCommandScope<'_>, args: SagaReplayArgs) -> Result<u8, CliError> {
    let SagaReplayArgs { lane: name, confirm, verify: _, correlation, position, source, repeat } = args;
    if confirm != name {
        return Err(CliError::Invalid(format!(
            "--confirm names another lane than the one that is to be processed again: `{}`, and not `{}`",
            confirm.escape_debug(),
            name.escape_debug()
        )));
    }
    let replay = match position {
        None => Replay::Verify(v1::SagaReplayVerify { correlation_id: correlation.unwrap_or_default() }),
        Some(from) => {
            let position = match from {
                ReplayPositionArg::Sequence(_) if source.is_empty() => {
                    let text = "a sequence is that of one source: name it with --source, or give a time";
                    return Err(CliError::Invalid(text.to_owned()));
                }
                ReplayPositionArg::Sequence(sequence) => Position::Sequence(sequence),
                ReplayPositionArg::Time(moment) => {
                    Position::Time(wire_time::to_wire(moment.from(Timestamp::now())))
                }
            };
            Replay::FromPosition(v1::SagaReplayFrom { source, position: Some(position) })
        }
    };
    let request = v1::ReplayLaneRequest {
        request_id: repeat.id(),
        tenant_id: scope.tenant_id.clone(),
        lane: name,
        confirm,
        replay: Some(replay),
    };
    follow(scope, request).await
}

/// Shows the progress until the end; returns the exit code.
async fn follow(scope: &SagaCommandScope<'_>, request: v1::ReplayLaneRequest) -> Result<u8, CliError> {
    let id = request.request_id.clone();
    let mut answers = scope.clients().replay_lane(request).await?;
    let mut done = None;
    while let Some(answer) = answers.next().await.map_err(|error| unanswered(error, &id))? {
        if scope.format() != OutputFormat::Table {
            output::print_stream_item(scope.format(), &json::of(&answer))?;
        }
        match answer.event {
            Some(Event::Progress(progress)) if !scope.session.global.quiet => {
                output::note(&lane::progress(&progress));
            }
            Some(Event::Difference(difference)) if scope.format() == OutputFormat::Table => {
                output::print(&lane::difference(&difference))?;
            }
            Some(Event::Done(end)) => done = Some(end),
            Some(Event::Progress(_) | Event::Difference(_)) | None => {}
        }
    }
    let Some(done) = done else {
        let text = format!("the replay broke off before its end; repeat it with --request-id {id}");
        return Err(CliError::Unreachable(text));
    };
    if scope.format() == OutputFormat::Table {
        output::print(&lane::done(&done))?;
    }
    Ok(u8::from(done.different_count > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_sequences_and_moments() {
        assert_eq!(position("4711"), Ok(ReplayPositionArg::Sequence(4711)));
        assert!(matches!(position("2h"), Ok(ReplayPositionArg::Time(values::PointInTime::Ago(_)))));
        assert!(matches!(position("2026-11-21"), Ok(ReplayPositionArg::Time(values::PointInTime::At(_)))));
        assert!(
            position("soon")
                .is_err_and(|advice| advice.starts_with("write a sequence as 4711, or write a time"))
        );
    }
}
