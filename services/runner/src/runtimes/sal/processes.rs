//! Programs that a script runs: started and confined like scripts, ended with the job.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rhai::{Array, Dynamic, INT, Map};
use tokio::runtime::Handle;

use crate::SCRIPT_PATH;
use crate::output::{self, ScriptStream};
use crate::process::{ProcessExecutor, ProgramCommand, base_environment};
use crate::runtime::{ScriptEnd, ScriptJob};
use crate::runtimes::rhai::{ScriptFiles, ScriptFunctionResult, ScriptLimits};

/// The most of each of its outputs that a program gives back.
const OUTPUT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How many arguments a program gets, and how many bytes they have together.
const ARGUMENTS_MAX: (usize, usize) = (4096, 128 * 1024);
/// Steps that running a program counts as.
const STEPS: u64 = 10_000;
/// Where what a program reads is laid for it.
const STDIN: &str = ".mycora/stdin";

/// Runner of a job's programs.
pub(super) struct ProgramRunner {
    launcher: ProcessExecutor,
    runtime: Handle,
    job: Arc<ScriptJob>,
    limits: ScriptLimits,
    files: ScriptFiles,
}

/// Program run that a script asks for.
struct ProgramRunRequest {
    program: PathBuf,
    args: Vec<OsString>,
    env: BTreeMap<String, String>,
    dir: PathBuf,
    timeout: Option<Duration>,
}

/// Result of a program run.
struct ProgramRunResult {
    end: ScriptEnd,
    out: Vec<u8>,
    err: Vec<u8>,
    is_cut: bool,
}

impl ProgramRunner {
    pub(super) fn new(
        launcher: &ProcessExecutor,
        runtime: &Handle,
        job: &Arc<ScriptJob>,
        limits: &ScriptLimits,
        files: &ScriptFiles,
    ) -> Self {
        Self {
            launcher: launcher.clone(),
            runtime: runtime.clone(),
            job: Arc::clone(job),
            limits: limits.clone(),
            files: files.clone(),
        }
    }

    /// `run(program, args, options)`.
    pub(super) fn run(&self, program: &str, args: &Array, options: &Map) -> ScriptFunctionResult<Map> {
        self.limits.spend(STEPS)?;
        let ask = self.read(program, args, options).map_err(|why| format!("run({program:?}): {why}"))?;
        let timeout = ask.timeout;
        let ran = self.runtime.block_on(self.execute(ask));
        self.limits.look()?;
        let code = match &ran.end {
            ScriptEnd::Exited { code, .. } => *code,
            // As shells say it.
            ScriptEnd::Signalled(signal) => 128 + signal,
            ScriptEnd::TimedOut => {
                let secs = timeout.unwrap_or_default().as_secs_f64();
                return Err(format!("run({program:?}): it ran longer than {secs} s").into());
            }
            ScriptEnd::Broken(reason) | ScriptEnd::NotRun(reason) => {
                return Err(format!("run({program:?}): {reason}").into());
            }
            ScriptEnd::NotCompiled { .. } | ScriptEnd::Interrupted => {
                return Err(format!("run({program:?}): ended").into());
            }
        };
        Ok(Map::from([
            ("code".into(), Dynamic::from(INT::from(code))),
            ("out".into(), String::from_utf8_lossy(&ran.out).into_owned().into()),
            ("err".into(), String::from_utf8_lossy(&ran.err).into_owned().into()),
            ("cut".into(), ran.is_cut.into()),
        ]))
    }

