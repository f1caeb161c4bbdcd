//! Exports: a context is frozen, and its records are read key by key.
//!
//! The names of the keys come in pages, by the server's cursor, which gives every key that exists from the beginning to the end; while
//! the context is frozen, that is all of them. A key may come twice, and then replaces itself when it is imported. So an export
//! continues anywhere: it reads the page again that it was in, or all pages when another server has taken over meanwhile.
//!
//! The freeze ends by itself [`FREEZE`] after the last step of an export, for the case that nobody reads it any more.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use archive::{ArchiveFrame, ArchiveManifest, ArchivePlace, ArchiveRecord, ArchiveValue};
use bytes::Bytes;
use keys::ContextKey;
use kv::{Cmd, Pipeline, Value};
use model::id::Uid;
use model::{ActorId, Context, ContextId, Timestamp};
use tokio::sync::mpsc;

use super::records;
use super::values::{self, FoundKey, ValuePart};
use crate::error::{Error, Result};
use crate::scripts;
use crate::store::{PERMISSION_TRIES, Store, TenantStore};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};

/// How long a context stays frozen after a step of its export.
pub(crate) const FREEZE: Duration = Duration::from_secs(60);
/// How often the freeze is prolonged within a page.
const KEEP_EVERY: Duration = Duration::from_secs(10);
/// How long an export waits for its reader, all in all: the context is not kept frozen for one that is too slow.
const READER_PATIENCE: Duration = Duration::from_secs(60);
/// Keys that a page looks at.
const PAGE_KEYS: usize = 100;
/// Bytes of records after which a frame is written.
const FRAME_BYTES: usize = 1024 * 1024;
/// Bytes that one round trip reads, about.
const READ_BYTES: u64 = 1024 * 1024;
/// Bytes of a piece that is sent.
const PIECE_BYTES: usize = 256 * 1024;

/// Where an export continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportResume {
    pub(crate) snapshot: Uid,
    pub(crate) place: ArchivePlace,
    pub(crate) position: SnapshotPosition,
}

/// Position in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SnapshotPosition {
    /// So many actors are exported.
    Actors(usize),
    /// At a page of keys: of this server, at this cursor.
    Keys { server: String, cursor: String },
    /// Everything is exported but the last frame.
    End,
}

impl fmt::Display for SnapshotPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Actors(count) => write!(f, "actors {count}"),
            Self::Keys { server, cursor } => write!(f, "keys {cursor} {server}"),
            Self::End => f.write_str("end"),
        }
    }
}

/// A text that is no position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a position is that of a frame of an export")]
pub(crate) struct ParsePositionError;

impl FromStr for SnapshotPosition {
    type Err = ParsePositionError;
    fn from_str(text: &str) -> std::result::Result<Self, ParsePositionError> {
        let mut words = text.splitn(3, ' ');
        let (kind, first, second) = (words.next(), words.next(), words.next());
        match (kind, first, second) {
            (Some("end"), None, None) => Ok(Self::End),
            (Some("actors"), Some(count), None) => {
                count.parse().map(Self::Actors).map_err(|_| ParsePositionError)
            }
            (Some("keys"), Some(cursor), Some(server))
                if cursor.parse::<u64>().is_ok() && server.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
            {
                Ok(Self::Keys { server: server.to_owned(), cursor: cursor.to_owned() })
            }
            _ => Err(ParsePositionError),
        }
    }
}

/// An export of a frozen context.
#[derive(Debug)]
pub(crate) struct SnapshotExport {
    store: Store,
    tenant: Arc<TenantStore>,
    context: Context,
    snapshot: Uid,
    without_secrets: bool,
    place: ArchivePlace,
    position: SnapshotPosition,
    /// First bytes of a new file.
    manifest: Option<ArchiveManifest>,
    pending: Vec<ArchiveRecord>,
    pending_bytes: usize,
    kept: Instant,
    /// How long the reader was waited for.
    waited: Duration,
}

