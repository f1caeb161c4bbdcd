//! One input of one instance: the parts that all kinds of inputs share.

use std::collections::BTreeMap;

use model::{BlobHash, CommandId, SagaStatus, StepName};

use super::{
    InputDisposition, InputFault, InstanceIdentity, JournalInput, JournalRow, WorkItem, WorkPayload,
};
use crate::definition::{
    Continuation, Saga, SagaStep, StateAssignment, StepAction, StepArm, StepBranch, WorkOrder,
};
use crate::formula::VariableScope;
use crate::input::{
    DomainEvent, InstanceInput, InstanceInputKind, Verb, WORK_BYTES_MAX, WORK_OF_CHANGE_BYTES_MAX,
};
use crate::instance::{
    CommandPurpose, CompensationEntry, INSTANCE_BYTES_MAX, OpenCommand, SagaInstance, StepProgress,
    StuckReason, cut,
};
use crate::transition::{self, SagaEvent};
use crate::{InputId, Json, WorkSource};

/// An input that was applied, as far as the instance goes.
pub(super) struct AppliedInput {
    pub(super) instance: SagaInstance,
    pub(super) work: Vec<WorkItem>,
    /// An event that waits for its step.
    pub(super) keep: Option<DomainEvent>,
    pub(super) fate: InputDisposition,
    /// A verb that changes the record as well.
    pub(super) verb: Option<Verb>,
}

/// An input that is being applied.
pub(super) struct InputApplication<'a> {
    pub(super) saga: &'a Saga,
    pub(super) whose: InstanceIdentity<'a>,
    pub(super) input: &'a InstanceInput,
    pub(super) instance: SagaInstance,
    id: InputId,
    work: Vec<WorkItem>,
    ordinal: u32,
}

/// A variable of formulas beside those that are always there.
pub(super) type ExtraVariables<'a> = [(&'static str, &'a Json)];

impl<'a> InputApplication<'a> {
    pub(super) fn new(
        saga: &'a Saga,
        whose: InstanceIdentity<'a>,
        mut instance: SagaInstance,
        input: &'a InstanceInput,
    ) -> Self {
        instance.now = instance.now.max(input.time);
        Self { saga, whose, input, instance, id: input.id(), work: Vec::new(), ordinal: 0 }
    }

