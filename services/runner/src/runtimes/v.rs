//! `v`: the `v` compiler, which compiles a script and runs it.

use std::sync::Arc;

use async_trait::async_trait;

use crate::process::{Interpreter, Launcher, Program, find_programs, try_program};
use crate::runtime::{End, Job, Runtime, Tools};

/// The version of the compiler that jobs were tried with.
const TRIED: &str = "0.2.4";

struct V {
    launcher: Launcher,
    interpreter: Interpreter,
}

/// A `v` that works where scripts run. It finds its library beside itself, so that has to be readable too.
pub(crate) fn probe(tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    for found in find_programs("v") {
        let Ok(program) = found.canonicalize() else { continue };
        let reads: Vec<_> = program.parent().map(ToOwned::to_owned).into_iter().collect();
        match try_program(tools, &Program { path: &program, args: vec!["version".into()], reads: &reads }) {
            Ok(version) if version.starts_with("V ") => {
                tracing::info!(v = %program.display(), version = version.trim(), tried = TRIED, "v jobs are offered");
                let interpreter =
                    Interpreter { program, args: vec!["run".into()], script_name: "script.v", reads };
                return Some(Arc::new(V { launcher: Launcher::new(tools), interpreter }));
            }
            Ok(_) => tracing::info!(v = %program.display(), "it is not the v compiler"),
            Err(error) => tracing::info!(v = %program.display(), %error, "it does not work for scripts"),
        }
    }
    None
}

#[async_trait]
impl Runtime for V {
    async fn run(&self, job: Job) -> End {
        self.launcher.run(&self.interpreter, job).await
    }
}
