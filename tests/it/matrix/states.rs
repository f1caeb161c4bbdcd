//! Calls about objects in other states than those of the first table: where nothing would change, or something stands in the
//! way, the role counts all the same.

use identity::Identity;
use model::ActorId;
use rpc::ErrorView;
use serde_json::{Value, json};
use testkit::pages::rows;

use super::objects;
use super::stage::{ADMIN, ADMIN_ELSEWHERE, CONTEXT, EXECUTOR, READER, STRANGER, Stage};

/// The method and the request of a row of the page, for a newly made object.
fn case(name: &str) -> (&'static str, Value) {
    let of_flow = |flow: &str| json!({"contextId": CONTEXT, "flowId": flow});
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let again = |flow: &str| with(of_flow(flow), "scope", "RETRY_SCOPE_ALL".into());
    // No revision of today is as great.
    let unseen = |body: Value| with(body, "expectedRevision", "1000000".into());
    match name {
        "CancelNode: the node has ended" => {
            ("FlowService/CancelNode", with(of_flow("$ended"), "node", "only".into()))
        }
        "CancelNode: there is no such node" => {
            ("FlowService/CancelNode", with(of_flow("$waiting"), "node", "nobody".into()))
        }
        "StartFlow: the flow runs" => ("FlowService/StartFlow", of_flow("$waiting")),
        "StartFlow: nodes are missing" => ("FlowService/StartFlow", of_flow("$created")),
        "RetryFlow: only to be told what would run" => {
            ("FlowService/RetryFlow", with(again("$ended"), "dryRun", true.into()))
        }
        "RetryFlow: the flow runs" => ("FlowService/RetryFlow", again("$waiting")),
        "RetryFlow: another revision is expected" => ("FlowService/RetryFlow", unseen(again("$ended"))),
        "DeleteFlow: another revision is expected" => ("FlowService/DeleteFlow", unseen(of_flow("$ended"))),
        "DeleteContext: another revision is expected" => {
            ("ContextService/DeleteContext", unseen(json!({"contextId": "$context"})))
        }
        other => panic!("nobody knows how to ask for `{other}`"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_role_counts_whatever_the_state() {
    let stage = Stage::new().await;
    let actor = |id| Identity::Actor(ActorId(id));
    let callers = [
        (1, actor(STRANGER)),
        (1, actor(ADMIN_ELSEWHERE)),
        (2, actor(READER)),
        (3, actor(EXECUTOR)),
        (4, actor(ADMIN)),
        (5, Identity::Admin),
    ];
    let mut wrong = Vec::new();
    for row in rows("permissions.md", "Methods on objects in other states") {
        let (method, request) = case(&row[0]);
        for (column, caller) in callers {
            let body = objects::filled(&stage, request.clone()).await;
            let answer = match stage.try_as(caller, method, &body).await {
                Ok(_) => "OK".to_owned(),
                Err(status) => ErrorView::from(&status).reason,
            };
            if answer != row[column] {
                wrong.push(format!("{}, {caller}: {answer}, not {}", row[0], row[column]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
