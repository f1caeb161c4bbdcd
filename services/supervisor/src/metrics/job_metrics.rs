//! Waits and runs of jobs at this machine, and the slots for them, by script type.

use std::time::Duration;

use model::execution::Outcome;
use model::{InstanceInfo, ScriptType};
use prometheus::{Gauge, Histogram, HistogramOpts, HistogramVec, IntGauge, IntGaugeVec, Opts, Registry};
use queue::{QueueEventKind, QueueStats};

/// Bounds of the waits for a slot, in seconds: nothing at an idle machine, hours in a long queue.
const WAIT_SECONDS: [f64; 12] =
    [0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 10.0, 60.0, 600.0, 3600.0];
/// Bounds of run times, in seconds.
const RUN_SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 86_400.0];

/// One metric for each script type, in the order of [`ScriptType::ALL`].
type ForEachType<M> = [M; ScriptType::ALL.len()];

/// Metrics of jobs and slots. All of their series exist from the beginning.
#[derive(Debug)]
pub(crate) struct JobMetrics {
    queue_wait: ForEachType<Histogram>,
    run_seconds: ForEachType<Histogram>,
    slots: ForEachType<IntGauge>,
    slots_busy: ForEachType<IntGauge>,
    oldest_queued: Gauge,
}

impl JobMetrics {
    /// Registers them.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let oldest_queued = Gauge::new(
            "mycora_supervisor_oldest_queued_seconds",
            "How long the job has waited that has waited longest",
        )?;
        registry.register(Box::new(oldest_queued.clone()))?;
        Ok(Self {
            queue_wait: histograms(
                registry,
                ("mycora_supervisor_queue_wait_seconds", "Time from the acceptance of a job to its start"),
                &WAIT_SECONDS,
            )?,
            run_seconds: histograms(
                registry,
                ("mycora_supervisor_run_seconds", "Time from the start of a job to its end"),
                &RUN_SECONDS,
            )?,
            slots: gauges(registry, "mycora_supervisor_slots", "Slots of live instances")?,
            slots_busy: gauges(registry, "mycora_supervisor_slots_busy", "Slots of live instances in use")?,
            oldest_queued,
        })
    }

    /// Measures the wait of a job that has started, and the run of one that has ended. A start that is told again has no wait, and a
    /// lost job ran for an unknown time.
    pub(crate) fn event(&self, event: &QueueEventKind) {
        match event {
            QueueEventKind::Started { instance, time, queued_time: Some(queued) } => {
                observe(&self.queue_wait, instance, time.since(*queued));
            }
            QueueEventKind::Ended(end) if end.outcome != Outcome::Lost => {
                if let (Some(instance), Some(start)) = (&end.instance, end.start_time) {
                    observe(&self.run_seconds, instance, end.end_time.since(start));
                }
            }
            QueueEventKind::Started { .. }
            | QueueEventKind::Ended(_)
            | QueueEventKind::Log(_)
            | QueueEventKind::Returned => {}
        }
    }

    /// Shows the slots of the instances that are present, and the longest wait in the queues.
    pub(crate) fn look(&self, instances: &[InstanceInfo], queues: &[QueueStats]) {
        for kind in ScriptType::ALL {
            let (mut slots, mut busy) = (0_i64, 0_i64);
            for instance in instances.iter().filter(|instance| instance.script_type == kind) {
                slots += i64::from(instance.slots);
                busy += i64::from(instance.busy);
            }
            self.slots[kind.index()].set(slots);
            self.slots_busy[kind.index()].set(busy);
        }
        self.oldest_queued.set(queues.iter().map(|stats| stats.oldest_age_secs).fold(0.0, f64::max));
    }
}

fn observe(histograms: &ForEachType<Histogram>, instance: &str, length: Duration) {
    if let Some(kind) = type_of(instance) {
        histograms[kind.index()].observe(length.as_secs_f64());
    }
}

/// Returns the script type of an instance, `<type>:<group>:<n>`; nothing for a worker of others.
fn type_of(instance: &str) -> Option<ScriptType> {
    let (name, _) = instance.split_once(':')?;
    ScriptType::ALL.into_iter().find(|kind| kind.as_str() == name)
}

fn histograms(
    registry: &Registry,
    (name, help): (&str, &str),
    bounds: &[f64],
) -> Result<ForEachType<Histogram>, prometheus::Error> {
    let all = HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), &["type"])?;
    registry.register(Box::new(all.clone()))?;
    Ok(ScriptType::ALL.map(|kind| all.with_label_values(&[kind.as_str()])))
}

fn gauges(registry: &Registry, name: &str, help: &str) -> Result<ForEachType<IntGauge>, prometheus::Error> {
    let all = IntGaugeVec::new(Opts::new(name, help), &["type"])?;
    registry.register(Box::new(all.clone()))?;
    Ok(ScriptType::ALL.map(|kind| all.with_label_values(&[kind.as_str()])))
}

#[cfg(test)]
mod tests {
    use model::execution::AttemptEnd;
    use model::{Reason, ReasonCode, Timestamp};

    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    fn started(instance: &str, queued_time: Option<Timestamp>) -> QueueEventKind {
        QueueEventKind::Started { instance: instance.to_owned(), time: at(5), queued_time }
    }

    fn ended(outcome: Outcome, instance: Option<&str>, start_time: Option<Timestamp>) -> QueueEventKind {
        let reason = (outcome == Outcome::Failed).then(|| Reason::new(ReasonCode::ExitCode, "exit code 1"));
        let end = AttemptEnd::unstarted(outcome, reason, at(9));
        QueueEventKind::Ended(Box::new(AttemptEnd {
            instance: instance.map(str::to_owned),
            start_time,
            ..end
        }))
    }

    #[test]
    fn a_job_is_measured_under_the_type_of_its_instance() {
        let metrics = JobMetrics::new(&Registry::new()).expect("new names");
        metrics.event(&started("rhai:default:1", Some(at(3))));
        metrics.event(&started("rhai:default:1", None));
        metrics.event(&started("legacy:queue:9", Some(at(3))));
        for outcome in [Outcome::Succeeded, Outcome::Failed, Outcome::Lost] {
            metrics.event(&ended(outcome, Some("rhai:default:1"), Some(at(5))));
        }
        metrics.event(&ended(Outcome::Stopped, None, None));
        metrics.event(&QueueEventKind::Returned);
        let measured = |histograms: &ForEachType<Histogram>| {
            let all: u64 = histograms.iter().map(Histogram::get_sample_count).sum();
            let of_type = &histograms[ScriptType::Rhai.index()];
            (all, of_type.get_sample_count(), of_type.get_sample_sum())
        };
        assert_eq!(measured(&metrics.queue_wait), (1, 1, 2.0), "told again, it is not measured again");
        assert_eq!(measured(&metrics.run_seconds), (2, 2, 8.0), "a lost job is not measured");
    }
}
