//! Deliveries of a consumer, pulled piece by piece.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::api::{self, is_consumer_missing, read_headers};
use super::connect::{NatsAckSink, NatsLink};
use crate::cursor::PULL_MESSAGES_MAX;
use crate::receipt::AckSink;
use crate::{
    BrokerError, CursorError, CursorProgress, CursorSpec, Deliveries, PullLimit, ReceiptHandle,
    StreamDelivery,
};

/// How long the server keeps a pull that it cannot fill.
const PULL_EXPIRES: Duration = Duration::from_secs(30);
/// Description of the status that ends a pull whose remaining bytes do not fit the next message.
const TOO_LARGE: &str = "Message Size Exceeds MaxBytes";
/// Headers of heartbeats: number of the last delivery, and the sequence as far as the server has looked.
const LAST_DELIVERY: &str = "Nats-Last-Consumer";
const LAST_SEQUENCE: &str = "Nats-Last-Stream";

/// Deliveries over one connection.
pub(super) struct PullSubscription {
    link: Arc<NatsLink>,
    settle: Arc<dyn AckSink>,
    consumer: String,
    /// The stream and the consumer, as they stand in subjects.
    path: String,
    /// Subject to which messages come.
    inbox: String,
    subscriber: Subscriber,
    heartbeat: Duration,
    /// Pull that is under way.
    pull: Option<PendingPull>,
    /// True when the next message did not fit the last pull: it is pulled alone, whatever its size.
    is_large: bool,
    /// Time of the last message or heartbeat from the server.
    last_received: Instant,
    /// Progress that the server's last heartbeat reported; none since the last message.
    looked: Option<CursorProgress>,
    passed: watch::Sender<CursorProgress>,
}

/// A pull that is not filled yet.
struct PendingPull {
    missing: usize,
    has_come: bool,
}

impl PullSubscription {
    pub(super) async fn start(
        link: Arc<NatsLink>,
        spec: &CursorSpec,
        heartbeat: Duration,
    ) -> Result<Self, BrokerError> {
        let inbox = link.client.new_inbox();
        let subscriber = link.subscribe(&format!("the cursor {}", spec.consumer), &inbox).await?;
        Ok(Self {
            settle: Arc::new(NatsAckSink(Arc::downgrade(&link))),
            link,
            consumer: spec.consumer.clone(),
            path: format!("{}.{}", spec.stream, spec.consumer),
            inbox,
            subscriber,
            heartbeat,
            pull: None,
            is_large: false,
            last_received: Instant::now(),
            looked: None,
            passed: watch::Sender::default(),
        })
    }

    /// Pulls as much as `room` allows, unless a pull is in flight.
    async fn pull(&mut self, room: PullLimit) -> Result<(), CursorError> {
        if self.pull.is_some() || !room.is_open() {
            return Ok(());
        }
        let messages = if self.is_large { 1 } else { room.messages.min(PULL_MESSAGES_MAX) };
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let mut request = json!({
            "batch": messages,
            "expires": nanos(PULL_EXPIRES),
            "idle_heartbeat": nanos(self.heartbeat.min(PULL_EXPIRES / 2)),
        });
        if !self.is_large {
            request["max_bytes"] = json!(room.bytes.min(i32::MAX as usize));
        }
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}", self.path);
        let sent = self.link.send("a pull", &subject, Some(&self.inbox), request.to_string().into()).await;
        // Nothing is awaited between sending and this, so a call that is dropped has either pulled or not.
        sent.map_err(|_| self.disconnected())?;
        self.pull = Some(PendingPull { missing: messages, has_come: false });
        self.is_large = false;
        self.last_received = Instant::now();
        Ok(())
    }

    /// Waits for the next message or status, as long as the server sends heartbeats.
    async fn wait(&mut self) -> Result<Message, CursorError> {
        let patience = self.heartbeat * 2;
        let deadline = self.pull.is_some().then_some(self.last_received + patience);
        let silence = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            message = self.subscriber.next() => message.ok_or_else(|| self.disconnected()),
            () = silence => Err(self.silence(patience).await),
        }
    }

    /// Finds out why nothing arrives: servers do not answer a pull for a consumer that is missing or was just deleted.
    async fn silence(&self, waited: Duration) -> CursorError {
        let consumer = self.consumer.clone();
        let subject = format!("CONSUMER.INFO.{}", self.path);
        let request = json!({});
        let query = api::ask::<Value>(&self.link, "a consumer", subject, &request);
        match timeout(waited, query).await {
            Ok(Ok(Err(error))) if is_consumer_missing(&error) => CursorError::Deleted { consumer },
            _ => CursorError::Silent { consumer, waited },
        }
    }

    /// Reads an incoming message: a delivery, or a status of the pull.
    fn read(&mut self, message: Message) -> Result<Option<StreamDelivery>, CursorError> {
        self.last_received = Instant::now();
        match message.status {
            None | Some(StatusCode::OK) => self.read_message(message).map(Some),
            Some(StatusCode::IDLE_HEARTBEAT) => {
                self.read_heartbeat(&message);
                Ok(None)
            }
            // Not found and timed out: the pull has ended.
            Some(status) if matches!(status.as_u16(), 404 | 408) => {
                self.pull = None;
                Ok(None)
            }
            Some(StatusCode::NO_RESPONDERS) => Err(CursorError::Deleted { consumer: self.consumer.clone() }),
            Some(status) => {
                let description = message.description.unwrap_or_default();
                self.read_status(status, &description).map(|()| None)
            }
        }
    }

    /// Notes how far the server has looked. A position counts once the server has reported it twice with no delivery
    /// between: anything it had found by the first report would have arrived by then.
    fn read_heartbeat(&mut self, message: &Message) {
        let number = |name: &str| message.headers.as_ref()?.get(name)?.as_str().parse().ok();
        let (Some(count), Some(sequence)) = (number(LAST_DELIVERY), number(LAST_SEQUENCE)) else { return };
        let looked = CursorProgress { count, sequence };
        if let Some(before) = self.looked.replace(looked).filter(|before| before.count == count) {
            let passed = CursorProgress { count, sequence: before.sequence.min(sequence) };
            self.passed.send_if_modified(|progress| std::mem::replace(progress, passed) != passed);
        }
    }

    fn read_status(&mut self, status: StatusCode, description: &str) -> Result<(), CursorError> {
        if description.eq_ignore_ascii_case("Consumer Deleted") {
            return Err(CursorError::Deleted { consumer: self.consumer.clone() });
        }
        if description.eq_ignore_ascii_case(TOO_LARGE) {
            // No message preceded it, so the next one fits in no pull of this size.
            self.is_large = self.pull.take().is_some_and(|pull| !pull.has_come);
            return Ok(());
        }
        if description.eq_ignore_ascii_case("Batch Completed") {
            self.pull = None;
            return Ok(());
        }
        Err(CursorError::Refused { consumer: self.consumer.clone(), why: format!("{status} {description}") })
    }

    fn read_message(&mut self, message: Message) -> Result<StreamDelivery, CursorError> {
        self.looked = None;
        if let Some(pull) = &mut self.pull {
            pull.has_come = true;
            pull.missing = pull.missing.saturating_sub(1);
            if pull.missing == 0 {
                self.pull = None;
            }
        }
        let reply = message.reply.as_deref().unwrap_or_default();
        let refused = || CursorError::Refused {
            consumer: self.consumer.clone(),
            why: format!("a message came whose reply subject {reply:?} is none of a delivery"),
        };
        let origin = AckSubject::read(reply).ok_or_else(refused)?;
        Ok(StreamDelivery {
            receipt: ReceiptHandle::new(Arc::clone(&self.settle), reply),
            subject: message.subject.to_string(),
            headers: message.headers.as_ref().map(read_headers).unwrap_or_default(),
            payload: message.payload,
            sequence: origin.sequence,
            count: origin.count,
            attempt: origin.attempt,
            stored_millis: origin.stored_millis,
            pending: origin.pending,
        })
    }

    fn disconnected(&self) -> CursorError {
        CursorError::Disconnected { consumer: self.consumer.clone() }
    }
}

