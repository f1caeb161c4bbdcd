//! Fault injection: tests decide what happens to a server and its connection.

use serde_json::Value;

use super::SimulatedBroker;
use super::server::{SimulatedConsumer, SimulatedStream};

impl SimulatedBroker {
    /// Makes the server unreachable. Everything open on the connection ends.
    pub fn disconnect(&self) {
        self.shared.change(|world| {
            world.connection.connected = false;
            world.inboxes.clear();
        });
    }

    /// Brings the server back, as another connection.
    pub fn reconnect(&self) {
        self.shared.change(|world| {
            if !world.connection.connected {
                world.connection.connected = true;
                world.connection.generation += 1;
            }
        });
    }

    /// Cuts the connection, and makes another one at once.
    pub fn drop_connection(&self) {
        self.disconnect();
        self.reconnect();
    }

    /// Stores the next messages without acknowledging them.
    pub fn lose_acknowledgements(&self, count: usize) {
        self.shared.change(|world| world.lost_acknowledgements += count);
    }

    /// Loses the next deliveries to a consumer on their way, which leaves a gap in their numbers.
    pub fn lose_deliveries(&self, stream: &str, consumer: &str, count: usize) {
        self.consumer(stream, consumer, |consumer| consumer.lose(count));
    }

    /// Drops the last acknowledgements of a consumer, as a killed server does: those messages are redelivered.
    pub fn forget_acks(&self, stream: &str, consumer: &str, count: usize) {
        self.consumer(stream, consumer, |consumer| consumer.forget_acks(count));
    }

    /// Delivers a message of the stream to a consumer, before all others: whether or not it was delivered before, and whether or not
    /// the consumer's filter takes it.
    pub fn deliver(&self, stream: &str, consumer: &str, sequence: u64) {
        self.consumer(stream, consumer, |consumer| consumer.force(sequence));
    }

    /// Delivers a message to a consumer once more, before all others; nothing where that has not delivered it: no server passes over
    /// messages.
    pub fn redeliver(&self, stream: &str, consumer: &str, sequence: u64) {
        self.consumer(stream, consumer, |consumer| {
            if consumer.next > sequence {
                consumer.force(sequence);
            }
        });
    }

    /// Creates the next consumer with another value of a setting than requested.
    pub fn override_next_setting(&self, field: &str, value: Value) {
        self.shared.change(|world| world.setting_override = Some((field.to_owned(), value)));
    }

    /// Deletes a stream with its consumers.
    pub fn delete_stream(&self, stream: &str) {
        self.shared.change(|world| world.streams.remove(stream));
    }

    /// Changes the settings of a stream without the knowledge of its owner.
    pub fn alter_stream(&self, stream: &str, alter: impl FnOnce(&mut crate::StreamSettings)) {
        self.stream_at(stream, |stream| alter(&mut stream.settings));
    }

    /// Drops all messages behind a sequence, and cuts the connection: later messages get the same sequences again.
    pub fn roll_back(&self, stream: &str, last: u64) {
        self.stream_at(stream, |stream| stream.roll_back(last));
        self.drop_connection();
    }

    /// Loses all messages before a sequence, as the limits of a stream do.
    pub fn expire(&self, stream: &str, first: u64) {
        self.stream_at(stream, |stream| stream.expire(first));
    }

    /// Loses everything, and cuts the connection.
    pub fn wipe(&self) {
        self.shared.change(|world| world.streams.clear());
        self.drop_connection();
    }

    /// Calls itself a server of this version.
    pub fn set_version(&self, text: &str) {
        self.shared.change(|world| text.clone_into(&mut world.version_text));
    }

    /// Takes messages up to this size only.
    pub fn set_max_payload(&self, bytes: usize) {
        self.shared.change(|world| world.max_payload = bytes);
    }

    fn stream_at(&self, stream: &str, change: impl FnOnce(&mut SimulatedStream)) {
        self.shared.change(|world| world.streams.get_mut(stream).map(change));
    }

    fn consumer(&self, stream: &str, consumer: &str, change: impl FnOnce(&mut SimulatedConsumer)) {
        self.stream_at(stream, |stream| {
            stream.consumers.get_mut(consumer).map(change);
        });
    }
}
