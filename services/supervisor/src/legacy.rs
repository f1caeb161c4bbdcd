//! Bridge to legacy systems: queues shared with old workers and old dispatchers, jobs that others push into our own
//! queues, and commands that anyone may give to all instances of a type.
//!
//! A file of TOML tables holds the bindings, each of one old queue, one script type and one context uid:
//!
//! ```toml
//! [[legacy]]
//! push = "hero:job:actor_queue:osis"   # old workers of this queue may take the context's osis jobs
//! script_type = "osis"
//! context = "0123456789abcdef0123456789abcdef"
//!
//! [[legacy]]
//! pop = "queue:python"                 # jobs that old dispatchers push there run in the context
//! script_type = "python"
//! context = "0123456789abcdef0123456789abcdef"
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::future::pending;
use std::path::Path;
use std::time::Duration;

use backoff::ExponentialBackoff;
use model::{ContextUid, Execution, ScriptType};
use queue::{InstanceCommand, LegacyQueue, OLD_WORKER_PATIENCE, PopBinding, PushBinding};
use serde::Deserialize;

use crate::coordinator_requests::SupervisorState;
use crate::external_workers;
use crate::policy::JobSender;

/// Interval at which old queues are checked.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Number of jobs waiting for the instances of a type from which on no more are imported from old queues.
const WAITING_MAX: usize = 1000;
/// The pauses after trouble with Redis, the first and the longest.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::between(Duration::from_millis(100), Duration::from_secs(5));

/// The old queues that this supervisor shares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LegacyBindings {
    push: Vec<PushBinding>,
    pop: Vec<PopBinding>,
}

/// One table of the file, unread.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LegacyTable {
    push: Option<String>,
    pop: Option<String>,
    script_type: Option<String>,
    context: Option<String>,
    #[serde(flatten)]
    unknown: BTreeMap<String, serde::de::IgnoredAny>,
}

/// The file, unread.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LegacyFile {
    #[serde(default)]
    legacy: Vec<LegacyTable>,
}

/// All problems of the bindings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyBindingsError(Vec<String>);

impl fmt::Display for LegacyBindingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the bindings of old queues are wrong: {}", self.0.join("; "))
    }
}

impl std::error::Error for LegacyBindingsError {}

/// Which way jobs go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LegacyDirection {
    Push,
    Pop,
}

/// One table, read.
struct LegacyBinding {
    direction: LegacyDirection,
    queue: LegacyQueue,
    script_type: ScriptType,
    context: ContextUid,
}

impl LegacyTable {
    fn read(&self, problems: &mut Vec<String>) -> Option<LegacyBinding> {
        let before = problems.len();
        problems.extend(self.unknown.keys().map(|name| format!("there is no `{name}`")));
        let place = match (&self.push, &self.pop) {
            (Some(queue), None) => Some((LegacyDirection::Push, queue)),
            (None, Some(queue)) => Some((LegacyDirection::Pop, queue)),
            _ => {
                problems.push("it needs either `push` or `pop`, a queue".to_owned());
                None
            }
        };
        let queue =
            place.and_then(|(direction, queue)| Some((direction, field("queue", Some(queue), problems)?)));
        let script_type = field("script_type", self.script_type.as_ref(), problems);
        let context = field("context", self.context.as_ref(), problems);
        if problems.len() > before {
            return None;
        }
        let (direction, queue) = queue?;
        Some(LegacyBinding { direction, queue, script_type: script_type?, context: context? })
    }
}

/// Reads one field, or notes why it cannot be read.
fn field<T>(name: &str, text: Option<&String>, problems: &mut Vec<String>) -> Option<T>
where
    T: std::str::FromStr<Err: fmt::Display>,
{
    let Some(text) = text else {
        problems.push(format!("`{name}` is missing"));
        return None;
    };
    text.parse().map_err(|error| problems.push(format!("`{name}`: {error}"))).ok()
}

