//! Inputs that wait for their turn in a lane.

use model::{CorrelationId, TraceParent};

use super::intake::InstanceAction;
use super::timers;
use crate::lane::in_flight::OpenReceipt;

/// An input that waits for its turn.
pub(crate) struct QueuedInput {
    pub(crate) what: InstanceAction,
    /// The source that it came from, and its sequence there.
    pub(crate) from: Option<(usize, u64)>,
    pub(crate) receipt: Option<OpenReceipt>,
    /// Trace context of the command whose result the input is, where spans are collected.
    pub(crate) cause: Option<TraceParent>,
}

impl QueuedInput {
    /// Makes an input that comes from no source.
    pub(super) const fn of(what: InstanceAction) -> Self {
        Self { what, from: None, receipt: None, cause: None }
    }

    /// Makes a placeholder for an input that is put in afterwards.
    pub(super) const fn nothing() -> Self {
        Self::of(InstanceAction::Resume)
    }

    /// Returns whether the input may have to wait behind a dead letter or a pause. A request is refused instead, and a timer waits among
    /// the timers.
    pub(super) fn may_be_held(&self, correlation: &CorrelationId) -> bool {
        let comes = match &self.what {
            InstanceAction::Input { verb_context, .. } => verb_context.is_none(),
            what => matches!(what, InstanceAction::Dead(_) | InstanceAction::Answered { .. }),
        };
        comes && timers::timer_of(correlation, &self.what).is_none()
    }

    /// Sets the input aside to wait for others: it no longer counts as in flight.
    pub(super) fn set_aside(mut self) -> Self {
        if let Some(receipt) = &mut self.receipt {
            receipt.set_aside();
        }
        self
    }
}
