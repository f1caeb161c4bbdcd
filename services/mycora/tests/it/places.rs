//! Requests of commands about actors, runners and the gateway, and how they handle the answers.

use crate::commands::CommandFixture;
use crate::coordinator::CoordinatorScript;
use crate::{stderr, stdout};

#[test]
fn an_actor_is_shown_and_changed_in_part() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let shown = stdout(&place.run_command(&["actor", "show"], 0));
    assert!(shown.starts_with("identity  spiffe://mycora/actor/1\n\nactor         1\n"), "{shown}");
    assert!(shown.ends_with("\nCONTEXT  ROLE\n1        admin\n"), "{shown}");
    assert_eq!(place.document(&["actor", "show"], 0)["actor"]["homeContext"], 1);
    assert_eq!(place.document(&["actor", "show", "1"], 0)["actor"]["id"], 1);
    assert!(stderr(&place.run_command(&["actor", "show", "2"], 1)).contains("actor 2 was not found"));

    let shown = stdout(&place.run_command(&["actor", "update", "1", "--home-context", "7"], 0));
    assert!(shown.contains("home context  7\n"), "{shown}");
    place.run_command(&["actor", "update", "1", "--at", "grpc://b:1", "--at", "grpc://c:2"], 0);
    place.run_command(&["actor", "update", "1", "--here", "--no-home-context"], 0);
    assert_eq!(
        place.calls(),
        ["update 1 9 grpc://old:1 7", "update 1 9 grpc://b:1,grpc://c:2 1", "update 1 9  0"]
    );
    assert!(stderr(&place.run_command(&["actor", "update", "1"], 2)).contains("--home-context"));
    assert!(
        stderr(&place.run_command(&["actor", "update", "1", "--at", "b"], 2)).contains("grpc://host:port")
    );
}

#[test]
fn the_gateway_shows_which_peers_it_reaches() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let shown = stdout(&place.run_command(&["gateway", "show"], 0));
    assert!(shown.contains("bus          mycelium 0.7.9\n"), "{shown}");
    assert!(shown.contains("grpc://there:1  yes        -     -\n"), "{shown}");

    let printed = stdout(&place.run_command(&["gateway", "ping", "grpc://there:1"], 0));
    assert_eq!(printed, "grpc://there:1 answered after 7 ms\n");
    assert_eq!(place.document(&["gateway", "ping", "grpc://there:1"], 0)["roundTrip"], "0.007s");
    let printed = stderr(&place.run_command(&["gateway", "ping", "grpc://gone:1"], 3));
    assert_eq!(printed, "grpc://gone:1 does not answer\n");
    assert_eq!(place.calls().len(), 3, "nobody is asked twice");
    assert!(stderr(&place.run_command(&["gateway", "ping", "gone"], 2)).contains("grpc://host:port"));
}

#[test]
fn a_runner_is_registered_as_it_is_described() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let key = identity::SigningKey::generate().verifying_key().to_string();
    let printed = stdout(&place.run_command(
        &[
            "runner",
            "register",
            "grpc://there:1",
            "--topic",
            "t",
            "--script-type",
            "python",
            "--script-type",
            "shell",
            "--group",
            "gpu",
            "--label",
            "zone=a",
            "--local",
            "--signing-key",
            &key,
        ],
        0,
    ));
    assert!(printed.starts_with("runner 4 is registered;"), "{printed}");
    assert!(printed.ends_with("`mycora runner show 4 --context 1`\n"), "{printed}");
    let ip = "mycelium:[400::1]";
    place.run_command(&["runner", "register", ip, "--plain", "--secret", "hero"], 0);
    assert_eq!(
        place.calls(),
        [
            format!(
                "register grpc://there:1 t [1, 2] gpu {{\"zone\": \"a\"}} true {key} ENVELOPE_FORM_SIGNED "
            ),
            format!("register {ip}  []  {{}} false  ENVELOPE_FORM_PLAIN hero"),
        ]
    );
    for wrong in [
        &["--secret", "hero"][..],
        &["--plain", "--signing-key", &key],
        &["--signing-key", "AB"],
        &["--script-type", "perl"],
        &["--label", "zone"],
    ] {
        place.run_command(&[&["runner", "register", ip], wrong].concat(), 2);
    }

    let shown = stdout(&place.run_command(&["runner", "show", "4", "--context", "2"], 0));
    assert!(shown.contains("address     grpc://there:1\n") && shown.contains("live        yes\n"), "{shown}");
    assert!(stderr(&place.run_command(&["runner", "show", "5"], 1)).contains("runner 5 was not found"));
}

