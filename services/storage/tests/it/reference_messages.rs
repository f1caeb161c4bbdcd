//! Random operations on messages that carry nodes against a short reference of where each of them is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use futures_util::FutureExt as _;
use keys::ContextKey;
use kv::{Cmd, Pipeline};
use model::{ActorId, FlowId, MessageId, MessageKey, NodeState};
use proptest::prelude::*;
use proto::internal::v1 as wire;
use proto::v1;
use testkit::{PATIENCE, wait_until};
use tonic::Code;

use crate::conformance::{self, Chances, End, Family, Kept, noticed};
use crate::places::Redis;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, Router, Running, Stage, json};

const NAMES: [&str; 3] = ["a", "b", "c"];
/// Nodes of each flow.
const NODES: u32 = 3;

#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Send,
    /// A router comes, perhaps under the name of one that is there.
    Connect,
    Leave,
    /// The holds of routers that are not there expire.
    Expire,
    Settle,
    /// Attempts end that a message carried.
    End,
    /// A program pushes the key of a message once more.
    Push,
    /// Chat and mail operations.
    Touch,
    /// The flow ends and goes with all its messages.
    Remove,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HoldState {
    Out,
    /// By the router of this name.
    Held(String),
    /// And why it did not arrive.
    Settled(String),
}

#[derive(Debug)]
struct Carrier {
    sent: wire::OutgoingMessage,
    place: HoldState,
    /// Attempts that have not ended.
    open: i64,
    /// The places of those that ended before it arrived, and before all of them had.
    ended: BTreeSet<u32>,
    /// The holder has been silent for long.
    is_given_up: bool,
    /// The last of its attempts has ended while a router held it, and that settled it but for its place.
    is_settled: bool,
}

impl Carrier {
    /// Status of the message, status of its transport, and why it did not arrive.
    fn state(&self) -> [&str; 3] {
        match &self.place {
            HoldState::Held(_) if self.is_settled => ["processed", "read", ""],
            HoldState::Out | HoldState::Held(_) => ["dispatched", "queued", ""],
            HoldState::Settled(error) if !error.is_empty() => ["error", "failed", error],
            HoldState::Settled(_) if self.open > 0 => ["acknowledged", "read", ""],
            HoldState::Settled(_) => ["processed", "read", ""],
        }
    }

    fn is_dead(&self) -> bool {
        self.state()[0] == "error"
    }

    /// Executions that the router is to send that is given the message now.
    fn left(&self) -> Vec<Bytes> {
        let is_left = |(place, _): &(u32, &Bytes)| !self.ended.contains(place);
        (0..).zip(&self.sent.nodes).filter(is_left).map(|(_, node)| node.clone()).collect()
    }
}

/// A router that is connected, and what it was given since.
struct Connected {
    router: Router,
    given: BTreeSet<u32>,
}

pub(crate) struct Messages {
    flow: Running,
    /// Those of the flow.
    messages: BTreeMap<u32, Carrier>,
    last: u32,
    /// Content of `msg_out`, also messages that are elsewhere or gone, the first to be taken first.
    out: VecDeque<u32>,
    routers: BTreeMap<&'static str, Connected>,
    /// A stream in whose place there is another one.
    former: Option<Router>,
    revision: u64,
    without_events: BTreeSet<u64>,
}

fn name(id: u32) -> String {
    format!("message:{EXECUTOR}:{id}")
}

fn key(stage: &Stage<impl Redis>, id: u32) -> String {
    stage.key_of(&name(id))
}

impl Messages {
    /// One of the last, of which some are gone.
    fn some(&self, op: &Chances<What>) -> u32 {
        self.last.saturating_sub(u32::try_from(op.object % 8).unwrap())
    }

