//! Messages that are received.

use kv::Cmd;
use model::limits;
use proto::v1::FlowStatus;
use testkit::RedisServer;

use super::{MessageCase, MessageTable, StateChange, change, name_of};
use crate::letters::remove;
use crate::raw::{ends, flow_of_message};
use crate::received::{accept, accepted, acknowledge, letter};
use crate::stage::{EXECUTOR, READER, Stage};

const KEY: &str = "message:0:1";
const FLOW_END: &str = "accept: a flow has ended";
const FLOW_END_FULL: &str = "accept: a flow has ended, and the inbox is full";
const FULL: &str = "acknowledged: the inbox was full";
const FULL_OLDEST: &str = "acknowledged: the inbox was full, and it is the oldest of too many";
const OLDEST: &str = "processed: the oldest of too many";
const SEEN: &str = "none: it was accepted before";

/// The table of messages that are received.
pub(super) struct ReceivedMessages;

/// Has the flow of a program's message end, which tells the executor.
async fn flow_ends(case: &MessageCase<'_>, is_full: bool) {
    if is_full {
        let fill = Cmd::new("HSET").arg(&case.stage.keys().inbox_bytes()).arg(EXECUTOR);
        case.stage.command(fill.arg(limits::INBOX_BYTES_MAX)).await;
    }
    let mut flow = flow_of_message(&case.stage).await;
    let end = ends(&flow, FlowStatus::Finished);
    case.stage.apply(&mut flow, end).await;
}

/// The actor that has received what is at a place.
fn recipient(place: &str) -> u32 {
    if place.starts_with(FULL) { EXECUTOR } else { READER }
}

async fn at<'a>(stage: Stage<&'a RedisServer>, place: &str) -> MessageCase<'a> {
    let case = MessageCase::new(stage, KEY).await;
    if place == "none" {
        return case;
    }
    if place.starts_with(FULL) {
        flow_ends(&case, true).await;
        return case;
    }
    assert_eq!(accepted(&case.stage, &letter(1)).await, KEY);
    if name_of(place) != "acknowledged" {
        acknowledge(&case.stage, READER, 0, &[KEY]).await.expect("it is in the inbox");
    }
    if place == SEEN {
        remove(&case.stage, READER, KEY).await.expect("it was read");
    }
    case
}

/// Makes an event happen; a refusal is an answer as well.
async fn happens(case: &MessageCase<'_>, place: &str, event: &str) {
    let actor = recipient(place);
    match event {
        "accept" => drop(accept(&case.stage, &letter(1), false).await),
        FLOW_END => flow_ends(case, false).await,
        FLOW_END_FULL => flow_ends(case, true).await,
        "acknowledge" => drop(acknowledge(&case.stage, actor, 0, &[KEY]).await),
        "remove" if matches!(place, OLDEST | FULL_OLDEST) => case.outnumber().await,
        "remove" => drop(remove(&case.stage, actor, KEY).await),
        other => panic!("no test makes the event {other}"),
    }
}

impl MessageTable for ReceivedMessages {
    const HEADING: &str = "Messages that are received";
    const PLACES: &[&str] = &["none", SEEN, "acknowledged", FULL, FULL_OLDEST, "processed", OLDEST];
    const EVENTS: &[&str] = &["accept", FLOW_END, FLOW_END_FULL, "acknowledge", "remove"];

    /// A flow ends once, and tells of it in a message that was not there before.
    fn is_possible(place: &str, event: &str) -> bool {
        place == "none" || name_of(event) == event
    }

    async fn changes(stage: Stage<&RedisServer>, place: &str, event: &str) -> Vec<StateChange> {
        let case = at(stage, place).await;
        let before = case.look().await;
        happens(&case, place, event).await;
        let after = case.look().await;
        if before == after { Vec::new() } else { vec![change(before.state, event, after.state)] }
    }
}
