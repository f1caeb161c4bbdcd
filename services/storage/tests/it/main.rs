//! Conformance of the storage service on a real Redis, through its gRPC services.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod blobs;
mod flows;
mod layout;
mod logs;
mod messages;
mod permissions;
mod reference;
mod stage;
mod watches;
