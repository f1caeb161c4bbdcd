//! Requests of commands about sagas, and how they handle the answers.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use mycora_cli::cli;
use serde_json::json;

use crate::commands::CommandFixture;
use crate::coordinator::CoordinatorScript;
use crate::coordinator::sagas::DEFINITION;
use crate::{home, run, stderr, stdout};

const COMMAND: &str = "018f4d2e-7a1b-7c3d-8e4f-0123456789ab";
const REQUEST: &str = "5b2d3a51-9f0c-4a3e-8d5a-0123456789ab";

/// The calls of one method.
fn calls(place: &CommandFixture, method: &str) -> Vec<String> {
    place.calls().into_iter().filter(|call| call.split(' ').next() == Some(method)).collect()
}

/// Words of a line as a shell reads them, up to where it hands something on.
fn split_arguments(line: &str) -> Vec<String> {
    let (mut arguments, mut argument, mut quoted) = (Vec::new(), None::<String>, false);
    for c in line.chars() {
        match (c, quoted) {
            ('\'', _) => {
                quoted = !quoted;
                argument.get_or_insert_default();
            }
            ('|' | '>', false) => break,
            (' ', false) => arguments.extend(argument.take()),
            (c, _) => argument.get_or_insert_default().push(c),
        }
    }
    arguments.extend(argument);
    arguments
}

#[test]
fn examples_are_as_they_can_be_typed() {
    let all = cli::command();
    let mut commands = vec![all.find_subcommand("saga").expect("it is there").clone()];
    let mut tried = 0;
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().cloned());
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  ") && line.contains("mycora saga")) {
            let line = line
                .trim()
                .rsplit_once("| mycora")
                .map_or(line.trim().to_owned(), |(_, rest)| format!("mycora{rest}"));
            let understood = cli::command().try_get_matches_from(split_arguments(&line));
            assert!(understood.is_ok(), "{line}: {}", understood.expect_err("just looked"));
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried}");
}

#[test]
fn the_tenant_defaults_to_the_context() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    place.run_command(&["saga", "explain", "order", "o-1"], 0);
    let requests = calls(&place, "explain_saga");
    assert!(requests[0].contains("tenant_id: \"1\""), "{requests:?}");
    place.run_command(&["--context", "7", "saga", "explain", "order", "o-1"], 0);
    place.run_command(&["saga", "explain", "order", "o-1", "--tenant", "acme"], 0);
    let requests = calls(&place, "explain_saga");
    assert!(
        requests[1].contains("tenant_id: \"7\"") && requests[2].contains("tenant_id: \"acme\""),
        "{requests:?}"
    );
    // With an explicit tenant the server is not asked whether it has any.
    assert_eq!(calls(&place, "list_saga_definitions").len(), 2);
    let refused = place.run_command(&["saga", "list", "--tenant", "a.b"], 2);
    assert!(stderr(&refused).contains("the tenant is made of"), "{}", stderr(&refused));

    let profile = std::fs::read_to_string(&place.coordinator.profile).expect("a profile");
    std::fs::write(&place.coordinator.profile, format!("tenant = \"shop\"\n{profile}")).expect("written");
    place.run_command(&["saga", "explain", "order", "o-1"], 0);
    let requests = calls(&place, "explain_saga");
    assert!(requests[3].contains("tenant_id: \"shop\""), "{requests:?}");
    let connection = stdout(&place.run_command(&["connection"], 0));
    let tenant = connection.lines().find(|line| line.starts_with("tenant "));
    assert!(tenant.is_some_and(|line| line.ends_with(" shop")), "{connection}");

    let place = CommandFixture::new(CoordinatorScript::NoTenants);
    assert_eq!(stdout(&place.run_command(&["saga", "explain", "order", "o-1"], 0)), "o-1 waits\n");
    let requests = calls(&place, "explain_saga");
    assert!(requests[0].contains("tenant_id: \"\""), "{requests:?}");
    let refused = place.run_command(&["saga", "explain", "order", "o-1", "--tenant", "acme"], 2);
    assert_eq!(stderr(&refused), "tenant_id: this server has no tenants: leave it empty\n");
}

