//! Scenarios that are played, and what is found in them.

use rehearsal::{Scenario, ScenarioFile, ScenarioReport, Variation, play, rehearse};

const EXAMPLE: &str = include_str!("../../../workflow/src/manifest/example.yaml");
const SCENARIOS: &str = include_str!("order-fulfilment.test.yaml");

/// Reads scenarios of one manifest.
fn scenarios(text: &str, manifest: &str) -> Vec<Scenario> {
    let source = ScenarioFile::read("test.yaml", text).unwrap_or_else(|problems| panic!("{problems}"));
    let manifests = [("manifest.yaml".to_owned(), manifest.to_owned())];
    source.scenarios(&manifests).unwrap_or_else(|problems| {
        panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })
}

fn reports(text: &str, manifest: &str, is_exhaustive: bool) -> Vec<ScenarioReport> {
    scenarios(text, manifest).iter().map(|scenario| rehearse(scenario, is_exhaustive)).collect()
}

/// Renders failures as reports name them.
fn failures(report: &ScenarioReport) -> Vec<String> {
    let mismatches = report.mismatches.iter();
    let mismatches = mismatches.map(|m| format!("{}: {}; found {}", m.what, m.expected, m.found));
    let variations = report.variations.iter().flat_map(|variations| &variations.failures);
    let variations = variations.map(|failure| format!("{}: {:?}", failure.variation, failure.broken));
    mismatches.chain(report.problems.iter().cloned()).chain(variations).collect()
}

#[test]
fn the_example_holds_whatever_goes_wrong() {
    let reports = reports(SCENARIOS, EXAMPLE, true);
    assert_eq!(reports.len(), 13);
    for report in &reports {
        assert!(report.passed, "{}: {:#?}\n{:#?}", report.name, failures(report), report.timeline);
        let variations = report.variations.as_ref().expect("they were asked for");
        assert!(variations.guessed.is_empty(), "{:?}", variations.guessed);
    }
    let shipped = reports[0].variations.as_ref().expect("asked for");
    assert!(shipped.played > 30, "{}", shipped.played);
    for end in ["completed", "compensated", "stuck"] {
        assert!(shipped.ends.contains_key(end), "{:?}", shipped.ends);
    }
}

#[test]
fn the_same_scenario_gives_the_same_bytes() {
    for scenario in scenarios(SCENARIOS, EXAMPLE) {
        let (first, second) = (play(&scenario, &Variation::None), play(&scenario, &Variation::None));
        assert_eq!((&first.journal, &first.record), (&second.journal, &second.record));
        assert_eq!(first.timeline, second.timeline);
    }
}

/// A scenario of the example in which one thing is another one.
fn changed(from: &str, to: &str) -> String {
    assert!(SCENARIOS.contains(from), "{from}");
    SCENARIOS.replacen(from, to, 1)
}

#[test]
fn each_mismatch_with_the_expectations_is_reported() {
    for (from, to, name, expected) in [
        ("status: completed\n", "status: failed\n", "shipped", "status: failed; found completed"),
        ("step: receipt", "step: refuse", "shipped", "step: refuse; found receipt"),
        (
            "label: L-7 }\n      work",
            "label: L-9 }\n      work",
            "shipped",
            "state.label: \"L-9\"; found \"L-7\"",
        ),
        (
            "pay-by: 1802s",
            "pay-by: 30m",
            "waits for the payment",
            "timers: pay-by at 30m; found pay-by at 1802s",
        ),
        (
            "reason: payment declined",
            "reason: declined",
            "declined",
            "work: payment-reserve, Cancel for */o-1 {\"reason\":\"declined\"}; found",
        ),
        (
            "compensations: [payment-release]\n\n  - name: cancelled",
            "compensations: []\n\n  - name: cancelled",
            "the reply to the reservation is lost",
            "compensations: none; found payment-release {\"reference\":\"order-o-1\"}",
        ),
        (
            "letters: [DECLARED]",
            "letters: []",
            "too little is captured",
            "letters: none; found DECLARED (captured 4100",
        ),
        (
            "refused: PAST_PIVOT",
            "refused: SAGA_ENDED",
            "cancelled behind the pivot",
            "verb cancel: expected the refusal SAGA_ENDED, found PAST_PIVOT",
        ),
        (
            "reason: changed my mind, refused: PAST_PIVOT",
            "reason: changed my mind",
            "cancelled behind the pivot",
            "verb cancel is refused: PAST_PIVOT",
        ),
        (
            "{ at: 2h, verb: retry-step }",
            "{ at: 2h, verb: retry-step, refused: X }",
            "the release fails and is tried again",
            "verb retry-step: expected the refusal X, found applied",
        ),
        (
            "  - { effect: mail-receipt, succeed: {} }\nscenarios",
            "scenarios",
            "shipped",
            "nothing answers the effect `mail-receipt`, which is given {",
        ),
        (
            "- { at: 5m, event: OrderCancelled, aggregate: Order }",
            "- { at: 5m, event: OrderCancelled, aggregate: Order, metadata: { correlation_id: other } }",
            "cancelled by the customer",
            "the event `OrderCancelled` is of the correlation `other`, the scenario of `test-1`",
        ),
    ] {
        let reports = reports(&changed(from, to), EXAMPLE, false);
        let report = reports.iter().find(|report| report.name == name).expect("it is there");
        let found = failures(report);
        assert!(!report.passed && found.iter().any(|line| line.starts_with(expected)), "{to}: {found:#?}");
    }
}

