//! Decisions about inputs of a saga: what each changes, and how many bytes wait behind a dead letter or a pause.

use model::CorrelationId;
use workflow::input::InstanceInput;
use workflow::instance::{CorrelationRecord, encode};
use workflow::step::{self, InputDisposition, InputOrigin, RequestRefusal, SagaTransition};

use super::CachedRecord;
use super::batch::{HeldInput, HeldRow};
use super::dead_letters::DeadLetterAction;
use super::intake::{DeadMessage, InstanceAction, VerbContext};

/// Decision about an input.
pub(super) struct InputDecision {
    /// Input or dead message; `None` where it is gone, or is given to no instance.
    pub(super) what: Option<HeldInput>,
    pub(super) origin: InputOrigin,
    pub(super) change: SagaTransition,
    /// Requested action on a dead letter.
    pub(super) letter: Option<DeadLetterAction>,
}

impl InputDecision {
    /// Decides that a message becomes a dead letter.
    pub(super) fn bury(record: Option<&CorrelationRecord>, dead: &DeadMessage, origin: InputOrigin) -> Self {
        let change = step::dead_letter(record, &dead.code, &dead.why, dead.parks, origin);
        let what = Some(HeldInput::Dead(Box::new(dead.clone())));
        Self { what, origin, change, letter: None }
    }

    /// Counts the bytes that wait behind a dead letter or a pause. A request for which there is no room is refused: the caller can retry,
    /// and a waiting request would block other requests.
    pub(super) fn weighing(
        mut self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        wanted: &InstanceAction,
    ) -> Self {
        let before = current.record.as_ref();
        let has_count = self.change.fate == InputDisposition::NoRoom;
        let waits = matches!(
            (&self.change.fate, self.origin),
            (InputDisposition::Held(_), _) | (_, InputOrigin::Held(_))
        );
        if let Some(what) = self.what.as_ref().filter(|_| waits) {
            let row = HeldRow { correlation: correlation.clone(), what: what.clone() };
            self.change = self.change.weighing(before, encode(&row).len() as u64);
        }
        if self.change.fate == InputDisposition::NoRoom {
            let (reason, full) = match has_count {
                true => ("LIMIT_EXCEEDED", format!("{} inputs", step::HELD_MAX)),
                false => ("BYTES_EXCEEDED", format!("inputs of {} bytes", step::HELD_BYTES_MAX)),
            };
            let message = format!("{full} wait behind a dead letter or a pause already");
            if matches!(self.origin, InputOrigin::Letter(_)) {
                // The dead letter stays as it is.
                return Self::refused(current, "LIMIT_EXCEEDED", message);
            }
            if verb_context(wanted).is_none() {
                return self;
            }
            let refusal = RequestRefusal { reason: reason.to_owned(), message };
            self.change = SagaTransition::nothing(InputDisposition::Refused(refusal), before.cloned());
        }
        self
    }

    /// The input; `None` for a dead message.
    pub(super) fn input(&self) -> Option<&InstanceInput> {
        match &self.what {
            Some(HeldInput::Input(input)) => Some(input),
            Some(HeldInput::Dead(_)) | None => None,
        }
    }

    /// Returns true for an input of a redriven dead letter, and for one that waited behind it.
    pub(super) const fn is_of_redrive(&self) -> bool {
        matches!(self.origin, InputOrigin::Held(_) | InputOrigin::Letter(_)) || self.letter.is_some()
    }
}

pub(super) fn verb_context(wanted: &InstanceAction) -> Option<&VerbContext> {
    match wanted {
        InstanceAction::Input { verb_context, .. } => verb_context.as_ref(),
        InstanceAction::Held(_)
        | InstanceAction::Dead(_)
        | InstanceAction::Answered { .. }
        | InstanceAction::Occurrence(_)
        | InstanceAction::DeadLetterRequest(_)
        | InstanceAction::Resume
        | InstanceAction::Retire(_) => None,
    }
}
