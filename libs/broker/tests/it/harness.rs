//! A broker, and what may happen to it.

use std::sync::Arc;
use std::time::Duration;

use broker::{
    BrokerConnectionStatus, JetStream, JetStreamOptions, ManualClock, MessageBroker, SimulatedBroker,
};
use testkit::{FaultProxy, NatsServer, NatsSnapshot, PATIENCE, ProxyFault, ProxyTarget, wait_until};

use crate::{CONSUMER, STREAM};

/// One broker with its server.
pub(crate) enum BrokerUnderTest {
    Simulated(SimulatedBroker, ManualClock),
    InJetStream(Box<ProxiedNats>),
}

/// A server on this machine, reached through a proxy.
pub(crate) struct ProxiedNats {
    pub(crate) broker: Arc<JetStream>,
    pub(crate) proxy: FaultProxy,
    pub(crate) server: NatsServer,
}

/// Copy of what a server had at a moment.
pub(crate) enum BrokerBackup {
    Last(u64),
    Files(NatsSnapshot),
}

impl ProxiedNats {
    pub(crate) async fn start(heartbeat: Duration) -> Self {
        let server = NatsServer::start();
        let proxy = FaultProxy::start(ProxyTarget::Tcp(server.address())).await;
        let url = format!("nats://{}", proxy.address());
        let broker = JetStream::start(JetStreamOptions { heartbeat, ..JetStreamOptions::new(&url) })
            .expect("options that work");
        let real = Self { broker: Arc::new(broker), proxy, server };
        let _ = connected(&*real.broker, 0).await;
        real
    }

    /// Description of the consumer of most tests by the server, as JSON.
    pub(crate) fn consumer(&self) -> String {
        self.server.ask(&format!("$JS.API.CONSUMER.INFO.{STREAM}.{CONSUMER}"), "")
    }
}

impl BrokerUnderTest {
    pub(crate) fn simulated() -> Self {
        let clock = ManualClock::new(1_700_000_000_000);
        Self::Simulated(SimulatedBroker::new(clock.clone()), clock)
    }

    pub(crate) async fn in_jetstream() -> Self {
        Self::InJetStream(Box::new(ProxiedNats::start(Duration::from_secs(1)).await))
    }

    pub(crate) fn broker(&self) -> Arc<dyn MessageBroker> {
        match self {
            Self::Simulated(broker, _) => Arc::new(broker.clone()),
            Self::InJetStream(real) => Arc::clone(&real.broker) as _,
        }
    }

    fn generation(&self) -> u64 {
        self.broker().connection().borrow().generation
    }

    /// Cuts the connection; there is another one afterwards.
    pub(crate) async fn cut(&self) {
        let before = self.generation();
        match self {
            Self::Simulated(broker, _) => broker.drop_connection(),
            Self::InJetStream(real) => real.proxy.cut_once(),
        }
        let _ = connected(&*self.broker(), before).await;
    }

    /// Takes the server away, as a network does.
    pub(crate) async fn leave(&self) {
        match self {
            Self::Simulated(broker, _) => broker.disconnect(),
            Self::InJetStream(real) => real.proxy.set(ProxyFault::Cut),
        }
        let mut connection = self.broker().connection();
        let gone = connection.wait_for(|connection| !connection.connected);
        tokio::time::timeout(PATIENCE, gone).await.expect("it is noticed").expect("a broker");
    }

    /// Brings the server back.
    pub(crate) async fn come_back(&self) {
        let before = self.generation();
        match self {
            Self::Simulated(broker, _) => broker.reconnect(),
            Self::InJetStream(real) => real.proxy.restore(),
        }
        let _ = connected(&*self.broker(), before).await;
    }

    /// Kills the server and starts it again.
    pub(crate) async fn restart(&mut self) {
        let before = self.generation();
        match self {
            Self::Simulated(broker, _) => broker.drop_connection(),
            Self::InJetStream(real) => real.server.restart(),
        }
        let _ = connected(&*self.broker(), before).await;
    }

    /// Loses everything.
    pub(crate) async fn wipe(&mut self) {
        let before = self.generation();
        match self {
            Self::Simulated(broker, _) => broker.wipe(),
            Self::InJetStream(real) => real.server.wipe(),
        }
        let _ = connected(&*self.broker(), before).await;
    }

    /// Deletes the stream of most tests.
    pub(crate) fn delete_stream(&self) {
        match self {
            Self::Simulated(broker, _) => broker.delete_stream(STREAM),
            Self::InJetStream(real) => {
                let answer = real.server.ask(&format!("$JS.API.STREAM.DELETE.{STREAM}"), "");
                assert!(answer.contains("\"success\":true"), "{answer}");
            }
        }
    }

    /// Copies what the server has; its stream ends with this sequence.
    pub(crate) async fn copy(&mut self, last: u64) -> BrokerBackup {
        let before = self.generation();
        let copy = match self {
            Self::Simulated(..) => return BrokerBackup::Last(last),
            Self::InJetStream(real) => BrokerBackup::Files(real.server.snapshot()),
        };
        let _ = connected(&*self.broker(), before).await;
        copy
    }

    /// Makes the server forget everything since a copy.
    pub(crate) async fn go_back(&mut self, to: &BrokerBackup) {
        let before = self.generation();
        match (&mut *self, to) {
            (Self::Simulated(broker, _), BrokerBackup::Last(last)) => broker.roll_back(STREAM, *last),
            (Self::InJetStream(real), BrokerBackup::Files(files)) => real.server.restore(files),
            _ => panic!("a copy of another world"),
        }
        let _ = connected(&*self.broker(), before).await;
    }

    /// Lets this time pass where tests move the clock: elsewhere it passes by itself.
    pub(crate) fn pass(&self, millis: u64) {
        if let Self::Simulated(_, clock) = self {
            clock.advance(millis);
        }
    }

    /// Counts the deliveries that the consumer of most tests has made.
    pub(crate) async fn delivered(&self) -> u64 {
        let state = self.broker().cursor(STREAM, CONSUMER).await.expect("an answer");
        state.expect("a consumer").delivered
    }
}

/// Waits for a connection that is newer than this one, on which JetStream answers.
pub(crate) async fn connected(broker: &dyn MessageBroker, before: u64) -> BrokerConnectionStatus {
    let mut connection = broker.connection();
    let newer = connection.wait_for(|connection| connection.connected && connection.generation > before);
    let found = *tokio::time::timeout(PATIENCE, newer).await.expect("it is connected").expect("a broker");
    let answers = async || broker.stream(STREAM).await.ok();
    let _ = wait_until(answers, PATIENCE, "the broker answers").await;
    found
}
