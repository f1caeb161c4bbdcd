//! Several schedulers, of which some die and some hang; and a Redis that is killed under load.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use testkit::{FaultProxy, ProxyFault, ProxyTarget};
use testkit::{Witness, wait_until_blocking};

use crate::local::Processes;
use crate::suite::{command, stdout};

const FLOWS: usize = 200;
/// Three processes and two hundred flows of scripts on a busy machine.
const LONG: Duration = Duration::from_secs(240);

/// A chain of three, each of which records when it began and ended; the first waits for the prerequisites.
fn chain(dir: &Path, witness: &Witness, flow: usize, prerequisites: &str) -> (String, Vec<String>) {
    let mut text = format!("name: f{flow}\njobs:\n");
    let mut names = Vec::new();
    for step in 0..3 {
        let name = format!("f{flow}-{step}");
        let (depends, prerequisites) =
            if step == 0 { (String::new(), prerequisites) } else { (format!("f{flow}-{}", step - 1), "") };
        let script = witness.shell(&name, ":").replace('\n', "\n      ");
        text.push_str(&format!(
            "  {name}:\n    script_type: shell\n    depends: [{depends}]\n    prerequisites: [{prerequisites}]\n    script: |\n      {script}\n"
        ));
        names.push(name);
    }
    let path = dir.join(format!("flow-{flow}.yaml"));
    std::fs::write(&path, text).expect("a flow file");
    (path.to_str().expect("a plain path").to_owned(), names)
}

/// How many ends each node has, from the context's stream of events.
fn accepted_ends(events: &str) -> BTreeMap<(u64, u64), usize> {
    let mut ends = BTreeMap::new();
    for line in events.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let ended = ["completed", "failed", "cancelled", "skipped"].iter().any(|end| event["state"] == *end);
        if event["kind"] == "node" && ended {
            let key = (event["flow_id"].as_u64().expect("a flow"), event["job_id"].as_u64().expect("a job"));
            *ends.entry(key).or_insert(0) += 1;
        }
    }
    ends
}

/// How many flows ended well.
fn finished(processes: &Processes) -> usize {
    let count = |line: &str| line.contains(r#""kind":"flow""#) && line.contains(r#""status":"finished""#);
    processes.redis(1, &["XRANGE", "events", "-", "+"]).lines().filter(|line| count(line)).count()
}

#[test]
fn of_three_schedulers_one_is_killed_and_one_hangs() {
    let dir = tempfile::tempdir().expect("a directory");
    let suite_dir = dir.path().join("suite");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut processes = Processes::prepare(&suite_dir);
    let storage = SocketAddr::from((Ipv4Addr::LOCALHOST, processes.storage_port()));
    let proxy = runtime.block_on(FaultProxy::start(ProxyTarget::Tcp(storage)));
    processes.set("MYCORA_SCHEDULERS", "3");
    processes.set("MYCORA_STORAGE_OF_scheduler_2", &format!("https://{}", proxy.address()));
    processes.script("up.sh");
    let witness = Witness::new(dir.path());
    let flows: Vec<(String, Vec<String>)> =
        (1..=FLOWS).map(|flow| chain(dir.path(), &witness, flow, "\"flow:1\"")).collect();
    let (gate, gate_names) = chain(dir.path(), &witness, 0, "go");
    let profiles = [1, 2, 3].map(|replica| processes.profile_of(replica));
    stdout(&command(&profiles[0], &["flow", "submit", &gate]).output().expect("it starts"), 0);
    std::thread::scope(|scope| {
        for (profile, part) in profiles.iter().zip(flows.chunks(FLOWS.div_ceil(3))) {
            scope.spawn(move || {
                for (file, _) in part {
                    stdout(&command(profile, &["flow", "submit", file]).output().expect("it starts"), 0);
                }
            });
        }
    });
    // Two hundred flows on three schedulers wait for the first one; then all of them go.
    stdout(&command(&profiles[2], &["flow", "signal", "1", "go"]).output().expect("it starts"), 0);
    wait_until_blocking(|| (finished(&processes) >= FLOWS / 10).then_some(()), LONG, "some flows ended");
    proxy.set(ProxyFault::Hold);
    // Answers are held as well: what is more in flight than now was sent since, and does not arrive.
    let in_flight = || processes.scheduler_metric(2, "mycora_scheduler_commits_in_flight");
    let before = in_flight();
    wait_until_blocking(|| (in_flight() > before).then_some(()), LONG, "a commit is held");
    processes.signal("scheduler-2", "-STOP");
    processes.kill9("scheduler-3");
    assert!(finished(&processes) < FLOWS, "all flows ended before anything went wrong");
    wait_until_blocking(
        || (processes.scheduler_metric(1, "mycora_scheduler_take_overs_total") > 0.0).then_some(()),
        LONG,
        "the first scheduler has taken over flows",
    );
    let all = || (finished(&processes) == FLOWS + 1).then_some(());
    wait_until_blocking(all, LONG, "every flow ended well");
    // It wakes, and what it wanted to store comes too late.
    proxy.restore();
    processes.signal("scheduler-2", "-CONT");
    let fenced = || {
        let count = processes.scheduler_metric(2, "mycora_scheduler_fenced_commits_total");
        (count >= 1.0).then_some(())
    };
    wait_until_blocking(fenced, LONG, "a commit of the one that hung was refused");
    let ends = accepted_ends(&processes.redis(1, &["XRANGE", "events", "-", "+"]));
    assert_eq!(ends.len(), (FLOWS + 1) * 3);
    let twice: Vec<_> = ends.iter().filter(|(_, count)| **count != 1).collect();
    assert!(twice.is_empty(), "nodes with several accepted ends: {twice:?}");
    let names = flows.iter().flat_map(|(_, names)| names).chain(&gate_names);
    let names: Vec<&str> = names.map(String::as_str).collect();
    witness.assert_each_once(&names);
}

/// Cuts a scheduler off: it comes back with what it knew before others drove its flows.
#[test]
fn a_scheduler_that_was_cut_off_for_longer_than_its_lease_begins_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut processes = Processes::prepare(&dir.path().join("suite"));
    let storage = SocketAddr::from((Ipv4Addr::LOCALHOST, processes.storage_port()));
    let proxy = runtime.block_on(FaultProxy::start(ProxyTarget::Tcp(storage)));
    processes.set("MYCORA_SCHEDULERS", "2");
    processes.set("MYCORA_STORAGE_OF_scheduler_2", &format!("https://{}", proxy.address()));
    processes.script("up.sh");
    let gate = |name: &str| dir.path().join(format!("go-{name}"));
    let open = |name: &str| std::fs::write(gate(name), "").expect("a gate");
    let mut text = String::from("name: gated\njobs:\n");
    for (name, depends) in [("a", ""), ("b", "a"), ("c", "b")] {
        let script = format!("until [ -e {} ]; do sleep 0.05; done", gate(name).display());
        text.push_str(&format!(
            "  {name}: {{ script_type: shell, depends: [{depends}], script: \"{script}\" }}\n"
        ));
    }
    let file = dir.path().join("gated.yaml");
    std::fs::write(&file, text).expect("a flow file");
    let submit = ["flow", "submit", file.to_str().expect("a plain path")];
    stdout(&command(&processes.profile_of(2), &submit).output().expect("it starts"), 0);
    let first = processes.profile_of(1);
    let running = |name: &str| {
        let out = command(&first, &["--output", "json", "flow", "nodes", "1"]).output().expect("it starts");
        let document: Value = serde_json::from_slice(&out.stdout).ok()?;
        let mut nodes = document["nodes"].as_array()?.iter();
        nodes.any(|node| node["name"] == name && node["state"] == "NODE_STATE_RUNNING").then_some(())
    };
    let take_overs = |replica: u16, count: f64| {
        let now = processes.scheduler_metric(replica, "mycora_scheduler_take_overs_total");
        (now >= count).then_some(())
    };
    wait_until_blocking(|| running("a"), LONG, "the first script runs");
    let before = processes.scheduler_metric(2, "mycora_scheduler_take_overs_total");
    proxy.set(ProxyFault::Cut);
    wait_until_blocking(|| take_overs(1, 1.0), LONG, "the other one has taken the flow over");
    open("a");
    wait_until_blocking(|| running("b"), LONG, "the other one goes on with it");
    proxy.restore();
    wait_until_blocking(|| take_overs(2, before + 1.0), LONG, "its owner has read it again");
    open("b");
    open("c");
    wait_until_blocking(|| (finished(&processes) == 1).then_some(()), LONG, "the flow ended well");
    let ends = accepted_ends(&processes.redis(1, &["XRANGE", "events", "-", "+"]));
    assert_eq!((ends.len(), ends.values().max()), (3, Some(&1)));
}

