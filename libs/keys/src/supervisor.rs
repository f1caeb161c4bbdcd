//! The keys of a supervisor's own Redis: jobs, work queues, instances.

mod key;

use std::fmt;
use std::str::FromStr;

use model::{ContextUid, Isolation, JobKey, Name, ScriptType};

pub use self::key::*;
use crate::suffix::{exact, number};

/// The consumer group that reads [`DONE`].
pub const DONE_GROUP: &str = "supervisor";
/// The field of [`SUPERVISOR`] that is there while others may push into work queues, and take from them.
pub const OPEN_FIELD: &str = "open_queues";
/// Fields of [`SUPERVISOR`] with this prefix hold the node of a bus through which a coordinator was reached: its root key
/// follows the prefix.
pub const NODE_FIELD_PREFIX: &str = "node:";
/// The group of an instance that names none.
pub const DEFAULT_GROUP: &str = "default";
/// The priority of a job that names none: its queue has no suffix.
pub const DEFAULT_PRIORITY: u8 = 1;
/// Priorities go from 0, the first to be taken, to this one.
pub const PRIORITY_MAX: u8 = 2;

/// Hash: a job, everything about it.
#[must_use]
pub fn job(key: JobKey) -> String {
    format!("{JOB}{key}")
}

/// List: the result for its waiting reader.
#[must_use]
pub fn reply(key: JobKey) -> String {
    format!("{REPLY}{key}")
}

/// String: this job is not to be accepted any more.
#[must_use]
pub fn stop_mark(key: JobKey) -> String {
    format!("{STOP}{key}")
}

/// String: the hash of an operator's request, by its id.
#[must_use]
pub fn request(id: &str) -> String {
    format!("{REQUEST}{id}")
}

/// Hash: the coordinator that a context is bound to.
#[must_use]
pub fn context_binding(context: ContextUid) -> String {
    format!("{BINDING}{context}")
}

/// Set: the uids of the contexts that are bound to a coordinator.
#[must_use]
pub fn bound_contexts(coordinator: &str) -> String {
    format!("{CONTEXTS}{coordinator}")
}

/// Set: the keys of a context's jobs that are still kept.
#[must_use]
pub fn context_jobs(context: ContextUid) -> String {
    format!("{JOBS}{context}")
}

/// Sorted set: job keys that an instance claimed and did not end, by place in line.
#[must_use]
pub fn claims(instance: &InstanceRef) -> String {
    format!("{CLAIMS}{instance}")
}

/// List: jobs that an instance was handed and did not fetch.
#[must_use]
pub fn handed(instance: &InstanceRef) -> String {
    format!("{HANDED}{instance}")
}

/// String: an instance's presence as JSON; expires.
#[must_use]
pub fn presence(instance: &InstanceRef) -> String {
    format!("{PRESENCE}{instance}")
}

/// Sorted set: job keys that were put in a queue and not claimed, by place in line.
#[must_use]
pub fn unclaimed(queue: &WorkQueue) -> String {
    format!("{UNCLAIMED}{queue}")
}

/// Hash: depth, oldest age and throughput of a queue.
#[must_use]
pub fn queue_stats(queue: &WorkQueue) -> String {
    format!("{STATS}{queue}")
}

/// One worker: script type, group and number. Written `<type>:<group>:<n>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceRef {
    /// Type of the scripts that the worker executes.
    pub script_type: ScriptType,
    /// Group of the worker.
    pub group: Name,
    /// Number of the worker within the group.
    pub number: u32,
}

impl fmt::Display for InstanceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.script_type, self.group, self.number)
    }
}

