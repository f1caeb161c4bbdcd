//! Event loop of the router: feeds all events that are ready to the core, then carries out the effects.

use std::collections::HashMap;
use std::pin::pin;

use futures_util::{FutureExt as _, Stream, StreamExt as _};
use proto::internal::v1 as wire;
use service::{Readiness, ReadinessCondition, crash_point};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::app::RouterClock;
use crate::clients::SchedulerClient;
use crate::delivery_spans::DeliverySpans;
use crate::submissions::RouterSubmission;
use delivery::core::{Core, Effects, Input};
use delivery::reports::GatewayEpoch;

/// Events that may wait for the driver; when the channel is full, the streams are not read.
pub(crate) const EVENTS_WAITING_MAX: usize = 1024;
/// Events that are taken in before their effects are carried out together.
const EVENTS_TOGETHER_MAX: usize = 256;
/// Why a stream is not there.
const LOST: &str = "the stream was lost";

/// Event that a stream or a task sends to the driver.
pub(crate) enum RouterEvent {
    /// For the core alone.
    Input(Input),
    /// A stream to storage is open.
    StorageUp(mpsc::UnboundedSender<wire::TakeRequest>),
    /// The stream to storage was lost.
    StorageDown,
    /// A stream to the gateway is open.
    GatewayUp(mpsc::UnboundedSender<wire::ExchangeRequest>),
    /// The stream to the gateway was lost.
    GatewayDown,
    /// A stream to the scheduler replica of this name is open.
    SchedulerUp(String, mpsc::UnboundedSender<wire::ReportRequest>, SchedulerClient),
    /// The stream to the scheduler replica of this name was lost.
    SchedulerDown(String),
    /// The registry's view is followed from here on.
    RegistryUp,
    /// The registry's view is not followed any more.
    RegistryDown,
}

/// The loop.
pub(crate) struct RouterDriver {
    pub(crate) core: Core,
    pub(crate) clock: RouterClock,
    /// Events from the router's tasks: output that is kept, flows that were made, the registry's view.
    pub(crate) events: mpsc::Receiver<RouterEvent>,
    pub(crate) outlets: EffectSenders,
    pub(crate) links: RouterStreams,
}

/// Where effects go that need more than a stream.
pub(crate) struct EffectSenders {
    /// Pieces of output, for storage.
    pub(crate) logs: mpsc::UnboundedSender<(GatewayEpoch, wire::NumberedLog)>,
    /// Jobs that are to become flows.
    pub(crate) submits: mpsc::UnboundedSender<RouterSubmission>,
}

/// Where effects go: the streams that stand now.
pub(crate) struct RouterStreams {
    storage: Option<mpsc::UnboundedSender<wire::TakeRequest>>,
    gateway: Option<mpsc::UnboundedSender<wire::ExchangeRequest>>,
    schedulers: HashMap<String, (mpsc::UnboundedSender<wire::ReportRequest>, SchedulerClient)>,
    needs: RouterConditions,
    spans: DeliverySpans,
}

/// Readiness conditions: the streams, and a complete view of the registry.
struct RouterConditions {
    storage: ReadinessCondition,
    gateway: ReadinessCondition,
    /// To one scheduler at least.
    scheduler: ReadinessCondition,
    registry: ReadinessCondition,
}

impl RouterDriver {
    /// Runs until the streams end. The streams are read in this task, so their events need no hand-over between tasks.
    pub(crate) async fn run(mut self, streams: impl Stream<Item = RouterEvent>) {
        let mut events = Vec::with_capacity(EVENTS_TOGETHER_MAX);
        let mut streams = pin!(streams);
        loop {
            let due = self.core.next_due();
            let timer = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                brought = streams.next() => match brought {
                    Some(event) => {
                        events.push(event);
                        while events.len() < EVENTS_TOGETHER_MAX
                            // Nothing is missed: the loop reads the streams again before it waits.
                            && let Some(Some(event)) = streams.next().now_or_never()
                        {
                            events.push(event);
                        }
                    }
                    None => return,
                },
                // Every sender is gone: the router has ended.
                count = self.events.recv_many(&mut events, EVENTS_TOGETHER_MAX) => if count == 0 { return },
                () = timer => events.push(RouterEvent::Input(Input::Due)),
            }
            let (now, wall) = (Instant::now(), (self.clock)());
            for event in events.drain(..) {
                // Effects decided for the previous stream must not go out on the next one.
                if matches!(event, RouterEvent::GatewayUp(_) | RouterEvent::GatewayDown) {
                    self.links.carry_out(self.core.effects(now), &self.outlets);
                }
                if let Some(input) = self.links.note(event) {
                    pass_crash_points(&input);
                    self.core.handle(now, wall, input);
                }
            }
            self.links.carry_out(self.core.effects(now), &self.outlets);
        }
    }
}

impl RouterStreams {
    /// None stands yet.
    pub(crate) fn new(readiness: &Readiness) -> Self {
        let needs = RouterConditions {
            storage: readiness.condition("messages"),
            gateway: readiness.condition("gateway"),
            scheduler: readiness.condition("scheduler"),
            registry: readiness.condition("runners"),
        };
        let spans = DeliverySpans::default();
        Self { storage: None, gateway: None, schedulers: HashMap::new(), needs, spans }
    }

