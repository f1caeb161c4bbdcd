//! Fair queue: a window for each lane, contexts in turn.
//!
//! A lane is a context's route to one destination. Messages waiting in one lane never hold up another, and
//! a context with very much to send gets one turn like any other.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use model::{ContextId, RunnerId};

/// A context's route to one destination.
pub type DeliveryRoute<D> = (ContextId, D);
/// A context's route to one of its runners.
pub type RunnerRoute = DeliveryRoute<RunnerId>;

/// Messages of one lane that may be under way at once.
pub const LANE_MESSAGES_MAX: usize = 8;
/// Nodes of one lane that may be under way at once. A single message may exceed it.
pub const LANE_NODES_MAX: usize = 1000;
/// Messages of all lanes that may be under way at once.
pub const MESSAGES_MAX: usize = 512;

/// A message's number within this process.
pub type MessageNumber = u64;

/// All lanes to destinations of one kind.
#[derive(Debug)]
pub struct FairQueue<D> {
    lanes: HashMap<DeliveryRoute<D>, RouteQueue>,
    /// Contexts with something waiting, the next in turn first, each with its destinations in turn.
    turns: VecDeque<(ContextId, VecDeque<D>)>,
    under_way: usize,
    /// Lanes whose window holds back what waits in them.
    full: usize,
}

impl<D> Default for FairQueue<D> {
    fn default() -> Self {
        Self { lanes: HashMap::new(), turns: VecDeque::new(), under_way: 0, full: 0 }
    }
}

#[derive(Debug, Default)]
struct RouteQueue {
    waiting: VecDeque<(MessageNumber, usize)>,
    messages: usize,
    nodes: usize,
}

impl RouteQueue {
    fn has_room(&self, nodes: usize) -> bool {
        self.messages == 0 || (self.messages < LANE_MESSAGES_MAX && self.nodes + nodes <= LANE_NODES_MAX)
    }

    /// Returns true when the next message waits because the window has no room for it.
    fn is_full(&self) -> bool {
        self.waiting.front().is_some_and(|(_, nodes)| !self.has_room(*nodes))
    }

    /// Changes the lane, and keeps `full`, the number of lanes that are full.
    fn change(&mut self, full: &mut usize, edit: impl FnOnce(&mut Self)) {
        let before = self.is_full();
        edit(self);
        *full = *full + usize::from(self.is_full()) - usize::from(before);
    }
}

impl<D: Clone + Eq + Hash> FairQueue<D> {
    /// Lets a message wait for its turn.
    pub fn push(&mut self, key: DeliveryRoute<D>, message: MessageNumber, nodes: usize) {
        let lane = self.lanes.entry(key.clone()).or_default();
        lane.change(&mut self.full, |lane| lane.waiting.push_back((message, nodes)));
        if lane.waiting.len() == 1 {
            match self.turns.iter_mut().find(|(context, _)| *context == key.0) {
                Some((_, destinations)) => destinations.push_back(key.1),
                None => self.turns.push_back((key.0, VecDeque::from([key.1]))),
            }
        }
    }

    /// Removes a waiting message that must not be sent any more.
    pub fn remove(&mut self, key: &DeliveryRoute<D>, message: MessageNumber) {
        if let Some(lane) = self.lanes.get_mut(key) {
            // The turn of a lane that is empty now ends when it comes.
            lane.change(&mut self.full, |lane| lane.waiting.retain(|(waiting, _)| *waiting != message));
        }
    }

