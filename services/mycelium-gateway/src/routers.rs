//! Routes supervisors' events to routers, and keeps those that are not acknowledged yet.
//!
//! Events of a flow go to the same router as long as the same routers are connected, so that
//! they stay in order. Events that a router did not acknowledge before its stream ended are lost on purpose:
//! the supervisor gets no answer, and resends them. An event that is resent while its router still
//! has it unacknowledged is not sent twice: the acknowledgement goes to the latest sender.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use model::{JobKey, NodeReport};
use proto::internal::v1 as wire;
use tokio::sync::{mpsc, oneshot};

use crate::metrics::Metrics;

/// Maximum number of reports and pieces of output that one router has not acknowledged. Further ones are
/// rejected, and supervisors wait.
pub const UNACKNOWLEDGED_MAX: usize = 10_000;

/// Item for a router.
#[derive(Debug)]
pub enum RouterItem {
    /// A report as JSON.
    Report(wire::NumberedReport),
    /// A piece of output.
    Log(wire::NumberedLog),
    /// How a delivery ended.
    Outcome(wire::DeliveryOutcome),
    /// Outcome of a request to forget a context.
    Dropped(wire::DropOutcome),
    /// Outcome of a request to read a piece of output.
    LogRead(wire::LogOutcome),
}

/// Event of a supervisor that has no number yet.
#[derive(Debug)]
pub enum UnnumberedEvent {
    /// A report as JSON.
    Report(Bytes),
    /// A piece of output; its number is set when it is sent to the router.
    Log(wire::NumberedLog),
}

/// Ready when a router has acknowledged the item; an error when its stream ended first.
pub type RouterAck = oneshot::Receiver<()>;

/// Why an item was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouterSendError {
    /// No router is connected.
    #[error("no router is connected")]
    NoRouter,
    /// The router has too much to acknowledge.
    #[error("the router has too many unacknowledged reports")]
    Full,
}

/// Key of an event: the attempt, and its place among the attempt's events.
type AttemptEventKey = (JobKey, u64);

/// All routers that are connected. Clones share them.
#[derive(Debug, Clone)]
pub struct ConnectedRouters {
    state: Arc<Mutex<ConnectedRouterTable>>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct ConnectedRouterTable {
    next_session: u64,
    sessions: BTreeMap<u64, ConnectedRouter>,
}

#[derive(Debug)]
struct ConnectedRouter {
    items: mpsc::UnboundedSender<RouterItem>,
    next_report: u64,
    unacknowledged: HashMap<u64, UnacknowledgedItem>,
    /// Report ids of the unacknowledged events.
    events: HashMap<AttemptEventKey, u64>,
}

/// Item that a router has not acknowledged.
#[derive(Debug)]
struct UnacknowledgedItem {
    done: oneshot::Sender<()>,
    event: Option<AttemptEventKey>,
}

impl ConnectedRouter {
    fn send(
        &mut self,
        sent: UnnumberedEvent,
        event: Option<AttemptEventKey>,
    ) -> Result<RouterAck, RouterSendError> {
        let (done, handled) = oneshot::channel();
        if let Some(report_id) = event.and_then(|event| self.events.get(&event))
            && let Some(open) = self.unacknowledged.get_mut(report_id)
        {
            // The previous sender has stopped waiting.
            open.done = done;
            return Ok(handled);
        }
        if self.unacknowledged.len() >= UNACKNOWLEDGED_MAX {
            return Err(RouterSendError::Full);
        }
        self.next_report += 1;
        let report_id = self.next_report;
        let item = match sent {
            UnnumberedEvent::Report(report_json) => {
                RouterItem::Report(wire::NumberedReport { report_id, report_json })
            }
            UnnumberedEvent::Log(log) => RouterItem::Log(wire::NumberedLog { report_id, ..log }),
        };
        self.items.send(item).map_err(|_| RouterSendError::NoRouter)?;
        self.unacknowledged.insert(report_id, UnacknowledgedItem { done, event });
        self.events.extend(event.map(|event| (event, report_id)));
        Ok(handled)
    }

    fn acknowledge(&mut self, report_id: u64) {
        let Some(open) = self.unacknowledged.remove(&report_id) else { return };
        if let Some(event) = open.event {
            self.events.remove(&event);
        }
        // Fails when the sender has stopped waiting.
        open.done.send(()).ok();
    }
}

impl ConnectedRouters {
    /// Creates a table without routers.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self { state: Arc::default(), metrics }
    }

