//! Names of sagas and what they are filtered by.
//!
//! Everything else of a saga is made of types that only its service knows.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

use model::{CorrelationId, EffectState, SagaName, SagaStatus, TenantId, Violations};

use crate::convert::enums;

/// Name of the one instance that a request is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceName {
    /// Tenant whose instance it is.
    pub tenant: TenantId,
    /// Saga that it is an instance of.
    pub saga: SagaName,
    /// Correlation that its events have in common.
    pub correlation: CorrelationId,
}

/// Parses the tenant of a request: given on a server that has tenants, empty on one that has none.
pub fn tenant(text: &str, has_tenants: bool, violations: &mut Violations) -> Option<TenantId> {
    match (has_tenants, text) {
        (false, "") => Some(TenantId::single()),
        (false, _) => {
            violations.add("tenant_id", "this server has no tenants: it has to be left out");
            None
        }
        (true, "") => {
            violations.add("tenant_id", "is missing: it has to be given");
            None
        }
        (true, text) => violations.take("tenant_id", text.parse()),
    }
}

/// Parses the name of an instance. Parts that are missing are noted by [`crate::required`], those that are no names here.
pub fn instance(
    (tenant_id, saga, correlation_id): (&str, &str, &str),
    has_tenants: bool,
    violations: &mut Violations,
) -> Option<InstanceName> {
    let tenant = tenant(tenant_id, has_tenants, violations);
    let saga = name("saga", saga, violations);
    let correlation = name("correlation_id", correlation_id, violations);
    Some(InstanceName { tenant: tenant?, saga: saga?, correlation: correlation? })
}

/// Parses a name or an id that is given; nothing for an empty text, which a filter has for all, and for one that is none.
pub fn name<T: FromStr<Err: Display>>(field: &str, text: &str, violations: &mut Violations) -> Option<T> {
    if text.is_empty() {
        return None;
    }
    violations.take(field, text.parse())
}

/// Parses a filter of statuses; empty for all of them.
pub fn statuses(field: &str, numbers: &[i32], violations: &mut Violations) -> BTreeSet<SagaStatus> {
    known(field, numbers, enums::saga_status_from_wire, violations)
}

/// Parses a filter of states; empty for all of them.
pub fn states(field: &str, numbers: &[i32], violations: &mut Violations) -> BTreeSet<EffectState> {
    known(field, numbers, enums::effect_state_from_wire, violations)
}

/// Parses a list of numbers that each have a meaning.
fn known<T: Ord>(
    field: &str,
    numbers: &[i32],
    from_wire: impl Fn(i32) -> Option<T>,
    violations: &mut Violations,
) -> BTreeSet<T> {
    let mut found = BTreeSet::new();
    for (i, number) in numbers.iter().enumerate() {
        match from_wire(*number) {
            Some(value) => drop(found.insert(value)),
            None => violations.add(format!("{field}[{i}]"), format!("{number} stands for nothing")),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use model::{CommandId, EffectName};

    use super::*;
    use crate::v1;

    fn fields(violations: &Violations) -> Vec<&str> {
        violations.as_slice().iter().map(|violation| violation.field.as_str()).collect()
    }

    #[test]
    fn statuses_and_states_have_the_same_names_on_the_wire() {
        for status in SagaStatus::ALL {
            let wire = enums::saga_status_to_wire(status);
            assert_eq!(wire.as_str_name(), format!("SAGA_STATUS_{}", status.as_str().to_uppercase()));
            assert_eq!(enums::saga_status_from_wire(wire.into()), Some(status));
        }
        for state in EffectState::ALL {
            let wire = enums::effect_state_to_wire(state);
            assert_eq!(wire.as_str_name(), format!("EFFECT_STATE_{}", state.as_str().to_uppercase()));
            assert_eq!(enums::effect_state_from_wire(wire.into()), Some(state));
        }
        assert_eq!(enums::saga_status_from_wire(0), None);
        assert_eq!(enums::effect_state_from_wire(99), None);
    }

    #[test]
    fn a_tenant_is_given_where_there_are_tenants() {
        let mut violations = Violations::new();
        assert_eq!(tenant("", false, &mut violations), Some(TenantId::single()));
        assert_eq!(tenant("acme", true, &mut violations), "acme".parse().ok());
        assert!(violations.is_empty());
        for (text, has_tenants, why) in
            [("", true, "is missing"), ("acme", false, "no tenants"), ("a.b", true, "not '.'")]
        {
            let mut violations = Violations::new();
            assert_eq!(tenant(text, has_tenants, &mut violations), None, "{text}");
            let found = violations.to_string();
            assert!(found.starts_with("tenant_id: ") && found.contains(why), "{found}");
        }
    }

    #[test]
    fn an_instance_is_named_by_all_of_its_parts() {
        let mut violations = Violations::new();
        let found = instance(("acme", "order", "o:1 é"), true, &mut violations).expect("a good name");
        assert_eq!((found.saga.as_str(), found.correlation.as_str()), ("order", "o:1 é"));
        assert!(violations.is_empty());
        let long = "x".repeat(257);
        assert_eq!(instance(("a b", "or_der", &long), true, &mut violations), None);
        assert_eq!(fields(&violations), ["tenant_id", "saga", "correlation_id"]);
    }

    #[test]
    fn what_is_missing_is_noted_once() {
        let request = v1::GetSagaRequest { tenant_id: "acme".to_owned(), ..Default::default() };
        let mut violations = crate::required::missing(&request);
        let parts = (&*request.tenant_id, &*request.saga, &*request.correlation_id);
        assert_eq!(instance(parts, true, &mut violations), None);
        assert_eq!(fields(&violations), ["saga", "correlation_id"]);
    }

    #[test]
    fn filters_name_what_stands_for_nothing() {
        let mut violations = Violations::new();
        assert_eq!(name::<EffectName>("effect", "", &mut violations), None);
        assert!(statuses("statuses", &[], &mut violations).is_empty() && violations.is_empty());
        assert_eq!(
            statuses("statuses", &[3, 1, 3], &mut violations),
            BTreeSet::from([SagaStatus::Running, SagaStatus::Stuck])
        );
        assert!(violations.is_empty());
        statuses("statuses", &[1, 0], &mut violations);
        states("states", &[77], &mut violations);
        assert_eq!(name::<CommandId>("command_id", "7", &mut violations), None);
        assert_eq!(fields(&violations), ["statuses[1]", "states[0]", "command_id"]);
    }
}
