//! Notices to operators about a process that is ready and works.
//!
//! A condition that is not met makes a process unready ([`crate::Readiness`]). A notice does not: it reports how the process
//! is set up, which may be intended. `/info` shows them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Notices of a process or of a part of it. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct OperatorNotices(Arc<Mutex<OperatorNoticesState>>);

#[derive(Debug, Default)]
struct OperatorNoticesState {
    texts: BTreeMap<&'static str, String>,
    parts: Vec<OperatorNotices>,
}

/// One notice, which is set or not. Clones are the same.
#[derive(Debug, Clone)]
pub struct OperatorNotice {
    name: &'static str,
    notices: OperatorNotices,
}

impl OperatorNotices {
    /// Adds a notice that is not set yet. The name says what it is about: `intake`, `disk`.
    #[must_use]
    pub fn notice(&self, name: &'static str) -> OperatorNotice {
        OperatorNotice { name, notices: self.clone() }
    }

    /// Shows the notices of a part as well, as they are now and as they change. A part never includes its whole.
    pub fn include(&self, part: &Self) {
        self.state().parts.push(part.clone());
    }

    /// Returns all notices that are set, by name.
    #[must_use]
    pub fn current(&self) -> BTreeMap<&'static str, String> {
        let state = self.state();
        let mut texts = state.texts.clone();
        for part in &state.parts {
            texts.extend(part.current());
        }
        texts
    }

    fn state(&self) -> MutexGuard<'_, OperatorNoticesState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OperatorNotice {
    /// Sets the text; nothing clears the notice.
    pub fn set(&self, text: Option<&str>) {
        let mut state = self.notices.state();
        match text {
            Some(text) => drop(state.texts.insert(self.name, text.to_owned())),
            None => drop(state.texts.remove(self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_of_parts_are_shown_as_they_change() {
        let (whole, part) = (OperatorNotices::default(), OperatorNotices::default());
        let intake = part.notice("intake");
        whole.include(&part);
        assert!(whole.current().is_empty());
        intake.set(Some("takes no jobs"));
        assert_eq!(whole.current(), BTreeMap::from([("intake", "takes no jobs".to_owned())]));
        intake.set(None);
        assert!(whole.current().is_empty());
    }
}
