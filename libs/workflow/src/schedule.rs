//! Sagas that start by the calendar: when, and how missed occurrences are handled.
//!
//! Five fields as in cron, in UTC: time zone tables change, and so would times computed with them.

use std::cmp::Ordering;

use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use croner::{CivilDate, CivilDateTime, CivilTime, CronDateTime, Resolution, Weekday};
use model::{CorrelationId, SagaName, Timestamp};
use time::{Duration, OffsetDateTime};

/// Occurrences that were missed and still start an instance each, at most.
pub const CAUGHT_UP_MAX: usize = 100;
/// An occurrence that fires this many milliseconds after its time is late: the next one may follow at once.
const LATE_MILLIS: u64 = 60_000;

/// Starts by the calendar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Five fields, in UTC.
    pub cron: String,
    /// Policy for occurrences that were missed.
    pub catch_up: CatchUpPolicy,
    pattern: croner::Cron,
}

/// Policy for occurrences that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUpPolicy {
    /// The last one starts an instance.
    Last,
    /// Each of them does, the last hundred at most.
    All,
    /// None does.
    None,
}

/// Actions that follow when an occurrence is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OccurrencePlan {
    /// The occurrence that starts an instance, if one does.
    pub start: Option<Timestamp>,
    /// The occurrence that is waited for next; nothing where the calendar has none any more.
    pub next: Option<Timestamp>,
}

impl Schedule {
    /// Reads five fields.
    ///
    /// # Errors
    /// Problem of the fields, as the rest of a sentence.
    pub fn read(cron: &str, catch_up: CatchUpPolicy) -> Result<Self, String> {
        if cron.split_whitespace().count() != 5 {
            return Err(format!("it has five fields, not {}", cron.split_whitespace().count()));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let pattern = parser.parse(cron).map_err(|error| wrong(&error))?;
        let schedule = Self { cron: cron.to_owned(), catch_up, pattern };
        // For example the thirtieth of February.
        if schedule.after(Timestamp::from_millis(0)).is_none() {
            return Err("there is no such day".to_owned());
        }
        Ok(schedule)
    }

    /// The first occurrence after a moment; nothing where there is none.
    #[must_use]
    pub fn after(&self, moment: Timestamp) -> Option<Timestamp> {
        let found = self.pattern.find_next_occurrence(&UtcMoment::of(moment)?, false).ok()?;
        found.moment()
    }

    /// The last occurrence that is not after a moment; nothing where there is none.
    #[must_use]
    pub fn last(&self, moment: Timestamp) -> Option<Timestamp> {
        // To the second: an occurrence is at the beginning of one.
        let second = Timestamp::from_millis(moment.as_millis() / 1000 * 1000);
        let found = self.pattern.find_previous_occurrence(&UtcMoment::of(second)?, true).ok()?;
        found.moment()
    }

    /// Decides what follows when the occurrence `due` is due, or was missed.
    #[must_use]
    pub fn plan(&self, due: Timestamp, now: Timestamp) -> OccurrencePlan {
        let last = self.last(now).filter(|last| *last >= due).unwrap_or(due);
        let start = match self.catch_up {
            CatchUpPolicy::Last => Some(last),
            CatchUpPolicy::All => Some(self.first_caught_up(due, last)),
            CatchUpPolicy::None => {
                Some(last).filter(|last| now.as_millis().saturating_sub(last.as_millis()) < LATE_MILLIS)
            }
        };
        OccurrencePlan { start, next: self.after(start.unwrap_or(last)) }
    }

    /// The first missed occurrence that is not dropped: only the last hundred are caught up.
    fn first_caught_up(&self, due: Timestamp, last: Timestamp) -> Timestamp {
        let mut first = last;
        for _ in 1..CAUGHT_UP_MAX {
            let before = first.as_millis().checked_sub(1000).map(Timestamp::from_millis);
            match before.and_then(|before| self.last(before)) {
                Some(earlier) if earlier >= due => first = earlier,
                _ => break,
            }
        }
        first
    }
}

/// The correlation of the instance that an occurrence starts: `<saga>@<time>`, as in `report@2026-03-01T03:00:00Z`.
#[must_use]
pub fn correlation(saga: &SagaName, occurrence: Timestamp) -> Option<CorrelationId> {
    format!("{saga}@{}", occurrence.rfc3339()).parse().ok()
}

/// Describes the problem of a pattern, as the rest of a sentence.
fn wrong(error: &CronError) -> String {
    match error {
        CronError::InvalidPattern(why)
        | CronError::IllegalCharacters(why)
        | CronError::ComponentError(why) => why.trim_end_matches('.').to_owned(),
        other => other.to_string().trim_end_matches('.').to_owned(),
    }
}

/// A moment in UTC, as the calendar is searched by.
#[derive(Clone, Copy)]
struct UtcMoment(OffsetDateTime);

impl UtcMoment {
    fn of(moment: Timestamp) -> Option<Self> {
        let seconds = i64::try_from(moment.as_secs()).ok()?;
        OffsetDateTime::from_unix_timestamp(seconds).ok().map(Self)
    }

