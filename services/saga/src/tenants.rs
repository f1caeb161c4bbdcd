//! Tenants: the context of each, its share of turns, and its quotas.

use std::collections::BTreeMap;
use std::str::FromStr;

use model::TenantId;
use serde::{Deserialize, Serialize};
use yaml::{MappingKeys, Problem, Problems, SourcePosition, YamlEntry, YamlValue};

/// Keys of a tenant.
const TENANT_KEYS: &[&str] = &["context", "weight", "quotas"];
/// Keys of quotas.
const QUOTA_KEYS: &[&str] = &["instances", "starts_per_sec", "open_effects", "timers"];
/// Name of the file in messages.
const KIND: &str = "a tenants file";
/// Largest share.
const WEIGHT_MAX: u32 = 100;

/// Largest quota.
const QUOTA_MAX: u64 = 1_000_000_000;

/// A tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Context whose roles decide about permissions.
    pub context: u32,
    /// Share of turns that the tenant has.
    pub weight: u32,
    /// Quotas of the tenant.
    #[serde(default)]
    pub quotas: Quotas,
}

/// Quotas of a tenant on one replica. At the limit no instance starts; running ones continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    /// Instances that have not ended.
    pub instances: u64,
    /// Instances that start in a second.
    pub starts_per_sec: u64,
    /// Calls of effects that have not ended.
    pub open_effects: u64,
    /// Timers that are set.
    pub timers: u64,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { instances: 100_000, starts_per_sec: 1_000, open_effects: 10_000, timers: 200_000 }
    }
}

impl Quotas {
    /// Quotas without limits: without tenants there are no others to protect.
    pub const UNLIMITED: Self =
        Self { instances: u64::MAX, starts_per_sec: QUOTA_MAX, open_effects: u64::MAX, timers: u64::MAX };
}

impl Tenant {
    /// Makes a tenant of a context with the default share and quotas.
    #[must_use]
    pub fn of(context: u32) -> Self {
        Self { context, weight: 1, quotas: Quotas::default() }
    }
}

/// All tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TenantsRow", into = "TenantsRow")]
pub struct TenantRegistry {
    /// True if subjects and keys name tenants.
    pub has_tenants: bool,
    all: BTreeMap<TenantId, Tenant>,
    /// Contexts of removed tenants: should one come back, its remaining data must belong to the same context.
    gone: BTreeMap<TenantId, u32>,
}

/// Row form of the tenants.
#[derive(Serialize, Deserialize)]
struct TenantsRow {
    tenants: BTreeMap<String, Tenant>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gone: BTreeMap<String, u32>,
}

impl From<TenantRegistry> for TenantsRow {
    fn from(tenants: TenantRegistry) -> Self {
        let TenantRegistry { all, gone, .. } = tenants;
        Self {
            tenants: all.into_iter().map(|(id, tenant)| (id.to_string(), tenant)).collect(),
            gone: gone.into_iter().map(|(id, context)| (id.to_string(), context)).collect(),
        }
    }
}

impl TryFrom<TenantsRow> for TenantRegistry {
    type Error = <TenantId as FromStr>::Err;

    fn try_from(row: TenantsRow) -> Result<Self, Self::Error> {
        Ok(Self { has_tenants: true, all: by_id(row.tenants)?, gone: by_id(row.gone)? })
    }
}

fn by_id<T>(all: BTreeMap<String, T>) -> Result<BTreeMap<TenantId, T>, <TenantId as FromStr>::Err> {
    all.into_iter().map(|(id, found)| id.parse().map(|id| (id, found))).collect()
}

impl TenantRegistry {
    /// Makes the registry without tenants: everything belongs to one context.
    #[must_use]
    pub fn single(context: u32) -> Self {
        let all = BTreeMap::from([(TenantId::single(), Tenant::of(context))]);
        Self { has_tenants: false, all, gone: BTreeMap::new() }
    }

    /// Reads a file, which maps tenants to their contexts; `name` is its name in messages.
    ///
    /// # Errors
    /// Everything that is wrong with the file.
    pub fn read(name: &str, text: &str) -> Result<Self, Problems> {
        Self::read_behind(name, text, None)
    }

