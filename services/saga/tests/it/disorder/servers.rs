//! Disorder of real servers, and what becomes of the same histories without the cursor rule.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use broker::{
    CursorError, CursorProgress, CursorSpec, CursorStart, Deliveries, MessageBroker, PullLimit,
    ReceiptHandle, StreamDelivery,
};
use saga::lane::LaneExit;
use testkit::{PATIENCE, ProxyFault, wait_until};
use tokio::sync::watch;

use super::{COUNTERS, LAST, STREAM, assert_counted, consumer, counting, hole, next};
use crate::commit_gate::CommitGate;
use crate::hooked_broker::intercept;
use crate::hooked_store::HookedStore;
use crate::world::{Keeps, World};

/// Time until a message that is not acknowledged is delivered again.
const ACK_WAIT: Duration = Duration::from_secs(1);

/// Trouble that a lane has while it counts.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// Connection is cut with deliveries under way: for the server they have been made.
    Cut,
    /// Deliveries get lost, and the connection stays.
    LostDeliveries,
    /// The server gets no acknowledgements, and redelivers messages behind newer ones.
    LostAcks,
    /// Commits take longer than the server's ack wait, so that it redelivers messages that are being worked on.
    SlowCommits,
    /// Another owner takes the lane while events come.
    TakeOver,
    /// The owner dies with events under way.
    Crash,
}

const ALL: [Trouble; 6] = [
    Trouble::Cut,
    Trouble::LostDeliveries,
    Trouble::LostAcks,
    Trouble::SlowCommits,
    Trouble::TakeOver,
    Trouble::Crash,
];

/// Levers by which a test disturbs deliveries on their way.
#[derive(Default)]
struct Levers {
    lost: AtomicUsize,
    is_deaf: AtomicBool,
    /// Receipt of a message that was acknowledged before.
    spare: Mutex<Option<ReceiptHandle>>,
}

/// Deliveries to which something happens.
struct Troubled {
    deliveries: Box<dyn Deliveries>,
    levers: Arc<Levers>,
}

#[async_trait]
impl Deliveries for Troubled {
    async fn next(&mut self, room: PullLimit) -> Result<StreamDelivery, CursorError> {
        loop {
            let mut delivered = self.deliveries.next(room).await?;
            let Levers { lost, is_deaf, spare } = &*self.levers;
            if lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |lost| lost.checked_sub(1)).is_ok() {
                continue;
            }
            let mut spare = spare.lock().expect("no panic");
            match &*spare {
                // Acknowledged is another message, once more.
                Some(other) if is_deaf.load(Ordering::Relaxed) => delivered.receipt = other.clone(),
                Some(_) => {}
                None => *spare = Some(delivered.receipt.clone()),
            }
            return Ok(delivered);
        }
    }

    fn progress(&self) -> watch::Receiver<CursorProgress> {
        self.deliveries.progress()
    }
}

/// Deliveries that hide from the cursor rule what it goes by: numbers of deliveries have no gaps, and behind a cut they go on where
/// the server says that it was.
struct Unruled {
    deliveries: Box<dyn Deliveries>,
    broker: Arc<dyn MessageBroker>,
    spec: CursorSpec,
    count: u64,
}

#[async_trait]
impl Deliveries for Unruled {
    async fn next(&mut self, room: PullLimit) -> Result<StreamDelivery, CursorError> {
        loop {
            match self.deliveries.next(room).await {
                Ok(delivered) => {
                    self.count += 1;
                    return Ok(StreamDelivery { count: self.count, ..delivered });
                }
                Err(CursorError::Disconnected { .. }) => {
                    let (broker, spec) = (&self.broker, &self.spec);
                    let again = async || {
                        let state = broker.cursor(&spec.stream, &spec.consumer).await.ok()??;
                        let start = CursorStart::After(state.delivered_sequence);
                        broker.open(&CursorSpec { start, ..spec.clone() }).await.ok()
                    };
                    self.deliveries = wait_until(again, PATIENCE, "it is connected again").await;
                }
                Err(lost) => return Err(lost),
            }
        }
    }

    fn progress(&self) -> watch::Receiver<CursorProgress> {
        self.deliveries.progress()
    }
}

/// Counters on a real server, to which their lane's connection is in the hands of the test.
struct Stage {
    world: World,
    consumer: String,
    levers: Arc<Levers>,
    commits: CommitGate,
}

impl Stage {
    async fn new(keeps: Keeps, has_rule: bool) -> Self {
        let mut world = World::behind_a_proxy(keeps).await;
        if has_rule {
            world.ack_wait = ACK_WAIT;
        }
        let levers = Arc::new(Levers::default());
        let (broker, of_broker) = (Arc::clone(&world.broker), Arc::clone(&levers));
        world.broker = intercept(Arc::clone(&broker), move |spec, deliveries| {
            if spec.stream != STREAM {
                return deliveries;
            }
            let levers = Arc::clone(&of_broker);
            let deliveries = Box::new(Troubled { deliveries, levers });
            if has_rule {
                return deliveries;
            }
            Box::new(Unruled { deliveries, broker: Arc::clone(&broker), spec: spec.clone(), count: 0 })
        });
        let commits = CommitGate::default();
        world.store = HookedStore::over(Arc::clone(&world.store), commits.clone());
        let world = counting(world).await;
        let consumer = consumer(&world);
        Self { world, consumer, levers, commits }
    }

    async fn publish(&self, n: u64) {
        for counter in COUNTERS {
            next(&self.world, counter, n).await;
        }
    }

