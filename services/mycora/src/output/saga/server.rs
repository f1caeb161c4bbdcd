//! The service and its tenants.

use proto::v1;

use super::{below, moment, or_dash, pairs};
use crate::output::{labels, table};

/// A tenant, as it was paused or resumed.
#[must_use]
pub fn tenant(tenant: &v1::SagaTenant, request_id: &str) -> String {
    let rows = vec![
        ("tenant", or_dash(&tenant.tenant_id)),
        ("context", tenant.context_id.to_string()),
        (
            "paused",
            if tenant.paused { format!("since {}", moment(tenant.pause_time)) } else { "no".to_owned() },
        ),
        ("request id", request_id.to_owned()),
    ];
    pairs(rows)
}

/// How far a drain is.
#[must_use]
pub fn drained(answer: &v1::SagaServiceDrainResponse, tenant: &str, request_id: &str) -> String {
    let v1::SagaServiceDrainResponse { lane_count, input_count, call_count, drain_deadline_time } = answer;
    let what = match tenant {
        "" => "the service, which ends then".to_owned(),
        tenant => format!("the lanes of tenant {tenant}, on this replica"),
    };
    let rows = vec![
        ("drained", what),
        ("lanes left", lane_count.to_string()),
        ("inputs left", input_count.to_string()),
        ("calls left", call_count.to_string()),
        ("given up at", moment(*drain_deadline_time)),
        ("request id", request_id.to_owned()),
    ];
    pairs(rows)
}

/// Describes what a reload changed, or would change.
#[must_use]
pub fn reloaded(answer: &v1::SagaServiceReloadResponse, dry_run: bool, request_id: &str) -> String {
    let mut text: String = answer.changes.iter().map(change).collect();
    if answer.changes.is_empty() {
        text = "everything is as it was\n".to_owned();
    }
    let end =
        if dry_run { "dry run: nothing was changed\n".to_owned() } else { format!("request {request_id}\n") };
    [text, end].concat()
}

fn change(change: &v1::SagaReloadChange) -> String {
    let kind = match change.kind() {
        v1::SagaReloadKind::Unspecified => "thing",
        v1::SagaReloadKind::Saga => "saga",
        v1::SagaReloadKind::Provider => "provider",
        v1::SagaReloadKind::Tenant => "tenant",
    };
    let version = |number: u32| if number == 0 { String::new() } else { format!(" version {number}") };
    let (old, new) = (version(change.old_version), version(change.new_version));
    let became = match (change.was_in_force, change.in_force) {
        (false, true) => format!("new{new}"),
        (true, false) => format!("gone{}", if old.is_empty() { old } else { format!(", was{old}") }),
        _ if old.is_empty() && new.is_empty() => "changed".to_owned(),
        _ => format!("{} instead of{old}", new.trim_start()),
    };
    format!("{}\n", table::shown_whole(&format!("{kind} {}: {became}", change.name)))
}

