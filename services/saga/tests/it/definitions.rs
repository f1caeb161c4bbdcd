//! Definitions in force: for whom, and on which replica.

use std::sync::Arc;

use model::{BlobHash, SagaName, TenantId};
use saga::definitions::{
    ApplyError, Definitions, SAGA_VERSIONS_MAX, ScopedIdempotencyKey, TENANT_SAGAS_MAX, TenantDefinition,
};
use store::{KvStore, MemoryStore, WallClock};
use workflow::catalog::{Catalog, LoadedManifest};
use workflow::manifest;

const MINE: &str = "kind: Saga\nname: mine\nversion: 1\nsources: [{ aggregate: A }]\nstart: { on: Begun, goto: s }\nsteps: { s: { on: { Done: { end: completed } } } }\n";

/// Several replicas on one store.
struct Replicas {
    store: Arc<dyn KvStore>,
}

impl Replicas {
    fn new() -> Self {
        Self { store: Arc::new(MemoryStore::new(WallClock)) }
    }

    async fn another(&self) -> Definitions {
        let definitions = Definitions::new(Arc::clone(&self.store));
        definitions.refresh().await.expect("it can be read");
        definitions
    }
}

/// The operator's directory with these documents.
async fn operators(definitions: &Definitions, text: &str) -> Result<(), String> {
    let before = definitions.refresh().await.expect("it can be read").remembered();
    let documents = manifest::read("o.yaml", text).map_err(|problems| problems.to_string())?;
    let file = LoadedManifest { name: "o.yaml".to_owned(), documents: documents.clone() };
    let catalog = Catalog::new(&[file], &before, &[]).map_err(|all| format!("{all:?}"))?;
    definitions.put_in_force(&documents, catalog).await.map_err(|error| error.to_string())
}

fn tenant(id: &str) -> TenantId {
    id.parse().expect("a tenant")
}

fn name(text: &str) -> SagaName {
    text.parse().expect("a name")
}

fn request(id: &str, body: &str) -> ScopedIdempotencyKey {
    ScopedIdempotencyKey { id: id.to_owned(), hash: BlobHash::of(body.as_bytes()) }
}

fn shown(found: &[TenantDefinition]) -> Vec<(String, u32, bool, bool)> {
    let shown = |found: &TenantDefinition| {
        (found.saga.name.to_string(), found.saga.version, found.in_force, found.is_applied)
    };
    found.iter().map(shown).collect()
}

#[tokio::test]
async fn what_a_tenant_applies_is_its_own_and_seen_by_every_replica() {
    let replicas = Replicas::new();
    let (one, other) = (replicas.another().await, replicas.another().await);
    operators(&one, &MINE.replace("mine", "theirs")).await.expect("good");
    let two = format!("{MINE}---\n{}", MINE.replace("mine", "mine-too"));
    let applied = one.apply(&tenant("acme"), "m.yaml", &two, None).await.expect("good");
    let row = |name: &str, is_applied| (name.to_owned(), 1, true, is_applied);
    assert_eq!(shown(&applied), [row("mine", true), row("mine-too", true)]);
    assert!(other.in_force().saga(&tenant("acme"), &name("mine")).is_none());
    let followed = other.refresh().await.expect("it can be read");
    let (acme, b) = (followed.definitions_of(&tenant("acme")), followed.definitions_of(&tenant("b")));
    assert_eq!(shown(&acme), [row("mine", true), row("mine-too", true), row("theirs", false)]);
    assert_eq!(shown(&b), [row("theirs", false)]);
    let acme = tenant("acme");
    let sagas = followed.sagas_of(&acme).map(|saga| saga.name.to_string());
    assert_eq!(sagas.collect::<Vec<_>>(), ["mine", "mine-too", "theirs"]);
    // Nothing has changed since: nothing is read again.
    let revision = followed.revision;
    one.apply(&tenant("acme"), "m.yaml", &two, None).await.expect("it is in force already");
    assert_eq!(other.refresh().await.expect("it can be read").revision, revision);
    // A mere validation stores nothing either.
    let looked_at = other.validate(&tenant("b"), "m.yaml", MINE).expect("good");
    assert_eq!(shown(&looked_at), [("mine".to_owned(), 1, false, false)]);
    assert_eq!(other.refresh().await.expect("it can be read").revision, revision);
}

#[tokio::test]
async fn instances_keep_the_version_that_they_began_on() {
    let replicas = Replicas::new();
    let acme = tenant("acme");
    let one = replicas.another().await;
    let first = one.apply(&acme, "m", MINE, None).await.expect("good").remove(0).saga.hash;
    let newer = MINE.replace("version: 1", "version: 2").replace("Done", "Ended");
    one.apply(&acme, "m", &newer, None).await.expect("good");
    // A replica that never saw the first version still receives the events that its instances wait for.
    let other = replicas.another().await;
    let versions = other.versions(&acme, &name("mine"));
    let known: Vec<_> = versions.iter().map(|saga| (saga.version, saga.listens_to("Done"))).collect();
    assert_eq!(known, [(2, false), (1, true)]);
    assert_eq!(other.pinned_to(first).await.expect("it is kept").version, 1);
    assert!(other.text(first).await.expect("it is kept").contains("Begun"));
    let named = other.in_force().definitions_named(&acme, &name("mine"));
    assert_eq!(shown(&named), [("mine".to_owned(), 2, true, true), ("mine".to_owned(), 1, false, true)]);
    // A retired saga starts no instances, and its running ones continue.
    let retired = other.retire(&acme, &name("mine"), 2, None).await.expect("it is in force");
    assert_eq!(shown(&[retired]), [("mine".to_owned(), 2, false, true)]);
    let now = one.refresh().await.expect("it can be read");
    assert!(now.saga(&acme, &name("mine")).is_none());
    assert!(now.without_instance(&acme, &name("mine")).is_some_and(|saga| !saga.starts_on("Begun")));
    assert_eq!(now.sagas_of(&acme).count(), 1);
    one.retire(&acme, &name("mine"), 0, None).await.expect("a repeat changes nothing");
    // It comes back as it was, and not as another one.
    let refused =
        one.apply(&acme, "m", &newer.replace("Ended", "Over"), None).await.expect_err("other content");
    assert!(refused.to_string().contains("version 2 of the saga `mine` is in force with other content"));
    one.apply(&acme, "m", &newer, None).await.expect("the same");
    assert!(one.saga(&acme, &name("mine")).is_some());
}

