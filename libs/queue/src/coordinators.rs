//! Where coordinators were heard from, for a supervisor that has to speak first after a restart.

use std::collections::BTreeMap;

use keys::supervisor as k;
use kv::{Cmd, Result};

use crate::supervisor::Supervisor;

/// What the fields of the supervisor's hash begin with that tell a coordinator's node.
const NODE_PREFIX: &str = "node:";

impl Supervisor {
    /// Notes the node of a bus through which a coordinator was heard, and forgets whom else it led to.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn note_node(&self, coordinator: &str, node: &str) -> Result<()> {
        let field = format!("{NODE_PREFIX}{coordinator}");
        self.db().cmd(Cmd::new("HSET").arg(k::SUPERVISOR).arg(&field).arg(node)).await?;
        for (other, _) in
            self.nodes().await?.iter().filter(|(other, of)| *of == node && *other != coordinator)
        {
            let field = format!("{NODE_PREFIX}{other}");
            self.db().cmd(Cmd::new("HDEL").arg(k::SUPERVISOR).arg(&field)).await?;
        }
        Ok(())
    }

    /// The nodes through which coordinators were heard last, by coordinator.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn nodes(&self) -> Result<BTreeMap<String, String>> {
        let fields = self.db().cmd(Cmd::new("HGETALL").arg(k::SUPERVISOR)).await?.hash()?;
        let nodes = fields
            .into_iter()
            .filter_map(|(field, node)| Some((field.strip_prefix(NODE_PREFIX)?.to_owned(), node)));
        Ok(nodes.collect())
    }
}