    async fn send(&mut self, stage: &Stage<impl Redis>, op: &Chances<What>) {
        let count = u32::from(op.mask) % 3 + 1;
        let reserve = wire::ReserveMessageIdsRequest { context_id: CONTEXT, caller_id: EXECUTOR, count };
        let first = stage.flows().reserve_message_ids(reserve).await.unwrap().into_inner().first_message_id;
        assert_eq!(first, self.last + 1, "one number after the other");
        self.last += count;
        let (context, flow) = (&stage.context_uid, &self.flow.uid);
        let job_key = |place| format!("{context}-{flow}-{}-1", self.flow.node(place).job_id);
        let nodes = (0..=u32::from(op.number) % NODES)
            .map(|place| Bytes::from(format!(r#"{{"job_key":"{}"}}"#, job_key(place))));
        let nodes: Vec<Bytes> = nodes.collect();
        let message = |id| wire::OutgoingMessage { nodes: nodes.clone(), ..self.flow.message(id) };
        let messages: Vec<_> = (first..first + count).map(message).collect();
        let step = wire::CommitRequest { messages: messages.clone(), ..self.flow.step() };
        self.commit(stage, step, op.other).await;
        for sent in messages {
            let (id, open) = (sent.message_id, i64::try_from(sent.nodes.len()).unwrap());
            let place = self.place_of(stage, id).await;
            if place == HoldState::Out {
                self.out.push_back(id);
            }
            let ended = BTreeSet::new();
            let message = Carrier { sent, place, open, ended, is_given_up: false, is_settled: false };
            self.messages.insert(id, message);
        }
    }

    /// A step of the flow, `again` when its answer was lost.
    async fn commit(&mut self, stage: &Stage<impl Redis>, step: wire::CommitRequest, again: bool) {
        self.revision += 1;
        assert_eq!(stage.apply(&mut self.flow, step.clone()).await, self.revision);
        if again {
            assert_eq!(stage.commit(step).await.revision, self.revision);
        }
    }

    /// Where a message is that was out, or is new: any of those who are there may have it.
    async fn place_of(&self, stage: &Stage<impl Redis>, id: u32) -> HoldState {
        if self.routers.is_empty() {
            return HoldState::Out;
        }
        let router = stage.command(Cmd::new("HGET").arg(&key(stage, id)).arg("router")).await.text().unwrap();
        assert!(self.routers.contains_key(&*router), "{router} is not there, and has {id}");
        HoldState::Held(router)
    }

    /// Connects. Its former stream perhaps `lingers`: storage has not noticed yet that it is dead.
    async fn connect(&mut self, stage: &Stage<impl Redis>, name: &'static str, lingers: bool) {
        match self.routers.remove(name) {
            Some(former) if lingers => self.former = Some(former.router),
            _ => noticed().await,
        }
        let router = stage.router(name).await;
        self.routers.insert(name, Connected { router, given: BTreeSet::new() });
        noticed().await;
        let is_over =
            |message: &Carrier| message.open <= 0 && message.place == HoldState::Held(name.to_owned());
        for id in self.those(is_over) {
            self.is_over(stage, id, "").await;
        }
    }

    fn those(&self, is: impl Fn(&Carrier) -> bool) -> Vec<u32> {
        self.messages.iter().filter(|(_, message)| is(message)).map(|(id, _)| *id).collect()
    }

    /// Checks that a message without open attempts is settled and given to no router.
    async fn is_over(&mut self, stage: &Stage<impl Redis>, id: u32, error: &str) {
        let status = Cmd::new("HGET").arg(&key(stage, id)).arg("status");
        let held = Cmd::new("ZSCORE").arg(&stage.keys().msg_out_coordinator()).arg(&key(stage, id));
        let is_settled = || async {
            let is_dispatched = stage.command(status.clone()).await.text().unwrap() == "dispatched";
            (!is_dispatched && stage.command(held.clone()).await.is_nil()).then_some(())
        };
        wait_until(is_settled, PATIENCE, format!("message {id} is settled")).await;
        let message = self.messages.get_mut(&id).unwrap();
        (message.place, message.is_given_up) = (HoldState::Settled(error.to_owned()), false);
        if !message.is_settled {
            self.revision += 1;
            self.without_events.insert(self.revision);
        }
    }

    async fn leave(&mut self, name: &'static str) {
        self.routers.remove(name);
        noticed().await;
    }

    async fn expire(&mut self, stage: &Stage<impl Redis>) {
        for (id, message) in &mut self.messages {
            if matches!(&message.place, HoldState::Held(router) if !self.routers.contains_key(&**router)) {
                message.is_given_up = true;
                let held = stage.keys().msg_out_coordinator();
                stage.command(Cmd::new("ZADD").arg(&held).arg(1).arg(&key(stage, *id))).await;
            }
        }
        // Who is there looks around now and then, and when it comes.
        if let Some(name) = self.routers.keys().next().copied() {
            self.connect(stage, name, false).await;
        }
    }

    /// A router settles messages, including some that it does not hold, or has not held for long.
    async fn settle(&mut self, stage: &Stage<impl Redis>, op: &Chances<What>) {
        let name = NAMES[usize::from(op.number) % NAMES.len()];
        let Some(connected) = self.routers.get(name) else { return };
        let error = if op.other { "UNDELIVERABLE: nobody \"there\"" } else { "" };
        let picked = (0..8).filter(|n| op.mask >> n & 1 == 1).map(|n| self.last.saturating_sub(n));
        let picked: Vec<u32> = picked.collect();
        // Its settlement is handled after everything before.
        let (mark, held) = (stage.key_of("message:9:9"), stage.keys().msg_out_coordinator());
        stage.command(Cmd::new("ZADD").arg(&held).arg("9e9").arg(&mark)).await;
        let settled =
            |message_key| wire::HeldMessage { context_id: CONTEXT, message_key, ..Default::default() };
        let settlements =
            picked.iter().map(|id| settled(self::name(*id))).chain([settled("message:9:9".to_owned())]);
        connected.router.settle(&settlements.collect::<Vec<_>>(), error).await;
        let is_processed =
            || async { stage.command(Cmd::new("ZSCORE").arg(&held).arg(&mark)).await.is_nil().then_some(()) };
        wait_until(is_processed, PATIENCE, "what was told is heard").await;
        let mut is_new = false;
        for id in picked {
            let message = self.messages.get_mut(&id);
            if let Some(message) = message.filter(|message| matches!(message.place, HoldState::Held(_))) {
                message.place = HoldState::Settled(error.to_owned());
                is_new |= !message.is_settled || !error.is_empty();
            }
        }
        if is_new {
            self.revision += 1;
            self.without_events.insert(self.revision);
        }
    }

    async fn end(&mut self, stage: &Stage<impl Redis>, op: &Chances<What>) {
        let (id, count) = (self.some(op), u32::from(op.number) % NODES + 1);
        let node = |place| {
            let mut node = self.flow.node(place);
            node.state = NodeState::Completed;
            wire::NodeCommit {
                job_id: node.job_id.0,
                node_json: json(&node),
                job_status: "finished".to_owned(),
                ended_message: name(id),
                ..Default::default()
            }
        };
        let step = wire::CommitRequest { nodes: (0..count).map(node).collect(), ..self.flow.step() };
        self.commit(stage, step, op.other).await;
        if let Some(message) = self.messages.get_mut(&id) {
            message.open -= i64::from(count);
            if message.open > 0 && !matches!(message.place, HoldState::Settled(_)) {
                message.ended.extend(0..count);
            }
            message.is_settled |= message.open <= 0 && matches!(message.place, HoldState::Held(_));
        }
    }

    async fn push(&mut self, stage: &Stage<impl Redis>, id: u32) {
        let (list, channel) = (stage.keys().msg_out(), stage.keys().hint_channel());
        stage.command(Cmd::new("LPUSH").arg(&list).arg(&key(stage, id))).await;
        stage.command(Cmd::new("PUBLISH").arg(&channel).arg("out")).await;
        self.out.push_back(id);
    }

    /// Checks that the message cannot be resent or removed: it goes with its flow.
    async fn touch(&self, stage: &Stage<impl Redis>, id: u32) {
        let (key, context_id, on_behalf_of) = (name(id), CONTEXT, ADMIN);
        let carries = End::Refused(Code::FailedPrecondition, "CARRIES_NODES");
        let end = if self.messages.contains_key(&id) { carries } else { End::UNSEEN };
        let resend = v1::ResendMessageRequest { context_id, key: key.clone(), ..Default::default() };
        let resend = wire::ResendRequest { resend: Some(resend), on_behalf_of };
        assert!(end.meets(stage.message_box().resend(resend).await, "it is sent again").is_none());
        let message = Some(v1::DeleteMessageRequest { context_id, key, ..Default::default() });
        let remove = wire::RemoveMessageRequest { message, on_behalf_of };
        assert!(end.meets(stage.message_box().remove_message(remove).await, "it is removed").is_none());
    }

    async fn remove(&mut self, stage: &Stage<impl Redis>) {
        let end = self.flow.end();
        self.commit(stage, end, false).await;
        let remove = wire::RemoveFlowRequest {
            context_id: CONTEXT,
            flow_id: self.flow.id,
            on_behalf_of: EXECUTOR,
            ..Default::default()
        };
        stage.flows().remove_flow(remove).await.unwrap();
        self.messages.clear();
        self.routers.values_mut().for_each(|connected| connected.given.clear());
        self.flow = stage.started(NODES).await;
        // The end of the one; and the other one was made, filled and started.
        self.revision += 4;
    }

    /// While a router is connected, no message waits for long, and none stays with a router that it was taken from.
    async fn await_routers(&mut self, stage: &Stage<impl Redis>) {
        if self.routers.is_empty() {
            return;
        }
        let (out, held) = (stage.keys().msg_out(), stage.keys().msg_out_coordinator());
        let is_taken = || async {
            let left = stage.command(Cmd::new("LLEN").arg(&out)).await.uint().unwrap();
            let given_up = stage.command(Cmd::new("ZCOUNT").arg(&held).arg(0).arg(1)).await.uint().unwrap();
            (left == 0 && given_up == 0).then_some(())
        };
        wait_until(is_taken, PATIENCE, "everything is taken").await;
        self.out.clear();
        for id in self.those(|message| message.place == HoldState::Out || message.is_given_up) {
            let message = &self.messages[&id];
            if message.open <= 0 {
                let was_out = message.place == HoldState::Out;
                self.is_over(
                    stage,
                    id,
                    if was_out { "its attempts had ended before it was sent" } else { "" },
                )
                .await;
                continue;
            }
            let place = self.place_of(stage, id).await;
            let message = self.messages.get_mut(&id).unwrap();
            (message.place, message.is_given_up) = (place, false);
        }
    }

    /// Checks that each connected router is given what it holds, each message once, and nothing else.
    async fn check_given(&mut self, stage: &Stage<impl Redis>) {
        let said = self.former.as_mut().and_then(|former| former.answers.message().now_or_never());
        assert!(said.is_none_or(|said| said.unwrap().is_none()), "who has left is given nothing");
        for (name, Connected { router, given }) in &mut self.routers {
            let is_its_own = |message: &Carrier| message.place == HoldState::Held((*name).to_owned());
            loop {
                let mut own = self.messages.iter().filter(|(_, message)| is_its_own(message));
                let messages = if own.all(|(id, _)| given.contains(id)) {
                    let Some(answer) = router.answers.message().now_or_never() else { break };
                    answer.unwrap().unwrap().messages
                } else {
                    tokio::time::timeout(PATIENCE, router.take(1)).await.expect("it is given what it holds")
                };
                for message in messages {
                    let id = message.message_key.rsplit(':').next().unwrap().parse().unwrap();
                    assert!(given.insert(id), "{name} is given {id} twice");
                    let known = self.messages.get(&id).filter(|message| is_its_own(message));
                    let known = known.unwrap_or_else(|| panic!("{name} is given {id}"));
                    let said = (message.nodes, message.created_millis, message.runner_id, message.flow_id);
                    let sent = &known.sent;
                    assert_eq!(said, (known.left(), sent.created_millis, sent.runner_id, self.flow.id));
                    assert_eq!((&message.context_uid, message.context_id), (&stage.context_uid, CONTEXT));
                }
            }
        }
    }

    /// Each is in one place, and says so.
    async fn check_places(&self, stage: &Stage<impl Redis>) {
        let keys = stage.keys();
        let mut ask = Pipeline::new();
        ask.cmd(Cmd::new("LRANGE").arg(&keys.msg_out()).arg(0).arg(-1));
        ask.cmd(Cmd::new("ZRANGE").arg(&keys.msg_out_coordinator()).arg(0).arg(-1));
        ask.cmd(Cmd::new("ZRANGE").arg(&keys.dead_letters()).arg(0).arg(-1));
        for id in self.messages.keys() {
            let fields = ["status", "transport_status", "error", "open", "router"];
            ask.cmd(Cmd::new("HMGET").arg(&key(stage, *id)).args(fields));
        }
        let mut answers = stage.connection().pipeline(&ask).await.unwrap().into_iter().map(Result::unwrap);
        let mut names = || answers.next().unwrap().texts().unwrap();
        let (mut out, held, dead) = (names(), names(), names());
        out.reverse();
        assert_eq!(out, self.out.iter().map(|id| key(stage, *id)).collect::<Vec<_>>(), "out");
        let those = |is: fn(&Carrier) -> bool| {
            let those = self.messages.iter().filter(move |(_, message)| is(message));
            those.map(|(id, _)| key(stage, *id)).collect::<BTreeSet<_>>()
        };
        let is_held = |message: &Carrier| matches!(message.place, HoldState::Held(_));
        assert_eq!(BTreeSet::from_iter(held), those(is_held), "held");
        assert_eq!(BTreeSet::from_iter(dead), those(Carrier::is_dead), "dead letters");
        for (id, message) in &self.messages {
            let fields = answers.next().unwrap().array().unwrap().into_iter();
            // What is not there says nothing.
            let text = |field: kv::Value| field.optional_text().unwrap().unwrap_or_default();
            let said: Vec<String> = fields.map(text).collect();
            assert_eq!(said[..3], message.state(), "{id}: {message:?}");
            assert_eq!(said[3], message.open.to_string(), "{id}");
            if let HoldState::Held(router) = &message.place {
                assert_eq!(&said[4], router, "{id}");
            }
        }
    }
}

impl Family for Messages {
    type Op = Chances<What>;

    fn any_op() -> impl Strategy<Value = Chances<What>> {
        let what = prop_oneof![
            6 => Just(What::Send),
            4 => Just(What::Connect),
            3 => Just(What::Leave),
            2 => Just(What::Expire),
            6 => Just(What::Settle),
            4 => Just(What::End),
            2 => Just(What::Push),
            1 => Just(What::Touch),
            1 => Just(What::Remove),
        ];
        Chances::any(what, Just(EXECUTOR))
    }

    async fn new(stage: &Stage<impl Redis>) -> Self {
        let flow = stage.started(NODES).await;
        Self {
            revision: flow.revision,
            flow,
            messages: BTreeMap::new(),
            last: 1 << 30,
            out: VecDeque::new(),
            routers: BTreeMap::new(),
            former: None,
            without_events: BTreeSet::new(),
        }
    }

    async fn apply(&mut self, stage: &Stage<impl Redis>, op: Chances<What>) {
        let router = NAMES[op.object % NAMES.len()];
        match op.what {
            What::Send => self.send(stage, &op).await,
            What::Connect => self.connect(stage, router, op.other).await,
            What::Leave => self.leave(router).await,
            What::Expire => self.expire(stage).await,
            What::Settle => self.settle(stage, &op).await,
            What::End => self.end(stage, &op).await,
            What::Push => self.push(stage, self.some(&op)).await,
            What::Touch => self.touch(stage, self.some(&op)).await,
            What::Remove => self.remove(stage).await,
        }
        self.await_routers(stage).await;
        self.check_given(stage).await;
        self.check_places(stage).await;
        assert_eq!(stage.revision().await, self.revision, "one change, one revision");
    }

    async fn check(&mut self, stage: &Stage<impl Redis>) {
        for (id, message) in &self.messages {
            let (context_id, message_key, on_behalf_of) = (CONTEXT, name(*id), EXECUTOR);
            let read = wire::ReadMessageRequest { context_id, message_key, on_behalf_of };
            let read = stage.flows().read_message(read).await.unwrap().into_inner();
            assert_eq!([&*read.status, &read.transport_status, &read.error], message.state());
        }
    }

    fn kept(&self) -> Kept {
        let mut kept = Kept::on_stage(self.revision);
        kept.without_events(&self.without_events);
        kept.started(&self.flow);
        if !self.out.is_empty() {
            kept.key(CONTEXT, &ContextKey::MsgOut);
        }
        for (id, message) in &self.messages {
            let id = MessageKey { caller: ActorId(EXECUTOR), id: MessageId(*id) };
            kept.key(CONTEXT, &ContextKey::Message(id));
            kept.key(CONTEXT, &ContextKey::FlowMessages(FlowId(self.flow.id)));
            if matches!(message.place, HoldState::Held(_)) {
                kept.key(CONTEXT, &ContextKey::MsgOutCoordinator);
            }
            if message.is_dead() {
                kept.key(CONTEXT, &ContextKey::DeadLetters);
            }
        }
        kept
    }
}

#[test]
fn messages_match_the_reference() {
    conformance::with_databases::<Messages>(20);
}

#[test]
fn messages_match_the_reference_with_hash_tags() {
    conformance::with_hash_tags::<Messages>(20);
}

#[test]
fn messages_match_the_reference_in_a_cluster() {
    conformance::in_a_cluster::<Messages>(20);
}
