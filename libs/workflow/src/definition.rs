//! Sagas as they stand in manifests, read and checked.
//!
//! A definition is made by [`crate::manifest`] and never changed. Instances are pinned to the hash of theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use model::{BlobHash, EffectName, SagaName, StepName, TenantId, TimerName};

use crate::Json;
use crate::formula::{Formula, ValueTemplate};
use crate::input::DomainEvent;
use crate::schedule::Schedule;

/// Steps of a saga.
pub const STEPS_MAX: usize = 256;
/// Branches of a step.
pub const BRANCHES_MAX: usize = 64;
/// Effects of a provider.
pub const EFFECTS_MAX: usize = 32;
/// Pieces of work that one input may cause.
pub const WORK_MAX: usize = 64;
/// Timers of an instance.
pub const TIMERS_MAX: usize = 64;
/// State of an instance, in bytes of JSON, unless its manifest allows more.
pub const STATE_BYTES: usize = 64 * 1024;
/// State of an instance, in bytes of JSON, at most.
pub const STATE_BYTES_MAX: usize = 256 * 1024;
/// Rows of the journal that are kept of a run.
pub const HISTORY_MAX: usize = 500;
/// Events of an instance that wait for their step.
pub const KEPT_MAX: usize = 64;
/// How far ahead a timer may be set.
pub const TIMER_AHEAD_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A saga.
#[derive(Debug, Clone)]
pub struct Saga {
    /// Name of the saga.
    pub name: SagaName,
    /// Version of the saga: higher than those before it.
    pub version: u32,
    /// Hash of its manifest, independent of layout.
    pub hash: BlobHash,
    /// Tenants that have it.
    pub tenants: TenantSet,
    /// How many lanes each tenant has of it.
    pub shards: u8,
    /// Fields of its state.
    pub state: BTreeMap<String, StateField>,
    /// Aggregates whose events it reads.
    pub sources: Vec<EventSource>,
    /// The correlation of an event, as a text or a number.
    pub correlate: Formula,
    /// Policies for events that have no instance, by type of the event.
    pub on_missing: BTreeMap<String, MissingInstancePolicy>,
    /// Policy for events of every other type that have no instance.
    pub on_missing_default: MissingInstancePolicy,
    /// How it starts.
    pub start: SagaStart,
    /// Timers that are set when it starts and end with it.
    pub timers: Vec<TimerSpec>,
    /// Steps of the saga, by name.
    pub steps: BTreeMap<StepName, SagaStep>,
    /// Ordered after the last compensation.
    pub compensated: Option<WorkOrder>,
    /// Types that a step ignores.
    pub ignore: BTreeMap<StepName, IgnoredEventTypes>,
    /// How instances of another version become instances of this one.
    pub migrate: Option<Migration>,
    /// Limits of the saga.
    pub limits: SagaLimits,
    /// Types of events that steps reachable from a step name, that step left out unless it is reachable from itself.
    pub upcoming_events: BTreeMap<StepName, BTreeSet<String>>,
    /// True if the saga is no longer in force: its instances go on, and none starts.
    pub is_retired: bool,
}

/// Tenants to whom something is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantSet {
    /// Every tenant.
    All,
    /// These.
    Listed(BTreeSet<TenantId>),
}

impl TenantSet {
    /// Returns whether a tenant is one of them.
    #[must_use]
    pub fn contain(&self, tenant: &TenantId) -> bool {
        match self {
            Self::All => true,
            Self::Listed(tenants) => tenants.contains(tenant),
        }
    }
}

/// A field of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateField {
    /// Kind of value that the field holds.
    pub kind: StateFieldKind,
    /// True if the field may be null. Until it is set, it is null.
    pub is_optional: bool,
}

/// Kind of value that a field of the state holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateFieldKind {
    /// A text.
    Text,
    /// A whole number.
    Int,
    /// A truth.
    Bool,
    /// A list of anything.
    List,
    /// An object.
    Object,
    /// Any value.
    Any,
}

impl StateFieldKind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Text, Self::Int, Self::Bool, Self::List, Self::Object, Self::Any];

    /// The name in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Int => "int",
            Self::Bool => "bool",
            Self::List => "list",
            Self::Object => "object",
            Self::Any => "any",
        }
    }

    /// Returns whether a value is of this kind.
    #[must_use]
    pub const fn holds(self, value: &Json) -> bool {
        matches!(
            (self, value),
            (Self::Text, Json::Text(_))
                | (Self::Int, Json::Int(_))
                | (Self::Bool, Json::Bool(_))
                | (Self::List, Json::List(_))
                | (Self::Object, Json::Map(_))
                | (Self::Any, _)
        )
    }
}

