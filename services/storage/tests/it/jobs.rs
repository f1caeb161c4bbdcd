//! Jobs that belong to no flow, and those that are nodes.

use kv::Cmd;
use model::limits::{SCRIPT_BYTES_MAX, SCRIPT_INLINE_BYTES_MAX};
use model::{ActorId, ContextEvent, FlowId, JobId};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::Code;

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure};

fn spec(text: &str) -> v1::JobSpec {
    v1::JobSpec {
        script_type: v1::ScriptType::Shell.into(),
        script: Some(v1::Script { source: Some(v1::script::Source::Text(text.to_owned())) }),
        env_vars: [("A".to_owned(), "1".to_owned())].into(),
        outputs: vec!["out".to_owned()],
        ..Default::default()
    }
}

fn create(text: &str) -> v1::CreateJobRequest {
    v1::CreateJobRequest { context_id: CONTEXT, spec: Some(spec(text)), ..Default::default() }
}

async fn created(stage: &Stage<impl Redis>, actor: u32, request: v1::CreateJobRequest) -> v1::Job {
    stage.jobs(actor).create_job(request).await.unwrap().into_inner().job.unwrap()
}

async fn listed(stage: &Stage<impl Redis>, request: v1::ListJobsRequest) -> (Vec<(u32, u32)>, String) {
    let page = stage.jobs(READER).list_jobs(request).await.unwrap().into_inner();
    (page.jobs.iter().map(|job| (job.caller_id, job.id)).collect(), page.next_page_token)
}

async fn a_job_is_kept_as_it_was_given(stage: Stage<impl Redis>) {
    let once = v1::CreateJobRequest { request_id: "j".to_owned(), ..create("true") };
    let job = created(&stage, EXECUTOR, once.clone()).await;
    assert_eq!((job.caller_id, job.context_id, job.flow_id), (EXECUTOR, CONTEXT, 0));
    assert_eq!((&*job.status, &*job.result_json, &job.spec), ("created", "", &Some(spec("true"))));
    assert_eq!(created(&stage, EXECUTOR, once.clone()).await, job, "the same request has one effect");
    let other = v1::CreateJobRequest { spec: Some(spec("false")), ..once };
    assert_eq!(failure(stage.jobs(EXECUTOR).create_job(other).await).1, "REQUEST_ID_REUSED");
    let get = v1::GetJobRequest { context_id: CONTEXT, caller_id: EXECUTOR, job_id: job.id };
    let read = stage.jobs(READER).get_job(get).await.unwrap().into_inner().job.unwrap();
    assert_eq!(read, job);
    // Old readers find what they know.
    let kept = stage.hash(&stage.keys().job(ActorId(EXECUTOR), JobId(job.id))).await;
    assert_eq!((&*kept["script"], &*kept["status"], &*kept["flow_id"]), ("true", "created", ""));
    for field in ["timeout", "retries", "prerequisites", "depends", "files", "result", "signature"] {
        assert!(kept.contains_key(field), "{field}");
    }
    // Nodes have numbers from the same counter.
    assert!(stage.created(2).await.first_job > job.id);
}

/// The next events of a watch of the whole context.
async fn next_events(
    events: &mut tonic::Streaming<wire::WatchEventsResponse>,
    count: usize,
) -> Vec<(String, u64)> {
    let mut events_read = Vec::new();
    while events_read.len() < count {
        let event = events.message().await.unwrap().unwrap();
        let revision = event.position.split('.').next().unwrap().parse().unwrap();
        if !event.event_json.is_empty() {
            events_read.push((String::from_utf8(event.event_json.to_vec()).unwrap(), revision));
        }
    }
    events_read
}

