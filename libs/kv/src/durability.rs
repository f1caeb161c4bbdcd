//! Durability of an answered change: the failures that it survives.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{
    Error, Kv, KvConnection, PersistenceTarget, RedisSetup, Result, ScriptCall, Value, WriteConcern,
};

/// How long a replica, or the disk, may take before the outcome of a change counts as unknown.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the disk of a replica may take: a replica reports what it has on disk once a second.
const REPLICA_DISK_PATIENCE: Duration = Duration::from_secs(5);
/// The first version that knows `WAITAOF`.
const WAITAOF_SINCE: (u32, u32) = (7, 2);

/// Guarantee to report where Redis does not say how it is set up.
const UNKNOWN: &str =
    "an answered change survives what Redis is set up for, which it does not report: allow CONFIG GET";

/// Failures that an answered change survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Survives what Redis is set up for. With an append-only file and `appendfsync no` or `always`: the end of any process.
    /// With `everysec` Redis holds writes back while its disk is slow: the end of Redis alone costs up to two seconds then.
    /// The loss of the machine costs the last second or two.
    #[default]
    Fast,
    /// The change is on the disk of the server.
    Synced,
    /// A replica has it as well: in memory before Redis 7.2, on both disks from then on.
    Replicated,
}

impl Durability {
    /// The name in configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Synced => "synced",
            Self::Replicated => "replicated",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Durability {
    type Err = UnknownDurability;
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        [Self::Fast, Self::Synced, Self::Replicated]
            .into_iter()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| UnknownDurability(text.chars().take(80).collect()))
    }
}

/// No durability has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no durability; there are fast, synced and replicated")]
pub struct UnknownDurability(pub String);

/// Durability that makes a change count, applied to the server that makes the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmation {
    durability: Durability,
}

/// Why the Redis at hand cannot be used as requested, and what helps.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Redis is not set up for it.
    #[error("{0}")]
    NotGiven(String),
    /// Redis could not be asked.
    #[error("cannot read the setup of Redis")]
    Unknown(#[source] Error),
}

impl From<Error> for SetupError {
    fn from(error: Error) -> Self {
        Self::Unknown(error)
    }
}

impl Durability {
    /// Checks that a server with this setup gives the durability.
    ///
    /// # Errors
    /// Names what the server cannot give, and the way out.
    pub fn is_satisfied_by(self, setup: &RedisSetup) -> std::result::Result<(), String> {
        self.on(setup).map(drop)
    }

    /// Returns how far a server with this setup falls short of the durability's promise; nothing for most. With the way out.
    #[must_use]
    pub fn shortfall(self, setup: &RedisSetup) -> Option<String> {
        if self == Self::Fast {
            return doubt_of_fast(setup);
        }
        let target = self.on(setup).ok().flatten().map(|confirm| confirm.target);
        let is_of_disks = matches!(target, Some(PersistenceTarget::Disk | PersistenceTarget::Disks));
        if !is_of_disks || !setup.waitaof_is_early || setup.append_fsync.as_deref() == Some("always") {
            return None;
        }
        let sync = setup.append_fsync.as_deref().unwrap_or("untold");
        let product = &setup.product;
        let other = if product.starts_with("Valkey") {
            "Valkey 7.2, as later ones have no correction"
        } else {
            "Redis 7.2, or 7.4.3 or later"
        };
        Some(format!(
            "durability `{self}` may lose the last second when the power fails: this {product} has `appendfsync {sync}`, and \
             this version confirms a change before it is on the disk; set `appendfsync always` on every server, or use {other}"
        ))
    }

