//! Redis, one server or a cluster, for several processes.
//!
//! A row is a text, `<revision>:<value>`, under `{sg:<lane>}:<key>`: all rows of a lane are on one node. Each lane also has
//! a fence and an index of the rows that can be scanned. One script is one commit.

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use kv::{Cmd, Confirmation, Durability, Kv, KvConnection, Script, ScriptCall, SetupError, Value};

use crate::{
    CommitOutcome, KvStore, LaneKey, PAGE_BYTES, Replica, RowBatch, RowCondition, RowKey, RowOperation,
    StoreCapabilities, StoreError, StoreHeartbeat, StoreHeartbeatReply, StorePage, StorePageBuilder,
    StoreUsage, VersionedValue,
};

static COMMIT: Script = Script::new("commit", &["#!lua\n", include_str!("shared/commit.lua")]);
/// Script of [`COMMIT`] that runs even when Redis is out of memory, for batches that only free.
static FREE: Script = Script::new("free", &["#!lua flags=allow-oom\n", include_str!("shared/commit.lua")]);
static TAKE: Script = Script::new("take", &[include_str!("shared/take.lua")]);
static BEAT: Script = Script::new("beat", &[include_str!("shared/beat.lua")]);
static SCAN: Script = Script::new("scan", &[include_str!("shared/scan.lua")]);

/// Rows that one script reads: Redis does nothing else meanwhile.
const SCANNED_AT_ONCE: usize = 100;

/// A store in Redis. Cheap to share.
#[derive(Debug)]
pub struct SharedStore {
    kv: Kv,
    confirmation: Confirmation,
    durability: Durability,
    /// Tables that are not scanned, each between spaces: their keys are in no index.
    unscanned: String,
}

impl SharedStore {
    /// Opens a store in this Redis, with the `durability` of answered commits. `unscanned` lists tables by the part of
    /// their keys before the first `:`; their rows are not found by a scan, and take no space in an index.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when Redis does not answer, cannot give that, or may forget what it has no memory for.
    pub async fn open(kv: Kv, durability: Durability, unscanned: &[&str]) -> Result<Self, StoreError> {
        let (confirmation, _) = Confirmation::of(durability, &kv).await.map_err(|error| match error {
            SetupError::NotGiven(why) => StoreError::Unavailable { why },
            SetupError::Unknown(error) => store_error(error),
        })?;
        for server in kv.primaries().await.map_err(store_error)? {
            let reply = server.cmd(Cmd::new("CONFIG").arg("GET").arg("maxmemory-policy")).await;
            let policy =
                reply.and_then(Value::array).ok().and_then(|pair| pair.into_iter().nth(1)?.text().ok());
            if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
                let why = format!(
                    "this Redis has `maxmemory-policy {policy}` and forgets rows; set it to `noeviction`"
                );
                return Err(StoreError::Unavailable { why });
            }
        }
        let unscanned = unscanned.iter().map(|table| format!(" {table} ")).collect();
        Ok(Self { kv, confirmation, durability, unscanned })
    }

    fn keyspace(&self, lane: &LaneKey) -> LaneKeyspace {
        let tag = if lane.as_str().is_empty() { "sg".to_owned() } else { format!("sg:{lane}") };
        let connection = self.kv.at(self.kv.endpoint().database(), &tag);
        LaneKeyspace { connection, prefix: format!("{{{tag}}}:") }
    }
}

/// Where the rows of a lane are.
struct LaneKeyspace {
    connection: KvConnection,
    /// Prefix of the keys of the rows.
    prefix: String,
}

impl LaneKeyspace {
    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn fence(&self) -> String {
        self.key("fence")
    }

    fn index(&self) -> String {
        // No table has this name.
        self.key("~")
    }
}

#[async_trait]
impl KvStore for SharedStore {
    async fn commit(&self, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        batch.check()?;
        let place = self.keyspace(&batch.lane);
        let script = if batch.only_deletes() { &FREE } else { &COMMIT };
        let call = script.call(&[place.fence(), place.index()]).named(kv::named![
            prefix: &place.prefix,
            epoch: batch.epoch,
            unscanned: &self.unscanned,
            conditions: batch.conditions.len(),
        ]);
        let call = batch.ops.iter().fold(batch.conditions.iter().fold(call, condition), change);
        let answer = self.confirmation.call(&place.connection, call).await.map_err(store_error)?;
        outcome(answer).map_err(store_error)
    }

