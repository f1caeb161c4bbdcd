//! A directory in memory, which tests change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures_util::future::{BoxFuture, pending, ready};
use identity::{ActorVerifyingKey, SigningKey};
use model::{ActorId, ContextId, Timestamp};
use rpc::{Directory, DirectoryFeedState, DirectorySubject, KnownActor, Membership};
use tokio::sync::watch;
use tonic::Status;

/// Directory with the answers that a test has set.
#[derive(Debug)]
pub(crate) struct Known {
    answers: Mutex<KnownAnswers>,
    feed_state: watch::Sender<DirectoryFeedState>,
}

impl Default for Known {
    fn default() -> Self {
        Self { answers: Mutex::default(), feed_state: watch::Sender::new(DirectoryFeedState::Live) }
    }
}

#[derive(Debug, Default)]
struct KnownAnswers {
    actors: BTreeMap<ActorId, Arc<KnownActor>>,
    members: BTreeMap<(ContextId, ActorId), Membership>,
    spent: BTreeSet<(ActorId, String)>,
    /// How often an actor was looked up.
    lookups: u64,
    is_away: bool,
    is_silent: bool,
}

impl Known {
    /// Knows this actor, with this key, which counts from the beginning of time.
    pub(crate) fn with(actor: ActorId, key: &SigningKey) -> Arc<Self> {
        let known = Self::default();
        let key = ActorVerifyingKey {
            key: key.verifying_key(),
            not_before: Timestamp::default(),
            revoked_at: None,
        };
        known.put(actor, KnownActor { keys: vec![key], certificates_not_before: None });
        Arc::new(known)
    }

    pub(crate) fn put(&self, actor: ActorId, known: KnownActor) {
        self.change(|answers| drop(answers.actors.insert(actor, Arc::new(known))));
    }

    pub(crate) fn edit(&self, actor: ActorId, edit: impl FnOnce(&mut KnownActor)) {
        self.change(|answers| edit(Arc::make_mut(answers.actors.get_mut(&actor).unwrap())));
    }

    pub(crate) fn forget(&self, actor: ActorId) {
        self.change(|answers| drop(answers.actors.remove(&actor)));
    }

    pub(crate) fn set_member(&self, context: ContextId, actor: ActorId, membership: Membership) {
        self.change(|answers| {
            answers.members.insert((context, actor), membership);
        });
    }

    /// From now on it answers nothing, or again.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.change(|answers| answers.is_away = is_away);
    }

    /// From now on it answers, and says no more when something changes.
    pub(crate) fn lose_feed(&self) {
        self.feed_state.send_replace(DirectoryFeedState::Silent);
    }

    /// Sets a membership without reporting the change.
    pub(crate) fn set_member_in_silence(&self, context: ContextId, actor: ActorId, membership: Membership) {
        self.answers.lock().unwrap().members.insert((context, actor), membership);
    }

    /// From now on it takes questions and does not answer them.
    pub(crate) fn fall_silent(&self) {
        self.change(|answers| answers.is_silent = true);
    }

    /// Another actor changed.
    pub(crate) fn touch(&self) {
        self.change(|_| ());
    }

    pub(crate) fn lookups(&self) -> u64 {
        self.answers.lock().unwrap().lookups
    }

    fn change(&self, change: impl FnOnce(&mut KnownAnswers)) {
        change(&mut self.answers.lock().unwrap());
        self.feed_state.send_modify(|_| ());
    }

    fn answer<T: Send + 'static>(
        &self,
        answer: impl FnOnce(&mut KnownAnswers) -> T,
    ) -> BoxFuture<'_, Result<T, Status>> {
        let mut answers = self.answers.lock().unwrap();
        if answers.is_silent {
            return Box::pin(pending());
        }
        let answer =
            if answers.is_away { Err(Status::unavailable("away")) } else { Ok(answer(&mut answers)) };
        Box::pin(ready(answer))
    }
}

impl Directory for Known {
    fn actor(&self, id: ActorId) -> BoxFuture<'_, Result<Option<Arc<KnownActor>>, Status>> {
        self.answer(|answers| {
            answers.lookups += 1;
            answers.actors.get(&id).cloned()
        })
    }

    fn membership(&self, context: ContextId, actor: ActorId) -> BoxFuture<'_, Result<Membership, Status>> {
        self.answer(|answers| answers.members.get(&(context, actor)).copied().unwrap_or_default())
    }

    fn consume_token(
        &self,
        actor: ActorId,
        token_id: String,
        _: Timestamp,
    ) -> BoxFuture<'_, Result<bool, Status>> {
        self.answer(|answers| answers.spent.insert((actor, token_id)))
    }

    /// Returns one feed for all subjects: every subscriber is notified of every change.
    fn changes(&self, _: DirectorySubject) -> watch::Receiver<DirectoryFeedState> {
        self.feed_state.subscribe()
    }
}
