//! Letters that arrive: into one inbox, once, until they are acknowledged.

use std::time::Duration;

use identity::{Identity, SigningKey};
use kv::{Cmd, Pipeline};
use model::id::Uid;
use model::mail::TO_ADMINS;
use model::{
    ActorId, ContextId, ContextUid, DirectMessage, DirectMessageOrigin, MessageFormat, MessageId,
    MessageType, Timestamp, limits,
};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::{Code, Status, Streaming};

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure, json, key_of};

/// A letter from elsewhere to the reader, in the context that it names.
pub(crate) fn letter(number: u32) -> DirectMessage {
    let now = Timestamp::now();
    DirectMessage {
        origin: DirectMessageOrigin {
            coordinator: "ab".repeat(32),
            context_uid: ContextUid(Uid::from_bits(7)),
            caller_id: ActorId(12),
            message_id: MessageId(number),
        },
        from: "cd".repeat(32),
        to: key_of(READER),
        target_context: Some(ContextId(CONTEXT)),
        message_type: MessageType::Chat,
        format: MessageFormat::Text,
        topic: String::new(),
        text: format!("number {number}"),
        created_at: now,
        expires_at: now + Duration::from_secs(600),
        signature: None,
    }
}

pub(crate) async fn accept(
    stage: &Stage<impl Redis>,
    letter: &DirectMessage,
    verified: bool,
) -> wire::AcceptLetterResponse {
    let request = wire::AcceptLetterRequest { letter_json: json(letter), verified, foreign: false };
    stage.message_box().accept_letter(request).await.unwrap().into_inner()
}

pub(crate) async fn accepted(stage: &Stage<impl Redis>, letter: &DirectMessage) -> String {
    let answer = accept(stage, letter, false).await;
    assert_eq!((answer.reason.as_str(), answer.duplicate), ("", false), "{}", answer.refusal);
    answer.message_key
}

/// Asserts that a letter is refused, and leaves nothing behind.
async fn refused(stage: &Stage<impl Redis>, letter: &DirectMessage, verified: bool, reason: &str) {
    let before = stage.revision().await;
    let answer = accept(stage, letter, verified).await;
    assert_eq!(answer.reason, reason, "{}", answer.refusal);
    assert_eq!((answer.lasting, answer.message_key.as_str()), (reason != "INBOX_FULL", ""));
    assert!(!answer.refusal.is_empty());
    assert_eq!(stage.revision().await, before);
}

fn receive(actor_id: u32, only_present: bool) -> v1::ReceiveMessagesRequest {
    v1::ReceiveMessagesRequest { context_id: CONTEXT, actor_id, only_present }
}

type Inbox = Streaming<wire::WatchInboxResponse>;

async fn watch(
    stage: &Stage<impl Redis>,
    actor: u32,
    receive: v1::ReceiveMessagesRequest,
) -> Result<Inbox, Status> {
    let request = wire::WatchInboxRequest { receive: Some(receive), on_behalf_of: actor };
    stage.message_box().watch_inbox(request).await.map(tonic::Response::into_inner)
}

/// Messages in the reader's inbox now.
async fn present(stage: &Stage<impl Redis>) -> Vec<v1::Message> {
    let mut inbox = watch(stage, READER, receive(0, true)).await.unwrap();
    let mut messages = Vec::new();
    while let Some(part) = inbox.message().await.unwrap() {
        messages.extend(part.received.unwrap().messages);
    }
    messages
}

async fn next(inbox: &mut Inbox, count: usize) -> Vec<v1::Message> {
    let mut messages = Vec::new();
    while messages.len() < count {
        messages.extend(inbox.message().await.unwrap().unwrap().received.unwrap().messages);
    }
    messages
}

fn texts(messages: &[v1::Message]) -> Vec<&str> {
    messages.iter().map(|message| message.text.as_str()).collect()
}

pub(crate) async fn acknowledge(
    stage: &Stage<impl Redis>,
    actor: u32,
    actor_id: u32,
    keys: &[&str],
) -> Result<u32, Status> {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    let acknowledge =
        Some(v1::AcknowledgeMessageRequest { context_id: CONTEXT, actor_id, keys, ..Default::default() });
    let request = wire::AcknowledgeRequest { acknowledge, on_behalf_of: actor };
    stage.message_box().acknowledge(request).await.map(|answer| answer.into_inner().acknowledged_count)
}

