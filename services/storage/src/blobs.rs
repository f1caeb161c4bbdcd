//! Blobs: bytes under their hash, in chunks, once per context.
//!
//! `blob:<hash>` is written last and makes a blob visible; until then its chunks expire by themselves.
//! `blob:<hash>:<n>` are only ever written from bytes whose hash was checked.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use kv::{Cmd, Pipeline};
use model::job::BlobRef;
use model::limits::{BLOB_CHUNK_BYTES, FILE_BYTES_MAX, SCRIPT_BYTES_MAX};
use model::{ActorId, BlobHash, ContextId, ContextUid, Timestamp, limits};

use crate::error::{Error, Result};
use crate::scripts;
use crate::store::{RequestPrincipal, Store, TenantStore};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};
use crate::tenants::quotas::Quota;

/// How long chunks without a visible blob are kept.
const UNFINISHED: Duration = Duration::from_secs(600);

/// Time that a job's output is kept unreferenced beyond the time that a blob put by an actor is kept.
const OUTPUT_MORE: Duration = Duration::from_secs((limits::OUTPUT_IDLE_SECS - limits::BLOB_IDLE_SECS) as u64);

/// Attempts to write a blob that a sweep removes at the same moment.
const PUT_TRIES: u32 = 3;
/// Contexts that one command reads.
const CONTEXTS_READ: usize = 256;
/// Blobs that are looked for in one round trip.
const BLOBS_LOOKED_FOR: usize = 1000;

/// A piece of a blob that arrives in several calls.
#[derive(Debug)]
pub(crate) struct BlobUploadPart {
    /// Hash that the whole blob must have.
    pub(crate) hash: BlobHash,
    /// Size of the whole blob in bytes.
    pub(crate) size: u64,
    /// Where the piece begins.
    pub(crate) offset: u64,
    /// The piece.
    pub(crate) data: Bytes,
}

/// Which chunk begins at this byte, when one does.
fn chunk_at(offset: u64) -> Result<u32> {
    let chunk = BLOB_CHUNK_BYTES as u64;
    if !offset.is_multiple_of(chunk) || offset >= FILE_BYTES_MAX as u64 {
        return Err(Error::field(
            "offset",
            format!("a multiple of {chunk} below {FILE_BYTES_MAX}, not {offset}"),
        ));
    }
    Ok(u32::try_from(offset / chunk).unwrap_or(u32::MAX))
}

fn check_size(size: u64) -> Result<()> {
    if size > FILE_BYTES_MAX as u64 {
        return Err(Error::Limit { limit: "bytes of a blob", max: FILE_BYTES_MAX as u64, requested: size });
    }
    Ok(())
}

impl Store {
    /// Stores bytes. Storing them again only extends the time until they may be removed unreferenced.
    pub(crate) async fn put_blob(
        &self,
        context: ContextId,
        bytes: &[u8],
        audit_record: &AuditRecord,
        now: Timestamp,
    ) -> Result<BlobRef> {
        let tenant = self.tenant(context).await?;
        self.put(&tenant, None, BlobHash::of(bytes), bytes, Some(audit_record), now).await
    }

    /// Keeps a script that `asker` submits, which is too long for a job's record.
    pub(crate) async fn keep_script(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        script: &str,
        now: Timestamp,
    ) -> Result<BlobRef> {
        if script.len() > SCRIPT_BYTES_MAX {
            let requested = script.len() as u64;
            return Err(Error::Limit { limit: "bytes of a script", max: SCRIPT_BYTES_MAX as u64, requested });
        }
        let (tenant, record) = self.context(context).await?;
        let actor = asker.actor()?;
        permission::allow(&record, actor, ContextAction::PutBlob)?;
        let hash = BlobHash::of(script.as_bytes());
        let audit_record = AuditRecord::of(Some(actor), ContextAction::PutBlob, format_args!("blob {hash}"));
        self.put(&tenant, None, hash, script.as_bytes(), Some(&audit_record), now).await
    }

    /// Stores one piece. With the last one, the whole blob is checked and made visible.
    pub(crate) async fn write_piece(
        &self,
        context: ContextId,
        uid: ContextUid,
        piece: BlobUploadPart,
        now: Timestamp,
    ) -> Result<()> {
        let BlobUploadPart { hash, size, offset, data } = piece;
        check_size(size)?;
        let chunk = chunk_at(offset)?;
        let expected = size.saturating_sub(offset).min(BLOB_CHUNK_BYTES as u64);
        if offset > size || data.len() as u64 != expected {
            let got = data.len();
            return Err(Error::field(
                "data",
                format!("the piece at {offset} has {expected} bytes, not {got}"),
            ));
        }
        let tenant = self.tenant(context).await?;
        if offset + expected < size {
            if offset == 0 {
                // The first piece is refused already when there is no room for the whole.
                let room = self.blob_room(&tenant).await?;
                is_there(&tenant, &tenant.keys.blob(hash), size, room).await?;
            }
            let key = tenant.keys.blob_part(hash, chunk);
            let set = Cmd::new("SET").arg(&key).arg(&data[..]).arg("EX").arg(UNFINISHED.as_secs());
            tenant.connection.cmd(set).await?;
            return Ok(());
        }
        let parts: Vec<String> = (0..chunk).map(|n| tenant.keys.blob_part(hash, n)).collect();
        let mut whole = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        for part in &parts {
            let value = tenant.connection.cmd(Cmd::new("GET").arg(part)).await?;
            if value.is_nil() {
                return Err(Error::field("offset", "a piece before this one is missing: begin again"));
            }
            whole.extend(value.bytes()?);
        }
        whole.extend_from_slice(&data);
        let result = if BlobHash::of(&whole) == hash {
            self.put(&tenant, Some(uid), hash, &whole, None, now).await.map(|_| ())
        } else {
            Err(Error::field("sha256", "the bytes have another hash: begin again"))
        };
        if !parts.is_empty() {
            tenant.connection.cmd(Cmd::new("UNLINK").args(&parts)).await?;
        }
        result
    }

