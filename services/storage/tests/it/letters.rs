//! Chat and mail that actors send: kept once, given into a router's care, looked at, sent again, removed.

use identity::{Identity, ServiceName};
use kv::Cmd;
use model::{ActorId, DirectMessage, MessageFormat, MessageId, MessageType, Timestamp};
use proto::internal::v1 as wire;
use proto::internal::v1::held_message::Kind;
use proto::internal::v1::message_box_service_client::MessageBoxServiceClient;
use proto::v1;
use rpc::ErrorView;
use testkit::{PATIENCE, wait_until};
use tonic::Code;

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, Router, STRANGER, Stage, failure, key_of};

/// The number of an actor's first message: the ones below are for programs that choose theirs.
pub(crate) const FIRST: u32 = (1 << 30) + 1;

pub(crate) fn chat(to: &str, text: &str) -> v1::SendMessageRequest {
    v1::SendMessageRequest {
        context_id: CONTEXT,
        to: to.to_owned(),
        message_type: v1::MessageType::Chat.into(),
        text: text.to_owned(),
        ..Default::default()
    }
}

pub(crate) fn publish(on_behalf_of: u32, message: v1::SendMessageRequest) -> wire::PublishRequest {
    wire::PublishRequest { message: Some(message), on_behalf_of }
}

pub(crate) async fn send(
    stage: &Stage<impl Redis>,
    actor: u32,
    message: v1::SendMessageRequest,
) -> v1::Message {
    stage.message_box().publish(publish(actor, message)).await.unwrap().into_inner().message.unwrap()
}

async fn find(stage: &Stage<impl Redis>, actor: u32, key: &str) -> Result<v1::Message, tonic::Status> {
    let message = Some(v1::GetMessageRequest { context_id: CONTEXT, key: key.to_owned() });
    let found =
        stage.message_box().find_message(wire::FindMessageRequest { message, on_behalf_of: actor }).await;
    found.map(|found| found.into_inner().message.unwrap())
}

pub(crate) async fn remove(stage: &Stage<impl Redis>, actor: u32, key: &str) -> Result<(), tonic::Status> {
    let message =
        Some(v1::DeleteMessageRequest { context_id: CONTEXT, key: key.to_owned(), ..Default::default() });
    let request = wire::RemoveMessageRequest { message, on_behalf_of: actor };
    stage.message_box().remove_message(request).await.map(drop)
}

pub(crate) async fn resend(
    stage: &Stage<impl Redis>,
    actor: u32,
    request_id: &str,
    key: &str,
) -> Result<v1::Message, tonic::Status> {
    let resend = v1::ResendMessageRequest {
        request_id: request_id.to_owned(),
        context_id: CONTEXT,
        key: key.to_owned(),
    };
    let request = wire::ResendRequest { resend: Some(resend), on_behalf_of: actor };
    stage.message_box().resend(request).await.map(|sent| sent.into_inner().message.unwrap())
}

async fn list(stage: &Stage<impl Redis>, list: v1::ListMessagesRequest) -> v1::ListMessagesResponse {
    let list = Some(v1::ListMessagesRequest { context_id: CONTEXT, ..list });
    let request = wire::FindMessagesRequest { list, on_behalf_of: READER };
    stage.message_box().find_messages(request).await.unwrap().into_inner().page.unwrap()
}

async fn dead_letters(stage: &Stage<impl Redis>, page_size: u32, token: &str) -> v1::ListDeadLettersResponse {
    let page_token = token.to_owned();
    let list = Some(v1::ListDeadLettersRequest { context_id: CONTEXT, page_size, page_token });
    let request = wire::FindDeadLettersRequest { list, on_behalf_of: READER };
    stage.message_box().find_dead_letters(request).await.unwrap().into_inner().page.unwrap()
}

fn keys_of(messages: &[v1::Message]) -> Vec<&str> {
    messages.iter().map(|message| message.key.as_str()).collect()
}

