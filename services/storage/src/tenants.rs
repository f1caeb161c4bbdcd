//! Actors and contexts: their records, permissions and quotas.
//!
//! - [`actors`], [`contexts`]: records; [`context_removal`]: removal of a context with everything in it;
//! - [`permission`]: permissions of actions; [`roles`], [`identities`], [`signers`]: roles, known actors, signing keys;
//! - [`authorization`]: permission for records of other services; [`audit`]: audit records;
//! - [`quotas`]: limits of amounts; [`usage`]: how much a context has.

pub(crate) mod actors;
pub(crate) mod audit;
pub(crate) mod authorization;
pub(crate) mod context_removal;
pub(crate) mod contexts;
pub(crate) mod identities;
pub(crate) mod permission;
pub(crate) mod quotas;
pub(crate) mod roles;
pub(crate) mod signers;
pub(crate) mod usage;
