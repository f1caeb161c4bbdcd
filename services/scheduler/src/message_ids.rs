//! Message ids, reserved in blocks so that a commit never waits for one.

use std::collections::HashMap;

use model::{ActorId, ContextId, MessageId};

/// Owner of message ids: a caller in a context.
pub type ContextCaller = (ContextId, ActorId);

/// Ids reserved in one call.
pub const BLOCK: u32 = 4096;
/// A step needs at most this many: one message for each node it changes.
pub const STEP_MAX: u32 = 1024;

/// Callers whose blocks are kept. Beyond that, blocks without waiting callers are dropped; the id space is large enough.
pub const BLOCKS_MAX: usize = 4096;

/// The blocks at hand.
#[derive(Debug, Default)]
pub struct MessageIds {
    blocks: HashMap<ContextCaller, MessageIdBlock>,
    epoch: u64,
}

#[derive(Debug, Default)]
struct MessageIdBlock {
    next: u32,
    end: u32,
    requested: bool,
}

impl MessageIdBlock {
    /// Returns true when a step may take its ids from the block.
    const fn is_enough(&self) -> bool {
        self.end - self.next >= STEP_MAX
    }
}

/// Supply of ids for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageIdSupply {
    /// There are enough ids.
    Enough,
    /// There are too few ids, and the caller must request a block now.
    Request,
    /// There are too few ids, and a block was requested.
    Wait,
}

impl MessageIds {
    /// Discards every block and every pending request: answers of an earlier epoch are ignored.
    pub fn forget(&mut self) {
        *self = Self { blocks: HashMap::new(), epoch: self.epoch + 1 };
    }

    /// How often everything was forgotten.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns true when there are enough ids for one step of this caller's flows, without asking for more.
    #[must_use]
    pub fn has_enough(&self, caller: ContextCaller) -> bool {
        self.blocks.get(&caller).is_some_and(MessageIdBlock::is_enough)
    }

    /// Returns the supply of ids for one step of this caller's flows.
    pub fn supply(&mut self, caller: ContextCaller) -> MessageIdSupply {
        let block = self.blocks.entry(caller).or_default();
        if block.is_enough() {
            return MessageIdSupply::Enough;
        }
        if std::mem::replace(&mut block.requested, true) {
            MessageIdSupply::Wait
        } else {
            MessageIdSupply::Request
        }
    }

    /// A reservation was answered; the rest of the block before is given up.
    pub fn add(&mut self, caller: ContextCaller, first: u32) {
        if self.blocks.len() >= BLOCKS_MAX {
            self.blocks.retain(|_, block| block.requested);
        }
        self.blocks.insert(
            caller,
            MessageIdBlock { next: first, end: first.saturating_add(BLOCK), requested: false },
        );
    }

    /// Notes that a reservation failed, so that it may be requested again.
    pub fn failed(&mut self, caller: ContextCaller) {
        self.blocks.entry(caller).or_default().requested = false;
    }

    /// The next id. The caller made sure that there is one with [`MessageIds::supply`].
    pub fn take(&mut self, caller: ContextCaller) -> MessageId {
        let block = self.blocks.entry(caller).or_default();
        let id = block.next;
        assert!(id < block.end, "a step took more message ids than it may");
        block.next += 1;
        MessageId(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_beyond_the_limit_are_dropped_and_requested_ones_are_kept() {
        let (mut ids, waiting) = (MessageIds::default(), (ContextId(1), ActorId(0)));
        assert_eq!(ids.supply(waiting), MessageIdSupply::Request);
        for caller in (1..=3 * 4096).map(|actor| (ContextId(1), ActorId(actor))) {
            assert_eq!(ids.supply(caller), MessageIdSupply::Request);
            ids.add(caller, 1);
            assert_eq!(ids.supply(caller), MessageIdSupply::Enough);
            assert!(ids.blocks.len() <= BLOCKS_MAX);
        }
        assert_eq!(ids.supply(waiting), MessageIdSupply::Wait);
    }

    #[test]
    fn a_block_of_ids_is_requested_once() {
        let mut ids = MessageIds::default();
        let caller = (ContextId(1), ActorId(1));
        assert!(!ids.has_enough(caller));
        assert_eq!(ids.supply(caller), MessageIdSupply::Request);
        assert_eq!(ids.supply(caller), MessageIdSupply::Wait);
        ids.add(caller, 100);
        assert!(ids.has_enough(caller));
        assert_eq!(ids.supply(caller), MessageIdSupply::Enough);
        assert_eq!((ids.take(caller), ids.take(caller)), (MessageId(100), MessageId(101)));
        for _ in 2..=BLOCK - STEP_MAX {
            ids.take(caller);
        }
        assert_eq!(ids.supply(caller), MessageIdSupply::Request);
    }
}
