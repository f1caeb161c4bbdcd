//! Functions that an osis job can call beside those of a rhai job.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rhai::{Array, Dynamic, INT, ImmutableString};
use serde_json::Value;
use service::error_chain;

use super::store::{CancellationCheck, ObjectPage, ObjectStore, ObjectStoreError};
use crate::OSIS_STORE_BYTES_MAX;
use crate::engine::to_json;
use crate::runtimes::rhai::{
    FunctionArgs, ScriptFunctionError, ScriptFunctionResult, ScriptFunctions, ScriptLimits,
};
use crate::wire::ServedFunction;

/// Steps that an operation counts as, beside one for each kilobyte that is read or each ten ids.
const STEPS: u64 = 100;

impl CancellationCheck for ScriptLimits {
    fn lasts(&self) -> bool {
        self.look().is_ok()
    }

    fn wait(&self, time: Duration) -> bool {
        self.wait(time).is_ok()
    }
}

/// The store of a job, opened when it is first asked for something.
pub(super) struct OsisFunctions {
    dir: PathBuf,
    limits: ScriptLimits,
    store: Mutex<Option<ObjectStore<ScriptLimits>>>,
}

impl ScriptFunctions for OsisFunctions {
    fn call(&self, function: ServedFunction, mut args: FunctionArgs) -> ScriptFunctionResult<Dynamic> {
        let called = function.name();
        let collection = args.text()?;
        match function {
            ServedFunction::OsisSet => {
                let id = args.text()?;
                let Value::Object(object) = sought(called, &args.value()?)? else {
                    return Err(ScriptFunctionError::Malformed);
                };
                self.with(called, |store| store.set(&collection, &id, &object)).map(|()| Dynamic::UNIT)
            }
            ServedFunction::OsisGet => {
                let id = args.text()?;
                let body = self.with(called, |store| store.get(&collection, &id))?;
                let Some(body) = body else { return Ok(Dynamic::UNIT) };
                self.limits.spend(body.len() as u64 / 1024)?;
                Ok(body.into())
            }
            ServedFunction::OsisDelete => {
                let id = args.text()?;
                Ok(self.with(called, |store| store.delete(&collection, &id))?.into())
            }
            ServedFunction::OsisIndex => {
                let field = args.text()?;
                self.with(called, |store| store.index(&collection, &field)).map(|()| Dynamic::UNIT)
            }
            ServedFunction::OsisList => {
                let page_request = ObjectPageRequest::read(&mut args)?;
                self.ids(self.with(called, |store| store.list(&collection, page_request.page()))?)
            }
            ServedFunction::OsisFind => {
                let (field, value) = (args.text()?, sought(called, &args.value()?)?);
                let page_request = ObjectPageRequest::read(&mut args)?;
                self.ids(
                    self.with(called, |store| store.find(&collection, &field, &value, page_request.page()))?,
                )
            }
            _ => Err(ScriptFunctionError::Malformed),
        }
    }
}

impl OsisFunctions {
    /// Those of the store in `dir`.
    pub(super) fn new(dir: PathBuf, limits: &ScriptLimits) -> Self {
        Self { dir, limits: limits.clone(), store: Mutex::default() }
    }

    fn with<T>(
        &self,
        called: &str,
        work: impl FnOnce(&mut ObjectStore<ScriptLimits>) -> Result<T, ObjectStoreError>,
    ) -> ScriptFunctionResult<T> {
        self.limits.spend(STEPS)?;
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match store.as_mut() {
            Some(store) => Ok(store),
            None => ObjectStore::open(&self.dir, OSIS_STORE_BYTES_MAX, self.limits.clone())
                .map(|opened| store.insert(opened)),
        };
        opened.and_then(work).map_err(|error| {
            // If it has to end, that is what it is told.
            let ends = self.limits.look();
            ends.err().unwrap_or_else(|| format!("{called}: {}", error_chain(&error)).into())
        })
    }

    fn ids(&self, ids: Vec<String>) -> ScriptFunctionResult<Dynamic> {
        self.limits.spend(ids.len() as u64 / 10)?;
        Ok(ids.into_iter().map(|id| Dynamic::from(ImmutableString::from(id))).collect::<Array>().into())
    }
}

/// Part of a list that a script asks for: all of it, or a page.
struct ObjectPageRequest(Option<(ImmutableString, INT)>);

impl ObjectPageRequest {
    fn read(args: &mut FunctionArgs) -> ScriptFunctionResult<Self> {
        if args.is_empty() { Ok(Self(None)) } else { Ok(Self(Some((args.text()?, args.integer()?)))) }
    }

    fn page(&self) -> Option<ObjectPage<'_>> {
        let (after, count) = self.0.as_ref()?;
        Some(ObjectPage { after, count: usize::try_from(*count).unwrap_or(0) })
    }
}

/// A value that is looked for.
fn sought(called: &str, value: &Dynamic) -> ScriptFunctionResult<Value> {
    to_json(value).map_err(|why| format!("{called}: {why}").into())
}