#[test]
fn redis_is_killed_under_load_and_nothing_acknowledged_is_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let suite_dir = dir.path().join("suite");
    let processes = Processes::start(&suite_dir, &[("MYCORA_DURABILITY", "synced")]);
    let witness = Witness::new(dir.path());
    let profile = processes.profile();
    let submit = |flow: usize| -> Option<u64> {
        let (file, _) = chain(dir.path(), &witness, flow, "");
        let out =
            command(&profile, &["--output", "json", "flow", "submit", &file]).output().expect("it starts");
        let document: Value = serde_json::from_slice(&out.stdout).ok()?;
        out.status.success().then(|| document["flow"]["id"].as_u64()).flatten()
    };
    let mut acknowledged: Vec<u64> = Vec::new();
    for round in 0..3 {
        std::thread::scope(|scope| {
            let submitting =
                scope.spawn(|| (0..25).filter_map(|n| submit(round * 100 + n)).collect::<Vec<_>>());
            let before = finished(&processes);
            wait_until_blocking(
                || (finished(&processes) >= before + 5).then_some(()),
                LONG,
                "flows are in the middle of their work",
            );
            processes.kill9("redis");
            processes.script("up.sh");
            acknowledged.extend(submitting.join().expect("submissions end"));
        });
    }
    assert!(acknowledged.len() >= 30, "only {} submissions were acknowledged", acknowledged.len());
    for id in &acknowledged {
        let out = command(&profile, &["--output", "json", "flow", "watch", &id.to_string()]).output();
        let document: Value =
            serde_json::from_str(&stdout(&out.expect("it starts"), 0)).expect("one document");
        assert_eq!(document["flow"]["status"], "FLOW_STATUS_FINISHED", "flow {id}: {document}");
    }
    let ends = accepted_ends(&processes.redis(1, &["XRANGE", "events", "-", "+"]));
    let twice: Vec<_> = ends.iter().filter(|(_, count)| **count != 1).collect();
    assert!(twice.is_empty(), "nodes with several accepted ends: {twice:?}");
    witness.assert_no_overlap(|_| false);
}
