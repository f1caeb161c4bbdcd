//! One attempt, from taken to finished.

mod failure_hints;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backoff::ExponentialBackoff;
use flow::template;
use model::execution::{AttemptEnd, Grants, Outcome};
use model::flow::ResultMap;
use model::job::BlobRef;
use model::{Execution, JobKey, Reason, ReasonCode, ScriptSource, Timestamp};
use queue::work_dir::log_path;
use queue::{ClaimedJob, InstanceSession, JobEndReport, JobRecordOutcome};
use sandbox::CgroupSlot;

use crate::disk_quota::JobDiskQuota;
use crate::inputs;
use crate::interrupt::{Interrupt, InterruptCause};
use crate::isolation::Isolator;
use crate::output::{self, ScriptOutputSender, ScriptOutputSummary};
use crate::process_wait::KilledProcesses;
use crate::run_span::RunSpan;
use crate::runtime::{ScriptEnd, ScriptJob, ScriptRuntime};
use crate::workspace::{Workspace, runtime_error};

/// Pauses between tries to record an end, the first and the longest.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::between(Duration::from_millis(100), Duration::from_secs(1));

/// Context that an attempt is run in.
pub(crate) struct AttemptContext<'a> {
    /// The work directory, canonical.
    pub(crate) root: &'a Path,
    /// How jobs are kept apart.
    pub(crate) isolator: &'a Isolator,
    /// Cgroup that bounds the job's processes and memory together.
    pub(crate) slot: Option<Arc<CgroupSlot>>,
    /// Session of the instance that runs the job.
    pub(crate) instance: &'a InstanceSession,
    /// Runtime that executes the script.
    pub(crate) runtime: &'a dyn ScriptRuntime,
    /// Returns true if another job may follow in the slot.
    pub(crate) goes_on: &'a (dyn Fn() -> bool + Sync),
}

/// Runs a job to its end and records the end. Returns when the end is recorded or no longer wanted; with the job that
/// follows in its slot, if one was taken in the same call.
pub(crate) async fn run(
    context: AttemptContext<'_>,
    taken: ClaimedJob,
    interrupt: Arc<Interrupt>,
) -> Option<ClaimedJob> {
    let key = taken.execution.job_key;
    let mut execution = taken.execution;
    let span = RunSpan::begin(&mut execution);
    let execution = Arc::new(execution);
    let (printer, pieces) = output::output_channel(false);
    let log = output::AttemptLogFile::new(log_path(context.root, key));
    let gathering = pieces.gather(context.instance.clone(), key, log, Arc::clone(&interrupt));
    let killed = KilledProcesses::default();
    let orders = AttemptChannels { interrupt: Arc::clone(&interrupt), printer, killed: killed.clone() };
    let running = execute(&context, Arc::clone(&execution), taken.grants, orders);
    let (done, printed) = tokio::join!(running, gathering);
    let who = context.instance.who().to_string();
    let has_none = !execution.network && context.isolator.isolation_support().syscalls;
    let lacked_network = has_none && failure_hints::lacks_network(&printed.tail);
    let mut ending = ending(done, printed, &interrupt, &execution, who, taken.started_at);
    if lacked_network {
        failure_hints::add_network_hint(&mut ending.end);
    }
    ending.end.ended = killed.take();
    span.ended(&ending.end);
    drop(span);
    record(context.instance, &ending, &interrupt, context.goes_on).await
}

/// Outcome of a script, with the results and outputs it made.
enum ScriptOutcome {
    Succeeded { result: ResultMap, outputs: std::collections::BTreeMap<String, BlobRef> },
    Failed { exit_code: Option<i32>, reason: Reason },
    NotRun(Reason),
    TimedOut,
    Interrupted,
}

/// Channels to and from an attempt while it runs.
struct AttemptChannels {
    interrupt: Arc<Interrupt>,
    printer: ScriptOutputSender,
    killed: KilledProcesses,
}

