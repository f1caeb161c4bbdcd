//! Bytes of large messages that a server holds at once, in all and of one caller.
//!
//! Permits bound how many calls there are, but each call may bring a message of megabytes. A large message is counted as soon as its
//! length is known. It is received whole, so that it does not block its connection, and then waits until there is room to
//! handle it: decoding a message takes several times its size. Answers are counted from when they are made until their
//! caller has taken them (see `unsent_answers`). Services are not counted: the messages that they pass on were counted where they came in.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use identity::Identity;
use model::ActorId;
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::body::Body;

use crate::caller::{Caller, ConnectionPeer};
use crate::error::{Error, ErrorKind, RpcReason};
use crate::gate::metered_request::MeteredRequestBody;
use crate::gate::methods::RpcMethodKind;
use crate::gate::unsent_answers::{UNREAD_MAX, UnsentAnswerGuard, UnsentAnswers};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::lock::lock;
use crate::metrics::Metrics;

/// Messages up to this are not counted: how many of them there are is bounded by places.
pub(crate) const SMALL_BYTES: usize = 16 * 1024;
/// Large messages that a process has received and not answered yet.
pub(crate) const RECEIVED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Those of them that it handles.
pub(crate) const HANDLED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Large answers that callers have not taken yet.
pub(crate) const ANSWERED_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Large answers that are made and wait for room among these.
const MADE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// One caller has a part of each: one in so many.
const SHARE: usize = 4;
/// Bytes that deflate makes of one byte at most (RFC 1951: 258 bytes of two bits).
const EXPANSION_MAX: usize = 1032;
/// A message that cannot be handled by then is refused.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// An answer waits so often for others to give way that are not being read, which is as long.
const ANSWER_WAITS: u64 = WAIT_MAX.as_secs() / UNREAD_MAX.as_secs();
const SEND_FEWER: &str = "send fewer large messages at once";
/// A refused call may be tried again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// So many callers are remembered before those are forgotten that hold nothing.
const OWNERS_KEPT: usize = 1024;
/// Bytes that one permit stands for.
const UNIT_BYTES: usize = 1024;

/// Limits on a server's memory that large messages may take, by their length on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageBytesMax {
    /// Received and not answered yet, in bytes; a quarter of it for one caller.
    pub received: usize,
    /// Being handled, in bytes; a quarter of it for one caller.
    pub handled: usize,
    /// Answered and not taken by the caller yet, in bytes; a quarter of it for one caller.
    pub answered: usize,
}

impl Default for MessageBytesMax {
    fn default() -> Self {
        Self { received: RECEIVED_BYTES_MAX, handled: HANDLED_BYTES_MAX, answered: ANSWERED_BYTES_MAX }
    }
}

/// Memory is a process's, however many servers it has.
static OF_PROCESS: LazyLock<Arc<MessageBytePools>> =
    LazyLock::new(|| Arc::new(MessageBytePools::new(MessageBytesMax::default())));

/// The budget of one server.
#[derive(Debug)]
pub(crate) struct MessageBudget {
    pools: Arc<MessageBytePools>,
    metrics: Metrics,
}

#[derive(Debug)]
struct MessageBytePools {
    received: BytePool,
    handled: BytePool,
    answered: BytePool,
    /// Answers that wait for room among those.
    made: BytePool,
    unsent: UnsentAnswers,
    /// The largest answers so far, by method, of those that have given large ones.
    largest: RwLock<HashMap<String, usize>>,
}

/// Bytes that are free, in all and of each caller that holds some.
#[derive(Debug)]
struct BytePool {
    all: Arc<Semaphore>,
    of_one: Mutex<HashMap<BudgetOwner, Weak<Semaphore>>>,
    of_one_units: usize,
}

/// The caller that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BudgetOwner {
    Actor(ActorId),
    Admin,
    Stranger,
}

/// Bytes that are taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct BytesPermit {
    of_one: OwnedSemaphorePermit,
    of_all: OwnedSemaphorePermit,
    gauge: IntGauge,
}

/// Permits that a large message holds, for as long as it is handled.
pub(crate) type HandlingPermits = Arc<Mutex<Option<(BytesPermit, BytesPermit)>>>;

/// The caller that the messages of one call are counted for.
#[derive(Debug, Clone)]
pub(crate) struct BudgetAccount {
    pools: Arc<MessageBytePools>,
    metrics: Metrics,
    owner: BudgetOwner,
}

impl MessageBudget {
    /// A part of the process's budget; one of its own where a bound is set.
    pub(crate) fn new(max: Option<MessageBytesMax>, metrics: Metrics) -> Self {
        let pools = max.map_or_else(|| Arc::clone(&OF_PROCESS), |max| Arc::new(MessageBytePools::new(max)));
        Self { pools, metrics }
    }