impl InstanceRef {
    /// Undoes `Display`; nothing for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        Some(Self {
            script_type: parts.next()?.parse().ok()?,
            group: parts.next()?.parse().ok()?,
            number: number(parts.next()?)?,
        })
    }

    /// The queues it takes from when it gives this isolation: first those that demand nothing, in the order it looks,
    /// which is priority before closeness, own before group before type. Those for our instances alone follow, and those
    /// that demand something, level by level in the same order; among the queues of one place goes first what came first.
    #[must_use]
    pub fn queues(&self, gives: Isolation) -> Vec<WorkQueue> {
        let own = WorkQueue::instance(self.script_type, self.group.clone(), self.number);
        let group = WorkQueue::group(self.script_type, self.group.clone());
        let shared = WorkQueue::shared(self.script_type);
        let mut queues = Vec::new();
        let levels = Isolation::ALL.into_iter().filter(|level| *level <= gives);
        let demands = levels.flat_map(|level| {
            let alone = level.is_basic().then_some((level, true));
            [Some((level, false)), alone].into_iter().flatten()
        });
        for (level, closed) in demands {
            for priority in 0..=PRIORITY_MAX {
                let queue = |place: &WorkQueue| {
                    let queue = place.clone().with_isolation(level).with_priority(priority);
                    if closed { queue.closed() } else { queue }
                };
                queues.extend([&own, &group, &shared].map(queue));
            }
        }
        queues
    }
}

/// A list of job keys that wait: `hero:q:work:type:<type>[:group:<group>[:inst:<n>]][:closed | :iso:<level>][:prio:<p>]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkQueue {
    script_type: ScriptType,
    group: Option<Name>,
    instance: Option<u32>,
    isolation: Isolation,
    /// Only for queues without a demand: foreign clients do not know the other queues.
    closed: bool,
    priority: u8,
}

impl WorkQueue {
    /// The queue that every instance of a type takes from.
    #[must_use]
    pub const fn shared(script_type: ScriptType) -> Self {
        Self::at(script_type, None, None)
    }

    /// The queue of a group.
    #[must_use]
    pub const fn group(script_type: ScriptType, group: Name) -> Self {
        Self::at(script_type, Some(group), None)
    }

    /// The queue of one instance.
    #[must_use]
    pub const fn instance(script_type: ScriptType, group: Name, number: u32) -> Self {
        Self::at(script_type, Some(group), Some(number))
    }

    const fn at(script_type: ScriptType, group: Option<Name>, instance: Option<u32>) -> Self {
        Self {
            script_type,
            group,
            instance,
            isolation: Isolation::Basic,
            closed: false,
            priority: DEFAULT_PRIORITY,
        }
    }

    /// Returns the queue for jobs that demand this isolation: only instances that give it take from it.
    #[must_use]
    pub const fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self.closed = self.closed && matches!(isolation, Isolation::Basic);
        self
    }

    /// The twin of this queue for jobs that only our own instances can run: workers of others do not know its name.
    #[must_use]
    pub const fn closed(mut self) -> Self {
        self.closed = matches!(self.isolation, Isolation::Basic);
        self
    }

    /// Returns true for a queue that workers of others can take jobs from: they know its type, group and number.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.isolation, Isolation::Basic) && !self.closed
    }

    /// Returns the queue at another priority; anything beyond the last is the last.
    #[must_use]
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority.min(PRIORITY_MAX);
        self
    }

    /// Returns the script type of the queue's jobs.
    #[must_use]
    pub const fn script_type(&self) -> ScriptType {
        self.script_type
    }

    /// The group that its jobs are for; nothing for all of its type.
    #[must_use]
    pub const fn for_group(&self) -> Option<&Name> {
        self.group.as_ref()
    }

    /// The instance of its group that its jobs are for; nothing for all.
    #[must_use]
    pub const fn for_instance(&self) -> Option<u32> {
        self.instance
    }

    /// Returns the isolation that the queue's jobs demand.
    #[must_use]
    pub const fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Returns true when the queue's jobs are sent to this instance, if that gives what they demand.
    #[must_use]
    pub fn is_for(&self, instance: &InstanceRef) -> bool {
        self.script_type == instance.script_type
            && self.group.as_ref().is_none_or(|group| *group == instance.group)
            && self.instance.is_none_or(|number| number == instance.number)
    }

    /// Returns the queue's priority, 0 first.
    #[must_use]
    pub const fn priority(&self) -> u8 {
        self.priority
    }

    /// Undoes `Display`; nothing for another text. `:prio:1` is read as no suffix.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("hero:q:work:type:")?;
        let (rest, priority) = match rest.split_once(":prio:") {
            Some((rest, priority)) => (rest, number(priority).filter(|p| *p <= PRIORITY_MAX)?),
            None => (rest, DEFAULT_PRIORITY),
        };
        let (rest, isolation) = match rest.split_once(":iso:") {
            Some((rest, level)) => (rest, level.parse().ok().filter(|level: &Isolation| !level.is_basic())?),
            None => (rest, Isolation::Basic),
        };
        let (rest, closed) = match rest.strip_suffix(":closed") {
            Some(rest) if isolation.is_basic() => (rest, true),
            _ => (rest, false),
        };
        let (script_type, group, instance) = parse_place(rest)?;
        Some(Self { script_type, group, instance, isolation, closed, priority })
    }
}

