//! Events of jobs, as the supervisor reads them.

use std::future::Future;
use std::time::Duration;

use keys::supervisor::{DONE, DONE_GROUP};
use kv::{BlockingConnection, Cmd, Error, KvConnection, Result, StreamEntry, Value};
use model::execution::AttemptEnd;
use model::{ContextId, FlowId, JobKey, Timestamp};
use serde::{Deserialize, Serialize};

use crate::script::ACKNOWLEDGE;
use crate::{ENDED_KEEP, ENDED_MAX, crash_point};

/// How many events one read gives at most.
const READ_MAX: u32 = 256;
/// How long one read waits before it is repeated; it matters only for detecting a dead connection.
const BLOCK: Duration = Duration::from_secs(30);

/// Where a job came from, in its coordinator's numbers; echoed in every report on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedJobOrigin {
    /// The context.
    pub context_id: ContextId,
    /// The flow.
    pub flow_id: FlowId,
}

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueEvent {
    /// Position in the stream, to be passed to [`QueueEventReader::acknowledge`].
    pub id: String,
    /// Which job.
    pub job_key: JobKey,
    /// Counts the job's events from 1.
    pub number: u64,
    /// Coordinator to notify.
    pub coordinator: String,
    /// Where the job came from.
    pub origin: QueuedJobOrigin,
    /// Kind of the event.
    pub kind: QueueEventKind,
}

/// The kinds of [`QueueEvent`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum QueueEventKind {
    /// An instance started it.
    Started {
        /// `<type>:<group>:<n>`.
        instance: String,
        /// By the clock of the supervisor's Redis.
        time: Timestamp,
        /// When it was accepted, by the same clock; absent where its start is told again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queued_time: Option<Timestamp>,
    },
    /// The attempt printed something.
    Log(LogChunk),
    /// The attempt ended.
    Ended(Box<AttemptEnd>),
    /// The attempt was handed back unstarted.
    Returned,
}

/// A piece of an attempt's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    /// How many bytes were printed before it.
    pub offset: u64,
    /// Output that was printed; bytes that are not UTF-8 were replaced.
    pub text: String,
    /// When the first of it was printed, by the instance's clock; absent where that was not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
}

impl LogChunk {
    /// How many bytes were printed up to its end.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.text.len() as u64
    }
}

/// Reads the events, each at least once: events that were not acknowledged are delivered again after a restart.
#[derive(Debug)]
pub struct QueueEventReader {
    db: KvConnection,
    blocking: BlockingConnection,
    /// While set, events that were delivered to an earlier process (or got lost on the way to this one) are read, after
    /// this entry; afterwards new ones.
    redeliver_from: Option<String>,
    last: String,
}

impl QueueEventReader {
    pub(crate) fn new(db: KvConnection, blocking: BlockingConnection) -> Self {
        Self { db, blocking, redeliver_from: Some("0".to_owned()), last: "0".to_owned() }
    }

    /// Waits for events. Gives none when `cancel` was ready first, and now and then when nothing happens.
    ///
    /// Events that cannot be understood are logged and removed.
    ///
    /// # Errors
    /// Any [`kv::Error`]; the next call goes on where this one stood.
    pub async fn next(&mut self, cancel: impl Future<Output = ()>) -> Result<Vec<QueueEvent>> {
        let entries = match self.read(cancel).await {
            Ok(entries) => entries,
            Err(error) => {
                // An answer that was lost on the way stays pending: read it again.
                self.redeliver_from = Some(self.last.clone());
                return Err(error);
            }
        };
        let mut events = Vec::with_capacity(entries.len());
        let mut useless = Vec::new();
        for entry in entries {
            self.last.clone_from(&entry.id);
            match parse(&entry) {
                Ok(event) => events.push(event),
                Err(error) => {
                    tracing::warn!(id = %entry.id, %error, "an event that cannot be understood is dropped");
                    useless.push(entry.id);
                }
            }
        }
        if !useless.is_empty() {
            acknowledge(&self.db, useless.iter().map(|id| (id.as_str(), None))).await?;
        }
        Ok(events)
    }

