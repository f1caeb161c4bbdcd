//! `sal`: `rhai` and system functions: files, processes, the environment, HTTP.

mod files;
mod http;
mod processes;

use std::sync::Arc;

use egress::TrustAnchors;
use rhai::Dynamic;

use self::http::ScriptHttpClient;
use self::processes::ProgramRunner;
use crate::process::ProcessExecutor;
use crate::runtime::{RuntimeResources, ScriptRuntime};
use crate::runtimes::rhai::{
    EmbeddedRuntime, FunctionArgs, ScriptFiles, ScriptFunctionResult, ScriptFunctions,
};
use crate::wire::{EngineLanguage, ServedFunction};

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(tools: &RuntimeResources<'_>) -> Option<Arc<dyn ScriptRuntime>> {
    let launcher = ProcessExecutor::new(tools);
    let trust = TrustAnchors::from_system();
    if trust.is_empty() {
        tracing::info!("no trusted certificates were found: sal jobs cannot ask over https");
    }
    Some(Arc::new(EmbeddedRuntime::new(tools, EngineLanguage::Sal, move |job, limits, files| {
        let runtime = tokio::runtime::Handle::current();
        Some(Box::new(SalFunctions {
            programs: ProgramRunner::new(&launcher, &runtime, job, limits, files),
            client: ScriptHttpClient::new(&trust, runtime, job, limits),
            files: files.clone(),
        }))
    })))
}

/// The system, as a job reaches it.
struct SalFunctions {
    files: ScriptFiles,
    programs: ProgramRunner,
    client: ScriptHttpClient,
}

impl ScriptFunctions for SalFunctions {
    fn call(&self, function: ServedFunction, mut args: FunctionArgs) -> ScriptFunctionResult<Dynamic> {
        match function {
            ServedFunction::Run => {
                let program = args.text()?;
                let (list, options) = (args.list_or_none()?, args.map_or_none()?);
                self.programs.run(&program, &list, &options).map(Dynamic::from)
            }
            ServedFunction::HttpGet => self.client.get(&args.text()?).map(Dynamic::from),
            ServedFunction::HttpPost => self.client.post(&args.text()?, &args.value()?).map(Dynamic::from),
            ServedFunction::Http => self.client.ask(&args.map()?).map(Dynamic::from),
            other => files::call(&self.files, other, args),
        }
    }
}
