//! Runners: registrations of supervisors where jobs can run, and their last known state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::id::{Revision, RunnerId};
use crate::isolation::Isolation;
use crate::limits;
use crate::name::Name;
use crate::script_type::ScriptType;
use crate::time::Timestamp;

/// A registration in a context of one supervisor as a place where its jobs may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    /// Number of the runner within the context.
    pub id: RunnerId,
    /// The supervisor's Mycelium public key, when it is known.
    pub pubkey: String,
    /// Where the supervisor is reached.
    pub address: Address,
    /// The topic its requests travel under.
    pub topic: String,
    /// The Ed25519 key its events are signed with, when it has one.
    pub signing_key: String,
    /// Script types that may be sent there; empty for all that its instances offer.
    pub script_types: Vec<ScriptType>,
    /// The group that jobs without one of their own go to.
    pub group: Option<Name>,
    /// Labels that selectors may ask for.
    pub labels: BTreeMap<String, String>,
    /// The supervisor is on this machine.
    pub local: bool,
    /// Form in which requests to the supervisor travel.
    pub envelope: EnvelopeForm,
    /// With [`EnvelopeForm::Plain`]: the name of the secret that goes with each request; empty for none.
    pub secret_ref: String,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Since when it is sent no new jobs.
    pub drained_at: Option<Timestamp>,
    /// Time of removal; since then its reports count only until everything running there has ended.
    pub deleted_at: Option<Timestamp>,
    /// The change counter at its last change.
    pub revision: Revision,
}

impl Runner {
    /// Returns true if the runner may be sent new jobs.
    #[must_use]
    pub const fn takes_jobs(&self) -> bool {
        self.drained_at.is_none() && self.deleted_at.is_none()
    }
}

/// Form in which requests to a supervisor travel.
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
    /// Returns the form as stored in Redis.
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
    /// Type of the scripts that the instance executes.
    pub script_type: ScriptType,
    /// Group of the instance.
    pub group: Name,
    /// Number of the instance within the group.
    pub number: u32,
    /// How many jobs it runs at once.
    pub slots: u32,
    /// How many it runs now.
    pub busy: u32,
    /// The isolation its jobs get.
    pub isolation: Isolation,
    /// Layers that make up this isolation on its machine, such as `landlock-7`, `seccomp`, `cgroup-v1`.
    #[serde(default)]
    pub layers: Vec<String>,
    /// The version of its program.
    pub version: String,
}

impl InstanceInfo {
    /// About how many bytes it has, as JSON and in a message; not less than in the latter.
    fn bytes(&self) -> usize {
        let Self { group, layers, version, script_type: _, number: _, slots: _, busy: _, isolation: _ } =
            self;
        let layers: usize = layers.iter().map(|layer| layer.len() + 8).sum();
        160 + group.as_str().len() + layers + version.len()
    }
}

/// Presence that a supervisor announces every few seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// The supervisor's own name: random, made with its store, never reused.
    pub supervisor: String,
    /// The version of its program.
    pub version: String,
    /// Live instances of the supervisor.
    pub instances: Vec<InstanceInfo>,
    /// Jobs that wait in its queues.
    pub queued: u64,
    /// Set while the supervisor takes no new jobs.
    #[serde(default)]
    pub draining: bool,
}

/// A supervisor's presence exceeds a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PresenceError {
    /// The name, or the version, is too long.
    #[error("the name and the version of a supervisor have at most {max} bytes each, not {found}", max = limits::SUPERVISOR_NAME_BYTES_MAX)]
    Name {
        /// The longer of both.
        found: usize,
    },
    /// There are too many instances.
    #[error("a presence lists at most {max} instances, not {found}", max = limits::PRESENCE_INSTANCES_MAX)]
    Instances {
        /// How many they are.
        found: usize,
    },
    /// All of it.
    #[error("a presence has at most {max} bytes, not {found}", max = limits::PRESENCE_BYTES_MAX)]
    Bytes {
        /// About how many they are.
        found: usize,
    },
}

impl Presence {
    /// About how many bytes it has, as JSON and in a message; not less than in the latter.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let Self { supervisor, version, instances, queued: _, draining: _ } = self;
        let instances: usize = instances.iter().map(InstanceInfo::bytes).sum();
        128 + supervisor.len() + version.len() + instances
    }

    /// Checks the limits of another supervisor's presence, because every client that lists runners receives all of it.
    ///
    /// # Errors
    /// Names the exceeded limit.
    pub fn check(&self) -> Result<(), PresenceError> {
        let name = self.supervisor.len().max(self.version.len());
        if name > limits::SUPERVISOR_NAME_BYTES_MAX {
            return Err(PresenceError::Name { found: name });
        }
        if self.instances.len() > limits::PRESENCE_INSTANCES_MAX {
            return Err(PresenceError::Instances { found: self.instances.len() });
        }
        let bytes = self.bytes();
        if bytes > limits::PRESENCE_BYTES_MAX {
            return Err(PresenceError::Bytes { found: bytes });
        }
        Ok(())
    }

    /// Drops the last instances beyond the maximum. Returns the number dropped.
    pub fn truncate(&mut self) -> usize {
        let all = self.instances.len();
        self.instances.truncate(limits::PRESENCE_INSTANCES_MAX);
        let mut bytes = self.bytes();
        while bytes > limits::PRESENCE_BYTES_MAX
            && let Some(last) = self.instances.pop()
        {
            bytes -= last.bytes();
        }
        all - self.instances.len()
    }

    /// Returns true if a live instance offers `script_type`, in `group` when one is named
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

/// A runner record with the last state that its supervisor reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerView {
    /// The registration.
    pub runner: Runner,
    /// Presence that the supervisor announced last; absent when it never announced one.
    pub presence: Option<Presence>,
    /// When it was last seen.
    pub last_seen: Option<Timestamp>,
    /// True if the supervisor was seen recently enough to be sent jobs.
    pub live: bool,
}

impl From<Runner> for RunnerView {
    /// Nothing is known of its supervisor.
    fn from(runner: Runner) -> Self {
        Self { runner, presence: None, last_seen: None, live: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(count: usize, layers: usize) -> Presence {
        let instance = InstanceInfo {
            script_type: ScriptType::Python,
            group: "default".parse().expect("a name"),
            number: 1,
            slots: 1,
            busy: 0,
            isolation: Isolation::default(),
            layers: vec!["landlock-7".to_owned(); layers],
            version: "1.0.0".to_owned(),
        };
        let instances = vec![instance; count];
        Presence { supervisor: "s".into(), version: "1.0.0".into(), instances, queued: 0, draining: false }
    }

    #[test]
    fn the_presence_of_a_supervisor_is_bounded() {
        assert_eq!(presence(limits::PRESENCE_INSTANCES_MAX, 3).check(), Ok(()));
        for (count, layers) in [(limits::PRESENCE_INSTANCES_MAX + 1, 3), (10, 10_000), (1, 100_000)] {
            let mut more = presence(count, layers);
            assert!(more.check().is_err(), "{count} with {layers}");
            let left_out = more.truncate();
            assert_eq!((left_out, more.check()), (count - more.instances.len(), Ok(())));
            assert!(left_out > 0);
        }
        let named = |name: usize| Presence { supervisor: "s".repeat(name), ..presence(1, 1) }.check();
        assert_eq!(named(limits::SUPERVISOR_NAME_BYTES_MAX), Ok(()));
        assert_eq!(named(129), Err(PresenceError::Name { found: 129 }));
    }
}
