//! Manifests and what is wrong with them.

use proto::v1;
use workflow::definition::Saga;
use yaml::Problems;

/// Converts a definition that need not be in force to what callers see.
#[must_use]
pub fn definition(saga: &Saga) -> v1::SagaDefinition {
    v1::SagaDefinition {
        saga: saga.name.to_string(),
        version: saga.version,
        definition_hash: saga.hash.to_string(),
        in_force: false,
        applied_by_tenant: false,
        shard_count: saga.shards.into(),
        start_event_types: saga.start.on.iter().cloned().collect(),
        schedule: saga.start.schedule.as_ref().map(|schedule| schedule.cron.clone()).unwrap_or_default(),
        aggregate_types: saga.sources.iter().map(|source| source.aggregate.clone()).collect(),
        effects: saga.effects().into_iter().map(ToString::to_string).collect(),
        steps: saga.steps.keys().map(ToString::to_string).collect(),
        migrates_from_version: saga.migrate.as_ref().map_or(0, |migrate| migrate.from),
    }
}

/// Converts what is wrong with a file to what callers see.
#[must_use]
pub fn problems(found: &Problems) -> Vec<v1::ManifestProblem> {
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let problem = |problem: &yaml::Problem| v1::ManifestProblem {
        file: found.file().to_owned(),
        line: problem.place.map_or(0, |place| number(place.line)),
        column: problem.place.map_or(0, |place| number(place.column)),
        message: problem.message.clone(),
    };
    found.as_slice().iter().map(problem).collect()
}