#[test]
fn a_runner_is_changed_in_part_drained_and_deleted() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let update = |rest: &[&str], code| {
        place.run_command(&[&["runner", "update", "4", "--context", "2"], rest].concat(), code)
    };
    let shown = stdout(&update(&["--label", "gpu=1", "--no-label", "zone"], 0));
    assert!(shown.starts_with("runner      4\n"), "{shown}");
    update(&["--at", "mycelium:[400::1]", "--plain", "--secret", "hero"], 0);
    let printed = stdout(&place.run_command(&["runner", "drain", "4"], 0));
    assert_eq!(printed, "runner 4 is sent no new jobs; what it has accepted ends there\n");
    place.run_command(&["runner", "drain", "4", "--resume"], 0);
    assert_eq!(place.document(&["runner", "delete", "4"], 0)["runner"]["id"], 4);
    assert_eq!(
        place.calls(),
        [
            "update 4 9 grpc://there:1 {\"gpu\": \"1\"} ENVELOPE_FORM_UNSPECIFIED ",
            "update 4 9 mycelium:[400::1] {\"zone\": \"a\"} ENVELOPE_FORM_PLAIN hero",
            "drain 1 4 false",
            "drain 1 4 true",
            "delete 1 4",
        ]
    );
    update(&[], 2);
    update(&["--signed", "--secret", "x"], 2);
}

#[test]
fn runners_are_watched_over_a_break() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let printed = stdout(&place.run_command(&["runner", "watch"], 0));
    assert_eq!(printed, "runner 4 at grpc://there:1 lives: 0 instances, 0 queued\nrunner 4 was deleted\n");
    assert_eq!(place.calls(), ["watch 1 ", "watch 1 7.1-00"]);
    let printed = stdout(&place.run_command(&["runner", "watch", "--from", "7.1-00", "--output", "json"], 0));
    assert_eq!(printed, "{\"removed\":{\"runnerId\":4},\"resumePosition\":\"8.1-00\"}\n");
    let once = stdout(&place.run_command(&["runner", "watch", "--once"], 0));
    assert_eq!(once.lines().count(), 1);
}

#[test]
fn all_flows_are_watched_over_a_break() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let printed = stdout(&place.run_command(&["flow", "watch", "--all", "--name", "f", "--caller", "1"], 0));
    let at = "2025-11-21 01:53:20 UTC flow 5 f of actor 1";
    assert_eq!(printed, format!("{at}: running\n{at}: completed\nflow 5 was deleted\n"));
    let expected_calls =
        ["watch 1 1 f FLOW_SNAPSHOT_OPEN ", "watch 1 1 f FLOW_SNAPSHOT_OPEN 7.1-00"].map(str::to_owned);
    assert_eq!(place.calls(), expected_calls);
    let from = ["flow", "watch", "--all", "--from", "7.1-00", "--output", "json"];
    let printed = stdout(&place.run_command(&from, 0));
    let last = "{\"removed\":{\"flowId\":5},\"resumePosition\":\"9.1-00\"}";
    assert_eq!((printed.lines().count(), printed.lines().last()), (2, Some(last)));
    let once = stdout(&place.run_command(&["flow", "watch", "--all", "--ended", "--once"], 0));
    assert_eq!(once.lines().count(), 1);
    assert_eq!(place.calls().last().map(String::as_str), Some("watch 1 0  FLOW_SNAPSHOT_UNSPECIFIED "));
}

#[test]
fn one_flow_or_all_are_watched() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let long = "x".repeat(129);
    for wrong in [
        &["flow", "watch"][..],
        &["flow", "watch", "5", "--all"],
        &["flow", "watch", "5", "--name", "f"],
        &["flow", "watch", "--all", "--once", "--from", "7.1-00"],
        &["flow", "watch", "--all", "--name", &long],
    ] {
        place.run_command(wrong, 2);
    }
    assert!(place.calls().is_empty());
}
