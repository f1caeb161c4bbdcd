//! Free ports.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Range below the ephemeral ports of Linux: none of these ports is taken by an outgoing connection that happens to begin
/// before the port is used.
const PORTS: Range<u16> = 12_000..32_000;
/// Names another range, as `FROM-TO`: programs of tests that run at once have one each.
const PORTS_VAR: &str = "MYCORA_TEST_PORTS";
/// How many are tried.
const TRIES: usize = 1000;

/// Ports that were given out: their holders may not listen on them yet.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Returns a TCP port of the loopback interface without a listener a moment ago, another one with each call.
///
/// Another process may take it before it is used: where possible, bind port 0 instead.
///
/// # Panics
/// When the machine has no port left, or `MYCORA_TEST_PORTS` is no range.
#[must_use]
pub fn free_port() -> u16 {
    let ports = ports();
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok() && given.insert(*port);
    (0..TRIES)
        .map(|_| rand::random_range(ports.clone()))
        .find(is_free)
        .expect("a free port on the loopback interface")
}

fn ports() -> Range<u16> {
    let Ok(named) = std::env::var(PORTS_VAR) else { return PORTS };
    let range = named.split_once('-').and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.filter(|range| !range.is_empty()).expect("MYCORA_TEST_PORTS is FROM-TO")
}
