//! Tables of handshakes and of strangers' connections: how many there may be at once, in all and from one place, and
//! which of them gives way to a new one.
//!
//! A handshake that is begun and not continued costs its peer nothing, and a connection without an identity hardly
//! more. Without a bound for each address, one address could take all places. Without giving way, idle peers could keep
//! out others behind the same address.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::lock::lock;
use crate::server::accept::{CONNECTIONS_ANONYMOUS_MAX, HANDSHAKES_MAX};
use crate::server::connection_state::{EvictionClass, StrangerConnectionState};

/// Handshakes under way at once with one place: an IPv4 address, or the first 64 bits of an IPv6 one, which is what a
/// single host may be given.
pub(crate) const HANDSHAKES_OF_ONE_MAX: usize = 32;
/// Handshakes under way at once with this machine, where proxies and many clients may be: most of all, and never all.
///
/// A client that has connected must come to say its first word before so many others have connected after it. Those others
/// may be in the same process and ahead of it in the same queue of tasks: it has some 50 ms, not some 10.
pub(crate) const HANDSHAKES_LOCAL_MAX: usize = 1024;
/// Connections of one place without a certificate: a quarter of all of them.
pub(crate) const CONNECTIONS_ANONYMOUS_OF_ONE_MAX: usize = 256;
/// Connections of this machine without a certificate.
pub(crate) const CONNECTIONS_ANONYMOUS_LOCAL_MAX: usize = 768;

/// A place that connections come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ConnectionOrigin {
    /// The local machine, by whichever of its loopback addresses.
    Local,
    Elsewhere(IpAddr),
}

impl ConnectionOrigin {
    fn of(address: IpAddr) -> Self {
        // An IPv4 address may come written as an IPv6 one.
        match address.to_canonical() {
            local if local.is_loopback() => Self::Local,
            IpAddr::V6(address) => Self::Elsewhere(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => Self::Elsewhere(address),
        }
    }
}

/// How many there may be at once.
#[derive(Debug, Clone, Copy)]
struct ConnectionBounds {
    all: usize,
    elsewhere: usize,
    local: usize,
}

/// Connections that stand for the same, bounded in all and by where they come from. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTable {
    bounds: ConnectionBounds,
    entries: Arc<Mutex<TrackedConnections>>,
}

#[derive(Debug, Default)]
struct TrackedConnections {
    /// By their numbers, in the order in which they came.
    by_number: BTreeMap<u64, TrackedConnection>,
    next: u64,
}

#[derive(Debug)]
struct TrackedConnection {
    origin: ConnectionOrigin,
    state: Arc<StrangerConnectionState>,
}

impl ConnectionTable {
    /// Creates the table of handshakes under way.
    pub(crate) fn of_handshakes() -> Self {
        Self::bounded(HANDSHAKES_MAX, HANDSHAKES_OF_ONE_MAX, HANDSHAKES_LOCAL_MAX)
    }

    /// Creates the table of connections without a certificate.
    pub(crate) fn of_strangers() -> Self {
        let (elsewhere, local) = (CONNECTIONS_ANONYMOUS_OF_ONE_MAX, CONNECTIONS_ANONYMOUS_LOCAL_MAX);
        Self::bounded(CONNECTIONS_ANONYMOUS_MAX, elsewhere, local)
    }

    pub(crate) fn bounded(all: usize, elsewhere: usize, local: usize) -> Self {
        Self { bounds: ConnectionBounds { all, elsewhere, local }, entries: Arc::default() }
    }

    /// Adds a connection. Where its place has as many as it may, one of that place is evicted for it, and where all have,
    /// one of the most crowded; nothing when none of them can be given up.
    pub(crate) fn enter(
        &self,
        address: IpAddr,
        state: &Arc<StrangerConnectionState>,
    ) -> Option<ConnectionTableGuard> {
        let origin = ConnectionOrigin::of(address);
        let of_one = match origin {
            ConnectionOrigin::Local => self.bounds.local,
            ConnectionOrigin::Elsewhere(_) => self.bounds.elsewhere,
        };
        let mut entries = self.entries();
        let here = entries.by_number.values().filter(|entry| entry.origin == origin).count();
        let victim = if here >= of_one {
            Some(entries.first_idle(origin).or_else(|| entries.least(|entry| entry.origin == origin))?)
        } else if entries.by_number.len() >= self.bounds.all {
            Some(entries.least(|_| true)?)
        } else {
            None
        };
        if let Some(entry) = victim.and_then(|number| entries.by_number.remove(&number)) {
            entry.state.evict();
        }
        let number = entries.next;
        entries.next += 1;
        entries.by_number.insert(number, TrackedConnection { origin, state: Arc::clone(state) });
        Some(ConnectionTableGuard { table: self.clone(), number })
    }