async fn find(stage: &Stage<impl Redis>, actor: u32, key: &str) -> Result<v1::Message, Status> {
    let message = Some(v1::GetMessageRequest { context_id: CONTEXT, key: key.to_owned() });
    let found =
        stage.message_box().find_message(wire::FindMessageRequest { message, on_behalf_of: actor }).await;
    found.map(|found| found.into_inner().message.unwrap())
}

async fn set(stage: &Stage<impl Redis>, field: &str, value: &str) {
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg(field).arg(value)).await;
}

async fn msg_in(stage: &Stage<impl Redis>) -> Vec<String> {
    stage.command(Cmd::new("LRANGE").arg(&stage.keys().msg_in()).arg(0).arg(-1)).await.texts().unwrap()
}

async fn a_letter_lands_in_one_inbox(stage: Stage<impl Redis>) {
    let sent = DirectMessage { topic: "news".to_owned(), ..letter(31) };
    let key = accepted(&stage, &sent).await;
    assert_eq!(key, "message:0:1");
    let messages = present(&stage).await;
    assert_eq!(messages.len(), 1);
    let message = &messages[0];
    assert_eq!((message.key.as_str(), message.caller_id, message.message_id), (key.as_str(), 0, 1));
    assert_eq!((message.to.as_str(), &message.from_pubkey), (READER.to_string().as_str(), &sent.from));
    assert_eq!((message.topic.as_str(), message.text.as_str()), ("news", "number 31"));
    assert_eq!(message.status(), v1::MessageStatus::Acknowledged);
    assert_eq!(message.transport_status(), v1::TransportStatus::Delivered);
    let origin = message.origin.as_ref().unwrap();
    assert_eq!((&origin.coordinator, origin.caller_id, origin.message_id), (&"ab".repeat(32), 12, 31));
    assert_eq!(origin.context_uid, format!("{:032x}", 7));
    assert!(!message.verified);

    // Plain programs find it as well, and what they take is not acknowledged.
    let stored = stage.keys().message(ActorId(0), MessageId(1));
    assert_eq!(msg_in(&stage).await, std::slice::from_ref(&stored));
    let popped = stage.command(Cmd::new("RPOP").arg(&stage.keys().msg_in())).await.text().unwrap();
    let hash = stage.hash(&popped).await;
    assert_eq!((popped, hash["message"].as_str()), (stored, "number 31"));
    assert_eq!((hash["to"].as_str(), hash["caller_id"].as_str()), ("3", "0"));
    assert_eq!(serde_json::from_str::<DirectMessageOrigin>(&hash["origin"]).unwrap(), sent.origin);
    assert_eq!(present(&stage).await.len(), 1);
}

async fn a_letter_is_taken_once(stage: Stage<impl Redis>) {
    let first = letter(1);
    let key = accepted(&stage, &first).await;
    // Also when nothing else about it would be in order any more.
    let late = DirectMessage { expires_at: Timestamp::from_millis(1), ..first.clone() };
    for repeated in [&first, &late] {
        let again = accept(&stage, repeated, false).await;
        assert_eq!((again.message_key.as_str(), again.duplicate), (key.as_str(), true));
        assert_eq!((again.reason.as_str(), again.refusal.as_str()), ("", ""));
    }
    assert_eq!((present(&stage).await.len(), msg_in(&stage).await.len()), (1, 1));
    acknowledge(&stage, READER, 0, &[&key]).await.unwrap();
    assert!(accept(&stage, &first, false).await.duplicate, "what was read is remembered");
    assert!(present(&stage).await.is_empty());
    let marks =
        stage.command(Cmd::new("KEYS").arg(&format!("{}seen:*", stage.keys().prefix().replace('{', "\\{"))));
    let marks = marks.await.texts().unwrap();
    assert_eq!(marks.len(), 1);
    let left = stage.command(Cmd::new("TTL").arg(&marks[0])).await.uint().unwrap();
    assert!((6 * 24 * 3600..=7 * 24 * 3600).contains(&left), "{left}");
    // Any part of the origin makes it another letter.
    let mut others = [letter(2), letter(1), letter(1), letter(1)];
    others[1].origin.caller_id = ActorId(13);
    others[2].origin.context_uid = ContextUid(Uid::from_bits(8));
    others[3].origin.coordinator = "ba".repeat(32);
    for other in &others {
        accepted(&stage, other).await;
    }
}

