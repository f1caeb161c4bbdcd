//! View of the runners: records from storage, and the last presence of the supervisors behind them. Pure: every
//! change returns the runners that look different now.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use model::{ContextId, Presence, Runner, RunnerId, RunnerView, Timestamp};
use tokio::time::Instant;

/// A runner of any context.
pub type RunnerRecordKey = (ContextId, RunnerId);

/// Runners that look different after a change.
pub type ChangedRunners = BTreeSet<RunnerRecordKey>;

/// The whole view. A presence from an address counts for every record that names this address.
#[derive(Debug)]
pub struct RegistryView {
    dead_after: Duration,
    /// How long a deleted runner is kept after its supervisor last reported work.
    linger: Duration,
    /// When each deleted runner is removed from the view.
    leaving: BTreeMap<RunnerRecordKey, Instant>,
    records: BTreeMap<RunnerRecordKey, Runner>,
    by_address: HashMap<String, BTreeSet<RunnerRecordKey>>,
    supervisors: HashMap<String, SupervisorLiveness>,
}

#[derive(Debug)]
struct SupervisorLiveness {
    presence: Presence,
    seen: Timestamp,
    /// Absent when the supervisor counts as dead.
    alive_until: Option<Instant>,
}

impl RegistryView {
    /// Creates an empty view.
    #[must_use]
    pub fn new(dead_after: Duration, linger: Duration) -> Self {
        Self {
            dead_after,
            linger,
            leaving: BTreeMap::new(),
            records: BTreeMap::new(),
            by_address: HashMap::new(),
            supervisors: HashMap::new(),
        }
    }

    /// Takes over a record that is new or has changed. A deleted record is kept until the jobs on its supervisor have ended.
    pub fn put_record(&mut self, now: Instant, context: ContextId, runner: Runner) -> ChangedRunners {
        let key = (context, runner.id);
        let address = runner.address.to_string();
        if runner.deleted_at.is_some() {
            self.leaving.entry(key).or_insert(now + self.linger);
        }
        match self.records.insert(key, runner) {
            Some(before) if self.records.get(&key) == Some(&before) => return ChangedRunners::new(),
            Some(before) => self.leave_address(&before, key),
            None => {}
        }
        self.by_address.entry(address).or_default().insert(key);
        ChangedRunners::from([key])
    }

    /// Removes a record.
    pub fn remove_record(&mut self, key: RunnerRecordKey) -> ChangedRunners {
        self.leaving.remove(&key);
        let Some(before) = self.records.remove(&key) else { return ChangedRunners::new() };
        self.leave_address(&before, key);
        ChangedRunners::from([key])
    }

    /// Removes every record but these.
    pub fn retain_records(&mut self, kept: &BTreeSet<RunnerRecordKey>) -> ChangedRunners {
        let gone: Vec<RunnerRecordKey> =
            self.records.keys().filter(|key| !kept.contains(key)).copied().collect();
        gone.into_iter().flat_map(|key| self.remove_record(key)).collect()
    }

    fn leave_address(&mut self, record: &Runner, key: RunnerRecordKey) {
        let address = record.address.to_string();
        if let Some(keys) = self.by_address.get_mut(&address) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }

    /// Notes a supervisor's presence.
    pub fn put_presence(
        &mut self,
        now: Instant,
        seen: Timestamp,
        address: &str,
        presence: Presence,
    ) -> ChangedRunners {
        let alive_until = Some(now + self.dead_after);
        if is_busy(&presence) {
            for key in self.at(address) {
                self.leaving.entry(key).and_modify(|until| *until = now + self.linger);
            }
        }
        let before = self.supervisors.get(address);
        let same =
            before.is_some_and(|liveness| liveness.alive_until.is_some() && liveness.presence == presence);
        self.supervisors.insert(address.to_owned(), SupervisorLiveness { presence, seen, alive_until });
        if same { ChangedRunners::new() } else { self.at(address) }
    }

    /// Marks a supervisor as gone.
    pub fn mark_gone(&mut self, address: &str) -> ChangedRunners {
        let was_alive =
            self.supervisors.get_mut(address).and_then(|liveness| liveness.alive_until.take()).is_some();
        if was_alive { self.at(address) } else { ChangedRunners::new() }
    }

