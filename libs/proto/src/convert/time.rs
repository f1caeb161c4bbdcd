//! Moments.

use model::Timestamp;

/// To the wire.
#[must_use]
pub fn to_wire(time: Timestamp) -> prost_types::Timestamp {
    let millis = time.as_millis();
    prost_types::Timestamp {
        seconds: i64::try_from(millis / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(millis % 1000 * 1_000_000).unwrap_or_default(),
    }
}

/// How long something took, to the wire.
#[must_use]
pub fn duration_to_wire(duration: std::time::Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

/// From the wire; moments before 1970 become 1970.
#[must_use]
pub fn from_wire(time: prost_types::Timestamp) -> Timestamp {
    let secs = u64::try_from(time.seconds).unwrap_or_default();
    let nanos = u64::try_from(time.nanos).unwrap_or_default();
    Timestamp::from_millis(secs.saturating_mul(1000).saturating_add(nanos / 1_000_000))
}

/// From a field that must be there.
#[must_use]
pub fn required(time: Option<prost_types::Timestamp>) -> Timestamp {
    time.map(from_wire).unwrap_or_default()
}
