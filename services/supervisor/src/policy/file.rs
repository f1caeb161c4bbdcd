//! The text of a policy:
//!
//! ```toml
//! [default]
//! script_types = ["python", "rhai"]
//! network = false
//! isolation = "confined"
//!
//! [contexts.0123456789abcdef0123456789abcdef]
//! network = true
//! memory_mib = 4096
//! ```
//!
//! A key that `[default]` leaves out is as without a policy; a key that a context leaves out is as in `[default]`.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::str::FromStr;

use identity::VerifyingKey;
use model::{AddressRange, ContextUid, Isolation, ScriptType, Violations};
use toml::{Table, Value};

use super::{ContextPolicy, PolicyRules};

const MIB: u64 = 1024 * 1024;
/// From the minimum for a Python script to 16 TiB.
const MEMORY_MIB: RangeInclusive<u64> = 16..=16 * 1024 * 1024;
const PROCESSES: RangeInclusive<u64> = 1..=1_000_000;
const DISK_MIB: RangeInclusive<u64> = 1..=16 * 1024 * 1024;
/// Turns of a context for one of another.
const WEIGHT: RangeInclusive<u64> = 1..=1000;
/// Entries of one list.
const LIST_LEN_MAX: usize = 1000;
/// One host, in characters: a domain name and a port.
const HOST_CHARS_MAX: usize = 260;

const KEYS: [&str; 14] = [
    "allow",
    "script_types",
    "network",
    "isolation",
    "memory_mib",
    "processes",
    "disk_mib",
    "context_disk_mib",
    "weight",
    "hosts",
    "addresses",
    "coordinators",
    "require_actor_signature",
    "actor_keys",
];

pub(super) fn parse(text: &str) -> Result<PolicyRules, Violations> {
    let mut wrong = Violations::new();
    let file: Option<Table> = match toml::from_str(text) {
        Ok(file) => Some(file),
        Err(error) => {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            wrong.add(format!("line {}", before.matches('\n').count() + 1), error.message());
            None
        }
    };
    let rules = file.map(|file| rules(&file, &mut wrong));
    wrong.into_result(rules)
}

fn rules(file: &Table, wrong: &mut Violations) -> PolicyRules {
    for key in file.keys().filter(|key| !["default", "contexts"].contains(&key.as_str())) {
        wrong.add(key, "there are only `default` and `contexts`");
    }
    let empty = Table::new();
    let section = |name: &str, wrong: &mut Violations| match file.get(name) {
        None => empty.clone(),
        Some(Value::Table(table)) => table.clone(),
        Some(_) => {
            wrong.add(name, "has to be a table");
            Table::new()
        }
    };
    let default = section("default", wrong);
    let default = PolicyReader { table: &default, path: "default", wrong }.rule(&ContextPolicy::default());
    let mut rules = PolicyRules { default, ..PolicyRules::default() };
    for (uid, table) in section("contexts", wrong) {
        let path = format!("contexts.{uid}");
        let context = uid.parse().map(ContextUid);
        let context = context.map_err(|_| "a context is named by its uid, 32 hex digits in small letters");
        let context = wrong.take(&path, context);
        let Value::Table(table) = table else {
            wrong.add(path, "has to be a table");
            continue;
        };
        let rule = PolicyReader { table: &table, path: &path, wrong }.rule(&rules.default);
        if let Some(context) = context {
            rules.contexts.insert(context, rule);
        }
    }
    rules
}

/// Reads one table, and collects its violations.
struct PolicyReader<'a> {
    table: &'a Table,
    path: &'a str,
    wrong: &'a mut Violations,
}