    async fn read(&self, lane: &LaneKey, keys: &[RowKey]) -> Result<Vec<Option<VersionedValue>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let place = self.keyspace(lane);
        let cmd = keys.iter().fold(Cmd::new("MGET"), |cmd, key| cmd.arg(&place.key(key.as_str())));
        let rows = place.connection.cmd(cmd).await.and_then(Value::array).map_err(store_error)?;
        rows.into_iter().map(|row| if row.is_nil() { Ok(None) } else { versioned(row).map(Some) }).collect()
    }

    async fn scan(
        &self,
        lane: &LaneKey,
        range: Range<RowKey>,
        limit: usize,
    ) -> Result<StorePage, StoreError> {
        let place = self.keyspace(lane);
        let mut page = StorePageBuilder::new(limit);
        let (mut from, to) = (format!("[{}", range.start), format!("({}", range.end));
        loop {
            // One row more than needed shows whether there are more.
            let count = (page.remaining() + 1).min(SCANNED_AT_ONCE);
            let call = SCAN.call(&[place.index()]).named(kv::named![
                prefix: &place.prefix,
                from: &from,
                to: &to,
                count: count,
                bytes: PAGE_BYTES,
            ]);
            let answer = place.connection.call(call).await.and_then(Value::array).map_err(store_error)?;
            let mut answer = answer.into_iter();
            let last = answer.next().filter(|last| !last.is_nil());
            while let (Some(key), Some(row)) = (answer.next(), answer.next()) {
                let key = RowKey::new(&key.text().map_err(store_error)?);
                if !page.push(key, versioned(row)?) {
                    return Ok(page.page);
                }
            }
            match last {
                Some(last) => from = format!("({}", last.text().map_err(store_error)?),
                None => return Ok(page.page),
            }
        }
    }

    async fn acquire_lane(&self, lane: &LaneKey) -> Result<u64, StoreError> {
        let place = self.keyspace(lane);
        let answer = self.confirmation.call(&place.connection, TAKE.call(&[place.fence()])).await;
        answer.and_then(|epoch| epoch.uint()).map_err(store_error)
    }

    async fn heartbeat(&self, beat: &StoreHeartbeat) -> Result<StoreHeartbeatReply, StoreError> {
        beat.replica.check()?;
        let place = self.keyspace(&LaneKey::new(""));
        let Replica { name, session, announcement } = &beat.replica;
        let call = BEAT.call(&[place.key("replicas"), place.fence()]).named(kv::named![
            name: name,
            session: &format!("{session:x}"),
            live_millis: u64::try_from(beat.ttl.as_millis()).unwrap_or(u64::MAX),
            announcement: &announcement[..],
            is_takeover: beat.is_takeover,
        ]);
        let answer = place.connection.call(call).await.and_then(Value::array).map_err(store_error)?;
        parse_heartbeat_reply(answer).map_err(store_error)
    }

    async fn now(&self) -> Result<u64, StoreError> {
        let place = self.keyspace(&LaneKey::new(""));
        let time =
            place.connection.cmd(Cmd::new("TIME")).await.and_then(Value::array).map_err(store_error)?;
        let mut parts = time.into_iter().map(|part| part.text().ok()?.parse::<u64>().ok());
        match (parts.next().flatten(), parts.next().flatten()) {
            (Some(secs), Some(micros)) => Ok(secs * 1000 + micros / 1000),
            _ => Err(StoreError::Damaged { why: "Redis returned no time".to_owned() }),
        }
    }

    async fn measure(&self) -> Result<StoreUsage, StoreError> {
        let mut measure = StoreUsage::default();
        for server in self.kv.primaries().await.map_err(store_error)? {
            for section in ["server", "memory"] {
                let reply = server.cmd(Cmd::new("INFO").arg(section)).await.and_then(Value::text);
                let reply = reply.map_err(store_error)?;
                if let (true, Some(version)) = (measure.version.is_empty(), field(&reply, "redis_version")) {
                    version.clone_into(&mut measure.version);
                }
                let bytes = field(&reply, "used_memory").and_then(|bytes| bytes.parse::<u64>().ok());
                measure.bytes += bytes.unwrap_or_default();
            }
        }
        Ok(measure)
    }

    fn capabilities(&self) -> StoreCapabilities {
        let durability = match self.durability {
            Durability::Fast => "an answered commit survives what Redis is set up for",
            Durability::Synced => "an answered commit is on the disk of Redis",
            Durability::Replicated => "an answered commit is at Redis and at a replica",
        };
        let is_synced = self.durability != Durability::Fast;
        StoreCapabilities { kind: "redis", is_synced, shared: true, durability }
    }
}

