//! `python`: CPython 3, isolated, with the module `mycora`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;

use crate::process::{Interpreter, Launcher, find_program};
use crate::runtime::{End, Job, Runtime, Tools};

const BOOTSTRAP: &str = include_str!("python/bootstrap.py");
const MODULE: &str = include_str!("python/mycora.py");

struct Python {
    launcher: Launcher,
    interpreter: Interpreter,
}

/// A `python3` that is CPython 3.8 or later.
pub(crate) fn probe(tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    let found = find_program("python3")?;
    let program = match resolve(&found) {
        Ok(program) => program,
        Err(error) => {
            tracing::info!(python = %found.display(), %error, "python jobs are not offered");
            return None;
        }
    };
    let bootstrap = match install(tools.root) {
        Ok(bootstrap) => bootstrap,
        Err(error) => {
            tracing::warn!(%error, "python jobs are not offered: their module cannot be installed");
            return None;
        }
    };
    // -I: nothing from the environment, the user's directory or the working directory changes what is
    // imported. -u: what is printed is seen at once.
    let args = vec!["-I".into(), "-u".into(), bootstrap.into()];
    let interpreter = Interpreter { program, args, script_name: "script.py" };
    Some(Arc::new(Python { launcher: Launcher::new(tools), interpreter }))
}

/// The executable behind `found`, which may be a shim that costs more time at each start than the
/// interpreter itself.
fn resolve(found: &Path) -> io::Result<PathBuf> {
    let ask = "import sys; print(sys.executable if sys.version_info >= (3, 8) else '')";
    let output = Command::new(found).args(["-I", "-S", "-c", ask]).stdin(Stdio::null()).output()?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let program = PathBuf::from(answer.trim());
    if !output.status.success() || !program.is_absolute() {
        return Err(io::Error::other("it is no CPython 3.8 or later"));
    }
    program.canonicalize()
}

/// Writes what the interpreter needs of ours, and gives the path of the bootstrap.
fn install(root: &Path) -> io::Result<PathBuf> {
    let dir = root.join("runtimes").join(env!("CARGO_PKG_VERSION")).join("python");
    fs::create_dir_all(&dir)?;
    for (name, text) in [("bootstrap.py", BOOTSTRAP), ("mycora.py", MODULE)] {
        let path = dir.join(name);
        if fs::read_to_string(&path).ok().as_deref() != Some(text) {
            let unfinished = dir.join(format!("{name}.{}.part", std::process::id()));
            fs::write(&unfinished, text)?;
            fs::rename(&unfinished, &path)?;
        }
    }
    Ok(dir.join("bootstrap.py"))
}

#[async_trait]
impl Runtime for Python {
    async fn run(&self, job: Job) -> End {
        self.launcher.run(&self.interpreter, job).await
    }
}