impl Store {
    /// Freezes a context and begins its export, or continues one, for one of its admins or the bootstrap identity, which is `None` here.
    ///
    /// # Errors
    /// [`Error::ContextFrozen`] while another export is under way; [`Error::SnapshotGone`] when the freeze has lapsed.
    pub(crate) async fn begin_export(
        &self,
        id: ContextId,
        actor: Option<ActorId>,
        without_secrets: bool,
        resume: Option<ExportResume>,
        now: Timestamp,
    ) -> Result<SnapshotExport> {
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context) = self.context(id).await?;
            permission::allow_administrator(&context, actor, ContextAction::ExportContext)?;
            let (snapshot, place, position, manifest) = match resume.clone() {
                Some(ExportResume { snapshot, place, position }) => {
                    tenant.keep_snapshot(&context, snapshot, now).await?;
                    (snapshot, place, position, None)
                }
                None => {
                    let snapshot = Uid::random();
                    let revision = match tenant.freeze(&context, snapshot, actor, now).await {
                        Err(Error::ContextChanged(_)) => continue,
                        revision => revision?,
                    };
                    let manifest = ArchiveManifest {
                        coordinator: self.coordinator().to_owned(),
                        context: id,
                        uid: context.uid,
                        snapshot: snapshot.to_string(),
                        time: now,
                        revision,
                        without_secrets,
                    };
                    (snapshot, ArchivePlace::start(), SnapshotPosition::Actors(0), Some(manifest))
                }
            };
            return Ok(SnapshotExport {
                store: self.clone(),
                tenant,
                context,
                snapshot,
                without_secrets,
                place,
                position,
                manifest,
                pending: Vec::new(),
                pending_bytes: 0,
                kept: Instant::now(),
                waited: Duration::ZERO,
            });
        }
        Err(Error::ContextChanged(id))
    }
}

impl TenantStore {
    /// Freezes the context. Returns its change counter.
    async fn freeze(
        &self,
        context: &Context,
        snapshot: Uid,
        actor: Option<ActorId>,
        now: Timestamp,
    ) -> Result<u64> {
        let object = format!("context {}", context.id);
        let audit_record = AuditRecord::of(actor, ContextAction::ExportContext, object);
        let change = self
            .begin_by(Some(&audit_record), &scripts::FREEZE_CONTEXT, &[], Some(context.uid), now)
            .named(kv::named![
                context_revision: context.revision.0,
                snapshot: &snapshot.to_string(),
                frozen_until: &(now + FREEZE).to_string(),
            ]);
        Ok(self.call(change).await?.uint()?)
    }

    /// Keeps the context frozen.
    async fn keep_snapshot(&self, context: &Context, snapshot: Uid, now: Timestamp) -> Result<()> {
        let change = self.begin(&scripts::KEEP_SNAPSHOT, &[], Some(context.uid), now).named(kv::named![
            snapshot: &snapshot.to_string(),
            frozen_until: &(now + FREEZE).to_string(),
        ]);
        self.call(change).await.map(drop)
    }
}

