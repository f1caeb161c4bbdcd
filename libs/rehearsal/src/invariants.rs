//! Laws that hold in every run of a saga.
//!
//! The laws keep their own accounts of every change, independent of the core's stack.

use std::collections::BTreeSet;

use model::{CommandId, SagaStatus, StepName};
use workflow::definition::{Saga, StepAction, StepBranch};
use workflow::input::{CommandOutcome, CommandResult, InstanceInput, InstanceInputKind, Verb};
use workflow::instance::{CommandPurpose, CorrelationEntry, CorrelationRecord, OpenCommand, SagaInstance};
use workflow::step::{InputDisposition, SagaTransition, WorkPayload};

/// Codes of dead letters that are no fault of the manifest: it declares them, or the event came without an instance.
const DECLARED: [&str; 3] = ["DECLARED", "NO_INSTANCE", "VERSION"];

/// Work of a step, as the laws know it.
#[derive(Debug)]
struct TrackedWork {
    command: CommandId,
    step: StepName,
    branch: StepName,
    has_compensation: bool,
    end: TrackedOutcome,
    undoing: Option<CommandId>,
    is_undone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrackedOutcome {
    Open,
    Good,
    Doubtful,
    Failed,
}

impl TrackedWork {
    /// Returns whether it has to be undone.
    const fn is_owed(&self) -> bool {
        self.has_compensation
            && !self.is_undone
            && matches!(self.end, TrackedOutcome::Good | TrackedOutcome::Doubtful)
    }
}

/// The branch of a step.
fn branch<'a>(saga: &'a Saga, step: &StepName, name: &StepName) -> Option<&'a StepBranch> {
    match &saga.steps.get(step)?.action {
        StepAction::Work(work) => work.branches.iter().find(|branch| branch.name == *name),
        StepAction::Wait(_) => None,
    }
}

/// Accounts of one run.
#[derive(Debug, Default)]
pub struct InvariantChecker {
    broken: Vec<String>,
    ids: BTreeSet<CommandId>,
    accounts: Vec<TrackedWork>,
    /// Letters with these codes were expected.
    codes: BTreeSet<String>,
    /// True when a verb has ended the instance by hand.
    is_by_hand: bool,
}

impl InvariantChecker {
    /// Notes a violated law.
    pub fn record_violation(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.broken.contains(&what) {
            self.broken.push(what);
        }
    }

    /// Returns the violated laws.
    #[must_use]
    pub fn into_violations(self) -> Vec<String> {
        self.broken
    }

