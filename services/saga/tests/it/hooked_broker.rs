//! Broker in front of another one, in which a test changes how cursors are opened, or their deliveries on their way.

use std::sync::Arc;

use async_trait::async_trait;
use broker::{
    BrokerConnectionStatus, BrokerDescription, BrokerError, BrokerInbox, CursorSpec, CursorState, Deliveries,
    MessageBroker, Publication, PublicationFuture, StoredMessage, StreamSpec, StreamState,
};
use bytes::Bytes;
use tokio::sync::watch;

/// Opening of cursors, as a test changes it.
#[async_trait]
pub(crate) trait BrokerHook: Send + Sync + 'static {
    async fn open(
        &self,
        broker: &dyn MessageBroker,
        spec: &CursorSpec,
    ) -> Result<Box<dyn Deliveries>, BrokerError>;
}

/// Hook that hands on deliveries as a function makes them.
struct DeliveriesHook<F>(F);

#[async_trait]
impl<F> BrokerHook for DeliveriesHook<F>
where
    F: Fn(&CursorSpec, Box<dyn Deliveries>) -> Box<dyn Deliveries> + Send + Sync + 'static,
{
    async fn open(
        &self,
        broker: &dyn MessageBroker,
        spec: &CursorSpec,
    ) -> Result<Box<dyn Deliveries>, BrokerError> {
        let deliveries = broker.open(spec).await?;
        Ok((self.0)(spec, deliveries))
    }
}

/// Broker whose cursors are opened by a hook.
pub(crate) struct HookedBroker<H> {
    broker: Arc<dyn MessageBroker>,
    hook: H,
}

impl<H: BrokerHook> HookedBroker<H> {
    /// Puts a hook in front of a broker.
    pub(crate) fn over(broker: Arc<dyn MessageBroker>, hook: H) -> Arc<dyn MessageBroker> {
        Arc::new(Self { broker, hook })
    }
}

/// Puts a function in front of a broker, through which deliveries of all its cursors go.
pub(crate) fn intercept(
    broker: Arc<dyn MessageBroker>,
    handle: impl Fn(&CursorSpec, Box<dyn Deliveries>) -> Box<dyn Deliveries> + Send + Sync + 'static,
) -> Arc<dyn MessageBroker> {
    HookedBroker::over(broker, DeliveriesHook(handle))
}

#[async_trait]
impl<H: BrokerHook> MessageBroker for HookedBroker<H> {
    async fn open(&self, spec: &CursorSpec) -> Result<Box<dyn Deliveries>, BrokerError> {
        self.hook.open(&*self.broker, spec).await
    }

    fn server(&self) -> Result<BrokerDescription, BrokerError> {
        self.broker.server()
    }

    fn connection(&self) -> watch::Receiver<BrokerConnectionStatus> {
        self.broker.connection()
    }

    async fn stream(&self, name: &str) -> Result<Option<StreamState>, BrokerError> {
        self.broker.stream(name).await
    }

    async fn create_stream(&self, spec: &StreamSpec) -> Result<(), BrokerError> {
        self.broker.create_stream(spec).await
    }

    async fn message(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        self.broker.message(stream, sequence).await
    }

    async fn publish(&self, outgoing: Publication) -> Result<PublicationFuture, BrokerError> {
        self.broker.publish(outgoing).await
    }

    async fn cursor(&self, stream: &str, consumer: &str) -> Result<Option<CursorState>, BrokerError> {
        self.broker.cursor(stream, consumer).await
    }

    async fn delete_cursor(&self, stream: &str, consumer: &str) -> Result<(), BrokerError> {
        self.broker.delete_cursor(stream, consumer).await
    }

    async fn inbox(&self) -> Result<BrokerInbox, BrokerError> {
        self.broker.inbox().await
    }

    async fn reply(&self, subject: &str, payload: Bytes) -> Result<(), BrokerError> {
        self.broker.reply(subject, payload).await
    }
}
