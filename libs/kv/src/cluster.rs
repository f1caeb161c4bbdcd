//! A cluster: which node serves which slot.
//!
//! The map is read from any node that answers, again whenever a node says that it is wrong or cannot be worked with.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;

use crate::endpoint::{KvEndpoint, RedisAddress};
use crate::error::{Error, Result};
use crate::link::{KvLink, in_a_task, lock};
use crate::server::{KvOptions, KvServer};
use crate::slot::SLOTS;
use crate::value::Value;

/// Marks a slot without an owner in [`ClusterSlotMap::owners`].
const NOBODY: u16 = u16::MAX;

pub(crate) struct Cluster {
    endpoint: KvEndpoint,
    seeds: Vec<RedisAddress>,
    pub(crate) options: KvOptions,
    pub(crate) shown: String,
    map: RwLock<Arc<ClusterSlotMap>>,
    links: Mutex<HashMap<RedisAddress, Arc<KvLink>>>,
    /// Held while the map is read, so that many callers read it once.
    reading: tokio::sync::Mutex<()>,
    /// True after a wait for a node was in vain: the map is read before it is used again.
    is_stale: AtomicBool,
    changes: watch::Sender<u64>,
}

/// Nodes of the cluster and the slots that they serve.
#[derive(Default)]
pub(crate) struct ClusterSlotMap {
    /// How often it was read. Not at all at first.
    reads: u64,
    primaries: Vec<(RedisAddress, Arc<KvLink>)>,
    /// By slot, places in `primaries`.
    owners: Vec<u16>,
    /// All nodes, also those that serve nothing.
    nodes: Vec<RedisAddress>,
}

/// Report of one node about the cluster.
struct ClusterTopologyReport {
    /// True when the node finds that the cluster works.
    is_ok: bool,
    /// The greatest it knows: it is raised by each change of who serves what after a death.
    epoch: u64,
    /// First and last slot, and who serves them.
    ranges: Vec<(u16, u16, RedisAddress)>,
    nodes: Vec<RedisAddress>,
}

impl ClusterSlotMap {
    /// Returns the primary that serves a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<&(RedisAddress, Arc<KvLink>)> {
        self.primaries.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// Returns every primary that serves a slot.
    pub(crate) fn primaries(&self) -> &[(RedisAddress, Arc<KvLink>)] {
        &self.primaries
    }

    fn is_as(&self, other: &Self) -> bool {
        let addresses =
            |map: &Self| map.primaries.iter().map(|(address, _)| address.clone()).collect::<Vec<_>>();
        self.owners == other.owners && addresses(self) == addresses(other)
    }
}

impl Cluster {
    pub(crate) fn new(endpoint: KvEndpoint, seeds: Vec<RedisAddress>, options: KvOptions) -> Arc<Self> {
        let shown = endpoint.to_string();
        Arc::new(Self {
            endpoint,
            seeds,
            options,
            shown,
            map: RwLock::default(),
            links: Mutex::default(),
            reading: tokio::sync::Mutex::new(()),
            is_stale: AtomicBool::new(false),
            changes: watch::Sender::new(0),
        })
    }

    /// Changes whenever slots were found to be served by others than before.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The map as it was read last.
    pub(crate) fn cached_map(&self) -> Arc<ClusterSlotMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The map, read if it was not yet, or is doubted.
    pub(crate) async fn map(self: &Arc<Self>) -> Result<Arc<ClusterSlotMap>> {
        let map = self.cached_map();
        if map.reads > 0 && !self.is_stale.load(Ordering::Relaxed) {
            return Ok(map);
        }
        match self.read_after(&map).boxed().await {
            Err(_) if map.reads > 0 => Ok(map),
            read => read,
        }
    }

    /// Returns the connection to the primary that serves a slot.
    pub(crate) async fn link(self: &Arc<Self>, slot: u16) -> Result<Arc<KvLink>> {
        let map = self.map().await?;
        let owner = map.owner(slot).map(|(_, link)| Arc::clone(link));
        owner.ok_or_else(|| self.unreachable(format!("no node serves slot {slot}")))
    }