#[tokio::test]
async fn nothing_is_in_force_of_what_is_refused() {
    let replicas = Replicas::new();
    let acme = tenant("acme");
    let one = replicas.another().await;
    operators(&one, &MINE.replace("mine", "theirs")).await.expect("good");
    let revision = one.in_force().revision;
    let provider = "---\nkind: EffectProvider\nname: p\ntransport: smtp\nsmtp: { host: h, from: [\"*@a\"] }\neffects: { e: { to: a@b, subject: s, text: t } }\n";
    for (text, expected) in [
        (MINE.replace("mine", "theirs"), "m.yaml:1:1: the saga `theirs` comes from the operator's directory"),
        (format!("{MINE}{provider}"), "the provider `p` cannot be applied"),
        (MINE.replace("goto: s", "goto: t"), "m.yaml:5:"),
        (format!("{MINE}---\n{}", MINE.replace("mine", "theirs")), "the operator's directory"),
    ] {
        let refused = one.apply(&acme, "m.yaml", &text, None).await.expect_err(expected);
        assert!(
            matches!(refused, ApplyError::Problems(_)) && refused.to_string().contains(expected),
            "{refused}"
        );
    }
    assert_eq!(
        one.retire(&acme, &name("theirs"), 0, None).await.expect_err("theirs"),
        ApplyError::Operators(name("theirs"))
    );
    assert_eq!(
        one.retire(&acme, &name("none"), 0, None).await.expect_err("none"),
        ApplyError::NotFound(name("none"))
    );
    assert_eq!(one.refresh().await.expect("it can be read").revision, revision);
    one.apply(&acme, "m", MINE, None).await.expect("good");
    let refused = one.retire(&tenant("b"), &name("mine"), 0, None).await.expect_err("another tenant's");
    assert_eq!(refused, ApplyError::NotFound(name("mine")));
    let refused = one.retire(&acme, &name("mine"), 7, None).await.expect_err("another version");
    assert_eq!(refused.to_string(), "version 1 of the saga `mine` is in force, not version 7");
    // A name stays with its first owner.
    operators(&one, &MINE.replace("version: 1", "version: 9"))
        .await
        .expect("another tenant has none of that name");
    assert_eq!(one.saga(&acme, &name("mine")).map(|saga| saga.version), Some(1));
    assert_eq!(one.saga(&tenant("b"), &name("mine")).map(|saga| saga.version), Some(9));
}

#[tokio::test]
async fn a_request_that_comes_again_has_one_effect() {
    let replicas = Replicas::new();
    let acme = tenant("acme");
    let (one, other) = (replicas.another().await, replicas.another().await);
    let (first, again) = (request("r-1", "apply"), request("r-1", "apply something else"));
    let applied = one.apply(&acme, "m", MINE, Some(&first)).await.expect("good");
    one.apply(&acme, "m", &MINE.replace("version: 1", "version: 2"), None).await.expect("good");
    // The first version is behind, and the answer is that of the first time all the same.
    let repeated = other.apply(&acme, "m", MINE, Some(&first)).await.expect("as before");
    assert_eq!(shown(&repeated), shown(&applied));
    assert_eq!(
        other.apply(&acme, "m", MINE, Some(&again)).await.expect_err("another body"),
        ApplyError::Reused
    );
    let retire = request("r-2", "retire");
    one.retire(&acme, &name("mine"), 2, Some(&retire)).await.expect("it is in force");
    one.apply(&acme, "m", &MINE.replace("version: 1", "version: 3"), None).await.expect("good");
    let repeated = other.retire(&acme, &name("mine"), 2, Some(&retire)).await.expect("as before");
    assert_eq!(shown(&[repeated]), [("mine".to_owned(), 2, false, true)]);
    assert_eq!(other.saga(&acme, &name("mine")).map(|saga| saga.version), Some(3));
}

#[tokio::test]
async fn one_tenant_brings_only_so_much() {
    let replicas = Replicas::new();
    let acme = tenant("acme");
    let one = replicas.another().await;
    let all: Vec<_> = (0..TENANT_SAGAS_MAX).map(|n| MINE.replace("mine", &format!("mine-{n}"))).collect();
    one.apply(&acme, "m", &all.join("---\n"), None).await.expect("as many as may be");
    let refused = one.apply(&acme, "m", MINE, None).await.expect_err("one more");
    assert!(matches!(refused, ApplyError::Limit { limit: "tenant_sagas_max", .. }), "{refused}");
    one.apply(&tenant("b"), "m", MINE, None).await.expect("another tenant has room");
    let mut last = Ok(Vec::new());
    for version in 2..=SAGA_VERSIONS_MAX + 1 {
        last = one
            .apply(&tenant("b"), "m", &MINE.replace("version: 1", &format!("version: {version}")), None)
            .await;
    }
    assert!(matches!(last, Err(ApplyError::Limit { limit: "saga_versions_max", .. })), "{last:?}");
}
