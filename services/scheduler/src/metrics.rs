//! Prometheus metrics of the scheduler.

mod reason_counters;

use std::time::Duration;

use flow::engine::{ActiveNodes, AttemptTimes, NodeTransition};
use model::{NodeState, ReasonCode, ScriptType};
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use self::reason_counters::ReasonCounters;

/// Bounds of the times of commits, in seconds.
const COMMIT_SECONDS: [f64; 11] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Bounds of the times until a script starts, in seconds: milliseconds at an idle machine, hours in a long queue.
const START_SECONDS: [f64; 12] =
    [0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 10.0, 60.0, 600.0, 3600.0];
/// Bounds of the run times of scripts, in seconds.
const RUN_SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 86_400.0];
/// States in which a node ends without success.
const UNSUCCESSFUL: [NodeState; 3] = [NodeState::Failed, NodeState::Cancelled, NodeState::Skipped];

/// Histogram of each script type, in the order of [`ScriptType::ALL`].
type TypeHistograms = [Histogram; ScriptType::ALL.len()];

/// The scheduler's counters, under `/metrics`.
#[derive(Debug)]
pub struct Metrics {
    /// Flows that this replica has in memory.
    pub flows_owned: IntGauge,
    /// Flows that wait for a time, and are not in memory until then.
    pub flows_asleep: IntGauge,
    /// 1 while this replica has a lease.
    pub lease_held: IntGauge,
    /// Flows submitted through this replica.
    pub flows_submitted: IntCounter,
    /// Flows whose owner this replica became while they ran.
    pub take_overs: IntCounter,
    /// Attempts whose supervisors were asked where they stand.
    pub reconciled: IntCounter,
    /// Steps stored.
    pub commits: IntCounter,
    /// Steps that storage has not answered yet.
    pub commits_in_flight: IntGauge,
    /// Steps refused since the flow has another owner or has changed.
    pub fenced_commits: IntCounter,
    /// Reports that changed nothing.
    pub stale_reports: IntCounter,
    /// Watches that were ended since their clients did not read.
    pub slow_watchers: IntCounter,
    nodes: IntCounterVec,
    lost: IntCounterVec,
    retries: ReasonCounters,
    unsuccessful: [ReasonCounters; UNSUCCESSFUL.len()],
    active: ActiveNodeGauges,
    submit_to_start: Histogram,
    commit_seconds: Histogram,
    queue_wait: TypeHistograms,
    run_seconds: TypeHistograms,
}

/// Numbers of active nodes of the flows in memory.
#[derive(Debug)]
struct ActiveNodeGauges {
    ready: IntGauge,
    dispatched: IntGauge,
    running: IntGauge,
}

/// Registers metrics under the names of this service.
struct SchedulerMetricRegistrar<'a>(&'a Registry);

