//! Actors and contexts: who there is, who may do what, and how much.
//!
//! - [`actors`], [`contexts`]: their records; [`context_removal`]: a context goes with everything that is its own;
//! - [`permission`]: who may do what; [`roles`], [`identities`], [`signers`]: who has which role, who is who, who signs with what;
//! - [`authorization`]: permission for what other services keep; [`audit`]: who did what; [`quotas`]: how much there may be.

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
