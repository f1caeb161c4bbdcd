//! Everything about a flow that never changes while it runs, checked as a
//! whole before it starts: the graph, what its values refer to, and which
//! files meet in one directory.

use std::collections::{HashMap, HashSet};

use model::flow::EnvVars;
use model::{FlowNode, JobSpec, Name, NodeSpec, RunIf, Violations};

use crate::graph::{Graph, GraphNode, NodeIndex, did_you_mean, note};
use crate::reach::{self, Query};
use crate::template::{Reference, Template};

/// A key of a node's result that another node's environment refers to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResultRef {
    /// The ancestor.
    pub node: NodeIndex,
    /// The key of its result.
    pub key: String,
}

/// A checked flow.
#[derive(Debug, Clone)]
pub struct Plan {
    graph: Graph,
    references: Vec<Box<[ResultRef]>>,
}

/// What the checks look at, whichever form the node comes in.
#[derive(Clone, Copy)]
struct Item<'a> {
    name: &'a Name,
    run_if: RunIf,
    depends: usize,
    job: &'a JobSpec,
}

impl Plan {
    /// Checks a flow as it is asked for.
    ///
    /// # Errors
    /// Everything that is wrong with it, with fields such as `nodes[3].depends[0]`.
    pub fn of_specs(env: &EnvVars, nodes: &[NodeSpec]) -> Result<Self, Violations> {
        let mut violations = Violations::new();
        let named: Vec<GraphNode<'_>> =
            nodes.iter().map(|node| GraphNode { name: &node.name, depends: &node.depends }).collect();
        let graph = Graph::from_names(&named, &mut violations);
        let items: Vec<Item<'_>> = nodes
            .iter()
            .map(|node| Item {
                name: &node.name,
                run_if: node.run_if,
                depends: node.depends.len(),
                job: &node.job,
            })
            .collect();
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
        let items: Vec<Item<'_>> = nodes
            .iter()
            .zip(jobs)
            .map(|(node, job)| Item {
                name: &node.name,
                run_if: node.run_if,
                depends: node.depends.len(),
                job,
            })
            .collect();
        Self::check(env, &items, graph, violations)
    }

    /// The graph.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What the environment of `node` refers to, each once.
    #[must_use]
    pub fn references(&self, node: NodeIndex) -> &[ResultRef] {
        &self.references[node.index()]
    }

