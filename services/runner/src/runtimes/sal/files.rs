//! Files and directories of the job, beside reading and writing, which every rhai job can.

use std::sync::Arc;

use rhai::{Array, Engine, INT, ImmutableString};

use crate::runtime::Job;
use crate::runtimes::rhai::{Files, Limits, Outcome};

pub(super) fn register(engine: &mut Engine, job: &Arc<Job>, limits: &Limits) {
    let files = Files::of(job, limits);
    let own = files.clone();
    engine.register_fn("append_file", move |path: &str, text: &str| -> Outcome<()> {
        own.append(path, text.as_bytes()).map_err(|why| format!("append_file({path:?}): {why}").into())
    });
    let own = files.clone();
    engine.register_fn("list_dir", move |path: &str| -> Outcome<Array> {
        let names = own.list(path).map_err(|why| format!("list_dir({path:?}): {why}"))?;
        Ok(names.into_iter().map(|name| ImmutableString::from(name).into()).collect())
    });
    let own = files.clone();
    engine.register_fn("exists", move |path: &str| -> Outcome<bool> {
        own.exists(path).map_err(|why| format!("exists({path:?}): {why}").into())
    });
    let own = files.clone();
    engine.register_fn("file_size", move |path: &str| -> Outcome<INT> {
        let bytes = own.size(path).map_err(|why| format!("file_size({path:?}): {why}"))?;
        Ok(INT::try_from(bytes).unwrap_or(INT::MAX))
    });
    let own = files.clone();
    engine.register_fn("remove", move |path: &str| -> Outcome<bool> {
        own.remove(path).map_err(|why| format!("remove({path:?}): {why}").into())
    });
    let own = files.clone();
    engine.register_fn("copy", move |from: &str, to: &str| -> Outcome<()> {
        own.copy(from, to).map_err(|why| format!("copy({from:?}, {to:?}): {why}").into())
    });
    engine.register_fn("make_dir", move |path: &str| -> Outcome<()> {
        files.make_dir(path).map_err(|why| format!("make_dir({path:?}): {why}").into())
    });
}
