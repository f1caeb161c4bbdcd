//! Random operations on chat and mail against a short reference of what they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use keys::ContextKey;
use kv::Cmd;
use model::{
    ActorId, BlobHash, ContextId, ContextUid, DirectMessage, DirectMessageOrigin, MessageFormat, MessageId,
    MessageKey, MessageType, Timestamp, id::Uid,
};
use proptest::prelude::*;
use proto::internal::v1 as wire;
use proto::v1;
use testkit::{PATIENCE, wait_until};
use tonic::{Code, Status};

use crate::conformance::{self, Chances, End, Family, Kept, PastRequests, Requesting};
use crate::places::Redis;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, json, key_of};

const ALL: [u32; 4] = [ADMIN, EXECUTOR, READER, STRANGER];

#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Publish,
    /// Some of what is on its way arrives, or never will.
    Settle,
    Accept,
    Acknowledge,
    Remove,
    Resend,
    /// An earlier request, with the same body or with another one.
    Again,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Publish(v1::SendMessageRequest),
    Acknowledge(v1::AcknowledgeMessageRequest),
    Remove(v1::DeleteMessageRequest),
    Resend(v1::ResendMessageRequest),
}

#[derive(Debug)]
pub(crate) enum Answer {
    Message(Box<v1::Message>),
    Count(u32),
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    OnItsWay,
    Arrived,
    Dead,
    /// In an inbox.
    Waits,
    Read,
}

#[derive(Debug)]
struct Known {
    /// 0 for one that was received.
    caller: u32,
    /// An actor of this coordinator.
    to: Option<u32>,
    text: String,
    state: State,
}

impl Known {
    fn status(&self) -> v1::MessageStatus {
        match self.state {
            State::OnItsWay => v1::MessageStatus::Dispatched,
            State::Arrived | State::Waits => v1::MessageStatus::Acknowledged,
            State::Dead => v1::MessageStatus::Error,
            State::Read => v1::MessageStatus::Processed,
        }
    }

    fn is_of(&self, who: u32) -> bool {
        self.caller == who || self.to == Some(who)
    }

    fn is_owned_by(&self, who: u32) -> bool {
        if self.caller == 0 { self.to == Some(who) } else { self.caller == who }
    }
}

#[derive(Default)]
pub(crate) struct Letters {
    letters: BTreeMap<String, Known>,
    /// The oldest first, also those that are gone.
    order: Vec<String>,
    /// Messages that arrived, by their numbers elsewhere.
    seen: BTreeMap<u32, String>,
    /// Messages that requests made, or how many.
    made: BTreeMap<(u32, String), (String, u32)>,
    revision: u64,
    past_requests: PastRequests<Call>,
    /// Where those are that are on their way: with nobody, with a router.
    is_out: bool,
    is_held: bool,
}

fn letter(number: u32, to: u32, is_late: bool) -> DirectMessage {
    let now = Timestamp::now();
    DirectMessage {
        origin: DirectMessageOrigin {
            coordinator: "ab".repeat(32),
            context_uid: ContextUid(Uid::from_bits(7)),
            caller_id: ActorId(12),
            message_id: MessageId(number),
        },
        from: "cd".repeat(32),
        to: key_of(to),
        target_context: Some(ContextId(CONTEXT)),
        message_type: MessageType::Chat,
        format: MessageFormat::Text,
        topic: String::new(),
        text: format!("number {number}"),
        created_at: now,
        expires_at: if is_late { Timestamp::from_millis(1) } else { now + Duration::from_secs(600) },
        signature: None,
    }
}

/// Hash that is remembered of a message that arrived.
fn mark(number: u32) -> BlobHash {
    let DirectMessageOrigin { coordinator, context_uid, caller_id, message_id } =
        letter(number, ADMIN, false).origin;
    BlobHash::of(format!("{coordinator} {context_uid} {caller_id} {message_id}").as_bytes())
}

impl Letters {
    /// One of the last, of which some are gone.
    fn some(&self, chance: usize) -> String {
        let last = self.order.iter().rev().nth(chance % 10);
        last.cloned().unwrap_or_else(|| "message:0:99999".to_owned())
    }

    fn in_state(&self, state: State) -> impl Iterator<Item = &String> {
        self.letters.iter().filter(move |(_, letter)| letter.state == state).map(|(key, _)| key)
    }