    /// Describes what an answered change survives at a server with this setup, and what it does not: for operators.
    fn guarantee(self, setup: &RedisSetup) -> String {
        let doubt = self.shortfall(setup);
        let survives = match (self, setup.append_only.as_deref(), setup.append_fsync.as_deref()) {
            (Self::Fast, Some("no"), _) | (Self::Fast, Some(_), Some("everysec")) => {
                "an answered change survives the end of every process but Redis; that of the machine costs seconds at least"
            }
            (Self::Fast, Some(_), Some("no")) => {
                "an answered change survives the end of every process, Redis too; the end of its machine costs what that has \
                 not brought to the disk, on Linux up to half a minute"
            }
            (Self::Fast, Some(_), Some(_)) | (Self::Synced, _, _) => {
                "an answered change is on the disk of Redis' machine: it survives the end of that, not the loss of the disk"
            }
            (Self::Fast, _, _) => UNKNOWN,
            (Self::Replicated, _, _) if setup.version < WAITAOF_SINCE => {
                "an answered change is in the memory of Redis and of a replica: it survives the loss of one of them"
            }
            (Self::Replicated, _, _) => {
                "an answered change is on the disks of Redis and of a replica: it survives the loss of one of them"
            }
        };
        let doubt = doubt.map(|doubt| format!("; {doubt}")).unwrap_or_default();
        format!("{self}: {survives}{doubt}")
    }

    /// Returns the confirmation that a change waits for at a server with this setup.
    ///
    /// # Errors
    /// Names what the server cannot give, and the way out.
    fn on(self, setup: &RedisSetup) -> std::result::Result<Option<WriteConcern>, String> {
        let product = &setup.product;
        match self {
            Self::Fast => Ok(None),
            Self::Synced => {
                let append_only = reported(product, setup.append_only.as_deref(), "appendonly")?;
                if append_only != "yes" {
                    return Err(format!(
                        "durability `synced` needs an append-only file: this {product} has `appendonly {append_only}`; set \
                         `appendonly yes` and `appendfsync always`, or choose `fast`"
                    ));
                }
                match reported(product, setup.append_fsync.as_deref(), "appendfsync")? {
                    "always" => Ok(None),
                    _ if setup.version >= WAITAOF_SINCE => {
                        Ok(Some(WriteConcern { target: PersistenceTarget::Disk, patience: PATIENCE }))
                    }
                    sync => Err(format!(
                        "durability `synced` needs `appendfsync always` or Redis 7.2: this {product} has `appendfsync \
                         {sync}`; set it, or choose `fast`"
                    )),
                }
            }
            Self::Replicated => {
                if setup.replicas == 0 {
                    return Err(format!(
                        "durability `replicated` needs a replica: none is connected to this {product}; connect one with \
                         `replicaof`, or choose `synced`"
                    ));
                }
                if setup.version < WAITAOF_SINCE {
                    return Ok(Some(WriteConcern { target: PersistenceTarget::Replica, patience: PATIENCE }));
                }
                match reported(product, setup.append_only.as_deref(), "appendonly")? {
                    "yes" => Ok(Some(WriteConcern {
                        target: PersistenceTarget::Disks,
                        patience: REPLICA_DISK_PATIENCE,
                    })),
                    append_only => Err(format!(
                        "durability `replicated` needs an append-only file: this {product} has `appendonly {append_only}`; \
                         set `appendonly yes`, or choose `fast`"
                    )),
                }
            }
        }
    }
}

/// Describes what the end of Redis alone may cost.
fn doubt_of_fast(setup: &RedisSetup) -> Option<String> {
    match (setup.append_only.as_deref()?, setup.append_fsync.as_deref()) {
        ("no", _) => Some(
            "durability `fast` keeps what Redis keeps: this one has `appendonly no`, so that its end loses what was answered since \
             its last snapshot; set `appendonly yes`"
                .to_owned(),
        ),
        (_, Some("everysec")) => Some(
            "durability `fast` may lose up to two seconds of what was answered when Redis is killed while its disk is slow: it has \
             `appendfsync everysec`, and holds its writes back meanwhile; durability `synced` loses nothing"
                .to_owned(),
        ),
        _ => None,
    }
}

fn reported<'a>(product: &str, setting: Option<&'a str>, name: &str) -> std::result::Result<&'a str, String> {
    setting.ok_or_else(|| format!("this {product} does not report its `{name}`: allow CONFIG GET"))
}

