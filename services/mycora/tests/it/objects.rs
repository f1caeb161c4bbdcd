//! Requests of commands about actors, contexts and jobs, and how they handle the answers.

use crate::commands::CommandFixture;
use crate::coordinator::CoordinatorScript;
use crate::{stderr, stdout};

#[test]
fn an_actor_is_registered_with_a_key_that_is_kept() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let key = identity::SigningKey::generate().verifying_key().to_string();
    let at = ["--at", "grpc://b:1", "--at", "grpc://c:2"];
    let shown = stdout(&place.run_command(&[&["actor", "register", "--pubkey", &key], &at[..]].concat(), 0));
    assert!(shown.starts_with("actor         2\n") && shown.contains(&key), "{shown}");

    let document = place.document(&["actor", "register", "--new-key", "new.ed25519", "--id", "5"], 0);
    let made = place.home.path().join("new.ed25519");
    let made = identity::SigningKey::load(&made).expect("a key").verifying_key().to_string();
    assert_eq!(document["actor"]["pubkey"], made);
    assert_eq!(
        place.calls(),
        [format!("register 0 {} grpc://b:1,grpc://c:2", &key[..8]), format!("register 5 {} ", &made[..8]),]
    );
    let printed = stderr(&place.run_command(&["actor", "register", "--new-key", "new.ed25519"], 2));
    assert!(printed.contains("never overwritten"), "{printed}");
    place.run_command(&["actor", "register", "--new-key", "other.ed25519", "--id", "1"], 1);
    assert!(!place.home.path().join("other.ed25519").exists(), "a key that was refused is of no use");
    for wrong in [&[][..], &["--pubkey", "AB"], &["--pubkey", &key, "--new-key", "x"]] {
        place.run_command(&[&["actor", "register"], wrong].concat(), 2);
    }
}

#[test]
fn actors_are_listed_given_other_keys_and_removed() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let listed = stdout(&place.run_command(&["actor", "list"], 0));
    assert!(listed.starts_with("ID  KEY           HOME  ADDRESS"), "{listed}");
    assert!(listed.contains("\n2   cdcdcdcdcdcd  1     grpc://old:1"), "{listed}");
    let document = place.document(&["actor", "list", "--members", "--context", "3"], 0);
    assert_eq!(document["actors"].as_array().map(Vec::len), Some(2), "of two pages");

    let key = identity::SigningKey::generate().verifying_key().to_string();
    place.run_command(&["actor", "rotate-key", "1", "--pubkey", &key, "--overlap", "1h"], 0);
    place.run_command(&["actor", "rotate-key", "1", "--pubkey", &key, "--revoke-certificates"], 0);
    let printed = stderr(&place.run_command(&["actor", "delete", "5"], 2));
    assert!(printed.contains("confirm with --yes"), "{printed}");
    assert_eq!(stdout(&place.run_command(&["actor", "delete", "5", "--yes"], 0)), "actor 5 is deleted\n");
    let key = &key[..8];
    assert_eq!(
        place.calls(),
        [
            "actors of 0: 1000 from ``".to_owned(),
            "actors of 0: 1000 from `second`".to_owned(),
            "actors of 3: 1000 from ``".to_owned(),
            "actors of 3: 1000 from `second`".to_owned(),
            format!("rotate 1 9 {key} 3600 false"),
            format!("rotate 1 9 {key} 0 true"),
            "delete actor 5".to_owned(),
        ]
    );
}

