//! Moments, as Unix seconds with milliseconds behind the point.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A moment, in milliseconds since 1970-01-01T00:00:00Z.
///
/// Written as Unix seconds with three decimals (`1763690000.125`) in JSON and
/// in Redis, so that programs that read whole seconds only have to cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// From milliseconds since the epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0 / 1000
    }

    /// The wall clock's present reading. Called by the outermost layer only;
    /// everything below takes the time as an argument.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// From a date and time with its offset, as RFC 3339 has it; nothing for any other text and before 1970.
    #[must_use]
    pub fn from_rfc3339(text: &str) -> Option<Self> {
        let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        u64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok().map(Self)
    }

    /// The date and time in UTC, as RFC 3339 has it, with milliseconds where there are any.
    #[must_use]
    pub fn rfc3339(self) -> String {
        let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000).ok();
        // Beyond the year 9999 there is no such text.
        time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| self.to_string())
    }

    /// How long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

impl std::str::FromStr for Timestamp {
    type Err = crate::id::ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error =
            || crate::id::ParseIdError { kind: "time (Unix seconds)", text: text.chars().take(80).collect() };
        let (secs, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let secs: u64 = secs.parse().map_err(|_| error())?;
        if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
            return Err(error());
        }
        let millis = fraction.bytes().chain(*b"000").take(3).fold(0, |sum, b| sum * 10 + u64::from(b - b'0'));
        secs.checked_mul(1000).and_then(|ms| ms.checked_add(millis)).map(Self).ok_or_else(error)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds until the year 287396 are exact in an f64"
        )]
        s.serialize_f64(self.0 as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let secs = f64::deserialize(d)?;
        if !(0.0..=9.0e12).contains(&secs) {
            return Err(serde::de::Error::custom("a time is Unix seconds, not negative"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range was checked just above"
        )]
        Ok(Self((secs * 1000.0).round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_and_json_round_trip(ms in 0_u64..4_000_000_000_000) {
            let time = Timestamp::from_millis(ms);
            prop_assert_eq!(time.to_string().parse::<Timestamp>(), Ok(time));
            prop_assert_eq!(Timestamp::from_rfc3339(&time.rfc3339()), Some(time));
            let json = serde_json::to_string(&time).expect("a number");
            prop_assert_eq!(serde_json::from_str::<Timestamp>(&json).expect("its own text"), time);
        }
    }
}
