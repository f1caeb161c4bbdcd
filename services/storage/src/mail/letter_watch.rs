//! Handing out what an actor received, as long as it has not acknowledged it.

use std::sync::Arc;

use kv::Cmd;
use model::{ActorId, ContextId, ContextState, limits};
use rpc::Pulse;
use tokio::sync::{broadcast, mpsc, watch};

use crate::error::{Error, Result};
use crate::mail::letter_box::inbox_owner;
use crate::mail::letter_lists::{bytes_of, read_messages, scored_texts};
use crate::record::letter::{Extent, KeptMessage};
use crate::store::{Asker, Tenant};
use crate::tenants::permission::Action;
use crate::watch::events::{Hub, InboxHint};

/// Answers between the watch and its stream.
const OUT_BUFFER: usize = 2;
/// Messages that are read at once, each with its text.
const MESSAGES_READ: usize = 8;

/// Whose inbox is watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InboxWatch {
    /// Where.
    pub(crate) context: ContextId,
    /// By whom.
    pub(crate) asker: Asker,
    /// Whose; nothing for whoever asks.
    pub(crate) actor: Option<ActorId>,
    /// It ends after what is there now.
    pub(crate) only_present: bool,
}

/// What comes of a watch: messages, none for a sign of life, and at last why it ended.
pub(crate) type Received = mpsc::Receiver<Result<Vec<KeptMessage>>>;

impl Hub {
    /// Begins to hand out an inbox, oldest first.
    pub(crate) async fn watch_inbox(&self, watch: InboxWatch) -> Result<Received> {
        let tenant = self.store().tenant(watch.context).await?;
        let (out, stream) = mpsc::channel(OUT_BUFFER);
        let mut task = Task {
            hub: self.clone(),
            tenant,
            watch,
            // Before the first look, so that nothing falls between.
            hints: self.inboxes(),
            went_back: self.went_back().subscribe(),
            after: String::new(),
            out,
            pulse: Pulse::default(),
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

struct Task {
    hub: Hub,
    tenant: Arc<Tenant>,
    watch: InboxWatch,
    hints: broadcast::Receiver<InboxHint>,
    went_back: watch::Receiver<u64>,
    /// The score of the last message that was handed out; empty before the first.
    after: String,
    out: mpsc::Sender<Result<Vec<KeptMessage>>>,
    /// An idle stream is looked at with each sign of life, whatever was hinted.
    pulse: Pulse,
}

impl Task {
    async fn run(&mut self) -> Result<()> {
        loop {
            self.look().await?;
            if self.watch.only_present || !self.wait().await {
                return Ok(());
            }
        }
    }

    /// Whose inbox it is, as long as whoever watches may see it.
    async fn owner(&self) -> Result<ActorId> {
        let (_, context) = self.hub.store().context(self.watch.context).await?;
        let owner = inbox_owner(&context, self.watch.asker, self.watch.actor, Action::ReadInbox)?;
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
            let ask = Cmd::new("ZRANGEBYSCORE").arg(&inbox).arg(&min).arg("+inf").arg("WITHSCORES");
            let page = self.tenant.connection.cmd(ask.arg("LIMIT").arg(0).arg(MESSAGES_READ)).await?;
            let page = scored_texts(page)?;
            let Some((_, last)) = page.last() else { break };
            self.after.clone_from(last);
            let members: Vec<&str> = page.iter().map(|(member, _)| member.as_str()).collect();
            for message in read_messages(&self.tenant, &members, Extent::Whole).await?.into_iter().flatten() {
                let size = bytes_of(&message);
                if !answer.is_empty() && bytes + size > limits::PAGE_BYTES_MAX {
                    self.say(std::mem::take(&mut answer)).await;
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
            self.say(answer).await;
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
                    // What was handed out may have other places by now: everything is, again.
                    self.after.clear();
                    return changed.is_ok();
                }
                () = self.pulse.due() => {
                    self.say(Vec::new()).await;
                    return true;
                }
                () = self.out.closed() => return false,
            }
        }
    }

    async fn say(&mut self, messages: Vec<KeptMessage>) {
        // A watcher that left is noticed by whoever called.
        let _ = self.out.send(Ok(messages)).await;
        self.pulse.sent();
    }
}
