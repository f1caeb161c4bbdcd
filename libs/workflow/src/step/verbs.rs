//! Requests (verbs) to an instance.

use model::SagaStatus;

use super::application::{AppliedInput, InputApplication};
use super::{InputDisposition, InputFault, RequestRefusal};
use crate::Json;
use crate::definition::StepAction;
use crate::input::{DomainEvent, InstanceInputKind, Verb};
use crate::instance::{BranchResult, CommandPurpose, CorrelationRecord, StuckReason, cut};
use crate::transition::{self, SagaEvent};

impl<'a> InputApplication<'a> {
    /// Gives the instance a verb. One that is refused changes nothing.
    pub(super) fn verb(self, verb: &Verb, record: &CorrelationRecord) -> Result<AppliedInput, InputFault> {
        if let Some(refusal) = self.refusal(verb, record) {
            return Ok(self.unchanged(InputDisposition::Refused(refusal)));
        }
        match verb {
            Verb::Send { kind, data } => self.send(kind, data),
            Verb::Pause => self.pause(SagaEvent::Pause, verb),
            Verb::Resume => self.pause(SagaEvent::Resume, verb),
            Verb::Cancel { reason } => self.cancel(reason),
            Verb::Kill { reason } => self.kill(reason),
            Verb::RetryStep => self.retry_step(),
            Verb::SkipStep { result } => self.skip_step(result),
            Verb::Complete { reason } => self.complete(reason),
            Verb::Start { .. } | Verb::Migrate => {
                let message = "it runs already";
                Ok(self.unchanged(InputDisposition::Refused(RequestRefusal::new("SAGA_EXISTS", message))))
            }
        }
    }

    /// Decides whether a verb can be carried out in the present state.
    fn refusal(&self, verb: &Verb, record: &CorrelationRecord) -> Option<RequestRefusal> {
        let status = self.instance.status;
        let refuse = |reason: &str, message: String| Some(RequestRefusal::new(reason, message));
        if record.is_paused
            && !matches!(verb, Verb::Resume | Verb::Kill { .. } | Verb::Send { .. } | Verb::Start { .. })
        {
            return refuse("SAGA_PAUSED", format!("it is paused; resume it before `{}`", verb.as_str()));
        }
        if record.parked_by.is_some()
            && !matches!(verb, Verb::Kill { .. } | Verb::Send { .. } | Verb::Start { .. })
        {
            let message = format!("a dead letter parks it; redrive or purge that before `{}`", verb.as_str());
            return refuse("SAGA_PARKED", message);
        }
        match verb {
            Verb::Pause if record.is_paused => refuse("SAGA_PAUSED", "it is paused already".to_owned()),
            Verb::Pause if status == SagaStatus::Stuck => {
                refuse("SAGA_STUCK", "it is stuck; nothing moves that could be paused".to_owned())
            }
            Verb::Resume if !record.is_paused => refuse("SAGA_NOT_PAUSED", "it is not paused".to_owned()),
            Verb::Cancel { .. } if self.instance.is_past_pivot => refuse(
                "PAST_PIVOT",
                "its pivot has succeeded: there is no way back; it can be killed".to_owned(),
            ),
            Verb::Cancel { .. } if status != SagaStatus::Running => {
                refuse("SAGA_NOT_RUNNING", format!("it is {status} already"))
            }
            Verb::RetryStep | Verb::SkipStep { .. } | Verb::Complete { .. }
                if status != SagaStatus::Stuck =>
            {
                refuse("SAGA_NOT_STUCK", format!("it is {status}, and not stuck at a step"))
            }
            _ => None,
        }
    }

    fn send(self, kind: &str, data: &Json) -> Result<AppliedInput, InputFault> {
        let request = match &self.input.what {
            InstanceInputKind::Verb { request, .. } => request.clone(),
            _ => String::new(),
        };
        let event = DomainEvent::sent(&request, kind, data.clone());
        self.event(&event)
    }

    fn pause(mut self, event: SagaEvent, verb: &Verb) -> Result<AppliedInput, InputFault> {
        // An instance that got stuck while paused can be resumed as well.
        if self.instance.status != SagaStatus::Stuck {
            self.happen(event)?;
        }
        let mut applied = self.done(InputDisposition::Applied)?;
        applied.verb = Some(verb.clone());
        Ok(applied)
    }