    /// Ends the turn: everything that follows is within its limits.
    pub(super) fn done(self, fate: InputDisposition) -> Result<AppliedInput, InputFault> {
        let limit = |what: &'static str, found: usize, most: usize| {
            if found > most { Err(InputFault::Limit { what, most, found }) } else { Ok(()) }
        };
        limit("one input, in work,", self.work.len(), self.saga.limits.work_items)?;
        let payloads = self.work.iter().map(WorkItem::bytes);
        limit("a piece of work, in bytes,", payloads.clone().max().unwrap_or(0), WORK_BYTES_MAX)?;
        limit("the work of one input, in bytes,", payloads.sum(), WORK_OF_CHANGE_BYTES_MAX)?;
        limit("the state, in bytes,", self.instance.state.bytes(), self.saga.limits.state_bytes)?;
        let size = crate::instance::encode(&self.instance).len();
        limit("an instance, in bytes,", size, INSTANCE_BYTES_MAX)?;
        Ok(AppliedInput { instance: self.instance, work: self.work, keep: None, fate, verb: None })
    }

    /// Ends the turn without a change.
    pub(super) fn unchanged(self, fate: InputDisposition) -> AppliedInput {
        AppliedInput { instance: self.instance, work: Vec::new(), keep: None, fate, verb: None }
    }

    /// Evaluates something while variables have their values.
    pub(super) fn with_scope<R>(
        &self,
        more: &ExtraVariables<'_>,
        evaluate: impl FnOnce(&VariableScope<'_>) -> R,
    ) -> R {
        let facts = self.instance.facts(self.saga, self.whose.correlation.as_str());
        let now = Json::number(self.instance.now.as_millis());
        let scope =
            VariableScope::new().with("state", &self.instance.state).with("saga", &facts).with("now", &now);
        let scope = more.iter().fold(scope, |scope, (name, value)| scope.with(name, value));
        evaluate(&scope)
    }

    /// Changes the status.
    pub(super) fn happen(&mut self, event: SagaEvent) -> Result<(), InputFault> {
        self.instance.status = transition::saga(Some(self.instance.status), event)?;
        Ok(())
    }

    /// The step that the instance is at.
    pub(super) fn step(&self) -> Result<&'a SagaStep, InputFault> {
        self.step_named(&self.instance.step)
    }

    pub(super) fn step_named(&self, name: &StepName) -> Result<&'a SagaStep, InputFault> {
        self.saga.steps.get(name).ok_or_else(|| InputFault::no("step", name))
    }

    /// The branch of a step.
    pub(super) fn branch(&self, step: &StepName, branch: &StepName) -> Result<&'a StepBranch, InputFault> {
        let found = match &self.step_named(step)?.action {
            StepAction::Work(work) => work.branches.iter().find(|known| known.name == *branch),
            StepAction::Wait(_) => None,
        };
        found.ok_or_else(|| InputFault::no("branch", format_args!("{step}/{branch}")))
    }

    /// Sets fields of the state.
    pub(super) fn assign(
        &mut self,
        set: &[StateAssignment],
        more: &ExtraVariables<'_>,
    ) -> Result<(), InputFault> {
        // All of them see the state as it was.
        let values = set.iter().map(|assignment| {
            let value = self.with_scope(more, |scope| assignment.value.value(scope))?;
            self.check_kind(&assignment.field, &value)?;
            Ok((assignment.field.clone(), value))
        });
        let values: BTreeMap<_, _> = values.collect::<Result<_, InputFault>>()?;
        if let Json::Map(state) = &mut self.instance.state {
            state.extend(values);
        }
        Ok(())
    }

    fn check_kind(&self, field: &str, value: &Json) -> Result<(), InputFault> {
        let kind = self.saga.state.get(field).ok_or_else(|| InputFault::no("field of the state", field))?;
        if kind.kind.holds(value) || (kind.is_optional && *value == Json::Null) {
            return Ok(());
        }
        let optional = if kind.is_optional { "optional " } else { "" };
        let wanted = format!("{optional}{}", kind.kind.as_str());
        Err(InputFault::Kind { field: field.to_owned(), wanted, found: value.kind() })
    }

    /// Follows the first continuation whose condition holds; returns whether there is one.
    pub(super) fn follow(&mut self, arms: &[StepArm], more: &ExtraVariables<'_>) -> Result<bool, InputFault> {
        let mut chosen = None;
        for arm in arms {
            let holds = match &arm.when {
                None => true,
                Some(when) => self.with_scope(more, |scope| when.is_true(scope))?,
            };
            if holds {
                chosen = Some(arm);
                break;
            }
        }
        let Some(arm) = chosen else { return Ok(false) };
        self.assign(&arm.set, more)?;
        match &arm.then {
            Continuation::Stay => self.happen(SagaEvent::Advance)?,
            Continuation::Goto(step) => {
                self.happen(SagaEvent::Advance)?;
                self.enter(step)?;
            }
            Continuation::Complete => self.end(SagaEvent::Complete)?,
            Continuation::Fail(reason) => {
                let reason = self.with_scope(more, |scope| reason.shown(scope));
                self.instance.reason = Some(cut(&reason)).filter(|reason| !reason.is_empty());
                self.end(SagaEvent::Fail)?;
            }
            Continuation::Compensate(reason) => {
                let reason = self.with_scope(more, |scope| reason.shown(scope));
                self.undo(&reason)?;
            }
            Continuation::DeadLetter(why) => {
                return Err(InputFault::Declared(cut(&self.with_scope(more, |scope| why.shown(scope)))));
            }
        }
        Ok(true)
    }

    /// Begins a step.
    pub(super) fn enter(&mut self, name: &StepName) -> Result<(), InputFault> {
        let step = self.step_named(name)?;
        self.instance.timers.retain(|_, timer| !timer.is_of_step);
        self.instance.step = name.clone();
        self.instance.entered = self.instance.now;
        self.instance.progress = StepProgress::default();
        match &step.action {
            StepAction::Wait(wait) => self.set_timers(&wait.timers, true),
            StepAction::Work(work) => {
                work.branches.iter().try_for_each(|branch| self.order_branch(name, branch))
            }
        }
    }

    /// Orders a branch of a step, and notes that it may have to be undone.
    pub(super) fn order_branch(&mut self, step: &StepName, branch: &'a StepBranch) -> Result<(), InputFault> {
        let (command, input) = self.order(step, &branch.name, &branch.order, CommandPurpose::Forward, &[])?;
        // A pivot is never compensated.
        if !self.step_named(step)?.is_pivot {
            let needs_input = branch.compensate.as_ref().is_some_and(|undo| undo.uses("input"));
            self.instance.stack.push(CompensationEntry {
                step: step.clone(),
                branch: branch.name.clone(),
                command,
                input: needs_input.then_some(input),
                result: None,
            });
        }
        Ok(())
    }

    /// Orders work; returns its id and its input.
    pub(super) fn order(
        &mut self,
        step: &StepName,
        branch: &StepName,
        order: &WorkOrder,
        purpose: CommandPurpose,
        more: &ExtraVariables<'_>,
    ) -> Result<(CommandId, Json), InputFault> {
        let (what, effect, input) = match order {
            WorkOrder::Effect { effect, input } => {
                let input = self.with_scope(more, |scope| input.value(scope))?;
                let what = WorkPayload::Effect { effect: effect.clone(), input: input.clone() };
                (what, Some(effect.clone()), input)
            }
            WorkOrder::Command { aggregate, id, kind, payload } => {
                let (id, payload) = self.with_scope(more, |scope| {
                    Ok::<_, InputFault>((id.value(scope)?, payload.value(scope)?))
                })?;
                let id = match id {
                    Json::Text(id) if !id.is_empty() => id,
                    Json::Int(id) => id.to_string(),
                    other => {
                        let wanted = "a text".to_owned();
                        return Err(InputFault::Kind { field: "id".to_owned(), wanted, found: other.kind() });
                    }
                };
                let (aggregate, kind) = (aggregate.clone(), kind.clone());
                (WorkPayload::Command { aggregate, id, kind, payload: payload.clone() }, None, payload)
            }
        };
        let command = self.command();
        self.work.push(WorkItem { command, step: step.clone(), what });
        let open = OpenCommand { step: step.clone(), branch: branch.clone(), purpose, effect };
        self.instance.open.insert(command, open);
        Ok((command, input))
    }

    /// Cancels open effects of steps. Commands of aggregates cannot be cancelled, and compensations continue.
    pub(super) fn cancel_open(&mut self) {
        let open: Vec<_> = self.instance.open.iter().map(|(id, open)| (*id, open.clone())).collect();
        for (of, open) in open {
            if let (Some(effect), CommandPurpose::Forward) = (open.effect, open.purpose) {
                let command = self.command();
                let what = WorkPayload::Cancel { effect, of };
                self.work.push(WorkItem { command, step: open.step, what });
            }
        }
    }

    /// The id of the next piece of work.
    fn command(&mut self) -> CommandId {
        let source = WorkSource {
            tenant: self.whose.tenant,
            saga: &self.saga.name,
            correlation: self.whose.correlation,
            run: self.instance.run,
            input: &self.id,
            time: self.input.time,
        };
        self.ordinal += 1;
        source.command(self.ordinal - 1)
    }

    /// Ends the instance.
    pub(super) fn end(&mut self, event: SagaEvent) -> Result<(), InputFault> {
        self.happen(event)?;
        self.instance.timers.clear();
        self.instance.open.clear();
        self.instance.stuck = None;
        Ok(())
    }

    /// Stops at something that must not fail and has.
    pub(super) fn stick(&mut self, purpose: CommandPurpose, why: &str) -> Result<(), InputFault> {
        self.happen(SagaEvent::Stick)?;
        self.instance.stuck = Some(StuckReason { purpose, why: cut(why) });
        Ok(())
    }
}

