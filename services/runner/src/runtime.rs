//! Interface that every language's runtime implements, and the table of runtimes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use model::execution::Grants;
use model::flow::ResultMap;
use model::{Execution, Reason, ScriptType};
use sandbox::CgroupSlot;
use tokio::runtime::Handle;

use crate::interrupt::Interrupt;
use crate::isolation::Isolator;
use crate::output::ScriptOutputSender;
use crate::process_wait::KilledProcesses;
use crate::runtimes::rhai::EnginePool;
use crate::runtimes::{osis, python, rhai, rust, sal, shell, v};
use crate::workspace::Workspace;

/// Executes scripts of one type.
#[async_trait]
pub(crate) trait ScriptRuntime: Send + Sync {
    /// Runs a job to its end, also when it is interrupted or out of time; leaves no processes behind.
    async fn run(&self, job: ScriptJob) -> ScriptEnd;

    /// Returns true if each job needs its directory. Otherwise the directory is made for jobs that have files, or when the script
    /// first uses it: making and removing it costs more than many scripts take.
    fn needs_directory(&self) -> bool {
        true
    }
}

/// One attempt, prepared: its files are there.
pub(crate) struct ScriptJob {
    /// Attempt to run.
    pub(crate) execution: Arc<Execution>,
    /// Text of the script.
    pub(crate) script: String,
    /// Variables of the job, rendered.
    pub(crate) env: BTreeMap<String, String>,
    /// Upstream results as JSON.
    pub(crate) inputs: String,
    /// Directory of the job.
    pub(crate) workspace: Arc<Workspace>,
    /// Time limit of the job.
    pub(crate) time_limit: Option<Duration>,
    /// Interrupt that ends the job.
    pub(crate) interrupt: Arc<Interrupt>,
    /// Sender for its output.
    pub(crate) printer: ScriptOutputSender,
    /// Grants that the supervisor's policy gives the job.
    pub(crate) grants: Grants,
    /// Cgroup that bounds the job's processes and memory together.
    pub(crate) slot: Option<Arc<CgroupSlot>>,
    /// Processes that had to be killed when the job was over.
    pub(crate) killed: KilledProcesses,
}

/// How a script ended.
#[derive(Debug)]
pub(crate) enum ScriptEnd {
    /// By itself.
    Exited {
        /// 0 is success.
        code: i32,
        /// Result of the script, or why it cannot be used.
        result: Result<ResultMap, Reason>,
    },
    /// The compiler rejected the script.
    NotCompiled {
        /// Exit code of the compiler.
        code: i32,
        /// Which one it was, and how it read the script.
        compiler: String,
    },
    /// By a signal that we did not send.
    Signalled(i32),
    /// Killed, since its time was over.
    TimedOut,
    /// Killed, since it was told to end.
    Interrupted,
    /// The script could not be run, or not to its end.
    Broken(Reason),
    /// The script did not begin.
    NotRun(Reason),
}

/// Resources that runtimes are made with.
pub(crate) struct RuntimeResources<'a> {
    /// The work directory, canonical.
    pub(crate) root: &'a Path,
    /// Directory of the records of running processes.
    pub(crate) running: &'a Path,
    /// How jobs are kept apart.
    pub(crate) isolator: &'a Arc<Isolator>,
    /// Where scripts of embedded languages run.
    pub(crate) engines: &'a Arc<EnginePool>,
    /// Interpreters may be kept warm from job to job.
    pub(crate) warm: bool,
}

/// A runtime, if the machine has what it needs.
type RuntimeProbe = fn(&RuntimeResources<'_>) -> Option<Arc<dyn ScriptRuntime>>;

/// Every language there is. One more is a file in `runtimes/` and a line here.
const TABLE: &[(ScriptType, RuntimeProbe)] = &[
    (ScriptType::Shell, shell::probe),
    (ScriptType::Python, python::probe),
    (ScriptType::V, v::probe),
    (ScriptType::Rust, rust::probe),
    (ScriptType::Rhai, rhai::probe),
    (ScriptType::Osis, osis::probe),
    (ScriptType::Sal, sal::probe),
];

/// The types that a runner on this machine can execute at all, whether or not their tools are installed.
pub fn available() -> impl Iterator<Item = ScriptType> {
    TABLE.iter().map(|(script_type, _)| *script_type)
}

/// Runtimes that were found on this machine.
pub(crate) struct AvailableRuntimes {
    /// Runtimes that can execute scripts, by type.
    pub(crate) runtimes: Vec<(ScriptType, Arc<dyn ScriptRuntime>)>,
    /// Types that were wanted and not found.
    pub(crate) missing: Vec<ScriptType>,
}

/// Looks for the tools of the `wanted` types, or of all types when it is empty. Probes all languages concurrently, since each
/// waits for processes that it tries. Needs a Tokio runtime; blocks.
pub(crate) fn find(tools: &RuntimeResources<'_>, wanted: &[ScriptType]) -> AvailableRuntimes {
    let is_wanted =
        |(script_type, _): &&(ScriptType, RuntimeProbe)| wanted.is_empty() || wanted.contains(script_type);
    let handle = Handle::current();
    let probed = |probe: RuntimeProbe| {
        let _entered = handle.enter();
        probe(tools)
    };
    let runtimes: Vec<_> = std::thread::scope(|scope| {
        let probe = |(script_type, probe): &(ScriptType, RuntimeProbe)| {
            let (probed, probe) = (&probed, *probe);
            (*script_type, scope.spawn(move || probed(probe)))
        };
        let probes: Vec<_> = TABLE.iter().filter(is_wanted).map(probe).collect();
        // A probe that panicked has found nothing.
        probes
            .into_iter()
            .filter_map(|(script_type, probe)| Some((script_type, probe.join().ok()??)))
            .collect()
    });
    let is_missing = |wanted: &ScriptType| !runtimes.iter().any(|(script_type, _)| script_type == wanted);
    let missing = wanted.iter().copied().filter(is_missing).collect();
    AvailableRuntimes { runtimes, missing }
}
