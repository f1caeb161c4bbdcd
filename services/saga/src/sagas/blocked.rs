//! Inputs for which there is no room behind a dead letter or a pause.
//!
//! They wait in memory, and their messages stay unacknowledged; their lane reads nothing meanwhile. They are tried again after every
//! input of their correlation.

use std::collections::HashMap;

use model::CorrelationId;

use super::QueuedInput;

/// Inputs that found no room, by their correlation, in order.
#[derive(Default)]
pub(super) struct BlockedInputs(HashMap<CorrelationId, Vec<QueuedInput>>);

impl BlockedInputs {
    /// Returns whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps one that found no room.
    pub(super) fn push(&mut self, correlation: CorrelationId, item: QueuedInput) {
        self.0.entry(correlation).or_default().push(item.set_aside());
    }

    /// Keeps an item behind those of its correlation; returns it where there are none, or where it need not wait with them. Without this
    /// a smaller item could find room, and overtake those before it.
    pub(super) fn behind(&mut self, correlation: &CorrelationId, item: QueuedInput) -> Option<QueuedInput> {
        match self.0.get_mut(correlation).filter(|_| item.may_be_held(correlation)) {
            Some(items) => {
                items.push(item.set_aside());
                None
            }
            None => Some(item),
        }
    }

    /// Takes those of a correlation, in order.
    pub(super) fn take(&mut self, correlation: &CorrelationId) -> Vec<QueuedInput> {
        self.0.remove(correlation).unwrap_or_default()
    }

    /// All of them.
    pub(super) fn items(&mut self) -> impl Iterator<Item = &mut QueuedInput> {
        self.0.values_mut().flatten()
    }
}
