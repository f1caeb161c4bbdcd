//! Laws that hold in every run of a saga.
//!
//! The laws keep accounts of their own, of what every change says, and do not look at how the core keeps its stack.

use std::collections::BTreeSet;

use model::{CommandId, SagaStatus, StepName};
use workflow::definition::{Action, Branch, Saga};
use workflow::input::{CommandResult, Input, Outcome, Verb, What};
use workflow::instance::{Entry, Instance, Open, Purpose, Record};
use workflow::step::{Change, Fate, Ordered};

/// Codes of letters that are no fault of the manifest: it says so itself, or the event came without an instance.
const DECLARED: [&str; 3] = ["DECLARED", "NO_INSTANCE", "VERSION"];

/// Work of a step, as the laws know it.
#[derive(Debug)]
struct Account {
    command: CommandId,
    step: StepName,
    branch: StepName,
    has_compensation: bool,
    end: End,
    undoing: Option<CommandId>,
    is_undone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Good,
    Doubtful,
    Failed,
}

impl Account {
    /// Returns whether it has to be undone.
    const fn is_owed(&self) -> bool {
        self.has_compensation && !self.is_undone && matches!(self.end, End::Good | End::Doubtful)
    }
}

/// The branch of a step.
fn branch<'a>(saga: &'a Saga, step: &StepName, name: &StepName) -> Option<&'a Branch> {
    match &saga.steps.get(step)?.action {
        Action::Work(work) => work.branches.iter().find(|branch| branch.name == *name),
        Action::Wait(_) => None,
    }
}

/// Accounts of one run.
#[derive(Debug, Default)]
pub struct Laws {
    broken: Vec<String>,
    ids: BTreeSet<CommandId>,
    accounts: Vec<Account>,
    /// Letters with these codes were expected.
    codes: BTreeSet<String>,
    /// True when a verb has ended the instance by hand.
    is_by_hand: bool,
}

impl Laws {
    /// Notes a law that does not hold.
    pub fn breaks(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.broken.contains(&what) {
            self.broken.push(what);
        }
    }

    /// Gives the laws that do not hold.
    #[must_use]
    pub fn into_broken(self) -> Vec<String> {
        self.broken
    }

