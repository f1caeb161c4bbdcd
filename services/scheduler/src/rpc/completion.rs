//! Changes that no caller can break off.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tonic::Status;

/// Runs a change while its caller waits. If the caller goes away, the rest runs in a task, so that no change stays half done.
pub(super) async fn run_to_completion<T: Send + 'static>(
    change: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    DetachOnDrop(Some(change.boxed())).await
}

/// A change that is under way.
struct DetachOnDrop<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(change) = &mut self.0 else { return Poll::Pending };
        let ended = change.as_mut().poll(context);
        if ended.is_ready() {
            self.0 = None;
        }
        ended
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        // Without a runtime the service has ended.
        if let (Some(rest), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_change_is_made_though_its_caller_goes_away() {
        let (go, gone) = oneshot::channel::<()>();
        let (made, is_made) = oneshot::channel();
        let change = async move {
            gone.await.expect("it goes on");
            made.send(7).expect("somebody looks");
            Ok(())
        };
        {
            let mut waiting = std::pin::pin!(run_to_completion(change));
            assert!(futures_util::poll!(&mut waiting).is_pending());
        }
        go.send(()).expect("it was not dropped");
        assert_eq!(is_made.await, Ok(7));
    }

    #[tokio::test]
    async fn a_caller_that_waits_receives_the_answer() {
        assert_eq!(run_to_completion(async { Ok(3) }).await.expect("made"), 3);
    }
}