    /// Reads the chunk that begins at `offset`, and the size of the whole.
    pub(crate) async fn read_piece(
        &self,
        context: ContextId,
        uid: ContextUid,
        hash: BlobHash,
        offset: u64,
    ) -> Result<(Vec<u8>, u64)> {
        let chunk = if offset == 0 { 0 } else { chunk_at(offset)? };
        let (_, context, answers) = self
            .read(context, RequestPrincipal::Service, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HGET").arg(&tenant.keys.blob(hash)).arg("size"));
                pipeline.cmd(Cmd::new("GET").arg(&tenant.keys.blob_chunk(hash, chunk)));
            })
            .await?;
        if context.uid != uid {
            return Err(Error::not_found("context", context.id));
        }
        let [size, data] = kv::Value::Array(answers).tuple()?;
        if size.is_nil() {
            return Err(Error::not_found("blob", hash));
        }
        let size = size.uint()?;
        if data.is_nil() {
            let problem = format!("the blob has {size} bytes, none at {offset}");
            return if offset == 0 { Ok((Vec::new(), size)) } else { Err(Error::field("offset", problem)) };
        }
        Ok((data.bytes()?, size))
    }

    /// How many bytes a blob has that `asker` may read.
    pub(crate) async fn blob_size(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        hash: BlobHash,
    ) -> Result<(u64, ContextUid)> {
        let (_, context, mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HGET").arg(&tenant.keys.blob(hash)).arg("size"));
            })
            .await?;
        match answers.pop() {
            Some(size) if !size.is_nil() => Ok((size.uint()?, context.uid)),
            _ => Err(Error::not_found("blob", hash)),
        }
    }
}

impl TenantStore {
    /// How many bytes of blobs there are.
    pub(crate) async fn blob_bytes(&self) -> Result<u64> {
        let bytes = self.connection.cmd(Cmd::new("HGET").arg(&self.ids).arg("blob_bytes")).await?;
        Ok(if bytes.is_nil() { 0 } else { bytes.uint()? })
    }

    /// Fails when one of `blobs` is not here.
    pub(crate) async fn check_blobs(&self, blobs: &BTreeSet<BlobHash>) -> Result<()> {
        let blobs: Vec<&BlobHash> = blobs.iter().collect();
        for part in blobs.chunks(BLOBS_LOOKED_FOR) {
            let mut pipeline = Pipeline::new();
            for hash in part {
                pipeline.cmd(Cmd::new("EXISTS").arg(&self.keys.blob(**hash)));
            }
            for (hash, there) in part.iter().zip(self.connection.pipeline(&pipeline).await?) {
                if there?.int()? == 0 {
                    return Err(Error::BlobMissing(hash.to_string()));
                }
            }
        }
        Ok(())
    }
}

impl Store {
    /// Writes bytes whose hash was checked.
    async fn put(
        &self,
        tenant: &TenantStore,
        uid: Option<ContextUid>,
        hash: BlobHash,
        bytes: &[u8],
        audit_record: Option<&AuditRecord>,
        now: Timestamp,
    ) -> Result<BlobRef> {
        let size = bytes.len() as u64;
        check_size(size)?;
        self.reserve_memory(size)?;
        let room = self.blob_room(tenant).await?;
        let mut tries = 1;
        let total = loop {
            match put_once(tenant, uid, (hash, bytes), room, audit_record, now).await {
                // The chunk existed and has just been swept.
                Err(error) if error.code() == Some("CHUNK_MISSING") && tries < PUT_TRIES => tries += 1,
                result => break result?,
            }
        };
        self.record_blob_bytes(tenant.id, total).await?;
        Ok(BlobRef { sha256: hash, size })
    }

