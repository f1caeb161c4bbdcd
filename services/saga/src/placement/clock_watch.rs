//! Watch over the store's clock: timers go by it, so a step back makes them late.

use std::time::Duration;

use tokio::time::Instant;

/// A clock that falls behind by more than this from one reading to the next was set back.
const STEP: Duration = Duration::from_secs(1);

/// Compares readings of the store's clock with the time that has passed between them.
#[derive(Debug, Default)]
pub(super) struct ClockWatch {
    /// The last reading in milliseconds since 1970, and when its answer came.
    last: Option<(u64, Instant)>,
}

impl ClockWatch {
    /// Notes a reading that was requested at `sent` and arrived at `received`. Returns by how much the clock was set back since the former
    /// reading, if it was.
    pub(super) fn note(&mut self, sent: Instant, received: Instant, now: u64) -> Option<Duration> {
        let (before, received_before) = self.last.replace((now, received))?;
        // At least this time has passed between the two readings.
        let passed = sent.saturating_duration_since(received_before);
        let expected = Duration::from_millis(before) + passed;
        expected.checked_sub(Duration::from_millis(now)).filter(|back| *back > STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_is_reported_once_and_delays_are_not() {
        const START: u64 = 1_700_000_000_000;
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let mut watch = ClockWatch::default();
        for (sent, received, now, expected) in [
            (0, 10, START, None),
            (1_000, 1_010, START + 1_005, None),
            // The answer took long, and was made at its beginning or at its end.
            (2_000, 9_000, START + 2_000, None),
            (9_100, 9_110, START + 9_105, None),
            // A clock that is slow, or corrected by less than a second.
            (10_000, 10_001, START + 9_001, None),
            // Ahead is no harm.
            (11_000, 11_001, START + 600_000, None),
            // By a minute and the second that has passed.
            (12_000, 12_001, START + 540_999, Some(60_000)),
            (13_000, 13_001, START + 541_998, None),
            // A step back while no reading was taken, hidden by the time in between if only readings are compared.
            (43_000, 43_001, START + 542_000, Some(29_997)),
        ] {
            let found = watch.note(at(sent), at(received), now);
            assert_eq!(found, expected.map(Duration::from_millis), "{sent}");
        }
    }
}
