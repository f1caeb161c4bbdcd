//! Stored tails of the output of attempts.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::join_all;
use model::{ContextId, FlowId, JobKey, RunnerId, Timestamp, limits};

use crate::error::{Error, Result};
use crate::scripts;
use crate::store::Store;

/// A piece of an attempt's output.
#[derive(Debug, Clone)]
pub(crate) struct AttemptLogChunk {
    /// The attempt.
    pub(crate) key: JobKey,
    /// Where the flow runs.
    pub(crate) context: ContextId,
    /// The flow.
    pub(crate) flow: FlowId,
    /// Where in the output the piece begins, in bytes.
    pub(crate) offset: u64,
    /// The piece.
    pub(crate) data: Bytes,
    /// Runner record of the supervisor that sent the piece.
    pub(crate) runner: Option<RunnerId>,
    /// Time at which the piece's first byte was printed, by the machine's clock.
    pub(crate) time: Option<Timestamp>,
}

/// First byte printed at a time, and that time.
pub(crate) type PrintTime = (u64, Timestamp);

/// Parses stored print times, `<byte>:<Unix milliseconds>` separated by spaces and ordered by byte. Returns those that hold
/// from `offset` on.
pub(crate) fn times_from(text: &str, offset: u64) -> Vec<PrintTime> {
    let read = |part: &str| {
        let (byte, millis) = part.split_once(':')?;
        Some((byte.parse().ok()?, Timestamp::from_millis(millis.parse().ok()?)))
    };
    let mut times: Vec<PrintTime> = text.split_ascii_whitespace().filter_map(read).collect();
    let before = times.iter().take_while(|(byte, _)| *byte <= offset).count();
    times.drain(..before.saturating_sub(1));
    times
}

/// Log pieces of one attempt, in their order.
#[derive(Debug, Default)]
struct AttemptLogAppend {
    pieces: Vec<(u64, Bytes, Option<Timestamp>)>,
    runner: Option<RunnerId>,
}

impl Store {
    /// Appends pieces, those of one attempt in the given order. Repeating a stored piece changes nothing. Dropped are pieces of
    /// a flow that is gone, of another flow with the same number, or of an attempt that its node has not had.
    pub(crate) async fn append_logs(&self, chunks: Vec<AttemptLogChunk>, now: Timestamp) -> Result<()> {
        let mut attempts: BTreeMap<(ContextId, FlowId, JobKey), AttemptLogAppend> = BTreeMap::new();
        for chunk in chunks {
            let arrived = attempts.entry((chunk.context, chunk.flow, chunk.key)).or_default();
            arrived.pieces.push((chunk.offset, chunk.data, chunk.time));
            arrived.runner = chunk.runner.or(arrived.runner);
        }
        let appends = attempts.into_iter().map(|(attempt, arrived)| self.append_log(attempt, arrived, now));
        join_all(appends).await.into_iter().collect()
    }

    async fn append_log(
        &self,
        (context, flow, key): (ContextId, FlowId, JobKey),
        AttemptLogAppend { pieces, runner }: AttemptLogAppend,
        now: Timestamp,
    ) -> Result<()> {
        let tenant = match self.tenant(context).await {
            Err(Error::NotFound(_)) => return Ok(()),
            tenant => tenant?,
        };
        let (record, nodes) = (tenant.keys.flow(flow), tenant.keys.flow_nodes(flow));
        let log = tenant.keys.log(flow, key.job, key.attempt);
        let touched = scripts::APPEND_LOG.keys([("flow", &record), ("nodes", &nodes), ("log", &log)]);
        let mut call =
            tenant.begin(&scripts::APPEND_LOG, &touched, Some(key.context), now).named(kv::named![
                flow_uid: &key.flow.to_string(),
                flow: flow.0,
                job: key.job.0,
                attempt: key.attempt.0,
                bytes_max: limits::LOG_TAIL_BYTES_MAX,
                runner: runner.map_or(0, |runner| runner.0),
                times_max: limits::LOG_TIMES_MAX,
            ]);
        for (offset, data, time) in &pieces {
            call = call.arg(*offset).arg(time.map_or(0, Timestamp::as_millis)).arg(&data[..]);
        }
        match tenant.call(call).await {
            Ok(_) | Err(Error::NotFound(_) | Error::ContextDeleting) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_holds_at_a_byte_is_given_with_those_behind_it() {
        let times = |offset| -> Vec<u64> {
            times_from("4:1000 9:2000 20:3000", offset).into_iter().map(|(byte, _)| byte).collect()
        };
        for (offset, held) in [(0, &[4, 9, 20][..]), (8, &[4, 9, 20]), (9, &[9, 20]), (99, &[20])] {
            assert_eq!(times(offset), held, "{offset}");
        }
        assert_eq!(times_from("", 0), []);
        assert_eq!(
            times_from("x 1 :2 3:4", 0),
            [(3, Timestamp::from_millis(4))],
            "others may have written it"
        );
    }
}
