//! Messages change as the tables of `specs/states/message.md` say: each event of a table is tried wherever a message may stand.
//!
//! A place is a state, and after a colon what else matters about it; an event is written in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use keys::Layout;
use kv::Cmd;
use model::Timestamp;
use proto::internal::v1 as wire;
use testkit::pages::{first_cells, rows};
use testkit::{PATIENCE, RedisServer, wait_until};

use crate::places::play;
use crate::raw::allow;
use crate::received::{accepted, acknowledge, fill_done, letter};
use crate::stage::{CONTEXT, READER, Router, Stage};

mod attempts;
mod chat;
mod inbox;
mod pushed;

const PAGE: &str = "states/message.md";

/// Router that holds the messages.
const ROUTER: &str = "r";
/// Router that comes later.
const OTHER: &str = "other";
/// Key in `msg_out_coordinator` that no message has: a script that comes to it takes it out, and what was said before it is done.
const GHOST: &str = "message:2:999";
/// Events with which a message begins. Its number is given once, or chosen by a program that may write anything anywhere: these are
/// tried where there is none.
const FIRST: [&str; 3] = ["commit", "send", "push"];
/// Events of a router. A connected one takes what is out, which is the event `take`: where a message is out, no other is tried.
const OF_ROUTERS: [&str; 6] = ["renew", "resume", "take_over", "take_up", "settle", "give_up"];

/// The name of a place or an event, without what else matters.
fn name_of(text: &str) -> &str {
    text.split(':').next().unwrap_or_default()
}

/// Returns true if an event can be made happen at a place.
fn is_possible(place: &str, event: &str) -> bool {
    let (state, event) = (name_of(place), name_of(event));
    let is_begun = state != "none" && FIRST.contains(&event);
    !(is_begun || state == "out" && OF_ROUTERS.contains(&event))
}

/// A message as the tables see it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sighting {
    state: &'static str,
    status: String,
    transport_status: String,
    /// End of the hold, and its router.
    hold: Option<(String, String)>,
    /// Storage has given the message a revision: it is no longer what a program wrote.
    is_taken_up: bool,
    /// A flow is, or was, to be made of the message.
    is_of_program: bool,
    is_dead_letter: bool,
}

impl Sighting {
    /// Checks the message against the row of its state, whose cells name each value that there may be.
    fn check(&self, key: &str) {
        let rows = rows(PAGE, "States of a message");
        let row = rows.iter().find(|row| row[0] == self.state);
        let row = row.unwrap_or_else(|| panic!("the page has no state {}", self.state));
        let names =
            |cell: &str, value: &str| cell.split(|c: char| !c.is_alphabetic()).any(|word| word == value);
        let is_older = self.is_of_program && row[3].contains("as it was before");
        let is_written = names(&row[2], &self.status) && (is_older || names(&row[3], &self.transport_status));
        assert!(is_written, "{key} is {self:?}");
    }
}

/// A change of state: from, event, to.
type StateChange = [String; 3];

fn change(from: &str, event: &str, to: &str) -> StateChange {
    [from, event, to].map(|text| name_of(text).to_owned())
}

/// One message, and the router that it has to do with.
struct MessageCase<'a> {
    stage: Stage<&'a RedisServer>,
    /// Key of the message, as routers know it.
    name: &'static str,
    router: Option<Router>,
}

impl<'a> MessageCase<'a> {
    /// Programs may push to the context: then what they push is taken at once, which tells that a router is done.
    async fn new(stage: Stage<&'a RedisServer>, name: &'static str) -> Self {
        allow(&stage).await;
        Self { stage, name, router: None }
    }

    fn key(&self) -> String {
        self.stage.key_of(self.name)
    }

    async fn out(&self) -> Vec<String> {
        let range = Cmd::new("LRANGE").arg(&self.stage.keys().msg_out()).arg(0).arg(-1);
        self.stage.command(range).await.texts().expect("keys")
    }

    async fn push_out(&self, entry: &str) {
        self.stage.command(Cmd::new("LPUSH").arg(&self.stage.keys().msg_out()).arg(entry)).await;
    }