impl PolicyReader<'_> {
    /// Reads a rule; keys that the table leaves out are as in `base`.
    fn rule(&mut self, base: &ContextPolicy) -> ContextPolicy {
        for key in self.table.keys().filter(|key| !KEYS.contains(&key.as_str())) {
            self.wrong
                .add(format!("{}.{key}", self.path), format!("no such key; there are {}", KEYS.join(", ")));
        }
        let mut rule = base.clone();
        let grants = &mut rule.grants;
        set(&mut rule.allow, self.boolean("allow"));
        set(&mut grants.network, self.boolean("network"));
        set(&mut grants.isolation, self.isolation());
        set(&mut grants.memory_bytes, self.number("memory_mib", MEMORY_MIB).map(|mib| mib * MIB));
        set(&mut grants.disk_bytes, self.number("disk_mib", DISK_MIB).map(|mib| mib * MIB));
        let context_disk = self.number("context_disk_mib", DISK_MIB);
        set(&mut grants.context_disk_bytes, context_disk.map(|mib| mib * MIB));
        let processes = self.number("processes", PROCESSES);
        set(&mut grants.processes, processes.and_then(|count| u32::try_from(count).ok()));
        let weight = self.number("weight", WEIGHT).and_then(|weight| u32::try_from(weight).ok());
        set(&mut rule.weight, weight.and_then(NonZeroU32::new));
        let grants = &mut rule.grants;
        set(&mut grants.hosts, self.list("hosts", |text| host(text).map(str::to_owned)));
        let addresses =
            self.list("addresses", |text| AddressRange::from_str(text).map_err(|e| e.to_string()));
        set(&mut grants.addresses, addresses);
        if let Some(types) =
            self.list("script_types", |text| ScriptType::from_str(text).map_err(|e| e.to_string()))
        {
            rule.script_types = Some(types.into_iter().collect());
        }
        if let Some(coordinators) =
            self.list("coordinators", |text| key("a coordinator is its root key", text))
        {
            rule.coordinators = Some(BTreeSet::from_iter(coordinators));
        }
        if let Some(actors) = self.list("actor_keys", |text| key("an actor is its key", text)) {
            rule.actor_keys = Some(BTreeSet::from_iter(actors));
            // A list of keys implies that unsigned jobs are not accepted.
            rule.require_actor_signature = true;
        }
        set(&mut rule.require_actor_signature, self.boolean("require_actor_signature"));
        rule
    }

    fn note(&mut self, key: &str, what: impl std::fmt::Display) {
        self.wrong.add(format!("{}.{key}", self.path), what);
    }

    fn boolean(&mut self, key: &str) -> Option<bool> {
        let value = self.table.get(key)?;
        let read = value.as_bool();
        if read.is_none() {
            self.note(key, "has to be true or false");
        }
        read
    }

    fn number(&mut self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.table.get(key)?;
        let read = value.as_integer().and_then(|number| u64::try_from(number).ok());
        let read = read.filter(|number| range.contains(number));
        if read.is_none() {
            self.note(key, format!("has to be a number from {} to {}", range.start(), range.end()));
        }
        read
    }

    fn isolation(&mut self) -> Option<Isolation> {
        let value = self.table.get("isolation")?;
        let Some(text) = value.as_str() else {
            self.note("isolation", "has to be a text");
            return None;
        };
        text.parse().map_err(|error| self.note("isolation", error)).ok()
    }

    fn list<T>(&mut self, key: &str, read: impl Fn(&str) -> Result<T, String>) -> Option<Vec<T>> {
        let value = self.table.get(key)?;
        let Some(entries) = value.as_array().filter(|entries| entries.len() <= LIST_LEN_MAX) else {
            self.note(key, format!("has to be a list of at most {LIST_LEN_MAX} texts"));
            return None;
        };
        let mut list = Vec::with_capacity(entries.len());
        for (at, entry) in entries.iter().enumerate() {
            match entry.as_str().map(&read) {
                Some(Ok(entry)) => list.push(entry),
                Some(Err(error)) => self.note(&format!("{key}[{at}]"), error),
                None => self.note(&format!("{key}[{at}]"), "has to be a text"),
            }
        }
        Some(list)
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// `*`, `example.com`, `*.example.com`, `10.0.0.7`, `[::1]`, each with `:port` or without.
fn host(text: &str) -> Result<&str, String> {
    let star = text.strip_prefix('*');
    let rest = match star {
        Some(rest) if rest.is_empty() || rest.starts_with(':') => return Ok(text),
        Some(rest) => rest.strip_prefix('.').unwrap_or("*"),
        None => text,
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
    if rest.is_empty() || rest.len() > HOST_CHARS_MAX || !rest.chars().all(good) {
        return Err("a host is `*`, a name, `*.` and a name, or an address, and `:port` when it is only one"
            .to_owned());
    }
    Ok(text)
}

/// Checks a public key of a coordinator or an actor.
fn key(what: &str, text: &str) -> Result<String, String> {
    match text.parse::<VerifyingKey>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{what}: {error}")),
    }
}