async fn watchers_of_the_context_receive_events(stage: Stage<impl Redis>) {
    let begin = stage.revision().await;
    let watch = |position: &str| wire::WatchEventsRequest {
        context_id: CONTEXT,
        on_behalf_of: READER,
        position: position.to_owned(),
        ..Default::default()
    };
    let mut events = stage.flows().watch_events(watch("")).await.unwrap().into_inner();
    let position = events.message().await.unwrap().unwrap().position;
    let once = v1::CreateJobRequest { request_id: "j".to_owned(), ..create("true") };
    let job = created(&stage, EXECUTOR, once.clone()).await;
    created(&stage, EXECUTOR, once).await;
    let delete = v1::DeleteJobRequest { context_id: CONTEXT, job_id: job.id, ..Default::default() };
    stage.jobs(EXECUTOR).delete_job(delete).await.unwrap();
    let expected = [(false, begin + 1), (true, begin + 2)].map(|(removed, revision)| {
        let (caller_id, job_id) = (ActorId(EXECUTOR), JobId(job.id));
        (serde_json::to_string(&ContextEvent::Job { caller_id, job_id, removed }).unwrap(), revision)
    });
    assert_eq!(next_events(&mut events, 2).await, expected);
    // A watch resumed from before them misses none.
    let mut events = stage.flows().watch_events(watch(&position)).await.unwrap().into_inner();
    assert_eq!(next_events(&mut events, 2).await, expected);
}

async fn who_may_do_what_to_jobs(stage: Stage<impl Redis>) {
    let code = |result: Result<(), tonic::Status>| result.err().map_or(Code::Ok, |status| status.code());
    let (ok, denied, unseen) = (Code::Ok, Code::PermissionDenied, Code::NotFound);
    for (i, actor) in [ADMIN, EXECUTOR, READER, STRANGER].into_iter().enumerate() {
        let own = stage.jobs(actor).create_job(create("true")).await.map(drop);
        assert_eq!(code(own), [ok, ok, denied, unseen][i], "actor {actor} creates its own");
        let others = v1::CreateJobRequest { caller_id: 9, ..create("true") };
        let others = stage.jobs(actor).create_job(others).await.map(drop);
        assert_eq!(code(others), [ok, denied, denied, unseen][i], "actor {actor} creates another's");
        let job = created(&stage, EXECUTOR, create("true")).await;
        let get = v1::GetJobRequest { context_id: CONTEXT, caller_id: EXECUTOR, job_id: job.id };
        let get = stage.jobs(actor).get_job(get).await.map(drop);
        assert_eq!(code(get), [ok, ok, ok, unseen][i], "actor {actor} reads the executor's");
        let delete = v1::DeleteJobRequest {
            context_id: CONTEXT,
            caller_id: EXECUTOR,
            job_id: job.id,
            ..Default::default()
        };
        let delete = stage.jobs(actor).delete_job(delete).await.map(drop);
        assert_eq!(code(delete), [ok, ok, denied, unseen][i], "actor {actor} removes the executor's");
    }
    let settings = r#"{"executors_may_submit":false}"#;
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg("settings").arg(settings)).await;
    assert_eq!(failure(stage.jobs(EXECUTOR).create_job(create("true")).await).0, denied);
}

async fn jobs_are_listed_newest_first_and_those_of_a_flow_by_number(stage: Stage<impl Redis>) {
    let flow = stage.created(3).await;
    let mut jobs = Vec::new();
    for n in 0..5 {
        let actor = if n % 2 == 0 { EXECUTOR } else { ADMIN };
        let job = created(&stage, actor, create(&format!("echo {n}"))).await;
        jobs.insert(0, (actor, job.id));
    }
    let all = v1::ListJobsRequest { context_id: CONTEXT, ..Default::default() };
    assert_eq!(listed(&stage, all.clone()).await, (jobs.clone(), String::new()));
    let two = v1::ListJobsRequest { page_size: 2, ..all.clone() };
    let (first, page_token) = listed(&stage, two.clone()).await;
    assert_eq!(first, jobs[..2]);
    let next = v1::ListJobsRequest { page_token, ..two };
    assert_eq!(listed(&stage, next.clone()).await.0, jobs[2..4]);
    let foreign = v1::ListJobsRequest { caller_id: ADMIN, ..next };
    assert_eq!(failure(stage.jobs(READER).list_jobs(foreign).await).0, Code::InvalidArgument);
    let of_admin = v1::ListJobsRequest { caller_id: ADMIN, ..all.clone() };
    assert_eq!(listed(&stage, of_admin).await.0.len(), 2);
    let of_flow = v1::ListJobsRequest { flow_id: flow.id, page_size: 2, ..all.clone() };
    let (first, page_token) = listed(&stage, of_flow.clone()).await;
    assert_eq!(first, [(EXECUTOR, flow.first_job), (EXECUTOR, flow.first_job + 1)]);
    let rest = v1::ListJobsRequest { page_token, ..of_flow };
    assert_eq!(listed(&stage, rest).await, (vec![(EXECUTOR, flow.first_job + 2)], String::new()));
    let gone = v1::ListJobsRequest { flow_id: 77, ..all };
    assert_eq!(failure(stage.jobs(READER).list_jobs(gone).await).0, Code::NotFound);
}

