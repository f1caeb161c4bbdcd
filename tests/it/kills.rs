//! Instances and their supervisor, killed at random while they work.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::limits;
use serde_json::Value;
use testkit::{Witness, WitnessMark, wait_until_blocking};

use crate::draw::Draw;
use crate::local::Processes;
use crate::suite::{command, stdout};

const FLOWS: usize = 20;
const JOBS_EACH: usize = 100;
const KILLS: usize = 200;
/// One job in so many has no retries.
const FRAGILE_EACH: usize = 5;
const VICTIMS: [&str; 5] = ["runner", "runner-2", "runner-3", "runner-4", "supervisor"];
/// Two thousand scripts while everything that runs them keeps dying.
const LONG: Duration = Duration::from_secs(600);

fn is_fragile(job: usize) -> bool {
    job.is_multiple_of(FRAGILE_EACH)
}

/// A flow of jobs that depend on nothing; each records when it began and ended. Its name, and those of its jobs.
fn flow(dir: &Path, witness: &Witness, number: usize) -> (String, Vec<String>) {
    let mut text = format!("name: f{number}\njobs:\n");
    let mut names = Vec::new();
    for job in 0..JOBS_EACH {
        let name = format!("f{number}-{job}");
        let script = witness.shell(&name, "sleep 0.1").replace('\n', "\n      ");
        let retries = if is_fragile(job) { 0 } else { 100 };
        text.push_str(&format!(
            "  {name}:\n    script_type: shell\n    allow_failure: true\n    retries: {retries}\n    \
             backoff: {{ initial: 0.2, multiplier: 1 }}\n    script: |\n      {script}\n"
        ));
        names.push(name);
    }
    let path = dir.join(format!("flow-{number}.yaml"));
    std::fs::write(&path, text).expect("a flow file");
    (path.to_str().expect("a plain path").to_owned(), names)
}

/// Events of one node in the context's stream.
#[derive(Debug, Default)]
struct Trail {
    attempts: BTreeSet<u64>,
    ends: usize,
    deaths: usize,
    quarantines: usize,
    returns: usize,
}

fn trails(events: &str) -> BTreeMap<(u64, u64), Trail> {
    let mut trails: BTreeMap<(u64, u64), Trail> = BTreeMap::new();
    for line in events.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        if event["kind"] != "node" {
            continue;
        }
        let key = (event["flow_id"].as_u64().expect("a flow"), event["job_id"].as_u64().expect("a job"));
        let trail = trails.entry(key).or_default();
        let state = event["state"].as_str().unwrap_or_default();
        if state == "dispatched" {
            trail.attempts.insert(event["attempt"].as_u64().expect("an attempt"));
        }
        trail.ends += usize::from(["completed", "failed", "cancelled", "skipped"].contains(&state));
        let reason = event["reason"].as_str().unwrap_or_default();
        trail.deaths += usize::from(reason.contains("INSTANCE_LOST"));
        trail.quarantines += usize::from(reason.starts_with("QUARANTINED"));
        trail.returns += usize::from(reason.starts_with("RETURNED"));
    }
    trails
}

/// Kills one after the other, each while it runs, and brings them back all the time.
fn kill_and_revive(processes: &Processes, seed: u64) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                processes.revive();
            }
        });
        let mut draw = Draw::new(seed);
        for _ in 0..KILLS {
            let victim = VICTIMS[usize::try_from(draw.below(VICTIMS.len() as u64)).expect("small")];
            wait_until_blocking(|| processes.try_kill9(victim).then_some(()), LONG, format!("{victim} runs"));
        }
        over.store(true, Ordering::Relaxed);
    });
    processes.script("up.sh");
}

#[test]
fn two_hundred_kills_lose_nothing_and_double_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut processes = Processes::prepare(&dir.path().join("suite"));
    for (name, value) in [
        ("MYCORA_RUNNERS", "4"),
        ("MYCORA_GROUP_OF_runner_3", "other"),
        ("MYCORA_GROUP_OF_runner_4", "other"),
        ("MYCORA_TYPES", "shell"),
        ("MYCORA_SLOTS", "4"),
    ] {
        processes.set(name, value);
    }
    processes.script("up.sh");
    let witness = Witness::new(dir.path());
    let mut names = Vec::new();
    for number in 1..=FLOWS {
        let (file, jobs) = flow(dir.path(), &witness, number);
        stdout(&command(&processes.profile(), &["flow", "submit", &file]).output().expect("it starts"), 0);
        names.extend(jobs);
    }
    wait_until_blocking(|| (!witness.lines().is_empty()).then_some(()), LONG, "the first job has started");
    kill_and_revive(&processes, 42);
    let ended = || (processes.flows_ended() == FLOWS).then_some(());
    wait_until_blocking(ended, LONG, "every flow has ended");

    let trails = trails(&processes.redis(1, &["XRANGE", "events", "-", "+"]));
    assert_eq!(trails.len(), FLOWS * JOBS_EACH, "none is lost");
    for (node, trail) in &trails {
        assert_eq!(trail.ends, 1, "{node:?} {trail:?}");
        let numbered: BTreeSet<u64> = (1..=trail.attempts.len() as u64).collect();
        assert_eq!(trail.attempts, numbered, "attempts of {node:?} have holes");
        let spent = limits::DEATHS_MAX as usize;
        assert!(trail.deaths <= spent, "{node:?} {trail:?}");
        assert_eq!(trail.quarantines, usize::from(trail.deaths == spent), "{node:?} {trail:?}");
    }
    let mut starts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let lines = witness.lines();
    for (mark, job, attempt) in &lines {
        *starts.entry((job, attempt)).or_default() += usize::from(*mark == WitnessMark::Start);
    }
    let doubled: Vec<_> = starts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(doubled.is_empty(), "attempts that ran twice: {doubled:?}");
    for (at, name) in names.iter().enumerate() {
        let runs = starts.keys().filter(|(job, _)| job == name).count();
        assert!(
            !is_fragile(at % JOBS_EACH) || runs <= limits::DEATHS_MAX as usize,
            "{name} has no retries and ran {runs} times"
        );
    }
    let sum = |count: fn(&Trail) -> usize| trails.values().map(count).sum::<usize>();
    let attempts = sum(|trail| trail.attempts.len());
    println!(
        "{KILLS} kills: {} scripts started in {attempts} attempts, {} lost ({} quarantined), \
         {} put back unstarted, {} handed back",
        starts.values().sum::<usize>(),
        sum(|trail| trail.deaths),
        sum(|trail| trail.quarantines),
        processes.put_back(),
        sum(|trail| trail.returns),
    );
}
