//! Three replicas, and everything that can happen to them and to what they stand on, by chance that can be repeated.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use testkit::{PATIENCE, wait_until};

use crate::process::ReplicaProcess;
use crate::replicas::{LANES, MANIFEST, Stage, WAIT, divided};
use crate::streams::publish_event;
use crate::world::TENANT;

/// Which seeds: one number, or several with commas.
const SEEDS: &str = "MYCORA_TEST_CHAOS_SEEDS";
/// Variable with the number of actions for each seed.
const ACTIONS: &str = "MYCORA_TEST_CHAOS_ACTIONS";
/// Orders that are placed before each action.
const ORDERS: usize = 4;

/// Action that a run takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// A replica dies, and is started again at once.
    Kill,
    /// A replica dies, and is started again when something else has happened.
    KillForLong,
    /// A replica is stopped in its tracks, and goes on after a moment.
    Stop,
    /// A replica is stopped until something else has happened.
    StopForLong,
    /// A replica is stopped until the others have taken what it had.
    StopPastLease,
    /// The broker dies, and is started again.
    Broker,
    /// Redis dies, and is started again.
    Redis,
}

const ALL: [Action; 7] = [
    Action::Kill,
    Action::KillForLong,
    Action::Stop,
    Action::StopForLong,
    Action::StopPastLease,
    Action::Broker,
    Action::Redis,
];

/// A replica, and whether it has to be woken or started again.
struct Replica {
    process: ReplicaProcess,
    is_dead: bool,
    is_stopped: bool,
}

struct Chaos {
    stage: Stage,
    replicas: Vec<Replica>,
    draw: StdRng,
    happened: BTreeMap<String, usize>,
}

impl Chaos {
    async fn begin(seed: u64) -> Self {
        let manifest = MANIFEST.replace("{ goto: ship }", "{ goto: wait }").replace(WAIT.0, WAIT.1);
        let stage = Stage::with(&manifest).await;
        let replicas: Vec<_> = ["a", "b", "c"].map(|name| stage.replica(name)).into();
        divided(&replicas.iter().collect::<Vec<_>>()).await;
        let awake = |process| Replica { process, is_dead: false, is_stopped: false };
        let replicas = replicas.into_iter().map(awake).collect();
        Self { stage, replicas, draw: StdRng::seed_from_u64(seed), happened: BTreeMap::new() }
    }

    /// Has a replica that was away be there again.
    fn restore(&mut self, which: usize) {
        let replica = &mut self.replicas[which];
        if std::mem::take(&mut replica.is_stopped) {
            replica.process.process.resume();
        }
        if std::mem::take(&mut replica.is_dead) {
            replica.process = self.stage.replica(&replica.process.name);
        }
    }

    /// Number of the replica that is away; at most one is.
    fn away(&self) -> Option<usize> {
        self.replicas.iter().position(|replica| replica.is_dead || replica.is_stopped)
    }

    async fn act(&mut self) {
        let action = ALL[self.draw.random_range(0..ALL.len())];
        let before = self.away();
        // Of those that are there.
        let which =
            (0..3).filter(|which| Some(*which) != before).nth(self.draw.random_range(0..2)).unwrap_or(0);
        match action {
            Action::Kill | Action::KillForLong => {
                self.replicas[which].process.process.kill9();
                self.replicas[which].is_dead = true;
            }
            Action::Stop | Action::StopForLong | Action::StopPastLease => {
                self.replicas[which].process.process.suspend();
                self.replicas[which].is_stopped = true;
            }
            Action::Broker => self.stage.nats.restart(),
            Action::Redis => self.stage.redis.restart(),
        }
        if let Some(before) = before {
            self.restore(before);
        }
        if action == Action::StopPastLease {
            let others = self.replicas.iter().filter(|replica| !replica.is_stopped && !replica.is_dead);
            let others: Vec<_> = others.map(|replica| &replica.process).collect();
            divided(&others).await;
        }
        if matches!(action, Action::Kill | Action::Stop | Action::StopPastLease) {
            self.restore(which);
        }
        *self.happened.entry(format!("{action:?}")).or_default() += 1;
    }

    /// Waits until something goes on again: so many orders more than before are where they wait, or have ended.
    async fn until_moved(&mut self, wanted: usize) {
        let begin = Instant::now();
        while self.stage.moved() < wanted {
            assert!(
                begin.elapsed() < 2 * PATIENCE,
                "{} of {wanted}: {:?}",
                self.stage.moved(),
                self.happened
            );
            self.stage.look().await;
        }
    }

    /// Places orders, and pays some that were placed before.
    async fn order(&mut self, round: usize) {
        self.stage.orders(&format!("round-{round}"), ORDERS).await;
        let all = self.stage.orders.len();
        for order in &self.stage.orders[all.saturating_sub(2 * ORDERS)..all - ORDERS] {
            publish_event(&*self.stage.broker, "Order", &format!("q-{order}"), "Paid", order, "{}").await;
        }
    }
}

/// Lets chance happen to three replicas, and compares with what one would have done that nothing happened to.
async fn chance(seed: u64, actions: usize) {
    let begin = Instant::now();
    let mut chaos = Chaos::begin(seed).await;
    for round in 0..actions {
        let wanted = chaos.stage.moved() + ORDERS / 2;
        chaos.order(round).await;
        chaos.act().await;
        chaos.until_moved(wanted).await;
    }
    if let Some(away) = chaos.away() {
        chaos.restore(away);
    }
    let Chaos { stage, replicas, happened, .. } = &mut chaos;
    divided(&replicas.iter().map(|replica| &replica.process).collect::<Vec<_>>()).await;
    stage.pay().await;
    stage.until_all_ended_alike().await;
    stage.are_whole_in(&*stage.store().await, None).await;
    for replica in replicas {
        assert_eq!(replica.process.metric("letters_written_total"), Some(0.0), "{seed}");
        let is_well = async || (replica.process.ask("/health")?.0 == 200).then_some(());
        wait_until(is_well, PATIENCE, "nothing is wrong any more").await;
    }
    let count = stage.orders.len();
    println!(
        "seed {seed}: {count} orders of {TENANT} over {LANES} lanes in {:?}, {happened:?}",
        begin.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_replicas_everything_ends_as_if_nothing_had() {
    let seeds = std::env::var(SEEDS).unwrap_or_else(|_| "7".to_owned());
    let actions = std::env::var(ACTIONS).ok().and_then(|count| count.parse().ok()).unwrap_or(12);
    for seed in seeds.split(',') {
        let seed = seed.trim().parse().expect("a number");
        tokio::time::timeout(Duration::from_secs(3600), chance(seed, actions)).await.expect("in an hour");
    }
}
