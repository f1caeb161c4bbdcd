//! Readiness of a process: whether calls are welcome, and if not, why.
//!
//! Each service states what it needs by conditions of its own: met while it has that, unmet as soon as any part of it
//! notices a loss. A process takes them over ([`Readiness::include`]), also those of several services; health and
//! `/readyz` show nothing else. It is information: calls are answered as they can be, ready or not.
//!
//! An impairment is wrong without being in the way of calls, such as an upstream that does not answer. `/health` alone shows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Ready when every condition is met. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<ReadinessInner>);

#[derive(Debug)]
struct ReadinessInner {
    state: Mutex<ReadinessState>,
    ready: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct ReadinessState {
    /// Unmet conditions: name and reason.
    unmet: BTreeMap<String, String>,
    /// Impairments: name and reason.
    impaired: BTreeMap<String, String>,
    /// Readiness that this one is a part of, each with the part's name.
    parents: Vec<(&'static str, Readiness)>,
}

/// One of the lists of what is wrong.
#[derive(Debug, Clone, Copy)]
enum ReadinessProblemKind {
    Unmet,
    Impaired,
}

impl ReadinessState {
    const fn list(&mut self, list: ReadinessProblemKind) -> &mut BTreeMap<String, String> {
        match list {
            ReadinessProblemKind::Unmet => &mut self.unmet,
            ReadinessProblemKind::Impaired => &mut self.impaired,
        }
    }
}

impl Readiness {
    /// Without conditions, that is ready.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(ReadinessInner { state: Mutex::default(), ready: watch::Sender::new(true) }))
    }

    /// Adds a condition; it is unmet at first. The name says what is missing: `storage`, `redis`.
    #[must_use]
    pub fn condition(&self, name: impl Into<String>) -> ReadinessCondition {
        let condition = ReadinessCondition { name: name.into(), readiness: self.clone() };
        condition.unmet("not yet");
        condition
    }

    /// Adds something that may be wrong while calls are welcome; nothing is at first.
    #[must_use]
    pub fn impairment(&self, name: impl Into<String>) -> Impairment {
        Impairment { name: name.into(), readiness: self.clone() }
    }

    /// Takes over every condition and impairment of a part, as it is now and as it changes: ready only while the part is. Where several
    /// parts share a process, each has a name, and so have its conditions: `scheduler storage`. A part never includes
    /// its whole.
    pub fn include(&self, name: &'static str, part: &Self) {
        let mut state = part.state();
        for list in [ReadinessProblemKind::Unmet, ReadinessProblemKind::Impaired] {
            for (condition, why) in &*state.list(list) {
                self.set(list, &within(name, condition), Some(why.clone()));
            }
        }
        state.parents.push((name, self.clone()));
    }

    /// Is no part of anything any more: what it lacked is lacking nowhere else, now and later.
    pub fn withdraw(&self) {
        let mut state = self.state();
        let wholes = std::mem::take(&mut state.parents);
        for list in [ReadinessProblemKind::Unmet, ReadinessProblemKind::Impaired] {
            for condition in state.list(list).keys() {
                for (part, whole) in &wholes {
                    whole.set(list, &within(part, condition), None);
                }
            }
        }
    }

    /// Not ready any more, whatever the conditions say.
    pub fn close(&self, why: &str) {
        self.set(ReadinessProblemKind::Unmet, "process", Some(why.to_owned()));
    }

    /// Returns true when every condition is met now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.0.ready.borrow()
    }

    /// Follows whether it is ready.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.ready.subscribe()
    }

    /// Waits until it is ready. Cancel safe.
    pub async fn ready(&self) {
        // The sender lives as long as `self`.
        let _ = self.subscribe().wait_for(|ready| *ready).await;
    }

    /// Returns the unmet conditions: name and reason, one each.
    #[must_use]
    pub fn missing(&self) -> Vec<(String, String)> {
        self.state().unmet.iter().map(|(name, why)| (name.clone(), why.clone())).collect()
    }

    /// Returns everything that is wrong: unmet conditions, then impairments; name and reason each.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, String)> {
        let state = self.state();
        let all = state.unmet.iter().chain(&state.impaired);
        all.map(|(name, why)| (name.clone(), why.clone())).collect()
    }

    fn set(&self, list: ReadinessProblemKind, name: &str, because: Option<String>) {
        let mut state = self.state();
        // The whole is updated under the lock of its part, so that two changes cannot overtake each other.
        for (part, whole) in &state.parents {
            whole.set(list, &within(part, name), because.clone());
        }
        match because {
            Some(why) => drop(state.list(list).insert(name.to_owned(), why)),
            None => drop(state.list(list).remove(name)),
        }
        let ready = state.unmet.is_empty();
        // For the same reason.
        self.0.ready.send_if_modified(|former| std::mem::replace(former, ready) != ready);
    }

    fn state(&self) -> MutexGuard<'_, ReadinessState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of a part's condition in the whole.
