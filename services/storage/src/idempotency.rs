//! Request ids: requests with the same id and body have one effect.

use kv::{Cmd, KvConnection, Value};
use model::{ContextId, FlowId, JobId, RequestId, Revision, Violations};

use crate::error::{Error, Result};
use crate::store::{RequestPrincipal, Store};
use crate::tenants::audit::AuditRecord;

/// A request that its caller may repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdempotencyKey {
    /// Request id that the caller chose.
    pub(crate) id: String,
    /// The SHA-256 of its body, in hex.
    pub(crate) hash: String,
}

impl IdempotencyKey {
    /// Parses an idempotency key; nothing for an empty id, whose request cannot be repeated.
    pub(crate) fn parse(
        id: &str,
        hash: impl FnOnce() -> String,
        violations: &mut Violations,
    ) -> Option<Self> {
        let id = RequestId::parse(id, violations)?;
        Some(Self { id: id.to_string(), hash: hash() })
    }
}

/// The request that asks for a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CreationRequest<'a> {
    /// Audit record of the request, with the actor that makes it.
    pub(crate) audit_record: &'a AuditRecord,
    /// Redis key under which the request is remembered.
    pub(crate) key: Option<&'a str>,
    /// The request, when it may be repeated.
    pub(crate) request: Option<&'a IdempotencyKey>,
}

impl<'a> CreationRequest<'a> {
    /// Revision at which the requesting message was taken up, from its request id `<message>@<revision>`. Empty when the id
    /// has none.
    pub(crate) fn taken_revision(&self, message: &str) -> &'a str {
        let id = self.request.and_then(|request| request.id.strip_prefix(message));
        id.and_then(|rest| rest.strip_prefix('@')).unwrap_or_default()
    }
}

/// The request that nodes are all of, or a part of.
#[derive(Debug, Clone)]
pub(crate) struct BatchPart {
    /// Which request.
    pub(crate) request: IdempotencyKey,
    /// These nodes complete the request.
    pub(crate) ends: bool,
    /// The job of its first node.
    pub(crate) first_job: JobId,
}

/// The hash to compare, empty where there is no request id.
pub(crate) fn hash_of(request: Option<&IdempotencyKey>) -> &str {
    request.map_or("", |request| &request.hash)
}

/// The revision that a request expects, as scripts compare it; empty for any.
pub(crate) fn expected_text(revision: Option<Revision>) -> String {
    revision.map(|revision| revision.to_string()).unwrap_or_default()
}

/// Returns true if the request that is remembered under this key was carried out before.
///
/// # Errors
/// When it had another body then.
pub(crate) async fn was_carried_out(
    connection: &KvConnection,
    key: Option<&str>,
    request: Option<&IdempotencyKey>,
) -> Result<bool> {
    let (Some(key), Some(request)) = (key, request) else { return Ok(false) };
    let hash = connection.cmd(Cmd::new("HGET").arg(key).arg("hash")).await?.optional_text()?;
    match hash {
        Some(hash) if hash != request.hash => Err(Error::RequestIdReused),
        hash => Ok(hash.is_some()),
    }
}

/// Stored result of a request, as far as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredResult {
    /// Flow that the request created or started.
    pub(crate) flow: Option<FlowId>,
    /// Uid of that flow.
    pub(crate) flow_uid: String,
    /// First of the job ids that the request was given.
    pub(crate) first_job: Option<JobId>,
}

impl Store {
    /// Returns the stored result of a request that was carried out before. Fails when that had another body.
    pub(crate) async fn find_request(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        request: &IdempotencyKey,
    ) -> Result<Option<StoredResult>> {
        const KEPT: [&str; 5] = ["hash", "pending", "flow_id", "flow_uid", "first_job_id"];
        let actor = asker.actor()?;
        let (.., mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                let key = tenant.keys.request(actor, &request.id);
                pipeline.cmd(Cmd::new("HMGET").arg(&key).args(KEPT));
            })
            .await?;
        let [hash, pending, flow, flow_uid, first_job] = answers.pop().unwrap_or(Value::Nil).tuple()?;
        match hash.optional_text()? {
            None => return Ok(None),
            Some(hash) if hash != request.hash => return Err(Error::RequestIdReused),
            Some(_) => {}
        }
        if pending.optional_text()?.is_some_and(|pending| pending != "0") {
            return Ok(None);
        }
        let number = |value: Value| Ok::<_, Error>(value.optional_text()?.and_then(|text| text.parse().ok()));
        Ok(Some(StoredResult {
            flow: number(flow)?.map(FlowId),
            flow_uid: flow_uid.optional_text()?.unwrap_or_default(),
            first_job: number(first_job)?.map(JobId),
        }))
    }
}
