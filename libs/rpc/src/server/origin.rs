//! Where connections come from, and how many of them one place may begin at once.
//!
//! A handshake that is begun and not gone on with costs its peer nothing, and holds a place for seconds. Without a bound
//! for each place one of them could hold all, and keep everybody else out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handshakes under way at once with one place: an IPv4 address, or the first 64 bits of an IPv6 one, which is what a
/// single host may be given.
pub(crate) const HANDSHAKES_OF_ONE_MAX: usize = 32;
/// The same with this machine, where proxies and many clients may be: most of all, and never all of them.
pub(crate) const HANDSHAKES_LOCAL_MAX: usize = 192;

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

    const fn max(self) -> usize {
        match self {
            Self::Local => HANDSHAKES_LOCAL_MAX,
            Self::Elsewhere(_) => HANDSHAKES_OF_ONE_MAX,
        }
    }
}

/// Counts what is being begun, by where it comes from. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins(Arc<Mutex<HashMap<Origin, usize>>>);

impl Origins {
    /// A place for one more handshake; nothing where so many are under way that the next has to be refused.
    pub(crate) fn begin(&self, address: IpAddr) -> Option<Begun> {
        let origin = Origin::of(address);
        let mut counts = self.counts();
        let count = counts.get(&origin).copied().unwrap_or_default();
        if count >= origin.max() {
            return None;
        }
        counts.insert(origin, count + 1);
        Some(Begun { origins: self.clone(), origin })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Origin, usize>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handshake under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Begun {
    origins: Origins,
    origin: Origin,
}

impl Drop for Begun {
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
    use crate::server::accept::HANDSHAKES_MAX;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn begin(origins: &Origins, address: &str, count: usize) -> Vec<Begun> {
        (0..count).map(|_| origins.begin(ip(address)).expect("room")).collect()
    }

    #[test]
    fn one_place_leaves_room_for_others() {
        let origins = Origins::default();
        let mut held = begin(&origins, "192.0.2.7", HANDSHAKES_OF_ONE_MAX);
        assert!(origins.begin(ip("192.0.2.7")).is_none());
        assert!(origins.begin(ip("::ffff:192.0.2.7")).is_none(), "the same, written otherwise");
        let other = origins.begin(ip("192.0.2.8")).expect("another place");
        // What is over makes room.
        drop(held.pop());
        held.push(origins.begin(ip("192.0.2.7")).expect("room again"));
        drop((held, other));
        assert!(origins.counts().is_empty(), "nobody is remembered");
    }

    #[test]
    fn an_ipv6_host_is_one_place_whatever_it_calls_itself() {
        let origins = Origins::default();
        let held: Vec<_> = (0..HANDSHAKES_OF_ONE_MAX)
            .map(|n| origins.begin(ip(&format!("2001:db8:0:1::{n:x}"))).expect("room"))
            .collect();
        assert!(origins.begin(ip("2001:db8:0:1:ffff::1")).is_none());
        assert!(origins.begin(ip("2001:db8:0:2::1")).is_some());
        drop(held);
    }

    #[test]
    fn this_machine_has_most_and_never_all() {
        const { assert!(HANDSHAKES_LOCAL_MAX < HANDSHAKES_MAX) };
        let origins = Origins::default();
        let held = begin(&origins, "127.0.0.1", HANDSHAKES_LOCAL_MAX);
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(origins.begin(ip(address)).is_none(), "{address}");
        }
        drop(held);
    }
}
