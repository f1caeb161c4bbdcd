//! Requests of the machine's operators, made without a coordinator.

use keys::supervisor as k;
use kv::{Cmd, Result};
use model::ContextUid;
use model::id::Uid;

use crate::SupervisorQueues;

/// Coordinator id of operators' jobs: written like a coordinator's root key, but no key that can sign.
pub const OPERATOR: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// How long request ids of operators are remembered.
const REQUEST_KEEP_SECS: u32 = 24 * 3600;

impl SupervisorQueues {
    /// The context of jobs that operators run here: random, made with the first of them, so that no coordinator could have
    /// had it bound to itself before.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn operator_context(&self) -> Result<ContextUid> {
        let fresh = Uid::random().to_string();
        let field = "operator_context";
        self.db().cmd(Cmd::new("HSETNX").arg(k::SUPERVISOR).arg(field).arg(&fresh)).await?;
        let kept = self.db().cmd(Cmd::new("HGET").arg(k::SUPERVISOR).arg(field)).await?.text()?;
        let uid = kept.parse().map_err(|_| kv::Error::Protocol(format!("`{field}` is no uid: {kept}")))?;
        Ok(ContextUid(uid))
    }

    /// Returns the hash of the request with this id if it was carried out.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn completed_request(&self, request_id: &str) -> Result<Option<String>> {
        self.db().cmd(Cmd::new("GET").arg(&k::request(request_id))).await?.optional_text()
    }

    /// Records that a request was carried out.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn record_request(&self, request_id: &str, hash: &str) -> Result<()> {
        let set = Cmd::new("SET").arg(&k::request(request_id)).arg(hash).arg("EX").arg(REQUEST_KEEP_SECS);
        self.db().cmd(set).await.map(drop)
    }
}
