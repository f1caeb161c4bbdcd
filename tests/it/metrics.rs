//! Metrics that a suite shows are those of `specs/metrics.md`, and the page has no others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use testkit::pages::read;
use testkit::wait_until_blocking;

use crate::specs::shipped_code;
use crate::suite::{PATIENCE, Up, flow_file, get, metric, stderr, stdout};

const PAGE: &str = "specs/metrics.md";
/// Two jobs, one of which fails.
const FLOW: &str = "name: ends\njobs:\n  works: { script_type: shell, script: \"true\" }\n  \
    fails: { script_type: shell, script: \"false\" }\n";

/// Lines of `/metrics` after that flow, which met no other: what was measured of it on its road, and what is left.
const ROAD: [&str; 9] = [
    "mycora_call_duration_seconds_count{code=\"OK\",method=\"mycora.v1.FlowService/SubmitFlow\"} 1",
    "mycora_scheduler_submit_to_start_seconds_count 1",
    "mycora_scheduler_queue_wait_seconds_count{type=\"shell\"} 2",
    "mycora_scheduler_run_seconds_count{type=\"shell\"} 2",
    "mycora_scheduler_unsuccessful_nodes_total{reason=\"EXIT_CODE\",state=\"failed\"} 1",
    "mycora_scheduler_nodes{state=\"running\"} 0",
    "mycora_scheduler_lease_held 1",
    "mycora_supervisor_queue_wait_seconds_count{type=\"shell\"} 2",
    "mycora_supervisor_run_seconds_count{type=\"shell\"} 2",
];

/// A metric: whether it counts or shows, and the labels that it is told apart by.
#[derive(Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
}

/// Metrics of the page, by name.
fn documented() -> BTreeMap<String, Family> {
    let mut found = BTreeMap::new();
    for line in read(PAGE).lines().filter(|line| line.starts_with("| `mycora_")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, _, labels, ..] = cells[..] else {
            panic!("{PAGE} has a row with few cells: {line}")
        };
        // A label stands first in its part, and its values follow a colon.
        let label = |part: &str| part.trim().strip_prefix('`')?.split('`').next().map(str::to_owned);
        let family = Family { kind: kind.to_owned(), labels: labels.split(';').filter_map(label).collect() };
        let before = found.insert(name.trim_matches('`').to_owned(), family);
        assert_eq!(before, None, "{PAGE} has `{name}` twice");
    }
    assert!(found.len() > 100, "{found:?}");
    found
}

/// Metrics of an answer of `/metrics`, by name.
fn shown(text: &str) -> BTreeMap<String, Family> {
    let mut found: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            found.entry(name.to_owned()).or_default().kind = kind.trim().to_owned();
        }
        let Some((name, labels)) = line.split_once('{').filter(|_| line.starts_with("mycora_")) else {
            continue;
        };
        // The buckets of a histogram have names and a label of their own.
        let parts = ["_bucket", "_sum", "_count"];
        let base =
            parts.iter().find_map(|part| name.strip_suffix(part)).filter(|base| found.contains_key(*base));
        let labels = labels.split("=\"").filter_map(|part| part.rsplit(['{', ',']).next());
        let labels = labels.filter(|label| !label.contains(['"', '}', ' ']) && *label != "le");
        let family = found.get_mut(base.unwrap_or(name)).expect("its type is said first");
        family.labels.extend(labels.map(str::to_owned));
    }
    found
}

#[test]
fn every_metric_of_a_suite_is_documented_with_its_kind_and_its_labels() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("flow.yaml");
    std::fs::write(&file, FLOW).expect("written");
    let up = Up::start(&dir.path().join("data"), &["--saga"]);
    stdout(&up.mycora(&["flow", "submit", "--watch", path(&file)]), 1);
    stderr(&up.mycora(&["flow", "get", "999"]), 1);
    let shown = shown(&get(up.dir(), up.port() + 100, "/metrics"));
    assert!(shown.len() > 60, "{shown:?}");
    let documented = documented();
    for (name, family) in &shown {
        let written = documented.get(name).unwrap_or_else(|| panic!("{PAGE} has no `{name}`: {family:?}"));
        assert_eq!(written.kind, family.kind, "{name}");
        assert!(family.labels.is_subset(&written.labels), "{name}: {family:?}, and {PAGE} has {written:?}");
    }
}

fn path(file: &Path) -> &str {
    file.to_str().expect("a plain path")
}

#[test]
fn a_flow_is_measured_on_its_road() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = flow_file(dir.path(), FLOW);
    let up = Up::start(&dir.path().join("data"), &[]);
    stdout(&up.mycora(&["flow", "submit", "--watch", &file]), 1);
    let ops = up.port() + 100;
    let is_measured = |expected: &str| get(up.dir(), ops, "/metrics").lines().any(|line| line == expected);
    for line in ROAD {
        wait_until_blocking(|| is_measured(line).then_some(()), PATIENCE, line);
    }
    for name in ["mycora_scheduler_commit_seconds_count", "mycora_router_delivery_seconds_count"] {
        assert!(metric(up.dir(), ops, name) > 0.0, "{name}");
    }
    up.stop();
}

#[test]
fn every_documented_metric_is_registered_somewhere() {
    let code = shipped_code();
    // Names are put together from what a service's metrics have in common and what each is called.
    let mut commons: BTreeSet<&str> = code.split('"').filter(|text| text.starts_with("mycora_")).collect();
    commons.retain(|text| text.contains('{'));
    let commons: BTreeSet<_> = commons.iter().filter_map(|text| text.split('{').next()).collect();
    assert!(commons.contains("mycora_saga_") && commons.contains("mycora_gateway_"), "{commons:?}");
    let is_there = |name: &str| code.contains(&format!("\"{name}\""));
    for name in documented().keys() {
        let rests = commons.iter().filter_map(|common| name.strip_prefix(*common));
        let found = rests.flat_map(|rest| [rest, rest.trim_end_matches("_total")]).chain([name.as_str()]);
        assert!(found.into_iter().any(is_there), "no code registers `{name}` of {PAGE}");
    }
}
