//! Drawings of sagas: as text, for Graphviz, for Mermaid.
//!
//! Names are of `[A-Za-z0-9-]`; types of events and conditions are arbitrary text of the manifest.

use std::fmt::Write as _;

use proto::v1;

use super::{instance, work};
use crate::output::table;

/// Steps and their ways on, as text.
#[must_use]
pub fn text(graph: &v1::GetSagaGraphResponse) -> String {
    let definition = graph.definition.clone().unwrap_or_default();
    let mut text = format!("{}, version {}\n", definition.saga, definition.version);
    if let Some(saga) = &graph.saga {
        text.push_str(&instance::line(saga));
    }
    for node in &graph.nodes {
        let marks: String = marks(node).into_iter().map(|mark| format!(" [{mark}]")).collect();
        // Writing to a text cannot fail.
        let _ = write!(text, "\n{}{marks}\n", table::shown_whole(&node.name));
        for line in orders(node) {
            let _ = writeln!(text, "  {}", table::shown_whole(&line));
        }
        for edge in graph.edges.iter().filter(|edge| edge.from_node == node.name) {
            let way = table::shown_whole(&label(edge));
            let _ = writeln!(text, "  {way} → {}", table::shown_whole(&edge.to_node));
        }
    }
    text
}

/// Returns the marks of a node: current, visited, pivot or to undo.
fn marks(node: &v1::SagaGraphNode) -> Vec<&'static str> {
    let marks = [
        (node.current, "here"),
        (node.visited && !node.current, "visited"),
        (node.pivot, "pivot"),
        (node.to_undo, "to undo"),
    ];
    marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark).collect()
}

/// Lists what is ordered at a node, how much of it has to succeed, and the timers that are set there.
fn orders(node: &v1::SagaGraphNode) -> Vec<String> {
    let mut lines: Vec<_> = node
        .orders
        .iter()
        .map(|order| {
            let v1::SagaGraphOrder { branch, effect, aggregate_type, command_type, compensation } = order;
            let what = work(effect, aggregate_type, command_type);
            let undone =
                if compensation.is_empty() { String::new() } else { format!(", undone by {compensation}") };
            let branch =
                if node.orders.len() > 1 && *branch != what { format!("{branch}: ") } else { String::new() };
            format!("orders {branch}{what}{undone}")
        })
        .collect();
    if node.orders.len() > 1 {
        lines.push(format!("needs {} of {}", node.needed_count, node.orders.len()));
    }
    lines.extend(node.timers.iter().map(|timer| format!("timer {timer}")));
    lines
}

/// Returns the label of an edge: when it is taken.
fn label(edge: &v1::SagaGraphEdge) -> String {
    let what = match (edge.kind(), edge.event_type.as_str()) {
        (v1::SagaEdgeKind::Success, _) => "success".to_owned(),
        (v1::SagaEdgeKind::Failure, _) => "failure".to_owned(),
        (v1::SagaEdgeKind::Start, "") => "start".to_owned(),
        (v1::SagaEdgeKind::Timer, event) => format!("timer {event}"),
        (_, event) => event.to_owned(),
    };
    if edge.condition.is_empty() { what } else { format!("{what} when {}", edge.condition) }
}

/// For Graphviz.
#[must_use]
pub fn dot(graph: &v1::GetSagaGraphResponse) -> String {
    let name = graph.definition.as_ref().map(|definition| definition.saga.as_str()).unwrap_or_default();
    let mut text = format!("digraph \"{}\" {{\n  rankdir=LR;\n  node [style=filled];\n", dotted(name));
    for (i, node) in graph.nodes.iter().enumerate() {
        let lines = [vec![titled(node)], orders(node)].concat();
        let label = lines.iter().map(|line| dotted(line)).collect::<Vec<_>>().join("\\n");
        let (shape, color) = (shape(node.kind()), color(node));
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  n{i} [label=\"{label}\", shape={shape}, fillcolor=\"{color}\"];");
    }
    for edge in &graph.edges {
        if let (Some(from), Some(to)) = (index(graph, &edge.from_node), index(graph, &edge.to_node)) {
            let _ = writeln!(text, "  n{from} -> n{to} [label=\"{}\"];", dotted(&label(edge)));
        }
    }
    text.push_str("}\n");
    text
}

/// For Mermaid.
#[must_use]
pub fn mermaid(graph: &v1::GetSagaGraphResponse) -> String {
    let mut text = String::from("flowchart LR\n");
    for (i, node) in graph.nodes.iter().enumerate() {
        let lines = [vec![titled(node)], orders(node)].concat();
        let label = lines.iter().map(|line| entities(line)).collect::<Vec<_>>().join("<br/>");
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  n{i}[\"{label}\"]\n  style n{i} fill:{}", color(node));
    }
    for edge in &graph.edges {
        if let (Some(from), Some(to)) = (index(graph, &edge.from_node), index(graph, &edge.to_node)) {
            let _ = writeln!(text, "  n{from} -->|\"{}\"| n{to}", entities(&label(edge)));
        }
    }
    text
}

