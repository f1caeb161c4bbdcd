//! Where connections come from, and how many of them one place may begin, or hold without a certificate, at once.
//!
//! A handshake that is begun and not gone on with costs its peer nothing, and a connection of nobody in particular hardly
//! more. Without a bound for each place one of them could hold all, and keep everybody else out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handshakes under way at once with one place: an IPv4 address, or the first 64 bits of an IPv6 one, which is what a
/// single host may be given.
pub(crate) const HANDSHAKES_OF_ONE_MAX: usize = 32;
/// The same with this machine, where proxies and many clients may be: most of all, and never all of them.
pub(crate) const HANDSHAKES_LOCAL_MAX: usize = 192;
/// Connections without a certificate of one place: a quarter of all of them.
pub(crate) const CONNECTIONS_ANONYMOUS_OF_ONE_MAX: usize = 256;
/// The same of this machine.
pub(crate) const CONNECTIONS_ANONYMOUS_LOCAL_MAX: usize = 768;

/// A place that connections come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Origin {
    /// This machine, by whichever of its loopback addresses.
    Local,
    Elsewhere(IpAddr),
}

impl Origin {
    fn of(address: IpAddr) -> Self {
        // An IPv4 address may come written as an IPv6 one.
        match address.to_canonical() {
            local if local.is_loopback() => Self::Local,
            IpAddr::V6(address) => Self::Elsewhere(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => Self::Elsewhere(address),
        }
    }
}

/// How much one place may have at once.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    elsewhere: usize,
    local: usize,
}

/// Counts what is held, by where it comes from. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Origins {
    bounds: Bounds,
    counts: Arc<Mutex<HashMap<Origin, usize>>>,
}

impl Origins {
    /// Of handshakes.
    pub(crate) fn of_handshakes() -> Self {
        Self::bounded(HANDSHAKES_OF_ONE_MAX, HANDSHAKES_LOCAL_MAX)
    }

    /// Of connections without a certificate.
    pub(crate) fn of_strangers() -> Self {
        Self::bounded(CONNECTIONS_ANONYMOUS_OF_ONE_MAX, CONNECTIONS_ANONYMOUS_LOCAL_MAX)
    }

    fn bounded(elsewhere: usize, local: usize) -> Self {
        Self { bounds: Bounds { elsewhere, local }, counts: Arc::default() }
    }

    /// Room for one more; nothing where so many are held that the next has to be refused.
    pub(crate) fn take(&self, address: IpAddr) -> Option<Held> {
        let origin = Origin::of(address);
        let max = match origin {
            Origin::Local => self.bounds.local,
            Origin::Elsewhere(_) => self.bounds.elsewhere,
        };
        let mut counts = self.counts();
        let count = counts.get(&origin).copied().unwrap_or_default();
        if count >= max {
            return None;
        }
        counts.insert(origin, count + 1);
        Some(Held { origins: self.clone(), origin })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Origin, usize>> {
        // Nothing panics while it holds the lock.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of those that are counted, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    origins: Origins,
    origin: Origin,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut counts = self.origins.counts();
        match counts.get_mut(&self.origin) {
            Some(count) if *count > 1 => *count -= 1,
            // Places that nobody comes from are not remembered.
            _ => drop(counts.remove(&self.origin)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::accept::{CONNECTIONS_ANONYMOUS_MAX, HANDSHAKES_MAX};

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn take(origins: &Origins, address: &str, count: usize) -> Vec<Held> {
        (0..count).map(|_| origins.take(ip(address)).expect("room")).collect()
    }

    #[test]
    fn one_place_leaves_room_for_others() {
        let origins = Origins::of_handshakes();
        let mut held = take(&origins, "192.0.2.7", HANDSHAKES_OF_ONE_MAX);
        assert!(origins.take(ip("192.0.2.7")).is_none());
        assert!(origins.take(ip("::ffff:192.0.2.7")).is_none(), "the same, written otherwise");
        let other = origins.take(ip("192.0.2.8")).expect("another place");
        // What is over makes room.
        drop(held.pop());
        held.push(origins.take(ip("192.0.2.7")).expect("room again"));
        drop((held, other));
        assert!(origins.counts().is_empty(), "nobody is remembered");
    }

    #[test]
    fn strangers_are_bounded_by_figures_of_their_own() {
        for (address, max) in
            [("192.0.2.7", CONNECTIONS_ANONYMOUS_OF_ONE_MAX), ("::1", CONNECTIONS_ANONYMOUS_LOCAL_MAX)]
        {
            let origins = Origins::of_strangers();
            let held = take(&origins, address, max);
            assert!(origins.take(ip(address)).is_none(), "{address}");
            assert!(origins.take(ip("192.0.2.8")).is_some(), "another place");
            drop(held);
        }
    }

    #[test]
    fn an_ipv6_host_is_one_place_whatever_it_calls_itself() {
        let origins = Origins::of_handshakes();
        let held: Vec<_> = (0..HANDSHAKES_OF_ONE_MAX)
            .map(|n| origins.take(ip(&format!("2001:db8:0:1::{n:x}"))).expect("room"))
            .collect();
        assert!(origins.take(ip("2001:db8:0:1:ffff::1")).is_none());
        assert!(origins.take(ip("2001:db8:0:2::1")).is_some());
        drop(held);
    }

    #[test]
    fn this_machine_has_most_and_never_all() {
        const { assert!(HANDSHAKES_LOCAL_MAX < HANDSHAKES_MAX) };
        const { assert!(CONNECTIONS_ANONYMOUS_LOCAL_MAX < CONNECTIONS_ANONYMOUS_MAX) };
        let origins = Origins::of_handshakes();
        let held = take(&origins, "127.0.0.1", HANDSHAKES_LOCAL_MAX);
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(origins.take(ip(address)).is_none(), "{address}");
        }
        drop(held);
    }
}