impl SchedulerMetricRegistrar<'_> {
    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        add(self.0, &IntCounter::new(format!("mycora_scheduler_{name}_total"), help)?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        let opts = Opts::new(format!("mycora_scheduler_{name}_total"), help);
        add(self.0, &IntCounterVec::new(opts, labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        add(self.0, &IntGauge::new(format!("mycora_scheduler_{name}"), help)?)
    }

    fn times(&self, name: &str, help: &str, bounds: &[f64]) -> Result<Histogram, prometheus::Error> {
        let opts = HistogramOpts::new(format!("mycora_scheduler_{name}"), help).buckets(bounds.to_vec());
        add(self.0, &Histogram::with_opts(opts)?)
    }

    /// Registers a histogram for each script type. All of their series exist from the beginning.
    fn times_by_type(
        &self,
        name: &str,
        help: &str,
        bounds: &[f64],
    ) -> Result<TypeHistograms, prometheus::Error> {
        let opts = HistogramOpts::new(format!("mycora_scheduler_{name}"), help).buckets(bounds.to_vec());
        let all = add(self.0, &HistogramVec::new(opts, &["type"])?)?;
        Ok(ScriptType::ALL.map(|kind| all.with_label_values(&[kind.as_str()])))
    }

    fn active_nodes(&self) -> Result<ActiveNodeGauges, prometheus::Error> {
        let opts = Opts::new("mycora_scheduler_nodes", "Nodes of flows in memory that are active, by state");
        let all = add(self.0, &IntGaugeVec::new(opts, &["state"])?)?;
        let gauge = |state: NodeState| all.with_label_values(&[state.as_str()]);
        Ok(ActiveNodeGauges {
            ready: gauge(NodeState::Ready),
            dispatched: gauge(NodeState::Dispatched),
            running: gauge(NodeState::Running),
        })
    }
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When one of the names is taken in this registry.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let names = SchedulerMetricRegistrar(registry);
        let retries = names.counters("retries", "Attempts that are tried again, by reason", &["reason"])?;
        let unsuccessful = names.counters(
            "unsuccessful_nodes",
            "Nodes that ended without success, by state and reason",
            &["state", "reason"],
        )?;
        Ok(Self {
            flows_owned: names.gauge("flows_owned", "Flows that this replica has in memory")?,
            flows_asleep: names
                .gauge("flows_asleep", "Flows that wait for a time, not in memory until then")?,
            lease_held: names.gauge("lease_held", "1 while this replica has a lease")?,
            flows_submitted: names.counter("flows_submitted", "Flows submitted here")?,
            take_overs: names
                .counter("take_overs", "Flows whose owner this replica became while they ran")?,
            reconciled: names
                .counter("reconciled_attempts", "Attempts whose supervisors were queried about them")?,
            commits: names.counter("commits", "Steps stored")?,
            commits_in_flight: names.gauge("commits_in_flight", "Steps that storage has not answered yet")?,
            fenced_commits: names
                .counter("fenced_commits", "Steps refused: the flow has another owner, or changed")?,
            stale_reports: names.counter("stale_reports", "Reports that changed nothing")?,
            slow_watchers: names
                .counter("slow_watchers", "Watches ended because their watcher did not read")?,
            nodes: names.counters("node_transitions", "State changes of nodes, by new state", &["state"])?,
            lost: names.counters(
                "lost_attempts",
                "Attempts that were lost, by what they were lost with: no failures of their scripts",
                &["with"],
            )?,
            retries: ReasonCounters::new(&retries, None),
            unsuccessful: UNSUCCESSFUL.map(|state| ReasonCounters::new(&unsuccessful, Some(state))),
            active: names.active_nodes()?,
            submit_to_start: names.times(
                "submit_to_start_seconds",
                "Time from the creation of a flow to the start of its first job",
                &START_SECONDS,
            )?,
            commit_seconds: names.times(
                "commit_seconds",
                "Time from the sending of a commit to its answer",
                &COMMIT_SECONDS,
            )?,
            queue_wait: names.times_by_type(
                "queue_wait_seconds",
                "Time from the dispatch of an attempt to the start of its script, by type",
                &START_SECONDS,
            )?,
            run_seconds: names.times_by_type(
                "run_seconds",
                "Run time of scripts that ended, by type",
                &RUN_SECONDS,
            )?,
        })
    }

    /// Counts an attempt that was lost with its instance, with its supervisor, or by a drain.
    pub fn lost(&self, code: ReasonCode) {
        let with = match code {
            ReasonCode::InstanceLost => "instance",
            ReasonCode::Drained => "drain",
            _ => "supervisor",
        };
        self.lost.with_label_values(&[with]).inc();
    }

    /// Counts an attempt that is tried again.
    pub fn retried(&self, code: ReasonCode) {
        self.retries.inc(code);
    }

    /// Counts a node's change of state.
    pub fn transition(&self, transition: &NodeTransition) {
        let NodeTransition { to, reason, .. } = transition;
        self.nodes.with_label_values(&[to.as_str()]).inc();
        let place = UNSUCCESSFUL.iter().position(|state| state == to);
        if let (Some(place), Some(reason)) = (place, reason) {
            self.unsuccessful[place].inc(reason.code);
        }
    }

    /// Measures an attempt of a script of this type, as far as its times are known now.
    pub fn attempt(&self, kind: ScriptType, times: &AttemptTimes) {
        let AttemptTimes { node: _, dispatch_time, start_time, end_time } = *times;
        if let Some(dispatch_time) = dispatch_time {
            self.queue_wait[kind.index()].observe(start_time.since(dispatch_time).as_secs_f64());
        }
        if let Some(end_time) = end_time {
            self.run_seconds[kind.index()].observe(end_time.since(start_time).as_secs_f64());
        }
    }

    /// Measures how long a flow waited for the start of its first job.
    pub fn first_start(&self, waited: Duration) {
        self.submit_to_start.observe(waited.as_secs_f64());
    }

    /// Measures a commit that storage has answered.
    pub fn commit_took(&self, length: Duration) {
        self.commit_seconds.observe(length.as_secs_f64());
    }

    /// Replaces the part that a flow has in the numbers of active nodes.
    pub fn set_active(&self, part: &mut ActiveNodes, now: ActiveNodes) {
        let before = std::mem::replace(part, now);
        let ActiveNodeGauges { ready, dispatched, running } = &self.active;
        for (gauge, from, to) in [
            (ready, before.ready, now.ready),
            (dispatched, before.dispatched, now.dispatched),
            (running, before.running, now.running),
        ] {
            if from != to {
                gauge.add(whole(to) - whole(from));
            }
        }
    }
}

/// A number of nodes, for a gauge: a flow has far fewer than fit.
fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, collector: &C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector.clone())
}
