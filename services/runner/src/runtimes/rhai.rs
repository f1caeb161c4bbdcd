//! `rhai`: the embedded engine, with limits, in a process that reaches nothing. Other languages are this one with more
//! functions.

mod conversation;
mod engines;
mod files;
mod functions;
mod limits;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

pub(crate) use self::engines::Engines;
pub(crate) use self::files::Files;
use self::functions::Serving;
pub(crate) use self::functions::{Args, Functions, Outcome, Refusal};
pub(crate) use self::limits::Limits;

use crate::RHAI_MEMORY_BYTES_MAX;
use crate::runtime::{End, Job, Runtime, Tools};
use crate::wire::{Language, Run};

/// The functions that a language has beside those of `rhai`, for one job.
type Extension = Box<dyn Fn(&Arc<Job>, &Limits, &Files) -> Option<Box<dyn Functions>> + Send + Sync>;

/// A language on this engine.
pub(crate) struct Embedded {
    language: Language,
    engines: Arc<Engines>,
    extension: Extension,
}

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    Some(Arc::new(Embedded::new(tools, Language::Rhai, |_, _, _| None)))
}

impl Embedded {
    /// The engine with further functions.
    pub(crate) fn new(
        tools: &Tools<'_>,
        language: Language,
        extension: impl Fn(&Arc<Job>, &Limits, &Files) -> Option<Box<dyn Functions>> + Send + Sync + 'static,
    ) -> Self {
        Self { language, engines: Arc::clone(tools.engines), extension: Box::new(extension) }
    }

    fn order(&self, job: &Job) -> Run {
        let execution = &job.execution;
        let own_env = if self.language == Language::Sal {
            BTreeMap::from([
                ("MYCORA_CONTEXT".to_owned(), execution.context_id.to_string()),
                ("MYCORA_FLOW".to_owned(), execution.flow_id.to_string()),
                ("MYCORA_JOB".to_owned(), execution.job_key.job.to_string()),
                ("MYCORA_ATTEMPT".to_owned(), execution.job_key.attempt.to_string()),
            ])
        } else {
            BTreeMap::new()
        };
        Run {
            language: self.language,
            script: job.script.clone(),
            env: job.env.clone(),
            own_env,
            inputs: job.inputs.clone(),
            memory_bytes: memory_bytes(job),
        }
    }
}

/// What a script may hold.
fn memory_bytes(job: &Job) -> u64 {
    job.grants.memory_bytes.min(RHAI_MEMORY_BYTES_MAX)
}

#[async_trait]
impl Runtime for Embedded {
    async fn run(&self, job: Job) -> End {
        let job = Arc::new(job);
        let limits = Limits::of(&job);
        let taken = tokio::select! {
            biased;
            taken = self.engines.take(&job) => taken,
            () = job.interrupt.raised() => return End::Interrupted,
            () = limits.out_of_time() => return End::TimedOut,
        };
        let engine = match taken {
            Ok(engine) => engine,
            Err(reason) => return End::Broken(reason),
        };
        let files = Files::of(&job, &limits);
        let more = (self.extension)(&job, &limits, &files);
        let serving = Arc::new(Serving { files, more, limits });
        let (end, engine) = conversation::run(engine, &self.order(&job), &job, &serving).await;
        if let Some(engine) = engine {
            self.engines.keep(engine, &job).await;
        }
        end
    }

    fn needs_directory(&self) -> bool {
        false
    }
}