    fn moment(self) -> Option<Timestamp> {
        let seconds = u64::try_from(self.0.unix_timestamp()).ok()?;
        seconds.checked_mul(1000).map(Timestamp::from_millis)
    }
}

impl CronDateTime for UtcMoment {
    fn to_civil(&self) -> CivilDateTime {
        let (date, time) = (self.0.date(), self.0.time());
        // The parts of a moment are those of a real day.
        CivilDateTime::new(
            CivilDate::from_parts_unchecked(date.year(), u8::from(date.month()).into(), date.day().into()),
            CivilTime::from_parts_unchecked(time.hour().into(), time.minute().into(), time.second().into()),
        )
    }

    fn civil_weekday(&self) -> Weekday {
        Weekday::from_days_from_sunday(self.0.weekday().number_days_from_sunday().into())
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let byte = |number: u32| u8::try_from(number).map_err(|_| CronError::InvalidTime);
        let month = time::Month::try_from(byte(civil.month())?).map_err(|_| CronError::InvalidDate)?;
        let date = time::Date::from_calendar_date(civil.year(), month, byte(civil.day())?)
            .map_err(|_| CronError::InvalidDate)?;
        let clock = time::Time::from_hms(byte(civil.hour())?, byte(civil.minute())?, byte(civil.second())?)
            .map_err(|_| CronError::InvalidTime)?;
        Ok(Resolution::Single(Self(OffsetDateTime::new_utc(date, clock))))
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0.checked_add(Duration::seconds(seconds)).map(Self)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from_rfc3339(text).expect("a moment")
    }

    fn schedule(cron: &str, catch_up: CatchUpPolicy) -> Schedule {
        Schedule::read(cron, catch_up).expect("a good one")
    }

    #[test]
    fn occurrences_are_those_of_the_calendar() {
        for (cron, after, expected) in [
            ("0 3 * * *", "2026-03-01T02:59:59Z", "2026-03-01T03:00:00Z"),
            ("0 3 * * *", "2026-03-01T03:00:00Z", "2026-03-02T03:00:00Z"),
            ("0 3 * * *", "2026-03-01T02:59:59.999Z", "2026-03-01T03:00:00Z"),
            ("*/15 * * * *", "2026-12-31T23:59:00Z", "2027-01-01T00:00:00Z"),
            ("30 6 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T06:30:00Z"),
            // In summer as in winter.
            ("0 2 * * MON", "2026-03-28T12:00:00Z", "2026-03-30T02:00:00Z"),
        ] {
            let found = schedule(cron, CatchUpPolicy::Last).after(at(after)).expect("there is one");
            assert_eq!(found, at(expected), "{cron} after {after}");
        }
        let daily = schedule("0 3 * * *", CatchUpPolicy::Last);
        assert_eq!(daily.last(at("2026-03-01T03:00:00.400Z")), Some(at("2026-03-01T03:00:00Z")));
        assert_eq!(daily.last(at("2026-03-01T02:59:59.999Z")), Some(at("2026-02-28T03:00:00Z")));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for wrong in
            ["* * * *", "0 0 3 * * *", "61 * * * *", "0 25 * * *", "0 3 30 2 *", "@daily", "a b c d e", ""]
        {
            assert!(Schedule::read(wrong, CatchUpPolicy::Last).is_err(), "{wrong}");
        }
    }

    #[test]
    fn missed_occurrences_are_caught_up_as_the_policy_requires() {
        let due = at("2026-03-01T03:00:00Z");
        let plan = |catch_up, now: &str| schedule("*/10 * * * *", catch_up).plan(due, at(now));
        let of =
            |start: Option<&str>, next: &str| OccurrencePlan { start: start.map(at), next: Some(at(next)) };
        // In time: each of them starts.
        for catch_up in [CatchUpPolicy::Last, CatchUpPolicy::All, CatchUpPolicy::None] {
            let expected = of(Some("2026-03-01T03:00:00Z"), "2026-03-01T03:10:00Z");
            assert_eq!(plan(catch_up, "2026-03-01T03:00:00.007Z"), expected, "{catch_up:?}");
        }
        // Two hours later.
        let later = "2026-03-01T05:05:00Z";
        let last = of(Some("2026-03-01T05:00:00Z"), "2026-03-01T05:10:00Z");
        assert_eq!(plan(CatchUpPolicy::Last, later), last);
        assert_eq!(plan(CatchUpPolicy::All, later), of(Some("2026-03-01T03:00:00Z"), "2026-03-01T03:10:00Z"));
        assert_eq!(plan(CatchUpPolicy::None, later), of(None, "2026-03-01T05:10:00Z"));
        // Two days later only the last hundred are made up for.
        let late = plan(CatchUpPolicy::All, "2026-03-03T03:05:00Z");
        assert_eq!(late, of(Some("2026-03-02T10:30:00Z"), "2026-03-02T10:40:00Z"));
        assert_eq!(
            schedule("0 3 * * *", CatchUpPolicy::Last).plan(due, at("2026-03-01T03:00:00Z")).start,
            Some(due)
        );
    }

    #[test]
    fn an_occurrence_has_a_correlation_of_its_own() {
        let saga = "report".parse().expect("a name");
        let found = correlation(&saga, at("2026-03-01T03:00:00Z")).expect("it is short");
        assert_eq!(found.as_str(), "report@2026-03-01T03:00:00Z");
    }
}
