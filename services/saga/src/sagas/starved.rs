//! Inputs that wait until there is room for what they make: an instance of their tenant, or a dead letter of their lane.
//!
//! An input that would start an instance or become a dead letter is held here, with everything of its correlation behind it. Its
//! message stays unacknowledged, so that a source delivers only a limited number of them. Results, verbs and timers continue: by
//! them instances end, which makes room.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use model::{CorrelationId, Timestamp};
use serde::{Deserialize, Serialize};
use store::RowOperation;
use tokio::sync::watch;
use tokio::time::Instant;
use workflow::LaneRowKey;
use workflow::instance::{CorrelationRecord, encode};
use workflow::step::RequestRefusal;

use super::answer::{VerbAnswerRow, VerbOutcome};
use super::input_decision::{InputDecision, verb_context};
use super::intake::InstanceAction;
use super::timers::{TimerDelta, is_ours};
use super::{CachedRecord, QueuedInput, SagaLane, SagaLaneContext, SagaLaneOwner};
use crate::lane::LaneExit;
use crate::lane::rows::{LaneStore, row};
use crate::metrics::{Census, CensusKind};
use crate::quotas::{InstanceReservation, LaneUsage, TenantQuotaExceeded};

/// Correlations that are tried again at a time.
const AT_ONCE: usize = 8;
/// How long starts wait before that is reported, and how long they find room before the report is withdrawn.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// Why starts of a lane wait, as any replica reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StarvedRow {
    /// The quota.
    pub quota: String,
    /// How much there may be.
    pub most: u64,
    /// How much there was when the last start was refused for it.
    pub found: u64,
    /// Since when starts wait.
    pub since: Timestamp,
}

/// A period in which starts wait.
#[derive(Debug, Clone, Copy)]
struct Starvation {
    since: Instant,
    /// Quota that the last of them waits for.
    full: TenantQuotaExceeded,
    /// Since when all of them are tried again.
    fed: Option<Instant>,
}

/// How long an input that would become a dead letter waits, unless one is removed before.
const DEAD_LETTER_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Missing room that makes an input wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum CapacityShortage {
    /// Tenant has no room for an instance.
    #[error(transparent)]
    Quota(TenantQuotaExceeded),
    /// Lane has no room for a dead letter.
    #[error("the lane has {found} dead letters, and may have {most}")]
    Letters {
        /// How many there are.
        found: u64,
        /// How many there may be.
        most: u64,
    },
}

impl CapacityShortage {
    /// When to try again.
    const fn again(&self) -> Duration {
        match self {
            Self::Quota(full) => full.again,
            Self::Letters { .. } => DEAD_LETTER_RETRY_DELAY,
        }
    }
}

/// Inputs that wait.
pub(super) struct StarvedInputs {
    /// In the order in which they came.
    line: VecDeque<CorrelationId>,
    items: HashMap<CorrelationId, VecDeque<QueuedInput>>,
    freed: watch::Receiver<()>,
    again: Instant,
    hunger: Option<Starvation>,
    /// Quota that the row reports.
    reported_quota: Option<&'static str>,
}

/// Returns what a lane uses of its tenant's quotas.
pub(super) fn usage(lane: &SagaLane, census: &Census) -> LaneUsage {
    let live = [CensusKind::Running, CensusKind::Compensating, CensusKind::Stuck];
    let instances = live.into_iter().map(|what| census.of(what)).sum::<i64>().unsigned_abs();
    let timers = census.of(CensusKind::Timers).unsigned_abs();
    lane.definitions.usage().lane(&lane.tenant, instances, timers)
}

impl StarvedInputs {
    pub(super) fn new(freed: watch::Receiver<()>) -> Self {
        let again = Instant::now();
        Self {
            line: VecDeque::new(),
            items: HashMap::new(),
            freed,
            again,
            hunger: None,
            reported_quota: None,
        }
    }

    /// Returns whether a correlation waits for its start.
    pub(super) fn has(&self, correlation: &CorrelationId) -> bool {
        self.items.contains_key(correlation)
    }

    /// Holds an item whose correlation waits for its start; returns it otherwise. Requests are not held: they are answered.
    pub(super) fn behind(&mut self, correlation: &CorrelationId, item: QueuedInput) -> Option<QueuedInput> {
        let waits = matches!(
            &item.what,
            InstanceAction::Input { verb_context: None, .. } | InstanceAction::Dead { .. }
        );
        match self.items.get_mut(correlation).filter(|_| waits) {
            Some(items) => {
                items.push_back(item.set_aside());
                None
            }
            None => Some(item),
        }
    }

    /// All held items.
    pub(super) fn items(&mut self) -> impl Iterator<Item = &mut QueuedInput> {
        self.items.values_mut().flatten()
    }

    /// How long to wait before reporting why starts wait, or that none does; `None` where the report is up to date.
    pub(super) fn next_report(&self) -> Option<Duration> {
        let Starvation { since, full, fed } = self.hunger?;
        if fed.is_none() && self.reported_quota == Some(full.quota) {
            return None;
        }
        Some(REPORT_AFTER.saturating_sub(fed.unwrap_or(since).elapsed()))
    }

    /// Waits until an input may be tried again; never resolves where none waits.
    pub(super) async fn retry_due(&mut self) {
        if self.line.is_empty() {
            return std::future::pending().await;
        }
        tokio::select! {
            // The sender lives as long as the lane does.
            _ = self.freed.changed() => {}
            () = tokio::time::sleep_until(self.again) => {}
        }
    }
}

