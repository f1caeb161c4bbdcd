//! Functions that scripts can call beside the standard ones. A function that does more than compute is served by the runner.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use rhai::{Array, Dynamic, Engine, EvalAltResult, FLOAT, INT, Map, Position};

use super::connection::{EngineCallError, EngineConnection};
use super::value::{from_json, to_json};
use super::{EngineLimits, ScriptExitCode, ScriptResults};
use crate::results::text_of;
use crate::wire::{EngineLanguage, FunctionReply, ScriptRunRequest, ServedFunction};

/// Result of a function: its value, or the error it throws.
pub(super) type EvalResult<T> = Result<T, Box<EvalAltResult>>;

pub(super) fn register(
    engine: &mut Engine,
    run: &ScriptRunRequest,
    limits: &EngineLimits,
    line: &EngineConnection,
    given: &ScriptResults,
    code: &ScriptExitCode,
) {
    let served = FunctionClient { line: line.clone(), limits: limits.clone() };
    register_results(engine, given);
    register_files(engine, &served);
    register_json(engine, limits);
    register_sleep(engine, &served);
    register_exit(engine, code);
    match run.language {
        EngineLanguage::Rhai => {}
        EngineLanguage::Osis => {
            register_objects(engine, &served);
            register_object_lists(engine, &served);
        }
        EngineLanguage::Sal => {
            register_paths(engine, &served);
            register_programs(engine, &served);
            register_http(engine, &served);
            register_env(engine, run);
        }
    }
}

/// The functions that the runner serves.
#[derive(Clone)]
struct FunctionClient {
    line: EngineConnection,
    limits: EngineLimits,
}

impl FunctionClient {
    fn call(&self, function: ServedFunction, args: &[Dynamic]) -> EvalResult<Dynamic> {
        self.limits.look()?;
        let ends = || EvalAltResult::ErrorTerminated(Dynamic::UNIT, Position::NONE);
        match self.line.call(function, args) {
            Ok(FunctionReply::Value(value)) => Ok(value),
            Ok(FunctionReply::Thrown(text)) => Err(text.into()),
            Ok(FunctionReply::TooManySteps) => {
                Err(EvalAltResult::ErrorTooManyOperations(Position::NONE).into())
            }
            Ok(FunctionReply::TooLarge) => {
                let what = "Length of string or size of array".to_owned();
                Err(EvalAltResult::ErrorDataTooLarge(what, Position::NONE).into())
            }
            Ok(FunctionReply::Ends) | Err(EngineCallError::Gone) => {
                self.limits.note_over();
                Err(ends().into())
            }
            Err(EngineCallError::NotSent(why)) => Err(format!("{}: {why}", function.name()).into()),
        }
    }
}

/// A text as a value.
fn text(text: &str) -> Dynamic {
    Dynamic::from(text.to_owned())
}

/// `result(key, value)` and `result(#{ … })`.
fn register_results(engine: &mut Engine, given: &ScriptResults) {
    let one = Arc::clone(given);
    engine.register_fn("result", move |key: &str, value: Dynamic| -> EvalResult<()> {
        let text = text_of(to_json(&value)?);
        one.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), text);
        Ok(())
    });
    let many = Arc::clone(given);
    engine.register_fn("result", move |values: Map| -> EvalResult<()> {
        for (key, value) in values {
            let text = text_of(to_json(&value)?);
            many.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_string(), text);
        }
        Ok(())
    });
}

/// `read_file(path)` and `write_file(path, text)`, inside the job's directory.
fn register_files(engine: &mut Engine, served: &FunctionClient) {
    register_path(engine, served, ServedFunction::ReadFile);
    register_two(engine, served, ServedFunction::WriteFile);
}

/// `parse_json(text)` and `to_json(value)`, for any value.
fn register_json(engine: &mut Engine, limits: &EngineLimits) {
    let bounds = limits.clone();
    engine.register_fn("parse_json", move |text: &str| -> EvalResult<Dynamic> {
        let read = from_json(text, &bounds);
        bounds.look()?;
        read.map_err(|error| format!("parse_json: {error}").into())
    });
    let text_of = |value: &Dynamic| -> EvalResult<String> {
        Ok(to_json(value).map_err(|why| format!("to_json: {why}"))?.to_string())
    };
    engine.register_fn("to_json", move |value: Dynamic| text_of(&value));
    // The standard library has a more specific version for maps, which does not write numbers in full.
    engine.register_fn("to_json", move |value: Map| text_of(&Dynamic::from(value)));
}

/// `sleep(seconds)`, which ends with the job.
fn register_sleep(engine: &mut Engine, served: &FunctionClient) {
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let seconds = |secs: INT| secs as FLOAT;
    let whole = served.clone();
    engine.register_fn("sleep", move |secs: INT| -> EvalResult<()> {
        whole.call(ServedFunction::Sleep, &[seconds(secs).into()]).map(drop)
    });
    let part = served.clone();
    engine.register_fn("sleep", move |secs: FLOAT| -> EvalResult<()> {
        part.call(ServedFunction::Sleep, &[secs.into()]).map(drop)
    });
}

