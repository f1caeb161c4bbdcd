//! Actors say where messages to them are delivered.

use identity::{Identity, SigningKey, Token, TrustDomain, key_proof};
use keys::{GlobalKeys, Layout};
use kv::Cmd;
use model::{ActorId, Timestamp, limits};
use proto::v1;
use tonic::Code;

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure, key_of};

fn update(id: u32) -> v1::UpdateActorRequest {
    let address = vec!["grpc://home.example:7703".to_owned()];
    v1::UpdateActorRequest { id, address, home_context: CONTEXT, ..Default::default() }
}

#[tokio::test]
async fn an_actor_sets_its_home_context_and_addresses() {
    let stage = Stage::new(Layout::HashTag).await;
    let mut own = stage.actors(Identity::Actor(ActorId(READER)));
    let before = own.get_actor(v1::GetActorRequest { id: READER }).await.unwrap().into_inner().actor.unwrap();
    assert_eq!((before.home_context, before.address.len()), (0, 0));

    let after = own.update_actor(update(READER)).await.unwrap().into_inner().actor.unwrap();
    assert_eq!((after.home_context, &after.address), (CONTEXT, &update(READER).address));
    assert!(after.revision > before.revision);
    assert_eq!((after.pubkey, after.create_time), (before.pubkey, before.create_time));
    let read = own.get_actor(v1::GetActorRequest { id: READER }).await.unwrap().into_inner().actor.unwrap();
    assert_eq!((read.home_context, read.revision), (CONTEXT, after.revision));

    // The bootstrap identity may as well, and what is not named is taken away.
    let nothing = v1::UpdateActorRequest { id: READER, ..Default::default() };
    let mut admin = stage.actors(Identity::Admin);
    let none = admin.update_actor(nothing).await.unwrap().into_inner().actor.unwrap();
    assert_eq!((none.home_context, none.address.len()), (0, 0));
}

#[tokio::test]
async fn a_change_builds_on_a_revision_and_is_made_once() {
    let stage = Stage::new(Layout::Database).await;
    let mut own = stage.actors(Identity::Actor(ActorId(EXECUTOR)));
    let request = |request_id: &str, home_context, expected_revision| v1::UpdateActorRequest {
        request_id: request_id.to_owned(),
        id: EXECUTOR,
        home_context,
        expected_revision,
        ..Default::default()
    };
    let first = own.update_actor(request("u", CONTEXT, 0)).await.unwrap().into_inner().actor.unwrap();
    let again = own.update_actor(request("u", CONTEXT, 0)).await.unwrap().into_inner().actor.unwrap();
    assert_eq!(first, again, "the same request has one effect");
    let reused = failure(own.update_actor(request("u", 0, 0)).await);
    assert_eq!(reused, (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned()));
    let late = failure(own.update_actor(request("", 0, first.revision - 1)).await);
    assert_eq!(late, (Code::Aborted, "REVISION_MISMATCH".to_owned()));
    let second = own.update_actor(request("", 0, first.revision)).await.unwrap().into_inner().actor.unwrap();
    assert_eq!(second.home_context, 0);
}

#[tokio::test]
async fn invalid_fields_of_an_actor_update_are_named() {
    let stage = Stage::new(Layout::Database).await;
    let mut own = stage.actors(Identity::Actor(ActorId(STRANGER)));
    // It has no role there, and another context is not there at all: both look the same.
    for home_context in [CONTEXT, 9] {
        let request = v1::UpdateActorRequest { id: STRANGER, home_context, ..Default::default() };
        let status = own.update_actor(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("home_context"), "{}", status.message());
    }
    let address = vec!["nowhere".to_owned(), "grpc://h:1".to_owned(), "x".to_owned()];
    let status =
        own.update_actor(v1::UpdateActorRequest { id: STRANGER, address, ..Default::default() }).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("address[0]") && status.message().contains("address[2]"));
    let many = vec!["grpc://h:1".to_owned(); 9];
    let many = v1::UpdateActorRequest { id: STRANGER, address: many, ..Default::default() };
    assert_eq!(failure(own.update_actor(many).await).0, Code::InvalidArgument);
    // Others may not, nor learn that it exists.
    assert_eq!(failure(own.update_actor(update(ADMIN)).await).0, Code::NotFound);
    let unknown = failure(
        stage
            .actors(Identity::Admin)
            .update_actor(v1::UpdateActorRequest { id: 77, ..Default::default() })
            .await,
    );
    assert_eq!(unknown.0, Code::NotFound);
}

