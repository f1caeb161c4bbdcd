//! Position up to which a source was read, and detection of deliveries that require a new consumer.
//!
//! The position is ours: the broker's own is not trusted. It is the last sequence up to which every message is settled,
//! that is applied, ignored, parked or dead in a commit. When an old message could come behind a newer one, the consumer is
//! deleted and recreated behind the position, so that deliveries are in order again.

use std::collections::BTreeSet;

/// The deliveries of one consumer, since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The last message that was delivered; at first the position.
    delivered: u64,
    /// Deliveries so far, as the consumer counts them.
    count: u64,
    in_flight: BTreeSet<u64>,
}

/// Classification of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryClass {
    /// The next message.
    Next,
    /// A message in progress: processing took longer than the broker waits.
    InFlight,
    /// The consumer has to be recreated from [`Cursor::position`], for this reason. The message is dropped.
    Anew(DeliveryDisorder),
}

/// Why deliveries cannot be believed to be in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryDisorder {
    /// Deliveries are missing: the connection was cut while they were under way.
    Gap,
    /// A settled message came again, behind newer ones.
    Repeat,
}

impl DeliveryDisorder {
    /// Returns the name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Repeat => "repeat",
        }
    }
}

impl Cursor {
    /// Makes the cursor of a consumer that was just created to start at `position` + 1.
    #[must_use]
    pub const fn behind(position: u64) -> Self {
        Self { delivered: position, count: 0, in_flight: BTreeSet::new() }
    }

    /// Takes note of a delivery: the sequence of the message in its stream, and that of the delivery at its consumer.
    pub fn deliver(&mut self, sequence: u64, count: u64) -> DeliveryClass {
        if count != self.count + 1 {
            return DeliveryClass::Anew(DeliveryDisorder::Gap);
        }
        self.count = count;
        if sequence > self.delivered {
            self.delivered = sequence;
            self.in_flight.insert(sequence);
            return DeliveryClass::Next;
        }
        if self.in_flight.contains(&sequence) {
            return DeliveryClass::InFlight;
        }
        DeliveryClass::Anew(DeliveryDisorder::Repeat)
    }

    /// Notes that the broker has looked as far as `sequence` for the next message, after `count` deliveries. The messages
    /// it passed over are not of this source. Ignored while one of those deliveries is missing.
    pub fn pass(&mut self, sequence: u64, count: u64) {
        if count == self.count {
            self.delivered = self.delivered.max(sequence);
        }
    }

    /// Notes that a message is settled; returns whether the position has moved.
    pub fn settle(&mut self, sequence: u64) -> bool {
        let before = self.position();
        self.in_flight.remove(&sequence);
        self.position() > before
    }

