//! Evaluation of a batch, shared by the stores that evaluate batches in this process.

use bytes::Bytes;

use crate::row::{LaneFence, StoredRow};
use crate::{CommitOutcome, RowBatch, RowCondition, RowKey, RowOperation, StoreError};

/// The rows of one lane, under exclusive access.
pub(crate) trait RowAccess {
    fn get(&self, key: &RowKey) -> Result<Option<StoredRow>, StoreError>;
    fn put(&mut self, key: &RowKey, row: &StoredRow) -> Result<(), StoreError>;
    fn delete(&mut self, key: &RowKey) -> Result<(), StoreError>;
}

/// Returns why a batch changes nothing; `None` when it is to be applied.
pub(crate) fn evaluate(
    rows: &impl RowAccess,
    batch: &RowBatch,
    fence: LaneFence,
    now: u64,
) -> Result<Option<CommitOutcome>, StoreError> {
    if batch.epoch != fence.epoch {
        return Ok(Some(CommitOutcome::Fenced { epoch: fence.epoch }));
    }
    for expect in &batch.conditions {
        let (RowCondition::Absent(key) | RowCondition::Revision(key, _)) = expect;
        let row = rows.get(key)?.filter(|row| row.is_live(now));
        let found = row.map_or(0, |row| row.versioned.revision);
        let wanted = match expect {
            RowCondition::Absent(_) if found > 0 => return Ok(Some(CommitOutcome::Exists(key.clone()))),
            RowCondition::Absent(_) => 0,
            RowCondition::Revision(_, wanted) => *wanted,
        };
        if found != wanted {
            return Ok(Some(CommitOutcome::Conflict { key: key.clone(), found }));
        }
    }
    Ok(None)
}

/// Applies the changes of a batch. On an error the caller must undo those already made.
pub(crate) fn apply(
    rows: &mut impl RowAccess,
    batch: &RowBatch,
    revision: u64,
    now: u64,
) -> Result<(), StoreError> {
    for op in &batch.ops {
        match op {
            RowOperation::Put(key, value) => rows.put(key, &StoredRow::new(value.clone(), revision, 0))?,
            // A row that has expired already is absent; 0 would keep it forever.
            RowOperation::PutUntil(key, _, until) if *until <= now => rows.delete(key)?,
            RowOperation::PutUntil(key, value, until) => {
                rows.put(key, &StoredRow::new(value.clone(), revision, *until))?
            }
            RowOperation::Delete(key) => rows.delete(key)?,
            RowOperation::Raise(key, least) => {
                let row = rows.get(key)?.filter(|row| row.is_live(now));
                let before = row.map(|row| number(&row.versioned.value)).transpose()?;
                if before.is_none_or(|before| before < *least) {
                    let value = Bytes::from(format!("{least:020}"));
                    rows.put(key, &StoredRow::new(value, revision, 0))?;
                }
            }
        }
    }
    Ok(())
}

fn number(value: &[u8]) -> Result<u64, StoreError> {
    let text = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    text.ok_or_else(|| StoreError::Damaged { why: "a row that is raised is no number".to_owned() })
}
