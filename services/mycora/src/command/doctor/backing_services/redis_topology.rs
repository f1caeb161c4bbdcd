//! Servers that belong together: the nodes of a cluster, and Sentinels.

use std::collections::{BTreeMap, BTreeSet};

use kv::{Cmd, Kv, KvEndpoint};

use super::UNREACHABLE;
use crate::command::doctor::finding::Finding;
use crate::failure::error_chain;
use crate::output::labels;

/// So many slots has every cluster.
const SLOTS: u64 = 16_384;
/// With fewer Sentinels no leader is elected when one is away.
const SENTINELS_MIN: usize = 3;

/// Returns the host and port of an endpoint, which tell it apart from others.
pub(super) fn place(endpoint: &str) -> &str {
    let behind_user = endpoint.rsplit(['/', '@']).find(|part| part.contains(':'));
    behind_user.unwrap_or(endpoint)
}

/// Checks which nodes answer, whether they serve all slots, and which primary has no replica.
pub(super) async fn cluster(endpoint: &KvEndpoint) -> Vec<Finding> {
    const CHECK: &str = "redis cluster";
    let (mut findings, mut cluster_answer) = (Vec::new(), None);
    for node in endpoint.servers() {
        let shown = node.to_string();
        let connection = Kv::new(node).default_database();
        let ask = |what| connection.cmd(Cmd::new("CLUSTER").arg(what));
        let answer = async { Ok::<_, kv::Error>((ask("INFO").await?.text()?, ask("NODES").await?.text()?)) };
        match answer.await {
            Ok(answer) => cluster_answer = cluster_answer.or(Some(answer)),
            Err(error @ kv::Error::Refused { .. }) => {
                let advice = "is it a node of a cluster? One server is named as redis://host:port";
                return vec![Finding::fail(CHECK, error_chain(&error), advice)];
            }
            Err(error) => {
                let advice = "start it, or name another node: the others are found by those that answer";
                findings.push(Finding::warn(format!("redis {}", place(&shown)), error_chain(&error), advice));
            }
        }
    }
    match cluster_answer {
        None => vec![Finding::fail(CHECK, format!("no node of {endpoint} answers"), UNREACHABLE)],
        Some((info, nodes)) => {
            findings.insert(0, slots(&info));
            findings.extend(members(&RedisClusterNode::all(&nodes)));
            findings
        }
    }
}

/// Checks that every slot is served, according to `CLUSTER INFO`.
fn slots(info: &str) -> Finding {
    const CHECK: &str = "redis cluster";
    let fields: BTreeMap<_, _> = info.lines().filter_map(|line| line.trim().split_once(':')).collect();
    let number = |name: &str| fields.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let state = fields.get("cluster_state").copied().unwrap_or("unknown");
    let (served, known) = (number("cluster_slots_ok"), number("cluster_known_nodes"));
    let found = format!(
        "state {state}, {served} of {SLOTS} slots served by {}, {known} nodes known",
        labels::count(usize::try_from(number("cluster_size")).unwrap_or(0), "primary", "primaries")
    );
    if served == SLOTS && state == "ok" {
        return Finding::ok(CHECK, found);
    }
    let advice = "start the nodes that are away, or give their slots to others: `redis-cli --cluster check HOST:PORT` names them";
    Finding::fail(CHECK, found, advice)
}

/// A line of `CLUSTER NODES`.
struct RedisClusterNode<'a> {
    id: &'a str,
    place: &'a str,
    flags: BTreeSet<&'a str>,
    follows: &'a str,
    serves: bool,
}

impl<'a> RedisClusterNode<'a> {
    fn all(text: &'a str) -> Vec<Self> {
        text.lines().filter_map(Self::read).collect()
    }

    fn read(line: &'a str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (id, place, flags, follows) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let place = place.split('@').next().unwrap_or(place);
        // Two times, an epoch and the state of the link, and then slots.
        let serves = fields.nth(4).is_some();
        Some(Self { id, place, flags: flags.split(',').collect(), follows, serves })
    }

    fn is_well(&self) -> bool {
        !["fail", "fail?", "noaddr", "handshake"].iter().any(|flag| self.flags.contains(flag))
    }
}

/// Lists nodes that are away, and primaries without a replica, whose end would take slots away.
fn members(nodes: &[RedisClusterNode<'_>]) -> Vec<Finding> {
    let away = nodes.iter().filter(|node| !node.is_well()).map(|node| {
        let flags = node.flags.iter().copied().collect::<Vec<_>>().join(",");
        let found = format!("the other nodes say: {flags}");
        Finding::warn(format!("redis {}", node.place), found, "start it, or let them forget it")
    });
    let mut findings: Vec<_> = away.collect();
    let primaries: Vec<_> = nodes.iter().filter(|node| node.serves && node.is_well()).collect();
    let followed = |primary: &&RedisClusterNode<'_>| {
        nodes.iter().any(|node| node.follows == primary.id && node.is_well())
    };
    let alone: Vec<_> =
        primaries.iter().filter(|primary| !followed(primary)).map(|node| node.place).collect();
    let replicas = nodes.iter().filter(|node| node.follows != "-" && node.is_well()).count();
    let found = labels::count(replicas, "replica", "replicas");
    findings.push(match alone.as_slice() {
        [] => Finding::ok("redis replicas", format!("{found}, each primary has one")),
        alone => Finding::warn(
            "redis replicas",
            format!("{found}, and none of {}", alone.join(", ")),
            "give each primary one: without, its slots are away for as long as it is",
        ),
    });
    findings
}