    /// Has letters with these codes be no fault.
    pub fn expect_dead_letters<'a>(&mut self, codes: impl IntoIterator<Item = &'a str>) {
        self.codes.extend(codes.into_iter().map(str::to_owned));
    }

    /// Checks the change that an input causes.
    pub fn observe(
        &mut self,
        saga: &Saga,
        before: Option<&CorrelationRecord>,
        input: &InstanceInput,
        change: &SagaTransition,
    ) {
        self.no_fault(change);
        let old = before.and_then(CorrelationRecord::instance);
        let new = change.record.as_ref().and_then(CorrelationRecord::instance);
        let is_applied = !change.journal.is_empty();
        if let (true, Some(old)) = (is_applied, old) {
            match &input.what {
                InstanceInputKind::Result(result) => self.ended(old, result),
                InstanceInputKind::Verb { verb, .. } if change.fate == InputDisposition::Applied => {
                    self.note_verb(old, verb)
                }
                _ => {}
            }
        }
        for item in &change.work {
            if !self.ids.insert(item.command) {
                self.record_violation(format!(
                    "work of the step `{}` has an id that other work has",
                    item.step
                ));
            }
            if matches!(item.what, WorkPayload::Cancel { .. }) {
                continue;
            }
            // Work of an instance that has ended within the same change is not waited for.
            if let Some(open) = new.and_then(|new| new.open.get(&item.command)) {
                self.ordered(saga, old, item.command, open);
            }
        }
        if let Some(new) = new {
            self.nothing_twice(new);
        }
    }

    /// Renames steps when an instance is migrated to a version with other names.
    pub fn rename_steps(&mut self, saga: &Saga) {
        let Some(migrate) = &saga.migrate else { return };
        for account in &mut self.accounts {
            for name in [&mut account.step, &mut account.branch] {
                if let Some(renamed) = migrate.steps.get(name) {
                    name.clone_from(renamed);
                }
            }
            let branch = branch(saga, &account.step, &account.branch);
            account.has_compensation = branch.is_some_and(|branch| branch.compensate.is_some());
        }
    }

    fn no_fault(&mut self, change: &SagaTransition) {
        let dead = if let InputDisposition::DeadLetter(letter) = &change.fate { Some(letter) } else { None };
        for letter in dead.into_iter().chain(change.dead_letters.iter().map(|(letter, _)| letter)) {
            let code = letter.code.as_str();
            if !DECLARED.contains(&code) && !self.codes.contains(code) {
                self.record_violation(format!("a fault parks the instance: {code}: {}", letter.why));
            }
        }
        if let InputDisposition::Refused(refusal) = &change.fate
            && refusal.reason == "SAGA_FAULT"
        {
            self.record_violation(format!("a verb is refused with a fault: {refusal}"));
        }
    }

    /// Notes the end of work.
    fn ended(&mut self, old: &SagaInstance, result: &CommandResult) {
        let Some(open) = old.open.get(&result.command) else { return };
        let is_good = result.outcome == CommandOutcome::Succeeded;
        match open.purpose {
            CommandPurpose::Forward => {
                if let Some(account) = self.account(result.command) {
                    account.end = match (is_good, result.may_have_happened) {
                        (true, _) => TrackedOutcome::Good,
                        (false, true) => TrackedOutcome::Doubtful,
                        (false, false) => TrackedOutcome::Failed,
                    };
                }
            }
            CommandPurpose::Undo | CommandPurpose::Tidy => {
                let undoing = Some(result.command);
                let account = self.accounts.iter_mut().find(|account| account.undoing == undoing);
                if let Some(account) = account {
                    account.undoing = None;
                    account.is_undone = is_good;
                }
            }
            CommandPurpose::Last => {}
        }
    }

    fn account(&mut self, command: CommandId) -> Option<&mut TrackedWork> {
        self.accounts.iter_mut().find(|account| account.command == command)
    }

    /// Notes an operator's verb on an instance.
    fn note_verb(&mut self, old: &SagaInstance, verb: &Verb) {
        let purpose = old.stuck.as_ref().map(|stuck| stuck.purpose);
        match (verb, purpose) {
            (Verb::Kill { .. } | Verb::Complete { .. }, _) => self.is_by_hand = true,
            // Work with an unknown outcome is ordered again, and gets its own account.
            (Verb::RetryStep, Some(CommandPurpose::Forward)) => {
                let is_again = |account: &TrackedWork| {
                    account.step == old.step && account.end == TrackedOutcome::Doubtful
                };
                self.accounts.retain(|account| !is_again(account));
            }
            (Verb::SkipStep { .. }, Some(CommandPurpose::Undo | CommandPurpose::Tidy)) => {
                if let Some(account) = self.accounts.iter_mut().rfind(|account| account.is_owed()) {
                    account.is_undone = true;
                }
            }
            _ => {}
        }
    }

    /// Checks an order of work.
    fn ordered(&mut self, saga: &Saga, old: Option<&SagaInstance>, command: CommandId, open: &OpenCommand) {
        match open.purpose {
            CommandPurpose::Forward => {
                let branch = branch(saga, &open.step, &open.branch);
                self.accounts.push(TrackedWork {
                    command,
                    step: open.step.clone(),
                    branch: open.branch.clone(),
                    has_compensation: branch.is_some_and(|branch| branch.compensate.is_some()),
                    end: TrackedOutcome::Open,
                    undoing: None,
                    is_undone: false,
                });
            }
            CommandPurpose::Undo | CommandPurpose::Tidy => self.undone(old, command, open),
            CommandPurpose::Last => {
                if let Some(owed) = self.accounts.iter().find(|account| account.is_owed()) {
                    let step = owed.step.clone();
                    self.record_violation(format!(
                        "the last compensation is over, and the step `{step}` is not undone"
                    ));
                }
            }
        }
    }

    /// Checks an order of a compensation: each once, in reverse, and none behind the pivot.
    fn undone(&mut self, old: Option<&SagaInstance>, command: CommandId, open: &OpenCommand) {
        let step = &open.step;
        if open.purpose == CommandPurpose::Undo && old.is_some_and(|old| old.is_past_pivot) {
            self.record_violation(format!("the step `{step}` is undone behind the pivot"));
        }
        let is_its = |account: &TrackedWork| account.step == open.step && account.branch == open.branch;
        let of_step = |account: &TrackedWork| open.purpose == CommandPurpose::Undo || is_its(account);
        let last = self.accounts.iter().rposition(|account| account.is_owed() && of_step(account));
        let Some(account) = last.and_then(|at| self.accounts.get_mut(at)) else {
            self.record_violation(format!("the step `{step}` is undone, and there is nothing to undo"));
            return;
        };
        if !is_its(account) {
            let last = account.step.clone();
            self.record_violation(format!(
                "the step `{step}` is undone before the step `{last}`, which came after it"
            ));
            return;
        }
        if account.undoing.replace(command).is_some() {
            self.record_violation(format!("the step `{step}` is undone twice"));
        }
    }

    /// Looks whether something is under way twice.
    fn nothing_twice(&mut self, new: &SagaInstance) {
        let mut seen = BTreeSet::new();
        for open in new.open.values() {
            if !seen.insert((&open.step, &open.branch, open.purpose)) {
                self.record_violation(format!(
                    "work of the step `{}` is ordered twice, under other ids",
                    open.step
                ));
            }
        }
    }

    /// Looks at how it ends: an instance ends, or waits for something.
    pub fn conclude(&mut self, saga: &Saga, record: Option<&CorrelationRecord>) {
        let Some(record) = record else { return };
        match &record.entry {
            CorrelationEntry::Awaited(_) => {}
            CorrelationEntry::Ended(tombstone) => self.conclude_end(tombstone.status),
            CorrelationEntry::Live(instance) => {
                let waits = match instance.status {
                    SagaStatus::Stuck => instance.stuck.is_some(),
                    SagaStatus::Running => {
                        let step = saga.steps.get(&instance.step).map(|step| &step.action);
                        matches!(step, Some(StepAction::Wait(_))) || !instance.open.is_empty()
                    }
                    _ => !instance.open.is_empty(),
                };
                if !waits && !record.holds_back() {
                    let (status, step) = (instance.status, &instance.step);
                    self.record_violation(format!(
                        "it is {status} at the step `{step}`, and waits for nothing"
                    ));
                }
            }
        }
    }

    fn conclude_end(&mut self, status: SagaStatus) {
        if self.is_by_hand {
            return;
        }
        let is_compensated = status == SagaStatus::Compensated;
        let left = self.accounts.iter().find(|account| is_compensated && account.is_owed());
        if let Some(step) = left.map(|account| account.step.clone()) {
            self.record_violation(format!("it is compensated, and the step `{step}` is not undone"));
        }
        let open = self.accounts.iter().find(|account| is_compensated && account.end == TrackedOutcome::Open);
        if let Some(step) = open.map(|account| account.step.clone()) {
            self.record_violation(format!(
                "it is compensated, and work of the step `{step}` is still under way"
            ));
        }
    }
}

#[cfg(test)]
mod tests;
