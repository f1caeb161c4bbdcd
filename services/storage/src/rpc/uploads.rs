//! Room for uploads, which are held in memory until they are whole.
//!
//! A client that sends nothing or hardly anything loses its room: each piece and the whole upload have a time limit. Neither an actor
//! nor a context gets all of the room, and an upload without room is refused at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::rpc::{Error, ErrorKind, RpcReason};
use futures_util::{Stream, StreamExt as _};
use model::{ActorId, ContextId};
use tokio::time::Instant;
use tonic::Status;

/// Uploads that are held in memory at once.
pub(crate) const UPLOADS_MAX: usize = 16;
/// Maximum number of uploads of one actor, and into one context.
pub(crate) const UPLOADS_EACH_MAX: usize = 4;
/// How long a piece may be waited for.
pub(crate) const PIECE_SECS_MAX: u64 = 30;
/// How long an upload may take.
pub(crate) const UPLOAD_SECS_MAX: u64 = 600;
/// When a client that found no room may look again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The room of this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlobUploadLimiter(Arc<Mutex<UploadSlotCounts>>);

#[derive(Debug, Default)]
struct UploadSlotCounts {
    all: usize,
    each: HashMap<UploadSlotOwner, usize>,
}

/// Holder of a share of the upload slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum UploadSlotOwner {
    Actor(ActorId),
    Context(ContextId),
}

/// An upload that has room, until it is dropped.
#[derive(Debug)]
pub(crate) struct BlobUploadPermit {
    uploads: BlobUploadLimiter,
    whose: [UploadSlotOwner; 2],
    end: Instant,
}

impl BlobUploadLimiter {
    /// Acquires room for one more upload.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED (`OVERLOADED`) when there is none.
    pub(crate) fn acquire(&self, context: ContextId, actor: ActorId) -> Result<BlobUploadPermit, Error> {
        let whose = [UploadSlotOwner::Actor(actor), UploadSlotOwner::Context(context)];
        let mut taken = self.taken();
        for one in whose {
            if taken.each.get(&one).is_some_and(|count| *count >= UPLOADS_EACH_MAX) {
                let of = match one {
                    UploadSlotOwner::Actor(actor) => format!("of actor {actor}"),
                    UploadSlotOwner::Context(context) => format!("into context {context}"),
                };
                return Err(refused(&of, UPLOADS_EACH_MAX));
            }
        }
        if taken.all >= UPLOADS_MAX {
            return Err(refused("at once", UPLOADS_MAX));
        }
        taken.all += 1;
        for one in whose {
            *taken.each.entry(one).or_default() += 1;
        }
        let end = Instant::now() + Duration::from_secs(UPLOAD_SECS_MAX);
        Ok(BlobUploadPermit { uploads: self.clone(), whose, end })
    }

    fn taken(&self) -> MutexGuard<'_, UploadSlotCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlobUploadPermit {
    /// The next piece; nothing when there are no more.
    ///
    /// # Errors
    /// What ended the stream; DEADLINE_EXCEEDED when the piece, or all of them, took too long.
    pub(crate) async fn next<T>(
        &self,
        pieces: &mut (impl Stream<Item = Result<T, Status>> + Unpin),
    ) -> Result<Option<T>, Status> {
        next_before(self.end, pieces).await
    }
}

impl Drop for BlobUploadPermit {
    fn drop(&mut self) {
        let mut taken = self.uploads.taken();
        taken.all -= 1;
        for one in self.whose {
            if let Some(count) = taken.each.get_mut(&one) {
                *count -= 1;
                if *count == 0 {
                    taken.each.remove(&one);
                }
            }
        }
    }
}

/// Receives the first piece. It says where all pieces go, so room can be acquired only after it.
///
/// # Errors
/// As [`BlobUploadPermit::next`].
pub(crate) async fn first<T>(
    pieces: &mut (impl Stream<Item = Result<T, Status>> + Unpin),
) -> Result<Option<T>, Status> {
    next_before(Instant::now() + Duration::from_secs(UPLOAD_SECS_MAX), pieces).await
}

async fn next_before<T>(
    end: Instant,
    pieces: &mut (impl Stream<Item = Result<T, Status>> + Unpin),
) -> Result<Option<T>, Status> {
    let latest = Instant::now() + Duration::from_secs(PIECE_SECS_MAX);
    match tokio::time::timeout_at(latest.min(end), pieces.next()).await {
        Ok(piece) => piece.transpose(),
        Err(_) => {
            let what =
                format!("a piece within {PIECE_SECS_MAX} s, or all of them within {UPLOAD_SECS_MAX} s");
            let message = format!("the upload is too slow: {what} did not come");
            Err(Error::new(ErrorKind::DeadlineExceeded, RpcReason::DeadlineExceeded, message).into())
        }
    }
}

fn refused(of: &str, max: usize) -> Error {
    let message = format!("there are as many uploads {of} as there may be ({max})");
    Error::new(ErrorKind::ResourceExhausted, RpcReason::Overloaded, message)
        .with("kind", "upload")
        .with("max", max)
        .retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[test]
    fn no_actor_and_no_context_gets_all_of_the_room() {
        let uploads = BlobUploadLimiter::default();
        let begin = |context, actor| uploads.acquire(ContextId(context), ActorId(actor));
        let mut held: Vec<BlobUploadPermit> = Vec::new();
        for _ in 0..UPLOADS_EACH_MAX {
            held.push(begin(1, 1).expect("there is room"));
        }
        let refused = begin(2, 1).expect_err("too many of this actor");
        assert_eq!(refused.reason(), RpcReason::Overloaded);
        assert!(refused.to_string().contains("of actor 1"), "{refused}");
        let refused = begin(1, 2).expect_err("too many into this context");
        assert!(refused.to_string().contains("into context 1"), "{refused}");
        for id in (2..).take(UPLOADS_MAX - UPLOADS_EACH_MAX) {
            held.push(begin(id, id).expect("there is room"));
        }
        let refused = begin(100, 100).expect_err("too many at once");
        assert!(refused.to_string().contains("at once"), "{refused}");
        // Refused uploads hold no room, and ended ones have given all of it back.
        held.clear();
        let taken = uploads.taken();
        assert_eq!((taken.all, taken.each.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_of_nothing_is_not_waited_for() {
        let upload = BlobUploadLimiter::default().acquire(ContextId(1), ActorId(1)).expect("there is room");
        let began = Instant::now();
        let mut silent = stream::pending::<Result<(), Status>>();
        let late = upload.next(&mut silent).await.expect_err("nothing came");
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        assert_eq!(began.elapsed().as_secs(), PIECE_SECS_MAX);
        let late = first(&mut silent).await.expect_err("nothing came");
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_of_hardly_anything_is_not_waited_for() {
        let upload = BlobUploadLimiter::default().acquire(ContextId(1), ActorId(1)).expect("there is room");
        let began = Instant::now();
        let pause = Duration::from_secs(PIECE_SECS_MAX - 1);
        let ticks = tokio::time::interval_at(began + pause, pause);
        let trickle = stream::unfold(ticks, |mut ticks| async move {
            ticks.tick().await;
            Some((Ok::<_, Status>(()), ticks))
        });
        let mut trickle = Box::pin(trickle);
        let late = loop {
            match upload.next(&mut trickle).await {
                Ok(piece) => assert_eq!(piece, Some(())),
                Err(late) => break late,
            }
        };
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        assert_eq!(began.elapsed().as_secs(), UPLOAD_SECS_MAX);
    }
}