impl SnapshotExport {
    /// Exports everything from the position on into `out`, and ends the freeze behind the last frame. Returns at once when nobody
    /// reads any more; the export can then be continued.
    pub(crate) async fn run(mut self, out: &mpsc::Sender<Bytes>) -> Result<()> {
        if let Some(manifest) = self.manifest.take() {
            if out.send(Bytes::from_static(archive::HEADER)).await.is_err() {
                return Ok(());
            }
            if !self.write(ArchiveFrame::Manifest(manifest), out).await? {
                return Ok(());
            }
        }
        let actors = self.actors().await?;
        loop {
            let goes_on = match self.position.clone() {
                SnapshotPosition::Actors(from) => self.export_actors(&actors, from, out).await?,
                SnapshotPosition::Keys { server, cursor } => self.export_page(&server, &cursor, out).await?,
                SnapshotPosition::End => {
                    let frames = self.place.frames;
                    // The freeze lasts until everything is read: who loses the end can still ask for it again.
                    if self.write(ArchiveFrame::End { frames }, out).await?
                        && out.reserve_many(out.max_capacity()).await.is_ok()
                    {
                        self.thaw().await?;
                    }
                    return Ok(());
                }
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Actors that records name: members, and those that have made jobs or messages.
    async fn actors(&self) -> Result<Vec<ActorId>> {
        let Context { admins, executors, readers, .. } = &self.context;
        let mut actors: BTreeSet<ActorId> = admins.iter().chain(executors).chain(readers).copied().collect();
        let counters = self.tenant.connection.cmd(Cmd::new("HKEYS").arg(&self.tenant.ids)).await?.texts()?;
        let counted = counters.iter().filter_map(|name| {
            name.strip_prefix("job:").or_else(|| name.strip_prefix("message:"))?.parse::<ActorId>().ok()
        });
        // Received messages are nobody's.
        actors.extend(counted.filter(|actor| actor.0 != 0));
        Ok(actors.into_iter().collect())
    }

    async fn export_actors(
        &mut self,
        actors: &[ActorId],
        from: usize,
        out: &mpsc::Sender<Bytes>,
    ) -> Result<bool> {
        let ids: Vec<ActorId> = actors.iter().skip(from).take(archive::FRAME_ACTORS_MAX).copied().collect();
        self.position = if ids.is_empty() {
            SnapshotPosition::Keys { server: String::new(), cursor: "0".to_owned() }
        } else {
            SnapshotPosition::Actors(from + ids.len())
        };
        if ids.is_empty() {
            return Ok(true);
        }
        let read = self.store.read_actors(&ids).await?;
        let actors = read.into_iter().flatten().map(super::actors::to_archive).collect();
        let position = self.position.to_string();
        self.keep().await?;
        self.write(ArchiveFrame::Actors { actors, position }, out).await
    }

    /// Exports the keys of a page. Returns false when nobody reads any more.
    async fn export_page(&mut self, server: &str, cursor: &str, out: &mpsc::Sender<Bytes>) -> Result<bool> {
        let now = Timestamp::now();
        let pattern = format!("{}*", self.tenant.keys.prefix());
        let change =
            self.tenant.begin(&scripts::EXPORT_PAGE, &[], Some(self.context.uid), now).named(kv::named![
                snapshot: &self.snapshot.to_string(),
                frozen_until: &(now + FREEZE).to_string(),
                server: server,
                cursor: cursor,
                pattern: &pattern,
                count: PAGE_KEYS,
            ]);
        let mut answers = self.tenant.call(change).await?.array()?.into_iter();
        self.kept = Instant::now();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let (answered, next) = (next().text()?, next().text()?);
        // Another server has begun with its first page.
        let cursor = if answered == server { cursor } else { "0" };
        self.position = SnapshotPosition::Keys { server: answered.clone(), cursor: cursor.to_owned() };
        let mut found: VecDeque<FoundKey> = FoundKey::of_page(&self.tenant.keys, answers)?.into();
        while !found.is_empty() {
            if !self.export_some(&mut found, out).await? {
                return Ok(false);
            }
        }
        self.position = match next.as_str() {
            "0" => SnapshotPosition::End,
            _ => SnapshotPosition::Keys { server: answered, cursor: next },
        };
        if self.position == SnapshotPosition::End { self.flush(out).await } else { Ok(true) }
    }

    /// Exports one large key, or the small ones in front of the next large one that a round trip reads.
    async fn export_some(
        &mut self,
        found: &mut VecDeque<FoundKey>,
        out: &mpsc::Sender<Bytes>,
    ) -> Result<bool> {
        let (mut small, mut weight, mut pipeline) = (Vec::new(), 0, Pipeline::new());
        while let Some(key) = found.front() {
            if !key.is_small() || (weight > 0 && weight + key.weight() > READ_BYTES) {
                break;
            }
            weight += key.weight().max(1);
            pipeline.cmd(key.query());
            small.extend(found.pop_front());
        }
        if small.is_empty() {
            return match found.pop_front() {
                Some(large) => self.export_large(&large, out).await,
                None => Ok(true),
            };
        }
        for (key, answer) in small.iter().zip(self.tenant.connection.pipeline(&pipeline).await?) {
            if !self.add(key, key.value_of(answer?)?, true, out).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn export_large(&mut self, key: &FoundKey, out: &mpsc::Sender<Bytes>) -> Result<bool> {
        let (mut from, mut is_first) = (None, true);
        loop {
            let ValuePart { value, next } = key.read_part(&self.tenant.connection, from).await?;
            if !values::is_empty(&value) {
                if !self.add(key, value, is_first, out).await? {
                    return Ok(false);
                }
                is_first = false;
            }
            from = next;
            if from.is_none() {
                return Ok(true);
            }
        }
    }

    /// Adds a value, or a part of one, to the next frame.
    async fn add(
        &mut self,
        key: &FoundKey,
        value: ArchiveValue,
        is_first: bool,
        out: &mpsc::Sender<Bytes>,
    ) -> Result<bool> {
        if !records::is_own(self.context.id, &key.key, &value) {
            tracing::warn!(
                key = key.name,
                "a record says it is of another context, and is left out of an export"
            );
            return Ok(true);
        }
        let value = records::to_archive(&self.tenant.keys, &key.key, value);
        let value = if self.without_secrets { records::without_secrets(&key.key, value) } else { value };
        // Messages that a router holds wait for one again where they are imported.
        let (name, value, is_first) = match (&key.key, value) {
            (ContextKey::MsgOutCoordinator, ArchiveValue::SortedSet(members)) => {
                let messages = members.into_iter().map(|(message, _)| message).collect();
                (ContextKey::MsgOut, ArchiveValue::List(messages), false)
            }
            (name, value) => (name.clone(), value, is_first),
        };
        // A text that has expired meanwhile was read as an empty one.
        let has_expired = key.expires_in_millis.is_some() && value == ArchiveValue::Text(Vec::new());
        if values::is_empty(&value) || has_expired {
            return Ok(true);
        }
        let record = ArchiveRecord {
            key: name.to_string(),
            continued: !is_first,
            expires_in_millis: key.expires_in_millis,
            value,
        };
        self.pending_bytes += record.bytes();
        self.pending.push(record);
        if self.pending_bytes >= FRAME_BYTES || self.pending.len() >= archive::FRAME_RECORDS_MAX {
            return self.flush(out).await;
        }
        Ok(true)
    }

    /// Writes a frame of the records that were read.
    async fn flush(&mut self, out: &mpsc::Sender<Bytes>) -> Result<bool> {
        if self.pending.is_empty() {
            return Ok(true);
        }
        self.pending_bytes = 0;
        let records = std::mem::take(&mut self.pending);
        let position = self.position.to_string();
        self.keep().await?;
        self.write(ArchiveFrame::Records { records, position }, out).await
    }

    /// Sends a frame. Returns false when nobody reads any more.
    async fn write(&mut self, frame: ArchiveFrame, out: &mpsc::Sender<Bytes>) -> Result<bool> {
        let place = self.place;
        // Compression takes milliseconds, for which no other task should wait.
        let encoded = tokio::task::spawn_blocking(move || archive::encode(place, frame)).await;
        let encoded =
            encoded.map_err(|error| kv::Error::Protocol(format!("a frame was not packed: {error}")))?;
        let (bytes, after) = encoded?;
        self.place = after;
        let mut bytes = Bytes::from(bytes);
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            let (began, left) = (Instant::now(), READER_PATIENCE.saturating_sub(self.waited));
            match tokio::time::timeout(left, out.send(piece)).await {
                Ok(Ok(())) => self.waited += began.elapsed(),
                Ok(Err(_)) => return Ok(false),
                Err(_) => return Err(Error::ReaderTooSlow { secs: READER_PATIENCE.as_secs() }),
            }
        }
        Ok(true)
    }

    /// Prolongs the freeze when its last prolongation is some time ago.
    async fn keep(&mut self) -> Result<()> {
        if self.kept.elapsed() >= KEEP_EVERY {
            self.tenant.keep_snapshot(&self.context, self.snapshot, Timestamp::now()).await?;
            self.kept = Instant::now();
        }
        Ok(())
    }

    async fn thaw(&self) -> Result<()> {
        let change = self
            .tenant
            .begin(&scripts::THAW_CONTEXT, &[], Some(self.context.uid), Timestamp::now())
            .named(kv::named![snapshot: &self.snapshot.to_string()]);
        self.tenant.call(change).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_their_text() {
        for position in [
            SnapshotPosition::Actors(200),
            SnapshotPosition::Keys { server: String::new(), cursor: "0".to_owned() },
            SnapshotPosition::Keys { server: "ab12".to_owned(), cursor: "17".to_owned() },
            SnapshotPosition::End,
        ] {
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        for bad in ["", "end 1", "actors", "actors x", "keys 1", "keys x ab", "keys 1 a b", "keys 1 a*"] {
            assert!(bad.parse::<SnapshotPosition>().is_err(), "{bad}");
        }
    }
}