    /// The connection to a node.
    pub(crate) fn link_to(&self, address: &RedisAddress) -> Arc<KvLink> {
        let mut links = lock(&self.links);
        let link = links.entry(address.clone()).or_insert_with(|| {
            KvLink::new(KvServer::new(self.endpoint.at(address.clone()), self.options), 0)
        });
        Arc::clone(link)
    }

    /// The next to use the map reads it before.
    pub(crate) fn mark_stale(&self) {
        self.is_stale.store(true, Ordering::Relaxed);
    }

    pub(crate) fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { endpoint: self.shown.clone(), reason }
    }

    /// Reads the map, unless another caller has read it since `seen`.
    pub(crate) async fn read_after(self: &Arc<Self>, seen: &ClusterSlotMap) -> Result<Arc<ClusterSlotMap>> {
        let (cluster, reads) = (Arc::clone(self), seen.reads);
        in_a_task(&self.shown, async move { cluster.read_since(reads).await }.boxed()).await
    }

    async fn read_since(&self, reads: u64) -> Result<Arc<ClusterSlotMap>> {
        let _alone = self.reading.lock().await;
        let known = self.cached_map();
        if known.reads > reads {
            return Ok(known);
        }
        let view = self.ask_all(&known).await?;
        self.is_stale.store(false, Ordering::Relaxed);
        let map = Arc::new(self.drawn(view, known.reads + 1));
        lock(&self.links).retain(|address, _| map.nodes.contains(address) || self.seeds.contains(address));
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&map);
        if !map.is_as(&known) {
            let primaries: Vec<_> = map.primaries.iter().map(|(address, _)| address.to_string()).collect();
            tracing::info!(endpoint = %self.shown, ?primaries, "primaries of the cluster");
            self.changes.send_modify(|times| *times += 1);
        }
        Ok(map)
    }

    /// Returns the latest report among those of most nodes, or of all that answer: a node that was away may not know
    /// a successor yet.
    async fn ask_all(&self, known: &ClusterSlotMap) -> Result<ClusterTopologyReport> {
        let mut all: Vec<&RedisAddress> = known.nodes.iter().collect();
        all.extend(self.seeds.iter().filter(|seed| !known.nodes.contains(seed)));
        let mut missing = all.len() / 2 + 1;
        let mut replies: FuturesUnordered<_> = all.into_iter().map(|address| self.ask(address)).collect();
        let (mut latest, mut failure): (Option<ClusterTopologyReport>, _) = (None, None);
        while missing > 0
            && let Some(answer) = replies.next().await
        {
            match answer {
                Ok(view) => {
                    missing -= 1;
                    if latest
                        .as_ref()
                        .is_none_or(|latest| (latest.is_ok, latest.epoch) < (view.is_ok, view.epoch))
                    {
                        latest = Some(view);
                    }
                }
                // That a server is none of a cluster says more than that another one is away.
                Err(error) if failure.is_none() || !error.is_connection_trouble() => failure = Some(error),
                Err(_) => {}
            }
        }
        latest.ok_or_else(|| failure.unwrap_or_else(|| self.unreachable("it has no nodes".to_owned())))
    }

    async fn ask(&self, address: &RedisAddress) -> Result<ClusterTopologyReport> {
        let link = self.link_to(address);
        let mut both = redis::Pipeline::with_capacity(2);
        both.ignore_errors().cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
        let patience = self.options.connect_timeout;
        let answers = tokio::time::timeout(patience, link.send_all(&both, 0, 2)).await;
        let answers = answers.map_err(|_| self.unreachable(format!("{address} does not answer")))??;
        let answers = answers.into_iter().map(|answer| Value::from_redis(&link.server.shown, answer));
        let [slots, info] = Value::Array(answers.collect::<Result<_>>()?).tuple()?;
        let info = info.text()?;
        let epoch =
            info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:")?.trim().parse().ok());
        let is_ok = info.contains("cluster_state:ok");
        let mut view =
            ClusterTopologyReport { is_ok, epoch: epoch.unwrap_or(0), ranges: Vec::new(), nodes: Vec::new() };
        for range in slots.array()? {
            view.read(address, range)?;
        }
        Ok(view)
    }

    fn drawn(&self, view: ClusterTopologyReport, reads: u64) -> ClusterSlotMap {
        let mut places: Vec<&RedisAddress> = view.ranges.iter().map(|(_, _, address)| address).collect();
        places.sort_unstable_by_key(|address| (&address.host, address.port));
        places.dedup();
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        for (first, last, address) in &view.ranges {
            let place = places.iter().position(|known| known == &address);
            let place = place.and_then(|place| u16::try_from(place).ok()).unwrap_or(NOBODY);
            if let Some(owned) = owners.get_mut(usize::from(*first)..=usize::from(*last)) {
                owned.fill(place);
            }
        }
        let primaries = places.into_iter().map(|address| (address.clone(), self.link_to(address))).collect();
        ClusterSlotMap { reads, primaries, owners, nodes: view.nodes }
    }
}

