//! Messages that programs push: jobs, of which a scheduler makes a flow.

use kv::Cmd;
use model::FlowId;
use proto::internal::v1 as wire;
use proto::v1::FlowStatus;
use testkit::{PATIENCE, RedisServer, wait_until};

use super::{MessageCase, MessageTable, OTHER, ROUTER, Sighting, StateChange, change, name_of};
use crate::letters::{remove, resend};
use crate::raw::{JOBS, created_of_message, ends, flow_of_message, push, restarted};
use crate::stage::{CONTEXT, EXECUTOR, Running, Stage};

const KEY: &str = "message:2:7";
/// A router that took it has ended before it read it.
const NOT_TAKEN_UP: &str = "held: not taken up";
const UNREADABLE: &str = "held: cannot be read";
const RUNS_AGAIN: &str = "held: its flow has failed, and runs again";
const GIVEN_UP_RUNS_AGAIN: &str = "acknowledged: it was given up, its flow has failed, and runs again";
const SENT_AGAIN: &str = "out: sent again, and its flow runs";
const NOT_STARTED: &str = "acknowledged: its flow is not started, and is cancelled";
const WITHOUT_FLOW: &str = "acknowledged: its flow is gone";
const COMPLETED_OLDEST: &str = "processed: the oldest of too many";
const FAILED_OLDEST: &str = "error: its flow has failed, and it is the oldest of too many";
const FAILS: &str = "flow_end: it fails";

/// The table of messages that programs push.
pub(super) struct PushedMessages;

/// A message that was pushed, and the flow that was made of it.
struct PushedCase<'a> {
    case: MessageCase<'a>,
    flow: Option<Running>,
}

impl PushedCase<'_> {
    async fn push(&self) {
        push(&self.case.stage, &self.case.key(), &[("job", JOBS)]).await;
    }

    /// Has it held by a router that is not there, as it was taken.
    async fn hold(&self, jobs: &str) {
        let set = Cmd::new("HSET").arg(&self.case.key()).arg("job").arg(jobs);
        self.case.stage.command(set.arg("router").arg(ROUTER)).await;
        self.case.set_hold("NX", "1", KEY).await;
    }

    /// The running flow that was made of the message, or is now.
    async fn flow_runs(&mut self) -> Running {
        if self.flow.is_none() {
            self.flow = Some(flow_of_message(&self.case.stage).await);
        }
        self.flow.clone().expect("a flow")
    }

    /// The flow that was made of the message, or is now and is given up before it starts.
    async fn flow_waits(&mut self) -> Running {
        if self.flow.is_none() {
            let flow = created_of_message(&self.case.stage).await;
            let record = self.case.stage.keys().flow(FlowId(flow.id));
            self.case
                .stage
                .command(Cmd::new("HSET").arg(&record).arg("cancel_requested_time").arg("1.000"))
                .await;
            self.flow = Some(flow);
        }
        self.flow.clone().expect("a flow")
    }

    async fn flow_ends(&mut self, status: FlowStatus) {
        let flow = self.flow_runs().await;
        self.case.stage.commit(ends(&flow, status)).await;
    }

    async fn flow_runs_again(&mut self) {
        let flow = self.flow.take().expect("a flow");
        self.flow = Some(restarted(&self.case.stage, flow, 1).await);
    }

    /// The router says which flow it has become.
    async fn becomes(&mut self, flow_id: u32) {
        self.case.connected().await.becomes(KEY, flow_id).await;
        self.case.settlements_done().await;
    }

    async fn give_up(&mut self) {
        self.case.router_event("give_up").await;
    }

    async fn resend(&mut self) {
        // A router would take it at once.
        self.case.disconnect().await;
        drop(resend(&self.case.stage, EXECUTOR, "", KEY).await);
    }

    /// The router that holds it finds that the context does not take such messages any more.
    async fn is_not_allowed(&mut self) {
        self.case
            .stage
            .command(Cmd::new("HDEL").arg(&self.case.stage.keys().context()).arg("settings"))
            .await;
        self.case.router = Some(self.case.stage.router(ROUTER).await);
        let (stage, key) = (&self.case.stage, self.case.key());
        let is_settled = || async {
            stage.hash(&key).await.get("status").is_some_and(|status| status == "error").then_some(())
        };
        wait_until(is_settled, PATIENCE, "the message is refused").await;
    }

    /// Makes an event happen; a refusal is an answer as well.
    async fn happens(&mut self, place: &str, event: &str) {
        match event {
            "push" => self.push().await,
            "take" if place == NOT_TAKEN_UP => {
                self.case.push_out(&self.case.key()).await;
                self.case.connect(OTHER).await;
            }
            "take_up" => self.case.connect(ROUTER).await,
            "give_up" if place == NOT_TAKEN_UP => self.is_not_allowed().await,
            "give_up" if place == UNREADABLE => self.case.connect(ROUTER).await,
            "settle" => {
                let flow = if place == WITHOUT_FLOW { None } else { Some(self.flow_runs().await) };
                self.becomes(flow.map_or(41, |flow| flow.id)).await;
            }
            "flow_end" => self.flow_ends(FlowStatus::Finished).await,
            FAILS => self.flow_ends(FlowStatus::Error).await,
            "flow_removed" => {
                let flow_id = self.flow_waits().await.id;
                let on_behalf_of = EXECUTOR;
                let removal = wire::RemoveFlowRequest {
                    context_id: CONTEXT,
                    flow_id,
                    on_behalf_of,
                    ..Default::default()
                };
                drop(self.case.stage.flows().remove_flow(removal).await);
            }
            "run_again" => {
                let flow = self.flow.clone().expect("a flow");
                drop(self.case.stage.flows().restart_flow(flow.restart()).await);
            }
            "resend" => self.resend().await,
            "remove" if matches!(place, COMPLETED_OLDEST | FAILED_OLDEST) => self.case.outnumber().await,
            "remove" => drop(remove(&self.case.stage, EXECUTOR, KEY).await),
            _ => self.case.router_event(event).await,
        }
    }
}

