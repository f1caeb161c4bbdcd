//! Instances that vanish, and leave scripts behind.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use model::execution::Outcome;
use model::{Isolation, JobKey, ReasonCode, ScriptType};
use queue::InstanceDescriptor;
use sandbox::{processes, records};
use testkit::PATIENCE;

use crate::backlog::execution;
use crate::setup::{Machine, about};

/// A script that runs on, and its record.
struct Left {
    child: Child,
    _record: records::SandboxRecordGuard,
}

impl Left {
    fn start(running: &PathBuf, job: JobKey) -> Self {
        fs::create_dir_all(running).expect("a directory");
        let child = Command::new("sleep").arg("1000").spawn().expect("sleep is there");
        let dir = running.join("..").join(format!("dir-{job}"));
        let record =
            records::write(running, &job.to_string(), child.id(), dir, Vec::new()).expect("a record");
        Self { child, _record: record }
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().expect("ours").is_none()
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // It may have been ended, which is what is tested.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dead() -> InstanceDescriptor {
    let mut child = Command::new("true").spawn().expect("true is there");
    let pid = child.id();
    child.wait().expect("it ends");
    InstanceDescriptor {
        hostname: processes::hostname(),
        pid,
        process_start: 1,
        isolation: Isolation::Basic,
        ..about()
    }
}

fn running(machine: &Machine, number: u32) -> PathBuf {
    machine.work_dir().join("instances").join(format!("default-{number}")).join("running")
}

#[tokio::test]
async fn jobs_of_a_dead_instance_are_ended_and_reported_at_once() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let mut left = Left::start(&running(&machine, 1), execution(1, 1).job_key);
    // Its lock says that nobody works there: another PID namespace cannot be looked into.
    let began = Instant::now();
    let mut worker = machine.join(ScriptType::Shell, 1, dead()).await;
    coordinator.run(&execution(1, 1)).await.expect("accepted");
    worker.take().await;
    assert!(left.runs());
    fs::write(running(&machine, 1).with_file_name("lock"), "").expect("a lock");
    let end = coordinator.receives_end(execution(1, 1).job_key).await;
    assert!(!left.runs(), "its script was ended before it was told");
    assert_eq!(
        (end.outcome, end.reason.map(|reason| reason.code)),
        (Outcome::Lost, Some(ReasonCode::InstanceLost))
    );
    assert!(began.elapsed() < queue::PRESENCE_TTL, "its presence need not expire");
    assert_eq!(machine.queue.absent().await, Ok(Vec::new()));
}

#[tokio::test]
async fn one_that_may_live_elsewhere_or_holds_its_lock_is_waited_for() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let path = running(&machine, 1).with_file_name("lock");
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    let lock = fs::File::create(&path).expect("a lock");
    lock.lock().expect("ours");
    let _locked = machine.join(ScriptType::Shell, 1, dead()).await;
    let _elsewhere = machine
        .join(ScriptType::Shell, 2, InstanceDescriptor { hostname: "elsewhere".into(), ..dead() })
        .await;
    coordinator.sees(2).await;
    // A third one that is dead for sure: when it is gone, the others were looked at as well.
    fs::create_dir_all(running(&machine, 3)).expect("a directory");
    fs::write(running(&machine, 3).with_file_name("lock"), "").expect("a lock");
    let _dead = machine.join(ScriptType::Shell, 3, dead()).await;
    let gone = || async {
        let known = machine.queue.instances().await.expect("read");
        (known.len() == 2 && known.iter().all(|(instance, _)| instance.number < 3)).then_some(())
    };
    testkit::wait_until(gone, PATIENCE, "only the dead one is gone").await;
}

#[tokio::test]
async fn of_one_that_hangs_only_what_it_has_is_ended() {
    let machine = Machine::start(|_, config| config.instance_patience = Duration::ZERO).await;
    let coordinator = machine.coordinator().await;
    // One process with instances of two types, of which one is not heard any more.
    let mut job = execution(1, 1);
    let mut shell = machine.join(ScriptType::Shell, 1, about()).await;
    let _python = machine.join(ScriptType::Python, 1, about()).await;
    let mut left = Left::start(&running(&machine, 1), job.job_key);
    job.script_type = ScriptType::Python;
    job.job_key.job = model::JobId(2);
    let mut other = Left::start(&running(&machine, 1), job.job_key);
    coordinator.run(&execution(1, 1)).await.expect("accepted");
    shell.take().await;
    let presence = "hero:meta:actor:inst:shell:default:1";
    assert_eq!(machine.redis.raw(machine.kv.endpoint().database(), &["DEL", presence]), ":1\r\n");
    let end = coordinator.receives_end(execution(1, 1).job_key).await;
    assert_eq!(end.outcome, Outcome::Lost);
    assert!(!left.runs(), "its script was ended before it was told");
    assert!(other.runs(), "what others of its process run goes on");
    assert_eq!(coordinator.state(execution(1, 1).job_key).await, "lost");
}
