//! Starting and ending a runner, as a process of its own or inside another.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kv::Kv;
use model::ScriptType;
use queue::{About, InstanceRef, JoinError, PresenceRecord};
use rustix::fs::FlockOperation;
use service::{Failure, Host, Shutdown};
use tokio::task::JoinSet;

use crate::config::{Config, Settings};
use crate::processes;
use crate::runtime::{self, Tools};
use crate::spawner::Spawner;
use crate::sweep::sweep;
use crate::worker::{Worker, WorkerError};
use crate::{ISOLATION, LOG_BYTES_MAX, RESULT_FILE_BYTES_MAX, RHAI_OPERATIONS_MAX};

/// Why a runner cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The work directory cannot be used.
    #[error("work directory {} cannot be used", .path.display())]
    WorkDir {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another runner uses the work directory.
    #[error("work directory {} is in use by another runner; give this one another with --work-dir", .0.display())]
    InUse(PathBuf),
    /// What an earlier runner left could not be ended.
    #[error("scripts of an earlier runner cannot be ended")]
    Sweep(#[source] io::Error),
    /// The machine does not let processes be started.
    #[error("no thread can be started for scripts")]
    Spawner(#[source] io::Error),
    /// A type was named that this machine cannot execute.
    #[error(
        "nothing on this machine executes {0} scripts; install its interpreter, or leave it out of --types"
    )]
    MissingType(ScriptType),
    /// An instance could not join.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// A runner at work.
#[derive(Debug)]
pub struct Running {
    instances: Vec<InstanceRef>,
    workers: JoinSet<Result<(), WorkerError>>,
    shutdown: Shutdown,
    /// Held until the last script is gone.
    _lock: Lock,
}

impl Running {
    /// The instances, one for each type.
    #[must_use]
    pub fn instances(&self) -> &[InstanceRef] {
        &self.instances
    }

    /// Waits until all instances have ended: because the shutdown began, or by themselves. Cancel safe.
    ///
    /// # Errors
    /// Why one of them ended, when it was not asked to; the others are ended then as well.
    pub async fn ended(&mut self) -> Result<(), Failure> {
        while let Some(worker) = self.workers.join_next().await {
            let failure: Failure = match worker {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.into(),
                Err(error) => error.into(),
            };
            self.shutdown.begin();
            return Err(failure);
        }
        Ok(())
    }

    /// Ends it: takes no more, lets what runs end until the deadline of its settings, kills the rest.
    pub async fn drain(mut self) {
        self.shutdown.begin();
        while let Err(error) = self.ended().await {
            tracing::warn!(%error, "an instance did not end well");
        }
    }
}

/// The lock of a work directory.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Not by closing alone: a process that is being started holds a copy of the descriptor for a moment.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Starts a runner: ends what an earlier one left in the work directory, finds the languages that this
/// machine has, joins with one instance for each, and works until the shutdown begins.
///
/// # Errors
/// A [`StartError`].
pub async fn start(
    settings: Settings,
    kv: &Kv,
    database: u32,
    shutdown: &Shutdown,
) -> Result<Running, StartError> {
    let dir_error = |source| StartError::WorkDir { path: settings.work_dir.clone(), source };
    let (root, lock) = open_work_dir(&settings)?;
    for swept in sweep(&root).map_err(StartError::Sweep)? {
        tracing::warn!("ended a script of an earlier runner: {swept}");
    }
    DirBuilder::new().recursive(true).mode(0o700).create(root.join("running")).map_err(dir_error)?;
    let boot = processes::boot_id().map_err(StartError::Sweep)?;
    let spawner = Spawner::start().map_err(StartError::Spawner)?;
    let found = runtime::find(&Tools { root: &root, boot: &boot, spawner: &spawner }, &settings.types);
    if let Some(missing) = found.missing.first() {
        return Err(StartError::MissingType(*missing));
    }
    let shutdown = shutdown.child();
    let root = Arc::new(root);
    let mut instances = Vec::new();
    let mut workers = JoinSet::new();
    for (script_type, runtime) in found.runtimes {
        let who = InstanceRef { script_type, group: settings.group.clone(), number: settings.instance };
        let (instance, intake, control) =
            queue::join(kv, database, who.clone(), about(&settings), is_dead).await?;
        let worker = Worker {
            instance,
            intake,
            control,
            runtime,
            root: Arc::clone(&root),
            slots: settings.slots as usize,
            drain_deadline: settings.drain_deadline,
        };
        workers.spawn(worker.run(shutdown.clone()));
        instances.push(who);
    }
    let names: Vec<_> = instances.iter().map(ToString::to_string).collect();
    tracing::info!(isolation = ISOLATION, slots = settings.slots, "instances {} take jobs", names.join(", "));
    Ok(Running { instances, workers, shutdown, _lock: lock })
}

fn open_work_dir(settings: &Settings) -> Result<(PathBuf, Lock), StartError> {
    let path = &settings.work_dir;
    let open = || {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let root = path.canonicalize()?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(root.join("lock"))?;
        Ok((root, lock))
    };
    let (root, lock) = open().map_err(|source| StartError::WorkDir { path: path.clone(), source })?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok((root, Lock(lock))),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StartError::InUse(path.clone())),
        Err(error) => Err(StartError::WorkDir { path: path.clone(), source: error.into() }),
    }
}