#[tokio::test]
async fn an_actor_is_found_by_its_key() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let (zero, keys) = (stage.kv.database(0), GlobalKeys::new(layout));
        let find = |key: String| Cmd::new("HGET").arg(&keys.actor_keys()).arg(&key);
        for id in [ADMIN, EXECUTOR, READER, STRANGER] {
            let found = zero.cmd(find(key_of(id))).await.unwrap().uint().unwrap();
            assert_eq!(found, u64::from(id));
        }
        // No other actor is registered with this key.
        let second = v1::RegisterActorRequest { pubkey: key_of(ADMIN), ..Default::default() };
        let refused = stage.actors(Identity::Admin).register_actor(second).await;
        assert_eq!(failure(refused).0, Code::InvalidArgument);
        let found = zero.cmd(find(key_of(ADMIN))).await.unwrap().uint().unwrap();
        assert_eq!(found, u64::from(ADMIN));
    }
}

/// Gives two actors one key, which was possible once.
async fn share_key(stage: &Stage, layout: Layout, id: u32, other: u32) {
    let (zero, actor) = (stage.kv.database(0), GlobalKeys::new(layout).actor(ActorId(id)));
    let kept = zero.cmd(Cmd::new("HGET").arg(&actor).arg("keys")).await.unwrap().text().unwrap();
    let keys = kept.replace(&key_of(id), &key_of(other));
    assert_ne!(keys, kept);
    let write = Cmd::new("HSET").arg(&actor).arg("pubkey").arg(&key_of(other)).arg("keys").arg(&keys);
    zero.cmd(write).await.unwrap();
}

#[tokio::test]
async fn of_two_that_have_one_key_from_before_the_one_that_is_left_is_found() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        share_key(&stage, layout, STRANGER, READER).await;
        let find = Cmd::new("HGET").arg(&GlobalKeys::new(layout).actor_keys()).arg(&key_of(READER));
        let found = async || stage.kv.database(0).cmd(find.clone()).await.unwrap().uint().unwrap();
        // It may change, and keep the key.
        let mut second = stage.actors(Identity::Actor(ActorId(STRANGER)));
        second.update_actor(v1::UpdateActorRequest { id: STRANGER, ..Default::default() }).await.unwrap();
        assert_eq!(found().await, u64::from(READER));
        let delete = |id| v1::DeleteActorRequest { id, ..Default::default() };
        stage.actors(Identity::Admin).delete_actor(delete(READER)).await.unwrap();
        assert_eq!(found().await, u64::from(STRANGER));
        second.rotate_actor_key(rotate(STRANGER, &SigningKey::generate(), 0)).await.unwrap();
        assert_eq!(found().await, u64::from(STRANGER), "by its former key as well");
    }
}

fn actor_of(response: v1::RotateActorKeyResponse) -> v1::Actor {
    response.actor.unwrap()
}

/// Signs the proof that an actor holds a key that it is about to take.
pub(crate) fn proof_of(key: &SigningKey, id: u32) -> String {
    key_proof::sign(key, &TrustDomain::default(), ActorId(id), Timestamp::now())
}

pub(crate) fn rotate(id: u32, key: &SigningKey, overlap_secs: u32) -> v1::RotateActorKeyRequest {
    let pubkey = key.verifying_key().to_string();
    let key_proof = proof_of(key, id);
    v1::RotateActorKeyRequest { id, pubkey, overlap_secs, key_proof, ..Default::default() }
}

