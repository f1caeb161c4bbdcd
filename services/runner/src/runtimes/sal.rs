//! `sal`: `rhai` and system functions: files, processes, the environment, HTTP.

mod files;
mod http;
mod processes;

use std::sync::Arc;

use egress::Trust;
use rhai::Dynamic;

use self::http::Client;
use self::processes::Programs;
use crate::process::Launcher;
use crate::runtime::{Runtime, Tools};
use crate::runtimes::rhai::{Args, Embedded, Files, Functions, Outcome};
use crate::wire::{Function, Language};

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    let launcher = Launcher::new(tools);
    let trust = Trust::find();
    if trust.is_empty() {
        tracing::info!("no trusted certificates were found: sal jobs cannot ask over https");
    }
    Some(Arc::new(Embedded::new(tools, Language::Sal, move |job, limits, files| {
        let runtime = tokio::runtime::Handle::current();
        Some(Box::new(System {
            programs: Programs::new(&launcher, &runtime, job, limits, files),
            client: Client::new(&trust, runtime, job, limits),
            files: files.clone(),
        }))
    })))
}

/// The system, as a job reaches it.
struct System {
    files: Files,
    programs: Programs,
    client: Client,
}

impl Functions for System {
    fn call(&self, function: Function, mut args: Args) -> Outcome<Dynamic> {
        match function {
            Function::Run => {
                let program = args.text()?;
                let (list, options) = (args.list_or_none()?, args.map_or_none()?);
                self.programs.run(&program, &list, &options).map(Dynamic::from)
            }
            Function::HttpGet => self.client.get(&args.text()?).map(Dynamic::from),
            Function::HttpPost => self.client.post(&args.text()?, &args.value()?).map(Dynamic::from),
            Function::Http => self.client.ask(&args.map()?).map(Dynamic::from),
            other => files::call(&self.files, other, args),
        }
    }
}