impl SagaLaneOwner {
    /// Holds an input for which there is no room.
    pub(super) fn starve(&mut self, correlation: CorrelationId, item: QueuedInput, short: &CapacityShortage) {
        let StarvedInputs { line, items, again, hunger, .. } = &mut self.starved;
        if let CapacityShortage::Quota(full) = short {
            let since = hunger.map_or_else(Instant::now, |hunger| hunger.since);
            *hunger = Some(Starvation { since, full: *full, fed: None });
            if line.is_empty() {
                tracing::warn!(lane = %self.shared.rows.lane, "{full}; starts wait until there is room");
            }
        }
        *again = Instant::now() + short.again().max(Duration::from_millis(1));
        line.push_back(correlation.clone());
        items.entry(correlation).or_default().push_front(item);
    }

    /// Tries starts again.
    pub(super) fn retry_starved(&mut self) {
        for _ in 0..AT_ONCE {
            let Some(correlation) = self.starved.line.pop_front() else { break };
            let items = self.starved.items.remove(&correlation).unwrap_or_default();
            for item in items.into_iter().rev() {
                self.queues.push_first(&correlation, item);
            }
        }
        // Starts that find no room clear this again.
        if self.starved.line.is_empty()
            && let Some(hunger) = &mut self.starved.hunger
        {
            hunger.fed = Some(Instant::now());
        }
        // The next ones follow at once if these find room; if not, these set the time.
        self.starved.again = Instant::now() + Duration::from_millis(1);
    }

    /// Reports why starts wait, or that none does any more: in a row that any replica reads, and in this process.
    pub(super) async fn publish_starvation(&mut self) -> Result<(), LaneExit> {
        let Some(Starvation { since, full, fed }) = self.starved.hunger else { return Ok(()) };
        let rows = &self.shared.rows;
        if fed.is_some() {
            self.starved.hunger = None;
            self.shared.usage.starve(None);
            if self.starved.reported_quota.take().is_some() {
                rows.commit(Vec::new(), vec![RowOperation::Delete(row(&LaneRowKey::starved()))]).await?;
            }
            return Ok(());
        }
        let waited = u64::try_from(since.elapsed().as_millis()).unwrap_or_default();
        let since = Timestamp::from_millis(rows.now().await?.saturating_sub(waited));
        let TenantQuotaExceeded { quota, most, found, .. } = full;
        let report = StarvedRow { quota: quota.to_owned(), most, found, since };
        rows.commit(Vec::new(), vec![RowOperation::Put(row(&LaneRowKey::starved()), encode(&report).into())])
            .await?;
        self.starved.reported_quota = Some(quota);
        self.shared.usage.starve(Some(full));
        Ok(())
    }
}

/// Removes the report of a former owner: the inputs that waited there are delivered again.
pub(super) async fn forget(rows: &LaneStore) -> Result<(), LaneExit> {
    if rows.get(&LaneRowKey::starved()).await?.is_some() {
        rows.commit(Vec::new(), vec![RowOperation::Delete(row(&LaneRowKey::starved()))]).await?;
    }
    Ok(())
}

impl SagaLaneContext {
    /// Reserves room for the instance that a decision starts, if any, and checks that there is room for its dead letters.
    pub(super) fn room_for(
        &self,
        decision: &InputDecision,
        item: &QueuedInput,
    ) -> Result<Option<InstanceReservation<'_>>, CapacityShortage> {
        self.room_for_letters(decision, &item.what)?;
        let starts = decision.change.journal.iter().any(|row| row.revision == 1);
        // A redrive may exceed the quota: that is its caller's decision.
        if !starts || matches!(item.what, InstanceAction::DeadLetterRequest(_)) {
            return Ok(None);
        }
        self.usage.room(self.definitions.quotas(&self.tenant)).map(Some).map_err(CapacityShortage::Quota)
    }

    /// Answers a requested start that there is no room for it. Returns true if the input is no request, and therefore waits.
    pub(super) async fn refuse_start(&self, item: &QueuedInput, full: &CapacityShortage) -> bool {
        let Some(verb_context) = verb_context(&item.what) else { return true };
        let refusal = RequestRefusal { reason: "QUOTA_EXCEEDED".to_owned(), message: full.to_string() };
        let outcome = VerbOutcome::Refused(refusal);
        let request_hash = verb_context.request_hash.clone();
        let answer = VerbAnswerRow { request_hash, outcome, instance: None, work: Vec::new() };
        self.answer(item, Some(&answer)).await;
        false
    }

    /// Updates the tenant's usage after a commit.
    pub(super) fn note_usage(
        &self,
        current: &CachedRecord,
        decision: &InputDecision,
        room: Option<InstanceReservation<'_>>,
        timers: &TimerDelta,
    ) {
        self.note_letters(decision);
        let is_live =
            |record: Option<&CorrelationRecord>| record.is_some_and(|record| record.instance().is_some());
        let is_live_now = is_live(decision.change.record.as_ref());
        match room {
            Some(room) if is_live_now => room.keep(),
            // The instance ended with its start.
            Some(room) => drop(room),
            None if is_live(current.record.as_ref()) && !is_live_now => self.usage.ended(),
            None => {}
        }
        let set = timers.set.iter().filter(|timer| !timer.is_ours()).count();
        let gone = timers.dropped.iter().filter(|(_, name)| !is_ours(name)).count();
        self.usage.timers(set, gone);
    }
}
