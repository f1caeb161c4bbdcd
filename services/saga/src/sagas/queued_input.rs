//! Inputs that wait for their turn in a lane.

use model::CorrelationId;
use workflow::trace::TraceParent;

use super::intake::InstanceAction;
use super::timers;
use crate::lane::in_flight::OpenReceipt;

/// An input that waits for its turn.
pub(crate) struct QueuedInput {
    pub(crate) what: InstanceAction,
    /// The source that it came from, and its sequence there.
    pub(crate) from: Option<(usize, u64)>,
    pub(crate) receipt: Option<OpenReceipt>,
    /// Place of the command whose result it is in its trace, where a collector is told.
    pub(crate) cause: Option<TraceParent>,
}

impl QueuedInput {
    /// One that came by itself.
    pub(super) const fn of(what: InstanceAction) -> Self {
        Self { what, from: None, receipt: None, cause: None }
    }

    /// Stands for one that is put in afterwards.
    pub(super) const fn nothing() -> Self {
        Self::of(InstanceAction::Resume)
    }

    /// Returns whether it may have to wait behind a letter or a pause. Who asks is refused instead, and a timer waits by itself.
    pub(super) fn may_be_held(&self, correlation: &CorrelationId) -> bool {
        let comes = match &self.what {
            InstanceAction::Input { asked, .. } => asked.is_none(),
            what => matches!(what, InstanceAction::Dead(_) | InstanceAction::Answered { .. }),
        };
        comes && timers::timer_of(correlation, &self.what).is_none()
    }

    /// Has it wait for others: it is in flight no more.
    pub(super) fn set_aside(mut self) -> Self {
        if let Some(receipt) = &mut self.receipt {
            receipt.set_aside();
        }
        self
    }
}
