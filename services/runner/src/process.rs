//! Scripts that are processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::Reason;
use sandbox::{InitEvent, SandboxRequest, SandboxedJob, records, tree};

use crate::SCRIPT_PATH;
use crate::isolation::Isolator;
use crate::process_wait::{ScriptNotStarted, outputs, wait_for_exit};
use crate::runtime::{RuntimeResources, ScriptEnd, ScriptJob};
use crate::workspace::broken;

/// Runs scripts as processes.
#[derive(Debug, Clone)]
pub(crate) struct ProcessExecutor {
    /// Directory of the records of running processes.
    running: PathBuf,
    isolator: Arc<Isolator>,
}

/// An interpreter and what stands before the script's path on its command line.
#[derive(Debug, Clone)]
pub(crate) struct InterpreterCommand {
    /// The real executable.
    pub(crate) program: PathBuf,
    /// Arguments before the script.
    pub(crate) args: Vec<OsString>,
    /// File name of the script in the job's directory.
    pub(crate) script_name: &'static str,
    /// Paths that the interpreter has to read, in addition to those that every script may.
    pub(crate) reads: Vec<PathBuf>,
}

/// A program and its arguments.
#[derive(Debug, Clone)]
pub(crate) struct ProgramCommand<'a> {
    /// The executable.
    pub(crate) path: &'a Path,
    /// Arguments of the program.
    pub(crate) args: Vec<OsString>,
    /// Paths that the program has to read, in addition to those that every script may.
    pub(crate) reads: &'a [PathBuf],
}

impl ProcessExecutor {
    /// Creates an executor with the runner's resources.
    pub(crate) fn new(tools: &RuntimeResources<'_>) -> Self {
        Self { running: tools.running.to_owned(), isolator: Arc::clone(tools.isolator) }
    }

    /// Returns the isolator that confines jobs.
    pub(crate) fn isolator(&self) -> &Arc<Isolator> {
        &self.isolator
    }

    /// Runs a job with an interpreter, to its end.
    pub(crate) async fn run(&self, interpreter: &InterpreterCommand, job: ScriptJob) -> ScriptEnd {
        let script = match job.workspace.write_own(interpreter.script_name, &job.script) {
            Ok(script) => script,
            Err(reason) => return ScriptEnd::NotRun(reason),
        };
        let mut args = interpreter.args.clone();
        args.push(script.into());
        let program = ProgramCommand { path: &interpreter.program, args, reads: &interpreter.reads };
        self.run_program(&program, &job).await
    }

    /// Runs a job that is a program already, to its end.
    pub(crate) async fn run_program(&self, program: &ProgramCommand<'_>, job: &ScriptJob) -> ScriptEnd {
        match environment(job) {
            Ok(env) => self.run_in(program, env, job.workspace.dir(), job).await,
            Err(reason) => ScriptEnd::NotRun(reason),
        }
    }

    /// Runs a program as the job would run, with this environment and in this directory, to its end.
    pub(crate) async fn run_in(
        &self,
        program: &ProgramCommand<'_>,
        env: BTreeMap<String, String>,
        dir: &Path,
        job: &ScriptJob,
    ) -> ScriptEnd {
        match self.try_run(program, env, dir, job).await {
            Ok(end) => end,
            Err(ScriptNotStarted(reason)) => ScriptEnd::NotRun(reason),
        }
    }

    async fn try_run(
        &self,
        program: &ProgramCommand<'_>,
        env: BTreeMap<String, String>,
        dir: &Path,
        job: &ScriptJob,
    ) -> Result<ScriptEnd, ScriptNotStarted> {
        let failed = |what: &str, error: &io::Error| ScriptNotStarted(broken(what, error));
        let confinement = self.isolator.confinement(job, program.reads);
        let confinement = confinement.map_err(|error| failed("its bounds cannot be set", &error))?;
        let cgroups = confinement.cgroups.clone();
        let request = SandboxRequest {
            program: program.path.into(),
            args: texts(&program.args).map_err(|error| failed("an argument is no text", &error))?,
            env,
            dir: dir.to_owned(),
            confinement,
        };
        let (printed, [out, err]) = outputs(job).map_err(|error| failed("no pipe can be made", &error))?;
        let shown = program.path.display();
        let record = self.prepare_record(job, cgroups);
        let record = record.map_err(|error| failed("the process cannot be recorded", &error))?;
        let child = SandboxedJob::start(self.isolator.launcher(), &request, out.into(), err.into());
        let child = child.map_err(|error| failed(&format!("{shown} cannot be started"), &error))?;
        let record = match record.started(child.pid()) {
            Ok(record) => record,
            // The script may have begun, so this counts as a try.
            Err(error) => return Ok(ScriptEnd::Broken(broken("the process cannot be recorded", &error))),
        };
        let end = wait_for_exit(child, printed, job).await;
        drop(record);
        end
    }

    /// Prepares the record of a process that is about to be started, by which a later process ends it when this runner is gone.
    pub(crate) fn prepare_record(
        &self,
        job: &ScriptJob,
        cgroups: Vec<PathBuf>,
    ) -> io::Result<records::PendingSandboxRecord> {
        let dir = job.workspace.dir().to_owned();
        records::prepare(&self.running, &job.execution.job_key.to_string(), dir, cgroups)
    }
}

