//! Watches for messages that programs push to Redis. Such pushes publish no hint, so a blocking command waits for them.
//!
//! In each context that allows it, one connection waits until `msg_out` has an entry. The command moves the last entry
//! to its own position. Redis does this atomically, so no entry ever leaves the list.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kv::{BlockingConnection, Cmd, Value};
use model::ContextId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use crate::store::TenantStore;

/// How long one blocking command waits; then the next one is sent.
const BLOCK: Duration = Duration::from_secs(60);
/// Pause after a failure, and while there are entries that cannot be taken.
const PAUSE: Duration = Duration::from_secs(1);

/// Context whose `msg_out` has entries, with the channel for the answer whether all of them were taken.
pub(crate) type PushNotice = (ContextId, oneshot::Sender<bool>);

/// Waiting tasks, one for each context. They end on drop.
#[derive(Debug)]
pub(crate) struct PushedMessageWatcher {
    found: mpsc::Sender<PushNotice>,
    waiting: HashMap<ContextId, AbortHandle>,
    tasks: JoinSet<()>,
}

impl PushedMessageWatcher {
    /// Creates a watcher that waits for no context yet, and the receiver of its notices.
    pub(crate) fn new() -> (Self, mpsc::Receiver<PushNotice>) {
        let (found, receiver) = mpsc::channel(1);
        (Self { found, waiting: HashMap::new(), tasks: JoinSet::new() }, receiver)
    }

    /// Watches these contexts from now on, and no others.
    pub(crate) fn wait_for(
        &mut self,
        tenants: &[Arc<TenantStore>],
        blocking: impl Fn(&TenantStore) -> BlockingConnection,
    ) {
        self.waiting.retain(|context, task| {
            let goes_on = tenants.iter().any(|tenant| tenant.id == *context);
            if !goes_on {
                task.abort();
            }
            goes_on
        });
        for tenant in tenants {
            self.waiting.entry(tenant.id).or_insert_with(|| {
                let connection = blocking(tenant);
                self.tasks.spawn(wait(connection, tenant.id, tenant.msg_out.clone(), self.found.clone()))
            });
        }
        while self.tasks.try_join_next().is_some() {}
    }
}

/// Waits for entries for ever.
async fn wait(
    mut connection: BlockingConnection,
    context: ContextId,
    list: String,
    found: mpsc::Sender<PushNotice>,
) {
    let stay = Cmd::new("BLMOVE").arg(&list).arg(&list).arg("RIGHT").arg("RIGHT").arg(BLOCK.as_secs());
    loop {
        match connection.run(&stay, BLOCK, std::future::pending()).await {
            Ok(Value::Nil) => continue,
            Ok(_) => {
                let (all_taken, answer) = oneshot::channel();
                if found.send((context, all_taken)).await.is_err() {
                    return;
                }
                if answer.await == Ok(true) {
                    continue;
                }
            }
            Err(error) => {
                tracing::warn!(%context, %error, "waiting for pushed messages failed, trying again")
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