async fn execute(
    context: &AttemptContext<'_>,
    execution: Arc<Execution>,
    grants: Grants,
    orders: AttemptChannels,
) -> ScriptOutcome {
    let failed = |reason| ScriptOutcome::Failed { exit_code: None, reason };
    let root = context.root.to_owned();
    let to_prepare = Arc::clone(&execution);
    let share = context.isolator.disk_quotas().share(execution.job_key, grants.context_disk_bytes);
    let owner = match context.isolator.check(&execution, &grants) {
        Ok(()) => context.isolator.owner(execution.job_key.context),
        Err(reason) => return failed(reason),
    };
    let owner = match owner {
        Ok(owner) => owner,
        Err(error) => {
            let detail = format!("no user can be assigned to its context: {error}");
            return failed(Reason::new(ReasonCode::IsolationUnavailable, detail));
        }
    };
    let needs_directory = context.runtime.needs_directory() || !execution.files.is_empty();
    let prepared = if needs_directory || !is_small(&execution) {
        blocking(move || prepare(&root, &to_prepare, owner, share, needs_directory)).await
    } else {
        prepare(&root, &to_prepare, owner, share, needs_directory)
    };
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(reason) => return ScriptOutcome::NotRun(reason),
    };
    let workspace = Arc::new(prepared.workspace);
    let job = ScriptJob {
        execution: Arc::clone(&execution),
        script: prepared.script,
        env: prepared.env,
        inputs: prepared.inputs,
        workspace: Arc::clone(&workspace),
        time_limit: (execution.timeout_secs > 0).then(|| Duration::from_secs(execution.timeout_secs.into())),
        interrupt: orders.interrupt,
        printer: orders.printer,
        grants,
        slot: context.slot.clone(),
        killed: orders.killed,
    };
    match context.runtime.run(job).await {
        ScriptEnd::TimedOut => ScriptOutcome::TimedOut,
        ScriptEnd::Interrupted => ScriptOutcome::Interrupted,
        ScriptEnd::Broken(reason) => failed(reason),
        ScriptEnd::NotRun(reason) => ScriptOutcome::NotRun(reason),
        ScriptEnd::Signalled(signal) => {
            failed(Reason::new(ReasonCode::ExitCode, format!("the script was ended by signal {signal}")))
        }
        ScriptEnd::NotCompiled { code, compiler } => {
            let detail = format!("the script did not compile: {compiler} exited with {code}, see the log");
            ScriptOutcome::Failed { exit_code: Some(code), reason: Reason::new(ReasonCode::ExitCode, detail) }
        }
        ScriptEnd::Exited { code: code @ (..0 | 1..), .. } => ScriptOutcome::Failed {
            exit_code: Some(code),
            reason: Reason::new(ReasonCode::ExitCode, format!("the script exited with {code}")),
        },
        ScriptEnd::Exited { code: 0, result } => {
            let result = match result {
                Ok(result) => result,
                Err(reason) => return left_wrong(reason),
            };
            if execution.outputs.is_empty() {
                if workspace.is_made() {
                    // The end does not wait for the removal of the directory.
                    tokio::task::spawn_blocking(move || drop(workspace));
                }
                return ScriptOutcome::Succeeded { result, outputs: std::collections::BTreeMap::new() };
            }
            match blocking(move || workspace.collect(&execution.outputs)).await {
                Ok(outputs) => ScriptOutcome::Succeeded { result, outputs },
                Err(reason) => left_wrong(reason),
            }
        }
    }
}

/// Returns the failure of a script that exited with 0, but left invalid results or outputs.
fn left_wrong(mut reason: Reason) -> ScriptOutcome {
    reason.detail.insert_str(0, "the script ended well, but ");
    ScriptOutcome::Failed { exit_code: Some(0), reason }
}

struct PreparedAttempt {
    workspace: Workspace,
    script: String,
    env: model::flow::EnvVars,
    inputs: String,
}

/// Returns true for an attempt whose script and inputs are inline and quick to prepare.
fn is_small(execution: &Execution) -> bool {
    const INPUTS_BYTES: usize = 16 * 1024;
    let inputs = execution.inputs.values().flatten();
    matches!(execution.script, ScriptSource::Inline(_))
        && inputs.map(|(key, value)| key.len() + value.len()).sum::<usize>() <= INPUTS_BYTES
}

fn prepare(
    root: &Path,
    execution: &Execution,
    owner: Option<u32>,
    share: JobDiskQuota,
    needs_directory: bool,
) -> Result<PreparedAttempt, Reason> {
    let env = template::render(execution).map_err(|error| error.reason())?;
    let inputs = inputs::to_json(&execution.inputs)?;
    let workspace = Workspace::new(root, execution.job_key, owner, share);
    if needs_directory {
        workspace.make()?;
    }
    let script = workspace.script(execution)?;
    workspace.lay_files(execution)?;
    Ok(PreparedAttempt { workspace, script, env, inputs })
}

