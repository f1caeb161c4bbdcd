//! Messages that programs push to Redis: they hint at nothing, so whoever wants them waits for them.
//!
//! In each context that allows it a connection waits for `msg_out` to have an entry. To wait it moves the last entry
//! to where it is, which Redis does as one step: nothing is ever out of the list.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kv::{BlockingConnection, Cmd, Value};
use model::ContextId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use crate::store::TenantStore;

/// How long Redis is asked to wait; then it is asked again.
const BLOCK: Duration = Duration::from_secs(60);
/// After a failure, and while what is there cannot be taken.
const PAUSE: Duration = Duration::from_secs(1);

/// A context in which something is out, and where it is told whether all of it was taken.
pub(crate) type PushNotice = (ContextId, oneshot::Sender<bool>);

/// Those who wait, one for each context. They end with it.
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

    /// From now on these contexts are waited for, and no others.
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
                let (all_taken, told) = oneshot::channel();
                if found.send((context, all_taken)).await.is_err() {
                    return;
                }
                if told.await == Ok(true) {
                    continue;
                }
            }
            Err(error) => tracing::warn!(%context, %error, "messages that are pushed cannot be waited for"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
