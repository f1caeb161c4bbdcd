//! What an answered change survives.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use keys::Layout;
use kv::{Call, Cmd, Connection, Kv, Value};

/// How long a replica, or the disk, may take before the outcome counts as unknown.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for the disk of a replica, which tells what it has on disk once a second.
const REPLICA_DISK_PATIENCE: Duration = Duration::from_secs(5);
/// The first version that knows `WAITAOF`.
const WAITAOF_SINCE: (u32, u32) = (7, 2);

/// What an answered change survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// What Redis is set up for; with an append-only file synced every second, the loss of the machine costs
    /// at most the last second or two.
    #[default]
    Fast,
    /// It is on the disk of the server.
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
    fn from_str(text: &str) -> Result<Self, Self::Err> {
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

/// What is asked of Redis after each change before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// Nothing: the answer itself says enough.
    Answer,
    /// That replicas have it in memory.
    Wait,
    /// That it is on the disk here, and on those of so many replicas.
    WaitAof(u32),
}

/// Why the Redis at hand cannot be used as it was asked, and what helps.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Redis is not set up for it.
    #[error("{0}")]
    NotGiven(String),
    /// It could not be asked.
    #[error("Redis did not say what it is set up for")]
    Unknown(#[source] kv::Error),
}

impl From<kv::Error> for Refusal {
    fn from(error: kv::Error) -> Self {
        Self::Unknown(error)
    }
}

impl Confirmation {
    /// What `asked` comes to with this Redis: with every server of it that takes writes.
    ///
    /// # Errors
    /// Names what it cannot give.
    pub(crate) async fn of(asked: Durability, kv: &Kv) -> Result<Self, Refusal> {
        let mut common = None;
        for primary in kv.primaries().await? {
            let here = match Self::on(asked, &primary).await {
                Err(Refusal::NotGiven(why)) if kv.endpoint().is_cluster() => {
                    return Err(Refusal::NotGiven(format!("{}: {why}", primary.endpoint())));
                }
                here => here?,
            };
            common = Some(match common {
                None => here,
                Some(before) => Self::common(before, here).ok_or_else(|| {
                    Refusal::NotGiven(format!(
                        "durability `{asked}` needs nodes with the same settings: {} differs",
                        primary.endpoint()
                    ))
                })?,
            });
        }
        Ok(common.unwrap_or(Self::Answer))
    }

    /// What can be asked of both, and says enough of both.
    fn common(one: Self, other: Self) -> Option<Self> {
        match (one, other) {
            _ if one == other => Some(one),
            // While the nodes are brought to a newer version.
            (Self::Wait, Self::WaitAof(1)) | (Self::WaitAof(1), Self::Wait) => Some(Self::Wait),
            _ => None,
        }
    }

    /// What `asked` comes to with one server.
    async fn on(asked: Durability, connection: &Connection) -> Result<Self, Refusal> {
        match asked {
            Durability::Fast => Ok(Self::Answer),
            Durability::Synced => {
                let (append_only, sync) =
                    (setting(connection, "appendonly").await?, setting(connection, "appendfsync").await?);
                if append_only != "yes" {
                    return Err(Refusal::NotGiven(format!(
                        "durability `synced` needs an append-only file: this Redis has `appendonly {append_only}`; set \
                         `appendonly yes` and `appendfsync always`, or choose `fast`"
                    )));
                }
                if sync == "always" {
                    return Ok(Self::Answer);
                }
                if version(connection).await? >= WAITAOF_SINCE {
                    return Ok(Self::WaitAof(0));
                }
                Err(Refusal::NotGiven(format!(
                    "durability `synced` needs `appendfsync always` or Redis 7.2: this Redis has `appendfsync {sync}`; set \
                     it, or choose `fast`"
                )))
            }
            Durability::Replicated => {
                if replicas(connection).await? == 0 {
                    return Err(Refusal::NotGiven(
                        "durability `replicated` needs a replica: none is connected to this Redis; connect one with \
                         `replicaof`, or choose `synced`"
                            .to_owned(),
                    ));
                }
                if version(connection).await? < WAITAOF_SINCE {
                    return Ok(Self::Wait);
                }
                let append_only = setting(connection, "appendonly").await?;
                if append_only != "yes" {
                    return Err(Refusal::NotGiven(format!(
                        "durability `replicated` needs an append-only file: this Redis has `appendonly {append_only}`; set \
                         `appendonly yes`, or choose `fast`"
                    )));
                }
                Ok(Self::WaitAof(1))
            }
        }
    }

