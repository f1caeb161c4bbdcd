//! Streams and consumers as a server has them, without waiting or networks.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    BrokerConnectionStatus, CursorProgress, CursorState, PublicationAck, StoredMessage, StreamSettings,
};

/// All that a simulated server has, and how it was broken.
pub(super) struct SimulatedServer {
    pub(super) connection: BrokerConnectionStatus,
    pub(super) version_text: String,
    pub(super) max_payload: usize,
    pub(super) streams: BTreeMap<String, SimulatedStream>,
    pub(super) inboxes: HashMap<String, mpsc::Sender<Bytes>>,
    /// Count of acknowledgements of messages that are lost next.
    pub(super) lost_acknowledgements: usize,
    /// Setting that replaces the requested one in the next consumer.
    pub(super) setting_override: Option<(String, serde_json::Value)>,
    /// Counter for numbers that are used once: of consumers, inboxes, and incarnations.
    pub(super) given: u64,
}

impl SimulatedServer {
    pub(super) fn new() -> Self {
        Self {
            connection: BrokerConnectionStatus { connected: true, generation: 1 },
            version_text: "2.9.10".to_owned(),
            max_payload: 1024 * 1024,
            streams: BTreeMap::new(),
            inboxes: HashMap::new(),
            lost_acknowledgements: 0,
            setting_override: None,
            given: 0,
        }
    }

    /// Returns a number that is at least `least`, and higher than all before.
    pub(super) fn next_number(&mut self, least: u64) -> u64 {
        self.given = (self.given + 1).max(least);
        self.given
    }

    /// Stores a message in the stream that accepts its subject; returns `None` when there is none.
    pub(super) fn store(&mut self, id: &str, message: StoredMessage) -> Option<PublicationAck> {
        let takes = |stream: &&mut SimulatedStream| {
            stream.settings.subjects.iter().any(|filter| matches(filter, &message.subject))
        };
        self.streams.values_mut().find(takes).map(|stream| stream.store(id, message))
    }
}

/// A stream.
pub(super) struct SimulatedStream {
    pub(super) name: String,
    pub(super) incarnation: u64,
    pub(super) settings: StreamSettings,
    pub(super) last: u64,
    pub(super) messages: BTreeMap<u64, StoredMessage>,
    pub(super) consumers: HashMap<String, SimulatedConsumer>,
    /// Messages by their ids: their sequences, and when they came.
    ids: HashMap<String, (u64, u64)>,
}

impl SimulatedStream {
    pub(super) fn new(name: &str, incarnation: u64, settings: StreamSettings) -> Self {
        Self {
            name: name.to_owned(),
            incarnation,
            settings,
            last: 0,
            messages: BTreeMap::new(),
            consumers: HashMap::new(),
            ids: HashMap::new(),
        }
    }

    fn store(&mut self, id: &str, message: StoredMessage) -> PublicationAck {
        let window = u64::try_from(self.settings.duplicate_window.as_millis()).unwrap_or(u64::MAX);
        let now = message.stored_millis;
        self.ids.retain(|_, (_, came)| now < came.saturating_add(window));
        if let Some((sequence, _)) = self.ids.get(id) {
            return PublicationAck { stream: self.name.clone(), sequence: *sequence, is_duplicate: true };
        }
        self.last += 1;
        self.ids.insert(id.to_owned(), (self.last, now));
        self.messages.insert(self.last, StoredMessage { sequence: self.last, ..message });
        PublicationAck { stream: self.name.clone(), sequence: self.last, is_duplicate: false }
    }

    pub(super) fn first(&self) -> u64 {
        self.messages.keys().next().copied().unwrap_or(self.last + 1)
    }

    /// Drops everything behind a sequence, which becomes the last one: later messages get the same sequences again.
    pub(super) fn roll_back(&mut self, last: u64) {
        self.last = self.last.min(last);
        drop(self.messages.split_off(&last.saturating_add(1)));
        self.ids.retain(|_, (sequence, _)| *sequence <= last);
        for consumer in self.consumers.values_mut() {
            consumer.next = consumer.next.min(last.saturating_add(1));
            consumer.pending.retain(|sequence, _| *sequence <= last);
        }
    }

    /// Forgets everything before a sequence.
    pub(super) fn expire(&mut self, first: u64) {
        self.messages = self.messages.split_off(&first);
    }
}

/// A durable consumer.
pub(super) struct SimulatedConsumer {
    /// Another consumer of the same name has another number.
    pub(super) number: u64,
    filter: String,
    max_ack_pending: usize,
    ack_wait: u64,
    pub(super) next: u64,
    count: u64,
    /// Deliveries without an acknowledgement: when each is repeated.
    pending: BTreeMap<u64, u64>,
    attempts: HashMap<u64, u64>,
    acknowledged: Vec<u64>,
    /// Messages that are delivered next, even if the filter excludes them.
    forced: VecDeque<u64>,
    /// Number of the next deliveries that will be lost on their way.
    lost: usize,
}

/// Delivery that a consumer makes.
pub(super) struct SimulatedDelivery {
    pub(super) message: StoredMessage,
    pub(super) count: u64,
    pub(super) attempt: u64,
    pub(super) pending: u64,
    /// True when the delivery is lost on its way.
    pub(super) is_lost: bool,
}

