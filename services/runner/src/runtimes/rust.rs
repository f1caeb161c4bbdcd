//! `rust`: a script is compiled as it would run, its program kept for the next job with the same script.

mod cache;
mod edition;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use model::{BlobHash, Reason};

use self::cache::RustProgramCache;
use self::edition::RustEditions;
use queue::work_dir::context_dir;

use crate::process::{
    ProcessExecutor, ProgramCommand, base_environment, find_program, find_programs, try_program,
};
use crate::runtime::{RuntimeResources, ScriptEnd, ScriptJob, ScriptRuntime};
use crate::workspace::{broken, read_inside, runtime_error};

/// How scripts are compiled, beside their edition. Warnings are left out: a job whose program is there already would not have them.
const FLAGS: [&str; 7] = [
    "--crate-type=bin",
    "--crate-name=script",
    "--color=never",
    "-Awarnings",
    "-Copt-level=1",
    "-Ccodegen-units=1",
    "-Cstrip=symbols",
];
const SCRIPT: &str = ".mycora/script.rs";
const PROGRAM: &str = ".mycora/tmp/script.program";
const INPUTS: &str = ".mycora/tmp/script.inputs";
/// A list of what was compiled is not read beyond this.
const INPUTS_BYTES_MAX: usize = 64 * 1024;

struct RustRuntime {
    launcher: ProcessExecutor,
    compiler: PathBuf,
    /// Path that the compiler has to read: its libraries.
    reads: [PathBuf; 1],
    /// Version that the compiler reports.
    version: String,
    editions: RustEditions,
    root: PathBuf,
}

/// A `rustc` that works where scripts run, and a linker.
pub(crate) fn probe(tools: &RuntimeResources<'_>) -> Option<Arc<dyn ScriptRuntime>> {
    if find_program("cc").is_none() {
        tracing::info!("rust jobs are not offered: there is no linker (cc)");
        return None;
    }
    for found in find_programs("rustc") {
        let Some(sysroot) = sysroot(&found, tools.root) else {
            tracing::debug!(rustc = %found.display(), "it does not work");
            continue;
        };
        let (compiler, reads) = (sysroot.join("bin/rustc"), [sysroot]);
        match try_program(tools, &ProgramCommand { path: &compiler, args: vec!["-vV".into()], reads: &reads })
        {
            Ok(version) => {
                let name = version.lines().next().unwrap_or_default();
                let Some(editions) = RustEditions::of(tools, &compiler, &reads) else {
                    tracing::info!(rustc = %compiler.display(), version = name, "it knows no edition");
                    continue;
                };
                let edition = editions.newest();
                tracing::info!(rustc = %compiler.display(), version = name, edition, "rust jobs are offered");
                let root = tools.root.to_owned();
                return Some(Arc::new(RustRuntime {
                    launcher: ProcessExecutor::new(tools),
                    compiler,
                    reads,
                    version,
                    editions,
                    root,
                }));
            }
            // One that others may not start is no news: most machines have one, in the directory of its owner.
            Err(error) => {
                tracing::debug!(rustc = %compiler.display(), %error, "it does not work for scripts")
            }
        }
    }
    None
}

/// Where a compiler has its parts. What is found first may only choose one.
fn sysroot(found: &Path, dir: &Path) -> Option<PathBuf> {
    let mut ask = Command::new(found);
    // Libraries of another compiler would name its place; scripts do not get that variable either.
    ask.env_remove("LD_LIBRARY_PATH");
    ask.args(["--print", "sysroot"]).current_dir(dir).stdin(Stdio::null()).stderr(Stdio::null());
    let output = ask.output().ok().filter(|output| output.status.success())?;
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).canonicalize().ok()
}

/// Outcome of compiling a script.
enum RustCompileOutcome {
    /// The program to run.
    Program(PathBuf),
    /// Nothing: the job is over.
    Ended(ScriptEnd),
}

