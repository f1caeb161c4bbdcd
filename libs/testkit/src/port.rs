//! Free ports.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Below those that Linux gives to whoever connects somewhere: none of them is taken by a connection that happens to begin
/// before the port is used.
const PORTS: Range<u16> = 12_000..32_000;
/// How many are tried.
const TRIES: usize = 1000;

/// What was given out: whoever has one may not listen on it yet.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A TCP port of the loopback interface that nobody listened on a moment ago, another one with each call.
///
/// Somebody else may take it before it is used: whoever can, binds port 0 instead.
///
/// # Panics
/// When the machine has no port left.
#[must_use]
pub fn free_port() -> u16 {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok() && given.insert(*port);
    (0..TRIES)
        .map(|_| rand::random_range(PORTS))
        .find(is_free)
        .expect("a free port on the loopback interface")
}
