//! `rhai`: the embedded engine, with limits, without a way out of the job's directory. Other languages are this
//! one with more functions.

mod bounds;
mod files;
mod functions;
mod limits;
mod memory;
mod threads;
mod value;

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ::rhai::packages::{Package as _, StandardPackage};
use ::rhai::{Dynamic, Engine, EvalAltResult, Scope, Shared};
use async_trait::async_trait;
use model::flow::ResultMap;
use model::{Reason, ReasonCode};
use tokio::sync::oneshot;

pub(crate) use self::files::Files;
pub(crate) use self::functions::Outcome;
pub(crate) use self::limits::Limits;
pub(crate) use self::memory::uncounted;
pub(crate) use self::value::{from_json, to_json};

use crate::output::Stream;
use crate::results::check_size;
use crate::runtime::{End, Job, Runtime, Tools};
use crate::workspace::runtime_error;
use crate::{
    RHAI_COLLECTION_LEN_MAX, RHAI_FUNCTIONS_MAX, RHAI_OPERATIONS_MAX, RHAI_STRING_BYTES_MAX,
    RHAI_VARIABLES_MAX,
};

/// How deep functions may call each other.
const CALL_LEVELS_MAX: usize = 64;
/// How deep expressions may be nested, outside and inside functions.
const EXPRESSION_DEPTHS_MAX: (usize, usize) = (128, 64);
/// The standard functions, made once: they cost more than many a script.
static STANDARD: LazyLock<Shared<::rhai::Module>> =
    LazyLock::new(|| StandardPackage::new().as_shared_module());

/// What a language has beside the functions of `rhai`. It may refuse a job.
type Extension = Box<dyn Fn(&mut Engine, &Arc<Job>, &Limits) -> Result<(), Reason> + Send + Sync>;

/// A language on this engine.
pub(crate) struct Embedded {
    extension: Extension,
}

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(_tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    Some(Arc::new(Embedded::with(|_, _, _| Ok(()))))
}

impl Embedded {
    /// The engine with further functions.
    pub(crate) fn with(
        extension: impl Fn(&mut Engine, &Arc<Job>, &Limits) -> Result<(), Reason> + Send + Sync + 'static,
    ) -> Self {
        Self { extension: Box::new(extension) }
    }
}

#[async_trait]
impl Runtime for Embedded {
    async fn run(&self, job: Job) -> End {
        let job = Arc::new(job);
        let limits = Limits::of(&job);
        let mut engine = Engine::new_raw();
        let (sender, end) = oneshot::channel();
        if let Err(reason) = (self.extension)(&mut engine, &job, &limits) {
            return End::Broken(reason);
        }
        let thread = {
            let (job, limits) = (Arc::clone(&job), limits.clone());
            threads::run(move || {
                // Nobody waiting any more means that the runner is going down.
                let _ = sender.send(execute(engine, &job, &limits));
            })
        };
        if let Err(error) = thread {
            return End::Broken(runtime_error(&format!("no thread can be started for the script: {error}")));
        }
        limits.watch(end).await.unwrap_or_else(|_| End::Broken(runtime_error("the engine failed")))
    }

    fn needs_directory(&self) -> bool {
        false
    }
}

/// What a script gives while it runs.
type Given = Arc<Mutex<ResultMap>>;

/// What a script that called `exit` ends with; the engine takes that for an end like any other.
type ExitCode = Arc<AtomicI32>;

fn execute(mut engine: Engine, job: &Job, limits: &Limits) -> End {
    memory::begin();
    let given = Given::default();
    let code = ExitCode::default();
    prepare(&mut engine, job, limits);
    functions::register(&mut engine, job, limits, &given, &code);
    bounds::register(&mut engine);
    let mut scope = match scope(job, limits) {
        Ok(scope) => scope,
        Err(reason) => return End::Broken(reason),
    };
    let outcome = engine
        .compile_with_scope(&scope, &job.script)
        .map_err(|error| Box::new(EvalAltResult::from(error)))
        .and_then(|ast| engine.run_ast_with_scope(&mut scope, &ast));
    let code = match outcome {
        Ok(()) => code.load(Ordering::Relaxed),
        Err(error) => match *error {
            EvalAltResult::ErrorTerminated(..) if job.interrupt.cause().is_some() => return End::Interrupted,
            EvalAltResult::ErrorTerminated(..) if limits.is_out_of_time() => return End::TimedOut,
            EvalAltResult::ErrorTerminated(..) => return End::Broken(out_of_memory(limits)),
            other => {
                let hint = hint(&other).unwrap_or_default();
                uncounted(|| job.printer.print_blocking(Stream::Err, &format!("{other}{hint}\n")));
                1
            }
        },
    };
    let result = std::mem::take(&mut *given.lock().unwrap_or_else(PoisonError::into_inner));
    End::Exited { code, result: check_size(&result).map(|()| result) }
}

fn out_of_memory(limits: &Limits) -> Reason {
    let detail = format!("the script may use {} bytes", limits.memory_bytes());
    Reason::new(ReasonCode::OutOfMemory, detail)
}

/// What is not told by the engine's message.
fn hint(error: &EvalAltResult) -> Option<&'static str> {
    match error {
        EvalAltResult::ErrorInFunctionCall(name, _, inner, _) => match **inner {
            EvalAltResult::ErrorVariableNotFound(..) if name.starts_with("anon$") => {
                Some("; a closure does not see the variables around it")
            }
            ref deeper => hint(deeper),
        },
        _ => None,
    }
}

/// Bounds the engine, and connects its voice to the log.
fn prepare(engine: &mut Engine, job: &Job, limits: &Limits) {
    engine
        .register_global_module(STANDARD.clone())
        .set_max_operations(RHAI_OPERATIONS_MAX)
        .set_max_call_levels(CALL_LEVELS_MAX)
        .set_max_expr_depths(EXPRESSION_DEPTHS_MAX.0, EXPRESSION_DEPTHS_MAX.1)
        .set_max_variables(RHAI_VARIABLES_MAX)
        .set_max_functions(RHAI_FUNCTIONS_MAX)
        .set_max_string_size(RHAI_STRING_BYTES_MAX)
        .set_max_array_size(RHAI_COLLECTION_LEN_MAX)
        .set_max_map_size(RHAI_COLLECTION_LEN_MAX)
        // A script is all that there is to it: nothing is loaded from files, and nothing made up while it runs.
        .set_max_modules(0)
        .disable_symbol("import")
        .disable_symbol("eval")
        // What a function pointer carries along is not counted by the limits on values.
        .disable_symbol("curry");
    let watched = limits.clone();
    engine.on_progress(move |_| watched.exceeded().then_some(Dynamic::UNIT));
    let printer = job.printer.clone();
    engine.on_print(move |text| uncounted(|| printer.print_blocking(Stream::Out, &format!("{text}\n"))));
    let printer = job.printer.clone();
    engine.on_debug(move |text, _, position| {
        uncounted(|| printer.print_blocking(Stream::Err, &format!("{position:?} | {text}\n")));
    });
}

fn scope(job: &Job, limits: &Limits) -> Result<Scope<'static>, Reason> {
    let inputs = from_json(&job.inputs, limits)
        .map_err(|error| runtime_error(&format!("the inputs cannot be given to the engine: {error}")))?;
    let env: ::rhai::Map =
        job.env.iter().map(|(name, value)| (name.as_str().into(), Dynamic::from(value.clone()))).collect();
    let mut scope = Scope::new();
    scope.push_constant_dynamic("inputs", inputs);
    scope.push_constant("env", env);
    Ok(scope)
}
