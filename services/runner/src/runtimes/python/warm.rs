//! Warm python: for each context an interpreter that has imported what scripts import most, and forks for each job.
//!
//! ```text
//! runner ══► launcher ── zygote ── fork ─► init (one job at a time) ── fork ─► the script's process
//!    ║                      ▲                ▲   ▲ events, orders: as of every init
//!    ╚══════ wants inits ═══╝                ║   ║
//!    ╚══════ hands jobs over ════════════════╝═══╝
//! ```
//!
//! The launcher confines the zygote as it confines scripts, but for the directory: it reaches those of all jobs of
//! its context. The script's process confines itself further, to that of its own job. An init stays where the
//! runner has placed it, so that what it forks is born inside of the bounds on processes and memory.

mod interpreter;
mod pool;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use model::ReasonCode;
use queue::work_dir::jobs_dir;
use sandbox::{BrokerRules, FileRules, ProcessLimits};
use serde::Serialize;

use self::interpreter::{InterpreterInit, StartingScript, WarmInterpreter, WarmPythonConfig};
use self::pool::{InterpreterCell, InterpreterKey, InterpreterPool};
use crate::process::ProcessExecutor;
use crate::process_wait::{self, ScriptNotStarted, wait_for_exit};
use crate::runtime::{RuntimeResources, ScriptEnd, ScriptJob};
use crate::workspace::broken;

/// How often is looked for interpreters that nobody needs any more.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);

/// The warm interpreters of a runner.
pub(super) struct WarmPython {
    shared: Arc<WarmPythonInner>,
}

struct WarmPythonInner {
    recipe: WarmPythonConfig,
    pool: Mutex<InterpreterPool<WarmInterpreter>>,
}

/// Request that the script's process is sent.
#[derive(Serialize)]
struct PythonJobRequest<'a> {
    script: &'a str,
    dir: &'a str,
    env: &'a BTreeMap<String, String>,
    limits: &'a ProcessLimits,
}

/// An init that waits for a job, and whose it is.
struct InterpreterInitLease {
    interpreter: Arc<WarmInterpreter>,
    init: InterpreterInit,
}

impl WarmPython {
    /// With what the runner has: `program` with `args` becomes an interpreter, whose scripts may read `reads`.
    pub(super) fn new(
        tools: &RuntimeResources<'_>,
        program: &Path,
        args: Vec<String>,
        reads: &[PathBuf],
    ) -> Self {
        let recipe = WarmPythonConfig {
            launcher: ProcessExecutor::new(tools),
            root: tools.root.to_owned(),
            running: tools.running.to_owned(),
            program: program.to_owned(),
            args,
            reads: reads.to_vec(),
        };
        let shared = Arc::new(WarmPythonInner { recipe, pool: Mutex::default() });
        tokio::spawn(tidy(Arc::downgrade(&shared)));
        Self { shared }
    }

    /// Runs a job, whose script lies at `script`, to its end; gives nothing when it could not be started and has
    /// not begun.
    pub(super) async fn run(
        &self,
        script: &Path,
        env: &BTreeMap<String, String>,
        job: &ScriptJob,
    ) -> Option<ScriptEnd> {
        let lease = tokio::select! {
            biased;
            lease = self.shared.lease(job) => lease,
            () = job.interrupt.raised() => return Some(ScriptEnd::Interrupted),
        };
        let lease = match lease {
            Ok(lease) => lease?,
            Err(error) => {
                tracing::debug!(key = %job.execution.job_key, %error, "no warm python, a cold one is started");
                return None;
            }
        };
        match self.shared.run(lease, script, env, job).await {
            Ok(end) => Some(end),
            Err(ScriptNotStarted(reason)) if reason.code == ReasonCode::IsolationUnavailable => {
                Some(ScriptEnd::Broken(reason))
            }
            Err(ScriptNotStarted(reason)) => {
                tracing::debug!(key = %job.execution.job_key, %reason, "no warm python, a cold one is started");
                None
            }
        }
    }
}

