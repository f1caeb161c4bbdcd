//! Authorizations that other services ask for before they change something, and their audit entries.

use identity::{Identity, ServiceName};
use kv::Cmd;
use model::ActorId;
use proto::internal::v1 as wire;
use proto::internal::v1::SagaPermission as Permission;
use proto::internal::v1::identity_store_service_client::IdentityStoreServiceClient;
use proto::v1;
use rpc::{Channel, ErrorView};
use tonic::Code;

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure};

fn saga(stage: &Stage<impl Redis>) -> IdentityStoreServiceClient<Channel> {
    IdentityStoreServiceClient::new(stage.channel(Identity::Service(ServiceName::Saga)))
}

fn request(actor: u32, permission: Permission) -> wire::AuthorizeRequest {
    wire::AuthorizeRequest {
        context_id: CONTEXT,
        on_behalf_of: actor,
        permission: permission.into(),
        method: "CancelSaga".to_owned(),
        resource: "orders/4711".to_owned(),
        ..Default::default()
    }
}

/// Returns true if an entry was written; else code and reason.
async fn authorize(
    stage: &Stage<impl Redis>,
    request: wire::AuthorizeRequest,
) -> Result<bool, (Code, String)> {
    match saga(stage).authorize(request).await {
        Ok(answer) => Ok(answer.into_inner().audited),
        Err(status) => Err(failure::<()>(Err(status))),
    }
}

/// Audit entries of saga actions, the oldest first.
async fn audit(stage: &Stage<impl Redis>) -> Vec<v1::AuditEntry> {
    let mut request =
        v1::ListAuditEntriesRequest { context_id: CONTEXT, page_size: 1000, ..Default::default() };
    let mut entries = Vec::new();
    loop {
        let mut contexts = stage.contexts(Identity::Actor(ActorId(ADMIN)));
        let page = contexts.list_audit_entries(request.clone()).await.unwrap().into_inner();
        entries.extend(page.entries);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    entries.reverse();
    entries
}

async fn of_sagas(stage: &Stage<impl Redis>) -> Vec<(String, String, String, String)> {
    let entries = audit(stage).await.into_iter().filter(|entry| entry.action.starts_with("saga."));
    entries.map(|entry| (entry.identity, entry.action, entry.object, entry.request_id)).collect()
}

async fn each_permission_takes_its_role_and_changes_are_written_down(stage: Stage<impl Redis>) {
    let (yes, small, none) = (Code::Ok, Code::PermissionDenied, Code::NotFound);
    let mut written = Vec::new();
    for (permission, name, answers) in [
        (Permission::Read, "saga.read", [yes, yes, yes, none]),
        (Permission::Start, "saga.start", [yes, yes, small, none]),
        (Permission::Define, "saga.define", [yes, small, small, none]),
        (Permission::Operate, "saga.operate", [yes, small, small, none]),
        (Permission::Replay, "saga.replay", [yes, small, small, none]),
    ] {
        for (actor, expected) in [ADMIN, EXECUTOR, READER, STRANGER].into_iter().zip(answers) {
            // A dry run takes the same role.
            let dry = wire::AuthorizeRequest { dry_run: true, ..request(actor, permission) };
            let dry = authorize(&stage, dry).await;
            let got = authorize(&stage, request(actor, permission)).await;
            assert_eq!(dry, got.clone().map(|_| false), "{name}, actor {actor}");
            match got {
                Ok(audited) => {
                    assert_eq!(
                        (yes, permission != Permission::Read),
                        (expected, audited),
                        "{name}, actor {actor}"
                    );
                    let identity = format!("actor/{actor}");
                    let entry =
                        (identity, name.to_owned(), "CancelSaga orders/4711".to_owned(), String::new());
                    written.extend(audited.then_some(entry));
                }
                Err((code, reason)) => {
                    assert_eq!(code, expected, "{name}, actor {actor}");
                    assert_eq!(reason, if code == small { "ROLE_INSUFFICIENT" } else { "NOT_FOUND" });
                }
            }
        }
    }
    assert_eq!(of_sagas(&stage).await, written, "each change that was allowed, and nothing else");
    let elsewhere = wire::AuthorizeRequest { context_id: 77, ..request(ADMIN, Permission::Start) };
    assert_eq!(authorize(&stage, elsewhere).await.unwrap_err().0, Code::NotFound);
}

async fn a_request_is_written_down_once_and_decided_each_time(stage: Stage<impl Redis>) {
    let start = wire::AuthorizeRequest {
        request_id: "s-1".to_owned(),
        request_hash: "ab".repeat(32),
        ..request(EXECUTOR, Permission::Start)
    };
    assert_eq!(authorize(&stage, start.clone()).await, Ok(true));
    assert_eq!(authorize(&stage, start.clone()).await, Ok(false));
    for other in [
        wire::AuthorizeRequest { resource: "orders/4712".to_owned(), ..start.clone() },
        wire::AuthorizeRequest { method: "KillSaga".to_owned(), ..start.clone() },
        wire::AuthorizeRequest { request_hash: "cd".repeat(32), ..start.clone() },
    ] {
        let reused = (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned());
        assert_eq!(authorize(&stage, other).await, Err(reused));
    }
    let entries = of_sagas(&stage).await;
    assert_eq!(entries.iter().map(|entry| entry.3.as_str()).collect::<Vec<_>>(), ["s-1"]);

    let nobody = v1::UpdateContextRequest {
        context_id: CONTEXT,
        executors: Some(v1::ActorList { ids: Vec::new() }),
        ..Default::default()
    };
    stage.contexts(Identity::Actor(ActorId(ADMIN))).update_context(nobody).await.unwrap();
    assert_eq!(authorize(&stage, start).await.unwrap_err().0, Code::NotFound, "it has no role any more");
    assert_eq!(of_sagas(&stage).await.len(), 1);
}

async fn a_context_that_goes_lets_nothing_be_done(stage: Stage<impl Redis>) {
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg("state").arg("deleting")).await;
    let going = (Code::FailedPrecondition, "CONTEXT_DELETING".to_owned());
    assert_eq!(authorize(&stage, request(ADMIN, Permission::Operate)).await, Err(going));
    assert_eq!(authorize(&stage, request(READER, Permission::Read)).await, Ok(false));
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg("state").arg("active")).await;
    assert_eq!(of_sagas(&stage).await, []);
}

