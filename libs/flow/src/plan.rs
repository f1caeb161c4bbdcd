//! Everything about a flow that never changes while it runs, checked as a
//! whole before it starts: the graph, what its values and conditions refer
//! to, and which files meet in one directory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use model::flow::EnvVars;
use model::job::BlobRef;
use model::{FlowDraft, FlowNode, FlowSpec, JobSpec, Name, NodeDraft, NodeSpec, RunIf, Violations};

use crate::condition::Condition;
use crate::graph::{Graph, NodeIndex, NodeLabel, did_you_mean, note};
use crate::reachability::{self, AncestorQuery};
use crate::template::{EnvTemplate, TemplateReference};

/// A key of a node's result that another node's environment or condition refers to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResultRef {
    /// The ancestor.
    pub node: NodeIndex,
    /// The key of its result.
    pub key: String,
}

/// A node's `when`.
#[derive(Debug)]
pub struct WhenClause {
    /// The expression.
    pub condition: Condition,
    /// Results that the condition refers to, in the order of [`Condition::references`].
    pub references: Box<[ResultRef]>,
}

/// A checked flow.
#[derive(Debug, Clone)]
pub struct Plan {
    graph: Graph,
    references: Vec<Box<[ResultRef]>>,
    /// Conditions of the nodes that have one. Nodes with the same text share it.
    conditions: HashMap<NodeIndex, Arc<WhenClause>>,
}

/// Node as the checks see it, whichever form it comes in. Name and condition are absent where they could not be read.
#[derive(Clone, Copy)]
struct PlanNode<'a> {
    name: Option<&'a Name>,
    run_if: Option<RunIf>,
    depends: usize,
    when: Option<&'a str>,
    env_vars: &'a EnvVars,
    files: &'a BTreeMap<String, BlobRef>,
    outputs: &'a [String],
}

impl<'a> PlanNode<'a> {
    const fn of_spec(node: &'a NodeSpec) -> Self {
        let NodeSpec { name, depends, run_if, when, job, .. } = node;
        Self::new(name, *run_if, depends.len(), when.as_ref(), job)
    }

    const fn of_stored(node: &'a FlowNode, job: &'a JobSpec) -> Self {
        let FlowNode { name, depends, run_if, when, .. } = node;
        Self::new(name, *run_if, depends.len(), when.as_ref(), job)
    }

    const fn new(
        name: &'a Name,
        run_if: RunIf,
        depends: usize,
        when: Option<&'a String>,
        job: &'a JobSpec,
    ) -> Self {
        let when = match when {
            Some(text) => Some(text.as_str()),
            None => None,
        };
        let JobSpec { env_vars, files, outputs, .. } = job;
        Self {
            name: Some(name),
            run_if: Some(run_if),
            depends,
            when,
            env_vars,
            files,
            outputs: outputs.as_slice(),
        }
    }

    fn of_draft(node: &'a NodeDraft) -> Self {
        let NodeDraft { name, depends, run_if, when, env_vars, files, outputs } = node;
        let (name, when, depends) = (name.as_ref(), when.as_deref(), depends.len());
        Self { name, run_if: *run_if, depends, when, env_vars, files, outputs }
    }
}

/// A flow that came as a request, with its plan, when nothing is wrong with it.
///
/// # Errors
/// Everything that is wrong: with its fields, and with the graph as far as those could be read. `at` is the path of the flow
/// in the request.
pub fn check_request(parsed: Result<FlowSpec, FlowDraft>, at: &str) -> Result<(FlowSpec, Plan), Violations> {
    let (parsed, mut all, of_graph) = match parsed {
        Ok(flow) => match Plan::of_specs(&flow.env_vars, &flow.nodes) {
            Ok(plan) => (Some((flow, plan)), Violations::new(), None),
            Err(judged) => (None, Violations::new(), Some(judged)),
        },
        // A flow without nodes, or with too many, was refused for that.
        Err(FlowDraft { violations, nodes, .. }) if nodes.is_empty() => (None, violations, None),
        Err(draft) => {
            let judged = judge(&draft.env_vars, &draft.nodes);
            (None, draft.violations, Some(judged))
        }
    };
    for violation in of_graph.iter().flat_map(Violations::as_slice) {
        all.add(format!("{at}.{}", violation.field), &violation.description);
    }
    all.into_result(parsed)
}

