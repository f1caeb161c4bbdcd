//! Scenario files that are wrong.

use rehearsal::ScenarioFile;

const EXAMPLE: &str = include_str!("../../../workflow/src/manifest/example.yaml");
const SCENARIOS: &str = include_str!("order-fulfilment.test.yaml");

fn problems(text: &str) -> String {
    let source = match ScenarioFile::read("t.yaml", text) {
        Ok(source) => source,
        Err(problems) => return problems.to_string(),
    };
    assert!(!source.manifests().is_empty());
    match source.scenarios(&[("m.yaml".to_owned(), EXAMPLE.to_owned())]) {
        Ok(_) => String::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

#[test]
fn everything_that_is_wrong_has_its_place_and_a_hint() {
    assert_eq!(problems(SCENARIOS), "");
    for (from, to, expected) in [
        ("kind: SagaTest", "kind: Saga", "t.yaml:2:7: `kind` has to be `SagaTest`, not `Saga`"),
        ("kind: SagaTest\n", "", "begins with `kind: SagaTest`"),
        ("manifests: [../../../workflow/src/manifest/example.yaml]\n", "", "names its manifests"),
        (
            "saga: order-fulfilment",
            "saga: order-fulfilled",
            "no saga `order-fulfilled`; did you mean `order-fulfilment`?",
        ),
        ("tenant: acme-corp", "tenant: acme.corp", "5:9: the tenant is made of"),
        ("begin: \"2026-01-05T09:00:00Z\"", "begin: monday", "6:8: `begin` has to be a moment"),
        ("name: shipped", "nam: shipped", "a scenario has no key `nam`; did you mean `name`?"),
        ("name: declined", "name: shipped", "the scenario `shipped` stands twice"),
        (
            "at: 10m, event: PaymentCaptured,",
            "at: 10, event: PaymentCaptured,",
            "`at` has to be a length of time",
        ),
        (
            "event: PaymentCaptured,",
            "event: PaymentCapture,",
            "no event `PaymentCapture`; did you mean `PaymentCaptured`?",
        ),
        ("aggregate: Payment,", "aggregate: Paiment,", "no source `Paiment`; did you mean `Payment`?"),
        (
            "event: OrderCancelled, aggregate: Order",
            "event: OrderCancelled",
            "the event needs `aggregate`; there are Order, Payment",
        ),
        ("verb: retry-step", "verb: retry-steps", "no verb `retry-steps`; did you mean `retry-step`?"),
        ("verb: retry-step", "verb: retry-step, version: 2", "a verb has no `version`"),
        (
            "verb: retry-step",
            "verb: retry-step, event: OrderPlaced",
            "an input has one of `event` and `verb`",
        ),
        (
            "effect: payment-release, succeed",
            "effect: payment-releas, succeed",
            "no effect `payment-releas`; did you mean `payment-release`?",
        ),
        (
            "succeed: {}, after: 1s",
            "succeed: {}, fail: {}, after: 1s",
            "an answer has one of succeed, fail, time_out, unknown, never",
        ),
        (
            "succeed: {}, after: 1s",
            "succeed: {}, may_have_happened: true",
            "`may_have_happened` is said of `fail` and `time_out`",
        ),
        ("succeed: {}, after: 1s", "succeed: {}, when: output.x == 1", "`output` is not known here"),
        ("occurrence: 1", "occurrence: 0", "`occurrence` has to be a whole number from 1 on"),
        ("amount_cents: 4100", "amount_cents: 41.00", "numbers are whole here; write \"41.00\""),
        ("status: compensated", "status: compensatd", "no status `compensatd`; did you mean `compensated`?"),
        ("step: refuse", "step: refused", "no step `refused`; did you mean `refuse`?"),
        (
            "payment_id: p-1, label",
            "payment: p-1, label",
            "no field of its state `payment`; did you mean `payment_id`?",
        ),
        ("timers: { pay-by:", "timers: { pay-bye:", "no timer `pay-bye`; did you mean `pay-by`?"),
        (
            "work: [payment-reserve, make-label",
            "work: [payment-reserve, make-labels",
            "no effect or command `make-labels`",
        ),
        (
            "command: MarkShipped, aggregate",
            "command: MarkShiped, aggregate",
            "no command `MarkShiped`; did you mean `MarkShipped`?",
        ),
        (
            "command: MarkShipped, aggregate: Order, id: o-1, payload",
            "command: MarkShipped, input",
            "`command` has no `input`",
        ),
    ] {
        assert!(SCENARIOS.contains(from), "{from}");
        let found = problems(&SCENARIOS.replacen(from, to, 1));
        assert!(found.contains(expected), "{to}: {found}");
    }
    let both = SCENARIOS.replacen("name: shipped", "nam: shipped", 1).replacen("step: refuse", "step: no", 1);
    assert_eq!(problems(&both).lines().count(), 3, "{}", problems(&both));
    assert!(problems("kind: [").starts_with("t.yaml:"));
    assert!(problems(&"#".repeat(2_000_000)).contains("at most 1048576 bytes"));
}

#[test]
fn manifests_are_read_as_a_service_reads_them() {
    let source = ScenarioFile::read("t.yaml", SCENARIOS).expect("good");
    let wrong = EXAMPLE.replace("goto: await-payment", "goto: await");
    let refused = source.scenarios(&[("m.yaml".to_owned(), wrong)]).expect_err("wrong").remove(0).to_string();
    assert!(refused.contains("m.yaml:") && refused.contains("there is no step `await`"), "{refused}");
    let other = EXAMPLE.replace("  make-label: {", "  make-labels: {");
    let refused = source.scenarios(&[("m.yaml".to_owned(), other)]).expect_err("wrong").remove(0).to_string();
    assert!(refused.contains("no provider has the effect `make-label`"), "{refused}");
    // Providers are the operator's, and may be elsewhere.
    let alone = EXAMPLE.split("---").next().expect("the saga").to_owned();
    assert!(source.scenarios(&[("m.yaml".to_owned(), alone)]).is_ok());
}