    /// Counts deliveries, as the server does.
    async fn delivered(&self) -> u64 {
        let state = self.world.outside.cursor(STREAM, &self.consumer).await.expect("an answer");
        state.map_or(0, |state| state.delivered)
    }

    async fn until_delivered(&self, wanted: u64) {
        let delivered = async || (self.delivered().await >= wanted).then_some(());
        wait_until(delivered, PATIENCE, format!("the server has delivered {wanted}")).await;
    }

    fn resets(&self, why: &str) -> u64 {
        self.world.metrics.cursor_resets.with_label_values(&[why]).get()
    }

    /// Waits until all counters have come to a number.
    ///
    /// # Errors
    /// The letter of one that has found a hole, or a repeat.
    async fn counted(&self, n: u64) -> Result<(), String> {
        for counter in COUNTERS {
            let come = async || {
                let record = self.world.record(counter).await?;
                let is_there = record.instance().is_none_or(|instance| instance.revision > n);
                if is_there { Some(Ok(())) } else { hole(&self.world, counter).await.map(Err) }
            };
            wait_until(come, PATIENCE, format!("{counter} comes to {n}")).await?;
        }
        Ok(())
    }

    /// Publishes a number, and has something happen meanwhile.
    async fn publish_in(&mut self, trouble: Trouble, n: u64) -> Result<(), String> {
        self.counted(n - 1).await?;
        let delivered = self.delivered().await;
        match trouble {
            Trouble::Cut => {
                let proxy = self.world.ground.proxy.as_ref().expect("a proxy");
                proxy.set(ProxyFault::SwallowAnswers);
                self.publish(n).await;
                self.until_delivered(delivered + COUNTERS.len() as u64).await;
                proxy.cut_once();
            }
            Trouble::LostDeliveries => {
                self.levers.lost.store(2, Ordering::Relaxed);
                self.publish(n).await;
            }
            Trouble::LostAcks => {
                self.levers.is_deaf.store(true, Ordering::Relaxed);
                self.publish(n).await;
                self.counted(n).await?;
                self.levers.is_deaf.store(false, Ordering::Relaxed);
            }
            Trouble::SlowCommits => {
                self.commits.hold();
                self.publish(n).await;
                self.until_delivered(delivered + 2 * COUNTERS.len() as u64).await;
                self.commits.release();
            }
            Trouble::TakeOver => {
                let former = self.world.take_over();
                self.publish(n).await;
                let ended = tokio::time::timeout(PATIENCE, former).await.expect("it ends");
                let ended = ended.expect("it does not panic");
                assert!(matches!(ended, LaneExit::Fenced { .. }), "{ended}");
            }
            Trouble::Crash => {
                self.publish(n).await;
                self.world.crash().await;
                self.world.own();
            }
        }
        Ok(())
    }

    /// Publishes a number in trouble, and the next one behind it.
    async fn go_through(&mut self, trouble: Trouble, n: u64) -> Result<(), String> {
        let disorder = self.resets("disorder");
        self.publish_in(trouble, n).await?;
        self.publish(n + 1).await;
        if n + 1 < LAST {
            self.counted(n + 1).await?;
        }
        if matches!(trouble, Trouble::LostAcks | Trouble::LostDeliveries) {
            let again = async || (self.resets("disorder") > disorder).then_some(());
            wait_until(again, PATIENCE, "disorder is noticed").await;
        }
        Ok(())
    }
}

/// The numbers at which something happens: each second one.
fn rounds() -> impl Iterator<Item = u64> {
    (1..LAST).step_by(2)
}

async fn versions_rise_without_holes(keeps: Keeps) {
    let mut stage = Stage::new(keeps, true).await;
    for (n, trouble) in rounds().zip(ALL.iter().cycle()) {
        assert_eq!(stage.go_through(*trouble, n).await, Ok(()), "{n}: {trouble:?}");
    }
    assert_counted(&stage.world).await;
    let reasons = ["taken", "disconnected", "disorder", "deleted", "failed"];
    println!("{:?}", reasons.map(|why| (why, stage.resets(why))));
    // All of it has happened: four cuts, seven times disorder, six other owners.
    let cuts = stage.resets("disconnected") + stage.resets("failed");
    assert!(cuts >= 4 && stage.resets("disorder") >= 7 && stage.resets("taken") >= 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_rise_without_holes_on_a_real_server_in_a_directory() {
    versions_rise_without_holes(Keeps::Directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_rise_without_holes_on_a_real_server_in_redis() {
    versions_rise_without_holes(Keeps::Redis).await;
}

/// Repeats the test above without the rule: what it goes by is hidden from it.
async fn holes_are_found_without_the_rule(keeps: Keeps) {
    for trouble in [Trouble::Cut, Trouble::LostDeliveries] {
        let mut stage = Stage::new(keeps, false).await;
        stage.publish_in(trouble, 1).await.expect("nothing can be seen yet");
        // The server may take for delivered what comes before it knows of the cut.
        let last = AtomicU64::new(1);
        let found = async || {
            next(&stage.world, "a", last.fetch_add(1, Ordering::Relaxed) + 1).await;
            hole(&stage.world, "a").await
        };
        let found = wait_until(found, PATIENCE, "a hole is found").await;
        assert!(found.contains(" after 0") && !found.contains("1 after 0"), "{trouble:?}: {found}");
        assert_eq!(stage.resets("disorder"), 0, "nothing was noticed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_cursor_rule_the_same_has_holes_in_a_directory() {
    holes_are_found_without_the_rule(Keeps::Directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_cursor_rule_the_same_has_holes_in_redis() {
    holes_are_found_without_the_rule(Keeps::Redis).await;
}
