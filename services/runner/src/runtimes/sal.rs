//! `sal`: `rhai` and system functions: files, processes, the environment, HTTP.

mod files;
mod http;
mod processes;

use std::sync::Arc;

use rhai::{Dynamic, Engine};

use crate::process::Launcher;
use crate::runtime::{Job, Runtime, Tools};
use crate::runtimes::rhai::Embedded;

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    let launcher = Launcher::new(tools);
    let trust = http::Trust::find();
    Some(Arc::new(Embedded::with(move |engine, job, limits| {
        let runtime = tokio::runtime::Handle::current();
        files::register(engine, job, limits);
        processes::register(engine, &launcher, &runtime, job, limits);
        http::register(engine, &trust, runtime, job, limits);
        register_env(engine, job);
        Ok(())
    })))
}

/// `env(name)`: what a process of this job would find in its environment.
fn register_env(engine: &mut Engine, job: &Arc<Job>) {
    let job = Arc::clone(job);
    engine.register_fn("env", move |name: &str| -> Dynamic {
        let found = job.env.get(name).cloned().or_else(|| {
            let execution = &job.execution;
            Some(match name {
                "MYCORA_CONTEXT" => execution.context_id.to_string(),
                "MYCORA_FLOW" => execution.flow_id.to_string(),
                "MYCORA_JOB" => execution.job_key.job.to_string(),
                "MYCORA_ATTEMPT" => execution.job_key.attempt.to_string(),
                _ => return None,
            })
        });
        found.map_or(Dynamic::UNIT, Dynamic::from)
    });
}