fn about(settings: &Settings) -> About {
    let pid = std::process::id();
    About {
        hostname: processes::hostname(),
        pid,
        process_start: processes::observe(pid).map_or(0, |own| own.start_ticks),
        slots: settings.slots,
        isolation: model::Isolation::Basic,
        layers: vec!["session".to_owned()],
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Whether the process that holds an instance's name is known to be dead: only of one on this machine
/// can that be said. This very process holds no name before it joins, so its own is of an earlier runner in it.
fn is_dead(holder: &PresenceRecord) -> bool {
    holder.hostname == processes::hostname()
        && (holder.pid == std::process::id()
            || processes::observe(holder.pid).map_or(true, |now| now.start_ticks != holder.process_start))
}

/// The runner as a process of its own.
#[derive(Debug)]
pub struct RunnerApp;

impl service::App for RunnerApp {
    const NAME: &'static str = "runner";
    const ABOUT: &'static str = "Executes scripts: takes jobs from a supervisor's queues, runs them, reports";
    const GRPC_PORT: Option<u16> = None;
    const OPS_PORT: u16 = 7807;
    type Config = Config;

    fn limits(config: &Self::Config) -> service::Limits {
        [
            ("slots_per_type", u64::from(config.slots)),
            ("output_bytes_per_stream", model::limits::OUTPUT_BYTES_MAX),
            ("result_bytes", model::limits::RESULT_BYTES_MAX as u64),
            ("result_file_bytes", RESULT_FILE_BYTES_MAX as u64),
            ("inputs_bytes", model::limits::INPUTS_BYTES_MAX as u64),
            ("file_bytes", model::limits::FILE_BYTES_MAX as u64),
            ("job_files_bytes", model::limits::JOB_FILES_BYTES_MAX as u64),
            ("log_piece_bytes", LOG_BYTES_MAX as u64),
            ("rhai_operations", RHAI_OPERATIONS_MAX),
        ]
        .into()
    }

    async fn start(config: Self::Config, host: Host) -> Result<(), Failure> {
        // Killing what is left and recording it needs some of the time itself.
        let settings = config.settings(host.drain_deadline.saturating_sub(Duration::from_secs(2)));
        let kv = Kv::new(config.endpoint()?);
        let database = kv.endpoint().database();
        let mut running = start(settings, &kv, database, &host.shutdown).await?;
        host.tasks.spawn("instances", async move { running.ended().await });
        Ok(())
    }
}
