//! Serving and calling, over real sockets with a real PKI and within the process.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod actors;
mod answers;
mod call_durations;
mod calls;
mod deadlines;
mod health;
mod known;
mod lifecycle;
mod rotation;
mod sidecar;
mod stage;
mod strangers;
mod streams;
mod tls;
mod volumes;
