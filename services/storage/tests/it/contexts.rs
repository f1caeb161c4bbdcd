//! Contexts are changed, listed, removed once, and it is written down who did what.

use identity::Identity;
use keys::Layout;
use model::ActorId;
use proto::v1;
use rpc::ErrorView;
use tonic::{Code, Status};

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure};

fn actor(id: u32) -> Identity {
    Identity::Actor(ActorId(id))
}

fn list(ids: &[u32]) -> Option<v1::ActorList> {
    Some(v1::ActorList { ids: ids.to_vec() })
}

fn update() -> v1::UpdateContextRequest {
    v1::UpdateContextRequest { context_id: CONTEXT, ..Default::default() }
}

async fn updated(stage: &Stage, who: Identity, request: v1::UpdateContextRequest) -> v1::Context {
    stage.contexts(who).update_context(request).await.unwrap().into_inner().context.unwrap()
}

#[tokio::test]
async fn what_is_absent_stays_as_it_is() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let readers = v1::UpdateContextRequest { readers: list(&[STRANGER]), ..update() };
        let first = updated(&stage, actor(ADMIN), readers).await;
        assert_eq!(
            (&*first.admins, &*first.executors, &*first.readers),
            (&[ADMIN][..], &[EXECUTOR][..], &[STRANGER][..])
        );
        assert!(first.settings.unwrap().executors_may_submit);
        let settings = v1::ContextSettings { require_signed_messages: true, ..Default::default() };
        let settings =
            v1::UpdateContextRequest { settings: Some(settings), executors: list(&[]), ..update() };
        let second = updated(&stage, Identity::Admin, settings).await;
        assert_eq!((&*second.executors, &*second.readers), (&[][..], &[STRANGER][..]));
        assert!(second.settings.unwrap().require_signed_messages && second.revision > first.revision);
        let get = v1::GetContextRequest { id: CONTEXT };
        let read = stage.contexts(actor(STRANGER)).get_context(get).await.unwrap().into_inner();
        assert_eq!(read.context.unwrap(), second);
        assert_eq!(failure(stage.contexts(actor(READER)).get_context(get).await).0, Code::NotFound);
    }
}

#[tokio::test]
async fn a_context_keeps_an_admin_and_takes_only_actors_that_are_there() {
    let stage = Stage::new(Layout::Database).await;
    let mut admin = stage.contexts(actor(ADMIN));
    let none = v1::UpdateContextRequest { admins: list(&[]), ..update() };
    let refused = failure(admin.update_context(none).await);
    assert_eq!(refused, (Code::FailedPrecondition, "LAST_ADMIN".to_owned()));
    let wrong = v1::UpdateContextRequest {
        request_id: "a b".to_owned(),
        admins: list(&[0, ADMIN]),
        executors: list(&[77]),
        readers: list(&vec![9; 10_001]),
        ..update()
    };
    let status = admin.update_context(wrong).await.unwrap_err();
    let fields = |status: &Status| {
        ErrorView::from(status).violations.into_iter().map(|wrong| wrong.field).collect::<Vec<_>>()
    };
    assert_eq!(fields(&status), ["request_id", "admins.ids", "readers.ids", "executors.ids", "readers.ids"]);
    let wrong = v1::CreateContextRequest {
        request_id: "a b".to_owned(),
        id: u32::MAX,
        readers: vec![0, 77],
        ..Default::default()
    };
    let status = admin.create_context(wrong).await.unwrap_err();
    assert_eq!(fields(&status), ["request_id", "readers", "id", "readers"]);
    let unknown = v1::UpdateContextRequest { executors: list(&[77, 78]), readers: list(&[79]), ..update() };
    let status = admin.update_context(unknown).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    for id in ["77", "78", "79"] {
        assert!(status.message().contains(id), "{}", status.message());
    }
    let new = v1::CreateContextRequest { executors: vec![77], ..Default::default() };
    assert_eq!(failure(admin.create_context(new).await).0, Code::InvalidArgument);
    for (who, code) in
        [(EXECUTOR, Code::PermissionDenied), (READER, Code::PermissionDenied), (STRANGER, Code::NotFound)]
    {
        assert_eq!(failure(stage.contexts(actor(who)).update_context(update()).await).0, code, "actor {who}");
    }
}

