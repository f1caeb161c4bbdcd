//! Engines of a runner: processes that run scripts, kept for the next job of the same context.

mod idle;
mod process;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use model::Reason;
use tokio::sync::OnceCell;

use self::idle::{EngineKey, IdleEngines};
pub(super) use self::process::{EngineFailure, EngineProcess, EngineSocket};
use crate::isolation::Isolator;
use crate::runtime::ScriptJob;

/// How often is looked for engines that nobody needs any more.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);

/// The engines of a runner, for all of its languages.
#[derive(Debug)]
pub(crate) struct EnginePool {
    /// Where what runs is recorded.
    running: PathBuf,
    isolator: Arc<Isolator>,
    idle: Mutex<IdleEngines<EngineProcess>>,
    tidied: OnceCell<()>,
}

impl EnginePool {
    /// None yet.
    pub(crate) fn new(running: PathBuf, isolator: Arc<Isolator>) -> Self {
        Self { running, isolator, idle: Mutex::default(), tidied: OnceCell::new() }
    }

    fn idle(&self) -> MutexGuard<'_, IdleEngines<EngineProcess>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An engine for this job, which is started unless one waits.
    ///
    /// # Errors
    /// Why none can be started.
    pub(super) async fn take(&self, job: &ScriptJob) -> Result<EngineProcess, Reason> {
        let key = EngineKey::of(job);
        loop {
            let waiting = self.idle().take(key);
            let Some(mut engine) = waiting else { break };
            if engine.is_ready(job) {
                return Ok(engine);
            }
            engine.end();
        }
        EngineProcess::start(&self.running, &self.isolator, key, job).await
    }

    /// Keeps an engine that has run a job to its end, unless it is worn.
    pub(super) async fn keep(self: &Arc<Self>, engine: EngineProcess, job: &ScriptJob) {
        let superfluous = if engine.is_worn() {
            Some(engine)
        } else {
            self.idle().put(EngineKey::of(job), engine, Instant::now())
        };
        if let Some(engine) = superfluous {
            engine.end();
        }
        let weak = Arc::downgrade(self);
        self.tidied.get_or_init(async || drop(tokio::spawn(tidy(weak)))).await;
    }
}

/// Ends engines that nobody needs any more, as long as there may be any.
async fn tidy(engines: Weak<EnginePool>) {
    loop {
        tokio::time::sleep(TIDY_INTERVAL).await;
        let Some(engines) = engines.upgrade() else { return };
        let unused = engines.idle().take_unused(Instant::now());
        unused.into_iter().for_each(EngineProcess::end);
    }
}
