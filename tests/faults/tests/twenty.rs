//! Twenty faults in CI: ten on the all-in-one, ten on separate processes.

use std::time::Duration;

use faults::report;
use faults::run::{Plan, run};
use faults::suite::Form;

/// Every kind of fault has its turn, on both forms.
const SEED: u64 = 8;
const FAULTS: usize = 10;
/// For the busiest machine: this bounds hangs and measures nothing.
const PATIENCE: Duration = Duration::from_secs(120);

async fn survives(form: Form) {
    let outcome = run(Plan { seed: SEED, form, faults: FAULTS, patience: PATIENCE }).await;
    println!("{}\n{}", report::line(&outcome), report::recoveries(std::slice::from_ref(&outcome)));
    if !outcome.violations.is_empty() {
        for (name, output) in &outcome.outputs {
            eprintln!("--- {name} ---\n{output}");
        }
    }
    assert!(outcome.violations.is_empty(), "{}", report::violations(&outcome));
    assert_eq!(outcome.recoveries.len(), FAULTS);
    assert!(outcome.history.flows.len() > FAULTS, "hardly anything ran: {}", report::line(&outcome));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_all_in_one_survives_ten_faults() {
    survives(Form::AllInOne).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn separate_processes_survive_ten_faults() {
    survives(Form::Processes).await;
}
