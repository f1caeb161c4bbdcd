//! `mycora saga test`, `mycora saga replay-verify` and `mycora saga server --nats-permissions`: no server is there.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::{home, run, stderr, stdout};

/// The example and its scenarios, as they stand in the repository.
fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../libs").join(file)
}

fn run_command(home: &Path, arguments: &[&str], code: i32) -> Output {
    let output = run(home, arguments);
    let printed = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {printed}");
    output
}

/// A folder with the example, its scenarios, and one of them changed.
fn folder(from: &str, to: &str) -> tempfile::TempDir {
    let home = home();
    let manifest =
        std::fs::read_to_string(example("workflow/src/manifest/example.yaml")).expect("the manifest");
    std::fs::write(home.path().join("order.yaml"), manifest).expect("written");
    let scenarios = std::fs::read_to_string(example("rehearsal/tests/it/order-fulfilment.test.yaml"));
    let scenarios = scenarios.expect("the scenarios");
    assert!(scenarios.contains(from), "{from}");
    let scenarios = scenarios.replacen("../../../workflow/src/manifest/example.yaml", "order.yaml", 1);
    std::fs::write(home.path().join("order.test.yaml"), scenarios.replacen(from, to, 1)).expect("written");
    home
}

#[test]
fn what_a_nats_server_has_to_allow_is_printed_for_the_tenants_of_a_file() {
    let home = home();
    std::fs::write(home.path().join("t.yaml"), "acme: { context: 1 }\nother: { context: 2 }\n")
        .expect("written");
    let printed = stdout(&run_command(
        home.path(),
        &["saga", "server", "--nats-permissions", "--tenants", "t.yaml"],
        0,
    ));
    for line in [
        "      user: \"mycora-saga\", password: $MYCORA_NATS_MYCORA_SAGA\n",
        "          \"tenant.*.workflow_event.*.*\"\n",
        "          \"tenant.other.aggregate.*.*\"\n",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    let single = stdout(&run_command(home.path(), &["saga", "server", "--nats-permissions"], 0));
    assert!(single.contains("\"aggregate.*.*\"") && !single.contains("tenant"), "{single}");
    std::fs::write(home.path().join("t.yaml"), "acme: { contxt: 1 }\n").expect("written");
    let refused =
        run_command(home.path(), &["saga", "server", "--nats-permissions", "--tenants", "t.yaml"], 2);
    assert!(stderr(&refused).contains("t.yaml:1:"), "{}", stderr(&refused));
    run_command(home.path(), &["saga", "server", "--tenants", "t.yaml"], 2);
}

#[test]
fn the_example_is_rehearsed_exhaustively() {
    let home = home();
    let file = example("rehearsal/tests/it/order-fulfilment.test.yaml");
    let file = file.to_str().expect("a text");
    let printed = stdout(&run_command(home.path(), &["saga", "test", file, "--exhaustive"], 0));
    assert!(printed.starts_with("ok      shipped: completed after "), "{printed}");
    let last = printed.lines().last().expect("a line");
    assert!(
        last.starts_with("13 scenarios, 0 failed; ") && last.ends_with(" variations, 0 failed"),
        "{printed}"
    );
    let printed = stdout(&run_command(home.path(), &["saga", "test", file], 0));
    assert_eq!(printed.lines().last(), Some("13 scenarios, 0 failed"), "{printed}");
}

#[test]
fn a_failed_scenario_is_reported_with_its_timeline() {
    let home = folder("reason: not paid within 30 minutes", "reason: not paid in an hour");
    let output = run_command(home.path(), &["saga", "test", "order.test.yaml"], 1);
    let printed = stdout(&output);
    for line in [
        "FAILED  not paid in time: compensated after 1803s\n",
        "        reason: expected not paid in an hour, found not paid within 30 minutes\n",
        "               2s  payment-reserve succeeded: applied; running at await-payment\n",
        "            1802s  timer pay-by: applied; compensating at await-payment\n",
        "                    -> undo payment-release {\"reference\":\"order-o-1\"}\n",
        "\n13 scenarios, 1 failed\n",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    let output = run_command(home.path(), &["--output", "json", "saga", "test", "order.test.yaml"], 1);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(
        (&document["passed"], &document["files"][0]["file"]),
        (&false.into(), &"order.test.yaml".into())
    );
    let scenarios = document["files"][0]["scenarios"].as_array().expect("a list");
    let failed: Vec<_> = scenarios.iter().filter(|scenario| scenario["passed"] == false).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["mismatches"][0]["found"], "not paid within 30 minutes");
    assert_eq!(failed[0]["timeline"][0]["input"], "event OrderPlaced");
}

#[test]
fn a_failed_variation_is_reported_with_its_reason() {
    let home = folder("kind: SagaTest\n", "kind: SagaTest\n");
    let careless = "kind: SagaTest\nmanifests: [order.yaml]\nscenarios:\n  - name: declined\n    given: [{ event: OrderPlaced, \
                    aggregate: Order, data: { order_id: o, email: e, amount_cents: 1 } }, { at: 1m, event: PaymentCaptured, \
                    aggregate: Payment, data: { amount_cents: 1 } }]\n    answers: [{ effect: payment-reserve, fail: declined }]\n    \
                    expect: { status: completed }\n";
    std::fs::write(home.path().join("careless.test.yaml"), careless).expect("written");
    let printed =
        stdout(&run_command(home.path(), &["saga", "test", "careless.test.yaml", "--exhaustive"], 0));
    assert!(printed.contains("ok      declined"), "{printed}");
    let kept = careless.replace("fail: declined", "succeed: { payment_id: 7 }");
    std::fs::write(home.path().join("careless.test.yaml"), kept).expect("written");
    let printed =
        stdout(&run_command(home.path(), &["saga", "test", "careless.test.yaml", "--exhaustive"], 1));
    assert!(
        printed.contains("a fault parks the instance: KIND: `state.payment_id` is optional text"),
        "{printed}"
    );
}

#[test]
fn an_invalid_scenario_file_is_refused_with_line_and_column() {
    let home = folder("step: receipt", "step: receit");
    let printed = stderr(&run_command(home.path(), &["saga", "test", "order.test.yaml"], 2));
    assert!(printed.starts_with("order.test.yaml:19:13: "), "{printed}");
    assert!(printed.contains("no step `receit`; did you mean `receipt`?"), "{printed}");
    let home = folder("kind: SagaTest\n", "kind: SagaTest\n");
    std::fs::remove_file(home.path().join("order.yaml")).expect("removed");
    let printed = stderr(&run_command(home.path(), &["saga", "test", "order.test.yaml"], 2));
    assert!(printed.contains("order.test.yaml:3:13: `order.yaml` cannot be read"), "{printed}");
    let printed = stderr(&run_command(home.path(), &["saga", "test", "none.yaml"], 2));
    assert!(printed.contains("none.yaml: `none.yaml` cannot be read"), "{printed}");
    run_command(home.path(), &["saga", "test"], 2);
}

const CANCELLED: &str = include_str!("../../../../libs/rehearsal/tests/journals/cancelled.json");
const TIMED_OUT: &str = include_str!("../../../../libs/rehearsal/tests/journals/timed-out.json");

/// These journals were written once, and lead to the same bytes for ever: in every build, on every machine.
#[test]
fn journals_lead_to_the_bytes_that_they_led_to() {
    let home = home();
    for (journal, rows, chain) in [
        (CANCELLED, 9, "483af46321a572745e36798da8274ae7d13bf480c219326d2f0d6cdbae65db44"),
        (TIMED_OUT, 6, "ea750937c1a184f2396c4aaae97ad27a2a2dc3d46cccb2cd5c10ac0076e06ce4"),
    ] {
        std::fs::write(home.path().join("journal.json"), journal).expect("written");
        let printed = stdout(&run_command(home.path(), &["saga", "replay-verify", "journal.json"], 0));
        assert!(printed.contains(&format!(": the same, {rows} rows, chain {chain}")), "{printed}");
        let output =
            run_command(home.path(), &["--output", "json", "saga", "replay-verify", "journal.json"], 0);
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
        assert_eq!((&document["same"], &document["chain_hash"]), (&true.into(), &chain.into()));
    }
}

#[test]
fn a_difference_is_named_with_its_row() {
    let home = home();
    let row = |what: &str| format!("order-fulfilment/o-2: revision {what}");
    for (from, to, code, expected) in [
        // A hash, the content of an input, what followed, when.
        ("\"chainHash\": \"fd92", "\"chainHash\": \"fd93", 1, row("5 differs: the instance behind it")),
        (
            "\\\"amount_cents\\\":4200,\\\"email",
            "\\\"amount_cents\\\":4201,\\\"email",
            1,
            row("1 differs: the instance"),
        ),
        ("\"fd92", "\"fd9", 2, "journal.json: entry 5: ".to_owned()),
        (
            "\"status\": \"SAGA_STATUS_COMPENSATED\"",
            "\"status\": \"SAGA_STATUS_FAILED\"",
            1,
            row("6 differs: the status"),
        ),
        (
            "\"time\": \"2026-01-05T11:00:00Z\",\n      \"input\"",
            "\"time\": \"2026-01-05T11:00:01Z\",\n      \"input\"",
            1,
            row("5 differs: the time"),
        ),
        ("\"reason\": \"not paid within 30 minutes\"", "\"reason\": \"\"", 1, "differs".to_owned()),
        (
            "\"commandIds\": [\n        \"019b8dd0",
            "\"commandIds\": [\n        \"019b8dd1",
            1,
            row("5 differs: the work"),
        ),
        (
            "\\\"order_id\\\":\\\"o-2\\\",\\\"payment_id",
            "\\\"order_id\\\":\\\"o-3\\\",\\\"payment_id",
            1,
            row("6 differs: the state at the end"),
        ),
        // The definition.
        ("after: 30m", "after: 31m", 1, "is of the definition ".to_owned()),
        ("after: 30m", "after: 30", 2, "definition:".to_owned()),
        // The first row, which is not kept for ever.
        ("\"revision\": \"1\"", "\"revision\": \"7\"", 1, "the journal begins with revision 7".to_owned()),
        // The file.
        ("\"dataJson\": \"{}\"", "\"dataJson\": \"\"", 2, "entry 5: its payload is left out".to_owned()),
        ("\"verb\": \"SAGA_VERB_SKIP_STEP\"", "\"verb\": \"SAGA_VERB_SKIP\"", 2, "entry 5: ".to_owned()),
        ("\"entries\"", "\"rows\"", 2, "no journal: unknown field `rows`".to_owned()),
    ] {
        assert!(TIMED_OUT.contains(from), "{from}");
        std::fs::write(home.path().join("journal.json"), TIMED_OUT.replacen(from, to, 1)).expect("written");
        let output = run_command(home.path(), &["saga", "replay-verify", "journal.json"], code);
        let printed = format!("{}{}", stdout(&output), stderr(&output));
        assert!(printed.contains(&expected), "{to}: {printed}");
    }
    run_command(home.path(), &["saga", "replay-verify", "none.json"], 2);
}

/// The page for people who are woken at night: each of its commands is understood as it stands there.
#[test]
fn commands_of_the_page_are_understood() {
    let page = testkit::pages::read("specs/saga.md");
    let value = |word: &str| match word {
        "SAGA" => "order".to_owned(),
        "CORRELATION" | "LETTER" => "o-1".to_owned(),
        "COMMAND" => "018bcfe5-6800-751b-8c5e-11be58818d21".to_owned(),
        "TYPE" => "Approved".to_owned(),
        "JSON" => "{}".to_owned(),
        "FILE" | "FILE…" => "order.test.yaml".to_owned(),
        word => word.trim_matches(['[', ']']).to_owned(),
    };
    // What stands between marks, outside blocks of code.
    let text: String = page.split("```").step_by(2).collect();
    // The group alone is no command: it shows its help.
    let is_command = |code: &&str| code.starts_with("mycora ") && *code != "mycora saga";
    let lines: Vec<_> = text.split('`').skip(1).step_by(2).filter(is_command).collect();
    assert!(lines.len() > 14, "{lines:?}");
    for line in lines {
        let arguments = line.split_whitespace().map(value);
        let read = mycora_cli::cli::command().try_get_matches_from(arguments);
        // Help goes to standard output, and is no mistake.
        let mistake = read.err().filter(clap::Error::use_stderr);
        assert!(mistake.is_none(), "{line}: {}", mistake.map(|error| error.to_string()).unwrap_or_default());
    }
}
