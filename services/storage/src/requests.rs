//! Request ids: the same one with the same body has one effect.

use kv::{Cmd, Connection, Value};
use model::{ContextId, FlowId, JobId, RequestId, Revision, Violations};

use crate::error::{Error, Result};
use crate::store::{Asker, Store};
use crate::tenants::audit::Deed;

/// A request that its caller may repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// What its caller calls it.
    pub(crate) id: String,
    /// The SHA-256 of its body, in hex.
    pub(crate) hash: String,
}

impl Request {
    /// Nothing for an empty id: the request cannot be repeated.
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
pub(crate) struct Asked<'a> {
    /// Who asks.
    pub(crate) deed: &'a Deed,
    /// Where it is remembered.
    pub(crate) key: Option<&'a str>,
    /// The request, when it may be repeated.
    pub(crate) request: Option<&'a Request>,
}

impl<'a> Asked<'a> {
    /// At which revision the message was taken up that asks: `<message>@<revision>` is its request id. Empty when that does
    /// not say.
    pub(crate) fn taken_revision(&self, message: &str) -> &'a str {
        let id = self.request.and_then(|request| request.id.strip_prefix(message));
        id.and_then(|rest| rest.strip_prefix('@')).unwrap_or_default()
    }
}

/// The request that nodes are all of, or a part of.
#[derive(Debug, Clone)]
pub(crate) struct Filling {
    /// Which request.
    pub(crate) request: Request,
    /// With these nodes it is carried out.
    pub(crate) ends: bool,
    /// The job of its first node.
    pub(crate) first_job: JobId,
}

/// The hash to compare, empty where there is no request id.
pub(crate) fn hash_of(request: Option<&Request>) -> &str {
    request.map_or("", |request| &request.hash)
}

/// The revision that a request expects, as scripts compare it; empty for any.
pub(crate) fn expected_text(revision: Option<Revision>) -> String {
    revision.map(|revision| revision.to_string()).unwrap_or_default()
}

/// Whether the request that is remembered under this key was carried out before.
///
/// # Errors
/// When it had another body then.
pub(crate) async fn was_asked(
    connection: &Connection,
    key: Option<&str>,
    request: Option<&Request>,
) -> Result<bool> {
    let (Some(key), Some(request)) = (key, request) else { return Ok(false) };
    let hash = connection.cmd(Cmd::new("HGET").arg(key).arg("hash")).await?.optional_text()?;
    match hash {
        Some(hash) if hash != request.hash => Err(Error::RequestIdReused),
        hash => Ok(hash.is_some()),
    }
}

/// What a request was answered, as far as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    /// The flow that it made or started.
    pub(crate) flow: Option<FlowId>,
    /// That flow's uid.
    pub(crate) flow_uid: String,
    /// The first of the job ids that it was given.
    pub(crate) first_job: Option<JobId>,
}

impl Store {
    /// What a request that was carried out before was answered. Fails when it had another body then.
    pub(crate) async fn find_request(
        &self,
        context: ContextId,
        asker: Asker,
        request: &Request,
    ) -> Result<Option<Answered>> {
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
        Ok(Some(Answered {
            flow: number(flow)?.map(FlowId),
            flow_uid: flow_uid.optional_text()?.unwrap_or_default(),
            first_job: number(first_job)?.map(JobId),
        }))
    }
}
