//! A directory that remembers what it read.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, ready};
use model::{ActorId, ContextId, Timestamp};
use rpc::{Directory, DirectoryFeedState, DirectorySubject, Error, KnownActor, Membership, RpcReason};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tonic::Status;

use crate::view_state::{DirectoryInvalidation, DirectoryViewState};
use crate::watchers::DirectoryWatchers;

/// Reads from the source at once. Anybody can make up tokens of actors, and each one causes a read.
const QUESTIONS_MAX: usize = 64;

/// Source of a view: reads what is true now.
pub trait DirectorySource: Debug + Send + Sync + 'static {
    /// Reads an actor; nothing when no actor has this number, or no longer.
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
    /// When the source cannot be asked now.
    fn consume_token(
        &self,
        actor: ActorId,
        token_id: String,
        until: Timestamp,
    ) -> impl Future<Output = Result<bool, Status>> + Send;
}

/// Directory that answers from memory what it read from a source, as long as it receives changes. Cheap to clone.
#[derive(Debug)]
pub struct DirectoryView<S>(Arc<DirectoryViewInner<S>>);

#[derive(Debug)]
struct DirectoryViewInner<S> {
    source: S,
    view: Mutex<DirectoryViewState>,
    listeners: Mutex<DirectoryWatchers>,
    questions: Semaphore,
}

impl<S> Clone for DirectoryView<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: DirectorySource> DirectoryView<S> {
    /// Makes a view that reads from the source each time, until [`DirectoryInvalidation::FeedRestored`] comes.
    pub fn new(source: S) -> Self {
        Self(Arc::new(DirectoryViewInner {
            source,
            view: Mutex::default(),
            listeners: Mutex::default(),
            questions: Semaphore::new(QUESTIONS_MAX),
        }))
    }

    /// Returns the source.
    #[must_use]
    pub fn source(&self) -> &S {
        &self.0.source
    }

    /// Forgets answers that may not hold any more, and wakes the watchers of their subjects, and only those. A repeated loss of the
    /// feed wakes none.
    pub fn invalidate(&self, invalidation: DirectoryInvalidation) {
        // Held until all watchers are notified, so that they see changes in order.
        let mut view = self.view();
        if view.invalidate(invalidation) {
            self.listeners().notify(invalidation);
        }
    }

    /// For gates and streams.
    #[must_use]
    pub fn directory(&self) -> Arc<dyn Directory> {
        Arc::new(self.clone())
    }

    fn view(&self) -> MutexGuard<'_, DirectoryViewState> {
        // Nothing panics while it holds the lock, so a poisoned one is as good as any.
        self.0.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> MutexGuard<'_, DirectoryWatchers> {
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn question(&self) -> Result<SemaphorePermit<'_>, Status> {
        let permit = self.0.questions.acquire().await;
        permit.map_err(|_| Error::unavailable(RpcReason::Draining, "the directory has ended").into())
    }
}

