//! The graph of a flow: which node waits for which, checked as a whole.

use std::collections::HashMap;

use model::limits::{FLOW_EDGES_MAX, FLOW_NODES_MAX};
use model::{FlowNode, Name, Violations};
use petgraph::Direction;
use petgraph::graph::DiGraph;

/// A node's place in the graph: its position in the list that the graph was built from.
pub use petgraph::graph::NodeIndex;

/// Maximum number of listed violations; a request with more gets one line that says so.
pub const VIOLATIONS_MAX: usize = 100;
/// Maximum number of cycles searched for in one graph.
const CYCLES_MAX: usize = 10;
/// Maximum number of named members of one cycle.
const CYCLE_NAMES_MAX: usize = 50;
/// Maximum number of unknown names for which a similar one is searched: each search compares with every name.
const HINTS_MAX: usize = 8;
/// A name that differs in more places than this is not near.
const HINT_DISTANCE_MAX: usize = 2;

/// Notes a violation unless there are too many already.
pub(crate) fn note(violations: &mut Violations, field: String, description: impl std::fmt::Display) {
    match violations.as_slice().len() {
        count if count < VIOLATIONS_MAX => violations.add(field, description),
        VIOLATIONS_MAX => violations.add("nodes", "more is wrong than is listed here"),
        _ => {}
    }
}

/// One node as a graph is built from it: by names, as people write it.
#[derive(Debug, Clone, Copy)]
pub struct GraphNode<'a> {
    /// The name, unique in the flow.
    pub name: &'a Name,
    /// The names of the nodes that must end before it.
    pub depends: &'a [Name],
}

/// A checked, acyclic graph. Edges lead from what comes first to what waits for it.
#[derive(Debug, Clone)]
pub struct Graph {
    edges: DiGraph<(), ()>,
    order: Vec<NodeIndex>,
    rank: Vec<u32>,
}

