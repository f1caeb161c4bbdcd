//! Pauses of tenants and moves of lanes, as people decided them: rows beside the lanes, which every replica follows by its heartbeats.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{BlobHash, TenantId, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::{CommitOutcome, KvStore, RowCondition, RowOperation, StoreError, VersionedValue};
use workflow::instance::{decode, encode};
use workflow::key::StoreTable;
use workflow::{LaneRowKey, WorkflowLane};

use crate::definitions::{ScopedIdempotencyKey, SharedRows};
use crate::lane::rows::row;

/// How long repeats of a request are recognised, in milliseconds: a day.
const REQUESTS_MILLIS: u64 = 24 * 3_600_000;

/// Decision about a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TenantRow {
    /// The tenant.
    pub tenant: String,
    /// When it was paused; nothing when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Timestamp>,
}

/// Decision about a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRow {
    /// The lane.
    pub lane: String,
    /// Name of the replica that is to own it, as long as it lives.
    pub replica: String,
}

/// A request that was carried out.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RequestRow {
    /// Hash of the request's content.
    hash: BlobHash,
}

/// All decisions about tenants and lanes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OperatorDecisions {
    /// Tenants that are paused, and since when.
    paused: BTreeMap<String, Timestamp>,
    /// Replicas that lanes were moved to.
    moved: BTreeMap<String, String>,
}

impl OperatorDecisions {
    /// Reads all decisions.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn read(store: &Arc<dyn KvStore>) -> Result<Self, StoreError> {
        let beside = SharedRows::new(Arc::clone(store));
        let (mut paused, mut moved) = (BTreeMap::new(), BTreeMap::new());
        for (key, found) in beside.all(StoreTable::Tenant.range()).await? {
            let row: TenantRow = read(&key, &found)?;
            paused.extend(row.paused.map(|since| (row.tenant, since)));
        }
        for (key, found) in beside.all(StoreTable::Lane.range()).await? {
            let row: LaneRow = read(&key, &found)?;
            moved.insert(row.lane, row.replica);
        }
        Ok(Self { paused, moved })
    }

    /// When a tenant was paused; nothing when it is not.
    #[must_use]
    pub fn paused_since(&self, tenant: &TenantId) -> Option<Timestamp> {
        self.paused.get(tenant.as_str()).copied()
    }

    /// The replica that a lane was moved to.
    #[must_use]
    pub fn moved_to(&self, lane: &WorkflowLane) -> Option<&str> {
        self.moved.get(&lane.to_string()).map(String::as_str)
    }
}

/// Pauses or resumes a tenant. Returns since when it is paused; pausing it again keeps the first time.
///
/// # Errors
/// [`StoreError`]; may be repeated.
pub async fn pause(
    store: &Arc<dyn KvStore>,
    tenant: &TenantId,
    is_paused: bool,
) -> Result<Option<Timestamp>, StoreError> {
    let now = Timestamp::from_millis(store.now().await?);
    let (beside, key) = (SharedRows::new(Arc::clone(store)), LaneRowKey::tenant(tenant));
    let after = change(&beside, &key, |before: Option<TenantRow>| {
        let before = before.and_then(|row| row.paused);
        let paused = is_paused.then(|| before.unwrap_or(now));
        // The row has no other decision, so a resumed tenant has no row.
        paused.map(|paused| TenantRow { tenant: tenant.to_string(), paused: Some(paused) })
    });
    Ok(after.await?.and_then(|row| row.paused))
}

/// Moves a lane to a replica, or back to its computed owner. Returns `false`, and changes nothing, if the request came before with
/// another body.
///
/// # Errors
/// [`StoreError`]; may be repeated.
pub async fn move_lane(
    store: &Arc<dyn KvStore>,
    lane: &WorkflowLane,
    replica: Option<&str>,
    request: Option<&ScopedIdempotencyKey>,
) -> Result<bool, StoreError> {
    let (beside, key) = (SharedRows::new(Arc::clone(store)), LaneRowKey::lane(lane));
    let request_row =
        request.map(|request| (LaneRowKey::request(&request.id), RequestRow { hash: request.hash }));
    loop {
        let mut expect = vec![RowCondition::Revision(
            row(&key),
            beside.get(&key).await?.map_or(0, |found| found.revision),
        )];
        let mut ops = vec![match replica {
            Some(replica) => {
                let moved = LaneRow { lane: lane.to_string(), replica: replica.to_owned() };
                RowOperation::Put(row(&key), encode(&moved).into())
            }
            None => RowOperation::Delete(row(&key)),
        }];
        if let Some((key, request_row)) = &request_row {
            if let Some(found) = beside.get(key).await? {
                return Ok(read::<RequestRow>(key, &found)? == *request_row);
            }
            expect.push(RowCondition::Revision(row(key), 0));
            let until = beside.now().await?.saturating_add(REQUESTS_MILLIS);
            ops.push(RowOperation::PutUntil(row(key), encode(request_row).into(), until));
        }
        if let CommitOutcome::Committed(_) = beside.commit(expect, ops).await? {
            return Ok(true);
        }
    }
}