    /// Reads a file that replaces other tenants: none may belong to another context than before.
    ///
    /// # Errors
    /// Everything that is wrong with the file.
    pub fn read_behind(name: &str, text: &str, before: Option<&Self>) -> Result<Self, Problems> {
        let tree = yaml::parse(text, KIND).map_err(|problem| Problems::new(name, vec![problem]))?;
        let mut reader = yaml::YamlReader::default();
        let mut all = BTreeMap::new();
        match &tree.value {
            YamlValue::Map(entries) if !entries.is_empty() => {
                let was = |id: &TenantId| before.and_then(|before| before.context_ever(id));
                all.extend(entries.iter().filter_map(|entry| tenant(&mut reader, entry, was)));
            }
            _ => {
                let message =
                    "a tenants file maps tenants to what they are, such as { acme-corp: { context: 7 } }";
                reader.add(Problem::at(SourcePosition::START, message));
            }
        }
        let problems = reader.into_problems();
        if problems.is_empty() {
            let mut gone = before.map(|before| before.gone.clone()).unwrap_or_default();
            let known = before.into_iter().flat_map(|before| &before.all);
            gone.extend(known.map(|(id, tenant)| (id.clone(), tenant.context)));
            gone.retain(|id, _| !all.contains_key(id));
            Ok(Self { has_tenants: true, all, gone })
        } else {
            Err(Problems::new(name, problems))
        }
    }

    /// Makes a copy in which the entry of one tenant comes from `others`.
    #[must_use]
    pub fn with(&self, id: &TenantId, others: &Self) -> Self {
        let mut tenants = self.clone();
        match others.all.get(id) {
            Some(tenant) => {
                tenants.all.insert(id.clone(), *tenant);
                tenants.gone.remove(id);
            }
            None => {
                let left = tenants.all.remove(id).map(|tenant| (id.clone(), tenant.context));
                tenants.gone.extend(left);
            }
        }
        tenants
    }

    /// The context that a tenant belongs to, or belonged to.
    fn context_ever(&self, id: &TenantId) -> Option<u32> {
        self.all.get(id).map(|tenant| tenant.context).or_else(|| self.gone.get(id).copied())
    }

    /// Ids of all tenants.
    #[must_use]
    pub fn ids(&self) -> Vec<TenantId> {
        self.all.keys().cloned().collect()
    }

    /// Ids of all tenants, including removed ones.
    #[must_use]
    pub fn ever(&self) -> Vec<TenantId> {
        self.all.keys().chain(self.gone.keys()).cloned().collect()
    }

    /// The tenant of this id.
    #[must_use]
    pub fn get(&self, id: &TenantId) -> Option<&Tenant> {
        self.all.get(id)
    }

    /// Lists all tenants.
    pub fn iter(&self) -> impl Iterator<Item = (&TenantId, &Tenant)> {
        self.all.iter()
    }
}

fn tenant(
    reader: &mut yaml::YamlReader,
    entry: &YamlEntry,
    was: impl Fn(&TenantId) -> Option<u32>,
) -> Option<(TenantId, Tenant)> {
    let id = entry.key.parse::<TenantId>().map_err(|error| reader.problem(entry.place, error.to_string()));
    let fields =
        reader.fields(&entry.value, &format!("the tenant `{}`", entry.key), MappingKeys::of(TENANT_KEYS));
    let Some(context) = fields.get("context") else {
        if matches!(entry.value.value, YamlValue::Map(_)) {
            let message = format!("the tenant `{}` needs `context`; write `context: 1`", entry.key);
            reader.problem(entry.place, message);
        }
        return None;
    };
    let mut from_one = |entry: &YamlEntry, most: u32, wanted: &str| {
        let number: u32 = reader.whole(entry, wanted)?;
        if number == 0 || number > most {
            reader.wrong_kind(entry, wanted);
        }
        Some(number)
    };
    let place = context.value.place;
    let context = from_one(context, u32::MAX, "the number of a context, from 1 on");
    let weight = match fields.get("weight") {
        Some(entry) => from_one(entry, WEIGHT_MAX, "a whole number from 1 to 100"),
        None => Some(1),
    };
    if let (Ok(id), Some(context)) = (&id, context)
        && let Some(was) = was(id).filter(|was| *was != context)
    {
        let message =
            format!("the tenant `{id}` belongs to the context {was}, and cannot move to another one");
        reader.problem(place, message);
    }
    let quotas = fields.get("quotas").map(|entry| quotas(reader, entry)).unwrap_or_default();
    Some((id.ok()?, Tenant { context: context?, weight: weight?, quotas }))
}

