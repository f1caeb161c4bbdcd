//! Messages of programs that write them with plain Redis commands.

use std::collections::BTreeMap;

use kv::Cmd;
use model::{ContextId, DirectMessage, MessageType};
use proto::internal::v1 as wire;
use proto::internal::v1::held_message::Kind;
use proto::v1;
use testkit::{PATIENCE, wait_until};

use crate::places::{Redis, scenarios};
use crate::stage::{CONTEXT, EXECUTOR, READER, Router, Running, Stage, create, failure, key_of};

/// The context takes such messages.
pub(crate) async fn allow(stage: &Stage<impl Redis>) {
    let set = Cmd::new("HSET").arg(&stage.keys().context()).arg("settings");
    stage.command(set.arg(r#"{"executors_may_submit":true,"raw_publish":true}"#)).await;
}

/// The key in Redis of message `id` of the executor.
fn key(stage: &Stage<impl Redis>, id: u32) -> String {
    format!("{}message:{EXECUTOR}:{id}", stage.keys().prefix())
}

pub(crate) async fn push(stage: &Stage<impl Redis>, key: &str, fields: &[(&str, &str)]) {
    let set =
        fields.iter().fold(Cmd::new("HSET").arg(key), |set, (field, value)| set.arg(*field).arg(*value));
    stage.command(set).await;
    // As `redis-cli` does, at the server that has the keys.
    let pushed = stage.raw(&["LPUSH", &stage.keys().msg_out(), key]);
    assert!(pushed.starts_with(':'), "{pushed}");
}

async fn has_status(stage: &Stage<impl Redis>, key: &str, status: &str) -> BTreeMap<String, String> {
    let look = || async {
        Some(stage.hash(key).await).filter(|message| message.get("status").is_some_and(|is| is == status))
    };
    wait_until(look, PATIENCE, format!("{key} is {status}")).await
}

async fn sorted(stage: &Stage<impl Redis>, key: &str) -> Vec<String> {
    stage.command(Cmd::new("ZRANGE").arg(key).arg(0).arg(-1)).await.texts().unwrap()
}

async fn one(router: &mut Router) -> (wire::HeldMessage, Kind) {
    let message = router.take(1).await.remove(0);
    let kind = message.kind.clone().unwrap();
    (message, kind)
}

pub(crate) const JOBS: &str = r#"[
    {"id": 7, "caller_id": 2, "script": "1", "script_type": "python", "timeout": 60, "retries": 2,
     "env_vars": {"A": "1"}, "prerequisites": ["signal:go"], "status": "dispatched", "result": {}},
    {"id": 8, "script": "2", "script_type": "sal", "dependends": [7]}
]"#;

async fn they_are_refused_unless_the_context_allows_them(stage: Stage<impl Redis>) {
    push(&stage, &key(&stage, 9), &[("message_type", "job"), ("job", JOBS)]).await;
    let _router = stage.router("r").await;
    let refused = has_status(&stage, &key(&stage, 9), "error").await;
    assert!(refused["error"].contains("raw_publish is off in this context"), "{}", refused["error"]);
    assert_eq!((&*refused["transport_status"], refused.contains_key("revision")), ("failed", true));
    for index in [stage.keys().dead_letters(), stage.keys().letters()] {
        assert_eq!(sorted(&stage, &index).await, [key(&stage, 9)]);
    }
    assert!(sorted(&stage, &stage.keys().msg_out_coordinator()).await.is_empty());
}

async fn everything_that_is_wrong_is_named(stage: Stage<impl Redis>) {
    allow(&stage).await;
    let jobs = r#"[
        {"id": 1, "script": "x", "script_type": "cobol", "retry": 1},
        {"id": 1, "script": "", "script_type": "v", "caller_id": 5, "retries": 101},
        {"script": "x", "script_type": "v", "prerequisites": ["after:soon"]}
    ]"#;
    let fields = [("job", jobs), ("caller_id", "3"), ("context_id", "x"), ("timeout_ack", "-1")];
    push(&stage, &key(&stage, 1), &fields).await;
    let linked = r#"[{"name": "a", "depends": ["b", 5], "job": {"script": "x", "script_type": "v"}}, {"name": "a",
        "job": {"id": 4, "script": "x", "script_type": "v"}}]"#;
    push(&stage, &key(&stage, 2), &[("nodes", linked)]).await;
    push(&stage, &key(&stage, 3), &[("message_type", "chat"), ("to", "somebody"), ("target_context", "y")])
        .await;
    push(&stage, &key(&stage, 4), &[("message_type", "job")]).await;
    push(&stage, &stage.key_of("message:0:1"), &[("job", JOBS)]).await;
    push(&stage, &key(&stage, 5), &[("job", JOBS), ("timeout_ack", "518401")]).await;
    let _router = stage.router("r").await;
    for (key, wrong) in [
        (
            key(&stage, 1),
            &[
                "caller_id",
                "context_id",
                "timeout_ack",
                "job[0].script_type",
                "job[0].retry",
                "job[1].script",
                "job[1].caller_id",
                "job[1].retries",
                "job[2].id",
                "job[2].prerequisites[0]",
            ][..],
        ),
        (key(&stage, 2), &["nodes[0].depends[0]: b", "nodes[0].depends[1]: 5", "nodes[1].name"]),
        (key(&stage, 3), &["to", "target_context"]),
        (key(&stage, 4), &["job"]),
        (stage.key_of("message:0:1"), &["caller_id"]),
        (key(&stage, 5), &["timeout_ack: at most 518400, not 518401"]),
    ] {
        let refused = has_status(&stage, &key, "error").await;
        for field in wrong {
            assert!(refused["error"].contains(field), "{field}: {}", refused["error"]);
        }
    }
    assert_eq!(sorted(&stage, &stage.keys().dead_letters()).await.len(), 6);
}