pub(crate) async fn until(stage: &Stage<impl Redis>, key: &str, status: v1::MessageStatus) -> v1::Message {
    let check = || async { find(stage, ADMIN, key).await.ok().filter(|message| message.status() == status) };
    wait_until(check, PATIENCE, format!("{key} is {status:?}")).await
}

/// A router that is known to storage: what is sent from now on goes straight into its hold.
pub(crate) async fn connected(stage: &Stage<impl Redis>, name: &str) -> Router {
    let mut router = stage.router(name).await;
    let first = send(stage, EXECUTOR, chat("1", "is anybody there?")).await;
    let taken = router.take(1).await;
    assert_eq!(taken[0].message_key, first.key);
    router.settle(&taken, "").await;
    until(stage, &first.key, v1::MessageStatus::Acknowledged).await;
    router
}

pub(crate) fn letter_in(message: &wire::HeldMessage) -> (DirectMessage, Vec<String>) {
    let Some(Kind::Letter(held)) = &message.kind else { panic!("{message:?} is no letter") };
    (serde_json::from_slice(&held.letter_json).unwrap(), held.addresses.clone())
}

async fn held(stage: &Stage<impl Redis>) -> Vec<String> {
    let range = Cmd::new("ZRANGE").arg(&stage.keys().msg_out_coordinator()).arg(0).arg(-1);
    stage.command(range).await.texts().unwrap()
}

async fn out(stage: &Stage<impl Redis>) -> Vec<String> {
    stage.command(Cmd::new("LRANGE").arg(&stage.keys().msg_out()).arg(0).arg(-1)).await.texts().unwrap()
}

async fn a_letter_is_kept_held_and_settled(stage: Stage<impl Redis>) {
    let request = v1::SendMessageRequest {
        message_type: v1::MessageType::Mail.into(),
        format: v1::MessageFormat::Md.into(),
        topic: "greetings".to_owned(),
        target_context: 7,
        timeout_ack_secs: 90,
        ..chat("1", "# hello")
    };
    let sent = send(&stage, EXECUTOR, request).await;
    assert_eq!(
        (sent.key.as_str(), sent.caller_id, sent.message_id),
        ("message:2:1073741825", EXECUTOR, FIRST)
    );
    assert_eq!(
        (sent.status(), sent.transport_status()),
        (v1::MessageStatus::Dispatched, v1::TransportStatus::Queued)
    );
    assert_eq!((sent.to.as_str(), sent.text.as_str(), sent.verified), ("1", "", false));
    let key = stage.keys().message(ActorId(EXECUTOR), MessageId(FIRST));
    assert_eq!((out(&stage).await, held(&stage).await.len()), (vec![key.clone()], 0));
    let hash = stage.hash(&key).await;
    for field in "id caller_id context_id flow_id to target_context topic from_pubkey origin signature message \
                      message_type message_format_type timeout timeout_ack timeout_result nodes logs created_at \
                      updated_at status error transport_id transport_status router"
            .split_whitespace()
        {
            assert!(hash.contains_key(field), "`{field}` is missing");
        }
    assert_eq!((hash["message"].as_str(), hash["message_type"].as_str()), ("# hello", "mail"));

    let mut router = stage.router("r").await;
    let taken = router.take(1).await;
    assert_eq!((out(&stage).await.len(), held(&stage).await), (0, vec![key]));
    let (letter, addresses) = letter_in(&taken[0]);
    assert_eq!((letter.from, letter.to), (key_of(EXECUTOR), key_of(ADMIN)));
    assert_eq!((letter.message_type, letter.format), (MessageType::Mail, MessageFormat::Md));
    assert_eq!((letter.topic.as_str(), letter.text.as_str()), ("greetings", "# hello"));
    assert_eq!(letter.target_context.map(|id| id.0), Some(7));
    assert_eq!(letter.expires_at.since(letter.created_at).as_secs(), 90);
    assert_eq!(letter.origin.context_uid.to_string(), stage.context_uid);
    assert_eq!((letter.origin.caller_id.0, letter.origin.message_id.0), (EXECUTOR, FIRST));
    assert_eq!((letter.origin.coordinator.as_str(), addresses.len()), ("", 0), "the gateway's to fill in");

    router.settle(&taken, "").await;
    let settled = until(&stage, &sent.key, v1::MessageStatus::Acknowledged).await;
    assert_eq!(settled.transport_status(), v1::TransportStatus::Delivered);
    assert_eq!((settled.text.as_str(), settled.logs.is_empty()), ("# hello", false));
    assert!(settled.revision > sent.revision);
}

