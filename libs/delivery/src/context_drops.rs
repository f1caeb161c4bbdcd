//! Requests that supervisors forget a context: each is retried until the supervisor has, or is given up.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use model::BackoffPolicy;
use proto::internal::v1 as wire;
use tokio::time::Instant;

/// Answers that are remembered, in case they were lost; the oldest are forgotten first.
pub const ANSWERED_MAX: usize = 1000;
/// Back-off between tries.
const BACKOFF: BackoffPolicy = BackoffPolicy { initial_secs: 0.1, multiplier: 2.0, max_secs: 10.0 };

/// A context's uid and one of its runners.
pub type ContextDropKey = (String, u32);

/// How a request to forget a context ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextDropResult {
    /// The supervisor has forgotten the context.
    Dropped(wire::ContextDropped),
    /// The supervisor could not be reached for too long.
    Abandoned(wire::ContextDropped),
}

/// Open requests to forget contexts.
#[derive(Debug)]
pub struct ContextDrops {
    lost_after: Duration,
    open: BTreeMap<ContextDropKey, ScheduledContextDrop>,
    under_way: HashMap<u64, ContextDropKey>,
    due: BTreeSet<(Instant, ContextDropKey)>,
    answered: HashSet<ContextDropKey>,
    order: VecDeque<ContextDropKey>,
}

#[derive(Debug)]
struct ScheduledContextDrop {
    request: wire::ContextDrop,
    since: Instant,
    failures: u32,
}

impl ContextDrops {
    /// None yet. A supervisor that stays unreachable for `lost_after` is given up.
    #[must_use]
    pub fn new(lost_after: Duration) -> Self {
        Self {
            lost_after,
            open: BTreeMap::new(),
            under_way: HashMap::new(),
            due: BTreeSet::new(),
            answered: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    /// Takes a request from storage, perhaps a repeated one. Returns the answer when there was one already.
    pub fn take(&mut self, now: Instant, request: wire::ContextDrop) -> Option<wire::ContextDropped> {
        let name = (request.context_uid.clone(), request.runner_id);
        if self.answered.contains(&name) {
            return Some(answer(&name));
        }
        if !self.open.contains_key(&name) {
            self.due.insert((now, name.clone()));
            self.open.insert(name, ScheduledContextDrop { request, since: now, failures: 0 });
        }
        None
    }

    /// Takes the requests that are due, to be sent to the gateway, each under a number from `next_id`.
    pub fn send_due(&mut self, now: Instant, mut next_id: impl FnMut() -> u64) -> Vec<wire::DropContext> {
        let mut sent = Vec::new();
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && let Some((_, name)) = self.due.pop_first()
        {
            let Some(ScheduledContextDrop { request, .. }) = self.open.get(&name) else { continue };
            let drop_id = next_id();
            sent.push(wire::DropContext {
                drop_id,
                address: request.address.clone(),
                topic: request.topic.clone(),
                context_uid: request.context_uid.clone(),
                context_id: request.context_id,
            });
            self.under_way.insert(drop_id, name);
        }
        sent
    }

    /// Notes the end of a try, successful when `error` is empty. Returns the answer for storage, if any.
    pub fn ended(
        &mut self,
        now: Instant,
        drop_id: u64,
        error: &str,
        jitter: f64,
    ) -> Option<ContextDropResult> {
        let name = self.under_way.remove(&drop_id)?;
        let open = self.open.get_mut(&name)?;
        let given_up = now.saturating_duration_since(open.since) >= self.lost_after;
        if error.is_empty() || given_up {
            self.open.remove(&name);
            let answer = answer(&name);
            self.remember(name);
            return Some(if error.is_empty() {
                ContextDropResult::Dropped(answer)
            } else {
                ContextDropResult::Abandoned(answer)
            });
        }
        let delay = BACKOFF.delay(open.failures, jitter);
        open.failures += 1;
        tracing::debug!(context = name.0, runner = name.1, error, ?delay, "a context drop failed; retrying");
        self.due.insert((now + delay, name));
        None
    }

    /// Schedules the drops again that were under way when the stream to the gateway was lost.
    pub fn gateway_lost(&mut self, now: Instant) {
        self.due.extend(self.under_way.drain().map(|(_, name)| (now, name)));
    }

    /// When the next try is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn remember(&mut self, name: ContextDropKey) {
        self.answered.insert(name.clone());
        self.order.push_back(name);
        if self.order.len() > ANSWERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.answered.remove(&oldest);
        }
    }
}