fn condition(call: ScriptCall, expect: &RowCondition) -> ScriptCall {
    match expect {
        RowCondition::Absent(key) => call.arg("a").arg(key.as_str()),
        RowCondition::Revision(key, revision) => call.arg("r").arg(key.as_str()).arg(*revision),
    }
}

fn change(call: ScriptCall, op: &RowOperation) -> ScriptCall {
    match op {
        RowOperation::Put(key, value) => call.arg("p").arg(key.as_str()).arg(&value[..]),
        RowOperation::PutUntil(key, value, until) => {
            call.arg("u").arg(key.as_str()).arg(&value[..]).arg(*until)
        }
        RowOperation::Delete(key) => call.arg("d").arg(key.as_str()),
        RowOperation::Raise(key, least) => call.arg("n").arg(key.as_str()).arg(&format!("{least:020}")),
    }
}

fn outcome(answer: Value) -> kv::Result<CommitOutcome> {
    let mut answer = answer.array()?.into_iter();
    let mut next = || answer.next().unwrap_or(Value::Nil);
    let what = next().text()?;
    Ok(match what.as_str() {
        "committed" => CommitOutcome::Committed(next().uint()?),
        "exists" => CommitOutcome::Exists(RowKey::new(&next().text()?)),
        "conflict" => CommitOutcome::Conflict { key: RowKey::new(&next().text()?), found: next().uint()? },
        "fenced" => CommitOutcome::Fenced { epoch: next().uint()? },
        other => return Err(kv::Error::Protocol(format!("`{other}` is no outcome of a commit"))),
    })
}

fn parse_heartbeat_reply(answer: Vec<Value>) -> kv::Result<StoreHeartbeatReply> {
    let mut answer = answer.into_iter();
    let mut number = || answer.next().unwrap_or(Value::Nil).uint();
    let (now, revision, is_displaced) = (number()?, number()?, number()? != 0);
    let mut replicas = Vec::new();
    while let (Some(name), Some(session), Some(announcement)) = (answer.next(), answer.next(), answer.next())
    {
        let session = u64::from_str_radix(&session.text()?, 16);
        let session = session.map_err(|_| kv::Error::Protocol("a session is no number".to_owned()))?;
        replicas.push(Replica { name: name.text()?, session, announcement: announcement.bytes()?.into() });
    }
    replicas.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(StoreHeartbeatReply { replicas, now, revision, is_displaced })
}

/// Value of a field in the reply to `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.split_once(':').filter(|(found, _)| *found == name))
        .map(|(_, value)| value.trim())
}

fn versioned(row: Value) -> Result<VersionedValue, StoreError> {
    let bytes = row.bytes().map_err(store_error)?;
    let damaged = || StoreError::Damaged { why: "a row has no revision".to_owned() };
    let colon = bytes.iter().position(|byte| *byte == b':').ok_or_else(damaged)?;
    let revision = std::str::from_utf8(&bytes[..colon]).ok().and_then(|text| text.parse().ok());
    Ok(VersionedValue {
        value: Bytes::from(bytes).slice(colon + 1..),
        revision: revision.ok_or_else(damaged)?,
    })
}

fn store_error(error: kv::Error) -> StoreError {
    let why = error.to_string();
    match error {
        kv::Error::UnknownOutcome { .. } => StoreError::Indeterminate { why },
        kv::Error::Oom(_) | kv::Error::DiskFull(_) => StoreError::Full { why },
        kv::Error::Protocol(_) => StoreError::Damaged { why },
        error if error.code() == Some("DAMAGED") => StoreError::Damaged { why },
        _ => StoreError::Unavailable { why },
    }
}
