//! Forgetting jobs and contexts that are gone.

use keys::supervisor as k;
use kv::Result;
use model::{ContextUid, JobKey};

use crate::DROP_MARK_KEEP;
use crate::script::{DROP_CONTEXT, DROP_EVENTS, FORGET};
use crate::supervisor::SupervisorQueues;

/// How many jobs one script looks at.
const BATCH: usize = 200;

impl SupervisorQueues {
    /// Forgets attempts of a flow that is gone, and refuses them for [`DROP_MARK_KEEP`] should they come late. An attempt whose end the
    /// coordinator has not acknowledged yet is forgotten once it has; one that another coordinator sent, or that others than our
    /// instances may still write, expires on its own. Returns those that are forgotten now.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn forget(&self, keys: &[JobKey], coordinator: &str) -> Result<Vec<JobKey>> {
        let mut forgotten = Vec::new();
        for keys in keys.chunks(BATCH) {
            let texts: Vec<String> = keys.iter().map(ToString::to_string).collect();
            let named = kv::named![coordinator: coordinator, refuse_secs: DROP_MARK_KEEP.as_secs()];
            let call = FORGET.call::<&str>(&[]).named(named);
            let gone = self.db().call(call.args(texts.iter().map(String::as_str))).await?.texts()?;
            forgotten.extend(gone.iter().filter_map(|key| key.parse::<JobKey>().ok()));
        }
        Ok(forgotten)
    }

    /// Forgets a context and everything of it. What runs is stopped without grace; gives how much still does:
    /// to be repeated until there is nothing. Late jobs of its coordinator are refused for [`DROP_MARK_KEEP`]
    /// afterwards; another coordinator may use the context at once.
    ///
    /// # Errors
    /// [`kv::Error::Refused`] with `CONTEXT_CLAIMED` when it is another coordinator's; any [`kv::Error`].
    pub async fn drop_context(&self, context: ContextUid, coordinator: &str) -> Result<u64> {
        let keys = [k::context_binding(context), k::context_jobs(context)];
        let mut running = 0;
        loop {
            let call = DROP_CONTEXT.call(&keys).named(kv::named![
                coordinator: coordinator,
                kept: running,
                count: BATCH,
                refuse_secs: DROP_MARK_KEEP.as_secs(),
            ]);
            let answer = self.db().call(call).await?;
            let [looked_at, kept] = answer.tuple()?;
            running += kept.uint()?;
            if looked_at.uint()? < BATCH as u64 {
                break;
            }
        }
        if running == 0 {
            self.drop_events(context).await?;
        }
        Ok(running)
    }

    /// Removes events of a context that were not delivered yet.
    async fn drop_events(&self, context: ContextUid) -> Result<()> {
        let prefix = format!("{context}-");
        let mut from = "-".to_owned();
        loop {
            let named = kv::named![group: k::DONE_GROUP, prefix: &prefix, from: &from, count: BATCH];
            let call = DROP_EVENTS.call(&[k::DONE]).named(named);
            from = self.db().call(call).await?.text()?;
            if from.is_empty() {
                return Ok(());
            }
        }
    }
}
