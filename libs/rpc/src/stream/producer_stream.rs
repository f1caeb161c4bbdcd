//! Answers that a future makes which runs where they are read.

use std::task::Poll;

use futures_util::{Stream, stream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

/// Stream of what a future sends, with a buffer of `room` items. The future runs when the stream is polled, and ends with it:
/// there is no task, and nothing to wake. Nothing else may send to it.
pub fn producer_stream<T, F>(room: usize, produce: impl FnOnce(mpsc::Sender<T>) -> F) -> impl Stream<Item = T>
where
    F: Future<Output = ()>,
{
    let (sender, mut items) = mpsc::channel(room);
    let mut producing = Some(Box::pin(produce(sender)));
    stream::poll_fn(move |context| {
        loop {
            match items.try_recv() {
                Ok(item) => return Poll::Ready(Some(item)),
                Err(TryRecvError::Disconnected) => return Poll::Ready(None),
                Err(TryRecvError::Empty) => {}
            }
            let is_over = match &mut producing {
                Some(future) => future.as_mut().poll(context).is_ready(),
                None => return Poll::Ready(None),
            };
            if is_over {
                producing = None;
            } else if items.is_empty() {
                // The future has the reader woken by whatever it waits for.
                return Poll::Pending;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::StreamExt as _;
    use tokio::sync::{Notify, oneshot};

    use super::*;

    #[tokio::test]
    async fn all_that_is_sent_is_read_in_its_order() {
        let numbers = producer_stream(2, |sender| async move {
            for n in 0..100 {
                if n % 7 == 0 {
                    tokio::task::yield_now().await;
                }
                sender.send(n).await.expect("it is read");
            }
        });
        assert_eq!(numbers.collect::<Vec<_>>().await, Vec::from_iter(0..100));
        assert_eq!(producer_stream(1, |_: mpsc::Sender<()>| std::future::ready(())).count().await, 0);
    }

    #[tokio::test]
    async fn the_future_goes_on_when_what_it_waits_for_comes_and_ends_with_its_reader() {
        let (notify, end_channel) = (Notify::new(), oneshot::channel::<()>());
        let (ends, ended) = end_channel;
        let notify_inside = &notify;
        let items = producer_stream(1, |sender| async move {
            let _ends = ends;
            loop {
                notify_inside.notified().await;
                sender.send("word").await.expect("it is read");
            }
        });
        {
            let mut items = pin!(items);
            let notifying = async {
                tokio::task::yield_now().await;
                notify.notify_one();
            };
            let (item, ()) = tokio::join!(items.next(), notifying);
            assert_eq!(item, Some("word"));
        }
        assert!(ended.await.is_err(), "it is dropped");
    }
}
