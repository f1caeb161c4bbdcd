//! Timers of a lane: which are due next, and whether sources have delivered everything stored before them.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use model::{CorrelationId, Timestamp};
use serde::{Deserialize, Serialize};
use workflow::LaneRowKey;
use workflow::input::{InstanceInput, InstanceInputKind, OCCURRENCE};
use workflow::key::StoreTable;
use workflow::step::InputOrigin;

use super::intake::InstanceAction;
use super::{QueuedInput, SagaLaneOwner};
use crate::lane::LaneExit;
use crate::lane::rows::{LaneStore, rest};
use crate::metrics::GaugeShare;

/// Timers that wait in queues to be fired. Inputs from sources wait behind no more than these.
const GIVEN_MAX: usize = 128;
/// Number of queued timers at or below which more are queued.
const GIVEN_LOW: usize = GIVEN_MAX / 2;
/// Timers that are in memory.
const LOADED_MAX: usize = 8192;
/// How long an owner without timers waits.
const FOR_EVER: Duration = Duration::from_secs(3600);
/// Interval at which a source is asked how far it is, at most.
const ASK_EACH: Duration = Duration::from_secs(1);
/// Name of the timer after which nothing is left of an instance but its tombstone. No timer of a saga has it.
pub(crate) const RETIRE: &str = "%retire";

/// Timer as its row has it, in the order in which timers fire.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TimerRow {
    /// When it fires.
    pub due: Timestamp,
    /// Correlation that the timer belongs to.
    pub correlation: CorrelationId,
    /// Name of the timer.
    pub name: String,
    /// How many timers of the instance had been set when it was.
    pub generation: u64,
}

impl TimerRow {
    pub(crate) fn key(&self) -> LaneRowKey {
        LaneRowKey::due(self.due, &self.correlation, &self.name)
    }

    /// Returns whether it is a timer of the service rather than one of the saga.
    pub(crate) fn is_ours(&self) -> bool {
        is_ours(&self.name)
    }
}

/// Returns whether a timer of this name belongs to the service. Names of a saga's timers never begin with `%`.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with('%')
}

/// Changes that an input makes to timers.
#[derive(Debug, Default)]
pub(crate) struct TimerDelta {
    pub(crate) set: Vec<TimerRow>,
    pub(crate) dropped: Vec<(Timestamp, String)>,
    /// True if inputs of the correlation wait, and timers with them.
    pub(crate) holds_back: bool,
    /// A timer that has done its work, of whichever correlation it was.
    pub(crate) fired: Option<TimerRow>,
    /// A timer that has to wait until the inputs do not.
    pub(crate) later: Option<TimerRow>,
}

/// Timers of a lane. All of them are in the store; the earliest are here as well.
pub(super) struct LaneTimers {
    due: BTreeSet<TimerRow>,
    /// All timers due up to this time are in memory; `None` if all timers are.
    loaded_until: Option<Timestamp>,
    /// Timers of correlations whose inputs wait.
    held: HashMap<CorrelationId, BTreeSet<TimerRow>>,
    /// Timers that wait in a queue to be fired.
    given: BTreeSet<TimerRow>,
    /// When to look again.
    next: Option<tokio::time::Instant>,
    /// Due time of the first timer that waits for sources.
    behind: Option<Timestamp>,
    /// Timers whose time is over, and that wait for a source.
    waiting: GaugeShare,
}

/// The timer that is given to an instance, where it is one.
pub(super) fn timer_of(correlation: &CorrelationId, wanted: &InstanceAction) -> Option<TimerRow> {
    let InstanceAction::Input { input, .. } = wanted else { return None };
    let InstanceInputKind::Timer { name, generation } = &input.what else { return None };
    let (correlation, name) = (correlation.clone(), name.clone());
    Some(TimerRow { due: input.time, correlation, name, generation: *generation })
}

impl LaneTimers {
    pub(super) async fn load(rows: &LaneStore) -> Result<Self, LaneExit> {
        let (due, given) = (BTreeSet::new(), BTreeSet::new());
        let waiting = GaugeShare::new(rows.around().metrics.timers_waiting_for_source.clone());
        let (held, next, behind) = (HashMap::new(), None, None);
        let mut timers = Self { due, loaded_until: None, held, given, next, behind, waiting };
        timers.load_more(rows).await?;
        timers.look();
        Ok(timers)
    }

