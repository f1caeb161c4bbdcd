//! The loop: takes in what happened, as much as there is, and carries out what the core decides.

use proto::internal::v1 as wire;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::app::Clock;
use crate::core::{Core, Effects, Input};
use crate::reports::GatewayEpoch;

/// Events that may wait for the driver; beyond it the streams are held back.
pub(crate) const EVENTS_WAITING_MAX: usize = 1024;
/// Events that are taken in before their effects are carried out together.
const EVENTS_TOGETHER_MAX: usize = 256;

/// What streams tell the driver.
pub(crate) enum Event {
    /// For the core alone.
    Input(Input),
    /// A stream to storage stands.
    StorageUp(mpsc::UnboundedSender<wire::TakeRequest>),
    /// It was lost.
    StorageDown,
    /// A stream to the gateway stands.
    GatewayUp(mpsc::UnboundedSender<wire::ExchangeRequest>),
    /// It was lost.
    GatewayDown,
    /// A stream to the scheduler stands.
    SchedulerUp(mpsc::UnboundedSender<wire::ReportRequest>),
    /// It was lost.
    SchedulerDown,
    /// The registry's view is followed.
    RegistryUp,
    /// It is not any more.
    RegistryDown,
}

/// The loop.
pub(crate) struct Driver {
    pub(crate) core: Core,
    pub(crate) clock: Clock,
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) logs: mpsc::UnboundedSender<(GatewayEpoch, wire::NumberedLog)>,
    pub(crate) ready: watch::Sender<bool>,
    pub(crate) links: Links,
}

/// Where effects go: the streams that stand now.
#[derive(Default)]
pub(crate) struct Links {
    storage: Option<mpsc::UnboundedSender<wire::TakeRequest>>,
    gateway: Option<mpsc::UnboundedSender<wire::ExchangeRequest>>,
    schedulers: Schedulers,
    registry: bool,
}

/// The schedulers that reports can go to.
#[derive(Default)]
struct Schedulers(Option<mpsc::UnboundedSender<wire::ReportRequest>>);

impl Schedulers {
    /// The scheduler that owns the flow of a report. There is one; with more, this is where the flow's
    /// hash over the live replicas decides.
    fn owner(&self, _: &wire::IncomingReport) -> Option<&mpsc::UnboundedSender<wire::ReportRequest>> {
        self.0.as_ref()
    }

    /// Sends reports to their owners, in as few messages as their sizes allow.
    fn send(&self, reports: Vec<wire::IncomingReport>) {
        let mut batch: Vec<wire::IncomingReport> = Vec::new();
        let mut bytes = 0;
        for report in reports {
            bytes += report.report_json.len() + 16;
            if bytes > model::limits::PAGE_BYTES_MAX && !batch.is_empty() {
                bytes = report.report_json.len() + 16;
                self.send_batch(std::mem::take(&mut batch));
            }
            batch.push(report);
        }
        self.send_batch(batch);
    }

    fn send_batch(&self, reports: Vec<wire::IncomingReport>) {
        if let Some(owner) = reports.first().and_then(|report| self.owner(report)) {
            owner.send(wire::ReportRequest { reports }).ok();
        }
    }
}

impl Driver {
    /// Works until nobody tells it anything any more.
    pub(crate) async fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_TOGETHER_MAX);
        loop {
            let due = self.core.next_due();
            let timer = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                count = self.events.recv_many(&mut events, EVENTS_TOGETHER_MAX) => if count == 0 { return },
                () = timer => events.push(Event::Input(Input::Due)),
            }
            let (now, wall) = (Instant::now(), (self.clock)());
            for event in events.drain(..) {
                // What was decided for the stream before must not go out on the next one.
                if matches!(event, Event::GatewayUp(_) | Event::GatewayDown) {
                    self.links.carry_out(self.core.effects(now), &self.logs);
                }
                if let Some(input) = self.links.note(event) {
                    self.core.handle(now, wall, input);
                }
            }
            self.links.carry_out(self.core.effects(now), &self.logs);
            let ready = self.links.all_stand();
            self.ready.send_if_modified(|before| std::mem::replace(before, ready) != ready);
        }
    }
}

impl Links {
    /// Notes which streams stand; gives what the core has to know.
    fn note(&mut self, event: Event) -> Option<Input> {
        match event {
            Event::Input(input) => return Some(input),
            Event::StorageUp(sender) => self.storage = Some(sender),
            Event::StorageDown => self.storage = None,
            Event::GatewayUp(sender) => {
                self.gateway = Some(sender);
                return Some(Input::GatewayUp);
            }
            Event::GatewayDown => {
                self.gateway = None;
                return Some(Input::GatewayDown);
            }
            Event::SchedulerUp(sender) => {
                self.schedulers.0 = Some(sender);
                return Some(Input::SchedulerUp);
            }
            Event::SchedulerDown => self.schedulers.0 = None,
            Event::RegistryUp => self.registry = true,
            Event::RegistryDown => self.registry = false,
        }
        None
    }

    fn all_stand(&self) -> bool {
        self.storage.is_some() && self.gateway.is_some() && self.schedulers.0.is_some() && self.registry
    }

    /// What cannot be sent now is said again by those who know of it: storage gives messages that were
    /// not settled again, and the core repeats reports.
    fn carry_out(&self, effects: Effects, logs: &mpsc::UnboundedSender<(GatewayEpoch, wire::NumberedLog)>) {
        use wire::exchange_request::Frame;
        let Effects { deliver, stop, handled, settle, report, logs: pieces } = effects;
        if let Some(gateway) = &self.gateway {
            let stops = stop.into_iter().map(Frame::Stop);
            let handled =
                (!handled.is_empty()).then_some(Frame::Handled(wire::ReportsHandled { report_ids: handled }));
            for frame in stops.chain(deliver.into_iter().map(Frame::Deliver)).chain(handled) {
                gateway.send(wire::ExchangeRequest { frame: Some(frame) }).ok();
            }
        }
        if let Some(storage) = &self.storage
            && !settle.is_empty()
        {
            let settle = wire::take_request::Frame::Settle(wire::Settle { settlements: settle });
            storage.send(wire::TakeRequest { frame: Some(settle) }).ok();
        }
        if !report.is_empty() {
            self.schedulers.send(report);
        }
        for piece in pieces {
            logs.send(piece).ok();
        }
    }
}
