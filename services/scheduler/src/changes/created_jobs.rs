//! Nodes that refer to jobs created before: the specifications of those jobs are copied into them.

use std::collections::{BTreeSet, HashMap};

use model::ActorId;
use proto::internal::v1 as internal;
use proto::v1::{JobSpec, NodeSpec};
use tonic::Status;

use crate::clients::FlowStoreClient;
use crate::error::bad_store;

/// Replaces each reference to a created job by the job itself. Nodes that have both stay as they are: the check refuses
/// them together with everything else that is wrong.
///
/// # Errors
/// NOT_FOUND where there is no such job of this caller, else what storage answers.
pub(crate) async fn resolve_jobs(
    store: &mut FlowStoreClient,
    (actor, context_id, caller): (ActorId, u32, ActorId),
    nodes: &mut [NodeSpec],
) -> Result<(), Status> {
    let wanted = named(nodes);
    let mut jobs: HashMap<u32, JobSpec> = HashMap::new();
    let mut rest: &[u32] = &wanted;
    while !rest.is_empty() {
        let request = internal::ReadJobsRequest {
            context_id,
            caller_id: caller.0,
            job_ids: rest.to_vec(),
            on_behalf_of: actor.0,
        };
        let specs = store.read_jobs(request).await?.into_inner().specs;
        if specs.is_empty() || specs.len() > rest.len() {
            return Err(bad_store("it has no jobs, or more than were requested"));
        }
        let (read, later) = rest.split_at(specs.len());
        jobs.extend(read.iter().copied().zip(specs));
        rest = later;
    }
    for node in nodes.iter_mut().filter(|node| is_named(node)) {
        node.job = jobs.get(&node.created_job_id).cloned();
        node.created_job_id = 0;
    }
    Ok(())
}

/// Returns true when any node only names its job.
pub(crate) fn any(nodes: &[NodeSpec]) -> bool {
    nodes.iter().any(is_named)
}

/// Returns the numbers of the named jobs, each once.
fn named(nodes: &[NodeSpec]) -> Vec<u32> {
    let named = nodes.iter().filter(|node| is_named(node)).map(|node| node.created_job_id);
    named.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns true when the node names its job, and does not contain it.
const fn is_named(node: &NodeSpec) -> bool {
    node.created_job_id != 0 && node.job.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_read_where_they_are_only_named() {
        let node = |created_job_id, job| NodeSpec { created_job_id, job, ..Default::default() };
        let job = || Some(JobSpec::default());
        let nodes = [node(7, None), node(0, job()), node(3, None), node(7, None), node(9, job())];
        assert_eq!(named(&nodes), [3, 7]);
    }
}
