//! The objects of a context: JSON by collection and id, found by indexed fields. One SQLite file, used by
//! whatever runs on the machine at once; each operation is a transaction, on the disk when it returns.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use model::{BlobHash, Name};
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Transaction, TransactionBehavior, params};
use serde_json::{Map, Value};

/// The longest id of an object, and the longest name of a field.
const NAME_BYTES_MAX: usize = 256;
/// The longest value that stands in an index itself; a longer one stands there as its hash.
const INDEXED_BYTES_MAX: usize = 256;
/// The layout below. Another one is not touched.
const LAYOUT: i64 = 1;
/// How often the store asks whether it should go on, in steps of its machine.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;
/// The pause before it tries again what another process is in the way of.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

const CREATE: &str = "
    CREATE TABLE objects (
        collection TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (collection, id));
    CREATE TABLE indexes (collection TEXT NOT NULL, field TEXT NOT NULL, PRIMARY KEY (collection, field))
        WITHOUT ROWID;
    CREATE TABLE entries (
        collection TEXT NOT NULL, field TEXT NOT NULL, value TEXT NOT NULL, id TEXT NOT NULL,
        PRIMARY KEY (collection, field, value, id)) WITHOUT ROWID;
    CREATE INDEX entries_of_object ON entries (collection, id);";

/// Why the store did not do something.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectStoreError {
    /// Not a name, or not an id.
    #[error("{what} {name:?}: {why}")]
    Name {
        /// Kind of thing that it should name.
        what: &'static str,
        /// Name that was given.
        name: String,
        /// Reason why the name is invalid.
        why: String,
    },
    /// Too much for one object.
    #[error("the object has {bytes} bytes as JSON, the limit is {OBJECT_BYTES_MAX}")]
    ObjectTooLarge {
        /// How much.
        bytes: usize,
    },
    /// One collection too many.
    #[error("the context has {COLLECTIONS_MAX} collections, which is the limit")]
    TooManyCollections,
    /// One index too many.
    #[error("the collection has {INDEXES_MAX} indexes, which is the limit")]
    TooManyIndexes,
    /// A field that nobody declared.
    #[error("field {0:?} of the collection is not indexed; call osis_index first")]
    NotIndexed(String),
    /// More than a list may hold.
    #[error("there are more than {PAGE_MAX} ids; ask for pages with (…, after, count)")]
    TooMany,
    /// Not a value that stands in an index.
    #[error("a list or a map cannot be looked for")]
    NotScalar,
    /// The quota.
    #[error("the store of the context is full: it may have {bytes_max} bytes")]
    Full {
        /// How much there may be.
        bytes_max: u64,
    },
    /// A file of another version, or of something else.
    #[error("the store has layout {0}, which this version does not know")]
    Layout(i64),
    /// The script has to end.
    #[error("the script has to end")]
    Stopped,
    /// Something is wrong with the machine.
    #[error("the directory of the store cannot be made")]
    Directory(#[source] std::io::Error),
    /// Something is wrong with the store.
    #[error("the store fails")]
    Database(#[source] rusqlite::Error),
}

/// The most that one object may have as JSON.
pub(crate) const OBJECT_BYTES_MAX: usize = 256 * 1024;
/// The most collections that a context may have.
pub(crate) const COLLECTIONS_MAX: usize = 1000;
/// The most indexes that a collection may have.
pub(crate) const INDEXES_MAX: usize = 16;
/// The most ids that one call gives.
pub(crate) const PAGE_MAX: usize = 10_000;

/// Check whether the store should go on, and how it waits. Runs on the script's thread.
pub(super) trait CancellationCheck: Send {
    /// Returns true while the store should go on.
    fn lasts(&self) -> bool;
    /// Waits; gives whether to go on.
    fn wait(&self, time: Duration) -> bool;
}

/// A page of ids: at most `count` of those after `after`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectPage<'a> {
    pub(super) after: &'a str,
    pub(super) count: usize,
}

