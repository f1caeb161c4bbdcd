//! Streams of the connected routers, which carry acknowledgements and commands to them.

use std::collections::{BTreeMap, VecDeque};

use proto::internal::v1::{LogQuery, ReportResponse, StatusQuery, StopCommand};
use tokio::sync::mpsc;

/// One stream of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReportStreamId(pub u64);

/// Messages that may wait for a router that does not read.
pub const LINK_BUFFER: usize = 1024;

/// Maximum number of stops, and of queries, that wait for a router. Beyond it, the oldest are dropped: an attempt
/// to be stopped is stopped when its supervisor reports it again, and a queried attempt is bounded by its
/// timeouts.
const WAITING_MAX: usize = 100_000;

/// Stops in one message.
const STOPS_AT_ONCE: usize = 1000;
/// Queries in one message: each may name 500 attempts.
const QUERIES_AT_ONCE: usize = 20;

/// Every stream that is open.
#[derive(Debug, Default)]
pub struct ReportStreams {
    links: BTreeMap<ReportStreamId, mpsc::Sender<ReportResponse>>,
    handled: BTreeMap<ReportStreamId, Vec<u64>>,
    stops: VecDeque<StopCommand>,
    queries: VecDeque<StatusQuery>,
}

impl ReportStreams {
    /// A router has connected.
    pub fn add(&mut self, id: ReportStreamId, sender: mpsc::Sender<ReportResponse>) {
        self.links.insert(id, sender);
    }

    /// Ends a stream: its router opens another one and resends unacknowledged reports.
    pub fn close(&mut self, id: ReportStreamId) {
        self.links.remove(&id);
        self.handled.remove(&id);
    }

    /// Ends every stream.
    pub fn close_all(&mut self) {
        self.links.clear();
        self.handled.clear();
        self.stops.clear();
        self.queries.clear();
    }

    /// Notes that a report needs no repeating; sent with the next [`ReportStreams::flush`].
    pub fn acknowledge(&mut self, (link, report): (ReportStreamId, u64)) {
        self.handled.entry(link).or_default().push(report);
    }

    /// Notes an attempt to stop; sent with the next [`ReportStreams::flush`].
    pub fn stop(&mut self, command: StopCommand) {
        push_bounded(&mut self.stops, command);
    }

    /// Notes attempts to query; sent with the next [`ReportStreams::flush`].
    pub fn query(&mut self, query: StatusQuery) {
        push_bounded(&mut self.queries, query);
    }

    /// Sends the routers everything that was noted. Messages that they cannot take now go with the next flush.
    pub fn flush(&mut self) {
        for (id, handled) in std::mem::take(&mut self.handled) {
            if let ReportSendOutcome::Full(answer) =
                self.send(id, ReportResponse { handled, ..Default::default() })
            {
                self.handled.insert(id, answer.handled);
            }
        }
        while let Some(command) = self.next_command() {
            let Some(unsent) = self.send_to_any(command) else { continue };
            for stop in unsent.stops.into_iter().rev() {
                self.stops.push_front(stop);
            }
            for query in unsent.queries.into_iter().rev() {
                self.queries.push_front(query);
            }
            return;
        }
    }

    /// Some of the stops and queries that wait; nothing when none do.
    fn next_command(&mut self) -> Option<ReportResponse> {
        let stops: Vec<_> = self.stops.drain(..self.stops.len().min(STOPS_AT_ONCE)).collect();
        let queries: Vec<_> = self.queries.drain(..self.queries.len().min(QUERIES_AT_ONCE)).collect();
        let is_empty = stops.is_empty() && queries.is_empty();
        (!is_empty).then_some(ReportResponse { stops, queries, ..Default::default() })
    }

    /// Sends a query for a piece of output; returns the stream that took it. Nothing when no router can take
    /// it now.
    pub fn read_log(&mut self, query: LogQuery) -> Option<ReportStreamId> {
        let mut command = ReportResponse { log_queries: vec![query], ..Default::default() };
        for id in self.links.keys().copied().collect::<Vec<_>>() {
            match self.send(id, command) {
                ReportSendOutcome::Sent => return Some(id),
                ReportSendOutcome::Full(unsent) | ReportSendOutcome::Gone(unsent) => command = unsent,
            }
        }
        None
    }

