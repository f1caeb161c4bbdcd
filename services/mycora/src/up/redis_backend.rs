//! The Redis of an all-in-one: a child of its own, or one that the operator names.

use std::path::Path;
use std::sync::Arc;

use keys::Layout;
use kv::{Cmd, Durability, Kv, KvEndpoint};

use super::directory::DataDir;
use super::disk::SharedDisk;
use super::redis::{PrivateRedis, SUPERVISOR_DATABASE};
use super::{UpError, UpOptions, UpReporter};

/// Number of databases of a Redis that does not report it.
const DATABASES_DEFAULT: u32 = 16;

/// Where everything is kept.
#[derive(Debug)]
pub(super) enum RedisBackend {
    /// The private child.
    Private(PrivateRedis),
    /// A server that others operate.
    Named(NamedRedis),
}

/// A server that others operate. Coordinator, supervisor and runners reach it as the same user.
#[derive(Debug)]
pub(super) struct NamedRedis {
    endpoint: KvEndpoint,
    supervisor_database: u32,
}

impl RedisBackend {
    /// Starts the child, or finds out about the server that is named.
    ///
    /// # Errors
    /// When there is no `redis-server`, it cannot start, or the named one cannot be used.
    pub(super) async fn start(
        dir: &Arc<DataDir>,
        options: &UpOptions,
        notice: &UpReporter,
    ) -> Result<Self, UpError> {
        match &options.redis_url {
            Some(endpoint) => NamedRedis::open(endpoint.clone(), options.supervisor).await.map(Self::Named),
            None => PrivateRedis::start(dir, options.durability, options.redis_memory, notice)
                .await
                .map(Self::Private),
        }
    }

    /// For the coordinator: every database.
    #[must_use]
    pub(super) fn endpoint(&self) -> KvEndpoint {
        match self {
            Self::Private(redis) => redis.endpoint(),
            Self::Named(redis) => redis.endpoint.clone(),
        }
    }

    /// How contexts are kept apart there.
    #[must_use]
    pub(super) const fn layout(&self) -> Layout {
        match self {
            Self::Named(redis) if redis.endpoint.is_cluster() => Layout::HashTag,
            _ => Layout::Database,
        }
    }

    /// For the supervisor: its own database.
    #[must_use]
    pub(super) fn supervisor_endpoint(&self) -> KvEndpoint {
        match self {
            Self::Private(redis) => redis.supervisor_endpoint(),
            Self::Named(redis) => redis.endpoint.clone().with_database(redis.supervisor_database),
        }
    }

    /// Returns the number of the supervisor's database.
    #[must_use]
    pub(super) const fn supervisor_database(&self) -> u32 {
        match self {
            Self::Private(_) => SUPERVISOR_DATABASE,
            Self::Named(redis) => redis.supervisor_database,
        }
    }

    /// For the runner pool: the supervisor's database.
    #[must_use]
    pub(super) fn runner_endpoint(&self) -> KvEndpoint {
        match self {
            Self::Private(redis) => redis.runner_endpoint(),
            Self::Named(_) => self.supervisor_endpoint(),
        }
    }

    /// Describes what an answered change survives, where Redis cannot know it: we sync the child's files to disk from outside.
    #[must_use]
    pub(super) fn promise(&self, durability: Durability) -> Option<&'static str> {
        let is_ours = matches!(self, Self::Private(_)) && durability == Durability::Fast;
        is_ours.then_some(
            "fast: an answered change survives the end of every process, Redis too; the end of the machine costs the last second or two",
        )
    }

    /// The command that opens a prompt at the server, without its password where that is not ours to disclose.
    #[must_use]
    pub(super) fn cli_line(&self, dir: &DataDir, database: u32) -> String {
        match self {
            Self::Private(redis) => redis.cli_line(dir, database),
            Self::Named(redis) => format!("redis-cli -u {}", redis.endpoint.clone().with_database(database)),
        }
    }

    /// Returns the warning for scripts that can fill the server's disk.
    #[must_use]
    pub(super) fn shared_disk(
        &self,
        dir: &DataDir,
        scripts: &Path,
        floor: Option<u64>,
    ) -> Option<SharedDisk> {
        match self {
            Self::Private(redis) => redis.shared_disk(dir, scripts, floor),
            Self::Named(_) => None,
        }
    }

    /// Returns when the child has ended by itself and cannot be started again. A server that others operate is waited for,
    /// however long it is away. Cancel safe.
    pub(super) async fn wait_until_lost(&mut self) -> UpError {
        match self {
            Self::Private(redis) => redis.kept().wait_until_lost().await,
            Self::Named(_) => std::future::pending().await,
        }
    }

    /// Returns true when the child has ended and cannot be started again.
    #[must_use]
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Private(redis) => redis.is_lost(),
            Self::Named(_) => false,
        }
    }

    /// Lets the child write what it has and end.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub(super) async fn stop(self) -> Result<(), UpError> {
        match self {
            Self::Private(redis) => redis.stop().await,
            Self::Named(_) => Ok(()),
        }
    }
}

impl NamedRedis {
    /// Asks the server how many databases it has: the last one is for the supervisor.
    async fn open(endpoint: KvEndpoint, supervisor: bool) -> Result<Self, UpError> {
        if endpoint.is_cluster() {
            // A cluster has one database, and the supervisor's keys do not carry tags.
            return if supervisor {
                Err(UpError::ClusterForSupervisor { endpoint: endpoint.to_string() })
            } else {
                Ok(Self { endpoint, supervisor_database: 0 })
            };
        }
        let connection = Kv::new(endpoint.clone()).database(0);
        let answer = connection.cmd(Cmd::new("CONFIG").arg("GET").arg("databases")).await;
        let database_count = match answer {
            Ok(value) => value.pairs().ok().and_then(|pairs| pairs.into_iter().next()?.1.uint().ok()),
            Err(kv::Error::Refused { .. }) => None,
            Err(source) => {
                return Err(UpError::NamedRedis { endpoint: endpoint.to_string(), source: Box::new(source) });
            }
        };
        let databases =
            database_count.and_then(|count| u32::try_from(count).ok()).unwrap_or(DATABASES_DEFAULT);
        Ok(Self { endpoint, supervisor_database: databases.saturating_sub(1) })
    }
}