async fn a_connected_router_holds_a_letter_at_once(stage: Stage<impl Redis>) {
    let mut router = connected(&stage, "r").await;
    let key = format!("{}@grpc://other.example:7703", "ab".repeat(32));
    let sent = send(&stage, EXECUTOR, chat(&key, "far away")).await;
    assert_eq!((out(&stage).await.len(), held(&stage).await.len()), (0, 1));
    let taken = router.take(1).await;
    assert_eq!(taken[0].message_key, sent.key);
    let (letter, addresses) = letter_in(&taken[0]);
    assert_eq!((letter.to, letter.origin.message_id.0), ("ab".repeat(32), sent.message_id));
    assert_eq!(addresses, ["grpc://other.example:7703"]);

    // It is read back the same when the router comes again.
    drop(router);
    let mut router = stage.router("r").await;
    let again = router.take(1).await;
    assert_eq!(letter_in(&again[0]).0, letter_in(&taken[0]).0);
    assert_eq!(again, taken);
}

async fn a_request_is_carried_out_once(stage: Stage<impl Redis>) {
    let request = v1::SendMessageRequest { request_id: "m".to_owned(), ..chat("1", "once") };
    let first = send(&stage, EXECUTOR, request.clone()).await;
    let again = send(&stage, EXECUTOR, request.clone()).await;
    assert_eq!(first, again);
    let other = v1::SendMessageRequest { text: "twice".to_owned(), ..request.clone() };
    let reused = failure(stage.message_box().publish(publish(EXECUTOR, other)).await);
    assert_eq!(reused, (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned()));
    // Another actor's request of that id is another one.
    assert_eq!(send(&stage, ADMIN, request).await.key, "message:1:1073741825");
    assert_eq!(out(&stage).await.len(), 2);
}

async fn numbers_that_others_took_are_left_alone(stage: Stage<impl Redis>) {
    for id in FIRST..FIRST + 3 {
        let key = stage.keys().message(ActorId(EXECUTOR), MessageId(id));
        stage.command(Cmd::new("HSET").arg(&key).arg("message").arg("raw")).await;
    }
    assert_eq!(send(&stage, EXECUTOR, chat("1", "mine")).await.message_id, FIRST + 3);
    let key = stage.keys().message(ActorId(EXECUTOR), MessageId(FIRST + 2));
    assert_eq!(stage.hash(&key).await["message"], "raw");
}

