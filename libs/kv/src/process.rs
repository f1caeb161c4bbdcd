//! Identity and setup of the process at the other end of a connection.

use redis::aio::MultiplexedConnection;

use crate::error::{Error, Result};
use crate::value::Value;

/// Setup that decides how much an answer of a server promises, as it was when the server was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSetup {
    /// Product and version, as the server states them: `Redis 7.4.1` or `Valkey 8.0.1`.
    pub product: String,
    /// Major and minor version of the Redis that it is, or is compatible with.
    pub version: (u32, u32),
    /// How many replicas are connected.
    pub replicas: u32,
    /// The setting `appendonly`; nothing when we may not ask for it.
    pub append_only: Option<String>,
    /// The setting `appendfsync`; nothing when we may not ask for it.
    pub append_fsync: Option<String>,
    /// True when, with `appendfsync everysec`, `WAITAOF` answers before the data is on disk: a defect
    /// of some versions.
    pub waitaof_is_early: bool,
}

/// One server process for as long as it is a primary without a break.
///
/// `run_id` is of the process. `master_replid` is a new one each time that the process becomes a primary, and never an
/// old one; so two reads under the same pair have only this history between them. All that a primary
/// writes under one pair is one history: a copy of its end contains all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicationHistory {
    run_id: String,
    replication_id: String,
}

/// A server process that takes writes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RedisProcess {
    pub(crate) history: ReplicationHistory,
    pub(crate) setup: RedisSetup,
}

impl ReplicationHistory {
    /// Returns the command that asks for the history.
    pub(crate) fn question() -> redis::Cmd {
        let mut ask = redis::cmd("INFO");
        ask.arg("server").arg("replication");
        ask
    }

    /// From the answer.
    ///
    /// # Errors
    /// [`Error::Readonly`] of a replica, and [`Error::Protocol`] when the answer cannot be read.
    pub(crate) fn read(info: &str) -> Result<Self> {
        let field = |name| field(info, name).ok_or_else(|| Error::Protocol(format!("INFO without {name}")));
        match field("role")? {
            "master" => {}
            role => return Err(Error::Readonly(format!("its role is {role}"))),
        }
        let (run_id, replication_id) = (field("run_id")?.to_owned(), field("master_replid")?.to_owned());
        Ok(Self { run_id, replication_id })
    }
}

impl RedisProcess {
    /// Asks which process is at the other end.
    pub(crate) async fn ask(
        shown: &str,
        open: &mut MultiplexedConnection,
    ) -> redis::RedisResult<Result<Self>> {
        let mut both = redis::Pipeline::with_capacity(2);
        both.ignore_errors();
        both.add_command(ReplicationHistory::question())
            .cmd("CONFIG")
            .arg("GET")
            .arg("appendonly")
            .arg("appendfsync");
        let mut answers = open.send_packed_commands(&both, 0, 2).await?.into_iter();
        let mut answer = || Value::from_redis(shown, answers.next().unwrap_or(redis::Value::Nil));
        let info = answer().and_then(Value::text);
        Ok(info.and_then(|info| Self::read(&info, answer())))
    }

