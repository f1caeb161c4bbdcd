//! A supervisor's queue, and a runner that works on it.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use kv::Kv;
use model::execution::AttemptEnd;
use model::id::Uid;
use model::{
    ActorId, Attempt, ContextId, ContextUid, Execution, FlowId, FlowUid, JobId, JobKey, ScriptSource,
    ScriptType,
};
use queue::{JobOffer, QueueEventKind, QueueEventReader, SupervisorQueues};
use runner::{RunnerHandle, RunnerSettings, ScriptFlags};
use sandbox::SandboxLauncher;
use service::Shutdown;
use tempfile::TempDir;
use testkit::RedisServer;

pub(crate) struct RunnerTestBench {
    pub(crate) dir: TempDir,
    pub(crate) supervisor: SupervisorQueues,
    pub(crate) reader: QueueEventReader,
    pub(crate) runner: RunnerHandle,
    pub(crate) kv: Kv,
    /// Ends of jobs that were reported while another job was awaited.
    ended: HashMap<JobKey, AttemptEnd>,
    logs: HashMap<JobKey, String>,
    // Dropped last, so that the runner does not miss it.
    pub(crate) redis: RedisServer,
}

/// How an attempt ended, and what it printed.
#[derive(Debug)]
pub(crate) struct AttemptTestOutcome {
    pub(crate) end: AttemptEnd,
    pub(crate) log: String,
}

impl AttemptTestOutcome {
    pub(crate) fn result(&self, key: &str) -> &str {
        self.end.result.get(key).map_or("(nothing)", String::as_str)
    }