impl LegacyBindings {
    /// Reads bindings from a file.
    ///
    /// # Errors
    /// All [`LegacyBindingsError`] at once.
    pub fn load(path: &Path) -> Result<Self, LegacyBindingsError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            LegacyBindingsError(vec![format!("{} cannot be read: {error}", path.display())])
        })?;
        let file: LegacyFile = toml::from_str(&text)
            .map_err(|error| LegacyBindingsError(vec![error.to_string().trim().to_owned()]))?;
        Self::read(&file.legacy)
    }

    /// Reads bindings from the tables of a file.
    ///
    /// # Errors
    /// All [`LegacyBindingsError`] at once.
    pub fn read(tables: &[LegacyTable]) -> Result<Self, LegacyBindingsError> {
        let mut bindings = Self::default();
        let mut problems = Vec::new();
        let (mut queues, mut shown) = (HashSet::new(), HashMap::new());
        for (at, table) in tables.iter().enumerate() {
            let mut wrong = Vec::new();
            if let Some(LegacyBinding { direction, queue, script_type, context }) = table.read(&mut wrong) {
                if !queues.insert(queue.clone()) {
                    wrong.push(format!("{queue} is bound already, and a queue belongs to one context"));
                }
                match direction {
                    LegacyDirection::Push => {
                        if let Some(other) = shown.insert((script_type, context), queue.clone()) {
                            wrong.push(format!(
                                "{script_type} jobs of this context go to {other} already, and a job stands in one \
                                 old queue only"
                            ));
                        }
                        bindings.push.push(PushBinding { queue, script_type, context });
                    }
                    LegacyDirection::Pop => bindings.pop.push(PopBinding { queue, script_type, context }),
                }
            }
            problems.extend(wrong.into_iter().map(|what| format!("table {}: {what}", at + 1)));
        }
        if problems.is_empty() { Ok(bindings) } else { Err(LegacyBindingsError(problems)) }
    }

    /// Returns the queues that old workers may take from, for [`queue::SupervisorQueues::with_legacy_workers`].
    #[must_use]
    pub fn push(&self) -> &[PushBinding] {
        &self.push
    }

    /// Returns the queues that old dispatchers push into.
    #[must_use]
    pub fn pop(&self) -> &[PopBinding] {
        &self.pop
    }
}

/// Serves old queues, and passes commands on, for ever. The caller drops the future to end it.
pub async fn keep(supervisor: SupervisorState, bindings: LegacyBindings) {
    note_open(&supervisor).await;
    tokio::join!(sweep(&supervisor, &bindings), settle_foreign(&supervisor), pass_on(&supervisor));
}

/// Stores for the instances whether queues are open, before anything else here runs.
async fn note_open(supervisor: &SupervisorState) {
    let mut backoff = RETRY;
    while let Err(error) = supervisor.queue.note_open().await {
        tracing::warn!(%error, "the flag for open queues cannot be stored; retrying");
        backoff.pause().await;
    }
}

/// Adopts or refuses jobs that others push into our queues, as they come.
async fn settle_foreign(supervisor: &SupervisorState) {
    let mut watch = supervisor.queue.foreign_watch();
    let mut drains = supervisor.draining.changes();
    let mut backoff = RETRY;
    loop {
        // During a drain, adopted jobs would be given back. The sender lives as long as the supervisor.
        let _ = drains.wait_for(Option::is_none).await;
        let settled = match watch.wait(pending()).await {
            Ok(()) => settle_foreign_once(supervisor).await,
            Err(error) => Err(error),
        };
        match settled {
            Ok(()) => backoff.reset(),
            Err(error) => {
                tracing::warn!(%error, "foreign jobs in work queues cannot be settled now; retrying");
                backoff.pause().await;
            }
        }
    }
}

async fn settle_foreign_once(supervisor: &SupervisorState) -> kv::Result<()> {
    let rules = supervisor.policy.rules();
    // The operator of this machine has opened the queues: this admits their senders.
    let opened = JobSender { root: "", is_admitted: true };
    let grant = |job: &Execution| match supervisor.floors.shortage() {
        Some(shortage) => Err(shortage.to_string()),
        None => rules.grant(job, opened, None).map_err(|denial| denial.to_string()),
    };
    for foreign in supervisor.queue.settle_foreign(grant).await? {
        let (queue, entry) = (&foreign.queue, &foreign.entry);
        match &foreign.refused {
            None => {
                supervisor.metrics.foreign("adopted");
                tracing::info!(%queue, %entry, "a job that others pushed into a work queue is adopted");
            }
            Some(why) => {
                supervisor.metrics.foreign("refused");
                tracing::warn!(%queue, %entry, why, "a job that others pushed into a work queue is refused");
            }
        }
    }
    Ok(())
}

async fn sweep(supervisor: &SupervisorState, bindings: &LegacyBindings) {
    let mut look = tokio::time::interval(SWEEP_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        if let Err(error) = sweep_once(supervisor, bindings).await {
            tracing::warn!(%error, "old queues cannot be read now; retrying");
        }
    }
}