    fn call(&self, op: &Chances<What>) -> Option<(u32, Call)> {
        let &Chances { what, who, object, mask, other, .. } = op;
        let request_id = op.request_id();
        let call = match what {
            What::Publish => {
                let away = format!("{}@grpc://other.example:7703", "ab".repeat(32));
                Call::Publish(v1::SendMessageRequest {
                    request_id,
                    context_id: CONTEXT,
                    caller_id: [0, who, EXECUTOR][object % 3],
                    to: if other { away } else { ALL[object % 4].to_string() },
                    message_type: v1::MessageType::Chat.into(),
                    text: format!("text {mask}"),
                    ..Default::default()
                })
            }
            What::Acknowledge => {
                let received = self.order.iter().rev().filter(|key| key.starts_with("message:0:"));
                let picked = received.take(8).enumerate().filter(|(n, _)| mask >> n & 1 == 1);
                let keys = picked.map(|(_, key)| key.clone()).chain(["message:0:99999".to_owned()]);
                let actor_id = if other { ALL[object % 4] } else { 0 };
                let keys = keys.collect();
                Call::Acknowledge(v1::AcknowledgeMessageRequest {
                    request_id,
                    context_id: CONTEXT,
                    actor_id,
                    keys,
                })
            }
            What::Remove => {
                let key = self.some(object);
                Call::Remove(v1::DeleteMessageRequest { request_id, context_id: CONTEXT, key })
            }
            What::Resend => {
                // Mostly what may be sent again.
                let dead = self.in_state(State::Dead).next().filter(|_| other).cloned();
                let key = dead.unwrap_or_else(|| self.some(object));
                Call::Resend(v1::ResendMessageRequest { request_id, context_id: CONTEXT, key })
            }
            What::Again => return self.past_requests.again(op, changed),
            What::Settle | What::Accept => return None,
        };
        Some((who, call))
    }

    fn keep(&mut self, key: &str, letter: Known) {
        assert!(!self.order.iter().any(|known| known == key), "no number is given again");
        self.order.push(key.to_owned());
        self.letters.insert(key.to_owned(), letter);
        self.revision += 1;
    }

    fn assert_kept(&self, said: &v1::Message) {
        let letter = &self.letters[&said.key];
        assert_eq!((said.caller_id, said.status()), (letter.caller, letter.status()), "{said:?}");
        assert_eq!(said.to.parse().ok(), letter.to);
    }

    async fn accept(&mut self, stage: &Stage<impl Redis>, op: &Chances<What>) {
        let (number, to) = (u32::from(op.mask), op.who);
        let letter_json = json(&letter(number, to, op.other));
        let request = wire::AcceptLetterRequest { letter_json, verified: false, foreign: false };
        let answer = stage.message_box().accept_letter(request).await.unwrap().into_inner();
        let is = (answer.message_key.as_str(), answer.duplicate, answer.reason.as_str());
        match self.seen.get(&number) {
            _ if to == STRANGER => assert_eq!(is, ("", false, "UNKNOWN_RECIPIENT")),
            // Wherever it went then, and whatever became of it.
            Some(key) => assert_eq!(is, (key.as_str(), true, "")),
            None if op.other => assert_eq!(is, ("", false, "EXPIRED")),
            None => {
                assert_eq!((answer.duplicate, answer.reason.as_str()), (false, ""));
                let text = format!("number {number}");
                let new = Known { caller: 0, to: Some(to), text, state: State::Waits };
                self.keep(&answer.message_key, new);
                self.seen.insert(number, answer.message_key);
            }
        }
    }

    /// A router connects, receives everything in transit, settles some of it, and leaves.
    async fn settle(&mut self, stage: &Stage<impl Redis>, op: &Chances<What>) {
        let under_way: BTreeSet<String> = self.in_state(State::OnItsWay).cloned().collect();
        if under_way.is_empty() {
            return;
        }
        let mut router = stage.router("r").await;
        let mut taken = BTreeMap::new();
        while taken.len() < under_way.len() {
            let next = tokio::time::timeout(PATIENCE, router.take(1)).await.expect("what is on its way");
            taken.extend(next.into_iter().map(|message| (message.message_key.clone(), message)));
        }
        assert!(taken.keys().eq(&under_way), "everything that is on its way, and nothing else");
        let picked = under_way.iter().zip((0..8).cycle()).filter(|(_, bit)| op.mask >> bit & 1 == 1);
        for (n, (key, _)) in picked.enumerate() {
            let is_dead = op.other ^ (n % 2 == 0);
            router
                .settle(&[taken[key].clone()], if is_dead { "UNDELIVERABLE: nobody there" } else { "" })
                .await;
            self.letters.get_mut(key).unwrap().state = if is_dead { State::Dead } else { State::Arrived };
            self.revision += 1;
            let is_settled = || async {
                let found = find(stage, ADMIN, key).await.unwrap();
                (found.status() == self.letters[key].status()).then_some(())
            };
            wait_until(is_settled, PATIENCE, format!("{key} is settled")).await;
        }
    }

