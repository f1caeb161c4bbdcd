//! One run: a suite, a load, and faults one after the other, all of one seed; then a look at what became of it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use testkit::{Witness, WitnessMark};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::check::{Violation, check};
use crate::client::{Clients, pause};
use crate::history::{Answer, History, Line, PlannedFlow, Ran};
use crate::load;
use crate::schedule::{Fault, Kind, schedule};
use crate::suite::{Form, Suite, Who};

/// Clients that submit one flow after the other.
const WORKERS: u64 = 6;
/// Clients whose flows wait most of their time.
const WAITING_WORKERS: u64 = 3;
/// How often processes are checked for having ended by themselves.
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// How a death is reported to the witness: `start` with this name.
const KILLED: &str = "killed";

/// Plan of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Load and faults come from it.
    pub seed: u64,
    /// Form of the suite that is broken.
    pub form: Form,
    /// How many faults there are.
    pub faults: usize,
    /// Only of these kinds; of all that there are when empty.
    pub kinds: Vec<Kind>,
    /// How long anything may take to come back: longer is a hang. A generous bound, not a goal.
    pub patience: Duration,
}

/// Outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Plan of the run.
    pub plan: Plan,
    /// Promises that were broken.
    pub violations: Vec<Violation>,
    /// Recovery after each fault.
    pub recoveries: Vec<Recovery>,
    /// Observations of the run.
    pub history: History,
    /// Processes that ended by themselves and had to be started again, beside what the faults killed.
    pub fallen: Vec<String>,
    /// Output of the processes, by name.
    pub outputs: Vec<(String, String)>,
}

/// How long it took after a fault until a new flow was submitted, run and seen to its end.
#[derive(Debug)]
pub struct Recovery {
    /// Fault that was injected.
    pub fault: Fault,
    /// When its cause was gone, in milliseconds since 1970, as logs have it.
    pub lifted_millis: u128,
    /// How long it took from then until the new flow was known to be taken.
    pub taken: Duration,
    /// How long until it was seen to its end.
    pub whole: Duration,
}

impl Outcome {
    /// Log lines that show that a part of a process panicked.
    #[must_use]
    pub fn panics(&self) -> Vec<&str> {
        let lines = self.outputs.iter().flat_map(|(_, output)| output.lines());
        lines.filter(|line| line.contains("panicked at")).collect()
    }

    /// Counts the causes of broken streams and calls.
    #[must_use]
    pub fn breaks(&self) -> BTreeMap<String, usize> {
        let calls = self.history.submissions.iter().filter_map(|submission| match &submission.answer {
            Answer::Unknown(why) | Answer::Refused(why) => Some(format!("submit: {why}")),
            Answer::Taken(_) => None,
        });
        let streams = self.history.watches.iter().flat_map(|watch| &watch.breaks);
        let mut counts = BTreeMap::new();
        for why in calls.chain(streams.map(|why| format!("watch: {why}"))) {
            *counts.entry(why).or_default() += 1;
        }
        counts
    }
}

/// Runs a plan. Needs a runtime of several threads.
///
/// # Panics
/// When the suite does not start, or cannot be broken as planned.
pub async fn run(plan: Plan) -> Outcome {
    let seed = plan.seed;
    let mut run = FaultRun::start(plan).await;
    let enough = CancellationToken::new();
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..WORKERS {
        let (clients, next, enough) = (run.clients.clone(), Arc::clone(&next), enough.clone());
        tasks.spawn(async move { work(&clients, seed, (load::flow, &next), &enough).await });
    }
    let next = Arc::new(AtomicU64::new(0));
    for _ in 0..WAITING_WORKERS {
        let (clients, next, enough) = (run.clients.clone(), Arc::clone(&next), enough.clone());
        tasks.spawn(async move { work(&clients, seed, (load::waiting_flow, &next), &enough).await });
    }
    let (intruder, until) = (run.clients.clone(), enough.clone());
    tasks.spawn(async move { intruder.intrude(&until).await });

    let faults = schedule(seed, &run.suite.targets(), &run.plan.kinds, run.plan.faults);
    run.probe().await;
    for fault in faults {
        if !run.survive(fault).await {
            break;
        }
    }
    enough.cancel();
    run.finish(tasks).await
}

/// Draws the flow of a seed and a number, with its name.
type Flows = fn(u64, u64) -> (String, PlannedFlow);

/// A client's day: one flow after the other.
async fn work(clients: &Clients, seed: u64, (flow, next): (Flows, &AtomicU64), enough: &CancellationToken) {
    while !enough.is_cancelled() {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let (name, flow) = flow(seed, number);
        clients.see_through(number, name, flow).await;
    }
}

/// A run under way.
struct FaultRun {
    plan: Plan,
    suite: Suite,
    witness: Witness,
    clients: Clients,
    probes: u64,
    recoveries: Vec<Recovery>,
    violations: Vec<Violation>,
    fallen: Vec<String>,
}

