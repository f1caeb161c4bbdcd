//! Nodes whose jobs were created before: what those say is copied.

use std::collections::{BTreeSet, HashMap};

use model::{ActorId, Violations};
use proto::internal::v1 as internal;
use proto::v1::{JobSpec, NodeSpec};
use tonic::Status;

use crate::clients::FlowStoreClient;
use crate::error::bad_store;

/// Puts the job itself in the place of each one that is only named. `at` is the path of the nodes in the request.
///
/// # Errors
/// INVALID_ARGUMENT where a node has both, NOT_FOUND where there is no such job of this caller, else what storage answers.
pub(crate) async fn take_up(
    store: &mut FlowStoreClient,
    (actor, context_id, caller): (ActorId, u32, ActorId),
    nodes: &mut [NodeSpec],
    at: &str,
) -> Result<(), Status> {
    let wanted = named(nodes, at)?;
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
            return Err(bad_store("jobs that were not asked for, or none"));
        }
        let (read, later) = rest.split_at(specs.len());
        jobs.extend(read.iter().copied().zip(specs));
        rest = later;
    }
    for node in nodes {
        if node.created_job_id != 0 {
            node.job = jobs.get(&node.created_job_id).cloned();
            node.created_job_id = 0;
        }
    }
    Ok(())
}

/// The numbers of the jobs that are named, each once.
fn named(nodes: &[NodeSpec], at: &str) -> Result<Vec<u32>, rpc::Error> {
    let mut violations = Violations::new();
    let mut wanted = BTreeSet::new();
    for (i, node) in nodes.iter().enumerate() {
        if node.created_job_id == 0 {
            continue;
        }
        if node.job.is_some() {
            violations
                .add(format!("{at}[{i}].created_job_id"), "a node has one job: give it here, or name one");
        }
        wanted.insert(node.created_job_id);
    }
    violations.into_result(Some(wanted.into_iter().collect())).map_err(rpc::Error::invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_job() {
        let node = |created_job_id, job| NodeSpec { created_job_id, job, ..Default::default() };
        let good = [node(7, None), node(0, Some(JobSpec::default())), node(3, None), node(7, None)];
        assert_eq!(named(&good, "flow.nodes").expect("each has one"), [3, 7]);
        let error = named(&[node(7, Some(JobSpec::default()))], "flow.nodes").expect_err("it has two");
        let rpc::ErrorKind::InvalidArgument(violations) = error.kind() else { panic!("{error}") };
        assert_eq!(violations.as_slice()[0].field, "flow.nodes[0].created_job_id");
    }
}