    /// Counts what a call brings. What it gives holds the latest message's bytes, until both it and the body are dropped.
    pub(crate) fn measure(
        request: Request<Body>,
        account: Option<&BudgetAccount>,
        shape: RpcMethodKind,
    ) -> (Request<Body>, Option<HandlingPermits>) {
        let Some(account) = account.cloned() else { return (request, None) };
        let handled = HandlingPermits::default();
        let goes_on = shape == RpcMethodKind::Stream;
        let measure = |body| Body::new(MeteredRequestBody::new(body, account, Arc::clone(&handled), goes_on));
        (request.map(measure), Some(handled))
    }

    /// Returns the account of the caller, unless that is a service.
    pub(crate) fn account(&self, request: &Request<Body>) -> Option<BudgetAccount> {
        let owner = BudgetOwner::of(request)?;
        Some(BudgetAccount { pools: Arc::clone(&self.pools), metrics: self.metrics.clone(), owner })
    }
}

impl BudgetOwner {
    /// Returns the owner to count for; none for calls of this process and of services.
    fn of(request: &Request<Body>) -> Option<Self> {
        request.extensions().get::<ConnectionPeer>()?;
        match request.extensions().get::<Caller>().map(Caller::identity) {
            Some(Identity::Actor(actor)) => Some(Self::Actor(actor)),
            Some(Identity::Admin) => Some(Self::Admin),
            Some(Identity::Service(_)) => None,
            None => Some(Self::Stranger),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Actor(actor) => format!("actor {actor}"),
            Self::Admin => "the admin".to_owned(),
            Self::Stranger => "callers without an identity".to_owned(),
        }
    }
}

impl MessageBytePools {
    fn new(max: MessageBytesMax) -> Self {
        Self {
            received: BytePool::new(max.received),
            handled: BytePool::new(max.handled),
            answered: BytePool::new(max.answered),
            made: BytePool::new(MADE_BYTES_MAX.min(max.answered)),
            unsent: UnsentAnswers::default(),
            largest: RwLock::default(),
        }
    }

    /// Returns true when the owner's part of the answers is fully taken.
    fn is_used_up(&self, owner: BudgetOwner) -> bool {
        self.answered.of(owner).available_permits() == 0
    }
}

impl BytePool {
    fn new(bytes: usize) -> Self {
        let units = bytes / UNIT_BYTES;
        let all = Arc::new(Semaphore::new(units));
        Self { all, of_one: Mutex::default(), of_one_units: (units / SHARE).max(1) }
    }

    /// Returns the permits of this caller's part of the pool.
    fn of(&self, owner: BudgetOwner) -> Arc<Semaphore> {
        let mut of_one = lock(&self.of_one);
        if let Some(held) = of_one.get(&owner).and_then(Weak::upgrade) {
            return held;
        }
        if of_one.len() >= OWNERS_KEPT {
            of_one.retain(|_, held| held.strong_count() > 0);
        }
        let own = Arc::new(Semaphore::new(self.of_one_units));
        of_one.insert(owner, Arc::downgrade(&own));
        own
    }

    /// A message that is larger than what one may have takes all of that.
    fn units(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT_BYTES).min(self.of_one_units)).unwrap_or(u32::MAX)
    }

    fn take_now(&self, owner: BudgetOwner, bytes: usize, gauge: IntGauge) -> Option<BytesPermit> {
        let units = self.units(bytes);
        let of_one = self.of(owner).try_acquire_many_owned(units).ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_many_owned(units).ok()?;
        Some(BytesPermit::new(of_one, of_all, gauge))
    }

    /// Waits for it, behind those that came before.
    async fn take(&self, owner: BudgetOwner, bytes: usize, gauge: IntGauge) -> Option<BytesPermit> {
        let units = self.units(bytes);
        let of_one = self.of(owner).acquire_many_owned(units).await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_many_owned(units).await.ok()?;
        Some(BytesPermit::new(of_one, of_all, gauge))
    }
}

impl BytesPermit {
    fn new(of_one: OwnedSemaphorePermit, of_all: OwnedSemaphorePermit, gauge: IntGauge) -> Self {
        let held = Self { of_one, of_all, gauge };
        held.gauge.add(held.bytes());
        held
    }

    /// Takes the part out of it that counts so many bytes, and all of it at most.
    pub(crate) fn split(&mut self, bytes: usize) -> Option<Self> {
        let units = bytes.div_ceil(UNIT_BYTES).min(self.of_all.num_permits());
        let (of_one, of_all) = (self.of_one.split(units)?, self.of_all.split(units)?);
        Some(Self { of_one, of_all, gauge: self.gauge.clone() })
    }

    /// Returns the part that covers so many bytes, if it has as much; the rest is given back.
    pub(crate) fn cover(mut self, bytes: usize) -> Option<Self> {
        self.split(bytes).filter(|held| held.of_all.num_permits() * UNIT_BYTES >= bytes)
    }

