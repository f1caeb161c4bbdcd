//! Names of dead letters within their tenant.

use std::fmt;

use model::TenantId;
use workflow::key::{RowKeyPart, StoreTable};
use workflow::{LaneRowKey, WorkflowLane};

/// Name of a dead letter: its lane, and its key there. Written without the tenant: `s:order:0:o-1:00000000000000000007`,
/// `e:pay:0:-:00000000000000000912`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterName {
    /// The lane.
    pub lane: WorkflowLane,
    /// The key within it.
    pub key: LaneRowKey,
}

impl DeadLetterName {
    /// Parses a name; `None` for a text that names no dead letter.
    #[must_use]
    pub fn parse(text: &str, tenant: &TenantId) -> Option<Self> {
        let mut parts = text.split(':');
        let (kind, name, shard) = (parts.next()?, parts.next()?, parts.next()?);
        let (correlation, number) = (parts.next()?, parts.next()?);
        let tenant = tenant.clone();
        let lane = match kind {
            "s" => WorkflowLane::Saga { tenant, saga: name.parse().ok()?, shard: shard.parse().ok()? },
            "e" => WorkflowLane::Effect { tenant, effect: name.parse().ok()? },
            _ => return None,
        };
        let key = LaneRowKey::of_store(format!("{}:{correlation}:{number}", StoreTable::Dead.as_str()));
        let found = Self { lane, key };
        // Only the canonical form: a letter has one name, and no other text reaches the store.
        let is_letter =
            matches!(found.key.parts().as_deref(), Some([_, RowKeyPart::Text(number)]) if is_number(number));
        (is_letter && found.to_string() == text).then_some(found)
    }

    /// The number of the letter among those of its correlation.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.key.as_str().rsplit(':').next()?.parse().ok()
    }
}

fn is_number(text: &str) -> bool {
    text.len() == 20 && text.parse::<u64>().is_ok()
}

impl fmt::Display for DeadLetterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_str().split_once(':').map_or("", |(_, parts)| parts);
        match &self.lane {
            WorkflowLane::Saga { saga, shard, .. } => write!(f, "s:{saga}:{shard}:{key}"),
            WorkflowLane::Effect { effect, .. } => write!(f, "e:{effect}:0:{key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::CorrelationId;

    use super::*;

    fn tenant() -> TenantId {
        "acme".parse().expect("a tenant")
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let saga = WorkflowLane::Saga { tenant: tenant(), saga: "order".parse().expect("a name"), shard: 3 };
        let effect = WorkflowLane::Effect { tenant: tenant(), effect: "pay".parse().expect("a name") };
        for (lane, correlation, expected) in [
            (&saga, "o-1", "s:order:3:o-1:00000000000000000007".to_owned()),
            (&effect, "-", "e:pay:0:-:00000000000000000007".to_owned()),
            (&saga, "a:b.*>%\0", "s:order:3:a%3Ab.%2A%3E%25%00:00000000000000000007".to_owned()),
        ] {
            let correlation: CorrelationId = correlation.parse().expect("a correlation");
            let name = DeadLetterName { lane: lane.clone(), key: LaneRowKey::dead(&correlation, 7) };
            assert_eq!(name.to_string(), expected);
            assert_eq!(DeadLetterName::parse(&expected, &tenant()), Some(name.clone()));
            assert_eq!(name.number(), Some(7));
        }
        let long: CorrelationId = ":".repeat(256).parse().expect("a correlation");
        let name = DeadLetterName { lane: saga, key: LaneRowKey::dead(&long, 0) };
        assert_eq!(DeadLetterName::parse(&name.to_string(), &tenant()), Some(name));
    }

    #[test]
    fn nothing_else_is_a_name() {
        for text in [
            "",
            "s",
            "s:order:0:o-1",
            "s:order:0:o-1:7",
            "s:order:0:o 1:00000000000000000007",
            "s:order:00:o-1:00000000000000000007",
            "s:order:256:o-1:00000000000000000007",
            "e:pay:1:-:00000000000000000007",
            "x:pay:0:-:00000000000000000007",
            "s:acme:order:0:o-1:00000000000000000007",
            "s:order:0:%41:00000000000000000007",
            "s:order:0:o-1:0000000000000000000x",
            "s:order:0:o-1:99999999999999999999",
            "s:order:0:o-1:00000000000000000007:x",
        ] {
            assert_eq!(DeadLetterName::parse(text, &tenant()), None, "{text}");
        }
    }
}
