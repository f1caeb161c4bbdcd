//! Streams of other services that outlive the ends of these.

use futures_util::{StreamExt as _, stream};
use tonic::codegen::BoxStream;
use tonic::{Code, Status, Streaming};

use crate::error::view::ErrorView;
use crate::error::{Error, RpcReason};
use crate::stream::reconnect_backoff::StreamReconnectBackoff;

/// A stream of another service, and where to go on in it.
pub trait Resumable: Send {
    /// One answer of it.
    type Answer: Send;

    /// Asks for the stream behind the last answer that was noted; for all of it before the first.
    fn open(&mut self) -> impl Future<Output = Result<BoxStream<Self::Answer>, Status>> + Send;

    /// Notes an answer before it is passed on, and removes from it what was passed on before.
    fn note(&mut self, answer: &mut Self::Answer);
}

/// Stream that does not end: when it breaks off it is opened again, for as long as a service may take to start.
pub struct ResumingStream<R: Resumable> {
    source: R,
    /// Nothing after one that broke off, until the next one stands.
    answers: Option<BoxStream<R::Answer>>,
    patience: StreamReconnectBackoff,
}

impl<R: Resumable> ResumingStream<R> {
    /// Opens the stream. Does not wait for a service that is away: the caller can try another one.
    ///
    /// # Errors
    /// As the source's.
    pub async fn open(mut source: R) -> Result<Self, Status> {
        let answers = Some(source.open().await?);
        Ok(Self { source, answers, patience: StreamReconnectBackoff::default() })
    }

    /// The source, as far as it has come.
    pub const fn source(&self) -> &R {
        &self.source
    }

    /// Returns the source mutably, to take out of it what an answer has brought.
    pub const fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    /// The next answer. Cancel safe.
    ///
    /// # Errors
    /// UNAVAILABLE when the service is away for too long, else as the source's.
    pub async fn next(&mut self) -> Result<R::Answer, Status> {
        loop {
            match self.answer().await {
                Ok(mut answer) => {
                    self.patience.answered();
                    self.source.note(&mut answer);
                    return Ok(answer);
                }
                Err(status) => {
                    self.answers = None;
                    if !fell_behind(&status) {
                        self.patience.after(status).await?;
                    }
                }
            }
        }
    }

    /// All answers; the last one is why there are no more.
    pub fn into_stream(self) -> BoxStream<R::Answer>
    where
        R: 'static,
    {
        Box::pin(stream::try_unfold(self, |mut kept| async move {
            let answer = kept.next().await?;
            Ok(Some((answer, kept)))
        }))
    }

    /// The next answer of the stream, or of a new one that goes on where the last one broke off.
    async fn answer(&mut self) -> Result<R::Answer, Status> {
        let answers = match &mut self.answers {
            Some(answers) => answers,
            None => self.answers.insert(self.source.open().await?),
        };
        answers.next().await.unwrap_or_else(|| Err(ended()))
    }
}

impl<R: Resumable + std::fmt::Debug> std::fmt::Debug for ResumingStream<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stands = self.answers.is_some();
        f.debug_struct("ResumingStream").field("source", &self.source).field("stands", &stands).finish()
    }
}

/// The first answer of a stream, as one gives that begins with where it stands.
///
/// # Errors
/// As the stream's; UNAVAILABLE when it has ended.
pub async fn first_answer<T>(answers: &mut Streaming<T>) -> Result<T, Status> {
    answers.message().await?.ok_or_else(ended)
}

/// Returns true when more came at once than a service keeps for one reader: opened again, the stream goes on from there. A caller
/// that passes the answers on bounds how long its own reader may take.
fn fell_behind(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
        && ErrorView::from(status).reason == RpcReason::SlowConsumer.as_str()
}

/// Returns the failure of a stream that just ends.
fn ended() -> Status {
    Error::unavailable(RpcReason::PeerUnavailable, "the service behind it ended the stream; resume").into()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::error::ErrorKind;

    /// Streams of numbers from a place on, each of so many before it breaks off.
    #[derive(Debug)]
    struct Numbers {
        /// How each try ends that is still to come: after so many numbers, or refused.
        tries: VecDeque<Result<u64, Code>>,
        /// With what those break off that have an even count.
        broken: Status,
        reached: u64,
    }

    impl Numbers {
        fn new(tries: impl IntoIterator<Item = Result<u64, Code>>) -> Self {
            let broken = Status::unavailable("broken off");
            Self { tries: tries.into_iter().collect(), broken, reached: 0 }
        }
    }

    impl Resumable for Numbers {
        type Answer = u64;

        async fn open(&mut self) -> Result<BoxStream<u64>, Status> {
            let count = self.tries.pop_front().unwrap_or(Err(Code::Unavailable));
            let count = count.map_err(|code| Status::new(code, "refused"))?;
            let broken = (count % 2 == 0).then(|| Err(self.broken.clone()));
            let numbers = (self.reached + 1..=self.reached + count).map(Ok);
            Ok(Box::pin(stream::iter(numbers.chain(broken))))
        }

        fn note(&mut self, answer: &mut u64) {
            self.reached = *answer;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_where_it_broke_off_until_the_service_is_away_for_too_long() {
        let away = Err(Code::Unavailable);
        let mut kept = ResumingStream::open(Numbers::new([Ok(2), away, Ok(0), Ok(3), away, Ok(1)]))
            .await
            .expect("it stands");
        for number in 1..=6 {
            assert_eq!(kept.next().await.expect("it goes on"), number);
        }
        let ended = kept.next().await.expect_err("nobody is there any more");
        assert_eq!((ended.code(), kept.source().reached), (Code::Unavailable, 6));
    }

    #[tokio::test(start_paused = true)]
    async fn what_fell_behind_is_caught_up_with_at_once() {
        let slow = |kind, reason| Error::new(kind, reason, "behind").into_status();
        let mut numbers = Numbers::new([Ok(2), Ok(2), Ok(1)]);
        numbers.broken = slow(ErrorKind::ResourceExhausted, RpcReason::SlowConsumer);
        let began = tokio::time::Instant::now();
        let mut kept = ResumingStream::open(numbers).await.expect("it stands");
        for number in 1..=5 {
            assert_eq!(kept.next().await.expect("it goes on"), number);
        }
        assert!(began.elapsed().is_zero(), "nobody was away");
        let mut numbers = Numbers::new([Ok(2), Ok(2)]);
        numbers.broken = slow(ErrorKind::ResourceExhausted, RpcReason::Overloaded);
        let mut kept = ResumingStream::open(numbers).await.expect("it stands");
        assert_eq!((kept.next().await.ok(), kept.next().await.ok()), (Some(1), Some(2)));
        assert_eq!(kept.next().await.expect_err("another refusal").code(), Code::ResourceExhausted);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_ends_it_and_the_first_time_is_not_waited_for() {
        let refused = ResumingStream::open(Numbers::new([Err(Code::Unavailable), Ok(1)])).await;
        assert_eq!(refused.expect_err("it is away").code(), Code::Unavailable);
        let mut kept =
            ResumingStream::open(Numbers::new([Ok(2), Err(Code::OutOfRange)])).await.expect("it stands");
        assert_eq!((kept.next().await.ok(), kept.next().await.ok()), (Some(1), Some(2)));
        assert_eq!(kept.next().await.expect_err("the place is gone").code(), Code::OutOfRange);
    }
}