fn titled(node: &v1::SagaGraphNode) -> String {
    let marks: String = marks(node).into_iter().map(|mark| format!(" [{mark}]")).collect();
    format!("{}{marks}", node.name)
}

fn index(graph: &v1::GetSagaGraphResponse, name: &str) -> Option<usize> {
    graph.nodes.iter().position(|node| node.name == name)
}

/// A text within quotes of Graphviz.
fn dotted(text: &str) -> String {
    table::shown_whole(text).replace('\\', "\\\\").replace('"', "\\\"")
}

/// A text within quotes of Mermaid: what could mean something there by its number.
fn entities(text: &str) -> String {
    let mut safe = String::new();
    for c in table::shown_whole(text).chars() {
        if c.is_alphanumeric() || " -_.,/()=:→".contains(c) {
            safe.push(c);
        } else {
            // Writing to a text cannot fail.
            let _ = write!(safe, "#{};", u32::from(c));
        }
    }
    safe
}

const fn shape(kind: v1::SagaNodeKind) -> &'static str {
    match kind {
        v1::SagaNodeKind::Unspecified | v1::SagaNodeKind::Work => "box",
        v1::SagaNodeKind::Start => "circle",
        v1::SagaNodeKind::Parallel => "box3d",
        v1::SagaNodeKind::Wait => "ellipse",
        v1::SagaNodeKind::Completed | v1::SagaNodeKind::Failed | v1::SagaNodeKind::Compensated => {
            "doublecircle"
        }
        v1::SagaNodeKind::DeadLetter => "note",
    }
}

const fn color(node: &v1::SagaGraphNode) -> &'static str {
    match (node.current, node.visited) {
        (true, _) => "#9fc5f8",
        (false, true) => "#b6d7a8",
        (false, false) => "#eeeeee",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> v1::GetSagaGraphResponse {
        let mut start = v1::SagaGraphNode { name: ":start".into(), visited: true, ..Default::default() };
        start.set_kind(v1::SagaNodeKind::Start);
        let order = |branch: &str, effect: &str, compensation: &str| v1::SagaGraphOrder {
            branch: branch.into(),
            effect: effect.into(),
            compensation: compensation.into(),
            ..Default::default()
        };
        let mut reserve = v1::SagaGraphNode {
            name: "reserve".into(),
            current: true,
            visited: true,
            to_undo: true,
            orders: vec![order("reserve", "payment-reserve", "payment-release")],
            needed_count: 1,
            ..Default::default()
        };
        reserve.set_kind(v1::SagaNodeKind::Work);
        let mut both = v1::SagaGraphNode {
            name: "both".into(),
            orders: vec![order("a", "mail", ""), order("mail", "mail", "")],
            needed_count: 2,
            timers: vec!["late".into()],
            ..Default::default()
        };
        both.set_kind(v1::SagaNodeKind::Parallel);
        let edge =
            |from: &str, to: &str, kind: v1::SagaEdgeKind, event: &str, condition: &str| v1::SagaGraphEdge {
                from_node: from.into(),
                to_node: to.into(),
                kind: kind.into(),
                event_type: event.into(),
                condition: condition.into(),
            };
        v1::GetSagaGraphResponse {
            definition: Some(v1::SagaDefinition { saga: "order".into(), version: 3, ..Default::default() }),
            nodes: vec![start, reserve, both],
            edges: vec![
                edge(":start", "reserve", v1::SagaEdgeKind::Start, "OrderPlaced", ""),
                edge("reserve", "both", v1::SagaEdgeKind::Failure, "", "result.code == \"de\\clined\"\n"),
            ],
            ..Default::default()
        }
    }

    #[test]
    fn a_saga_graph_is_printed_step_by_step() {
        let expected = "\
order, version 3

:start [visited]
  OrderPlaced → reserve

reserve [here] [to undo]
  orders payment-reserve, undone by payment-release
  failure when result.code == \"de\\clined\"\\n → both

both
  orders a: mail
  orders mail
  needs 2 of 2
  timer late
";
        assert_eq!(text(&graph()), expected);
    }

    #[test]
    fn conditions_cannot_leave_their_quotes() {
        let dot = dot(&graph());
        assert!(dot.contains("n0 -> n1 [label=\"OrderPlaced\"];"), "{dot}");
        assert!(
            dot.contains(r#"n1 -> n2 [label="failure when result.code == \"de\\clined\"\\n"];"#),
            "{dot}"
        );
        assert!(dot.contains("n1 [label=\"reserve [here] [to undo]\\norders payment-reserve"), "{dot}");
        let mermaid = mermaid(&graph());
        assert!(
            mermaid.contains("n1 -->|\"failure when result.code == #34;de#92;clined#34;#92;n\"| n2"),
            "{mermaid}"
        );
        assert!(
            mermaid
                .contains("n2[\"both<br/>orders a: mail<br/>orders mail<br/>needs 2 of 2<br/>timer late\"]"),
            "{mermaid}"
        );
    }
}
