//! Reports on their way to the schedulers that own their flows, until one has acknowledged them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use model::{FlowUid, placement};
use proto::internal::v1::IncomingReport;

use crate::send_queue::MessageNumber;

/// Counts the gateway's streams: what came over a lost one cannot be acknowledged on the next.
pub type GatewayEpoch = u64;

/// Where a report came from, and must be acknowledged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportOrigin {
    /// The gateway, under its own number.
    Gateway(GatewayEpoch, u64),
    /// The gateway as well, in response to a query: the gateway will not resend it.
    Solicited(GatewayEpoch, u64),
    /// A message whose node the router itself reports about.
    Message(MessageNumber),
}

/// Reports by the name of the scheduler replica that they go to.
pub type ReportsByOwner = BTreeMap<String, Vec<IncomingReport>>;

/// Reports that no scheduler has acknowledged yet, and the replicas that there are.
#[derive(Debug, Default)]
pub struct UnacknowledgedReports {
    next_id: u64,
    open: BTreeMap<u64, UnacknowledgedReport>,
    /// Live replicas.
    replicas: BTreeSet<String>,
    /// Replicas with an open stream.
    up: BTreeSet<String>,
}

#[derive(Debug)]
struct UnacknowledgedReport {
    source: ReportOrigin,
    flow: FlowUid,
    json: Bytes,
    /// Replica that the report was sent to, over a stream that is still open.
    sent_to: Option<String>,
}

impl UnacknowledgedReports {
    /// Notes a report of a flow, and sends it to the flow's owner when that can be reached.
    pub fn add(&mut self, source: ReportOrigin, flow: FlowUid, json: Bytes, out: &mut ReportsByOwner) {
        self.next_id += 1;
        let report_id = self.next_id;
        let mut open = UnacknowledgedReport { source, flow, json, sent_to: None };
        send_to_owner(&self.replicas, &self.up, report_id, &mut open, out);
        self.open.insert(report_id, open);
    }

    /// Sets the live replicas. Reports whose owner has changed are sent again.
    pub fn set_replicas(&mut self, replicas: BTreeSet<String>, out: &mut ReportsByOwner) {
        self.replicas = replicas;
        self.send_all(out);
    }

    /// A stream to a replica stands.
    pub fn up(&mut self, replica: String, out: &mut ReportsByOwner) {
        self.forget_sent(&replica);
        self.up.insert(replica);
        self.send_all(out);
    }

    /// Notes that the stream to a replica was lost: reports sent over it must be sent again.
    pub fn down(&mut self, replica: &str) {
        self.up.remove(replica);
        self.forget_sent(replica);
    }

    /// Returns true when a stream to any replica is open.
    #[must_use]
    pub fn is_any_up(&self) -> bool {
        !self.up.is_empty()
    }

    /// Acknowledges a report. Returns its origin, the first time.
    pub fn acknowledge(&mut self, report_id: u64) -> Option<ReportOrigin> {
        self.open.remove(&report_id).map(|open| open.source)
    }

    /// Forgets the reports of a lost gateway stream that the gateway will resend.
    pub fn forget_gateway(&mut self) {
        self.open.retain(|_, open| !matches!(open.source, ReportOrigin::Gateway(..)));
    }

    /// Number of reports that are not acknowledged.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns true when all reports are acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn forget_sent(&mut self, replica: &str) {
        for open in self.open.values_mut() {
            open.sent_to.take_if(|sent_to| sent_to == replica);
        }
    }

    fn send_all(&mut self, out: &mut ReportsByOwner) {
        for (report_id, open) in &mut self.open {
            send_to_owner(&self.replicas, &self.up, *report_id, open, out);
        }
    }
}

fn send_to_owner(
    replicas: &BTreeSet<String>,
    up: &BTreeSet<String>,
    report_id: u64,
    open: &mut UnacknowledgedReport,
    out: &mut ReportsByOwner,
) {
    let Some(owner) = placement::owner_of(replicas.iter().map(String::as_str), open.flow) else { return };
    if open.sent_to.as_deref() == Some(owner) || !up.contains(owner) {
        return;
    }
    open.sent_to = Some(owner.to_owned());
    let report = IncomingReport { report_id, report_json: open.json.clone() };
    match out.get_mut(owner) {
        Some(reports) => reports.push(report),
        None => drop(out.insert(owner.to_owned(), vec![report])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uid;

    fn flow(bits: u128) -> FlowUid {
        FlowUid(Uid::from_bits(bits))
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Returns how many reports went to each replica.
    fn counts(out: &mut ReportsByOwner) -> Vec<(String, usize)> {
        std::mem::take(out).into_iter().map(|(name, reports)| (name, reports.len())).collect()
    }

    #[test]
    fn each_report_goes_to_the_owner_of_its_flow_and_again_when_that_changes() {
        let (mut reports, mut out) = (UnacknowledgedReports::default(), ReportsByOwner::new());
        let add = |reports: &mut UnacknowledgedReports, out: &mut ReportsByOwner, bits| {
            reports.add(ReportOrigin::Gateway(1, 1), flow(bits), Bytes::from_static(b"{}"), out);
        };
        for bits in 0..60 {
            add(&mut reports, &mut out, bits);
        }
        assert!(out.is_empty(), "there is no replica: they wait");
        reports.set_replicas(names(&["a"]), &mut out);
        assert!(out.is_empty(), "no stream stands");
        reports.up("a".into(), &mut out);
        assert_eq!(counts(&mut out), [("a".to_owned(), 60)]);

        reports.set_replicas(names(&["a", "b"]), &mut out);
        assert!(out.is_empty(), "what is b's waits for its stream");
        reports.up("b".into(), &mut out);
        let sent = counts(&mut out);
        let [(name, moved)] = sent.as_slice() else { panic!("{sent:?}") };
        assert!(name == "b" && (10..50).contains(moved), "about half of the flows have moved: {moved}");
        reports.set_replicas(names(&["a", "b"]), &mut out);
        assert!(out.is_empty(), "nothing has changed");

        // b dies: a receives the reports that b did not acknowledge, and none that a already has.
        reports.down("b");
        reports.set_replicas(names(&["a"]), &mut out);
        assert_eq!(counts(&mut out), [("a".to_owned(), *moved)]);
        reports.down("a");
        reports.up("a".into(), &mut out);
        assert_eq!(counts(&mut out), [("a".to_owned(), 60)], "a new stream knows nothing of the one before");
        for report_id in 1..=60 {
            assert_eq!(reports.acknowledge(report_id), Some(ReportOrigin::Gateway(1, 1)));
            assert_eq!(reports.acknowledge(report_id), None);
        }
        assert!(reports.is_empty());
    }

    #[test]
    fn only_reports_that_the_gateway_resends_are_dropped_with_its_stream() {
        let (mut reports, mut out) = (UnacknowledgedReports::default(), ReportsByOwner::new());
        for source in [ReportOrigin::Gateway(1, 1), ReportOrigin::Solicited(1, 2), ReportOrigin::Message(3)] {
            reports.add(source, flow(1), Bytes::new(), &mut out);
        }
        reports.forget_gateway();
        assert_eq!((reports.len(), reports.acknowledge(1)), (2, None));
    }
}