/// An open store.
pub(super) struct ObjectStore<P> {
    connection: Connection,
    bytes_max: u64,
    patience: P,
}

type Result<T> = std::result::Result<T, ObjectStoreError>;

impl<P: CancellationCheck + Clone + 'static> ObjectStore<P> {
    /// Opens the store of a context, which is made if there is none.
    pub(super) fn open(dir: &Path, bytes_max: u64, patience: P) -> Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(ObjectStoreError::Directory)?;
        let mut connection =
            Connection::open(dir.join("osis.sqlite3")).map_err(ObjectStoreError::Database)?;
        let progress_patience = patience.clone();
        connection
            .progress_handler(STEPS_BETWEEN_LOOKS, Some(move || !progress_patience.lasts()))
            .map_err(ObjectStoreError::Database)?;
        let mut store = Self { connection, bytes_max, patience };
        store.patiently(|connection, bytes_max| {
            connection.busy_timeout(Duration::ZERO)?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "full")?;
            connection.pragma_update(None, "trusted_schema", false)?;
            let page_size: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
            connection.pragma_update(None, "max_page_count", (signed(bytes_max) / page_size).max(1))?;
            Ok(())
        })?;
        store.change(|change| {
            let layout: i64 = change.pragma_query_value(None, "user_version", |row| row.get(0))?;
            match layout {
                LAYOUT => Ok(Ok(())),
                0 => {
                    change.execute_batch(CREATE)?;
                    change.pragma_update(None, "user_version", LAYOUT)?;
                    Ok(Ok(()))
                }
                other => Ok(Err(ObjectStoreError::Layout(other))),
            }
        })?;
        Ok(store)
    }

    /// Puts an object, in place of the one that was there.
    pub(super) fn set(&mut self, collection: &str, id: &str, object: &Map<String, Value>) -> Result<()> {
        check_collection(collection)?;
        check_name("id", id)?;
        let body = serde_json::to_string(object).map_err(|error| ObjectStoreError::Name {
            what: "object",
            name: id.to_owned(),
            why: error.to_string(),
        })?;
        if body.len() > OBJECT_BYTES_MAX {
            return Err(ObjectStoreError::ObjectTooLarge { bytes: body.len() });
        }
        self.change(|change| {
            if let Err(full) = make_room(change, collection)? {
                return Ok(Err(full));
            }
            change
                .prepare_cached("INSERT OR REPLACE INTO objects (collection, id, body) VALUES (?1, ?2, ?3)")?
                .execute(params![collection, id, body])?;
            forget_entries(change, collection, id)?;
            for field in fields(change, collection)? {
                if let Some(value) = object.get(&field).and_then(indexed) {
                    enter(change, collection, &field, &value, id)?;
                }
            }
            Ok(Ok(()))
        })
    }

    /// The JSON of an object.
    pub(super) fn get(&mut self, collection: &str, id: &str) -> Result<Option<String>> {
        check_collection(collection)?;
        check_name("id", id)?;
        self.patiently(|connection, _| {
            connection
                .prepare_cached("SELECT body FROM objects WHERE collection = ?1 AND id = ?2")?
                .query_row(params![collection, id], |row| row.get(0))
                .optional()
        })
    }

    /// Removes an object; whether it was there.
    pub(super) fn delete(&mut self, collection: &str, id: &str) -> Result<bool> {
        check_collection(collection)?;
        check_name("id", id)?;
        self.change(|change| {
            let removed = change
                .prepare_cached("DELETE FROM objects WHERE collection = ?1 AND id = ?2")?
                .execute(params![collection, id])?;
            forget_entries(change, collection, id)?;
            Ok(Ok(removed > 0))
        })
    }

    /// Ids of a collection in order: a page of them, or all if they are not too many.
    pub(super) fn list(&mut self, collection: &str, page: Option<ObjectPage<'_>>) -> Result<Vec<String>> {
        check_collection(collection)?;
        let (after, count) = bounds(page);
        let ids = self.patiently(|connection, _| {
            connection
                .prepare_cached(
                    "SELECT id FROM objects WHERE collection = ?1 AND id > ?2 ORDER BY id LIMIT ?3",
                )?
                .query_map(params![collection, after, count], |row| row.get(0))?
                .collect()
        })?;
        whole(ids, page)
    }

    /// Ids of the objects whose field has the value, in order.
    pub(super) fn find(
        &mut self,
        collection: &str,
        field: &str,
        value: &Value,
        page: Option<ObjectPage<'_>>,
    ) -> Result<Vec<String>> {
        check_collection(collection)?;
        check_name("field", field)?;
        let value = indexed(value).ok_or(ObjectStoreError::NotScalar)?;
        let (after, count) = bounds(page);
        let ids = self.patiently(|connection, _| {
            // Both in one view of the store.
            let view = connection.transaction()?;
            if !is_indexed(&view, collection, field)? {
                return Ok(None);
            }
            let ids = view
                .prepare_cached(
                    "SELECT id FROM entries WHERE collection = ?1 AND field = ?2 AND value = ?3 AND id > ?4
                     ORDER BY id LIMIT ?5",
                )?
                .query_map(params![collection, field, value, after, count], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            Ok(Some(ids))
        })?;
        whole(ids.ok_or_else(|| ObjectStoreError::NotIndexed(field.to_owned()))?, page)
    }

    /// Declares an index, with the objects that there are. Once is enough.
    pub(super) fn index(&mut self, collection: &str, field: &str) -> Result<()> {
        check_collection(collection)?;
        check_name("field", field)?;
        self.change(|change| {
            if is_indexed(change, collection, field)? {
                return Ok(Ok(()));
            }
            if fields(change, collection)?.len() >= INDEXES_MAX {
                return Ok(Err(ObjectStoreError::TooManyIndexes));
            }
            if let Err(full) = make_room(change, collection)? {
                return Ok(Err(full));
            }
            change.execute("INSERT INTO indexes (collection, field) VALUES (?1, ?2)", [collection, field])?;
            let mut objects = change.prepare("SELECT id, body FROM objects WHERE collection = ?1")?;
            let mut rows = objects.query([collection])?;
            while let Some(row) = rows.next()? {
                let (id, body): (String, String) = (row.get(0)?, row.get(1)?);
                // Only what was such an object was put.
                let object: Map<String, Value> = serde_json::from_str(&body).unwrap_or_default();
                if let Some(value) = object.get(field).and_then(indexed) {
                    enter(change, collection, field, &value, &id)?;
                }
            }
            Ok(Ok(()))
        })
    }

    /// Does something in one transaction: all of it, or nothing.
    fn change<T>(
        &mut self,
        mut work: impl FnMut(&Transaction<'_>) -> rusqlite::Result<Result<T>>,
    ) -> Result<T> {
        self.patiently(|connection, _| {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let outcome = work(&change)?;
            if outcome.is_ok() {
                change.commit()?;
            }
            Ok(outcome)
        })?
    }

    /// Does something as soon as no other process is in the way.
    fn patiently<T>(
        &mut self,
        mut work: impl FnMut(&mut Connection, u64) -> rusqlite::Result<T>,
    ) -> Result<T> {
        loop {
            let error = match work(&mut self.connection, self.bytes_max) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    if !self.patience.wait(BUSY_PAUSE) {
                        return Err(ObjectStoreError::Stopped);
                    }
                }
                Some(ErrorCode::OperationInterrupted) => return Err(ObjectStoreError::Stopped),
                Some(ErrorCode::DiskFull) => {
                    return Err(ObjectStoreError::Full { bytes_max: self.bytes_max });
                }
                _ => return Err(ObjectStoreError::Database(error)),
            }
        }
    }
}