    /// Reads the earliest timers, except those that are held or queued.
    async fn load_more(&mut self, rows: &LaneStore) -> Result<(), LaneExit> {
        let mut range = StoreTable::Due.range();
        loop {
            let page = rows.page(&range).await?;
            let mut last = None;
            for (_, versioned) in &page.rows {
                let timer: TimerRow = rows.decode(versioned)?;
                last = Some(timer.due);
                let is_held = self.held.get(&timer.correlation).is_some_and(|held| held.contains(&timer));
                if !is_held && !self.given.contains(&timer) {
                    self.due.insert(timer);
                }
            }
            self.loaded_until = last.filter(|_| page.has_more);
            match rest(&page) {
                Some(rest) if self.due.is_empty() => range.start = rest,
                _ => return Ok(()),
            }
        }
    }

    /// Schedules a look at the timers right away.
    pub(super) fn look(&mut self) {
        self.next = Some(tokio::time::Instant::now());
    }

    /// How long to wait before the next look.
    pub(super) fn next_wait(&self) -> Duration {
        self.next.map_or(FOR_EVER, |next| next.saturating_duration_since(tokio::time::Instant::now()))
    }

    fn wait(&mut self, length: Duration) {
        self.next = Some(tokio::time::Instant::now() + length.min(FOR_EVER));
    }

    /// Processes the outcome of an input. A timer that was given to its instance is not queued any more, whatever the outcome.
    pub(super) fn done(&mut self, correlation: &CorrelationId, wanted: &InstanceAction, delta: TimerDelta) {
        let before = self.given.len();
        if let Some(timer) = timer_of(correlation, wanted) {
            self.given.remove(&timer);
        }
        self.change(correlation, delta);
        if before > GIVEN_LOW && self.given.len() <= GIVEN_LOW {
            self.look();
        }
    }

    /// Holds a timer until its correlation's inputs no longer wait.
    pub(super) fn hold(&mut self, correlation: &CorrelationId, timer: TimerRow) {
        self.given.remove(&timer);
        self.held.entry(correlation.clone()).or_default().insert(timer);
    }

    /// Applies the timer changes of an input.
    fn change(&mut self, correlation: &CorrelationId, delta: TimerDelta) {
        let TimerDelta { set, dropped, holds_back, fired, later } = delta;
        if let Some(timer) = fired {
            self.given.remove(&timer);
            self.due.remove(&timer);
        }
        if let Some(timer) = later {
            self.hold(correlation, timer);
        }
        for (due, name) in dropped {
            let (correlation, first) = (correlation.clone(), name.clone());
            let from = TimerRow { due, correlation: correlation.clone(), name: first, generation: 0 };
            let to = TimerRow { due, correlation: correlation.clone(), name, generation: u64::MAX };
            let mut all = vec![&mut self.due, &mut self.given];
            all.extend(self.held.get_mut(&correlation));
            for timers in all {
                let found: Vec<_> = timers.range(&from..=&to).cloned().collect();
                found.iter().for_each(|timer| drop(timers.take(timer)));
            }
        }
        let mut is_new = false;
        for timer in set {
            if self.loaded_until.is_none_or(|until| timer.due <= until) {
                is_new = true;
                self.due.insert(timer);
            }
        }
        if !holds_back && let Some(held) = self.held.remove(correlation) {
            is_new |= !held.is_empty();
            self.due.extend(held);
        }
        self.forget_last();
        if is_new {
            self.look();
        }
    }

    /// Counts overdue timers that wait for a source.
    fn count_waiting(&mut self, seen: Timestamp, now: Timestamp) {
        let over = self.due.iter().take_while(|timer| timer.due <= now);
        let waiting = over.filter(|timer| timer.due >= seen).count();
        self.waiting.set(waiting);
    }

    /// Drops the latest timers from memory if there are too many; the store has them.
    fn forget_last(&mut self) {
        while self.due.len() > LOADED_MAX
            && let Some(last) = self.due.last().map(|timer| timer.due)
        {
            // Timers due at the same moment are all in memory, or none of them.
            self.due.retain(|timer| timer.due < last);
            self.loaded_until = Some(Timestamp::from_millis(last.as_millis().saturating_sub(1)));
        }
    }
}

