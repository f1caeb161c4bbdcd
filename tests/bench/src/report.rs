//! The figures, as they are printed.

use std::fmt;
use std::time::Duration;

use proto::v1::ContextUsageKind;

use crate::finished::Finished;
use crate::growth::Cost;
use crate::neighbour::Times;
use crate::retention::Part;
use crate::runtimes::Language;
use crate::watching::Watched;

/// Gathers figures and prints them in the end.
pub(crate) struct Report {
    machine: String,
    setting: &'static str,
    rows: Vec<(String, String)>,
}

impl Report {
    /// A report of this machine.
    pub(crate) const fn new(machine: String) -> Self {
        let setting = "all-in-one, client over mTLS, no-op rhai jobs, append-only file every second";
        Self { machine, setting, rows: Vec::new() }
    }

    /// Replaces the line that describes what was measured.
    pub(crate) const fn of(mut self, setting: &'static str) -> Self {
        self.setting = setting;
        self
    }

    /// Times per step of chains.
    pub(crate) fn chain(&mut self, mut steps: Vec<Duration>) {
        let (p50, p99) = percentiles(&mut steps);
        self.row("40-step chain, one dependent step", format!("p50 {}  p99 {}", millis(p50), millis(p99)));
    }

    /// Times of whole fan-outs.
    pub(crate) fn fan_out(&mut self, width: u32, times: &[Duration]) {
        let (p50, _) = percentiles(&mut times.to_vec());
        let rate = f64::from(width + 2) / p50.as_secs_f64();
        self.row(
            &format!("{width} fan-out and join, whole flow"),
            format!("p50 {}  ({rate:.0} nodes/s)", millis(p50)),
        );
    }

    /// Flows of one job per second.
    pub(crate) fn single(&mut self, per_second: f64) {
        self.row("single jobs, 64 at once", format!("{per_second:.0} /s"));
    }

    /// Times from submission to start.
    pub(crate) fn latency(&mut self, mut times: Vec<Duration>) {
        let (p50, p99) = percentiles(&mut times);
        self.row("submit to start", format!("p50 {}  p99 {}", millis(p50), millis(p99)));
    }

    /// Adds a row for the cost of jobs of one language.
    pub(crate) fn runtime(&mut self, name: &str, measured: Language) {
        let Language { mut to_start, mut whole, each } = measured;
        let ((start, _), (p50, p99)) = (percentiles(&mut to_start), percentiles(&mut whole));
        let rate = 1.0 / each.as_secs_f64();
        self.row(
            &format!("a no-op {name} job, alone"),
            format!("to start p50 {}, whole p50 {}  p99 {}", millis(start), millis(p50), millis(p99)),
        );
        self.row("  of many in one flow", format!("{} each ({rate:.0} /s)", millis(each)));
    }

    /// A language that this machine does not have.
    pub(crate) fn absent(&mut self, name: &str) {
        self.row(&format!("a no-op {name} job"), "not on this machine".to_owned());
    }

    /// One very large flow: times of creating, starting and running it, the most memory of scheduler and
    /// storage, and what Redis has more than before, in bytes.
    pub(crate) fn large(
        &mut self,
        nodes: u32,
        (created, started, ran): (Duration, Duration, Duration),
        (scheduler, storage): (u64, u64),
        redis: u64,
    ) {
        let rate = f64::from(nodes) / ran.as_secs_f64();
        self.row(
            &format!("a flow of {nodes} nodes, separate processes"),
            format!("created in {}, started in {}", secs(created), secs(started)),
        );
        self.row("  from its start to its end", format!("{} ({rate:.0} nodes/s)", secs(ran)));
        self.row("  peak memory", format!("scheduler {}, storage {}", mib(scheduler), mib(storage)));
        let each = redis / u64::from(nodes);
        self.row("  growth of Redis", format!("{} ({each} bytes a node)", mib(redis)));
    }

    /// Flows that wait for a signal: the time of submitting them, the shares of a core that the suite and
    /// Redis use, their memory, and how long one of them takes from its signal to its end.
    pub(crate) fn waiting(
        &mut self,
        flows: u32,
        submitted: Duration,
        (suite, redis): (f64, f64),
        (suite_bytes, redis_bytes): (u64, u64),
        woke: Duration,
    ) {
        self.row(
            &format!("{flows} flows that wait for a signal"),
            format!("submitted in {}", secs(submitted)),
        );
        let percent = |share: f64| format!("{:.2} % of a core", share * 100.0);
        self.row("  idle for a minute", format!("suite {}, Redis {}", percent(suite), percent(redis)));
        self.row("  memory", format!("suite {}, Redis {}", mib(suite_bytes), mib(redis_bytes)));
        self.row("  one of them, from signal to end", millis(woke));
    }

    /// Adds a row for the cost of one unit of a growing load.
    pub(crate) fn grown(&mut self, unit: &str, cost: Cost) {
        let Cost { suite, redis, took } = cost;
        let spent = format!("suite {}, Redis {}, in {}", millis(suite), millis(redis), millis(took));
        self.row(unit, spent);
    }

