//! Reports on their way to a scheduler, until it has acknowledged them.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::internal::v1::IncomingReport;

use crate::lanes::MessageNumber;

/// Counts the gateway's streams: what came over a lost one cannot be acknowledged on the next.
pub type GatewayEpoch = u64;

/// Who wants to know that a report was taken care of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The gateway, under its own number.
    Gateway(GatewayEpoch, u64),
    /// A message whose node the router itself reports about.
    Message(MessageNumber),
}

/// What no scheduler has acknowledged yet.
#[derive(Debug, Default)]
pub struct Reports {
    next_id: u64,
    open: BTreeMap<u64, (Source, Bytes)>,
}

impl Reports {
    /// Notes a report; gives it as it is sent.
    pub fn add(&mut self, source: Source, report_json: Bytes) -> IncomingReport {
        self.next_id += 1;
        let report_id = self.next_id;
        self.open.insert(report_id, (source, report_json.clone()));
        IncomingReport { report_id, report_json }
    }

    /// A report needs no repeating. Gives who waited for that, the first time.
    pub fn handled(&mut self, report_id: u64) -> Option<Source> {
        self.open.remove(&report_id).map(|(source, _)| source)
    }

    /// Everything that a scheduler has to be told again, in its order.
    pub fn again(&self) -> impl Iterator<Item = IncomingReport> {
        self.open.iter().map(|(report_id, (_, report_json))| IncomingReport {
            report_id: *report_id,
            report_json: report_json.clone(),
        })
    }

    /// Forgets what came over a lost stream of the gateway: it will say so again.
    pub fn forget_gateway(&mut self) {
        self.open.retain(|_, (source, _)| matches!(source, Source::Message(_)));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