fn signed(letter: DirectMessage, key: &SigningKey) -> DirectMessage {
    let terms = envelope::actor::DirectMessageTerms {
        to: &letter.to,
        target_context: letter.target_context,
        message_type: letter.message_type,
        format: letter.format,
        topic: &letter.topic,
        text: &letter.text,
    };
    let signature = envelope::actor::sign_direct_message(&terms, key, letter.expires_at);
    DirectMessage { from: key.verifying_key().to_string(), signature: Some(signature), ..letter }
}

async fn what_is_signed_is_taken_once_wherever_it_is_sent_from(stage: Stage<impl Redis>) {
    set(&stage, "settings", r#"{"require_signed_messages":true}"#).await;
    let key = SigningKey::generate();
    let first = signed(letter(1), &key);
    refused(&stage, &letter(1), false, "UNVERIFIED").await;
    // A claim of verification without a signature has no effect, nor has a signature that was not checked.
    refused(&stage, &letter(1), true, "UNVERIFIED").await;
    refused(&stage, &first, false, "UNVERIFIED").await;
    let other = DirectMessage { text: "changed".to_owned(), ..first.clone() };
    refused(&stage, &other, true, "BAD_SIGNATURE").await;

    let answer = accept(&stage, &first, true).await;
    assert_eq!((answer.message_key.as_str(), answer.duplicate), ("message:0:1", false));
    assert!(present(&stage).await[0].verified);
    let elsewhere = DirectMessage { origin: letter(99).origin, ..first };
    let again = accept(&stage, &elsewhere, true).await;
    assert_eq!((again.message_key.as_str(), again.duplicate), ("message:0:1", true));
    // The same text with a new signature is another message.
    let anew = DirectMessage { origin: letter(100).origin, ..signed(letter(1), &key) };
    assert!(!accept(&stage, &anew, true).await.duplicate);
}

async fn what_cannot_be_taken_is_refused_with_the_reason(stage: Stage<impl Redis>) {
    let unknown = "UNKNOWN_RECIPIENT";
    refused(&stage, &DirectMessage { to: "ee".repeat(32), ..letter(1) }, false, unknown).await;
    // Whether there is no such actor, no such context, no role, or a context that goes: it looks the same.
    refused(&stage, &DirectMessage { to: key_of(STRANGER), ..letter(1) }, false, unknown).await;
    refused(&stage, &DirectMessage { target_context: Some(ContextId(9)), ..letter(1) }, false, unknown).await;
    refused(&stage, &DirectMessage { target_context: None, ..letter(1) }, false, "NO_HOME_CONTEXT").await;
    refused(&stage, &DirectMessage { expires_at: Timestamp::from_millis(1), ..letter(1) }, false, "EXPIRED")
        .await;
    let text = "x".repeat(limits::MESSAGE_TEXT_BYTES_MAX + 1);
    refused(&stage, &DirectMessage { text, ..letter(1) }, false, "TOO_LARGE").await;
    refused(&stage, &DirectMessage { topic: "x".repeat(257), ..letter(1) }, false, "TOO_LARGE").await;
    set(&stage, "state", "deleting").await;
    refused(&stage, &letter(1), false, unknown).await;
    set(&stage, "state", "active").await;
    accepted(&stage, &letter(1)).await;

    for none in [&b"{}"[..], b"x", b""] {
        let request =
            wire::AcceptLetterRequest { letter_json: none.to_vec().into(), verified: false, foreign: false };
        assert_eq!(failure(stage.message_box().accept_letter(request).await).0, Code::InvalidArgument);
    }
    let job = DirectMessage { message_type: MessageType::Job, from: "me".to_owned(), ..letter(1) };
    let request = wire::AcceptLetterRequest { letter_json: json(&job), verified: false, foreign: false };
    let status = stage.message_box().accept_letter(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("letter_json.from") && status.message().contains("letter_json.type"));
}

async fn a_letter_that_names_no_context_goes_home(stage: Stage<impl Redis>) {
    let homeless = DirectMessage { target_context: None, ..letter(1) };
    let home = v1::UpdateActorRequest { id: READER, home_context: CONTEXT, ..Default::default() };
    stage.actors(Identity::Actor(ActorId(READER))).update_actor(home).await.unwrap();
    accepted(&stage, &homeless).await;
    assert_eq!(texts(&present(&stage).await), ["number 1"]);
    // It lost its role there and cannot read what arrives there.
    set(&stage, "readers", "[]").await;
    refused(&stage, &DirectMessage { target_context: None, ..letter(2) }, false, "UNKNOWN_RECIPIENT").await;
}

async fn what_names_no_recipient_is_for_the_admins(stage: Stage<impl Redis>) {
    let to_admins = |number| DirectMessage { to: TO_ADMINS.to_owned(), ..letter(number) };
    let present = async |actor: u32| {
        let mut inbox = watch(&stage, actor, receive(0, true)).await.unwrap();
        let mut messages = Vec::new();
        while let Some(part) = inbox.message().await.unwrap() {
            messages.extend(part.received.unwrap().messages);
        }
        messages.into_iter().map(|message| (message.key, message.to, message.text)).collect::<Vec<_>>()
    };
    let copy = |key: &str, to: u32, n: u32| (key.to_owned(), to.to_string(), format!("number {n}"));
    // One of them is no actor.
    set(&stage, "admins", &format!("[{ADMIN},{EXECUTOR},999]")).await;
    let first = accepted(&stage, &to_admins(1)).await;
    assert!(accept(&stage, &to_admins(1), false).await.duplicate, "once, into all");
    assert_eq!(present(ADMIN).await, [copy(&first, ADMIN, 1)]);
    assert_eq!(present(EXECUTOR).await, [copy("message:0:2", EXECUTOR, 1)]);
    assert_eq!(present(READER).await, []);
    assert_eq!(msg_in(&stage).await.len(), 2);
    // What one has read is not read for the other.
    assert_eq!(acknowledge(&stage, ADMIN, 0, &[&first]).await.unwrap(), 1);
    assert_eq!((present(ADMIN).await.len(), present(EXECUTOR).await.len()), (0, 1));
    // A full inbox keeps nothing from the other.
    let full = limits::INBOX_BYTES_MAX;
    let fill = async |actor: u32| {
        stage.command(Cmd::new("HSET").arg(&stage.keys().inbox_bytes()).arg(actor).arg(full)).await;
    };
    fill(EXECUTOR).await;
    accepted(&stage, &to_admins(2)).await;
    assert_eq!((present(ADMIN).await.len(), present(EXECUTOR).await.len()), (1, 1));
    fill(ADMIN).await;
    refused(&stage, &to_admins(3), false, "INBOX_FULL").await;
    set(&stage, "admins", "[999]").await;
    refused(&stage, &to_admins(4), false, "NO_ADMINS").await;
    // Another coordinator cannot know which context's admins are meant.
    let letter_json = json(&to_admins(5));
    let request = wire::AcceptLetterRequest { letter_json, verified: false, foreign: true };
    assert_eq!(failure(stage.message_box().accept_letter(request).await).0, Code::InvalidArgument);
}

async fn a_full_inbox_takes_nothing_and_the_mirror_is_bounded(stage: Stage<impl Redis>) {
    accepted(&stage, &letter(1)).await;
    let (inbox, msg_in_key) = (stage.keys().inbox(ActorId(READER)), stage.keys().msg_in());
    let mut fill = Pipeline::new();
    for n in 1..limits::INBOX_MAX {
        fill.cmd(
            Cmd::new("ZADD").arg(&inbox).arg(n).arg(&stage.key_of(&format!("message:0:{}", 1_000_000 + n))),
        );
    }
    for n in 0..limits::MSG_IN_MAX {
        fill.cmd(Cmd::new("LPUSH").arg(&msg_in_key).arg(n));
    }
    stage.connection().pipeline(&fill).await.unwrap();
    refused(&stage, &letter(2), false, "INBOX_FULL").await;
    assert!(accept(&stage, &letter(1), false).await.duplicate, "what is there already needs no place");
    acknowledge(&stage, READER, 0, &["message:0:1"]).await.unwrap();
    accepted(&stage, &letter(2)).await;
    let mirror = msg_in(&stage).await;
    assert_eq!((mirror.len(), mirror[0].as_str()), (limits::MSG_IN_MAX, &*stage.key_of("message:0:2")));
}

async fn an_inbox_holds_so_many_bytes(stage: Stage<impl Redis>) {
    let keys = [accepted(&stage, &letter(1)).await, accepted(&stage, &letter(2)).await];
    let counter = stage.keys().inbox_bytes();
    let waiting = || async {
        let count = stage.command(Cmd::new("HGET").arg(&counter).arg(READER)).await;
        count.optional_text().unwrap().map(|count| count.parse::<usize>().unwrap())
    };
    assert_eq!(waiting().await, Some(2 * "number 1".len()));
    let nearly = limits::INBOX_BYTES_MAX - "number 3".len() + 1;
    stage.command(Cmd::new("HSET").arg(&counter).arg(READER).arg(nearly)).await;
    refused(&stage, &letter(3), false, "INBOX_FULL").await;
    acknowledge(&stage, READER, 0, &[&keys[0], &keys[0]]).await.unwrap();
    assert_eq!(waiting().await, Some(nearly - "number 1".len()));
    let third = accepted(&stage, &letter(3)).await;
    let message =
        Some(v1::DeleteMessageRequest { context_id: CONTEXT, key: keys[1].clone(), ..Default::default() });
    let remove = wire::RemoveMessageRequest { message, on_behalf_of: READER };
    stage.message_box().remove_message(remove).await.unwrap();
    assert_eq!(waiting().await, Some(nearly - "number 1".len()));
    // An empty inbox holds nothing, whatever became of what was in it.
    acknowledge(&stage, READER, 0, &[&third]).await.unwrap();
    assert_eq!(waiting().await, None);
}

/// Adds to the messages of which nothing more is expected as many newer ones as leave room for one.
pub(crate) async fn fill_done(stage: &Stage<impl Redis>) {
    let fill = "for n = 1, ARGV[1] do redis.call('ZADD', KEYS[1], 1e9 + n, 'gone:' .. n) end";
    let done = stage.keys().letters_done();
    stage.command(Cmd::new("EVAL").arg(fill).arg(1).arg(&done).arg(limits::MESSAGES_DONE_MAX - 1)).await;
}

async fn of_what_was_read_the_oldest_goes(stage: Stage<impl Redis>) {
    let mut keys = Vec::new();
    for n in 1..=4 {
        keys.push(accepted(&stage, &letter(n)).await);
    }
    let done = stage.keys().letters_done();
    fill_done(&stage).await;
    acknowledge(&stage, READER, 0, &[&keys[1]]).await.unwrap();
    assert!(find(&stage, READER, &keys[1]).await.is_ok());
    acknowledge(&stage, READER, 0, &[&keys[2]]).await.unwrap();
    assert_eq!(failure(find(&stage, READER, &keys[1]).await).0, Code::NotFound);
    assert!(find(&stage, READER, &keys[2]).await.is_ok());
    assert_eq!(present(&stage).await.len(), 2, "what was not read stays");
    let left = stage.command(Cmd::new("ZRANGE").arg(&stage.keys().letters()).arg(0).arg(-1)).await;
    assert_eq!(left.texts().unwrap().len(), 3);
    let count = stage.command(Cmd::new("ZCARD").arg(&done)).await.uint().unwrap();
    assert_eq!(count, limits::MESSAGES_DONE_MAX as u64);
    assert!(accept(&stage, &letter(2), false).await.duplicate, "it is remembered all the same");
}

async fn a_recipient_that_crashes_before_it_acknowledges_gets_it_again(mut stage: Stage<impl Redis>) {
    let mut keys = Vec::new();
    for n in 1..=3 {
        keys.push(accepted(&stage, &letter(n)).await);
    }
    let mut inbox = watch(&stage, READER, receive(0, false)).await.unwrap();
    assert_eq!(texts(&next(&mut inbox, 3).await), ["number 1", "number 2", "number 3"]);
    assert_eq!(acknowledge(&stage, READER, 0, &[&keys[0]]).await.unwrap(), 1);
    drop(inbox);
    let mut inbox = watch(&stage, READER, receive(0, false)).await.unwrap();
    assert_eq!(texts(&next(&mut inbox, 2).await), ["number 2", "number 3"]);
    // What comes now comes at once, and nothing twice.
    for n in 4..=6 {
        accepted(&stage, &letter(n)).await;
    }
    assert_eq!(texts(&next(&mut inbox, 3).await), ["number 4", "number 5", "number 6"]);
    // A restarted storage gives the same answers.
    stage.start().await;
    assert_eq!(present(&stage).await.len(), 5);
}

async fn acknowledging_again_changes_nothing(stage: Stage<impl Redis>) {
    let key = accepted(&stage, &letter(1)).await;
    let other = accepted(&stage, &letter(2)).await;
    assert_eq!(acknowledge(&stage, READER, 0, &[&key, "message:0:77"]).await.unwrap(), 1);
    let read = find(&stage, READER, &key).await.unwrap();
    assert_eq!(
        (read.status(), read.transport_status()),
        (v1::MessageStatus::Processed, v1::TransportStatus::Read)
    );
    let revision = stage.revision().await;
    assert_eq!(acknowledge(&stage, READER, 0, &[&key, &key]).await.unwrap(), 0);
    assert_eq!(stage.revision().await, revision);
    // Another's inbox, and what is no received message.
    assert_eq!(acknowledge(&stage, EXECUTOR, 0, &[&other]).await.unwrap(), 0);
    assert_eq!(failure(acknowledge(&stage, EXECUTOR, READER, &[&other]).await).0, Code::PermissionDenied);
    assert_eq!(failure(acknowledge(&stage, STRANGER, 0, &[&other]).await).0, Code::NotFound);
    assert_eq!(failure(acknowledge(&stage, READER, 0, &["message:2:1"]).await).0, Code::InvalidArgument);
    assert_eq!(
        failure(acknowledge(&stage, READER, 0, &["message:0:1"; 1001]).await).0,
        Code::InvalidArgument
    );
    assert_eq!(acknowledge(&stage, ADMIN, READER, &[&other]).await.unwrap(), 1);
    assert!(present(&stage).await.is_empty());
}

async fn a_request_that_acknowledges_nothing_is_authorized_all_the_same(stage: Stage<impl Redis>) {
    assert_eq!(acknowledge(&stage, READER, 0, &[]).await.unwrap(), 0);
    assert_eq!(acknowledge(&stage, ADMIN, READER, &[]).await.unwrap(), 0);
    assert_eq!(failure(acknowledge(&stage, EXECUTOR, READER, &[]).await).0, Code::PermissionDenied);
    assert_eq!(failure(acknowledge(&stage, STRANGER, 0, &[]).await).0, Code::NotFound);
}

async fn what_another_coordinator_brings_is_no_actors_here_without_a_signature(stage: Stage<impl Redis>) {
    let bring = async |letter: &DirectMessage, verified, foreign| {
        let request = wire::AcceptLetterRequest { letter_json: json(letter), verified, foreign };
        stage.message_box().accept_letter(request).await.unwrap().into_inner()
    };
    // In the name of an actor of this coordinator: a colleague, or the recipient itself.
    for actor in [EXECUTOR, READER] {
        let before = stage.revision().await;
        let forged = DirectMessage { from: key_of(actor), ..letter(actor) };
        let answer = bring(&forged, false, true).await;
        assert_eq!((answer.reason.as_str(), answer.lasting), ("FORGED_SENDER", true), "{}", answer.refusal);
        assert_eq!(stage.revision().await, before);
    }
    // What was sent here is what it says, and of somebody else it is their coordinator's word.
    let here = bring(&DirectMessage { from: key_of(EXECUTOR), ..letter(1) }, false, false).await.message_key;
    let there = bring(&letter(2), false, true).await.message_key;
    let own = async |key: &str| find(&stage, READER, key).await.unwrap().origin.unwrap().own;
    assert!(own(&here).await && !own(&there).await);
    let lists = present(&stage).await;
    let shown: Vec<_> = lists.iter().map(|m| (m.origin.as_ref().unwrap().own, m.verified)).collect();
    assert_eq!(shown, [(true, false), (false, false)]);
    // Nobody knows of what was kept before that was noted.
    stage.command(Cmd::new("HDEL").arg(&stage.key_of(&here)).arg("foreign")).await;
    assert!(!own(&here).await);
}

async fn many_are_acknowledged_in_one_call(stage: Stage<impl Redis>) {
    let mut fill = Pipeline::new();
    for n in 1..=1000 {
        fill.cmd(
            Cmd::new("ZADD")
                .arg(&stage.keys().inbox(ActorId(READER)))
                .arg(n)
                .arg(&stage.key_of(&format!("message:0:{n}"))),
        );
    }
    stage.connection().pipeline(&fill).await.unwrap();
    let keys: Vec<String> = (1..=1000).map(|n| format!("message:0:{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(acknowledge(&stage, READER, 0, &keys).await.unwrap(), 1000);
}

async fn inboxes_are_private(stage: Stage<impl Redis>) {
    let key = accepted(&stage, &letter(1)).await;
    assert_eq!(failure(watch(&stage, EXECUTOR, receive(READER, true)).await).0, Code::PermissionDenied);
    assert_eq!(failure(watch(&stage, STRANGER, receive(0, true)).await).0, Code::NotFound);
    let gone = v1::ReceiveMessagesRequest { context_id: 9, ..receive(0, true) };
    assert_eq!(failure(watch(&stage, READER, gone).await).0, Code::NotFound);
    let mut inbox = watch(&stage, ADMIN, receive(READER, true)).await.unwrap();
    assert_eq!(next(&mut inbox, 1).await[0].key, key);
    assert!(inbox.message().await.unwrap().is_none());
    assert!(watch(&stage, EXECUTOR, receive(0, true)).await.unwrap().message().await.unwrap().is_none());
    // Its recipient sees it whatever role it has by now.
    set(&stage, "readers", "[]").await;
    assert_eq!(find(&stage, READER, &key).await.unwrap().text, "number 1");
}

async fn a_watch_ends_with_the_role_that_allowed_it(stage: Stage<impl Redis>) {
    let mut inbox = watch(&stage, READER, receive(0, false)).await.unwrap();
    accepted(&stage, &letter(1)).await;
    next(&mut inbox, 1).await;
    set(&stage, "readers", "[]").await;
    stage.command(Cmd::new("PUBLISH").arg(&stage.keys().hint_channel()).arg("context")).await;
    assert_eq!(failure(inbox.message().await).0, Code::NotFound);

    set(&stage, "readers", "[3]").await;
    let mut inbox = watch(&stage, READER, receive(0, false)).await.unwrap();
    next(&mut inbox, 1).await;
    set(&stage, "state", "deleting").await;
    stage.command(Cmd::new("PUBLISH").arg(&stage.keys().hint_channel()).arg("context")).await;
    assert_eq!(failure(inbox.message().await), (Code::FailedPrecondition, "CONTEXT_DELETING".to_owned()));
}

async fn large_letters_come_in_answers_of_a_bounded_size(stage: Stage<impl Redis>) {
    let text = "x".repeat(limits::MESSAGE_TEXT_BYTES_MAX);
    for n in 1..=5 {
        accepted(&stage, &DirectMessage { text: text.clone(), ..letter(n) }).await;
    }
    let mut inbox = watch(&stage, READER, receive(0, true)).await.unwrap();
    let mut count = 0;
    while let Some(part) = inbox.message().await.unwrap() {
        let messages = part.received.unwrap().messages;
        let bytes: usize = messages.iter().map(|message| message.text.len()).sum();
        assert!(bytes <= limits::PAGE_BYTES_MAX, "{bytes}");
        count += messages.len();
    }
    assert_eq!(count, 5);
}

async fn what_was_received_is_listed_and_removed(stage: Stage<impl Redis>) {
    let key = accepted(&stage, &letter(1)).await;
    let list = Some(v1::ListMessagesRequest { context_id: CONTEXT, ..Default::default() });
    let request = wire::FindMessagesRequest { list, on_behalf_of: READER };
    let page = stage.message_box().find_messages(request).await.unwrap().into_inner().page.unwrap();
    assert_eq!((page.messages.len(), page.messages[0].key.as_str()), (1, key.as_str()));
    let remove = |actor: u32| {
        let message =
            Some(v1::DeleteMessageRequest { context_id: CONTEXT, key: key.clone(), ..Default::default() });
        let (request, mut client) =
            (wire::RemoveMessageRequest { message, on_behalf_of: actor }, stage.message_box());
        async move { client.remove_message(request).await.map(drop) }
    };
    assert_eq!(failure(remove(EXECUTOR).await).0, Code::PermissionDenied);
    assert_eq!(failure(remove(STRANGER).await).0, Code::NotFound);
    remove(READER).await.unwrap();
    assert!(present(&stage).await.is_empty() && msg_in(&stage).await.is_empty());
    assert_eq!(failure(find(&stage, ADMIN, &key).await).0, Code::NotFound);
    assert!(accept(&stage, &letter(1), false).await.duplicate, "it is remembered all the same");
}

async fn of_many_who_bring_a_letter_at_once_one_does(stage: Stage<impl Redis>) {
    let letters = [letter(1), letter(2)];
    let bring = (0..16).map(|n| accept(&stage, &letters[n % 2], false));
    let answers = futures_util::future::join_all(bring).await;
    for key in ["message:0:1", "message:0:2"] {
        let first = |answer: &&wire::AcceptLetterResponse| answer.message_key == key && !answer.duplicate;
        assert_eq!(answers.iter().filter(first).count(), 1, "{key}");
    }
    assert_eq!((present(&stage).await.len(), msg_in(&stage).await.len()), (2, 2));
}

async fn a_context_goes_with_its_inboxes(stage: Stage<impl Redis>) {
    let home = v1::UpdateActorRequest { id: READER, home_context: CONTEXT, ..Default::default() };
    stage.actors(Identity::Admin).update_actor(home).await.unwrap();
    accepted(&stage, &letter(1)).await;
    let mut inbox = watch(&stage, READER, receive(0, false)).await.unwrap();
    next(&mut inbox, 1).await;
    let delete = v1::DeleteContextRequest { context_id: CONTEXT, ..Default::default() };
    stage.contexts(Identity::Admin).delete_context(delete).await.unwrap();
    assert!(matches!(failure(inbox.message().await).0, Code::FailedPrecondition | Code::NotFound));
    let left = stage.command(Cmd::new("KEYS").arg("*")).await.texts().unwrap();
    let left: Vec<_> = left.iter().filter(|key| stage.keys().parse(key).is_some()).collect();
    assert!(left.is_empty(), "{left:?}");
    for target_context in [None, Some(ContextId(CONTEXT))] {
        let answer = accept(&stage, &DirectMessage { target_context, ..letter(2) }, false).await;
        assert_eq!((answer.reason.as_str(), answer.lasting), ("UNKNOWN_RECIPIENT", true));
    }
}

scenarios!(
    a_letter_lands_in_one_inbox,
    a_letter_is_taken_once,
    what_is_signed_is_taken_once_wherever_it_is_sent_from,
    what_cannot_be_taken_is_refused_with_the_reason,
    a_letter_that_names_no_context_goes_home,
    what_names_no_recipient_is_for_the_admins,
    a_full_inbox_takes_nothing_and_the_mirror_is_bounded,
    an_inbox_holds_so_many_bytes,
    of_what_was_read_the_oldest_goes,
    a_recipient_that_crashes_before_it_acknowledges_gets_it_again,
    acknowledging_again_changes_nothing,
    a_request_that_acknowledges_nothing_is_authorized_all_the_same,
    what_another_coordinator_brings_is_no_actors_here_without_a_signature,
    many_are_acknowledged_in_one_call,
    inboxes_are_private,
    a_watch_ends_with_the_role_that_allowed_it,
    large_letters_come_in_answers_of_a_bounded_size,
    what_was_received_is_listed_and_removed,
    of_many_who_bring_a_letter_at_once_one_does,
    a_context_goes_with_its_inboxes
);
