//! Steps of a saga: their orders, the events they wait for, and what follows.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{StepName, TimerName};
use yaml::{SourcePosition, YamlEntry, YamlFields, YamlNode, YamlValue};

use super::fields::ManifestReader;
use crate::definition::{
    BRANCHES_MAX, Continuation, JoinPolicy, STEPS_MAX, SagaStep, StepAction, StepArm, StepBranch, StepWait,
    StepWork, TIMER_AHEAD_MAX, TIMERS_MAX, TimerDue, TimerSpec, WorkOrder,
};
use crate::formula::{ValueTemplate, Variable};

/// Keys of a step.
pub(super) const STEP_KEYS: &[&str] = &[
    "effect",
    "input",
    "command",
    "parallel",
    "join",
    "on",
    "timers",
    "pivot",
    "compensate",
    "on_success",
    "on_failure",
    "on_done",
];
/// Keys of a branch of a parallel step.
pub(super) const BRANCH_KEYS: &[&str] = &["effect", "input", "command", "compensate"];
/// Keys of a command.
pub(super) const COMMAND_KEYS: &[&str] = &["aggregate", "id", "type", "payload"];
/// Keys of what follows.
pub(super) const ARM_KEYS: &[&str] = &["when", "set", "goto", "end", "reason", "compensate", "dead_letter"];
/// Keys of a timer.
pub(super) const TIMER_KEYS: &[&str] = &["after", "due", "jitter", "raise"];

impl ManifestReader {
    /// Reads all steps, each with its place.
    pub(super) fn steps(
        &mut self,
        tree: &YamlNode,
        fields: &YamlFields<'_>,
    ) -> BTreeMap<StepName, (SourcePosition, SagaStep)> {
        let Some(entry) = fields.get("steps") else {
            self.missing(tree.place, "a saga", "steps", "{ first-step: … }");
            return BTreeMap::new();
        };
        let entries = self.yaml.entries(entry, "a mapping from names to steps");
        if entries.is_empty() && matches!(entry.value.value, YamlValue::Map(_)) {
            self.problem(entry.place, "a saga has at least one step");
        }
        if entries.len() > STEPS_MAX {
            let message = format!("a saga has at most {STEPS_MAX} steps, this one has {}", entries.len());
            self.problem(entry.place, message);
        }
        let mut steps = BTreeMap::new();
        for entry in entries.iter().take(STEPS_MAX) {
            let name = self.parsed::<StepName>(&entry.key, entry.place);
            let step = self.step(entry, name.as_ref());
            if let (Some(name), Some(step)) = (name, step) {
                steps.insert(name, (entry.place, step));
            }
        }
        steps
    }

    fn step(&mut self, entry: &YamlEntry, name: Option<&StepName>) -> Option<SagaStep> {
        let what = format!("the step `{}`", entry.key);
        let fields = self.fields(&entry.value, &what, STEP_KEYS);
        if !matches!(entry.value.value, YamlValue::Map(_)) {
            return None;
        }
        let kinds: Vec<_> =
            ["effect", "command", "parallel"].into_iter().filter(|key| fields.contains_key(key)).collect();
        let waits = fields.contains_key("on") || fields.contains_key("timers");
        let action = match (kinds.as_slice(), waits) {
            ([], true) => self.wait(&what, &fields).map(StepAction::Wait),
            ([_], false) => self.work(entry, name?, &what, &fields).map(StepAction::Work),
            ([], false) => {
                let message =
                    format!("{what} does nothing; it needs one of `effect`, `command`, `parallel` and `on`");
                self.problem(entry.place, message);
                None
            }
            (several, _) => {
                let mut several = several.to_vec();
                several.extend(waits.then_some("on"));
                let message = format!("{what} is one thing, not {}", several.join(" and "));
                self.problem(entry.place, message);
                None
            }
        };
        let is_pivot = fields.get("pivot").and_then(|entry| self.yaml.boolean(entry)).unwrap_or_default();
        Some(SagaStep { is_pivot, action: action? })
    }

    fn wait(&mut self, what: &str, fields: &YamlFields<'_>) -> Option<StepWait> {
        for key in ["input", "join", "compensate", "on_success", "on_failure", "on_done", "pivot"] {
            if let Some(entry) = fields.get(key) {
                self.problem(entry.place, format!("{what} waits for events, it has no `{key}`"));
            }
        }
        let known = self.known(&["event"]);
        let mut on = BTreeMap::new();
        if let Some(entry) = fields.get("on") {
            for entry in self.yaml.entries(entry, "a mapping from types of events to what follows") {
                let kind = self.type_name(&entry.key, entry.place, "the type of an event");
                on.insert(kind, self.arms(entry, &known, StayRule::May));
            }
        }
        let timers =
            fields.get("timers").map(|entry| self.timers(entry, &self.known(&[]))).unwrap_or_default();
        if let Some(entry) = fields.get("timers") {
            for timer in &timers {
                if !on.contains_key(&timer.raise) {
                    let raise = &timer.raise;
                    let message = format!(
                        "the timer `{}` raises `{raise}`, for which {what} does not wait; name it under `on`",
                        timer.name
                    );
                    self.problem(entry.place, message);
                }
            }
        }
        Some(StepWait { on, timers })
    }