    async fn check_lists(&self, stage: &Stage<impl Redis>) {
        let (mut listed, mut page_token) = (Vec::new(), String::new());
        loop {
            let list = v1::ListMessagesRequest {
                context_id: CONTEXT,
                page_size: 30,
                page_token,
                ..Default::default()
            };
            let request = wire::FindMessagesRequest { list: Some(list), on_behalf_of: READER };
            let page = stage.message_box().find_messages(request).await.unwrap().into_inner().page.unwrap();
            page.messages.iter().for_each(|message| self.assert_kept(message));
            listed.extend(page.messages.into_iter().map(|message| message.key));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        let there = self.order.iter().rev().filter(|key| self.letters.contains_key(*key));
        assert!(listed.iter().eq(there), "the newest first");
        let list =
            Some(v1::ListDeadLettersRequest { context_id: CONTEXT, page_size: 500, ..Default::default() });
        let request = wire::FindDeadLettersRequest { list, on_behalf_of: READER };
        let page = stage.message_box().find_dead_letters(request).await.unwrap().into_inner().page.unwrap();
        let dead: BTreeSet<&String> = page.messages.iter().map(|message| &message.key).collect();
        assert_eq!(dead, self.in_state(State::Dead).collect(), "what will not arrive");
        for key in self.order.iter().rev().take(12) {
            for who in ALL {
                let found = find(stage, who, key).await;
                let letter = self.letters.get(key).filter(|letter| who != STRANGER || letter.is_of(who));
                assert_eq!(found.as_ref().ok().map(|found| &found.text), letter.map(|letter| &letter.text));
            }
        }
    }

    async fn check_inboxes(&self, stage: &Stage<impl Redis>) {
        for owner in [ADMIN, EXECUTOR, READER] {
            let receive =
                Some(v1::ReceiveMessagesRequest { context_id: CONTEXT, actor_id: owner, only_present: true });
            let request = wire::WatchInboxRequest { receive, on_behalf_of: ADMIN };
            let mut inbox = stage.message_box().watch_inbox(request).await.unwrap().into_inner();
            let mut received = Vec::new();
            while let Some(part) = inbox.message().await.unwrap() {
                received.extend(part.received.unwrap().messages);
            }
            let waits = |key: &&String| {
                let letter = self.letters.get(*key);
                letter.is_some_and(|letter| letter.state == State::Waits && letter.to == Some(owner))
            };
            let there = self.order.iter().filter(waits);
            assert!(received.iter().map(|message| &message.key).eq(there), "the oldest first");
        }
    }

    /// Each that is on its way is with one router or waits for one.
    async fn check_ways(&mut self, stage: &Stage<impl Redis>) {
        let keys = stage.keys();
        let range = |name, key: &str| Cmd::new(name).arg(key).arg(0).arg(-1);
        let out = stage.command(range("LRANGE", &keys.msg_out())).await.texts().unwrap();
        let held = stage.command(range("ZRANGE", &keys.msg_out_coordinator())).await.texts().unwrap();
        (self.is_out, self.is_held) = (!out.is_empty(), !held.is_empty());
        let mut ways: Vec<String> = out.into_iter().chain(held).collect();
        ways.sort();
        let under_way = self.in_state(State::OnItsWay).map(|key| format!("{}{key}", keys.prefix()));
        assert_eq!(ways, under_way.collect::<Vec<_>>());
    }
}

impl Requesting for Letters {
    type Call = Call;
    type Answer = Answer;

