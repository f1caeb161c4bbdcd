//! The queues of the old world, which old workers and old dispatchers still use.
//!
//! Their names and what they hold are not ours to choose. An entry is the id of a job whose hash is
//! `hero:job:<id>`; in a `queue:<suffix>` it is the whole name of the hash, `job:<n>:<m>`.

use std::fmt;
use std::str::FromStr;

use model::JobKey;

use crate::suffix::exact;
use crate::supervisor::{JOB, OLD_CLAIMS, OLD_WAITING, REPLY, WorkQueue};

/// Begins the name under which an old queue's workers stand in a job: the queue's name follows.
pub const OLD_WORKER_PREFIX: &str = "legacy:";
/// Begins the name of the other reply list of the old world: the id follows.
pub const OLD_REPLY_PREFIX: &str = "hero:reply:";

const ACTOR_QUEUE: &str = "hero:job:actor_queue:";
const WORK_QUEUE: &str = "hero:work_queue:";
const QUEUE: &str = "queue:";

/// Name of an actor, a suffix or a job in the old world: 1 to 128 characters of `[A-Za-z0-9_.@-]`, and no job
/// key of ours.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LegacyName(String);

impl LegacyName {
    const CHARS_MAX: usize = 128;

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LegacyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LegacyName {
    type Err = NotLegacy;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '@' | '-');
        let fits = !text.is_empty() && text.len() <= Self::CHARS_MAX && text.chars().all(allowed);
        if fits && exact::<JobKey>(text).is_none() {
            Ok(Self(text.to_owned()))
        } else {
            Err(NotLegacy::of(text))
        }
    }
}

/// A list of the old world that workers pop from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LegacyQueue {
    /// `hero:job:actor_queue:<suffix>`
    ActorQueue(LegacyName),
    /// `hero:job:<actor id>`
    Actor(LegacyName),
    /// `hero:work_queue:<actor id>`
    WorkQueue(LegacyName),
    /// `queue:<suffix>`
    Queue(LegacyName),
    /// A work queue of ours, where it is open to workers of others.
    Work(WorkQueue),
}

impl LegacyQueue {
    /// Returns true for a queue whose entries are whole names of hashes, `job:<n>:<m>`.
    #[must_use]
    pub const fn is_numbered(&self) -> bool {
        matches!(self, Self::Queue(_))
    }

    /// Returns the name under which the queue's workers stand in a job and its events.
    #[must_use]
    pub fn worker(&self) -> String {
        format!("{OLD_WORKER_PREFIX}{self}")
    }

    /// Undoes `Display`; nothing for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        type Make = fn(LegacyName) -> LegacyQueue;
        let forms: [(&str, Make); 4] = [
            (ACTOR_QUEUE, LegacyQueue::ActorQueue),
            (WORK_QUEUE, LegacyQueue::WorkQueue),
            (JOB, LegacyQueue::Actor),
            (QUEUE, LegacyQueue::Queue),
        ];
        let old =
            forms.into_iter().find_map(|(prefix, make)| text.strip_prefix(prefix)?.parse().ok().map(make));
        old.or_else(|| WorkQueue::parse(text).filter(WorkQueue::is_open).map(Self::Work))
    }
}

impl fmt::Display for LegacyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ActorQueue(suffix) => write!(f, "{ACTOR_QUEUE}{suffix}"),
            Self::Actor(id) => write!(f, "{JOB}{id}"),
            Self::WorkQueue(id) => write!(f, "{WORK_QUEUE}{id}"),
            Self::Queue(suffix) => write!(f, "{QUEUE}{suffix}"),
            Self::Work(queue) => queue.fmt(f),
        }
    }
}

impl FromStr for LegacyQueue {
    type Err = NotLegacy;
    /// Reads those that can be bound to a context, which ours are not: they are open or closed together.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).filter(|queue| !matches!(queue, Self::Work(_))).ok_or_else(|| NotLegacy::of(text))
    }
}

/// The text names nothing of the old world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotLegacy(pub String);

impl NotLegacy {
    fn of(text: &str) -> Self {
        Self(text.chars().take(200).collect())
    }
}

impl fmt::Display for NotLegacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no queue of old workers; there are {ACTOR_QUEUE}<suffix>, {JOB}<actor id>, \
             {WORK_QUEUE}<actor id> and {QUEUE}<suffix>, of A-Z a-z 0-9 _ . @ and -",
            self.0
        )
    }
}

