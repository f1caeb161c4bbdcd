//! Fair queue of the work of several tenants, each by its weight.

use std::collections::{BTreeMap, VecDeque};

use model::TenantId;

/// Work that waits, by tenant. Each tenant has as many turns in a round as its weight.
#[derive(Debug)]
pub struct TenantFairQueue<T> {
    lines: BTreeMap<TenantId, TenantQueue<T>>,
    /// Tenants with waiting work and free capacity, in the order of their turns.
    round: VecDeque<TenantId>,
    /// Maximum number in progress at a time, of one tenant.
    most: u32,
}

#[derive(Debug)]
struct TenantQueue<T> {
    waiting: VecDeque<T>,
    weight: u32,
    /// Turns that are left in this round.
    turns: u32,
    under_way: u32,
    is_in_round: bool,
}

impl<T> TenantFairQueue<T> {
    /// An empty queue; at most `most` items of one tenant are in progress.
    #[must_use]
    pub const fn new(most: u32) -> Self {
        Self { lines: BTreeMap::new(), round: VecDeque::new(), most }
    }

    /// Changes how many items of one tenant may be in progress.
    pub fn allow(&mut self, most: u32) {
        self.most = most;
        for (tenant, line) in &mut self.lines {
            if line.under_way >= most {
                line.is_in_round = false;
            }
            Self::enter(&mut self.round, tenant, line, most);
        }
        let lines = &self.lines;
        self.round.retain(|tenant| lines.get(tenant).is_some_and(|line| line.is_in_round));
    }

    /// Adds work behind that of its tenant, and updates the tenant's weight.
    pub fn push(&mut self, tenant: &TenantId, weight: u32, item: T) {
        let line = self.lines.entry(tenant.clone()).or_insert_with(TenantQueue::new);
        line.weight = weight.max(1);
        line.waiting.push_back(item);
        Self::enter(&mut self.round, tenant, line, self.most);
    }

    /// Returns the next work. It is in progress until [`TenantFairQueue::done`].
    pub fn take(&mut self) -> Option<(TenantId, T)> {
        let tenant = self.round.front()?.clone();
        let line = self.lines.get_mut(&tenant)?;
        let item = line.waiting.pop_front()?;
        line.under_way += 1;
        line.turns = line.turns.saturating_sub(1);
        let may_go_on = !line.waiting.is_empty() && line.under_way < self.most;
        if line.turns == 0 || !may_go_on {
            self.round.pop_front();
            line.is_in_round = false;
            Self::enter(&mut self.round, &tenant, line, self.most);
        }
        Some((tenant, item))
    }

    /// Notes that work of a tenant is under way no more.
    pub fn done(&mut self, tenant: &TenantId) {
        let Some(line) = self.lines.get_mut(tenant) else { return };
        line.under_way = line.under_way.saturating_sub(1);
        if line.under_way == 0 && line.waiting.is_empty() {
            self.lines.remove(tenant);
            return;
        }
        Self::enter(&mut self.round, tenant, line, self.most);
    }

    /// Puts a tenant at the end of the round, unless it is in it already or cannot be served.
    fn enter(round: &mut VecDeque<TenantId>, tenant: &TenantId, line: &mut TenantQueue<T>, most: u32) {
        if line.is_in_round || line.waiting.is_empty() || line.under_way >= most {
            return;
        }
        line.is_in_round = true;
        line.turns = line.weight;
        round.push_back(tenant.clone());
    }

    /// Returns whether a tenant has its turn.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.round.is_empty()
    }

    /// Counts the waiting items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.values().map(|line| line.waiting.len()).sum()
    }

    /// Returns whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> TenantQueue<T> {
    const fn new() -> Self {
        Self { waiting: VecDeque::new(), weight: 1, turns: 0, under_way: 0, is_in_round: false }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        name.parse().expect("a tenant")
    }

    #[test]
    fn a_backlog_is_not_in_front_of_another_tenant() {
        let mut turns = TenantFairQueue::new(100);
        for item in 0..1000 {
            turns.push(&tenant("big"), 1, item);
        }
        turns.push(&tenant("small"), 1, -1);
        let first: Vec<_> = (0..3).filter_map(|_| turns.take()).map(|(_, item)| item).collect();
        assert_eq!(first, [0, -1, 1]);
    }

    #[test]
    fn room_may_change_while_work_waits() {
        let mut turns = TenantFairQueue::new(2);
        for item in 0..5 {
            turns.push(&tenant("a"), 1, item);
        }
        assert!(turns.take().is_some() && turns.take().is_some() && turns.take().is_none());
        turns.allow(3);
        assert!(turns.has_ready() && turns.take().is_some() && turns.take().is_none());
        turns.done(&tenant("a"));
        // It has its turn, and loses it again.
        assert!(turns.has_ready());
        turns.allow(1);
        assert!(!turns.has_ready() && turns.take().is_none());
        turns.done(&tenant("a"));
        turns.done(&tenant("a"));
        assert_eq!(turns.take().map(|(_, item)| item), Some(3));
    }

    #[test]
    fn turns_are_by_weight_and_room() {
        let mut turns = TenantFairQueue::new(1000);
        for item in 0..200 {
            turns.push(&tenant("a"), 3, item);
            turns.push(&tenant("b"), 1, item);
        }
        let first: Vec<_> = (0..100).filter_map(|_| turns.take()).collect();
        assert_eq!(first.iter().filter(|(name, _)| *name == tenant("a")).count(), 75);
        let mut turns = TenantFairQueue::new(2);
        for item in 0..5 {
            turns.push(&tenant("a"), 5, item);
        }
        assert_eq!((turns.take().is_some(), turns.take().is_some(), turns.take()), (true, true, None));
        turns.done(&tenant("a"));
        assert_eq!(turns.take(), Some((tenant("a"), 2)));
        assert_eq!(turns.len(), 2);
    }

    proptest! {
        /// Everything comes once, in order of its tenant, and never more than there is room for.
        #[test]
        fn nothing_is_lost_or_overtaken(ops in prop::collection::vec((0..3_u8, 0..3_usize, 1..4_u32), 0..200)) {
            let names = [tenant("a"), tenant("b"), tenant("c")];
            let mut turns = TenantFairQueue::new(2);
            let mut pushed = [0; 3];
            let mut taken = [0; 3];
            let mut under_way = [0_u32; 3];
            for (op, who, weight) in ops {
                match op {
                    0 => {
                        turns.push(&names[who], weight, pushed[who]);
                        pushed[who] += 1;
                    }
                    1 => match turns.take() {
                        Some((name, item)) => {
                            let who = names.iter().position(|known| *known == name).expect("known");
                            prop_assert_eq!(item, taken[who]);
                            taken[who] += 1;
                            under_way[who] += 1;
                            prop_assert!(under_way[who] <= 2);
                        }
                        None => {
                            for who in 0..3 {
                                prop_assert!(taken[who] == pushed[who] || under_way[who] == 2);
                            }
                        }
                    },
                    _ => if under_way[who] > 0 {
                        under_way[who] -= 1;
                        turns.done(&names[who]);
                    },
                }
            }
        }
    }
}
