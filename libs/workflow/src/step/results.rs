//! Ends of commands: how the work of a step comes together, and what follows.

use model::{SagaStatus, StepName};

use super::application::{AppliedInput, InputApplication};
use super::{IgnoreReason, InputDisposition, InputFault};
use crate::Json;
use crate::definition::{JoinPolicy, StepAction, StepWork};
use crate::input::{CommandOutcome, CommandResult};
use crate::instance::{BranchResult, CommandPurpose, OpenCommand};

/// Result of a command, interpreted for the step that waits for it.
struct InterpretedResult {
    is_success: bool,
    /// True if the command may have taken effect although it did not succeed.
    is_uncertain: bool,
    result: Json,
    why: String,
}

impl InterpretedResult {
    fn of(result: &CommandResult) -> Self {
        let is_success = result.outcome == CommandOutcome::Succeeded;
        let mut payload = result.payload.clone();
        let mut code = result.outcome.code().to_owned();
        // `result.code` identifies every failure.
        if let (Json::Map(fields), false) = (&mut payload, is_success) {
            match fields.get("code") {
                Some(Json::Text(own)) => code.clone_from(own),
                Some(_) => {}
                None => {
                    fields.insert("code".to_owned(), Json::text(&code));
                }
            }
        } else if !is_success {
            payload = Json::object([("code", Json::text(&code)), ("value", payload)]);
        }
        Self { is_success, is_uncertain: !is_success && result.may_have_happened, result: payload, why: code }
    }
}

impl<'a> InputApplication<'a> {
    /// Gives the instance the end of a command.
    pub(super) fn result(mut self, result: &CommandResult) -> Result<AppliedInput, InputFault> {
        let Some(open) = self.instance.open.remove(&result.command) else {
            return Ok(self.unchanged(InputDisposition::Ignored(IgnoreReason::NotOpen)));
        };
        let verdict = InterpretedResult::of(result);
        match open.purpose {
            CommandPurpose::Forward => self.forward(&open, result, verdict)?,
            CommandPurpose::Tidy => self.tidied(&open, &verdict)?,
            CommandPurpose::Undo => self.undone(&open, verdict.is_success, &verdict.why)?,
            CommandPurpose::Last if verdict.is_success => self.end(crate::transition::SagaEvent::Undone)?,
            CommandPurpose::Last => {
                let why = format!("what follows the last compensation failed: {}", verdict.why);
                self.stick(CommandPurpose::Last, &why)?;
            }
        }
        self.done(InputDisposition::Applied)
    }

    /// Takes the end of a step's own work.
    fn forward(
        &mut self,
        open: &OpenCommand,
        result: &CommandResult,
        verdict: InterpretedResult,
    ) -> Result<(), InputFault> {
        let branch = self.branch(&open.step, &open.branch)?;
        let needs_result = branch.compensate.as_ref().is_some_and(|undo| undo.uses("result"));
        if verdict.is_success || verdict.is_uncertain {
            if let Some(done) = self.instance.stack.iter_mut().find(|done| done.command == result.command)
                && needs_result
            {
                done.result = Some(verdict.result.clone());
            }
        } else {
            self.instance.stack.retain(|done| done.command != result.command);
        }
        if self.instance.status == SagaStatus::Compensating {
            return self.go_on_undoing();
        }
        let StepAction::Work(work) = &self.step()?.action else {
            return Err(InputFault::no("work of the step", &self.instance.step));
        };
        let has_compensation = branch.compensate.is_some();
        let came_late = self.instance.progress.has_succeeded == Some(true);
        if came_late && has_compensation && (verdict.is_success || verdict.is_uncertain) {
            self.instance.progress.untidy.push(open.branch.clone());
        }
        let InterpretedResult { is_success, is_uncertain, result, .. } = verdict;
        self.instance
            .progress
            .ended
            .insert(open.branch.clone(), BranchResult { is_success, is_uncertain, result });
        self.join(work)
    }

