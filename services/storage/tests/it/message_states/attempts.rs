//! Messages that carry attempts.

use model::FlowUid;
use proto::internal::v1 as wire;
use testkit::RedisServer;

use super::{MessageCase, MessageTable, ROUTER, Sighting, StateChange, change, name_of};
use crate::first_step::{MESSAGE, with_first_step};
use crate::processed::{carrying, ended};
use crate::stage::{CONTEXT, EXECUTOR, Running, Stage};

const OUT_ENDED: &str = "out: its attempts have ended";
const HELD_ENDED: &str = "held: its attempts have ended";

/// A flow comes with its first step, and the message with that.
const WITH_FLOW: &str = "commit: with its flow";
const KEY: &str = "message:2:1";
/// Key of the message of a first step.
const KEY_WITH_FLOW: &str = "message:2:1073741831";

/// The table of messages with attempts.
pub(super) struct AttemptMessages;

/// A message of a flow.
struct AttemptCase<'a> {
    case: MessageCase<'a>,
    flow: Running,
}

impl AttemptCase<'_> {
    async fn commit(&mut self, attempts: usize) {
        let messages = vec![carrying(&self.flow, 1, attempts)];
        let step = wire::CommitRequest { messages, ..self.flow.step() };
        self.case.stage.apply(&mut self.flow, step).await;
    }

    /// Commits the end of the message's first attempt.
    async fn attempt_ends(&mut self) {
        let step = ended(&self.flow, &[(0, 1)]);
        self.case.stage.apply(&mut self.flow, step).await;
    }

    async fn remove(&mut self) {
        let end = self.flow.end();
        self.case.stage.apply(&mut self.flow, end).await;
        let flow_id = self.flow.id;
        let removal = wire::RemoveFlowRequest {
            context_id: CONTEXT,
            flow_id,
            on_behalf_of: EXECUTOR,
            ..Default::default()
        };
        self.case.stage.flows().remove_flow(removal).await.expect("it has ended");
    }

    async fn happens(&mut self, event: &str) {
        match event {
            "commit" => self.commit(1).await,
            WITH_FLOW => {
                assert!(KEY_WITH_FLOW.ends_with(&MESSAGE.to_string()));
                let request = with_first_step(FlowUid::random());
                self.case.stage.flows().create_flow(request).await.expect("a new flow");
            }
            "attempts_end" => self.attempt_ends().await,
            "remove" => self.remove().await,
            _ => self.case.router_event(event).await,
        }
    }

    /// The changes of scripts that an event has brought about. Storage settles by itself what it need not send, with a script of its
    /// own after the one that takes the message.
    async fn changes(
        &self,
        (place, event): (&str, &str),
        before: &Sighting,
        after: &Sighting,
    ) -> Vec<StateChange> {
        let settled = match (place, event) {
            (OUT_ENDED, "take") => "give_up",
            (HELD_ENDED, "resume" | "take_over") => "settle",
            _ if before == after => return Vec::new(),
            _ => return vec![change(before.state, event, after.state)],
        };
        let fields = self.case.stage.hash(&self.case.key()).await;
        assert!(!fields["router"].is_empty(), "a router has taken it before it was settled: {fields:?}");
        vec![change(before.state, event, "held"), change("held", settled, after.state)]
    }
}

async fn at<'a>(stage: Stage<&'a RedisServer>, key: &'static str, place: &str) -> AttemptCase<'a> {
    let case = MessageCase::new(stage, key).await;
    let flow = case.stage.started(2).await;
    let mut message = AttemptCase { case, flow };
    let state = name_of(place);
    if state == "none" {
        if place.ends_with("a router has room") {
            message.case.connect(ROUTER).await;
        }
        return message;
    }
    message.commit(if place.ends_with("two attempts") { 2 } else { 1 }).await;
    if state != "out" {
        message.case.connect(ROUTER).await;
    }
    match state {
        "acknowledged" | "processed" => message.case.settle("").await,
        "error" => message.case.settle("TIMEOUT_ACK: x").await,
        _ => {}
    }
    if state == "processed" || place.ends_with("its attempts have ended") {
        message.attempt_ends().await;
    }
    message
}

impl MessageTable for AttemptMessages {
    const HEADING: &str = "A message with attempts";
    const PLACES: &[&str] = &[
        "none",
        "none: a router has room",
        "out",
        OUT_ENDED,
        "held",
        "held: two attempts",
        HELD_ENDED,
        "acknowledged",
        "acknowledged: two attempts",
        "processed",
        "error",
        "error: its attempts have ended",
    ];
    const EVENTS: &[&str] = &[
        "commit",
        WITH_FLOW,
        "take",
        "renew",
        "resume",
        "take_over",
        "attempts_end",
        "settle",
        "give_up",
        "remove",
    ];

    async fn changes(stage: Stage<&RedisServer>, place: &str, event: &str) -> Vec<StateChange> {
        let key = if event == WITH_FLOW { KEY_WITH_FLOW } else { KEY };
        let mut message = at(stage, key, place).await;
        message.case.expect(event).await;
        let before = message.case.look().await;
        message.happens(event).await;
        let after = message.case.look().await;
        message.changes((place, event), &before, &after).await
    }
}