fn quotas(reader: &mut yaml::YamlReader, entry: &YamlEntry) -> Quotas {
    let fields = reader.fields(&entry.value, "`quotas`", MappingKeys::of(QUOTA_KEYS));
    let mut quota = |key: &str, default: u64| {
        let Some(entry) = fields.get(key) else { return default };
        let wanted = "a whole number from 1 to 1000000000";
        match reader.whole(entry, wanted) {
            Some(number @ 1..=QUOTA_MAX) => number,
            Some(_) => {
                reader.wrong_kind(entry, wanted);
                default
            }
            None => default,
        }
    };
    let default = Quotas::default();
    Quotas {
        instances: quota("instances", default.instances),
        starts_per_sec: quota("starts_per_sec", default.starts_per_sec),
        open_effects: quota("open_effects", default.open_effects),
        timers: quota("timers", default.timers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_contexts_and_shares() {
        let tenants =
            TenantRegistry::read("t", "acme: { context: 7, weight: 3 }\nb: { context: 1 }\n").expect("good");
        let of = |id: &str| tenants.get(&id.parse().expect("a tenant")).copied();
        assert_eq!(of("acme"), Some(Tenant { weight: 3, ..Tenant::of(7) }));
        assert_eq!((of("b"), of("c")), (Some(Tenant::of(1)), None));
        let text = "a: { context: 1, quotas: { instances: 3, timers: 9 } }";
        let found =
            TenantRegistry::read("t", text).expect("good").get(&"a".parse().expect("a tenant")).copied();
        let quotas = Quotas { instances: 3, timers: 9, ..Quotas::default() };
        assert_eq!(found, Some(Tenant { quotas, ..Tenant::of(1) }));
        assert!(tenants.has_tenants && !TenantRegistry::single(1).has_tenants);
    }

    #[test]
    fn every_problem_of_a_tenants_file_is_listed_at_once() {
        let text = "a.b: { context: 1 }\nacme: { weight: 0, contxt: 1 }\nc: { context: 0 }\nd: { context: 1, weight: 101 }\ne: { context: 1, quotas: { timers: 0, instance: 1 } }\n";
        let refused = TenantRegistry::read("t.yaml", text).expect_err("wrong").to_string();
        for expected in [
            "t.yaml:1:1: the tenant is made of",
            "has no key `contxt`; did you mean `context`?",
            "the tenant `acme` needs `context`",
            "`context` has to be the number of a context, from 1 on, not `0`",
            "`weight` has to be a whole number from 1 to 100, not `101`",
            "t.yaml:5:36: `timers` has to be a whole number from 1 to 1000000000, not `0`",
            "`quotas` has no key `instance`; did you mean `instances`?",
        ] {
            assert!(refused.contains(expected), "{expected}: {refused}");
        }
        assert!(TenantRegistry::read("t", "[]").is_err());
    }

    #[test]
    fn a_tenant_stays_in_its_context() {
        let read = |text: &str, before: &TenantRegistry| TenantRegistry::read_behind("t", text, Some(before));
        let before = TenantRegistry::read("t", "a: { context: 1 }\nb: { context: 2 }\n").expect("good");
        let refused = read("a: { context: 2 }\n", &before).expect_err("it moved").to_string();
        assert_eq!(
            refused,
            "t:1:15: the tenant `a` belongs to the context 1, and cannot move to another one"
        );
        let without = read("b: { context: 2, weight: 9 }\n", &before).expect("one has gone");
        assert!(
            read("a: { context: 3 }\nb: { context: 2 }\n", &without).is_err(),
            "it comes back as another one"
        );
        assert!(read("a: { context: 1 }\nb: { context: 2 }\n", &without).is_ok());
        // Rows keep the same.
        let row = serde_json::to_string(&without).expect("JSON");
        assert_eq!(serde_json::from_str::<TenantRegistry>(&row).expect("a row"), without);
        // One of them alone.
        let (a, b): (TenantId, TenantId) = ("a".parse().expect("a tenant"), "b".parse().expect("a tenant"));
        let one = before.with(&b, &without);
        assert_eq!((one.get(&a), one.get(&b).map(|b| b.weight)), (Some(&Tenant::of(1)), Some(9)));
        assert_eq!(before.with(&a, &without).ids(), [b]);
    }
}