impl Graph {
    /// Builds the graph of `nodes`.
    ///
    /// # Errors
    /// Everything that is wrong with it: limits, duplicate names, unknown,
    /// repeated or own dependencies, cycles. Fields are named as in
    /// `nodes[3].depends[0]`.
    pub fn build(nodes: &[GraphNode<'_>]) -> Result<Self, Violations> {
        let mut violations = Violations::new();
        let named = nodes.iter().map(|node| (Some(node.name), node.depends.iter().map(Some)));
        let graph = Self::from_names(named.collect(), &mut violations);
        violations.into_result(graph)
    }

    /// Builds the graph of stored nodes, whose dependencies are job ids.
    ///
    /// # Errors
    /// As [`Graph::build`].
    pub fn from_stored(nodes: &[&FlowNode]) -> Result<Self, Violations> {
        let mut violations = Violations::new();
        let graph = Self::from_ids(nodes, &mut violations);
        violations.into_result(graph)
    }

    /// Builds a graph like [`Graph::build`], adding to `violations`: nodes are pairs of a name and names of others, each absent
    /// where it could not be read. `None` when the graph cannot be used, though it may also be there with violations.
    pub(crate) fn from_names<'a, D>(
        nodes: Vec<(Option<&'a Name>, D)>,
        violations: &mut Violations,
    ) -> Option<Self>
    where
        D: ExactSizeIterator<Item = Option<&'a Name>>,
    {
        let names: Vec<Option<&Name>> = nodes.iter().map(|(name, _)| *name).collect();
        let edge_count = nodes.iter().map(|(_, depends)| depends.len()).sum();
        let mut builder = FlowGraphBuilder::new(&names, edge_count, violations)?;
        let index = name_index(&names, violations);
        let mut hints = 0;
        for (i, (name, depends)) in nodes.into_iter().enumerate() {
            for (j, wanted) in depends.enumerate() {
                let Some(wanted) = wanted else { continue };
                match index.get(wanted.as_str()) {
                    Some(&found) => builder.edge(i, j, found, violations),
                    None => {
                        let hint = did_you_mean(wanted.as_str(), &names, &mut hints);
                        note(
                            violations,
                            format!("nodes[{i}].depends[{j}]"),
                            format_args!(
                                "{} depends on `{wanted}`, which is not in the flow{hint}",
                                NodeLabel(name)
                            ),
                        );
                    }
                }
            }
        }
        builder.finish(violations)
    }

    /// Builds a graph like [`Graph::from_stored`], adding to `violations`.
    pub(crate) fn from_ids(nodes: &[&FlowNode], violations: &mut Violations) -> Option<Self> {
        let names: Vec<Option<&Name>> = nodes.iter().map(|node| Some(&node.name)).collect();
        let mut builder =
            FlowGraphBuilder::new(&names, nodes.iter().map(|node| node.depends.len()).sum(), violations)?;
        name_index(&names, violations);
        let mut index = HashMap::with_capacity(nodes.len());
        for (i, node) in nodes.iter().enumerate() {
            if let Some(first) = index.insert(node.job_id, i) {
                note(
                    violations,
                    format!("nodes[{i}].job_id"),
                    format_args!("job {} is also that of nodes[{first}]", node.job_id),
                );
            }
        }
        for (i, node) in nodes.iter().enumerate() {
            for (j, wanted) in node.depends.iter().enumerate() {
                match index.get(wanted) {
                    Some(&found) => builder.edge(i, j, found, violations),
                    None => note(
                        violations,
                        format!("nodes[{i}].depends[{j}]"),
                        format_args!("`{}` depends on job {wanted}, which is not in the flow", node.name),
                    ),
                }
            }
        }
        builder.finish(violations)
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true if there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many edges there are.
    #[must_use]
    pub fn edge_count(&self) -> usize {
        self.edges.edge_count()
    }

    /// The nodes that must end before `node`, as it names them.
    pub fn dependencies(&self, node: NodeIndex) -> impl Iterator<Item = NodeIndex> + '_ {
        self.edges.neighbors_directed(node, Direction::Incoming)
    }

    /// The nodes that wait for `node`, in the order of the flow.
    pub fn dependants(&self, node: NodeIndex) -> impl Iterator<Item = NodeIndex> + '_ {
        self.edges.neighbors_directed(node, Direction::Outgoing)
    }

    /// Returns true if nothing waits for `node`, so that its result is part of the flow's.
    #[must_use]
    pub fn is_sink(&self, node: NodeIndex) -> bool {
        self.dependants(node).next().is_none()
    }

    /// All nodes, each after everything that it depends on.
    #[must_use]
    pub fn order(&self) -> &[NodeIndex] {
        &self.order
    }

    /// Where `node` stands in [`Graph::order`].
    #[must_use]
    pub fn rank(&self, node: NodeIndex) -> usize {
        self.rank[node.index()] as usize
    }
}

/// A node in a sentence: by its name, when that could be read.
pub(crate) struct NodeLabel<'a>(pub(crate) Option<&'a Name>);

impl std::fmt::Display for NodeLabel<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(name) => write!(f, "`{name}`"),
            None => f.write_str("this node"),
        }
    }
}

/// Where each name stands; of a duplicate, the first.
pub(crate) fn name_index<'a>(
    names: &[Option<&'a Name>],
    violations: &mut Violations,
) -> HashMap<&'a str, usize> {
    let mut index = HashMap::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        let Some(name) = name else { continue };
        let first = *index.entry(name.as_str()).or_insert(i);
        if first != i {
            note(
                violations,
                format!("nodes[{i}].name"),
                format_args!("`{name}` is also the name of nodes[{first}]"),
            );
        }
    }
    index
}

/// Collects edges, then orders them or finds the cycles.
struct FlowGraphBuilder<'a> {
    names: &'a [Option<&'a Name>],
    edges: Vec<(NodeIndex, NodeIndex)>,
    /// For each node, 1 + the last node that named it as a dependency.
    named_by: Vec<usize>,
}