    /// Flows of one job, alone and beside a large flow of another context.
    pub(crate) fn neighbour(&mut self, alone: Times, beside: Times) {
        for (name, mut times) in [("alone", alone), ("beside a flow of 100,000 nodes", beside)] {
            let ((start50, start99), (end50, end99)) =
                (percentiles(&mut times.start), percentiles(&mut times.end));
            let [start50, start99, end50, end99] = [start50, start99, end50, end99].map(millis);
            self.row(
                &format!("{} flows of one job, {name}", times.end.len()),
                format!("to start p50 {start50}  p99 {start99}, to end p50 {end50}  p99 {end99}"),
            );
        }
    }

    /// One watch of all flows.
    pub(crate) fn watched(&mut self, watched: Watched) {
        let Watched { flows, used, took, delays, snapshot, suite_bytes, events_bytes } = watched;
        for (name, (suite, redis), took) in
            [("unseen", used[0], took[0]), ("under one WatchFlows", used[1], took[1])]
        {
            let times =
                format!("suite {}, Redis {} for each, in {}", millis(suite), millis(redis), secs(took));
            self.row(&format!("{flows} flows, from signal to end, {name}"), times);
        }
        for (name, mut delays) in ["one at a time", "all at once"].into_iter().zip(delays) {
            let (p50, p99) = percentiles(&mut delays);
            let worst = delays.last().copied().unwrap_or_default();
            let times = format!("p50 {}  p99 {}  worst {}", millis(p50), millis(p99), millis(worst));
            self.row(&format!("  from an end to the word of it, {name}"), times);
        }
        self.row("  its snapshot", millis(snapshot));
        self.row("  memory of the suite", format!("{} more", mib(suite_bytes)));
        self.row("  events in Redis, for each flow", format!("{events_bytes} bytes"));
    }

    /// Flows that have ended.
    pub(crate) fn finished(&mut self, finished: &Finished) {
        let Finished { flows, rates, suite_bytes, redis_bytes, lists, start } = finished;
        let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        self.row(&format!("{flows} flows of one job"), format!("{} a second", rates.join(", ")));
        let memory: Vec<String> = suite_bytes.iter().map(|bytes| mib(*bytes)).collect();
        self.row("  memory of the suite", memory.join(", "));
        self.row("  memory of Redis", mib(*redis_bytes));
        let [all, of_status, none] = (*lists).map(millis);
        self.row("  a page of all, of finished, of failed", format!("{all}, {of_status}, {none}"));
        self.row("  a start", secs(*start));
    }

    /// Times of whole flows of one job at nine supervisors, with a tenth alive, killed and hanging.
    pub(crate) fn dead(&mut self, mut alive: Vec<Duration>, killed: Vec<Duration>, hangs: Vec<Duration>) {
        let (p50, p99) = percentiles(&mut alive);
        self.row("a job at one of nine, all ten alive", format!("p50 {}  p99 {}", millis(p50), millis(p99)));
        for (name, mut times) in [("  the tenth killed", killed), ("  the tenth hangs", hangs)] {
            let (other50, other99) = percentiles(&mut times);
            let ratio = other99.as_secs_f64() / p99.as_secs_f64();
            let figures = format!("p50 {}  p99 {}  (p99 {ratio:.2} times)", millis(other50), millis(other99));
            self.row(name, figures);
        }
    }

    /// A row as it is.
    pub(crate) fn line(&mut self, what: &str, figures: &str) {
        self.row(&format!("  {what}"), figures.to_owned());
    }

    /// Something that is not measured, and why.
    pub(crate) fn left_out(&mut self, what: &str, lack: &str) {
        self.row(what, format!("left out: {lack}"));
    }

    /// A heading of the rows that follow.
    pub(crate) fn title(&mut self, title: &str) {
        self.row(title, String::new());
    }

    /// A number of times that something was done a second.
    pub(crate) fn rate(&mut self, what: &str, per_second: f64) {
        self.row(&format!("  {what}"), format!("{per_second:.0} /s"));
    }

    /// Times of one thing.
    pub(crate) fn spread(&mut self, what: &str, mut times: Vec<Duration>) {
        let (p50, p99) = percentiles(&mut times);
        self.row(&format!("  {what}"), format!("p50 {}  p99 {}", millis(p50), millis(p99)));
    }

    /// Transitions of sagas a second, the processor time of each, and the commits a second that the store can do.
    pub(crate) fn transitions(&mut self, lanes: usize, per_second: f64, processor: Duration, floor: f64) {
        let ratio = per_second / floor;
        let each = processor.as_secs_f64() * 1e6;
        let figures =
            format!("{per_second:.0} /s, {ratio:.2} of the store's, {each:.0} µs of processor each");
        self.row(&format!("  transitions, lanes: {lanes}"), figures);
    }

