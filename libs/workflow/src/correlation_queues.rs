//! Queues of a lane's inputs: first in, first out within a correlation, side by side across correlations.

use std::collections::{HashMap, VecDeque};

use model::CorrelationId;

/// Capacity of the queues of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneQueueCapacity {
    /// Items, including those in progress.
    pub items: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Items of one correlation.
    pub per_correlation: usize,
}

/// Waiting items, by correlation. One item of each correlation is in progress at a time.
#[derive(Debug)]
pub struct CorrelationQueues<T> {
    room: LaneQueueCapacity,
    lines: HashMap<CorrelationId, CorrelationQueue<T>>,
    /// Correlations of which something waits and nothing is worked on, in the order in which they became so.
    ready: VecDeque<CorrelationId>,
    items: usize,
    bytes: usize,
}

#[derive(Debug)]
struct CorrelationQueue<T> {
    waiting: VecDeque<(T, usize)>,
    /// Bytes of the item in progress; `None` without one.
    working: Option<usize>,
}

impl<T> CorrelationQueues<T> {
    /// Empty queues.
    #[must_use]
    pub fn new(room: LaneQueueCapacity) -> Self {
        Self { room, lines: HashMap::new(), ready: VecDeque::new(), items: 0, bytes: 0 }
    }

    /// Returns true if there is room for an item of this size in this correlation. An item of any size fits when the queues
    /// are empty.
    #[must_use]
    pub fn has_room(&self, correlation: &CorrelationId, bytes: usize) -> bool {
        let of_one = self.lines.get(correlation).map_or(0, CorrelationQueue::len);
        let fits = self.bytes.saturating_add(bytes) <= self.room.bytes;
        self.items == 0 || (self.items < self.room.items && fits && of_one < self.room.per_correlation)
    }

    /// Adds an item behind those of its correlation.
    ///
    /// # Errors
    /// Returns the item when there is no room: reading of the source has to stop until an item is done.
    pub fn push(&mut self, correlation: &CorrelationId, item: T, bytes: usize) -> Result<(), T> {
        if !self.has_room(correlation, bytes) {
            return Err(item);
        }
        self.items += 1;
        self.bytes += bytes;
        let line = self.lines.entry(correlation.clone()).or_insert_with(CorrelationQueue::new);
        if line.working.is_none() && line.waiting.is_empty() {
            self.ready.push_back(correlation.clone());
        }
        line.waiting.push_back((item, bytes));
        Ok(())
    }

    /// Adds an item before those of its correlation, even without room: the others wait for it.
    pub fn push_first(&mut self, correlation: &CorrelationId, item: T) {
        self.items += 1;
        let line = self.lines.entry(correlation.clone()).or_insert_with(CorrelationQueue::new);
        if line.working.is_none() && line.waiting.is_empty() {
            self.ready.push_back(correlation.clone());
        }
        line.waiting.push_front((item, 0));
    }

    /// Returns the next item. Its correlation gives no other until [`CorrelationQueues::done`].
    pub fn take(&mut self) -> Option<(CorrelationId, T)> {
        let correlation = self.ready.pop_front()?;
        let line = self.lines.get_mut(&correlation)?;
        let (item, bytes) = line.waiting.pop_front()?;
        line.working = Some(bytes);
        Some((correlation, item))
    }

    /// Takes note that the item of this correlation that was worked on is done.
    pub fn done(&mut self, correlation: &CorrelationId) {
        let Some(line) = self.lines.get_mut(correlation) else { return };
        let Some(bytes) = line.working.take() else { return };
        self.items -= 1;
        self.bytes -= bytes;
        if line.waiting.is_empty() {
            self.lines.remove(correlation);
        } else {
            self.ready.push_back(correlation.clone());
        }
    }

    /// Changes every item that waits.
    pub fn each_waiting(&mut self, mut change: impl FnMut(&mut T)) {
        self.lines.values_mut().flat_map(|line| &mut line.waiting).for_each(|(item, _)| change(item));
    }

