//! `mycora context delete`.

use std::time::{Duration, Instant};

use clap::Args;
use proto::v1;
use rpc::RetryAdvice;
use tonic::Code;
use uuid::Uuid;

use crate::command::{CliSession, values};
use crate::failure::{ApiCallError, CliError};
use crate::output::{self, json};

/// Waits between calls that broke off.
const WAIT: Duration = Duration::from_secs(1);
/// Supervisors that do not answer are given up by the coordinator after 300 s; it is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(600);

/// Arguments of `context delete`.
#[derive(Debug, Args)]
pub struct ContextDeleteArgs {
    /// The context's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Confirm the removal, with its flows, results, logs, files and runners
    #[arg(long)]
    pub yes: bool,
    /// Only if the context is still at this revision, as `context get` shows it with --output json
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    pub expected_revision: Option<u64>,
}

pub(super) async fn run(
    session: &CliSession,
    ContextDeleteArgs { id, yes, expected_revision }: &ContextDeleteArgs,
) -> Result<(), CliError> {
    if !yes {
        return Err(CliError::Invalid(format!(
            "this removes context {id} with all its flows, results, logs, files and runners; confirm with --yes"
        )));
    }
    let answer = delete(session, *id, *expected_revision).await?;
    output::answer(session.global.output, || json::of(&answer), || format!("context {id} is deleted\n"))
}

/// Repeats the request until the context is gone. Its request id makes the repeats return the first answer.
async fn delete(
    session: &CliSession,
    id: u32,
    expected: Option<u64>,
) -> Result<v1::DeleteContextResponse, CliError> {
    let request = v1::DeleteContextRequest {
        context_id: id,
        request_id: Uuid::new_v4().to_string(),
        expected_revision: expected.unwrap_or_default(),
    };
    let began = Instant::now();
    let mut broke_off = false;
    loop {
        let error = match session.clients.delete_context(&request).await {
            Ok(answer) => return Ok(answer),
            // The try before went through, and only its answer was lost.
            Err(ApiCallError { view, .. }) if broke_off && view.code == Code::NotFound => {
                return Ok(v1::DeleteContextResponse::default());
            }
            Err(error) => error,
        };
        let goes_on = matches!(error.retry, RetryAdvice::Again { .. });
        // A coordinator that was never there is not waited for.
        let refused = !broke_off && error.view.reason.is_empty() && error.view.code == Code::Unavailable;
        if !goes_on || refused || began.elapsed() >= PATIENCE {
            return Err(match CliError::from(error) {
                CliError::Unreachable(text) | CliError::Closed(text) if broke_off => {
                    CliError::Unreachable(format!(
                        "{text}\nthe removal of context {id} continues; wait for its end with `mycora context delete {id} --yes`"
                    ))
                }
                other => other,
            });
        }
        if !broke_off && !session.global.quiet {
            output::note(&format!("context {id} is being deleted; its supervisors are notified"));
        }
        broke_off = true;
        tokio::time::sleep(WAIT).await;
    }
}
