//! The pages in `specs/` match the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use flow::transition::{flow_table, node_table};
use keys::{ContextKey, GlobalKey, RedisType, SupervisorKey};
use model::{NodeState, ReasonCode};
use testkit::pages::{first_cells, read, root, rows};
use workflow::transition::{effect_table, saga_table};

/// The status codes that each reason of a failed call comes with, as the page says; none for those that never fail a call.
pub(crate) fn codes_of_reasons() -> BTreeMap<String, BTreeSet<String>> {
    let names: Vec<_> = (1..=16).map(|code| rpc::code_name(code.into())).collect();
    let codes = |cell: &str| {
        let names_in_cell = cell.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
        names_in_cell.filter(|word| names.contains(word)).map(str::to_owned).collect()
    };
    rows("errors.md", "Why a call failed").into_iter().map(|row| (row[0].clone(), codes(&row[2]))).collect()
}

fn texts<'a>(code: impl IntoIterator<Item = &'a str>) -> BTreeSet<Vec<String>> {
    code.into_iter().map(|text| vec![text.to_owned()]).collect()
}

#[test]
fn the_states_of_a_node_are_as_written() {
    let code =
        node_table().map(|(from, event, to)| vec![from.to_string(), event.to_string(), to.to_string()]);
    assert_eq!(first_cells("states/node.md", "States of a node", 3), code.collect());
}

#[test]
fn the_mirror_in_the_job_is_as_written() {
    let code = NodeState::ALL.map(|state| vec![state.to_string(), state.job_status().to_owned()]);
    assert_eq!(first_cells("states/node.md", "What old readers see", 2), code.into());
}

#[test]
fn the_states_of_a_flow_are_as_written() {
    let code =
        flow_table().map(|(from, event, to)| vec![from.to_string(), event.to_string(), to.to_string()]);
    assert_eq!(first_cells("states/flow.md", "States of a flow", 3), code.collect());
}

#[test]
fn the_states_of_sagas_and_of_calls_are_as_written() {
    let written = |row: [&str; 3]| row.map(str::to_owned).to_vec();
    assert_eq!(first_cells("states/saga.md", "States of a saga", 3), saga_table().map(written).collect());
    assert_eq!(first_cells("states/effect.md", "States of a call", 3), effect_table().map(written).collect());
}

#[test]
fn the_reasons_of_failed_calls_are_as_written() {
    let code = rpc::RpcReason::ALL.iter().map(|reason| reason.as_str());
    assert_eq!(first_cells("errors.md", "Why a call failed", 1), texts(code));
    let codes = rpc::RpcReason::ALL.iter().map(|reason| {
        let codes = reason.codes().iter().map(|code| rpc::code_name(*code).to_owned());
        (reason.as_str().to_owned(), codes.collect())
    });
    assert_eq!(codes_of_reasons(), codes.collect());
}

/// The source files below a directory.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of all programs and libraries, but for what only tests have and the list of reasons.
pub(crate) fn shipped_code() -> String {
    let mut files = Vec::new();
    let root = root().canonicalize().expect("it is there");
    sources(&root.join("services"), &mut files);
    sources(&root.join("libs"), &mut files);
    files.retain(|path| {
        let own = path.strip_prefix(&root).expect("it is below");
        !own.ends_with("error/reason.rs") && !own.components().any(|part| part.as_os_str() == "tests")
    });
    files.iter().map(|path| fs::read_to_string(path).expect("it can be read")).collect()
}

#[test]
fn every_reason_is_given_by_something() {
    let code = shipped_code();
    for reason in rpc::RpcReason::ALL {
        let named = format!("Reason::{reason:?}");
        // Those that supervisors give stand in a list of their own, by their texts.
        let given = code.contains(&named) || code.contains(&format!("\"{}\"", reason.as_str()));
        assert!(given, "nothing is answered with {}", reason.as_str());
    }
}

#[test]
fn the_reasons_of_nodes_are_as_written() {
    let code = ReasonCode::ALL.iter().map(|code| code.as_str());
    assert_eq!(first_cells("errors.md", "Why a node is where it is", 1), texts(code));
}

/// A key of the page as it might stand in Redis.
fn example(pattern: &str) -> String {
    let uid = "0123456789abcdef0123456789abcdef";
    let sha256 = format!("{uid}{uid}");
    let job_key = format!("{uid}-{uid}-7-1");
    let nonce = format!("{sha256}:{uid}");
    let values = [
        ("<job key>", job_key.as_str()),
        ("<context uid>", uid),
        ("<sha256>", sha256.as_str()),
        ("<root key>", sha256.as_str()),
        ("<key>:<nonce>", nonce.as_str()),
        ("<queue>", "hero:q:work:type:shell:prio:0"),
        ("<old queue>", "hero:job:actor_queue:osis"),
        ("<type>", "shell"),
        ("<group>", "default"),
        ("<level>", "confined"),
        ("<status>", "finished"),
        ("<p>", "2"),
        ("<request>", "8c7f1c2e-0000-4000-8000-000000000000"),
    ];
    let mut text = values.iter().fold(pattern.to_owned(), |text, (name, value)| text.replace(name, value));
    while let (Some(open), Some(close)) = (text.find('<'), text.find('>')) {
        text.replace_range(open..=close, "1");
    }
    text
}

