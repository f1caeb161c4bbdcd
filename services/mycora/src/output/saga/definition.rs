//! Definitions of sagas.

use proto::v1;

use super::{json_below, or_dash, pairs, short};
use crate::output::table;

/// A list of definitions.
#[must_use]
pub fn list(definitions: &[v1::SagaDefinition]) -> String {
    let rows: Vec<_> = definitions
        .iter()
        .map(|definition| {
            let v1::SagaDefinition { saga, version, definition_hash, shard_count, .. } = definition;
            vec![
                saga.clone(),
                version.to_string(),
                if definition.in_force { "yes" } else { "no" }.to_owned(),
                owner(definition).to_owned(),
                starts(definition),
                shard_count.to_string(),
                short(definition_hash).to_owned(),
            ]
        })
        .collect();
    table::render(&["SAGA", "VERSION", "IN FORCE", "BY", "STARTS", "SHARDS", "HASH"], &rows)
}

const fn owner(definition: &v1::SagaDefinition) -> &'static str {
    if definition.applied_by_tenant { "tenant" } else { "operator" }
}

/// Names what starts an instance, besides a request.
fn starts(definition: &v1::SagaDefinition) -> String {
    let schedule = Some(&definition.schedule).filter(|schedule| !schedule.is_empty());
    let schedule = schedule.map(|schedule| format!("at {schedule}"));
    let events = definition.start_event_types.iter().cloned();
    or_dash(&events.chain(schedule).collect::<Vec<_>>().join(", "))
}

/// Definitions that were put in force.
#[must_use]
pub fn applied(definitions: &[v1::SagaDefinition], request_id: &str) -> String {
    let mut text = String::new();
    for v1::SagaDefinition { saga, version, definition_hash, .. } in definitions {
        let hash = short(definition_hash);
        text.push_str(&format!("the saga `{saga}`, version {version} ({hash}), is in force\n"));
    }
    format!("{text}request {request_id}\n")
}

/// A definition with its manifest.
#[must_use]
pub fn whole(definition: &v1::SagaDefinition, manifest: &str) -> String {
    let migrates = match definition.migrates_from_version {
        0 => String::new(),
        version => format!("instances of version {version}"),
    };
    let rows = vec![
        ("saga", definition.saga.clone()),
        ("version", definition.version.to_string()),
        ("hash", definition.definition_hash.clone()),
        ("in force", if definition.in_force { "yes" } else { "no" }.to_owned()),
        ("applied by", owner(definition).to_owned()),
        ("starts", starts(definition)),
        ("reads", or_dash(&definition.aggregate_types.join(", "))),
        ("effects", or_dash(&definition.effects.join(", "))),
        ("steps", definition.steps.join(", ")),
        ("shards", definition.shard_count.to_string()),
        ("migrates", migrates),
    ];
    [pairs(rows), json_below("manifest", manifest)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_shows_what_starts_it() {
        let definition = v1::SagaDefinition {
            saga: "nightly".into(),
            version: 2,
            definition_hash: "cd".repeat(32),
            in_force: true,
            start_event_types: vec!["DayEnded".into()],
            schedule: "0 3 * * *".into(),
            shard_count: 1,
            ..Default::default()
        };
        let text = list(std::slice::from_ref(&definition));
        assert!(
            text.contains(
                "nightly  2        yes       operator  DayEnded, at 0 3 * * *  1       cdcdcdcdcdcd\n"
            ),
            "{text}"
        );
        let text = whole(&definition, r#"{"kind":"Saga"}"#);
        assert!(
            text.contains("effects     -\n") && text.ends_with("\nmanifest\n{\n  \"kind\": \"Saga\"\n}\n"),
            "{text}"
        );
        let text = applied(&[definition], "5b");
        assert_eq!(text, "the saga `nightly`, version 2 (cdcdcdcdcdcd), is in force\nrequest 5b\n");
    }
}