impl Confirmation {
    /// Resolves a durability for this Redis: every server that takes writes has to provide it. Returns how those servers are set up
    /// as well, as far as they report it.
    ///
    /// # Errors
    /// Names the durability that a server cannot provide.
    pub async fn of(
        durability: Durability,
        kv: &Kv,
    ) -> std::result::Result<(Self, Vec<PrimarySetup>), SetupError> {
        let mut servers = Vec::new();
        for primary in kv.primaries().await? {
            let name = kv.endpoint().is_cluster().then(|| primary.endpoint().to_owned());
            let setup = match primary.setup().await {
                Ok(setup) => Some(setup),
                // `Fast` needs nothing of the server, so a server that does not answer is accepted.
                Err(_) if durability == Durability::Fast => None,
                // The server is about to change its role; another one takes writes soon.
                Err(Error::Readonly(reason)) => {
                    let endpoint = primary.endpoint().to_owned();
                    return Err(Error::Unreachable { endpoint, reason }.into());
                }
                Err(error) => return Err(error.into()),
            };
            let server = PrimarySetup { name, setup };
            if let Some(setup) = &server.setup {
                durability.on(setup).map_err(|why| SetupError::NotGiven(server.named(&why)))?;
            }
            servers.push(server);
        }
        Ok((Self { durability }, servers))
    }

    /// Returns whether an answer counts as soon as its change is made.
    #[must_use]
    pub const fn is_immediate(self) -> bool {
        matches!(self.durability, Durability::Fast)
    }

    /// Calls a script and waits until its answer counts. The server's setup is read again whenever
    /// another process is at the other end, and no change is made when its durability is too low.
    pub async fn call(self, connection: &KvConnection, call: ScriptCall) -> Result<Value> {
        match self.durability {
            Durability::Fast => connection.call(call).await,
            durability => connection.change(call, |setup| durability.on(setup)).await,
        }
    }
}

/// How a server that takes writes is set up.
#[derive(Debug)]
pub struct PrimarySetup {
    /// Where it is; nothing where there is no other.
    name: Option<String>,
    /// Nothing for a server that did not report it.
    setup: Option<RedisSetup>,
}

impl PrimarySetup {
    /// Returns how far the server falls short of what the durability promises.
    pub fn shortfall(&self, durability: Durability) -> Option<String> {
        self.setup.as_ref().and_then(|setup| durability.shortfall(setup)).map(|doubt| self.named(&doubt))
    }

    /// Describes what an answered change survives there.
    pub fn guarantee(&self, durability: Durability) -> String {
        let promise = self
            .setup
            .as_ref()
            .map_or_else(|| format!("{durability}: {UNKNOWN}"), |setup| durability.guarantee(setup));
        self.named(&promise)
    }

