//! Facts about instances, and subscriptions to them.

use std::sync::Arc;

use broker::{Headers, Publication};
use saga::facts::{FactHub, FactPosition, FactSubscription, FactsError};
use saga::reads::RowReader;
use testkit::PATIENCE;
use workflow::message::{self, FactMessage};

use crate::streams::publish;
use crate::world::{TENANT, World};

/// Publishes facts of instances that there are not, numbered from here on.
async fn publish_facts(broker: &dyn broker::MessageBroker, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let fact = FactMessage {
            tenant_id: TENANT.to_owned(),
            saga: "order".parse().expect("a name"),
            correlation: format!("o-{number}").parse().expect("a correlation"),
            run: 0,
            revision: 1,
            kind: "started".to_owned(),
            step: "wait".parse().expect("a name"),
            reason: None,
            timestamp: 0,
        };
        let outgoing = Publication {
            subject: format!("tenant.{TENANT}.workflow_event.order.o-{number}"),
            message_id: number.to_string(),
            headers: Headers::new(),
            payload: message::write(&fact).into(),
        };
        publish(broker, outgoing).await;
    }
}

/// Returns the correlations that the next facts are about.
async fn followed(following: &mut FactSubscription, count: usize) -> Vec<String> {
    let mut correlations = Vec::new();
    while correlations.len() < count {
        let changed = tokio::time::timeout(PATIENCE, following.next()).await.expect("in time");
        correlations.push(changed.expect("it goes on").fact.correlation.to_string());
    }
    correlations
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_and_late_followers_get_every_fact_once() {
    let world = World::simulated().await;
    let reads = RowReader::new(Arc::clone(&world.store), Arc::clone(&world.definitions));
    let facts = FactHub::new(Arc::clone(&world.broker), reads, 7);
    let tenant = TENANT.parse().expect("a tenant");
    let expected = |numbers: std::ops::Range<u64>| -> Vec<_> { numbers.map(|n| format!("o-{n}")).collect() };
    let mut slow = facts.follow(&tenant, None).await.expect("followed");
    let mut quick = facts.follow(&tenant, None).await.expect("followed");
    let begin = quick.position();
    // More than one who does not read is kept for.
    let all = 1500;
    publish_facts(&*world.broker, 0..all).await;
    assert_eq!(followed(&mut quick, 1500).await, expected(0..all));
    assert_eq!(followed(&mut slow, 1500).await, expected(0..all));
    let mut late = facts.follow(&tenant, Some(begin)).await.expect("followed");
    publish_facts(&*world.broker, all..all + 3).await;
    assert_eq!(followed(&mut late, 1503).await, expected(0..all + 3));
    for following in [&mut slow, &mut quick] {
        assert_eq!(followed(following, 3).await, expected(all..all + 3));
        assert_eq!(following.position(), late.position());
    }
    // The connection is cut, and nothing is missed.
    let simulated = world.simulated.as_ref().expect("it is simulated");
    simulated.drop_connection();
    publish_facts(&*world.broker, all + 3..all + 5).await;
    assert_eq!(followed(&mut quick, 2).await, expected(all + 3..all + 5));
    let gone = FactPosition { incarnation: 1, ..begin };
    assert_eq!(facts.follow(&tenant, Some(gone)).await.err(), Some(FactsError::Gone));
    let ahead = FactPosition { sequence: 1_000_000, ..begin };
    assert_eq!(facts.follow(&tenant, Some(ahead)).await.err(), Some(FactsError::Gone));
}