    /// Adds a router that has connected. The channel does not bound its items; [`UNACKNOWLEDGED_MAX`] and the
    /// router's own window of deliveries do.
    #[must_use]
    pub fn join(&self) -> (RouterConnection, mpsc::UnboundedReceiver<RouterItem>) {
        let (items, receiver) = mpsc::unbounded_channel();
        let mut state = self.lock();
        state.next_session += 1;
        let id = state.next_session;
        let session = ConnectedRouter {
            items: items.clone(),
            next_report: 0,
            unacknowledged: HashMap::new(),
            events: HashMap::new(),
        };
        state.sessions.insert(id, session);
        self.metrics.routers.set(i64::try_from(state.sessions.len()).unwrap_or(i64::MAX));
        (RouterConnection { id, items, routers: self.clone() }, receiver)
    }

    /// Sends an event to the router that serves this job's flow. `number` is the event's place among the
    /// job's events.
    ///
    /// # Errors
    /// [`RouterSendError`]; nothing was sent.
    pub fn send(
        &self,
        job: JobKey,
        number: u64,
        sent: UnnumberedEvent,
    ) -> Result<RouterAck, RouterSendError> {
        let mut state = self.lock();
        if state.sessions.is_empty() {
            return Err(RouterSendError::NoRouter);
        }
        let mut hasher = DefaultHasher::new();
        job.flow.hash(&mut hasher);
        let at = usize::try_from(hasher.finish() % state.sessions.len() as u64).unwrap_or_default();
        let session = state.sessions.values_mut().nth(at).ok_or(RouterSendError::NoRouter)?;
        session.send(sent, Some((job, number)))
    }

    fn lock(&self) -> MutexGuard<'_, ConnectedRouterTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One stream of a router; gone when it is dropped.
#[derive(Debug)]
pub struct RouterConnection {
    id: u64,
    items: mpsc::UnboundedSender<RouterItem>,
    routers: ConnectedRouters,
}

impl RouterConnection {
    /// Returns the sender of replies to this router.
    #[must_use]
    pub fn answers(&self) -> RouterReplySender {
        RouterReplySender { session: self.id, items: self.items.clone(), routers: self.routers.clone() }
    }

    /// Acknowledges reports that the router has handled.
    pub fn acknowledge(&self, reports: &[u64]) {
        let mut state = self.routers.lock();
        let Some(session) = state.sessions.get_mut(&self.id) else { return };
        reports.iter().for_each(|report| session.acknowledge(*report));
    }
}

/// Answers one stream of a router. Once the stream has ended, answers are dropped: the router repeats its requests.
#[derive(Debug, Clone)]
pub struct RouterReplySender {
    session: u64,
    items: mpsc::UnboundedSender<RouterItem>,
    routers: ConnectedRouters,
}

impl RouterReplySender {
    /// Sends a report.
    ///
    /// # Errors
    /// [`RouterSendError`]; nothing was sent.
    pub fn report(&self, report: &NodeReport) -> Result<RouterAck, RouterSendError> {
        let json = serde_json::to_vec(report).expect("a report can always be written as JSON");
        let mut state = self.routers.lock();
        let session = state.sessions.get_mut(&self.session).ok_or(RouterSendError::NoRouter)?;
        session.send(UnnumberedEvent::Report(json.into()), None)
    }