#[async_trait]
impl Deliveries for PullSubscription {
    async fn next(&mut self, room: PullLimit) -> Result<StreamDelivery, CursorError> {
        loop {
            // Messages that have already arrived are handled first: they may end the pull in flight.
            let message = match self.subscriber.next().now_or_never() {
                Some(message) => message.ok_or_else(|| self.disconnected())?,
                None => {
                    self.pull(room).await?;
                    self.wait().await?
                }
            };
            if let Some(delivered) = self.read(message)? {
                return Ok(delivered);
            }
        }
    }

    fn progress(&self) -> watch::Receiver<CursorProgress> {
        self.passed.subscribe()
    }
}

/// Origin of a delivery, as it stands in the subject to which it is acknowledged.
#[derive(Debug, PartialEq, Eq)]
struct AckSubject {
    attempt: u64,
    sequence: u64,
    count: u64,
    stored_millis: u64,
    pending: u64,
}

impl AckSubject {
    /// Reads `$JS.ACK.<stream>.<consumer>.<attempt>.<sequence>.<count>.<nanoseconds>.<pending>`. Newer servers may have the domain
    /// and a hash of the account before the stream, and more tokens at the end (ADR-15 of NATS).
    fn read(subject: &str) -> Option<Self> {
        let tokens: Vec<&str> = subject.strip_prefix("$JS.ACK.")?.split('.').collect();
        let before = match tokens.len() {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let mut numbers = tokens.iter().skip(before).map(|token| token.parse::<u64>().ok());
        let mut number = || numbers.next().flatten();
        Some(Self {
            attempt: number()?,
            sequence: number()?,
            count: number()?,
            stored_millis: number()? / 1_000_000,
            pending: number()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_read_in_both_forms() {
        let origin = Some(AckSubject {
            attempt: 2,
            sequence: 7,
            count: 9,
            stored_millis: 1_700_000_000_123,
            pending: 4,
        });
        for subject in [
            "$JS.ACK.S.c.2.7.9.1700000000123456789.4",
            "$JS.ACK._.hash.S.c.2.7.9.1700000000123456789.4",
            "$JS.ACK.domain.hash.S.c.2.7.9.1700000000123456789.4.random.more",
        ] {
            assert_eq!(AckSubject::read(subject), origin, "{subject}");
        }
        for subject in
            ["", "$JS.ACK.S.c", "$JS.ACK.S.c.2.x.9.1.4", "$JS.NAK.S.c.2.7.9.1.4", "$JS.ACK.S.c.2.7.9.1.4.5"]
        {
            assert_eq!(AckSubject::read(subject), None, "{subject}");
        }
    }
}