    fn expect(&self, who: u32, call: &Call) -> End {
        match call {
            Call::Publish(request) => {
                let caller = if request.caller_id == 0 { who } else { request.caller_id };
                let before = self.past_requests.before(who, &request.request_id, call);
                let made = self.made.get(&(who, request.request_id.clone()));
                match before {
                    _ if who == STRANGER => End::UNSEEN,
                    Some(End::REUSED) => End::REUSED,
                    _ if who == READER || (who == EXECUTOR && caller != EXECUTOR) => End::DENIED,
                    // What it made was removed.
                    Some(_) if made.is_none_or(|(key, _)| !self.letters.contains_key(key)) => End::UNSEEN,
                    before => before.unwrap_or(End::Made),
                }
            }
            Call::Acknowledge(request) => match request.actor_id {
                _ if who == STRANGER => End::UNSEEN,
                actor if actor != 0 && actor != who && who != ADMIN => End::DENIED,
                _ => self.past_requests.before(who, &request.request_id, call).unwrap_or(End::Made),
            },
            Call::Remove(request) => {
                let before = self.past_requests.before(who, &request.request_id, call);
                match self.letters.get(&request.key) {
                    _ if who == STRANGER => End::UNSEEN,
                    None => before.unwrap_or(End::UNSEEN),
                    Some(letter) if who != ADMIN && !letter.is_owned_by(who) => End::DENIED,
                    Some(letter) => before.unwrap_or(match letter.state {
                        State::OnItsWay => End::Refused(Code::FailedPrecondition, "MESSAGE_UNDER_WAY"),
                        _ => End::Made,
                    }),
                }
            }
            Call::Resend(request) => {
                let before = self.past_requests.before(who, &request.request_id, call);
                match self.letters.get(&request.key) {
                    _ if who == STRANGER => End::UNSEEN,
                    None => End::UNSEEN,
                    Some(_) if who == READER => End::DENIED,
                    Some(letter) if who == EXECUTOR && letter.caller != EXECUTOR => End::DENIED,
                    Some(letter) => before.unwrap_or(match letter.state {
                        State::Dead => End::Made,
                        _ => End::Refused(Code::FailedPrecondition, "NOT_A_DEAD_LETTER"),
                    }),
                }
            }
        }
    }

    async fn perform(
        &self,
        stage: &Stage<impl Redis>,
        on_behalf_of: u32,
        call: Call,
    ) -> Result<Answer, Status> {
        let mut letters = stage.message_box();
        Ok(match call {
            Call::Publish(message) => {
                let request = wire::PublishRequest { message: Some(message), on_behalf_of };
                Answer::Message(Box::new(letters.publish(request).await?.into_inner().message.unwrap()))
            }
            Call::Acknowledge(acknowledge) => {
                let request = wire::AcknowledgeRequest { acknowledge: Some(acknowledge), on_behalf_of };
                Answer::Count(letters.acknowledge(request).await?.into_inner().acknowledged_count)
            }
            Call::Remove(message) => {
                let request = wire::RemoveMessageRequest { message: Some(message), on_behalf_of };
                letters.remove_message(request).await?;
                Answer::Nothing
            }
            Call::Resend(resend) => {
                let request = wire::ResendRequest { resend: Some(resend), on_behalf_of };
                Answer::Message(Box::new(letters.resend(request).await?.into_inner().message.unwrap()))
            }
        })
    }

    fn take(&mut self, who: u32, call: &Call, answer: &Answer) {
        let (request_id, made) = match (call, answer) {
            (Call::Publish(request), Answer::Message(message)) => {
                let caller = if request.caller_id == 0 { who } else { request.caller_id };
                let (to, text) = (request.to.parse().ok(), request.text.clone());
                self.keep(&message.key, Known { caller, to, text, state: State::OnItsWay });
                (&request.request_id, (message.key.clone(), 0))
            }
            (Call::Acknowledge(request), Answer::Count(count)) => {
                let owner = if request.actor_id == 0 { who } else { request.actor_id };
                let mut known = 0;
                for key in &request.keys {
                    let letter = self.letters.get_mut(key);
                    let waits =
                        |letter: &&mut Known| letter.state == State::Waits && letter.to == Some(owner);
                    if let Some(letter) = letter.filter(waits) {
                        letter.state = State::Read;
                        known += 1;
                    }
                }
                assert_eq!(*count, known);
                self.revision += u64::from(known > 0);
                (&request.request_id, (String::new(), known))
            }
            (Call::Remove(request), _) => {
                self.letters.remove(&request.key).unwrap();
                self.revision += 1;
                (&request.request_id, (String::new(), 0))
            }
            (Call::Resend(request), _) => {
                self.letters.get_mut(&request.key).unwrap().state = State::OnItsWay;
                self.revision += 1;
                (&request.request_id, (request.key.clone(), 0))
            }
            (call, answer) => panic!("{answer:?} to {call:?}"),
        };
        if !request_id.is_empty() {
            self.made.insert((who, request_id.clone()), made);
        }
        self.past_requests.remember(who, request_id, call);
    }