    async fn execute(&self, ask: ProgramRunRequest) -> ProgramRunResult {
        let (printer, mut pieces) = output::output_channel(true);
        let job = &self.job;
        let left = self.limits.deadline().map(|end| end.saturating_duration_since(Instant::now()));
        let part = ScriptJob {
            execution: Arc::clone(&job.execution),
            script: String::new(),
            env: BTreeMap::new(),
            inputs: String::new(),
            workspace: Arc::clone(&job.workspace),
            time_limit: [left, ask.timeout].into_iter().flatten().min(),
            interrupt: Arc::clone(&job.interrupt),
            printer,
            grants: job.grants.clone(),
            slot: job.slot.clone(),
            killed: job.killed.clone(),
        };
        let running = async {
            let program = ProgramCommand { path: &ask.program, args: ask.args, reads: &[] };
            let end = self.launcher.run_in(&program, ask.env, &ask.dir, &part).await;
            // Nobody prints any more.
            drop(part);
            end
        };
        let gathering = async {
            let (mut out, mut err, mut is_cut) = (Vec::new(), Vec::new(), false);
            while let Some((stream, piece)) = pieces.next().await {
                let gathered = if stream == ScriptStream::Out { &mut out } else { &mut err };
                let room = OUTPUT_BYTES_MAX - gathered.len();
                is_cut |= piece.len() > room;
                gathered.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            (out, err, is_cut)
        };
        let (end, (out, err, is_cut)) = tokio::join!(running, gathering);
        ProgramRunResult { end, out, err, is_cut }
    }

    fn read(&self, program: &str, args: &Array, options: &Map) -> Result<ProgramRunRequest, String> {
        const KEYS: [&str; 4] = ["stdin", "env", "timeout", "cwd"];
        if let Some(unknown) = options.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(format!("`{unknown}` is none of {}", KEYS.join(", ")));
        }
        let mut env = self.environment();
        if let Some(more) = options.get("env") {
            let more = more.as_map_ref().map_err(|kind| format!("`env` is {kind}, not a map"))?;
            for (name, value) in more.iter() {
                if name.is_empty() || name.contains(['=', '\0']) {
                    return Err(format!("{name:?} is no name of a variable"));
                }
                env.insert(name.to_string(), argument(value)?);
            }
        }
        self.job.workspace.make().map_err(|reason| reason.to_string())?;
        let dir = match text_option(options, "cwd")? {
            None => self.job.workspace.dir().to_owned(),
            Some(dir) => self.files.place(&dir).map_err(|why| format!("cwd {dir:?}: {why}"))?,
        };
        let mut ask = ProgramRunRequest {
            program: find(program, &env, &dir).ok_or("there is no such program")?,
            args: arguments(args)?,
            env,
            dir,
            timeout: seconds(options)?,
        };
        if let Some(stdin) = text_option(options, "stdin")? {
            self.files.write(STDIN, stdin.as_bytes()).map_err(|why| format!("stdin: {why}"))?;
            feed(&mut ask, self.job.workspace.dir().join(STDIN));
        }
        Ok(ask)
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let execution = &self.job.execution;
        let mut env = base_environment(&self.job);
        env.extend(self.job.env.clone());
        let own = [
            ("MYCORA_CONTEXT", execution.context_id.to_string()),
            ("MYCORA_FLOW", execution.flow_id.to_string()),
            ("MYCORA_JOB", execution.job_key.job.to_string()),
            ("MYCORA_ATTEMPT", execution.job_key.attempt.to_string()),
        ];
        env.extend(own.map(|(name, value)| (name.to_owned(), value)));
        if let Some(parent) = &execution.traceparent {
            env.insert("TRACEPARENT".to_owned(), parent.clone());
        }
        env
    }
}

/// Scripts begin with nothing to read; a shell opens the file for the program and becomes it.
fn feed(ask: &mut ProgramRunRequest, file: PathBuf) {
    let opens = "file=$1; shift; exec \"$@\" < \"$file\"";
    let mut args: Vec<OsString> = vec!["-c".into(), opens.into(), "sh".into(), file.into()];
    args.push(std::mem::replace(&mut ask.program, "/bin/sh".into()).into());
    args.append(&mut ask.args);
    ask.args = args;
}

/// A program by its path, which begins where it is started, or by its name.
fn find(program: &str, env: &BTreeMap<String, String>, dir: &std::path::Path) -> Option<PathBuf> {
    if program.is_empty() || program.contains('\0') {
        return None;
    }
    if program.contains('/') {
        return Some(dir.join(program));
    }
    let path = env.get("PATH").map_or(SCRIPT_PATH, String::as_str);
    std::env::split_paths(path).map(|place| place.join(program)).find(|path| path.is_file())
}

fn arguments(args: &Array) -> Result<Vec<OsString>, String> {
    let (count_max, bytes_max) = ARGUMENTS_MAX;
    if args.len() > count_max {
        return Err(format!("{} arguments, the limit is {count_max}", args.len()));
    }
    let args = args.iter().map(|arg| argument(arg).map(OsString::from)).collect::<Result<Vec<_>, _>>()?;
    let bytes: usize = args.iter().map(|arg| arg.len()).sum();
    if bytes > bytes_max {
        Err(format!("the arguments have {bytes} bytes, the limit is {bytes_max}"))
    } else {
        Ok(args)
    }
}

/// A text as it is; numbers and truths as they are written.
fn argument(value: &Dynamic) -> Result<String, String> {
    let is_plain =
        value.is_string() || value.is_int() || value.is_float() || value.is_bool() || value.is_char();
    if !is_plain {
        return Err(format!("an argument is {}, not a text", value.type_name()));
    }
    let text = value.to_string();
    if text.contains('\0') { Err("an argument contains a zero byte".to_owned()) } else { Ok(text) }
}

fn text_option(options: &Map, key: &str) -> Result<Option<String>, String> {
    let text = |value: &Dynamic| value.clone().into_string();
    options.get(key).map(text).transpose().map_err(|kind| format!("`{key}` is {kind}, not a text"))
}

fn seconds(options: &Map) -> Result<Option<Duration>, String> {
    let Some(value) = options.get("timeout") else { return Ok(None) };
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let secs = value.as_float().or_else(|_| value.as_int().map(|secs| secs as f64));
    let secs = secs.map_err(|kind| format!("`timeout` is {kind}, not a number of seconds"))?;
    Duration::try_from_secs_f64(secs).map(Some).map_err(|error| format!("`timeout`: {error}"))
}
