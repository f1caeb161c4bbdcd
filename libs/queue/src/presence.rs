//! How instances show that they are there.

use std::time::Duration;

use keys::InstanceRef;
use model::{InstanceInfo, Isolation, Timestamp};
use serde::{Deserialize, Deserializer, Serialize};

/// An instance that was not refreshed for this long is gone.
pub const PRESENCE_TTL: Duration = Duration::from_secs(15);
/// How often an instance refreshes its presence.
pub const PRESENCE_INTERVAL: Duration = Duration::from_secs(5);

/// Description of an instance, as Redis stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceRecord {
    /// Process id of the instance.
    pub pid: u32,
    /// When that process started, in the kernel's clock ticks since boot: distinguishes it from a later one
    /// with the same pid.
    #[serde(default)]
    pub process_start: u64,
    /// Hostname of the instance's machine.
    pub hostname: String,
    /// When it joined.
    pub started_at: Timestamp,
    /// The version of its program.
    pub version: String,
    /// Capabilities of the instance: script types, and its isolation as `isolation:<level>`.
    pub capabilities: Vec<String>,
    /// When it last refreshed this.
    pub last_heartbeat: Timestamp,
    /// How many jobs it runs at once.
    #[serde(default)]
    pub slots: u32,
    /// How many it runs now.
    #[serde(default)]
    pub busy: u32,
    /// The isolation its jobs get.
    #[serde(default, deserialize_with = "known_or_basic")]
    pub isolation: Isolation,
    /// Layers that provide the isolation, such as `landlock-7`, `seccomp`, `cgroup-v1`.
    #[serde(default)]
    pub layers: Vec<String>,
    /// Id of one start of an instance.
    #[serde(default)]
    pub life: String,
}

impl PresenceRecord {
    /// Returns the description of the instance that the coordinator is sent.
    #[must_use]
    pub fn info(&self, instance: &InstanceRef) -> InstanceInfo {
        InstanceInfo {
            script_type: instance.script_type,
            group: instance.group.clone(),
            number: instance.number,
            slots: self.slots,
            busy: self.busy,
            isolation: self.isolation,
            layers: self.layers.clone(),
            version: self.version.clone(),
        }
    }
}

/// A level of another version, or none, promises nothing.
fn known_or_basic<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Isolation, D::Error> {
    Ok(String::deserialize(deserializer)?.parse().unwrap_or_default())
}