#[test]
fn a_start_reports_the_change_and_can_be_repeated() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let start = |correlation| ["saga", "start", "order", correlation, "--request-id", REQUEST];
    let printed = stdout(&place.run_command(&start("o-1"), 0));
    assert!(printed.contains("status       running at reserve\n") && printed.contains(REQUEST), "{printed}");
    let document = place.document(&[&start("o-1")[..], &["--data", r#"{"a": 1.50}"#]].concat(), 0);
    assert_eq!(document["change"]["saga"]["status"], "SAGA_STATUS_RUNNING");
    let requests = calls(&place, "start_saga");
    assert!(requests[1].contains(r#"data_json: "{\"a\": 1.50}""#), "{requests:?}");

    // A lost answer is requested again, under the same id.
    place.run_command(&["saga", "start", "order", "lost"], 0);
    let ids = place.coordinator.recorded(|recorded| recorded.request_ids.clone());
    assert_eq!(ids.len(), 4);
    assert_eq!(ids[2], ids[3]);

    // One exceeded deadline ends the call, and the hint is shown.
    let late = stderr(&place.run_command(&start("late"), 3));
    assert!(late.contains("does not answer") && late.contains(&format!("--request-id {REQUEST} ")), "{late}");
    assert!(late.contains("`mycora saga lanes`") && !late.contains("mycora up"), "{late}");
    let requests = calls(&place, "start_saga");
    assert_eq!(requests.iter().filter(|requests| requests.contains("\"late\"")).count(), 1, "{requests:?}");
    let there = stderr(&place.run_command(&start("there"), 1));
    assert!(there.ends_with("`mycora saga show SAGA CORRELATION` shows it\n"), "{there}");
    for (arguments, expected) in [
        (&["saga", "start", "order", "o-1", "--data", "{"][..], "--data: is no JSON: "),
        (&["saga", "start", "or_der", "o-1"], "the name of a saga is made of"),
        (&["saga", "start", "order", ""], "the correlation must not be empty"),
        (&["saga", "start", "order", "o-1", "--data-file", "none"], "none: cannot be read"),
        (&["saga", "start", "order", "o-1", "--request-id", "7"], "a UUID is needed"),
    ] {
        let printed = stderr(&place.run_command(arguments, 2));
        assert!(printed.contains(expected), "{arguments:?}: {printed}");
    }
}

#[test]
fn saga_commands_send_their_options_to_the_server() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let kill = ["saga", "kill", "order", "o-1", "--reason", "over"];
    let printed = stderr(&place.run_command(&kill, 2));
    assert!(printed.contains("confirm with --yes, or look with --dry-run"), "{printed}");
    assert_eq!(calls(&place, "kill_saga").len(), 0);
    let printed =
        stdout(&place.run_command(&[&kill[..], &["--dry-run", "--expect-revision", "4"]].concat(), 0));
    assert!(printed.contains("dry run      nothing was changed"), "{printed}");
    place.run_command(&[&kill[..], &["--yes"]].concat(), 0);
    let requests = calls(&place, "kill_saga");
    assert!(requests[0].contains("expected_revision: 4, dry_run: true, reason: \"over\""), "{requests:?}");
    assert!(requests[1].contains("expected_revision: 0, dry_run: false"), "{requests:?}");

    let printed = stderr(&place.run_command(&["saga", "cancel", "order", "o-1"], 2));
    assert!(printed.contains("--reason"), "{printed}");
    for verb in ["pause", "skip-step", "complete", "migrate"] {
        place.run_command(&["saga", verb, "order", "o-1"], 0);
    }
    let refused = stderr(&place.run_command(&["saga", "resume", "order", "o-1"], 1));
    assert_eq!(refused, "the instance o-1 of order is not paused\n");
    let parked = stderr(&place.run_command(&["saga", "retry-step", "order", "o-1"], 1));
    assert!(parked.contains("`mycora saga letters list"), "{parked}");
    place.run_command(&["saga", "skip-step", "order", "o-1", "--result", "7"], 0);
    let requests = calls(&place, "skip_saga_step");
    assert!(requests[1].contains("result_json: \"7\""), "{requests:?}");
}

#[test]
fn a_watch_goes_on_until_its_instance_has_ended() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let printed = stdout(&place.run_command(&["saga", "watch", "order", "o-1"], 0));
    let lines: Vec<_> = printed.lines().take(2).collect();
    assert!(lines[0].ends_with("saga order o-1: running at ship"), "{printed}");
    assert!(lines[1].ends_with("saga order o-1: completed at receipt"), "{printed}");
    assert!(printed.contains("\nstate\n{\n  \"a\": 1\n}\n") && !printed.contains("never"), "{printed}");
    assert_eq!(place.coordinator.recorded(|recorded| recorded.resumed_from.clone()), ["", "4"]);

    let printed = stdout(&place.run_command(&["saga", "watch", "order", "o-2", "--output", "json"], 1));
    let last: serde_json::Value =
        serde_json::from_str(printed.lines().last().expect("lines")).expect("a document");
    assert_eq!(last["saga"]["status"], "SAGA_STATUS_COMPENSATED");
    let printed = stderr(&place.run_command(&["saga", "watch", "order", "none"], 1));
    assert!(printed.starts_with("the instance none of order was not found"), "{printed}");

    place.run_command(&["saga", "watch", "--once"], 0);
    place.run_command(&["saga", "watch", "order", "--once", "--ended"], 0);
    let requests = calls(&place, "watch_sagas");
    let [.., open, all] = requests.as_slice() else { panic!("{requests:?}") };
    assert!(open.contains("saga: \"\"") && open.contains("snapshot: Open"), "{open}");
    assert!(all.contains("saga: \"order\"") && all.contains("snapshot: Unspecified"), "{all}");
    place.run_command(&["saga", "start", "order", "o-2", "--watch"], 1);
    place.run_command(&["saga", "cancel", "order", "o-1", "--reason", "x", "--watch"], 0);
}

#[test]
fn lists_follow_their_pages() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let document = place.document(&["saga", "list", "--status", "stuck", "--blocked", "--here-for", "2h"], 0);
    assert_eq!(document["sagas"].as_array().map(Vec::len), Some(2));
    let requests = calls(&place, "list_sagas");
    assert_eq!(requests.len(), 3);
    assert!(
        requests[0].contains("statuses: [Stuck]") && requests[0].contains("blocked: true"),
        "{requests:?}"
    );
    let output = place.run_command(&["saga", "list", "--limit", "1"], 0);
    assert!(stdout(&output).contains("order  o-1          running  ship"), "{}", stdout(&output));
    assert_eq!(stderr(&output), "there are more than 1; ask for them with --limit\n");
    for (arguments, expected) in [
        (&["saga", "timers", "order", "--within", "1h"][..], "no such timer is set\n"),
        (
            &["saga", "definitions"],
            "there are no such definitions; `mycora saga apply FILE` puts some in force\n",
        ),
        (&["saga", "effect", "list", "--state", "manual"], "there are no such calls\n"),
        (&["saga", "letters", "list", "order"], "there are no such dead letters\n"),
        (&["saga", "lanes"], "there are no such lanes; each saga and effect in force has some\n"),
    ] {
        assert_eq!(stderr(&place.run_command(arguments, 0)), expected);
    }
}

#[test]
fn a_journal_is_all_that_it_takes_to_run_an_instance_again() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let output = place.run_command(&["saga", "timeline", "order", "o-1", "--journal"], 0);
    let journal: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("one document");
    let expected = json!({
        "saga": "order",
        "correlation_id": "o-1",
        "tenant_id": "1",
        "definition": "{\"kind\": \"Saga\", \"name\": \"order\"}",
        "entries": [{"revision": "1", "definitionHash": DEFINITION}, {"revision": "2"}],
    });
    assert_eq!(journal, expected);
    let requests = calls(&place, "get_saga_timeline");
    assert!(requests.iter().all(|call| call.contains("with_payloads: true")), "{requests:?}");
    let text = stdout(&place.run_command(&["saga", "timeline", "order", "o-1"], 0));
    assert_eq!(text.lines().count(), 3, "{text}");
    let manifest = stdout(&place.run_command(&["saga", "definition", "order", "--manifest"], 0));
    assert_eq!(manifest, "{\"kind\": \"Saga\", \"name\": \"order\"}\n");
}

