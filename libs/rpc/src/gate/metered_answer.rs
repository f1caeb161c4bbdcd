//! An answer's body whose large messages are counted until its caller has taken them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::error::Error;
use crate::gate::budget::{BudgetAccount, BytesPermit};
use crate::gate::unsent_answers::{UnsentAnswerGuard, UnsentChunk};

/// Passes on what comes, and a large message in pieces, when there is room for it.
pub(crate) struct MeteredAnswerBody {
    /// Dropped at its end, so that its producer notices.
    body: Option<Body>,
    account: BudgetAccount,
    path: String,
    /// True when the next message may be large: it is not made then before there is room for some of it.
    expects_large: bool,
    room: Option<BoxFuture<'static, ()>>,
    /// First frame of an answer of one message.
    first: Option<Result<Frame<Bytes>, Status>>,
    /// A large message that waits for room.
    waiting: Option<(Bytes, BoxFuture<'static, Result<BytesPermit, Error>>)>,
    kept: Option<UnsentAnswerGuard>,
}

impl MeteredAnswerBody {
    /// Counts the messages of a stream, one after the other.
    pub(crate) fn stream(body: Body, account: BudgetAccount, path: String) -> Self {
        let expects_large = account.expected(&path) > 0;
        let (room, first, waiting, kept) = (None, None, None, None);
        Self { body: Some(body), account, path, expects_large, room, first, waiting, kept }
    }

    /// Counts an answer of one message before anything of it is sent. The permit that was held for it is used, and any surplus
    /// is given back.
    ///
    /// # Errors
    /// `OVERLOADED` when there is no room for it.
    pub(crate) async fn message(
        mut body: Body,
        account: BudgetAccount,
        path: String,
        expected: Option<BytesPermit>,
    ) -> Result<Self, Error> {
        let first = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let mut answer = Self { expects_large: false, ..Self::stream(body, account, path) };
        match first.map(large) {
            Some(Ok(message)) => {
                answer.account.note(&answer.path, message.len());
                let held = hold(&answer.account, message.len(), expected).await?;
                answer.kept = Some(answer.account.keep_unsent(message, held));
            }
            Some(Err(first)) => answer.first = Some(first),
            None => answer.body = None,
        }
        Ok(answer)
    }

    /// Takes over a large message of a stream.
    fn take(&mut self, message: Bytes) -> Result<(), Error> {
        self.account.note(&self.path, message.len());
        if let Some(held) = self.account.answer_now(message.len()) {
            self.kept = Some(self.account.keep_unsent(message, held));
            return Ok(());
        }
        let (made, account, bytes) = (self.account.make(message.len())?, self.account.clone(), message.len());
        let waiting = async move {
            let held = account.answer(bytes).await;
            drop(made);
            held
        };
        self.waiting = Some((message, Box::pin(waiting)));
        Ok(())
    }

    /// Ends the answer with this error.
    fn end(&mut self, error: Error) -> Option<Result<Frame<Bytes>, Status>> {
        (self.body, self.room, self.waiting, self.kept) = (None, None, None, None);
        let mut trailers = HeaderMap::new();
        Some(error.into_status().add_header(&mut trailers).map(|()| Frame::trailers(trailers)))
    }

    /// Gives the next piece of the message that is being sent.
    fn piece(&mut self) -> Option<Result<Frame<Bytes>, Status>> {
        match self.kept.as_ref()?.piece() {
            UnsentChunk::Next(bytes) => Some(Ok(Frame::data(bytes))),
            UnsentChunk::Last(bytes) => {
                self.kept = None;
                Some(Ok(Frame::data(bytes)))
            }
            UnsentChunk::Cut => self.end(self.account.unread()),
        }
    }

    /// Waits until the message that is made has room.
    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some((_, waiting)) = &mut self.waiting else { return Poll::Ready(Ok(())) };
        let held = ready!(waiting.as_mut().poll(cx));
        let message = self.waiting.take().map(|(message, _)| message).unwrap_or_default();
        self.kept = Some(self.account.keep_unsent(message, held?));
        Poll::Ready(Ok(()))
    }

    /// Waits until a message may be made.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.room.is_none() {
            if !self.expects_large || self.account.has_room() {
                return Poll::Ready(());
            }
            self.room = Some(Box::pin(self.account.clone().room()));
        }
        if let Some(room) = &mut self.room {
            ready!(room.as_mut().poll(cx));
        }
        self.room = None;
        Poll::Ready(())
    }
}

