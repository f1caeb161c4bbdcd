//! `shell`: `/bin/sh`.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use crate::process::{Interpreter, Launcher};
use crate::runtime::{End, Job, Runtime, Tools};

struct Shell {
    launcher: Launcher,
    interpreter: Interpreter,
}

/// There is hardly a machine without it.
pub(crate) fn probe(tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    let program = PathBuf::from("/bin/sh");
    program.exists().then(|| {
        let (args, reads) = (Vec::new(), Vec::new());
        let interpreter = Interpreter { program, args, script_name: "script.sh", reads };
        Arc::new(Shell { launcher: Launcher::new(tools), interpreter }) as Arc<dyn Runtime>
    })
}

#[async_trait]
impl Runtime for Shell {
    async fn run(&self, job: Job) -> End {
        self.launcher.run(&self.interpreter, job).await
    }
}