/// Runs a program once as scripts are run, and returns its output. Blocks; for probing runtimes.
///
/// # Errors
/// When it cannot be started, or does not exit with 0, in time.
pub(crate) fn try_program(tools: &RuntimeResources<'_>, program: &ProgramCommand<'_>) -> io::Result<String> {
    let scratch = TrialDirectory::new(tools)?;
    let dir = scratch.0.clone();
    let mut confinement =
        tools.isolator.base_confinement(&dir, tools.isolator.trial_owner(), program.reads, false);
    if let Some(rules) = &mut confinement.files {
        // Beside writing to its own directory, the program only has to print something.
        let granted = rules.write.split_off(1);
        rules.read.extend(granted);
    }
    let home = dir.display().to_string();
    let own = [("PATH", SCRIPT_PATH), ("HOME", home.as_str()), ("TMPDIR", home.as_str())];
    let env = BTreeMap::from(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let (path, args) = (program.path.to_owned(), texts(&program.args)?);
    let request = SandboxRequest { program: path.into(), args, env, dir, confinement };
    let (mut out, their_out) = io::pipe()?;
    let trying = async {
        let mut child =
            SandboxedJob::start(tools.isolator.launcher(), &request, their_out.into(), Stdio::null())?;
        let mut code = None;
        while let Some(event) = child.next().await? {
            match event {
                InitEvent::Exited { code: exited, .. } => code = Some(exited),
                InitEvent::Refused { layer, detail } => {
                    return Err(io::Error::other(format!("{layer}: {detail}")));
                }
                _ => {}
            }
        }
        Ok(code)
    };
    let trial =
        async { tokio::time::timeout(TRIAL_TIMEOUT, trying).await.map_err(|_| io::ErrorKind::TimedOut)? };
    let code = tokio::runtime::Handle::current().block_on(trial)?;
    let mut printed = String::new();
    out.by_ref().take(TRIAL_BYTES_MAX).read_to_string(&mut printed)?;
    match code {
        Some(0) => Ok(printed),
        Some(code) => Err(io::Error::other(format!("it exited with {code}"))),
        None => Err(io::Error::other("it was ended by a signal")),
    }
}

/// A directory of its own for a program that is tried: some programs fail if they cannot write to their home. Removed when dropped.
struct TrialDirectory(PathBuf);

impl TrialDirectory {
    fn new(tools: &RuntimeResources<'_>) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("trial-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = tools.root.join("runtimes").join(name);
        match tree::remove(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // A directory of an earlier process with this pid was removed, or there was none.
            _ => fs::DirBuilder::new().mode(0o700).create(&dir)?,
        }
        let scratch = Self(dir);
        if let Some(owner) = tools.isolator.trial_owner() {
            std::os::unix::fs::lchown(&scratch.0, Some(owner), Some(owner))?;
        }
        Ok(scratch)
    }
}

impl Drop for TrialDirectory {
    fn drop(&mut self) {
        if let Err(error) = tree::remove(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "the directory of a trial cannot be removed");
        }
    }
}

/// Time limit of a program that is tried, and the maximum of its output that is read.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(20);
const TRIAL_BYTES_MAX: u64 = 4096;

/// Returns the environment that every process of a job gets.
pub(crate) fn base_environment(job: &ScriptJob) -> BTreeMap<String, String> {
    let text = |path: &Path| path.display().to_string();
    BTreeMap::from([
        ("PATH".to_owned(), SCRIPT_PATH.to_owned()),
        ("HOME".to_owned(), text(job.workspace.dir())),
        ("TMPDIR".to_owned(), text(&job.workspace.temporary())),
    ])
}

/// Returns the complete environment of a script.
pub(crate) fn environment(job: &ScriptJob) -> Result<BTreeMap<String, String>, Reason> {
    let workspace = &job.workspace;
    let inputs = workspace.write_own("inputs.json", &job.inputs)?;
    let result = workspace.write_own("result", "")?;
    let key = job.execution.job_key;
    let text = |path: &Path| path.display().to_string();
    let mut env = base_environment(job);
    env.extend(job.env.clone());
    let own = [
        ("MYCORA_CONTEXT", job.execution.context_id.to_string()),
        ("MYCORA_FLOW", job.execution.flow_id.to_string()),
        ("MYCORA_JOB", key.job.to_string()),
        ("MYCORA_ATTEMPT", key.attempt.to_string()),
        ("MYCORA_RESULT", text(&result)),
        ("MYCORA_INPUTS", text(&inputs)),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value)));
    if let Some(parent) = &job.execution.traceparent {
        env.insert("TRACEPARENT".to_owned(), parent.clone());
    }
    Ok(env)
}

/// Converts arguments to text.
fn texts(args: &[OsString]) -> io::Result<Vec<String>> {
    let text = |arg: &OsString| arg.to_str().map(str::to_owned).ok_or(io::ErrorKind::InvalidInput);
    Ok(args.iter().map(text).collect::<Result<_, _>>()?)
}

/// Looks for a program in the directories that scripts find programs in, then in those of this process.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    find_programs(name).next()
}

/// Every program of this name, in that order.
pub(crate) fn find_programs(name: &str) -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> =
        std::env::split_paths(&own).chain(std::env::split_paths(SCRIPT_PATH)).collect();
    candidates.into_iter().map(move |dir| dir.join(name)).filter(|path| is_executable(path))
}

/// Returns whether this process may execute a file.
pub(crate) fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
