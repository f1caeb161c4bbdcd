//! A broker that stands between a lane and its own, where tests handle deliveries on their way.

use std::sync::Arc;

use async_trait::async_trait;
use broker::{
    BrokerConnectionStatus, BrokerDescription, BrokerError, BrokerInbox, CursorSpec, CursorState, Deliveries,
    MessageBroker, Publication, PublicationFuture, StoredMessage, StreamSpec, StreamState,
};
use bytes::Bytes;
use tokio::sync::watch;

type Handle = dyn Fn(&CursorSpec, Box<dyn Deliveries>) -> Box<dyn Deliveries> + Send + Sync;

/// A broker that gives deliveries of another one, as `handle` makes them.
pub(crate) struct Intercepting {
    broker: Arc<dyn MessageBroker>,
    handle: Box<Handle>,
}

impl Intercepting {
    pub(crate) fn over(
        broker: Arc<dyn MessageBroker>,
        handle: impl Fn(&CursorSpec, Box<dyn Deliveries>) -> Box<dyn Deliveries> + Send + Sync + 'static,
    ) -> Arc<dyn MessageBroker> {
        Arc::new(Self { broker, handle: Box::new(handle) })
    }
}

#[async_trait]
impl MessageBroker for Intercepting {
    async fn open(&self, spec: &CursorSpec) -> Result<Box<dyn Deliveries>, BrokerError> {
        let deliveries = self.broker.open(spec).await?;
        Ok((self.handle)(spec, deliveries))
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