    /// Reads timers.
    pub(super) fn timers(&mut self, entry: &YamlEntry, known: &[Variable]) -> Vec<TimerSpec> {
        let wanted = "a mapping from names to timers, such as { pay-by: { after: 30m, raise: TimedOut } }";
        let entries = self.yaml.entries(entry, wanted);
        if entries.len() > TIMERS_MAX {
            let message = format!("there are at most {TIMERS_MAX} timers, here are {}", entries.len());
            self.problem(entry.place, message);
        }
        entries.iter().filter_map(|entry| self.timer(entry, known)).collect()
    }

    fn timer(&mut self, entry: &YamlEntry, known: &[Variable]) -> Option<TimerSpec> {
        let what = format!("the timer `{}`", entry.key);
        let name = self.parsed::<TimerName>(&entry.key, entry.place);
        let fields = self.fields(&entry.value, &what, TIMER_KEYS);
        let due = match (fields.get("after"), fields.get("due")) {
            (Some(after), None) => self.after(after, known),
            (None, Some(due)) => self.formula(due, known).map(TimerDue::At),
            (Some(_), Some(due)) => {
                self.problem(due.place, format!("{what} has both `after` and `due`; keep one of them"));
                None
            }
            (None, None) => {
                self.missing(entry.place, &what, "after", "30m");
                None
            }
        };
        let jitter = fields.get("jitter").and_then(|entry| self.duration(entry)).unwrap_or(Duration::ZERO);
        let Some(raise) = fields.get("raise") else {
            self.missing(entry.place, &what, "raise", "TimedOut");
            return None;
        };
        let text = self.yaml.text(raise)?;
        let raise = self.type_name(text, raise.value.place, "what a timer raises");
        Some(TimerSpec { name: name?, due: due?, jitter, raise })
    }

    /// Reads `30m`, or `${{ hours(state.hours) }}`.
    fn after(&mut self, entry: &YamlEntry, known: &[Variable]) -> Option<TimerDue> {
        let is_formula = entry.value.value.as_text().is_some_and(|text| text.contains("${{"));
        if is_formula {
            return match self.text_with_formulas(entry, known)? {
                ValueTemplate::Formula(formula) => Some(TimerDue::AfterFormula(formula)),
                _ => {
                    self.yaml.wrong_kind(entry, "a length of time, or a formula alone");
                    None
                }
            };
        }
        let after = self.duration(entry)?;
        if after > TIMER_AHEAD_MAX {
            self.yaml.wrong_kind(entry, "at most ten years");
        }
        Some(TimerDue::After(after))
    }

    fn work(
        &mut self,
        entry: &YamlEntry,
        name: &StepName,
        what: &str,
        fields: &YamlFields<'_>,
    ) -> Option<StepWork> {
        let parallel = fields.get("parallel").copied();
        let branches = match parallel {
            Some(parallel) => self.branches(parallel, what, fields),
            None => self.branch(entry, name.clone(), fields).into_iter().collect(),
        };
        let join = self.join(fields, parallel.is_some(), branches.len());
        let known = self.known(&["result"]);
        let (on_success, on_failure) = self.follows(entry, what, fields, &known);
        if branches.is_empty() {
            return None;
        }
        Some(StepWork { branches, join, is_parallel: parallel.is_some(), on_success, on_failure })
    }

    /// Reads `on_done`, or `on_success` and `on_failure`.
    fn follows(
        &mut self,
        entry: &YamlEntry,
        what: &str,
        fields: &YamlFields<'_>,
        known: &[Variable],
    ) -> (Vec<StepArm>, Vec<StepArm>) {
        if let Some(done) = fields.get("on_done") {
            for key in ["on_success", "on_failure"] {
                if let Some(second) = fields.get(key) {
                    self.problem(
                        second.place,
                        format!("{what} has both `on_done` and `{key}`; keep one of them"),
                    );
                }
            }
            let arms = self.arms(done, known, StayRule::MayNot);
            return (arms.clone(), arms);
        }
        let on_success = match fields.get("on_success") {
            Some(entry) => self.arms(entry, known, StayRule::MayNot),
            None => {
                self.missing(entry.place, what, "on_success", "{ goto: next-step }");
                Vec::new()
            }
        };
        let on_failure = fields.get("on_failure");
        let on_failure = on_failure.map(|entry| self.arms(entry, known, StayRule::MayNotButFallsThrough));
        (on_success, on_failure.unwrap_or_default())
    }

