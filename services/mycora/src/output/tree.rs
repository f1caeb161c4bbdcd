//! The nodes of a flow as lines: a tree when it fits, else what matters now.

use std::collections::BTreeMap;
use std::time::Instant;

use proto::v1::NodeState;

use super::progress::{FlowProgress, NodeProgress};
use super::terminal::drawable;
use super::time;

/// One line of the picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeLine {
    /// Branches of the tree.
    pub indent: String,
    /// Where the node stands; absent in lines about several nodes.
    pub state: Option<NodeState>,
    /// The rest.
    pub text: String,
}

/// At most `height` lines of at most `width` characters.
#[must_use]
pub fn lines(view: &FlowProgress, now: Instant, height: usize, width: usize) -> Vec<TreeLine> {
    let nodes = view.nodes();
    let mut lines = if nodes.len() <= height { branches(nodes) } else { most_important(nodes, height) };
    let name_width = lines
        .iter()
        .map(|(indent, node)| indent.chars().count() + node.name.chars().count())
        .max()
        .unwrap_or_default()
        .min(width / 2);
    let hidden = nodes.len() - lines.len();
    let mut picture: Vec<TreeLine> = lines
        .drain(..)
        .map(|(indent, node)| {
            let used = indent.chars().count();
            let padding = name_width.saturating_sub(used);
            let text = format!("{:padding$}  {}", node.name, description(node, now, view.context()));
            // The symbol and a space stand between indent and text.
            let text = cut(&drawable(&text), width.saturating_sub(used + 2));
            TreeLine { indent, state: Some(node.state), text }
        })
        .collect();
    if hidden > 0 {
        picture.push(TreeLine { indent: String::new(), state: None, text: format!("… and {hidden} more") });
    }
    picture
}

fn description(node: &NodeProgress, now: Instant, context: u32) -> String {
    if let Some(explanation) = node.explanation(now, context) {
        return explanation;
    }
    match node.state {
        NodeState::Running => {
            format!("{} for {}", node.description(), time::duration(now.duration_since(node.since)))
        }
        _ => node.description(),
    }
}

/// Each node below the last of those that it depends on.
fn branches(nodes: &BTreeMap<u32, NodeProgress>) -> Vec<(String, &NodeProgress)> {
    let mut children: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
    for (job_id, node) in nodes {
        let parent = node.depends.iter().filter(|id| nodes.contains_key(id)).max().copied();
        children.entry(parent).or_default().push(*job_id);
    }
    let roots = children.get(&None).cloned().unwrap_or_default();
    let mut lines = Vec::with_capacity(nodes.len());
    // Depth first with a stack: the last one pushed comes next.
    let mut stack: Vec<(u32, String, String)> =
        roots.into_iter().rev().map(|root| (root, String::new(), String::new())).collect();
    while let Some((job_id, indent, below)) = stack.pop() {
        let Some(node) = nodes.get(&job_id) else { continue };
        lines.push((indent, node));
        let children = children.get(&Some(job_id)).map(Vec::as_slice).unwrap_or_default();
        for (i, child) in children.iter().enumerate().rev() {
            let (branch, trunk) =
                if i + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            stack.push((*child, format!("{below}{branch}"), format!("{below}{trunk}")));
        }
    }
    lines
}

/// Chooses the nodes to show: what runs, then what failed, then what comes next; one line is kept free for the rest.
fn most_important(nodes: &BTreeMap<u32, NodeProgress>, height: usize) -> Vec<(String, &NodeProgress)> {
    let room = height.saturating_sub(1);
    let order = [
        NodeState::Running,
        NodeState::Failed,
        NodeState::Dispatched,
        NodeState::Ready,
        NodeState::Pending,
        NodeState::Cancelled,
        NodeState::Completed,
        NodeState::Skipped,
    ];
    let in_order = order.iter().flat_map(|state| nodes.values().filter(move |node| node.state == *state));
    in_order.take(room).map(|node| (String::new(), node)).collect()
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1;
    use proto::v1::watch_flow_response::Event;

    fn view(nodes: &[(&str, &[u32], NodeState)]) -> FlowProgress {
        let mut view = FlowProgress::default();
        for (job_id, (name, depends, state)) in (1..).zip(nodes) {
            let node = v1::FlowNode {
                job_id,
                name: (*name).into(),
                depends: depends.to_vec(),
                state: (*state).into(),
                attempt: 1,
                ..Default::default()
            };
            view.apply(Instant::now(), Event::Node(node));
        }
        view
    }

    #[test]
    fn a_small_flow_is_a_tree() {
        let view = view(&[
            ("split", &[], NodeState::Completed),
            ("a", &[1], NodeState::Completed),
            ("b", &[1], NodeState::Completed),
            ("join", &[2, 3], NodeState::Pending),
        ]);
        let lines = lines(&view, Instant::now(), 10, 80);
        let picture: Vec<_> = lines.iter().map(|line| format!("{}{}", line.indent, line.text)).collect();
        assert_eq!(
            picture,
            [
                "split        completed",
                "├─ a         completed",
                "└─ b         completed",
                "   └─ join   pending"
            ]
            .map(|line| line.replace("   c", "  c").replace("   p", "  p")),
            "{picture:#?}"
        );
    }

    #[test]
    fn a_large_flow_shows_what_matters() {
        let mut nodes: Vec<(&str, &[u32], NodeState)> = vec![("done", &[], NodeState::Completed); 50];
        nodes.push(("runs", &[], NodeState::Running));
        nodes.push(("failed", &[], NodeState::Failed));
        let lines = lines(&view(&nodes), Instant::now(), 5, 80);
        let states: Vec<_> = lines.iter().map(|line| line.state).collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(states[..2], [Some(NodeState::Running), Some(NodeState::Failed)]);
        assert_eq!(lines[4].text, "… and 48 more");
    }

    #[test]
    fn lines_fit_the_terminal() {
        let name = "x".repeat(100);
        let lines = lines(&view(&[(&name, &[], NodeState::Running)]), Instant::now(), 5, 40);
        assert!(lines[0].indent.chars().count() + 2 + lines[0].text.chars().count() <= 40, "{lines:?}");
    }
}
