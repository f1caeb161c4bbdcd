//! Contexts, that is tenants, and who may do what in them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{ActorId, ContextId, ContextUid, ParseIdError, Revision};
use crate::time::Timestamp;

/// A tenant: its own Redis database or key tag, its own directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// Number of the context at this coordinator. Never 0.
    pub id: ContextId,
    /// Uid of the context, its name everywhere else.
    pub uid: ContextUid,
    /// State: in use, or being removed.
    pub state: ContextState,
    /// May do everything. Never empty.
    pub admins: BTreeSet<ActorId>,
    /// May look.
    pub readers: BTreeSet<ActorId>,
    /// May run.
    pub executors: BTreeSet<ActorId>,
    /// Settings that its admins have made.
    pub settings: ContextSettings,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// The change counter at its last change.
    pub revision: Revision,
}

/// State of a context, which decides whether it takes changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextState {
    /// In use.
    Active,
    /// Being removed: nothing but reading is allowed.
    Deleting,
}

impl ContextState {
    /// Returns the state as stored in Redis.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Deleting => "deleting",
        }
    }
}

impl FromStr for ContextState {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "active" => Ok(Self::Active),
            "deleting" => Ok(Self::Deleting),
            other => Err(ParseIdError { kind: "context state", text: other.chars().take(80).collect() }),
        }
    }
}

/// Switches of a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextSettings {
    /// Executors may create flows and jobs of their own, not only admins.
    pub executors_may_submit: bool,
    /// Messages pushed to `msg_out` by programs that know nothing of gRPC are taken.
    pub raw_publish: bool,
    /// Chat and mail that their senders have not signed are refused.
    pub require_signed_messages: bool,
    /// Bounds of what is kept of what has ended.
    #[serde(skip_serializing_if = "ContextRetention::is_unset")]
    pub retention: ContextRetention,
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self {
            executors_may_submit: true,
            raw_publish: false,
            require_signed_messages: false,
            retention: ContextRetention::default(),
        }
    }
}

/// Bounds of what a context keeps of what has ended. 0 leaves a bound at the coordinator's, which is also the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextRetention {
    /// Seconds for which an ended flow is kept, with its jobs, results, logs and messages.
    pub ended_flow_keep_secs: u64,
    /// Ended flows that are kept: beyond it the oldest go.
    pub ended_flows_max: u64,
    /// Bytes that ended flows take in Redis: beyond it the oldest go.
    pub ended_flow_bytes_max: u64,
    /// Seconds for which a message is kept of which nothing more is expected.
    pub message_keep_secs: u64,
    /// Such messages that are kept: beyond it the oldest go.
    pub messages_done_max: u64,
    /// Seconds for which events are kept.
    pub events_keep_secs: u64,
}

impl ContextRetention {
    /// Returns the bounds in force where `most` are the coordinator's.
    #[must_use]
    pub fn within(self, most: Self) -> Self {
        let least = |own: u64, most: u64| if own == 0 { most } else { own.min(most) };
        Self {
            ended_flow_keep_secs: least(self.ended_flow_keep_secs, most.ended_flow_keep_secs),
            ended_flows_max: least(self.ended_flows_max, most.ended_flows_max),
            ended_flow_bytes_max: least(self.ended_flow_bytes_max, most.ended_flow_bytes_max),
            message_keep_secs: least(self.message_keep_secs, most.message_keep_secs),
            messages_done_max: least(self.messages_done_max, most.messages_done_max),
            events_keep_secs: least(self.events_keep_secs, most.events_keep_secs),
        }
    }

    fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

/// Role of an actor in a context. Each role includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Get, list, watch.
    Reader,
    /// Run flows of its own.
    Executor,
    /// Everything.
    Admin,
}

impl FromStr for Role {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Reader, Self::Executor, Self::Admin];
        let found = all.into_iter().find(|role| role.to_string() == text);
        found.ok_or_else(|| ParseIdError { kind: "role", text: text.chars().take(80).collect() })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reader => "reader",
            Self::Executor => "executor",
            Self::Admin => "admin",
        })
    }
}