    /// How many items wait or are worked on.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.items
    }

    /// Returns true if nothing waits and nothing is worked on.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.items == 0
    }
}

impl<T> CorrelationQueue<T> {
    const fn new() -> Self {
        Self { waiting: VecDeque::new(), working: None }
    }

    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.working.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const ROOM: LaneQueueCapacity = LaneQueueCapacity { items: 8, bytes: 100, per_correlation: 3 };

    fn correlation(text: &str) -> CorrelationId {
        text.parse().expect("a correlation")
    }

    #[test]
    fn one_that_takes_long_holds_up_its_own_alone() {
        let (a, b) = (correlation("a"), correlation("b"));
        let mut queues = CorrelationQueues::new(ROOM);
        for (correlation, item) in [(&a, 1), (&a, 2), (&b, 3), (&b, 4)] {
            queues.push(correlation, item, 1).expect("room");
        }
        assert_eq!(queues.take(), Some((a.clone(), 1)));
        assert_eq!(queues.take(), Some((b.clone(), 3)));
        assert_eq!(queues.take(), None);
        queues.done(&b);
        assert_eq!(queues.take(), Some((b.clone(), 4)));
        queues.done(&b);
        assert_eq!(queues.take(), None);
        queues.done(&a);
        assert_eq!(queues.take(), Some((a.clone(), 2)));
        queues.done(&a);
        assert!(queues.is_empty() && queues.lines.is_empty() && queues.bytes == 0);
        // Nothing is done twice.
        queues.done(&a);
        assert!(queues.is_empty());
    }

    #[test]
    fn what_finds_no_room_is_given_back() {
        let (a, b) = (correlation("a"), correlation("b"));
        let mut queues = CorrelationQueues::new(ROOM);
        // However large the first is, it has to be worked on some time.
        queues.push(&a, 0, 1000).expect("it is the first");
        assert_eq!(queues.push(&b, 1, 1), Err(1));
        assert_eq!(queues.take(), Some((a.clone(), 0)));
        assert_eq!(queues.push(&b, 1, 1), Err(1));
        queues.done(&a);
        for item in 0..3 {
            queues.push(&a, item, 1).expect("room");
        }
        assert_eq!(queues.push(&a, 3, 1), Err(3));
        for item in 0..5 {
            queues.push(&correlation(&format!("c{item}")), item, 1).expect("room");
        }
        assert_eq!((queues.len(), queues.push(&b, 9, 1)), (8, Err(9)));
    }

    proptest! {
        #[test]
        fn each_correlation_has_its_order_and_one_at_a_time(
            turns in proptest::collection::vec((0_u8..3, 0_u8..4, 1_usize..40), 1..300),
        ) {
            let mut queues = CorrelationQueues::new(ROOM);
            let mut expected: BTreeMap<CorrelationId, VecDeque<usize>> = BTreeMap::new();
            let mut working: BTreeSet<CorrelationId> = BTreeSet::new();
            for (number, (what, who, bytes)) in turns.into_iter().enumerate() {
                let correlation = correlation(&format!("c{who}"));
                match what {
                    0 => if queues.push(&correlation, number, bytes).is_ok() {
                        expected.entry(correlation).or_default().push_back(number);
                    },
                    1 => match queues.take() {
                        Some((taken, item)) => {
                            prop_assert_eq!(expected.get_mut(&taken).and_then(VecDeque::pop_front), Some(item));
                            prop_assert!(working.insert(taken), "two of one at once");
                        }
                        None => for (waits, items) in &expected {
                            prop_assert!(items.is_empty() || working.contains(waits), "{waits} waits for nobody");
                        },
                    },
                    _ => {
                        queues.done(&correlation);
                        working.remove(&correlation);
                    }
                }
                let waiting: usize = expected.values().map(VecDeque::len).sum();
                prop_assert_eq!(queues.len(), waiting + working.len());
                prop_assert!(queues.len() <= ROOM.items);
            }
        }
    }
}