/// `<type>[:group:<group>[:inst:<n>]]`
fn parse_place(text: &str) -> Option<(ScriptType, Option<Name>, Option<u32>)> {
    let Some((script_type, rest)) = text.split_once(":group:") else {
        return Some((text.parse().ok()?, None, None));
    };
    let (group, instance) = match rest.split_once(":inst:") {
        Some((group, n)) => (group, Some(number(n)?)),
        None => (rest, None),
    };
    Some((script_type.parse().ok()?, Some(exact(group)?), instance))
}

fn write_place(
    f: &mut fmt::Formatter<'_>,
    script_type: ScriptType,
    group: Option<&Name>,
    instance: Option<u32>,
) -> fmt::Result {
    write!(f, "{script_type}")?;
    if let Some(group) = group {
        write!(f, ":group:{group}")?;
    }
    if let Some(instance) = instance {
        write!(f, ":inst:{instance}")?;
    }
    Ok(())
}

impl fmt::Display for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hero:q:work:type:")?;
        write_place(f, self.script_type, self.group.as_ref(), self.instance)?;
        if self.closed {
            f.write_str(":closed")?;
        }
        if !self.isolation.is_basic() {
            write!(f, ":iso:{}", self.isolation)?;
        }
        if self.priority != DEFAULT_PRIORITY {
            write!(f, ":prio:{}", self.priority)?;
        }
        Ok(())
    }
}

impl FromStr for WorkQueue {
    type Err = NotAQueue;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or_else(|| NotAQueue(text.chars().take(200).collect()))
    }
}

/// The text names no work queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAQueue(pub String);

impl fmt::Display for NotAQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no work queue", self.0)
    }
}

impl std::error::Error for NotAQueue {}

/// Target of a list of commands: `hero:q:ctl:type:<type>[:group:<g>:inst:<n>]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ControlScope {
    /// All instances of a type; fanned out to them.
    Type(ScriptType),
    /// One instance.
    Instance(InstanceRef),
}

impl ControlScope {
    /// Undoes `Display`; nothing for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match parse_place(text.strip_prefix("hero:q:ctl:type:")?)? {
            (script_type, None, None) => Some(Self::Type(script_type)),
            (script_type, Some(group), Some(number)) => {
                Some(Self::Instance(InstanceRef { script_type, group, number }))
            }
            _ => None,
        }
    }
}

impl fmt::Display for ControlScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hero:q:ctl:type:")?;
        match self {
            Self::Type(script_type) => write_place(f, *script_type, None, None),
            Self::Instance(at) => write_place(f, at.script_type, Some(&at.group), Some(at.number)),
        }
    }
}

#[cfg(test)]
mod tests;
