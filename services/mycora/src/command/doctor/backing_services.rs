//! Checks of the services below a coordinator: Redis, and the Mycelium daemon.

mod redis_topology;

use std::net::IpAddr;
use std::time::Duration;

use kv::{Cmd, Durability, Kv, KvConnection, KvEndpoint, RedisSetup};
use mycelium::Bus as _;
use mycelium::daemon::{Config, DaemonBus, Metrics};

use super::finding::{Finding, FindingLevel};
use crate::failure::error_chain;
use crate::output::labels;

/// Redis before this lacks commands that scripts use.
const REDIS_MIN: (u32, u32) = (7, 0);
/// Fewer are soon used up: each context has one.
const DATABASES_MIN: u64 = 64;
/// A daemon that is there answers at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where a server does not answer.
const UNREACHABLE: &str = "is it running, and is --redis-url right?";

/// The Redis of a coordinator or of a supervisor: one server, or several that belong together. `wanted` is the durability
/// that storage is started with.
pub(super) async fn redis(endpoint: KvEndpoint, wanted: Option<Durability>) -> Vec<Finding> {
    let mut findings = if endpoint.is_cluster() {
        redis_topology::cluster(&endpoint).await
    } else if let Some(master) = endpoint.master_name() {
        redis_topology::sentinels(&endpoint, master).await
    } else {
        Vec::new()
    };
    if findings.iter().any(|finding| finding.level == FindingLevel::Fail) {
        return findings;
    }
    let primaries = match Kv::new(endpoint.clone()).primaries().await {
        Ok(primaries) => primaries,
        Err(error) => {
            findings.push(Finding::fail("redis", error_chain(&error), UNREACHABLE));
            return findings;
        }
    };
    for primary in primaries {
        let (check, settings) = match endpoint.is_cluster() {
            true => (
                format!("redis {}", redis_topology::place(primary.endpoint())),
                &SETTINGS[..SETTINGS_OF_NODES],
            ),
            false => ("redis".to_owned(), SETTINGS),
        };
        findings.extend(server(&check, &primary, settings, wanted).await);
    }
    findings
}

/// One server that takes writes.
async fn server(
    check: &str,
    connection: &KvConnection,
    settings: &[(&str, RedisSettingCheck)],
    wanted: Option<Durability>,
) -> Vec<Finding> {
    let setup = match connection.setup().await {
        Ok(setup) => setup,
        Err(error) => return vec![Finding::fail(check, error_chain(&error), UNREACHABLE)],
    };
    let mut findings = vec![judge_version(check, &setup)];
    for (name, judge) in settings {
        let check = format!("{check} {name}");
        findings.push(match setting(connection, name).await {
            Ok(Some(value)) => judge(check, &value),
            Ok(None) => Finding::warn(check, "this Redis does not tell it", "look into its configuration"),
            Err(error) => Finding::warn(check, error_chain(&error), "allow CONFIG GET, or look there"),
        });
    }
    if let Some(wanted) = wanted {
        findings.push(durability(format!("{check} durability"), connection, wanted).await);
    }
    findings
}

/// Checks that the Redis server gives the durability that storage is asked for.
async fn durability(check: String, connection: &KvConnection, wanted: Durability) -> Finding {
    let setup = match connection.setup().await {
        Ok(setup) => setup,
        Err(error) => return Finding::fail(check, error_chain(&error), UNREACHABLE),
    };
    let replicas =
        labels::count(usize::try_from(setup.replicas).unwrap_or(usize::MAX), "replica", "replicas");
    match wanted.is_satisfied_by(&setup) {
        Ok(()) => match wanted.shortfall(&setup) {
            None => Finding::ok(check, format!("`{wanted}` is given, with {replicas}")),
            Some(why) => {
                let (found, advice) = parts(&why, "storage says so when it starts");
                Finding::warn(check, found, advice)
            }
        },
        Err(why) => {
            let (found, advice) = parts(&why, "storage refuses to start with it");
            Finding::fail(check, found, advice)
        }
    }
}

/// Splits a reason into the finding and the advice; without advice, returns `otherwise`.
fn parts<'a>(why: &'a str, otherwise: &'a str) -> (&'a str, &'a str) {
    why.split_once("; ").unwrap_or((why, otherwise))
}

fn judge_version(check: &str, setup: &RedisSetup) -> Finding {
    let product = &setup.product;
    if setup.version >= REDIS_MIN {
        return Finding::ok(check, product);
    }
    Finding::fail(check, format!("{product} is too old"), "install Redis 7.0 or later, or Valkey")
}

/// Judges the value of a setting.
type RedisSettingCheck = fn(String, &str) -> Finding;

