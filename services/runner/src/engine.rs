//! The process that scripts of `rhai`, `osis` and `sal` run in: one after another, for jobs of one context.
//!
//! The engine only computes. It has one socket, to the runner, and reaches nothing else: everything with a side effect is
//! a call that the runner serves. Anything that ends this process (a panic, its stack, its memory, a kill) ends one job only.
//!
//! The runner interrupts a script by a signal, since a script that computes does not read the socket.

mod bounds;
mod connection;
mod functions;
mod limits;
mod memory;
mod panics;
mod sort;
mod value;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use model::flow::ResultMap;
use model::limits::RESULT_BYTES_MAX;
use rhai::packages::{Package as _, StandardPackage};
use rhai::{Dynamic, Engine, EvalAltResult, Scope, Shared};

pub(crate) use self::memory::STEP_BYTES_MAX;
pub(crate) use self::value::{DEPTH_MAX, to_json};

use self::connection::{EngineConnection, EngineConnectionState};
use self::limits::EngineLimits;
use crate::output::ScriptStream;
use crate::results::size_of;
use crate::wire::{EngineScriptEnd, ScriptRunRequest};
use crate::{
    RHAI_COLLECTION_LEN_MAX, RHAI_FUNCTIONS_MAX, RHAI_OPERATIONS_MAX, RHAI_STRING_BYTES_MAX,
    RHAI_VARIABLES_MAX,
};

/// The part of a launcher's program that is an engine.
pub const ENGINE: sandbox::Builtin = sandbox::Builtin { name: NAME, run: main };
/// Name of the engine in requests.
pub(crate) const NAME: &str = "engine";
/// Exit code of an engine that has no memory left.
pub(crate) const EXIT_OUT_OF_MEMORY: i32 = 77;
/// Exit code of an engine that cannot go on.
const EXIT_FAILED: i32 = 1;
/// The stack of scripts. Values may be nested as deep as their maximum number of elements, and are copied and dropped
/// level by level. Only the used part of the stack takes memory.
pub(crate) const STACK_BYTES: usize = 512 * 1024 * 1024;
/// How deep functions may call each other.
const CALL_LEVELS_MAX: usize = 64;
/// How deep expressions may be nested, outside and inside functions.
const EXPRESSION_DEPTHS_MAX: (usize, usize) = (128, 64);
/// The standard functions, made once: they cost more than many scripts do.
static STANDARD: LazyLock<Shared<rhai::Module>> = LazyLock::new(|| StandardPackage::new().as_shared_module());

/// Serves scripts until the runner has no more.
fn main() -> i32 {
    // The name shown in process lists.
    let _ = rustix::thread::set_name(c"mycora-engine");
    limits::install_signal_handler();
    panics::keep_messages();
    let thread = std::thread::Builder::new().name("script".to_owned()).stack_size(STACK_BYTES).spawn(serve);
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or(EXIT_FAILED)
}

fn serve() -> i32 {
    LazyLock::force(&STANDARD);
    let line = EngineConnection::new(EngineConnectionState::to_runner());
    loop {
        let Ok(order) = line.order() else { return EXIT_FAILED };
        let Some(run) = order else { return 0 };
        let ended = caught(|| execute(&run, &line));
        memory::end();
        let panicked = matches!(ended, EngineScriptEnd::Panicked(_));
        if line.end(&ended).is_err() || panicked {
            return EXIT_FAILED;
        }
    }
}

/// Runs a script, and turns a panic into its end.
fn caught(script: impl FnOnce() -> EngineScriptEnd) -> EngineScriptEnd {
    catch_unwind(AssertUnwindSafe(script))
        .unwrap_or_else(|_| EngineScriptEnd::Panicked(panics::last_message()))
}

/// Results that a script gives while it runs.
type ScriptResults = Arc<Mutex<ResultMap>>;

/// Exit code of a script that called `exit`; for the engine that is a normal end.
type ScriptExitCode = Arc<AtomicI32>;

