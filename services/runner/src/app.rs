//! Starting and ending a runner, as a process of its own or inside another.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kv::Kv;
use model::{Isolation, Name, ScriptType};
use queue::{InstanceDescriptor, InstanceJoinError, InstanceRef, PresenceRecord};
use sandbox::{IsolationSupport, processes, records};
use service::{Failure, ServiceHost, Shutdown};
use tokio::task::JoinSet;

use crate::config::{Config, RunnerSettings};
use crate::isolation::Isolator;
use crate::runtime::{self, AvailableRuntimes, RuntimeResources};
use crate::runtimes::rhai::EnginePool;
use crate::work_dir::{RunnerWorkDir, sweep};
use crate::worker::{Worker, WorkerError};
use crate::{
    LOG_BYTES_MAX, OSIS_STORE_BYTES_MAX, RESULT_FILE_BYTES_MAX, RHAI_MEMORY_BYTES_MAX, RHAI_OPERATIONS_MAX,
    RUST_CACHE_BYTES_MAX,
};

/// Why a runner cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RunnerStartError {
    /// The work directory cannot be used.
    #[error("work directory {} cannot be used", .path.display())]
    WorkDir {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another runner of this group and number uses the work directory.
    #[error(
        "instance {number} of group {group} runs already in work directory {}; give this one another --instance",
        .path.display()
    )]
    InUse {
        /// Which directory.
        path: PathBuf,
        /// The group of both.
        group: Name,
        /// The number of both.
        number: u32,
    },
    /// The remains of an earlier runner could not be ended.
    #[error("scripts of an earlier runner cannot be ended")]
    Sweep(#[source] io::Error),
    /// Nothing can be started by way of the launcher.
    #[error("the launcher of scripts cannot be started")]
    Launcher(#[source] io::Error),
    /// The machine supports less isolation than was demanded.
    #[error("isolation `{demanded}` is demanded, and this machine supports only `{level}`: {why}")]
    Isolation {
        /// Level that was demanded.
        demanded: Isolation,
        /// Level that this machine supports.
        level: Isolation,
        /// Missing layers, and why.
        why: String,
    },
    /// A type was named that this machine cannot execute.
    #[error(
        "nothing on this machine executes {0} scripts; install its interpreter, or leave it out of --types"
    )]
    MissingType(ScriptType),
    /// An instance could not join.
    #[error(transparent)]
    Join(#[from] InstanceJoinError),
}

/// A runner at work.
#[derive(Debug)]
pub struct RunnerHandle {
    instances: Vec<InstanceRef>,
    workers: JoinSet<Result<(), WorkerError>>,
    shutdown: Shutdown,
    isolation_support: IsolationSupport,
    /// Tasks that watch the disk usage of contexts; they end when dropped.
    _looks: JoinSet<()>,
    /// Held until the last script is gone.
    _work_dir: RunnerWorkDir,
}

impl RunnerHandle {
    /// The instances, one for each type.
    #[must_use]
    pub fn instances(&self) -> &[InstanceRef] {
        &self.instances
    }

    /// Returns the isolation that this machine gives to the runner's jobs.
    #[must_use]
    pub const fn isolation_support(&self) -> &IsolationSupport {
        &self.isolation_support
    }

    /// Waits until all instances have ended: because the shutdown began, or by themselves. Cancel safe.
    ///
    /// # Errors
    /// Why an instance ended unexpectedly; the others are ended then as well.
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

    /// Ends the runner: takes no more jobs, lets running ones end until the configured deadline, kills the rest.
    pub async fn drain(mut self) {
        self.shutdown.begin();
        while let Err(error) = self.ended().await {
            tracing::warn!(%error, "an instance ended with an error");
        }
    }
}

