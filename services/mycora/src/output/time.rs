//! Moments and durations as people read them.

use std::time::Duration;

use model::Timestamp;

const DAY_SECS: u64 = 24 * 3600;

/// `2026-11-21 02:30:25 UTC`.
#[must_use]
pub fn utc(time: Timestamp) -> String {
    let (day, clock) = day_and_clock(time);
    format!("{day} {clock} UTC")
}

/// `2026-11-21T02:30:25.125Z`, as RFC 3339 has it and always as wide.
#[must_use]
pub fn exact(time: Timestamp) -> String {
    let (day, clock) = day_and_clock(time);
    format!("{day}T{clock}.{:03}Z", time.as_millis() % 1000)
}

fn day_and_clock(time: Timestamp) -> (String, String) {
    let secs = time.as_secs();
    let (year, month, day) = civil(secs / DAY_SECS);
    let of_day = secs % DAY_SECS;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    (format!("{year:04}-{month:02}-{day:02}"), format!("{hour:02}:{minute:02}:{second:02}"))
}

/// Year, month and day of a day since 1970-01-01, counted in years that begin
/// in March, so that the leap day is the last one.
const fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let days = days + 719_468;
    let era = days / DAYS_OF_400_YEARS;
    let of_era = days % DAYS_OF_400_YEARS;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// `120 ms`, `1.2 s`, `12 s`, `3 min 05 s`, `2 h 10 min`, `5 d 3 h`.
#[must_use]
pub fn duration(length: Duration) -> String {
    let secs = length.as_secs();
    match secs {
        0 => format!("{} ms", length.subsec_millis()),
        1..10 => format!("{}.{} s", secs, length.subsec_millis() / 100),
        10..60 => format!("{secs} s"),
        60..3600 => format!("{} min {:02} s", secs / 60, secs % 60),
        3600..DAY_SECS => format!("{} h {:02} min", secs / 3600, secs / 60 % 60),
        _ => format!("{} d {} h", secs / DAY_SECS, secs % DAY_SECS / 3600),
    }
}

/// How long ago it was, or `-` for never.
#[must_use]
pub fn ago(now: Timestamp, time: Option<Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{} ago", duration(now.since(time))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_dates() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_800_000_000, "2027-01-15 08:00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(Timestamp::from_millis(secs * 1000)), text);
        }
        for moment in [951_782_399_007, 1_800_000_000_000, 1_800_000_000_125] {
            let time = Timestamp::from_millis(moment);
            assert_eq!(Timestamp::from_rfc3339(&exact(time)), Some(time));
            assert_eq!(exact(time).len(), 24);
        }
    }

    #[test]
    fn durations_are_as_exact_as_they_matter() {
        for (millis, text) in [
            (0, "0 ms"),
            (120, "120 ms"),
            (1_250, "1.2 s"),
            (59_999, "59 s"),
            (65_000, "1 min 05 s"),
            (7_800_000, "2 h 10 min"),
            (442_800_000, "5 d 3 h"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
