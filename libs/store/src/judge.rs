//! What becomes of a batch, the same in every store that judges in this process.

use bytes::Bytes;

use crate::row::{Fence, Row};
use crate::{Batch, Expect, Op, Outcome, RowKey, StoreError};

/// The rows of one lane, while nobody else changes them.
pub(crate) trait Rows {
    fn get(&self, key: &RowKey) -> Result<Option<Row>, StoreError>;
    fn put(&mut self, key: &RowKey, row: &Row) -> Result<(), StoreError>;
    fn delete(&mut self, key: &RowKey) -> Result<(), StoreError>;
}

/// Why a batch changes nothing; nothing when it is to be applied.
pub(crate) fn judge(
    rows: &impl Rows,
    batch: &Batch,
    fence: Fence,
    now: u64,
) -> Result<Option<Outcome>, StoreError> {
    if batch.epoch != fence.epoch {
        return Ok(Some(Outcome::Fenced { epoch: fence.epoch }));
    }
    for expect in &batch.expect {
        let (Expect::Absent(key) | Expect::Revision(key, _)) = expect;
        let row = rows.get(key)?.filter(|row| row.is_there(now));
        let found = row.map_or(0, |row| row.versioned.revision);
        let wanted = match expect {
            Expect::Absent(_) if found > 0 => return Ok(Some(Outcome::Exists(key.clone()))),
            Expect::Absent(_) => 0,
            Expect::Revision(_, wanted) => *wanted,
        };
        if found != wanted {
            return Ok(Some(Outcome::Conflict { key: key.clone(), found }));
        }
    }
    Ok(None)
}

/// Makes its changes. What was done before an error is to be undone by the caller.
pub(crate) fn apply(rows: &mut impl Rows, batch: &Batch, revision: u64, now: u64) -> Result<(), StoreError> {
    for op in &batch.ops {
        match op {
            Op::Put(key, value) => rows.put(key, &Row::new(value.clone(), revision, 0))?,
            // What is over already is not there; 0 would be for ever.
            Op::PutUntil(key, _, until) if *until <= now => rows.delete(key)?,
            Op::PutUntil(key, value, until) => rows.put(key, &Row::new(value.clone(), revision, *until))?,
            Op::Delete(key) => rows.delete(key)?,
            Op::Raise(key, least) => {
                let row = rows.get(key)?.filter(|row| row.is_there(now));
                let before = row.map(|row| number(&row.versioned.value)).transpose()?;
                if before.is_none_or(|before| before < *least) {
                    let value = Bytes::from(format!("{least:020}"));
                    rows.put(key, &Row::new(value, revision, 0))?;
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