fn answer(name: &ContextDropKey) -> wire::ContextDropped {
    wire::ContextDropped { context_uid: name.0.clone(), runner_id: name.1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST_AFTER: Duration = Duration::from_secs(300);

    fn request(runner_id: u32) -> wire::ContextDrop {
        wire::ContextDrop {
            context_id: 1,
            context_uid: "u".into(),
            runner_id,
            address: format!("grpc://host-{runner_id}:1"),
            topic: "t".into(),
        }
    }

    struct Bench {
        drops: ContextDrops,
        now: Instant,
        ids: u64,
    }

    impl Bench {
        fn new() -> Self {
            Self { drops: ContextDrops::new(LOST_AFTER), now: Instant::now(), ids: 0 }
        }

        fn sent(&mut self) -> Vec<wire::DropContext> {
            let ids = &mut self.ids;
            self.drops.send_due(self.now, || {
                *ids += 1;
                *ids
            })
        }

        fn ended(&mut self, drop_id: u64, error: &str) -> Option<ContextDropResult> {
            self.drops.ended(self.now, drop_id, error, 0.5)
        }
    }

    #[test]
    fn a_drop_is_repeated_until_it_succeeds_and_answered_again_when_requested_again() {
        let mut bench = Bench::new();
        for runner in [1, 2, 1] {
            assert_eq!(bench.drops.take(bench.now, request(runner)), None);
        }
        let sent = bench.sent();
        assert_eq!(sent.len(), 2);
        assert_eq!((sent[1].address.as_str(), sent[1].context_uid.as_str()), ("grpc://host-2:1", "u"));
        assert_eq!(bench.ended(sent[0].drop_id, "still running"), None);
        assert!(bench.sent().is_empty(), "not at once");
        bench.now = bench.drops.next_due().expect("a back-off");
        let again = bench.sent();
        assert_eq!((again.len(), again[0].address.as_str()), (1, "grpc://host-1:1"));
        bench.drops.gateway_lost(bench.now);
        assert_eq!(bench.ended(again[0].drop_id, ""), None, "its stream is gone");
        let again = bench.sent();
        assert_eq!(again.len(), 2);
        let answer = wire::ContextDropped { context_uid: "u".into(), runner_id: 1 };
        assert_eq!(bench.ended(again[0].drop_id, ""), Some(ContextDropResult::Dropped(answer.clone())));
        assert_eq!(bench.drops.take(bench.now, request(1)), Some(answer));
        assert_eq!(bench.drops.open.len(), 1);
    }

    #[test]
    fn who_stays_unreachable_is_given_up() {
        let mut bench = Bench::new();
        let begin = bench.now;
        bench.drops.take(bench.now, request(1));
        let given_up = loop {
            bench.now = bench.drops.next_due().expect("tried on");
            let sent = bench.sent();
            if let Some(ended) = bench.ended(sent[0].drop_id, "not connected") {
                break ended;
            }
        };
        assert!(matches!(given_up, ContextDropResult::Abandoned(_)), "{given_up:?}");
        let took = bench.now - begin;
        assert!((LOST_AFTER..LOST_AFTER + Duration::from_secs(10)).contains(&took), "{took:?}");
        assert!(bench.drops.take(bench.now, request(1)).is_some() && bench.drops.next_due().is_none());
    }

    #[test]
    fn the_oldest_answers_are_forgotten() {
        let mut bench = Bench::new();
        for runner in 0..=u32::try_from(ANSWERED_MAX).expect("small") {
            bench.drops.take(bench.now, request(runner));
            let sent = bench.sent();
            bench.ended(sent[0].drop_id, "");
        }
        assert_eq!(bench.drops.take(bench.now, request(0)), None);
        assert!(bench.drops.take(bench.now, request(1)).is_some());
        assert_eq!((bench.drops.answered.len(), bench.drops.order.len()), (ANSWERED_MAX, ANSWERED_MAX));
    }
}
