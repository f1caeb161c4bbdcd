//! Changes of instances, as the stream of facts reports them, for watchers.
//!
//! For each tenant that is watched in this process, one task reads the facts and, for each fact, the row of its instance. Watchers
//! get that row, as of the fact or later. A watcher that begins further back, or falls behind, reads alone until it has caught up.
//! Nothing here is durable: a feed ends with its last watcher, and the broker removes an unused consumer.

mod feed;
mod reader;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Weak};

use broker::{BrokerError, MessageBroker};
use model::{CorrelationId, SagaName, TenantId};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, broadcast};
use workflow::instance::CorrelationRecord;

use self::feed::FactFeed;
use self::reader::FactReader;
use crate::lane::WORKFLOW_EVENTS;
use crate::reads::{RowReadError, RowReader};

/// Watchers that read alone at a time.
pub(crate) const ALONE_MAX: usize = 16;

/// Place in the stream of facts: which life of the stream, and a sequence in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FactPosition {
    /// When the stream was made, in milliseconds since 1970.
    pub incarnation: u64,
    /// Everything up to this sequence is known.
    pub sequence: u64,
}

impl fmt::Display for FactPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.incarnation, self.sequence)
    }
}

/// Text that is no position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a position that was given by a watch")]
pub struct InvalidFactPosition;

impl FromStr for FactPosition {
    type Err = InvalidFactPosition;
    fn from_str(text: &str) -> Result<Self, InvalidFactPosition> {
        let (incarnation, sequence) = text.split_once('.').ok_or(InvalidFactPosition)?;
        let number = |text: &str| text.parse().map_err(|_| InvalidFactPosition);
        let position = Self { incarnation: number(incarnation)?, sequence: number(sequence)? };
        if position.to_string() == text { Ok(position) } else { Err(InvalidFactPosition) }
    }
}

/// Reason why a subscription to facts ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FactsError {
    /// The position is gone: the stream forgot what came behind it, or is another one.
    #[error("the position is gone: begin with a snapshot")]
    Gone,
    /// The broker has been away for longer than readers wait.
    #[error("the broker does not answer: {0}")]
    Away(BrokerError),
    /// Rows cannot be read.
    #[error(transparent)]
    Read(#[from] RowReadError),
}

/// Instance that a fact is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Sequence in the stream.
    sequence: u64,
    /// Saga of the instance.
    pub saga: SagaName,
    /// Correlation of the instance.
    pub correlation: CorrelationId,
}

/// Instance as it was when a fact about it was published, or later.
#[derive(Debug, Clone)]
pub struct InstanceChange {
    /// Fact that reported the change.
    pub fact: Fact,
    /// Row of the instance; none where it is gone.
    pub record: Option<Arc<CorrelationRecord>>,
}

/// Facts of all tenants. Cheap to clone.
#[derive(Clone)]
pub struct FactHub(Arc<FactHubInner>);

struct FactHubInner {
    broker: Arc<dyn MessageBroker>,
    reads: RowReader,
    /// Prefix of this process's consumer names; no other process has it.
    process: String,
    feeds: Mutex<HashMap<TenantId, Weak<FactFeed>>>,
    alone: Arc<Semaphore>,
}

impl FactHub {
    /// Makes the hub of this process. `random` distinguishes it from other processes.
    #[must_use]
    pub fn new(broker: Arc<dyn MessageBroker>, reads: RowReader, random: u64) -> Self {
        let process = format!("watch-{random:016x}");
        let (feeds, alone) = (Mutex::default(), Arc::new(Semaphore::new(ALONE_MAX)));
        Self(Arc::new(FactHubInner { broker, reads, process, feeds, alone }))
    }

    /// Subscribes to the facts of a tenant: from now on, or from behind a position.
    ///
    /// # Errors
    /// [`FactsError`].
    pub async fn follow(
        &self,
        tenant: &TenantId,
        from: Option<FactPosition>,
    ) -> Result<FactSubscription, FactsError> {
        let feed = self.feed(tenant).await?;
        let (changes, reached) = feed.subscribe();
        let position = match from {
            None => reached,
            Some(from) => {
                let stream = self.0.stream().await?;
                let is_there = from.incarnation == feed.incarnation
                    && from.incarnation == stream.incarnation
                    && (stream.first_sequence.saturating_sub(1)..=stream.last_sequence)
                        .contains(&from.sequence);
                if !is_there {
                    return Err(FactsError::Gone);
                }
                from.sequence
            }
        };
        let (facts, tenant) = (self.clone(), tenant.clone());
        let behind = (position < reached).then_some(reached);
        Ok(FactSubscription {
            facts,
            tenant,
            feed,
            changes,
            position,
            mark: 0,
            behind,
            alone: None,
            next: None,
        })
    }