async fn sweep_once(supervisor: &SupervisorState, bindings: &LegacyBindings) -> kv::Result<()> {
    let swept = supervisor.queue.sweep_legacy(OLD_WORKER_PATIENCE).await?;
    if swept.lost > 0 {
        supervisor.metrics.lost.inc_by(swept.lost);
        tracing::warn!(
            lost = swept.lost,
            "old workers did not finish jobs that they took; these ended as lost"
        );
    }
    supervisor.queue.sweep_open().await?;
    let presence = supervisor.presence.now();
    let is_served = |script_type| external_workers::is_served(script_type, &presence.instances);
    supervisor.queue.find_foreign(ScriptType::ALL.into_iter().filter(|kind| !is_served(*kind))).await?;
    for binding in bindings.pop() {
        // Jobs that no instance here can run are left to old workers of the same queue.
        if is_served(binding.script_type) && !presence.draining && supervisor.floors.shortage().is_none() {
            let rules = supervisor.policy.rules();
            // The operator of this machine has bound the queue: this admits its senders.
            let bound = JobSender { root: "", is_admitted: true };
            let grant = |job: &Execution| rules.grant(job, bound, None).map_err(|denial| denial.to_string());
            let imported = supervisor.queue.import(binding, grant, WAITING_MAX).await?;
            if imported.taken > 0 {
                tracing::debug!(queue = %binding.queue, jobs = imported.taken, "imported from an old queue");
            }
        }
    }
    Ok(())
}

/// Passes commands for a whole type on to its present instances.
async fn pass_on(supervisor: &SupervisorState) {
    let mut control = supervisor.queue.type_control();
    let mut backoff = RETRY;
    loop {
        match control.next(pending()).await {
            Ok(None) => backoff.reset(),
            Ok(Some((scope, command))) => {
                backoff.reset();
                send_command(supervisor, &scope, &command).await;
            }
            Err(error) => {
                tracing::warn!(%error, "commands to types cannot be read now; retrying");
                backoff.pause().await;
            }
        }
    }
}

/// Passes a command on, with retries: it is stored nowhere else any more. A command that arrives twice does no harm.
async fn send_command(supervisor: &SupervisorState, scope: &queue::ControlScope, command: &InstanceCommand) {
    let mut backoff = RETRY;
    loop {
        match supervisor.queue.command(scope, command).await {
            Ok(instances) => {
                return tracing::info!(%scope, ?command, instances, "a command to a type was passed on");
            }
            Err(error) => {
                tracing::warn!(%scope, ?command, %error, "a command cannot be passed on; retrying")
            }
        }
        backoff.pause().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: &str = "0123456789abcdef0123456789abcdef";

    fn read(text: &str) -> Result<LegacyBindings, LegacyBindingsError> {
        let file: LegacyFile = toml::from_str(text).expect("tables");
        LegacyBindings::read(&file.legacy)
    }

    #[test]
    fn bindings_of_both_directions() {
        let text = format!(
            "[[legacy]]\npush = 'hero:job:actor_queue:osis'\nscript_type = 'osis'\ncontext = '{CONTEXT}'\n\
             [[legacy]]\npop = 'queue:python'\nscript_type = 'python'\ncontext = '{CONTEXT}'\n"
        );
        let bindings = read(&text).expect("bindings");
        assert_eq!(bindings.push()[0].queue.to_string(), "hero:job:actor_queue:osis");
        assert_eq!(bindings.pop()[0].script_type, ScriptType::Python);
        assert_eq!(bindings.pop()[0].context.to_string(), CONTEXT);
        assert_eq!(read(""), Ok(LegacyBindings::default()));
    }

    #[test]
    fn all_problems_of_legacy_bindings_are_reported_at_once() {
        let good = format!("script_type = 'osis'\ncontext = '{CONTEXT}'\n");
        let text = format!(
            "[[legacy]]\npush = 'hero:job:a'\n{good}\
             [[legacy]]\npush = 'hero:job:b'\n{good}\
             [[legacy]]\npop = 'hero:job:a'\n{good}\
             [[legacy]]\npush = 'x'\npop = 'y'\nscript_type = 'cobol'\ncontext = '7'\ncolour = 'red'\n\
             [[legacy]]\npop = 'hero:q:work:type:osis'\n"
        );
        let problems = read(&text).expect_err("wrong").to_string();
        for part in [
            "table 2: osis jobs of this context go to hero:job:a already",
            "table 3: hero:job:a is bound already",
            "table 4: it needs either `push` or `pop`",
            "table 4: `script_type`: `cobol`",
            "table 4: `context`:",
            "table 4: there is no `colour`",
            "table 5: `queue`: `hero:q:work:type:osis` is no queue of old workers",
            "table 5: `script_type` is missing",
            "table 5: `context` is missing",
        ] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
    }

    #[test]
    fn a_missing_bindings_file_is_named() {
        let problems = LegacyBindings::load(Path::new("/no/such/file")).expect_err("no file").to_string();
        assert!(problems.contains("/no/such/file"), "{problems}");
    }
}
