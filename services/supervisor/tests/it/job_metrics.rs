//! Waits, runs and slots of a machine, as its metrics show them.

use model::{Isolation, Timestamp};
use prometheus::proto::Metric;
use testkit::{PATIENCE, wait_until};

use crate::backlog::execution;
use crate::setup::Machine;

impl Machine {
    /// A metric of jobs of this script type.
    fn of_type(&self, name: &str, script_type: &str) -> Metric {
        let families = self.metrics.gather();
        let family = families.iter().find(|family| family.name() == name).expect("it is registered");
        let metrics = family.get_metric().iter();
        let mut of_type = metrics.filter(|metric| metric.get_label()[0].value() == script_type);
        of_type.next().expect("each type has its series").clone()
    }

    /// Number of jobs of this type that were measured, and how many seconds they took together.
    fn measured(&self, name: &str, script_type: &str) -> (u64, f64) {
        let metric = self.of_type(name, script_type);
        let histogram = metric.get_histogram();
        (histogram.get_sample_count(), histogram.get_sample_sum())
    }

    fn oldest_queued(&self) -> f64 {
        let families = self.metrics.gather();
        let mut found =
            families.iter().filter(|family| family.name() == "mycora_supervisor_oldest_queued_seconds");
        found.next().expect("it is registered").get_metric()[0].get_gauge().get_value()
    }
}

#[tokio::test]
async fn a_wait_and_a_run_are_measured_once_by_type() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let job = execution(1, 1);
    coordinator.run(&job).await.expect("accepted");
    let waits = || async { (machine.oldest_queued() > 0.0).then_some(()) };
    wait_until(waits, PATIENCE, "the job is seen to wait").await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let taken = worker.take().await;
    // The same request again makes the supervisor tell of the start again.
    coordinator.run(&job).await.expect("known");
    let (began, ended) = (Timestamp::from_millis(1_000), Timestamp::from_millis(4_000));
    worker.finish(taken.execution.job_key, |end| (end.start_time, end.end_time) = (Some(began), ended)).await;
    coordinator.receives_end(job.job_key).await;
    assert_eq!(machine.measured("mycora_supervisor_run_seconds", "shell"), (1, 3.0));
    let (count, seconds) = machine.measured("mycora_supervisor_queue_wait_seconds", "shell");
    assert!(count == 1 && seconds > 0.0, "{count} in {seconds} s");
    for name in ["run", "queue_wait"] {
        let name = format!("mycora_supervisor_{name}_seconds");
        assert_eq!(machine.measured(&name, "python"), (0, 0.0));
    }
    let none_waits = || async { (machine.oldest_queued() == 0.0).then_some(()) };
    wait_until(none_waits, PATIENCE, "nothing waits any more").await;
}

#[tokio::test]
async fn slots_of_the_instances_that_are_present_are_shown() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let _workers = (machine.instance(1, Isolation::Basic).await, machine.instance(2, Isolation::Basic).await);
    coordinator.sees(2).await;
    let shown = || async {
        let slots = |of_type| machine.of_type("mycora_supervisor_slots", of_type).get_gauge().get_value();
        (slots("shell") > 1.0 && slots("python") < 1.0).then_some(())
    };
    wait_until(shown, PATIENCE, "one slot for each of them").await;
}
