//! Relay of a lane's outgoing messages: publishes the rows of its outbox in order, many at a time.
//!
//! A row is removed once the broker has its message. Until then it is sent again after each failure, under the same id, by which
//! the receiver recognises a repeat.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use broker::{BrokerError, Headers, Publication, PublicationFuture};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use model::{CorrelationId, SagaName};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use store::RowOperation;
use tokio::sync::mpsc;
use tokio::time::Instant as Moment;
use workflow::key::{RowKeyPart, StoreTable};
use workflow::message;
use workflow::{LaneRowKey, WorkflowLane};

use super::LaneExit;
use super::rows::{LaneStore, row};
use crate::health::ImpairmentGuard;
use crate::spans::{OrderedBy, PendingSpan, SpanSubject};

/// Messages under way at a time.
const IN_FLIGHT_MAX: usize = 256;
/// Rows that are removed with one commit.
const REMOVED_AT_ONCE: usize = 256;

/// Where a row of the outbox goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxDestination {
    /// To the broker.
    #[default]
    Broker,
    /// To the gateway of an aggregate.
    Gateway,
}

/// A message that is to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboxRow {
    /// Destination of the message.
    #[serde(default)]
    pub to: OutboxDestination,
    /// The correlation that ordered it.
    pub correlation: CorrelationId,
    /// Subject of the message; none for a gateway.
    #[serde(default)]
    pub subject: String,
    /// Id by which repeats are recognised.
    pub id: String,
    /// Headers of the message.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Body of the message: JSON.
    pub body: OutboxBody,
    /// Transition that ordered the message; `None` if that was before the lane was taken.
    #[serde(skip)]
    pub ordered_by: Option<OrderedBy>,
}

/// A JSON body, stored in its row as JSON: as a string within JSON it would grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxBody(String);

impl OutboxBody {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Counts its bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the text is empty, which no JSON is.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for OutboxBody {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.0).map_err(serde::ser::Error::custom)?.serialize(to)
    }
}

impl<'de> Deserialize<'de> for OutboxBody {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        // Rows of former versions have the body as a string. No body is a JSON string itself.
        if raw.get().starts_with('"') {
            return serde_json::from_str(raw.get()).map(Self).map_err(serde::de::Error::custom);
        }
        Ok(Self(String::from(Box::<str>::from(raw))))
    }
}

/// A message for the relay.
#[derive(Debug)]
pub enum RelayMessage {
    /// These rows were committed.
    Rows(Vec<(u64, OutboxRow)>),
    /// Rows may have been committed that only the store knows of.
    LookAgain,
}

/// Sends rows of the outbox, until its owner is gone and everything is sent.
pub struct Relay {
    /// Rows of the lane.
    pub rows: Arc<LaneStore>,
    /// Messages of the owner.
    pub messages: mpsc::UnboundedReceiver<RelayMessage>,
    /// Where commands of aggregates go.
    pub commands: mpsc::UnboundedSender<(u64, OutboxRow)>,
}

/// State of the relay.
#[derive(Default)]
struct RelayQueue {
    /// Rows that were not sent since the last failure.
    waiting: VecDeque<(u64, OutboxRow)>,
    /// Rows that are under way, in order.
    under_way: VecDeque<(u64, OutboxRow)>,
    /// Spans of the rows under way.
    begun: VecDeque<PendingSpan>,
    /// Rows whose messages the broker has.
    confirmed: Vec<u64>,
    /// Bytes of the bodies of rows that wait or are under way.
    bytes: usize,
    /// Number of the first row, and since when it is the first.
    first: Option<(u64, Instant)>,
    /// Reports that the server refuses the first row, while it does.
    refused: Option<ImpairmentGuard>,
}

impl RelayQueue {
    /// Adds a row behind the others.
    fn add(&mut self, number: u64, item: OutboxRow) {
        self.bytes += item.body.len();
        self.waiting.push_back((number, item));
    }

    /// Notes that a row only has to be removed.
    fn confirm(&mut self, (number, item): (u64, OutboxRow)) {
        self.bytes -= item.body.len();
        self.confirmed.push(number);
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.under_way.len() + self.confirmed.len()
    }