/// Returns the violations in the graph of nodes that could be read in part only.
fn judge(env: &EnvVars, nodes: &[NodeDraft]) -> Violations {
    let mut violations = Violations::new();
    let named = nodes.iter().map(|node| (node.name.as_ref(), node.depends.iter().map(Option::as_ref)));
    let graph = Graph::from_names(named.collect(), &mut violations);
    let items: Vec<PlanNode<'_>> = nodes.iter().map(PlanNode::of_draft).collect();
    Plan::check(env, &items, graph, violations).err().unwrap_or_default()
}

impl Plan {
    /// Checks a flow as requested.
    ///
    /// # Errors
    /// Everything that is wrong with it, with fields such as `nodes[3].depends[0]`.
    pub fn of_specs(env: &EnvVars, nodes: &[NodeSpec]) -> Result<Self, Violations> {
        let mut violations = Violations::new();
        let named = nodes.iter().map(|node| (Some(&node.name), node.depends.iter().map(Some)));
        let graph = Graph::from_names(named.collect(), &mut violations);
        let items: Vec<PlanNode<'_>> = nodes.iter().map(PlanNode::of_spec).collect();
        Self::check(env, &items, graph, violations)
    }

    /// Checks a flow as it is stored. Positions in violations are those of `nodes`.
    ///
    /// # Errors
    /// As [`Plan::of_specs`].
    pub fn of_stored<'a>(
        env: &EnvVars,
        nodes: impl IntoIterator<Item = (&'a FlowNode, &'a JobSpec)>,
    ) -> Result<Self, Violations> {
        let (nodes, jobs): (Vec<&FlowNode>, Vec<&JobSpec>) = nodes.into_iter().unzip();
        let mut violations = Violations::new();
        let graph = Graph::from_ids(&nodes, &mut violations);
        let items: Vec<PlanNode<'_>> =
            nodes.iter().zip(jobs).map(|(node, job)| PlanNode::of_stored(node, job)).collect();
        Self::check(env, &items, graph, violations)
    }

    /// The graph.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the results that the environment of `node` refers to, each once.
    #[must_use]
    pub fn references(&self, node: NodeIndex) -> &[ResultRef] {
        &self.references[node.index()]
    }

    /// The condition of `node`, when it has one.
    #[must_use]
    pub fn when(&self, node: NodeIndex) -> Option<&WhenClause> {
        self.conditions.get(&node).map(|when| &**when)
    }

    fn check(
        env: &EnvVars,
        items: &[PlanNode<'_>],
        graph: Option<Graph>,
        mut violations: Violations,
    ) -> Result<Self, Violations> {
        for (i, item) in items.iter().enumerate() {
            if item.depends == 0
                && let Some(run_if @ (RunIf::AnyFailed | RunIf::NoneFailed)) = item.run_if
            {
                note(
                    &mut violations,
                    format!("nodes[{i}].run_if"),
                    format_args!(
                        "{} depends on nothing, so {} never lets it run; use ALL_SUCCEEDED or ALL_DONE",
                        NodeLabel(item.name),
                        run_if.as_str()
                    ),
                );
            }
        }
        check_flow_env(env, &mut violations);
        let mut names = NodeNameIndex::new(items);
        let (references, mut named) = collect_references(items, &mut names, &mut violations);
        let conditions = collect_conditions(items, &mut names, &mut named, &mut violations);
        if let Some(graph) = &graph {
            check_ancestors(graph, items, &named, &mut violations);
            check_files(graph, items, &mut violations);
        }
        let plan = graph.map(|graph| Self { graph, references, conditions });
        violations.into_result(plan)
    }
}