    fn entries(&self) -> MutexGuard<'_, TrackedConnections> {
        lock(&self.entries)
    }
}

impl TrackedConnections {
    /// The oldest of a place that asks for nothing, which goes before all others there. Found without a look at the others.
    fn first_idle(&self, origin: ConnectionOrigin) -> Option<u64> {
        let is_meant = |entry: &TrackedConnection| {
            entry.origin == origin && entry.state.eviction_class() == Some(EvictionClass::Idle)
        };
        self.by_number.iter().find(|(_, entry)| is_meant(entry)).map(|(number, _)| *number)
    }

    /// The one of the lowest class, and of those the oldest: of known actors of the one with most connections, of
    /// strangers of the place with most.
    fn least(&self, is_meant: impl Fn(&TrackedConnection) -> bool) -> Option<u64> {
        #[derive(PartialEq, Eq, Hash)]
        enum Group {
            Of(EvictionClass),
            At(ConnectionOrigin),
        }
        let meant = self.by_number.iter().filter(|(_, entry)| is_meant(entry));
        let classes: Vec<_> = meant
            .filter_map(|(number, entry)| {
                let class = entry.state.eviction_class()?;
                let group = match class {
                    EvictionClass::Known(_) => Group::Of(class),
                    EvictionClass::Idle | EvictionClass::Greeting | EvictionClass::Calling => {
                        Group::At(entry.origin)
                    }
                };
                Some((*number, class, group))
            })
            .collect();
        let mut counts = HashMap::new();
        classes.iter().for_each(|(_, _, group)| *counts.entry(group).or_insert(0_usize) += 1);
        let least = classes.iter().min_by_key(|(number, class, group)| {
            (class.rank(), Reverse(counts.get(group).copied().unwrap_or_default()), *number)
        });
        least.map(|(number, _, _)| *number)
    }
}

/// Entry of a connection in a table, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionTableGuard {
    table: ConnectionTable,
    number: u64,
}