/// The service as it describes itself.
#[must_use]
pub fn whole(answer: &v1::GetSagaServerResponse) -> String {
    let store = answer.store.clone().unwrap_or_default();
    let broker = answer.broker.clone().unwrap_or_default();
    // A store does not always report its version.
    let kind = format!("{} {}", store.kind, store.version);
    let shared = if store.shared { "shared" } else { "of this process" };
    let connected = if broker.connected { "connected" } else { "not connected" };
    let problems = match answer.problems.as_slice() {
        [] => "none".to_owned(),
        problems => labels::count(problems.len(), "problem", "problems"),
    };
    let drains = match (answer.draining, answer.drain_deadline_time) {
        (false, _) => String::new(),
        (true, None) => "yes".to_owned(),
        (true, deadline) => format!("until {}", moment(deadline)),
    };
    let rows = vec![
        ("replica", answer.replica.clone()),
        ("version", answer.version.clone()),
        ("roles", roles(answer.roles())),
        ("tenants", if answer.single_tenant { "none: tenancy is single" } else { "by name" }.to_owned()),
        ("problems", problems),
        ("drains", drains),
        ("lanes", answer.lane_count.to_string()),
        ("sagas", answer.saga_count.to_string()),
        ("effects", answer.effect_count.to_string()),
        ("store", format!("{}, {shared}, {}", kind.trim_end(), store.durability)),
        ("broker", format!("NATS {}, {connected}", or_dash(&broker.version))),
    ];
    let problems: Vec<_> = answer.problems.iter().map(|problem| vec![problem.clone()]).collect();
    let problems = match problems.as_slice() {
        [] => String::new(),
        problems => format!("\n{}", table::render_whole(&["PROBLEM"], problems)),
    };
    let replicas: Vec<_> = answer
        .replicas
        .iter()
        .map(|replica| {
            let v1::SagaReplica { name, version, .. } = replica;
            vec![name.clone(), version.clone(), roles(replica.roles()), moment(replica.last_seen_time)]
        })
        .collect();
    [pairs(rows), problems, below(&["REPLICA", "VERSION", "ROLES", "LAST SEEN"], &replicas)].concat()
}

fn roles(roles: impl Iterator<Item = v1::SagaServerRole>) -> String {
    let names = roles.map(|role| match role {
        v1::SagaServerRole::Unspecified => "unknown",
        v1::SagaServerRole::Saga => "sagas",
        v1::SagaServerRole::Effect => "effects",
    });
    or_dash(&names.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unhealthy_service_shows_its_problems() {
        let answer = v1::GetSagaServerResponse {
            replica: "saga-1".into(),
            roles: vec![v1::SagaServerRole::Saga.into(), v1::SagaServerRole::Effect.into()],
            problems: vec!["nats: not connected".into()],
            store: Some(v1::SagaStore {
                kind: "mdbx".into(),
                version: "0.13".into(),
                shared: false,
                durability: "synced".into(),
            }),
            replicas: vec![v1::SagaReplica { name: "saga-1".into(), ..Default::default() }],
            ..Default::default()
        };
        let text = whole(&answer);
        assert!(text.contains("roles     sagas, effects\n"), "{text}");
        assert!(text.contains("store     mdbx 0.13, of this process, synced\n"), "{text}");
        assert!(text.contains("broker    NATS -, not connected\n"), "{text}");
        assert!(text.contains("\nPROBLEM\nnats: not connected\n\nREPLICA"), "{text}");
    }

    #[test]
    fn changes_of_a_reload_are_listed_by_name() {
        let change = |was, is, old, new| v1::SagaReloadChange {
            kind: v1::SagaReloadKind::Saga.into(),
            name: "order".into(),
            was_in_force: was,
            in_force: is,
            old_version: old,
            new_version: new,
        };
        let changes = vec![change(false, true, 0, 1), change(true, true, 1, 2), change(true, false, 2, 0)];
        let text = reloaded(&v1::SagaServiceReloadResponse { changes, problems: vec![] }, false, "5b");
        let expected = "saga order: new version 1\nsaga order: version 2 instead of version 1\n\
                        saga order: gone, was version 2\nrequest 5b\n";
        assert_eq!(text, expected);
        let text = reloaded(&v1::SagaServiceReloadResponse::default(), true, "5b");
        assert_eq!(text, "everything is as it was\ndry run: nothing was changed\n");
    }

    #[test]
    fn a_paused_tenant_shows_the_time_of_its_pause() {
        let time = Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 });
        let paused =
            v1::SagaTenant { tenant_id: "acme".into(), context_id: 7, paused: true, pause_time: time };
        let text = tenant(&paused, "5b");
        assert!(text.contains("paused      since 2027-01-15 08:00:00 UTC\n"), "{text}");
        let text = drained(&v1::SagaServiceDrainResponse::default(), "acme", "5b");
        assert!(text.contains("drained      the lanes of tenant acme, on this replica\n"), "{text}");
    }
}