/// The message of a frame that is counted; else the frame.
fn large(frame: Result<Frame<Bytes>, Status>) -> Result<Bytes, Result<Frame<Bytes>, Status>> {
    match frame.map(Frame::into_data) {
        Ok(Ok(data)) if BudgetAccount::counts_answer(data.len()) => Ok(data),
        Ok(Ok(data)) => Err(Ok(Frame::data(data))),
        Ok(Err(trailers)) => Err(Ok(trailers)),
        Err(status) => Err(Err(status)),
    }
}

/// Room for an answer of one message.
async fn hold(
    account: &BudgetAccount,
    bytes: usize,
    expected: Option<BytesPermit>,
) -> Result<BytesPermit, Error> {
    if let Some(held) = expected.and_then(|expected| expected.cover(bytes)) {
        return Ok(held);
    }
    if let Some(held) = account.answer_now(bytes) {
        return Ok(held);
    }
    let _made = account.make(bytes)?;
    account.answer(bytes).await
}

impl http_body::Body for MeteredAnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(first) = this.first.take() {
                return Poll::Ready(Some(first));
            }
            if let Err(error) = ready!(this.poll_waiting(cx)) {
                return Poll::Ready(this.end(error));
            }
            if let Some(frame) = this.piece() {
                return Poll::Ready(Some(frame));
            }
            ready!(this.poll_room(cx));
            let Some(body) = &mut this.body else { return Poll::Ready(None) };
            let Some(frame) = ready!(Pin::new(body).poll_frame(cx)) else {
                this.body = None;
                return Poll::Ready(None);
            };
            match large(frame) {
                Err(frame) => {
                    this.expects_large = false;
                    return Poll::Ready(Some(frame));
                }
                Ok(message) => {
                    this.expects_large = true;
                    if let Err(error) = this.take(message) {
                        return Poll::Ready(this.end(error));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let nothing_waits = self.first.is_none() && self.waiting.is_none() && self.kept.is_none();
        nothing_waits && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures_util::poll;

    use super::*;
    use crate::error::view::ErrorView;
    use crate::gate::budget::MessageBytesMax;

    const KIB: usize = 1024;
    /// Room for one of these, and to wait with one more.
    const LARGE: usize = 200 * KIB;
    const ANSWERED: usize = 4 * 256 * KIB;

    /// Gives messages of these lengths, and notes how many.
    struct Messages {
        left: VecDeque<Bytes>,
        given: Arc<AtomicUsize>,
    }

    impl http_body::Body for Messages {
        type Data = Bytes;
        type Error = Status;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.given.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(self.left.pop_front().map(|message| Ok(Frame::data(message))))
        }
    }

    fn body(lengths: &[usize]) -> (Body, Arc<AtomicUsize>) {
        let given = Arc::default();
        let left = lengths.iter().zip(1..).map(|(length, fill)| vec![fill; *length].into()).collect();
        (Body::new(Messages { left, given: Arc::clone(&given) }), given)
    }

    fn account() -> BudgetAccount {
        BudgetAccount::of_stranger_within(MessageBytesMax {
            answered: ANSWERED,
            ..MessageBytesMax::default()
        })
    }

    fn stream(account: &BudgetAccount, lengths: &[usize]) -> (MeteredAnswerBody, Arc<AtomicUsize>) {
        let (body, given) = body(lengths);
        (MeteredAnswerBody::stream(body, account.clone(), "/a".to_owned()), given)
    }

    async fn message(account: &BudgetAccount, bytes: usize) -> Result<MeteredAnswerBody, Error> {
        MeteredAnswerBody::message(body(&[bytes]).0, account.clone(), "/a".to_owned(), None).await
    }

    async fn next(answer: &mut MeteredAnswerBody) -> Option<Frame<Bytes>> {
        let next = poll_fn(|cx| Pin::new(&mut *answer).poll_frame(cx)).await;
        next.map(|frame| frame.expect("a frame"))
    }

    /// The data that are left of an answer, and how it ends.
    async fn read(answer: &mut MeteredAnswerBody) -> (usize, Option<ErrorView>) {
        let mut bytes = 0;
        while let Some(frame) = next(answer).await {
            match frame.into_data() {
                Ok(data) => bytes += data.len(),
                Err(trailers) => {
                    let trailers = trailers.into_trailers().expect("trailers");
                    let status = Status::from_header_map(&trailers).expect("a status");
                    return (bytes, Some(ErrorView::from(&status)));
                }
            }
        }
        assert!(answer.is_end_stream());
        (bytes, None)
    }

    #[tokio::test(start_paused = true)]
    async fn messages_come_whole_and_hold_their_room_until_they_are_taken() {
        let account = account();
        let (mut answer, _) = stream(&account, &[3, LARGE, 0, 16 * KIB + 1, 30 * KIB]);
        let (mut bytes, mut all) = (Vec::new(), Vec::new());
        while let Some(frame) = next(&mut answer).await {
            bytes.extend_from_slice(frame.data_ref().expect("data"));
            all.push(frame);
        }
        drop(answer);
        let want = [(3, 1), (LARGE, 2), (16 * KIB + 1, 4), (30 * KIB, 5)];
        assert!(bytes == want.map(|(length, fill)| vec![fill; length]).concat());
        assert!(account.answer_now(16 * KIB).is_none(), "HTTP/2 has them all");
        drop(all);
        account.answer_now(ANSWERED / 4).expect("all are taken");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_gives_way() {
        let account = account();
        let mut unread = message(&account, LARGE).await.expect("room");
        drop(next(&mut unread).await);
        let mut waiting = std::pin::pin!(message(&account, LARGE));
        assert!(poll!(&mut waiting).is_pending());
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(poll!(&mut waiting).is_pending(), "its caller may be slow");
        let mut answer = waiting.await.expect("the other one has given way");
        assert_eq!(read(&mut answer).await, (LARGE, None));
        let (bytes, ended) = read(&mut unread).await;
        assert_eq!((bytes, ended.expect("it is told").reason.as_str()), (0, "OVERLOADED"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_slowly_stays_and_others_are_refused_at_last() {
        let account = account();
        let mut slow = message(&account, 256 * KIB).await.expect("room");
        // Kept by HTTP/2.
        let mut taken = Vec::new();
        let refused = {
            let mut waiting = std::pin::pin!(message(&account, LARGE));
            loop {
                if let Poll::Ready(refused) = poll!(&mut waiting) {
                    break refused.err().expect("nothing has become free");
                }
                taken.push(next(&mut slow).await);
                tokio::time::advance(Duration::from_secs(5)).await;
            }
        };
        let refused = ErrorView::from(&refused.into_status());
        assert_eq!(refused.reason, "OVERLOADED");
        assert!(refused.retry_after.is_some() && refused.message.contains("callers without an identity"));
        assert!(matches!(read(&mut slow).await, (1.., None)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_finds_no_room_to_wait_is_refused_at_once() {
        let account = account();
        let (_first, mut second) = (message(&account, LARGE).await, Box::pin(message(&account, LARGE)));
        assert!(poll!(&mut second).is_pending());
        let third = message(&account, LARGE).await.err().expect("one waits already");
        assert_eq!(ErrorView::from(&third.into_status()).reason, "OVERLOADED");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_makes_nothing_while_there_is_no_room() {
        let account = account();
        let (mut answer, given) = stream(&account, &[LARGE, LARGE, LARGE]);
        let first = next(&mut answer).await.expect("a piece");
        let other = account.answer_now(ANSWERED / 4 - LARGE).expect("the rest");
        let (mut later, made) = stream(&account, &[LARGE]);
        assert!(poll!(std::pin::pin!(next(&mut later))).is_pending());
        assert_eq!(made.load(Ordering::Relaxed), 0, "its kind is known to be large");
        let mut pieces = Vec::new();
        while (pieces.len() + 1) * 16 * KIB < LARGE {
            pieces.push(next(&mut answer).await.expect("a piece"));
        }
        assert!(poll!(std::pin::pin!(next(&mut answer))).is_pending(), "HTTP/2 has these");
        drop(pieces);
        assert_eq!(given.load(Ordering::Relaxed), 1);
        drop((first, other));
        assert_eq!(read(&mut later).await, (LARGE, None));
        assert_eq!(read(&mut answer).await, (2 * LARGE, None));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_expected_is_held_before_it_is_made() {
        let account = account();
        assert!(account.expect_answer("/a").await.expect("room").is_none());
        read(&mut message(&account, LARGE).await.expect("room")).await;
        let expected = account.expect_answer("/a").await.expect("room");
        assert!(account.answer_now(LARGE).is_none());
        let small = body(&[20 * KIB]).0;
        let answer = MeteredAnswerBody::message(small, account.clone(), "/a".to_owned(), expected)
            .await
            .expect("room");
        account.answer_now(LARGE).expect("more was expected than came");
        let more = account.answer_now(256 * KIB - 20 * KIB).expect("all that is left");
        drop((answer, more));
        let expected = account.expect_answer("/a").await.expect("room");
        let mut larger =
            MeteredAnswerBody::message(body(&[256 * KIB]).0, account.clone(), "/a".to_owned(), expected)
                .await
                .expect("room");
        assert_eq!(read(&mut larger).await, (256 * KIB, None));
    }
}
