//! What a rhai job can call beside the standard functions.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rhai::{Dynamic, Engine, EvalAltResult, FLOAT, INT, Map, Position};

use super::{ExitCode, Files, Given, Limits, from_json, to_json};
use crate::results::text_of;
use crate::runtime::Job;

/// What a function gives, or what it throws.
pub(crate) type Outcome<T> = Result<T, Box<EvalAltResult>>;

pub(super) fn register(engine: &mut Engine, job: &Job, limits: &Limits, given: &Given, code: &ExitCode) {
    register_results(engine, given);
    register_files(engine, Files::of(job, limits));
    register_json(engine, limits);
    register_sleep(engine, limits);
    register_exit(engine, code);
}

/// `result(key, value)` and `result(#{ … })`.
fn register_results(engine: &mut Engine, given: &Given) {
    let one = Arc::clone(given);
    engine.register_fn("result", move |key: &str, value: Dynamic| -> Outcome<()> {
        let text = text_of(to_json(&value)?);
        one.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), text);
        Ok(())
    });
    let many = Arc::clone(given);
    engine.register_fn("result", move |values: Map| -> Outcome<()> {
        for (key, value) in values {
            let text = text_of(to_json(&value)?);
            many.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_string(), text);
        }
        Ok(())
    });
}

/// `read_file(path)` and `write_file(path, text)`, inside the job's directory.
fn register_files(engine: &mut Engine, files: Files) {
    let from = files.clone();
    engine.register_fn("read_file", move |path: &str| -> Outcome<String> {
        from.read(path).map_err(|why| format!("read_file({path:?}): {why}").into())
    });
    engine.register_fn("write_file", move |path: &str, text: &str| -> Outcome<()> {
        files.write(path, text.as_bytes()).map_err(|why| format!("write_file({path:?}): {why}").into())
    });
}

/// `parse_json(text)` and `to_json(value)`, for any value.
fn register_json(engine: &mut Engine, limits: &Limits) {
    let bounds = limits.clone();
    engine.register_fn("parse_json", move |text: &str| -> Outcome<Dynamic> {
        let read = from_json(text, &bounds);
        bounds.look()?;
        read.map_err(|error| format!("parse_json: {error}").into())
    });
    let text_of = |value: &Dynamic| -> Outcome<String> {
        Ok(to_json(value).map_err(|why| format!("to_json: {why}"))?.to_string())
    };
    engine.register_fn("to_json", move |value: Dynamic| text_of(&value));
    // The standard library knows it for maps, more specifically and without numbers in full.
    engine.register_fn("to_json", move |value: Map| text_of(&Dynamic::from(value)));
}

/// `sleep(seconds)`, which ends with the job.
fn register_sleep(engine: &mut Engine, limits: &Limits) {
    let whole = limits.clone();
    engine.register_fn("sleep", move |secs: INT| {
        whole.sleep(Duration::from_secs(u64::try_from(secs).unwrap_or(0)))
    });
    let part = limits.clone();
    engine.register_fn("sleep", move |secs: FLOAT| {
        part.sleep(Duration::try_from_secs_f64(secs).unwrap_or(Duration::ZERO))
    });
}

/// `exit()`, `exit(code)` and `exit(succeeded)`. The engine's own tells nobody the code.
fn register_exit(engine: &mut Engine, code: &ExitCode) {
    fn end(code: &ExitCode, value: i32) -> Outcome<()> {
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