impl SagaInstance {
    /// Index of the first kept event that is wanted now.
    pub(super) fn wanted(&self, saga: &Saga) -> Option<usize> {
        if self.status != SagaStatus::Running {
            return None;
        }
        match saga.steps.get(&self.step).map(|step| &step.action) {
            Some(StepAction::Wait(wait)) => {
                self.kept.iter().position(|kept| wait.on.contains_key(&kept.kind))
            }
            _ => None,
        }
    }
}

/// Notes an input in the journal: raises the revision and lengthens the chain.
pub(super) fn note(
    instance: &mut SagaInstance,
    input: JournalInput,
    fate: &InputDisposition,
    work: &[WorkItem],
) -> JournalRow {
    instance.revision += 1;
    let is_migrated =
        |input: &InstanceInput| matches!(&input.what, InstanceInputKind::Verb { verb: Verb::Migrate, .. });
    let is_another =
        instance.revision == 1 || matches!(&input, JournalInput::Came(input) if is_migrated(input));
    let mut row = JournalRow {
        revision: instance.revision,
        definition: is_another.then_some(instance.definition),
        input,
        now: instance.now,
        fate: match fate {
            InputDisposition::Applied => "applied".to_owned(),
            InputDisposition::Deferred => "kept".to_owned(),
            InputDisposition::Ignored(why) => why.as_str().to_owned(),
            other => format!("{other:?}"),
        },
        status: instance.status,
        step: instance.step.clone(),
        reason: instance.stuck.as_ref().map(|stuck| stuck.why.clone()).or_else(|| instance.reason.clone()),
        work: work.iter().map(|item| item.command).collect(),
        chain: instance.chain,
        state: None,
    };
    let mut bytes = crate::instance::encode(&row);
    bytes.extend(crate::instance::encode(instance));
    row.chain = BlobHash::of(&bytes);
    instance.chain = row.chain;
    row
}
