//! A disk without room: what cannot be kept is refused by name, and what waits is given back.

use std::fs::DirEntry;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use identity::Identity;
use model::job::BlobRef;
use model::supervision::JobEventKind;
use model::{BlobHash, Execution, FileSource, Isolation};
use proto::v1::{RunAttemptRequest, ScriptType};
use rpc::ErrorView;
use testkit::SmallDisk;
use tonic::Code;

use crate::backlog::execution;
use crate::setup::Machine;

const MIB: u64 = 1 << 20;

fn full() -> Result<(), (String, bool)> {
    Err(("DISK_FULL".to_owned(), false))
}

fn with_file(mut execution: Execution, bytes: &[u8]) -> Execution {
    let blob = BlobRef { sha256: BlobHash::of(bytes), size: bytes.len() as u64 };
    let file = FileSource { blob, inline: Some(STANDARD.encode(bytes)) };
    execution.files.insert("file".to_owned(), file);
    execution
}

/// A machine that takes jobs until its disk has no room at all.
async fn without_a_floor(disk: &SmallDisk) -> Machine {
    Machine::start(|_, config| {
        config.work_dir = disk.path().join("work");
        config.disk_floor = Some(0);
    })
    .await
}

fn blobs(machine: &Machine, job: &Execution) -> Vec<DirEntry> {
    let blobs = machine.work_dir().join("blobs").join(job.job_key.context.to_string());
    std::fs::read_dir(blobs).expect("a directory").flatten().collect()
}

fn next_attempt(mut execution: Execution) -> Execution {
    execution.job_key.attempt.0 += 1;
    execution
}

async fn run_of_operator(machine: &Machine) -> Result<(), ErrorView> {
    let request = RunAttemptRequest {
        script_type: ScriptType::Shell.into(),
        script: "true".to_owned(),
        ..Default::default()
    };
    let answer = machine.client(Identity::Admin).run_attempt(request).await;
    answer.map(|_| ()).map_err(|status| ErrorView::from(&status))
}

#[tokio::test]
async fn below_the_lower_floor_nothing_is_taken_and_what_waits_is_given_back() {
    let Some(disk) = SmallDisk::new(16) else { return below_a_configured_floor().await };
    let machine = Machine::start(|_, config| config.work_dir = disk.path().join("work")).await;
    let coordinator = machine.coordinator().await;
    let waits = execution(1, 1);
    coordinator.run(&waits).await.expect("there is room");
    disk.fill_up("other", MIB / 16);
    assert_eq!(coordinator.run(&execution(1, 2)).await, full());
    assert_eq!(coordinator.run(&waits).await, Ok(()), "what was accepted stays accepted");
    coordinator.receives(waits.job_key, |kind| matches!(kind, JobEventKind::Returned).then_some(())).await;
    let refused = run_of_operator(&machine).await.expect_err("there is no room");
    assert_eq!((refused.code, refused.reason.as_str()), (Code::Unavailable, "DISK_FULL"));
    assert!(refused.retry_after.is_some() && refused.message.contains("less than its floor"), "{refused:?}");
    disk.empty("other");
    assert_eq!(coordinator.run(&execution(1, 2)).await, full(), "what was refused stays refused");
    assert_eq!(coordinator.run(&next_attempt(execution(1, 2))).await, Ok(()));
    run_of_operator(&machine).await.expect("there is room");
}

/// Without a disk of its own: the floor lies above what is free.
async fn below_a_configured_floor() {
    let mut machine = Machine::start(|_, config| config.disk_floor = Some(u64::MAX)).await;
    assert_eq!(machine.coordinator().await.run(&execution(1, 2)).await, full());
    let refused = run_of_operator(&machine).await.expect_err("there is no room");
    assert_eq!((refused.code, refused.reason.as_str()), (Code::Unavailable, "DISK_FULL"));
    machine.stop_supervisor().await;
    machine.config.disk_floor = Some(0);
    machine.start_supervisor().await;
    assert_eq!(machine.coordinator().await.run(&execution(1, 2)).await, Ok(()));
}

#[tokio::test]
async fn a_configured_disk_floor_may_have_any_value() {
    below_a_configured_floor().await;
}

#[tokio::test]
async fn a_file_that_has_no_room_is_refused_by_name_and_leaves_nothing() {
    let Some(disk) = SmallDisk::new(16) else { return below_a_configured_floor().await };
    let machine = without_a_floor(&disk).await;
    let coordinator = machine.coordinator().await;
    let job = with_file(execution(1, 1), &[7; 200_000]);
    disk.fill_up("other", 100_000);
    assert_eq!(coordinator.run(&job).await, full());
    let left = blobs(&machine, &job);
    assert!(left.is_empty(), "{left:?}");
    disk.empty("other");
    assert_eq!(coordinator.run(&job).await, full(), "what was refused stays refused");
    assert_eq!(coordinator.run(&next_attempt(job)).await, Ok(()));
}

