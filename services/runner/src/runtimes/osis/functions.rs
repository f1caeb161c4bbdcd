//! What an osis job can call beside what a rhai job can.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rhai::{Array, Dynamic, Engine, INT, ImmutableString, Map};
use serde_json::Value;
use service::error_chain;

use super::store::{Page, Patience, Store, StoreError};
use crate::OSIS_STORE_BYTES_MAX;
use crate::runtimes::rhai::{Limits, Outcome, from_json, to_json};

/// What an operation counts as in steps, beside one for each kilobyte that is read or each ten ids.
const STEPS: u64 = 100;

impl Patience for Limits {
    fn lasts(&self) -> bool {
        self.look().is_ok()
    }

    fn wait(&self, time: Duration) -> bool {
        self.sleep(time).is_ok()
    }
}

/// The store of a job, opened when it is first asked for something.
#[derive(Clone)]
struct Objects {
    dir: PathBuf,
    limits: Limits,
    store: Arc<Mutex<Option<Store<Limits>>>>,
}

impl Objects {
    fn with<T>(
        &self,
        called: &str,
        work: impl FnOnce(&mut Store<Limits>) -> Result<T, StoreError>,
    ) -> Outcome<T> {
        self.limits.spend(STEPS)?;
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match store.as_mut() {
            Some(store) => Ok(store),
            None => Store::open(&self.dir, OSIS_STORE_BYTES_MAX, self.limits.clone())
                .map(|opened| store.insert(opened)),
        };
        opened.and_then(work).map_err(|error| {
            // If it has to end, that is what it is told.
            let ends = self.limits.look();
            ends.err().unwrap_or_else(|| format!("{called}: {}", error_chain(&error)).into())
        })
    }

    fn ids(&self, ids: Vec<String>) -> Outcome<Array> {
        self.limits.spend(ids.len() as u64 / 10)?;
        Ok(ids.into_iter().map(|id| ImmutableString::from(id).into()).collect())
    }
}

fn page(after: &str, count: INT) -> Page<'_> {
    Page { after, count: usize::try_from(count).unwrap_or(0) }
}

/// A value that is looked for.
fn sought(called: &str, value: &Dynamic) -> Outcome<Value> {
    to_json(value).map_err(|why| format!("{called}: {why}").into())
}

pub(super) fn register(engine: &mut Engine, dir: &Path, limits: &Limits) {
    let objects = Objects { dir: dir.to_owned(), limits: limits.clone(), store: Arc::default() };
    register_objects(engine, &objects);
    register_lists(engine, &objects);
}

/// `osis_set`, `osis_get` and `osis_delete`.
fn register_objects(engine: &mut Engine, objects: &Objects) {
    let all = objects.clone();
    engine.register_fn("osis_set", move |collection: &str, id: &str, object: Map| -> Outcome<()> {
        let Value::Object(object) = sought("osis_set", &Dynamic::from(object))? else {
            return Err("osis_set: an object is a map".into());
        };
        all.with("osis_set", |store| store.set(collection, id, &object))
    });
    let all = objects.clone();
    engine.register_fn("osis_get", move |collection: &str, id: &str| -> Outcome<Dynamic> {
        let Some(body) = all.with("osis_get", |store| store.get(collection, id))? else {
            return Ok(Dynamic::UNIT);
        };
        all.limits.spend(body.len() as u64 / 1024)?;
        from_json(&body, &all.limits).map_err(|error| format!("osis_get: {error}").into())
    });
    let all = objects.clone();
    engine.register_fn("osis_delete", move |collection: &str, id: &str| {
        all.with("osis_delete", |store| store.delete(collection, id))
    });
}

/// `osis_index`, and `osis_list` and `osis_find` as a whole and in pages.
fn register_lists(engine: &mut Engine, objects: &Objects) {
    let all = objects.clone();
    engine.register_fn("osis_index", move |collection: &str, field: &str| {
        all.with("osis_index", |store| store.index(collection, field))
    });
    let all = objects.clone();
    engine.register_fn("osis_list", move |collection: &str| -> Outcome<Array> {
        all.ids(all.with("osis_list", |store| store.list(collection, None))?)
    });
    let all = objects.clone();
    engine.register_fn("osis_list", move |collection: &str, after: &str, count: INT| -> Outcome<Array> {
        all.ids(all.with("osis_list", |store| store.list(collection, Some(page(after, count))))?)
    });
    let all = objects.clone();
    engine.register_fn("osis_find", move |collection: &str, field: &str, value: Dynamic| -> Outcome<Array> {
        let value = sought("osis_find", &value)?;
        all.ids(all.with("osis_find", |store| store.find(collection, field, &value, None))?)
    });
    let all = objects.clone();
    engine.register_fn(
        "osis_find",
        move |collection: &str, field: &str, value: Dynamic, after: &str, count: INT| -> Outcome<Array> {
            let value = sought("osis_find", &value)?;
            let page = Some(page(after, count));
            all.ids(all.with("osis_find", |store| store.find(collection, field, &value, page))?)
        },
    );
}