    /// Since when the first row has been the first.
    fn oldest(&mut self) -> Option<Instant> {
        let first = self.under_way.front().or(self.waiting.front()).map(|(number, _)| *number);
        self.first = first.map(|number| match self.first {
            Some((before, since)) if before == number => (number, since),
            _ => (number, Instant::now()),
        });
        self.first.map(|(_, since)| since)
    }

    /// Queues all rows under way again, in order.
    fn again(&mut self) {
        self.begun.clear();
        while let Some(item) = self.under_way.pop_back() {
            self.waiting.push_front(item);
        }
    }
}

impl Relay {
    /// Sends.
    ///
    /// # Errors
    /// [`LaneExit`], where the lane has to be given up.
    pub async fn run(mut self) -> Result<(), LaneExit> {
        let mut outbox = RelayQueue::default();
        self.load(&mut outbox).await?;
        let reading = self.rows.around().metrics.readings.outbox();
        let mut publishing: FuturesOrdered<PublicationFuture> = FuturesOrdered::new();
        let mut pauses = super::backoff();
        // Nothing is sent before this moment, after a failure.
        let mut pause: Option<Moment> = None;
        // Once the owner is gone, the remaining rows are sent.
        let mut is_closed = false;
        loop {
            reading.note(outbox.len(), outbox.oldest());
            self.rows.backlog().note_for_broker(outbox.len(), outbox.bytes);
            if pause.is_none() && self.send(&mut outbox, &mut publishing).await.is_err() {
                publishing = FuturesOrdered::new();
                outbox.again();
                pause = Some(Moment::now() + pauses.next_pause());
            }
            if outbox.confirmed.len() >= REMOVED_AT_ONCE
                || (publishing.is_empty() && !outbox.confirmed.is_empty())
            {
                self.remove(&mut outbox).await?;
                continue;
            }
            if outbox.len() == 0 && is_closed {
                return Ok(());
            }
            tokio::select! {
                answer = publishing.next(), if !publishing.is_empty() => match answer {
                    Some(Ok(_)) => {
                        service::crash_point("relay.confirmed");
                        pauses.reset();
                        outbox.refused = None;
                        self.rows.around().metrics.relayed.inc();
                        self.confirmed(&mut outbox);
                    }
                    Some(Err(error)) => {
                        self.failed(&error, &mut outbox);
                        publishing = FuturesOrdered::new();
                        outbox.again();
                        pause = Some(Moment::now() + pauses.next_pause());
                    }
                    None => {}
                },
                // New rows are taken in even while nothing can be sent, so that the backlog is known.
                message = self.messages.recv(), if !is_closed => match message {
                    Some(RelayMessage::Rows(rows)) => self.sort(rows, &mut outbox),
                    Some(RelayMessage::LookAgain) => {
                        publishing = FuturesOrdered::new();
                        self.look_again(&mut outbox).await?;
                    }
                    None => is_closed = true,
                },
                () = tokio::time::sleep_until(pause.unwrap_or_else(Moment::now)), if pause.is_some() => pause = None,
            }
        }
    }

    /// Notes that the broker has the message of the first row under way.
    fn confirmed(&self, outbox: &mut RelayQueue) {
        let begun = outbox.begun.pop_front();
        let Some((number, item)) = outbox.under_way.pop_front() else { return };
        if let (Some(begun), Some(about)) = (begun, SpanSubject::of(&self.rows, &item.correlation)) {
            begun.message_sent(about, item.body.as_str(), item.ordered_by);
        }
        outbox.confirm((number, item));
    }

    /// Reads all rows again, except those that only have to be removed.
    async fn look_again(&self, outbox: &mut RelayQueue) -> Result<(), LaneExit> {
        let confirmed = std::mem::take(&mut outbox.confirmed);
        *outbox = RelayQueue::default();
        self.load(outbox).await?;
        outbox.waiting.retain(|(number, _)| !confirmed.contains(number));
        outbox.bytes = outbox.waiting.iter().map(|(_, item)| item.body.len()).sum();
        outbox.confirmed = confirmed;
        Ok(())
    }

