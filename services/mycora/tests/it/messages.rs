//! Requests of commands about messages, and how they handle the answers.

use std::time::Duration;

use envelope::actor::check_direct_message;
use identity::SigningKey;
use model::id::Uid;
use model::{
    ActorId, ContextId, ContextUid, DirectMessage, DirectMessageOrigin, MessageFormat, MessageId,
    MessageType, Timestamp,
};
use proto::v1;

use crate::commands::{CommandFixture, interrupted};
use crate::coordinator::CoordinatorScript;
use crate::{mycora, stderr, stdout};

#[test]
fn a_message_is_sent_once_though_the_answer_was_lost() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let printed = stdout(&place.run_command(&["message", "send", "--to", "2", "hello"], 0));
    assert_eq!(printed, "message:1:7 is on its way; see `mycora message get message:1:7 --context 1`\n");
    std::fs::write(place.home.path().join("letter.md"), "# One\n").expect("written");
    let there = format!("{}@grpc://b:1", SigningKey::generate().verifying_key());
    let arguments = [
        "message",
        "send",
        "--to",
        &there,
        "--mail",
        "--format",
        "md",
        "--topic",
        "T",
        "--file",
        "letter.md",
        "--target-context",
        "3",
        "--timeout",
        "60",
    ];
    let document = place.document(&arguments, 0);
    assert_eq!(document["message"]["status"], "MESSAGE_STATUS_DISPATCHED");
    place.coordinator.recorded(|recorded| {
        let ids: Vec<_> = recorded.sent.iter().map(|sent| sent.request_id.as_str()).collect();
        assert!(ids.len() == 4 && ids[0] == ids[1] && ids[1] != ids[2] && ids[2] == ids[3], "{ids:?}");
        let [chat, .., mail] = recorded.sent.as_slice() else { panic!("four calls") };
        let plain = v1::SendMessageRequest {
            request_id: chat.request_id.clone(),
            context_id: 1,
            to: "2".into(),
            message_type: v1::MessageType::Chat.into(),
            format: v1::MessageFormat::Text.into(),
            text: "hello".into(),
            ..Default::default()
        };
        assert_eq!(*chat, plain);
        let letter = v1::SendMessageRequest {
            request_id: mail.request_id.clone(),
            to: there.clone(),
            target_context: 3,
            message_type: v1::MessageType::Mail.into(),
            format: v1::MessageFormat::Md.into(),
            topic: "T".into(),
            text: "# One\n".into(),
            timeout_ack_secs: 60,
            ..plain
        };
        assert_eq!(*mail, letter);
    });
}

#[test]
fn without_a_recipient_it_is_for_the_admins() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    place.run_command(&["message", "send", "may I?"], 0);
    place.coordinator.recorded(|recorded| {
        let sent = recorded.sent.last().expect("sent");
        assert_eq!((sent.to.as_str(), sent.text.as_str()), ("", "may I?"));
    });
}

#[test]
fn a_send_that_waits_reports_whether_the_message_arrived() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let printed = stdout(&place.run_command(&["message", "send", "--to", "2", "hello", "--wait"], 0));
    assert_eq!(printed, "message:1:7 has arrived\n");
    let printed = stdout(&place.run_command(&["message", "send", "--to", "9", "hello", "--wait"], 1));
    assert!(printed.starts_with("message:1:8 will not arrive: the actor has no home context\n"), "{printed}");
    assert!(printed.contains("`mycora message resend message:1:8 --context 1`"), "{printed}");
    let document = place.document(&["message", "send", "--to", "9", "hello", "--wait"], 1);
    assert_eq!(document["message"]["error"], "the actor has no home context");
    assert!(document["message"]["text"].is_null(), "{document}");
}