    /// Notes which streams are open; returns the input for the core, if there is one.
    fn note(&mut self, event: RouterEvent) -> Option<Input> {
        use wire::exchange_response::Frame;
        match event {
            RouterEvent::Input(input) => {
                match &input {
                    Input::Runners(part) if part.snapshot_end => self.needs.registry.met(),
                    Input::Gateway(wire::ExchangeResponse { frame: Some(Frame::Outcome(outcome)) }) => {
                        self.spans.end(outcome.delivery_id, &outcome.error);
                    }
                    _ => {}
                }
                return Some(input);
            }
            RouterEvent::StorageUp(sender) => {
                self.storage = Some(sender);
                self.needs.storage.met();
            }
            RouterEvent::StorageDown => {
                self.storage = None;
                self.needs.storage.unmet(LOST);
            }
            RouterEvent::GatewayUp(sender) => {
                self.gateway = Some(sender);
                self.needs.gateway.met();
                return Some(Input::GatewayUp);
            }
            RouterEvent::GatewayDown => {
                self.gateway = None;
                self.spans.lose_all();
                self.needs.gateway.unmet(LOST);
                return Some(Input::GatewayDown);
            }
            RouterEvent::SchedulerUp(name, sender, client) => {
                self.schedulers.insert(name.clone(), (sender, client));
                self.needs.scheduler.met();
                return Some(Input::SchedulerUp(name));
            }
            RouterEvent::SchedulerDown(name) => {
                self.schedulers.remove(&name);
                if self.schedulers.is_empty() {
                    self.needs.scheduler.unmet("no scheduler is connected");
                }
                return Some(Input::SchedulerDown(name));
            }
            RouterEvent::RegistryUp => return Some(Input::RegistryUp),
            RouterEvent::RegistryDown => self.needs.registry.unmet(LOST),
        }
        None
    }

    /// Carries out effects. An effect that cannot be sent now is repeated by its source: storage resends messages
    /// and context drops that were not settled; the core resends reports.
    fn carry_out(&mut self, effects: Effects, outlets: &EffectSenders) {
        use wire::exchange_request::Frame;
        let Effects {
            deliver,
            letters,
            submit,
            stop,
            query,
            drop,
            forget,
            read_log,
            handled,
            settle,
            dropped,
            report,
            log_answers,
            logs: pieces,
        } = effects;
        let handled =
            (!handled.is_empty()).then_some(Frame::Handled(wire::ReportsHandled { report_ids: handled }));
        let frames = stop.into_iter().map(Frame::Stop).chain(deliver.into_iter().map(Frame::Deliver));
        let frames = frames.chain(letters.into_iter().map(Frame::Letter));
        let frames =
            frames.chain(query.into_iter().map(Frame::Query)).chain(drop.into_iter().map(Frame::Drop));
        let frames = frames.chain(read_log.into_iter().map(Frame::ReadLog));
        let frames = frames.chain(forget.into_iter().map(Frame::Forget));
        self.send_to_gateway(frames.chain(handled));
        if let Some(storage) = &self.storage {
            use wire::take_request::Frame;
            let settles = !settle.is_empty();
            let settle = settles.then_some(Frame::Settle(wire::Settle { settlements: settle }));
            if settles {
                crash_point("router.before_settle");
            }
            for frame in settle.into_iter().chain(dropped.into_iter().map(Frame::Dropped)) {
                storage.send(wire::TakeRequest { frame: Some(frame) }).ok();
            }
        }
        for (name, reports) in report {
            if let Some((scheduler, _)) = self.schedulers.get(&name) {
                send_reports(scheduler, reports);
            }
        }
        for (name, answers) in log_answers {
            let Some((scheduler, _)) = self.schedulers.get(&name) else { continue };
            for answer in answers {
                // One at a time: each may be large.
                let log_answers = vec![answer];
                scheduler.send(wire::ReportRequest { log_answers, ..Default::default() }).ok();
            }
        }
        for piece in pieces {
            outlets.logs.send(piece).ok();
        }
        for (delivery, request) in submit {
            let client = self.schedulers.values().next().map(|(_, client)| client.clone());
            outlets.submits.send(RouterSubmission { delivery, request, client }).ok();
        }
    }
}

impl RouterStreams {
    /// Sends frames to the gateway; drops them while no stream to it stands.
    fn send_to_gateway(&mut self, frames: impl Iterator<Item = wire::exchange_request::Frame>) {
        use wire::exchange_request::Frame;
        let Some(gateway) = &self.gateway else { return };
        for frame in frames {
            let delivers = matches!(frame, Frame::Deliver(_) | Frame::Letter(_));
            if let Frame::Deliver(wire::Deliver { delivery_id, nodes, address, .. }) = &frame {
                self.spans.begin(*delivery_id, nodes, address);
            }
            gateway.send(wire::ExchangeRequest { frame: Some(frame) }).ok();
            if delivers {
                crash_point("router.sent");
            }
        }
    }
}

/// Passes the crash points between taking a message and settling it.
fn pass_crash_points(input: &Input) {
    use wire::exchange_response::Frame;
    match input {
        Input::Taken(taken) if !taken.messages.is_empty() => crash_point("router.taken"),
        Input::Gateway(wire::ExchangeResponse { frame: Some(Frame::Outcome(_)) }) => {
            crash_point("router.delivered");
        }
        _ => {}
    }
}

/// Sends reports in as few messages as their sizes allow.
fn send_reports(scheduler: &mpsc::UnboundedSender<wire::ReportRequest>, reports: Vec<wire::IncomingReport>) {
    let mut batch: Vec<wire::IncomingReport> = Vec::new();
    let mut bytes = 0;
    for report in reports {
        bytes += report.report_json.len() + 16;
        if bytes > model::limits::PAGE_BYTES_MAX && !batch.is_empty() {
            bytes = report.report_json.len() + 16;
            let reports = std::mem::take(&mut batch);
            scheduler.send(wire::ReportRequest { reports, ..Default::default() }).ok();
        }
        batch.push(report);
    }
    scheduler.send(wire::ReportRequest { reports: batch, ..Default::default() }).ok();
}