    /// Returns the command when no router can take it now.
    fn send_to_any(&mut self, mut command: ReportResponse) -> Option<ReportResponse> {
        for id in self.links.keys().copied().collect::<Vec<_>>() {
            match self.send(id, command) {
                ReportSendOutcome::Sent => return None,
                ReportSendOutcome::Full(unsent) | ReportSendOutcome::Gone(unsent) => command = unsent,
            }
        }
        Some(command)
    }

    fn send(&mut self, id: ReportStreamId, answer: ReportResponse) -> ReportSendOutcome {
        let Some(link) = self.links.get(&id) else { return ReportSendOutcome::Gone(answer) };
        match link.try_send(answer) {
            Ok(()) => ReportSendOutcome::Sent,
            Err(mpsc::error::TrySendError::Full(answer)) => ReportSendOutcome::Full(answer),
            Err(mpsc::error::TrySendError::Closed(answer)) => {
                self.links.remove(&id);
                ReportSendOutcome::Gone(answer)
            }
        }
    }
}

fn push_bounded<T>(waiting: &mut VecDeque<T>, one: T) {
    if waiting.len() == WAITING_MAX {
        waiting.pop_front();
    }
    waiting.push_back(one);
}

/// Outcome of sending an answer.
enum ReportSendOutcome {
    Sent,
    Full(ReportResponse),
    Gone(ReportResponse),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_wait_for_a_router() {
        let mut routers = ReportStreams::default();
        routers.stop(StopCommand { job_key: "k".into(), ..Default::default() });
        routers.flush();
        let (sender, gone) = mpsc::channel(1);
        drop(gone);
        routers.add(ReportStreamId(1), sender);
        let (sender, mut answers) = mpsc::channel(1);
        routers.add(ReportStreamId(2), sender);
        routers.flush();
        assert_eq!(answers.try_recv().expect("the stop").stops[0].job_key, "k");
        routers.acknowledge((ReportStreamId(2), 7));
        routers.flush();
        assert_eq!(answers.try_recv().expect("an acknowledgement").handled, [7]);
    }

    #[test]
    fn many_commands_go_in_messages_of_bounded_size_and_in_order() {
        let mut routers = ReportStreams::default();
        let (sender, mut answers) = mpsc::channel(2);
        routers.add(ReportStreamId(1), sender);
        for i in 0..2 * STOPS_AT_ONCE + 1 {
            routers.stop(StopCommand { runner_id: u32::try_from(i).expect("small"), ..Default::default() });
        }
        routers.flush();
        let mut take = || answers.try_recv().map(|answer| answer.stops).unwrap_or_default();
        let mut seen = Vec::new();
        for expected in [STOPS_AT_ONCE, STOPS_AT_ONCE, 0] {
            let stops = take();
            assert_eq!(stops.len(), expected, "as many messages as there is room for");
            seen.extend(stops.iter().map(|stop| stop.runner_id));
        }
        routers.flush();
        seen.extend(take().iter().map(|stop| stop.runner_id));
        assert_eq!(seen, (0..=u32::try_from(2 * STOPS_AT_ONCE).expect("small")).collect::<Vec<_>>());
    }

    #[test]
    fn a_log_query_is_sent_to_a_stream_that_can_take_it() {
        let mut routers = ReportStreams::default();
        let query = |query_id| LogQuery { query_id, ..Default::default() };
        assert_eq!(routers.read_log(query(1)), None);
        let (sender, mut answers) = mpsc::channel(1);
        for id in [1, 2] {
            let (gone, _) = mpsc::channel(1);
            routers.add(ReportStreamId(id), if id == 2 { sender.clone() } else { gone });
        }
        assert_eq!(routers.read_log(query(2)), Some(ReportStreamId(2)));
        assert_eq!(routers.read_log(query(3)), None, "it has not read the one before");
        assert_eq!(answers.try_recv().expect("a query").log_queries, [query(2)]);
    }

    #[test]
    fn commands_without_a_router_are_bounded() {
        let mut routers = ReportStreams::default();
        for _ in 0..WAITING_MAX + 1 {
            routers.query(StatusQuery::default());
        }
        assert_eq!(routers.queries.len(), WAITING_MAX);
    }
}