impl<'a> FlowGraphBuilder<'a> {
    fn new(names: &'a [Option<&'a Name>], edge_count: usize, violations: &mut Violations) -> Option<Self> {
        let mut within = true;
        for (what, count, limit) in
            [("nodes", names.len(), FLOW_NODES_MAX), ("dependencies", edge_count, FLOW_EDGES_MAX)]
        {
            if count > limit {
                within = false;
                note(
                    violations,
                    "nodes".to_owned(),
                    format_args!("a flow has at most {limit} {what}, this one has {count}"),
                );
            }
        }
        if names.is_empty() {
            note(violations, "nodes".to_owned(), "a flow has at least one node");
        }
        within.then(|| Self { names, edges: Vec::with_capacity(edge_count), named_by: vec![0; names.len()] })
    }

    /// Notes that node `from`'s dependency number `at` is node `on`.
    fn edge(&mut self, from: usize, at: usize, on: usize, violations: &mut Violations) {
        let name = NodeLabel(self.names[on]);
        if from == on {
            note(
                violations,
                format!("nodes[{from}].depends[{at}]"),
                format_args!("{name} depends on itself"),
            );
        } else if self.named_by[on] == from + 1 {
            note(violations, format!("nodes[{from}].depends[{at}]"), format_args!("{name} is named twice"));
        } else {
            self.named_by[on] = from + 1;
            self.edges.push((NodeIndex::new(on), NodeIndex::new(from)));
        }
    }

    /// Makes the graph, with all neighbours in the order of the nodes: petgraph gives the edge that was added last first.
    fn graph(&self) -> DiGraph<(), ()> {
        let mut graph = DiGraph::with_capacity(self.names.len(), self.edges.len());
        for _ in self.names {
            graph.add_node(());
        }
        graph.extend_with_edges(self.edges.iter().rev());
        graph
    }

    /// Orders the nodes. The nodes that are left when none is free contain the cycles; one cycle is reported and removed at
    /// a time, to find the next.
    fn finish(self, violations: &mut Violations) -> Option<Graph> {
        let count = self.names.len();
        let edges = self.graph();
        let mut waits_for: Vec<usize> = edges
            .node_indices()
            .map(|node| edges.neighbors_directed(node, Direction::Incoming).count())
            .collect();
        let mut done = vec![false; count];
        let mut order: Vec<NodeIndex> =
            edges.node_indices().filter(|node| waits_for[node.index()] == 0).collect();
        let mut next = 0;
        let mut cycles = 0;
        loop {
            while let Some(&node) = order.get(next) {
                next += 1;
                done[node.index()] = true;
                for after in edges.neighbors_directed(node, Direction::Outgoing) {
                    waits_for[after.index()] = waits_for[after.index()].saturating_sub(1);
                    if waits_for[after.index()] == 0 && !done[after.index()] {
                        order.push(after);
                    }
                }
            }
            if next >= count || cycles == CYCLES_MAX {
                break;
            }
            let Some(cycle) = cycle_among(&edges, &done) else { break };
            cycles += 1;
            self.note_cycle(&cycle, violations);
            for &member in &cycle {
                waits_for[member.index()] = 0;
                done[member.index()] = true;
            }
            order.extend(cycle);
        }
        if cycles > 0 {
            return None;
        }
        let mut rank = vec![0; count];
        for (position, node) in (0_u32..).zip(&order) {
            rank[node.index()] = position;
        }
        Some(Graph { edges, order, rank })
    }

    fn note_cycle(&self, cycle: &[NodeIndex], violations: &mut Violations) {
        // Each is depended on by another, so it has a name.
        let name = |member: &NodeIndex| self.names[member.index()].map_or("", Name::as_str);
        let mut names: Vec<&str> = cycle.iter().take(CYCLE_NAMES_MAX).map(name).collect();
        if cycle.len() > CYCLE_NAMES_MAX {
            names.push("…");
        }
        names.push(name(&cycle[0]));
        note(
            violations,
            format!("nodes[{}].depends", cycle[0].index()),
            format_args!("the dependencies form a cycle, each waits for the next: {}", names.join(" -> ")),
        );
    }
}

