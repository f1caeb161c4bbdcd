//! A directory of one process, by MDBX.
//!
//! One thread writes: it takes all waiting batches, checks each on its own, and makes the valid ones durable with one
//! commit. Readers see the rows as of one commit, and are short: while one stays open no page is reused.

mod layout;
mod writer;

use std::fs::{self, DirBuilder, File, TryLockError};
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use async_trait::async_trait;
use signet_libmdbx::{Environment, EnvironmentFlags, Geometry, MdbxError, Mode, ReadError, SyncMode, ffi};
use tokio::sync::oneshot;

use self::layout::{decode_key, fence_key, physical};
use self::writer::{StoreWriter, WriteRequest};
use crate::replica::LocalReplicaRegistry;
use crate::row::{LaneFence, StoredRow};
use crate::{
    Clock, CommitOutcome, KvStore, LaneKey, RowBatch, RowKey, StoreCapabilities, StoreError, StoreHeartbeat,
    StoreHeartbeatReply, StorePage, StorePageBuilder, StoreUsage, VersionedValue,
};

/// The map exceeds the usable size by a sixteenth, and at least by this: freeing rows takes pages too.
const RESERVE_BYTES_MIN: usize = 16 * 1024 * 1024;
/// The file grows by so much at a time.
const GROWTH_BYTES: isize = 4 * 1024 * 1024;
/// Readers at once; more than there are threads for blocking calls.
const READERS_MAX: u64 = 1024;
/// `ENOSPC` and `EDQUOT`: the disk, or the quota on it, is used up.
const DISK_IS_FULL: [i32; 2] = [28, 122];

/// A store in a directory, which belongs to this process as long as it is open.
pub struct EmbeddedStore {
    environment: Environment,
    page_bytes: usize,
    clock: Arc<dyn Clock>,
    replicas: LocalReplicaRegistry,
    /// Nothing once it ends.
    requests: Option<mpsc::Sender<WriteRequest>>,
    writer: Option<JoinHandle<()>>,
    // Given up last.
    _lock: StoreDirectoryLock,
}

impl EmbeddedStore {
    /// Opens the store in `dir`, or creates it. It uses at most `bytes_max` for rows; once full, it accepts only batches
    /// that free rows.
    ///
    /// # Errors
    /// [`StoreError::Owned`] when another process has it; [`StoreError::Unavailable`] when it cannot be opened.
    pub fn open(dir: &Path, bytes_max: usize, clock: impl Clock) -> Result<Self, StoreError> {
        let lock = lock_directory(dir)?;
        let unavailable =
            |error: MdbxError| StoreError::Unavailable { why: format!("{}: {error}", dir.display()) };
        let upper = bytes_max.saturating_add(RESERVE_BYTES_MIN.max(bytes_max / 16));
        let mut builder = Environment::builder();
        builder
            .set_flags(EnvironmentFlags::from(Mode::ReadWrite { sync_mode: SyncMode::Durable }))
            .set_max_readers(READERS_MAX)
            .set_geometry(Geometry {
                size: Some(0..upper),
                growth_step: Some(GROWTH_BYTES),
                shrink_threshold: Some(4 * GROWTH_BYTES),
                page_size: None,
            });
        let environment = builder.open_with_permissions(dir, 0o600).map_err(unavailable)?;
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let (requests, received) = mpsc::channel();
        let page_bytes = page_bytes(&environment)?;
        let writer = StoreWriter::new(environment.clone(), Arc::clone(&clock), page_bytes, bytes_max, dir);
        let thread = std::thread::Builder::new().name("store-writer".to_owned());
        let writer = thread.spawn(move || writer.run(&received));
        let writer = writer.map_err(|error| StoreError::Unavailable { why: error.to_string() })?;
        let replicas = LocalReplicaRegistry::default();
        Ok(Self {
            environment,
            page_bytes,
            clock,
            replicas,
            requests: Some(requests),
            writer: Some(writer),
            _lock: lock,
        })
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> WriteRequest,
    ) -> Result<T, StoreError> {
        let ends = || StoreError::Unavailable { why: "it is ending".to_owned() };
        let (answer, answered) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(ends)?;
        requests.send(request(answer)).map_err(|_| ends())?;
        let lost = || StoreError::Indeterminate { why: "its writer has ended".to_owned() };
        answered.await.map_err(|_| lost())?
    }

    /// Reads on a thread that may wait for the disk.
    async fn read_blocking<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Environment, u64) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (environment, now) = (self.environment.clone(), self.clock.now());
        let looked = tokio::task::spawn_blocking(move || look(&environment, now)).await;
        looked.map_err(|error| StoreError::Unavailable { why: error.to_string() })?
    }
}

#[async_trait]
impl KvStore for EmbeddedStore {
    async fn commit(&self, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        batch.check()?;
        self.ask(|answer| WriteRequest::Commit(batch, answer)).await
    }

