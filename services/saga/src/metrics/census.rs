//! Census of owned lanes: what each of them keeps, counted when it is taken and followed from there with each commit.

use std::sync::{Arc, Mutex, PoisonError};

use model::SagaStatus;
use prometheus::{IntGauge, IntGaugeVec};

/// Something that a lane keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Instances that go on.
    Running,
    /// Instances that are undone.
    Compensating,
    /// Instances that need a person.
    Stuck,
    /// Instances that have ended, and whose journal is still there.
    Ended,
    /// Dead letters.
    Letters,
    /// Correlations behind a dead letter.
    ParkedKeys,
    /// Events that came before their step.
    Kept,
    /// Timers of sagas.
    Timers,
}

impl Counted {
    /// All of them, in the order of their declaration.
    const ALL: [Self; 8] = [
        Self::Running,
        Self::Compensating,
        Self::Stuck,
        Self::Ended,
        Self::Letters,
        Self::ParkedKeys,
        Self::Kept,
        Self::Timers,
    ];

    /// What an instance of this status is counted as.
    #[must_use]
    pub const fn instance(status: SagaStatus) -> Self {
        match status {
            SagaStatus::Running => Self::Running,
            SagaStatus::Compensating => Self::Compensating,
            SagaStatus::Stuck => Self::Stuck,
            SagaStatus::Completed | SagaStatus::Failed | SagaStatus::Compensated | SagaStatus::Killed => {
                Self::Ended
            }
        }
    }
}

/// Numbers of what is kept; of a change more or less than nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census([i64; Counted::ALL.len()]);

impl Census {
    /// Counts so many more.
    pub fn add(&mut self, what: Counted, number: usize) {
        self.0[what as usize] += i64::try_from(number).unwrap_or(i64::MAX);
    }

    /// Counts so many less.
    pub fn remove(&mut self, what: Counted, number: usize) {
        self.0[what as usize] -= i64::try_from(number).unwrap_or(i64::MAX);
    }

    /// The number of one thing.
    #[must_use]
    pub const fn of(&self, what: Counted) -> i64 {
        self.0[what as usize]
    }
}

/// Gauges of what owned lanes keep together. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CensusGauges(Arc<Gauges>);

#[derive(Debug)]
struct Gauges {
    each: [IntGauge; Counted::ALL.len()],
    /// Instances that need a person, under a name of their own: there is an alert on it.
    stuck: IntGauge,
}

impl CensusGauges {
    /// Registers them by these ways to make a gauge, and one of several by a label.
    pub(super) fn new(
        gauge: impl Fn(&str, &str) -> Result<IntGauge, prometheus::Error>,
        gauges: impl Fn(&str, &str, &[&str]) -> Result<IntGaugeVec, prometheus::Error>,
    ) -> Result<Self, prometheus::Error> {
        let instances = gauges(
            "instances",
            "Instances of owned lanes by status; `ended`: for the seven days that their journal is kept",
            &["status"],
        )?;
        let instances = |status: &str| instances.with_label_values(&[status]);
        let each = [
            instances(SagaStatus::Running.as_str()),
            instances(SagaStatus::Compensating.as_str()),
            instances(SagaStatus::Stuck.as_str()),
            instances("ended"),
            gauge("letters", "Dead letters of owned lanes")?,
            gauge("parked_keys", "Correlations of owned lanes that wait behind a dead letter")?,
            gauge("kept", "Events of owned lanes that came before their step")?,
            gauge("timers", "Timers of owned lanes that are set")?,
        ];
        let stuck = gauge("stuck", "Instances of owned lanes that need a person")?;
        Ok(Self(Arc::new(Gauges { each, stuck })))
    }

    /// Adds what a lane keeps that was taken just now.
    #[must_use]
    pub fn lane(&self, census: &Census) -> LaneCensus {
        let lane = LaneCensus { gauges: self.clone(), now: Mutex::default() };
        lane.change(census);
        lane
    }
}

/// What one lane keeps. Nobody's any more once it is dropped.
#[derive(Debug)]
pub struct LaneCensus {
    gauges: CensusGauges,
    now: Mutex<Census>,
}

impl LaneCensus {
    /// The number of one thing.
    #[must_use]
    pub fn of(&self, what: Counted) -> u64 {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.of(what).unsigned_abs()
    }

    /// Takes note of what a commit has changed.
    pub fn change(&self, change: &Census) {
        if *change == Census::default() {
            return;
        }
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        for what in Counted::ALL {
            let before = now.of(what);
            // What was committed without an answer may not have been counted.
            let after = before.saturating_add(change.of(what)).max(0);
            now.0[what as usize] = after;
            self.gauges.0.each[what as usize].add(after - before);
            if what == Counted::Stuck {
                self.gauges.0.stuck.add(after - before);
            }
        }
    }
}

impl Drop for LaneCensus {
    fn drop(&mut self) {
        let now = *self.now.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.change(&Census(now.0.map(|number| -number)));
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Opts;

    use super::*;

    fn gauges() -> CensusGauges {
        let vector =
            |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(Opts::new(name, help), labels);
        CensusGauges::new(|name, help| IntGauge::new(name, help), vector).expect("names")
    }

    fn census(counts: &[(Counted, usize)]) -> Census {
        let mut census = Census::default();
        counts.iter().for_each(|(what, number)| census.add(*what, *number));
        census
    }

    #[test]
    fn each_has_its_place() {
        for (place, what) in Counted::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, place);
        }
    }

    #[test]
    fn lanes_are_summed_up_and_go_with_their_owners() {
        let gauges = gauges();
        let told = |what: Counted| gauges.0.each[what as usize].get();
        let one = gauges.lane(&census(&[(Counted::Stuck, 2), (Counted::Timers, 5)]));
        let other = gauges.lane(&census(&[(Counted::Stuck, 1), (Counted::Kept, 1)]));
        let mut change = census(&[(Counted::Running, 1)]);
        change.remove(Counted::Stuck, 1);
        one.change(&change);
        assert_eq!((told(Counted::Stuck), gauges.0.stuck.get(), told(Counted::Running)), (2, 2, 1));
        // One that was not counted is not taken from another lane.
        let mut change = Census::default();
        change.remove(Counted::Timers, 9);
        one.change(&change);
        assert_eq!(told(Counted::Timers), 0);
        drop(one);
        assert_eq!((told(Counted::Stuck), told(Counted::Running), told(Counted::Kept)), (1, 0, 1));
        drop(other);
        assert!(Counted::ALL.into_iter().all(|what| told(what) == 0) && gauges.0.stuck.get() == 0);
    }
}
