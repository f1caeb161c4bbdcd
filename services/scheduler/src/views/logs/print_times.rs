//! Times at which an attempt's output was printed.

use std::ops::Range;

use model::Timestamp;
use proto::convert::time;
use proto::v1::LogTime;

/// When the parts of one attempt's output were printed, by their first bytes. Each time holds up to the next.
#[derive(Debug, Clone, Default)]
pub struct PrintTimes(Vec<LogTime>);

impl PrintTimes {
    /// The times that storage keeps, in the order of the bytes.
    #[must_use]
    pub const fn new(times: Vec<LogTime>) -> Self {
        Self(times)
    }

    /// The times that hold within a piece, the first one from where the piece begins.
    #[must_use]
    pub fn within(&self, piece: &Range<u64>) -> Vec<LogTime> {
        let before = self.0.iter().take_while(|time| time.offset <= piece.start).count();
        let held = self.0.iter().skip(before.saturating_sub(1)).take_while(|time| time.offset < piece.end);
        held.map(|held| LogTime { offset: held.offset.max(piece.start), time: held.time }).collect()
    }

    /// Returns the first byte that was printed at `since` or later; nothing when all was printed before. Without any known
    /// time it is the first byte of all.
    #[must_use]
    pub fn first_since(&self, since: Timestamp) -> Option<u64> {
        if self.0.is_empty() {
            return Some(0);
        }
        let first = self.0.iter().find(|held| time::required(held.time) >= since);
        first.map(|held| held.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(times: &[(u64, u64)]) -> PrintTimes {
        let time = |millis| Some(time::to_wire(Timestamp::from_millis(millis)));
        PrintTimes::new(times.iter().map(|&(offset, at)| LogTime { offset, time: time(at) }).collect())
    }

    #[test]
    fn a_piece_has_the_times_of_its_bytes() {
        let known = times(&[(4, 1000), (9, 2000), (20, 3000)]);
        let within = |piece: Range<u64>| -> Vec<(u64, u64)> {
            let held = known.within(&piece);
            held.iter().map(|held| (held.offset, time::required(held.time).as_millis())).collect()
        };
        assert_eq!(within(0..4), []);
        assert_eq!(within(0..5), [(4, 1000)]);
        assert_eq!(within(6..20), [(6, 1000), (9, 2000)]);
        assert_eq!(within(9..30), [(9, 2000), (20, 3000)]);
        assert_eq!(within(50..60), [(50, 3000)]);
        assert!(times(&[]).within(&(0..9)).is_empty());
    }

    #[test]
    fn what_was_printed_before_a_moment_is_left_out() {
        let known = times(&[(0, 1000), (9, 2000)]);
        let first = |millis| known.first_since(Timestamp::from_millis(millis));
        assert_eq!([first(500), first(1001), first(2000), first(2001)], [Some(0), Some(9), Some(9), None]);
        assert_eq!(times(&[]).first_since(Timestamp::from_millis(9)), Some(0), "nobody knows");
    }
}