    fn named(&self, what: &str) -> String {
        self.name.as_ref().map_or_else(|| what.to_owned(), |name| format!("{name}: {what}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(version: (u32, u32), replicas: u32, append_only: &str, append_fsync: &str) -> RedisSetup {
        let setting = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        RedisSetup {
            product: format!("Redis {}.{}.0", version.0, version.1),
            version,
            replicas,
            append_only: setting(append_only),
            append_fsync: setting(append_fsync),
            waitaof_is_early: false,
        }
    }

    #[test]
    fn what_is_confirmed_too_early_is_doubted() {
        use Durability::{Replicated, Synced};
        for (durability, version, replicas, append_fsync, is_doubted) in [
            (Synced, (7, 4), 0, "everysec", true),
            (Synced, (7, 4), 0, "always", false),
            (Replicated, (7, 4), 1, "everysec", true),
            (Replicated, (7, 4), 1, "", true),
            (Replicated, (7, 4), 1, "always", false),
            (Replicated, (7, 4), 0, "everysec", false),
        ] {
            let known = setup(version, replicas, "yes", append_fsync);
            assert_eq!(durability.shortfall(&known), None, "{durability} on {known:?}");
            let early = RedisSetup { waitaof_is_early: true, ..known };
            let other = RedisSetup { product: "Valkey 8.0.1".to_owned(), ..early.clone() };
            let named = durability.shortfall(&other).is_none_or(|why| {
                why.contains("this Valkey 8.0.1 has") && !why.contains("Redis") && why.contains("Valkey 7.2")
            });
            assert!(named, "{durability} on {other:?}");
            let doubt = durability.shortfall(&early);
            assert_eq!(doubt.is_some(), is_doubted, "{durability} on {early:?}: {doubt:?}");
            assert!(doubt.is_none_or(|why| why.contains("set `appendfsync always`")));
        }
    }

    #[test]
    fn the_shortfall_names_the_setting_that_loses_data_with_redis() {
        for (append_only, append_fsync, expected) in [
            ("no", "everysec", Some("`appendonly no`")),
            ("yes", "everysec", Some("`appendfsync everysec`")),
            ("yes", "always", None),
            ("yes", "no", None),
            ("", "", None),
        ] {
            let doubt = Durability::Fast.shortfall(&setup((7, 0), 0, append_only, append_fsync));
            match expected {
                Some(part) => assert!(doubt.as_ref().is_some_and(|doubt| doubt.contains(part)), "{doubt:?}"),
                None => assert_eq!(doubt, None),
            }
        }
    }

    #[test]
    fn the_guarantee_names_the_failures_that_an_answered_change_survives() {
        use Durability::{Fast, Replicated, Synced};
        for (durability, version, append_only, append_fsync, expected, doubted) in [
            (Fast, (7, 0), "no", "everysec", "every process but Redis", "`appendonly no`"),
            (Fast, (7, 0), "yes", "everysec", "every process but Redis", "`appendfsync everysec`"),
            (Fast, (7, 0), "yes", "no", "every process, Redis too", ""),
            (Fast, (7, 0), "yes", "always", "on the disk of Redis' machine", ""),
            (Fast, (7, 0), "", "", "does not report: allow CONFIG GET", ""),
            (Synced, (7, 2), "yes", "everysec", "not the loss of the disk", ""),
            (Replicated, (7, 0), "yes", "everysec", "in the memory of Redis and of a replica", ""),
            (Replicated, (7, 2), "yes", "everysec", "on the disks of Redis and of a replica", ""),
        ] {
            let promise = durability.guarantee(&setup(version, 1, append_only, append_fsync));
            assert!(promise.starts_with(durability.as_str()) && promise.contains(expected), "{promise}");
            assert!(promise.contains(doubted) && promise.contains("; durability") != doubted.is_empty());
        }
    }

    #[test]
    fn what_a_durability_comes_to_depends_on_the_server() {
        use Durability::{Fast, Replicated, Synced};
        for (durability, version, replicas, append_only, append_fsync, keeper) in [
            (Fast, (7, 0), 0, "", "", Ok(None)),
            (Synced, (7, 0), 0, "yes", "always", Ok(None)),
            (Synced, (7, 0), 0, "yes", "everysec", Err("7.2")),
            (Synced, (7, 2), 0, "yes", "everysec", Ok(Some(PersistenceTarget::Disk))),
            (Synced, (8, 0), 1, "no", "always", Err("`appendonly no`")),
            (Synced, (8, 0), 1, "yes", "", Err("allow CONFIG GET")),
            (Replicated, (7, 0), 1, "no", "", Ok(Some(PersistenceTarget::Replica))),
            (Replicated, (7, 0), 0, "yes", "always", Err("needs a replica")),
            (Replicated, (7, 2), 1, "yes", "always", Ok(Some(PersistenceTarget::Disks))),
            (Replicated, (7, 2), 1, "no", "always", Err("`appendonly no`")),
            (Replicated, (7, 10), 1, "", "", Err("allow CONFIG GET")),
        ] {
            let setup = setup(version, replicas, append_only, append_fsync);
            match (durability.on(&setup), keeper) {
                (Ok(confirm), Ok(keeper)) => {
                    assert_eq!(confirm.map(|confirm| confirm.target), keeper, "{setup:?}")
                }
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (on, _) => panic!("{durability} on {setup:?}: {on:?}"),
            }
        }
    }
}