/// A type of aggregate whose events are read.
#[derive(Debug, Clone)]
pub struct EventSource {
    /// The type, a safe token of a subject.
    pub aggregate: String,
    /// Versions of the schema that are understood.
    pub versions: RangeInclusive<u32>,
    /// Assignments that turn the data of an event into its next version, by the version they start from.
    pub upcast: BTreeMap<u32, Vec<StateAssignment>>,
    /// Policy for events of every other version.
    pub on_version: UnknownVersionPolicy,
}

/// Policy for an event whose version is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownVersionPolicy {
    /// The event is a dead letter and parks its correlation.
    DeadLetter,
    /// Nothing.
    Ignore,
    /// The instance of the event is compensated.
    Compensate,
}

/// Policy for an event that has no instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingInstancePolicy {
    /// Nothing.
    Ignore,
    /// The event waits for an instance for this time, then becomes a dead letter.
    Park(Duration),
    /// The event is a dead letter.
    DeadLetter,
}

/// How a saga starts.
#[derive(Debug, Clone)]
pub struct SagaStart {
    /// Types of events that start it; none when it is started by a schedule or by request only.
    pub on: BTreeSet<String>,
    /// Condition under which an event starts the saga; none for every event.
    pub when: Option<Formula>,
    /// When it starts by itself.
    pub schedule: Option<Schedule>,
    /// The first values of its state.
    pub set: Vec<StateAssignment>,
    /// Step at which an instance begins.
    pub goto: StepName,
}

/// A value for a field.
#[derive(Debug, Clone)]
pub struct StateAssignment {
    /// The field.
    pub field: String,
    /// The value.
    pub value: ValueTemplate,
}

/// A step.
#[derive(Debug, Clone)]
pub struct SagaStep {
    /// True if there is no way back once the step has succeeded.
    pub is_pivot: bool,
    /// Action of the step.
    pub action: StepAction,
}

/// Action of a step.
#[derive(Debug, Clone)]
pub enum StepAction {
    /// Work is ordered, and its end is waited for.
    Work(StepWork),
    /// Events and timers are waited for.
    Wait(StepWait),
}

/// Work of a step.
#[derive(Debug, Clone)]
pub struct StepWork {
    /// Branches that are ordered, in this order. One unless the step is parallel.
    pub branches: Vec<StepBranch>,
    /// When the step has succeeded.
    pub join: JoinPolicy,
    /// True if results are named by their branch.
    pub is_parallel: bool,
    /// Arms that are tried when the step has succeeded.
    pub on_success: Vec<StepArm>,
    /// Arms that are tried when the step has failed; compensation when none fits.
    pub on_failure: Vec<StepArm>,
}

/// A piece of the work of a step.
#[derive(Debug, Clone)]
pub struct StepBranch {
    /// Name of the branch within the step; the name of the step where there is only one branch.
    pub name: StepName,
    /// Order of the branch's work.
    pub order: WorkOrder,
    /// Order that undoes the work.
    pub compensate: Option<WorkOrder>,
}

/// Something that is ordered.
#[derive(Debug, Clone)]
pub enum WorkOrder {
    /// An effect.
    Effect {
        /// Which.
        effect: EffectName,
        /// Input of the effect.
        input: ValueTemplate,
    },
    /// A command for an aggregate.
    Command {
        /// Type of the aggregate.
        aggregate: String,
        /// Id of the aggregate.
        id: ValueTemplate,
        /// Type of the command.
        kind: String,
        /// Payload of the command.
        payload: ValueTemplate,
    },
}

impl WorkOrder {
    /// Returns whether what it carries uses a variable.
    #[must_use]
    pub fn uses(&self, variable: &str) -> bool {
        match self {
            Self::Effect { input, .. } => input.uses(variable),
            Self::Command { id, payload, .. } => id.uses(variable) || payload.uses(variable),
        }
    }
}

/// When a step with several branches has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinPolicy {
    /// When all have.
    All,
    /// When one has.
    Any,
    /// When so many have.
    Quorum(usize),
}

impl JoinPolicy {
    /// How many of `branches` have to succeed.
    #[must_use]
    pub const fn needs(self, branches: usize) -> usize {
        match self {
            Self::All => branches,
            Self::Any => 1,
            Self::Quorum(count) => count,
        }
    }
}

/// Events and timers for which a step waits.
#[derive(Debug, Clone)]
pub struct StepWait {
    /// Arms that are tried, by the type of the event or the type that a timer raises.
    pub on: BTreeMap<String, Vec<StepArm>>,
    /// Timers that are set when the step begins and end with it.
    pub timers: Vec<TimerSpec>,
}

