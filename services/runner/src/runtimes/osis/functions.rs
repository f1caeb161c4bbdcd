//! What an osis job can call beside what a rhai job can.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rhai::{Array, Dynamic, INT, ImmutableString};
use serde_json::Value;
use service::error_chain;

use super::store::{Page, Patience, Store, StoreError};
use crate::OSIS_STORE_BYTES_MAX;
use crate::engine::to_json;
use crate::runtimes::rhai::{Args, Functions, Limits, Outcome, Refusal};
use crate::wire::Function;

/// What an operation counts as in steps, beside one for each kilobyte that is read or each ten ids.
const STEPS: u64 = 100;

impl Patience for Limits {
    fn lasts(&self) -> bool {
        self.look().is_ok()
    }

    fn wait(&self, time: Duration) -> bool {
        self.wait(time).is_ok()
    }
}

/// The store of a job, opened when it is first asked for something.
pub(super) struct Objects {
    dir: PathBuf,
    limits: Limits,
    store: Mutex<Option<Store<Limits>>>,
}

impl Functions for Objects {
    fn call(&self, function: Function, mut args: Args) -> Outcome<Dynamic> {
        let called = function.name();
        let collection = args.text()?;
        match function {
            Function::OsisSet => {
                let id = args.text()?;
                let Value::Object(object) = sought(called, &args.value()?)? else {
                    return Err(Refusal::Malformed);
                };
                self.with(called, |store| store.set(&collection, &id, &object)).map(|()| Dynamic::UNIT)
            }
            Function::OsisGet => {
                let id = args.text()?;
                let body = self.with(called, |store| store.get(&collection, &id))?;
                let Some(body) = body else { return Ok(Dynamic::UNIT) };
                self.limits.spend(body.len() as u64 / 1024)?;
                Ok(body.into())
            }
            Function::OsisDelete => {
                let id = args.text()?;
                Ok(self.with(called, |store| store.delete(&collection, &id))?.into())
            }
            Function::OsisIndex => {
                let field = args.text()?;
                self.with(called, |store| store.index(&collection, &field)).map(|()| Dynamic::UNIT)
            }
            Function::OsisList => {
                let asked = Asked::read(&mut args)?;
                self.ids(self.with(called, |store| store.list(&collection, asked.page()))?)
            }
            Function::OsisFind => {
                let (field, value) = (args.text()?, sought(called, &args.value()?)?);
                let asked = Asked::read(&mut args)?;
                self.ids(self.with(called, |store| store.find(&collection, &field, &value, asked.page()))?)
            }
            _ => Err(Refusal::Malformed),
        }
    }
}

impl Objects {
    /// Those of the store in `dir`.
    pub(super) fn new(dir: PathBuf, limits: &Limits) -> Self {
        Self { dir, limits: limits.clone(), store: Mutex::default() }
    }

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

    fn ids(&self, ids: Vec<String>) -> Outcome<Dynamic> {
        self.limits.spend(ids.len() as u64 / 10)?;
        Ok(ids.into_iter().map(|id| Dynamic::from(ImmutableString::from(id))).collect::<Array>().into())
    }
}

/// What is asked for of a list: all of it, or a page.
struct Asked(Option<(ImmutableString, INT)>);

impl Asked {
    fn read(args: &mut Args) -> Outcome<Self> {
        if args.is_empty() { Ok(Self(None)) } else { Ok(Self(Some((args.text()?, args.integer()?)))) }
    }

    fn page(&self) -> Option<Page<'_>> {
        let (after, count) = self.0.as_ref()?;
        Some(Page { after, count: usize::try_from(*count).unwrap_or(0) })
    }
}

/// A value that is looked for.
fn sought(called: &str, value: &Dynamic) -> Outcome<Value> {
    to_json(value).map_err(|why| format!("{called}: {why}").into())
}
