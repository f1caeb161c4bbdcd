//! The only thread that writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use signet_libmdbx::tx::aliases::RwTxUnsync;
use signet_libmdbx::{Database, Environment, MdbxError, WriteFlags};
use tokio::sync::oneshot;

use super::layout::{FIRST_END, decode_end, end, fence_key, physical};
use super::{DISK_IS_FULL, not_decoded, not_read, used_bytes};
use crate::batch_evaluation::{RowAccess, apply, evaluate};
use crate::row::{LaneFence, StoredRow};
use crate::{Clock, CommitOutcome, LaneKey, RowBatch, RowKey, StoreError};

/// Batches that one commit makes durable.
const GROUP_MAX: usize = 64;
/// Free bytes below which a disk has no room for the pages of a commit.
const FREE_BYTES_MIN: u64 = 64 * 1024;
/// Maximum number of expired rows that one commit removes.
const ENDED_MAX: usize = 64;

/// Sender of the reply to one write request.
type WriteReplySender<T> = oneshot::Sender<Result<T, StoreError>>;

/// Request that the writer thread carries out.
pub(super) enum WriteRequest {
    Commit(RowBatch, WriteReplySender<CommitOutcome>),
    Take(LaneKey, WriteReplySender<u64>),
}

/// Result of a write request, before it is durable.
enum WriteReply {
    Outcome(CommitOutcome),
    Epoch(u64),
}

pub(super) struct StoreWriter {
    environment: Environment,
    clock: Arc<dyn Clock>,
    page_bytes: usize,
    bytes_max: usize,
    dir: PathBuf,
}

impl StoreWriter {
    pub(super) fn new(
        environment: Environment,
        clock: Arc<dyn Clock>,
        page_bytes: usize,
        bytes_max: usize,
        dir: &Path,
    ) -> Self {
        Self { environment, clock, page_bytes, bytes_max, dir: dir.to_owned() }
    }

    /// Writes until every sender of requests is dropped.
    pub(super) fn run(self, requests: &Receiver<WriteRequest>) {
        while let Ok(first) = requests.recv() {
            let mut group = vec![first];
            group.extend(requests.try_iter().take(GROUP_MAX - 1));
            match self.write(&group) {
                Ok(answers) => {
                    group.into_iter().zip(answers).for_each(|(request, answer)| request.answer(answer))
                }
                // A single batch may have made the others fail, so each is retried alone.
                Err(error) if group.len() > 1 && !matches!(error, StoreError::Indeterminate { .. }) => {
                    for request in group {
                        let answer = self.write(std::slice::from_ref(&request));
                        let answer = answer.map(|mut answers| answers.remove(0));
                        request.answer(answer.and_then(|answer| answer));
                    }
                }
                Err(error) => group.into_iter().for_each(|request| request.answer(Err(error.clone()))),
            }
        }
    }

    /// Commits these changes durably, each whose conditions hold. On an error none of them was made, unless it is
    /// `Indeterminate`.
    fn write(&self, group: &[WriteRequest]) -> Result<Vec<Result<WriteReply, StoreError>>, StoreError> {
        let has_room = self.has_room()?;
        let now = self.clock.now();
        let tx = self.environment.begin_rw_unsync().map_err(not_read)?;
        let db = tx.open_db(None).map_err(not_read)?;
        let map = WriteTransaction { tx: &tx, db, writer: self };
        let mut answers = Vec::with_capacity(group.len());
        for request in group {
            answers.push(match request {
                WriteRequest::Commit(batch, _) if !has_room && !batch.only_deletes() => Err(self.full()),
                WriteRequest::Commit(batch, _) => map.commit(batch, now)?.map(WriteReply::Outcome),
                WriteRequest::Take(lane, _) => Ok(WriteReply::Epoch(map.take(lane, now)?)),
            });
        }
        map.remove_expired(now)?;
        tx.commit().map_err(|error| self.not_written(&error, true))?;
        Ok(answers)
    }

    /// Returns true if there is room for more than deletes. Pages that were freed are counted only when they matter.
    fn has_room(&self) -> Result<bool, StoreError> {
        let used = self.environment.info().map_err(not_read)?.last_pgno().saturating_add(1);
        if used.saturating_mul(self.page_bytes) < self.bytes_max {
            return Ok(true);
        }
        Ok(used_bytes(&self.environment, self.page_bytes)? < self.bytes_max)
    }

    fn full(&self) -> StoreError {
        let (most, dir) = (self.bytes_max, self.dir.display());
        StoreError::Full { why: format!("{dir} has the {most} bytes that it may have; let it have more") }
    }

    fn no_space(&self) -> String {
        format!("no space is left on the disk of {}", self.dir.display())
    }

    fn is_disk_full(&self) -> bool {
        let disk = rustix::fs::statvfs(&self.dir);
        disk.is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < FREE_BYTES_MIN)
    }

    /// Converts an MDBX error of a write. A commit that failed other than for lack of room has an unknown outcome.
    fn not_written(&self, error: &MdbxError, is_commit: bool) -> StoreError {
        match error {
            MdbxError::MapFull | MdbxError::TxnFull => self.full(),
            MdbxError::Other(number) if DISK_IS_FULL.contains(number) => {
                StoreError::Full { why: self.no_space() }
            }
            // MDBX reports a failed write when only some of the pages of a commit fit on the disk.
            error if is_commit && self.is_disk_full() => {
                StoreError::Indeterminate { why: format!("{error}, and {}", self.no_space()) }
            }
            error if is_commit => StoreError::Indeterminate { why: error.to_string() },
            error => StoreError::Unavailable { why: error.to_string() },
        }
    }
}