#[test]
fn a_context_is_made_shown_and_changed_in_part() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let made = place.document(&["context", "create", "--executor", "2", "--reader", "3", "--reader", "4"], 0);
    assert_eq!(made["context"]["readers"], serde_json::json!([3, 4]));
    let flags = ["--id", "7", "--admin", "1", "--no-executors-submit", "--require-signed"];
    place.run_command(&[&["context", "create"], &flags[..]].concat(), 0);
    let listed = stdout(&place.run_command(&["context", "list"], 0));
    assert!(listed.contains("\n1   active  1, 2    -          -        "), "{listed}");
    let shown = stdout(&place.run_command(&["context", "show", "1"], 0));
    assert!(
        shown.contains("executors-may-submit     true\n")
            && shown.contains("readers                  4, 5\n")
    );
    assert!(stderr(&place.run_command(&["context", "show", "2"], 1)).contains("context 2 was not found"));

    let flags = ["--add-executor", "5", "--remove-reader", "5", "--set", "raw-publish=true"];
    place.run_command(&[&["context", "update", "1"], &flags[..]].concat(), 0);
    let printed = stderr(&place.run_command(&["context", "update", "1", "--remove-admin", "8"], 1));
    assert_eq!(printed, "actor 8 is no admin of the context\n");
    assert!(stderr(&place.run_command(&["context", "update", "1"], 2)).contains("--add-admin"));
    assert_eq!(
        place.calls(),
        [
            "create context 0 [] [2] [3, 4] ",
            "create context 7 [1] [] [] submit=false raw=false signed=true",
            "update context 1 9 None Some([5]) Some([4]) submit=true raw=true signed=false",
        ]
    );
}

#[test]
fn audit_records_are_requested_by_actor_action_and_time() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let flags = ["--actor", "7", "--action", "flow.", "--since", "2027-01-15", "--limit", "3"];
    let output = place.run_command(&[&["context", "audit", "1"], &flags[..]].concat(), 0);
    assert!(stdout(&output).contains("  actor/7  flow.create  flow 7\n"), "{}", stdout(&output));
    assert_eq!(stderr(&output), "there are more than 3; ask for them with --limit\n");
    let document = place.document(&["context", "audit", "0", "--limit", "1"], 0);
    assert_eq!(document["entries"][0]["identity"], "actor/7");
    assert_eq!(
        place.calls(),
        ["audit 1 3 7 flow. 1799971200", "audit 1 1 7 flow. 1799971200", "audit 0 1 0  0"],
        "what is left of a page is asked for"
    );
}

#[test]
fn a_job_is_kept_found_and_removed() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    std::fs::write(place.home.path().join("convert.py"), "print(1)\n").expect("written");
    let flags = ["--env", "A=1", "--file", "in.yaml=good.yaml", "--keep", "out.csv"];
    let printed = stdout(&place.run_command(&[&["job", "create", "convert.py"], &flags[..]].concat(), 0));
    assert_eq!(printed, "job 7 is kept; see `mycora job get 7 --context 1`\n");
    place.coordinator.recorded(|recorded| assert_eq!(recorded.uploaded.len(), 1, "the file"));

    let shown = stdout(&place.run_command(&["job", "get", "7"], 0));
    assert!(shown.starts_with("job      7\n") && shown.contains("status   created\n"), "{shown}");
    assert_eq!(place.document(&["job", "get", "7", "--caller", "2"], 0)["job"]["id"], 7);
    assert!(stderr(&place.run_command(&["job", "get", "8"], 1)).contains("job 8 was not found"));
    let listed = stdout(&place.run_command(&["job", "list"], 0));
    assert!(listed.starts_with("ID  ACTOR  FLOW  TYPE"), "{listed}");
    place.run_command(&["job", "list", "--flow", "5", "--caller", "2", "--limit", "7"], 0);
    assert_eq!(stdout(&place.run_command(&["job", "delete", "7"], 0)), "job 7 is deleted\n");
    assert_eq!(
        place.calls(),
        [
            "create job 1 1 {\"A\": \"1\"} [\"in.yaml\"] [\"out.csv\"]",
            "jobs 1 50 0 0",
            "jobs 1 7 5 2",
            "delete job 1 0 7",
        ]
    );
    let printed = stderr(&place.run_command(&["job", "create", "convert.py", "--env", "1A=x"], 2));
    assert!(printed.starts_with("mycora job create: --env 1A: "), "{printed}");
}