async fn jobs_are_handed_to_a_router_as_a_flow(stage: Stage<impl Redis>) {
    allow(&stage).await;
    let mut router = stage.router("r").await;
    let fields = [("job", JOBS), ("timeout_ack", "60"), ("timeout_result", "90"), ("caller_id", "2")];
    push(&stage, &key(&stage, 300), &fields).await;
    // Once is enough.
    stage.command(Cmd::new("LPUSH").arg(&stage.keys().msg_out()).arg(&key(&stage, 300))).await;
    let (message, Kind::RawJobs(jobs)) = one(&mut router).await else { panic!("jobs are expected") };
    assert_eq!((message.timeout_ack_secs, jobs.caller_id), (60, EXECUTOR));
    let submit = jobs.submit.unwrap();
    let taken = stage.hash(&key(&stage, 300)).await["taken_revision"].clone();
    assert_eq!(
        (submit.request_id.clone(), submit.context_id, submit.caller_id),
        (format!("message:2:300@{taken}"), CONTEXT, EXECUTOR)
    );
    let flow = submit.flow.unwrap();
    assert_eq!((&*flow.name, flow.deadline_secs), ("message-2-300", 90));
    let [first, second] = <[_; 2]>::try_from(flow.nodes).unwrap();
    assert_eq!((&*first.name, &*second.name, second.depends), ("job-7", "job-8", vec!["job-7".to_owned()]));
    assert_eq!(first.prerequisites, ["signal:go"]);
    let policy = first.policy.unwrap();
    assert_eq!((policy.retries, policy.timeout_secs), (2, Some(60)));
    let job = first.job.unwrap();
    assert_eq!((job.script_type(), &*job.env_vars["A"]), (v1::ScriptType::Python, "1"));

    let taken = stage.hash(&key(&stage, 300)).await;
    assert_eq!(
        (&*taken["status"], &*taken["transport_status"], &*taken["caller_id"]),
        ("dispatched", "queued", "2")
    );
    assert_eq!(sorted(&stage, &stage.keys().letters()).await, [key(&stage, 300)]);
    let counter = || stage.command(Cmd::new("HGET").arg(&stage.keys().ids()).arg("message:2"));
    assert!(counter().await.is_nil(), "messages of ours have numbers far above");

    // A router that comes back receives the same again.
    drop(router);
    let mut router = stage.router("r").await;
    let (again, Kind::RawJobs(jobs)) = one(&mut router).await else { panic!("jobs are expected") };
    assert_eq!(
        (again.message_key, jobs.submit.unwrap().request_id),
        (message.message_key, submit.request_id)
    );
    router.becomes("message:2:300", 41).await;
    let settled = has_status(&stage, &key(&stage, 300), "acknowledged").await;
    assert_eq!((&*settled["flow_id"], &*settled["transport_status"]), ("41", "read"));

    // What is settled is not taken again.
    stage.command(Cmd::new("LPUSH").arg(&stage.keys().msg_out()).arg(&key(&stage, 300))).await;
    push(&stage, &key(&stage, 1_073_742_000), &[("jobs", r#"{"id":1,"script":"x","script_type":"v"}"#)])
        .await;
    assert_eq!(one(&mut router).await.0.message_key, "message:2:1073742000");
    assert_eq!(sorted(&stage, &stage.keys().msg_out_coordinator()).await, [key(&stage, 1_073_742_000)]);
    assert_eq!(counter().await.text().unwrap(), "1073742000", "no message of ours gets its number");
}

async fn chat_goes_on_as_a_letter(stage: Stage<impl Redis>) {
    allow(&stage).await;
    let mut router = stage.router("r").await;
    let fields =
        [("message_type", "chat"), ("to", "3"), ("message", "hello"), ("topic", "t"), ("timeout_ack", "60")];
    push(&stage, &key(&stage, 5), &fields).await;
    let (message, Kind::Letter(held)) = one(&mut router).await else { panic!("a letter is expected") };
    let letter: DirectMessage = serde_json::from_slice(&held.letter_json).unwrap();
    assert_eq!((&*letter.from, &*letter.to), (&*key_of(EXECUTOR), &*key_of(READER)));
    assert_eq!((&*letter.text, &*letter.topic, letter.message_type), ("hello", "t", MessageType::Chat));
    assert_eq!((letter.origin.caller_id.0, letter.origin.message_id.0), (EXECUTOR, 5));
    assert_eq!(letter.origin.context_uid.to_string(), stage.context_uid);
    assert_eq!(letter.expires_at.since(letter.created_at).as_secs(), 60);
    assert!(held.addresses.is_empty(), "an actor of this coordinator");

    // From its hash it is read as the same.
    drop(router);
    let mut router = stage.router("r").await;
    let (_, Kind::Letter(again)) = one(&mut router).await else { panic!("a letter is expected") };
    assert_eq!(serde_json::from_slice::<DirectMessage>(&again.letter_json).unwrap(), letter);
    router.settle(&[message], "").await;
    let settled = has_status(&stage, &key(&stage, 5), "acknowledged").await;
    assert_eq!(settled["transport_status"], "delivered");
    assert_eq!(sorted(&stage, &stage.keys().letters_done()).await, [key(&stage, 5)]);

    // Without `to` it is for the admins.
    push(&stage, &key(&stage, 8), &[("message_type", "mail"), ("message", "help")]).await;
    let (_, Kind::Letter(held)) = one(&mut router).await else { panic!("a letter is expected") };
    let letter: DirectMessage = serde_json::from_slice(&held.letter_json).unwrap();
    assert_eq!(
        (&*letter.to, letter.target_context, &*letter.text),
        ("admins", Some(ContextId(CONTEXT)), "help")
    );
    assert_eq!(stage.hash(&key(&stage, 8)).await["to"], "admins");
    let signed = [("message_type", "chat"), ("message", "x"), ("signature", "{}")];
    push(&stage, &key(&stage, 9), &signed).await;
    assert!(
        has_status(&stage, &key(&stage, 9), "error").await["error"].contains("signature: what is signed")
    );

    // The reader may not send, and no message goes to an unknown actor.
    let of_reader = format!("{}message:{READER}:1", stage.keys().prefix());
    push(&stage, &of_reader, &fields).await;
    push(&stage, &key(&stage, 6), &[("message_type", "mail"), ("to", "999")]).await;
    assert!(has_status(&stage, &of_reader, "error").await["error"].starts_with("PERMISSION_DENIED"));
    assert!(has_status(&stage, &key(&stage, 6), "error").await["error"].contains("NOT_FOUND"));
}

/// A flow of two nodes that was made of message 7 of the executor, and runs.
pub(crate) async fn flow_of_message(stage: &Stage<impl Redis>) -> Running {
    let flow = created_of_message(stage).await;
    stage.start_flow(flow).await
}

/// A flow of two nodes that was made of message 7 of the executor, before its start.
pub(crate) async fn created_of_message(stage: &Stage<impl Redis>) -> Running {
    let request = wire::CreateFlowRequest {
        message_key: "message:2:7".to_owned(),
        request_id: "message:2:7".to_owned(),
        request_hash: "x".to_owned(),
        ..create(2)
    };
    stage.created_by(request).await
}

pub(crate) fn ends(flow: &Running, status: v1::FlowStatus) -> wire::CommitRequest {
    let change = wire::FlowChange { status: status.into(), ..Default::default() };
    let node = |place| {
        let node = flow.node(place);
        wire::NodeCommit {
            job_id: node.job_id.0,
            node_json: crate::stage::json(&node),
            job_status: "finished".to_owned(),
            result_json: format!(r#"{{"place":{place}}}"#).into_bytes().into(),
            ..Default::default()
        }
    };
    wire::CommitRequest { flow: Some(change), nodes: vec![node(0), node(1)], ..flow.step() }
}

async fn the_sender_receives_one_notice_of_the_flows_end(stage: Stage<impl Redis>) {
    allow(&stage).await;
    push(&stage, &key(&stage, 7), &[("job", JOBS)]).await;
    let mut router = stage.router("r").await;
    one(&mut router).await;
    let mut flow = flow_of_message(&stage).await;
    let end = ends(&flow, v1::FlowStatus::Finished);
    stage.apply(&mut flow, end.clone()).await;
    stage.commit(end).await;
    let processed = stage.hash(&key(&stage, 7)).await;
    assert_eq!((&*processed["status"], &processed["flow_id"]), ("processed", &flow.id.to_string()));
    assert_eq!(sorted(&stage, &stage.keys().letters_done()).await, [key(&stage, 7)]);

    // The router was slower.
    router.becomes("message:2:7", flow.id).await;
    let gone =
        || async { sorted(&stage, &stage.keys().msg_out_coordinator()).await.is_empty().then_some(()) };
    wait_until(gone, PATIENCE, "the message is settled").await;
    assert_eq!(stage.hash(&key(&stage, 7)).await["status"], "processed");

    let notice = format!("{}message:0:1", stage.keys().prefix());
    let msg_in = Cmd::new("LRANGE").arg(&stage.keys().msg_in()).arg(0).arg(-1);
    assert_eq!(stage.command(msg_in).await.texts().unwrap(), std::slice::from_ref(&notice));
    assert_eq!(
        sorted(&stage, &stage.keys().inbox(model::ActorId(EXECUTOR))).await,
        std::slice::from_ref(&notice)
    );
    assert_eq!(sorted(&stage, &stage.keys().letters()).await, [key(&stage, 7), notice.clone()]);
    let notice = stage.hash(&notice).await;
    assert_eq!((&*notice["message_type"], &*notice["to"], &*notice["status"]), ("chat", "2", "acknowledged"));
    let text: serde_json::Value = serde_json::from_str(&notice["message"]).unwrap();
    let job = |n: u32| format!("job:2:{}", flow.first_job + n);
    let expected = serde_json::json!({
        "message": "message:2:7", "flow_id": flow.id, "status": "finished",
        "jobs": {
            "node-0": {"job": job(0), "status": "finished", "result": {"place": 0}},
            "node-1": {"job": job(1), "status": "finished", "result": {"place": 1}},
        },
    });
    assert_eq!(text, expected);
}

async fn what_was_given_up_and_ends_all_the_same_is_no_dead_letter(stage: Stage<impl Redis>) {
    allow(&stage).await;
    push(&stage, &key(&stage, 7), &[("job", JOBS)]).await;
    let mut router = stage.router("r").await;
    let (message, _) = one(&mut router).await;
    let mut flow = flow_of_message(&stage).await;
    router.settle(&[message], "nobody answered in time").await;
    has_status(&stage, &key(&stage, 7), "error").await;
    assert_eq!(sorted(&stage, &stage.keys().dead_letters()).await, [key(&stage, 7)]);
    assert!(sorted(&stage, &stage.keys().letters_done()).await.is_empty());
    let end = ends(&flow, v1::FlowStatus::Finished);
    stage.apply(&mut flow, end).await;
    assert_eq!(stage.hash(&key(&stage, 7)).await["status"], "processed");
    assert!(sorted(&stage, &stage.keys().dead_letters()).await.is_empty());
}

async fn a_flow_ends_whatever_became_of_its_message(stage: Stage<impl Redis>) {
    allow(&stage).await;
    let first = key(&stage, 7);
    let becomes: [&[Cmd]; 3] = [
        &[Cmd::new("DEL").arg(&first)],
        &[Cmd::new("DEL").arg(&first), Cmd::new("SET").arg(&first).arg("x")],
        &[Cmd::new("HSET").arg(&first).arg("logs").arg("[1e999, 7]")],
    ];
    let mut router = stage.router("r").await;
    push(&stage, &first, &[("job", JOBS)]).await;
    one(&mut router).await;
    let mut flow = flow_of_message(&stage).await;
    for (i, becomes) in (1..).zip(becomes.into_iter().rev()) {
        for cmd in becomes {
            stage.command(cmd.clone()).await;
        }
        let end = ends(&flow, v1::FlowStatus::Finished);
        stage.apply(&mut flow, end).await;
        assert_eq!(sorted(&stage, &stage.keys().inbox(model::ActorId(EXECUTOR))).await.len(), i as usize);
        flow = restarted(&stage, flow, i).await;
    }
}

/// Runs an ended flow again under a new owner.
pub(crate) async fn restarted(stage: &Stage<impl Redis>, flow: Running, generation: u32) -> Running {
    let request = wire::RestartFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        flow_uid: flow.uid.clone(),
        on_behalf_of: EXECUTOR,
        rerun_json: r#"{"scope":"all"}"#.to_owned(),
        generation,
        ..Default::default()
    };
    stage.flows().restart_flow(request).await.unwrap();
    let owner = model::OwnerId::random().to_string();
    let request = wire::TakeFlowRequest { context_id: CONTEXT, flow_id: flow.id, owner: owner.clone() };
    let taken = stage.flows().take_flow(request).await.unwrap().into_inner().flow.unwrap();
    Running { owner, epoch: taken.epoch, last_commit: taken.last_commit, ..flow }
}

async fn a_message_follows_the_status_of_a_flow_that_fails_and_is_run_again(stage: Stage<impl Redis>) {
    allow(&stage).await;
    push(&stage, &key(&stage, 7), &[("job", JOBS)]).await;
    let mut router = stage.router("r").await;
    one(&mut router).await;
    let mut flow = flow_of_message(&stage).await;
    router.becomes("message:2:7", flow.id).await;
    has_status(&stage, &key(&stage, 7), "acknowledged").await;
    let end = ends(&flow, v1::FlowStatus::Error);
    stage.apply(&mut flow, end).await;
    let failed = stage.hash(&key(&stage, 7)).await;
    assert_eq!((&*failed["status"], failed["error"].contains("failed")), ("error", true));
    assert!(sorted(&stage, &stage.keys().dead_letters()).await.is_empty(), "it arrived");

    let mut flow = restarted(&stage, flow, 1).await;
    assert_eq!(stage.hash(&key(&stage, 7)).await["status"], "acknowledged");
    assert!(sorted(&stage, &stage.keys().letters_done()).await.is_empty());
    let end = ends(&flow, v1::FlowStatus::Finished);
    stage.apply(&mut flow, end).await;
    let processed = stage.hash(&key(&stage, 7)).await;
    assert_eq!((&*processed["status"], &*processed["error"]), ("processed", ""));
    assert_eq!(sorted(&stage, &stage.keys().inbox(model::ActorId(EXECUTOR))).await.len(), 2);
}

/// A flow of the message that a router was given.
async fn made_of(stage: &Stage<impl Redis>, jobs: wire::RawJobs, message: &wire::HeldMessage) -> Running {
    let request = wire::CreateFlowRequest {
        message_key: message.message_key.clone(),
        request_id: jobs.submit.unwrap().request_id,
        request_hash: "x".to_owned(),
        ..create(2)
    };
    stage.created_by(request).await
}

async fn a_key_that_is_used_again_is_another_request(stage: Stage<impl Redis>) {
    allow(&stage).await;
    let mut router = stage.router("r").await;
    push(&stage, &key(&stage, 7), &[("job", JOBS)]).await;
    let (message, Kind::RawJobs(jobs)) = one(&mut router).await else { panic!("jobs are expected") };
    let first = made_of(&stage, jobs.clone(), &message).await;
    assert_eq!(stage.hash(&key(&stage, 7)).await["flow_id"], first.id.to_string());
    router.becomes("message:2:7", first.id).await;
    has_status(&stage, &key(&stage, 7), "acknowledged").await;
    // However long ago it was made.
    let id = jobs.submit.as_ref().unwrap().request_id.clone();
    let remembered = stage.keys().request(model::ActorId(EXECUTOR), &id);
    stage.command(Cmd::new("DEL").arg(&remembered)).await;
    assert_eq!(made_of(&stage, jobs.clone(), &message).await.uid, first.uid);

    stage.command(Cmd::new("DEL").arg(&key(&stage, 7))).await;
    push(&stage, &key(&stage, 7), &[("job", JOBS), ("flow_id", &first.id.to_string())]).await;
    let (again, Kind::RawJobs(others)) = one(&mut router).await else { panic!("jobs are expected") };
    assert_ne!(others.submit.as_ref().unwrap().request_id, id);
    // A late request for the first message is not one for the second.
    made_of(&stage, jobs.clone(), &message).await;
    assert!(!stage.hash(&key(&stage, 7)).await.contains_key("flow_id"));
    let second = made_of(&stage, others, &again).await;
    assert_ne!(second.uid, first.uid);
    let mut first = stage.start_flow(first).await;
    let end = ends(&first, v1::FlowStatus::Finished);
    stage.apply(&mut first, end).await;
    let waits = stage.hash(&key(&stage, 7)).await;
    assert_eq!((&*waits["status"], &waits["flow_id"]), ("dispatched", &second.id.to_string()));
}

async fn remove(stage: &Stage<impl Redis>, id: u32) -> Result<(), tonic::Status> {
    let message = v1::DeleteMessageRequest {
        context_id: CONTEXT,
        key: format!("message:{EXECUTOR}:{id}"),
        ..Default::default()
    };
    let request = wire::RemoveMessageRequest { message: Some(message), on_behalf_of: EXECUTOR };
    stage.message_box().remove_message(request).await.map(drop)
}

async fn a_message_whose_flow_is_removed_is_over(stage: Stage<impl Redis>) {
    allow(&stage).await;
    let mut router = stage.router("r").await;
    push(&stage, &key(&stage, 7), &[("job", JOBS)]).await;
    let (message, Kind::RawJobs(jobs)) = one(&mut router).await else { panic!("jobs are expected") };
    let flow = made_of(&stage, jobs, &message).await;
    router.becomes("message:2:7", flow.id).await;
    has_status(&stage, &key(&stage, 7), "acknowledged").await;
    assert_eq!(failure(remove(&stage, 7).await).1, "MESSAGE_UNDER_WAY");
    let flow_key = stage.keys().flow(model::FlowId(flow.id));
    stage.command(Cmd::new("HSET").arg(&flow_key).arg("cancel_requested_time").arg("1.000")).await;
    let delete = wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    stage.flows().remove_flow(delete).await.unwrap();
    let over = stage.hash(&key(&stage, 7)).await;
    assert_eq!((&*over["status"], over["error"].contains("was removed before it ended")), ("error", true));
    assert!(sorted(&stage, &stage.keys().dead_letters()).await.is_empty());
    remove(&stage, 7).await.unwrap();

    // Also when its flow was gone before it was known which one that is.
    push(&stage, &key(&stage, 8), &[("job", JOBS)]).await;
    one(&mut router).await;
    router.becomes("message:2:8", flow.id).await;
    has_status(&stage, &key(&stage, 8), "acknowledged").await;
    remove(&stage, 8).await.unwrap();
    for index in [stage.keys().letters(), stage.keys().letters_done()] {
        assert!(sorted(&stage, &index).await.is_empty());
    }
}

async fn an_end_that_finds_the_inbox_full_is_kept_outside(stage: Stage<impl Redis>) {
    allow(&stage).await;
    let counter = stage.keys().inbox_bytes();
    let full = model::limits::INBOX_BYTES_MAX;
    stage.command(Cmd::new("HSET").arg(&counter).arg(EXECUTOR).arg(full)).await;
    push(&stage, &key(&stage, 7), &[("job", JOBS)]).await;
    let mut router = stage.router("r").await;
    one(&mut router).await;
    let mut flow = flow_of_message(&stage).await;
    let end = ends(&flow, v1::FlowStatus::Finished);
    stage.apply(&mut flow, end).await;
    assert!(sorted(&stage, &stage.keys().inbox(model::ActorId(EXECUTOR))).await.is_empty());
    let notice = format!("{}message:0:1", stage.keys().prefix());
    assert_eq!(stage.hash(&notice).await["status"], "acknowledged");
    assert_eq!(sorted(&stage, &stage.keys().letters_done()).await, [notice, key(&stage, 7)]);
}

scenarios!(sentinels: they_are_refused_unless_the_context_allows_them, everything_that_is_wrong_is_named, jobs_are_handed_to_a_router_as_a_flow, chat_goes_on_as_a_letter, the_sender_receives_one_notice_of_the_flows_end, what_was_given_up_and_ends_all_the_same_is_no_dead_letter, a_flow_ends_whatever_became_of_its_message, a_message_follows_the_status_of_a_flow_that_fails_and_is_run_again, a_key_that_is_used_again_is_another_request, a_message_whose_flow_is_removed_is_over, an_end_that_finds_the_inbox_full_is_kept_outside);