/// A cycle among the nodes that are not done, each depending on the next.
fn cycle_among(edges: &DiGraph<(), ()>, done: &[bool]) -> Option<Vec<NodeIndex>> {
    let mut node = edges.node_indices().find(|node| !done[node.index()])?;
    let mut position = HashMap::new();
    let mut path = Vec::new();
    while !position.contains_key(&node) {
        position.insert(node, path.len());
        path.push(node);
        // A node that is not done waits for one that is not done.
        node = edges.neighbors_directed(node, Direction::Incoming).filter(|n| !done[n.index()]).min()?;
    }
    let mut cycle = path.split_off(position[&node]);
    let first = (0..cycle.len()).min_by_key(|&i| cycle[i])?;
    cycle.rotate_left(first);
    Some(cycle)
}

/// `; did you mean …?` when one of `names` is near, else nothing.
pub(crate) fn did_you_mean(wanted: &str, names: &[Option<&Name>], hints: &mut usize) -> String {
    if *hints == HINTS_MAX {
        return String::new();
    }
    *hints += 1;
    suggestion(wanted, names.iter().flatten().map(|name| name.as_str()))
}

/// `; did you mean …?` with the nearest of `names` to one that is none of them; nothing when none is near.
pub fn suggestion<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    let near =
        names.filter_map(|name| distance(wanted, name).map(|far| (far, name))).min_by_key(|(far, _)| *far);
    match near {
        // Of a short name nearly every letter would differ.
        Some((far, name)) if far < name.len() => format!("; did you mean `{name}`?"),
        _ => String::new(),
    }
}

