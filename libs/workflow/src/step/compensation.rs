//! Compensation: completed work is undone, backwards.

use super::InputFault;
use super::application::InputApplication;
use crate::Json;
use crate::definition::WorkOrder;
use crate::instance::{CommandPurpose, OpenCommand, cut};
use crate::transition::SagaEvent;

impl<'a> InputApplication<'a> {
    /// Starts compensation. Behind the pivot nothing may be undone, so the instance gets stuck then.
    pub(super) fn undo(&mut self, reason: &str) -> Result<(), InputFault> {
        if self.instance.is_past_pivot {
            let why = format!("there is no way back behind the pivot: {reason}");
            return self.stick(CommandPurpose::Forward, &why);
        }
        self.happen(SagaEvent::Compensate)?;
        self.instance.reason = Some(cut(reason));
        self.instance.cancelled = None;
        self.instance.timers.clear();
        self.cancel_open();
        self.go_on_undoing()
    }

    /// Compensates the last entry of the stack, once all work in progress has ended.
    pub(super) fn go_on_undoing(&mut self) -> Result<(), InputFault> {
        if !self.instance.open.is_empty() {
            return Ok(());
        }
        while let Some(done) = self.instance.stack.last().cloned() {
            if let Some(order) = &self.branch(&done.step, &done.branch)?.compensate {
                return self.order_compensation(self.instance.stack.len() - 1, order, CommandPurpose::Undo);
            }
            self.instance.stack.pop();
        }
        let saga = self.saga;
        match &saga.compensated {
            Some(order) => {
                let step = self.instance.step.clone();
                self.order(&step, &step, order, CommandPurpose::Last, &[]).map(drop)
            }
            None => self.end(SagaEvent::Undone),
        }
    }

    /// Orders the compensation of an entry of the stack.
    pub(super) fn order_compensation(
        &mut self,
        at: usize,
        order: &'a WorkOrder,
        purpose: CommandPurpose,
    ) -> Result<(), InputFault> {
        let Some(done) = self.instance.stack.get(at).cloned() else { return Ok(()) };
        let input = done.input.unwrap_or(Json::Null);
        let result = done.result.unwrap_or(Json::Null);
        let more = [("input", &input), ("result", &result)];
        self.order(&done.step, &done.branch, order, purpose, &more).map(drop)
    }

    /// Takes the end of a compensation.
    pub(super) fn undone(
        &mut self,
        open: &OpenCommand,
        is_success: bool,
        why: &str,
    ) -> Result<(), InputFault> {
        if !is_success {
            let why = format!("the compensation of `{}` failed: {why}", open.branch);
            return self.stick(CommandPurpose::Undo, &why);
        }
        self.instance.stack.pop();
        self.happen(SagaEvent::Undo)?;
        self.go_on_undoing()
    }
}