    async fn score(&self, set: &str, name: &str) -> Option<String> {
        let score = Cmd::new("ZSCORE").arg(set).arg(&self.stage.key_of(name));
        self.stage.command(score).await.optional_text().expect("a score")
    }

    /// Sets when a hold ends; with `XX` only of what is held, with `NX` of what is not.
    async fn set_hold(&self, condition: &str, end: &str, name: &str) {
        let set = Cmd::new("ZADD").arg(&self.stage.keys().msg_out_coordinator()).arg(condition);
        self.stage.command(set.arg(end).arg(&self.stage.key_of(name))).await;
    }

    async fn look(&self) -> Sighting {
        let (key, fields) = (self.key(), self.stage.hash(&self.key()).await);
        let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let (status, out) = (field("status"), self.out().await);
        let held = self.score(&self.stage.keys().msg_out_coordinator(), self.name).await;
        let state = match (&held, status.as_str()) {
            _ if fields.is_empty() => "none",
            (Some(_), _) => "held",
            (None, "acknowledged") => "acknowledged",
            (None, "processed") => "processed",
            (None, "error") => "error",
            (None, _) if out.contains(&key) => "out",
            _ => panic!("{key} is in no place: {fields:?}"),
        };
        let sighting = Sighting {
            state,
            status,
            transport_status: field("transport_status"),
            hold: held.filter(|_| state == "held").map(|end| (end, field("router"))),
            is_taken_up: fields.contains_key("revision"),
            is_of_program: field("message_type") == "job" && !fields.contains_key("open"),
            is_dead_letter: self.score(&self.stage.keys().dead_letters(), self.name).await.is_some(),
        };
        if sighting.is_taken_up {
            sighting.check(&key);
        }
        sighting
    }

    /// Gives the hold another end than a script gives it; one that is over before somebody takes it over.
    async fn expect(&self, event: &str) {
        let end = Timestamp::now() + Duration::from_secs(100);
        let end = if event == "take_over" { "1".to_owned() } else { end.to_string() };
        self.set_hold("XX", &end, self.name).await;
    }

    /// Waits until the router has looked for messages and is done with all that it has found. What is no key of a message leaves
    /// `msg_out` last; the next one after that is looked at when the former look is over.
    async fn looked(&self) {
        for _ in 0..2 {
            self.push_out("nonsense").await;
            let taken = || async { self.out().await.is_empty().then_some(()) };
            wait_until(taken, PATIENCE, "the router has looked").await;
        }
    }

    async fn disconnect(&mut self) {
        if let Some(router) = self.router.take() {
            router.leave().await;
        }
    }

    /// Connects a router in place of the one that was there.
    async fn connect(&mut self, name: &str) {
        self.disconnect().await;
        self.router = Some(self.stage.router(name).await);
        self.looked().await;
    }

    async fn connected(&mut self) -> &Router {
        if self.router.is_none() {
            self.connect(OTHER).await;
        }
        self.router.as_ref().expect("a router")
    }

    /// Waits until everything is done that the router has said.
    async fn settlements_done(&self) {
        let far = (Timestamp::now() + Duration::from_secs(1000)).to_string();
        self.set_hold("NX", &far, GHOST).await;
        self.router.as_ref().expect("a router").settle(&[held_message(GHOST)], "").await;
        self.no_ghost().await;
    }

    async fn no_ghost(&self) {
        let held = self.stage.keys().msg_out_coordinator();
        let gone = || async { self.score(&held, GHOST).await.is_none().then_some(()) };
        wait_until(gone, PATIENCE, "the ghost is gone").await;
    }

    async fn settle(&mut self, error: &str) {
        let message = held_message(self.name);
        self.connected().await.settle(&[message], error).await;
        self.settlements_done().await;
    }

    /// Lets the ten seconds pass after which the router's holds are renewed.
    async fn renew(&mut self) {
        self.connected().await;
        // Taken out when holds are looked at that are over, which follows the renewal.
        self.set_hold("NX", "1", GHOST).await;
        tokio::time::pause();
        // Commands that are under way have ten seconds as well.
        tokio::time::advance(Duration::from_millis(9_900)).await;
        tokio::time::resume();
        self.no_ghost().await;
        self.looked().await;
    }

