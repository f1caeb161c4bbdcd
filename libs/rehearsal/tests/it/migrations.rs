//! Scenarios of instances that become ones of a later version.

use rehearsal::{ScenarioFile, ScenarioReport, rehearse};

const SCENARIOS: &str = r#"
kind: SagaTest
manifests: [three.yaml]
earlier: [one.yaml, two.yaml]
answers:
  - { effect: reserve, succeed: {} }
  - { effect: release, succeed: {} }
scenarios:
  - name: the whole way
    starts_on: 1
    given:
      - { event: Placed, data: { id: o-1 } }
      - { at: 1m, verb: migrate }
      - { at: 2m, event: Paid }
    expect: { status: completed, state: { way: 1-2-3 }, work: [reserve, Ship] }
  - name: cancelled behind it
    starts_on: 1
    given:
      - { event: Placed, data: { id: o-1 } }
      - { at: 1m, verb: migrate }
      - { at: 2m, verb: cancel }
    expect: { status: compensated, compensations: [release] }
  - name: the newest stays what it is
    given:
      - { event: Placed, data: { id: o-1 } }
      - { at: 1m, verb: migrate, refused: SAGA_NOT_MIGRATABLE }
    expect: { status: running, step: settle }
"#;

/// A version, by the names of its steps.
fn version(version: u32, work: &str, wait: &str, migrate: &str) -> String {
    format!(
        r#"
kind: Saga
name: order
version: {version}
state: {{ id: text, way: text }}
sources: [{{ aggregate: Order }}]
start: {{ on: Placed, set: {{ id: "${{{{ event.data.id }}}}", way: "{version}" }}, goto: {work} }}
steps:
  {work}: {{ effect: reserve, compensate: {{ effect: release }}, on_success: {{ goto: {wait} }} }}
  {wait}: {{ on: {{ Paid: {{ goto: ship }} }} }}
  ship: {{ command: {{ aggregate: Order, id: "${{{{ state.id }}}}", type: Ship }}, on_success: {{ end: completed }} }}
{migrate}
"#
    )
}

fn manifests() -> Vec<(String, String)> {
    let way = |from: u32, to: u32, steps: &str| {
        format!(
            "migrate: {{ from: {from}, steps: {{ {steps} }}, set: {{ way: \"${{{{ state.way }}}}-{to}\" }} }}"
        )
    };
    let texts = [
        ("three.yaml", version(3, "hold", "settle", &way(2, 3, "book: hold, pay: settle"))),
        ("one.yaml", version(1, "reserve", "wait", "")),
        ("two.yaml", version(2, "book", "pay", &way(1, 2, "reserve: book, wait: pay"))),
    ];
    texts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

fn reports(manifests: &[(String, String)]) -> Vec<ScenarioReport> {
    let source = ScenarioFile::read("t.yaml", SCENARIOS).unwrap_or_else(|problems| panic!("{problems}"));
    let named: Vec<_> = source.manifests().iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(named, ["three.yaml", "one.yaml", "two.yaml"]);
    let scenarios = source.scenarios(manifests);
    let scenarios = scenarios.unwrap_or_else(|problems| panic!("{problems:?}"));
    scenarios.iter().map(|scenario| rehearse(scenario, true)).collect()
}

#[test]
fn a_migration_over_two_versions_holds_whatever_goes_wrong() {
    for report in reports(&manifests()) {
        assert!(report.passed, "{report:#?}");
    }
}

#[test]
fn a_way_that_is_broken_fails_its_scenarios() {
    let mut manifests = manifests();
    manifests[2].1 = manifests[2].1.replace("migrate: { from: 1, ", "migrate: { from: 9, ");
    let report = reports(&manifests).remove(0);
    assert!(!report.passed);
    let is_reported =
        report.problems.iter().any(|problem| problem.contains("version 2 migrates from version 9"));
    assert!(is_reported, "{:?}", report.problems);
}

#[test]
fn versions_that_are_not_before_the_one_in_force_are_problems() {
    let source = ScenarioFile::read("t.yaml", SCENARIOS).expect("good");
    let mut manifests = manifests();
    manifests[1].1 = manifests[1].1.replace("version: 1", "version: 4");
    let problems = source.scenarios(&manifests).expect_err("a later version");
    let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("t.yaml:4:10: version 4 stands twice, or is not before version 3"), "{text}");
    assert!(text.contains("no manifest has version 1; there are 4, 3, 2"), "{text}");
}