/// Reason why an actor may not do what it requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessDenied {
    /// The actor has no role here, so it must not even learn that the context exists.
    #[error("context {0} does not exist")]
    NoRole(ContextId),
    /// The actor is known here, but its role is too small.
    #[error(
        "actor {actor} needs the role {needed} in context {context}: an admin of it gives that with \
         `mycora context update {context} --add-{needed} {actor}`"
    )]
    RoleTooSmall {
        /// Actor that makes the request.
        actor: ActorId,
        /// Where.
        context: ContextId,
        /// The smallest role that would do.
        needed: Role,
    },
    /// The job would overtake the others of the context, which only admins may request.
    #[error(
        "actor {actor} needs the role admin in context {context} for `priority: 0`, by which a job goes before all others \
         there: leave that out, or an admin of it gives the role with `mycora context update {context} --add-admin {actor}`"
    )]
    GoesFirst {
        /// Actor that makes the request.
        actor: ActorId,
        /// Where.
        context: ContextId,
    },
    /// The object is another actor's, and the actor is not an admin.
    #[error("actor {actor} may act only as itself in context {context}, not as actor {caller}")]
    NotItself {
        /// Actor that makes the request.
        actor: ActorId,
        /// Actor as which it tries to act.
        caller: ActorId,
        /// Where.
        context: ContextId,
    },
}

impl Context {
    /// The greatest role of `actor` here; absent when it has none.
    #[must_use]
    pub fn role_of(&self, actor: ActorId) -> Option<Role> {
        if self.admins.contains(&actor) {
            Some(Role::Admin)
        } else if self.executors.contains(&actor) {
            Some(Role::Executor)
        } else if self.readers.contains(&actor) {
            Some(Role::Reader)
        } else {
            None
        }
    }

    /// Checks that `actor` has at least the role `needed`.
    ///
    /// # Errors
    /// [`AccessDenied::NoRole`] when it has none at all, else [`AccessDenied::RoleTooSmall`].
    pub fn require(&self, actor: ActorId, needed: Role) -> Result<Role, AccessDenied> {
        let role = self.role_of(actor).ok_or(AccessDenied::NoRole(self.id))?;
        if role < needed {
            return Err(AccessDenied::RoleTooSmall { actor, context: self.id, needed });
        }
        Ok(role)
    }

    /// Checks that `actor` may create something for `caller`.
    ///
    /// # Errors
    /// As [`Context::require`], and [`AccessDenied::NotItself`] when a caller that is no admin names another.
    pub fn require_create(&self, actor: ActorId, caller: ActorId) -> Result<(), AccessDenied> {
        let needed = if self.settings.executors_may_submit { Role::Executor } else { Role::Admin };
        self.require_own(actor, caller, needed)
    }

    /// Checks that `actor` may change what belongs to `caller`.
    ///
    /// # Errors
    /// As [`Context::require_create`].
    pub fn require_change(&self, actor: ActorId, caller: ActorId) -> Result<(), AccessDenied> {
        self.require_own(actor, caller, Role::Executor)
    }

    /// Checks that `actor` may let jobs overtake all others of this context.
    ///
    /// # Errors
    /// [`AccessDenied::GoesFirst`], and [`AccessDenied::NoRole`] as [`Context::require`].
    pub fn require_first(&self, actor: ActorId) -> Result<(), AccessDenied> {
        match self.require(actor, Role::Admin) {
            Err(AccessDenied::RoleTooSmall { .. }) => {
                Err(AccessDenied::GoesFirst { actor, context: self.id })
            }
            checked => checked.map(drop),
        }
    }

    fn require_own(&self, actor: ActorId, caller: ActorId, needed: Role) -> Result<(), AccessDenied> {
        let role = self.require(actor, needed)?;
        if role < Role::Admin && actor != caller {
            return Err(AccessDenied::NotItself { actor, caller, context: self.id });
        }
        Ok(())
    }
}