impl SagaLaneOwner {
    /// Fires timers that are due, as far as sources have delivered everything stored before them.
    pub(super) async fn fire(&mut self) -> Result<(), LaneExit> {
        let rows = std::sync::Arc::clone(&self.shared.rows);
        self.timers.behind = None;
        if self.timers.due.is_empty() && self.timers.loaded_until.is_some() {
            self.timers.load_more(&rows).await?;
        }
        let Some(first) = self.timers.due.first().map(|timer| timer.due) else {
            self.timers.waiting.set(0);
            self.timers.wait(FOR_EVER);
            return Ok(());
        };
        let now = Timestamp::from_millis(rows.now().await?);
        if now < first {
            self.timers.waiting.set(0);
            self.timers.wait(first.since(now));
            return Ok(());
        }
        service::crash_point("timer.read");
        let seen = self.seen_until(first, now).await;
        self.timers.count_waiting(seen, now);
        while self.timers.given.len() < GIVEN_MAX {
            let Some(timer) = self.timers.due.pop_first() else { break };
            let has_room = self.queues.has_room(&timer.correlation, 0)
                && self.has_room()
                && !self.shared.rows.backlog().is_crowded();
            if timer.due > now || timer.due >= seen || !has_room {
                let length = if timer.due > now {
                    timer.due.since(now)
                } else if timer.due >= seen {
                    self.timers.behind = Some(timer.due);
                    // If sources were asked about an earlier timer, they are asked about this one next.
                    if timer.due > first { Duration::ZERO } else { ASK_EACH }
                } else if self.shared.rows.backlog().is_crowded() {
                    // When the backlog shrinks, timers are looked at again.
                    FOR_EVER
                } else {
                    Duration::from_millis(20)
                };
                self.timers.due.insert(timer);
                self.timers.wait(length);
                return Ok(());
            }
            self.give(timer, now);
        }
        if self.timers.given.len() < GIVEN_MAX {
            self.timers.look();
        } else {
            // When fewer are queued, timers are looked at earlier than that.
            self.timers.wait(ASK_EACH);
        }
        Ok(())
    }

    /// Schedules a look at timers that wait for sources, once all sources have come far enough.
    pub(super) fn look_behind_sources(&mut self) {
        if let Some(due) = self.timers.behind
            && self.sources.iter().all(|state| state.seen_until > due.as_millis())
        {
            self.timers.look();
        }
    }

    fn give(&mut self, timer: TimerRow, now: Timestamp) {
        self.timers.given.insert(timer.clone());
        if timer.name == OCCURRENCE {
            return self.occur(timer, now);
        }
        let correlation = timer.correlation.clone();
        let what = if timer.name == RETIRE {
            InstanceAction::Retire(timer.due)
        } else {
            self.shared.rows.around().metrics.timer_lagged(now.since(timer.due));
            let (time, generation) = (timer.due, timer.generation);
            let input = Box::new(InstanceInput {
                time,
                what: InstanceInputKind::Timer { name: timer.name, generation },
            });
            InstanceAction::Input { input, origin: InputOrigin::Fresh, verb_context: None }
        };
        self.push(correlation, QueuedInput::of(what), 0);
    }

    /// The moment before which every source has delivered everything. The broker is asked whether a source has anything left.
    async fn seen_until(&mut self, due: Timestamp, now: Timestamp) -> Timestamp {
        let mut seen = u64::MAX;
        for state in &mut self.sources {
            if state.seen_until <= due.as_millis() && state.has_cursor() {
                let broker = &self.shared.rows.around().broker;
                if let Ok(Some(cursor)) = broker.cursor(&state.stream, &state.consumer).await
                    && cursor.pending == 0
                    && state.has_all(cursor.delivered)
                {
                    state.seen_until = state.seen_until.max(now.as_millis().saturating_add(1));
                }
            }
            seen = seen.min(state.seen_until);
        }
        Timestamp::from_millis(seen)
    }
}

#[cfg(test)]
mod tests {
    use prometheus::IntGauge;

    use super::*;

    #[test]
    fn a_timer_is_given_once_whatever_its_instance_does_with_it() {
        let gauge = IntGauge::new("waiting", "Timers that wait").expect("a good name");
        let mut timers = LaneTimers {
            due: BTreeSet::new(),
            loaded_until: None,
            held: HashMap::new(),
            given: BTreeSet::new(),
            next: None,
            behind: None,
            waiting: GaugeShare::new(gauge),
        };
        let correlation: CorrelationId = "c-1".parse().expect("a correlation");
        let (due, name) = (Timestamp::from_millis(7), "pay-by".to_owned());
        let timer = TimerRow { due, correlation: correlation.clone(), name: name.clone(), generation: 3 };
        let input =
            Box::new(InstanceInput { time: due, what: InstanceInputKind::Timer { name, generation: 3 } });
        let wanted = InstanceAction::Input { input, origin: InputOrigin::Fresh, verb_context: None };
        // The instance ignores the timer.
        timers.given.insert(timer.clone());
        timers.done(&correlation, &wanted, TimerDelta::default());
        assert!(timers.given.is_empty() && timers.due.is_empty());
        // The timer waits with the other inputs of its instance.
        timers.given.insert(timer.clone());
        let later = TimerDelta { holds_back: true, later: Some(timer.clone()), ..TimerDelta::default() };
        timers.done(&correlation, &wanted, later);
        assert!(timers.given.is_empty() && timers.held[&correlation].contains(&timer));
    }
}
