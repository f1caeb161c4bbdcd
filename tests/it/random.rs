//! A random graph through the whole suite, against a short interpreter that knows nothing of the engine.

use crate::draw::Draw;
use crate::scene::Scene;

/// Node of a random flow.
#[derive(Debug, Clone)]
struct Node {
    depends: Vec<usize>,
    run_if: &'static str,
    allow_failure: bool,
    retries: u32,
    /// Tries that fail before one succeeds.
    fails: u32,
    /// Condition of the node: this earlier node gave an even number.
    even: Option<usize>,
}

/// How a node ended.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Completed,
    Failed,
    SkippedByFailure,
    Skipped,
}

/// The interpreter. Nodes stand in an order in which each depends on earlier ones only.
fn interpret(nodes: &[Node]) -> (Vec<End>, &'static str) {
    let mut ends: Vec<End> = Vec::new();
    for node in nodes {
        let before: Vec<End> = node.depends.iter().map(|&i| ends[i]).collect();
        let (failed, up) = (before.contains(&End::Failed), before.contains(&End::SkippedByFailure));
        let runs = match node.run_if {
            "ALL_SUCCEEDED" => before.iter().all(|end| *end == End::Completed),
            "NONE_FAILED" => before.contains(&End::Completed) && !failed,
            "ANY_FAILED" => failed || up,
            _ => true,
        };
        // A number is given by those that completed; of others there is none, and nothing is no even number.
        let holds = node.even.is_none_or(|i| ends[i] == End::Completed && i % 2 == 0);
        ends.push(match (runs, holds) {
            (true, true) if node.fails <= node.retries => End::Completed,
            (true, true) => End::Failed,
            (true, false) => End::Skipped,
            (false, _) if failed || up => End::SkippedByFailure,
            (false, _) => End::Skipped,
        });
    }
    let counts = |(node, end): (&Node, &End)| *end == End::Failed && !node.allow_failure;
    let status = if nodes.iter().zip(&ends).any(counts) { "ERROR" } else { "FINISHED" };
    (ends, status)
}

fn draw_graph(seed: u64, count: usize) -> Vec<Node> {
    let mut draw = Draw::new(seed);
    let mut nodes: Vec<Node> = Vec::new();
    for i in 0..count {
        let mut depends: Vec<usize> =
            (0..i.min(8)).filter(|_| draw.below(3) == 0).map(|back| i - 1 - back).collect();
        depends.sort_unstable();
        let run_ifs = if depends.is_empty() {
            ["ALL_SUCCEEDED", "ALL_DONE", "ALL_SUCCEEDED", "ALL_DONE"]
        } else {
            ["ALL_SUCCEEDED", "NONE_FAILED", "ALL_DONE", "ANY_FAILED"]
        };
        let even = depends.first().copied().filter(|_| draw.below(4) == 0);
        nodes.push(Node {
            run_if: run_ifs[usize::try_from(draw.below(4)).expect("small")],
            allow_failure: draw.below(2) == 0,
            retries: u32::try_from(draw.below(3)).expect("small"),
            fails: if draw.below(3) == 0 { u32::try_from(draw.below(4)).expect("small") } else { 0 },
            even,
            depends,
        });
    }
    nodes
}

fn flow_file(nodes: &[Node]) -> String {
    let mut text = String::from("name: random\njobs:\n");
    for (i, node) in nodes.iter().enumerate() {
        let depends: Vec<String> = node.depends.iter().map(|d| format!("n{d}")).collect();
        // Of a node that did not complete there is no number.
        let when = node.even.map_or_else(String::new, |d| {
            format!("    when: 'results.n{d}.number != () && results.n{d}.number % 2 == 0'\n")
        });
        text.push_str(&format!(
            "  n{i}:\n    script_type: shell\n    depends: [{}]\n    run_if: {}\n    allow_failure: {}\n    retries: {}\n    backoff: {{ initial: 0.01 }}\n{when}    script: |\n      echo number={i} >> \"$MYCORA_RESULT\"\n      test \"$MYCORA_ATTEMPT\" -gt {}\n",
            depends.join(", "),
            node.run_if,
            node.allow_failure,
            node.retries,
            node.fails,
        ));
    }
    text
}

#[test]
fn random_graphs_end_as_the_interpreter_predicts() {
    let scene = Scene::new(&[]);
    for seed in [7, 20, 2026] {
        let nodes = draw_graph(seed, 60);
        let (ends, status) = interpret(&nodes);
        let (_, ended) = scene.run(&flow_file(&nodes));
        for (i, (node, end)) in nodes.iter().zip(&ends).enumerate() {
            let expected = match end {
                End::Completed => "COMPLETED",
                End::Failed => "FAILED EXIT_CODE",
                End::SkippedByFailure => "SKIPPED UPSTREAM_FAILED",
                End::Skipped => "SKIPPED CONDITION_NOT_MET",
            };
            assert_eq!(ended.state(&format!("n{i}")), expected, "seed {seed}, n{i}: {node:?}");
        }
        assert_eq!(ended.status, status, "seed {seed}");
        let kinds = |end| ends.iter().filter(|e| **e == end).count();
        assert!(
            kinds(End::Failed) > 0 && kinds(End::SkippedByFailure) > 0 && kinds(End::Skipped) > 0,
            "seed {seed}"
        );
    }
    scene.close();
}