fn within(part: &str, condition: &str) -> String {
    if part.is_empty() { condition.to_owned() } else { format!("{part} {condition}") }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

/// One thing that has to be so before calls are welcome.
#[derive(Debug, Clone)]
pub struct ReadinessCondition {
    name: String,
    readiness: Readiness,
}

impl ReadinessCondition {
    /// Marks the condition as met.
    pub fn met(&self) {
        self.readiness.set(ReadinessProblemKind::Unmet, &self.name, None);
    }

    /// Marks the condition as unmet, for this reason.
    pub fn unmet(&self, why: impl Into<String>) {
        self.readiness.set(ReadinessProblemKind::Unmet, &self.name, Some(why.into()));
    }

    /// Keeps the condition met while the server there says that it serves. Never ends; the caller drops it to end it.
    pub async fn while_serves(self, server: rpc::Channel) {
        rpc::follow_health(server, |update| match update {
            Ok(()) => self.met(),
            Err(why) => self.unmet(why),
        })
        .await;
    }
}

/// One thing that may be wrong while calls are welcome.
#[derive(Debug, Clone)]
pub struct Impairment {
    name: String,
    readiness: Readiness,
}

impl Impairment {
    /// Marks the impairment as present, for this reason.
    pub fn begin(&self, why: impl Into<String>) {
        self.readiness.set(ReadinessProblemKind::Impaired, &self.name, Some(why.into()));
    }

    /// Marks the impairment as gone.
    pub fn end(&self) {
        self.readiness.set(ReadinessProblemKind::Impaired, &self.name, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_all_conditions_are_met() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let (storage, view) = (readiness.condition("storage"), readiness.condition("view"));
        assert!(!readiness.is_ready());
        storage.met();
        assert_eq!(readiness.missing(), [("view".to_owned(), "not yet".to_owned())]);
        view.met();
        assert!(readiness.is_ready());
        storage.unmet("connection lost");
        assert_eq!(readiness.missing(), [("storage".to_owned(), "connection lost".to_owned())]);
    }

    #[test]
    fn a_whole_is_ready_while_its_parts_are() {
        let (whole, scheduler, router) = (Readiness::new(), Readiness::new(), Readiness::new());
        let storage = scheduler.condition("storage");
        whole.include("scheduler", &scheduler);
        whole.include("", &router);
        assert_eq!(whole.missing(), [("scheduler storage".to_owned(), "not yet".to_owned())]);
        storage.met();
        assert!(whole.is_ready());
        // Also conditions that are added later.
        let gateway = router.condition("gateway");
        storage.unmet("lost");
        let missing = whole.missing().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(missing, ["gateway", "scheduler storage"]);
        assert_eq!(scheduler.missing(), [("storage".to_owned(), "lost".to_owned())]);
        storage.met();
        gateway.met();
        assert!(whole.is_ready() && scheduler.is_ready() && router.is_ready());
    }

    #[test]
    fn closed_for_good() {
        let readiness = Readiness::new();
        let storage = readiness.condition("storage");
        readiness.close("ending");
        storage.met();
        assert!(!readiness.is_ready());
    }

    #[test]
    fn what_withdraws_is_lacking_nowhere_else() {
        let (whole, part) = (Readiness::new(), Readiness::new());
        whole.include("saga", &part);
        let (storage, store) = (part.condition("storage"), part.impairment("store"));
        store.begin("it is full");
        assert_eq!(whole.problems().len(), 2);
        part.withdraw();
        assert_eq!(whole.problems(), []);
        part.close("it is draining");
        storage.unmet("lost");
        assert!(whole.is_ready() && !part.is_ready());
    }

    #[test]
    fn impairments_are_in_the_way_of_no_call() {
        let (whole, part) = (Readiness::new(), Readiness::new());
        let (store, upstream) = (part.impairment("store"), part.impairment("upstream"));
        store.begin("it is full");
        whole.include("saga", &part);
        upstream.begin("it does not answer");
        assert!(whole.is_ready() && whole.missing().is_empty());
        let storage = part.condition("storage");
        let troubles: Vec<_> = whole.problems().into_iter().map(|(name, _)| name).collect();
        assert_eq!(troubles, ["saga storage", "saga store", "saga upstream"]);
        storage.met();
        store.end();
        upstream.end();
        assert_eq!(whole.problems(), []);
    }
}
