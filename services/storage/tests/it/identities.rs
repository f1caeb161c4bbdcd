//! Answers to gates and streams about actors and roles.

use std::collections::BTreeSet;
use std::time::Duration;

use identity::Identity;
use keys::{GlobalKeys, Layout};
use kv::Cmd;
use model::{ActorId, ContextId, Role, Timestamp};
use proto::internal::v1 as wire;
use proto::internal::v1::watch_identities_response::Changed;
use proto::v1;
use rpc::{Directory, DirectorySubject, Membership};
use tonic::{Code, Streaming};

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

async fn watch(stage: &Stage) -> Streaming<wire::WatchIdentitiesResponse> {
    stage.connected.clone().wait_for(|connected| *connected).await.unwrap();
    let mut changes =
        stage.identities().watch_identities(wire::WatchIdentitiesRequest {}).await.unwrap().into_inner();
    assert_eq!(changes.message().await.unwrap().unwrap().changed, Some(Changed::Everything(true)));
    changes
}

/// Receives all changes up to `last`.
async fn until(changes: &mut Streaming<wire::WatchIdentitiesResponse>, last: Changed) -> Vec<Changed> {
    let mut received = Vec::new();
    let receive = async {
        while received.last() != Some(&last) {
            received.extend(changes.message().await.unwrap().unwrap().changed);
        }
    };
    tokio::time::timeout(PATIENCE, receive).await.expect("it is not told");
    received
}

pub(crate) fn spend(actor_id: u32, token_id: &str) -> wire::SpendTokenRequest {
    let expire_time = Some(proto::convert::time::to_wire(Timestamp::now() + Duration::from_secs(60)));
    wire::SpendTokenRequest { actor_id, token_id: token_id.to_owned(), expire_time }
}

#[tokio::test]
async fn changes_of_actors_and_contexts_are_announced() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let mut changes = watch(&stage).await;
        let moved = v1::UpdateActorRequest { id: READER, ..Default::default() };
        stage.actors(Identity::Admin).update_actor(moved).await.unwrap();
        until(&mut changes, Changed::ActorId(READER)).await;
        let new = v1::CreateContextRequest { id: 2, admins: vec![STRANGER], ..Default::default() };
        stage.contexts(Identity::Admin).create_context(new).await.unwrap();
        until(&mut changes, Changed::ContextId(2)).await;
        let gone = v1::DeleteContextRequest { context_id: CONTEXT, ..Default::default() };
        stage.contexts(Identity::Actor(ActorId(ADMIN))).delete_context(gone).await.unwrap();
        let received = until(&mut changes, Changed::ContextId(CONTEXT)).await;
        assert!(!received.contains(&Changed::Everything(true)), "{received:?}");
    }
}

#[tokio::test]
async fn keys_and_roles_are_as_they_are_kept() {
    let stage = Stage::new(Layout::HashTag).await;
    let key = identity::SigningKey::generate().verifying_key().to_string();
    let new = v1::RegisterActorRequest { id: 9, pubkey: key.clone(), ..Default::default() };
    stage.actors(Identity::Admin).register_actor(new).await.unwrap();
    let known =
        stage.identities().read_actor(wire::ReadActorRequest { actor_id: 9 }).await.unwrap().into_inner();
    assert_eq!(known.keys.iter().map(|kept| kept.key.as_str()).collect::<Vec<_>>(), [key]);
    assert_eq!(known.certificates_not_before_time, None);
    let nobody = stage.identities().read_actor(wire::ReadActorRequest { actor_id: 99 }).await;
    assert_eq!(failure(nobody).0, Code::NotFound);

    for (actor_id, context_id, role) in [
        (ADMIN, CONTEXT, "admin"),
        (EXECUTOR, CONTEXT, "executor"),
        (READER, CONTEXT, "reader"),
        (STRANGER, CONTEXT, ""),
        (ADMIN, 3, ""),
        (ADMIN, 0, ""),
        (ADMIN, u32::MAX, ""),
    ] {
        let asked = wire::ReadRoleRequest { context_id, actor_id };
        let answer = stage.identities().read_role(asked).await.unwrap().into_inner();
        assert_eq!((answer.role.as_str(), answer.deleting), (role, false), "{actor_id} in {context_id}");
    }
}

#[tokio::test]
async fn a_removed_actor_is_unknown() {
    let stage = Stage::new(Layout::Database).await;
    let key = GlobalKeys::new(Layout::Database).actor(ActorId(READER));
    let global = stage.kv.database(0);
    global.cmd(Cmd::new("HSET").arg(&key).arg("deleted_at").arg("1763690000.000")).await.unwrap();
    let gone = stage.identities().read_actor(wire::ReadActorRequest { actor_id: READER }).await;
    assert_eq!(failure(gone).0, Code::NotFound);
}