/// Starts a runner: ends processes that an earlier one left in the work directory, finds the languages that this
/// machine has, joins with one instance for each, and works until the shutdown begins.
///
/// # Errors
/// A [`RunnerStartError`].
pub async fn start(
    settings: RunnerSettings,
    kv: &Kv,
    database: u32,
    shutdown: &Shutdown,
) -> Result<RunnerHandle, RunnerStartError> {
    let work_dir = open(&settings).await?;
    let isolator = Arc::new(Isolator::find(&settings, &work_dir).await?);
    let found = find_runtimes(&settings, &work_dir, &isolator).await;
    if let Some(missing) = found.missing.first() {
        return Err(RunnerStartError::MissingType(*missing));
    }
    let shutdown = shutdown.child();
    let root = Arc::new(work_dir.root.clone());
    let mut instances = Vec::new();
    let mut workers = JoinSet::new();
    for (script_type, runtime) in found.runtimes {
        let who = InstanceRef { script_type, group: settings.group.clone(), number: settings.instance };
        let about = about(&settings, &isolator);
        let (instance, intake, control) = queue::join(kv, database, who.clone(), about, is_dead).await?;
        let worker = Worker {
            instance,
            intake,
            control,
            runtime,
            isolator: Arc::clone(&isolator),
            root: Arc::clone(&root),
            begun: work_dir.begun.clone(),
            slots: settings.slots as usize,
            drain_deadline: settings.drain_deadline,
        };
        workers.spawn(worker.run(shutdown.clone()));
        instances.push(who);
    }
    let names: Vec<_> = instances.iter().map(ToString::to_string).collect();
    let (isolation, layers) = (isolator.level(), isolator.layers().join(" "));
    tracing::info!(%isolation, layers, slots = settings.slots, "instances {} take jobs", names.join(", "));
    let isolation_support = isolator.isolation_support().clone();
    let mut looks = JoinSet::new();
    looks.spawn(isolator.disk_quotas().clone().watch_usage());
    looks.spawn(isolator.disk_quotas().clone().watch_free_space());
    Ok(RunnerHandle { instances, workers, shutdown, isolation_support, _looks: looks, _work_dir: work_dir })
}

/// Tries the tools of each language, which takes some processes and some time.
pub(crate) async fn find_runtimes(
    settings: &RunnerSettings,
    work_dir: &RunnerWorkDir,
    isolator: &Arc<Isolator>,
) -> AvailableRuntimes {
    let (root, running) = (work_dir.root.clone(), work_dir.running.clone());
    let (isolator, types, warm) = (Arc::clone(isolator), settings.types.clone(), settings.scripts.warm);
    let finding = tokio::task::spawn_blocking(move || {
        let engines = Arc::new(EnginePool::new(running.clone(), Arc::clone(&isolator)));
        let tools =
            RuntimeResources { root: &root, running: &running, isolator: &isolator, engines: &engines, warm };
        runtime::find(&tools, &types)
    });
    // After a panic, all wanted types count as missing.
    finding
        .await
        .unwrap_or_else(|_| AvailableRuntimes { runtimes: Vec::new(), missing: settings.types.clone() })
}

/// Opens the work directory, and ends processes that earlier runners left in it, before these runners are reported as gone.
pub(crate) async fn open(settings: &RunnerSettings) -> Result<RunnerWorkDir, RunnerStartError> {
    let RunnerSettings { work_dir: path, group, instance, .. } = settings.clone();
    let opening = tokio::task::spawn_blocking(move || {
        let work_dir = RunnerWorkDir::open(&path, &group, instance)?;
        let mut ended = records::end_recorded(&work_dir.running).map_err(RunnerStartError::Sweep)?;
        ended.extend(sweep(&work_dir.root).map_err(RunnerStartError::Sweep)?);
        Ok((work_dir, ended))
    });
    let (work_dir, ended) =
        opening.await.unwrap_or_else(|error| Err(RunnerStartError::Sweep(error.into())))?;
    for ended in ended {
        tracing::warn!("ended a script of an earlier runner: {ended}");
    }
    Ok(work_dir)
}

fn about(settings: &RunnerSettings, isolator: &Isolator) -> InstanceDescriptor {
    let pid = std::process::id();
    InstanceDescriptor {
        hostname: processes::hostname(),
        pid,
        process_start: processes::observe(pid).map_or(0, |own| own.start_ticks),
        slots: settings.slots,
        isolation: isolator.level(),
        layers: isolator.layers().to_vec(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Returns true if the process that holds an instance's name is known to be dead; only a process of this machine can be
/// checked. This process holds no name before it joins, so a holder with its pid is an earlier runner.
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

    fn limits(config: &Self::Config) -> service::ServiceLimits {
        [
            ("slots_per_type", u64::from(config.slots)),
            ("result_file_bytes", RESULT_FILE_BYTES_MAX as u64),
            ("log_piece_bytes", LOG_BYTES_MAX as u64),
            ("rhai_operations", RHAI_OPERATIONS_MAX),
            ("rhai_memory_bytes", RHAI_MEMORY_BYTES_MAX),
            ("osis_store_bytes", OSIS_STORE_BYTES_MAX),
            ("rust_cache_bytes", RUST_CACHE_BYTES_MAX),
        ]
        .into()
    }

    async fn start(config: Self::Config, host: ServiceHost) -> Result<(), Failure> {
        // Killing the remaining jobs and recording their ends needs some of the time.
        let settings = config.settings(host.drain_deadline.saturating_sub(Duration::from_secs(2)));
        let kv = Kv::new(config.endpoint()?);
        let database = kv.endpoint().database();
        let mut running = start(settings, &kv, database, &host.shutdown).await?;
        host.tasks.spawn("instances", async move { running.ended().await });
        Ok(())
    }
}
