//! `shell`: the interpreter that a script's first line names (`#!/bin/bash`), else `/bin/sh`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use model::Reason;

use crate::process::{InterpreterCommand, ProcessExecutor, is_executable};
use crate::runtime::{RuntimeResources, ScriptEnd, ScriptJob, ScriptRuntime};
use crate::workspace::runtime_error;

struct ShellRuntime {
    launcher: ProcessExecutor,
    interpreter: InterpreterCommand,
}

/// There is hardly a machine without it.
pub(crate) fn probe(tools: &RuntimeResources<'_>) -> Option<Arc<dyn ScriptRuntime>> {
    let program = PathBuf::from("/bin/sh");
    program.exists().then(|| {
        let (args, reads) = (Vec::new(), Vec::new());
        let interpreter = InterpreterCommand { program, args, script_name: "script.sh", reads };
        Arc::new(ShellRuntime { launcher: ProcessExecutor::new(tools), interpreter })
            as Arc<dyn ScriptRuntime>
    })
}

#[async_trait]
impl ScriptRuntime for ShellRuntime {
    async fn run(&self, job: ScriptJob) -> ScriptEnd {
        match self.interpreter_of(&job.script) {
            Ok(interpreter) => self.launcher.run(&interpreter, job).await,
            Err(reason) => ScriptEnd::NotRun(reason),
        }
    }
}

impl ShellRuntime {
    fn interpreter_of(&self, script: &str) -> Result<InterpreterCommand, Reason> {
        let Some((program, argument)) = first_line(script) else { return Ok(self.interpreter.clone()) };
        let path = Path::new(program);
        if !path.is_absolute() {
            return Err(runtime_error(&format!(
                "the script's first line names `{program}`, which is no absolute path: write `#!/usr/bin/env {program}`"
            )));
        }
        if !is_executable(path) {
            return Err(runtime_error(&format!(
                "the script's first line names `{program}`, which is no program of the machine that was to run it: \
                 install it there, or name one that every machine has, such as `#!/bin/sh`"
            )));
        }
        // The script may be refused it all the same, as any other program outside of what scripts may read.
        let args = argument.map(OsString::from).into_iter().collect();
        Ok(InterpreterCommand { program: path.to_owned(), args, ..self.interpreter.clone() })
    }
}

/// Reads the program and its only argument from a first line such as `#!/usr/bin/env bash`, as the kernel would.
fn first_line(script: &str) -> Option<(&str, Option<&str>)> {
    let line = script.lines().next()?.strip_prefix("#!")?.trim();
    match line.split_once([' ', '\t']) {
        _ if line.is_empty() => None,
        None => Some((line, None)),
        Some((program, argument)) => Some((program, Some(argument.trim_start()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_read_as_the_kernel_reads_it() {
        for (script, read) in [
            ("echo", None),
            ("", None),
            ("#!", None),
            ("\n#!/bin/bash", None),
            (" #!/bin/bash", None),
            ("#!/bin/bash", Some(("/bin/bash", None))),
            ("#! /bin/bash\r\necho", Some(("/bin/bash", None))),
            ("#!/bin/bash -eu -o pipefail\n", Some(("/bin/bash", Some("-eu -o pipefail")))),
            ("#!/usr/bin/env \t-S bash -eu", Some(("/usr/bin/env", Some("-S bash -eu")))),
        ] {
            assert_eq!(first_line(script), read, "{script:?}");
        }
    }
}
