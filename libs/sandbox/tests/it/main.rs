//! The launcher and its layers, against scripts that try to break them. Every attack is made twice: with the layer
//! that it is about it fails, and with just that layer taken away it succeeds.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]

mod attributes;
mod bounds;
mod builtins;
mod ending;
mod files;
mod init;
mod isolation_support;
mod network;
mod others;
mod setup;
mod sockets;
