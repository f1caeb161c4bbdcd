//! Removal of versions that no instance runs on any more.

use std::sync::Arc;
use std::time::Duration;

use model::BlobHash;
use saga::definitions::Definitions;
use saga::tenants::TenantRegistry;
use workflow::manifest::{self, ManifestDefinition};

use crate::world::World;

const HOUR: Duration = Duration::from_secs(3600);
/// Longer than anything is kept of an instance that has ended.
const HORIZON: Duration = Duration::from_secs(30 * 24 * 3600);

/// A version of the saga: the others differ in its number, and in what it migrates from.
fn version(version: u32, migrate: &str) -> String {
    format!(
        "kind: Saga\nname: order\nversion: {version}\nsources: [{{ aggregate: Order }}]\nstart: {{ on: Placed, goto: wait }}\nsteps: {{ wait: {{ on: {{ Paid: {{ end: completed }} }} }} }}\n{migrate}\n"
    )
}

fn hash(text: &str) -> BlobHash {
    let documents = manifest::read("m", text).expect("good");
    assert!(matches!(documents[0].definition, ManifestDefinition::Saga(_)));
    documents[0].hash
}

async fn world() -> World {
    let mut world = World::simulated().await;
    world.follow().await;
    let tenants = TenantRegistry::read("t", "acme: { context: 1 }").expect("good");
    assert!(world.definitions.replace(None, Some(&tenants), 0, Vec::new()).await.expect("kept"));
    world
}

/// Starts an order on the version that is in force.
async fn place(world: &mut World, id: &str) {
    world.event("Order", &format!("o-{id}"), "Placed", id, "{}").await;
    world.wait_for(id, "wait").await;
}

async fn pay(world: &mut World, id: &str) {
    world.event("Order", &format!("p-{id}"), "Paid", id, "{}").await;
    world.wait_for(id, "completed").await;
}

/// Versions that the row has, the newest first, and whether the document of each of these is kept.
async fn kept(world: &World, texts: &[&String]) -> (Vec<u32>, Vec<bool>) {
    // One that has nothing in memory.
    let definitions = Definitions::new(Arc::clone(&world.store));
    definitions.refresh().await.expect("read");
    let tenant = crate::world::TENANT.parse().expect("a tenant");
    let versions = definitions.versions(&tenant, &"order".parse().expect("a name"));
    let mut documents = Vec::new();
    for text in texts {
        documents.push(definitions.text(hash(text)).await.is_ok());
    }
    (versions.iter().map(|saga| saga.version).collect(), documents)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_goes_when_nothing_is_left_of_its_instances() {
    let mut world = world().await;
    let texts: Vec<_> = (1..=7).map(|number| version(number, "")).collect();
    let all: Vec<_> = texts.iter().take(2).collect();
    world.apply(&texts[0]).await;
    world.own();
    place(&mut world, "stays").await;
    world.apply(&texts[1]).await;
    place(&mut world, "ends").await;
    world.apply(&texts[2]).await;
    world.forward(2 * HOUR);
    world.apply(&texts[3]).await;
    pay(&mut world, "ends").await;
    // The end of the last instance is seen with the next version, and looked at for thirty days from then on.
    world.forward(HORIZON);
    world.apply(&texts[4]).await;
    assert_eq!(kept(&world, &all).await, (vec![5, 4, 3, 2, 1], vec![true, true]));
    world.forward(HORIZON - HOUR);
    world.apply(&texts[5]).await;
    assert!(kept(&world, &all).await.1[1], "an hour is left");
    world.forward(2 * HOUR);
    world.apply(&texts[6]).await;
    assert_eq!(kept(&world, &all).await, (vec![7, 6, 5, 4, 1], vec![true, false]));
    // Pinned instances end on the version that they began with.
    pay(&mut world, "stays").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_stays_by_way_of_which_others_are_migrated() {
    let mut world = world().await;
    let way: Vec<_> =
        (1..=6).map(|to| version(to, &format!("migrate: {{ from: {} }}", to.max(2) - 1))).collect();
    let second = [&way[1]];
    world.apply(&way[0]).await;
    world.own();
    place(&mut world, "o-1").await;
    for text in &way[1..3] {
        world.apply(text).await;
    }
    for text in &way[3..5] {
        world.forward(HORIZON + HOUR);
        world.apply(text).await;
    }
    assert_eq!(kept(&world, &second).await, (vec![5, 4, 3, 2, 1], vec![true]), "the first is pinned");
    let migrated = world.ask("m-1", "o-1", workflow::input::Verb::Migrate).await;
    assert_eq!(migrated.outcome, saga::sagas::VerbOutcome::Applied);
    world.forward(2 * HOUR);
    world.apply(&way[5]).await;
    // No instance is left that would migrate through the removed versions.
    let (versions, documents) = kept(&world, &second).await;
    assert_eq!((versions, documents), (vec![6, 5, 4, 3, 1], vec![false]));
}

#[tokio::test]
async fn a_tenant_may_bring_versions_for_ever_as_long_as_they_go() {
    let clock = crate::clock::SetForward::default();
    let store: Arc<dyn store::KvStore> = Arc::new(store::MemoryStore::new(clock.clone()));
    let definitions = Definitions::new(store);
    let acme = "acme".parse().expect("a tenant");
    for number in 1..=200 {
        let applied = definitions.apply(&acme, "m", &version(number, ""), None).await;
        applied.unwrap_or_else(|error| panic!("version {number}: {error}"));
        clock.forward(24 * HOUR);
    }
    let versions = definitions.versions(&acme, &"order".parse().expect("a name"));
    assert!((30..=34).contains(&versions.len()), "those of a month, not {}", versions.len());
}
