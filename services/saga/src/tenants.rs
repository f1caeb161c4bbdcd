//! Tenants: which there are, the context that each belongs to, and its share.

use std::collections::BTreeMap;

use model::TenantId;
use yaml::{Entry, Keys, Place, Problem, Problems, Value};

/// Keys of a tenant.
const TENANT_KEYS: &[&str] = &["context", "weight"];
/// What messages call the file.
const KIND: &str = "a tenants file";
/// A share, at most.
const WEIGHT_MAX: u32 = 100;

/// A tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// The context by whose roles permission is decided.
    pub context: u32,
    /// Its share of turns.
    pub weight: u32,
}

/// All tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenants {
    /// Whether subjects and keys name them.
    pub has_tenants: bool,
    all: BTreeMap<TenantId, Tenant>,
}

impl Tenants {
    /// No tenants: everything belongs to one context.
    #[must_use]
    pub fn single(context: u32) -> Self {
        Self {
            has_tenants: false,
            all: BTreeMap::from([(TenantId::single(), Tenant { context, weight: 1 })]),
        }
    }

    /// Reads a file, which maps tenants to their contexts; `name` is what messages call it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(name: &str, text: &str) -> Result<Self, Problems> {
        let tree = yaml::parse(text, KIND).map_err(|problem| Problems::new(name, vec![problem]))?;
        let mut reader = yaml::Reader::default();
        let mut all = BTreeMap::new();
        match &tree.value {
            Value::Map(entries) if !entries.is_empty() => {
                all.extend(entries.iter().filter_map(|entry| tenant(&mut reader, entry)));
            }
            _ => {
                let message =
                    "a tenants file maps tenants to what they are, such as { acme-corp: { context: 7 } }";
                reader.add(Problem::at(Place::START, message));
            }
        }
        let problems = reader.into_problems();
        if problems.is_empty() {
            Ok(Self { has_tenants: true, all })
        } else {
            Err(Problems::new(name, problems))
        }
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

fn tenant(reader: &mut yaml::Reader, entry: &Entry) -> Option<(TenantId, Tenant)> {
    let id = entry.key.parse::<TenantId>().map_err(|error| reader.problem(entry.place, error.to_string()));
    let fields = reader.fields(&entry.value, &format!("the tenant `{}`", entry.key), Keys::of(TENANT_KEYS));
    let Some(context) = fields.get("context") else {
        if matches!(entry.value.value, Value::Map(_)) {
            let message = format!("the tenant `{}` needs `context`; write `context: 1`", entry.key);
            reader.problem(entry.place, message);
        }
        return None;
    };
    let mut from_one = |entry: &Entry, most: u32, wanted: &str| {
        let number: u32 = reader.whole(entry, wanted)?;
        if number == 0 || number > most {
            reader.wrong_kind(entry, wanted);
        }
        Some(number)
    };
    let context = from_one(context, u32::MAX, "the number of a context, from 1 on");
    let weight = match fields.get("weight") {
        Some(entry) => from_one(entry, WEIGHT_MAX, "a whole number from 1 to 100"),
        None => Some(1),
    };
    Some((id.ok()?, Tenant { context: context?, weight: weight? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_contexts_and_shares() {
        let tenants =
            Tenants::read("t", "acme: { context: 7, weight: 3 }\nb: { context: 1 }\n").expect("good");
        let of = |id: &str| tenants.get(&id.parse().expect("a tenant")).copied();
        assert_eq!(of("acme"), Some(Tenant { context: 7, weight: 3 }));
        assert_eq!((of("b"), of("c")), (Some(Tenant { context: 1, weight: 1 }), None));
        assert!(tenants.has_tenants && !Tenants::single(1).has_tenants);
    }

    #[test]
    fn what_is_wrong_is_told_at_once() {
        let text = "a.b: { context: 1 }\nacme: { weight: 0, contxt: 1 }\nc: { context: 0 }\nd: { context: 1, weight: 101 }\n";
        let refused = Tenants::read("t.yaml", text).expect_err("wrong").to_string();
        for expected in [
            "t.yaml:1:1: the tenant is made of",
            "has no key `contxt`; did you mean `context`?",
            "the tenant `acme` needs `context`",
            "`context` has to be the number of a context, from 1 on, not `0`",
            "`weight` has to be a whole number from 1 to 100, not `101`",
        ] {
            assert!(refused.contains(expected), "{expected}: {refused}");
        }
        assert!(Tenants::read("t", "[]").is_err());
    }
}