async fn every_invalid_field_of_an_authorization_is_named(stage: Stage<impl Redis>) {
    let fields = async |request| {
        let view = ErrorView::from(&saga(&stage).authorize(request).await.unwrap_err());
        assert_eq!(view.code, Code::InvalidArgument);
        view.violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
    };
    let all = ["context_id", "on_behalf_of", "permission", "method", "resource"];
    assert_eq!(fields(wire::AuthorizeRequest::default()).await, all);
    let wrong = wire::AuthorizeRequest {
        request_id: "two words".to_owned(),
        permission: 99,
        method: "Cancel Saga".to_owned(),
        resource: "a\nb".to_owned(),
        ..request(ADMIN, Permission::Start)
    };
    assert_eq!(fields(wrong).await, ["request_id", "permission", "method", "resource"]);
    let long = wire::AuthorizeRequest {
        method: "m".repeat(65),
        resource: "r".repeat(513),
        ..request(ADMIN, Permission::Start)
    };
    assert_eq!(fields(long).await, ["method", "resource"]);
    assert_eq!(of_sagas(&stage).await, []);
}

async fn it_is_for_the_saga_service(stage: Stage<impl Redis>) {
    for name in ServiceName::ALL {
        let channel = stage.channel(Identity::Service(*name));
        let mut identities = IdentityStoreServiceClient::new(channel);
        let answer = identities.authorize(request(ADMIN, Permission::Start)).await;
        if *name == ServiceName::Saga {
            answer.unwrap();
            let role = wire::ReadRoleRequest { context_id: CONTEXT, actor_id: READER };
            assert_eq!(identities.read_role(role).await.unwrap().into_inner().role, "reader");
        } else {
            assert_eq!(failure(answer), (Code::PermissionDenied, "METHOD_NOT_ALLOWED".to_owned()), "{name}");
        }
    }
    for identity in [Identity::Admin, Identity::Actor(ActorId(ADMIN))] {
        let mut identities = IdentityStoreServiceClient::new(stage.channel(identity));
        let answer = identities.authorize(request(ADMIN, Permission::Start)).await;
        assert_eq!(failure(answer).0, Code::PermissionDenied);
    }
    assert_eq!(of_sagas(&stage).await.len(), 1);
}

/// The decision and its entry are one step: in the order of the audit, no actor does anything without a role.
async fn nothing_is_written_down_that_was_not_allowed_at_that_moment(stage: Stage<impl Redis>) {
    let toggle = async {
        for n in 0..40_u32 {
            let gives = n % 2 == 1;
            let change = v1::UpdateContextRequest {
                request_id: format!("{}-{n}", if gives { "gives" } else { "takes" }),
                context_id: CONTEXT,
                executors: Some(v1::ActorList { ids: if gives { vec![EXECUTOR] } else { Vec::new() } }),
                ..Default::default()
            };
            stage.contexts(Identity::Actor(ActorId(ADMIN))).update_context(change).await.unwrap();
        }
    };
    let requests = async {
        let (mut allowed, mut refused) = (0, 0);
        for n in 0..400 {
            let start = wire::AuthorizeRequest {
                request_id: format!("s-{n}"),
                ..request(EXECUTOR, Permission::Start)
            };
            match authorize(&stage, start).await {
                Ok(audited) => allowed += usize::from(audited),
                Err((code, _)) => {
                    assert!(matches!(code, Code::NotFound | Code::Aborted), "{code}");
                    refused += 1;
                }
            }
        }
        (allowed, refused)
    };
    let ((), (allowed, refused)) = tokio::join!(toggle, requests);
    assert!(allowed > 0 && refused > 0, "{allowed} and {refused}");
    let (mut has_role, mut entries) = (true, 0);
    for entry in audit(&stage).await {
        match entry.action.as_str() {
            "context.update" => has_role = entry.request_id.starts_with("gives"),
            "saga.start" => {
                assert!(has_role, "{entry:?}");
                entries += 1;
            }
            _ => {}
        }
    }
    assert_eq!(entries, allowed);
}

scenarios!(
    each_permission_takes_its_role_and_changes_are_written_down,
    a_request_is_written_down_once_and_decided_each_time,
    a_context_that_goes_lets_nothing_be_done,
    every_invalid_field_of_an_authorization_is_named,
    it_is_for_the_saga_service,
    nothing_is_written_down_that_was_not_allowed_at_that_moment,
);
