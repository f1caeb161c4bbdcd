//! `mycora flow submit`: uploads what the flow carries along, then submits it, in one call or in parts.

mod chunked;
mod upload;

use clap::Args;
use flow_file::FlowFile;
use model::Violation;
use proto::v1;
use uuid::Uuid;

pub(super) use self::upload::{upload, with_uploads};
use super::signing::{self, SigningArgs};
use super::{CliSession, validate, values, watch};
use crate::failure::{ApiCallError, CliError};
use crate::output::{self, json};

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
Examples:
  mycora flow submit flow.yaml --watch
  cat flow.yaml | mycora flow submit - --env LANG=C.UTF-8
  mycora flow submit flow.yaml --signing-key actor-1.ed25519 --signature-holds 12h

Paths in the file are relative to it; with `-`, to the working directory. A flow that is larger than 3 MiB is sent in parts. \
Signatures cover what the jobs define (scripts, files, variables as written, limits), not when and where they run.";

/// Arguments of `flow submit`.
#[derive(Debug, Args)]
pub struct FlowSubmitArgs {
    /// The flow file, YAML or JSON; `-` for standard input
    pub file: String,
    /// Set a variable of the flow. Wins over the file's `env`; a job's own `env` still wins over both
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::entry)]
    pub env: Vec<(String, String)>,
    /// Watch the flow until it has ended; Ctrl-C leaves it running
    #[arg(long, short)]
    pub watch: bool,
    /// The number of the flow, refused if it is in use [default: the coordinator chooses]
    #[arg(long, value_name = "ID", value_parser = values::id)]
    pub flow_id: Option<u32>,
    /// Key that signs the flow's jobs.
    #[command(flatten)]
    pub signing: SigningArgs,
    /// Makes the submission repeatable: the same id with the same file starts one flow only
    #[arg(long, value_name = "UUID", value_parser = values::uuid)]
    pub request_id: Option<Uuid>,
}

pub(super) async fn run(session: &CliSession, args: &FlowSubmitArgs) -> Result<u8, CliError> {
    let mut file = validate::read(&args.file, &args.env)?;
    let context = session.context_or(file.context)?;
    signing::sign(session, &args.signing, context, &mut file).await?;
    let request_id = args.request_id.unwrap_or_else(Uuid::new_v4);
    let answer = submit(session, context, &file, args.flow_id, request_id).await?;
    let id = answer.flow.as_ref().map_or(0, |flow| flow.id);
    // Its scripts and names are not needed any more, and there may be many.
    drop(file);
    if args.watch {
        return watch::run(session, context, id).await;
    }
    output::answer(
        session.global.output,
        || json::of(&answer),
        || {
            let name = answer.flow.as_ref().map(|flow| flow.name.as_str()).unwrap_or_default();
            format!(
                "flow {id} `{name}` is started; watch it with `mycora flow watch {id} --context {context}`\n"
            )
        },
    )?;
    Ok(0)
}

/// Uploads and submits. With the same `request_id` this has one effect, however often it is called.
///
/// # Errors
/// When something cannot be uploaded, or the flow is refused: then with the places in its file.
pub async fn submit(
    session: &CliSession,
    context: u32,
    file: &FlowFile,
    flow_id: Option<u32>,
    request_id: Uuid,
) -> Result<v1::SubmitFlowResponse, CliError> {
    upload(session, context, file).await?;
    if !file.fits_one_call() {
        let flow = chunked::submit(session, context, file, flow_id, request_id).await?;
        return Ok(v1::SubmitFlowResponse { flow: Some(flow) });
    }
    let request = v1::SubmitFlowRequest {
        request_id: request_id.to_string(),
        context_id: context,
        flow_id: flow_id.unwrap_or_default(),
        caller_id: session.actor(),
        flow: Some(file.spec.clone()),
    };
    let submitted =
        with_uploads(session, context, file, async || session.clients.submit_flow(&request).await);
    submitted.await?.map_err(|error| located(file, 0, error))
}

/// Locates what was refused in the file. `first_index` is the position of the first node of the request.
pub(super) fn located(file: &FlowFile, first_index: usize, error: ApiCallError) -> CliError {
    if error.view.violations.is_empty() {
        return error.into();
    }
    let violations: Vec<Violation> =
        error.view.violations.into_iter().map(|violation| in_flow(violation, first_index)).collect();
    CliError::Invalid(file.locate(&violations).to_string())
}

/// A field of a call about some nodes or a whole flow, as a field of the whole submission.
fn in_flow(violation: Violation, first_index: usize) -> Violation {
    let Violation { field, description } = violation;
    let node = field.strip_prefix("nodes[").and_then(|rest| {
        let (index, rest) = rest.split_once(']')?;
        Some(format!("flow.nodes[{}]{rest}", index.parse::<usize>().ok()? + first_index))
    });
    let field = match node {
        Some(field) => field,
        None if field.starts_with("env_vars") => format!("flow.{field}"),
        None => field,
    };
    Violation { field, description }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_parts_are_fields_of_the_whole() {
        for (field, whole) in [
            ("nodes[3].job.env_vars[A]", "flow.nodes[1003].job.env_vars[A]"),
            ("nodes[0]", "flow.nodes[1000]"),
            ("env_vars[A]", "flow.env_vars[A]"),
            ("flow.name", "flow.name"),
            ("context_id", "context_id"),
        ] {
            let violation = Violation { field: field.into(), description: "no".into() };
            assert_eq!(in_flow(violation, 1000).field, whole);
        }
    }
}
