//! A directory that remembers what it read.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, ready};
use model::{ActorId, ContextId, Timestamp};
use rpc::{Directory, Error, KnownActor, Membership, Reason};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tonic::Status;

use crate::view::{News, View};

/// Questions that are asked of the source at once. Anybody can make up tokens of actors, and each is a question.
const QUESTIONS_MAX: usize = 64;

/// Where the truth is.
pub trait Source: Debug + Send + Sync + 'static {
    /// Reads an actor; nothing when there is none by this number, or no more.
    ///
    /// # Errors
    /// When it cannot be read now.
    fn read_actor(&self, id: ActorId) -> impl Future<Output = Result<Option<KnownActor>, Status>> + Send;

    /// Reads what an actor is in a context.
    ///
    /// # Errors
    /// When it cannot be read now.
    fn read_membership(
        &self,
        context: ContextId,
        actor: ActorId,
    ) -> impl Future<Output = Result<Membership, Status>> + Send;

    /// Uses up the id of a token; `false` when it was used up before.
    ///
    /// # Errors
    /// When that cannot be told now.
    fn spend(
        &self,
        actor: ActorId,
        token_id: String,
        until: Timestamp,
    ) -> impl Future<Output = Result<bool, Status>> + Send;
}

/// Answers from memory what was read from a source, as long as it hears of changes. Cheap to clone.
#[derive(Debug)]
pub struct Views<S>(Arc<Inner<S>>);

#[derive(Debug)]
struct Inner<S> {
    source: S,
    view: Mutex<View>,
    changed: watch::Sender<u64>,
    questions: Semaphore,
}

impl<S> Clone for Views<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Source> Views<S> {
    /// Remembers nothing until [`News::Everything`] is heard, and asks the source each time.
    pub fn new(source: S) -> Self {
        Self(Arc::new(Inner {
            source,
            view: Mutex::default(),
            changed: watch::Sender::new(0),
            questions: Semaphore::new(QUESTIONS_MAX),
        }))
    }

    /// Where the truth is.
    #[must_use]
    pub fn source(&self) -> &S {
        &self.0.source
    }

    /// Forgets what may not hold any more, and wakes whoever leans on it.
    pub fn hear(&self, news: News) {
        self.view().hear(news);
        self.0.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// For gates and streams.
    #[must_use]
    pub fn directory(&self) -> Arc<dyn Directory> {
        Arc::new(self.clone())
    }

    fn view(&self) -> MutexGuard<'_, View> {
        // Nothing panics while it holds the lock, so a poisoned one is as good as any.
        self.0.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn question(&self) -> Result<SemaphorePermit<'_>, Status> {
        let permit = self.0.questions.acquire().await;
        permit.map_err(|_| Error::unavailable(Reason::Draining, "the directory has ended").into())
    }
}

impl<S: Source> Directory for Views<S> {
    fn actor(&self, id: ActorId) -> BoxFuture<'_, Result<Option<Arc<KnownActor>>, Status>> {
        if let Some(known) = self.view().actor(id) {
            return Box::pin(ready(Ok(Some(known))));
        }
        Box::pin(async move {
            let _permit = self.question().await?;
            let asked = self.view().ask();
            let Some(actor) = self.0.source.read_actor(id).await? else { return Ok(None) };
            let actor = Arc::new(actor);
            self.view().keep_actor(asked, id, &actor);
            Ok(Some(actor))
        })
    }

    fn membership(&self, context: ContextId, actor: ActorId) -> BoxFuture<'_, Result<Membership, Status>> {
        if let Some(known) = self.view().role(context, actor) {
            return Box::pin(ready(Ok(known)));
        }
        Box::pin(async move {
            let _permit = self.question().await?;
            let asked = self.view().ask();
            let role = self.0.source.read_membership(context, actor).await?;
            self.view().keep_role(asked, context, actor, role);
            Ok(role)
        })
    }

    fn spend(
        &self,
        actor: ActorId,
        token_id: String,
        until: Timestamp,
    ) -> BoxFuture<'_, Result<bool, Status>> {
        Box::pin(self.0.source.spend(actor, token_id, until))
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }
}