async fn every_invalid_field_of_a_letter_is_named_at_once(stage: Stage<impl Redis>) {
    let wrong = v1::SendMessageRequest {
        message_type: v1::MessageType::Job.into(),
        format: 99,
        topic: "x".repeat(257),
        text: "x".repeat(512 * 1024 + 1),
        timeout_ack_secs: 518_401,
        signature: "x".repeat(64 * 1024 + 1),
        request_id: "two words".into(),
        ..chat("me", "")
    };
    let status = stage.message_box().publish(publish(EXECUTOR, wrong)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let fields: Vec<_> = ErrorView::from(&status).violations.into_iter().map(|wrong| wrong.field).collect();
    let all =
        ["request_id", "to", "format", "message_type", "topic", "text", "timeout_ack_secs", "signature"];
    assert_eq!(fields, all);
    for to in ["me", "0", "12@grpc://h:1", "abcd@nowhere"] {
        let refused = failure(stage.message_box().publish(publish(EXECUTOR, chat(to, "x"))).await);
        assert_eq!(refused.0, Code::InvalidArgument, "{to}");
    }
    let nobody = failure(stage.message_box().publish(publish(EXECUTOR, chat("77", "x"))).await);
    assert_eq!(nobody.0, Code::NotFound);
    // What is as long as it may be is taken.
    let most = v1::SendMessageRequest {
        topic: "ä".repeat(256),
        text: "x".repeat(512 * 1024),
        timeout_ack_secs: 518_400,
        ..chat("1", "")
    };
    let sent = send(&stage, EXECUTOR, most).await;
    assert_eq!(find(&stage, EXECUTOR, &sent.key).await.unwrap().text.len(), 512 * 1024);
}

async fn the_table_of_roles(stage: Stage<impl Redis>) {
    let code = |result: Result<(), tonic::Status>| result.err().map_or(Code::Ok, |status| status.code());
    let (ok, denied, unseen) = (Code::Ok, Code::PermissionDenied, Code::NotFound);
    let theirs = send(&stage, ADMIN, chat("2", "for the executor")).await;
    for (i, actor) in [ADMIN, EXECUTOR, READER, STRANGER].into_iter().enumerate() {
        let own = stage.message_box().publish(publish(actor, chat("1", "x"))).await;
        assert_eq!(code(own.map(drop)), [ok, ok, denied, unseen][i], "actor {actor} sends");
        let other = v1::SendMessageRequest { caller_id: EXECUTOR, ..chat("1", "x") };
        let other = stage.message_box().publish(publish(actor, other)).await;
        assert_eq!(code(other.map(drop)), [ok, ok, denied, unseen][i], "actor {actor} sends as the executor");
        let admin = v1::SendMessageRequest { caller_id: ADMIN, ..chat("1", "x") };
        let admin = stage.message_box().publish(publish(actor, admin)).await;
        assert_eq!(
            code(admin.map(drop)),
            [ok, denied, denied, unseen][i],
            "actor {actor} sends as the admin"
        );
        assert_eq!(code(find(&stage, actor, &theirs.key).await.map(drop)), [ok, ok, ok, unseen][i]);
        let read = wire::FindMessagesRequest {
            list: Some(v1::ListMessagesRequest { context_id: CONTEXT, ..Default::default() }),
            on_behalf_of: actor,
        };
        assert_eq!(code(stage.message_box().find_messages(read).await.map(drop)), [ok, ok, ok, unseen][i]);
        let dead = wire::FindDeadLettersRequest {
            list: Some(v1::ListDeadLettersRequest { context_id: CONTEXT, ..Default::default() }),
            on_behalf_of: actor,
        };
        assert_eq!(
            code(stage.message_box().find_dead_letters(dead).await.map(drop)),
            [ok, ok, ok, unseen][i]
        );
        let again = resend(&stage, actor, "", &theirs.key).await.map(drop);
        let early = Code::FailedPrecondition;
        assert_eq!(code(again), [early, denied, denied, unseen][i], "actor {actor} sends the admin's again");
    }
    // Who sent or received it reads it in any case. Only the sender removes what it sent, once it is not on its way.
    let to_stranger = send(&stage, EXECUTOR, chat("4", "psst")).await;
    assert_eq!(find(&stage, STRANGER, &to_stranger.key).await.unwrap().text, "psst");
    for (actor, expected) in [
        (READER, denied),
        (STRANGER, unseen),
        (EXECUTOR, Code::FailedPrecondition),
        (ADMIN, Code::FailedPrecondition),
    ] {
        assert_eq!(code(remove(&stage, actor, &to_stranger.key).await), expected, "actor {actor} removes");
    }
    // Others learn nothing, also not of what is not there.
    for key in [theirs.key.as_str(), "message:2:99", "nonsense"] {
        assert_eq!(failure(find(&stage, STRANGER, key).await).0, unseen);
    }
}

async fn methods_are_for_those_who_need_them(stage: Stage<impl Redis>) {
    let of = |identity| MessageBoxServiceClient::new(stage.channel(identity));
    let accept =
        wire::AcceptLetterRequest { letter_json: b"{}".to_vec().into(), verified: false, foreign: false };
    for (name, publishes, accepts) in [
        (ServiceName::Router, Code::Ok, Code::InvalidArgument),
        (ServiceName::Mycora, Code::Ok, Code::InvalidArgument),
        (ServiceName::MyceliumGateway, Code::PermissionDenied, Code::InvalidArgument),
        (ServiceName::Scheduler, Code::PermissionDenied, Code::PermissionDenied),
    ] {
        let mut client = of(Identity::Service(name));
        let sent = client.publish(publish(EXECUTOR, chat("1", "x"))).await;
        assert_eq!(sent.err().map_or(Code::Ok, |status| status.code()), publishes, "{name:?}");
        assert_eq!(failure(client.accept_letter(accept.clone()).await).0, accepts, "{name:?}");
    }
    let mut actor = of(Identity::Actor(ActorId(ADMIN)));
    assert_eq!(failure(actor.publish(publish(ADMIN, chat("1", "x"))).await).0, Code::PermissionDenied);
}

async fn pages_follow_each_other(stage: Stage<impl Redis>) {
    let mut expected = Vec::new();
    for n in 0..7 {
        let message_type = if n % 2 == 0 { v1::MessageType::Chat } else { v1::MessageType::Mail };
        let request = v1::SendMessageRequest { message_type: message_type.into(), ..chat("1", "secret") };
        expected.insert(0, send(&stage, if n < 4 { EXECUTOR } else { ADMIN }, request).await.key);
    }
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListMessagesRequest { page_size: 3, page_token: token, ..Default::default() };
        let page = list(&stage, request).await;
        assert!(page.messages.iter().all(|message| message.text.is_empty()), "texts are not listed");
        seen.extend(page.messages.into_iter().map(|message| message.key));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        // What comes meanwhile moves nothing.
        send(&stage, EXECUTOR, chat("1", "more")).await;
    }
    assert_eq!(seen, expected, "newest first");

    let mail = v1::ListMessagesRequest { message_type: v1::MessageType::Mail.into(), ..Default::default() };
    assert_eq!(list(&stage, mail.clone()).await.messages.len(), 3);
    let read = v1::ListMessagesRequest { status: v1::MessageStatus::Error.into(), ..Default::default() };
    assert!(list(&stage, read).await.messages.is_empty());
    let first = list(&stage, v1::ListMessagesRequest { page_size: 1, ..Default::default() }).await;
    let of_another = v1::ListMessagesRequest { page_token: first.next_page_token, ..mail };
    let list = v1::ListMessagesRequest { context_id: CONTEXT, ..of_another };
    let refused = wire::FindMessagesRequest { list: Some(list), on_behalf_of: READER };
    assert_eq!(failure(stage.message_box().find_messages(refused).await).0, Code::InvalidArgument);
}