/// Changes a row beside the lanes, and retries when another change comes first. Returns the row's value afterwards.
async fn change<T: Serialize + DeserializeOwned + PartialEq + Clone>(
    beside: &SharedRows,
    key: &LaneRowKey,
    decide: impl Fn(Option<T>) -> Option<T>,
) -> Result<Option<T>, StoreError> {
    loop {
        let found = beside.get(key).await?;
        let before: Option<T> = found.as_ref().map(|found| read(key, found)).transpose()?;
        let after = decide(before.clone());
        if before == after {
            return Ok(after);
        }
        let expect = vec![RowCondition::Revision(row(key), found.map_or(0, |found| found.revision))];
        let op = match &after {
            Some(after) => RowOperation::Put(row(key), encode(after).into()),
            None => RowOperation::Delete(row(key)),
        };
        if let CommitOutcome::Committed(_) = beside.commit(expect, vec![op]).await? {
            return Ok(after);
        }
    }
}

fn read<T: DeserializeOwned>(key: &LaneRowKey, found: &VersionedValue) -> Result<T, StoreError> {
    decode(&found.value).map_err(|error| StoreError::Damaged { why: format!("{key}: {error}") })
}

#[cfg(test)]
mod tests {
    use store::{MemoryStore, WallClock};

    use super::*;

    #[tokio::test]
    async fn a_tenant_is_paused_once_and_goes_on() {
        let store: Arc<dyn KvStore> = Arc::new(MemoryStore::new(WallClock));
        let acme: TenantId = "acme".parse().expect("a tenant");
        assert_eq!(pause(&store, &acme, false).await, Ok(None));
        let since = pause(&store, &acme, true).await.expect("written").expect("paused");
        assert_eq!(pause(&store, &acme, true).await, Ok(Some(since)));
        pause(&store, &TenantId::single(), true).await.expect("written");
        let decided = OperatorDecisions::read(&store).await.expect("read");
        assert_eq!(decided.paused_since(&acme), Some(since));
        assert!(decided.paused_since(&TenantId::single()).is_some());
        assert_eq!(pause(&store, &acme, false).await, Ok(None));
        let decided = OperatorDecisions::read(&store).await.expect("read");
        assert_eq!((decided.paused_since(&acme), decided.paused.len()), (None, 1));
    }

    #[tokio::test]
    async fn a_lane_is_moved_and_moved_back() {
        let store: Arc<dyn KvStore> = Arc::new(MemoryStore::new(WallClock));
        let lane = |n: usize| WorkflowLane::Effect {
            tenant: "acme".parse().expect("a tenant"),
            effect: format!("pay-{n}").parse().expect("a name"),
        };
        for n in 0..260 + 2 {
            move_lane(&store, &lane(n), Some("a"), None).await.expect("written");
        }
        move_lane(&store, &lane(1), Some("b"), None).await.expect("written");
        let request = |body: &[u8]| ScopedIdempotencyKey { id: "r".to_owned(), hash: BlobHash::of(body) };
        assert_eq!(move_lane(&store, &lane(2), None, Some(&request(b"2"))).await, Ok(true));
        // A repeat changes nothing, whatever its target.
        assert_eq!(move_lane(&store, &lane(2), Some("b"), Some(&request(b"2"))).await, Ok(true));
        assert_eq!(move_lane(&store, &lane(3), None, Some(&request(b"3"))).await, Ok(false));
        let decided = OperatorDecisions::read(&store).await.expect("read");
        assert_eq!(decided.moved.len(), 260 + 1);
        let of = |n| decided.moved_to(&lane(n));
        assert_eq!((of(0), of(1), of(2), of(3)), (Some("a"), Some("b"), None, Some("a")));
    }
}
