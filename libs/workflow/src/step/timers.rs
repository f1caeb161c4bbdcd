//! Timers of instances.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{BlobHash, Timestamp};

use super::application::{AppliedInput, InputApplication};
use super::{AWAITED, IgnoreReason, InputDisposition, InputFault};
use crate::InputId;
use crate::Json;
use crate::definition::{TIMER_AHEAD_MAX, TIMERS_MAX, TimerDue, TimerSpec};
use crate::input::DomainEvent;
use crate::instance::{CorrelationEntry, CorrelationRecord, Timer};

/// The timers of a record, by name.
pub(super) fn of(record: &CorrelationRecord) -> BTreeMap<&str, &Timer> {
    match &record.entry {
        CorrelationEntry::Live(instance) => {
            instance.timers.iter().map(|(name, timer)| (name.as_str(), timer)).collect()
        }
        CorrelationEntry::Awaited(awaited) if !awaited.kept.is_empty() => {
            BTreeMap::from([(AWAITED, &awaited.timer)])
        }
        CorrelationEntry::Awaited(_) | CorrelationEntry::Ended(_) => BTreeMap::new(),
    }
}

impl InputApplication<'_> {
    /// Sets timers; one that is set already is replaced.
    pub(super) fn set_timers(&mut self, timers: &[TimerSpec], is_of_step: bool) -> Result<(), InputFault> {
        for spec in timers {
            let generation = self.instance.generations + 1;
            let due = self.due(spec)? + self.jitter(spec, generation);
            self.instance.generations = generation;
            let timer = Timer { generation, due, raise: spec.raise.clone(), is_of_step };
            self.instance.timers.insert(spec.name.clone(), timer);
        }
        let found = self.instance.timers.len();
        if found > TIMERS_MAX {
            return Err(InputFault::Limit { what: "an instance, in timers,", most: TIMERS_MAX, found });
        }
        Ok(())
    }

    fn due(&self, spec: &TimerSpec) -> Result<Timestamp, InputFault> {
        let now = self.instance.now;
        let number = |formula: &crate::formula::Formula| match self
            .with_scope(&[], |scope| formula.value(scope))?
        {
            Json::Int(number) => Ok(u64::try_from(number).unwrap_or(0)),
            other => {
                let wanted = "a whole number of milliseconds".to_owned();
                Err(InputFault::Kind { field: format!("timer {}", spec.name), wanted, found: other.kind() })
            }
        };
        let due = match &spec.due {
            TimerDue::After(length) => now + *length,
            TimerDue::AfterFormula(formula) => now + Duration::from_millis(number(formula)?),
            TimerDue::At(formula) => Timestamp::from_millis(number(formula)?),
        };
        if due.since(now) > TIMER_AHEAD_MAX {
            let days = |length: Duration| usize::try_from(length.as_secs() / 86_400).unwrap_or(usize::MAX);
            let (most, found) = (days(TIMER_AHEAD_MAX), days(due.since(now)));
            return Err(InputFault::Limit { what: "a timer, in days ahead,", most, found });
        }
        Ok(due)
    }

    /// The instance's own share of a timer's jitter, which is the same wherever it is computed.
    fn jitter(&self, spec: &TimerSpec, generation: u64) -> Duration {
        let millis = u64::try_from(spec.jitter.as_millis()).unwrap_or(u64::MAX);
        if millis == 0 {
            return Duration::ZERO;
        }
        let id = InputId::Timer { name: spec.name.to_string(), generation };
        let (tenant, correlation) = (self.whose.tenant, self.whose.correlation);
        let seed = format!("{tenant}\n{}\n{correlation}\n{}", self.saga.name, hex::encode(id.digest()));
        let digits = BlobHash::of(seed.as_bytes()).to_string();
        let share = digits.get(..12).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
        Duration::from_millis(share % (millis + 1))
    }

    /// Fires a timer.
    pub(super) fn timer(mut self, name: &str, generation: u64) -> Result<AppliedInput, InputFault> {
        let found = self.instance.timers.iter().find(|(known, _)| known.as_str() == name);
        let Some((known, timer)) = found.filter(|(_, timer)| timer.generation == generation) else {
            return Ok(self.unchanged(InputDisposition::Ignored(IgnoreReason::OldTimer)));
        };
        // The caller fires timers by its clock; a timer that fires too early is refused here as well.
        if self.input.time < timer.due {
            return Ok(self.unchanged(InputDisposition::Ignored(IgnoreReason::OldTimer)));
        }
        let (known, raise) = (known.clone(), timer.raise.clone());
        self.instance.timers.remove(&known);
        let request = format!("timer {name} {generation}");
        let data = Json::object([("timer", Json::text(name))]);
        let event = DomainEvent { id: self.input.id(), ..DomainEvent::sent(&request, &raise, data) };
        self.event(&event)
    }
}