#[test]
fn a_call_is_ended_with_its_token_or_by_an_operator() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let token = place.home.path().join("token");
    std::fs::write(&token, "secret-1\n").expect("written");
    std::fs::set_permissions(&token, Permissions::from_mode(0o600)).expect("it is ours");
    let complete = ["saga", "effect", "complete", COMMAND, "--token-file", "token"];
    let refused = stderr(&place.run_command(&[&complete[..], &["--failed", "refused"]].concat(), 3));
    assert_eq!(refused, "not its token\nuse the token that was issued for this call; no other is accepted\n");
    let requests = calls(&place, "complete_effect");
    assert!(
        requests[0].contains("token: \"secret-1\"") && requests[0].contains("code: \"refused\""),
        "{requests:?}"
    );
    assert!(stderr(&place.run_command(&complete, 2)).contains("--succeeded"));
    place.run_command(&["saga", "effect", "resolve", COMMAND, "--not-done"], 0);
    place.run_command(&["saga", "effect", "resolve", COMMAND, "--succeeded", "--result", "{\"p\": 1}"], 0);
    let requests = calls(&place, "resolve_effect");
    assert!(
        requests[0].contains("NotDone") && requests[1].contains(r#"result_json: "{\"p\": 1}""#),
        "{requests:?}"
    );
    let both = ["saga", "effect", "resolve", COMMAND, "--not-done", "--succeeded"];
    assert!(stderr(&place.run_command(&both, 2)).contains("cannot be used with"));
    for verb in ["show", "retry", "cancel"] {
        place.run_command(&["saga", "effect", verb, COMMAND], 0);
    }
    assert!(stderr(&place.run_command(&["saga", "effect", "show", "7"], 2)).contains("command id"));
}