    /// Sends the outcome of a request.
    pub fn ended(&self, item: RouterItem) {
        // Without its stream the router does not wait for the outcome.
        self.items.send(item).ok();
    }
}

impl Drop for RouterConnection {
    fn drop(&mut self) {
        let mut state = self.routers.lock();
        state.sessions.remove(&self.id);
        self.routers.metrics.routers.set(i64::try_from(state.sessions.len()).unwrap_or(i64::MAX));
    }
}

/// Packs items into as few messages as their sizes allow: one outcome per message, reports together,
/// output together.
#[must_use]
pub fn frames(items: Vec<RouterItem>) -> Vec<wire::ExchangeResponse> {
    use wire::exchange_response::Frame;
    let mut frames = Vec::new();
    let (mut reports, mut report_bytes) = (Vec::new(), 0);
    let (mut logs, mut log_bytes) = (Vec::new(), 0);
    let max = model::limits::PAGE_BYTES_MAX;
    for item in items {
        match item {
            RouterItem::Outcome(outcome) => frames.push(Frame::Outcome(outcome)),
            RouterItem::Dropped(dropped) => frames.push(Frame::Dropped(dropped)),
            RouterItem::LogRead(outcome) => frames.push(Frame::LogRead(outcome)),
            RouterItem::Report(report) => {
                report_bytes += report.report_json.len() + 16;
                if report_bytes > max && !reports.is_empty() {
                    report_bytes = report.report_json.len() + 16;
                    frames.push(Frame::Reports(wire::Reports { reports: std::mem::take(&mut reports) }));
                }
                reports.push(report);
            }
            RouterItem::Log(log) => {
                log_bytes += log.data.len() + 128;
                if log_bytes > max && !logs.is_empty() {
                    log_bytes = log.data.len() + 128;
                    frames.push(Frame::Logs(wire::Logs { logs: std::mem::take(&mut logs) }));
                }
                logs.push(log);
            }
        }
    }
    if !reports.is_empty() {
        frames.push(Frame::Reports(wire::Reports { reports }));
    }
    if !logs.is_empty() {
        frames.push(Frame::Logs(wire::Logs { logs }));
    }
    frames.into_iter().map(|frame| wire::ExchangeResponse { frame: Some(frame) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uid;
    use model::{Attempt, ContextUid, FlowUid, JobId};

    fn job(flow: u128) -> JobKey {
        JobKey {
            context: ContextUid(Uid::from_bits(1)),
            flow: FlowUid(Uid::from_bits(flow)),
            job: JobId(1),
            attempt: Attempt(1),
        }
    }

    fn routers() -> ConnectedRouters {
        ConnectedRouters::new(Metrics::new(&prometheus::Registry::new()).expect("nothing registered twice"))
    }

    fn report() -> UnnumberedEvent {
        UnnumberedEvent::Report(Bytes::from_static(b"{}"))
    }

    #[test]
    fn the_sender_of_a_report_is_notified_when_it_is_handled() {
        let routers = routers();
        assert_eq!(routers.send(job(1), 1, report()).err(), Some(RouterSendError::NoRouter));
        let (session, mut items) = routers.join();
        let mut first = routers.send(job(1), 1, report()).expect("taken");
        let mut second = routers.send(job(1), 2, report()).expect("taken");
        let Ok(RouterItem::Report(item)) = items.try_recv() else { panic!("a report") };
        session.acknowledge(&[item.report_id, 999]);
        assert_eq!(first.try_recv(), Ok(()));
        assert!(second.try_recv().is_err());
        drop(session);
        assert_eq!(second.try_recv(), Err(oneshot::error::TryRecvError::Closed), "it will never be");
    }

    #[test]
    fn a_flow_stays_with_its_router_and_a_slow_router_takes_no_more() {
        let routers = routers();
        let (_a, mut a_items) = routers.join();
        let (_b, mut b_items) = routers.join();
        for flow in 0..20 {
            for number in 0..3 {
                drop(routers.send(job(flow), number, report()));
            }
        }
        let count = |items: &mut mpsc::UnboundedReceiver<RouterItem>| {
            std::iter::from_fn(|| items.try_recv().ok()).count()
        };
        let (a, b) = (count(&mut a_items), count(&mut b_items));
        assert!(a + b == 60 && a % 3 == 0 && a > 0 && b > 0, "{a} and {b}");
        let mut numbers = 10..;
        let taken = std::iter::from_fn(|| routers.send(job(1), numbers.next()?, report()).ok());
        let taken = taken.take(20_000).count();
        assert!(taken < UNACKNOWLEDGED_MAX, "{taken}");
        assert_eq!(routers.send(job(1), 9, report()).err(), Some(RouterSendError::Full));
    }

    #[test]
    fn a_repeated_event_is_sent_to_the_router_once() {
        let routers = routers();
        let (session, mut items) = routers.join();
        let mut first = routers.send(job(1), 1, report()).expect("taken");
        let mut again = routers.send(job(1), 1, report()).expect("taken");
        assert_eq!(first.try_recv(), Err(oneshot::error::TryRecvError::Closed), "another one waits now");
        let Ok(RouterItem::Report(item)) = items.try_recv() else { panic!("a report") };
        assert!(items.try_recv().is_err(), "the router has it already");
        session.acknowledge(&[item.report_id]);
        assert_eq!(again.try_recv(), Ok(()));
        drop(routers.send(job(1), 1, report()));
        assert!(items.try_recv().is_ok(), "nobody remembers it any more");
    }

    #[test]
    fn what_is_ready_goes_together() {
        let report = |report_id, len: usize| {
            RouterItem::Report(wire::NumberedReport { report_id, report_json: vec![b' '; len].into() })
        };
        let sent = frames(vec![report(1, 10), report(2, 10), RouterItem::Log(wire::NumberedLog::default())]);
        assert_eq!(sent.len(), 2);
        let sent = frames(vec![report(1, 700_000), report(2, 700_000)]);
        assert_eq!(sent.len(), 2);
    }
}
