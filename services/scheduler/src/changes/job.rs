//! One job as a flow of one node, and waiting for its end.

use std::time::Duration;

use model::{Event, FlowEvent, FlowStatus, Violations, limits};
use proto::convert;
use proto::v1::{FlowSpec, RunJobRequest, RunJobResponse, SubmitFlowRequest};
use tonic::Status;

use crate::views::reader::{FlowReader, Page, is_end};

/// The name of a job that has none.
const NAME_DEFAULT: &str = "job";

/// The submission that a job stands for.
///
/// # Errors
/// INVALID_ARGUMENT with everything about the call that is wrong; the job itself is checked as a flow.
pub fn submission(request: RunJobRequest) -> Result<SubmitFlowRequest, rpc::Error> {
    let RunJobRequest { request_id, context_id, caller_id, node, wait_secs } = request;
    let mut violations = Violations::new();
    let mut node = node.unwrap_or_default();
    if !node.depends.is_empty() {
        violations.add("node.depends", "one job depends on nothing; submit a flow");
    }
    if wait_secs > limits::RUN_JOB_WAIT_SECS_MAX {
        let max = limits::RUN_JOB_WAIT_SECS_MAX;
        violations.add("wait_secs", format!("at most {max} seconds are waited, not {wait_secs}"));
    }
    if !violations.is_empty() {
        return Err(rpc::Error::invalid(violations));
    }
    if node.name.is_empty() {
        NAME_DEFAULT.clone_into(&mut node.name);
    }
    let flow = Some(FlowSpec { name: node.name.clone(), nodes: vec![node], ..FlowSpec::default() });
    Ok(SubmitFlowRequest { request_id, context_id, flow_id: 0, caller_id, flow })
}

/// Waits for the end of a job that was submitted as a flow, at most so long, and tells where it stands then.
///
/// Cancel safe: nothing is changed.
///
/// # Errors
/// As storage's.
pub async fn outcome(mut reader: FlowReader, wait: Duration) -> Result<RunJobResponse, Status> {
    if !wait.is_zero() {
        // When the time is over the answer tells where the job stands.
        if let Ok(waited) = tokio::time::timeout(wait, wait_for_end(&mut reader)).await {
            waited?;
        }
    }
    let flow = reader.flow().await?;
    let Page { nodes, home, .. } = reader.all_nodes().await?;
    let node = nodes.first().map(|node| convert::node::to_wire(node, home));
    Ok(RunJobResponse { flow: Some(flow), node })
}

async fn wait_for_end(reader: &mut FlowReader) -> Result<(), Status> {
    let mut events = reader.events(String::new()).await?;
    if is_end(&reader.flow().await?) {
        return Ok(());
    }
    loop {
        if let Some(Event::Flow(FlowEvent { status, .. })) = events.next().await?.0
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
        let flow = submission(request).expect("well-formed").flow.expect("there is one");
        assert_eq!((flow.name.as_str(), flow.nodes[0].name.as_str()), ("job", "job"));
        let node = NodeSpec { depends: vec!["a".into()], ..Default::default() };
        let bad = RunJobRequest { node: Some(node), wait_secs: 3601, ..Default::default() };
        let error = submission(bad).expect_err("two things are wrong");
        assert!(matches!(error.kind(), rpc::ErrorKind::InvalidArgument(v) if v.as_slice().len() == 2));
    }
}