impl FaultRun {
    async fn start(plan: Plan) -> Self {
        let suite = Suite::start(plan.form).await;
        let witness = suite.witness();
        let (admin, stranger) = (suite.profiles(Who::Admin), suite.profiles(Who::Stranger));
        let clients = Clients::new(plan.seed, &admin, &stranger, witness.clone(), suite.slots());
        Self {
            plan,
            suite,
            witness,
            clients,
            probes: 0,
            recoveries: Vec::new(),
            violations: Vec::new(),
            fallen: Vec::new(),
        }
    }

    /// Breaks something, mends it, and waits until the suite works again; returns whether it does.
    async fn survive(&mut self, fault: Fault) -> bool {
        pause(fault.before).await;
        let ends_scripts = self.suite.ends_scripts(&fault);
        if ends_scripts {
            self.record_kill();
        }
        while !tokio::task::block_in_place(|| self.suite.begin(&fault)) {
            // It ended by itself, or is on its way back after the fault before: a fault that does not happen tests nothing.
            self.revive();
            pause(LOOK_AFTER).await;
        }
        if !self.suite.mends(&fault) {
            pause(fault.lasts).await;
        }
        tokio::task::block_in_place(|| self.suite.lift(&fault));
        if ends_scripts {
            self.record_kill();
        }
        let (lifted, since_epoch) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH));
        let patience = self.plan.patience;
        let works = tokio::time::timeout(patience, self.recover(lifted)).await.ok();
        let lifted_millis = since_epoch.unwrap_or_default().as_millis();
        match works {
            Some(Some(taken)) => {
                self.recoveries.push(Recovery { fault, lifted_millis, taken, whole: lifted.elapsed() });
                return true;
            }
            Some(None) => {
                self.accuse(format!("what works is not used after {fault:?}: its flow was refused"))
            }
            None => self.accuse(format!("nothing works {patience:?} after {fault:?}")),
        }
        false
    }

    fn accuse(&mut self, what: String) {
        self.violations.push(Violation { invariant: 1, what });
    }

    /// Returns when a new flow was seen to its end, with when it was taken; nothing when it was refused. What falls meanwhile is
    /// started again.
    async fn recover(&mut self, lifted: Instant) -> Option<Duration> {
        let clients = self.clients.clone();
        let (number, name, flow) = self.next_probe();
        let probe = async {
            let id = clients.hand_in(number, name, flow).await?;
            let taken = lifted.elapsed();
            clients.watch(number, id).await.then_some(taken)
        };
        tokio::pin!(probe);
        loop {
            tokio::select! {
                taken = &mut probe => return taken,
                () = pause(LOOK_AFTER) => self.revive(),
            }
        }
    }

    async fn probe(&mut self) {
        let (number, name, flow) = self.next_probe();
        self.clients.see_through(number, name, flow).await;
    }

    fn next_probe(&mut self) -> (u64, String, PlannedFlow) {
        self.probes += 1;
        let (name, flow) = load::probe(self.plan.seed, self.probes);
        (self.probes, name, flow)
    }

    fn revive(&mut self) {
        let fallen = tokio::task::block_in_place(|| self.suite.revive());
        self.fallen.extend(fallen);
    }

    fn record_kill(&self) {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(self.witness.path());
        let written = file.and_then(|mut file| file.write_all(format!("start {KILLED} 0\n").as_bytes()));
        written.expect("the witness can be written");
    }

    /// Waits for the load's end, looks at everything, and judges.
    async fn finish(mut self, mut tasks: JoinSet<()>) -> Outcome {
        let patience = self.plan.patience;
        self.revive();
        let ended =
            tokio::time::timeout(patience, async { while tasks.join_next().await.is_some() {} }).await;
        if ended.is_err() {
            self.accuse(format!("clients are not answered to the end {patience:?} after the last fault"));
            self.clients.give_up();
            while tasks.join_next().await.is_some() {}
        }
        self.clients.look().await;
        let settled = async {
            while self.suite.messages_left() != Some(0) {
                pause(LOOK_AFTER).await;
            }
        };
        let _ = tokio::time::timeout(patience, settled).await;
        let mut history = self.clients.history().clone();
        history.messages_left = self.suite.messages_left();
        history.witness = lines(&self.witness);
        let mut violations = self.violations;
        violations.extend(check(&history));
        let outputs = self.suite.outputs();
        Outcome {
            plan: self.plan,
            violations,
            recoveries: self.recoveries,
            history,
            fallen: self.fallen,
            outputs,
        }
    }
}

/// Converts the lines that scripts wrote into history.
fn lines(witness: &Witness) -> Vec<Line> {
    let line = |(mark, job, attempt): (WitnessMark, String, String)| {
        if job == KILLED {
            return Line::Killed;
        }
        let (job, token) = job.split_once('/').unwrap_or((&job, ""));
        let attempt = attempt.parse().unwrap_or_default();
        let ran = Ran { job: job.to_owned(), token: token.to_owned(), attempt };
        match mark {
            WitnessMark::Start => Line::Start(ran),
            WitnessMark::End => Line::End(ran),
        }
    };
    witness.lines().into_iter().map(line).collect()
}