/// The flow's variables reach every node, and no single node comes before all others, so they cannot refer to results.
fn check_flow_env(env: &EnvVars, violations: &mut Violations) {
    for (variable, value) in env {
        let field = format!("env_vars[{variable}]");
        match EnvTemplate::parse(value) {
            Err(error) => note(violations, field, error),
            Ok(template) => {
                if let Some(reference) = template
                    .references()
                    .find(|reference| matches!(reference, TemplateReference::Result { .. }))
                {
                    note(
                        violations,
                        field,
                        format_args!(
                            "`{reference}` can be referred to by a job that comes after the node, not by \
                             the whole flow"
                        ),
                    );
                }
            }
        }
    }
}

/// Finds nodes by name.
struct NodeNameIndex<'a> {
    names: Vec<Option<&'a Name>>,
    /// Made for the first reference: most flows have few.
    index: Option<HashMap<&'a str, NodeIndex>>,
    hints: usize,
}

impl<'a> NodeNameIndex<'a> {
    fn new(items: &[PlanNode<'a>]) -> Self {
        Self { names: items.iter().map(|item| item.name).collect(), index: None, hints: 0 }
    }

    fn find(&mut self, name: &Name) -> Option<NodeIndex> {
        let indexed = || {
            let named = self.names.iter().enumerate();
            named.filter_map(|(i, name)| Some((name.as_ref()?.as_str(), NodeIndex::new(i))))
        };
        self.index.get_or_insert_with(|| indexed().collect()).get(name.as_str()).copied()
    }

    fn hint(&mut self, name: &Name) -> String {
        did_you_mean(name.as_str(), &self.names, &mut self.hints)
    }
}

/// Where a reference stands, for the message when its node is no ancestor.
struct ReferenceSite<'a> {
    query: AncestorQuery,
    place: ReferenceField<'a>,
}

#[derive(Clone, Copy)]
enum ReferenceField<'a> {
    Variable(&'a str),
    When,
}

impl ReferenceField<'_> {
    fn field(self, node: usize) -> String {
        match self {
            Self::Variable(variable) => format!("nodes[{node}].job.env_vars[{variable}]"),
            Self::When => format!("nodes[{node}].when"),
        }
    }
}

/// Parses every value; gives the references of each node, and all of them in one list.
fn collect_references<'a>(
    items: &[PlanNode<'a>],
    names: &mut NodeNameIndex<'a>,
    violations: &mut Violations,
) -> (Vec<Box<[ResultRef]>>, Vec<ReferenceSite<'a>>) {
    let mut named = Vec::new();
    let mut references = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let mut own = Vec::new();
        let mut seen = HashSet::new();
        for (variable, value) in item.env_vars.iter().filter(|(_, value)| value.contains("${{")) {
            let place = ReferenceField::Variable(variable);
            let template = match EnvTemplate::parse(value) {
                Ok(template) => template,
                Err(error) => {
                    note(violations, place.field(i), error);
                    continue;
                }
            };
            for reference in template.references() {
                let TemplateReference::Result { node, key } = reference else { continue };
                let Some(ancestor) = names.find(node) else {
                    note_unknown(violations, place.field(i), reference, node, &names.hint(node));
                    continue;
                };
                if seen.insert((ancestor, key.clone())) {
                    own.push(ResultRef { node: ancestor, key: key.clone() });
                    named.push(ReferenceSite {
                        query: AncestorQuery { node: NodeIndex::new(i), ancestor },
                        place,
                    });
                }
            }
        }
        references.push(own.into_boxed_slice());
    }
    (references, named)
}

fn note_unknown(
    violations: &mut Violations,
    field: String,
    reference: &TemplateReference,
    node: &Name,
    hint: &str,
) {
    let description = format_args!("`{reference}` refers to `{node}`, which is not in the flow{hint}");
    note(violations, field, description);
}