#[tokio::test]
async fn of_many_at_a_time_one_wins_and_a_repeated_one_has_one_effect() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let get = v1::GetContextRequest { id: CONTEXT };
        let before =
            stage.contexts(actor(ADMIN)).get_context(get).await.unwrap().into_inner().context.unwrap();
        let racing = (0..20).map(|n| {
            let readers = list(if n % 2 == 0 { &[READER] } else { &[STRANGER] });
            let request =
                v1::UpdateContextRequest { expected_revision: before.revision, readers, ..update() };
            let mut contexts = stage.contexts(actor(ADMIN));
            async move { contexts.update_context(request).await.map(drop) }
        });
        let ends = futures_util::future::join_all(racing).await;
        let (won, lost): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 19));
        for end in lost {
            assert_eq!(failure(end), (Code::Aborted, "REVISION_MISMATCH".to_owned()));
        }
        let revision = stage.revision().await;
        let repeated = (0..100).map(|_| {
            let request_id = "one".to_owned();
            let request = v1::UpdateContextRequest { request_id, executors: list(&[READER]), ..update() };
            let mut contexts = stage.contexts(actor(ADMIN));
            async move { contexts.update_context(request).await.unwrap().into_inner() }
        });
        let answers = futures_util::future::join_all(repeated).await;
        assert!(answers.iter().all(|answer| *answer == answers[0]), "one answer");
        assert_eq!(stage.revision().await, revision + 1, "one effect");
        let other = v1::UpdateContextRequest { request_id: "one".to_owned(), ..update() };
        let reused = failure(stage.contexts(actor(ADMIN)).update_context(other).await);
        assert_eq!(reused, (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned()));
    }
}

#[tokio::test]
async fn a_context_is_removed_as_it_was_seen() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let new = v1::CreateContextRequest { executors: vec![EXECUTOR], ..Default::default() };
        let seen = stage.contexts(actor(ADMIN)).create_context(new).await.unwrap().into_inner();
        let seen = seen.context.unwrap();
        let change = v1::UpdateContextRequest {
            context_id: seen.id,
            expected_revision: seen.revision,
            readers: list(&[READER]),
            ..Default::default()
        };
        let delete = v1::DeleteContextRequest {
            request_id: "gone".to_owned(),
            context_id: seen.id,
            expected_revision: seen.revision,
        };
        let mismatch = (Code::Aborted, "REVISION_MISMATCH".to_owned());
        // Of those who saw the same, one has an effect.
        let (mut changing, mut deleting) = (stage.contexts(actor(ADMIN)), stage.contexts(actor(ADMIN)));
        let (changed, deleted) =
            tokio::join!(changing.update_context(change), deleting.delete_context(delete.clone()));
        if let Ok(changed) = changed {
            assert_eq!(failure(deleted), mismatch);
            assert_eq!(failure(deleting.delete_context(delete.clone()).await), mismatch);
            let request_id = "anew".to_owned();
            let expected_revision = changed.into_inner().context.unwrap().revision;
            let fits = v1::DeleteContextRequest { request_id, expected_revision, ..delete };
            deleting.delete_context(fits.clone()).await.unwrap();
            deleting.delete_context(fits).await.unwrap();
        } else {
            deleted.unwrap();
            deleting.delete_context(delete).await.unwrap();
        }
        let get = v1::GetContextRequest { id: seen.id };
        assert_eq!(failure(stage.contexts(actor(ADMIN)).get_context(get).await).0, Code::NotFound);
    }
}

#[tokio::test]
async fn everybody_sees_the_contexts_in_which_it_has_a_role() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        for _ in 0..3 {
            let new = v1::CreateContextRequest { readers: vec![STRANGER], ..Default::default() };
            stage.contexts(actor(EXECUTOR)).create_context(new).await.unwrap();
        }
        let ids = async |who, request: v1::ListContextsRequest| {
            let listed = stage.contexts(who).list_contexts(request).await.unwrap().into_inner();
            (listed.contexts.iter().map(|context| context.id).collect::<Vec<_>>(), listed.next_page_token)
        };
        let all = v1::ListContextsRequest::default;
        assert_eq!(ids(Identity::Admin, all()).await.0, [1, 2, 3, 4]);
        assert_eq!(ids(actor(READER), all()).await.0, [1]);
        assert_eq!(ids(actor(77), all()).await, (vec![], String::new()));
        let two = v1::ListContextsRequest { page_size: 2, ..Default::default() };
        let (first, page_token) = ids(actor(STRANGER), two.clone()).await;
        assert_eq!(first, [2, 3]);
        let rest = v1::ListContextsRequest { page_token, ..two };
        assert_eq!(ids(actor(STRANGER), rest.clone()).await, (vec![4], String::new()));
        assert_eq!(
            failure(stage.contexts(Identity::Admin).list_contexts(rest).await).0,
            Code::InvalidArgument
        );
    }
}

#[tokio::test]
async fn a_repeated_removal_spares_a_new_context_with_the_same_id() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let delete = v1::DeleteContextRequest {
            context_id: CONTEXT,
            request_id: "gone".to_owned(),
            expected_revision: 0,
        };
        let mut contexts = stage.contexts(actor(ADMIN));
        for _ in 0..2 {
            contexts.delete_context(delete.clone()).await.unwrap();
        }
        let new = v1::CreateContextRequest { id: CONTEXT, ..Default::default() };
        contexts.create_context(new).await.unwrap();
        contexts.delete_context(delete.clone()).await.unwrap();
        contexts.get_context(v1::GetContextRequest { id: CONTEXT }).await.unwrap();
        let other = v1::DeleteContextRequest { context_id: 9, ..delete };
        assert_eq!(failure(contexts.delete_context(other).await).1, "REQUEST_ID_REUSED");
    }
}