/// Compares the keys of a table of the layout with all that the code has. `read` gives what a key is called in the code, and its type in
/// Redis as the page has it where the code knows that.
fn compare_keys(
    heading: &str,
    all: &[&'static str],
    read: impl Fn(&str) -> Option<(&'static str, Option<&'static str>)>,
) {
    let keys = first_cells("redis-layout.md", heading, 2).into_iter().map(|row| {
        let text = example(&row[0]);
        let (variant, expected) = read(&text).unwrap_or_else(|| panic!("`{text}` is no key"));
        assert!(expected.is_none_or(|expected| row[1] == expected), "{variant} is no {}", row[1]);
        variant
    });
    let named: BTreeSet<_> = keys.collect();
    assert_eq!(named, all.iter().copied().collect(), "keys of the page, and of the code");
}

/// Name of a type of Redis as the page has it.
const fn written_type(of: RedisType) -> &'static str {
    match of {
        RedisType::SortedSet => "sorted set",
        other => other.name(),
    }
}

#[test]
fn the_keys_of_a_context_are_as_written() {
    compare_keys("Keys of a context", ContextKey::VARIANTS, |text| {
        ContextKey::parse(text).map(|key| (key.variant(), Some(written_type(key.redis_type()))))
    });
}

#[test]
fn the_global_keys_are_as_written() {
    compare_keys("Global keys", GlobalKey::VARIANTS, |text| {
        GlobalKey::parse(text).map(|key| (key.variant(), Some(written_type(key.redis_type()))))
    });
}

#[test]
fn the_keys_of_a_supervisor_are_as_written() {
    compare_keys("The supervisor's server", SupervisorKey::VARIANTS, |text| {
        SupervisorKey::parse(text).map(|key| (key.variant(), None))
    });
}

#[test]
fn the_keys_of_manifests_and_scenarios_are_as_written() {
    use rehearsal::scenario::{
        ANSWER_KEYS, EXPECT_KEYS, FILE_KEYS, GIVEN_KEYS, SCENARIO_KEYS, VERBS, WORK_KEYS,
    };

    let scenarios = [
        ("Scenario file", FILE_KEYS),
        ("Scenario", SCENARIO_KEYS),
        ("Input", GIVEN_KEYS),
        ("Answer", ANSWER_KEYS),
        ("Expectation", EXPECT_KEYS),
        ("Work", WORK_KEYS),
    ];
    for (heading, keys) in workflow::manifest::KEYS.into_iter().chain(scenarios) {
        assert_eq!(first_cells("saga.md", heading, 1), texts(keys.iter().copied()), "{heading}");
        for row in rows("saga.md", heading) {
            assert_eq!(row.len(), 5, "{heading}: {row:?}");
        }
    }
    let verbs = rows("saga.md", "Input").into_iter().find(|row| row[0] == "verb").expect("a row");
    // The marks around the cell are taken off.
    let listed = format!("`{}`", verbs[1]);
    for verb in VERBS {
        assert!(listed.contains(&format!("`{verb}`")), "{verb}: {listed}");
    }
}

#[test]
fn the_examples_of_sagas_are_good() {
    let text = read("specs/saga.md");
    let blocks: Vec<_> = text
        .split("```yaml\n")
        .skip(1)
        .map(|block| block.split("```").next().expect("a block").to_owned())
        .collect();
    let [manifest, scenarios, _tenants] = blocks.as_slice() else { panic!("{} blocks", blocks.len()) };
    let source = rehearsal::ScenarioFile::read("scenarios", scenarios).expect("a scenario file");
    let manifests = [("order.yaml".to_owned(), manifest.clone())];
    let scenarios = source.scenarios(&manifests).unwrap_or_else(|problems| panic!("{}", problems[0]));
    assert_eq!(scenarios.len(), 2);
    for scenario in scenarios {
        let report = rehearsal::rehearse(&scenario, true);
        assert!(report.passed, "{report:#?}");
    }
}

#[test]
fn the_tests_that_show_an_invariant_exist() {
    let known = first_cells("invariants.md", "Invariants", 1);
    for row in rows("invariants.md", "Shown by") {
        assert!(known.contains(&row[..1]), "{} is no invariant", row[0]);
        let (path, test) = row[1].split_once(": ").unwrap_or_else(|| panic!("{} is no `file: test`", row[1]));
        assert!(read(path).contains(&format!("fn {test}(")), "{path} has no test {test}");
    }
}

#[test]
fn links_between_the_pages_lead_somewhere() {
    let mut pages = vec![root().join("specs")];
    while let Some(path) = pages.pop() {
        if path.is_dir() {
            pages.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = fs::read_to_string(&path).expect("read");
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', '#']).next().unwrap_or_default();
            let there = path.parent().expect("a folder").join(target);
            assert!(target.contains("://") || there.exists(), "{}: {target}", path.display());
        }
    }
}