    /// Marks supervisors as dead that were silent for too long, and removes deleted runners whose supervisors have no
    /// work.
    pub fn expire(&mut self, now: Instant) -> ChangedRunners {
        let left: Vec<RunnerRecordKey> =
            self.leaving.iter().filter(|(_, until)| **until <= now).map(|(key, _)| *key).collect();
        let mut changed: ChangedRunners = left.into_iter().flat_map(|key| self.remove_record(key)).collect();
        for (address, liveness) in &mut self.supervisors {
            if liveness.alive_until.is_some_and(|until| until <= now) {
                liveness.alive_until = None;
                changed.extend(self.by_address.get(address).into_iter().flatten());
            }
        }
        // A dead supervisor without a record is never shown: its entry can go.
        self.supervisors.retain(|address, liveness| {
            liveness.alive_until.is_some() || self.by_address.contains_key(address)
        });
        changed
    }

    /// When [`RegistryView::expire`] may have something to do next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let alive = self.supervisors.values().filter_map(|liveness| liveness.alive_until);
        alive.chain(self.leaving.values().copied()).min()
    }

    /// Returns a record with its supervisor's last presence.
    #[must_use]
    pub fn get(&self, key: RunnerRecordKey) -> Option<RunnerView> {
        self.records.get(&key).map(|runner| self.describe(runner.clone()))
    }

    /// Adds the last presence of its supervisor to a record.
    #[must_use]
    pub fn describe(&self, runner: Runner) -> RunnerView {
        let liveness = self.supervisors.get(&runner.address.to_string());
        RunnerView {
            presence: liveness.map(|liveness| liveness.presence.clone()),
            last_seen: liveness.map(|liveness| liveness.seen),
            live: liveness.is_some_and(|liveness| liveness.alive_until.is_some()),
            runner,
        }
    }

    /// Every runner.
    #[must_use]
    pub fn keys(&self) -> ChangedRunners {
        self.records.keys().copied().collect()
    }

    /// How many records there are, and how many of them are alive.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let live = self.supervisors.iter().filter(|(_, liveness)| liveness.alive_until.is_some());
        let live = live.filter_map(|(address, _)| self.by_address.get(address)).map(BTreeSet::len).sum();
        (self.records.len(), live)
    }

    fn at(&self, address: &str) -> ChangedRunners {
        self.by_address.get(address).cloned().unwrap_or_default()
    }
}