    /// Reads all rows that wait.
    async fn load(&self, outbox: &mut RelayQueue) -> Result<(), LaneExit> {
        let rows: Vec<(LaneRowKey, OutboxRow)> = self.rows.all(StoreTable::Outbox.range()).await?;
        service::crash_point("relay.read");
        for (key, item) in rows {
            let number = match key.parts().as_deref() {
                Some([RowKeyPart::Text(number)]) => number.parse().ok(),
                _ => None,
            };
            let number =
                number.ok_or_else(|| LaneExit::damaged(&self.rows.lane, format!("{key} is no number")))?;
            self.sort([(number, item)], outbox);
        }
        Ok(())
    }

    /// Queues rows by destination: commands of aggregates go to the submitter.
    fn sort(&self, rows: impl IntoIterator<Item = (u64, OutboxRow)>, outbox: &mut RelayQueue) {
        for (number, item) in rows {
            match item.to {
                OutboxDestination::Broker => outbox.add(number, item),
                // If the receiver is gone, the lane is given up anyway.
                OutboxDestination::Gateway => drop(self.commands.send((number, item))),
            }
        }
    }

    /// Sends as much as may be under way.
    async fn send(
        &self,
        outbox: &mut RelayQueue,
        publishing: &mut FuturesOrdered<PublicationFuture>,
    ) -> Result<(), ()> {
        while publishing.len() < IN_FLIGHT_MAX
            && let Some((number, item)) = outbox.waiting.pop_front()
        {
            let begun = PendingSpan::work();
            let sent = self.rows.around().broker.publish(item.outgoing()).await;
            service::crash_point("relay.published");
            if matches!(self.rows.lane, WorkflowLane::Effect { .. }) {
                service::crash_point("effect.published");
            }
            match sent {
                Ok(answer) => {
                    publishing.push_back(answer);
                    outbox.under_way.push_back((number, item));
                    outbox.begun.push_back(begun);
                }
                Err(error) => {
                    outbox.waiting.push_front((number, item));
                    self.failed(&error, outbox);
                    return Err(());
                }
            }
        }
        Ok(())
    }

    /// Reports why a message was not sent. A message that the server refuses waits as well, until its configuration allows it: no
    /// committed message is dropped.
    fn failed(&self, error: &BrokerError, outbox: &mut RelayQueue) {
        let lane = &self.rows.lane;
        // Subjects contain tenants, and anyone may read `/health`.
        let why = match error {
            BrokerError::TooLarge { size, most, .. } => Some(format!(
                "a message of {size} bytes waits, and the server takes {most}: raise max_payload in its configuration"
            )),
            BrokerError::Refused { .. } => {
                Some("a message is refused and waits; the log says why".to_owned())
            }
            _ => None,
        };
        if let Some(why) = why {
            // The former guard lives until the new one exists, so that the impairment does not flicker.
            let lack = self.rows.around().health.begin_impairment("nats server", &why);
            outbox.refused = Some(lack);
        }
        tracing::warn!(%lane, "a message was not sent: {error}; retrying");
    }

    /// Removes rows whose messages the broker has.
    async fn remove(&self, outbox: &mut RelayQueue) -> Result<(), LaneExit> {
        let ops =
            outbox.confirmed.iter().map(|number| RowOperation::Delete(row(&LaneRowKey::outbox(*number))));
        self.rows.commit(Vec::new(), ops.collect()).await?;
        service::crash_point("relay.removed");
        outbox.confirmed.clear();
        Ok(())
    }
}

impl OutboxRow {
    /// Makes a message for the broker, whose headers say which instance it belongs to.
    #[must_use]
    pub fn message(
        subject: String,
        id: String,
        saga: &SagaName,
        correlation: CorrelationId,
        body: &[u8],
    ) -> Self {
        let headers = BTreeMap::from([
            (message::SAGA.to_owned(), saga.to_string()),
            // A correlation may be any text, and not every text fits in a header.
            (message::CORRELATION.to_owned(), workflow::key::part(correlation.as_str())),
        ]);
        let body = OutboxBody(String::from_utf8_lossy(body).into_owned());
        Self { to: OutboxDestination::Broker, correlation, subject, id, headers, body, ordered_by: None }
    }

    fn outgoing(&self) -> Publication {
        let headers =
            self.headers.iter().fold(Headers::new(), |headers, (name, value)| headers.with(name, value));
        Publication {
            subject: self.subject.clone(),
            message_id: self.id.clone(),
            headers,
            payload: Bytes::copy_from_slice(self.body.as_str().as_bytes()),
        }
    }
}
