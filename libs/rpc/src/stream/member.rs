//! Streams that end when what allowed them is taken away.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use model::context::AccessDenied;
use model::{ActorId, ContextId, Role, Timestamp};
use tokio::time::Instant;
use tonic::Status;
use tonic::codegen::BoxStream;

use crate::caller::directory::{Directory, DirectoryFeedState, DirectorySubject, Membership};
use crate::error::{Error, ErrorKind, RpcReason};

/// How long a stream goes on while the directory cannot answer whether it may.
const DOUBT_MAX: Duration = Duration::from_secs(30);
/// The pause before the directory is asked again after an error.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The pause before the directory is asked again while it answers but receives no changes: a loss would not be noticed otherwise.
const ASK_IN_SILENCE: Duration = Duration::from_secs(2);

/// Passes a stream on as long as `actor` has at least this role in `context`. It ends with `PERMISSION_DENIED`
/// (`ROLE_INSUFFICIENT`) when the role has become too small, with `NOT_FOUND` when none is left, with
/// `FAILED_PRECONDITION` (`CONTEXT_DELETING`) when the context goes, and with `UNAVAILABLE` when the directory did not
/// answer for 30 s.
///
/// Whether the actor may begin is not checked here: the caller that opens the stream has decided it.
pub fn while_member<S, T>(
    stream: S,
    directory: Arc<dyn Directory>,
    context: ContextId,
    actor: ActorId,
    role: Role,
) -> BoxStream<T>
where
    S: Stream<Item = Result<T, Status>> + Send + 'static,
    T: 'static,
{
    let lost = until_no_member(directory, context, actor, role);
    Box::pin(RevocableStream { stream: Some(Box::pin(stream)), lost: Some(Box::pin(lost)) })
}

/// Awaits the answer of a call, unless `actor` loses this role in `context` first; then fails as
/// [`while_member`] ends. The unfinished answer is dropped.
///
/// # Errors
/// As the answer; and when the role is lost.
pub async fn answer_while_member<T>(
    answer: impl Future<Output = Result<T, Status>>,
    directory: Arc<dyn Directory>,
    context: ContextId,
    actor: ActorId,
    role: Role,
) -> Result<T, Status> {
    tokio::select! {
        biased;
        answer = answer => answer,
        lost = until_no_member(directory, context, actor, role) => Err(lost),
    }
}

/// Waits until the role is lost, and returns the status for the caller.
async fn until_no_member(
    directory: Arc<dyn Directory>,
    context: ContextId,
    actor: ActorId,
    role: Role,
) -> Status {
    until_lost(&*directory, DirectorySubject::Context(context), || async {
        let membership = directory.membership(context, actor).await?;
        Ok(judged(membership, context, actor, role))
    })
    .await
}

fn judged(membership: Membership, context: ContextId, actor: ActorId, needed: Role) -> AccessGrantState {
    let Some(role) = membership.role else {
        return AccessGrantState::Lost(Error::not_found(format!("context {context}")).into());
    };
    if role < needed {
        let message = AccessDenied::RoleTooSmall { actor, context, needed }.to_string();
        let error = Error::new(ErrorKind::PermissionDenied, RpcReason::RoleInsufficient, message);
        return AccessGrantState::Lost(error.into());
    }
    if membership.is_deleting {
        let message = format!("context {context} is being deleted");
        let error = Error::new(ErrorKind::FailedPrecondition, RpcReason::ContextDeleting, message);
        return AccessGrantState::Lost(error.into());
    }
    AccessGrantState::Holds { until: None }
}

/// State of a grant that a stream depends on.
#[derive(Debug)]
pub(crate) enum AccessGrantState {
    /// Yes; `until` then at the longest, when an end is set.
    Holds { until: Option<Timestamp> },
    /// No; the status is for the caller.
    Lost(Status),
}

/// Waits until the permission is lost, and returns the status for the caller. Asks at once, whenever the directory reports a change
/// of the subject, at the permission's own end, and every now and then while the directory receives no changes.
pub(crate) async fn until_lost<A, F>(directory: &dyn Directory, subject: DirectorySubject, ask: A) -> Status
where
    A: Fn() -> F,
    F: Future<Output = Result<AccessGrantState, Status>>,
{
    let mut changes = directory.changes(subject);
    let mut in_doubt_since = None;
    loop {
        // Marked as seen before asking, so that a change during the question causes another one.
        let feed_state = *changes.borrow_and_update();
        // No answer leaves as much in doubt as an error.
        let since: Instant = in_doubt_since.unwrap_or_else(Instant::now);
        let answer = tokio::time::timeout_at(since + DOUBT_MAX, ask()).await;
        let pause = match answer.unwrap_or_else(|_| Err(Status::unavailable("no answer"))) {
            Ok(AccessGrantState::Lost(status)) => return status,
            Ok(AccessGrantState::Holds { until }) => {
                in_doubt_since = None;
                let end = until.map(|until| until.since(Timestamp::now()));
                match feed_state {
                    DirectoryFeedState::Live => end,
                    DirectoryFeedState::Silent => {
                        Some(end.map_or(ASK_IN_SILENCE, |end| end.min(ASK_IN_SILENCE)))
                    }
                }
            }
            Err(status) => {
                if since.elapsed() >= DOUBT_MAX {
                    return doubtful(&status);
                }
                in_doubt_since = Some(since);
                Some(ASK_AGAIN)
            }
        };
        let pause = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return doubtful(&Status::unavailable("the directory has ended"));
            },
            () = pause => {}
        }
    }
}

fn doubtful(why: &Status) -> Status {
    let message = format!("cannot check whether the caller still has permission: {}", why.message());
    Error::unavailable(RpcReason::PeerUnavailable, message).into()
}

/// A stream until something happens, which it ends with.
struct RevocableStream<S> {
    /// Dropped at its end, so that its producer notices.
    stream: Option<Pin<Box<S>>>,
    lost: Option<BoxFuture<'static, Status>>,
}

impl<S, T> Stream for RevocableStream<S>
where
    S: Stream<Item = Result<T, Status>>,
{
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(lost) = &mut self.lost
            && let Poll::Ready(status) = lost.as_mut().poll(cx)
        {
            self.lost = None;
            self.stream = None;
            return Poll::Ready(Some(Err(status)));
        }
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        let next = stream.as_mut().poll_next(cx);
        if matches!(next, Poll::Ready(None)) {
            self.stream = None;
            self.lost = None;
        }
        next
    }
}
