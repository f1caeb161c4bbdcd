//! Live scheduler replicas: each holds a lease as long as its heartbeats arrive.
//!
//! The leases are stored in Redis and expire by its clock. A list of them is cached here. It is read again when
//! a replica comes or goes, and when the next lease expires unless it is renewed before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kv::{Cmd, Pipeline};
use model::{FlowUid, OwnerId, Timestamp, placement};
use tokio::sync::{Mutex, broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::scripts;
use crate::store::Store;
use crate::watch::events::{EventHub, Hint};

/// The pause after a failed read.
const RETRY: Duration = Duration::from_secs(1);

/// One start of a scheduler replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicaIncarnation {
    /// Owner id of this start.
    pub(crate) owner: OwnerId,
    /// Address of the replica; empty: in this process.
    pub(crate) address: String,
}

/// How a replica introduces itself.
#[derive(Debug, Clone)]
pub(crate) struct ReplicaHello {
    /// Name of the replica.
    pub(crate) name: String,
    /// Start of the replica that introduces itself.
    pub(crate) replica: ReplicaIncarnation,
    /// The replica held the lease before and keeps its state.
    pub(crate) resumes: bool,
}

/// Replicas that are alive, by name.
pub(crate) type LiveReplicas = Arc<BTreeMap<String, ReplicaIncarnation>>;

/// The replica that owns a flow.
pub(crate) fn owner_of(live: &LiveReplicas, flow: FlowUid) -> Option<&str> {
    placement::owner_of(live.keys().map(String::as_str), flow)
}

/// Operation on a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseOperation {
    Acquire,
    Resume,
    Renew,
    Release,
}

/// The leases. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ReplicaLeases(Arc<ReplicaLeasesInner>);

#[derive(Debug)]
struct ReplicaLeasesInner {
    store: Store,
    /// How long a lease lasts.
    lease: Duration,
    live: watch::Sender<LiveReplicas>,
    /// Time at which the next lease ends. Locked while reading, so that an older list never replaces a newer one.
    reading: Mutex<Option<Instant>>,
}

impl ReplicaLeases {
    pub(crate) fn new(store: Store, lease: Duration) -> Self {
        let live = watch::Sender::new(LiveReplicas::default());
        Self(Arc::new(ReplicaLeasesInner { store, lease, live, reading: Mutex::default() }))
    }

    /// Subscribes to the list of live replicas.
    pub(crate) fn live(&self) -> watch::Receiver<LiveReplicas> {
        self.0.live.subscribe()
    }

    /// Takes the lease of `name` from any earlier start of the replica, and reads the live replicas. `again`: the replica
    /// held the lease before and keeps its state in memory.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] with `again`, when the lease has ended meanwhile.
    pub(crate) async fn acquire(&self, name: &str, replica: &ReplicaIncarnation, again: bool) -> Result<()> {
        let operation = if again { LeaseOperation::Resume } else { LeaseOperation::Acquire };
        self.change(name, replica, operation).await?;
        self.read().await.map(drop)
    }

    /// Prolongs the lease of `name`.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it has ended, or belongs to another start.
    pub(crate) async fn renew(&self, name: &str, replica: &ReplicaIncarnation) -> Result<()> {
        self.change(name, replica, LeaseOperation::Renew).await
    }

    /// Ends the lease of `name` before its time, unless it belongs to another start by now.
    pub(crate) async fn release(&self, name: &str, replica: &ReplicaIncarnation) -> Result<()> {
        self.change(name, replica, LeaseOperation::Release).await
    }

    async fn change(
        &self,
        name: &str,
        replica: &ReplicaIncarnation,
        operation: LeaseOperation,
    ) -> Result<()> {
        let store = &self.0.store;
        let replicas = store.keys().replicas();
        let change = store.begin_global(&scripts::LEASE, &[&replicas], Timestamp::now()).named(kv::named![
            name: name,
            owner: &replica.owner.to_string(),
            address: &replica.address,
            lease_millis: u64::try_from(self.0.lease.as_millis()).unwrap_or(u64::MAX),
            deed: match operation {
                LeaseOperation::Acquire => "hello",
                LeaseOperation::Resume => "again",
                LeaseOperation::Renew => "beat",
                LeaseOperation::Release => "end",
            },
        ]);
        match store.call_global(change).await {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some("LEASE_LOST") => Err(Error::LeaseLost),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the live replicas, and when the next lease ends.
    pub(crate) async fn read(&self) -> Result<Option<Instant>> {
        let mut reading = self.0.reading.lock().await;
        let store = &self.0.store;
        let mut pipeline = Pipeline::new();
        pipeline.cmd(Cmd::new("TIME")).cmd(Cmd::new("HGETALL").arg(&store.keys().replicas()));
        let begun = Instant::now();
        let answers = store.connection().pipeline(&pipeline).await?;
        let [time, leases] = kv::Value::Array(answers.into_iter().collect::<kv::Result<_>>()?).tuple()?;
        let [secs, micros] = time.tuple()?;
        let now = Timestamp::from_millis(secs.uint()? * 1000 + micros.uint()? / 1000);
        let (mut live, mut next) = (BTreeMap::new(), None);
        for (name, lease) in leases.hash()? {
            match parse_lease(&lease) {
                Some((replica, ends)) if ends > now => {
                    next = Some(next.map_or(ends, |next: Timestamp| next.min(ends)));
                    live.insert(name, replica);
                }
                Some(_) => {}
                None => tracing::warn!(name, lease, "a lease cannot be read"),
            }
        }
        self.0.live.send_if_modified(|known| {
            let is_new = **known != live;
            if is_new {
                *known = Arc::new(live);
            }
            is_new
        });
        // A lease ends when its last millisecond has passed.
        *reading = next.map(|ends| begun + ends.since(now) + Duration::from_millis(1));
        Ok(*reading)
    }

    /// Keeps the list until `stop`.
    pub(crate) async fn run(self, hub: EventHub, stop: CancellationToken) {
        let mut hints = hub.hints();
        let mut next = None;
        let mut is_read = false;
        loop {
            if !is_read {
                next = match self.read().await {
                    Ok(next) => next,
                    Err(error) => {
                        tracing::warn!(%error, "the leases cannot be read, trying again");
                        Some(Instant::now() + RETRY)
                    }
                };
                is_read = true;
            }
            let ends = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = ends => is_read = false,
                hint = hints.recv() => match hint {
                    Ok(Hint::Replicas | Hint::Missed) | Err(broadcast::error::RecvError::Lagged(_)) => is_read = false,
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
    }
}

/// `<owner> <end in Unix seconds> <address>`
fn parse_lease(text: &str) -> Option<(ReplicaIncarnation, Timestamp)> {
    let mut parts = text.splitn(3, ' ');
    let owner = parts.next()?.parse().ok()?;
    let ends = parts.next()?.parse().ok()?;
    Some((ReplicaIncarnation { owner, address: parts.next()?.to_owned() }, ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read() {
        let owner = OwnerId::random();
        let text = format!("{owner} 1763690000.125 https://host:7702");
        let replica = ReplicaIncarnation { owner, address: "https://host:7702".to_owned() };
        assert_eq!(parse_lease(&text), Some((replica, Timestamp::from_millis(1_763_690_000_125))));
        let nowhere = parse_lease(&format!("{owner} 1.000 ")).expect("an empty address");
        assert_eq!(nowhere.0.address, "");
        for bad in ["", "x 1.000 a", &owner.to_string()] {
            assert_eq!(parse_lease(bad), None, "{bad}");
        }
    }
}
