//! What operators should know of a process that is ready and works.
//!
//! A condition that is not met makes a process unready ([`crate::Readiness`]). A notice does not: what it tells is as it was set
//! up, and somebody may want it so. `/info` shows them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Notices of a process or of a part of it. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Notices(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    told: BTreeMap<&'static str, String>,
    parts: Vec<Notices>,
}

/// One notice, which is told or not. Clones are the same.
#[derive(Debug, Clone)]
pub struct Notice {
    name: &'static str,
    notices: Notices,
}

impl Notices {
    /// Adds a notice of which there is nothing to tell yet. The name says what it is about: `intake`, `disk`.
    #[must_use]
    pub fn notice(&self, name: &'static str) -> Notice {
        Notice { name, notices: self.clone() }
    }

    /// Shows the notices of a part as well, as they are now and as they change. A part never includes its whole.
    pub fn include(&self, part: &Self) {
        self.state().parts.push(part.clone());
    }

    /// Gives all that there is to tell, by name.
    #[must_use]
    pub fn told(&self) -> BTreeMap<&'static str, String> {
        let state = self.state();
        let mut told = state.told.clone();
        for part in &state.parts {
            told.extend(part.told());
        }
        told
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notice {
    /// Tells this from now on; with nothing, there is nothing to tell any more.
    pub fn set(&self, text: Option<&str>) {
        let mut state = self.notices.state();
        match text {
            Some(text) => drop(state.told.insert(self.name, text.to_owned())),
            None => drop(state.told.remove(self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_of_parts_are_shown_as_they_change() {
        let (whole, part) = (Notices::default(), Notices::default());
        let intake = part.notice("intake");
        whole.include(&part);
        assert!(whole.told().is_empty());
        intake.set(Some("takes no jobs"));
        assert_eq!(whole.told(), BTreeMap::from([("intake", "takes no jobs".to_owned())]));
        intake.set(None);
        assert!(whole.told().is_empty());
    }
}
