//! One job as a flow of one node, and waiting for its end.

use std::time::Duration;

use model::{ContextEvent, FlowEvent, FlowStatus, Violation, Violations, limits};
use proto::convert;
use proto::required;
use proto::v1::{FlowSpec, RunJobRequest, RunJobResponse, SubmitFlowRequest};
use tonic::Status;

use crate::views::reader::{FlowNodePage, FlowReader, is_end};

/// The name of a job that has none.
const NAME_DEFAULT: &str = "job";

/// The submission that a job stands for, and everything about the call that is wrong; the job itself is checked as a flow.
pub(crate) fn submission(request: RunJobRequest) -> (SubmitFlowRequest, Violations) {
    let mut violations = required::missing(&request);
    let RunJobRequest { request_id, context_id, caller_id, node, wait_secs } = request;
    let mut node = node.unwrap_or_default();
    if !node.depends.is_empty() {
        violations.add("node.depends", "one job depends on nothing; submit a flow");
    }
    if wait_secs > limits::RUN_JOB_WAIT_SECS_MAX {
        let max = limits::RUN_JOB_WAIT_SECS_MAX;
        violations.add("wait_secs", format!("at most {max} seconds are allowed, not {wait_secs}"));
    }
    // The violation is noted for the whole call; otherwise each dependency would add its own.
    node.depends.clear();
    if node.name.is_empty() {
        NAME_DEFAULT.clone_into(&mut node.name);
    }
    let flow = Some(FlowSpec { name: node.name.clone(), nodes: vec![node], ..FlowSpec::default() });
    (SubmitFlowRequest { request_id, context_id, flow_id: 0, caller_id, flow }, violations)
}

/// Renames the fields of a submission's violations to those of the call that was made.
pub(crate) fn as_of_job(violations: &Violations) -> Violations {
    let mut of_job = Violations::new();
    for Violation { field, description } in violations.as_slice() {
        match field.strip_prefix("flow.nodes[0]") {
            Some(rest) => of_job.add(format!("node{rest}"), description),
            // The flow's name is the node's.
            None if field == "flow.name" => {}
            None => of_job.add(field, description),
        }
    }
    of_job
}

/// Waits up to `wait` for the end of a job that was submitted as a flow, then returns its state.
///
/// Cancel safe: nothing is changed.
///
/// # Errors
/// As storage's.
pub async fn outcome(mut reader: FlowReader, wait: Duration) -> Result<RunJobResponse, Status> {
    // The job is submitted and runs even while storage is away, so the reader waits for storage.
    reader.is_patient = true;
    if !wait.is_zero() {
        // On a timeout the response shows the job's present state.
        if let Ok(waited) = tokio::time::timeout(wait, wait_for_end(&mut reader)).await {
            waited?;
        }
    }
    let flow = reader.flow().await?;
    let FlowNodePage { nodes, home, .. } = reader.all_nodes().await?;
    // The only node depends on nothing, so there are no names to look up.
    let node = nodes.first().map(|node| convert::node::to_wire(node, home, Vec::new()));
    Ok(RunJobResponse { flow: Some(flow), node })
}

async fn wait_for_end(reader: &mut FlowReader) -> Result<(), Status> {
    let mut events = reader.events(String::new()).await?;
    if is_end(&reader.flow().await?) {
        return Ok(());
    }
    loop {
        if let Some(ContextEvent::Flow(FlowEvent { status, .. })) = events.next().await?.0
            && status.is_none_or(FlowStatus::is_end)
        {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::v1::NodeSpec;

    use super::*;

    #[test]
    fn a_job_is_a_flow_of_one_node() {
        let request = RunJobRequest { context_id: 3, node: Some(NodeSpec::default()), ..Default::default() };
        let (request, violations) = submission(request);
        let flow = request.flow.expect("there is one");
        assert!(violations.is_empty(), "{violations}");
        assert_eq!((flow.name.as_str(), flow.nodes[0].name.as_str()), ("job", "job"));
        let node = NodeSpec { depends: vec!["a".into()], ..Default::default() };
        let bad = RunJobRequest { node: Some(node), wait_secs: 3601, ..Default::default() };
        let (_, mut violations) = submission(bad);
        violations.add("flow.name", "the node's");
        violations.add("flow.nodes[0].job.script", "a job needs a script");
        let violations = as_of_job(&violations);
        let fields: Vec<_> = violations.as_slice().iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["context_id", "node.depends", "wait_secs", "node.job.script"]);
    }
}