/// Why a rotation is refused.
async fn refused(stage: &Stage, who: Identity, request: v1::RotateActorKeyRequest) -> String {
    let status = stage.actors(who).rotate_actor_key(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    status.message().to_owned()
}

/// A public key is public, also that of an actor registered elsewhere.
#[tokio::test]
async fn an_actor_that_gives_itself_a_key_proves_that_it_holds_it() {
    let stage = Stage::new(Layout::Database).await;
    let (reader, next) = (Identity::Actor(ActorId(READER)), SigningKey::generate());
    let good = v1::RotateActorKeyRequest { request_id: "r".to_owned(), ..rotate(READER, &next, 60) };
    let with =
        |key_proof: &str| v1::RotateActorKeyRequest { key_proof: key_proof.to_owned(), ..good.clone() };
    let (domain, now) = (TrustDomain::default(), Timestamp::now());
    let token = Token::sign(&next, &domain, ActorId(READER), now, std::time::Duration::from_secs(60));
    let own = SigningKey::generate();
    for (proof, why) in [
        (String::new(), "rotate-key --new-key"),
        ("x".to_owned(), "cannot be used"),
        (proof_of(&own, READER), "the new key has not signed"),
        (proof_of(&next, EXECUTOR), "for actor 2"),
        (token, "key-proof+jwt"),
    ] {
        let refusal = refused(&stage, reader, with(&proof)).await;
        assert!(refusal.contains("key_proof") && refusal.contains(why), "{refusal}");
    }
    let mut reads = stage.actors(reader);
    let kept = reads.get_actor(v1::GetActorRequest { id: READER }).await.unwrap().into_inner().actor.unwrap();
    assert_eq!(kept.pubkey, key_of(READER), "nothing was done");
    let first = actor_of(reads.rotate_actor_key(good.clone()).await.unwrap().into_inner());
    // A repeated request may carry another proof, or none any more.
    for proof in [proof_of(&next, READER), String::new()] {
        let again = actor_of(reads.rotate_actor_key(with(&proof)).await.unwrap().into_inner());
        assert_eq!(again, first);
    }
    // The bootstrap identity may name keys that it does not hold, but a proof that it gives must be valid.
    let given = v1::RotateActorKeyRequest { key_proof: String::new(), ..rotate(READER, &own, 0) };
    let bad = v1::RotateActorKeyRequest { key_proof: proof_of(&next, READER), ..given.clone() };
    assert!(refused(&stage, Identity::Admin, bad).await.contains("key_proof"));
    stage.actors(Identity::Admin).rotate_actor_key(given).await.unwrap();
}

#[tokio::test]
async fn keys_change_with_an_overlap_or_at_once() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let mut own = stage.actors(Identity::Actor(ActorId(EXECUTOR)));
        let (second, third) = (SigningKey::generate(), SigningKey::generate());
        let once =
            v1::RotateActorKeyRequest { request_id: "r".to_owned(), ..rotate(EXECUTOR, &second, 3600) };
        let first = actor_of(own.rotate_actor_key(once.clone()).await.unwrap().into_inner());
        assert_eq!(first.pubkey, second.verifying_key().to_string());
        assert_eq!(first.keys.len(), 2);
        let end = first.keys[0].revoke_time.unwrap();
        let begin = first.keys[1].not_before_time.unwrap();
        assert_eq!((end.seconds - begin.seconds, first.keys[1].revoke_time), (3600, None));
        assert_eq!(first.certificates_not_before_time, None);
        let again = actor_of(own.rotate_actor_key(once).await.unwrap().into_inner());
        assert_eq!(again, first, "the same request has one effect");

        // One that was lost ends at once, with the certificates.
        let lost = v1::RotateActorKeyRequest { revoke_certificates: true, ..rotate(EXECUTOR, &third, 0) };
        let last = actor_of(own.rotate_actor_key(lost).await.unwrap().into_inner());
        let ends: Vec<_> = last.keys.iter().map(|key| key.revoke_time.map(|end| end.seconds)).collect();
        let now = last.keys[2].not_before_time.unwrap();
        assert_eq!(ends, [Some(now.seconds), Some(now.seconds), None]);
        assert_eq!(last.certificates_not_before_time, Some(now));
        // What stands in Redis is what others read.
        let kept = Cmd::new("HGETALL").arg(&GlobalKeys::new(layout).actor(ActorId(EXECUTOR)));
        let kept = stage.kv.database(0).cmd(kept).await.unwrap().hash().unwrap();
        assert_eq!(kept["pubkey"], last.pubkey);
        assert!(kept["keys"].starts_with(r#"[{"key":""#) && !kept["certificates_not_before"].is_empty());
        // Letters find it by any key that it ever had.
        for key in last.keys {
            let find = Cmd::new("HGET").arg(&GlobalKeys::new(layout).actor_keys()).arg(&key.key);
            let found = stage.kv.database(0).cmd(find).await.unwrap().uint().unwrap();
            assert_eq!(found, u64::from(EXECUTOR));
        }
    }
}

#[tokio::test]
async fn keys_that_anybody_can_sign_for_are_refused_and_so_are_former_ones() {
    let stage = Stage::new(Layout::Database).await;
    let (mut own, mut admin) =
        (stage.actors(Identity::Actor(ActorId(READER))), stage.actors(Identity::Admin));
    // The neutral element, a point of order 8, and what is no point at all.
    let weak = [
        format!("01{}", "0".repeat(62)),
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a".to_owned(),
        "0".repeat(64),
        "4".repeat(64),
    ];
    for pubkey in weak {
        let register = v1::RegisterActorRequest { pubkey: pubkey.clone(), ..Default::default() };
        assert_eq!(failure(admin.register_actor(register).await).0, Code::InvalidArgument, "{pubkey}");
        let rotate = v1::RotateActorKeyRequest { id: READER, pubkey: pubkey.clone(), ..Default::default() };
        assert_eq!(failure(own.rotate_actor_key(rotate).await).0, Code::InvalidArgument, "{pubkey}");
    }
    let all = v1::RotateActorKeyRequest {
        request_id: "a b".to_owned(),
        id: READER,
        pubkey: "x".to_owned(),
        overlap_secs: 30 * 24 * 3600 + 1,
        ..Default::default()
    };
    let status = own.rotate_actor_key(all).await.unwrap_err();
    for field in ["request_id", "pubkey", "overlap_secs"] {
        assert!(status.message().contains(field), "{field}: {}", status.message());
    }
    let next = SigningKey::generate();
    own.rotate_actor_key(rotate(READER, &next, 0)).await.unwrap();
    let back = v1::RotateActorKeyRequest { pubkey: key_of(READER), ..rotate(READER, &next, 0) };
    assert_eq!(failure(own.rotate_actor_key(back).await).0, Code::InvalidArgument, "it was revoked");
    // Eight may count at a time.
    for _ in 0..7 {
        own.rotate_actor_key(rotate(READER, &SigningKey::generate(), 60)).await.unwrap();
    }
    let ninth = failure(own.rotate_actor_key(rotate(READER, &SigningKey::generate(), 60)).await);
    assert_eq!(ninth, (Code::ResourceExhausted, "LIMIT_EXCEEDED".to_owned()));
    own.rotate_actor_key(rotate(READER, &SigningKey::generate(), 0)).await.unwrap();
    // It has had ten, and has only so many within a month, unless somebody else looks at it.
    for _ in 10..limits::ACTOR_KEYS_KEPT_MAX {
        own.rotate_actor_key(rotate(READER, &SigningKey::generate(), 0)).await.unwrap();
    }
    let too_many = failure(own.rotate_actor_key(rotate(READER, &SigningKey::generate(), 0)).await);
    assert_eq!(too_many, (Code::ResourceExhausted, "LIMIT_EXCEEDED".to_owned()));
    admin.rotate_actor_key(rotate(READER, &SigningKey::generate(), 0)).await.unwrap();
    // Others learn nothing, also where they share a context.
    let other = rotate(EXECUTOR, &SigningKey::generate(), 0);
    assert_eq!(failure(own.rotate_actor_key(other).await).0, Code::NotFound);
}

/// Messages name their sender by its key, so no actor may take the key of another.
#[tokio::test]
async fn no_actor_takes_the_key_of_another() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let (mut own, mut other) = (
            stage.actors(Identity::Actor(ActorId(READER))),
            stage.actors(Identity::Actor(ActorId(EXECUTOR))),
        );
        // Also not where both hold it.
        let (first, reader) = (SigningKey::generate(), Identity::Actor(ActorId(READER)));
        let taken = rotate(READER, &first, 0);
        other.rotate_actor_key(rotate(EXECUTOR, &first, 0)).await.unwrap();
        assert!(refused(&stage, reader, taken.clone()).await.contains("has, or had"));
        // Letters to a former key arrive as well.
        other.rotate_actor_key(rotate(EXECUTOR, &SigningKey::generate(), 0)).await.unwrap();
        assert!(refused(&stage, reader, taken.clone()).await.contains("has, or had"));
        // Nor when the other is gone: what it has signed is still there, and is not to be taken for somebody else's.
        other.delete_actor(v1::DeleteActorRequest { id: EXECUTOR, ..Default::default() }).await.unwrap();
        assert!(refused(&stage, reader, taken.clone()).await.contains("has, or had"));
        assert!(refused(&stage, Identity::Admin, taken.clone()).await.contains("has, or had"));
        let mut admin = stage.actors(Identity::Admin);
        let anew = v1::RegisterActorRequest { pubkey: taken.pubkey, ..Default::default() };
        assert_eq!(failure(admin.register_actor(anew).await).0, Code::InvalidArgument);
        let kept = own.get_actor(v1::GetActorRequest { id: READER }).await.unwrap().into_inner().actor;
        assert_eq!(kept.unwrap().pubkey, key_of(READER));
    }
}