    /// Brings a router to the message's key in `msg_out`, where it may have been pushed once more.
    async fn take(&mut self) {
        if !self.out().await.contains(&self.key()) {
            self.push_out(&self.key()).await;
        }
        self.connected().await;
        self.looked().await;
    }

    /// Makes an event happen that each message on its way has.
    async fn router_event(&mut self, event: &str) {
        match event {
            "take" => self.take().await,
            "renew" => self.renew().await,
            "resume" => self.connect(ROUTER).await,
            "take_over" => self.connect(OTHER).await,
            "settle" => self.settle("").await,
            "give_up" => self.settle("UNDELIVERABLE: nobody there").await,
            other => panic!("no test makes the event {other}"),
        }
    }

    /// Has one more message end than are kept, of which this one is the oldest.
    async fn outnumber(&self) {
        fill_done(&self.stage).await;
        let newer = accepted(&self.stage, &letter(99)).await;
        acknowledge(&self.stage, READER, 0, &[&newer]).await.expect("it is in the inbox");
    }
}

fn held_message(name: &str) -> wire::HeldMessage {
    wire::HeldMessage { context_id: CONTEXT, message_key: name.to_owned(), ..Default::default() }
}

/// Table of the page, and how its messages come to where they stand.
trait MessageTable {
    const HEADING: &'static str;
    const PLACES: &'static [&'static str];
    const EVENTS: &'static [&'static str];

    /// Returns true if the event is another one than those that are tried elsewhere.
    fn is_possible(_place: &str, _event: &str) -> bool {
        true
    }

    /// Makes an event happen to a message at a place, and gives the changes that scripts made of it; none where nothing has changed.
    async fn changes(stage: Stage<&RedisServer>, place: &str, event: &str) -> Vec<StateChange>;
}

/// Tries each event of a table at each place, and compares what has changed with its rows.
async fn hold_against_page<T: MessageTable>() {
    let (redis, rows) = (RedisServer::start(), rows(PAGE, T::HEADING));
    let mut seen: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    for place in T::PLACES {
        for event in T::EVENTS {
            if !is_possible(place, event) || !T::is_possible(place, event) {
                continue;
            }
            let case = format!("{place} | {event}");
            let scenario = async |stage: Stage<&RedisServer>| {
                for change in T::changes(stage, place, event).await {
                    assert!(change[0] == name_of(place) || change[0] == "held", "{case}: {change:?}");
                    seen.entry(change.to_vec()).or_default().push(case.clone());
                }
            };
            play(&redis, Layout::Database, (&case, scenario)).await;
        }
    }
    let written: BTreeSet<Vec<String>> = rows.iter().map(|row| row[..3].to_vec()).collect();
    let unwritten: Vec<_> = seen.iter().filter(|(change, _)| !written.contains(*change)).collect();
    assert!(unwritten.is_empty(), "{} lacks what the scripts do: {unwritten:#?}", T::HEADING);
    let unseen: Vec<_> = written.iter().filter(|change| !seen.contains_key(*change)).collect();
    assert!(unseen.is_empty(), "{} has what no script does: {unseen:#?}", T::HEADING);
}

#[test]
fn the_states_of_a_message_are_as_written() {
    let states = ["out", "held", "acknowledged", "processed", "error"];
    let written = first_cells(PAGE, "States of a message", 1);
    assert_eq!(written, states.map(|state| vec![state.to_owned()]).into());
}

#[tokio::test]
async fn messages_with_attempts_change_as_written() {
    hold_against_page::<attempts::AttemptMessages>().await;
}

#[tokio::test]
async fn chat_and_mail_change_as_written() {
    hold_against_page::<chat::SentMessages>().await;
}

#[tokio::test]
async fn messages_of_programs_change_as_written() {
    hold_against_page::<pushed::PushedMessages>().await;
}

#[tokio::test]
async fn received_messages_change_as_written() {
    hold_against_page::<inbox::ReceivedMessages>().await;
}
