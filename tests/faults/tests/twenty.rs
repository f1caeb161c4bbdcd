//! Twenty faults in CI and two: ten on the all-in-one, twelve on separate processes.

use std::time::Duration;

use faults::report;
use faults::run::{Plan, run};
use faults::suite::Form;

/// Every kind of fault has its turn, on both forms.
const SEED: u64 = 8;
/// For the busiest machine: this bounds hangs and measures nothing.
const PATIENCE: Duration = Duration::from_secs(120);

async fn survives(form: Form, faults: usize) {
    let outcome = run(Plan { seed: SEED, form, faults, kinds: Vec::new(), patience: PATIENCE }).await;
    println!("{}\n{}", report::line(&outcome), report::recoveries(std::slice::from_ref(&outcome)));
    let broke = !outcome.violations.is_empty() || !outcome.panics().is_empty();
    if broke {
        for (name, output) in &outcome.outputs {
            eprintln!("--- {name} ---\n{output}");
        }
    }
    assert!(!broke, "{}", report::violations(&outcome));
    assert_eq!(outcome.recoveries.len(), faults);
    assert!(outcome.history.flows.len() > faults, "hardly anything ran: {}", report::line(&outcome));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_all_in_one_survives_ten_faults() {
    survives(Form::AllInOne, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn separate_processes_survive_twelve_faults() {
    survives(Form::Processes, 12).await;
}
