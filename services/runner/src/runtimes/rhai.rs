//! `rhai`: the embedded engine, with limits, without a way out of the job's directory.

mod functions;

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use ::rhai::packages::{Package as _, StandardPackage};
use ::rhai::{Dynamic, Engine, EvalAltResult, Scope, Shared};
use async_trait::async_trait;
use model::Reason;
use model::flow::ResultMap;

use crate::output::Stream;
use crate::results::check_size;
use crate::runtime::{End, Job, Runtime, Tools};
use crate::workspace::runtime_error;
use crate::{RHAI_COLLECTION_LEN_MAX, RHAI_OPERATIONS_MAX, RHAI_STRING_BYTES_MAX};

/// How deep functions may call each other.
const CALL_LEVELS_MAX: usize = 64;
/// How deep expressions may be nested, outside and inside functions.
const EXPRESSION_DEPTHS_MAX: (usize, usize) = (128, 64);
/// How many steps pass between two looks at the clock.
const STEPS_BETWEEN_LOOKS: u64 = 1024;

/// The standard functions, made once: they cost more than many a script.
static STANDARD: LazyLock<Shared<::rhai::Module>> =
    LazyLock::new(|| StandardPackage::new().as_shared_module());

struct Rhai;

/// Built in.
#[expect(clippy::unnecessary_wraps, reason = "every probe has this form; others find nothing at times")]
pub(crate) fn probe(_tools: &Tools<'_>) -> Option<Arc<dyn Runtime>> {
    Some(Arc::new(Rhai))
}

#[async_trait]
impl Runtime for Rhai {
    async fn run(&self, job: Job) -> End {
        match tokio::task::spawn_blocking(move || execute(&job)).await {
            Ok(end) => end,
            Err(error) => End::Broken(runtime_error(&format!("the engine failed: {error}"))),
        }
    }
}

/// What a script gives while it runs.
type Given = Arc<Mutex<ResultMap>>;

/// What a script that called `exit` ends with; the engine takes that for an end like any other.
type ExitCode = Arc<AtomicI32>;

/// When a script has to end.
#[derive(Clone)]
struct Limits {
    deadline: Option<Instant>,
    interrupt: Arc<crate::interrupt::Interrupt>,
}

impl Limits {
    /// Whether its time is over, by either.
    fn over(&self) -> bool {
        self.interrupt.cause().is_some() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

fn execute(job: &Job) -> End {
    // A time limit beyond what a clock can count is none.
    let deadline = job.time_limit.and_then(|limit| Instant::now().checked_add(limit));
    let limits = Limits { deadline, interrupt: Arc::clone(&job.interrupt) };
    let given = Given::default();
    let code = ExitCode::default();
    let engine = engine(job, &limits, &given, &code);
    let mut scope = match scope(job) {
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
            EvalAltResult::ErrorTerminated(..) => return End::TimedOut,
            other => {
                job.printer.print_blocking(Stream::Err, &format!("{other}\n"));
                1
            }
        },
    };
    let result = std::mem::take(&mut *given.lock().unwrap_or_else(PoisonError::into_inner));
    End::Exited { code, result: check_size(&result).map(|()| result) }
}

fn engine(job: &Job, limits: &Limits, given: &Given, code: &ExitCode) -> Engine {
    // Raw: without the resolver that imports modules from anywhere in the file system.
    let mut engine = Engine::new_raw();
    engine
        .register_global_module(STANDARD.clone())
        .set_max_operations(RHAI_OPERATIONS_MAX)
        .set_max_call_levels(CALL_LEVELS_MAX)
        .set_max_expr_depths(EXPRESSION_DEPTHS_MAX.0, EXPRESSION_DEPTHS_MAX.1)
        .set_max_string_size(RHAI_STRING_BYTES_MAX)
        .set_max_array_size(RHAI_COLLECTION_LEN_MAX)
        .set_max_map_size(RHAI_COLLECTION_LEN_MAX);
    let watched = limits.clone();
    engine.on_progress(move |steps| {
        (steps % STEPS_BETWEEN_LOOKS == 0 && watched.over()).then_some(Dynamic::UNIT)
    });
    let printer = job.printer.clone();
    engine.on_print(move |text| printer.print_blocking(Stream::Out, &format!("{text}\n")));
    let printer = job.printer.clone();
    engine.on_debug(move |text, _, position| {
        printer.print_blocking(Stream::Err, &format!("{position:?} | {text}\n"));
    });
    functions::register(&mut engine, job.workspace.dir(), limits, given, code);
    engine
}

fn scope(job: &Job) -> Result<Scope<'static>, Reason> {
    let wrong = |error: &dyn std::fmt::Display| {
        runtime_error(&format!("the inputs cannot be given to the engine: {error}"))
    };
    let inputs: serde_json::Value = serde_json::from_str(&job.inputs).map_err(|error| wrong(&error))?;
    let inputs = ::rhai::serde::to_dynamic(inputs).map_err(|error| wrong(&error))?;
    let env: ::rhai::Map =
        job.env.iter().map(|(name, value)| (name.as_str().into(), Dynamic::from(value.clone()))).collect();
    let mut scope = Scope::new();
    scope.push_constant_dynamic("inputs", inputs);
    scope.push_constant("env", env);
    Ok(scope)
}
