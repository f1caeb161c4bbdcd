//! Lookups of actors that a server makes while it serves requests.

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use identity::ActorVerifyingKey;
use model::{ActorId, ContextId, Role, Timestamp};
use tokio::sync::watch;
use tonic::Status;

/// An actor as far as it matters for believing it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownActor {
    /// Keys of the actor and when each counts, oldest first.
    pub keys: Vec<ActorVerifyingKey>,
    /// Certificates that were issued before this moment do not count; absent: all do.
    pub certificates_not_before: Option<Timestamp>,
}

/// Membership of an actor in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Membership {
    /// Role of the actor; absent when it has none, and when there is no such context.
    pub role: Option<Role>,
    /// The context is on its way out.
    pub is_deleting: bool,
}

/// Subject of a lookup, and of the changes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DirectorySubject {
    /// An actor: its keys and certificates.
    Actor(ActorId),
    /// A context: who is what in it.
    Context(ContextId),
}

/// State of a directory's change feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryFeedState {
    /// Every change is reported.
    Live,
    /// No change is reported: an answer is true when it is given, and has to be requested again.
    Silent,
}

/// Knows the actors and their roles in contexts. May answer from memory only while it would be notified of a change.
pub trait Directory: Debug + Send + Sync + 'static {
    /// Returns an actor; nothing when no actor has this number, or no longer.
    ///
    /// # Errors
    /// When the directory cannot answer now.
    fn actor(&self, id: ActorId) -> BoxFuture<'_, Result<Option<Arc<KnownActor>>, Status>>;

    /// Returns the membership of an actor in a context.
    ///
    /// # Errors
    /// When the directory cannot answer now.
    fn membership(&self, context: ContextId, actor: ActorId) -> BoxFuture<'_, Result<Membership, Status>>;

    /// Uses up the id of a token, which is remembered until then. Returns `false` when it was used up before.
    ///
    /// # Errors
    /// When the directory cannot answer now; the id may be used up all the same.
    fn consume_token(
        &self,
        actor: ActorId,
        token_id: String,
        until: Timestamp,
    ) -> BoxFuture<'_, Result<bool, Status>>;

    /// Changes whenever an earlier answer about this subject may not hold any more; the value is whether the next change would be noticed.
    fn changes(&self, of: DirectorySubject) -> watch::Receiver<DirectoryFeedState>;
}