async fn at<'a>(stage: Stage<&'a RedisServer>, place: &str) -> PushedCase<'a> {
    let mut message = PushedCase { case: MessageCase::new(stage, KEY).await, flow: None };
    match place {
        "none" => return message,
        NOT_TAKEN_UP => message.hold(JOBS).await,
        UNREADABLE => message.hold("x").await,
        _ => message.push().await,
    }
    if matches!(place, NOT_TAKEN_UP | UNREADABLE | "out") {
        return message;
    }
    message.case.connect(ROUTER).await;
    match place {
        "held" => {}
        "held: its flow has completed" => message.flow_ends(FlowStatus::Finished).await,
        "held: its flow has failed" => message.flow_ends(FlowStatus::Error).await,
        RUNS_AGAIN => {
            message.flow_ends(FlowStatus::Error).await;
            message.flow_runs_again().await;
        }
        WITHOUT_FLOW => message.becomes(41).await,
        NOT_STARTED => {
            let flow = message.flow_waits().await;
            message.becomes(flow.id).await;
        }
        "error" => message.give_up().await,
        SENT_AGAIN | "error: its flow runs" => {
            message.flow_runs().await;
            message.give_up().await;
        }
        GIVEN_UP_RUNS_AGAIN => {
            message.flow_runs().await;
            message.give_up().await;
            message.flow_ends(FlowStatus::Error).await;
            message.flow_runs_again().await;
        }
        _ => {
            let flow = message.flow_runs().await;
            message.becomes(flow.id).await;
        }
    }
    match name_of(place) {
        "out" => message.resend().await,
        "processed" => message.flow_ends(FlowStatus::Finished).await,
        "error" if place.contains("has failed") => message.flow_ends(FlowStatus::Error).await,
        _ => {}
    }
    message
}

/// The changes of scripts that an event has brought about: a router that takes a message takes it up by the next script.
fn changes(event: &str, before: &Sighting, after: &Sighting) -> Vec<StateChange> {
    if before == after {
        return Vec::new();
    }
    let mut all = vec![change(before.state, event, after.state)];
    if matches!(event, "take" | "take_over") && before.is_taken_up != after.is_taken_up {
        all.push(change("held", "take_up", after.state));
    }
    all
}

impl MessageTable for PushedMessages {
    const HEADING: &str = "Messages that a program pushes";
    const PLACES: &[&str] = &[
        "none",
        "out",
        SENT_AGAIN,
        NOT_TAKEN_UP,
        UNREADABLE,
        "held",
        "held: its flow has completed",
        "held: its flow has failed",
        RUNS_AGAIN,
        "acknowledged",
        GIVEN_UP_RUNS_AGAIN,
        NOT_STARTED,
        WITHOUT_FLOW,
        "processed",
        COMPLETED_OLDEST,
        "error",
        "error: its flow runs",
        "error: its flow has failed",
        FAILED_OLDEST,
    ];
    const EVENTS: &[&str] = &[
        "push",
        "take",
        "renew",
        "resume",
        "take_over",
        "take_up",
        "give_up",
        "settle",
        "flow_end",
        FAILS,
        "flow_removed",
        "run_again",
        "resend",
        "remove",
    ];

    fn is_possible(place: &str, event: &str) -> bool {
        let has_flow = !matches!(place, "none" | "out" | "held" | NOT_TAKEN_UP | "error" | WITHOUT_FLOW);
        match (place, name_of(event)) {
            // The same as the place without it, but for what becomes of the oldest.
            (COMPLETED_OLDEST | FAILED_OLDEST, event) => event == "remove",
            // The same as what was not taken up, but for what the router finds.
            (UNREADABLE, event) => event == "give_up",
            // Nobody settles what no router was given; the router that comes back takes it up.
            (NOT_TAKEN_UP, "settle" | "renew" | "resume") => false,
            // The router that comes back for what was taken up is the event `resume`.
            (place, "take_up") => place == NOT_TAKEN_UP,
            (NOT_STARTED, "flow_end") => false,
            (_, "run_again") => has_flow,
            _ => true,
        }
    }

    async fn changes(stage: Stage<&RedisServer>, place: &str, event: &str) -> Vec<StateChange> {
        let mut message = at(stage, place).await;
        message.case.expect(event).await;
        let before = message.case.look().await;
        message.happens(place, event).await;
        let after = message.case.look().await;
        changes(event, &before, &after)
    }
}
