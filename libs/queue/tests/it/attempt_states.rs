//! States of an attempt as `specs/states/attempt.md` has them: everything that can be done is tried in each state that it leads to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use keys::supervisor as k;
use kv::{Cmd, KvConnection, Pipeline, Value};
use model::JobKey;
use testkit::pages::first_cells;

use crate::attempt_stage::{AttemptCall, AttemptOrigin, AttemptStage, IDLE_CALLS};
use crate::setup::QueueTestBench;

/// States that say how an attempt ended, until it is kept.
const ENDS: [&str; 6] = ["finished", "error", "timeout", "stopped", "lost", "returned"];

/// One change: state before, event, state after.
pub(crate) type AttemptChange = [String; 3];

/// The changes that the page has.
pub(crate) fn written_changes() -> BTreeSet<AttemptChange> {
    let rows = first_cells("states/attempt.md", "States of an attempt at its supervisor", 3);
    rows.into_iter().map(|row| row.try_into().expect("three cells")).collect()
}

/// Returns true if a state is another, or the page has events of these that lead to it.
pub(crate) fn lead(written: &BTreeSet<AttemptChange>, events: &[&str], from: &str, to: &str) -> bool {
    let mut reached = BTreeSet::from([from]);
    loop {
        let rows = written
            .iter()
            .filter(|[from, event, _]| reached.contains(from.as_str()) && events.contains(&event.as_str()));
        let next: BTreeSet<_> = rows.map(|[_, _, to]| to.as_str()).collect();
        if next.is_subset(&reached) {
            return reached.contains(to);
        }
        reached.extend(next);
    }
}

/// Where an attempt stands, as the store has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredAttempt {
    /// The state, by its name on the page.
    pub(crate) state: String,
    /// Field `state` of its record: of one that is kept, how it ended.
    noted: String,
    /// Name of the worker that has it, or had it; empty for none.
    taker: String,
    has_record: bool,
    is_to_stop: bool,
    is_to_forget: bool,
}

impl StoredAttempt {
    /// Reads several in one round trip.
    pub(crate) async fn of(db: &KvConnection, keys: &[JobKey]) -> Vec<Self> {
        let mut pipeline = Pipeline::new();
        for key in keys {
            let fields = ["state", "job", "claimed_by", "stop_requested", "forget"];
            pipeline.cmd(Cmd::new("HMGET").arg(&k::job(*key)).args(fields));
            pipeline.cmd(Cmd::new("EXISTS").arg(&k::job(*key)));
            pipeline.cmd(Cmd::new("EXISTS").arg(&k::stop_mark(*key)));
        }
        let answers = db.pipeline(&pipeline).await.expect("answers");
        let answers: Vec<Value> = answers.into_iter().map(|answer| answer.expect("an answer")).collect();
        let is_there = |value: &Value| value.uint().expect("a number") == 1;
        answers
            .chunks(3)
            .map(|answers| Self::read(answers[0].clone(), is_there(&answers[1]), is_there(&answers[2])))
            .collect()
    }

    fn read(record: Value, has_record: bool, is_refused: bool) -> Self {
        let record: [Value; 5] = record.tuple().expect("five fields");
        let [noted, job, taker, stop, forget] =
            record.map(|field| field.optional_text().expect("a text or nothing"));
        let state = match (&noted, is_refused) {
            (Some(_), true) => panic!("what is known is not refused"),
            (Some(_), false) if job.is_none() => "kept",
            (Some(noted), false) => noted,
            (None, true) => "refused",
            (None, false) => "none",
        };
        Self {
            state: state.to_owned(),
            taker: taker.unwrap_or_default(),
            has_record,
            is_to_stop: stop.is_some(),
            is_to_forget: forget.is_some(),
            noted: noted.unwrap_or_default(),
        }
    }
}

/// Everything that decides what may follow: where an attempt stands, and what its record does not say.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AttemptPlace {
    pub(crate) stored: StoredAttempt,
    /// True if its entry was popped, by whoever may take it.
    pub(crate) is_popped: bool,
    /// True if it was handed to an instance that has not fetched it.
    pub(crate) is_handed: bool,
    /// True if an instance waits for it.
    pub(crate) is_awaited: bool,
}