    async fn read(&self, lane: &LaneKey, keys: &[RowKey]) -> Result<Vec<Option<VersionedValue>>, StoreError> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| physical(lane, key)).collect();
        self.read_blocking(move |environment, now| {
            let tx = environment.begin_ro_unsync().map_err(not_read)?;
            let db = tx.open_db(None).map_err(not_read)?;
            let row = |key: &Vec<u8>| -> Result<Option<VersionedValue>, StoreError> {
                let found = tx.get::<Vec<u8>>(db.dbi(), key).map_err(not_decoded)?;
                let row = found.map(|bytes| StoredRow::decode(&bytes)).transpose()?;
                Ok(row.filter(|row| row.is_live(now)).map(|row| row.versioned))
            };
            keys.iter().map(row).collect()
        })
        .await
    }

    async fn scan(
        &self,
        lane: &LaneKey,
        range: Range<RowKey>,
        limit: usize,
    ) -> Result<StorePage, StoreError> {
        let (from, to) = (physical(lane, &range.start), physical(lane, &range.end));
        self.read_blocking(move |environment, now| {
            let tx = environment.begin_ro_unsync().map_err(not_read)?;
            let db = tx.open_db(None).map_err(not_read)?;
            let mut cursor = tx.cursor(db).map_err(not_read)?;
            let mut page = StorePageBuilder::new(limit);
            let mut at = cursor.set_range::<Vec<u8>, Vec<u8>>(&from).map_err(not_decoded)?;
            while let Some((key, bytes)) = at.filter(|(key, _)| *key < to) {
                let row = StoredRow::decode(&bytes)?;
                if row.is_live(now) && !page.push(decode_key(&key)?, row.versioned) {
                    break;
                }
                at = cursor.next::<Vec<u8>, Vec<u8>>().map_err(not_decoded)?;
            }
            Ok(page.page)
        })
        .await
    }

    async fn acquire_lane(&self, lane: &LaneKey) -> Result<u64, StoreError> {
        let lane = lane.clone();
        self.ask(|answer| WriteRequest::Take(lane, answer)).await
    }

    async fn heartbeat(&self, beat: &StoreHeartbeat) -> Result<StoreHeartbeatReply, StoreError> {
        let fence = self.read_blocking(|environment, _| {
            let tx = environment.begin_ro_unsync().map_err(not_read)?;
            let db = tx.open_db(None).map_err(not_read)?;
            let found = tx.get::<Vec<u8>>(db.dbi(), &fence_key(&LaneKey::new(""))).map_err(not_decoded)?;
            found.map_or(Ok(LaneFence::default()), |bytes| LaneFence::decode(&bytes))
        });
        self.replicas.record_heartbeat(beat, self.clock.now(), fence.await?.revision)
    }

    async fn now(&self) -> Result<u64, StoreError> {
        Ok(self.clock.now())
    }

    async fn measure(&self) -> Result<StoreUsage, StoreError> {
        let page_bytes = self.page_bytes;
        let bytes = self.read_blocking(move |environment, _| used_bytes(environment, page_bytes)).await?;
        let version = format!("{}.{}", ffi::MDBX_VERSION_MAJOR, ffi::MDBX_VERSION_MINOR);
        Ok(StoreUsage { version, bytes: bytes as u64 })
    }

    fn capabilities(&self) -> StoreCapabilities {
        let (kind, is_synced) = ("mdbx", true);
        StoreCapabilities {
            kind,
            is_synced,
            shared: false,
            durability: "an answered commit is on the disk of this machine",
        }
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(writer) = self.writer.take() {
            // The thread ended by itself, or by a panic that was reported where it happened.
            let _ = writer.join();
        }
    }
}

/// Bytes of a page, which never change.
///
/// The statistics of the environment have them too, but must not be used: they walk every page. While a transaction writes
/// they are taken from that transaction, on the calling thread, and its list of changed pages is sorted while the writer
/// thread uses it.
fn page_bytes(environment: &Environment) -> Result<usize, StoreError> {
    let tx = environment.begin_ro_unsync().map_err(not_read)?;
    let db = tx.open_db(None).map_err(not_read)?;
    Ok(tx.db_stat(&db).map_err(not_read)?.page_size() as usize)
}

/// Bytes of the pages in use. Walks the list of free pages.
fn used_bytes(environment: &Environment, page_bytes: usize) -> Result<usize, StoreError> {
    let used = environment.info().map_err(not_read)?.last_pgno().saturating_add(1);
    let free = environment.freelist().map_err(not_decoded)?;
    Ok(used.saturating_sub(free).saturating_mul(page_bytes))
}

/// Lock of a directory, held until this is dropped.
#[derive(Debug)]
struct StoreDirectoryLock(File);

impl Drop for StoreDirectoryLock {
    fn drop(&mut self) {
        // Closing alone is not enough: a process that is being started holds a copy of the descriptor for a moment.
        let _ = self.0.unlock();
    }
}

/// Makes the directory this process's own.
fn lock_directory(dir: &Path) -> Result<StoreDirectoryLock, StoreError> {
    let unavailable =
        |error: std::io::Error| StoreError::Unavailable { why: format!("{}: {error}", dir.display()) };
    if !dir.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unavailable)?;
    }
    let lock = fs::OpenOptions::new().create(true).append(true).open(dir.join("owner.lock"));
    let lock = lock.map_err(unavailable)?;
    match lock.try_lock() {
        Ok(()) => Ok(StoreDirectoryLock(lock)),
        Err(TryLockError::WouldBlock) => Err(StoreError::Owned { dir: dir.display().to_string() }),
        Err(TryLockError::Error(error)) => Err(unavailable(error)),
    }
}

/// Converts an MDBX error raised where nothing can have changed.
fn not_read(error: MdbxError) -> StoreError {
    let why = error.to_string();
    match error {
        MdbxError::Corrupted | MdbxError::PageNotFound | MdbxError::Panic => StoreError::Damaged { why },
        _ => StoreError::Unavailable { why },
    }
}

fn not_decoded(error: ReadError) -> StoreError {
    match error {
        ReadError::Mdbx(error) => not_read(error),
        ReadError::Decoding(error) => StoreError::Damaged { why: error.to_string() },
    }
}
