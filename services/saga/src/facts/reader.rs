//! A reader of facts: an ephemeral consumer, which the broker removes once it is unused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use broker::{BrokerError, CursorSpec, CursorStart, Deliveries, PullLimit, StreamDelivery};
use model::TenantId;
use tokio::time::Instant;
use workflow::cursor::{Cursor, DeliveryClass};
use workflow::instance::CorrelationRecord;
use workflow::message::FactMessage;
use workflow::subject::MessageSubject;

use super::{Fact, FactHubInner, FactPosition, FactsError};
use crate::lane::{self, WORKFLOW_EVENTS};
use crate::reads::RowReadError;

/// Messages and bytes that one pull may bring.
const PULL: PullLimit = PullLimit { messages: 64, bytes: 1024 * 1024 };
/// Time after which the broker removes an unread consumer: its process has died.
const INACTIVE: Duration = Duration::from_secs(60);
/// How long the broker and the store may be away before watchers get an error; they then resume on their own.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// Numbers of consumers of this process.
static READERS: AtomicU64 = AtomicU64::new(0);

/// Reader of the facts of a tenant behind a position.
pub(super) struct FactReader {
    inner: Arc<FactHubInner>,
    tenant: TenantId,
    consumer: String,
    at: FactPosition,
    open: Option<FactCursor>,
}

/// A cursor that delivers.
struct FactCursor {
    deliveries: Box<dyn Deliveries>,
    cursor: Cursor,
    /// True once everything that was there when the cursor was opened has come.
    is_up: bool,
}

impl FactReader {
    /// Begins to read behind a position.
    pub(super) async fn open(
        inner: Arc<FactHubInner>,
        tenant: TenantId,
        at: FactPosition,
    ) -> Result<Self, FactsError> {
        let consumer = format!("{}-{}", inner.process, READERS.fetch_add(1, Ordering::Relaxed));
        let mut reading = Self { inner, tenant, consumer, at, open: None };
        reading.open = Some(reading.cursor().await?);
        Ok(reading)
    }

    /// Place behind everything that it gave.
    pub(super) const fn position(&self) -> FactPosition {
        self.at
    }

    /// Makes the consumer.
    async fn cursor(&mut self) -> Result<FactCursor, FactsError> {
        let stream = self.inner.stream().await?;
        let behind = stream.first_sequence.saturating_sub(1)..=stream.last_sequence;
        if stream.incarnation != self.at.incarnation || !behind.contains(&self.at.sequence) {
            return Err(FactsError::Gone);
        }
        let filter = MessageSubject::workflow_events_of(&self.tenant);
        let start = CursorStart::After(self.at.sequence);
        let spec = CursorSpec {
            description: "mycora, for those who watch".to_owned(),
            inactive_after: Some(INACTIVE),
            ..CursorSpec::new(WORKFLOW_EVENTS, &self.consumer, &filter, start)
        };
        let deliveries = self.inner.broker.open(&spec).await.map_err(failed)?;
        let state = self.inner.broker.cursor(WORKFLOW_EVENTS, &self.consumer).await.map_err(failed)?;
        let is_up = state.is_some_and(|state| state.pending == 0 && state.delivered == 0);
        Ok(FactCursor { deliveries, cursor: Cursor::behind(self.at.sequence), is_up })
    }

    /// Gives the next fact, however long that takes. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Fact, FactsError> {
        self.read(None).await?.ok_or(FactsError::Gone)
    }

    /// Gives the next fact up to a sequence; nothing once there are no more. Cancel-safe.
    pub(super) async fn next_until(&mut self, until: u64) -> Result<Option<Fact>, FactsError> {
        self.read(Some(until)).await
    }

    async fn read(&mut self, until: Option<u64>) -> Result<Option<Fact>, FactsError> {
        let (mut away, mut pauses) = (None, lane::backoff());
        loop {
            if until.is_some_and(|until| self.at.sequence >= until) {
                return Ok(None);
            }
            let Some(open) = &mut self.open else {
                match self.cursor().await {
                    Ok(open) => {
                        (self.open, away) = (Some(open), None);
                        pauses.reset();
                    }
                    Err(FactsError::Away(error)) => {
                        let since: Instant = *away.get_or_insert_with(Instant::now);
                        if since.elapsed() >= AWAY_MAX {
                            return Err(FactsError::Away(error));
                        }
                        tokio::time::sleep(pauses.next_pause()).await;
                    }
                    Err(error) => return Err(error),
                }
                continue;
            };
            if open.is_up && until.is_some() {
                return Ok(None);
            }
            match open.deliveries.next(PULL).await {
                Ok(message) => {
                    if let Some(fact) = self.take(&message) {
                        return Ok(Some(fact));
                    }
                }
                Err(lost) => {
                    tracing::info!(consumer = self.consumer, "facts cursor lost, opening another: {lost}");
                    self.open = None;
                }
            }
        }
    }

    /// Takes a message in; `None` for one that is no fact about an instance of this tenant.
    fn take(&mut self, message: &StreamDelivery) -> Option<Fact> {
        let open = self.open.as_mut()?;
        message.receipt.ack();
        match open.cursor.deliver(message.sequence, message.count) {
            DeliveryClass::Next => {
                open.cursor.settle(message.sequence);
            }
            DeliveryClass::InFlight => return None,
            DeliveryClass::Anew(disorder) => {
                tracing::info!(consumer = self.consumer, why = disorder.as_str(), "facts are out of order");
                self.open = None;
                return None;
            }
        }
        open.is_up |= message.pending == 0;
        self.at.sequence = message.sequence;
        self.fact(message)
    }

    /// Reads the fact that a message carries; `None` where the message is another tenant's or cannot be read.
    fn fact(&self, message: &StreamDelivery) -> Option<Fact> {
        let (tenant, subject) = MessageSubject::read(&message.subject, !self.tenant.is_single())?;
        let body: FactMessage = workflow::message::read(&message.payload, &self.tenant).ok()?;
        let is_his = matches!(&subject, MessageSubject::WorkflowEvent { saga, .. } if *saga == body.saga);
        let FactMessage { saga, correlation, .. } = body;
        (is_his && tenant == self.tenant).then_some(Fact { sequence: message.sequence, saga, correlation })
    }

    /// Reads the row of the instance that a fact is about; waits for the store for a while.
    pub(super) async fn record(
        &mut self,
        fact: &Fact,
    ) -> Result<Option<Arc<CorrelationRecord>>, RowReadError> {
        let (since, mut pauses) = (Instant::now(), lane::backoff());
        loop {
            match self.inner.record(&self.tenant, fact).await {
                Err(RowReadError::Store(error)) if since.elapsed() < AWAY_MAX => {
                    tracing::warn!("{error}; retrying");
                    tokio::time::sleep(pauses.next_pause()).await;
                }
                read => return read,
            }
        }
    }
}

impl Drop for FactReader {
    fn drop(&mut self) {
        let (inner, consumer) = (Arc::clone(&self.inner), std::mem::take(&mut self.consumer));
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            // If this fails, the broker removes the consumer once it is inactive.
            let _ = inner.broker.delete_cursor(WORKFLOW_EVENTS, &consumer).await;
        });
    }
}

/// Maps the error of opening a cursor to the error that followers get.
fn failed(error: BrokerError) -> FactsError {
    match error {
        BrokerError::StartBeyondEnd { .. } => FactsError::Gone,
        other => FactsError::Away(other),
    }
}