fn check_collection(name: &str) -> Result<()> {
    name.parse::<Name>().map(drop).map_err(|error| ObjectStoreError::Name {
        what: "collection",
        name: name.chars().take(80).collect(),
        why: error.to_string(),
    })
}

fn check_name(what: &'static str, name: &str) -> Result<()> {
    let wrong = |why: &str| {
        let name = name.chars().take(80).collect();
        Err(ObjectStoreError::Name { what, name, why: why.to_owned() })
    };
    match name {
        "" => wrong("it is empty"),
        _ if name.len() > NAME_BYTES_MAX => wrong(&format!("it is longer than {NAME_BYTES_MAX} bytes")),
        _ if name.contains(char::is_control) => wrong("it contains a control character"),
        _ => Ok(()),
    }
}

/// One more than asked for when all are, to see whether these were too many.
fn bounds(page: Option<ObjectPage<'_>>) -> (&str, i64) {
    let (after, count) = page.map_or(("", PAGE_MAX + 1), |page| (page.after, page.count.min(PAGE_MAX)));
    (after, signed(count as u64))
}

/// Converts a count to the database's type.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn whole(ids: Vec<String>, page: Option<ObjectPage<'_>>) -> Result<Vec<String>> {
    if page.is_none() && ids.len() > PAGE_MAX { Err(ObjectStoreError::TooMany) } else { Ok(ids) }
}