impl Drop for ConnectionTableGuard {
    fn drop(&mut self) {
        self.table.entries().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use model::ActorId;

    use super::*;
    use crate::server::actor_connections::ActorConnections;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    struct OpenConnection {
        state: Arc<StrangerConnectionState>,
        _entered: ConnectionTableGuard,
    }

    impl OpenConnection {
        fn is_evicted(&self) -> bool {
            self.state.is_evicted()
        }
    }

    fn enter(table: &ConnectionTable, address: &str) -> OpenConnection {
        let state = StrangerConnectionState::accepted(ActorConnections::default());
        let entered = table.enter(ip(address), &state).expect("somebody gives way");
        OpenConnection { state, _entered: entered }
    }

    fn evicted(guests: &[OpenConnection]) -> Vec<usize> {
        (0..guests.len()).filter(|at| guests[*at].is_evicted()).collect()
    }

    #[test]
    fn one_place_leaves_room_for_others() {
        let table = ConnectionTable::of_handshakes();
        let mut guests: Vec<_> = (0..HANDSHAKES_OF_ONE_MAX).map(|_| enter(&table, "192.0.2.7")).collect();
        guests.push(enter(&table, "192.0.2.8"));
        assert!(evicted(&guests).is_empty(), "another place");
        guests.push(enter(&table, "192.0.2.7"));
        guests.push(enter(&table, "::ffff:192.0.2.7"));
        assert_eq!(evicted(&guests), [0, 1], "the oldest of the same place, however it is written");
        drop(guests.split_off(2));
        guests.push(enter(&table, "192.0.2.7"));
        assert_eq!(evicted(&guests), [0, 1], "those that are gone make room");
        drop(guests);
        assert!(table.entries().by_number.is_empty(), "nobody is remembered");
    }

    #[test]
    fn strangers_are_bounded_by_figures_of_their_own() {
        for (address, max) in
            [("192.0.2.7", CONNECTIONS_ANONYMOUS_OF_ONE_MAX), ("::1", CONNECTIONS_ANONYMOUS_LOCAL_MAX)]
        {
            let table = ConnectionTable::of_strangers();
            let mut guests: Vec<_> = (0..max).map(|_| enter(&table, address)).collect();
            guests.push(enter(&table, "192.0.2.8"));
            assert!(evicted(&guests).is_empty(), "{address}: another place");
            guests.push(enter(&table, address));
            assert_eq!(evicted(&guests), [0], "{address}");
        }
    }

    #[test]
    fn who_goes_on_with_a_handshake_outlasts_those_who_do_not() {
        let table = ConnectionTable::of_handshakes();
        let guest = enter(&table, "127.0.0.1");
        let greeting = guest.state.greet();
        let mut silent: Vec<_> = (0..3 * HANDSHAKES_LOCAL_MAX).map(|_| enter(&table, "127.0.0.1")).collect();
        assert!(!guest.is_evicted());
        drop(greeting);
        silent.push(enter(&table, "127.0.0.1"));
        assert!(guest.is_evicted());
    }

    #[test]
    fn an_ipv6_host_is_one_place_whatever_it_calls_itself() {
        let table = ConnectionTable::of_handshakes();
        let name = |n| format!("2001:db8:0:1::{n:x}");
        let mut guests: Vec<_> = (0..HANDSHAKES_OF_ONE_MAX).map(|n| enter(&table, &name(n))).collect();
        guests.push(enter(&table, "2001:db8:0:2::1"));
        assert!(evicted(&guests).is_empty());
        guests.push(enter(&table, "2001:db8:0:1:ffff::1"));
        assert_eq!(evicted(&guests), [0]);
    }

    #[test]
    fn this_machine_has_most_and_never_all() {
        const { assert!(HANDSHAKES_LOCAL_MAX < HANDSHAKES_MAX) };
        const { assert!(CONNECTIONS_ANONYMOUS_LOCAL_MAX < CONNECTIONS_ANONYMOUS_MAX) };
        let table = ConnectionTable::of_handshakes();
        let mut guests: Vec<_> = (0..HANDSHAKES_LOCAL_MAX).map(|_| enter(&table, "127.0.0.1")).collect();
        for (count, address) in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"].iter().enumerate() {
            guests.push(enter(&table, address));
            assert_eq!(evicted(&guests).len(), count + 1, "{address}");
        }
    }

    #[test]
    fn those_of_the_lowest_class_go_first_and_busy_known_actors_stay() {
        let table = ConnectionTable::bounded(5, 5, 5);
        let mut guests: Vec<_> = (0..5).map(|_| enter(&table, "192.0.2.7")).collect();
        let mut calls = Vec::new();
        // The two newest ask for nothing: the others have called, or shown who they are.
        guests[0].state.identify(ActorId(7)).expect("room");
        calls.push(guests[0].state.begin_call());
        guests[1].state.identify(ActorId(7)).expect("room");
        calls.push(guests[2].state.begin_call());
        for expected in [3, 4, 2, 1] {
            let next = enter(&table, "192.0.2.7");
            assert!(guests[expected].is_evicted(), "{expected}");
            next.state.identify(ActorId(8)).expect("room");
            calls.push(next.state.begin_call());
            guests.push(next);
        }
        assert!(!guests[0].is_evicted());
        let state = StrangerConnectionState::accepted(ActorConnections::default());
        assert!(table.enter(ip("192.0.2.7"), &state).is_none(), "all are busy and known");
    }

    #[test]
    fn the_most_crowded_place_gives_way_when_all_are_full() {
        let table = ConnectionTable::bounded(5, 4, 4);
        let mut guests = vec![enter(&table, "192.0.2.1")];
        guests.extend((0..3).map(|_| enter(&table, "192.0.2.7")));
        guests.push(enter(&table, "192.0.2.2"));
        guests.push(enter(&table, "192.0.2.3"));
        assert_eq!(evicted(&guests), [1]);
        // Of known actors the one with most connections.
        for (guest, actor) in guests.iter().zip([1, 9, 2, 2, 3, 4]) {
            guest.state.identify(ActorId(actor)).expect("room");
        }
        guests.push(enter(&table, "192.0.2.4"));
        assert_eq!(evicted(&guests), [1, 2]);
    }
}