#[tokio::test]
async fn a_token_is_used_up_once() {
    let stage = Stage::new(Layout::HashTag).await;
    let tries = (0..100).map(|_| {
        let mut identities = stage.identities();
        tokio::spawn(
            async move { identities.spend_token(spend(READER, "one")).await.unwrap().into_inner().fresh },
        )
    });
    let mut fresh = 0;
    for answer in tries.collect::<Vec<_>>() {
        fresh += u32::from(answer.await.unwrap());
    }
    assert_eq!(fresh, 1);
    // Another actor's, and another one, are other tokens.
    assert!(stage.identities().spend_token(spend(ADMIN, "one")).await.unwrap().into_inner().fresh);
    assert!(stage.identities().spend_token(spend(READER, "{two}:*")).await.unwrap().into_inner().fresh);
    let keys = GlobalKeys::new(Layout::HashTag);
    let left =
        stage.kv.database(0).cmd(Cmd::new("TTL").arg(&keys.token(ActorId(READER), "one"))).await.unwrap();
    // And for as long as the clocks of two services may be apart.
    assert!((80..=91).contains(&left.int().unwrap()));
    for bad in ["", "a b", "\u{e4}", &"x".repeat(65)] {
        assert_eq!(
            failure(stage.identities().spend_token(spend(READER, bad)).await).0,
            Code::InvalidArgument
        );
    }
    let mut long = spend(READER, "long");
    long.expire_time = Some(proto::convert::time::to_wire(Timestamp::now() + Duration::from_secs(3600)));
    assert_eq!(failure(stage.identities().spend_token(long).await).0, Code::InvalidArgument);
}

/// Waits until the directory says so of this.
async fn until_directory_has<T: PartialEq + std::fmt::Debug>(
    directory: &dyn Directory,
    subject: DirectorySubject,
    wanted: T,
    read: impl AsyncFn() -> T,
) {
    let mut changed = directory.changes(subject);
    let reached = async {
        loop {
            changed.borrow_and_update();
            if read().await == wanted {
                return;
            }
            changed.changed().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("it is not said");
}

#[tokio::test]
async fn the_directory_forgets_what_changed() {
    let mut stage = Stage::new(Layout::Database).await;
    let directory = stage.directory();
    let (actor, context) =
        (DirectorySubject::Actor(ActorId(READER)), DirectorySubject::Context(ContextId(CONTEXT)));
    let role = async || directory.membership(ContextId(CONTEXT), ActorId(READER)).await.unwrap();
    let reader = Membership { role: Some(Role::Reader), is_deleting: false };
    until_directory_has(&*directory, context, reader, role).await;
    let since = async || {
        let known = directory.actor(ActorId(READER)).await.unwrap();
        known.map(|known| known.certificates_not_before)
    };
    until_directory_has(&*directory, actor, Some(None), since).await;
    // Written directly to Redis, and then announced by a change of the same actor.
    let revoked = Timestamp::from_millis(1_763_690_000_125);
    let key = GlobalKeys::new(Layout::Database).actor(ActorId(READER));
    let write = Cmd::new("HSET").arg(&key).arg("certificates_not_before").arg("1763690000.125");
    stage.kv.database(0).cmd(write).await.unwrap();
    let moved = v1::UpdateActorRequest { id: READER, ..Default::default() };
    stage.actors(Identity::Admin).update_actor(moved).await.unwrap();
    until_directory_has(&*directory, actor, Some(Some(revoked)), since).await;

    let gone = v1::DeleteContextRequest { context_id: CONTEXT, ..Default::default() };
    stage.contexts(Identity::Actor(ActorId(ADMIN))).delete_context(gone).await.unwrap();
    let mut seen = BTreeSet::new();
    let mut changed = directory.changes(context);
    // It is on its way out, or gone already.
    tokio::time::timeout(PATIENCE, async {
        while !seen.contains(&true) {
            changed.borrow_and_update();
            let now = role().await;
            seen.insert(now.is_deleting || now.role.is_none());
            if !seen.contains(&true) {
                changed.changed().await.unwrap();
            }
        }
    })
    .await
    .expect("it stays");
    // Without Redis the cache is not used, since changes would be missed meanwhile.
    stage.redis.kill9();
    until_directory_has(&*directory, actor, true, async || directory.actor(ActorId(READER)).await.is_err())
        .await;
}
