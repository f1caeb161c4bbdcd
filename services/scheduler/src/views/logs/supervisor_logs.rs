//! Reads output before the tail that storage keeps: at the supervisor, piece by piece.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use model::limits::LOG_PIECE_BYTES_MAX;
use model::{ContextId, JobKey, RunnerId};
use proto::internal::v1::{LogPiece, LogRefusal};
use proto::v1::{LogGap, LogGapReason};
use tokio::time::Instant;

use crate::log_reads::{LogPieceRequest, LogReadClient};

/// Maximum size of a piece, in bytes. However its characters are escaped on the way, it stays below the limit of every bus.
pub const PIECE_BYTES_MAX: u64 = LOG_PIECE_BYTES_MAX as u64 / 2;
/// Time for which a supervisor that could not be reached is not asked again.
const AWAY: Duration = Duration::from_secs(30);
/// Maximum rest of a character that was cut, in bytes.
const CHARACTER_REST_MAX: u64 = 3;
/// Minimum length of a read: long enough to reach beyond the character in which it begins.
const REQUESTED_MIN: u64 = 8;

/// Reads one flow's output at supervisors, for one reader.
#[derive(Debug)]
pub struct SupervisorLogReader {
    log_reads: LogReadClient,
    context: ContextId,
    away: HashMap<RunnerId, (Instant, LogRefusal)>,
}

/// Segment of an attempt's output.
#[derive(Debug, PartialEq, Eq)]
pub enum LogSegment {
    /// Output of the attempt.
    Data(Bytes),
    /// The rest cannot be read.
    Gap(LogGap),
}

impl SupervisorLogReader {
    /// Creates a reader that has read nothing yet.
    #[must_use]
    pub fn new(log_reads: LogReadClient, context: ContextId) -> Self {
        Self { log_reads, context, away: HashMap::new() }
    }

    /// Reads the first part of the wanted range, which is not empty. Cancel safe.
    pub async fn read(
        &mut self,
        runner: Option<RunnerId>,
        job_key: JobKey,
        wanted: &Range<u64>,
    ) -> LogSegment {
        let Some(runner) = runner else {
            return LogSegment::Gap(gap(wanted, LogGapReason::NotKept, "its runner is not known"));
        };
        if let Some((since, refusal)) = self.away.get(&runner)
            && since.elapsed() < AWAY
        {
            return LogSegment::Gap(gap(wanted, refusal.reason(), &refusal.detail));
        }
        let request = request_for(self.context, runner, job_key, wanted);
        match self.log_reads.read(request).await {
            Ok(piece) => part(&piece, wanted),
            Err(refusal) => {
                let segment = LogSegment::Gap(gap(wanted, refusal.reason(), &refusal.detail));
                if refusal.reason() == LogGapReason::Unreachable {
                    self.away.insert(runner, (Instant::now(), refusal));
                }
                segment
            }
        }
    }
}

/// Builds the request for a wanted range. Supervisors return whole characters and begin at the next one, so the request
/// extends the range to the earliest start of its first character and the latest end of its last one.
fn request_for(
    context: ContextId,
    runner: RunnerId,
    job_key: JobKey,
    wanted: &Range<u64>,
) -> LogPieceRequest {
    let offset = wanted.start.saturating_sub(CHARACTER_REST_MAX);
    let length = (wanted.end + CHARACTER_REST_MAX - offset).clamp(REQUESTED_MIN, PIECE_BYTES_MAX);
    let limit = u32::try_from(length).unwrap_or(u32::MAX);
    LogPieceRequest { context, runner, job_key, offset, limit }
}

/// Cuts the wanted part out of a piece.
fn part(piece: &LogPiece, wanted: &Range<u64>) -> LogSegment {
    let LogPiece { offset, data, next_offset } = piece;
    let length = data.len() as u64;
    if offset.checked_add(length) != Some(*next_offset) {
        let detail = "the output that its supervisor keeps is not valid text";
        return LogSegment::Gap(gap(wanted, LogGapReason::NotKept, detail));
    }
    if *next_offset <= wanted.start || *offset > wanted.start {
        let detail = "its supervisor does not keep this part of the output";
        return LogSegment::Gap(gap(wanted, LogGapReason::NotKept, detail));
    }
    let within = |byte: u64| usize::try_from(byte - offset).unwrap_or(usize::MAX).min(data.len());
    LogSegment::Data(data.slice(within(wanted.start)..within(wanted.end.min(*next_offset))))
}

