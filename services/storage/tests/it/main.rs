//! Conformance of the storage service on a real Redis, through its gRPC services.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod actors;
mod audit;
mod blobs;
mod cluster;
mod context_removal;
mod contexts;
mod durability;
mod flows;
mod hostile;
mod identities;
mod inbox;
mod jobs;
mod layout;
mod leases;
mod letters;
mod lists;
mod logs;
mod messages;
mod permissions;
mod processed;
mod raw;
mod received;
mod reference;
mod requests;
mod restarts;
mod runners;
mod sentinel;
mod signers;
mod stage;
mod watches;
mod went_back;