    fn bytes(&self) -> i64 {
        i64::try_from(self.of_all.num_permits() * UNIT_BYTES).unwrap_or(i64::MAX)
    }
}

impl Drop for BytesPermit {
    fn drop(&mut self) {
        self.gauge.sub(self.bytes());
    }
}

impl BudgetAccount {
    /// Returns true for a message length that is counted. A message beyond the decoding limit is not: it is refused unread.
    pub(crate) fn counts(bytes: usize, is_compressed: bool) -> bool {
        bytes <= MESSAGE_BYTES_MAX && in_memory(bytes, is_compressed) > SMALL_BYTES
    }

    /// Room to receive a message.
    pub(crate) fn receive(&self, bytes: usize) -> Result<BytesPermit, Error> {
        let held = self.pools.received.take_now(self.owner, bytes, self.gauge("received"));
        held.ok_or_else(|| self.refuse("has been sent as much as it can take", SEND_FEWER))
    }

    /// Room to handle a message that was received.
    ///
    /// # Cancel safety
    /// Who gives up waiting loses its place, and holds nothing.
    pub(crate) async fn handle(self, bytes: usize, is_compressed: bool) -> Result<BytesPermit, Error> {
        let taking =
            self.pools.handled.take(self.owner, in_memory(bytes, is_compressed), self.gauge("handled"));
        let taken = tokio::time::timeout(WAIT_MAX, taking).await.ok().flatten();
        taken.ok_or_else(|| self.refuse("has had no room for another large message for 30 s", SEND_FEWER))
    }

    /// Returns true for an answer length that is counted.
    pub(crate) const fn counts_answer(bytes: usize) -> bool {
        bytes > SMALL_BYTES
    }

    /// Notes how large an answer of this method was.
    pub(crate) fn note(&self, path: &str, bytes: usize) {
        if bytes > self.expected(path) {
            let mut largest = self.pools.largest.write().unwrap_or_else(PoisonError::into_inner);
            largest.insert(path.to_owned(), bytes);
        }
    }

    /// How large an answer of this method may be, as far as there were large ones; else 0.
    pub(crate) fn expected(&self, path: &str) -> usize {
        let largest = self.pools.largest.read().unwrap_or_else(PoisonError::into_inner);
        largest.get(path).copied().unwrap_or(0)
    }

    /// Room for an answer that is about to be made, of a method whose answers are large at times.
    ///
    /// # Cancel safety
    /// Who gives up waiting loses its place, and holds nothing.
    pub(crate) async fn expect_answer(&self, path: &str) -> Result<Option<BytesPermit>, Error> {
        match self.expected(path) {
            0 => Ok(None),
            bytes => self.answer(bytes).await.map(Some),
        }
    }

    /// Room for an answer that is made, if there is some now.
    pub(crate) fn answer_now(&self, bytes: usize) -> Option<BytesPermit> {
        self.pools.answered.take_now(self.owner, bytes, self.gauge("answered"))
    }

    /// Room to wait for room.
    pub(crate) fn make(&self, bytes: usize) -> Result<BytesPermit, Error> {
        let held = self.pools.made.take_now(self.owner, bytes, self.gauge("made"));
        held.ok_or_else(|| self.refuse_answer())
    }

    /// Room for an answer, which others give way for that are not being read.
    ///
    /// # Cancel safety
    /// As [`BudgetAccount::expect_answer`].
    pub(crate) async fn answer(&self, bytes: usize) -> Result<BytesPermit, Error> {
        self.wait_for_answers(bytes).await.ok_or_else(|| self.refuse_answer())
    }

    /// Waits until there is some room for answers again, however long that takes.
    pub(crate) async fn room(self) {
        while self.wait_for_answers(1).await.is_none() {}
    }

    /// Returns true when there is room for answers.
    pub(crate) fn has_room(&self) -> bool {
        !self.pools.is_used_up(self.owner) && self.pools.answered.all.available_permits() > 0
    }

    /// Nothing when the time to wait is over.
    async fn wait_for_answers(&self, bytes: usize) -> Option<BytesPermit> {
        let mut taking = pin!(self.pools.answered.take(self.owner, bytes, self.gauge("answered")));
        for _ in 0..ANSWER_WAITS {
            if let Ok(taken) = tokio::time::timeout(UNREAD_MAX, taking.as_mut()).await {
                return taken;
            }
            let whose = self.pools.is_used_up(self.owner).then_some(self.owner);
            let cut = self.pools.unsent.cut(whose, bytes, Instant::now());
            self.metrics.unread_answers_cut.inc_by(cut);
        }
        None
    }

    /// Keeps an answer until it is sent, or gives way to others.
    pub(crate) fn keep_unsent(&self, bytes: Bytes, held: BytesPermit) -> UnsentAnswerGuard {
        self.pools.unsent.keep(self.owner, bytes, held)
    }

