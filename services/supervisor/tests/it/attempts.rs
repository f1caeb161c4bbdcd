//! Operators' requests for attempts.

use std::collections::BTreeMap;

use identity::Identity;
use kv::Cmd;
use model::{ActorId, Isolation, JobKey};
use proto::v1::{
    Attempt, AttemptState, DrainRequest, GetAttemptRequest, GetSupervisorRequest, ResumeRequest,
    RunAttemptRequest, ScriptType, StopAttemptRequest, StreamAttemptLogsRequest, WaitAttemptRequest,
};
use testkit::{PATIENCE, wait_until};
use tonic::{Code, Status};

use crate::backlog::execution;
use crate::setup::Machine;

fn wanted(request_id: &str) -> RunAttemptRequest {
    RunAttemptRequest {
        request_id: request_id.to_owned(),
        script_type: ScriptType::Shell.into(),
        script: "echo here".to_owned(),
        env_vars: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        ..Default::default()
    }
}

async fn run(machine: &Machine, request: RunAttemptRequest) -> Result<Attempt, Status> {
    let answer = machine.client(Identity::Admin).run_attempt(request).await?;
    Ok(answer.into_inner().attempt.expect("always given"))
}

async fn get(machine: &Machine, job_key: &str) -> Result<Attempt, Status> {
    let request = GetAttemptRequest { job_key: job_key.to_owned() };
    let answer = machine.client(Identity::Admin).get_attempt(request).await?;
    Ok(answer.into_inner().attempt.expect("always given"))
}

async fn wait(machine: &Machine, job_key: &str, timeout_secs: u32) -> Result<Attempt, Status> {
    let request = WaitAttemptRequest { job_key: job_key.to_owned(), timeout_secs };
    let answer = machine.client(Identity::Admin).wait_attempt(request).await?;
    Ok(answer.into_inner().attempt.expect("always given"))
}

async fn stop(
    machine: &Machine,
    request_id: &str,
    job_key: &str,
    grace_secs: u32,
) -> Result<Attempt, Status> {
    let request = StopAttemptRequest {
        request_id: request_id.to_owned(),
        job_key: job_key.to_owned(),
        grace_secs: Some(grace_secs),
    };
    let answer = machine.client(Identity::Admin).stop_attempt(request).await?;
    Ok(answer.into_inner().attempt.expect("always given"))
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Status>) -> (Code, String) {
    let view = rpc::ErrorView::from(&result.expect_err("refused"));
    (view.code, view.reason)
}

#[tokio::test]
async fn an_attempt_is_run_without_a_coordinator_and_waited_for() {
    let machine = Machine::start(|_, _| {}).await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let queued = run(&machine, wanted("r")).await.expect("the admin may");
    assert_eq!((queued.state(), queued.coordinator.as_str()), (AttemptState::Queued, ""));
    assert_eq!(run(&machine, wanted("r")).await.expect("the same"), queued);
    let other = RunAttemptRequest { script: "echo there".to_owned(), ..wanted("r") };
    assert_eq!(refusal(run(&machine, other).await), (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned()));

    let key: JobKey = queued.job_key.parse().expect("a job key");
    let waiting = wait(&machine, &queued.job_key, 50);
    let working = async {
        let taken = worker.take().await;
        assert_eq!(taken.execution.job_key, key);
        assert_eq!(get(&machine, &queued.job_key).await.expect("known").state(), AttemptState::Started);
        let known = |end: &mut model::execution::AttemptEnd| {
            end.result = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        };
        worker.finish(key, known).await;
    };
    let (ended, ()) = tokio::join!(waiting, working);
    let ended = ended.expect("known");
    assert_eq!(
        (ended.state(), ended.exit_code, ended.result["a"].as_str()),
        (AttemptState::Finished, Some(0), "1")
    );
    assert!(ended.end_time.is_some());
    assert_eq!(wait(&machine, &queued.job_key, 0).await.expect("it has ended"), ended);
    let database = machine.kv.database(machine.kv.endpoint().database());
    let all_reported = || async {
        let left = database.cmd(Cmd::new("XLEN").arg(keys::supervisor::DONE)).await.expect("counted");
        (left.int().expect("a number") == 0).then_some(())
    };
    wait_until(all_reported, PATIENCE, "nobody has to be told".to_owned()).await;
    let second = run(&machine, wanted("")).await.expect("another");
    assert_ne!(second.job_key, queued.job_key);
}

