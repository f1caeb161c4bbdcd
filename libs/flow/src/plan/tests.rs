use super::*;
use model::job::BlobRef;
use model::{BlobHash, ScriptType};

fn spec(name: &str, depends: &[&str], env: &[(&str, &str)], outputs: &[&str]) -> NodeSpec {
    let job = JobSpec {
        env_vars: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        outputs: outputs.iter().map(|path| (*path).to_owned()).collect(),
        ..JobSpec::inline(ScriptType::Shell, "true")
    };
    NodeSpec {
        depends: depends.iter().map(|d| d.parse().expect("a name")).collect(),
        ..NodeSpec::new(name.parse().expect("a name"), job)
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
    let env =
        [("ALL".to_owned(), "${{ results.a.k }}".to_owned()), ("OK".to_owned(), "${{ flow.id }}".to_owned())]
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
fn conditions_are_checked() {
    let when = |name: &str, depends: &[&str], text: &str| NodeSpec {
        when: Some(text.to_owned()),
        ..spec(name, depends, &[], &[])
    };
    let nodes = [
        spec("count-a", &[], &[], &[]),
        when("b", &["count-a"], "results.count-a.total > 0"),
        when("c", &["count-a"], "results[\"count-b\"].total > 0"),
        when("d", &["count-a"], "results.b.total > 0 && results[\"count-a\"].total > 0"),
        when("e", &["d"], "total > 0"),
        when("f", &["d"], "results[\"count-a\"].total > 0"),
    ];
    let found = problems(&EnvVars::new(), &nodes);
    let expected = [
        "nodes[1].when: `results.count-a` is a subtraction; write `results[\"count-a\"].total`",
        "nodes[2].when: `results.count-b.total` refers to `count-b`, which is not in the flow; did you mean \
         `count-a`?",
        "nodes[4].when: `total` is not known: there are `results.<node>.<key>` and `flow.<field>`; a key with \
         `-` is written `results.<node>[\"<key>\"]`",
        "nodes[3].when: it refers to `b`, which does not come before `d`; add it to `depends`",
    ];
    assert_eq!(found, expected);
    let same = "results[\"count-a\"].total > 0";
    let nodes = [spec("count-a", &[], &[], &[]), when("b", &["count-a"], same), when("c", &["b"], same)];
    let plan = Plan::of_specs(&EnvVars::new(), &nodes).expect("fine");
    assert!(plan.when(NodeIndex::new(0)).is_none());
    let of = |node| plan.when(NodeIndex::new(node)).expect("has one");
    assert!(std::ptr::eq(of(1), of(2)), "the same text is compiled once");
    assert_eq!(of(1).references[0], ResultRef { node: NodeIndex::new(0), key: "total".into() });
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

#[test]
fn what_could_be_read_is_judged() {
    let name = |text: &str| text.parse::<Name>().ok();
    let draft = |text: &str, depends: &[&str]| NodeDraft {
        name: name(text),
        depends: depends.iter().map(|depend| name(depend)).collect(),
        ..NodeDraft::default()
    };
    let mut violations = Violations::new();
    violations.add("flow.nodes[0].name", "a bad name");
    let mut nodes = vec![
        draft("a b", &["c"]),
        draft("b", &["c d", "e", "unknown"]),
        draft("c", &["a b"]),
        NodeDraft::from(spec("d", &["e"], &[("X", "${{ results.b.k }}")], &[])),
        draft("e", &["d"]),
    ];
    nodes[0].env_vars = [("X".to_owned(), "${{ results.nobody.k }}".to_owned())].into();
    nodes[2].run_if = Some(RunIf::AnyFailed);
    let bad = FlowDraft { violations, env_vars: EnvVars::new(), nodes };
    let found = check_request(Err(bad), "flow").expect_err("something is wrong");
    let found: Vec<_> = found.as_slice().iter().map(|v| format!("{}: {}", v.field, v.description)).collect();
    assert_eq!(
        found,
        [
            "flow.nodes[0].name: a bad name",
            "flow.nodes[1].depends[2]: `b` depends on `unknown`, which is not in the flow",
            "flow.nodes[3].depends: the dependencies form a cycle, each waits for the next: d -> e -> d",
            "flow.nodes[0].job.env_vars[X]: `results.nobody.k` refers to `nobody`, which is not in the flow",
        ]
    );
    let empty = FlowDraft { violations: Violations::new(), ..FlowDraft::default() };
    assert!(check_request(Err(empty), "flow").expect_err("there is none").is_empty());
    let good = FlowSpec { nodes: vec![spec("a", &["a"], &[], &[])], ..plain_flow() };
    let found = check_request(Ok(good), "flow").expect_err("it depends on itself");
    assert_eq!(found.as_slice()[0].field, "flow.nodes[0].depends[0]");
    let good = FlowSpec { nodes: vec![spec("a", &[], &[], &[])], ..plain_flow() };
    let checked = check_request(Ok(good.clone()), "flow").map(|(flow, _)| flow);
    assert_eq!(checked, Ok(good));
}

fn plain_flow() -> FlowSpec {
    FlowSpec::new("f".parse().expect("a name"))
}
