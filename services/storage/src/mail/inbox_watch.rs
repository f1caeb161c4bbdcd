//! Watches of inboxes: deliver messages that the actor has not acknowledged yet.

use std::sync::Arc;

use kv::Cmd;
use model::{ActorId, ContextId, ContextState, limits};
use rpc::StreamHeartbeat;
use tokio::sync::{broadcast, mpsc, watch};

use crate::error::{Error, Result};
use crate::mail::mailbox::inbox_owner;
use crate::mail::message_lists::{bytes_of, read_messages, scored_texts};
use crate::record::message_record::{MessageProjection, MessageRecord};
use crate::store::{RequestPrincipal, TenantStore};
use crate::tenants::permission::ContextAction;
use crate::watch::events::{EventHub, InboxHint};

/// Answers between the watch and its stream.
const OUT_BUFFER: usize = 2;
/// Messages that are read at once, each with its text.
const MESSAGES_READ: usize = 8;

/// Parameters of an inbox watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InboxWatch {
    /// Context of the inbox.
    pub(crate) context: ContextId,
    /// Principal that watches.
    pub(crate) asker: RequestPrincipal,
    /// Owner of the inbox; the principal itself if not given.
    pub(crate) actor: Option<ActorId>,
    /// The watch ends after the messages that exist now.
    pub(crate) only_present: bool,
}

/// Output of a watch: messages, none as a heartbeat, and at last the reason why it ended.
pub(crate) type InboxReceiver = mpsc::Receiver<Result<Vec<MessageRecord>>>;

impl EventHub {
    /// Begins to hand out an inbox, oldest first.
    pub(crate) async fn watch_inbox(&self, watch: InboxWatch) -> Result<InboxReceiver> {
        let tenant = self.store().tenant(watch.context).await?;
        let (out, stream) = mpsc::channel(OUT_BUFFER);
        let mut task = InboxWatchTask {
            hub: self.clone(),
            tenant,
            watch,
            // Before the first look, so that nothing falls between.
            hints: self.inboxes(),
            went_back: self.went_back().subscribe(),
            after: String::new(),
            out,
            pulse: StreamHeartbeat::default(),
        };
        task.owner().await?;
        tokio::spawn(async move {
            if let Err(error) = task.run().await {
                // The watcher may have left.
                let _ = task.out.send(Err(error)).await;
            }
        });
        Ok(stream)
    }
}

struct InboxWatchTask {
    hub: EventHub,
    tenant: Arc<TenantStore>,
    watch: InboxWatch,
    hints: broadcast::Receiver<InboxHint>,
    went_back: watch::Receiver<u64>,
    /// The score of the last message that was handed out; empty before the first.
    after: String,
    out: mpsc::Sender<Result<Vec<MessageRecord>>>,
    /// An idle stream is looked at with each sign of life, whatever was hinted.
    pulse: StreamHeartbeat,
}

impl InboxWatchTask {
    async fn run(&mut self) -> Result<()> {
        loop {
            self.look().await?;
            if self.watch.only_present || !self.wait().await {
                return Ok(());
            }
        }
    }

    /// Returns the owner of the inbox, as long as the watcher may see it.
    async fn owner(&self) -> Result<ActorId> {
        let (_, context) = self.hub.store().context(self.watch.context).await?;
        let owner = inbox_owner(&context, self.watch.asker, self.watch.actor, ContextAction::ReadInbox)?;
        match context.state {
            ContextState::Active => Ok(owner),
            ContextState::Deleting => Err(Error::ContextDeleting),
        }
    }

    /// Hands out what was not handed out yet.
    async fn look(&mut self) -> Result<()> {
        let inbox = self.tenant.keys.inbox(self.owner().await?);
        let (mut answer, mut bytes) = (Vec::new(), 0);
        loop {
            let min = if self.after.is_empty() { "-inf".to_owned() } else { format!("({}", self.after) };
            let query = Cmd::new("ZRANGEBYSCORE").arg(&inbox).arg(&min).arg("+inf").arg("WITHSCORES");
            let page = self.tenant.connection.cmd(query.arg("LIMIT").arg(0).arg(MESSAGES_READ)).await?;
            let page = scored_texts(page)?;
            let Some((_, last)) = page.last() else { break };
            self.after.clone_from(last);
            let members: Vec<&str> = page.iter().map(|(member, _)| member.as_str()).collect();
            for message in
                read_messages(&self.tenant, &members, MessageProjection::Whole).await?.into_iter().flatten()
            {
                let size = bytes_of(&message);
                if !answer.is_empty() && bytes + size > limits::PAGE_BYTES_MAX {
                    self.send_messages(std::mem::take(&mut answer)).await;
                    bytes = 0;
                }
                bytes += size;
                answer.push(message);
            }
            if self.out.is_closed() {
                return Ok(());
            }
        }
        if !answer.is_empty() {
            self.send_messages(answer).await;
        }
        Ok(())
    }

    /// Waits until there may be more. `false` when the watcher has left.
    async fn wait(&mut self) -> bool {
        loop {
            tokio::select! {
                hint = self.hints.recv() => match hint {
                    Ok(hint) if !hint.is_for(self.watch.context) => {}
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return true,
                    Err(broadcast::error::RecvError::Closed) => return false,
                },
                changed = self.went_back.changed() => {
                    // Messages that were handed out may have other positions by now, so all are handed out again.
                    self.after.clear();
                    return changed.is_ok();
                }
                () = self.pulse.due() => {
                    self.send_messages(Vec::new()).await;
                    return true;
                }
                () = self.out.closed() => return false,
            }
        }
    }

    async fn send_messages(&mut self, messages: Vec<MessageRecord>) {
        // The caller notices when the watcher has left.
        let _ = self.out.send(Ok(messages)).await;
        self.pulse.sent();
    }
}