    fn branches(&mut self, parallel: &YamlEntry, what: &str, fields: &YamlFields<'_>) -> Vec<StepBranch> {
        for key in ["input", "compensate"] {
            if let Some(entry) = fields.get(key) {
                self.problem(entry.place, format!("{what} is parallel: `{key}` belongs to its branches"));
            }
        }
        let entries = self.yaml.entries(parallel, "a mapping from names to branches");
        if !(2..=BRANCHES_MAX).contains(&entries.len()) {
            let message =
                format!("a parallel step has 2 to {BRANCHES_MAX} branches, this one has {}", entries.len());
            self.problem(parallel.place, message);
        }
        let mut branches = Vec::with_capacity(entries.len());
        for entry in entries.iter().take(BRANCHES_MAX) {
            let name = self.parsed::<StepName>(&entry.key, entry.place);
            let what = format!("the branch `{}`", entry.key);
            let fields = self.fields(&entry.value, &what, BRANCH_KEYS);
            branches.extend(name.and_then(|name| self.branch(entry, name, &fields)));
        }
        branches
    }

    fn branch(&mut self, entry: &YamlEntry, name: StepName, fields: &YamlFields<'_>) -> Option<StepBranch> {
        let known = self.known(&[]);
        let order = self.order(entry, fields, &known);
        let compensate = fields.get("compensate").and_then(|entry| {
            let known = self.known(&["input", "result"]);
            let fields = self.fields(&entry.value, "a compensation", &["effect", "input", "command"]);
            self.order(entry, &fields, &known)
        });
        Some(StepBranch { name, order: order?, compensate })
    }

    /// Reads an order: an effect or a command.
    pub(super) fn order(
        &mut self,
        entry: &YamlEntry,
        fields: &YamlFields<'_>,
        known: &[Variable],
    ) -> Option<WorkOrder> {
        match (fields.get("effect"), fields.get("command")) {
            (Some(effect), None) => {
                let name = self.name(effect)?;
                self.orders.push((Clone::clone(&name), effect.value.place));
                let input = fields.get("input").map(|entry| self.template(&entry.value, known));
                let input = input.unwrap_or(ValueTemplate::Map(BTreeMap::new()));
                Some(WorkOrder::Effect { effect: name, input })
            }
            (None, Some(command)) => {
                if let Some(input) = fields.get("input") {
                    self.problem(input.place, "a command has a `payload` of its own, not `input`");
                }
                self.command(command, known)
            }
            (Some(_), Some(second)) => {
                self.problem(second.place, "an effect and a command are two things; keep one of them");
                None
            }
            (None, None) => {
                let message = format!("`{}` orders nothing; it needs `effect` or `command`", entry.key);
                self.problem(entry.place, message);
                None
            }
        }
    }

    fn command(&mut self, entry: &YamlEntry, known: &[Variable]) -> Option<WorkOrder> {
        let fields = self.fields(&entry.value, "a command", COMMAND_KEYS);
        let mut named = |key: &str, what: &str, example: &str| {
            let Some(entry) = fields.get(key) else {
                self.missing(entry.value.place, "a command", key, example);
                return None;
            };
            let text = self.yaml.text(entry)?;
            Some(self.type_name(text, entry.value.place, what))
        };
        let aggregate = named("aggregate", "the type of an aggregate", "Order");
        let kind = named("type", "the type of a command", "Cancel");
        let id = match fields.get("id") {
            Some(entry) => self.text_with_formulas(entry, known),
            None => {
                self.missing(entry.value.place, "a command", "id", "\"${{ state.order_id }}\"");
                None
            }
        };
        let payload = fields.get("payload").map(|entry| self.template(&entry.value, known));
        let payload = payload.unwrap_or(ValueTemplate::Map(BTreeMap::new()));
        Some(WorkOrder::Command { aggregate: aggregate?, id: id?, kind: kind?, payload })
    }

