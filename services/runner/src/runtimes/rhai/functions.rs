//! What a rhai job can call beside the standard functions.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use model::limits::FILE_BYTES_MAX;
use rhai::{Dynamic, Engine, EvalAltResult, FLOAT, INT, Map, Position};

use crate::results::text_of;
use crate::runtimes::rhai::{ExitCode, Given, Limits};
use crate::workspace::{read_inside, write_inside};

type Outcome<T> = Result<T, Box<EvalAltResult>>;

pub(super) fn register(engine: &mut Engine, dir: &Path, limits: &Limits, given: &Given, code: &ExitCode) {
    register_results(engine, given);
    register_files(engine, dir);
    register_json(engine);
    register_sleep(engine, limits);
    register_exit(engine, code);
}

/// `result(key, value)` and `result(#{ … })`.
fn register_results(engine: &mut Engine, given: &Given) {
    let one = Arc::clone(given);
    engine.register_fn("result", move |key: &str, value: Dynamic| -> Outcome<()> {
        let text = text_of(to_value(&value)?);
        one.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), text);
        Ok(())
    });
    let many = Arc::clone(given);
    engine.register_fn("result", move |values: Map| -> Outcome<()> {
        for (key, value) in values {
            let text = text_of(to_value(&value)?);
            many.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_string(), text);
        }
        Ok(())
    });
}

/// `read_file(path)` and `write_file(path, text)`, inside the job's directory.
fn register_files(engine: &mut Engine, dir: &Path) {
    let from = dir.to_owned();
    engine.register_fn("read_file", move |path: &str| -> Outcome<String> {
        let bytes = read_inside(&from, path, FILE_BYTES_MAX)
            .map_err(|error| format!("read_file(\"{path}\"): {error}"))?;
        String::from_utf8(bytes).map_err(|_| format!("read_file(\"{path}\"): it is not UTF-8").into())
    });
    let to = dir.to_owned();
    engine.register_fn("write_file", move |path: &str, text: &str| -> Outcome<()> {
        write_inside(&to, path, text.as_bytes())
            .map_err(|error| format!("write_file(\"{path}\"): {error}").into())
    });
}

/// `parse_json(text)` and `to_json(value)`, for any value.
fn register_json(engine: &mut Engine) {
    engine.register_fn("parse_json", |text: &str| -> Outcome<Dynamic> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| format!("parse_json: {error}"))?;
        rhai::serde::to_dynamic(value)
    });
    engine.register_fn("to_json", |value: Dynamic| -> Outcome<String> { Ok(to_value(&value)?.to_string()) });
    // The standard library knows it for maps, more specifically and without numbers in full.
    engine.register_fn("to_json", |value: Map| -> Outcome<String> {
        Ok(to_value(&Dynamic::from(value))?.to_string())
    });
}

/// `sleep(seconds)`, which ends with the job.
fn register_sleep(engine: &mut Engine, limits: &Limits) {
    let whole = limits.clone();
    engine.register_fn("sleep", move |secs: INT| -> Outcome<()> {
        sleep(&whole, Duration::from_secs(u64::try_from(secs).unwrap_or(0)))
    });
    let part = limits.clone();
    engine.register_fn("sleep", move |secs: FLOAT| -> Outcome<()> {
        sleep(&part, Duration::try_from_secs_f64(secs).unwrap_or(Duration::ZERO))
    });
}

fn sleep(limits: &Limits, time: Duration) -> Outcome<()> {
    /// Longer than any job may run.
    const AT_MOST: Duration = Duration::from_secs(model::limits::TIMEOUT_SECS_MAX as u64);
    let until = Instant::now() + time.min(AT_MOST);
    limits.interrupt.sleep_until(limits.deadline.map_or(until, |deadline| until.min(deadline)));
    if limits.over() {
        return Err(EvalAltResult::ErrorTerminated(Dynamic::UNIT, Position::NONE).into());
    }
    Ok(())
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

fn to_value(value: &Dynamic) -> Outcome<serde_json::Value> {
    rhai::serde::from_dynamic(value)
}