    /// Calls a script and waits for what makes its answer count.
    pub(crate) async fn call(self, connection: &Connection, call: Call) -> kv::Result<Value> {
        let patience = match self {
            Self::Answer => return connection.call(call).await,
            Self::Wait | Self::WaitAof(0) => PATIENCE,
            Self::WaitAof(_) => REPLICA_DISK_PATIENCE,
        };
        let wait = match self {
            Self::WaitAof(replicas) => Cmd::new("WAITAOF").arg(1).arg(replicas),
            Self::Answer | Self::Wait => Cmd::new("WAIT").arg(1),
        };
        let wait = wait.arg(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        let (answer, confirmed) = connection.call_then(call, wait).await?;
        let answer = answer?;
        let is_confirmed = match self {
            Self::Answer => true,
            Self::Wait => confirmed?.uint()? >= 1,
            Self::WaitAof(asked) => {
                let [local, replicas] = confirmed?.tuple()?;
                local.uint()? >= 1 && replicas.uint()? >= u64::from(asked)
            }
        };
        if is_confirmed {
            return Ok(answer);
        }
        Err(kv::Error::UnknownOutcome {
            endpoint: "the store".to_owned(),
            reason: format!("it was not confirmed within {patience:?} that the change is kept"),
        })
    }
}

/// Whether contexts can be kept apart so in the Redis at hand.
///
/// # Errors
/// Names what else it would take.
pub(crate) async fn check_layout(layout: Layout, kv: &Kv) -> Result<(), Refusal> {
    if !kv.endpoint().is_cluster() {
        let enabled = info(&kv.at(0, ""), "cluster", "cluster_enabled").await;
        return match enabled {
            Ok(Some(enabled)) if enabled == "1" => Err(Refusal::NotGiven(
                "this Redis is a node of a cluster: name it as redis+cluster://host:port, with the layout `hash-tag`"
                    .to_owned(),
            )),
            // Who may not ask will be told by every other answer.
            Ok(_) | Err(Refusal::Unknown(kv::Error::Refused { .. })) => Ok(()),
            Err(error) => Err(error),
        };
    }
    if layout == Layout::Database {
        return Err(Refusal::NotGiven(
            "a cluster has one database, so it cannot keep contexts apart by the layout `database`: choose `hash-tag`"
                .to_owned(),
        ));
    }
    match kv.primaries().await {
        Err(kv::Error::Refused { code, message }) => Err(Refusal::NotGiven(format!(
            "{} is no cluster that can be used: {code} {message}",
            kv.endpoint()
        ))),
        other => Ok(other.map(drop)?),
    }
}

async fn setting(connection: &Connection, name: &str) -> Result<String, Refusal> {
    let pairs = connection.cmd(Cmd::new("CONFIG").arg("GET").arg(name)).await?.pairs()?;
    match pairs.into_iter().next() {
        Some((_, value)) => Ok(value.text()?),
        None => Err(Refusal::NotGiven(format!("this Redis does not tell its `{name}`: allow CONFIG GET"))),
    }
}

/// Major and minor version.
async fn version(connection: &Connection) -> Result<(u32, u32), Refusal> {
    let version = info(connection, "server", "redis_version").await?.unwrap_or_default();
    let mut parts = version.split('.').map_while(|part| part.parse().ok());
    Ok((parts.next().unwrap_or(0), parts.next().unwrap_or(0)))
}

async fn replicas(connection: &Connection) -> Result<u32, Refusal> {
    let count = info(connection, "replication", "connected_slaves").await?;
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or(0))
}

async fn info(connection: &Connection, section: &str, name: &str) -> Result<Option<String>, Refusal> {
    let text = connection.cmd(Cmd::new("INFO").arg(section)).await?.text()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs.find(|(known, _)| *known == name).map(|(_, value)| value.trim().to_owned()))
}