async fn the_last_job_of_a_flow_may_have_the_greatest_id(stage: Stage<impl Redis>) {
    let counter = format!("job:{EXECUTOR}");
    stage.command(Cmd::new("HSET").arg(&stage.key_of("ids")).arg(&counter).arg(u32::MAX - 2)).await;
    let flow = stage.started(2).await;
    let ids = [u32::MAX - 1, u32::MAX];
    assert_eq!(flow.first_job, ids[0]);
    let kept = stage.hash(&stage.keys().flow(FlowId(flow.id))).await;
    assert_eq!(kept["jobs"], format!("[{},{}]", ids[0], ids[1]));
    let of_flow = v1::ListJobsRequest { context_id: CONTEXT, flow_id: flow.id, ..Default::default() };
    assert_eq!(listed(&stage, of_flow).await, (ids.map(|id| (EXECUTOR, id)).to_vec(), String::new()));
}

async fn a_job_of_a_flow_goes_with_it_and_long_scripts_are_named_in_lists(stage: Stage<impl Redis>) {
    let flow = stage.created(1).await;
    let delete = |job_id| v1::DeleteJobRequest { context_id: CONTEXT, job_id, ..Default::default() };
    let refused = failure(stage.jobs(EXECUTOR).delete_job(delete(flow.first_job)).await);
    assert_eq!(refused, (Code::FailedPrecondition, "JOB_IN_FLOW".to_owned()));
    assert_eq!(failure(stage.jobs(EXECUTOR).delete_job(delete(999)).await).0, Code::NotFound);
    let long = "x".repeat(4097);
    created(&stage, EXECUTOR, create(&long)).await;
    let all = v1::ListJobsRequest { context_id: CONTEXT, ..Default::default() };
    let page = stage.jobs(READER).list_jobs(all).await.unwrap().into_inner();
    let source = page.jobs[0].spec.clone().unwrap().script.unwrap().source.unwrap();
    let v1::script::Source::Blob(blob) = source else { panic!("{source:?}") };
    assert_eq!((blob.size, blob.sha256), (4097, model::BlobHash::of(long.as_bytes()).to_string()));
    let missing = v1::JobSpec {
        script: Some(v1::Script {
            source: Some(v1::script::Source::Blob(v1::BlobRef { sha256: "0".repeat(64), size: 1 })),
        }),
        ..spec("")
    };
    let missing = v1::CreateJobRequest { spec: Some(missing), ..create("") };
    assert_eq!(failure(stage.jobs(EXECUTOR).create_job(missing).await).1, "BLOB_MISSING");
    let wrong = v1::CreateJobRequest { request_id: "a b".to_owned(), spec: None, ..create("") };
    let status = stage.jobs(EXECUTOR).create_job(wrong).await.unwrap_err();
    for field in ["request_id", "spec.script_type", "spec.script"] {
        assert!(status.message().contains(field), "{field}: {}", status.message());
    }
}