/// Returns true if a supervisor has work, for any coordinator.
fn is_busy(presence: &Presence) -> bool {
    presence.queued > 0 || presence.instances.iter().any(|instance| instance.busy > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Revision;

    const A: &str = "grpc://a:1";
    const DEAD_AFTER: Duration = Duration::from_secs(30);
    const LINGER: Duration = Duration::from_secs(60);

    fn runner(id: u32, address: &str) -> Runner {
        Runner {
            id: RunnerId(id),
            pubkey: String::new(),
            address: address.parse().expect("an address"),
            topic: "supervisor.rpc".into(),
            signing_key: String::new(),
            script_types: Vec::new(),
            group: None,
            labels: BTreeMap::new(),
            local: false,
            envelope: model::EnvelopeForm::Signed,
            secret_ref: String::new(),
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
            drained_at: None,
            deleted_at: None,
            revision: Revision(1),
        }
    }

    fn presence(queued: u64) -> Presence {
        Presence {
            supervisor: "s".into(),
            version: "0".into(),
            instances: Vec::new(),
            queued,
            draining: false,
        }
    }

    fn keys(keys: &[(u32, u32)]) -> ChangedRunners {
        keys.iter().map(|(context, id)| (ContextId(*context), RunnerId(*id))).collect()
    }

    #[test]
    fn a_supervisor_counts_for_all_its_records_until_it_is_silent() {
        let start = Instant::now();
        let secs = |secs| start + Duration::from_secs(secs);
        let mut view = RegistryView::new(DEAD_AFTER, LINGER);
        let seen = Timestamp::from_millis(5);
        assert_eq!(view.put_presence(secs(0), seen, A, presence(0)), keys(&[]), "no record names it yet");
        assert_eq!(view.put_record(Instant::now(), ContextId(1), runner(1, A)), keys(&[(1, 1)]));
        assert_eq!(view.put_record(Instant::now(), ContextId(1), runner(1, A)), keys(&[]), "nothing new");
        assert_eq!(view.put_record(Instant::now(), ContextId(2), runner(7, A)), keys(&[(2, 7)]));
        view.put_record(Instant::now(), ContextId(2), runner(8, "grpc://b:1"));
        assert_eq!(view.counts(), (3, 2));
        let known = view.get((ContextId(2), RunnerId(7))).expect("put before");
        assert!(known.live && known.last_seen == Some(seen));

        assert_eq!(view.put_presence(secs(10), seen, A, presence(0)), keys(&[]), "nothing new to tell");
        assert_eq!(view.put_presence(secs(20), seen, A, presence(3)), keys(&[(1, 1), (2, 7)]));
        assert_eq!(view.next_deadline(), Some(secs(50)));
        assert_eq!(view.expire(secs(49)), keys(&[]));
        assert_eq!(view.expire(secs(50)), keys(&[(1, 1), (2, 7)]));
        let known = view.get((ContextId(1), RunnerId(1))).expect("put before");
        assert!(!known.live && known.presence.is_some(), "what it last said stays visible");
        assert_eq!(view.next_deadline(), None);
        assert_eq!(view.put_presence(secs(60), seen, A, presence(3)), keys(&[(1, 1), (2, 7)]));
        assert_eq!(view.mark_gone(A), keys(&[(1, 1), (2, 7)]));
        assert_eq!(view.mark_gone(A), keys(&[]));
    }

    #[test]
    fn who_is_deleted_stays_until_its_work_is_done() {
        let start = Instant::now();
        let secs = |secs| start + Duration::from_secs(secs);
        let mut view = RegistryView::new(DEAD_AFTER, LINGER);
        let key = (ContextId(1), RunnerId(1));
        view.put_record(secs(0), ContextId(1), runner(1, A));
        let deleted = Runner { deleted_at: Some(Timestamp::from_millis(1)), ..runner(1, A) };
        assert_eq!(view.put_record(secs(10), ContextId(1), deleted.clone()), keys(&[(1, 1)]));
        assert_eq!((view.next_deadline(), view.counts().0), (Some(secs(70)), 1), "it is listened to");
        view.put_presence(secs(60), Timestamp::default(), A, presence(1));
        view.put_presence(secs(80), Timestamp::default(), A, presence(0));
        assert_eq!(view.put_record(secs(81), ContextId(1), deleted), keys(&[]), "told again");
        view.put_presence(secs(100), Timestamp::default(), A, presence(0));
        assert_eq!(view.expire(secs(119)), keys(&[]));
        assert!(view.get(key).is_some_and(|view| view.live && !view.runner.takes_jobs()));
        assert_eq!(view.expire(secs(120)), keys(&[(1, 1)]), "nothing was to do there for long");
        assert!(view.get(key).is_none() && view.by_address.is_empty());
    }

    #[test]
    fn a_record_may_move() {
        let mut view = RegistryView::new(DEAD_AFTER, LINGER);
        view.put_record(Instant::now(), ContextId(1), runner(1, A));
        view.put_record(Instant::now(), ContextId(1), runner(1, "grpc://b:1"));
        assert_eq!(view.by_address.keys().collect::<Vec<_>>(), ["grpc://b:1"]);
        view.put_presence(Instant::now(), Timestamp::default(), A, presence(0));
        assert_eq!(view.counts(), (1, 0));
    }

    #[test]
    fn a_record_may_be_removed() {
        let mut view = RegistryView::new(DEAD_AFTER, LINGER);
        for id in 1..=3 {
            view.put_record(Instant::now(), ContextId(1), runner(id, A));
        }
        let (first, second) = ((ContextId(1), RunnerId(1)), (ContextId(1), RunnerId(2)));
        assert_eq!(view.remove_record(first), keys(&[(1, 1)]));
        assert_eq!(view.remove_record(first), keys(&[]), "it is gone already");
        assert_eq!(view.retain_records(&BTreeSet::from([first, second])), keys(&[(1, 3)]));
        assert_eq!(view.keys(), keys(&[(1, 2)]));
        view.put_presence(Instant::now(), Timestamp::default(), A, presence(0));
        assert_eq!(view.counts(), (1, 1));
        view.retain_records(&BTreeSet::new());
        assert!(view.records.is_empty() && view.by_address.is_empty());
    }
}
