//! A private cluster for one test.

use super::{RedisBuilder, RedisServer};
use crate::port::free_port;
use crate::wait::{PATIENCE, wait_until_blocking};

const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

/// Six servers that are a cluster of three primaries with a replica each. Ended when dropped.
///
/// The death of a primary is noticed within half a second, and its replica takes its place a second later.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts one that keeps nothing on disk.
    ///
    /// # Panics
    /// As [`RedisBuilder::start`], and when the servers do not find together.
    #[must_use]
    pub fn start() -> Self {
        Self::of(&RedisServer::builder())
    }

    /// Starts a cluster of servers built as `setup` says; its cluster settings count, such as `cluster-node-timeout 5000`, with
    /// which a busy machine does not make a node look dead.
    ///
    /// # Panics
    /// As [`RedisCluster::start`].
    #[must_use]
    pub fn of(setup: &RedisBuilder) -> Self {
        let ports: Vec<u16> = (0..2 * PRIMARIES).map(|_| free_port()).collect();
        let node = |bus: &u16| {
            let lines = [
                "cluster-enabled yes".to_owned(),
                format!("cluster-port {bus}"),
                "cluster-node-timeout 400".to_owned(),
                // However long it was cut off from its primary.
                "cluster-replica-validity-factor 0".to_owned(),
                "repl-diskless-sync-delay 0".to_owned(),
            ];
            let mut setup = setup.clone().tcp();
            // Of two lines for the same the last one counts.
            setup.lines.splice(0..0, lines);
            setup.start()
        };
        let cluster = Self { nodes: ports.iter().map(node).collect() };
        cluster.join(&ports);
        cluster
    }

    /// The URL of the cluster, with all nodes in it.
    #[must_use]
    pub fn url(&self) -> String {
        let user =
            self.nodes[0].setup.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{user}{}", nodes.join(","))
    }

    /// All servers; for dead ones, call only what does not need a running server.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Which of the nodes serves a key now, as the others see it.
    ///
    /// # Panics
    /// When no node does for long.
    #[must_use]
    pub fn primary_of(&self, key: &str) -> usize {
        let what = format!("somebody serves {key}");
        wait_until_blocking(|| self.serves(key), PATIENCE, what)
    }

    /// Kills a node without a warning, and leaves it dead.
    pub fn kill9(&mut self, node: usize) {
        self.nodes[node].kill9();
    }

    /// Starts a node again, with what it has on disk.
    ///
    /// # Panics
    /// As [`RedisBuilder::start`].
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].restart();
    }

    /// Waits until another node than `former` serves `key`, and gives it.
    ///
    /// # Panics
    /// When none does.
    #[must_use]
    pub fn successor_of(&self, former: usize, key: &str) -> usize {
        let successor = || self.serves(key).filter(|node| *node != former);
        wait_until_blocking(successor, PATIENCE, format!("node {former} has a successor for {key}"))
    }

    /// Waits until every node finds that the cluster works, and every replica has what its primary has.
    ///
    /// # Panics
    /// When they do not.
    pub fn settle(&self) {
        wait_until_blocking(|| self.is_settled().then_some(()), PATIENCE, "the cluster works");
    }

    fn is_settled(&self) -> bool {
        let replicas = self.nodes.iter().filter(|node| {
            let replication = node.raw(0, &["INFO", "replication"]);
            replication.contains("role:slave") && replication.contains("master_link_status:up")
        });
        let is_ok = |node: &RedisServer| {
            let info = node.raw(0, &["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains(&format!("cluster_slots_ok:{SLOTS}"))
        };
        replicas.count() == PRIMARIES && self.nodes.iter().all(is_ok)
    }

    /// A node that is its own primary, serves the key, and that every running node takes for one that does.
    fn serves(&self, key: &str) -> Option<usize> {
        let running = || self.nodes.iter().enumerate().filter(|(_, node)| node.child.is_some());
        let slot = number(&running().next()?.1.ask(0, &["CLUSTER", "KEYSLOT", key]).ok()?)?;
        let mut found = None;
        for (_, node) in running() {
            let port = owner(&node.ask(0, &["CLUSTER", "NODES"]).ok()?, slot)?;
            if *found.get_or_insert(port) != port {
                return None;
            }
        }
        let found = running().find(|(_, node)| Some(node.port) == found);
        let info = found?.1.ask(0, &["CLUSTER", "INFO"]).ok()?;
        info.contains("cluster_state:ok").then_some(found?.0)
    }

    fn join(&self, buses: &[u16]) {
        let say = |node: &RedisServer, args: &[&str]| {
            let answer = node.raw(0, args);
            assert!(answer.starts_with("+OK"), "{args:?}: {answer}");
        };
        for (place, node) in self.nodes.iter().enumerate() {
            say(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
        }
        for (place, node) in self.nodes.iter().enumerate() {
            for (other, bus) in self.nodes.iter().zip(buses).skip(place + 1) {
                say(node, &["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string(), &bus.to_string()]);
            }
        }
        let (primaries, replicas) = self.nodes.split_at(PRIMARIES);
        for (place, node) in primaries.iter().enumerate() {
            let (first, last) = (SLOTS * place / PRIMARIES, SLOTS * (place + 1) / PRIMARIES - 1);
            say(node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        for (primary, replica) in primaries.iter().zip(replicas) {
            let id = primary.raw(0, &["CLUSTER", "MYID"]);
            let id = id.lines().nth(1).expect("an id").to_owned();
            let follows = || replica.raw(0, &["CLUSTER", "REPLICATE", &id]).starts_with("+OK").then_some(());
            wait_until_blocking(follows, PATIENCE, "the replica knows its primary");
        }
        self.settle();
    }
}

fn number(answer: &str) -> Option<usize> {
    answer.trim_end().strip_prefix(':')?.parse().ok()
}

/// The port of the primary that serves a slot, in the answer to `CLUSTER NODES`.
fn owner(nodes: &str, slot: usize) -> Option<u16> {
    let serves = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (first..=last).contains(&slot).then_some(())
    };
    nodes.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (_, address, flags) = (words.next()?, words.next()?, words.next()?);
        let is_primary = flags.contains("master") && !flags.contains("fail");
        (is_primary && words.skip(5).any(|range| serves(range).is_some())).then_some(())?;
        address.split('@').next()?.rsplit_once(':')?.1.parse().ok()
    })
}
