//! The routers that are connected: acknowledgements and commands go to them.

use std::collections::BTreeMap;

use proto::internal::v1::{ReportResponse, StatusQuery, StopCommand};
use tokio::sync::mpsc;

/// One stream of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Answers that may wait for a router that does not read.
pub const LINK_BUFFER: usize = 1024;

/// Every stream that is open.
#[derive(Debug, Default)]
pub struct Routers {
    links: BTreeMap<LinkId, mpsc::Sender<ReportResponse>>,
    handled: BTreeMap<LinkId, Vec<u64>>,
    stops: Vec<StopCommand>,
    queries: Vec<StatusQuery>,
}

impl Routers {
    /// A router has connected.
    pub fn add(&mut self, id: LinkId, sender: mpsc::Sender<ReportResponse>) {
        self.links.insert(id, sender);
    }

    /// Ends a stream: its router begins another one, and says again what was not acknowledged.
    pub fn hang_up(&mut self, id: LinkId) {
        self.links.remove(&id);
        self.handled.remove(&id);
    }

    /// Ends every stream.
    pub fn hang_up_all(&mut self) {
        self.links.clear();
        self.handled.clear();
        self.stops.clear();
        self.queries.clear();
    }

    /// Notes that a report needs no repeating; told with the next [`Routers::flush`].
    pub fn handled(&mut self, (link, report): (LinkId, u64)) {
        self.handled.entry(link).or_default().push(report);
    }

    /// Notes an attempt to stop; told with the next [`Routers::flush`].
    pub fn stop(&mut self, command: StopCommand) {
        self.stops.push(command);
    }

    /// Notes attempts to ask for; told with the next [`Routers::flush`].
    pub fn query(&mut self, query: StatusQuery) {
        self.queries.push(query);
    }

    /// Tells the routers everything that was noted. What they cannot take now is told with the next flush.
    pub fn flush(&mut self) {
        for (id, handled) in std::mem::take(&mut self.handled) {
            if let Sent::Full(answer) = self.send(id, ReportResponse { handled, ..Default::default() }) {
                self.handled.insert(id, answer.handled);
            }
        }
        if self.stops.is_empty() && self.queries.is_empty() {
            return;
        }
        for id in self.links.keys().copied().collect::<Vec<_>>() {
            let (stops, queries) = (std::mem::take(&mut self.stops), std::mem::take(&mut self.queries));
            match self.send(id, ReportResponse { handled: Vec::new(), stops, queries }) {
                Sent::Told => return,
                Sent::Full(answer) | Sent::Gone(answer) => {
                    (self.stops, self.queries) = (answer.stops, answer.queries);
                }
            }
        }
    }

    fn send(&mut self, id: LinkId, answer: ReportResponse) -> Sent {
        let Some(link) = self.links.get(&id) else { return Sent::Gone(answer) };
        match link.try_send(answer) {
            Ok(()) => Sent::Told,
            Err(mpsc::error::TrySendError::Full(answer)) => Sent::Full(answer),
            Err(mpsc::error::TrySendError::Closed(answer)) => {
                self.links.remove(&id);
                Sent::Gone(answer)
            }
        }
    }
}

/// What became of an answer.
enum Sent {
    Told,
    Full(ReportResponse),
    Gone(ReportResponse),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_wait_for_a_router() {
        let mut routers = Routers::default();
        routers.stop(StopCommand { job_key: "k".into(), ..Default::default() });
        routers.flush();
        let (sender, gone) = mpsc::channel(1);
        drop(gone);
        routers.add(LinkId(1), sender);
        let (sender, mut answers) = mpsc::channel(1);
        routers.add(LinkId(2), sender);
        routers.flush();
        assert_eq!(answers.try_recv().expect("the stop").stops[0].job_key, "k");
        routers.handled((LinkId(2), 7));
        routers.flush();
        assert_eq!(answers.try_recv().expect("an acknowledgement").handled, [7]);
    }
}
