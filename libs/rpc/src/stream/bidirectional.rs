//! Answers beside which their stream is served, all of it where the stream is read.

use std::task::{Poll, ready};

use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use tonic::Status;

/// Stream of answers, beside which `serving` handles the caller's messages. Both run where the stream is polled and end with it: there is
/// no task, and nothing to wake.
///
/// The stream ends when `serving` does, before answers that were not read yet, with the status that it may give; or when there are no more
/// answers. The answers are dropped last.
pub fn bidirectional<T, S, F>(
    answers: S,
    serving: F,
) -> impl Stream<Item = Result<T, Status>> + Send + use<T, S, F>
where
    S: Stream<Item = T> + Send,
    F: Future<Output = Result<(), Status>> + Send,
{
    let mut both = Some((Box::pin(serving), Box::pin(answers)));
    stream::poll_fn(move |context| {
        let Some((serving, answers)) = &mut both else { return Poll::Ready(None) };
        let next = match serving.poll_unpin(context) {
            Poll::Ready(ended) => ended.err().map(Err),
            Poll::Pending => ready!(answers.poll_next_unpin(context)).map(Ok),
        };
        if !matches!(next, Some(Ok(_))) {
            both = None;
        }
        Poll::Ready(next)
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::sync::oneshot;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn a_stream_ends_as_its_serving_does() {
        for (end, code) in [(Ok(()), None), (Err(Status::unavailable("it drains")), Some(Code::Unavailable))]
        {
            let (ends, ended) = oneshot::channel();
            let serving = async { ended.await.expect("an end") };
            let mut stream = pin!(bidirectional(stream::iter([1, 2]).chain(stream::pending()), serving));
            assert_eq!(stream.next().await.expect("an answer").expect("it is one"), 1);
            ends.send(end).expect("it is served");
            let last = stream.next().await.map(|end| end.expect_err("no answer").code());
            assert_eq!(last, code);
            assert!(stream.next().await.is_none());
        }
    }

    #[tokio::test]
    async fn serving_ends_with_the_answers_and_with_their_reader() {
        for is_read in [true, false] {
            let (lives, gone) = oneshot::channel::<()>();
            let serving = async {
                let _lives = lives;
                std::future::pending().await
            };
            let mut stream = Box::pin(bidirectional(stream::iter([1]), serving));
            assert_eq!(stream.next().await.expect("an answer").expect("it is one"), 1);
            if is_read {
                assert!(stream.next().await.is_none(), "there are no more");
                gone.await.expect_err("nothing is served any more");
            } else {
                drop(stream);
                gone.await.expect_err("nobody reads");
            }
        }
    }
}