#[tokio::test]
async fn an_actor_that_is_removed_never_comes_back() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let mut admin = stage.actors(Identity::Admin);
        let last =
            failure(admin.delete_actor(v1::DeleteActorRequest { id: ADMIN, ..Default::default() }).await);
        assert_eq!(last, (Code::FailedPrecondition, "LAST_ADMIN".to_owned()));
        let mut own = stage.actors(Identity::Actor(ActorId(EXECUTOR)));
        let delete = |id| v1::DeleteActorRequest { request_id: "d".to_owned(), id, ..Default::default() };
        assert_eq!(failure(own.delete_actor(delete(READER)).await).0, Code::NotFound);
        let late = v1::DeleteActorRequest { expected_revision: 99, ..delete(EXECUTOR) };
        assert_eq!(failure(own.delete_actor(late).await).0, Code::Aborted);
        for _ in 0..2 {
            own.delete_actor(delete(EXECUTOR)).await.unwrap();
        }
        assert_eq!(failure(admin.get_actor(v1::GetActorRequest { id: EXECUTOR }).await).0, Code::NotFound);
        let register =
            v1::RegisterActorRequest { id: EXECUTOR, pubkey: key_of(EXECUTOR), ..Default::default() };
        assert_eq!(failure(admin.register_actor(register).await).0, Code::AlreadyExists);
        let all = admin.list_actors(v1::ListActorsRequest::default()).await.unwrap().into_inner();
        let ids: Vec<u32> = all.actors.iter().map(|actor| actor.id).collect();
        assert_eq!(ids, [ADMIN, READER, STRANGER]);
        let context =
            stage.contexts(Identity::Admin).get_context(v1::GetContextRequest { id: CONTEXT }).await;
        assert_eq!(context.unwrap().into_inner().context.unwrap().executors, [0; 0], "its role is gone");
        let keys = GlobalKeys::new(layout);
        let find = Cmd::new("HGET").arg(&keys.actor_keys()).arg(&key_of(EXECUTOR));
        let whose = stage.kv.database(0).cmd(find).await.unwrap().uint();
        assert_eq!(whose, Ok(u64::from(EXECUTOR)), "its key stays its own");
        let tombstone = Cmd::new("HGET").arg(&keys.actor(ActorId(EXECUTOR))).arg("deleted_at");
        assert!(!stage.kv.database(0).cmd(tombstone).await.unwrap().text().unwrap().is_empty());
    }
}

