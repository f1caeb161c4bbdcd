//! Failed jobs of a watched flow, each with the end of its output.

use proto::v1;

use super::CliSession;
use crate::output::{self, OutputFormat, summary};

/// Most jobs shown; the others mostly failed for the same reason, or because of these.
const JOBS_MAX: usize = 3;
/// Lines of what each printed.
const LINES_MAX: usize = 10;

/// Shows people which jobs of an ended flow failed: why, the last lines of their output, and how to read the rest.
/// Unreadable output is left out: the command has done its work by now.
pub(super) async fn print_failed_jobs(session: &CliSession, flow: &v1::Flow) {
    if session.global.output != OutputFormat::Table || flow.status() != v1::FlowStatus::Error {
        return;
    }
    let failed = session.clients.list_nodes(flow.context_id, flow.id, &[v1::NodeState::Failed]).await;
    let failed = failed.unwrap_or_default();
    for node in failed.iter().take(JOBS_MAX) {
        output::note(&format!("\n{}", summary::outcome(node)));
        let printed = read(session, flow, node).await.unwrap_or_default();
        let (lines, all) = last_lines(&printed);
        for line in &lines {
            output::note_bytes(&[b"  | ", *line, b"\n"].concat());
        }
        let whole = if all && lines.is_empty() { "it printed nothing" } else { "all it printed" };
        let (id, context, name) = (flow.id, flow.context_id, &node.name);
        output::note(&format!("  {whole}: mycora flow logs {id} {name} --context {context}"));
    }
    if let Some(more) = failed.len().checked_sub(JOBS_MAX).filter(|more| *more > 0) {
        let (id, context) = (flow.id, flow.context_id);
        output::note(&format!(
            "\n… and {more} more: mycora flow jobs {id} --state failed --context {context}"
        ));
    }
}

/// Reads the part of the last attempt's output that the coordinator keeps.
async fn read(session: &CliSession, flow: &v1::Flow, node: &v1::FlowNode) -> Option<Vec<u8>> {
    let request = v1::StreamFlowLogsRequest {
        context_id: flow.context_id,
        flow_id: flow.id,
        node: node.name.clone(),
        attempt: node.attempt,
        tail: true,
        ..Default::default()
    };
    let mut pieces = session.clients.stream_logs(request).await.ok()?;
    let mut printed = Vec::new();
    while let Some(piece) = pieces.next().await.ok()? {
        printed.extend(piece.data);
    }
    Some(printed)
}

/// The last lines, and whether that is all.
fn last_lines(printed: &[u8]) -> (Vec<&[u8]>, bool) {
    let whole = printed.strip_suffix(b"\n").unwrap_or(printed);
    if whole.is_empty() {
        return (Vec::new(), true);
    }
    let lines: Vec<&[u8]> = whole.split(|byte| *byte == b'\n').collect();
    let first = lines.len().saturating_sub(LINES_MAX);
    (lines[first..].to_vec(), first == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_what_is_shown() {
        assert_eq!(last_lines(b""), (vec![], true));
        assert_eq!(last_lines(b"a\n\nb\n"), (vec![&b"a"[..], b"", b"b"], true));
        let many: String = (0..30).map(|n| format!("{n}\n")).collect();
        let (lines, all) = last_lines(many.as_bytes());
        assert_eq!((lines.len(), lines[0], lines[9], all), (10, &b"20"[..], &b"29"[..], false));
    }
}
