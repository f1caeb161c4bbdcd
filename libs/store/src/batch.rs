//! A change of rows of one lane, and what becomes of it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::StoreError;

/// A lane and a key within it, together, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// A value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;
/// Conditions and changes of one batch.
pub const ROWS_MAX: usize = 1000;
/// All values of one batch, in bytes.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Lane that owns rows, as written in keys: `s:acme:order:3`. Empty for rows that belong to no lane. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey(Arc<str>);

/// A key within a lane: `journal:order-1:00000000000000000003`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey(Arc<str>);

macro_rules! texts {
    ($($name:ident)*) => {$(
        impl $name {
            /// From its text, which its user encoded: nothing is escaped here.
            #[must_use]
            pub fn new(text: &str) -> Self {
                Self(text.into())
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    )*};
}

texts!(LaneKey RowKey);

/// A condition of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowCondition {
    /// The row does not exist: if it does, the batch was already applied.
    Absent(RowKey),
    /// The row has this revision; 0 for a row that does not exist.
    Revision(RowKey, u64),
}

/// A change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowOperation {
    /// Writes it.
    Put(RowKey, Bytes),
    /// Writes it, until this moment in milliseconds since 1970.
    PutUntil(RowKey, Bytes, u64),
    /// Removes it, if it is there.
    Delete(RowKey),
    /// Makes a number of it that is at least this one, in twenty digits.
    Raise(RowKey, u64),
}

impl RowOperation {
    /// The row that is changed.
    #[must_use]
    pub const fn key(&self) -> &RowKey {
        match self {
            Self::Put(key, _) | Self::PutUntil(key, _, _) | Self::Delete(key) | Self::Raise(key, _) => key,
        }
    }
}

/// A change of rows of one lane: all of it, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowBatch {
    /// Lane that owns the rows.
    pub lane: LaneKey,
    /// The epoch in which the lane was taken.
    pub epoch: u64,
    /// Conditions that must hold, checked in this order.
    pub conditions: Vec<RowCondition>,
    /// Changes of rows, made in this order.
    pub ops: Vec<RowOperation>,
}

/// Result of committing a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The change was made. Rows that it wrote have this revision, higher than every earlier one of the lane.
    Committed(u64),
    /// Nothing was changed: this row is there.
    Exists(RowKey),
    /// Nothing was changed: a row has another revision.
    Conflict {
        /// The row.
        key: RowKey,
        /// The revision that it has; 0 when it is not there.
        found: u64,
    },
    /// Nothing was changed: the lane has another owner since.
    Fenced {
        /// The epoch of that.
        epoch: u64,
    },
}

impl RowBatch {
    /// Checks the batch against the limits.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] names what does not.
    pub fn check(&self) -> Result<(), StoreError> {
        let too_large = |what: String, size: usize, most: usize| {
            if size > most { Err(StoreError::TooLarge { what, size, most }) } else { Ok(()) }
        };
        too_large("a commit, in rows,".to_owned(), self.conditions.len() + self.ops.len(), ROWS_MAX)?;
        let mut bytes = 0;
        for op in &self.ops {
            if let RowOperation::Put(key, value) | RowOperation::PutUntil(key, value, _) = op {
                too_large(format!("the value of {}, in bytes,", shown(key)), value.len(), VALUE_BYTES_MAX)?;
                bytes += value.len();
            }
        }
        too_large("a commit, in bytes of values,".to_owned(), bytes, BATCH_BYTES_MAX)?;
        let conditions = self.conditions.iter().map(|expect| match expect {
            RowCondition::Absent(key) | RowCondition::Revision(key, _) => key,
        });
        for key in conditions.chain(self.ops.iter().map(RowOperation::key)) {
            let size = self.lane.as_str().len() + key.as_str().len();
            too_large(format!("the key {}, in bytes,", shown(key)), size, KEY_BYTES_MAX)?;
        }
        Ok(())
    }

    /// Returns true if every operation is a delete, so that the batch creates no row.
    pub(crate) fn only_deletes(&self) -> bool {
        self.ops.iter().all(|op| matches!(op, RowOperation::Delete(_)))
    }
}

/// The beginning of a key, for people.
fn shown(key: &RowKey) -> String {
    key.as_str().chars().take(80).collect()
}