/// `exit()`, `exit(code)` and `exit(succeeded)`. The engine's own `exit` does not report the code.
fn register_exit(engine: &mut Engine, code: &ScriptExitCode) {
    fn end(code: &ScriptExitCode, value: i32) -> EvalResult<()> {
        code.store(value, Ordering::Relaxed);
        Err(EvalAltResult::Exit(Dynamic::UNIT, Position::NONE).into())
    }
    let none = Arc::clone(code);
    engine.register_fn("exit", move || end(&none, 0));
    let number = Arc::clone(code);
    engine.register_fn("exit", move |value: INT| end(&number, i32::try_from(value).unwrap_or(1)));
    let truth = Arc::clone(code);
    engine.register_fn("exit", move |succeeded: bool| end(&truth, i32::from(!succeeded)));
}

/// A function of one text.
fn register_path(engine: &mut Engine, served: &FunctionClient, function: ServedFunction) {
    let served = served.clone();
    engine.register_fn(function.name(), move |path: &str| served.call(function, &[text(path)]));
}

/// A function of two texts.
fn register_two(engine: &mut Engine, served: &FunctionClient, function: ServedFunction) {
    let served = served.clone();
    engine.register_fn(function.name(), move |one: &str, other: &str| {
        served.call(function, &[text(one), text(other)])
    });
}

/// `osis_set`, `osis_get`, `osis_delete` and `osis_index`.
fn register_objects(engine: &mut Engine, served: &FunctionClient) {
    let set = served.clone();
    engine.register_fn("osis_set", move |collection: &str, id: &str, object: Map| {
        set.call(ServedFunction::OsisSet, &[text(collection), text(id), object.into()])
    });
    let get = served.clone();
    engine.register_fn("osis_get", move |collection: &str, id: &str| -> EvalResult<Dynamic> {
        let body = get.call(ServedFunction::OsisGet, &[text(collection), text(id)])?;
        match body.as_immutable_string_ref() {
            Ok(body) => from_json(&body, &get.limits).map_err(|error| format!("osis_get: {error}").into()),
            Err(_) => Ok(Dynamic::UNIT),
        }
    });
    register_two(engine, served, ServedFunction::OsisDelete);
    register_two(engine, served, ServedFunction::OsisIndex);
}

/// `osis_list` and `osis_find` as a whole and in pages.
fn register_object_lists(engine: &mut Engine, served: &FunctionClient) {
    register_path(engine, served, ServedFunction::OsisList);
    let page = served.clone();
    engine.register_fn("osis_list", move |collection: &str, after: &str, count: INT| {
        page.call(ServedFunction::OsisList, &[text(collection), text(after), count.into()])
    });
    let all = served.clone();
    engine.register_fn("osis_find", move |collection: &str, field: &str, value: Dynamic| {
        all.call(ServedFunction::OsisFind, &[text(collection), text(field), value])
    });
    let page = served.clone();
    engine.register_fn(
        "osis_find",
        move |collection: &str, field: &str, value: Dynamic, after: &str, count: INT| {
            page.call(
                ServedFunction::OsisFind,
                &[text(collection), text(field), value, text(after), count.into()],
            )
        },
    );
}

/// Files and directories of the job, beside reading and writing, which every script can.
fn register_paths(engine: &mut Engine, served: &FunctionClient) {
    for function in [
        ServedFunction::ListDir,
        ServedFunction::Exists,
        ServedFunction::FileSize,
        ServedFunction::Remove,
        ServedFunction::MakeDir,
    ] {
        register_path(engine, served, function);
    }
    register_two(engine, served, ServedFunction::AppendFile);
    register_two(engine, served, ServedFunction::Copy);
}

/// `run`, with and without arguments and options.
fn register_programs(engine: &mut Engine, served: &FunctionClient) {
    let own = served.clone();
    engine.register_fn("run", move |program: &str| own.call(ServedFunction::Run, &[text(program)]));
    let own = served.clone();
    engine.register_fn("run", move |program: &str, args: Array| {
        own.call(ServedFunction::Run, &[text(program), args.into()])
    });
    let own = served.clone();
    engine.register_fn("run", move |program: &str, args: Array, options: Map| {
        own.call(ServedFunction::Run, &[text(program), args.into(), options.into()])
    });
}

fn register_http(engine: &mut Engine, served: &FunctionClient) {
    register_path(engine, served, ServedFunction::HttpGet);
    let own = served.clone();
    engine.register_fn("http_post", move |url: &str, body: Dynamic| {
        own.call(ServedFunction::HttpPost, &[text(url), body])
    });
    let own = served.clone();
    engine.register_fn("http", move |request: Map| own.call(ServedFunction::Http, &[request.into()]));
}

/// `env(name)`: a variable of the environment that a process of this job would have.
fn register_env(engine: &mut Engine, run: &ScriptRunRequest) {
    let mut all: BTreeMap<String, String> = run.own_env.clone();
    all.extend(run.env.clone());
    engine.register_fn("env", move |name: &str| -> Dynamic {
        all.get(name).map_or(Dynamic::UNIT, |value| Dynamic::from(value.clone()))
    });
}
