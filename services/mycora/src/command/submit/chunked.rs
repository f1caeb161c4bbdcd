//! Flows that are too large for one call: created, filled part by part, started. What cannot be
//! completed is removed again.

use flow_file::{FlowFile, node_batches};
use indicatif::{ProgressBar, ProgressStyle};
use proto::convert::flow_spec;
use proto::v1;
use uuid::Uuid;

use super::{located, with_uploads};
use crate::command::CliSession;
use crate::failure::CliError;
use crate::output;

/// Submits a flow in parts; with the same `request_id` this goes on where it was.
///
/// # Errors
/// When the flow is refused, then with the places in its file, or it cannot be completed: then it was
/// removed again, or the failure says what is left of it.
pub(super) async fn submit(
    session: &CliSession,
    context: u32,
    file: &FlowFile,
    flow_id: Option<u32>,
    request_id: Uuid,
) -> Result<v1::Flow, CliError> {
    let request = v1::CreateFlowRequest {
        request_id: request_id.to_string(),
        context_id: context,
        flow_id: flow_id.unwrap_or_default(),
        caller_id: session.actor(),
        flow: Some(flow_spec::header_of(&file.spec)),
        node_count: u32::try_from(file.spec.nodes.len()).unwrap_or(u32::MAX),
    };
    let created = session.clients.create_flow(&request).await.map_err(|error| located(file, 0, error))?;
    let flow = created.flow.unwrap_or_default();
    // An earlier call with this request id may have come further.
    if flow.status() != v1::FlowStatus::Created {
        return Ok(flow);
    }
    let result = tokio::select! {
        result = fill_and_start(session, file, &flow) => result,
        pressed = tokio::signal::ctrl_c() => Err(match pressed {
            Ok(()) => CliError::Interrupted("interrupted before the flow was complete".to_owned()),
            Err(error) => CliError::Failed(format!("cannot wait for signals: {error}")),
        }),
    };
    match result {
        Ok(flow) => Ok(flow),
        Err(failure) => Err(without_the_rest(session, &flow, failure).await),
    }
}

async fn fill_and_start(
    session: &CliSession,
    file: &FlowFile,
    flow: &v1::Flow,
) -> Result<v1::Flow, CliError> {
    let total = file.spec.nodes.len() as u64;
    // Draws nothing where standard error is no terminal.
    let bar = if session.global.quiet { ProgressBar::hidden() } else { ProgressBar::new(total) };
    let style = ProgressStyle::with_template("adding jobs {bar:30} {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let result = async {
        let (context_id, flow_id) = (flow.context_id, flow.id);
        for (first, nodes) in node_batches(&file.spec.nodes) {
            let first_index = u32::try_from(first).unwrap_or(u32::MAX);
            let request = v1::AddFlowNodesRequest {
                context_id,
                flow_id,
                first_index,
                nodes: nodes.to_vec(),
                request_id: Uuid::new_v4().to_string(),
            };
            let added =
                with_uploads(session, context_id, file, async || session.clients.add_nodes(&request).await);
            added.await?.map_err(|error| located(file, first, error))?;
            bar.inc(nodes.len() as u64);
        }
        bar.set_message("starting");
        let request_id = Uuid::new_v4().to_string();
        let request = v1::StartFlowRequest { context_id, flow_id, request_id };
        session.clients.start_flow(request).await.map_err(|error| located(file, 0, error))
    };
    let result = result.await;
    bar.finish_and_clear();
    Ok(result?.flow.unwrap_or_default())
}

/// Removes a flow that cannot be completed, and reports that beside the failure.
async fn without_the_rest(session: &CliSession, flow: &v1::Flow, failure: CliError) -> CliError {
    let v1::Flow { id, context_id, .. } = *flow;
    let request = v1::CancelFlowRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id,
        flow_id: id,
        grace_secs: Some(0),
    };
    if !session.global.quiet {
        output::note(&format!("flow {id} is not complete and is removed again"));
    }
    let removed = async {
        let answer = session.clients.cancel_flow(&request).await?;
        // Its start may have gone through, with an answer that was lost.
        if answer.flow.is_some_and(|flow| flow.status() == v1::FlowStatus::Started) {
            return Ok(false);
        }
        session.clients.delete_flow(context_id, id).await.map(|_| true)
    };
    let rest = match removed.await {
        Ok(true) => format!("flow {id} was not complete and is deleted"),
        Ok(false) => {
            format!(
                "flow {id} had been started and is being cancelled; see `mycora flow watch {id} --context {context_id}`"
            )
        }
        Err(_) => format!(
            "flow {id} is not complete and could not be removed; when the coordinator answers again, do it with \
             `mycora flow cancel {id} --context {context_id}` and `mycora flow delete {id} --context {context_id}`"
        ),
    };
    let with = |text: String| format!("{text}\n{rest}");
    match failure {
        CliError::Failed(text) => CliError::Failed(with(text)),
        CliError::Invalid(text) => CliError::Invalid(with(text)),
        CliError::Unreachable(text) => CliError::Unreachable(with(text)),
        CliError::Interrupted(text) => CliError::Interrupted(with(text)),
        CliError::Closed(text) => CliError::Closed(with(text)),
    }
}
