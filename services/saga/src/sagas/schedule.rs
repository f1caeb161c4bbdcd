//! Instances that start by the calendar.
//!
//! The next occurrence is a row among the timers of the lane, so the same loop fires it. Each shard waits for all occurrences and
//! starts those whose correlation is its own. One commit starts the instance and moves the row to the next occurrence: so none starts
//! twice, and one that was missed while the lane had no owner is still there.

use model::{SagaName, Timestamp};
use serde::{Deserialize, Serialize};
use store::RowOperation;
use workflow::LaneRowKey;
use workflow::input::{InstanceInput, InstanceInputKind, OCCURRENCE};
use workflow::instance::encode;
use workflow::schedule::{Schedule, correlation};

use super::batch::InputCommit;
use super::intake::InstanceAction;
use super::timers::{TimerDelta, TimerRow};
use super::{QueuedInput, SagaLaneContext, SagaLaneOwner};
use crate::lane::LaneExit;
use crate::lane::rows::{LaneStore, row};

/// Occurrence that is waited for, and its schedule.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ScheduleRow {
    cron: String,
    due: Timestamp,
}

/// An occurrence that is due.
#[derive(Debug, Clone)]
pub(crate) struct Occurrence {
    /// The timer row of the occurrence.
    pub(super) timer: TimerRow,
    /// The occurrence that starts an instance here, if any; after missed occurrences it may be a later one.
    pub(super) start: Option<Timestamp>,
    /// The timer row of the next occurrence; `None` where there is none.
    pub(super) next: Option<TimerRow>,
    cron: String,
}

/// The timer row of an occurrence.
fn due_row(saga: &SagaName, due: Timestamp) -> Option<TimerRow> {
    let correlation = correlation(saga, due)?;
    Some(TimerRow { due, correlation, name: OCCURRENCE.to_owned(), generation: 0 })
}

/// Makes the lane wait for the schedule of the definition in force, and for no other. An unchanged schedule stays as it is.
pub(super) async fn prepare(
    rows: &LaneStore,
    saga: &SagaName,
    wanted: Option<&Schedule>,
) -> Result<(), LaneExit> {
    let found = rows.get(&LaneRowKey::schedule()).await?;
    let found: Option<ScheduleRow> = found.map(|found| rows.decode(&found)).transpose()?;
    if found.as_ref().map(|found| &found.cron) == wanted.map(|wanted| &wanted.cron) {
        return Ok(());
    }
    let mut ops = Vec::new();
    if let Some(before) = found.and_then(|found| due_row(saga, found.due)) {
        ops.extend([
            RowOperation::Delete(row(&before.key())),
            RowOperation::Delete(row(&LaneRowKey::schedule())),
        ]);
    }
    if let Some(schedule) = wanted {
        let now = Timestamp::from_millis(rows.now().await?);
        if let Some(next) = schedule.after(now).and_then(|due| due_row(saga, due)) {
            ops.extend(wait_for(&schedule.cron, &next));
        }
    }
    if !ops.is_empty() {
        rows.commit(Vec::new(), ops).await?;
    }
    Ok(())
}

/// The changes that make the lane wait for an occurrence.
fn wait_for(cron: &str, next: &TimerRow) -> [RowOperation; 2] {
    let schedule = ScheduleRow { cron: cron.to_owned(), due: next.due };
    [
        RowOperation::Put(row(&next.key()), encode(next).into()),
        RowOperation::Put(row(&LaneRowKey::schedule()), encode(&schedule).into()),
    ]
}

impl Occurrence {
    /// The input of the instance that it starts.
    pub(super) fn input(&self) -> Option<InstanceInput> {
        let time = self.start?;
        Some(InstanceInput {
            time,
            what: InstanceInputKind::Event(workflow::input::DomainEvent::occurrence(time)),
        })
    }

    /// Returns the changes to the timers in memory.
    fn delta(&self) -> TimerDelta {
        let set = self.next.iter().cloned().collect();
        TimerDelta { set, fired: Some(self.timer.clone()), ..TimerDelta::default() }
    }

    /// The changes that make the lane wait for the next occurrence.
    fn ops(&self) -> Vec<RowOperation> {
        let mut ops = vec![RowOperation::Delete(row(&self.timer.key()))];
        match &self.next {
            Some(next) => ops.extend(wait_for(&self.cron, next)),
            None => ops.push(RowOperation::Delete(row(&LaneRowKey::schedule()))),
        }
        ops
    }
}

impl InputCommit {
    /// Makes the lane wait for the next occurrence.
    pub(super) fn put_next(&mut self, occurrence: &Occurrence) {
        self.ops.extend(occurrence.ops());
        let TimerDelta { set, fired, .. } = occurrence.delta();
        self.timers.set.extend(set);
        self.timers.fired = fired;
    }
}

impl SagaLaneContext {
    /// Skips an occurrence that starts no instance here.
    pub(super) async fn pass(&self, occurrence: &Occurrence) -> Result<TimerDelta, LaneExit> {
        self.rows.commit(Vec::new(), occurrence.ops()).await?;
        Ok(occurrence.delta())
    }
}

impl SagaLaneOwner {
    /// Puts an occurrence that is due into the queue of the instance that it starts.
    pub(super) fn occur(&mut self, timer: TimerRow, now: Timestamp) {
        let SagaLaneContext { tenant, saga: name, definitions, .. } = &*self.shared;
        let saga = definitions.saga(tenant, name);
        let Some(schedule) = saga.as_ref().and_then(|saga| saga.start.schedule.as_ref()) else {
            // Another definition has come into force: the lane is restarted for it, and then waits for its schedule.
            return;
        };
        let plan = schedule.plan(timer.due, now);
        let next = plan.next.and_then(|due| due_row(name, due));
        let start = plan.start.and_then(|start| Some((start, correlation(name, start)?)));
        let start = start.filter(|(_, correlation)| self.shared.is_mine(correlation));
        let line = start.as_ref().map_or_else(|| timer.correlation.clone(), |(_, line)| line.clone());
        let (start, cron) = (start.map(|(start, _)| start), schedule.cron.clone());
        let what = InstanceAction::Occurrence(Box::new(Occurrence { timer, start, next, cron }));
        self.push(line, QueuedInput::of(what), 0);
    }
}