impl SimulatedConsumer {
    pub(super) fn new(number: u64, next: u64, spec: &crate::CursorSpec) -> Self {
        Self {
            number,
            filter: spec.filter.clone(),
            max_ack_pending: spec.max_ack_pending as usize,
            ack_wait: u64::try_from(spec.ack_wait.as_millis()).unwrap_or(u64::MAX),
            next,
            count: 0,
            pending: BTreeMap::new(),
            attempts: HashMap::new(),
            acknowledged: Vec::new(),
            forced: VecDeque::new(),
            lost: 0,
        }
    }

    /// Returns the next delivery: first messages that tests force, then those not acknowledged in time, then the next
    /// message. Returns `None` if it has more than `bytes` bytes.
    pub(super) fn take(
        &mut self,
        messages: &BTreeMap<u64, StoredMessage>,
        now: u64,
        bytes: usize,
    ) -> Option<SimulatedDelivery> {
        let message = self.choose(messages, now)?;
        if message.payload.len() > bytes {
            return None;
        }
        let sequence = message.sequence;
        if self.forced.front() == Some(&sequence) {
            self.forced.pop_front();
        }
        self.next = self.next.max(sequence.saturating_add(1));
        self.pending.insert(sequence, now.saturating_add(self.ack_wait));
        self.count += 1;
        let attempt = self.attempts.entry(sequence).or_default();
        *attempt += 1;
        let is_lost = self.lost > 0;
        self.lost = self.lost.saturating_sub(1);
        Some(SimulatedDelivery {
            message: message.clone(),
            count: self.count,
            attempt: *attempt,
            pending: self.undelivered(messages).count() as u64,
            is_lost,
        })
    }

    fn choose<'a>(
        &mut self,
        messages: &'a BTreeMap<u64, StoredMessage>,
        now: u64,
    ) -> Option<&'a StoredMessage> {
        self.forced.retain(|sequence| messages.contains_key(sequence));
        self.pending.retain(|sequence, _| messages.contains_key(sequence));
        let forced = self.forced.front();
        let overdue = self.pending.iter().find(|(_, due)| **due <= now).map(|(sequence, _)| sequence);
        if let Some(sequence) = forced.or(overdue) {
            return messages.get(sequence);
        }
        if self.pending.len() >= self.max_ack_pending {
            return None;
        }
        self.undelivered(messages).next()
    }

    /// Messages that it has not delivered yet.
    fn undelivered<'a>(
        &self,
        messages: &'a BTreeMap<u64, StoredMessage>,
    ) -> impl Iterator<Item = &'a StoredMessage> + use<'a> {
        let filter = self.filter.clone();
        let behind = messages.range(self.next..).map(|(_, message)| message);
        behind.filter(move |message| matches(&filter, &message.subject))
    }

    /// How far it has looked; `None` while there is something to deliver.
    pub(super) fn scan_progress(
        &self,
        messages: &BTreeMap<u64, StoredMessage>,
        last: u64,
    ) -> Option<CursorProgress> {
        let is_over = self.forced.is_empty() && self.undelivered(messages).next().is_none();
        is_over.then_some(CursorProgress { count: self.count, sequence: last })
    }

    /// When the next delivery is repeated.
    pub(super) fn due(&self) -> Option<u64> {
        self.pending.values().min().copied()
    }

    pub(super) fn ack(&mut self, sequence: u64) {
        if self.pending.remove(&sequence).is_some() {
            self.acknowledged.push(sequence);
        }
    }

    pub(super) fn progress(&mut self, sequence: u64, now: u64) {
        if let Some(due) = self.pending.get_mut(&sequence) {
            *due = now.saturating_add(self.ack_wait);
        }
    }

    /// Drops the last acknowledgements: those messages are redelivered at once.
    pub(super) fn forget_acks(&mut self, count: usize) {
        for sequence in self.acknowledged.split_off(self.acknowledged.len().saturating_sub(count)) {
            self.pending.insert(sequence, 0);
        }
    }

    pub(super) fn state(&self, messages: &BTreeMap<u64, StoredMessage>) -> CursorState {
        CursorState {
            delivered: self.count,
            delivered_sequence: self.next.saturating_sub(1),
            pending: self.undelivered(messages).count() as u64,
            unacknowledged: self.pending.len() as u64,
        }
    }

    pub(super) fn force(&mut self, sequence: u64) {
        self.forced.push_back(sequence);
    }

    pub(super) fn lose(&mut self, count: usize) {
        self.lost += count;
    }
}

/// Returns whether a filter matches a subject: `*` is any one token, and `>` at the end one or more.
fn matches(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in filter.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (wanted, Some(token)) if wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_take_whole_tokens() {
        for (filter, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("*.b", "a.b", true),
            ("a.>", "a.b.c", true),
            (">", "a", true),
            ("a.>", "a", false),
            ("a.*", "a.b.c", false),
            ("a.*", "a", false),
            ("a.b", "a.bc", false),
            ("a.b.c", "a.b", false),
        ] {
            assert_eq!(matches(filter, subject), expected, "{filter} {subject}");
        }
    }
}
