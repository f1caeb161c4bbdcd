//! `osis`: `rhai` and the object store of the context on this machine.

mod functions;
mod store;

use queue::work_dir::context_dir;
use std::sync::Arc;

use self::functions::Objects;
use crate::runtime::{Runtime, Tools};
use crate::runtimes::rhai::Embedded;
use crate::wire::Language;

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    let root = tools.root.to_owned();
    Some(Arc::new(Embedded::new(tools, Language::Osis, move |job, limits, _| {
        let dir = context_dir(&root, job.execution.job_key.context).join("store");
        Some(Box::new(Objects::new(dir, limits)))
    })))
}