#[tokio::test]
async fn actors_are_listed_by_who_may_read_them() {
    let stage = Stage::new(Layout::HashTag).await;
    let page = async |identity, request: v1::ListActorsRequest| {
        let listed = stage.actors(identity).list_actors(request).await.unwrap().into_inner();
        (listed.actors.iter().map(|actor| actor.id).collect::<Vec<_>>(), listed.next_page_token)
    };
    let actor = |id| Identity::Actor(ActorId(id));
    let members = v1::ListActorsRequest { context_id: CONTEXT, ..Default::default() };
    for who in [actor(READER), Identity::Admin] {
        assert_eq!(page(who, members.clone()).await.0, [ADMIN, EXECUTOR, READER]);
    }
    assert_eq!(page(actor(STRANGER), v1::ListActorsRequest::default()).await.0, [STRANGER]);
    assert_eq!(failure(stage.actors(actor(STRANGER)).list_actors(members).await).0, Code::NotFound);
    let first = v1::ListActorsRequest { page_size: 2, ..Default::default() };
    let (ids, page_token) = page(Identity::Admin, first.clone()).await;
    assert_eq!(ids, [ADMIN, EXECUTOR]);
    let next = v1::ListActorsRequest { page_token, ..first };
    assert_eq!(page(Identity::Admin, next.clone()).await, (vec![READER, STRANGER], String::new()));
    let other = failure(stage.actors(actor(ADMIN)).list_actors(next).await);
    assert_eq!(other.0, Code::InvalidArgument, "a token is for whom it was given");
    let who = stage.actors(actor(EXECUTOR)).who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
    let role = v1::ContextRole { context_id: CONTEXT, role: "executor".to_owned() };
    assert_eq!(who.roles, [role]);
}