    #[cfg(test)]
    pub(crate) fn of_stranger(handled: usize) -> Self {
        Self::of_stranger_within(MessageBytesMax { handled, ..MessageBytesMax::default() })
    }

    #[cfg(test)]
    pub(crate) fn of_stranger_within(max: MessageBytesMax) -> Self {
        Self {
            pools: Arc::new(MessageBytePools::new(max)),
            metrics: Metrics::new(),
            owner: BudgetOwner::Stranger,
        }
    }

    /// Why an answer ends that has given way to others.
    pub(crate) fn unread(&self) -> Error {
        self.refuse(
            "needs the room of answers of which nothing is read for 10 s",
            "read faster, or ask for less at once",
        )
    }

    fn refuse_answer(&self) -> Error {
        self.refuse(
            "has large answers waiting to be read, as many as it can",
            "read them faster, or ask for fewer at once",
        )
    }

    fn gauge(&self, kind: &str) -> IntGauge {
        self.metrics.message_bytes.with_label_values(&[kind])
    }

    fn refuse(&self, why: &str, way_out: &str) -> Error {
        self.metrics.shed.with_label_values(&["bytes"]).inc();
        let message = format!("this server {why}, of {} or of all together: {way_out}", self.owner.name());
        Error::new(ErrorKind::ResourceExhausted, RpcReason::Overloaded, message)
            .with("kind", "bytes")
            .retry_after(RETRY_AFTER)
    }
}

/// Returns the length of a message after decompression, at most.
fn in_memory(bytes: usize, is_compressed: bool) -> usize {
    if is_compressed { bytes.saturating_mul(EXPANSION_MAX).min(MESSAGE_BYTES_MAX) } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::view::ErrorView;

    const MIB: usize = 1024 * 1024;
    const ONE: BudgetOwner = BudgetOwner::Actor(ActorId(1));
    const OTHER: BudgetOwner = BudgetOwner::Actor(ActorId(2));

    fn account(owner: BudgetOwner, pools: &Arc<MessageBytePools>) -> BudgetAccount {
        BudgetAccount { pools: Arc::clone(pools), metrics: Metrics::new(), owner }
    }

    fn pools(received: usize, handled: usize) -> Arc<MessageBytePools> {
        Arc::new(MessageBytePools::new(MessageBytesMax { received, handled, ..MessageBytesMax::default() }))
    }

    #[test]
    fn one_caller_has_a_quarter_and_leaves_the_rest_to_others() {
        let pools = pools(16 * MIB, MIB);
        let (one, other) = (account(ONE, &pools), account(OTHER, &pools));
        let held = one.receive(3 * MIB).expect("room");
        let refused =
            ErrorView::from(&one.receive(2 * MIB).expect_err("its own share is used up").into_status());
        assert_eq!(refused.reason, "OVERLOADED");
        assert!(refused.retry_after.is_some());
        assert!(refused.message.contains("actor 1"), "{}", refused.message);
        let also = other.receive(4 * MIB).expect("nobody else is in its way");
        drop((held, also));
        one.receive(4 * MIB).expect("it is free again");
        assert_eq!(one.metrics.shed.with_label_values(&["bytes"]).get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_handled_waits_and_is_refused_at_last() {
        let pools = pools(64 * MIB, 16 * MIB);
        let one = account(ONE, &pools);
        let first = one.clone().handle(4 * MIB, false).await.expect("room");
        let (waiting, freeing) = (one.clone().handle(MIB, false), async { drop(first) });
        let (second, ()) = tokio::join!(waiting, freeing);
        let second = second.expect("its turn has come");
        let third = one.clone().handle(4 * MIB, false);
        assert_eq!(third.await.expect_err("nobody gave anything back").reason(), RpcReason::Overloaded);
        drop(second);
        one.handle(4 * MIB, false).await.expect("who gave up holds nothing");
    }

    #[test]
    fn a_compressed_message_counts_for_what_may_be_in_it() {
        assert!(!BudgetAccount::counts(SMALL_BYTES, false));
        assert!(BudgetAccount::counts(SMALL_BYTES + 1, false));
        assert!(BudgetAccount::counts(SMALL_BYTES / 100, true));
        assert!(!BudgetAccount::counts(MESSAGE_BYTES_MAX + 1, false), "nobody decodes it");
        assert_eq!(in_memory(MIB, true), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn callers_that_hold_nothing_are_forgotten() {
        let pools = pools(64 * MIB, 16 * MIB);
        for actor in 0..3000 {
            account(BudgetOwner::Actor(ActorId(actor)), &pools).receive(MIB).expect("room");
        }
        assert!(lock(&pools.received.of_one).len() <= OWNERS_KEPT);
    }
}
