//! Checks the signatures of submissions. A flow in which nothing is signed costs nothing.
//!
//! The supervisor that runs a job checks its signature again; the check here keeps flows that could not run from beginning.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use envelope::actor::{JobTerms, check_terms};
use flow::engine::StoredNode;
use model::flow::EnvVars;
use model::{ActorId, ContextUid, JobId, JobSpec, NodePolicy, NodeSpec, Timestamp, Violations, limits};
use proto::internal::v1 as internal;
use tonic::Status;

use crate::clients::FlowStoreClient;
use crate::error::bad_store;

/// Caller, context and variables of jobs whose signatures are checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobSigningContext<'a> {
    /// Uid of the context, as signatures name it.
    pub(crate) context_uid: ContextUid,
    /// Caller of the jobs.
    pub(crate) caller: ActorId,
    /// Keys, one of which must have signed the jobs.
    pub(crate) keys: &'a [String],
    /// The flow's variables.
    pub(crate) env_vars: &'a EnvVars,
}

/// The context's uid, and the caller's keys that are valid now, the key in force first.
///
/// # Errors
/// What storage answers.
pub(crate) async fn signer(
    store: &mut FlowStoreClient,
    actor: ActorId,
    context_id: u32,
    caller: ActorId,
) -> Result<(ContextUid, Vec<String>), Status> {
    let request = internal::ReadSignerRequest { context_id, caller_id: caller.0, on_behalf_of: actor.0 };
    let internal::ReadSignerResponse { context_uid, keys } = store.read_signer(request).await?.into_inner();
    Ok((context_uid.parse().map_err(bad_store)?, keys))
}

/// Returns true when any node is signed.
pub(crate) fn any(nodes: &[NodeSpec]) -> bool {
    nodes.iter().any(|node| node.job.signature.is_some())
}

/// Returns true when any stored node is signed.
pub(crate) fn any_kept<'a>(nodes: impl IntoIterator<Item = &'a StoredNode>) -> bool {
    nodes.into_iter().any(|stored| stored.job.signature.is_some())
}

/// Collects violations of the nodes' signatures; their field names begin with `at`. While a flow is not `whole`, the files that its
/// nodes receive are not known yet.
pub(crate) fn check_specs(
    nodes: &[NodeSpec],
    place: JobSigningContext<'_>,
    whole: bool,
    at: &str,
    now: Timestamp,
) -> Violations {
    let mut violations = Violations::new();
    let jobs: HashMap<_, _> = nodes.iter().filter(|_| whole).map(|node| (&node.name, &node.job)).collect();
    for (i, node) in nodes.iter().enumerate() {
        let Some(signature) = &node.job.signature else { continue };
        let received = received(node.depends.iter().filter_map(|name| jobs.get(name).copied()));
        if let Err(why) = check(signature, &node.job, &node.policy, place, received, now) {
            violations.add(format!("{at}nodes[{i}].job.signature"), why);
        }
    }
    violations
}

/// Signatures that jobs have from now on when a flow is run again: those of `new`, by the names of nodes that are run `again`.
/// A node without one in `new` keeps its signature, which must still fit.
///
/// # Errors
/// Everything that is wrong, by `signatures[<node>]`.
pub(crate) fn for_rerun(
    nodes: &[StoredNode],
    again: &[bool],
    new: &BTreeMap<String, String>,
    place: JobSigningContext<'_>,
    now: Timestamp,
) -> Result<BTreeMap<JobId, String>, Violations> {
    let mut violations = Violations::new();
    if new.len() > limits::RETRY_SIGNATURES_MAX {
        let (max, count) = (limits::RETRY_SIGNATURES_MAX, new.len());
        violations.add("signatures", format!("at most {max} are given at once, not {count}"));
        return Err(violations);
    }
    let jobs = jobs_of(nodes);
    let mut left: BTreeSet<&str> = new.keys().map(String::as_str).collect();
    let mut signatures = BTreeMap::new();
    for (stored, _) in nodes.iter().zip(again).filter(|(_, again)| **again) {
        let name = stored.node.name.as_str();
        let checked = if let Some(signature) = new.get(name) {
            left.remove(name);
            signatures.insert(stored.node.job_id, signature.clone());
            check_node(signature, stored, &jobs, place, now)
        } else if let Some(signature) = &stored.job.signature {
            // The key of the stored signature may no longer be valid.
            let checked = check_node(signature, stored, &jobs, place, now);
            checked.map_err(|why| format!("give a new one, since the stored one does not fit: {why}"))
        } else {
            Ok(())
        };
        if let Err(why) = checked {
            violations.add(format!("signatures[{name}]"), why);
        }
    }
    for name in left {
        violations.add(format!("signatures[{name}]"), "no node of this name is run again");
    }
    violations.into_result(Some(signatures))
}

fn jobs_of(nodes: &[StoredNode]) -> HashMap<JobId, &JobSpec> {
    nodes.iter().map(|stored| (stored.node.job_id, &*stored.job)).collect()
}

fn check_node(
    signature: &str,
    stored: &StoredNode,
    jobs: &HashMap<JobId, &JobSpec>,
    place: JobSigningContext<'_>,
    now: Timestamp,
) -> Result<(), String> {
    let received = received(stored.node.depends.iter().filter_map(|id| jobs.get(id).copied()));
    check(signature, &stored.job, &stored.node.policy, place, received, now)
}

/// The files that a job receives from those that it depends on.
fn received<'a>(depends: impl Iterator<Item = &'a JobSpec>) -> BTreeSet<String> {
    depends.flat_map(|job| job.outputs.iter().cloned()).collect()
}

fn check(
    signature: &str,
    job: &JobSpec,
    policy: &NodePolicy,
    place: JobSigningContext<'_>,
    received: BTreeSet<String>,
    now: Timestamp,
) -> Result<(), String> {
    let terms = JobTerms::of_job(job, policy, place.env_vars, received, (place.context_uid, place.caller));
    let signed = check_terms(signature, &terms, now).map_err(|refusal| refusal.to_string())?;
    let signer = signed.signer.to_string();
    if place.keys.contains(&signer) {
        return Ok(());
    }
    let key = place.keys.first().map_or("none", String::as_str);
    Err(format!("{signer} has signed it; the key in force of actor {} is {key}", place.caller))
}

#[cfg(test)]
mod tests;