    /// Compensates the instance. While the pivot is in progress, cancelling waits for its end: it may succeed.
    fn cancel(mut self, reason: &str) -> Result<AppliedInput, InputFault> {
        let is_at_pivot = self.step()?.is_pivot && !self.instance.open.is_empty();
        if is_at_pivot {
            self.instance.cancelled = Some(cut(reason));
            self.cancel_open();
        } else {
            self.undo(reason)?;
        }
        self.done(InputDisposition::Applied)
    }

    fn kill(mut self, reason: &str) -> Result<AppliedInput, InputFault> {
        self.cancel_open();
        self.instance.reason = Some(cut(reason));
        self.end(SagaEvent::Kill)?;
        let mut applied = self.done(InputDisposition::Applied)?;
        // An ended instance has nothing left to hold back.
        applied.verb = Some(Verb::Resume);
        Ok(applied)
    }

    fn complete(mut self, reason: &str) -> Result<AppliedInput, InputFault> {
        self.instance.reason = Some(cut(reason)).filter(|reason| !reason.is_empty());
        self.end(SagaEvent::Complete)?;
        self.done(InputDisposition::Applied)
    }

    /// Takes the instance out of its stuck state; returns the reason why it was stuck.
    fn mend(&mut self) -> Result<StuckReason, InputFault> {
        let stuck = self.instance.stuck.take();
        let stuck =
            stuck.unwrap_or_else(|| StuckReason { purpose: CommandPurpose::Forward, why: String::new() });
        self.happen(match stuck.purpose {
            CommandPurpose::Forward | CommandPurpose::Tidy => SagaEvent::Mend,
            CommandPurpose::Undo | CommandPurpose::Last => SagaEvent::MendUndoing,
        })?;
        Ok(stuck)
    }

    fn retry_step(mut self) -> Result<AppliedInput, InputFault> {
        match self.mend()?.purpose {
            CommandPurpose::Forward => self.order_failed()?,
            CommandPurpose::Tidy => {
                if let StepAction::Work(work) = &self.step()?.action {
                    self.join(work)?;
                }
            }
            CommandPurpose::Undo | CommandPurpose::Last => self.go_on_undoing()?,
        }
        self.done(InputDisposition::Applied)
    }

    /// Orders the branches again that have not succeeded.
    fn order_failed(&mut self) -> Result<(), InputFault> {
        let step = self.instance.step.clone();
        let StepAction::Work(work) = &self.step()?.action else { return Ok(()) };
        self.instance.progress.ended.retain(|_, ended| ended.is_success);
        self.instance.progress.has_succeeded = None;
        let done: Vec<_> = self.instance.progress.ended.keys().cloned().collect();
        for branch in work.branches.iter().filter(|branch| !done.contains(&branch.name)) {
            self.instance.stack.retain(|entry| entry.step != step || entry.branch != branch.name);
            self.order_branch(&step, branch)?;
        }
        Ok(())
    }

    fn skip_step(mut self, result: &Json) -> Result<AppliedInput, InputFault> {
        match self.mend()?.purpose {
            CommandPurpose::Forward => {
                let StepAction::Work(work) = &self.step()?.action else {
                    return Err(InputFault::no("work of the step", &self.instance.step));
                };
                for branch in &work.branches {
                    let ended =
                        BranchResult { is_success: true, is_uncertain: false, result: result.clone() };
                    let known =
                        self.instance.progress.ended.entry(branch.name.clone()).or_insert(ended.clone());
                    if !known.is_success {
                        *known = ended;
                    }
                }
                self.instance.progress.has_succeeded = Some(true);
                self.join(work)?;
            }
            CommandPurpose::Tidy => {
                if let Some(branch) = self.instance.progress.untidy.pop() {
                    let step = self.instance.step.clone();
                    self.instance.stack.retain(|done| done.step != step || done.branch != branch);
                }
                if let StepAction::Work(work) = &self.step()?.action {
                    self.join(work)?;
                }
            }
            CommandPurpose::Undo => {
                self.instance.stack.pop();
                self.go_on_undoing()?;
            }
            CommandPurpose::Last => self.end(transition::SagaEvent::Undone)?,
        }
        self.done(InputDisposition::Applied)
    }
}