    /// The last sequence up to which everything is settled. Messages passed over are not of this source.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.in_flight.first().map_or(self.delivered, |first| first.saturating_sub(1))
    }

    /// Counts the deliveries since it was made.
    #[must_use]
    pub const fn deliveries(&self) -> u64 {
        self.count
    }

    /// The first message in progress.
    #[must_use]
    pub fn first_in_flight(&self) -> Option<u64> {
        self.in_flight.first().copied()
    }

    /// How many messages are being worked on.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_position_moves_over_what_is_settled_without_a_hole() {
        let mut cursor = Cursor::behind(4);
        for (sequence, count) in [(5, 1), (8, 2), (9, 3)] {
            assert_eq!(cursor.deliver(sequence, count), DeliveryClass::Next);
        }
        assert_eq!((cursor.position(), cursor.in_flight()), (4, 3));
        assert!(!cursor.settle(8));
        assert!(cursor.settle(5));
        // 6 and 7 are others', 8 is settled.
        assert_eq!(cursor.position(), 8);
        assert_eq!(cursor.deliver(9, 4), DeliveryClass::InFlight);
        assert!(cursor.settle(9));
        assert_eq!((cursor.position(), cursor.in_flight()), (9, 0));
    }

    #[test]
    fn what_was_passed_over_moves_the_position_behind_what_is_settled_only() {
        let mut cursor = Cursor::behind(4);
        cursor.pass(6, 0);
        assert_eq!(cursor.position(), 6);
        assert_eq!(cursor.deliver(8, 1), DeliveryClass::Next);
        // Said before it came.
        cursor.pass(9, 0);
        cursor.pass(12, 1);
        assert_eq!(cursor.position(), 7);
        assert!(cursor.settle(8));
        assert_eq!(cursor.position(), 12);
        cursor.pass(10, 1);
        assert_eq!(cursor.position(), 12);
        // A delivery is missing: it may be of one that was passed over.
        cursor.pass(20, 2);
        assert_eq!(cursor.position(), 12);
        assert_eq!(cursor.deliver(13, 2), DeliveryClass::Next);
    }

    #[test]
    fn what_may_be_out_of_order_makes_the_consumer_be_made_anew() {
        let mut cursor = Cursor::behind(0);
        assert_eq!(cursor.deliver(1, 1), DeliveryClass::Next);
        assert_eq!(cursor.deliver(3, 3), DeliveryClass::Anew(DeliveryDisorder::Gap));
        assert_eq!(cursor.deliver(2, 2), DeliveryClass::Next);
        cursor.settle(1);
        assert_eq!(cursor.deliver(1, 3), DeliveryClass::Anew(DeliveryDisorder::Repeat));
        assert_eq!(cursor.position(), 1);
    }

    /// Action that the broker takes next.
    #[derive(Debug, Clone, Copy)]
    enum BrokerAction {
        /// Delivers the next message.
        Deliver,
        /// Loses a delivery on the way, with the connection.
        Lose,
        /// Delivers an old message again.
        Repeat(prop::sample::Index),
        /// One that is being worked on is settled.
        Settle(prop::sample::Index),
        /// The owner dies with what it has in memory.
        Die,
    }

    fn turn() -> impl Strategy<Value = BrokerAction> {
        prop_oneof![
            6 => Just(BrokerAction::Deliver),
            1 => Just(BrokerAction::Lose),
            1 => any::<prop::sample::Index>().prop_map(BrokerAction::Repeat),
            6 => any::<prop::sample::Index>().prop_map(BrokerAction::Settle),
            1 => Just(BrokerAction::Die),
        ]
    }

    proptest! {
        /// Whatever a broker does, work begins in the order of the stream behind the position, and nothing below that is unsettled.
        #[test]
        fn order_is_kept_whatever_a_broker_does(
            turns in proptest::collection::vec(turn(), 1..200),
            steps in proptest::collection::vec(1_u64..4, 200),
        ) {
            let stream: Vec<u64> = steps.iter().scan(0, |at, step| { *at += step; Some(*at) }).collect();
            let mut settled = BTreeSet::new();
            let (mut cursor, mut sent, mut count, mut begun) = (Cursor::behind(0), 0, 0, 0);
            let mut working: Vec<u64> = Vec::new();
            let after = |position: u64| stream.partition_point(|sequence| *sequence <= position);
            for turn in turns {
                let anew = match turn {
                    BrokerAction::Settle(which) => {
                        if !working.is_empty() {
                            let sequence = working.swap_remove(which.index(working.len()));
                            settled.insert(sequence);
                            cursor.settle(sequence);
                        }
                        false
                    }
                    BrokerAction::Lose => { sent += 1; count += 1; false }
                    BrokerAction::Die => true,
                    BrokerAction::Repeat(which) => {
                        let old = which.index(sent.clamp(1, stream.len()));
                        count += 1;
                        matches!(cursor.deliver(stream[old], count), DeliveryClass::Anew(_))
                    }
                    BrokerAction::Deliver if sent >= stream.len() => false,
                    BrokerAction::Deliver => {
                        let sequence = stream[sent];
                        sent += 1;
                        count += 1;
                        match cursor.deliver(sequence, count) {
                            DeliveryClass::Next => {
                                prop_assert!(sequence > begun, "{sequence} after {begun}");
                                begun = sequence;
                                working.push(sequence);
                                false
                            }
                            DeliveryClass::InFlight => false,
                            DeliveryClass::Anew(_) => true,
                        }
                    }
                };
                let position = cursor.position();
                let below = stream.iter().take_while(|sequence| **sequence <= position);
                prop_assert!(below.clone().all(|sequence| settled.contains(sequence)), "{position}");
                if anew {
                    // What is in memory is forgotten; what was settled meanwhile is known to the store.
                    working.clear();
                    cursor = Cursor::behind(position);
                    (sent, count, begun) = (after(position), 0, position);
                }
            }
        }
    }
}