    /// Has letters with these codes be no fault.
    pub fn allow<'a>(&mut self, codes: impl IntoIterator<Item = &'a str>) {
        self.codes.extend(codes.into_iter().map(str::to_owned));
    }

    /// Looks at what follows from an input.
    pub fn observe(&mut self, saga: &Saga, before: Option<&Record>, input: &Input, change: &Change) {
        self.no_fault(change);
        let old = before.and_then(Record::instance);
        let new = change.record.as_ref().and_then(Record::instance);
        let is_applied = !change.journal.is_empty();
        if let (true, Some(old)) = (is_applied, old) {
            match &input.what {
                What::Result(result) => self.ended(old, result),
                What::Verb { verb, .. } if change.fate == Fate::Applied => self.asked(old, verb),
                _ => {}
            }
        }
        for item in &change.work {
            if !self.ids.insert(item.command) {
                self.breaks(format!("work of the step `{}` has an id that other work has", item.step));
            }
            if matches!(item.what, Ordered::Cancel { .. }) {
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

    /// Gives steps the names that a version has for them which an instance becomes one of.
    pub fn migrated(&mut self, saga: &Saga) {
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

    fn no_fault(&mut self, change: &Change) {
        let dead = if let Fate::Dead(letter) = &change.fate { Some(letter) } else { None };
        for letter in dead.into_iter().chain(change.letters.iter().map(|(letter, _)| letter)) {
            let code = letter.code.as_str();
            if !DECLARED.contains(&code) && !self.codes.contains(code) {
                self.breaks(format!("a fault parks the instance: {code}: {}", letter.why));
            }
        }
        if let Fate::Refused(refusal) = &change.fate
            && refusal.reason == "SAGA_FAULT"
        {
            self.breaks(format!("a verb is refused with a fault: {refusal}"));
        }
    }

    /// Notes the end of work.
    fn ended(&mut self, old: &Instance, result: &CommandResult) {
        let Some(open) = old.open.get(&result.command) else { return };
        let is_good = result.outcome == Outcome::Succeeded;
        match open.purpose {
            Purpose::Forward => {
                if let Some(account) = self.account(result.command) {
                    account.end = match (is_good, result.may_have_happened) {
                        (true, _) => End::Good,
                        (false, true) => End::Doubtful,
                        (false, false) => End::Failed,
                    };
                }
            }
            Purpose::Undo | Purpose::Tidy => {
                let undoing = Some(result.command);
                let account = self.accounts.iter_mut().find(|account| account.undoing == undoing);
                if let Some(account) = account {
                    account.undoing = None;
                    account.is_undone = is_good;
                }
            }
            Purpose::Last => {}
        }
    }

    fn account(&mut self, command: CommandId) -> Option<&mut Account> {
        self.accounts.iter_mut().find(|account| account.command == command)
    }

    /// Notes what somebody did to an instance.
    fn asked(&mut self, old: &Instance, verb: &Verb) {
        let purpose = old.stuck.as_ref().map(|stuck| stuck.purpose);
        match (verb, purpose) {
            (Verb::Kill { .. } | Verb::Complete { .. }, _) => self.is_by_hand = true,
            // Work in doubt is ordered anew, and stands for itself then.
            (Verb::RetryStep, Some(Purpose::Forward)) => {
                let is_again = |account: &Account| account.step == old.step && account.end == End::Doubtful;
                self.accounts.retain(|account| !is_again(account));
            }
            (Verb::SkipStep { .. }, Some(Purpose::Undo | Purpose::Tidy)) => {
                if let Some(account) = self.accounts.iter_mut().rfind(|account| account.is_owed()) {
                    account.is_undone = true;
                }
            }
            _ => {}
        }
    }

    /// Looks at work that is ordered.
    fn ordered(&mut self, saga: &Saga, old: Option<&Instance>, command: CommandId, open: &Open) {
        match open.purpose {
            Purpose::Forward => {
                let branch = branch(saga, &open.step, &open.branch);
                self.accounts.push(Account {
                    command,
                    step: open.step.clone(),
                    branch: open.branch.clone(),
                    has_compensation: branch.is_some_and(|branch| branch.compensate.is_some()),
                    end: End::Open,
                    undoing: None,
                    is_undone: false,
                });
            }
            Purpose::Undo | Purpose::Tidy => self.undone(old, command, open),
            Purpose::Last => {
                if let Some(owed) = self.accounts.iter().find(|account| account.is_owed()) {
                    let step = owed.step.clone();
                    self.breaks(format!(
                        "the last compensation is over, and the step `{step}` is not undone"
                    ));
                }
            }
        }
    }

    /// Looks at a compensation that is ordered: each once, in reverse, and none behind the pivot.
    fn undone(&mut self, old: Option<&Instance>, command: CommandId, open: &Open) {
        let step = &open.step;
        if open.purpose == Purpose::Undo && old.is_some_and(|old| old.is_past_pivot) {
            self.breaks(format!("the step `{step}` is undone behind the pivot"));
        }
        let is_its = |account: &Account| account.step == open.step && account.branch == open.branch;
        let of_step = |account: &Account| open.purpose == Purpose::Undo || is_its(account);
        let last = self.accounts.iter().rposition(|account| account.is_owed() && of_step(account));
        let Some(account) = last.and_then(|at| self.accounts.get_mut(at)) else {
            self.breaks(format!("the step `{step}` is undone, and there is nothing to undo"));
            return;
        };
        if !is_its(account) {
            let last = account.step.clone();
            self.breaks(format!("the step `{step}` is undone before the step `{last}`, which came after it"));
            return;
        }
        if account.undoing.replace(command).is_some() {
            self.breaks(format!("the step `{step}` is undone twice"));
        }
    }

    /// Looks whether something is under way twice.
    fn nothing_twice(&mut self, new: &Instance) {
        let mut seen = BTreeSet::new();
        for open in new.open.values() {
            if !seen.insert((&open.step, &open.branch, open.purpose)) {
                self.breaks(format!("work of the step `{}` is ordered twice, under other ids", open.step));
            }
        }
    }

    /// Looks at how it ends: an instance ends, or waits for something.
    pub fn conclude(&mut self, saga: &Saga, record: Option<&Record>) {
        let Some(record) = record else { return };
        match &record.entry {
            Entry::Awaited(_) => {}
            Entry::Ended(tombstone) => self.conclude_end(tombstone.status),
            Entry::Live(instance) => {
                let waits = match instance.status {
                    SagaStatus::Stuck => instance.stuck.is_some(),
                    SagaStatus::Running => {
                        let step = saga.steps.get(&instance.step).map(|step| &step.action);
                        matches!(step, Some(Action::Wait(_))) || !instance.open.is_empty()
                    }
                    _ => !instance.open.is_empty(),
                };
                if !waits && !record.holds_back() {
                    let (status, step) = (instance.status, &instance.step);
                    self.breaks(format!("it is {status} at the step `{step}`, and waits for nothing"));
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
            self.breaks(format!("it is compensated, and the step `{step}` is not undone"));
        }
        let open = self.accounts.iter().find(|account| is_compensated && account.end == End::Open);
        if let Some(step) = open.map(|account| account.step.clone()) {
            self.breaks(format!("it is compensated, and work of the step `{step}` is still under way"));
        }
    }
}

#[cfg(test)]
mod tests;
