//! `mycora flow retry`.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use model::limits::RETRY_SIGNATURES_MAX;
use proto::v1;
use rpc::RpcReason;
use uuid::Uuid;

use super::signing::{self, SigningArgs};
use super::{CliSession, validate, values, watch};
use crate::failure::{ApiCallError, CliError};
use crate::output::{self, json, summary};

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
Examples:
  mycora flow retry 3 --dry-run
  mycora flow retry 3 --from merge --env YEAR=2015 --watch
  mycora flow retry 3 --signing-key actor-1.ed25519 --file flow.yaml

Signatures cover the variables too, and expire: when variables of signed jobs change, or their signatures have expired, sign the jobs again.";

/// Arguments of `flow retry`.
#[derive(Debug, Args)]
pub struct FlowRetryArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Run every job again
    #[arg(long, conflicts_with = "from")]
    pub all: bool,
    /// Run these jobs again and all that comes after them
    #[arg(long, value_name = "JOB", num_args = 1.., value_delimiter = ',')]
    pub from: Vec<String>,
    /// Set a variable of the flow first; a job's own `env` still wins
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::entry)]
    pub env: Vec<(String, String)>,
    /// Remove a variable of the flow first
    #[arg(long, value_name = "NAME")]
    pub unset: Vec<String>,
    /// The flow file that the flow was made of, whose jobs --signing-key signs; with the --env of then and of now. Without
    /// that key it is only checked: what runs again is what was submitted
    #[arg(long, value_name = "FILE")]
    pub file: Option<String>,
    /// Key that signs the jobs that run again.
    #[command(flatten)]
    pub signing: SigningArgs,
    /// Only if the flow is still at this revision, as `flow get` and `--dry-run` show it with --output json
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    pub expected_revision: Option<u64>,
    /// Only show what would run again and what keeps its result
    #[arg(long)]
    pub dry_run: bool,
    /// Watch the flow until it has ended; Ctrl-C leaves it running
    #[arg(long, short, conflicts_with = "dry_run")]
    pub watch: bool,
}

impl FlowRetryArgs {
    fn request(&self, context_id: u32) -> v1::RetryFlowRequest {
        let scope = match (self.all, self.from.as_slice()) {
            (true, _) => v1::RetryScope::All,
            (false, []) => v1::RetryScope::Failed,
            (false, _) => v1::RetryScope::From,
        };
        v1::RetryFlowRequest {
            request_id: Uuid::new_v4().to_string(),
            context_id,
            flow_id: self.id,
            scope: scope.into(),
            nodes: self.from.clone(),
            env_vars: self.env.iter().cloned().collect::<BTreeMap<_, _>>(),
            unset_env_vars: self.unset.clone(),
            dry_run: self.dry_run,
            signatures: BTreeMap::new(),
            expected_revision: self.expected_revision.unwrap_or_default(),
        }
    }
}

/// A refusal with the way out of it.
fn refused(error: ApiCallError, context: u32, id: u32) -> CliError {
    let is = |reason: RpcReason| error.view.reason == reason.as_str();
    if is(RpcReason::NothingToRetry) {
        nothing_failed(id)
    } else if is(RpcReason::FlowNotEnded) {
        CliError::Failed(format!(
            "{}\ncancel it first with `mycora flow cancel {id} --context {context}`, or wait for its end with \
             `mycora flow watch {id} --context {context}`",
            error.view
        ))
    } else {
        error.into()
    }
}

/// Builds the error for a flow without failures; the coordinator answers a dry run with nothing to run.
fn nothing_failed(id: u32) -> CliError {
    CliError::Failed(format!(
        "nothing of flow {id} failed; run all of it with --all, or from a job on with --from JOB"
    ))
}

/// New signatures of the jobs that run again, and the revision of the flow that they are for. They cover the jobs of the flow file:
/// the coordinator's copy is not trusted with that.
async fn signatures(
    session: &CliSession,
    args: &FlowRetryArgs,
    key: &Path,
    request: &v1::RetryFlowRequest,
) -> Result<(BTreeMap<String, String>, u64), CliError> {
    let path = args.file.as_deref().ok_or_else(|| {
        CliError::Invalid(
            "--signing-key needs --file: signatures cover the jobs as your flow file defines them".to_owned(),
        )
    })?;
    let mut file = validate::read(path, &args.env)?;
    for name in &args.unset {
        file.spec.env_vars.remove(name);
    }
    let (context, id) = (request.context_id, request.flow_id);
    let dry_run_request =
        v1::RetryFlowRequest { request_id: Uuid::new_v4().to_string(), dry_run: true, ..request.clone() };
    let response = session.clients.retry_flow(&dry_run_request).await;
    let v1::RetryFlowResponse { flow, run_again, run_again_count, .. } =
        response.map_err(|error| refused(error, context, id))?;
    if run_again_count as usize > RETRY_SIGNATURES_MAX {
        return Err(CliError::Invalid(format!(
            "{run_again_count} jobs would run again, and one call signs at most {RETRY_SIGNATURES_MAX}: run fewer, or submit \
             the flow file again"
        )));
    }
    let (caller, revision) = flow.map_or((0, 0), |flow| (flow.caller_id, flow.revision));
    let signed =
        signing::for_rerun(session, (&args.signing, key), (context, caller), &file, &run_again).await?;
    Ok((signed, revision))
}

pub(super) async fn run(session: &CliSession, args: &FlowRetryArgs) -> Result<u8, CliError> {
    let context = session.context()?;
    let mut request = args.request(context);
    if let (Some(path), None) = (&args.file, &args.signing.signing_key) {
        validate::read(path, &args.env)?;
        output::note(
            "without --signing-key no job is signed: the jobs run again as submitted, whatever the file contains \
             by now",
        );
    }
    if let Some(path) = args.signing.signing_key.as_deref().filter(|_| !args.dry_run) {
        (request.signatures, request.expected_revision) = signatures(session, args, path, &request).await?;
    }
    let response = session.clients.retry_flow(&request).await;
    let answer = response.map_err(|error| refused(error, context, args.id))?;
    if args.dry_run && answer.run_again_count == 0 {
        return Err(nothing_failed(args.id));
    }
    if args.watch {
        return watch::run(session, context, args.id).await;
    }
    output::answer(session.global.output, || json::of(&answer), || summary::retry(&answer, args.dry_run))?;
    Ok(0)
}