    /// Finds the task that reads the facts of a tenant, or begins one.
    async fn feed(&self, tenant: &TenantId) -> Result<Arc<FactFeed>, FactsError> {
        let mut feeds = self.0.feeds.lock().await;
        if let Some(feed) = feeds.get(tenant).and_then(Weak::upgrade)
            && !feed.has_ended()
        {
            return Ok(feed);
        }
        let stream = self.0.stream().await?;
        let from = FactPosition { incarnation: stream.incarnation, sequence: stream.last_sequence };
        let reading = FactReader::open(Arc::clone(&self.0), tenant.clone(), from).await?;
        let feed = Arc::new(FactFeed::start(reading));
        feeds.retain(|_, feed| feed.strong_count() > 0);
        feeds.insert(tenant.clone(), Arc::downgrade(&feed));
        Ok(feed)
    }
}

impl FactHubInner {
    async fn stream(&self) -> Result<broker::StreamState, FactsError> {
        let stream = self.broker.stream(WORKFLOW_EVENTS).await.map_err(FactsError::Away)?;
        stream.ok_or_else(|| {
            FactsError::Away(BrokerError::StreamNotFound { stream: WORKFLOW_EVENTS.to_owned() })
        })
    }

    /// Reads the row of the instance that a fact is about.
    async fn record(
        &self,
        tenant: &TenantId,
        fact: &Fact,
    ) -> Result<Option<Arc<CorrelationRecord>>, RowReadError> {
        let Some(lane) = self.reads.lane_of(tenant, &fact.saga, &fact.correlation) else { return Ok(None) };
        Ok(self.reads.record(&lane, &fact.correlation).await?.map(Arc::new))
    }
}

/// Subscription to the facts of a tenant.
pub struct FactSubscription {
    facts: FactHub,
    tenant: TenantId,
    feed: Arc<FactFeed>,
    changes: broadcast::Receiver<InstanceChange>,
    /// Everything up to this sequence was delivered.
    position: u64,
    /// Rows that the feed read for facts up to this sequence may be older than the rows that the follower has read itself.
    mark: u64,
    /// Sequence behind which the feed's changes begin: the follower reads the stream itself up to this point.
    behind: Option<u64>,
    alone: Option<(FactReader, OwnedSemaphorePermit)>,
    /// Fact to give next, once its row was read.
    next: Option<Fact>,
}

impl FactSubscription {
    /// Place behind everything that was given.
    #[must_use]
    pub fn position(&self) -> FactPosition {
        FactPosition { incarnation: self.feed.incarnation, sequence: self.position }
    }

    /// Notes that the follower has read rows itself: later changes are not older than those rows.
    pub fn has_read(&mut self) {
        self.mark = self.feed.begun();
    }

    /// Gives the next change. Each fact is given once, and none is left out. Cancel-safe.
    ///
    /// # Errors
    /// [`FactsError`]; nothing comes after it.
    pub async fn next(&mut self) -> Result<InstanceChange, FactsError> {
        loop {
            if let Some(fact) = &self.next {
                let record = self.facts.0.record(&self.tenant, fact).await?;
                let fact = fact.clone();
                self.next = None;
                self.position = fact.sequence;
                return Ok(InstanceChange { fact, record });
            }
            if let Some(until) = self.behind {
                self.come_up(until).await?;
                continue;
            }
            match self.changes.recv().await {
                Ok(changed) if changed.fact.sequence <= self.position => {}
                Ok(changed) if changed.fact.sequence <= self.mark => self.next = Some(changed.fact),
                Ok(changed) => {
                    self.position = changed.fact.sequence;
                    return Ok(changed);
                }
                Err(RecvError::Lagged(_)) => {
                    let (changes, reached) = self.feed.subscribe();
                    (self.changes, self.behind) = (changes, Some(reached));
                }
                Err(RecvError::Closed) => return Err(self.feed.ended()),
            }
        }
    }

    /// Catches up with facts from before the subscription to the feed: reads the next one, or notes that none is left.
    async fn come_up(&mut self, until: u64) -> Result<(), FactsError> {
        let (reading, _) = match &mut self.alone {
            Some(alone) => alone,
            None => {
                let permit = Arc::clone(&self.facts.0.alone).acquire_owned().await;
                let permit = permit.map_err(|_| FactsError::Gone)?;
                let inner = Arc::clone(&self.facts.0);
                let reading = FactReader::open(inner, self.tenant.clone(), self.position()).await?;
                self.alone.insert((reading, permit))
            }
        };
        match reading.next_until(until).await? {
            Some(fact) => self.next = Some(fact),
            None => {
                // The feed has read rows meanwhile.
                (self.behind, self.alone) = (None, None);
                self.has_read();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_one_form() {
        let position = FactPosition { incarnation: 1_700_000_000_000, sequence: 7 };
        assert_eq!(position.to_string(), "1700000000000.7");
        assert_eq!("1700000000000.7".parse(), Ok(position));
        for text in ["", ".", "1", "1.", ".1", "01.1", "1.01", "1.-1", "+1.1", "1.1.1", "a.b", "1.1 "] {
            assert_eq!(text.parse::<FactPosition>(), Err(InvalidFactPosition), "{text}");
        }
    }
}