/// How many letters to add, drop or change, upper and lower case being alike;
/// `None` beyond [`HINT_DISTANCE_MAX`].
fn distance(a: &str, b: &str) -> Option<usize> {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len().abs_diff(b.len()) > HINT_DISTANCE_MAX {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(!x.eq_ignore_ascii_case(y));
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
        if row.iter().all(|&far| far > HINT_DISTANCE_MAX) {
            return None;
        }
    }
    row.last().copied().filter(|&far| far <= HINT_DISTANCE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn build(nodes: &[(&str, &[&str])]) -> Result<Graph, Violations> {
        let owned: Vec<(Name, Vec<Name>)> =
            nodes.iter().map(|(n, deps)| (name(n), deps.iter().map(|d| name(d)).collect())).collect();
        let nodes: Vec<_> = owned.iter().map(|(name, depends)| GraphNode { name, depends }).collect();
        Graph::build(&nodes)
    }

    fn problems(nodes: &[(&str, &[&str])]) -> Vec<String> {
        let violations = build(nodes).expect_err("something is wrong");
        violations.as_slice().iter().map(|v| format!("{}: {}", v.field, v.description)).collect()
    }

    #[test]
    fn what_is_free_together_keeps_the_order_of_the_flow() {
        let graph =
            build(&[("a", &[]), ("b", &["a"]), ("c", &["a"]), ("d", &["a"]), ("e", &["c", "b", "d"])]);
        let graph = graph.expect("fine");
        let indices =
            |nodes: &mut dyn Iterator<Item = NodeIndex>| nodes.map(NodeIndex::index).collect::<Vec<_>>();
        assert_eq!(indices(&mut graph.dependants(NodeIndex::new(0))), [1, 2, 3]);
        assert_eq!(indices(&mut graph.dependencies(NodeIndex::new(4))), [2, 1, 3]);
        assert_eq!(indices(&mut graph.order().iter().copied()), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_diamond_is_ordered() {
        let graph = build(&[("d", &["b", "c"]), ("b", &["a"]), ("c", &["a"]), ("a", &[])]).expect("fine");
        assert_eq!((graph.len(), graph.edge_count()), (4, 4));
        for node in graph.order() {
            assert!(graph.dependencies(*node).all(|before| graph.rank(before) < graph.rank(*node)));
        }
        assert!(graph.is_sink(NodeIndex::new(0)) && !graph.is_sink(NodeIndex::new(3)));
    }

    #[test]
    fn everything_wrong_is_listed() {
        assert_eq!(
            problems(&[
                ("split", &[]),
                ("count", &["splt", "count", "split", "split"]),
                ("split", &["nothing-like-it"]),
            ]),
            [
                "nodes[2].name: `split` is also the name of nodes[0]",
                "nodes[1].depends[0]: `count` depends on `splt`, which is not in the flow; did you mean `split`?",
                "nodes[1].depends[1]: `count` depends on itself",
                "nodes[1].depends[3]: `split` is named twice",
                "nodes[2].depends[0]: `split` depends on `nothing-like-it`, which is not in the flow",
            ]
        );
        assert_eq!(problems(&[]), ["nodes: a flow has at least one node"]);
    }

    #[test]
    fn cycles_name_their_members_in_order() {
        assert_eq!(
            problems(&[
                ("free", &[]),
                ("tail", &["a"]),
                ("a", &["b", "free"]),
                ("b", &["c"]),
                ("c", &["a"]),
                ("x", &["y"]),
                ("y", &["x", "a"]),
            ]),
            [
                "nodes[2].depends: the dependencies form a cycle, each waits for the next: a -> b -> c -> a",
                "nodes[5].depends: the dependencies form a cycle, each waits for the next: x -> y -> x",
            ]
        );
    }

    #[test]
    fn a_flood_of_violations_is_cut() {
        let names: Vec<String> = (0..1000).map(|i| format!("unknown-{i}")).collect();
        let depends: Vec<&str> = names.iter().map(String::as_str).collect();
        let problems = problems(&[("a", &depends)]);
        assert_eq!(problems.len(), VIOLATIONS_MAX + 1);
        assert_eq!(problems[VIOLATIONS_MAX], "nodes: more is wrong than is listed here");
    }

    #[test]
    fn limits_are_named() {
        let names: Vec<Name> = (0..=FLOW_NODES_MAX).map(|i| name(&format!("n{i}"))).collect();
        let nodes: Vec<_> = names.iter().map(|name| GraphNode { name, depends: &[] }).collect();
        let violations = Graph::build(&nodes).expect_err("too many");
        assert_eq!(violations.to_string(), "nodes: a flow has at most 100000 nodes, this one has 100001");
    }

    #[test]
    fn a_dependency_too_many_is_refused() {
        // Each node depends on all before it, the last on as many as are needed.
        let count = 1415;
        let names: Vec<Name> = (0..count).map(|i| name(&format!("n{i}"))).collect();
        let before_last: usize = (0..count - 1).sum();
        let build = |edges: usize| {
            let nodes: Vec<GraphNode<'_>> = (0..count)
                .map(|i| GraphNode {
                    name: &names[i],
                    depends: &names[..if i + 1 == count { edges - before_last } else { i }],
                })
                .collect();
            Graph::build(&nodes)
        };
        assert_eq!(build(FLOW_EDGES_MAX).expect("as many as are allowed").edge_count(), FLOW_EDGES_MAX);
        let violations = build(FLOW_EDGES_MAX + 1).expect_err("one more");
        assert!(
            violations.to_string().contains("1000000 dependencies, this one has 1000001"),
            "{violations}"
        );
    }

    #[test]
    fn a_chain_and_a_dense_graph_of_the_largest_size_build() {
        let names: Vec<Name> = (0..FLOW_NODES_MAX).map(|i| name(&format!("n{i}"))).collect();
        let nodes: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(i, name)| GraphNode { name, depends: &names[i.saturating_sub(10)..i] })
            .collect();
        let graph = Graph::build(&nodes).expect("within the limits");
        assert_eq!(graph.edge_count(), 10 * FLOW_NODES_MAX - 55);
        assert_eq!(graph.rank(NodeIndex::new(FLOW_NODES_MAX - 1)), FLOW_NODES_MAX - 1);
    }
}