    fn join(&mut self, fields: &YamlFields<'_>, is_parallel: bool, branches: usize) -> JoinPolicy {
        let Some(entry) = fields.get("join") else { return JoinPolicy::All };
        if !is_parallel {
            self.problem(entry.place, "`join` is for steps with `parallel`");
            return JoinPolicy::All;
        }
        if matches!(entry.value.value, YamlValue::Map(_)) {
            let fields = self.fields(&entry.value, "`join`", &["quorum"]);
            let wanted = format!("a whole number from 1 to the number of branches, {branches}");
            let quorum = fields.get("quorum").and_then(|entry| {
                let count: Option<usize> = self.yaml.whole(entry, &wanted);
                if count.is_some_and(|count| count == 0 || count > branches) {
                    self.yaml.wrong_kind(entry, &wanted);
                }
                count
            });
            return quorum.map_or(JoinPolicy::All, JoinPolicy::Quorum);
        }
        match self.yaml.text(entry) {
            Some("any") => JoinPolicy::Any,
            Some("all") | None => JoinPolicy::All,
            Some(_) => {
                self.yaml.wrong_kind(entry, "all, any or { quorum: 2 }");
                JoinPolicy::All
            }
        }
    }

    /// Reads one continuation, or a list of them.
    fn arms(&mut self, entry: &YamlEntry, known: &[Variable], stays: StayRule) -> Vec<StepArm> {
        let single = std::slice::from_ref(&entry.value);
        let items = if let YamlValue::List(items) = &entry.value.value { items.as_slice() } else { single };
        let mut arms = Vec::with_capacity(items.len());
        let mut last_is_open = true;
        for item in items {
            if !last_is_open {
                self.problem(item.place, "this is never reached: what stands before it has no `when`");
            }
            if let Some(arm) = self.arm(item, &entry.key, known, stays) {
                last_is_open = arm.when.is_some();
                arms.push(arm);
            } else {
                return Vec::new();
            }
        }
        if arms.is_empty() {
            self.problem(entry.place, format!("`{}` says nothing; write `goto: a-step`, say", entry.key));
        } else if last_is_open && matches!(stays, StayRule::MayNot) {
            let message =
                format!("the last way of `{}` is for everything else; leave its `when` out", entry.key);
            self.problem(items.last().map_or(entry.place, |item| item.place), message);
        }
        arms
    }

    fn arm(&mut self, tree: &YamlNode, key: &str, known: &[Variable], stays: StayRule) -> Option<StepArm> {
        let fields = self.fields(tree, &format!("`{key}`"), ARM_KEYS);
        if !matches!(tree.value, YamlValue::Map(_)) {
            return None;
        }
        let when = fields.get("when").and_then(|entry| self.formula(entry, known));
        let set = self.assignments(fields.get("set").copied(), known);
        let ways = ["goto", "end", "compensate", "dead_letter"];
        let ways: Vec<_> = ways.into_iter().filter(|way| fields.contains_key(way)).collect();
        let then = match ways.as_slice() {
            [] if matches!(stays, StayRule::May) => Some(Continuation::Stay),
            [] => {
                let message =
                    "nothing follows; it needs one of `goto`, `end`, `compensate` and `dead_letter`";
                self.problem(tree.place, message);
                None
            }
            [way] => fields.get(way).and_then(|entry| self.then(entry, &fields, known)),
            several => {
                self.problem(tree.place, format!("one thing follows, not {}", several.join(" and ")));
                None
            }
        };
        if let Some(reason) =
            fields.get("reason").filter(|_| !matches!(then, Some(Continuation::Fail(_)) | None))
        {
            self.problem(reason.place, "`reason` is for `end: failed`");
        }
        Some(StepArm { when, set, then: then.unwrap_or(Continuation::Stay) })
    }

    fn then(
        &mut self,
        entry: &YamlEntry,
        fields: &YamlFields<'_>,
        known: &[Variable],
    ) -> Option<Continuation> {
        match entry.key.as_str() {
            "goto" => {
                let target: StepName = self.name(entry)?;
                self.targets.push((target.clone(), entry.value.place));
                Some(Continuation::Goto(target))
            }
            "compensate" => self.text_with_formulas(entry, known).map(Continuation::Compensate),
            "dead_letter" => self.text_with_formulas(entry, known).map(Continuation::DeadLetter),
            _ => match self.yaml.text(entry)? {
                "completed" => Some(Continuation::Complete),
                "failed" => {
                    let reason = fields.get("reason").and_then(|entry| self.text_with_formulas(entry, known));
                    Some(Continuation::Fail(reason.unwrap_or_else(ValueTemplate::empty_text)))
                }
                _ => {
                    self.yaml.wrong_kind(entry, "completed or failed");
                    None
                }
            },
        }
    }
}

/// Rule for whether a step may go on waiting after an input.
#[derive(Clone, Copy)]
enum StayRule {
    May,
    MayNot,
    /// The step may not stay; if no condition holds, the saga is compensated.
    MayNotButFallsThrough,
}
