//! Free ports.

use std::net::{Ipv4Addr, TcpListener};

/// A TCP port of the loopback interface that nobody listened on a moment ago.
///
/// Somebody else may take it before it is used: whoever can, binds port 0 instead.
///
/// # Panics
/// When the machine has no port left.
#[must_use]
pub fn free_port() -> u16 {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port on the loopback interface");
    listener.local_addr().expect("the address just bound").port()
}
