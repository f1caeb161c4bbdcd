//! Limit of a lane's dead letters.
//!
//! At the limit, an input that would become one more waits like a start without room: with everything of its correlation behind it,
//! while other correlations continue. So nothing is lost, and an operator makes room by redriving or purging letters.

use std::sync::{Mutex, MutexGuard, PoisonError};

use workflow::step::{InputDisposition, InputOrigin};

use super::SagaLaneContext;
use super::input_decision::{InputDecision, verb_context};
use super::intake::InstanceAction;
use super::starved::CapacityShortage;
use crate::metrics::{CensusKind, GaugeShare, Metrics};

/// Largest number of dead letters of one saga of one tenant. Its shards have equal shares.
pub const SAGA_DEAD_LETTERS_MAX: u64 = 100_000;

/// How many letters a lane may have.
pub(super) struct DeadLetterLimit {
    most: u64,
    /// Gauge that is raised while inputs wait for want of room for a letter.
    full: Mutex<GaugeShare>,
}

impl DeadLetterLimit {
    pub(super) fn new(most: u64, metrics: &Metrics) -> Self {
        let full = GaugeShare::new(metrics.lanes_full_of_letters.clone());
        Self { most: most.max(1), full: Mutex::new(full) }
    }

    fn full(&self) -> MutexGuard<'_, GaugeShare> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InputDecision {
    /// Letters that it makes.
    fn letters_made(&self) -> u64 {
        let is_new = matches!(self.change.fate, InputDisposition::DeadLetter(_))
            && !matches!(self.origin, InputOrigin::Letter(_));
        self.change.dead_letters.len() as u64 + u64::from(is_new)
    }

    /// Returns true if the decision removes a letter.
    fn has_letter_gone(&self) -> bool {
        let is_applied = matches!(self.origin, InputOrigin::Letter(_))
            && !matches!(self.change.fate, InputDisposition::DeadLetter(_));
        is_applied || self.letter.as_ref().is_some_and(|turn| turn.goes.is_some())
    }
}

impl SagaLaneContext {
    /// Checks that there is room for the letters that a decision makes. Requests may exceed the limit, and so may inputs that are
    /// committed at the same time.
    pub(super) fn room_for_letters(
        &self,
        decision: &InputDecision,
        wanted: &InstanceAction,
    ) -> Result<(), CapacityShortage> {
        let made = decision.letters_made();
        if made == 0
            || matches!(wanted, InstanceAction::DeadLetterRequest(_))
            || verb_context(wanted).is_some()
        {
            return Ok(());
        }
        let (found, most) = (self.census.of(CensusKind::Letters), self.letters.most);
        if found.saturating_add(made) <= most {
            return Ok(());
        }
        let short = CapacityShortage::Letters { found, most };
        let mut full = self.letters.full();
        if full.part() == 0 {
            tracing::error!(lane = %self.rows.lane, "{short}; inputs that would be one more wait: redrive or purge dead letters");
            full.set(1);
        }
        Err(short)
    }

    /// Has waiting inputs tried again once a letter is gone.
    pub(super) fn note_letters(&self, decision: &InputDecision) {
        if decision.has_letter_gone() {
            self.letters.full().set(0);
            self.usage.try_again();
        }
    }
}
