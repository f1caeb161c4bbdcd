//! The routers that are connected: acknowledgements and commands go to them.

use std::collections::BTreeMap;

use proto::internal::v1::{ReportResponse, StopCommand};
use tokio::sync::mpsc;

/// One stream of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Answers that may wait for a router that does not read. What is beyond is
/// dropped: reports are repeated, and so are stops.
pub const LINK_BUFFER: usize = 1024;

/// Every stream that is open.
#[derive(Debug, Default)]
pub struct Routers {
    links: BTreeMap<LinkId, mpsc::Sender<ReportResponse>>,
    handled: BTreeMap<LinkId, Vec<u64>>,
    stops: Vec<StopCommand>,
}

impl Routers {
    /// A router has connected.
    pub fn add(&mut self, id: LinkId, sender: mpsc::Sender<ReportResponse>) {
        self.links.insert(id, sender);
    }

    /// Whether any router can take a command.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Notes that a report needs no repeating; told with the next [`Routers::flush`].
    pub fn handled(&mut self, (link, report): (LinkId, u64)) {
        self.handled.entry(link).or_default().push(report);
    }

    /// Notes an attempt to stop; told with the next [`Routers::flush`].
    pub fn stop(&mut self, command: StopCommand) {
        self.stops.push(command);
    }

    /// Tells the routers everything that was noted. Stops wait while there is no router.
    pub fn flush(&mut self) {
        for (id, handled) in std::mem::take(&mut self.handled) {
            self.send(id, ReportResponse { handled, stops: Vec::new() });
        }
        if self.stops.is_empty() {
            return;
        }
        while let Some(id) = self.links.keys().next().copied() {
            let stops = self.stops.clone();
            if self.send(id, ReportResponse { handled: Vec::new(), stops }) {
                self.stops.clear();
                return;
            }
        }
    }

    fn send(&mut self, id: LinkId, answer: ReportResponse) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        match link.try_send(answer) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                tracing::warn!(link = id.0, "a router does not read; what it was not told will be repeated");
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                self.links.remove(&id);
                false
            }
        }
    }
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
