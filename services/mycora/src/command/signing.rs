//! Jobs that their actor signs: no coordinator can make them up, or change them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use envelope::actor::{JobTerms, sign_job};
use flow_file::FlowFile;
use identity::SigningKey;
use model::limits::{JOB_SIGNATURE_SECS_DEFAULT, JOB_SIGNATURE_SECS_MAX};
use model::{ActorId, ContextUid, FlowSpec, NodeSpec, Timestamp};
use proto::convert::flow_spec;

use super::CliSession;
use crate::failure::{CliError, error_chain};

/// With which key jobs are signed, and for how long.
#[derive(Debug, Clone, Default, Args)]
pub struct SigningArgs {
    /// Sign each job with the key in this file, your registered key: a supervisor that requires signatures runs nothing else
    #[arg(long, value_name = "FILE")]
    pub signing_key: Option<PathBuf>,
    /// Time during which attempts of a signed job may begin, such as 12h or 90d [default: 30d]
    #[arg(long, value_name = "TIME", requires = "signing_key", value_parser = holds)]
    pub signature_holds: Option<Duration>,
}

fn holds(text: &str) -> Result<Duration, String> {
    let max = Duration::from_secs(JOB_SIGNATURE_SECS_MAX.into());
    match yaml::duration(text) {
        Some(length) if !length.is_zero() && length <= max => Ok(length),
        Some(_) => Err("a signature holds for 366 days at most, and not for no time".to_owned()),
        None => Err("write it as 90s, 15m, 12h or 30d".to_owned()),
    }
}

/// Signer of jobs: key and actor, the context, and the time until which signatures hold.
struct JobSigner {
    key: SigningKey,
    context_uid: ContextUid,
    caller: ActorId,
    expires: Timestamp,
}

impl JobSigner {
    /// With the key in this file. What is signed names the context as other machines do.
    async fn new(
        session: &CliSession,
        args: &SigningArgs,
        path: &Path,
        context: u32,
        caller: ActorId,
    ) -> Result<Self, CliError> {
        let key = SigningKey::load(path).map_err(|error| CliError::Invalid(error_chain(&error)))?;
        let found = session.clients.get_context(context).await?.context.unwrap_or_default();
        let context_uid = found.uid.parse().map_err(|_| {
            CliError::Failed(format!("the coordinator returned an invalid uid for context {context}"))
        })?;
        let default = Duration::from_secs(JOB_SIGNATURE_SECS_DEFAULT.into());
        let expires = Timestamp::now() + args.signature_holds.unwrap_or(default);
        Ok(Self { key, context_uid, caller, expires })
    }

    /// Signs one job of a flow.
    fn sign(&self, flow: &FlowSpec, node: &NodeSpec, jobs: &HashMap<&str, &NodeSpec>) -> String {
        let depends = node.depends.iter().filter_map(|name| jobs.get(name.as_str()));
        let received: BTreeSet<String> =
            depends.flat_map(|before| before.job.outputs.iter().cloned()).collect();
        let place = (self.context_uid, self.caller);
        let terms = JobTerms::of_job(&node.job, &node.policy, &flow.env_vars, received, place);
        sign_job(&terms, &self.key, self.expires)
    }
}

/// Signs every job of a flow, where a key is named.
///
/// # Errors
/// When the key cannot be read, or the coordinator does not return what has to be signed.
pub(super) async fn sign(
    session: &CliSession,
    args: &SigningArgs,
    context: u32,
    file: &mut FlowFile,
) -> Result<(), CliError> {
    let Some(path) = &args.signing_key else { return Ok(()) };
    let caller = match session.actor() {
        0 => session.clients.who_am_i().await?.actor.unwrap_or_default().id,
        actor => actor,
    };
    let signer = JobSigner::new(session, args, path, context, ActorId(caller)).await?;
    let flow = understood(file)?;
    let jobs = by_name(&flow);
    for (wire, node) in file.spec.nodes.iter_mut().zip(&flow.nodes) {
        if let Some(job) = &mut wire.job {
            job.signature = signer.sign(&flow, node, &jobs);
        }
    }
    Ok(())
}

/// The signatures of those jobs of a flow file that are run again, for this caller.
///
/// # Errors
/// As [`sign`], and when the file lacks one of them.
pub(super) async fn for_rerun(
    session: &CliSession,
    (args, path): (&SigningArgs, &Path),
    (context, caller): (u32, u32),
    file: &FlowFile,
    names: &[String],
) -> Result<BTreeMap<String, String>, CliError> {
    let signer = JobSigner::new(session, args, path, context, ActorId(caller)).await?;
    let flow = understood(file)?;
    let jobs = by_name(&flow);
    let signed = names.iter().map(|name| match jobs.get(name.as_str()) {
        Some(node) => Ok((name.clone(), signer.sign(&flow, node, &jobs))),
        None => Err(CliError::Invalid(format!("`{name}` is run again, and the flow file has no such job"))),
    });
    signed.collect()
}

/// The flow as the coordinator will understand it.
fn understood(file: &FlowFile) -> Result<FlowSpec, CliError> {
    // Signing the coordinator's copy of a job would mean trusting the coordinator, which signatures are there to avoid.
    let unsigned = "a stored job is defined at the coordinator, and no job is signed unread; write the job itself into \
                    the file, or leave --signing-key out";
    if let Some(problems) = file.created_job_problems(unsigned) {
        return Err(CliError::Invalid(problems.to_string()));
    }
    flow_spec::from_wire(file.spec.clone(), "flow")
        .map_err(|draft| CliError::Invalid(file.locate(draft.violations.as_slice()).to_string()))
}

fn by_name(flow: &FlowSpec) -> HashMap<&str, &NodeSpec> {
    flow.nodes.iter().map(|node| (node.name.as_str(), node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_hold_for_a_time_that_there_is() {
        assert_eq!(holds("12h"), Ok(Duration::from_secs(12 * 3600)));
        assert_eq!(holds("366d"), Ok(Duration::from_secs(JOB_SIGNATURE_SECS_MAX.into())));
        for wrong in ["", "0d", "367d", "30", "soon", "-1d"] {
            assert!(holds(wrong).is_err(), "{wrong}");
        }
    }
}