async fn what_carried_a_flows_nodes_is_listed_with_the_flow(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let letter = send(&stage, EXECUTOR, chat("1", "x")).await;
    let messages = (11..=60).map(|id| flow.message(id)).collect();
    let step = wire::CommitRequest { messages, ..flow.step() };
    stage.apply(&mut flow, step).await;
    let of_flow = v1::ListMessagesRequest { flow_id: flow.id, page_size: 20, ..Default::default() };
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = list(&stage, v1::ListMessagesRequest { page_token: token, ..of_flow.clone() }).await;
        seen.extend(page.messages);
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(
        seen.iter().map(|message| message.message_id).collect::<Vec<_>>(),
        (11..=60).rev().collect::<Vec<_>>()
    );
    assert!(
        seen.iter()
            .all(|message| message.flow_id == flow.id && message.message_type() == v1::MessageType::Job)
    );
    assert_eq!(
        keys_of(&list(&stage, v1::ListMessagesRequest::default()).await.messages),
        [letter.key.as_str()]
    );
    // They go with the flow, and are not sent again by hand.
    for refused in [
        remove(&stage, ADMIN, "message:2:11").await,
        resend(&stage, ADMIN, "", "message:2:11").await.map(drop),
    ] {
        assert_eq!(failure(refused), (Code::FailedPrecondition, "CARRIES_NODES".to_owned()));
    }
}