/// Which Sentinels answer, and whether they agree.
pub(super) async fn sentinels(endpoint: &KvEndpoint, master: &str) -> Vec<Finding> {
    let (mut findings, mut addresses) = (Vec::new(), Vec::new());
    for sentinel in endpoint.servers() {
        let shown = sentinel.to_string();
        let check = format!("sentinel {}", place(&shown));
        let connection = Kv::new(sentinel).default_database();
        let view_of_master = async {
            let pairs = connection.cmd(Cmd::new("SENTINEL").arg("MASTER").arg(master)).await?.pairs()?;
            let text = |(name, value): (String, kv::Value)| Ok((name, value.text()?));
            pairs.into_iter().map(text).collect::<kv::Result<BTreeMap<_, _>>>()
        };
        match view_of_master.await {
            Ok(pairs) => {
                let view = SentinelReport::of(&pairs);
                findings.push(view.judged(check));
                addresses.push(view.place);
            }
            Err(error @ kv::Error::Refused { .. }) => {
                let advice = "is the master's name right? `SENTINEL MASTERS` lists those that it knows";
                findings.push(Finding::warn(check, error_chain(&error), advice));
            }
            Err(error) => findings.push(Finding::warn(check, error_chain(&error), "start it")),
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    findings.push(match addresses.as_slice() {
        [] => Finding::fail("redis master", format!("no Sentinel of {endpoint} tells it"), UNREACHABLE),
        [one] => Finding::ok("redis master", format!("`{master}` is {one}")),
        many => Finding::warn(
            "redis master",
            format!("Sentinels name different ones: {}", many.join(", ")),
            "a failover is under way, or they do not hear each other; look again",
        ),
    });
    findings
}

/// Report of one Sentinel on the master.
struct SentinelReport {
    place: String,
    flags: String,
    replicas: usize,
    sentinels: usize,
    quorum: usize,
}

impl SentinelReport {
    fn of(pairs: &BTreeMap<String, String>) -> Self {
        let text = |name: &str| pairs.get(name).cloned().unwrap_or_default();
        let number = |name: &str| text(name).parse().unwrap_or(0);
        Self {
            place: format!("{}:{}", text("ip"), text("port")),
            flags: text("flags"),
            replicas: number("num-slaves"),
            sentinels: number("num-other-sentinels") + 1,
            quorum: number("quorum"),
        }
    }

    fn judged(&self, check: String) -> Finding {
        let Self { place, flags, replicas, sentinels, quorum } = self;
        let count = labels::count(*replicas, "replica", "replicas");
        let found = format!("{place}: {flags}, {count}, {sentinels} Sentinels, quorum {quorum}");
        if flags.split(',').any(|flag| ["s_down", "o_down"].contains(&flag)) {
            return Finding::warn(check, found, "it does not hear the master: is that running?");
        }
        if *replicas == 0 {
            return Finding::warn(check, found, "connect a replica: nobody can take over");
        }
        if *sentinels < SENTINELS_MIN.max(*quorum) {
            return Finding::warn(
                check,
                found,
                "start three at least: a successor is elected by most of them",
            );
        }
        Finding::ok(check, found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::FindingLevel;
    use super::*;

    #[test]
    fn places_are_hosts_and_ports() {
        assert_eq!(place("redis://me@h:1/0"), "h:1");
        assert_eq!(place("redis://h:1/0"), "h:1");
        assert_eq!(place("unix:///run/redis.sock?db=0"), "unix:");
    }

    #[test]
    fn slots_without_a_server_are_reported() {
        let info =
            "cluster_state:ok\r\ncluster_slots_ok:16384\r\ncluster_size:3\r\ncluster_known_nodes:6\r\n";
        let well = slots(info);
        assert_eq!(
            (well.level, well.found.as_str()),
            (FindingLevel::Ok, "state ok, 16384 of 16384 slots served by 3 primaries, 6 nodes known")
        );
        assert_eq!(slots(&info.replace("ok:16384", "ok:10922")).level, FindingLevel::Fail);
        assert_eq!(slots("").level, FindingLevel::Fail);
    }

    #[test]
    fn who_has_no_successor_is_named() {
        let text = "aa 10.0.0.1:1@2 myself,master - 0 0 1 connected 0-8191\n\
                    bb 10.0.0.2:1@2,host master - 0 0 2 connected 8192-16383\n\
                    cc 10.0.0.3:1@2 slave aa 0 0 1 connected\n\
                    dd 10.0.0.4:1@2 slave,fail bb 0 0 2 disconnected\n";
        let findings = members(&RedisClusterNode::all(text));
        let shown: Vec<_> = findings.iter().map(|one| (one.check.as_str(), one.found.as_str())).collect();
        assert_eq!(
            shown,
            [
                ("redis 10.0.0.4:1", "the other nodes say: fail,slave"),
                ("redis replicas", "1 replica, and none of 10.0.0.2:1")
            ]
        );
    }

    #[test]
    fn sentinels_are_judged_by_whom_they_could_elect() {
        let view = |flags: &str, replicas, sentinels| SentinelReport {
            place: "h:1".into(),
            flags: flags.into(),
            replicas,
            sentinels,
            quorum: 2,
        };
        let level = |view: SentinelReport| view.judged("s".into()).level;
        assert_eq!(level(view("master", 1, 3)), FindingLevel::Ok);
        for weak in [view("master", 0, 3), view("master", 1, 2), view("master,s_down,o_down", 1, 3)] {
            assert_eq!(level(weak), FindingLevel::Warn);
        }
    }
}
