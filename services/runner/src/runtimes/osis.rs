//! `osis`: `rhai` and the object store of the context on this machine.

mod functions;
mod store;

use queue::work_dir::context_dir;
use std::sync::Arc;

use crate::runtime::{Runtime, Tools};
use crate::runtimes::rhai::Embedded;

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    let root = tools.root.to_owned();
    Some(Arc::new(Embedded::with(move |engine, job, limits| {
        let dir = context_dir(&root, job.execution.job_key.context).join("store");
        functions::register(engine, &dir, limits);
        Ok(())
    })))
}