/// Runs file work on a blocking thread, where it does not hold up other jobs.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Reason> + Send + 'static,
) -> Result<T, Reason> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(runtime_error(&format!("the runner failed: {error}"))))
}

fn ending(
    done: ScriptOutcome,
    printed: ScriptOutputSummary,
    interrupt: &Interrupt,
    execution: &Execution,
    who: String,
    started_at: Timestamp,
) -> JobEndReport {
    let mut end = AttemptEnd {
        outcome: Outcome::Failed,
        exit_code: None,
        reason: None,
        result: ResultMap::new(),
        outputs: std::collections::BTreeMap::new(),
        output_bytes: printed.bytes,
        ended: Vec::new(),
        instance: Some(who),
        start_time: Some(started_at),
        // The two times may come from clocks of two machines; a job must not end before it began.
        end_time: Timestamp::now().max(started_at),
    };
    match done {
        ScriptOutcome::Succeeded { result, outputs } => {
            end.outcome = Outcome::Succeeded;
            end.exit_code = Some(0);
            end.result = result;
            end.outputs = outputs;
        }
        ScriptOutcome::Failed { exit_code, reason } => {
            end.exit_code = exit_code;
            end.reason = Some(reason);
        }
        ScriptOutcome::NotRun(reason) => {
            if reason.code == ReasonCode::DiskFull {
                // Without a start time the coordinator does not count the attempt as a try.
                end.start_time = None;
            }
            end.reason = Some(reason);
        }
        ScriptOutcome::TimedOut => {
            let detail = format!("the script ran longer than {} s and was killed", execution.timeout_secs);
            end.outcome = Outcome::TimedOut;
            end.reason = Some(Reason::new(ReasonCode::Timeout, detail));
        }
        ScriptOutcome::Interrupted => match interrupt.cause() {
            Some(InterruptCause::Drained) => {
                end.outcome = Outcome::Lost;
                end.reason = Some(Reason::new(ReasonCode::Drained, "the runner ended before the script did"));
            }
            Some(InterruptCause::Closed) => {
                // Matters only if the store has rolled back since, and counts the attempt as running again.
                let detail = "the store of its supervisor rolled back while it ran, and it was ended";
                end.outcome = Outcome::Lost;
                end.reason = Some(Reason::new(ReasonCode::SupervisorLost, detail));
            }
            _ => end.outcome = Outcome::Stopped,
        },
    }
    JobEndReport { job_key: execution.job_key, end, last_log: printed.last_log, output_tail: printed.tail }
}

/// Ends an attempt that has run here before, without running it again: its supervisor's store has lost its end.
pub(crate) async fn lose(instance: &InstanceSession, job_key: JobKey, started_at: Timestamp) {
    let detail =
        "the store of its supervisor rolled back: this attempt had run before, and how it ended is lost";
    let end = AttemptEnd {
        instance: Some(instance.who().to_string()),
        start_time: Some(started_at),
        ..AttemptEnd::unstarted(
            Outcome::Lost,
            Some(Reason::new(ReasonCode::SupervisorLost, detail)),
            Timestamp::now().max(started_at),
        )
    };
    let ending = JobEndReport { job_key, end, last_log: None, output_tail: String::new() };
    record(instance, &ending, &Interrupt::default(), &|| false).await;
}

/// Records the end, however long that takes: only then may the runner forget the job. The first try also takes the next job, if
/// the slot `goes_on`.
async fn record(
    instance: &InstanceSession,
    ending: &JobEndReport,
    interrupt: &Interrupt,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Option<ClaimedJob> {
    let key = ending.job_key;
    let mut backoff = RETRY;
    let mut takes = instance.wants_next() && goes_on();
    loop {
        let finished = match std::mem::take(&mut takes) {
            true => instance.finish_and_take(ending).await,
            false => instance.finish(ending).await.map(|outcome| (outcome, None)),
        };
        match finished {
            Ok((JobRecordOutcome::Recorded, next)) => {
                tracing::debug!(%key, outcome = ?ending.end.outcome, "finished");
                return next;
            }
            Ok((JobRecordOutcome::Closed(status), next)) => {
                tracing::info!(%key, ?status, "the end came too late: the attempt was ended elsewhere");
                return next;
            }
            Err(error) => {
                if interrupt.cause() != Some(InterruptCause::Closed) {
                    tracing::warn!(%key, %error, "an end cannot be recorded yet; retrying");
                }
                backoff.pause().await;
            }
        }
    }
}
