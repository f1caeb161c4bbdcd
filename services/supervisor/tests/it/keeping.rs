//! Retention: which data is kept, and for how long.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use model::job::BlobRef;
use model::{BlobHash, ContextUid, FileSource, Isolation, ScriptSource};
use supervisor::blobs::BlobCache;
use supervisor::logs::{AttemptLogStore, LogRetention};
use supervisor::work_dir::WorkDir;

use crate::backlog::execution;
use crate::setup::Machine;

/// Long enough ago for everything.
const LONG: Duration = Duration::from_secs(3600);

fn blob(text: &str) -> BlobRef {
    BlobRef { sha256: BlobHash::of(text.as_bytes()), size: text.len() as u64 }
}

fn put(path: &Path, text: &str, age: Duration) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    fs::write(path, text).expect("written");
    let file = fs::File::options().write(true).open(path).expect("opened");
    file.set_modified(SystemTime::now() - age).expect("aged");
}

fn text(name: &str) -> String {
    format!("{name:0<1000}")
}

struct Kept {
    dir: PathBuf,
}

impl Kept {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(blob(&text(name)).sha256.to_string())
    }

    /// Younger than the ones put before.
    fn put(&self, name: &str, order: u32) {
        put(&self.path(name), &text(name), LONG - Duration::from_secs(order.into()));
    }

    fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }
}

fn naming(context: u128, number: u32, name: &str) -> model::Execution {
    let mut job = execution(context, number);
    let file = FileSource { blob: blob(&text(name)), inline: None };
    job.files = BTreeMap::from([("file".to_owned(), file)]);
    job
}

#[tokio::test]
async fn blobs_that_are_needed_are_never_removed() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let context: ContextUid = execution(1, 1).job_key.context;
    let kept = Kept { dir: machine.work_dir().join("blobs").join(context.to_string()) };
    for (order, name) in ["output", "file", "script", "old", "older-used", "young"].iter().enumerate() {
        kept.put(name, u32::try_from(order).expect("small"));
    }
    // A job that ended, and whose output its coordinator has not; one that waits.
    let made = execution(1, 1);
    let offer = queue::JobOffer {
        execution: made.clone(),
        coordinator: "nobody".into(),
        grants: model::Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    machine.queue.accept(offer).await.expect("accepted");
    worker.take().await;
    let outputs = BTreeMap::from([("o".to_owned(), blob(&text("output")))]);
    worker.finish(made.job_key, |end| end.outputs = outputs).await;
    let mut waits = naming(1, 2, "file");
    waits.script = ScriptSource::Blob(blob(&text("script")));
    let offer = queue::JobOffer {
        execution: waits,
        coordinator: "nobody".into(),
        grants: model::Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    machine.queue.accept(offer).await.expect("accepted");

    let blobs = BlobCache::new(&WorkDir::new(&machine.work_dir()), 4000);
    let being_accepted = blobs.use_for(&naming(1, 3, "older-used"));
    let cleaned = blobs.clean(&machine.queue, SystemTime::now()).await.expect("cleaned");
    assert_eq!((cleaned.removed, cleaned.removed_bytes, cleaned.bytes), (2, 2000, 4000));
    for needed in ["output", "file", "script", "older-used"] {
        assert!(kept.has(needed), "{needed} is needed");
    }
    assert!(!kept.has("old") && !kept.has("young"));

    // What is used no more goes, the least recently used first; what came within the last minutes stays.
    drop(being_accepted);
    kept.put("more", 100);
    put(&kept.path("new"), &text("new"), Duration::ZERO);
    let cleaned = blobs.clean(&machine.queue, SystemTime::now()).await.expect("cleaned");
    assert_eq!(
        (cleaned.removed, kept.has("older-used"), kept.has("more"), kept.has("new")),
        (2, false, false, true)
    );
    assert!(blobs.clean(&machine.queue, SystemTime::now()).await.is_ok_and(|cleaned| cleaned.removed == 0));

    // Using a blob makes it young: what a job names is there when it runs.
    kept.put("again", 0);
    coordinator.run(&naming(7, 1, "x")).await.expect_err("its coordinator has no such blob");
    let place = machine.work_dir().join("blobs").join(execution(7, 1).job_key.context.to_string());
    let again = place.join(blob(&text("again")).sha256.to_string());
    put(&again, &text("again"), LONG);
    coordinator.run(&naming(7, 2, "again")).await.expect("it is here");
    let age = fs::metadata(&again).and_then(|about| about.modified()).expect("there").elapsed();
    assert!(age.is_ok_and(|age| age < LONG / 2));
}

#[tokio::test]
async fn half_written_files_of_a_crash_go_at_the_start() {
    let mut machine = Machine::start(|_, _| {}).await;
    machine.stop_supervisor().await;
    let context = execution(1, 1).job_key.context.to_string();
    let kept = Kept { dir: machine.work_dir().join("blobs").join(context) };
    kept.put("whole", 0);
    let draft = |name: &str, extension: &str| kept.path(name).with_extension(extension);
    put(&draft("a", "0123.new"), "half", Duration::ZERO);
    put(&draft("b", "job.part"), "half", LONG);
    put(&draft("c", "job.part"), "an instance writes it now", Duration::ZERO);
    put(&draft("judged", "judged"), &text("judged"), LONG);
    machine.start_supervisor().await;
    let done =
        || async { (!draft("a", "0123.new").exists() && !draft("b", "job.part").exists()).then_some(()) };
    testkit::wait_until(done, testkit::PATIENCE, "drafts are gone").await;
    assert!(kept.has("whole") && draft("c", "job.part").exists());
    let back = || async { kept.has("judged").then_some(()) };
    testkit::wait_until(back, testkit::PATIENCE, "what was out of the way is back").await;
}

#[tokio::test]
async fn logs_are_kept_for_a_while_and_of_what_runs_always() {
    let machine = Machine::start(|_, _| {}).await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let coordinator = machine.coordinator().await;
    coordinator.run(&execution(1, 1)).await.expect("accepted");
    worker.take().await;
    let path = |context: u128, job: u32| {
        let key = execution(context, job).job_key;
        machine.work_dir().join("logs").join(key.context.to_string()).join(format!("{key}.log"))
    };
    let retention = LogRetention { age: LONG, bytes: 100, context_bytes: 60 };
    let logs = AttemptLogStore::new(&WorkDir::new(&machine.work_dir()), retention);
    put(&path(1, 1), &"x".repeat(50), LONG * 2);
    put(&path(1, 2), "old", LONG * 3);
    put(&path(1, 3), &"y".repeat(20), Duration::from_secs(9));
    put(&path(2, 1), &"z".repeat(30), Duration::from_secs(8));
    let thin = async || logs.prune(|| machine.queue.running(), SystemTime::now()).await.expect("thinned");
    let thinned = thin().await;
    assert_eq!((thinned.removed, thinned.bytes), (2, 80));
    assert!(path(1, 1).exists(), "it runs");
    assert!(!path(1, 2).exists() && !path(1, 3).exists() && path(2, 1).exists());

    put(&path(3, 1), &"v".repeat(40), Duration::ZERO);
    assert_eq!(thin().await.removed, 1);
    assert!(path(1, 1).exists() && !path(2, 1).exists() && path(3, 1).exists(), "the oldest of all");
    worker.finish(execution(1, 1).job_key, |_| {}).await;
    assert_eq!(thin().await.removed, 1);
    assert!(!path(1, 1).exists());
}