impl ClusterTopologyReport {
    /// Takes up one entry of the answer to `CLUSTER SLOTS` of the node at `source`.
    fn read(&mut self, source: &RedisAddress, range: Value) -> Result<()> {
        let mut parts = range.array()?.into_iter();
        let mut number = || -> Result<u16> {
            let number = parts.next().unwrap_or(Value::Nil).uint()?;
            u16::try_from(number).map_err(|_| Error::Protocol(format!("a slot {number}")))
        };
        let (first, last) = (number()?, number()?);
        for (n, node) in parts.enumerate() {
            let Some(address) = node_address(source, node)? else { continue };
            if !self.nodes.contains(&address) {
                self.nodes.push(address.clone());
            }
            if n == 0 {
                self.ranges.push((first, last, address));
            }
        }
        Ok(())
    }
}

/// Returns the address of a node; nothing when the node at `source` does not know it. Without a host it is that node's host.
fn node_address(source: &RedisAddress, node: Value) -> Result<Option<RedisAddress>> {
    let mut parts = node.array()?.into_iter();
    let host = parts.next().unwrap_or(Value::Nil).optional_text()?.unwrap_or_default();
    let port = parts.next().unwrap_or(Value::Nil).uint()?;
    let Some(port) = u16::try_from(port).ok().filter(|port| *port != 0) else { return Ok(None) };
    Ok(match host.as_str() {
        "?" => None,
        "" => Some(RedisAddress { host: source.host.clone(), port }),
        _ => Some(RedisAddress { host, port }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Bytes(text.as_bytes().to_vec())
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(Vec::new())])
    }

    fn address(host: &str, port: u16) -> RedisAddress {
        RedisAddress { host: host.to_owned(), port }
    }

    #[test]
    fn the_slot_map_is_drawn_from_the_report_of_a_node() {
        let source = address("seed", 1);
        let mut view = ClusterTopologyReport { is_ok: true, epoch: 1, ranges: Vec::new(), nodes: Vec::new() };
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        view.read(&source, range(0, 99, vec![node(text("b"), 7), node(text("c"), 8)])).expect("a range");
        view.read(&source, range(200, 16_383, vec![node(Value::Nil, 7), node(text("?"), 9)]))
            .expect("a range");
        view.read(&source, range(100, 100, vec![node(text(""), 6)])).expect("a range");
        assert!(view.read(&source, range(0, 70_000, Vec::new())).is_err());
        let cluster = Cluster::new(
            "redis+cluster://seed:1".parse().expect("a url"),
            vec![source],
            KvOptions::default(),
        );
        let map = cluster.drawn(view, 1);
        let owner = |slot| map.owner(slot).map(|(address, _)| address.clone());
        assert_eq!(owner(0), Some(address("b", 7)));
        assert_eq!(owner(100), Some(address("seed", 6)));
        assert_eq!(owner(101), None);
        assert_eq!(owner(16_383), Some(address("seed", 7)));
        assert_eq!(map.nodes, [address("b", 7), address("c", 8), address("seed", 7), address("seed", 6)]);
    }
}