async fn dead_letters_are_listed_and_sent_again(stage: Stage<impl Redis>) {
    let mut router = connected(&stage, "r").await;
    let mut sent = Vec::new();
    for n in 0..5 {
        sent.push(send(&stage, EXECUTOR, chat("1", &format!("text {n}"))).await.key);
    }
    let taken = router.take(5).await;
    // All in one change, so that they have one place in the list.
    router.settle(&taken, "UNDELIVERABLE: nobody there").await;
    for key in &sent {
        until(&stage, key, v1::MessageStatus::Error).await;
    }
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = dead_letters(&stage, 2, &token).await;
        assert!(page.messages.iter().all(|message| message.error == "UNDELIVERABLE: nobody there"));
        seen.extend(page.messages.into_iter().map(|message| message.key));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, sent, "each once");

    // The recipient has moved meanwhile.
    let moved = v1::UpdateActorRequest {
        id: ADMIN,
        address: vec!["grpc://new.example:1".to_owned()],
        ..Default::default()
    };
    stage.actors(Identity::Admin).update_actor(moved).await.unwrap();
    let before = find(&stage, EXECUTOR, &sent[0]).await.unwrap();
    let again = resend(&stage, EXECUTOR, "r1", &sent[0]).await.unwrap();
    assert_eq!((again.status(), again.error.as_str()), (v1::MessageStatus::Dispatched, ""));
    assert!(again.revision > before.revision && again.logs.len() == before.logs.len() + 1);
    let retaken = router.take(1).await;
    assert_eq!(retaken[0].message_key, sent[0], "it is the same message");
    let ((letter, addresses), (first, _)) = (letter_in(&retaken[0]), letter_in(&taken[0]));
    assert_eq!((letter.origin, letter.created_at), (first.origin, first.created_at));
    assert!(letter.expires_at > first.expires_at);
    assert_eq!(addresses, ["grpc://new.example:1"]);
    assert_eq!(dead_letters(&stage, 0, "").await.messages.len(), 4);

    // The same request has one effect, also after it was settled.
    router.settle(&retaken, "").await;
    until(&stage, &sent[0], v1::MessageStatus::Acknowledged).await;
    let repeated = resend(&stage, EXECUTOR, "r1", &sent[0]).await.unwrap();
    assert_eq!(repeated.status(), v1::MessageStatus::Acknowledged);
    assert_eq!(failure(resend(&stage, EXECUTOR, "r1", &sent[1]).await).1, "REQUEST_ID_REUSED");
    let alive = failure(resend(&stage, EXECUTOR, "", &sent[0]).await);
    assert_eq!(alive, (Code::FailedPrecondition, "NOT_A_DEAD_LETTER".to_owned()));
    assert_eq!(failure(resend(&stage, EXECUTOR, "", "message:2:99").await).0, Code::NotFound);
}

async fn what_is_too_old_is_not_sent_again(stage: Stage<impl Redis>) {
    let mut router = connected(&stage, "r").await;
    let mut sent = Vec::new();
    for _ in 0..2 {
        sent.push(send(&stage, EXECUTOR, chat("1", "x")).await);
    }
    let taken = router.take(2).await;
    router.settle(&taken, "EXPIRED: nobody was there").await;
    let (day, now) = (24 * 3600, Timestamp::now().as_secs());
    let made = |secs: u64| Cmd::new("HSET").arg(&stage.key_of(&sent[0].key)).arg("created_at").arg(secs);
    until(&stage, &sent[0].key, v1::MessageStatus::Error).await;
    until(&stage, &sent[1].key, v1::MessageStatus::Error).await;
    stage.command(made(now - 6 * day - 1)).await;
    let old = failure(resend(&stage, EXECUTOR, "", &sent[0].key).await);
    assert_eq!(old, (Code::FailedPrecondition, "MESSAGE_TOO_OLD".to_owned()));
    // One that is almost too old is not on its way for longer than six days either.
    stage.command(made(now - 6 * day + 600)).await;
    resend(&stage, EXECUTOR, "", &sent[0].key).await.unwrap();
    let (letter, _) = letter_in(&router.take(1).await[0]);
    assert_eq!(letter.expires_at.as_secs(), now + 600);
}

