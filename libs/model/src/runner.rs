//! Runners: registrations of places where jobs can run, and what is known of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::id::{Revision, RunnerId};
use crate::isolation::Isolation;
use crate::name::Name;
use crate::script_type::ScriptType;
use crate::time::Timestamp;

/// A registration in a context of one supervisor as a place where its jobs may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    /// Its number within the context.
    pub id: RunnerId,
    /// The supervisor's Mycelium public key, when it is known.
    pub pubkey: String,
    /// Where the supervisor is reached.
    pub address: Address,
    /// The topic its requests travel under.
    pub topic: String,
    /// The Ed25519 key its events are signed with, when it has one.
    pub signing_key: String,
    /// What may be sent there; empty for whatever its instances offer.
    pub script_types: Vec<ScriptType>,
    /// The group that jobs without one of their own go to.
    pub group: Option<Name>,
    /// What selectors may ask for.
    pub labels: BTreeMap<String, String>,
    /// The supervisor is on this machine.
    pub local: bool,
    /// What its requests travel in.
    pub envelope: EnvelopeForm,
    /// With [`EnvelopeForm::Plain`]: the name of the secret that goes with each request; empty for none.
    pub secret_ref: String,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Since when it is sent no new jobs.
    pub drained_at: Option<Timestamp>,
    /// Since when it is listened to only until what runs there has ended.
    pub deleted_at: Option<Timestamp>,
    /// The change counter at its last change.
    pub revision: Revision,
}

impl Runner {
    /// Whether it may be sent new jobs.
    #[must_use]
    pub const fn takes_jobs(&self) -> bool {
        self.drained_at.is_none() && self.deleted_at.is_none()
    }
}

/// What requests to a supervisor travel in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvelopeForm {
    /// Signed envelopes.
    #[default]
    Signed,
    /// Plain JSON-RPC, for supervisors that know nothing else.
    Plain,
}

impl EnvelopeForm {
    /// As it stands in Redis.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Signed => "signed",
            Self::Plain => "plain",
        }
    }
}

/// One worker process, or one kind of script that it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceInfo {
    /// What it executes.
    pub script_type: ScriptType,
    /// Its group.
    pub group: Name,
    /// Its number within the group.
    pub number: u32,
    /// How many jobs it runs at once.
    pub slots: u32,
    /// How many it runs now.
    pub busy: u32,
    /// The isolation its jobs get.
    pub isolation: Isolation,
    /// What that is made of on its machine, such as `landlock-7`, `seccomp`, `cgroup-v1`.
    #[serde(default)]
    pub layers: Vec<String>,
    /// The version of its program.
    pub version: String,
}

/// What a supervisor says of itself every few seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// The supervisor's own name: random, made with its store, never reused.
    pub supervisor: String,
    /// The version of its program.
    pub version: String,
    /// Its live instances.
    pub instances: Vec<InstanceInfo>,
    /// Jobs that wait in its queues.
    pub queued: u64,
    /// It takes no new jobs.
    #[serde(default)]
    pub draining: bool,
}

impl Presence {
    /// Whether a live instance offers `script_type`, in `group` when one is named
    /// and under `number` when one is named, with at least this isolation.
    #[must_use]
    pub fn offers(
        &self,
        script_type: ScriptType,
        group: Option<&str>,
        number: Option<u32>,
        isolation: Isolation,
    ) -> bool {
        !self.draining
            && self.instances.iter().any(|instance| {
                instance.script_type == script_type
                    && group.is_none_or(|group| instance.group.as_str() == group)
                    && number.is_none_or(|number| instance.number == number)
                    && instance.isolation >= isolation
            })
    }
}

/// A runner record with what was last heard from its supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerView {
    /// The registration.
    pub runner: Runner,
    /// What the supervisor last said; absent when it was never heard.
    pub presence: Option<Presence>,
    /// When it was last heard.
    pub last_seen: Option<Timestamp>,
    /// Whether it was heard recently enough to be sent jobs.
    pub live: bool,
}
