//! Inputs that wait until there is room for what they make: an instance of their tenant, or a dead letter of their lane.
//!
//! What would start an instance, or be a letter, is held here, with everything of its correlation behind it. Its message stays open, so that a source
//! delivers no more than so many of them; results, verbs and timers go on, by which instances end and make room.

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
use super::input_decision::{InputDecision, asked};
use super::intake::InstanceAction;
use super::timers::{TimerDelta, is_ours};
use super::{CachedRecord, QueuedInput, SagaLane, SagaLaneContext, SagaLaneOwner};
use crate::lane::LaneExit;
use crate::lane::rows::{LaneStore, row};
use crate::metrics::{Census, CensusKind};
use crate::quotas::{InstanceReservation, LaneUsage, TenantQuotaExceeded};

/// Correlations that are tried again at a time.
const AT_ONCE: usize = 8;
/// Starts wait so long before it is told, and find room for so long before nothing is told any more.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// Why starts of a lane wait, for whoever asks any replica.
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

/// Starts that have waited since they did first.
#[derive(Debug, Clone, Copy)]
struct Starvation {
    since: Instant,
    /// Quota that the last of them waits for.
    full: TenantQuotaExceeded,
    /// Since when all of them are tried again.
    fed: Option<Instant>,
}

/// How long an input waits that would be a dead letter, unless one goes before.
const LETTER_AGAIN: Duration = Duration::from_secs(1);

/// Room for want of which an input waits.
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
            Self::Letters { .. } => LETTER_AGAIN,
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
    /// The quota that the row tells.
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

    /// Keeps an item back whose correlation waits for its start; gives it back where it does not. Requests are not kept back: they are
    /// answered.
    pub(super) fn behind(&mut self, correlation: &CorrelationId, item: QueuedInput) -> Option<QueuedInput> {
        let waits =
            matches!(&item.what, InstanceAction::Input { asked: None, .. } | InstanceAction::Dead { .. });
        match self.items.get_mut(correlation).filter(|_| waits) {
            Some(items) => {
                items.push_back(item.set_aside());
                None
            }
            None => Some(item),
        }
    }

    /// Everything that is kept back.
    pub(super) fn items(&mut self) -> impl Iterator<Item = &mut QueuedInput> {
        self.items.values_mut().flatten()
    }

    /// How long to wait until it is told why starts wait, or that none does; nothing where that is told.
    pub(super) fn next_tell(&self) -> Option<Duration> {
        let Starvation { since, full, fed } = self.hunger?;
        if fed.is_none() && self.reported_quota == Some(full.quota) {
            return None;
        }
        Some(TOLD_AFTER.saturating_sub(fed.unwrap_or(since).elapsed()))
    }

    /// Waits until something may be tried again; for ever where nothing waits.
    pub(super) async fn retry_due(&mut self) {
        if self.line.is_empty() {
            return std::future::pending().await;
        }
        tokio::select! {
            // Whoever makes room lives as long as the lane does.
            _ = self.freed.changed() => {}
            () = tokio::time::sleep_until(self.again) => {}
        }
    }
}

impl SagaLaneOwner {
    /// Keeps an input back for which there is no room.
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
        // Those that find no room say so.
        if self.starved.line.is_empty()
            && let Some(hunger) = &mut self.starved.hunger
        {
            hunger.fed = Some(Instant::now());
        }
        // The next of them, should these find room; where they do not, they say when.
        self.starved.again = Instant::now() + Duration::from_millis(1);
    }

    /// Tells why starts wait, or that none does any more: by a row, which any replica reads, and to whoever asks this one.
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
        let told = StarvedRow { quota: quota.to_owned(), most, found, since };
        rows.commit(Vec::new(), vec![RowOperation::Put(row(&LaneRowKey::starved()), encode(&told).into())])
            .await?;
        self.starved.reported_quota = Some(quota);
        self.shared.usage.starve(Some(full));
        Ok(())
    }
}

/// Removes what a former owner told: what waited for it comes again.
pub(super) async fn forget(rows: &LaneStore) -> Result<(), LaneExit> {
    if rows.get(&LaneRowKey::starved()).await?.is_some() {
        rows.commit(Vec::new(), vec![RowOperation::Delete(row(&LaneRowKey::starved()))]).await?;
    }
    Ok(())
}

impl SagaLaneContext {
    /// Makes room for the instance that a decision starts; nothing where it starts none. Looks whether there is some for its letters.
    pub(super) fn room_for(
        &self,
        decision: &InputDecision,
        item: &QueuedInput,
    ) -> Result<Option<InstanceReservation<'_>>, CapacityShortage> {
        self.room_for_letters(decision, &item.what)?;
        let starts = decision.change.journal.iter().any(|row| row.revision == 1);
        // What a person has applied again is that person's to decide.
        if !starts || matches!(item.what, InstanceAction::Word(_)) {
            return Ok(None);
        }
        self.usage.room(self.definitions.quotas(&self.tenant)).map(Some).map_err(CapacityShortage::Quota)
    }

    /// Answers whoever asked for a start that there is no room for it. Says whether nobody did: it waits then.
    pub(super) async fn refuse_start(&self, item: &QueuedInput, full: &CapacityShortage) -> bool {
        let Some(asked) = asked(&item.what) else { return true };
        let refusal = RequestRefusal { reason: "QUOTA_EXCEEDED".to_owned(), message: full.to_string() };
        let outcome = VerbOutcome::Refused(refusal);
        let request_hash = asked.request_hash.clone();
        let answer = VerbAnswerRow { request_hash, outcome, instance: None, work: Vec::new() };
        self.answer(item, Some(&answer)).await;
        false
    }

    /// Takes note of what a commit has changed of what the tenant has.
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
            // It has ended with its start.
            Some(room) => drop(room),
            None if is_live(current.record.as_ref()) && !is_live_now => self.usage.ended(),
            None => {}
        }
        let set = timers.set.iter().filter(|timer| !timer.is_ours()).count();
        let gone = timers.dropped.iter().filter(|(_, name)| !is_ours(name)).count();
        self.usage.timers(set, gone);
    }
}
