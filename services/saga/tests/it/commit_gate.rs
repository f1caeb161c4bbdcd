//! A gate that keeps commits waiting, as long as a test wants.

use async_trait::async_trait;
use store::{CommitOutcome, KvStore, RowBatch, StoreError};
use tokio::sync::watch;

use crate::hooked_store::StoreHook;

/// Gate in front of commits, which wait while it is held. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub(crate) struct CommitGate {
    is_held: watch::Sender<bool>,
}

impl CommitGate {
    pub(crate) fn hold(&self) {
        self.is_held.send_replace(true);
    }

    pub(crate) fn release(&self) {
        self.is_held.send_replace(false);
    }
}

#[async_trait]
impl StoreHook for CommitGate {
    async fn commit(&self, store: &dyn KvStore, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        self.is_held.subscribe().wait_for(|is_held| !is_held).await.expect("it is here");
        store.commit(batch).await
    }
}