impl WriteRequest {
    /// Sends the answer to the caller, if it still waits.
    fn answer(self, answer: Result<WriteReply, StoreError>) {
        match (self, answer) {
            (Self::Commit(_, waiting), Ok(WriteReply::Outcome(outcome))) => drop(waiting.send(Ok(outcome))),
            (Self::Take(_, waiting), Ok(WriteReply::Epoch(epoch))) => drop(waiting.send(Ok(epoch))),
            (Self::Commit(_, waiting), Err(error)) => drop(waiting.send(Err(error))),
            (Self::Take(_, waiting), Err(error)) => drop(waiting.send(Err(error))),
            // Answers always match the kind of their request.
            (Self::Commit(..), Ok(WriteReply::Epoch(_))) | (Self::Take(..), Ok(WriteReply::Outcome(_))) => {}
        }
    }
}

/// All rows, within one transaction.
struct WriteTransaction<'a> {
    tx: &'a RwTxUnsync,
    db: Database,
    writer: &'a StoreWriter,
}

/// Rows of one lane, within a transaction.
struct LaneRows<'a> {
    map: &'a WriteTransaction<'a>,
    lane: &'a LaneKey,
}

impl WriteTransaction<'_> {
    /// Checks a batch, and makes its changes if its conditions hold. The inner error concerns this batch alone; after the
    /// outer one nothing of the transaction may be committed.
    fn commit(&self, batch: &RowBatch, now: u64) -> Result<Result<CommitOutcome, StoreError>, StoreError> {
        let mut rows = LaneRows { map: self, lane: &batch.lane };
        let judged =
            self.fence(&batch.lane).and_then(|fence| Ok((fence, evaluate(&rows, batch, fence, now)?)));
        let fence = match judged {
            Ok((fence, None)) => LaneFence { revision: fence.revision + 1, ..fence },
            Ok((_, Some(outcome))) => return Ok(Ok(outcome)),
            Err(error) => return Ok(Err(error)),
        };
        apply(&mut rows, batch, fence.revision, now)?;
        self.put_fence(&batch.lane, fence)?;
        Ok(Ok(CommitOutcome::Committed(fence.revision)))
    }

    fn take(&self, lane: &LaneKey, now: u64) -> Result<u64, StoreError> {
        let fence = self.fence(lane)?.next_epoch(now);
        self.put_fence(lane, fence)?;
        Ok(fence.epoch)
    }

    fn fence(&self, lane: &LaneKey) -> Result<LaneFence, StoreError> {
        let bytes = self.get(&fence_key(lane))?;
        bytes.map_or(Ok(LaneFence::default()), |bytes| LaneFence::decode(&bytes))
    }

    fn put_fence(&self, lane: &LaneKey, fence: LaneFence) -> Result<(), StoreError> {
        self.put(&fence_key(lane), &fence.encode())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.tx.get(self.db.dbi(), key).map_err(not_decoded)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let put = self.tx.put(self.db, key, value, WriteFlags::UPSERT);
        put.map_err(|error| self.writer.not_written(&error, false))
    }

    fn delete(&self, key: &[u8]) -> Result<(), StoreError> {
        match self.tx.del(self.db, key, None) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.writer.not_written(&error, false)),
        }
    }

    /// Removes expired rows. Readers ignore them already; this frees their space.
    fn remove_expired(&self, now: u64) -> Result<(), StoreError> {
        for key in self.ended(now)? {
            let Some((until, physical)) = decode_end(&key) else { continue };
            let row = self.get(physical)?.map(|bytes| StoredRow::decode(&bytes)).transpose()?;
            // The row may have been rewritten with another time of expiry.
            if row.is_some_and(|row| row.until == until) {
                self.delete(physical)?;
            }
            self.delete(&key)?;
        }
        Ok(())
    }

    fn ended(&self, now: u64) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut cursor = self.tx.cursor(self.db).map_err(not_read)?;
        let mut ended = Vec::new();
        let mut at = cursor.set_range::<Vec<u8>, ()>(&FIRST_END).map_err(not_decoded)?;
        while let Some((key, ())) = at {
            if ended.len() == ENDED_MAX || decode_end(&key).is_none_or(|(until, _)| until > now) {
                break;
            }
            ended.push(key);
            at = cursor.next::<Vec<u8>, ()>().map_err(not_decoded)?;
        }
        Ok(ended)
    }
}

impl RowAccess for LaneRows<'_> {
    fn get(&self, key: &RowKey) -> Result<Option<StoredRow>, StoreError> {
        self.map.get(&physical(self.lane, key))?.map(|bytes| StoredRow::decode(&bytes)).transpose()
    }

    fn put(&mut self, key: &RowKey, row: &StoredRow) -> Result<(), StoreError> {
        let physical = physical(self.lane, key);
        self.map.put(&physical, &row.encode())?;
        if row.until > 0 {
            self.map.put(&end(row.until, &physical), &[])?;
        }
        Ok(())
    }

    fn delete(&mut self, key: &RowKey) -> Result<(), StoreError> {
        self.map.delete(&physical(self.lane, key))
    }
}