/// One of several ways to go on: the first whose condition holds is taken.
#[derive(Debug, Clone)]
pub struct StepArm {
    /// The condition; none holds always.
    pub when: Option<Formula>,
    /// Assignments that are made in the state first.
    pub set: Vec<StateAssignment>,
    /// Continuation after the assignments.
    pub then: Continuation,
}

/// Continuation of an instance after an input.
#[derive(Debug, Clone)]
pub enum Continuation {
    /// A step begins.
    Goto(StepName),
    /// The step goes on waiting.
    Stay,
    /// The saga has done what it was for.
    Complete,
    /// The saga ends otherwise.
    Fail(ValueTemplate),
    /// The work that was done is compensated, for this reason.
    Compensate(ValueTemplate),
    /// The input is a dead letter, for this reason.
    DeadLetter(ValueTemplate),
}

/// A timer.
#[derive(Debug, Clone)]
pub struct TimerSpec {
    /// Name of the timer.
    pub name: TimerName,
    /// When it fires.
    pub due: TimerDue,
    /// So much later at most, by its own share of it.
    pub jitter: Duration,
    /// Type of the event that the timer raises.
    pub raise: String,
}

/// When a timer fires.
#[derive(Debug, Clone)]
pub enum TimerDue {
    /// So long after it was set.
    After(Duration),
    /// So many milliseconds after it was set, by a formula.
    AfterFormula(Formula),
    /// At a moment, in milliseconds since 1970, by a formula.
    At(Formula),
}

/// Types of events that a step ignores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IgnoredEventTypes {
    /// All of them.
    All,
    /// These.
    Listed(BTreeSet<String>),
}

impl IgnoredEventTypes {
    /// Returns whether it names a type.
    #[must_use]
    pub fn contains(&self, kind: &str) -> bool {
        match self {
            Self::All => true,
            Self::Listed(kinds) => kinds.contains(kind),
        }
    }
}

/// How instances of another version become instances of this one.
#[derive(Debug, Clone)]
pub struct Migration {
    /// The version that they are of.
    pub from: u32,
    /// The step of this version for each step of theirs that has another name.
    pub steps: BTreeMap<StepName, StepName>,
    /// Assignments that are made in the state of the instances.
    pub set: Vec<StateAssignment>,
}

/// Limits of a saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SagaLimits {
    /// Rows of the journal that are kept of a run.
    pub history: usize,
    /// Pieces of work that one input may cause.
    pub work_items: usize,
    /// State of an instance, in bytes of JSON.
    pub state_bytes: usize,
}

impl Default for SagaLimits {
    fn default() -> Self {
        Self { history: HISTORY_MAX, work_items: WORK_MAX, state_bytes: STATE_BYTES }
    }
}

impl Saga {
    /// The saga after it was left out: instances go on, and none starts.
    #[must_use]
    pub fn retired(&self) -> Self {
        Self { is_retired: true, ..self.clone() }
    }

    /// Effects that it orders.
    #[must_use]
    pub fn effects(&self) -> BTreeSet<&EffectName> {
        let branches = self.steps.values().flat_map(|step| match &step.action {
            StepAction::Work(work) => work.branches.as_slice(),
            StepAction::Wait(_) => &[],
        });
        let orders = branches.flat_map(|branch| std::iter::once(&branch.order).chain(&branch.compensate));
        let effects = orders.chain(&self.compensated).filter_map(|order| match order {
            WorkOrder::Effect { effect, .. } => Some(effect),
            WorkOrder::Command { .. } => None,
        });
        effects.collect()
    }

    /// Returns whether an event of a type starts an instance.
    #[must_use]
    pub fn starts_on(&self, kind: &str) -> bool {
        !self.is_retired && self.start.on.contains(kind)
    }

    /// Returns whether an event starts an instance: one of its types, or an occurrence of its schedule.
    #[must_use]
    pub fn starts_with(&self, event: &DomainEvent) -> bool {
        self.starts_on(&event.kind) || (event.is_occurrence() && !self.is_retired)
    }

    /// Returns whether events of a type mean anything to it.
    #[must_use]
    pub fn listens_to(&self, kind: &str) -> bool {
        self.start.on.contains(kind)
            || self.steps.values().any(|step| match &step.action {
                StepAction::Wait(wait) => wait.on.contains_key(kind),
                StepAction::Work(_) => false,
            })
    }

    /// Returns the policy for an event of this type that has no instance.
    #[must_use]
    pub fn missing(&self, kind: &str) -> MissingInstancePolicy {
        self.on_missing.get(kind).copied().unwrap_or(self.on_missing_default)
    }
}
