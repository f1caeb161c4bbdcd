//! What commands about actors, runners and the gateway ask, and what they make of the answers.

use crate::commands::Place;
use crate::coordinator::Script;
use crate::{stderr, stdout};

#[test]
fn an_actor_is_shown_and_changed_in_part() {
    let place = Place::new(Script::Wait);
    let shown = stdout(&place.asked(&["actor", "show"], 0));
    assert!(shown.starts_with("certificate  spiffe://mycora/actor/1\n\nactor         1\n"), "{shown}");
    assert_eq!(place.document(&["actor", "show"], 0)["actor"]["homeContext"], 1);
    assert_eq!(place.document(&["actor", "show", "1"], 0)["actor"]["id"], 1);
    assert!(stderr(&place.asked(&["actor", "show", "2"], 1)).contains("actor 2 was not found"));

    let shown = stdout(&place.asked(&["actor", "update", "1", "--home-context", "7"], 0));
    assert!(shown.contains("home context  7\n"), "{shown}");
    place.asked(&["actor", "update", "1", "--at", "grpc://b:1", "--at", "grpc://c:2"], 0);
    place.asked(&["actor", "update", "1", "--here", "--no-home-context"], 0);
    assert_eq!(
        place.calls(),
        ["update 1 9 grpc://old:1 7", "update 1 9 grpc://b:1,grpc://c:2 1", "update 1 9  0"]
    );
    assert!(stderr(&place.asked(&["actor", "update", "1"], 2)).contains("--home-context"));
    assert!(stderr(&place.asked(&["actor", "update", "1", "--at", "b"], 2)).contains("grpc://host:port"));
}

#[test]
fn the_gateway_tells_whom_it_reaches() {
    let place = Place::new(Script::Wait);
    let shown = stdout(&place.asked(&["gateway", "show"], 0));
    assert!(shown.contains("bus          mycelium 0.7.9\n"), "{shown}");
    assert!(shown.contains("grpc://there:1  yes        -     -\n"), "{shown}");

    let said = stdout(&place.asked(&["gateway", "ping", "grpc://there:1"], 0));
    assert_eq!(said, "grpc://there:1 answered after 7 ms\n");
    assert_eq!(place.document(&["gateway", "ping", "grpc://there:1"], 0)["roundTrip"], "0.007s");
    let said = stderr(&place.asked(&["gateway", "ping", "grpc://gone:1"], 3));
    assert_eq!(said, "grpc://gone:1 does not answer\n");
    assert_eq!(place.calls().len(), 3, "nobody is asked twice");
    assert!(stderr(&place.asked(&["gateway", "ping", "gone"], 2)).contains("grpc://host:port"));
}

#[test]
fn a_runner_is_registered_as_it_is_described() {
    let place = Place::new(Script::Wait);
    let key = identity::SigningKey::generate().verifying_key().to_string();
    let said = stdout(&place.asked(
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
    assert!(said.starts_with("runner 4 is registered;"), "{said}");
    assert!(said.ends_with("`mycora runner show 4 --context 1`\n"), "{said}");
    let ip = "mycelium:[400::1]";
    place.asked(&["runner", "register", ip, "--plain", "--secret", "hero"], 0);
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
        place.asked(&[&["runner", "register", ip], wrong].concat(), 2);
    }

    let shown = stdout(&place.asked(&["runner", "show", "4", "--context", "2"], 0));
    assert!(shown.contains("address     grpc://there:1\n") && shown.contains("live        yes\n"), "{shown}");
    assert!(stderr(&place.asked(&["runner", "show", "5"], 1)).contains("runner 5 was not found"));
}
