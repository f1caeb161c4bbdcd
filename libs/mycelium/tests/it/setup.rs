//! Daemons, and buses over them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mycelium::daemon::{Config, Metrics, Timings};
use mycelium::{
    Bus, BusDestination, BusError, BusInbox, DaemonBus, Datagram, IncomingPayload, PayloadForm, PublicKey,
};
use prometheus::Registry;
use stand_in::{Overlay, Program, StandIn, Traps};
use tempfile::TempDir;
use testkit::{PATIENCE, wait_until};
use tokio::time::Instant;

use crate::raw::Raw;

pub(crate) const TOPIC: &str = "supervisor.rpc";
pub(crate) const SCHEMES: [&str; 2] = ["ws", "http"];

/// Both kinds have to do the same.
pub(crate) enum Daemon {
    StandIn(StandIn),
    Program(Program, #[expect(dead_code, reason = "keeps the directory")] TempDir),
}

impl Daemon {
    pub(crate) fn kill(&mut self) {
        match self {
            Self::StandIn(stand_in) => stand_in.kill(),
            Self::Program(program, _) => program.kill(),
        }
    }

    pub(crate) fn launch(&mut self) {
        match self {
            Self::StandIn(stand_in) => stand_in.launch(),
            Self::Program(program, _) => program.launch(),
        }
    }

    pub(crate) fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    pub(crate) fn url(&self, scheme: &str) -> String {
        match self {
            Self::StandIn(stand_in) => stand_in.url(scheme),
            Self::Program(program, _) => program.url(scheme),
        }
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::new(&self.url("http"))
    }

    pub(crate) fn stand_in(&self) -> &StandIn {
        match self {
            Self::StandIn(stand_in) => stand_in,
            Self::Program(..) => panic!("only a stand-in can do that"),
        }
    }
}

/// Some daemons that know each other: the real ones where there is a binary, which link to the first.
pub(crate) fn daemons<const N: usize>() -> [Daemon; N] {
    let Some(binary) = Program::real() else { return stand_ins(&Overlay::default()) };
    let mut first = None;
    std::array::from_fn(|_| {
        let dir = tempfile::tempdir().unwrap();
        let program = Program::start(&binary, dir.path(), first.as_slice());
        first.get_or_insert(program.port());
        Daemon::Program(program, dir)
    })
}

/// Some stand-ins with every bad habit.
pub(crate) fn stand_ins<const N: usize>(overlay: &Overlay) -> [Daemon; N] {
    std::array::from_fn(|_| Daemon::StandIn(StandIn::start(overlay, Traps::ARMED)))
}

/// Fast enough for tests; acknowledgements are waited for in whole seconds.
pub(crate) fn timings() -> Timings {
    Timings {
        patience: Duration::from_secs(40),
        reply_secs: 1,
        plain_reply_secs: 1,
        probe_min: Duration::from_millis(50),
        probe_max: Duration::from_millis(500),
        clock_slack: Duration::ZERO,
        reconnect_min: Duration::from_millis(10),
        reconnect_max: Duration::from_millis(200),
        ..Timings::default()
    }
}

/// A bus and what it counts.
pub(crate) struct End {
    pub(crate) bus: Arc<DaemonBus>,
    pub(crate) metrics: Metrics,
}

pub(crate) fn bus_with(url: String, change: impl FnOnce(&mut Config)) -> End {
    let mut config = Config { timings: timings(), ..Config::new(url) };
    change(&mut config);
    let metrics = Metrics::new(&Registry::new()).unwrap();
    End { bus: Arc::new(DaemonBus::start(&config, metrics.clone()).unwrap()), metrics }
}

pub(crate) fn bus(daemon: &Daemon, scheme: &str) -> End {
    bus_with(daemon.url(scheme), |_| {})
}

impl End {
    pub(crate) async fn key(&self) -> PublicKey {
        wait_until(async || self.bus.key(), PATIENCE, "the bus is up").await
    }

    /// Listens to the usual topic.
    pub(crate) fn listen(&self) -> BusInbox {
        self.bus.listen(TOPIC).unwrap()
    }

    pub(crate) async fn send(&self, to: PublicKey, payload: impl Into<Bytes>) -> Result<(), BusError> {
        self.bus.send(parcel(to, payload)).await
    }

    pub(crate) async fn send_within(
        &self,
        to: PublicKey,
        payload: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<(), BusError> {
        let deadline = Some(Instant::now() + limit);
        self.bus.send(Datagram { deadline, ..parcel(to, payload) }).await
    }
}

pub(crate) fn parcel(to: PublicKey, payload: impl Into<Bytes>) -> Datagram<'static> {
    let payload = payload.into();
    Datagram {
        to: BusDestination::Key(to),
        topic: TOPIC,
        payload,
        form: PayloadForm::Framed,
        deadline: None,
        reply_to: None,
    }
}

/// Waits for the next payload; panics when none comes in time.
pub(crate) async fn next(inbox: &mut BusInbox) -> IncomingPayload {
    tokio::time::timeout(PATIENCE, inbox.next()).await.expect("something comes").unwrap()
}

/// Waits for what a counter says.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    wait_until(async || condition().then_some(()), PATIENCE, what).await;
}