/// A scalar as it stands in an index: numbers that are equal are the same.
fn indexed(value: &Value) -> Option<String> {
    let text = match value {
        Value::Array(_) | Value::Object(_) => return None,
        Value::Number(number) => match number.as_f64() {
            // Every integer that a float names exactly.
            #[expect(clippy::cast_possible_truncation, reason = "within the bounds that are looked at")]
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => {
                (float as i64).to_string()
            }
            _ => number.to_string(),
        },
        other => other.to_string(),
    };
    Some(if text.len() > INDEXED_BYTES_MAX {
        format!("sha256 {}", BlobHash::of(text.as_bytes()))
    } else {
        text
    })
}

/// Lets one more collection in, unless it is known already.
fn make_room(change: &Transaction<'_>, collection: &str) -> rusqlite::Result<Result<()>> {
    let known = "SELECT EXISTS (SELECT 1 FROM objects WHERE collection = ?1)
                     OR EXISTS (SELECT 1 FROM indexes WHERE collection = ?1)";
    if change.prepare_cached(known)?.query_row([collection], |row| row.get(0))? {
        return Ok(Ok(()));
    }
    let count: i64 = change
        .prepare_cached(
            "SELECT count(*) FROM (SELECT collection FROM objects UNION SELECT collection FROM indexes)",
        )?
        .query_row([], |row| row.get(0))?;
    Ok(if count >= signed(COLLECTIONS_MAX as u64) {
        Err(ObjectStoreError::TooManyCollections)
    } else {
        Ok(())
    })
}

fn fields(change: &Transaction<'_>, collection: &str) -> rusqlite::Result<Vec<String>> {
    change
        .prepare_cached("SELECT field FROM indexes WHERE collection = ?1")?
        .query_map([collection], |row| row.get(0))?
        .collect()
}

fn is_indexed(view: &Transaction<'_>, collection: &str, field: &str) -> rusqlite::Result<bool> {
    view.prepare_cached("SELECT EXISTS (SELECT 1 FROM indexes WHERE collection = ?1 AND field = ?2)")?
        .query_row([collection, field], |row| row.get(0))
}

fn enter(
    change: &Transaction<'_>,
    collection: &str,
    field: &str,
    value: &str,
    id: &str,
) -> rusqlite::Result<()> {
    change
        .prepare_cached("INSERT INTO entries (collection, field, value, id) VALUES (?1, ?2, ?3, ?4)")?
        .execute([collection, field, value, id])?;
    Ok(())
}

fn forget_entries(change: &Transaction<'_>, collection: &str, id: &str) -> rusqlite::Result<()> {
    change
        .prepare_cached("DELETE FROM entries WHERE collection = ?1 AND id = ?2")?
        .execute([collection, id])?;
    Ok(())
}

#[cfg(test)]
mod tests;
