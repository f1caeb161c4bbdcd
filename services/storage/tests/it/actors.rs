//! Actors say where messages to them are delivered.

use identity::Identity;
use keys::{GlobalKeys, Layout};
use kv::Cmd;
use model::ActorId;
use proto::v1;
use tonic::Code;

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure};

fn update(id: u32) -> v1::UpdateActorRequest {
    let address = vec!["grpc://home.example:7703".to_owned()];
    v1::UpdateActorRequest { id, address, home_context: CONTEXT, ..Default::default() }
}

#[tokio::test]
async fn an_actor_says_where_it_is_reached() {
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
async fn what_is_wrong_with_a_change_is_said() {
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
            let found = zero.cmd(find(format!("{id:064x}"))).await.unwrap().uint().unwrap();
            assert_eq!(found, u64::from(id));
        }
        // Of two with one key the first is found.
        let second = v1::RegisterActorRequest { pubkey: format!("{ADMIN:064x}"), ..Default::default() };
        stage.actors(Identity::Admin).register_actor(second).await.unwrap();
        let found = zero.cmd(find(format!("{ADMIN:064x}"))).await.unwrap().uint().unwrap();
        assert_eq!(found, u64::from(ADMIN));
    }
}
