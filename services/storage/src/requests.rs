//! Request ids: the same one with the same body has one effect.

use kv::{Cmd, Connection, Value};
use model::{ContextId, Violations};

use crate::audit::Deed;
use crate::error::{Error, Result};
use crate::store::{Asker, Store};

/// A request that its caller may repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// What its caller calls it.
    pub(crate) id: String,
    /// The SHA-256 of its body, in hex.
    pub(crate) hash: String,
}

/// A request id is a UUID; other texts of this length do as well.
const ID_BYTES_MAX: usize = 64;

impl Request {
    /// Nothing for an empty id: the request cannot be repeated.
    pub(crate) fn parse(
        id: &str,
        hash: impl FnOnce() -> String,
        violations: &mut Violations,
    ) -> Option<Self> {
        if id.is_empty() {
            return None;
        }
        if id.len() > ID_BYTES_MAX || !id.bytes().all(|b| b.is_ascii_graphic()) {
            violations
                .add("request_id", format!("a UUID, or at most {ID_BYTES_MAX} visible ASCII characters"));
            return None;
        }
        Some(Self { id: id.to_owned(), hash: hash() })
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

/// The hash to compare, empty where there is no request id.
pub(crate) fn hash_of(request: Option<&Request>) -> &str {
    request.map_or("", |request| &request.hash)
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

impl Store {
    /// Whether a request was carried out before. Fails when it had another body then.
    pub(crate) async fn has_request(
        &self,
        context: ContextId,
        asker: Asker,
        request: &Request,
    ) -> Result<bool> {
        let actor = asker.actor()?;
        let (.., mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                let key = tenant.keys.request(actor, &request.id);
                pipeline.cmd(Cmd::new("HGET").arg(&key).arg("hash"));
            })
            .await?;
        let hash = answers.pop().unwrap_or(Value::Nil).optional_text()?;
        match hash {
            Some(hash) if hash != request.hash => Err(Error::RequestIdReused),
            hash => Ok(hash.is_some()),
        }
    }
}