async fn a_script_that_is_too_long_for_a_record_is_a_blob(stage: Stage<impl Redis>) {
    for (bytes, is_blob) in [(SCRIPT_INLINE_BYTES_MAX, false), (SCRIPT_INLINE_BYTES_MAX + 1, true)] {
        let text = "x".repeat(bytes);
        let hash = model::BlobHash::of(text.as_bytes());
        let job = created(&stage, EXECUTOR, create(&text)).await;
        let kept = stage.hash(&stage.keys().job(ActorId(EXECUTOR), JobId(job.id))).await;
        let source = job.spec.unwrap().script.unwrap().source.unwrap();
        if is_blob {
            assert_eq!(kept["script"], format!("sha256:{hash}"));
            let blob = v1::BlobRef { sha256: hash.to_string(), size: bytes as u64 };
            assert_eq!(source, v1::script::Source::Blob(blob));
            let refs = stage.command(Cmd::new("SCARD").arg(&stage.keys().blob_refs(hash))).await;
            assert_eq!(refs.int(), Ok(1), "the job refers to it");
        } else {
            assert_eq!((&kept["script"], source), (&text, v1::script::Source::Text(text.clone())));
        }
    }
    let keep = |on_behalf_of, text: &str| wire::KeepScriptsRequest {
        context_id: CONTEXT,
        scripts: vec![text.to_owned()],
        on_behalf_of,
    };
    stage.flows().keep_scripts(keep(EXECUTOR, "one")).await.unwrap();
    let blob = stage.keys().blob(model::BlobHash::of(b"one"));
    assert_eq!(stage.command(Cmd::new("EXISTS").arg(&blob)).await.int(), Ok(1));
    assert_eq!(failure(stage.flows().keep_scripts(keep(READER, "two")).await).0, Code::PermissionDenied);
    assert_eq!(failure(stage.flows().keep_scripts(keep(STRANGER, "two")).await).0, Code::NotFound);
    let long = "x".repeat(SCRIPT_BYTES_MAX + 1);
    assert_eq!(failure(stage.flows().keep_scripts(keep(EXECUTOR, &long)).await).1, "LIMIT_EXCEEDED");
}

async fn flows_take_jobs_up_in_as_many_answers_as_it_takes(stage: Stage<impl Redis>) {
    let mut ids = Vec::new();
    for n in 0..3 {
        let id = created(&stage, EXECUTOR, create("true")).await.id;
        // As earlier versions have kept long ones.
        let text = format!("{n}{}", "x".repeat(700 * 1024));
        let key = stage.keys().job(ActorId(EXECUTOR), JobId(id));
        stage.command(Cmd::new("HSET").arg(&key).arg("script").arg(&text)).await;
        ids.push(id);
    }
    let ask = |job_ids: &[u32], on_behalf_of| wire::ReadJobsRequest {
        context_id: CONTEXT,
        caller_id: EXECUTOR,
        job_ids: job_ids.to_vec(),
        on_behalf_of,
    };
    let first = stage.flows().read_jobs(ask(&ids, READER)).await.unwrap().into_inner().specs;
    assert_eq!(first.len(), 1, "two would be too large");
    let third = stage.flows().read_jobs(ask(&ids[2..], READER)).await.unwrap().into_inner().specs;
    let v1::script::Source::Text(text) = third[0].script.clone().unwrap().source.unwrap() else { panic!() };
    assert!(text.starts_with("2x"));
    assert_eq!(failure(stage.flows().read_jobs(ask(&[999], READER)).await).0, Code::NotFound);
    assert_eq!(failure(stage.flows().read_jobs(ask(&ids, STRANGER)).await).0, Code::NotFound);
}

scenarios!(
    watchers_of_the_context_receive_events,
    a_job_is_kept_as_it_was_given,
    who_may_do_what_to_jobs,
    jobs_are_listed_newest_first_and_those_of_a_flow_by_number,
    the_last_job_of_a_flow_may_have_the_greatest_id,
    a_job_of_a_flow_goes_with_it_and_long_scripts_are_named_in_lists,
    a_script_that_is_too_long_for_a_record_is_a_blob,
    flows_take_jobs_up_in_as_many_answers_as_it_takes
);
