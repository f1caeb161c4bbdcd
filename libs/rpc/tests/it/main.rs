//! Serving and calling, over real sockets with a real PKI and within the process.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod calls;
mod health;
mod lifecycle;
mod stage;
mod streams;
mod tls;