impl WarmPythonInner {
    fn pool(&self) -> MutexGuard<'_, InterpreterPool<WarmInterpreter>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An init of the context's interpreter, which is started unless it is there.
    async fn lease(self: &Arc<Self>, job: &ScriptJob) -> io::Result<Option<InterpreterInitLease>> {
        let context = job.execution.job_key.context;
        let broker = self.recipe.launcher.isolator().broker(job, &jobs_dir(&self.recipe.root, context));
        let key = InterpreterKey {
            context,
            owner: job.workspace.owner(),
            network: job.execution.network,
            // Each of its forks is the init of one job.
            broker: BrokerRules { jobs_below: true, ..broker },
        };
        let Some(mut given) = self.pool().give(key.clone(), Instant::now()) else { return Ok(None) };
        if given.place.get().is_some_and(|interpreter| interpreter.is_gone()) {
            self.pool().forget(&key, &given.place);
            match self.pool().give(key.clone(), Instant::now()) {
                Some(other) => given = other,
                None => return Ok(None),
            }
        }
        let place = given.place;
        let start = async || WarmInterpreter::start(&self.recipe, &key).await.map(Arc::new);
        let interpreter = match place.get_or_try_init(start).await {
            Ok(interpreter) => Arc::clone(interpreter),
            Err(error) => {
                self.pool().fail(&key, &place, Instant::now());
                return Err(error);
            }
        };
        if given.worn {
            tokio::spawn(Arc::clone(self).renew(key.clone(), Arc::clone(&place)));
        }
        match interpreter.acquire_init(job.slot.as_ref()).await {
            Ok(init) => Ok(Some(InterpreterInitLease { interpreter, init })),
            Err(error) => {
                // Whatever it is, the next job does better with another one.
                self.pool().forget(&key, &place);
                Err(error)
            }
        }
    }

    /// Starts another interpreter beside one that is worn, and puts it into its place then.
    async fn renew(self: Arc<Self>, key: InterpreterKey, worn: InterpreterCell<WarmInterpreter>) {
        match WarmInterpreter::start(&self.recipe, &key).await {
            Ok(interpreter) => self.pool().replace(&key, &worn, Arc::new(interpreter), Instant::now()),
            Err(error) => {
                tracing::debug!(%error, "a worn warm python stays");
                self.pool().keep_worn(&key, &worn);
            }
        }
    }

    async fn run(
        &self,
        lease: InterpreterInitLease,
        script: &Path,
        env: &BTreeMap<String, String>,
        job: &ScriptJob,
    ) -> Result<ScriptEnd, ScriptNotStarted> {
        let InterpreterInitLease { interpreter, init } = lease;
        let failed = |error: io::Error| ScriptNotStarted(broken("the script cannot be started", &error));
        let cgroups = job.slot.iter().flat_map(|slot| slot.dirs()).cloned().collect();
        let record = self.recipe.launcher.prepare_record(job, cgroups).map_err(failed)?;
        let StartingScript { child, outputs } = self.begin(&init, script, env, job).await.map_err(failed)?;
        let record = match record.started(child.pid()) {
            Ok(record) => record,
            // The script may have begun, so it is not started a second time.
            Err(error) => return Ok(ScriptEnd::Broken(broken("the process cannot be recorded", &error))),
        };
        let end = wait_for_exit(child, outputs, job).await;
        drop(record);
        interpreter.release_init(init);
        end
    }

    async fn begin(
        &self,
        init: &InterpreterInit,
        script: &Path,
        env: &BTreeMap<String, String>,
        job: &ScriptJob,
    ) -> io::Result<StartingScript> {
        let text = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| io::Error::other("a path is no text"))
        };
        let confinement = self.recipe.launcher.isolator().confinement(job, &self.recipe.reads)?;
        let (script, dir) = (text(script)?, text(job.workspace.dir())?);
        let request = PythonJobRequest { script: &script, dir: &dir, env, limits: &confinement.limits };
        let files = confinement.files.map(within_the_zygotes);
        init.begin(&serde_json::to_vec(&request)?, files.as_ref(), process_wait::outputs(job)?).await
    }
}

/// Rules for what is confined by the zygote's already, so that fewer say the same.
fn within_the_zygotes(mut rules: FileRules) -> FileRules {
    const WHOLE: &[&str] = &["/etc", "/sys"];
    rules.read.retain(|path| !WHOLE.iter().any(|whole| path.starts_with(whole)));
    rules.read.extend(WHOLE.iter().map(PathBuf::from));
    rules
}

/// Ends interpreters that nobody needs any more, as long as there may be any.
async fn tidy(shared: Weak<WarmPythonInner>) {
    loop {
        tokio::time::sleep(TIDY_INTERVAL).await;
        match shared.upgrade() {
            Some(shared) => shared.pool().tidy(Instant::now(), WarmInterpreter::is_gone),
            None => return,
        }
    }
}