    fn check(
        env: &EnvVars,
        items: &[Item<'_>],
        graph: Option<Graph>,
        mut violations: Violations,
    ) -> Result<Self, Violations> {
        for (i, item) in items.iter().enumerate() {
            if item.depends == 0 && matches!(item.run_if, RunIf::AnyFailed | RunIf::NoneFailed) {
                note(
                    &mut violations,
                    format!("nodes[{i}].run_if"),
                    format_args!(
                        "`{}` depends on nothing, so {} never lets it run; use ALL_SUCCEEDED or ALL_DONE",
                        item.name,
                        item.run_if.as_str()
                    ),
                );
            }
        }
        check_flow_env(env, &mut violations);
        let (references, named) = collect_references(items, &mut violations);
        if let Some(graph) = &graph {
            check_ancestors(graph, items, &named, &mut violations);
            check_files(graph, items, &mut violations);
        }
        let plan = graph.map(|graph| Self { graph, references });
        violations.into_result(plan)
    }
}

/// The flow's variables reach every node, and no node comes before all.
fn check_flow_env(env: &EnvVars, violations: &mut Violations) {
    for (variable, value) in env {
        let field = format!("env_vars[{variable}]");
        match Template::parse(value) {
            Err(error) => note(violations, field, error),
            Ok(template) => {
                if let Some(reference) =
                    template.references().find(|reference| matches!(reference, Reference::Result { .. }))
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

/// Where a reference stands, for the message when its node is no ancestor.
struct Named<'a> {
    query: Query,
    variable: &'a str,
}

/// Parses every value; gives the references of each node, and all of them in one list.
fn collect_references<'a>(
    items: &[Item<'a>],
    violations: &mut Violations,
) -> (Vec<Box<[ResultRef]>>, Vec<Named<'a>>) {
    let names: Vec<&Name> = items.iter().map(|item| item.name).collect();
    let mut index = None;
    let mut hints = 0;
    let mut named = Vec::new();
    let mut references = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let mut own = Vec::new();
        let mut seen = HashSet::new();
        for (variable, value) in item.job.env_vars.iter().filter(|(_, value)| value.contains("${{")) {
            let field = || format!("nodes[{i}].job.env_vars[{variable}]");
            let template = match Template::parse(value) {
                Ok(template) => template,
                Err(error) => {
                    note(violations, field(), error);
                    continue;
                }
            };
            for reference in template.references() {
                let Reference::Result { node, key } = reference else { continue };
                // Made for the first reference: most flows have few.
                let index: &HashMap<&str, usize> =
                    index.get_or_insert_with(|| names.iter().map(|n| n.as_str()).zip(0..).collect());
                let Some(&ancestor) = index.get(node.as_str()) else {
                    let hint = did_you_mean(node.as_str(), &names, &mut hints);
                    note(
                        violations,
                        field(),
                        format_args!("`{reference}` refers to `{node}`, which is not in the flow{hint}"),
                    );
                    continue;
                };
                let ancestor = NodeIndex::new(ancestor);
                if seen.insert((ancestor, key.clone())) {
                    own.push(ResultRef { node: ancestor, key: key.clone() });
                    named.push(Named { query: Query { node: NodeIndex::new(i), ancestor }, variable });
                }
            }
        }
        references.push(own.into_boxed_slice());
    }
    (references, named)
}

fn check_ancestors(graph: &Graph, items: &[Item<'_>], named: &[Named<'_>], violations: &mut Violations) {
    let queries: Vec<Query> = named.iter().map(|named| named.query).collect();
    for position in reach::unreachable(graph, &queries) {
        let Named { query, variable } = &named[position];
        let (node, ancestor) = (items[query.node.index()].name, items[query.ancestor.index()].name);
        note(
            violations,
            format!("nodes[{}].job.env_vars[{variable}]", query.node.index()),
            format_args!(
                "it refers to `{ancestor}`, which does not come before `{node}`; add it to `depends`"
            ),
        );
    }
}

/// Own files and what the dependencies made are laid into one directory:
/// every path may come from one place only, and none may be another's folder.
fn check_files(graph: &Graph, items: &[Item<'_>], violations: &mut Violations) {
    let mut from: HashMap<&str, Option<NodeIndex>> = HashMap::new();
    for (i, item) in items.iter().enumerate() {
        from.clear();
        from.extend(item.job.files.keys().map(|path| (path.as_str(), None)));
        let mut dependencies: Vec<NodeIndex> = graph
            .dependencies(NodeIndex::new(i))
            .filter(|dependency| !items[dependency.index()].job.outputs.is_empty())
            .collect();
        dependencies.sort_unstable();
        let source = |place: Option<NodeIndex>| {
            place.map_or("its own `files`".to_owned(), |node| format!("`{}`", items[node.index()].name))
        };
        for dependency in dependencies {
            for path in &items[dependency.index()].job.outputs {
                match from.insert(path, Some(dependency)) {
                    // A path that one node names twice is that node's violation.
                    Some(other) if other != Some(dependency) => note(
                        violations,
                        format!("nodes[{i}].depends"),
                        format_args!(
                            "`{}` gets the file `{path}` from both {} and {}",
                            item.name,
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
                    "`{}` gets the file `{folder}` from {} and the file `{path}` from {}",
                    item.name,
                    source(from[folder]),
                    source(from[path])
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::BlobRef;
    use model::{BlobHash, NodePolicy, ScriptSource, ScriptType, Target};

    fn spec(name: &str, depends: &[&str], env: &[(&str, &str)], outputs: &[&str]) -> NodeSpec {
        NodeSpec {
            name: name.parse().expect("a name"),
            depends: depends.iter().map(|d| d.parse().expect("a name")).collect(),
            run_if: RunIf::AllSucceeded,
            allow_failure: false,
            target: Target::default(),
            policy: NodePolicy::default(),
            prerequisites: Vec::new(),
            when: None,
            job: JobSpec {
                script_type: ScriptType::Shell,
                script: ScriptSource::Inline("true".into()),
                env_vars: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
                files: std::collections::BTreeMap::new(),
                outputs: outputs.iter().map(|path| (*path).to_owned()).collect(),
            },
        }
    }

    fn problems(env: &EnvVars, nodes: &[NodeSpec]) -> Vec<String> {
        let violations = Plan::of_specs(env, nodes).expect_err("something is wrong");
        violations.as_slice().iter().map(|v| format!("{}: {}", v.field, v.description)).collect()
    }

    #[test]
    fn references_name_ancestors() {
        let nodes = [
            spec("a", &[], &[], &[]),
            spec("b", &["a"], &[], &[]),
            spec("c", &["b"], &[("X", "${{ results.a.k }}${{ results.b.k }}${{ results.a.k }}")], &[]),
        ];
        let plan = Plan::of_specs(&EnvVars::new(), &nodes).expect("fine");
        let found: Vec<_> =
            plan.references(NodeIndex::new(2)).iter().map(|r| (r.node.index(), r.key.as_str())).collect();
        assert_eq!(found, [(0, "k"), (1, "k")]);
    }

    #[test]
    fn other_references_are_refused() {
        let env = [
            ("ALL".to_owned(), "${{ results.a.k }}".to_owned()),
            ("OK".to_owned(), "${{ flow.id }}".to_owned()),
        ]
        .into();
        let nodes = [
            spec("alpha", &[], &[("X", "${{ results.beta.k }}"), ("Y", "${{ results.alpha.k }}")], &[]),
            spec("beta", &[], &[("X", "${{ results.alpa.k }}"), ("Y", "${{ flow.nope }}")], &[]),
        ];
        let found = problems(&env, &nodes);
        assert_eq!(found.len(), 5, "{found:#?}");
        assert!(found[0].starts_with("env_vars[ALL]: `results.a.k` can be"), "{found:#?}");
        assert_eq!(
            found[1],
            "nodes[1].job.env_vars[X]: `results.alpa.k` refers to `alpa`, which is not in the flow; did you \
             mean `alpha`?"
        );
        assert!(found[2].starts_with("nodes[1].job.env_vars[Y]: `flow.nope` is not"), "{found:#?}");
        assert!(found[3].contains("`beta`, which does not come before `alpha`"), "{found:#?}");
        assert!(found[4].contains("`alpha`, which does not come before `alpha`"), "{found:#?}");
    }

    #[test]
    fn files_come_from_one_place() {
        let mut join = spec("join", &["a", "b", "c"], &[], &[]);
        let blob = BlobRef { sha256: BlobHash::of(b""), size: 0 };
        join.job.files = [("own".to_owned(), blob)].into();
        let nodes = [
            spec("a", &[], &[], &["x", "dir"]),
            spec("b", &[], &[], &["x", "own"]),
            spec("c", &[], &[], &["dir/y"]),
            join,
        ];
        assert_eq!(
            problems(&EnvVars::new(), &nodes),
            [
                "nodes[3].depends: `join` gets the file `x` from both `a` and `b`",
                "nodes[3].depends: `join` gets the file `own` from both its own `files` and `b`",
                "nodes[3].depends: `join` gets the file `dir` from `a` and the file `dir/y` from `c`",
            ]
        );
    }

    #[test]
    fn a_start_must_be_able_to_run() {
        let mut node = spec("a", &[], &[], &[]);
        node.run_if = RunIf::AnyFailed;
        let found = problems(&EnvVars::new(), &[node]);
        assert!(found[0].starts_with("nodes[0].run_if: `a` depends on nothing"), "{found:#?}");
    }

    #[test]
    fn the_largest_flow_with_far_references_is_checked_in_time() {
        let count = model::limits::FLOW_NODES_MAX;
        let names: Vec<String> = (0..count).map(|i| format!("n{i}")).collect();
        let nodes: Vec<NodeSpec> = (0..count)
            .map(|i| {
                let value = format!("${{{{ results.n{}.k }}}}", i.saturating_sub(20));
                let env = [("X", value.as_str())];
                let depends: Vec<&str> = names[i.saturating_sub(10)..i].iter().map(String::as_str).collect();
                spec(&names[i], &depends, if i == 0 { &[] } else { &env }, &[])
            })
            .collect();
        let plan = Plan::of_specs(&EnvVars::new(), &nodes).expect("all are ancestors");
        assert_eq!(plan.references(NodeIndex::new(count - 1)).len(), 1);
    }
}
