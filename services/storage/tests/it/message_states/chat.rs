//! Chat and mail that actors send.

use testkit::RedisServer;

use super::{MessageCase, MessageTable, ROUTER, StateChange, change, name_of};
use crate::letters::{chat, remove, resend, send};
use crate::stage::{EXECUTOR, Stage};

const OLDEST: &str = "acknowledged: the oldest of too many";
/// The first that the executor sends.
const KEY: &str = "message:2:1073741825";

/// The table of chat and mail that are sent from here.
pub(super) struct SentMessages;

async fn sends(case: &MessageCase<'_>) {
    let sent = send(&case.stage, EXECUTOR, chat("1", "x")).await;
    assert_eq!(sent.key, KEY);
}

async fn at<'a>(stage: Stage<&'a RedisServer>, place: &str) -> MessageCase<'a> {
    let mut case = MessageCase::new(stage, KEY).await;
    let state = name_of(place);
    if state != "none" {
        sends(&case).await;
    }
    if state != "out" && place != "none" {
        case.connect(ROUTER).await;
    }
    match state {
        "acknowledged" => case.settle("").await,
        "error" => case.settle("EXPIRED: x").await,
        _ => {}
    }
    case
}

/// Makes an event happen; a refusal is an answer as well.
async fn happens(case: &mut MessageCase<'_>, place: &str, event: &str) {
    match event {
        "send" => sends(case).await,
        "resend" => {
            // A router would take it at once.
            case.disconnect().await;
            drop(resend(&case.stage, EXECUTOR, "", KEY).await);
        }
        "remove" if place == OLDEST => case.outnumber().await,
        "remove" => drop(remove(&case.stage, EXECUTOR, KEY).await),
        _ => case.router_event(event).await,
    }
}

impl MessageTable for SentMessages {
    const HEADING: &str = "Chat and mail that are sent from here";
    const PLACES: &[&str] =
        &["none", "none: a router has room", "out", "held", "acknowledged", OLDEST, "error"];
    const EVENTS: &[&str] =
        &["send", "take", "renew", "resume", "take_over", "settle", "give_up", "resend", "remove"];

    async fn changes(stage: Stage<&RedisServer>, place: &str, event: &str) -> Vec<StateChange> {
        let mut case = at(stage, place).await;
        case.expect(event).await;
        let before = case.look().await;
        happens(&mut case, place, event).await;
        let after = case.look().await;
        if before == after { Vec::new() } else { vec![change(before.state, event, after.state)] }
    }
}