/// A saga whose author thought of the good days only.
const CARELESS: &str = r#"
kind: Saga
name: careless
version: 1
state: { id: text, total: int }
sources: [{ aggregate: Order }]
start: { on: Placed, set: { id: "${{ event.data.id }}", total: 0 }, goto: book }
steps:
  book:
    effect: book
    on_success: { set: { total: "${{ result.total }}" }, goto: wait }
    on_failure: { set: { total: "${{ result.total }}" }, end: failed }
    compensate: { effect: unbook }
  wait: { on: { Paid: { end: completed } } }
"#;

#[test]
fn what_an_author_did_not_think_of_is_found() {
    let text = "kind: SagaTest\nmanifests: [m.yaml]\nscenarios:\n  - name: good day\n    given: [{ event: Placed, data: { id: a } }, { at: 1m, event: Paid }]\n    answers: [{ effect: book, succeed: { total: 7 } }]\n    expect: { status: completed, state: { total: 7 } }\n";
    let plain = &reports(text, CARELESS, false)[0];
    assert!(plain.passed, "{:?}", failures(plain));
    let report = &reports(text, CARELESS, true)[0];
    let found = failures(report);
    let lost = "the reply to book (no. 1) is lost: [\"a fault parks the instance: KIND";
    assert!(!report.passed && found.iter().any(|line| line.starts_with(lost)), "{found:#?}");
    let variations = report.variations.as_ref().expect("asked for");
    assert!(variations.guessed.contains("unbook"), "{:?}", variations.guessed);
    assert!(variations.failures.iter().all(|failure| !failure.timeline.is_empty()));
    // It may be left out of what is tried.
    let left_out = text.replace("    expect:", "    exhaustive: false\n    expect:");
    assert!(reports(&left_out, CARELESS, true)[0].variations.is_none());
}

#[test]
fn a_saga_that_never_rests_is_reported() {
    let manifest = "kind: Saga\nname: restless\nversion: 1\nsources: [{ aggregate: A }]\nstart: { on: Go, goto: a }\nsteps:\n  a: { timers: { t: { after: 1s, raise: Tick } }, on: { Tick: { goto: b } } }\n  b: { timers: { t: { after: 1s, raise: Tick } }, on: { Tick: { goto: a }, Stop: { end: completed } } }\n";
    let text = "kind: SagaTest\nmanifests: [m.yaml]\nscenarios:\n  - name: for ever\n    given: [{ event: Go }]\n    expect: { status: running }\n";
    let report = &reports(text, manifest, false)[0];
    assert!(
        failures(report).iter().any(|line| line.contains("does not end within")),
        "{:?}",
        report.problems
    );
    let bounded = text.replace("    expect", "    until: 1h\n    expect");
    let report = &reports(&bounded, manifest, false)[0];
    assert!(report.passed && report.lasted_ms == 3_600_000, "{:?} {}", failures(report), report.lasted_ms);
}