    pub(crate) fn reason(&self) -> String {
        self.end.reason.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

impl RunnerTestBench {
    pub(crate) async fn new() -> Self {
        Self::with(|settings| settings).await
    }

    /// With other settings than the usual.
    pub(crate) async fn with(change: impl FnOnce(RunnerSettings) -> RunnerSettings) -> Self {
        let redis = RedisServer::start();
        let kv = Kv::new(redis.url().parse().expect("the url of a test server"));
        let dir = place();
        let runner = runner::start(change(settings(dir.path())), &kv, 0, &Shutdown::new()).await;
        let runner = runner.expect("a runner");
        let supervisor = SupervisorQueues::new(kv.clone(), 0);
        let reader = supervisor.events();
        let (ended, logs) = (HashMap::new(), HashMap::new());
        Self { dir, supervisor, reader, runner, kv, ended, logs, redis }
    }

    pub(crate) async fn accept(&self, execution: Execution) -> JobKey {
        self.accept_with(execution, model::Grants::default()).await
    }

    /// With what a policy gives.
    pub(crate) async fn accept_with(&self, execution: Execution, grants: model::Grants) -> JobKey {
        let key = execution.job_key;
        let offer = JobOffer {
            execution,
            coordinator: "c".into(),
            grants,
            condition: queue::AcceptCondition::None,
            weight: std::num::NonZeroU32::MIN,
        };
        self.supervisor.accept(offer).await.expect("an accepted job");
        key
    }

    /// Runs one job alone, to its end.
    pub(crate) async fn run(&mut self, execution: Execution) -> AttemptTestOutcome {
        let key = self.accept(execution).await;
        self.end_of(key).await
    }

    /// Reads the log of one job alone up to something, or to its end.
    pub(crate) async fn printed(&mut self, key: JobKey, text: &str) {
        let mut log = String::new();
        while !log.contains(text) {
            for event in self.reader.next(pending()).await.expect("events") {
                assert_eq!(event.job_key, key);
                match event.kind {
                    QueueEventKind::Log(piece) => log.push_str(&piece.text),
                    QueueEventKind::Started { .. } => {}
                    other => panic!("ended before it printed {text:?}: {log:?} {other:?}"),
                }
            }
        }
    }

    pub(crate) async fn end_of(&mut self, key: JobKey) -> AttemptTestOutcome {
        let mut log = String::new();
        loop {
            for event in self.reader.next(pending()).await.expect("events") {
                assert_eq!(event.job_key, key);
                match event.kind {
                    QueueEventKind::Log(piece) => log.push_str(&piece.text),
                    QueueEventKind::Ended(end) => {
                        assert!(end.start_time.is_none_or(|start| start <= end.end_time));
                        return AttemptTestOutcome { end: *end, log };
                    }
                    QueueEventKind::Started { .. } | QueueEventKind::Returned => {}
                }
            }
        }
    }

    /// Waits for the end of one job among others, whose ends are kept for those who ask for them.
    pub(crate) async fn end_among(&mut self, key: JobKey) -> AttemptTestOutcome {
        loop {
            if let Some(end) = self.ended.remove(&key) {
                let log = self.logs.remove(&key).unwrap_or_default();
                return AttemptTestOutcome { end, log };
            }
            self.read_events().await;
        }
    }

    /// Reads the logs of all jobs until one of them has printed something.
    pub(crate) async fn printed_of(&mut self, key: JobKey, text: &str) {
        while !self.logs.get(&key).is_some_and(|log| log.contains(text)) {
            assert!(!self.ended.contains_key(&key), "it ended before it printed {text:?}: {:?}", self.ended);
            self.read_events().await;
        }
    }

    async fn read_events(&mut self) {
        for event in self.reader.next(pending()).await.expect("events") {
            match event.kind {
                QueueEventKind::Log(piece) => {
                    self.logs.entry(event.job_key).or_default().push_str(&piece.text)
                }
                QueueEventKind::Ended(end) => {
                    self.ended.insert(event.job_key, *end);
                }
                QueueEventKind::Started { .. } | QueueEventKind::Returned => {}
            }
        }
    }

    /// The runner's work directory.
    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// Where scripts tell what they see.
    pub(crate) fn seen(&self) -> PathBuf {
        seen(self.dir.path())
    }

    /// Returns the attempts that are left in the work directory.
    pub(crate) fn attempts(&self) -> Vec<String> {
        let entries = std::fs::read_dir(queue::work_dir::jobs_dir(&self.work(), context()))
            .map(|entries| entries.flatten().collect())
            .unwrap_or_else(|_| Vec::new());
        entries.iter().map(|entry| entry.file_name().display().to_string()).collect()
    }
}

/// A directory that scripts of any user can pass through: `work` is a runner's, `seen` is for what scripts tell.
pub(crate) fn place() -> TempDir {
    let passable = std::fs::Permissions::from_mode(0o711);
    let dir = tempfile::Builder::new().permissions(passable).tempdir().expect("a temporary directory");
    std::fs::create_dir(seen(dir.path())).expect("a directory");
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(seen(dir.path()), open).expect("its owner may");
    dir
}

/// Where scripts may write beside their own directories.
pub(crate) fn seen(place: &Path) -> PathBuf {
    place.join("seen")
}

/// A runner in a [`place`], with its program as the launcher.
pub(crate) fn settings(place: &Path) -> RunnerSettings {
    let scripts = ScriptFlags { allow_write: vec![seen(place)], ..ScriptFlags::default() };
    let launcher = SandboxLauncher::at(env!("CARGO_BIN_EXE_mycora-runner").into());
    RunnerSettings { scripts, launcher, ..RunnerSettings::new(place.join("work")) }
}

pub(crate) fn context() -> ContextUid {
    ContextUid(Uid::from_bits(1))
}

pub(crate) fn job(script_type: ScriptType, script: &str) -> Execution {
    Execution {
        context_id: ContextId(5),
        flow_id: FlowId(7),
        caller_id: ActorId(1),
        timeout_secs: 60,
        ..Execution::of_script(
            JobKey { context: context(), flow: FlowUid::random(), job: JobId(3), attempt: Attempt(2) },
            "flow".parse().expect("a name"),
            "node".parse().expect("a name"),
            script_type,
            ScriptSource::Inline(script.to_owned()),
        )
    }
}

pub(crate) fn shell(script: &str) -> Execution {
    job(ScriptType::Shell, script)
}

pub(crate) fn inputs(values: &[(&str, &str)]) -> BTreeMap<model::Name, model::flow::ResultMap> {
    let result = values.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    BTreeMap::from([("split".parse().expect("a name"), result)])
}