#[test]
fn a_signature_fits_what_is_sent() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let key = SigningKey::generate();
    key.write(&place.home.path().join("me.key")).expect("written");
    let there = SigningKey::generate().verifying_key().to_string();
    let to = format!("{there}@grpc://b:1");
    let send = |to: &str, code| {
        place.run_command(&["message", "send", "--to", to, "hello", "--signing-key", "me.key"], code)
    };
    send(&to, 0);
    // We are actor 1, and may know our own key.
    send("1", 0);
    let printed = stderr(&send("2", 2));
    assert!(
        printed.contains("does not disclose that of actor 2") && printed.contains("KEY@ADDRESS"),
        "{printed}"
    );
    let printed =
        stderr(&place.run_command(&["message", "send", "--to", &to, "x", "--signing-key", "good.yaml"], 2));
    assert!(printed.contains("good.yaml holds no Ed25519 private key"), "{printed}");

    place.run_command(
        &["message", "send", "--to", &to, "hello", "--signing-key", "me.key", "--target-context", "5"],
        0,
    );

    let now = Timestamp::now();
    let (last, own) = (place.coordinator.recorded(|recorded| recorded.sent.len() - 1), "cd".repeat(32));
    for (i, to, target) in [(1, there.clone(), None), (3, own, None), (last, there, Some(ContextId(5)))] {
        let sent = place.coordinator.recorded(|recorded| recorded.sent[i].clone());
        assert_eq!(sent.target_context, target.map_or(0, |target| target.0));
        let origin = DirectMessageOrigin {
            coordinator: String::new(),
            context_uid: ContextUid(Uid::from_bits(0)),
            caller_id: ActorId(1),
            message_id: MessageId(7),
        };
        let letter = DirectMessage {
            origin,
            from: key.verifying_key().to_string(),
            to,
            target_context: target,
            message_type: MessageType::Chat,
            format: MessageFormat::Text,
            topic: String::new(),
            text: sent.text,
            created_at: now,
            expires_at: now + Duration::from_secs(3600),
            signature: Some(sent.signature),
        };
        let signed = check_direct_message(&letter, now).expect("it fits").expect("signed");
        assert_eq!(signed.signer, key.verifying_key());
    }
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_sent() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    std::fs::write(place.home.path().join("large"), vec![b'x'; 512 * 1024 + 1]).expect("written");
    std::fs::write(place.home.path().join("bytes"), [0xff]).expect("written");
    let table: &[(&[&str], &str)] = &[
        (&["send", "--to", "2"], "<TEXT>"),
        (&["send", "--to", "2", "x", "--file", "good.yaml"], "cannot be used with"),
        (&["send", "x", "--target-context", "3"], "--to <ACTOR|KEY@ADDRESS>"),
        (&["send", "x", "--signing-key", "me.key"], "--to <ACTOR|KEY@ADDRESS>"),
        (&["send", "--to", "anna", "x"], "write the id of an actor of this coordinator, or KEY@ADDRESS"),
        (&["send", "--to", "2", "--file", "none"], "none: cannot be read"),
        (&["send", "--to", "2", "--file", "large"], "large: a message has at most 524288 bytes"),
        (&["send", "--to", "2", "--file", "bytes"], "bytes: a message is a text in UTF-8"),
        (&["send", "--to", "2", "x", "--timeout", "600000"], "518400"),
        (&["send", "--to", "2", "x", "--format", "pdf"], "pdf"),
        (&["get", "7"], "write it as message:1:7"),
        (&["acknowledge"], "<KEY>"),
    ];
    for (arguments, expected) in table {
        let output = place.run_command(&[&["message"], *arguments].concat(), 2);
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    place.coordinator.recorded(|recorded| assert!(recorded.sent.is_empty() && recorded.calls.is_empty()));
}