/// The changes that a call made: mostly none or one; several where one script, or one look at what others did, makes them in a row.
fn changes(call: AttemptCall, before: &StoredAttempt, after: &StoredAttempt) -> Vec<AttemptChange> {
    let mut steps = Vec::new();
    let mut at = before.state.as_str();
    if before.taker.is_empty() && !after.taker.is_empty() {
        let event = match at {
            "none" => "hand_over",
            _ if after.taker.starts_with("legacy:") => "take_elsewhere",
            _ => "take",
        };
        steps.push((event, "started"));
        at = "started";
    }
    if matches!(at, "queued" | "started") && after.state == "kept" {
        // The attempt is an old dispatcher's: no coordinator waits for the event of its end.
        steps.extend([(call.event(), after.noted.as_str()), ("keep", "kept")]);
    } else if ENDS.contains(&at) && before.is_to_forget && after.state == "refused" {
        steps.extend([(call.event(), "kept"), ("forget", "refused")]);
    } else if at != after.state {
        steps.push((call.event(), after.state.as_str()));
    } else if !before.is_to_stop && after.is_to_stop {
        steps.push(("ask_to_stop", after.state.as_str()));
    }
    let mut from = before.state.as_str();
    let change = |(event, to)| [std::mem::replace(&mut from, to), event, to].map(str::to_owned);
    steps.into_iter().map(change).collect()
}

/// A change that was seen, and the calls that led to it, the last of which made it.
struct ObservedChange {
    change: AttemptChange,
    origin: AttemptOrigin,
    calls: Vec<AttemptCall>,
}

/// Tries every call wherever calls lead to, and returns the changes that they made. After a call that changed nothing the next one is
/// made in the same place.
async fn observe(bench: &QueueTestBench, origin: AttemptOrigin) -> Vec<ObservedChange> {
    let (mut observed, mut places) = (Vec::new(), BTreeSet::new());
    let mut paths = VecDeque::from([Vec::new()]);
    while let Some(path) = paths.pop_front() {
        let mut stage = AttemptStage::after(bench, origin, &path).await;
        let before = stage.place().await;
        places.insert(before.clone());
        for call in AttemptCall::ALL {
            stage.call(call).await;
            let mut after = stage.place().await;
            if after == before {
                continue;
            }
            for change in changes(call, &before.stored, &after.stored) {
                observed.push(ObservedChange { change, origin, calls: stage.calls().to_vec() });
            }
            // An attempt that is to stop, and is not stopped, goes on as before.
            after.stored.is_to_stop = before.stored.is_to_stop;
            if places.insert(after) {
                paths.push_back([&path[..], &[call]].concat());
            }
            stage = AttemptStage::after(bench, origin, &path).await;
            assert_eq!(stage.place().await, before, "{origin:?}: {path:?} leads there each time");
        }
        for call in IDLE_CALLS {
            stage.call(call).await;
            let stored = stage.place().await.stored;
            assert_eq!(stored, before.stored, "{origin:?}: {:?}", stage.calls());
        }
    }
    println!("{origin:?}: {} changes in {} places", observed.len(), places.len());
    observed
}

#[tokio::test]
async fn the_states_of_an_attempt_are_as_written() {
    let bench = QueueTestBench::new();
    let mut observed = Vec::new();
    for origin in AttemptOrigin::ALL {
        observed.extend(observe(&bench, origin).await);
    }
    let written = written_changes();
    let mut unwritten = BTreeMap::new();
    for seen in observed.iter().filter(|seen| !written.contains(&seen.change)) {
        unwritten.entry(&seen.change).or_insert((seen.origin, &seen.calls));
    }
    assert!(unwritten.is_empty(), "not on the page: {unwritten:#?}");
    let is_seen = |change: &&AttemptChange| observed.iter().any(|seen| seen.change == **change);
    let unseen: Vec<_> = written.iter().filter(|change| !is_seen(change)).collect();
    assert!(unseen.is_empty(), "nothing made these: {unseen:?}");
    // A call that never does anything is none.
    for call in AttemptCall::ALL.into_iter().filter(|call| *call != AttemptCall::Pop) {
        assert!(observed.iter().any(|seen| seen.calls.last() == Some(&call)), "{call:?}");
    }
}
