//! `rhai`: the embedded engine, with limits, in a process that reaches nothing. Other languages are this one with more
//! functions.

mod engines;
mod files;
mod functions;
mod limits;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

pub(crate) use self::engines::EnginePool;
pub(crate) use self::files::ScriptFiles;
use self::functions::JobFunctions;
pub(crate) use self::functions::{FunctionArgs, ScriptFunctionError, ScriptFunctionResult, ScriptFunctions};
pub(crate) use self::limits::ScriptLimits;

use crate::RHAI_MEMORY_BYTES_MAX;
use crate::runtime::{RuntimeResources, ScriptEnd, ScriptJob, ScriptRuntime};
use crate::wire::{EngineLanguage, ScriptRunRequest};

/// The functions that a language has beside those of `rhai`, for one job.
type LanguageExtension = Box<
    dyn Fn(&Arc<ScriptJob>, &ScriptLimits, &ScriptFiles) -> Option<Box<dyn ScriptFunctions>> + Send + Sync,
>;

/// A language on this engine.
pub(crate) struct EmbeddedRuntime {
    language: EngineLanguage,
    engines: Arc<EnginePool>,
    extension: LanguageExtension,
}

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(tools: &RuntimeResources<'_>) -> Option<Arc<dyn ScriptRuntime>> {
    Some(Arc::new(EmbeddedRuntime::new(tools, EngineLanguage::Rhai, |_, _, _| None)))
}

impl EmbeddedRuntime {
    /// The engine with further functions.
    pub(crate) fn new(
        tools: &RuntimeResources<'_>,
        language: EngineLanguage,
        extension: impl Fn(&Arc<ScriptJob>, &ScriptLimits, &ScriptFiles) -> Option<Box<dyn ScriptFunctions>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { language, engines: Arc::clone(tools.engines), extension: Box::new(extension) }
    }

    fn order(&self, job: &ScriptJob) -> ScriptRunRequest {
        let execution = &job.execution;
        let own_env = if self.language == EngineLanguage::Sal {
            let own = [
                ("MYCORA_CONTEXT".to_owned(), execution.context_id.to_string()),
                ("MYCORA_FLOW".to_owned(), execution.flow_id.to_string()),
                ("MYCORA_JOB".to_owned(), execution.job_key.job.to_string()),
                ("MYCORA_ATTEMPT".to_owned(), execution.job_key.attempt.to_string()),
            ];
            let trace = execution.traceparent.clone().map(|trace| ("TRACEPARENT".to_owned(), trace));
            own.into_iter().chain(trace).collect()
        } else {
            BTreeMap::new()
        };
        ScriptRunRequest {
            language: self.language,
            script: job.script.clone(),
            env: job.env.clone(),
            own_env,
            inputs: job.inputs.clone(),
            memory_bytes: memory_bytes(job),
        }
    }
}

/// Returns the number of bytes that a script may hold in memory.
fn memory_bytes(job: &ScriptJob) -> u64 {
    job.grants.memory_bytes.min(RHAI_MEMORY_BYTES_MAX)
}

#[async_trait]
impl ScriptRuntime for EmbeddedRuntime {
    async fn run(&self, job: ScriptJob) -> ScriptEnd {
        let job = Arc::new(job);
        let limits = ScriptLimits::of(&job);
        let taken = tokio::select! {
            biased;
            taken = self.engines.take(&job) => taken,
            () = job.interrupt.raised() => return ScriptEnd::Interrupted,
            () = limits.out_of_time() => return ScriptEnd::TimedOut,
        };
        let engine = match taken {
            Ok(engine) => engine,
            Err(reason) => return ScriptEnd::Broken(reason),
        };
        let files = ScriptFiles::of(&job, &limits);
        let more = (self.extension)(&job, &limits, &files);
        let serving = Arc::new(JobFunctions { files, more, limits });
        let (end, engine) = session::run(engine, &self.order(&job), &job, &serving).await;
        if let Some(engine) = engine {
            self.engines.keep(engine, &job).await;
        }
        end
    }

    fn needs_directory(&self) -> bool {
        false
    }
}
