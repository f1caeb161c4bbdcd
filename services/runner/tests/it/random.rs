//! Scripts made up by chance, a tenth of which mean harm: each ends by name, and the runner serves the next.
//!
//! `MYCORA_SCRIPTS_SEED` and `MYCORA_SCRIPTS_COUNT` say where they begin and how many there are.

use std::collections::HashMap;
use std::future::pending;
use std::time::Instant;

use model::execution::{AttemptEnd, Grants, Outcome as Kind};
use model::{JobKey, ScriptType};
use queue::QueueEventKind;
use runner::RunnerSettings;
use testkit::scripts::{ScriptDialect, ScriptGenerator, SeededChoices};

use crate::setup::{RunnerTestBench, job};

/// Scripts in each language.
const COUNT: u64 = 1000;
/// Where they begin unless it is said.
const SEED: u64 = 16;
/// One of so many means harm.
const HARM: u64 = 10;
/// Jobs that are in the queue at once.
const WINDOW: usize = 16;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// The jobs that have not ended, each with its number and its script.
type PendingScripts = HashMap<JobKey, (u64, String)>;

/// Waits until one of these jobs at least has ended, and gives all that have.
async fn ended(bench: &mut RunnerTestBench, open: &mut PendingScripts) -> Vec<(u64, String, AttemptEnd)> {
    loop {
        let events = bench.reader.next(pending()).await.expect("events");
        let mut all = Vec::new();
        for event in events {
            if let QueueEventKind::Ended(end) = event.kind {
                let (number, script) = open.remove(&event.job_key).expect("a job of ours ends once");
                all.push((number, script, *end));
            }
        }
        if !all.is_empty() {
            return all;
        }
    }
}

/// Fails unless a job ended in a way that has a name, and by its own doing.
fn check(end: &AttemptEnd, about: &str) {
    let reason = end.reason.as_ref().map(ToString::to_string).unwrap_or_default();
    let is_named = match end.outcome {
        Kind::Succeeded => reason.is_empty(),
        Kind::TimedOut | Kind::Failed => !reason.is_empty(),
        Kind::Stopped | Kind::Lost => false,
    };
    assert!(is_named, "{:?} {reason:?} of {about}", end.outcome);
    assert!(!reason.contains("engine"), "{reason} of {about}");
}

async fn survives(script_type: ScriptType, dialect: ScriptDialect) {
    let (seed, count) = (setting("MYCORA_SCRIPTS_SEED", SEED), setting("MYCORA_SCRIPTS_COUNT", COUNT));
    let begin = Instant::now();
    let types = vec![script_type];
    let mut bench = RunnerTestBench::with(|settings| RunnerSettings { types, slots: 4, ..settings }).await;
    let mut generator = ScriptGenerator::new(SeededChoices::new(seed), dialect);
    let mut open = PendingScripts::new();
    let mut outcomes: HashMap<String, u32> = HashMap::new();
    let mut next = 0;
    while next < count || !open.is_empty() {
        while next < count && open.len() < WINDOW {
            let script = if next % HARM == 0 { generator.hostile() } else { generator.script() };
            let mut execution = job(script_type, &script);
            execution.timeout_secs = 1;
            let grants = Grants { memory_bytes: 16 << 20, disk_bytes: 4 << 20, ..Grants::default() };
            open.insert(bench.accept_with(execution, grants).await, (next, script));
            next += 1;
        }
        for (number, script, end) in ended(&mut bench, &mut open).await {
            check(&end, &format!("script {number} of seed {seed} in {script_type}:\n{script}"));
            let code = end.reason.as_ref().map_or("none".to_owned(), |reason| format!("{:?}", reason.code));
            *outcomes.entry(format!("{:?}/{code}", end.outcome)).or_default() += 1;
        }
    }
    println!("{count} scripts of seed {seed} in {script_type}, {:?}: {outcomes:?}", begin.elapsed());
    let good = bench.run(job(script_type, "result(\"a\", [3, 1, 2].order())")).await;
    assert_eq!((good.end.outcome, good.result("a")), (Kind::Succeeded, "[1,2,3]"), "{good:?}");
    assert!(outcomes.get("Succeeded/none").is_some_and(|good| u64::from(*good) > count / 10), "{outcomes:?}");
    assert!(outcomes.len() > 2, "{outcomes:?}");
}

#[tokio::test]
async fn random_rhai_scripts_end_by_name() {
    survives(ScriptType::Rhai, ScriptDialect::Rhai).await;
}

#[tokio::test]
async fn random_osis_scripts_end_by_name() {
    survives(ScriptType::Osis, ScriptDialect::Osis).await;
}

#[tokio::test]
async fn random_sal_scripts_end_by_name() {
    survives(ScriptType::Sal, ScriptDialect::Sal).await;
}