/// Makes the gap for output that cannot be read.
pub fn gap(wanted: &Range<u64>, reason: LogGapReason, detail: &str) -> LogGap {
    LogGap { end: wanted.end, reason: reason.into(), detail: detail.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uid;
    use model::{Attempt, ContextUid, FlowUid, JobId};

    fn key() -> JobKey {
        let (context, flow) = (ContextUid(Uid::from_bits(1)), FlowUid(Uid::from_bits(2)));
        JobKey { context, flow, job: JobId(3), attempt: Attempt(1) }
    }

    /// Answers as a supervisor does: whole characters, from the next one on.
    fn answer(text: &str, request: &LogPieceRequest) -> LogPiece {
        let boundary = |mut at: usize, step: isize| {
            while !text.is_char_boundary(at) {
                at = at.checked_add_signed(step).expect("within");
            }
            at
        };
        let from = boundary(usize::try_from(request.offset).expect("small").min(text.len()), 1);
        let end = boundary((from + request.limit as usize).min(text.len()), -1);
        LogPiece { offset: from as u64, data: text[from..end].to_owned().into(), next_offset: end as u64 }
    }

    #[test]
    fn each_byte_of_any_requested_range_is_returned_once() {
        let text = "aä€😀".repeat(3);
        let bytes = text.as_bytes();
        for start in 0..bytes.len() {
            for end in start + 1..=bytes.len() {
                let (mut wanted, mut received) = (start as u64..end as u64, Vec::new());
                while !wanted.is_empty() {
                    let request = request_for(ContextId(1), RunnerId(1), key(), &wanted);
                    let request = LogPieceRequest { limit: 8, ..request };
                    let LogSegment::Data(data) = part(&answer(&text, &request), &wanted) else {
                        panic!("{wanted:?} is there");
                    };
                    assert!(!data.is_empty(), "it goes on");
                    wanted.start += data.len() as u64;
                    received.extend(data);
                }
                assert_eq!(received, &bytes[start..end], "from {start} to {end}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_a_gap() {
        let reason = |piece: &LogPiece, wanted: Range<u64>| match part(piece, &wanted) {
            LogSegment::Gap(gap) => (gap.end, gap.reason()),
            LogSegment::Data(data) => panic!("{data:?}"),
        };
        let short = LogPiece { offset: 4, data: "abc".into(), next_offset: 7 };
        assert_eq!(reason(&short, 7..20), (20, LogGapReason::NotKept), "the file ends before");
        assert_eq!(reason(&short, 3..20), (20, LogGapReason::NotKept), "it begins behind");
        assert_eq!(reason(&LogPiece::default(), 0..20), (20, LogGapReason::NotKept), "it is empty");
        let replaced = LogPiece { next_offset: 5, ..short.clone() };
        assert_eq!(reason(&replaced, 4..20), (20, LogGapReason::NotKept));
        let hostile = LogPiece { offset: u64::MAX, ..short };
        assert_eq!(reason(&hostile, 4..20), (20, LogGapReason::NotKept));
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_be_reached_is_left_alone_for_a_while() {
        let log_reads = LogReadClient::default();
        let mut before = SupervisorLogReader::new(log_reads.clone(), ContextId(1));
        let detail = "no answer came from the supervisor within 10 s";
        let unreachable = LogSegment::Gap(gap(&(0..9), LogGapReason::Unreachable, detail));
        let began = Instant::now();
        for _ in 0..9 {
            assert_eq!(before.read(Some(RunnerId(1)), key(), &(0..9)).await, unreachable);
        }
        assert_eq!(began.elapsed(), Duration::from_secs(10), "asked once");
        tokio::time::advance(AWAY).await;
        assert_eq!(before.read(Some(RunnerId(1)), key(), &(0..9)).await, unreachable);
        assert_eq!(began.elapsed(), Duration::from_secs(50), "and again");
        let LogSegment::Gap(unknown) = before.read(None, key(), &(0..9)).await else {
            panic!("nobody to ask")
        };
        assert_eq!(unknown.reason(), LogGapReason::NotKept);
    }
}