impl<S: DirectorySource> Directory for DirectoryView<S> {
    fn actor(&self, id: ActorId) -> BoxFuture<'_, Result<Option<Arc<KnownActor>>, Status>> {
        if let Some(known) = self.view().actor(id) {
            return Box::pin(ready(Ok(Some(known))));
        }
        Box::pin(async move {
            let _permit = self.question().await?;
            let generation = self.view().current_generation();
            let Some(actor) = self.0.source.read_actor(id).await? else { return Ok(None) };
            let actor = Arc::new(actor);
            self.view().keep_actor(generation, id, &actor);
            Ok(Some(actor))
        })
    }

    fn membership(&self, context: ContextId, actor: ActorId) -> BoxFuture<'_, Result<Membership, Status>> {
        if let Some(known) = self.view().role(context, actor) {
            return Box::pin(ready(Ok(known)));
        }
        Box::pin(async move {
            let _permit = self.question().await?;
            let generation = self.view().current_generation();
            let role = self.0.source.read_membership(context, actor).await?;
            self.view().keep_role(generation, context, actor, role);
            Ok(role)
        })
    }

    fn consume_token(
        &self,
        actor: ActorId,
        token_id: String,
        until: Timestamp,
    ) -> BoxFuture<'_, Result<bool, Status>> {
        Box::pin(self.0.source.consume_token(actor, token_id, until))
    }

    fn changes(&self, of: DirectorySubject) -> watch::Receiver<DirectoryFeedState> {
        self.listeners().subscribe(of)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use futures_util::{Stream, StreamExt as _, stream};
    use model::Role;
    use rpc::while_member;

    use super::*;

    const ALICE: ActorId = ActorId(1);
    const BOB: ActorId = ActorId(2);
    const HERE: ContextId = ContextId(1);
    const THERE: ContextId = ContextId(2);

    /// Source in which everybody is a reader; counts its reads.
    #[derive(Debug, Default)]
    struct Readers(AtomicUsize);

    impl DirectorySource for Readers {
        async fn read_actor(&self, _: ActorId) -> Result<Option<KnownActor>, Status> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Some(KnownActor { keys: Vec::new(), certificates_not_before: None }))
        }

        async fn read_membership(&self, _: ContextId, _: ActorId) -> Result<Membership, Status> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Membership { role: Some(Role::Reader), is_deleting: false })
        }

        async fn consume_token(&self, _: ActorId, _: String, _: Timestamp) -> Result<bool, Status> {
            Ok(true)
        }
    }

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A stream of a member, and the task that waits for it.
    struct Watched<S> {
        stream: S,
        woken: Arc<Woken>,
    }

    impl<S: Stream + Unpin> Watched<S> {
        /// Goes on as far as it can. Gives how often its task was woken for it.
        fn go_on(&mut self) -> usize {
            let waker = Waker::from(Arc::clone(&self.woken));
            let next = self.stream.poll_next_unpin(&mut Context::from_waker(&waker));
            assert!(matches!(next, Poll::Pending), "it ended");
            self.woken.0.swap(0, Ordering::Relaxed)
        }
    }

    fn watched(views: &DirectoryView<Readers>) -> Watched<impl Stream + Unpin + use<>> {
        let silent = stream::pending::<Result<(), Status>>();
        let stream = while_member(silent, views.directory(), HERE, ALICE, Role::Reader);
        Watched { stream, woken: Arc::default() }
    }

    fn lookups(views: &DirectoryView<Readers>) -> usize {
        views.source().0.swap(0, Ordering::Relaxed)
    }

    #[tokio::test]
    async fn changes_of_others_wake_no_watcher() {
        let views = DirectoryView::new(Readers::default());
        views.invalidate(DirectoryInvalidation::FeedRestored);
        let mut stream = watched(&views);
        stream.go_on();
        assert_eq!(lookups(&views), 1);
        for _ in 0..1000 {
            for invalidation in [
                DirectoryInvalidation::Actor(BOB),
                DirectoryInvalidation::Actor(ALICE),
                DirectoryInvalidation::Context(THERE),
            ] {
                views.invalidate(invalidation);
            }
        }
        assert_eq!((stream.go_on(), lookups(&views)), (0, 0), "its role is what it leans on");
        views.invalidate(DirectoryInvalidation::Context(HERE));
        assert_eq!((stream.go_on(), lookups(&views)), (1, 1));
        assert_eq!((stream.go_on(), lookups(&views)), (0, 0));
    }

    #[tokio::test]
    async fn an_actor_that_changes_all_the_time_does_not_keep_others_from_being_remembered() {
        let views = DirectoryView::new(Readers::default());
        views.invalidate(DirectoryInvalidation::FeedRestored);
        let ask = async || views.directory().actor(ALICE).await;
        let generation = views.view().current_generation();
        views.invalidate(DirectoryInvalidation::Actor(BOB));
        let alice = KnownActor { keys: Vec::new(), certificates_not_before: None };
        views.view().keep_actor(generation, ALICE, &Arc::new(alice));
        assert!(ask().await.is_ok_and(|alice| alice.is_some()));
        assert_eq!(lookups(&views), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_feed_wakes_a_stream_once_and_then_causes_periodic_lookups() {
        let views = DirectoryView::new(Readers::default());
        views.invalidate(DirectoryInvalidation::FeedRestored);
        let mut stream = watched(&views);
        stream.go_on();
        assert_eq!(lookups(&views), 1);
        // The watch is reopened five times a second, and fails.
        views.invalidate(DirectoryInvalidation::FeedLost);
        assert_eq!((stream.go_on(), lookups(&views)), (1, 1));
        for _ in 0..100 {
            views.invalidate(DirectoryInvalidation::FeedLost);
        }
        assert_eq!((stream.go_on(), lookups(&views)), (0, 0));
        // A role that is taken away now would cause no notification.
        let seconds = 20;
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            stream.go_on();
        }
        let lookups_in_silence = lookups(&views);
        assert!((seconds / 4..=seconds).contains(&lookups_in_silence), "{lookups_in_silence}");
        views.invalidate(DirectoryInvalidation::FeedRestored);
        stream.go_on();
        assert_eq!(lookups(&views), 1);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!((stream.go_on(), lookups(&views)), (0, 0));
    }
}