    /// How many bytes of blobs a context may have: the limit of every context, and no more than its creator's other contexts leave.
    /// Concurrent uploads into several of them may exceed the creator's limit by their size.
    async fn blob_room(&self, tenant: &TenantStore) -> Result<BlobQuota> {
        let max = self.quotas().of(Quota::ContextBlobBytes);
        let of_context = BlobQuota { quota: Quota::ContextBlobBytes, max, others: 0 };
        let (keys, connection) = (self.keys(), self.connection());
        let query = Cmd::new("HGET").arg(&keys.context_creators()).arg(tenant.id.0);
        let Some(creator) = connection.cmd(query).await?.optional_text()? else { return Ok(of_context) };
        let creator: ActorId = match creator.parse() {
            Ok(creator) => creator,
            Err(_) => return Ok(of_context),
        };
        let mut ids = connection.cmd(Cmd::new("SMEMBERS").arg(&keys.contexts_of(creator))).await?.texts()?;
        ids.retain(|id| *id != tenant.id.to_string());
        let mut others = 0_u64;
        for ids in ids.chunks(CONTEXTS_READ) {
            let query = Cmd::new("HMGET").arg(&keys.blob_bytes()).args(ids);
            for bytes in connection.cmd(query).await?.array()? {
                others = others.saturating_add(bytes.uint().unwrap_or_default());
            }
        }
        let of_actor =
            BlobQuota { quota: Quota::ActorBlobBytes, max: self.quotas().of(Quota::ActorBlobBytes), others };
        Ok(if of_actor.here() < of_context.here() { of_actor } else { of_context })
    }

    /// Notes how many bytes of blobs a context has, for the sum over all of its creator.
    pub(crate) async fn record_blob_bytes(&self, context: ContextId, bytes: u64) -> Result<()> {
        let key = self.keys().blob_bytes();
        let change = match bytes {
            0 => Cmd::new("HDEL").arg(&key).arg(context.0),
            _ => Cmd::new("HSET").arg(&key).arg(context.0).arg(bytes),
        };
        self.connection().cmd(change).await?;
        Ok(())
    }
}

/// Which limit there is for the blobs of a context.
#[derive(Debug, Clone, Copy)]
struct BlobQuota {
    quota: Quota,
    max: u64,
    /// Bytes of that quota already used in other contexts.
    others: u64,
}

impl BlobQuota {
    /// How many bytes there may be in the context itself.
    const fn here(&self) -> u64 {
        self.max.saturating_sub(self.others)
    }

    /// Quota error for a change that would bring the context to `requested` bytes.
    const fn beyond(&self, requested: u64) -> Error {
        Error::Quota { quota: self.quota, max: self.max, requested: requested.saturating_add(self.others) }
    }
}

/// Gives how many bytes of blobs there are afterwards.
async fn put_once(
    tenant: &TenantStore,
    uid: Option<ContextUid>,
    (hash, bytes): (BlobHash, &[u8]),
    room: BlobQuota,
    audit_record: Option<&AuditRecord>,
    now: Timestamp,
) -> Result<u64> {
    let key = tenant.keys.blob(hash);
    let chunks =
        bytes.chunks(BLOB_CHUNK_BYTES).zip(0..).map(|(chunk, n)| (tenant.keys.blob_chunk(hash, n), chunk));
    let chunks: Vec<(String, &[u8])> = chunks.collect();
    if !is_there(tenant, &key, bytes.len() as u64, room).await? {
        for (key, chunk) in &chunks {
            // An existing chunk is not overwritten: it has the same bytes and may belong to a visible blob by now.
            let set = Cmd::new("SET").arg(key).arg(*chunk).arg("NX").arg("EX").arg(UNFINISHED.as_secs());
            tenant.connection.cmd(set).await?;
        }
    }
    let refs = tenant.keys.blob_refs(hash);
    let mut touched = scripts::PUT_BLOB
        .keys([("blob", &key), ("blob_refs", &refs), ("blob_idle", &tenant.blob_idle)])
        .to_vec();
    touched.extend(chunks.iter().map(|(key, _)| key.as_str()));
    // A service puts only outputs of jobs, whose reports may be late.
    let since = if uid.is_some() { now + OUTPUT_MORE } else { now };
    let call = tenant.begin_by(audit_record, &scripts::PUT_BLOB, &touched, uid, now).named(kv::named![
        hash: &hash.to_string(),
        size: bytes.len(),
        idle_since: &since.to_string(),
        blob_bytes_max: room.here(),
        limit: room.quota.name(),
    ]);
    match tenant.call(call).await {
        Ok(total) => Ok(total.uint()?),
        Err(Error::Quota { requested, .. }) => Err(room.beyond(requested)),
        Err(error) => Err(error),
    }
}

/// Returns true if the blob exists. Fails, before anything is written, when it does not exist and exceeds the quota.
async fn is_there(tenant: &TenantStore, key: &str, size: u64, room: BlobQuota) -> Result<bool> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd(Cmd::new("EXISTS").arg(key));
    pipeline.cmd(Cmd::new("HGET").arg(&tenant.ids).arg("blob_bytes"));
    let answers = tenant.connection.pipeline(&pipeline).await?.into_iter().collect::<kv::Result<Vec<_>>>()?;
    let [there, bytes] = kv::Value::Array(answers).tuple()?;
    if there.int()? != 0 {
        return Ok(true);
    }
    let bytes = if bytes.is_nil() { 0 } else { bytes.uint()? };
    let requested = bytes.saturating_add(size);
    if requested > room.here() {
        return Err(room.beyond(requested));
    }
    Ok(false)
}
