//! A request's body whose large messages are counted before a handler gets them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::error::Error;
use crate::gate::budget::{BudgetAccount, BytesPermit, HandlingPermits};
use crate::lock::lock;

/// Bytes before each message: whether it is compressed, and its length (gRPC over HTTP/2, "Length-Prefixed-Message").
const PREFIX_BYTES: usize = 5;

/// Passes on what comes, and keeps a large message back until it is whole and may be handled.
pub(crate) struct MeteredRequestBody {
    body: Body,
    account: BudgetAccount,
    /// True when messages follow each other: asking for the next one then means that the former one has been handled.
    goes_on: bool,
    handled: HandlingPermits,
    /// Received and not looked at.
    rest: BytesMut,
    /// Bytes to come of a message that is passed on as it comes.
    passing: usize,
    large: Option<LargeMessageState>,
    ready: VecDeque<Frame<Bytes>>,
    is_over: bool,
}

/// A large message.
enum LargeMessageState {
    Coming { prefix: GrpcMessagePrefix, held: BytesPermit },
    Waiting { message: Bytes, held: BytesPermit, room: BoxFuture<'static, Result<BytesPermit, Error>> },
}

#[derive(Clone, Copy)]
struct GrpcMessagePrefix {
    is_compressed: bool,
    message_bytes: usize,
}

impl GrpcMessagePrefix {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (flag, length) = bytes.get(..PREFIX_BYTES)?.split_first()?;
        let message_bytes = usize::try_from(u32::from_be_bytes(length.try_into().ok()?)).ok()?;
        Some(Self { is_compressed: *flag != 0, message_bytes })
    }

    const fn bytes(self) -> usize {
        PREFIX_BYTES + self.message_bytes
    }
}

impl MeteredRequestBody {
    pub(crate) fn new(body: Body, account: BudgetAccount, handled: HandlingPermits, goes_on: bool) -> Self {
        let (rest, ready) = (BytesMut::new(), VecDeque::new());
        Self { body, account, goes_on, handled, rest, passing: 0, large: None, ready, is_over: false }
    }

    /// Takes over what came. A frame that is one small message, as those of most calls are, is passed on as it is.
    fn take(&mut self, data: Bytes) -> Result<(), Error> {
        let is_at_begin = self.rest.is_empty() && self.passing == 0 && self.large.is_none();
        let whole = is_at_begin.then(|| GrpcMessagePrefix::read(&data)).flatten();
        if whole.is_some_and(|prefix| {
            prefix.bytes() == data.len() && !BudgetAccount::counts(prefix.message_bytes, prefix.is_compressed)
        }) {
            self.ready.push_back(Frame::data(data));
            return Ok(());
        }
        self.rest.extend_from_slice(&data);
        self.sort()
    }

    /// Finds what can be passed on of what came.
    fn sort(&mut self) -> Result<(), Error> {
        while !self.rest.is_empty() {
            match &mut self.large {
                Some(LargeMessageState::Waiting { .. }) => return Ok(()),
                Some(LargeMessageState::Coming { prefix, .. }) if self.rest.len() < prefix.bytes() => {
                    return Ok(());
                }
                Some(LargeMessageState::Coming { .. }) => self.wait(),
                None if self.passing > 0 => self.pass(),
                None => {
                    let Some(prefix) = GrpcMessagePrefix::read(&self.rest) else { return Ok(()) };
                    if BudgetAccount::counts(prefix.message_bytes, prefix.is_compressed) {
                        let held = self.account.receive(prefix.message_bytes)?;
                        self.rest.reserve(prefix.bytes() - self.rest.len().min(prefix.bytes()));
                        self.large = Some(LargeMessageState::Coming { prefix, held });
                    } else {
                        self.passing = prefix.bytes();
                    }
                }
            }
        }
        Ok(())
    }

    fn pass(&mut self) {
        let passed = self.rest.split_to(self.passing.min(self.rest.len()));
        self.passing -= passed.len();
        self.ready.push_back(Frame::data(passed.freeze()));
    }

    /// Begins to wait for room, once the large message has arrived whole.
    fn wait(&mut self) {
        let Some(LargeMessageState::Coming { prefix, held }) = self.large.take() else { return };
        let message = self.rest.split_to(prefix.bytes()).freeze();
        let room = Box::pin(self.account.clone().handle(prefix.message_bytes, prefix.is_compressed));
        self.large = Some(LargeMessageState::Waiting { message, held, room });
    }