/// Compiles every condition, the same text once; adds what they refer to.
fn collect_conditions<'a>(
    items: &[PlanNode<'a>],
    names: &mut NodeNameIndex<'a>,
    named: &mut Vec<ReferenceSite<'a>>,
    violations: &mut Violations,
) -> HashMap<NodeIndex, Arc<WhenClause>> {
    let mut conditions = HashMap::new();
    let mut by_text: HashMap<&str, Option<Arc<WhenClause>>> = HashMap::new();
    for (i, item) in items.iter().enumerate() {
        let Some(text) = item.when else { continue };
        let field = || ReferenceField::When.field(i);
        let when = match by_text.get(text) {
            Some(Some(when)) => Arc::clone(when),
            // Nodes that share an invalid condition share its violation, which is reported for each of them.
            Some(None) | None => {
                let when = Condition::parse(text)
                    .map_err(|error| note(violations, field(), error))
                    .ok()
                    .and_then(|condition| resolve(condition, field, names, violations))
                    .map(Arc::new);
                by_text.insert(text, when.clone());
                let Some(when) = when else { continue };
                when
            }
        };
        named.extend(when.references.iter().map(|reference| ReferenceSite {
            query: AncestorQuery { node: NodeIndex::new(i), ancestor: reference.node },
            place: ReferenceField::When,
        }));
        conditions.insert(NodeIndex::new(i), when);
    }
    conditions
}

/// Finds the nodes that a condition names.
fn resolve(
    condition: Condition,
    field: impl Fn() -> String,
    names: &mut NodeNameIndex<'_>,
    violations: &mut Violations,
) -> Option<WhenClause> {
    let mut references = Vec::with_capacity(condition.references().len());
    for (node, key) in condition.references() {
        match names.find(node) {
            Some(node) => references.push(ResultRef { node, key: key.clone() }),
            None => {
                let reference = TemplateReference::Result { node: node.clone(), key: key.clone() };
                note_unknown(violations, field(), &reference, node, &names.hint(node));
            }
        }
    }
    let all = references.len() == condition.references().len();
    all.then(|| WhenClause { condition, references: references.into_boxed_slice() })
}

fn check_ancestors(
    graph: &Graph,
    items: &[PlanNode<'_>],
    named: &[ReferenceSite<'_>],
    violations: &mut Violations,
) {
    let queries: Vec<AncestorQuery> = named.iter().map(|named| named.query).collect();
    for position in reachability::unreachable(graph, &queries) {
        let ReferenceSite { query, place } = &named[position];
        let [node, ancestor] = [query.node, query.ancestor].map(|node| NodeLabel(items[node.index()].name));
        note(
            violations,
            place.field(query.node.index()),
            format_args!("it refers to {ancestor}, which does not come before {node}; add it to `depends`"),
        );
    }
}

/// Checks the files of each node: its own and those its dependencies make share one directory, so every path may come from
/// one place only, and none may be a folder of another.
fn check_files(graph: &Graph, items: &[PlanNode<'_>], violations: &mut Violations) {
    let mut from: HashMap<&str, Option<NodeIndex>> = HashMap::new();
    for (i, item) in items.iter().enumerate() {
        from.clear();
        from.extend(item.files.keys().map(|path| (path.as_str(), None)));
        let mut dependencies: Vec<NodeIndex> = graph
            .dependencies(NodeIndex::new(i))
            .filter(|dependency| !items[dependency.index()].outputs.is_empty())
            .collect();
        dependencies.sort_unstable();
        let source = |place: Option<NodeIndex>| {
            place.map_or("its own `files`".to_owned(), |node| NodeLabel(items[node.index()].name).to_string())
        };
        for dependency in dependencies {
            for path in items[dependency.index()].outputs {
                match from.insert(path, Some(dependency)) {
                    // A path that one node names twice is that node's violation.
                    Some(other) if other != Some(dependency) => note(
                        violations,
                        format!("nodes[{i}].depends"),
                        format_args!(
                            "{} gets the file `{path}` from both {} and {}",
                            NodeLabel(item.name),
                            source(other),
                            source(Some(dependency))
                        ),
                    ),
                    _ => {}
                }
            }
        }
        let mut folders: Vec<(&str, &str)> = from
            .keys()
            .flat_map(|path| path.match_indices('/').map(move |(at, _)| (&path[..at], *path)))
            .filter(|(folder, _)| from.contains_key(folder))
            .collect();
        folders.sort_unstable();
        for (folder, path) in folders {
            note(
                violations,
                format!("nodes[{i}].depends"),
                format_args!(
                    "{} gets the file `{folder}` from {} and the file `{path}` from {}",
                    NodeLabel(item.name),
                    source(from[folder]),
                    source(from[path])
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests;
