//! `v`: the `v` compiler, which compiles a script and runs it.

use std::sync::Arc;

use async_trait::async_trait;

use crate::process::{InterpreterCommand, ProcessExecutor, ProgramCommand, find_programs, try_program};
use crate::runtime::{RuntimeResources, ScriptEnd, ScriptJob, ScriptRuntime};

/// The version of the compiler that jobs were tried with.
const TRIED: &str = "0.2.4";

struct VRuntime {
    launcher: ProcessExecutor,
    interpreter: InterpreterCommand,
}

/// A `v` that works where scripts run. It finds its library beside itself, so that has to be readable too.
pub(crate) fn probe(tools: &RuntimeResources<'_>) -> Option<Arc<dyn ScriptRuntime>> {
    for found in find_programs("v") {
        let Ok(program) = found.canonicalize() else { continue };
        let reads: Vec<_> = program.parent().map(ToOwned::to_owned).into_iter().collect();
        match try_program(
            tools,
            &ProgramCommand { path: &program, args: vec!["version".into()], reads: &reads },
        ) {
            Ok(version) if version.starts_with("V ") => {
                tracing::info!(v = %program.display(), version = version.trim(), tried = TRIED, "v jobs are offered");
                let interpreter =
                    InterpreterCommand { program, args: vec!["run".into()], script_name: "script.v", reads };
                return Some(Arc::new(VRuntime { launcher: ProcessExecutor::new(tools), interpreter }));
            }
            Ok(_) => tracing::info!(v = %program.display(), "it is not the v compiler"),
            Err(error) => tracing::info!(v = %program.display(), %error, "it does not work for scripts"),
        }
    }
    None
}

#[async_trait]
impl ScriptRuntime for VRuntime {
    async fn run(&self, job: ScriptJob) -> ScriptEnd {
        self.launcher.run(&self.interpreter, job).await
    }
}