/// Settings that matter, each with its check; the last one matters for a single server only.
const SETTINGS: &[(&str, RedisSettingCheck)] = &[
    ("appendonly", append_only),
    ("appendfsync", append_fsync),
    ("maxmemory-policy", memory_policy),
    ("databases", databases),
];
/// How many of these matter for a node of a cluster, which has one database.
const SETTINGS_OF_NODES: usize = 3;

fn append_only(check: String, value: &str) -> Finding {
    if value == "yes" {
        return Finding::ok(check, "yes");
    }
    let advice = "set `appendonly yes`: without, its end may cost all since the last snapshot";
    Finding::warn(check, value, advice)
}

fn append_fsync(check: String, value: &str) -> Finding {
    if ["always", "everysec"].contains(&value) {
        return Finding::ok(check, value);
    }
    let advice = "set `appendfsync everysec`, or `always`: with another, the system decides when changes reach the disk";
    Finding::warn(check, value, advice)
}

fn memory_policy(check: String, value: &str) -> Finding {
    if value == "noeviction" {
        return Finding::ok(check, value);
    }
    let advice = "set `maxmemory-policy noeviction`: with another, records vanish when memory is short";
    Finding::fail(check, value, advice)
}

fn databases(check: String, value: &str) -> Finding {
    let count: u64 = value.parse().unwrap_or(0);
    // The first and the last are no contexts.
    let found = format!("{value}: contexts 1 to {}, in the layout `database`", count.saturating_sub(2));
    if count >= DATABASES_MIN {
        return Finding::ok(check, found);
    }
    Finding::warn(check, found, "set `databases 4096`, or start storage with --layout hash-tag")
}

pub(super) async fn setting(connection: &KvConnection, name: &str) -> kv::Result<Option<String>> {
    let pairs = connection.cmd(Cmd::new("CONFIG").arg("GET").arg(name)).await?.pairs()?;
    pairs.into_iter().next().map(|(_, value)| value.text()).transpose()
}

/// The daemon that carries `mycelium:` addresses. Nothing is sent, and no message taken.
pub(super) async fn mycelium(ip: IpAddr, port: u16) -> Finding {
    const CHECK: &str = "mycelium";
    let advice =
        "is the daemon running, and are --mycelium-ip and --mycelium-port those of its JSON-RPC port?";
    let config = Config::at(ip, port);
    let started = Metrics::new(&prometheus::Registry::new())
        .map_err(|error| error_chain(&error))
        .and_then(|metrics| DaemonBus::start(&config, metrics).map_err(|error| error_chain(&error)));
    let bus = match started {
        Ok(bus) => bus,
        Err(why) => return Finding::fail(CHECK, why, advice),
    };
    let mut bus_status = bus.status();
    // A problem reported before the first contact does not count yet.
    let before = bus_status.borrow().problem.clone();
    let reported = bus_status.wait_for(|bus_status| bus_status.up || bus_status.problem != before);
    // If nothing new is reported in time, show the earlier problem.
    let _ = tokio::time::timeout(PATIENCE, reported).await;
    let bus_status = bus.status().borrow().clone();
    match bus_status.node.filter(|_| bus_status.up) {
        Some(node) => {
            let version =
                if node.version.is_empty() { "of an unknown version".to_owned() } else { node.version };
            let links = labels::count(node.links.iter().filter(|link| link.alive).count(), "link", "links");
            Finding::ok(CHECK, format!("{}: {version}, key {}, {links}", config.url, node.key))
        }
        None => Finding::fail(CHECK, format!("{}: {}", config.url, bus_status.problem), advice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_version_of_redis_are_judged() {
        let judged = |name: &str, value: &str| {
            let (_, judge) = SETTINGS.iter().find(|(known, _)| *known == name).expect("a setting");
            judge(name.to_owned(), value).level
        };
        assert_eq!(judged("appendonly", "yes"), FindingLevel::Ok);
        assert_eq!(judged("appendonly", "no"), FindingLevel::Warn);
        assert_eq!(judged("appendfsync", "everysec"), FindingLevel::Ok);
        assert_eq!(judged("appendfsync", "no"), FindingLevel::Warn);
        assert_eq!(judged("maxmemory-policy", "allkeys-lru"), FindingLevel::Fail);
        assert_eq!(judged("databases", "16"), FindingLevel::Warn);
        assert_eq!(judged("databases", "4096"), FindingLevel::Ok);
        for (version, level) in
            [((7, 0), FindingLevel::Ok), ((8, 0), FindingLevel::Ok), ((6, 2), FindingLevel::Fail)]
        {
            let setup = RedisSetup {
                product: "Redis".to_owned(),
                version,
                replicas: 0,
                append_only: None,
                append_fsync: None,
                waitaof_is_early: false,
            };
            assert_eq!(judge_version("redis", &setup).level, level, "{version:?}");
        }
    }
}