    /// A message that was taken is not under way any more.
    pub fn finished(&mut self, key: &DeliveryRoute<D>, nodes: usize) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.change(&mut self.full, |lane| {
                lane.messages = lane.messages.saturating_sub(1);
                lane.nodes = lane.nodes.saturating_sub(nodes);
            });
            if lane.messages == 0 && lane.waiting.is_empty() && !self.has_turn(key) {
                self.lanes.remove(key);
            }
        }
    }

    /// How many messages are under way, of [`MESSAGES_MAX`].
    #[must_use]
    pub const fn under_way(&self) -> usize {
        self.under_way
    }

    /// How many lanes have messages that wait because their window is full.
    #[must_use]
    pub const fn full_windows(&self) -> usize {
        self.full
    }

    /// Takes what may be sent now: rounds of one message for each context, while there is room. `open`
    /// says whether a lane leads anywhere at present.
    pub fn take(
        &mut self,
        open: impl Fn(&DeliveryRoute<D>) -> bool,
    ) -> Vec<(DeliveryRoute<D>, MessageNumber)> {
        let mut taken = Vec::new();
        loop {
            let before = taken.len();
            for _ in 0..self.turns.len() {
                if self.under_way >= MESSAGES_MAX {
                    return taken;
                }
                let Some((context, mut destinations)) = self.turns.pop_front() else { break };
                if let Some(next) = self.take_of(context, &mut destinations, &open) {
                    taken.push(next);
                }
                if !destinations.is_empty() {
                    self.turns.push_back((context, destinations));
                }
            }
            if taken.len() == before {
                return taken;
            }
        }
    }

    /// One message of a context, from the first of its lanes that can send.
    fn take_of(
        &mut self,
        context: ContextId,
        destinations: &mut VecDeque<D>,
        open: &impl Fn(&DeliveryRoute<D>) -> bool,
    ) -> Option<(DeliveryRoute<D>, MessageNumber)> {
        for _ in 0..destinations.len() {
            let key = (context, destinations.pop_front()?);
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            let Some((message, nodes)) = lane.waiting.front().copied() else {
                if lane.messages == 0 {
                    self.lanes.remove(&key);
                }
                continue;
            };
            if !lane.has_room(nodes) || !open(&key) {
                destinations.push_back(key.1);
                continue;
            }
            lane.change(&mut self.full, |lane| {
                lane.waiting.pop_front();
                lane.messages += 1;
                lane.nodes += nodes;
            });
            self.under_way += 1;
            if !lane.waiting.is_empty() {
                destinations.push_back(key.1.clone());
            }
            return Some((key, message));
        }
        None
    }

    fn has_turn(&self, key: &DeliveryRoute<D>) -> bool {
        self.turns.iter().any(|(context, destinations)| *context == key.0 && destinations.contains(&key.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn lane(context: u32, runner: u32) -> RunnerRoute {
        (ContextId(context), RunnerId(runner))
    }

    fn numbers(taken: Vec<(RunnerRoute, MessageNumber)>) -> Vec<MessageNumber> {
        taken.into_iter().map(|(_, message)| message).collect()
    }

    #[test]
    fn contexts_take_turns() {
        let mut lanes = FairQueue::default();
        for message in 0..3 {
            lanes.push(lane(1, 1), message, 1);
        }
        lanes.push(lane(1, 2), 10, 1);
        lanes.push(lane(2, 1), 20, 1);
        assert_eq!(numbers(lanes.take(|_| true)), [0, 20, 10, 1, 2]);
    }

    #[test]
    fn a_window_holds_back_its_lane_only() {
        let mut lanes = FairQueue::default();
        for message in 0..20 {
            lanes.push(lane(1, 1), message, 1);
        }
        lanes.push(lane(1, 2), 100, 5000);
        lanes.push(lane(1, 2), 101, 1);
        let taken = numbers(lanes.take(|_| true));
        assert_eq!(taken.len(), LANE_MESSAGES_MAX + 1);
        assert!(taken.contains(&100), "a large message goes alone");
        assert_eq!((lanes.under_way(), lanes.full_windows()), (LANE_MESSAGES_MAX + 1, 2));
        lanes.finished(&lane(1, 1), 1);
        assert_eq!(lanes.full_windows(), 1, "the next message has room");
        assert_eq!(numbers(lanes.take(|_| true)), [8]);
        lanes.finished(&lane(1, 2), 5000);
        assert_eq!(numbers(lanes.take(|_| true)), [101]);
        assert_eq!((lanes.under_way(), lanes.full_windows()), (LANE_MESSAGES_MAX + 1, 1));
        for message in 9..20 {
            lanes.remove(&lane(1, 1), message);
        }
        assert_eq!(lanes.full_windows(), 0, "nothing waits any more");
    }

    #[test]
    fn a_lane_that_leads_nowhere_waits() {
        let mut lanes = FairQueue::default();
        lanes.push(lane(1, 1), 1, 1);
        lanes.push(lane(1, 2), 2, 1);
        assert_eq!(numbers(lanes.take(|key| key.1 == RunnerId(2))), [2]);
        assert_eq!(numbers(lanes.take(|_| true)), [1]);
        lanes.push(lane(1, 1), 3, 1);
        lanes.remove(&lane(1, 1), 3);
        assert_eq!(numbers(lanes.take(|_| true)), [0; 0]);
        lanes.finished(&lane(1, 1), 1);
        lanes.finished(&lane(1, 2), 1);
        assert!(lanes.lanes.is_empty() && lanes.turns.is_empty() && lanes.under_way == 0);
    }

    #[test]
    fn a_lane_emptied_while_it_had_a_turn_goes_on() {
        let mut lanes = FairQueue::default();
        lanes.push(lane(1, 1), 1, 1);
        lanes.remove(&lane(1, 1), 1);
        lanes.push(lane(1, 1), 2, 1);
        assert_eq!(numbers(lanes.take(|_| true)), [2]);
        assert_eq!(numbers(lanes.take(|_| true)), [0; 0], "one turn too many does no harm");
    }
}
