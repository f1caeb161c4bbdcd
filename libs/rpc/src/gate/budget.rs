//! Bytes of large messages that a server holds at once, in all and of one caller.
//!
//! Places bound how many calls there are, and each may bring a message of megabytes. A large message is counted as soon as its
//! length is known. It comes in whole, so that it keeps nobody's connection from being read, and then waits until there is room to
//! handle it: reading a message into what it says takes several times its size. Services are not counted: what they pass on was counted at
//! their own door.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use http::Request;
use identity::Identity;
use model::ActorId;
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;

use crate::caller::{Caller, Peer};
use crate::error::{Error, ErrorKind, Reason};
use crate::gate::measured::Measured;
use crate::gate::methods::Shape;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::lock::lock;
use crate::metrics::Metrics;

/// Messages up to this are not counted: how many of them there are is bounded by places.
pub(crate) const SMALL_BYTES: usize = 16 * 1024;
/// Large messages that a process has received and not answered yet.
pub(crate) const RECEIVED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Those of them that it handles.
pub(crate) const HANDLED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// One caller has a part of that: one in so many.
const SHARE: usize = 4;
/// What deflate makes of one byte at most (RFC 1951: 258 bytes of two bits).
const EXPANSION_MAX: usize = 1032;
/// A message that cannot be handled by then is refused.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// A refused call may be tried again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// So many callers are remembered before those are forgotten that hold nothing.
const OWNERS_KEPT: usize = 1024;
/// What permits count.
const UNIT_BYTES: usize = 1024;

/// What large messages may take of a server's memory, on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageBytesMax {
    /// Received and not answered yet, in bytes; a quarter of it for one caller.
    pub received: usize,
    /// Being handled, in bytes; a quarter of it for one caller.
    pub handled: usize,
}

impl Default for MessageBytesMax {
    fn default() -> Self {
        Self { received: RECEIVED_BYTES_MAX, handled: HANDLED_BYTES_MAX }
    }
}

/// Memory is a process's, however many servers it has.
static OF_PROCESS: LazyLock<Arc<Pools>> = LazyLock::new(|| Arc::new(Pools::new(MessageBytesMax::default())));

/// The budget of one server.
#[derive(Debug)]
pub(crate) struct Budget {
    pools: Arc<Pools>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Pools {
    received: Pool,
    handled: Pool,
}

/// Bytes that are free, in all and of each caller that holds some.
#[derive(Debug)]
struct Pool {
    all: Arc<Semaphore>,
    of_one: Mutex<HashMap<Owner, Weak<Semaphore>>>,
    of_one_units: usize,
}

/// The caller that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Actor(ActorId),
    Admin,
    Stranger,
}

/// Bytes that are taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    _of_one: OwnedSemaphorePermit,
    of_all: OwnedSemaphorePermit,
    gauge: IntGauge,
}

/// What a large message holds, for as long as it is handled.
pub(crate) type Handled = Arc<Mutex<Option<(Held, Held)>>>;

/// Where the messages of one call are counted.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    pools: Arc<Pools>,
    metrics: Metrics,
    owner: Owner,
}

impl Budget {
    /// A part of the process's budget; one of its own where a bound is set.
    pub(crate) fn new(max: Option<MessageBytesMax>, metrics: Metrics) -> Self {
        let pools = max.map_or_else(|| Arc::clone(&OF_PROCESS), |max| Arc::new(Pools::new(max)));
        Self { pools, metrics }
    }

    /// Counts what this call brings, unless it is of a service. What it gives holds the latest message's bytes, until both it and
    /// the body are dropped.
    pub(crate) fn measure(&self, request: Request<Body>, shape: Shape) -> (Request<Body>, Option<Handled>) {
        let Some(owner) = Owner::of(&request) else { return (request, None) };
        let handled = Handled::default();
        let account = Account { pools: Arc::clone(&self.pools), metrics: self.metrics.clone(), owner };
        let goes_on = shape == Shape::Stream;
        let measure = |body| Body::new(Measured::new(body, account, Arc::clone(&handled), goes_on));
        (request.map(measure), Some(handled))
    }
}