#[test]
fn letters_are_redriven_and_purged_by_name() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let printed = stdout(&place.run_command(&["saga", "letters", "redrive", "good"], 0));
    assert!(printed.contains("good    applied"), "{printed}");
    let printed = stdout(&place.run_command(&["saga", "letters", "redrive", "good", "bad"], 1));
    assert!(printed.contains("bad     failed again, and stays  bad"), "{printed}");
    let printed = stderr(&place.run_command(&["saga", "letters", "redrive", "a", "b", "--data", "1"], 2));
    assert_eq!(printed, "other data can be given to one letter at a time\n");
    let printed = stderr(&place.run_command(&["saga", "letters", "purge", "a"], 2));
    assert!(printed.contains("confirm with --yes"), "{printed}");
    let printed = stdout(&place.run_command(&["saga", "letters", "purge", "a", "--yes"], 0));
    assert!(printed.starts_with("1 letter is removed, with 2 inputs behind"), "{printed}");
}

#[test]
fn a_replay_needs_confirmation_and_reports_differences() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let lane = "s:1:order:1";
    let printed =
        stderr(&place.run_command(&["saga", "replay", lane, "--confirm", "s:1:order:0", "--verify"], 2));
    assert!(printed.starts_with("--confirm names another lane"), "{printed}");
    let output = place.run_command(&["saga", "replay", lane, "--confirm", lane, "--verify"], 1);
    let printed = stdout(&output);
    assert!(
        printed.starts_with("o-1 differs at revision 3: another state\n2 instances compared: 1 differ"),
        "{printed}"
    );
    assert_eq!(stderr(&output), "1 instance compared so far\n");
    let other = "s:1:order:0";
    place.run_command(&["saga", "replay", other, "--confirm", other, "--from", "2h"], 0);
    let printed =
        stderr(&place.run_command(&["saga", "replay", other, "--confirm", other, "--from", "4711"], 2));
    assert!(printed.contains("name it with --source"), "{printed}");
    place.run_command(
        &["saga", "replay", other, "--confirm", other, "--from", "4711", "--source", "aggregate.Order"],
        0,
    );
    let requests = calls(&place, "replay_lane");
    assert!(requests[1].contains("Time(") && requests[2].contains("Sequence(4711)"), "{requests:?}");
    assert_eq!(requests.len(), 3);
}