    /// Removes events that the coordinator has acknowledged. Records of jobs that ended are kept for
    /// [`ENDED_KEEP`] from now on, [`ENDED_MAX`] of a context, without what was needed to run them; records that were to be forgotten go at
    /// once.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn acknowledge(&self, events: &[QueueEvent]) -> Result<()> {
        crash_point!("queue.before_acknowledge");
        self.acknowledger().acknowledge(events).await.map(drop)
    }

    /// A second handle for [`QueueEventReader::acknowledge`], to be used while this one waits.
    #[must_use]
    pub fn acknowledger(&self) -> QueueEventAcknowledger {
        QueueEventAcknowledger { db: self.db.clone() }
    }

    async fn read(&mut self, cancel: impl Future<Output = ()>) -> Result<Vec<StreamEntry>> {
        while let Some(from) = self.redeliver_from.clone() {
            // A read of pending entries never waits at the server.
            match self.db.cmd(read_command().arg("STREAMS").arg(DONE).arg(&from)).await {
                Ok(answer) => {
                    let entries = entries(answer)?;
                    // Behind the last one that is pending everything is new.
                    self.redeliver_from = entries.last().map(|entry| entry.id.clone());
                    if !entries.is_empty() {
                        return Ok(entries);
                    }
                }
                Err(error) if error.code() == Some("NOGROUP") => self.create_group().await?,
                Err(error) => return Err(error),
            }
        }
        let read = read_command().arg("BLOCK").arg(millis(BLOCK)).arg("STREAMS").arg(DONE).arg(">");
        entries(self.blocking.run(&read, BLOCK, cancel).await?)
    }

    async fn create_group(&self) -> Result<()> {
        let create = Cmd::new("XGROUP").arg("CREATE").arg(DONE).arg(DONE_GROUP).arg("0").arg("MKSTREAM");
        match self.db.cmd(create).await {
            Err(error) if error.code() != Some("BUSYGROUP") => Err(error),
            _ => Ok(()),
        }
    }
}

fn read_command() -> Cmd {
    Cmd::new("XREADGROUP").arg("GROUP").arg(DONE_GROUP).arg("supervisor").arg("COUNT").arg(READ_MAX)
}

fn entries(answer: Value) -> Result<Vec<StreamEntry>> {
    Ok(answer.streams()?.into_iter().flat_map(|(_, entries)| entries).collect())
}

/// Removes events that were answered, while the [`QueueEventReader`] waits for more.
#[derive(Debug, Clone)]
pub struct QueueEventAcknowledger {
    db: KvConnection,
}

impl QueueEventAcknowledger {
    /// Removes events, in as few turns as there is room for. Gives the jobs that are forgotten with their last event, since they
    /// were to be.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn acknowledge(&self, events: &[QueueEvent]) -> Result<Vec<JobKey>> {
        let mut forgotten = Vec::new();
        for part in events.chunks(READ_MAX as usize) {
            let pairs = part.iter().map(|event| {
                let over = matches!(event.kind, QueueEventKind::Ended(_) | QueueEventKind::Returned);
                (event.id.as_str(), over.then_some(event.job_key))
            });
            forgotten.extend(acknowledge(&self.db, pairs).await?);
        }
        Ok(forgotten)
    }
}

/// Removes entries, each with its job when it was the last of it. Gives the jobs that are forgotten.
async fn acknowledge(
    db: &KvConnection,
    pairs: impl Iterator<Item = (&str, Option<JobKey>)>,
) -> Result<Vec<JobKey>> {
    let named = kv::named![group: DONE_GROUP, keep_secs: ENDED_KEEP.as_secs(), ends_max: ENDED_MAX];
    let mut call = ACKNOWLEDGE.call(&[DONE]).named(named);
    for (id, over) in pairs {
        let over = over.map(|key| key.to_string()).unwrap_or_default();
        call = call.arg(id).arg(&over);
    }
    let forgotten = db.call(call).await?.array()?.into_iter();
    let key = |key: Value| {
        let key = key.text()?;
        key.parse().map_err(|_| Error::Protocol(format!("`{key}` is no job key")))
    };
    forgotten.map(key).collect()
}

pub(crate) fn parse(entry: &StreamEntry) -> Result<QueueEvent> {
    let wrong = |what: &str| Error::Protocol(format!("event {} has no usable `{what}`", entry.id));
    let number = |what: &'static str| entry.text(what)?.parse::<u32>().map_err(|_| wrong(what));
    Ok(QueueEvent {
        id: entry.id.clone(),
        job_key: entry.text("key")?.parse().map_err(|_| wrong("key"))?,
        number: entry.text("n")?.parse().map_err(|_| wrong("n"))?,
        coordinator: entry.text("coordinator")?.to_owned(),
        origin: QueuedJobOrigin {
            context_id: ContextId(number("context_id")?),
            flow_id: FlowId(number("flow_id")?),
        },
        kind: serde_json::from_str(entry.text("data")?).map_err(|_| wrong("data"))?,
    })
}

/// An event as it is written.
pub(crate) fn encode(kind: &QueueEventKind) -> Result<String> {
    serde_json::to_string(kind)
        .map_err(|error| Error::Protocol(format!("an event cannot be written: {error}")))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