impl Owner {
    /// Nobody for calls of this process and of services.
    fn of(request: &Request<Body>) -> Option<Self> {
        request.extensions().get::<Peer>()?;
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

impl Pools {
    fn new(max: MessageBytesMax) -> Self {
        Self { received: Pool::new(max.received), handled: Pool::new(max.handled) }
    }
}

impl Pool {
    fn new(bytes: usize) -> Self {
        let units = bytes / UNIT_BYTES;
        let all = Arc::new(Semaphore::new(units));
        Self { all, of_one: Mutex::default(), of_one_units: (units / SHARE).max(1) }
    }

    /// What this caller may have of it.
    fn of(&self, owner: Owner) -> Arc<Semaphore> {
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

    fn take_now(&self, owner: Owner, bytes: usize, gauge: IntGauge) -> Option<Held> {
        let units = self.units(bytes);
        let of_one = self.of(owner).try_acquire_many_owned(units).ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_many_owned(units).ok()?;
        Some(Held::new(of_one, of_all, gauge))
    }

    /// Waits for it, behind those that came before.
    async fn take(&self, owner: Owner, bytes: usize, gauge: IntGauge) -> Option<Held> {
        let units = self.units(bytes);
        let of_one = self.of(owner).acquire_many_owned(units).await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_many_owned(units).await.ok()?;
        Some(Held::new(of_one, of_all, gauge))
    }
}

impl Held {
    fn new(of_one: OwnedSemaphorePermit, of_all: OwnedSemaphorePermit, gauge: IntGauge) -> Self {
        let held = Self { _of_one: of_one, of_all, gauge };
        held.gauge.add(held.bytes());
        held
    }

    fn bytes(&self) -> i64 {
        i64::try_from(self.of_all.num_permits() * UNIT_BYTES).unwrap_or(i64::MAX)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gauge.sub(self.bytes());
    }
}

impl Account {
    /// Whether a message of this length is counted. One beyond what is decoded is not: it is refused before it is read.
    pub(crate) fn counts(bytes: usize, is_compressed: bool) -> bool {
        bytes <= MESSAGE_BYTES_MAX && in_memory(bytes, is_compressed) > SMALL_BYTES
    }

    /// Room to receive a message.
    pub(crate) fn receive(&self, bytes: usize) -> Result<Held, Error> {
        let held = self.pools.received.take_now(self.owner, bytes, self.gauge("received"));
        held.ok_or_else(|| self.refuse("has been sent as much as it can take"))
    }

    /// Room to handle a message that was received.
    ///
    /// # Cancel safety
    /// Who gives up waiting loses its place, and holds nothing.
    pub(crate) async fn handle(self, bytes: usize, is_compressed: bool) -> Result<Held, Error> {
        let taking =
            self.pools.handled.take(self.owner, in_memory(bytes, is_compressed), self.gauge("handled"));
        let taken = tokio::time::timeout(WAIT_MAX, taking).await.ok().flatten();
        taken.ok_or_else(|| self.refuse("has had no room for another large message for 30 s"))
    }

    #[cfg(test)]
    pub(crate) fn of_stranger(handled: usize) -> Self {
        let max = MessageBytesMax { handled, ..MessageBytesMax::default() };
        Self { pools: Arc::new(Pools::new(max)), metrics: Metrics::new(), owner: Owner::Stranger }
    }

    fn gauge(&self, kind: &str) -> IntGauge {
        self.metrics.message_bytes.with_label_values(&[kind])
    }

    fn refuse(&self, why: &str) -> Error {
        self.metrics.shed.with_label_values(&["bytes"]).inc();
        let message = format!(
            "this server {why}, of {} or of all together: send fewer large messages at once",
            self.owner.name()
        );
        Error::new(ErrorKind::ResourceExhausted, Reason::Overloaded, message)
            .with("kind", "bytes")
            .retry_after(RETRY_AFTER)
    }
}

/// What it comes to when it is decompressed, at most.
fn in_memory(bytes: usize, is_compressed: bool) -> usize {
    if is_compressed { bytes.saturating_mul(EXPANSION_MAX).min(MESSAGE_BYTES_MAX) } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::view::ErrorView;

    const MIB: usize = 1024 * 1024;
    const ONE: Owner = Owner::Actor(ActorId(1));
    const OTHER: Owner = Owner::Actor(ActorId(2));

    fn account(owner: Owner, pools: &Arc<Pools>) -> Account {
        Account { pools: Arc::clone(pools), metrics: Metrics::new(), owner }
    }

    fn pools(received: usize, handled: usize) -> Arc<Pools> {
        Arc::new(Pools::new(MessageBytesMax { received, handled }))
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
        assert_eq!(third.await.expect_err("nobody gave anything back").reason(), Reason::Overloaded);
        drop(second);
        one.handle(4 * MIB, false).await.expect("who gave up holds nothing");
    }

    #[test]
    fn a_compressed_message_counts_for_what_may_be_in_it() {
        assert!(!Account::counts(SMALL_BYTES, false));
        assert!(Account::counts(SMALL_BYTES + 1, false));
        assert!(Account::counts(SMALL_BYTES / 100, true));
        assert!(!Account::counts(MESSAGE_BYTES_MAX + 1, false), "nobody decodes it");
        assert_eq!(in_memory(MIB, true), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn callers_that_hold_nothing_are_forgotten() {
        let pools = pools(64 * MIB, 16 * MIB);
        for actor in 0..3000 {
            account(Owner::Actor(ActorId(actor)), &pools).receive(MIB).expect("room");
        }
        assert!(lock(&pools.received.of_one).len() <= OWNERS_KEPT);
    }
}
