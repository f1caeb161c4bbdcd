//! Rows as they are kept: a header, and the value.

use bytes::Bytes;

use crate::StoreError;

/// The form of the header.
const FORM: u8 = 1;
const HEADER_BYTES: usize = 17;

/// A value, and the revision that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionedValue {
    /// The value.
    pub value: Bytes,
    /// Higher than that of every row of the lane that was written before.
    pub revision: u64,
}

/// A row with its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredRow {
    pub(crate) versioned: VersionedValue,
    /// Time of expiry, in milliseconds since 1970; 0 for never.
    pub(crate) until: u64,
}

impl StoredRow {
    pub(crate) const fn new(value: Bytes, revision: u64, until: u64) -> Self {
        Self { versioned: VersionedValue { value, revision }, until }
    }

    pub(crate) const fn is_live(&self, now: u64) -> bool {
        self.until == 0 || self.until > now
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.versioned.value.len());
        bytes.push(FORM);
        bytes.extend(self.versioned.revision.to_be_bytes());
        bytes.extend(self.until.to_be_bytes());
        bytes.extend(&self.versioned.value);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let damaged = |why: String| StoreError::Damaged { why };
        let (header, value) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or_else(|| damaged(format!("a row has {} bytes", bytes.len())))?;
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&header[at..at + 8]);
            u64::from_be_bytes(number)
        };
        if header[0] != FORM {
            return Err(damaged(format!("a row has the form {}, this program reads {FORM}", header[0])));
        }
        Ok(Self::new(Bytes::copy_from_slice(value), number(1), number(9)))
    }
}

/// Epoch of a lane's owner, and the revision of the lane's last commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LaneFence {
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
}

impl LaneFence {
    /// Returns the fence for a new owner. No epoch is used twice, even if the last one was forgotten: an epoch is never
    /// below the time.
    pub(crate) fn next_epoch(self, now: u64) -> Self {
        Self { epoch: self.epoch.saturating_add(1).max(now), ..self }
    }

    pub(crate) fn encode(self) -> [u8; 17] {
        let mut bytes = [FORM; 17];
        bytes[1..9].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[9..].copy_from_slice(&self.revision.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let row = StoredRow::decode(bytes)?;
        // Same layout as a row, without a value.
        Ok(Self { epoch: row.versioned.revision, revision: row.until })
    }
}