    /// Decides about a step whose work has ended in part or whole.
    pub(super) fn join(&mut self, work: &'a StepWork) -> Result<(), InputFault> {
        let all = work.branches.len();
        let needed = work.join.needs(all);
        let good = self.instance.progress.ended.values().filter(|ended| ended.is_success).count();
        let bad = self.instance.progress.ended.len() - good;
        if self.instance.progress.has_succeeded.is_none() {
            let verdict = match (good >= needed, all - bad < needed) {
                (true, _) => true,
                (_, true) => false,
                _ => return Ok(()),
            };
            self.instance.progress.has_succeeded = Some(verdict);
            if !self.instance.open.is_empty() {
                self.cancel_open();
            }
        }
        if !self.instance.open.is_empty() {
            return Ok(());
        }
        if let Some(branch) = self.instance.progress.untidy.last().cloned() {
            return self.order_undoing(&branch);
        }
        match self.instance.progress.has_succeeded {
            Some(true) => self.step_succeeded(work),
            _ => self.step_failed(work),
        }
    }

    /// Orders the compensation of a branch that its step succeeded without.
    fn order_undoing(&mut self, branch: &StepName) -> Result<(), InputFault> {
        let step = self.instance.step.clone();
        let at = self.instance.stack.iter().rposition(|done| done.step == step && done.branch == *branch);
        let (Some(at), Some(order)) = (at, &self.branch(&step, branch)?.compensate) else {
            return Err(InputFault::no("compensation", format_args!("{step}/{branch}")));
        };
        self.order_compensation(at, order, CommandPurpose::Tidy)
    }

    /// Takes the end of such a compensation.
    fn tidied(&mut self, open: &OpenCommand, verdict: &InterpretedResult) -> Result<(), InputFault> {
        if !verdict.is_success {
            let why = format!("the compensation of `{}` failed: {}", open.branch, verdict.why);
            let is_undoing = self.instance.status == SagaStatus::Compensating;
            return self.stick(if is_undoing { CommandPurpose::Undo } else { CommandPurpose::Tidy }, &why);
        }
        self.instance.stack.retain(|done| done.step != open.step || done.branch != open.branch);
        self.instance.progress.untidy.pop();
        if self.instance.status == SagaStatus::Compensating {
            return self.go_on_undoing();
        }
        let StepAction::Work(work) = &self.step()?.action else {
            return Err(InputFault::no("work of the step", &self.instance.step));
        };
        self.join(work)
    }

    fn step_succeeded(&mut self, work: &'a StepWork) -> Result<(), InputFault> {
        if self.step()?.is_pivot {
            self.instance.is_past_pivot = true;
            // The cancellation came too late, and its caller was warned that it might.
            self.instance.cancelled = None;
        }
        let result = self.result_of(work, true);
        if !self.follow(&work.on_success, &[("result", &result)])? {
            return Err(InputFault::no("way to go on after the step", &self.instance.step));
        }
        Ok(())
    }

    fn step_failed(&mut self, work: &'a StepWork) -> Result<(), InputFault> {
        let step = self.instance.step.clone();
        let result = self.result_of(work, false);
        let code = match &result {
            Json::Map(fields) if !work.is_parallel => fields.get("code").map(Json::to_string),
            _ => None,
        };
        let code = code.map(|code| format!(": {}", code.trim_matches('"'))).unwrap_or_default();
        let why = format!("the step `{step}` failed{code}");
        let is_uncertain = self.instance.progress.ended.values().any(|ended| ended.is_uncertain);
        if self.step()?.is_pivot && is_uncertain {
            let why = format!("nobody knows whether the pivot `{step}` happened{code}");
            return self.stick(CommandPurpose::Forward, &why);
        }
        if let Some(reason) = self.instance.cancelled.take() {
            return self.undo(&reason);
        }
        if self.follow(&work.on_failure, &[("result", &result)])? {
            return Ok(());
        }
        if self.instance.is_past_pivot {
            return self.stick(CommandPurpose::Forward, &why);
        }
        self.undo(&why)
    }

    /// Returns the result of a step: that of its only branch, or those of a parallel step's branches, by name.
    fn result_of(&self, work: &StepWork, is_success: bool) -> Json {
        let ended = &self.instance.progress.ended;
        if work.is_parallel {
            let results = ended
                .iter()
                .filter(|(_, ended)| !is_success || work.join == JoinPolicy::All || ended.is_success);
            return Json::Map(
                results.map(|(name, ended)| (name.to_string(), ended.result.clone())).collect(),
            );
        }
        ended.values().next().map_or(Json::Null, |ended| ended.result.clone())
    }
}