#[tokio::test]
async fn what_was_accepted_is_not_refused_for_want_of_room_for_its_files() {
    let Some(disk) = SmallDisk::new(16) else { return below_a_configured_floor().await };
    let machine = without_a_floor(&disk).await;
    let coordinator = machine.coordinator().await;
    let job = with_file(execution(1, 1), &[7; 200_000]);
    assert_eq!(coordinator.run(&job).await, Ok(()));
    // As after its end.
    for blob in blobs(&machine, &job) {
        std::fs::remove_file(blob.path()).expect("removed");
    }
    disk.fill_up("other", 100_000);
    assert_eq!(coordinator.run(&with_file(execution(1, 2), &[7; 200_000])).await, full());
    assert_eq!(coordinator.run(&job).await, Ok(()), "its message came once more");
}

#[tokio::test]
async fn a_full_disk_of_the_store_is_reported_by_name() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    coordinator.run(&execution(1, 1)).await.expect("taken");
    machine.redis.lose_disk();
    let number = std::sync::atomic::AtomicU32::new(2);
    let refused = || async {
        let next = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        coordinator.run(&execution(1, next)).await.err()
    };
    let error = testkit::wait_until(refused, testkit::PATIENCE, "it is refused").await;
    assert_eq!(Err(error), full());
    let refused = run_of_operator(&machine).await.expect_err("it cannot be kept");
    assert_eq!((refused.code, refused.reason.as_str()), (Code::Unavailable, "DISK_FULL"), "{refused:?}");
}

#[tokio::test]
async fn what_is_known_is_not_refused_for_want_of_room() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let runs = execution(1, 1);
    coordinator.run(&runs).await.expect("there is room");
    assert_eq!(worker.take().await.execution.job_key, runs.job_key);

    let again = || Err(("UNAVAILABLE".to_owned(), false));
    let _ = machine.redis.raw(0, &["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(coordinator.run(&execution(1, 2)).await, Err(("STORE_FULL".to_owned(), false)));
    assert_eq!(coordinator.run(&runs).await, again(), "it runs");
    let _ = machine.redis.raw(0, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(coordinator.run(&runs).await, Ok(()));

    machine.redis.lose_disk();
    let number = std::sync::atomic::AtomicU32::new(3);
    let refused = || async {
        let next = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        coordinator.run(&execution(1, next)).await.err()
    };
    let error = testkit::wait_until(refused, testkit::PATIENCE, "what is new is refused").await;
    assert_eq!(Err(error), full());
    assert_eq!(coordinator.run(&runs).await, again(), "it runs");
}

#[tokio::test]
async fn nothing_is_taken_from_a_queue_for_want_of_room() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let (first, second) = (execution(1, 1), execution(1, 2));
    coordinator.run(&first).await.expect("there is room");
    coordinator.run(&second).await.expect("there is room");
    let bound = |bytes| machine.redis.raw(0, &["CONFIG", "SET", "maxmemory", bytes]);
    let _ = bound("1");
    for _ in 0..2 {
        let refused = worker.intake.next(1, std::future::pending()).await;
        assert!(matches!(refused, Err(kv::Error::Oom(_))), "{refused:?}");
    }
    let _ = bound("0");
    assert_eq!(worker.take().await.execution.job_key, first.job_key);
    assert_eq!(worker.take().await.execution.job_key, second.job_key);
}

#[tokio::test]
async fn what_has_ended_is_not_refused_for_bytes_that_are_gone() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let mut job = with_file(execution(1, 1), &[7; 1000]);
    coordinator.run(&job).await.expect("it brings its bytes");
    worker.take().await;
    worker.finish(job.job_key, |_| {}).await;
    coordinator.receives_end(job.job_key).await;
    std::fs::remove_dir_all(machine.work_dir().join("blobs")).expect("removed");
    // Whoever repeats it does not bring them any more, and this coordinator gives none.
    for file in job.files.values_mut() {
        file.inline = None;
    }
    assert_eq!(coordinator.run(&job).await, Ok(()));
    let mut other = job.clone();
    other.job_key = execution(1, 2).job_key;
    assert_eq!(coordinator.run(&other).await, Err(("BLOB_MISSING".to_owned(), true)));
}
