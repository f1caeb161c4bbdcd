//! Values as they are typed.

use std::io::Read as _;
use std::time::Duration;

use model::Timestamp;
use uuid::Uuid;
use yaml::duration;

use crate::failure::CliError;

/// Reads the number of a flow, a context, an actor or a runner.
pub(super) fn id(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("there is no 0; numbers begin with 1".to_owned()),
        Ok(id) => Ok(id),
        Err(_) => Err(format!("a whole number from 1 to {} is needed", u32::MAX)),
    }
}

/// Reads the key of a message: `message:<caller>:<id>`, also without the `message:` prefix.
pub(super) fn message_key(text: &str) -> Result<String, String> {
    let pair = text.strip_prefix("message:").unwrap_or(text).split_once(':');
    let numbers = pair.and_then(|(caller, id)| Some((caller.parse::<u32>().ok()?, id.parse::<u32>().ok()?)));
    match numbers {
        Some((caller, id)) if id > 0 => Ok(format!("message:{caller}:{id}")),
        _ => Err("write it as message:1:7, the seventh of actor 1; what was received is of 0".to_owned()),
    }
}

/// Reads `NAME=VALUE`.
pub(super) fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// A moment: a time, a day, or how long ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointInTime {
    /// The given time.
    At(Timestamp),
    /// So long before now.
    Ago(Duration),
}

impl PointInTime {
    /// The time, seen from `now`.
    #[must_use]
    pub fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(time) => time,
            Self::Ago(length) => Timestamp::from_millis(
                now.since(Timestamp::from_millis(0))
                    .saturating_sub(length)
                    .as_millis()
                    .try_into()
                    .unwrap_or_default(),
            ),
        }
    }
}

/// Reads `2026-11-21T08:00:00Z`, `2026-11-21` or `90m`.
pub(super) fn moment(text: &str) -> Result<PointInTime, String> {
    let time =
        Timestamp::from_rfc3339(text).or_else(|| Timestamp::from_rfc3339(&format!("{text}T00:00:00Z")));
    if let Some(time) = time {
        return Ok(PointInTime::At(time));
    }
    duration(text).map(PointInTime::Ago).ok_or_else(|| "write a time as 2026-11-21T08:00:00Z, a day as 2026-11-21 (UTC), or how long ago as 90s, 15m, 2h or 7d".to_owned())
}

/// Reads a number of seconds, or a length as [`duration`] does.
pub(super) fn secs(text: &str) -> Result<u32, String> {
    let read = text.parse().ok().or_else(|| u32::try_from(duration(text)?.as_secs()).ok());
    read.ok_or_else(|| "write seconds, or a time as 90s, 5m, 2h or 7d".to_owned())
}

/// Reads a UUID.
pub(super) fn uuid(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| "a UUID is needed, such as `uuidgen` prints".to_owned())
}

/// Reads the text of a file, or of standard input where it is called `-`. Errors name `what` it should be.
///
/// # Errors
/// When it cannot be read, has more bytes than it may, or is no text.
pub(super) fn text_of(path: &str, bytes_max: usize, what: &str) -> Result<String, CliError> {
    let unreadable = |error: std::io::Error| CliError::Invalid(format!("{path}: cannot be read: {error}"));
    let mut bytes = Vec::new();
    let limit = bytes_max as u64 + 1;
    if path == "-" {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
    } else {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
    }
    if bytes.len() > bytes_max {
        return Err(CliError::Invalid(format!("{path}: {what} has at most {bytes_max} bytes")));
    }
    String::from_utf8(bytes)
        .map_err(|_| CliError::Invalid(format!("{path}: {what} is a text in UTF-8, this is not")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_name_and_value() {
        assert_eq!(entry("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(entry("A="), Ok(("A".to_owned(), String::new())));
        assert!(entry("A").is_err() && entry("=b").is_err());
    }

    #[test]
    fn messages_are_named_by_two_numbers() {
        assert_eq!(message_key("message:0:7").as_deref(), Ok("message:0:7"));
        assert_eq!(message_key("1:7").as_deref(), Ok("message:1:7"));
        for wrong in ["", "7", "message:1", "message:1:0", "message:a:1", "job:1:1", "1:2:3"] {
            assert!(message_key(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_begin_with_one() {
        assert_eq!(id("7"), Ok(7));
        assert!(id("0").is_err_and(|text| text.contains("there is no 0")));
        for wrong in ["", "x", "-1", "1.0", "4294967296"] {
            assert!(id(wrong).is_err_and(|text| text.contains("from 1 to 4294967295")), "{wrong}");
        }
    }

    #[test]
    fn moments_are_times_days_and_lengths() {
        let now = Timestamp::from_millis(1_798_135_200_000);
        let read = |text: &str| moment(text).map(|moment| moment.from(now).rfc3339());
        assert_eq!(read("2026-12-24T19:00:00+01:00").as_deref(), Ok("2026-12-24T18:00:00Z"));
        assert_eq!(read("2026-12-24").as_deref(), Ok("2026-12-24T00:00:00Z"));
        assert_eq!(read("90m").as_deref(), Ok("2026-12-24T16:30:00Z"));
        assert_eq!(read("7d").as_deref(), Ok("2026-12-17T18:00:00Z"));
        assert_eq!(read("4294967295d").as_deref(), Ok("1970-01-01T00:00:00Z"));
        for wrong in ["", "d", "7w", "2026-13-01", "soon", "7ü"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