async fn a_message_is_removed_with_everything_of_it(stage: Stage<impl Redis>) {
    let mut router = connected(&stage, "r").await;
    let sent = send(&stage, EXECUTOR, chat("1", "x")).await;
    let under_way = failure(remove(&stage, EXECUTOR, &sent.key).await);
    assert_eq!(under_way, (Code::FailedPrecondition, "MESSAGE_UNDER_WAY".to_owned()));
    let taken = router.take(1).await;
    router.settle(&taken, "UNDELIVERABLE: x").await;
    until(&stage, &sent.key, v1::MessageStatus::Error).await;
    remove(&stage, EXECUTOR, &sent.key).await.unwrap();
    assert_eq!(failure(find(&stage, ADMIN, &sent.key).await).0, Code::NotFound);
    assert_eq!(failure(remove(&stage, EXECUTOR, &sent.key).await).0, Code::NotFound);
    assert!(dead_letters(&stage, 0, "").await.messages.is_empty());
    let key = stage.keys().message(ActorId(EXECUTOR), MessageId(sent.message_id));
    for index in [stage.keys().letters(), stage.keys().dead_letters()] {
        assert!(stage.command(Cmd::new("ZSCORE").arg(&index).arg(&key)).await.is_nil(), "{index}");
    }
    assert_eq!(stage.command(Cmd::new("EXISTS").arg(&key)).await.int(), Ok(0));
    // Its number is not given again.
    assert!(send(&stage, EXECUTOR, chat("1", "y")).await.message_id > sent.message_id);
}

async fn a_dead_letter_of_a_flow_goes_with_the_flow(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let step = wire::CommitRequest { messages: vec![flow.message(11)], ..flow.step() };
    stage.apply(&mut flow, step).await;
    let mut router = stage.router("r").await;
    let taken = router.take(1).await;
    router.settle(&taken, "UNDELIVERABLE: x").await;
    until(&stage, "message:2:11", v1::MessageStatus::Error).await;
    assert_eq!(keys_of(&dead_letters(&stage, 0, "").await.messages), ["message:2:11"]);
    let refused = failure(resend(&stage, EXECUTOR, "", "message:2:11").await);
    assert_eq!(refused, (Code::FailedPrecondition, "CARRIES_NODES".to_owned()));
    let end = flow.end();
    stage.apply(&mut flow, end).await;
    let delete = wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    stage.flows().remove_flow(delete).await.unwrap();
    assert!(dead_letters(&stage, 0, "").await.messages.is_empty());
    assert_eq!(failure(find(&stage, ADMIN, "message:2:11").await).0, Code::NotFound);
}

async fn nothing_is_sent_from_a_context_that_goes(stage: Stage<impl Redis>) {
    let sent = send(&stage, EXECUTOR, chat("1", "x")).await;
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg("state").arg("deleting")).await;
    let refused = failure(stage.message_box().publish(publish(EXECUTOR, chat("1", "x"))).await);
    assert_eq!(refused, (Code::FailedPrecondition, "CONTEXT_DELETING".to_owned()));
    find(&stage, READER, &sent.key).await.unwrap();
}

scenarios!(
    a_letter_is_kept_held_and_settled,
    a_connected_router_holds_a_letter_at_once,
    a_request_is_carried_out_once,
    numbers_that_others_took_are_left_alone,
    every_invalid_field_of_a_letter_is_named_at_once,
    the_table_of_roles,
    methods_are_for_those_who_need_them,
    pages_follow_each_other,
    what_carried_a_flows_nodes_is_listed_with_the_flow,
    dead_letters_are_listed_and_sent_again,
    what_is_too_old_is_not_sent_again,
    a_message_is_removed_with_everything_of_it,
    a_dead_letter_of_a_flow_goes_with_the_flow,
    nothing_is_sent_from_a_context_that_goes
);
