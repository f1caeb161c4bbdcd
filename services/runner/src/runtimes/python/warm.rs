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
use sandbox::{Broker, FileRules, Limits};
use serde::Serialize;

use self::interpreter::{Begun, Interpreter, Recipe, Seat};
use self::pool::{Key, Place, Pool};
use crate::attend::{self, NotStarted, attend};
use crate::process::Launcher;
use crate::runtime::{End, Job, Tools};
use crate::workspace::broken;

/// How often is looked for interpreters that nobody needs any more.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);

/// The warm interpreters of a runner.
pub(super) struct Warm {
    shared: Arc<Shared>,
}

struct Shared {
    recipe: Recipe,
    pool: Mutex<Pool<Interpreter>>,
}

/// What the script's process is told.
#[derive(Serialize)]
struct Told<'a> {
    script: &'a str,
    dir: &'a str,
    env: &'a BTreeMap<String, String>,
    limits: &'a Limits,
}

/// An init that waits for a job, and whose it is.
struct Lease {
    interpreter: Arc<Interpreter>,
    seat: Seat,
}

impl Warm {
    /// With what the runner has: `program` with `args` becomes an interpreter, whose scripts may read `reads`.
    pub(super) fn new(tools: &Tools<'_>, program: &Path, args: Vec<String>, reads: &[PathBuf]) -> Self {
        let recipe = Recipe {
            launcher: Launcher::new(tools),
            root: tools.root.to_owned(),
            running: tools.running.to_owned(),
            program: program.to_owned(),
            args,
            reads: reads.to_vec(),
        };
        let shared = Arc::new(Shared { recipe, pool: Mutex::default() });
        tokio::spawn(tidy(Arc::downgrade(&shared)));
        Self { shared }
    }

    /// Runs a job, whose script lies at `script`, to its end; gives nothing when it could not be started and has
    /// not begun.
    pub(super) async fn run(&self, script: &Path, env: &BTreeMap<String, String>, job: &Job) -> Option<End> {
        let lease = tokio::select! {
            biased;
            lease = self.shared.lease(job) => lease,
            () = job.interrupt.raised() => return Some(End::Interrupted),
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
            Err(NotStarted(reason)) if reason.code == ReasonCode::IsolationUnavailable => {
                Some(End::Broken(reason))
            }
            Err(NotStarted(reason)) => {
                tracing::debug!(key = %job.execution.job_key, %reason, "no warm python, a cold one is started");
                None
            }
        }
    }
}

impl Shared {
    fn pool(&self) -> MutexGuard<'_, Pool<Interpreter>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An init of the context's interpreter, which is started unless it is there.
    async fn lease(self: &Arc<Self>, job: &Job) -> io::Result<Option<Lease>> {
        let context = job.execution.job_key.context;
        let broker = self.recipe.launcher.isolator().broker(job, &jobs_dir(&self.recipe.root, context));
        let key = Key {
            context,
            owner: job.workspace.owner(),
            network: job.execution.network,
            // Each of its forks is the init of one job.
            broker: Broker { jobs_below: true, ..broker },
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
        let start = async || Interpreter::start(&self.recipe, &key).await.map(Arc::new);
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
        match interpreter.seat(job.slot.as_ref()).await {
            Ok(seat) => Ok(Some(Lease { interpreter, seat })),
            Err(error) => {
                // Whatever it is, the next job does better with another one.
                self.pool().forget(&key, &place);
                Err(error)
            }
        }
    }

    /// Starts another interpreter beside one that is worn, and puts it into its place then.
    async fn renew(self: Arc<Self>, key: Key, worn: Place<Interpreter>) {
        match Interpreter::start(&self.recipe, &key).await {
            Ok(interpreter) => self.pool().replace(&key, &worn, Arc::new(interpreter), Instant::now()),
            Err(error) => {
                tracing::debug!(%error, "a worn warm python stays");
                self.pool().keep_worn(&key, &worn);
            }
        }
    }

    async fn run(
        &self,
        lease: Lease,
        script: &Path,
        env: &BTreeMap<String, String>,
        job: &Job,
    ) -> Result<End, NotStarted> {
        let Lease { interpreter, seat } = lease;
        let failed = |error: io::Error| NotStarted(broken("the script cannot be started", &error));
        let Begun { child, outputs } = self.begin(&seat, script, env, job).await.map_err(failed)?;
        let cgroups = job.slot.iter().flat_map(|slot| slot.dirs()).cloned().collect();
        let record = self.recipe.launcher.record(job, &child, cgroups).map_err(failed)?;
        let end = attend(child, outputs, job).await;
        drop(record);
        interpreter.take_back(seat);
        end
    }

    async fn begin(
        &self,
        seat: &Seat,
        script: &Path,
        env: &BTreeMap<String, String>,
        job: &Job,
    ) -> io::Result<Begun> {
        let text = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| io::Error::other("a path is no text"))
        };
        let confinement = self.recipe.launcher.isolator().confinement(job, &self.recipe.reads)?;
        let (script, dir) = (text(script)?, text(job.workspace.dir())?);
        let told = Told { script: &script, dir: &dir, env, limits: &confinement.limits };
        let files = confinement.files.map(within_the_zygotes);
        seat.begin(&serde_json::to_vec(&told)?, files.as_ref(), attend::outputs(job)?).await
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
async fn tidy(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(TIDY_INTERVAL).await;
        match shared.upgrade() {
            Some(shared) => shared.pool().tidy(Instant::now(), Interpreter::is_gone),
            None => return,
        }
    }
}