#[test]
fn messages_are_listed_shown_sent_again_and_removed() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let arguments = ["message", "list", "--status", "error", "--type", "mail", "--limit", "1"];
    let output = place.run_command(&arguments, 0);
    let table = stdout(&output);
    assert!(table.starts_with("KEY          TYPE  FROM     ORIGIN  TO       TOPIC   STATUS"), "{table}");
    assert!(table.contains("message:1:7  chat  actor 1  here    actor 2  Report  acknowledged"), "{table}");
    assert_eq!(stderr(&output), "there are more than 1; ask for them with --limit\n");
    let document = place.document(&["message", "list", "--flow", "3", "--limit", "1"], 0);
    assert_eq!(document["messages"][0]["key"], "message:1:7");

    let shown = stdout(&place.run_command(&["message", "get", "1:7"], 0));
    assert!(shown.contains("status     dispatched\n") && shown.ends_with("\none\ntwo\n"), "{shown}");
    assert!(stderr(&place.run_command(&["message", "get", "1:9"], 1)).contains("was not found"));

    let dead = stdout(&place.run_command(&["message", "dead-letters"], 0));
    assert!(dead.contains("message:1:8  chat  actor 9  Report"), "{dead}");
    assert!(dead.ends_with("  the actor has no home context\n"), "{dead}");
    let again = stdout(&place.run_command(&["message", "resend", "1:8"], 0));
    assert!(again.starts_with("message:1:8 is on its way again; see "), "{again}");
    assert_eq!(stderr(&place.run_command(&["message", "resend", "1:7"], 1)), "it has arrived\n");

    assert_eq!(stdout(&place.run_command(&["message", "delete", "1:7"], 0)), "message:1:7 is deleted\n");
    assert_eq!(stderr(&place.run_command(&["message", "delete", "1:8"], 1)), "it is on its way\n");
    assert_eq!(
        place.calls(),
        [
            "list 0 3 4 1",
            "list 3 0 0 1",
            "get message:1:7",
            "get message:1:9",
            "resend message:1:8",
            "resend message:1:7",
            "delete message:1:7",
            "delete message:1:8",
        ]
    );
}

#[test]
fn what_was_received_is_printed_and_then_acknowledged() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let text = stdout(&place.run_command(&["message", "receive"], 0));
    let texts: Vec<_> = text.lines().filter(|line| line.starts_with("text ")).collect();
    assert_eq!(texts, ["text 1", "text 2", "text 3"]);
    assert_eq!(text.matches("signed  yes, by the sender\n").count(), 1, "{text}");
    assert_eq!(place.calls(), ["receive 1 true"], "nothing is acknowledged unasked");

    let list = place.document(&["message", "receive", "--acknowledge"], 0);
    assert_eq!((list.as_array().map(Vec::len), &list[2]["text"]), (Some(3), &"text 3".into()));
    assert_eq!(
        place.calls()[2..],
        ["acknowledge message:0:1 message:0:2".to_owned(), "acknowledge message:0:3".to_owned()]
    );

    let none = place.run_command(&["message", "receive", "--context", "2"], 0);
    assert_eq!((stdout(&none), stderr(&none)), (String::new(), "no message waits in context 2\n".to_owned()));
    assert_eq!(place.document(&["message", "receive", "--context", "2"], 0), serde_json::json!([]));

    let printed = stdout(&place.run_command(&["message", "acknowledge", "0:1", "message:0:2"], 0));
    assert_eq!(printed, "1 message is acknowledged; 1 did not wait here any more\n");
    assert_eq!(place.calls().last().map(String::as_str), Some("acknowledge message:0:1 message:0:2"));
}

#[test]
fn what_could_not_be_printed_is_not_acknowledged() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = mycora(place.home.path())
        .env("MYCORA_CONFIG", &place.coordinator.profile)
        .args(["message", "receive", "--acknowledge"])
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("cannot write to standard output: "), "{}", stderr(&output));
    assert_eq!(place.calls(), ["receive 1 true"]);
}

#[test]
fn a_follower_prints_each_message_once() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let (text, printed) = interrupted(&place, &["message", "receive", "--follow"], "text 3");
    let texts: Vec<_> = text.lines().filter(|line| line.starts_with("text ")).collect();
    assert_eq!(texts, ["text 1", "text 2", "text 3"]);
    assert_eq!(
        printed,
        "what was not acknowledged is handed out again by `mycora message receive --context 1`\n"
    );
    assert_eq!(place.calls(), ["receive 1 false", "receive 1 false"]);

    let place = CommandFixture::new(CoordinatorScript::Wait);
    let arguments = ["message", "receive", "-f", "--output", "json"];
    let (text, _) = interrupted(&place, &arguments, "text 3");
    let keys: Vec<_> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a document")["key"].clone())
        .collect();
    assert_eq!(keys, ["message:0:1", "message:0:2", "message:0:3"], "a line for each message");
}
