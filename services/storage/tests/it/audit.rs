//! Audit entries: each change is recorded with the identity that made it.

use identity::Identity;
use model::ActorId;
use proto::v1;
use tonic::Code;

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure};

fn actor(id: u32) -> Identity {
    Identity::Actor(ActorId(id))
}

async fn listed(
    stage: &Stage<impl Redis>,
    who: Identity,
    request: v1::ListAuditEntriesRequest,
) -> Vec<v1::AuditEntry> {
    stage.contexts(who).list_audit_entries(request).await.unwrap().into_inner().entries
}

fn summaries(entries: &[v1::AuditEntry]) -> Vec<(&str, &str, &str)> {
    entries.iter().map(|entry| (&*entry.identity, &*entry.action, &*entry.object)).collect()
}

fn of(context_id: u32) -> v1::ListAuditEntriesRequest {
    v1::ListAuditEntriesRequest { context_id, ..Default::default() }
}

async fn it_is_written_down_who_did_what_to_actors_and_contexts(stage: Stage<impl Redis>) {
    let change = v1::UpdateActorRequest { request_id: "u-1".to_owned(), id: READER, ..Default::default() };
    stage.actors(actor(READER)).update_actor(change.clone()).await.unwrap();
    stage.actors(actor(READER)).update_actor(change).await.unwrap();
    let settings = v1::ContextSettings::default();
    let update =
        v1::UpdateContextRequest { context_id: CONTEXT, settings: Some(settings), ..Default::default() };
    stage.contexts(actor(ADMIN)).update_context(update).await.unwrap();

    let global = listed(&stage, Identity::Admin, of(0)).await;
    let first = [
        ("actor/3", "actor.update", "actor 3"),
        ("admin", "context.create", "context 1"),
        ("admin", "actor.register", "actor 4"),
    ];
    assert_eq!(summaries(&global)[..3], first, "once, the newest first");
    assert_eq!(global[0].request_id, "u-1");
    assert!(global[0].revision > global[1].revision && global[0].time.unwrap().seconds > 1_700_000_000);
    let own = listed(&stage, actor(ADMIN), of(CONTEXT)).await;
    let of_context = [("actor/1", "context.update", "context 1"), ("admin", "context.create", "context 1")];
    assert_eq!(summaries(&own), of_context);

    let delete = v1::DeleteContextRequest { context_id: CONTEXT, ..Default::default() };
    stage.contexts(actor(ADMIN)).delete_context(delete).await.unwrap();
    let last = listed(&stage, Identity::Admin, of(0)).await;
    assert_eq!(summaries(&last)[0], ("actor/1", "context.delete", "context 1"), "it outlives the context");
}

/// An actor that is removed with a role in a context is recorded there with the identity that removed it.
async fn a_context_records_who_removed_an_actor_with_a_role_in_it(stage: Stage<impl Redis>) {
    let delete = |id| v1::DeleteActorRequest { request_id: format!("d-{id}"), id, ..Default::default() };
    stage.actors(Identity::Admin).delete_actor(delete(READER)).await.unwrap();
    for _ in 0..2 {
        stage.actors(actor(EXECUTOR)).delete_actor(delete(EXECUTOR)).await.unwrap();
    }
    let own = listed(&stage, actor(ADMIN), of(CONTEXT)).await;
    let removals = [("actor/2", "actor.delete", "actor 2"), ("admin", "actor.delete", "actor 3")];
    assert_eq!(summaries(&own)[..2], removals, "once each");
    assert_eq!(summaries(&own)[2].1, "context.create");
    assert_eq!([&own[0].request_id, &own[1].request_id], ["d-2", "d-3"]);
    assert!(own[0].revision > own[1].revision);
    // Where it had no role nothing was done.
    stage.actors(Identity::Admin).delete_actor(delete(STRANGER)).await.unwrap();
    assert_eq!(listed(&stage, actor(ADMIN), of(CONTEXT)).await.len(), 3);
}

async fn entries_are_listed_in_pages_and_by_filters(stage: Stage<impl Redis>) {
    for _ in 0..5 {
        let own = v1::UpdateActorRequest { id: STRANGER, ..Default::default() };
        stage.actors(actor(STRANGER)).update_actor(own).await.unwrap();
    }
    let mut contexts = stage.contexts(Identity::Admin);
    let mut request = v1::ListAuditEntriesRequest { page_size: 3, ..Default::default() };
    let mut all = Vec::new();
    loop {
        let page = contexts.list_audit_entries(request.clone()).await.unwrap().into_inner();
        assert!(page.entries.len() <= 3);
        all.extend(page.entries);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(all, listed(&stage, Identity::Admin, of(0)).await);
    let by = v1::ListAuditEntriesRequest { actor_id: STRANGER, ..of(0) };
    assert_eq!(listed(&stage, Identity::Admin, by).await.len(), 5);
    let prefix = v1::ListAuditEntriesRequest { action_prefix: "context.".to_owned(), ..of(0) };
    assert_eq!(listed(&stage, Identity::Admin, prefix).await.len(), 1);
    let since = v1::ListAuditEntriesRequest { since_time: all[2].time, ..of(0) };
    let since = listed(&stage, Identity::Admin, since).await;
    let from = all[2].time.unwrap();
    let from = (from.seconds, from.nanos);
    let times = since.iter().map(|entry| entry.time.unwrap());
    assert!(since.len() >= 3 && times.map(|time| (time.seconds, time.nanos)).all(|time| time >= from));
    // Bound to filter and caller.
    let foreign = v1::ListAuditEntriesRequest { actor_id: 1, ..request };
    assert_eq!(failure(contexts.list_audit_entries(foreign).await).0, Code::InvalidArgument);
}

async fn it_is_for_admins(stage: Stage<impl Redis>) {
    for (who, code) in
        [(EXECUTOR, Code::PermissionDenied), (READER, Code::PermissionDenied), (STRANGER, Code::NotFound)]
    {
        let refused = stage.contexts(actor(who)).list_audit_entries(of(CONTEXT)).await;
        assert_eq!(failure(refused).0, code, "actor {who}");
    }
    assert_eq!(failure(stage.contexts(actor(ADMIN)).list_audit_entries(of(0)).await).0, Code::NotFound);
    listed(&stage, Identity::Admin, of(CONTEXT)).await;
}

scenarios!(
    it_is_written_down_who_did_what_to_actors_and_contexts,
    a_context_records_who_removed_an_actor_with_a_role_in_it,
    entries_are_listed_in_pages_and_by_filters,
    it_is_for_admins
);