#[test]
fn the_service_is_drained_as_a_whole_unless_a_tenant_is_named() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let printed = stdout(&place.run_command(&["saga", "drain", "--deadline", "5m"], 0));
    assert!(printed.starts_with("drained      the service, which ends then\n"), "{printed}");
    place.run_command(&["saga", "drain", "--tenant", "acme"], 0);
    let requests = calls(&place, "drain");
    assert!(requests[0].contains("tenant_id: \"\", deadline_secs: Some(300)"), "{requests:?}");
    assert!(requests[1].contains("tenant_id: \"acme\""), "{requests:?}");
    assert!(
        stderr(&place.run_command(&["saga", "drain", "--tenant", "acme", "--deadline", "5"], 2))
            .contains("--deadline")
    );
    let printed = stderr(&place.run_command(&["saga", "reload", "--dry-run"], 2));
    assert_eq!(printed, "a.yaml: cannot be read\n");
    assert_eq!(place.document(&["saga", "reload", "--dry-run"], 2)["problems"][0]["file"], "a.yaml");
    assert!(stdout(&place.run_command(&["saga", "reload"], 0)).starts_with("everything is as it was\n"));
    // A refused reload reports all problems, as a dry run does.
    assert_eq!(
        stderr(&place.run_command(&["saga", "reload", "--tenant", "broken"], 2)),
        "a.yaml: cannot be read\n"
    );
    assert!(stdout(&place.run_command(&["saga", "server"], 0)).starts_with("replica   saga-1\n"));
    place.run_command(&["saga", "pause-tenant"], 0);
    place.run_command(&["saga", "resume-tenant", "--tenant", "acme"], 0);
    assert!(calls(&place, "pause_tenant")[0].contains("tenant_id: \"1\""));
    assert_eq!(
        stdout(&place.run_command(&["saga", "graph", "order", "--format", "dot"], 0)).lines().count(),
        5
    );
}

const SAGA: &str = "\
kind: Saga
name: order
version: 1
state: { id: text }
correlate: event.data.id
start: { set: { id: \"${{ event.data.id }}\" }, goto: tell }
steps:
  tell:
    effect: mail
    input: { to: \"${{ state.id }}\" }
    on_done: { end: completed }
";

#[test]
fn manifests_are_checked_without_a_server_and_by_one() {
    let home = home();
    std::fs::write(home.path().join("order.yaml"), SAGA).expect("written");
    std::fs::write(home.path().join("bad.yaml"), "kind: Saga\nname: a_b\n").expect("written");
    let output = run(home.path(), &["saga", "validate", "order.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "the saga `order`, version 1, is good: 1 step, 1 effect\n");
    assert!(stderr(&output).starts_with("1 effect was not looked for"), "{}", stderr(&output));
    let output = run(home.path(), &["saga", "validate", "order.yaml", "bad.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("bad.yaml:2:7: the name of a saga"), "{}", stderr(&output));
    let output = run(home.path(), &["saga", "validate", ".", "--output", "json"]);
    assert_eq!(output.status.code(), Some(2));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    let problems = document["problems"].as_array().expect("problems");
    assert!(problems.iter().any(|problem| problem["line"] == 2 && problem["column"] == 7), "{document}");
    let output = run(home.path(), &["saga", "validate", "none.yaml"]);
    assert_eq!(output.status.code(), Some(2));

    let place = CommandFixture::new(CoordinatorScript::Wait);
    std::fs::write(place.home.path().join("order.yaml"), SAGA).expect("written");
    let printed = stderr(&place.run_command(&["saga", "validate", "order.yaml", "--remote"], 2));
    assert_eq!(printed, "order.yaml:3:7: the effect `mail` is not for this tenant\n");
    let printed = stdout(&place.run_command(&["saga", "apply", "order.yaml", "--request-id", REQUEST], 0));
    assert!(printed.starts_with("the saga `order`, version 1 ") && printed.contains(REQUEST), "{printed}");
    let requests = calls(&place, "apply_saga");
    assert!(requests[0].contains("kind: Saga\\nname: order"), "{requests:?}");
    place.run_command(&["saga", "retire", "order", "--expect-version", "1"], 0);
}