    /// Instances of sagas that wait: bytes of memory and of the store.
    pub(crate) fn waiting_sagas(&mut self, instances: usize, memory: u64, stored: u64) {
        let each = stored / u64::try_from(instances).unwrap_or(u64::MAX).max(1);
        let figures = format!("{} of memory, {each} bytes each in the store", mib(memory));
        self.row(&format!("  {instances} instances that wait"), figures);
    }

    /// Timers that came due before everything was written.
    pub(crate) fn late(&mut self, timers: usize) {
        self.row(&format!("  {timers} timers"), "came due before all were set".to_owned());
    }

    /// Timers that were due at once: the time until the last had fired.
    pub(crate) fn due_at_once(&mut self, timers: usize, last: Duration) {
        self.row(&format!("  {timers} timers due at once, the last one after"), secs(last));
    }

    /// Messages that a lane sends a second, and what publishing alone does.
    pub(crate) fn relayed(&mut self, per_second: f64, floor: f64) {
        let ratio = per_second / floor;
        self.row("  relay of one lane", format!("{per_second:.0} /s, {ratio:.2} of publishing alone"));
    }

    /// Commits of the service: the bounds, in seconds, below which half and 99 of 100 of them are.
    pub(crate) fn commits(&mut self, counts: &[(f64, u64)], all: u64) {
        let below = |percent: u64| {
            let bound = counts.iter().find(|(_, count)| count * 100 >= all * percent);
            bound.map_or_else(
                || "beyond all bounds".to_owned(),
                |(bound, _)| format!("within {} ms", bound * 1e3),
            )
        };
        self.row(&format!("  its {all} commits"), format!("half {}, 99 % {}", below(50), below(99)));
    }

    /// Timers that are due one after the other: how many of them fired within some times, in seconds.
    pub(crate) fn paced(&mut self, per_second: usize, within: &[(f64, u64)], all: u64) {
        let share = |count: u64| {
            let percent = (count * 1000).checked_div(all).unwrap_or_default();
            format!("{}.{} %", percent / 10, percent % 10)
        };
        let shares =
            within.iter().map(|(bound, count)| format!("{} in {:.0} ms", share(*count), bound * 1e3));
        let figures = shares.collect::<Vec<_>>().join(", ");
        self.row(&format!("  {per_second} timers a second fired late"), figures);
    }

    /// Instances that have ended: bytes of memory after some and after all of them, and of the store for each.
    pub(crate) fn ended_sagas(&mut self, instances: usize, memory: [u64; 2], stored: u64, per_second: f64) {
        let each = stored / u64::try_from(instances).unwrap_or(u64::MAX).max(1);
        let [some, all] = memory.map(mib);
        let figures = format!(
            "{some} of memory in the process after a fifth, {all} after all, {each} bytes each in the store, {per_second:.0} /s"
        );
        self.row(&format!("  {instances} instances that ended"), figures);
    }

    /// One instance with many events: bytes of the store after a tenth of them and after all.
    pub(crate) fn one_instance(&mut self, events: usize, stored: [u64; 2], per_second: f64) {
        let [some, all] = stored.map(|bytes| bytes / 1024);
        let figures = format!("{some} KiB in the store after a tenth, {all} after all, {per_second:.0} /s");
        self.row(&format!("  one instance with {events} events"), figures);
    }

    /// Lanes that have nothing to do: what they use of a core, and of memory.
    pub(crate) fn idle_lanes(&mut self, lanes: usize, used: f64, memory: u64) {
        let figures = format!("{:.1} % of a core, {} of memory", used * 100.0, mib(memory));
        self.row(&format!("  {lanes} idle lanes"), figures);
    }

    /// A part of the load under bounds on ended flows.
    pub(crate) fn retention(&mut self, part: &Part) {
        let Part { flows, rate, single, redis_bytes, usage } = part;
        let (p50, p99) = percentiles(&mut single.clone());
        let ended = usage.entries.iter().find(|entry| entry.kind() == ContextUsageKind::FlowsEnded);
        let kept = ended.map_or(0, |entry| entry.count);
        self.row(
            &format!("after {flows} flows of five jobs"),
            format!(
                "{rate:.0} /s; a single flow of another context p50 {}  p99 {}",
                millis(p50),
                millis(p99)
            ),
        );
        self.row(
            "  kept",
            format!(
                "{kept} flows; the context {} of at most {}; Redis {}",
                mib(usage.bytes),
                mib(usage.bytes_max),
                mib(*redis_bytes)
            ),
        );
    }

    fn row(&mut self, what: &str, figure: String) {
        self.rows.push((what.to_owned(), figure));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        writeln!(f, "{}", self.setting)?;
        for (what, figure) in &self.rows {
            writeln!(f, "  {what:<44} {figure}")?;
        }
        Ok(())
    }
}

/// The median and the 99th percentile.
pub(crate) fn percentiles(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
    (at(50).copied().unwrap_or_default(), at(99).copied().unwrap_or_default())
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

fn secs(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / (1024 * 1024))
}