#[async_trait]
impl ScriptRuntime for RustRuntime {
    async fn run(&self, mut job: ScriptJob) -> ScriptEnd {
        let begin = Instant::now();
        let compiled = match self.compiled(&job).await {
            Ok(RustCompileOutcome::Program(program)) => program,
            Ok(RustCompileOutcome::Ended(end)) => return end,
            // The compiler did, at most.
            Err(reason) => return ScriptEnd::NotRun(reason),
        };
        // Compiling is part of the job.
        job.time_limit = job.time_limit.map(|limit| limit.saturating_sub(begin.elapsed()));
        let reads = [compiled];
        self.launcher
            .run_program(&ProgramCommand { path: &reads[0], args: Vec::new(), reads: &reads }, &job)
            .await
    }
}

impl RustRuntime {
    async fn compiled(&self, job: &ScriptJob) -> Result<RustCompileOutcome, Reason> {
        let cache = RustProgramCache::of(&context_dir(&self.root, job.execution.job_key.context));
        let name = self.version.lines().next().unwrap_or_default();
        let edition = self.editions.of_script(&job.script, name).map_err(|why| runtime_error(&why))?;
        let key = self.key(&job.script, &edition);
        let to_find = cache.clone();
        if let Some(program) = blocking(move || Ok(to_find.find(key))).await? {
            return Ok(RustCompileOutcome::Program(program));
        }
        job.workspace.write_own("script.rs", &job.script)?;
        match self.compile(job, &edition).await {
            ScriptEnd::Exited { code: 0, .. } => {}
            ScriptEnd::Exited { code, .. } => {
                let compiler = format!("{name}, edition {edition}");
                return Ok(RustCompileOutcome::Ended(ScriptEnd::NotCompiled { code, compiler }));
            }
            other => return Ok(RustCompileOutcome::Ended(other)),
        }
        let dir = job.workspace.dir().to_owned();
        if !is_whole(&dir, &job.script) {
            return Ok(RustCompileOutcome::Program(dir.join(PROGRAM)));
        }
        let attempt = job.execution.job_key.to_string();
        let kept = blocking(move || {
            cache
                .keep(key, &dir, PROGRAM, &attempt)
                .map_err(|error| broken("the compiled script cannot be kept", &error))
        });
        kept.await.map(RustCompileOutcome::Program)
    }

    async fn compile(&self, job: &ScriptJob, edition: &str) -> ScriptEnd {
        let (emit, edition) = (format!("--emit=link={PROGRAM},dep-info={INPUTS}"), edition::flag(edition));
        let own = [edition.as_str(), emit.as_str(), SCRIPT];
        let args = FLAGS.iter().copied().chain(own).map(OsString::from).collect();
        let program = ProgramCommand { path: &self.compiler, args, reads: &self.reads };
        // Without the job's own variables: the program is one for all jobs.
        self.launcher.run_in(&program, base_environment(job), job.workspace.dir(), job).await
    }

    /// Returns the key of a program in the cache: a hash of everything that it is made of.
    fn key(&self, script: &str, edition: &str) -> BlobHash {
        BlobHash::of([&self.version, edition, FLAGS.join(" ").as_str(), script].join("\0").as_bytes())
    }
}

/// Returns true if the program was made of the script alone. A script that includes other files or the environment, or
/// that addresses the assembler or the linker (which include files that are in no list), is
/// compiled each time.
fn is_whole(dir: &Path, script: &str) -> bool {
    let mut words = script.split(|part: char| !part.is_alphanumeric() && part != '_');
    if words.any(|word| word == "link" || word.contains("asm")) {
        return false;
    }
    let Ok(list) = read_inside(dir, INPUTS, INPUTS_BYTES_MAX) else { return false };
    let list = String::from_utf8_lossy(&list);
    let from = |line: &str| line.split_once(": ").map(|(_, from)| from.to_owned());
    list.lines().filter_map(from).all(|from| from == SCRIPT) && !list.contains("# env-dep:")
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Reason> + Send + 'static,
) -> Result<T, Reason> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(runtime_error(&format!("the runner failed: {error}"))))
}