#[tokio::test]
async fn what_cannot_be_run_is_refused_for_all_that_is_wrong() {
    let machine = Machine::start(|_, _| {}).await;
    let wrong = RunAttemptRequest {
        request_id: "a b".to_owned(),
        group: "/".to_owned(),
        timeout_secs: u32::MAX,
        isolation: 9,
        ..Default::default()
    };
    let view = rpc::ErrorView::from(&run(&machine, wrong).await.expect_err("wrong"));
    let fields: Vec<_> = view.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, ["request_id", "script_type", "script", "timeout_secs", "group", "isolation"]);

    let key = execution(9, 9).job_key.to_string();
    assert_eq!(refusal(get(&machine, &key).await).0, Code::NotFound);
    assert_eq!(refusal(wait(&machine, &key, 1).await).0, Code::NotFound);
    assert_eq!(refusal(stop(&machine, "", &key, 0).await).0, Code::NotFound);
    assert_eq!(refusal(wait(&machine, "x", 51).await).0, Code::InvalidArgument);
    let denied = machine.client(Identity::Actor(ActorId(1))).run_attempt(wanted("")).await;
    assert_eq!(refusal(denied).0, Code::PermissionDenied);

    let mut admin = machine.client(Identity::Admin);
    let drain = DrainRequest { request_id: "d".to_owned(), deadline_secs: None };
    admin.drain(drain.clone()).await.expect("drained");
    assert_eq!(refusal(run(&machine, wanted("")).await), (Code::Unavailable, "DRAINING".to_owned()));
    admin.resume(ResumeRequest { request_id: "u".to_owned() }).await.expect("resumed");
    admin.drain(drain).await.expect("it was drained");
    let now = admin.get_supervisor(GetSupervisorRequest {}).await.expect("read").into_inner();
    assert!(!now.draining, "a repetition drains nothing");
    let other = DrainRequest { request_id: "d".to_owned(), deadline_secs: Some(1) };
    assert_eq!(refusal(admin.drain(other).await).1, "REQUEST_ID_REUSED");
}

#[tokio::test]
async fn attempts_of_coordinators_are_stopped_as_well_and_their_logs_followed() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let job = execution(1, 1);
    let (key, text) = (job.job_key, job.job_key.to_string());
    coordinator.run(&job).await.expect("accepted");
    assert_eq!(get(&machine, &text).await.expect("known").coordinator, coordinator.name);
    worker.take().await;

    let dir = machine.work_dir().join("logs").join(key.context.to_string());
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join(format!("{key}.log"));
    std::fs::write(&file, "one").expect("written");
    let follow = StreamAttemptLogsRequest { job_key: text.clone(), offset: 0, follow: true };
    let mut pieces =
        machine.client(Identity::Admin).stream_attempt_logs(follow).await.expect("allowed").into_inner();
    let first = pieces.message().await.expect("a piece").expect("no end");
    assert_eq!((first.text.as_str(), first.complete), ("one", false));

    assert_eq!(stop(&machine, "s", &text, 7).await.expect("known").state(), AttemptState::Started);
    assert_eq!(stop(&machine, "s", &text, 7).await.expect("repeated").state(), AttemptState::Started);
    assert_eq!(refusal(stop(&machine, "s", &text, 8).await).1, "REQUEST_ID_REUSED");
    std::fs::write(&file, "one two").expect("written");
    let stopped = |end: &mut model::execution::AttemptEnd| {
        end.outcome = model::execution::Outcome::Stopped;
        end.output_bytes = 7;
    };
    worker.finish(key, stopped).await;
    let last = pieces.message().await.expect("a piece").expect("no end");
    assert_eq!((last.offset, last.text.as_str(), last.complete), (3, " two", true));
    assert!(pieces.message().await.expect("the end").is_none());
    let ended = wait(&machine, &text, 50).await.expect("known");
    assert_eq!((ended.state(), ended.output_bytes), (AttemptState::Stopped, 7));
    coordinator.receives_end(key).await;
}