fn execute(run: &ScriptRunRequest, line: &EngineConnection) -> EngineScriptEnd {
    memory::begin(run.memory_bytes);
    let limits = EngineLimits::new(run.memory_bytes);
    let (given, code) = (ScriptResults::default(), ScriptExitCode::default());
    let mut engine = Engine::new_raw();
    prepare(&mut engine, &limits, line);
    functions::register(&mut engine, run, &limits, line, &given, &code);
    bounds::register(&mut engine);
    sort::register(&mut engine, &limits, line);
    let mut scope = match scope(run, &limits) {
        Ok(scope) => scope,
        Err(why) => return EngineScriptEnd::Failed(why),
    };
    let outcome = engine
        .compile_with_scope(&scope, &run.script)
        .map_err(|error| Box::new(EvalAltResult::from(error)))
        .and_then(|ast| engine.run_ast_with_scope(&mut scope, &ast));
    let code = match outcome {
        Ok(()) => code.load(Ordering::Relaxed),
        Err(error) => match *error {
            EvalAltResult::ErrorTerminated(..) if limits.is_over() => return EngineScriptEnd::Terminated,
            EvalAltResult::ErrorTerminated(..) => return EngineScriptEnd::OutOfMemory,
            other => {
                let hint = hint(&other).unwrap_or_default();
                line.print(ScriptStream::Err, &format!("{other}{hint}\n"));
                1
            }
        },
    };
    let result = std::mem::take(&mut *given.lock().unwrap_or_else(PoisonError::into_inner));
    match size_of(&result) {
        bytes if bytes > RESULT_BYTES_MAX => EngineScriptEnd::ResultTooLarge { bytes: bytes as u64 },
        _ => EngineScriptEnd::Exited { code, result },
    }
}

/// Returns a hint that the engine's own message lacks.
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

/// Sets the engine's limits, and connects its output to the log.
fn prepare(engine: &mut Engine, limits: &EngineLimits, line: &EngineConnection) {
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
        // Only the script itself runs: nothing is loaded from files, and no code is built at run time.
        .set_max_modules(0)
        .disable_symbol("import")
        .disable_symbol("eval")
        // The limits on values do not count the arguments bound to a function pointer.
        .disable_symbol("curry");
    let (watched, printed) = (limits.clone(), line.clone());
    engine.on_progress(move |steps| {
        if steps % connection::STEPS_BETWEEN_LOOKS == 0 {
            printed.flush_if_due();
        }
        watched.exceeded().then_some(Dynamic::UNIT)
    });
    let printed = line.clone();
    engine.on_print(move |text| printed.print(ScriptStream::Out, &format!("{text}\n")));
    let printed = line.clone();
    engine.on_debug(move |text, _, position| {
        printed.print(ScriptStream::Err, &format!("{position:?} | {text}\n"));
    });
}

fn scope(run: &ScriptRunRequest, limits: &EngineLimits) -> Result<Scope<'static>, String> {
    let inputs = value::from_json(&run.inputs, limits)
        .map_err(|error| format!("the inputs cannot be given to the engine: {error}"))?;
    let env: rhai::Map =
        run.env.iter().map(|(name, value)| (name.as_str().into(), Dynamic::from(value.clone()))).collect();
    let mut scope = Scope::new();
    scope.push_constant_dynamic("inputs", inputs);
    scope.push_constant("env", env);
    Ok(scope)
}

/// Runs a script as an engine does, in this process and without a runner: calls and prints go nowhere. Returns the script's
/// error, if any.
///
/// # Panics
/// When the engine does, which is what the fuzzer looks for.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn run_alone(script: &str, operations_max: u64) -> Result<(), String> {
    let line = EngineConnection::new(EngineConnectionState::disconnected());
    let run = ScriptRunRequest {
        language: crate::wire::EngineLanguage::Rhai,
        script: script.to_owned(),
        env: std::collections::BTreeMap::new(),
        own_env: std::collections::BTreeMap::new(),
        inputs: "{}".to_owned(),
        memory_bytes: crate::RHAI_MEMORY_BYTES_MAX,
    };
    let limits = EngineLimits::new(run.memory_bytes);
    let mut engine = Engine::new_raw();
    prepare(&mut engine, &limits, &line);
    engine.set_max_operations(operations_max).set_max_string_size(1 << 20).set_max_array_size(10_000);
    functions::register(
        &mut engine,
        &run,
        &limits,
        &line,
        &ScriptResults::default(),
        &ScriptExitCode::default(),
    );
    bounds::register(&mut engine);
    sort::register(&mut engine, &limits, &line);
    let mut scope = scope(&run, &limits)?;
    engine.run_with_scope(&mut scope, &run.script).map_err(|error| error.to_string())
}
