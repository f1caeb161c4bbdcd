//! Coordinators: the nodes through which they are reached, for a supervisor that has to send first after a restart; and their roots,
//! which may be succeeded by others.

use std::collections::BTreeMap;

use keys::supervisor as k;
use kv::{Cmd, Error, Result};

use crate::script::{BEGIN_SUCCESSION, INDEX, NOTE_NODE, SUCCEED};
use crate::supervisor::SupervisorQueues;

/// How many jobs one script passes on at most.
const BATCH: usize = 200;
/// How many keys one script looks at for bindings.
const INDEX_BATCH: usize = 1000;

/// Authority by which a coordinator gets another root key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationAuthority {
    /// The previous root key. A key that was itself retired does not come back.
    Root,
    /// The operator of the supervisor, who may bring back any key.
    Operator,
}

/// Outcome of beginning the rotation of a root key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationStartOutcome {
    /// Nothing is bound to the old key: nothing has changed.
    Unknown,
    /// The rotation to this new key was begun before. Some bindings may not be transferred yet.
    Known,
    /// The old key is refused from now on.
    Noted,
}

/// Numbers of bindings that were transferred to another root key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RootTransferCounts {
    /// Contexts that were bound to the previous key.
    pub contexts: u64,
    /// Their jobs.
    pub jobs: u64,
}

impl SupervisorQueues {
    /// Records the node of a bus through which a coordinator was reached, and forgets any other coordinator of that node. Returns whether
    /// it is recorded: not for a coordinator without a bound context, since anybody can be one.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn note_node(&self, coordinator: &str, node: &str) -> Result<bool> {
        let call = NOTE_NODE.call::<&str>(&[]).named(kv::named![coordinator: coordinator, node: node]);
        Ok(self.db().call(call).await?.int()? == 1)
    }

    /// Returns the nodes through which coordinators were reached last, by coordinator.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn nodes(&self) -> Result<BTreeMap<String, String>> {
        let fields = self.db().cmd(Cmd::new("HGETALL").arg(k::SUPERVISOR)).await?.hash()?;
        let nodes = fields
            .into_iter()
            .filter_map(|(field, node)| Some((field.strip_prefix(k::NODE_FIELD_PREFIX)?.to_owned(), node)));
        Ok(nodes.collect())
    }

    /// The roots that were succeeded, each with the last one after it.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn successors(&self) -> Result<BTreeMap<String, String>> {
        let roots = self.db().cmd(Cmd::new("HGETALL").arg(k::SUCCESSORS)).await?.hash()?;
        Ok(roots.into_iter().collect())
    }

    /// Begins the rotation of a coordinator's root key: from now on the old key is refused, and its bindings are the new key's. To
    /// be followed by [`SupervisorQueues::transfer_bindings`]. May be repeated.
    ///
    /// # Errors
    /// [`Error::Refused`] with `ROOT_SUCCEEDED` when another comes after the old one already, or, unless the operator
    /// says so, the new one was succeeded itself; any [`kv::Error`].
    pub async fn begin_root_rotation(
        &self,
        old: &str,
        new: &str,
        by: RotationAuthority,
    ) -> Result<RotationStartOutcome> {
        let authority = match by {
            RotationAuthority::Root => "",
            RotationAuthority::Operator => "operator",
        };
        let named = kv::named![old_root: old, new_root: new, authority: authority];
        let call = BEGIN_SUCCESSION.call::<&str>(&[]).named(named);
        match self.db().call(call).await?.text()?.as_str() {
            "noted" => Ok(RotationStartOutcome::Noted),
            "known" => Ok(RotationStartOutcome::Known),
            "unknown" => Ok(RotationStartOutcome::Unknown),
            other => Err(Error::Protocol(format!("`{other}` is not an answer of begin_succession"))),
        }
    }

    /// Passes everything that is bound to a root on to the one after it, as [`SupervisorQueues::begin_root_rotation`] has noted. Goes on
    /// where an earlier call broke off; gives what this one has done.
    ///
    /// # Errors
    /// [`Error::Refused`] with `ROOT_SUCCEEDED` when another rotation was noted; any [`kv::Error`]. May be repeated.
    pub async fn transfer_bindings(&self, old: &str, new: &str) -> Result<RootTransferCounts> {
        let mut passed = RootTransferCounts::default();
        let (mut context, mut place) = (String::new(), String::new());
        loop {
            let call = SUCCEED.call::<&str>(&[]).named(kv::named![
                old_root: old,
                new_root: new,
                context: &context,
                place: &place,
                count: BATCH,
            ]);
            let [more, next, at, contexts, jobs] = self.db().call(call).await?.tuple()?;
            passed.contexts += contexts.uint()?;
            passed.jobs += jobs.uint()?;
            if more.int()? == 0 {
                return Ok(passed);
            }
            (context, place) = (next.text()?, at.text()?);
        }
    }

    /// Notes once whose contexts are, in a store of a version that did not.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn index_contexts(&self) -> Result<()> {
        let mut from = "0".to_owned();
        while !from.is_empty() {
            let call = INDEX.call::<&str>(&[]).named(kv::named![from: &from, count: INDEX_BATCH]);
            from = self.db().call(call).await?.text()?;
        }
        Ok(())
    }
}