    /// Waits for room for the message that is whole.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(LargeMessageState::Waiting { room, .. }) = &mut self.large else {
            return Poll::Ready(Ok(()));
        };
        let room = ready!(room.as_mut().poll(cx))?;
        if let Some(LargeMessageState::Waiting { message, held, .. }) = self.large.take() {
            *lock(&self.handled) = Some((held, room));
            self.ready.push_back(Frame::data(message));
        }
        Poll::Ready(self.sort())
    }

    /// Ends the metering: the rest is passed on as it is, for its reader to report what is wrong with it.
    fn end(&mut self, trailers: Option<Frame<Bytes>>) {
        (self.is_over, self.large) = (true, None);
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest).freeze();
            self.ready.push_back(Frame::data(rest));
        }
        self.ready.extend(trailers);
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Status>> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Poll::Ready(Ok(Some(frame)));
            }
            ready!(self.poll_room(cx)).map_err(Error::into_status)?;
            if !self.ready.is_empty() {
                continue;
            }
            if self.is_over {
                return Poll::Ready(Ok(None));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()? {
                None => self.end(None),
                Some(frame) => match frame.into_data() {
                    Ok(data) => self.take(data).map_err(Error::into_status)?,
                    Err(trailers) => self.end(Some(trailers)),
                },
            }
        }
    }
}

impl http_body::Body for MeteredRequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.goes_on && self.ready.is_empty() {
            // Its handler asks for the next one.
            *lock(&self.handled) = None;
        }
        self.poll_next(cx).map(Result::transpose)
    }

    fn is_end_stream(&self) -> bool {
        let is_done = self.ready.is_empty() && self.rest.is_empty() && self.large.is_none();
        is_done && (self.is_over || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::gate::budget::{HANDLED_BYTES_MAX, SMALL_BYTES};

    fn message(length: usize, fill: u8) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(length).expect("it fits").to_be_bytes());
        bytes.resize(PREFIX_BYTES + length, fill);
        bytes
    }

    /// A body that comes in these pieces.
    fn body(pieces: Vec<Bytes>) -> Body {
        struct Pieces(VecDeque<Bytes>);
        impl http_body::Body for Pieces {
            type Data = Bytes;
            type Error = Status;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
                Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
            }
        }
        Body::new(Pieces(pieces.into()))
    }

    /// Returns the frames that the body passes on when `bytes` arrive in pieces of this length.
    async fn passed(bytes: &[u8], piece: usize) -> Vec<Bytes> {
        let pieces = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
        let (account, handled) = (BudgetAccount::of_stranger(HANDLED_BYTES_MAX), HandlingPermits::default());
        let mut body = std::pin::pin!(MeteredRequestBody::new(body(pieces), account, handled, true));
        let mut passed = Vec::new();
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            passed.push(frame.expect("room").into_data().expect("data"));
        }
        assert!(body.is_end_stream());
        passed
    }

    #[tokio::test]
    async fn what_comes_is_passed_on_however_it_is_cut() {
        let lengths = [0, 3, SMALL_BYTES + 1, 40_000, 1, SMALL_BYTES, SMALL_BYTES + 7];
        let messages: Vec<_> = lengths.iter().zip(1..).map(|(length, fill)| message(*length, fill)).collect();
        let all = messages.concat();
        for piece in [1, 2, 5, 6, 1000, 16_384, 39_999, 50_000, all.len()] {
            let passed = passed(&all, piece).await;
            assert_eq!(passed.concat(), all, "in pieces of {piece}");
            for large in messages.iter().filter(|message| message.len() > SMALL_BYTES + PREFIX_BYTES) {
                assert!(passed.contains(&Bytes::copy_from_slice(large)), "whole, from pieces of {piece}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_cut_short_is_passed_on_for_its_reader_to_judge() {
        let whole = message(40_000, 7);
        for length in [1, 4, 5, 6, 39_000] {
            assert_eq!(
                passed(&whole[..length], 1000).await.concat(),
                whole[..length],
                "{length} bytes of it"
            );
        }
    }

    #[tokio::test]
    async fn a_stream_holds_its_latest_message_until_the_next_is_polled() {
        let (first, second) = (message(40_000, 1), message(50_000, 2));
        let (account, handled) = (BudgetAccount::of_stranger(HANDLED_BYTES_MAX), HandlingPermits::default());
        let pieces = vec![Bytes::from([first, second].concat())];
        let mut body = std::pin::pin!(MeteredRequestBody::new(body(pieces), account, handled.clone(), true));
        for _ in 0..2 {
            assert!(poll_fn(|cx| body.as_mut().poll_frame(cx)).await.is_some());
            assert!(lock(&handled).is_some());
        }
        assert!(poll_fn(|cx| body.as_mut().poll_frame(cx)).await.is_none());
        assert!(lock(&handled).is_none());
    }
}
