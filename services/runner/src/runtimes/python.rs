//! `python`: CPython 3, isolated, with the module `mycora`; warm where that works, else started anew.

mod warm;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;

use self::warm::WarmPython;
use crate::SCRIPT_PATH;
use crate::process::{ProcessExecutor, ProgramCommand, environment, try_program};
use crate::runtime::{RuntimeResources, ScriptEnd, ScriptJob, ScriptRuntime};

const BOOTSTRAP: &str = include_str!("python/bootstrap.py");
const ZYGOTE: &str = include_str!("python/zygote.py");
const MODULE: &str = include_str!("python/mycora.py");

/// How every interpreter is started.
/// `-I`: nothing from the environment, the user's directory or the working directory changes what is imported.
/// `-u`: what is printed is seen at once. `-B`: nothing is written beside what is imported. `-X utf8`: text is
/// UTF-8, whatever the locale.
const OPTIONS: [&str; 5] = ["-I", "-u", "-B", "-X", "utf8"];

struct PythonRuntime {
    launcher: ProcessExecutor,
    found: PythonInstallation,
    bootstrap: PathBuf,
    /// Paths that scripts have to read, in addition to those that every script may.
    reads: Vec<PathBuf>,
    /// Absent where interpreters are not kept.
    warm: Option<WarmPython>,
}

/// An interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PythonInstallation {
    /// The real executable.
    program: PathBuf,
    /// Where its library is.
    prefixes: Vec<PathBuf>,
}

/// The first `python3` that is CPython 3.8 or later and works where scripts run.
pub(crate) fn probe(tools: &RuntimeResources<'_>) -> Option<Arc<dyn ScriptRuntime>> {
    let dir = match install(tools.root) {
        Ok(dir) => dir,
        Err(error) => {
            tracing::warn!(%error, "python jobs are not offered: their module cannot be installed");
            return None;
        }
    };
    let found = candidates().into_iter().find_map(|candidate| {
        let tried = resolve(&candidate).and_then(|found| works(tools, &found, &dir).map(|()| found));
        tried.inspect_err(|error| tracing::debug!(python = %candidate.display(), %error, "passed over")).ok()
    });
    let Some(found) = found else {
        tracing::info!("python jobs are not offered: no CPython 3.8 or later works in here");
        return None;
    };
    let mut reads = found.prefixes.clone();
    reads.push(dir.clone());
    let mut args: Vec<String> = OPTIONS.map(str::to_owned).to_vec();
    args.push(dir.join("zygote.py").display().to_string());
    let warm = tools.warm.then(|| WarmPython::new(tools, &found.program, args, &reads));
    let (launcher, bootstrap) = (ProcessExecutor::new(tools), dir.join("bootstrap.py"));
    Some(Arc::new(PythonRuntime { launcher, found, bootstrap, reads, warm }))
}

/// Every `python3` of the search path, in its order.
fn candidates() -> Vec<PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let script = OsString::from(SCRIPT_PATH);
    let mut candidates: Vec<PathBuf> = Vec::new();
    for dir in std::env::split_paths(&own).chain(std::env::split_paths(&script)) {
        let candidate = dir.join("python3");
        if candidate.is_file() && !candidates.contains(&candidate) {
            candidates.push(candidate);
        }
    }
    candidates
}

/// The interpreter behind `found`, which may be a shim that costs more time at each start than the interpreter
/// itself.
fn resolve(found: &Path) -> io::Result<PythonInstallation> {
    let ask = "import platform, sys\n\
               if platform.python_implementation() == 'CPython' and sys.version_info >= (3, 8):\n    \
               print(sys.executable, sys.prefix, sys.base_prefix, sys.base_exec_prefix, sep='\\n')";
    let output = Command::new(found).args(["-I", "-S", "-c", ask]).stdin(Stdio::null()).output()?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let mut lines = answer.lines().map(PathBuf::from);
    let program = lines.next().filter(|program| output.status.success() && program.is_absolute());
    let program = program.ok_or_else(|| io::Error::other("it is no CPython 3.8 or later"))?;
    let program = program.canonicalize()?;
    // Not the whole machine, should one be installed that way.
    let mut prefixes: Vec<PathBuf> = lines.filter(|prefix| prefix.parent().is_some()).collect();
    prefixes.dedup();
    Ok(PythonInstallation { program, prefixes })
}

/// Runs an interpreter once where scripts run.
fn works(tools: &RuntimeResources<'_>, found: &PythonInstallation, dir: &Path) -> io::Result<()> {
    let mut args: Vec<OsString> = OPTIONS.map(OsString::from).to_vec();
    args.extend(["-c".into(), "import json, os, runpy; print('works')".into()]);
    let mut reads = found.prefixes.clone();
    reads.push(dir.to_owned());
    let printed = try_program(tools, &ProgramCommand { path: &found.program, args, reads: &reads })?;
    match printed.trim() {
        "works" => Ok(()),
        other => Err(io::Error::other(format!("it says {other:?}"))),
    }
}

/// Writes what interpreters need of ours, and gives the directory. Who runs scripts may read it.
fn install(root: &Path) -> io::Result<PathBuf> {
    let version = root.join("runtimes").join(env!("CARGO_PKG_VERSION"));
    let dir = version.join("python");
    // Alone in its directory: that is where scripts import from.
    let library = dir.join("lib");
    fs::create_dir_all(&library)?;
    for made in [&version, &dir, &library] {
        fs::set_permissions(made, fs::Permissions::from_mode(0o755))?;
    }
    for (dir, name, text) in
        [(&dir, "bootstrap.py", BOOTSTRAP), (&dir, "zygote.py", ZYGOTE), (&library, "mycora.py", MODULE)]
    {
        let path = dir.join(name);
        if fs::read_to_string(&path).ok().as_deref() != Some(text) {
            let unfinished = dir.join(format!("{name}.{}.part", std::process::id()));
            fs::write(&unfinished, text)?;
            fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o644))?;
            fs::rename(&unfinished, &path)?;
        }
    }
    Ok(dir)
}

#[async_trait]
impl ScriptRuntime for PythonRuntime {
    async fn run(&self, job: ScriptJob) -> ScriptEnd {
        let script = job.workspace.write_own("script.py", &job.script);
        let (script, env) = match script.and_then(|script| Ok((script, environment(&job)?))) {
            Ok(prepared) => prepared,
            Err(reason) => return ScriptEnd::NotRun(reason),
        };
        if let Some(warm) = &self.warm
            && let Some(end) = warm.run(&script, &env, &job).await
        {
            return end;
        }
        let mut args: Vec<OsString> = OPTIONS.map(OsString::from).to_vec();
        args.extend([self.bootstrap.clone().into(), script.into()]);
        let program = ProgramCommand { path: &self.found.program, args, reads: &self.reads };
        self.launcher.run_in(&program, env, job.workspace.dir(), &job).await
    }
}
