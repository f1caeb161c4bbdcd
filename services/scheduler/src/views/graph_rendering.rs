//! A flow as a picture: DOT, Mermaid or JSON, with the states of its nodes.

use std::fmt::Write as _;

use model::limits::GRAPH_BYTES_MAX;
use model::{FlowNode, NodeState};
use proto::v1::GraphFormat;
use serde::Serialize;

/// The drawing is larger than [`GRAPH_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawingTooLarge {
    /// How many bytes it has.
    pub bytes: usize,
}

impl DrawingTooLarge {
    /// Makes the error for the drawing of so many nodes.
    #[must_use]
    pub fn of(self, nodes: usize) -> rpc::Error {
        let (max, bytes) = (GRAPH_BYTES_MAX, self.bytes);
        let message = format!(
            "the drawing of {nodes} nodes has {bytes} bytes, at most {max} are sent; read the nodes with ListFlowNodes"
        );
        rpc::Error::new(rpc::ErrorKind::ResourceExhausted, rpc::RpcReason::LimitExceeded, message)
            .with("limit", "bytes of a drawing")
            .with("max", max)
            .with("asked", bytes)
    }
}

/// Draws the flow of this name.
///
/// # Errors
/// [`DrawingTooLarge`].
pub fn draw(flow: &str, nodes: &[FlowNode], format: GraphFormat) -> Result<String, DrawingTooLarge> {
    let text = match format {
        GraphFormat::Unspecified | GraphFormat::Dot => dot(flow, nodes),
        GraphFormat::Mermaid => mermaid(nodes),
        GraphFormat::Json => json(flow, nodes),
    };
    if text.len() > GRAPH_BYTES_MAX { Err(DrawingTooLarge { bytes: text.len() }) } else { Ok(text) }
}

/// Renders a flow as DOT. Names consist of `[A-Za-z0-9_-]`, so nothing here needs escaping.
fn dot(flow: &str, nodes: &[FlowNode]) -> String {
    let mut text = format!("digraph \"{flow}\" {{\n  rankdir=LR;\n  node [shape=box, style=filled];\n");
    for node in nodes {
        // Writing to a text cannot fail.
        let _ = writeln!(
            text,
            "  j{} [label=\"{}\\n{}\", fillcolor=\"{}\"];",
            node.job_id,
            node.name,
            node.state,
            color(node.state)
        );
    }
    for node in nodes {
        for before in &node.depends {
            let _ = writeln!(text, "  j{before} -> j{};", node.job_id);
        }
    }
    text.push_str("}\n");
    text
}

fn mermaid(nodes: &[FlowNode]) -> String {
    let mut text = String::from("flowchart LR\n");
    for node in nodes {
        let _ = writeln!(text, "  j{}[\"{}<br/>{}\"]:::{}", node.job_id, node.name, node.state, node.state);
    }
    for node in nodes {
        for before in &node.depends {
            let _ = writeln!(text, "  j{before} --> j{}", node.job_id);
        }
    }
    for state in NodeState::ALL {
        let _ = writeln!(text, "  classDef {state} fill:{}", color(state));
    }
    text
}

#[derive(Serialize)]
struct FlowGraphJson<'a> {
    flow: &'a str,
    nodes: Vec<FlowGraphNode<'a>>,
    edges: Vec<FlowGraphEdge<'a>>,
}

#[derive(Serialize)]
struct FlowGraphNode<'a> {
    job_id: u32,
    name: &'a str,
    state: &'a str,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct FlowGraphEdge<'a> {
    from: &'a str,
    to: &'a str,
}

fn json(flow: &str, nodes: &[FlowNode]) -> String {
    let names: std::collections::HashMap<_, &str> =
        nodes.iter().map(|node| (node.job_id, node.name.as_str())).collect();
    let drawn = FlowGraphJson {
        flow,
        nodes: nodes
            .iter()
            .map(|node| FlowGraphNode {
                job_id: node.job_id.0,
                name: node.name.as_str(),
                state: node.state.as_str(),
                attempt: node.attempt.0,
                reason: node.reason.as_ref().map(ToString::to_string),
            })
            .collect(),
        edges: nodes
            .iter()
            .flat_map(|node| node.depends.iter().map(move |before| (before, node)))
            .filter_map(|(before, node)| {
                Some(FlowGraphEdge { from: names.get(before)?, to: node.name.as_str() })
            })
            .collect(),
    };
    serde_json::to_string(&drawn).expect("names and numbers are JSON")
}

const fn color(state: NodeState) -> &'static str {
    match state {
        NodeState::Pending => "#eeeeee",
        NodeState::Ready => "#fff2cc",
        NodeState::Dispatched => "#dae8fc",
        NodeState::Running => "#9fc5f8",
        NodeState::Completed => "#b6d7a8",
        NodeState::Failed => "#ea9999",
        NodeState::Cancelled => "#d9d2e9",
        NodeState::Skipped => "#cccccc",
    }
}

#[cfg(test)]
mod tests {
    use model::{JobId, JobSpec, NodeSpec, ScriptType};

    use super::*;

    fn node(id: u32, name: &str, depends: &[u32]) -> FlowNode {
        let job = JobSpec::inline(ScriptType::Shell, "true");
        let spec = NodeSpec::new(name.parse().expect("a name"), job);
        FlowNode::new(JobId(id), &spec, depends.iter().copied().map(JobId).collect())
    }

    #[test]
    fn every_format_has_nodes_states_and_edges() {
        let mut nodes = [node(7, "a", &[]), node(8, "count-a", &[7])];
        nodes[0].state = NodeState::Completed;
        let dot = draw("demo", &nodes, GraphFormat::Unspecified).expect("small");
        assert!(dot.contains("j7 [label=\"a\\ncompleted\"") && dot.contains("j7 -> j8;"), "{dot}");
        let mermaid = draw("demo", &nodes, GraphFormat::Mermaid).expect("small");
        assert!(mermaid.contains("j8[\"count-a<br/>pending\"]:::pending"), "{mermaid}");
        assert!(mermaid.contains("j7 --> j8"), "{mermaid}");
        let json = draw("demo", &nodes, GraphFormat::Json).expect("small");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["nodes"][0]["state"], "completed");
        assert_eq!(json["edges"][0], serde_json::json!({"from": "a", "to": "count-a"}));
    }

    #[test]
    fn a_drawing_has_a_limit() {
        let many: Vec<FlowNode> = (0..60_000).map(|id| node(id, "a-name-of-some-length", &[])).collect();
        let too_large = draw("demo", &many, GraphFormat::Dot).expect_err("it is too large");
        assert!(too_large.bytes > GRAPH_BYTES_MAX, "{too_large:?}");
        let view = rpc::ErrorView::from(&tonic::Status::from(too_large.of(many.len())));
        assert_eq!(view.reason, "LIMIT_EXCEEDED");
        assert_eq!(view.metadata.get("asked"), Some(&too_large.bytes.to_string()));
    }
}