    fn read(info: &str, settings: Result<Value>) -> Result<Self> {
        let settings = match settings {
            // Who may not ask can only be promised what needs no asking.
            Err(Error::Refused { .. }) => Vec::new(),
            settings => settings?.pairs()?,
        };
        let setting = |name| {
            let known = settings.iter().find(|(known, _)| known == name);
            known.map(|(_, value)| value.clone().text()).transpose()
        };
        let version = version(info, "redis_version").unwrap_or_default();
        let setup = RedisSetup {
            product: product(info),
            version: (version.0, version.1),
            replicas: field(info, "connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0),
            append_only: setting("appendonly")?,
            append_fsync: setting("appendfsync")?,
            waitaof_is_early: waitaof_is_early(info),
        };
        Ok(Self { history: ReplicationHistory::read(info)?, setup })
    }
}

/// Returns product and version of a server. A Valkey says beside its own version that it is Redis 7.2.
fn product(info: &str) -> String {
    match (field(info, "valkey_version"), field(info, "redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "Redis of an unknown version".to_owned(),
    }
}

/// Returns true for a version of <https://github.com/redis/redis/pull/13793>: Redis from 7.4 up to 7.4.2 and what led from
/// there to 8.0, and every Valkey since 8.0, of which none has the correction.
fn waitaof_is_early(info: &str) -> bool {
    match version(info, "valkey_version") {
        // It says of itself that it is Redis 7.2.
        Some(valkey) => valkey >= (8, 0, 0),
        None => version(info, "redis_version").is_some_and(|redis| {
            ((7, 4, 0)..(7, 4, 3)).contains(&redis) || ((7, 5, 0)..(8, 0, 0)).contains(&redis)
        }),
    }
}

/// Major, minor and patch; a part that is no number counts as 0.
fn version(info: &str, name: &str) -> Option<(u32, u32, u32)> {
    let mut parts = field(info, name)?.split('.').map_while(|part| part.parse().ok());
    let mut next = || parts.next().unwrap_or(0);
    Some((next(), next(), next()))
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = info.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.4.1\r\nrun_id:aa\r\n\r\n# Replication\r\nrole:master\r\n\
                        connected_slaves:2\r\nmaster_replid:bb\r\nmaster_replid2:00\r\n";

    fn pairs(texts: &[&str]) -> Result<Value> {
        Ok(Value::Array(texts.iter().map(|text| Value::Bytes(text.as_bytes().to_vec())).collect()))
    }

    #[test]
    fn a_server_is_named_by_its_own_version() {
        for (info, name) in [
            (INFO, "Redis 7.4.1"),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1", "Valkey 8.0.1"),
            ("", "Redis of an unknown version"),
        ] {
            assert_eq!(product(info), name);
        }
    }

    #[test]
    fn the_info_and_settings_of_a_server_are_read() {
        let process = RedisProcess::read(INFO, pairs(&["appendfsync", "always", "appendonly", "yes"]));
        let process = process.expect("a process");
        assert_eq!(
            process.history,
            ReplicationHistory { run_id: "aa".to_owned(), replication_id: "bb".to_owned() }
        );
        assert_eq!(
            process.setup,
            RedisSetup {
                product: "Redis 7.4.1".to_owned(),
                version: (7, 4),
                replicas: 2,
                append_only: Some("yes".to_owned()),
                append_fsync: Some("always".to_owned()),
                waitaof_is_early: true,
            }
        );
        let refused = Error::Refused { code: "NOPERM".to_owned(), message: String::new() };
        let process = RedisProcess::read(INFO, Err(refused)).expect("a process");
        assert_eq!((process.setup.append_only, process.setup.append_fsync), (None, None));
    }

    #[test]
    fn versions_that_confirm_too_early_are_known() {
        for (info, is_early) in [
            ("redis_version:7.0.15", false),
            ("redis_version:7.2.6", false),
            ("redis_version:7.4.0", true),
            ("redis_version:7.4.2", true),
            ("redis_version:7.4.3", false),
            ("redis_version:7.9.225", true),
            ("redis_version:8.0.0", false),
            ("redis_version:8.10.1", false),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:7.2.7", false),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1", true),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2", true),
            ("role:master", false),
        ] {
            assert_eq!(waitaof_is_early(info), is_early, "{info}");
        }
    }

    #[test]
    fn a_replica_has_no_history_of_its_own() {
        let replica = ReplicationHistory::read(&INFO.replace("role:master", "role:slave"));
        assert!(matches!(replica, Err(Error::Readonly(_))), "{replica:?}");
        assert!(matches!(ReplicationHistory::read("role:master\r\n"), Err(Error::Protocol(_))));
    }
}