    fn check_answer(&self, who: u32, call: &Call, answer: &Answer, end: End) {
        match (answer, call) {
            (Answer::Message(message), _) => self.assert_kept(message),
            (Answer::Count(count), Call::Acknowledge(request)) if end == End::MadeBefore => {
                assert_eq!(*count, self.made[&(who, request.request_id.clone())].1, "{who} asks {call:?}");
            }
            _ => {}
        }
    }
}

/// Another body under the same request id.
fn changed(mut call: Call) -> Call {
    match &mut call {
        Call::Publish(request) => request.text.push('x'),
        Call::Acknowledge(request) => request.keys.push("message:0:99998".to_owned()),
        Call::Remove(request) => {
            let v1::DeleteMessageRequest { request_id, context_id, key } = request.clone();
            call = Call::Resend(v1::ResendMessageRequest { request_id, context_id, key });
        }
        Call::Resend(request) => request.key = "message:2:1".to_owned(),
    }
    call
}

async fn find(stage: &Stage<impl Redis>, who: u32, key: &str) -> Result<v1::Message, Status> {
    let message = Some(v1::GetMessageRequest { context_id: CONTEXT, key: key.to_owned() });
    let found =
        stage.message_box().find_message(wire::FindMessageRequest { message, on_behalf_of: who }).await;
    found.map(|found| found.into_inner().message.unwrap())
}

impl Family for Letters {
    type Op = Chances<What>;

    fn any_op() -> impl Strategy<Value = Chances<What>> {
        let what = prop_oneof![
            4 => Just(What::Publish),
            1 => Just(What::Settle),
            4 => Just(What::Accept),
            3 => Just(What::Acknowledge),
            3 => Just(What::Remove),
            2 => Just(What::Resend),
            3 => Just(What::Again),
        ];
        let who = prop_oneof![
            3 => Just(ADMIN),
            5 => Just(EXECUTOR),
            3 => Just(READER),
            1 => Just(STRANGER),
        ];
        Chances::any(what, who)
    }

    async fn new(_: &Stage<impl Redis>) -> Self {
        Self { revision: 1, ..Self::default() }
    }

    async fn apply(&mut self, stage: &Stage<impl Redis>, op: Chances<What>) {
        match op.what {
            What::Settle => return self.settle(stage, &op).await,
            What::Accept => return self.accept(stage, &op).await,
            _ => {}
        }
        if let Some((who, call)) = self.call(&op) {
            self.request(stage, who, call).await;
        }
    }

    async fn check(&mut self, stage: &Stage<impl Redis>) {
        self.check_lists(stage).await;
        self.check_inboxes(stage).await;
        self.check_ways(stage).await;
    }

    fn kept(&self) -> Kept {
        let mut kept = Kept::on_stage(self.revision);
        self.past_requests.keep(CONTEXT, &mut kept);
        let ways = [(self.is_out, ContextKey::MsgOut), (self.is_held, ContextKey::MsgOutCoordinator)];
        for (_, key) in ways.into_iter().filter(|(is_there, _)| *is_there) {
            kept.key(CONTEXT, &key);
        }
        for number in self.seen.keys() {
            kept.key(CONTEXT, &ContextKey::Seen(mark(*number)));
        }
        for (key, letter) in &self.letters {
            let mut parts = key.rsplit(':').map(|part| part.parse().unwrap_or(0));
            let id = MessageId(parts.next().unwrap());
            kept.key(CONTEXT, &ContextKey::Message(MessageKey { caller: ActorId(letter.caller), id }));
            kept.key(CONTEXT, &ContextKey::Letters);
            if letter.caller == 0 {
                kept.key(CONTEXT, &ContextKey::MsgIn);
            }
            match (letter.state, letter.to) {
                (State::Arrived | State::Read, _) => kept.key(CONTEXT, &ContextKey::LettersDone),
                (State::Dead, _) => kept.key(CONTEXT, &ContextKey::DeadLetters),
                (State::Waits, Some(owner)) => {
                    kept.key(CONTEXT, &ContextKey::Inbox(ActorId(owner)));
                    kept.key(CONTEXT, &ContextKey::InboxBytes);
                }
                _ => {}
            }
        }
        kept
    }
}

#[test]
fn letters_match_the_reference() {
    conformance::with_databases::<Letters>(15);
}

#[test]
fn letters_match_the_reference_with_hash_tags() {
    conformance::with_hash_tags::<Letters>(15);
}

#[test]
fn letters_match_the_reference_in_a_cluster() {
    conformance::in_a_cluster::<Letters>(15);
}