impl std::error::Error for NotLegacy {}

/// A job that only an old dispatcher knows, as its queue names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LegacyJob {
    /// `<id>`, whose hash is `hero:job:<id>`.
    Id(LegacyName),
    /// `job:<n>:<m>`, which is its hash.
    Numbered(u32, u64),
}

impl LegacyJob {
    /// Undoes [`LegacyJob::entry`] for entries of this queue; nothing for another text.
    #[must_use]
    pub fn parse(queue: &LegacyQueue, entry: &str) -> Option<Self> {
        if let LegacyQueue::Work(_) = queue {
            // Some write the name of the hash.
            return entry.strip_prefix(JOB).unwrap_or(entry).parse().ok().map(Self::Id);
        }
        if !queue.is_numbered() {
            return entry.parse().ok().map(Self::Id);
        }
        let (n, m) = entry.strip_prefix("job:")?.split_once(':')?;
        Some(Self::Numbered(exact(n)?, exact(m)?))
    }

    /// The text that stands in the queue for this entry; one of ours may name the hash instead.
    #[must_use]
    pub fn entry(&self) -> String {
        match self {
            Self::Id(id) => id.to_string(),
            Self::Numbered(n, m) => format!("job:{n}:{m}"),
        }
    }

    /// Hash: the job.
    #[must_use]
    pub fn hash(&self) -> String {
        match self {
            Self::Id(id) => format!("{JOB}{id}"),
            Self::Numbered(..) => self.entry(),
        }
    }

    /// Returns the id as the job's reply lists name it.
    #[must_use]
    pub fn id(&self) -> String {
        match self {
            Self::Id(id) => id.to_string(),
            Self::Numbered(n, m) => format!("{n}:{m}"),
        }
    }

    /// Lists: where a dispatcher may wait for its result.
    #[must_use]
    pub fn replies(&self) -> [String; 2] {
        let id = self.id();
        [format!("{REPLY}{id}"), format!("{OLD_REPLY_PREFIX}{id}")]
    }
}

/// Sorted set: job keys that wait in an old queue, by place in line.
#[must_use]
pub fn legacy_waiting(queue: &LegacyQueue) -> String {
    format!("{OLD_WAITING}{queue}")
}

/// Sorted set: job keys that old workers took from a queue and did not end, by place in line.
#[must_use]
pub fn legacy_claims(queue: &LegacyQueue) -> String {
    format!("{OLD_CLAIMS}{queue}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_forms() {
        for (text, numbered) in [
            ("hero:job:actor_queue:osis", false),
            ("hero:job:sal_actor.1", false),
            ("hero:work_queue:v@host", false),
            ("queue:python", true),
        ] {
            let queue = LegacyQueue::parse(text).expect("an old queue");
            assert_eq!((queue.to_string().as_str(), queue.is_numbered()), (text, numbered));
        }
        let key = "00000000000000000000000000000001-00000000000000000000000000000002-3-1";
        for text in [
            "",
            "queue:",
            "queue:a b",
            "queue:a:b",
            "hero:job:actor_queue:",
            &format!("hero:job:{key}"),
            "hero:done",
        ] {
            let wrong = text.parse::<LegacyQueue>().expect_err("none");
            assert!(wrong.to_string().contains("queue:<suffix>"), "{wrong}");
        }
    }

    #[test]
    fn entries_and_hashes() {
        let plain = LegacyQueue::parse("hero:job:actor_queue:osis").expect("an old queue");
        let numbered = LegacyQueue::parse("queue:osis").expect("an old queue");
        let job = LegacyJob::parse(&plain, "abc-1").expect("an id");
        assert_eq!((job.entry().as_str(), job.hash().as_str()), ("abc-1", "hero:job:abc-1"));
        assert_eq!(job.replies(), ["hero:q:reply:abc-1", "hero:reply:abc-1"]);
        let job = LegacyJob::parse(&numbered, "job:12:7").expect("an id");
        assert_eq!((job.entry(), job.hash()), ("job:12:7".to_owned(), "job:12:7".to_owned()));
        assert_eq!(job.replies(), ["hero:q:reply:12:7", "hero:reply:12:7"]);
        for (queue, entry) in [(&plain, "job:1:2"), (&numbered, "12"), (&numbered, "job:1:02"), (&plain, "")]
        {
            assert_eq!(LegacyJob::parse(queue, entry), None, "{entry}");
        }
    }
}
