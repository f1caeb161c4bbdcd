//! `osis`: `rhai` and the object store of the context on this machine.

mod functions;
mod store;

use queue::work_dir::context_dir;
use std::sync::Arc;

use self::functions::OsisFunctions;
use crate::runtime::{RuntimeResources, ScriptRuntime};
use crate::runtimes::rhai::EmbeddedRuntime;
use crate::wire::EngineLanguage;

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(tools: &RuntimeResources<'_>) -> Option<Arc<dyn ScriptRuntime>> {
    let root = tools.root.to_owned();
    Some(Arc::new(EmbeddedRuntime::new(tools, EngineLanguage::Osis, move |job, limits, _| {
        let dir = context_dir(&root, job.execution.job_key.context).join("store");
        Some(Box::new(OsisFunctions::new(dir, limits)))
    })))
}
