//! The core, step by step.

mod abandonment;
mod forgetting;
mod waiting;
mod windows;

use super::*;
use crate::reconcile::{QUERY_TRIES, REPEAT_AFTER};
use bytes::Bytes;
use model::execution::Outcome;
use model::id::Uid;
use model::{Attempt, AttemptEnd, ContextId, ContextUid, FlowId, FlowUid, JobId, NodeReport, ReportKind};
use proto::v1;

struct Bench {
    core: Core,
    registry: prometheus::Registry,
    now: Instant,
    wall: Timestamp,
}

const ADDRESS: &str = "grpc://host-a:7706";
const SCHEDULER: &str = "s";
const LOST_AFTER: Duration = Duration::from_secs(300);

fn key(job: u32) -> JobKey {
    JobKey {
        context: ContextUid(Uid::from_bits(1)),
        flow: FlowUid(Uid::from_bits(2)),
        job: JobId(job),
        attempt: Attempt(1),
    }
}

fn held(message: u32, jobs: &[u32]) -> wire::HeldMessage {
    let nodes = jobs
        .iter()
        .map(|job| format!(r#"{{"job_key":"{}","context_id":1,"flow_id":1,"more":[1]}}"#, key(*job)).into());
    wire::HeldMessage {
        context_id: 1,
        context_uid: key(0).context.to_string(),
        message_key: format!("message:7:{message}"),
        flow_id: 3,
        runner_id: 1,
        timeout_ack_secs: 60,
        nodes: nodes.collect(),
        created_millis: 1_000_000,
        kind: None,
    }
}

impl Bench {
    /// Everything stands, and runner 1 is alive. The router started long ago.
    fn new() -> Self {
        Self::started(0)
    }

    fn started(millis: u64) -> Self {
        Self::with_patience(Duration::ZERO, millis)
    }

    fn with_patience(patience: Duration, millis: u64) -> Self {
        let registry = prometheus::Registry::new();
        let metrics = Metrics::new(&registry).expect("nothing registered twice");
        let started = Timestamp::from_millis(millis);
        let settings = DeliverySettings { started, lost_after: LOST_AFTER, patience };
        let core = Core::new(metrics, Box::new(|| 0.5), settings);
        let wall = Timestamp::from_millis(1_000_000);
        let mut bench = Self { core, registry, now: Instant::now(), wall };
        bench.runner(1, true);
        bench.put(Input::GatewayUp);
        bench.put(Input::Schedulers(BTreeSet::from([SCHEDULER.to_owned()])));
        bench.put(Input::SchedulerUp(SCHEDULER.to_owned()));
        bench
    }

    fn held(&mut self, messages: Vec<wire::HeldMessage>) -> Effects {
        self.put(Input::Taken(wire::TakeResponse { messages, ..Default::default() }))
    }

    /// The gateway passes on a supervisor's report on an attempt, under the attempt's own number.
    fn report(&mut self, job: u32, kind: ReportKind) -> Effects {
        let (context_id, flow_id) = (ContextId(1), FlowId(3));
        let report = NodeReport { job_key: key(job), context_id, flow_id, source: None, kind };
        let report_json = serde_json::to_vec(&report).expect("JSON").into();
        self.reported(vec![wire::NumberedReport { report_id: job.into(), report_json }])
    }

    fn reported(&mut self, reports: Vec<wire::NumberedReport>) -> Effects {
        let frame = Some(wire::exchange_response::Frame::Reports(wire::Reports { reports }));
        self.put(Input::Gateway(wire::ExchangeResponse { frame }))
    }

    fn query(&mut self, jobs: &[u32]) -> Effects {
        let job_keys = jobs.iter().map(|job| key(*job).to_string()).collect();
        let query = wire::StatusQuery { context_id: 1, flow_id: 3, runner_id: 1, job_keys };
        self.scheduler_sends(wire::ReportResponse { queries: vec![query], ..Default::default() })
    }

    /// The scheduler sends this response.
    fn scheduler_sends(&mut self, response: wire::ReportResponse) -> Effects {
        self.put(Input::Scheduler(SCHEDULER.to_owned(), response))
    }

    /// Sends a message, has its delivery fail, and lets its time pass.
    fn doubt(&mut self, message: u32, jobs: &[u32]) -> Effects {
        let sent = self.held(vec![held(message, jobs)]).deliver;
        self.now += Duration::from_secs(60);
        self.wall = self.wall + Duration::from_secs(60);
        self.outcome(sent[0].delivery_id, "no answer")
    }

    fn put(&mut self, input: Input) -> Effects {
        self.core.handle(self.now, self.wall, input);
        self.core.effects(self.now)
    }

    fn runner(&mut self, id: u32, live: bool) -> Effects {
        self.view(v1::Runner { id, live, address: ADDRESS.into(), ..Default::default() })
    }

    fn view(&mut self, runner: v1::Runner) -> Effects {
        let viewed = wire::ViewedRunner { context_id: 1, runner: Some(runner) };
        self.put(Input::Runners(wire::WatchResponse {
            runners: vec![viewed],
            snapshot_end: true,
            gone: Vec::new(),
        }))
    }

    fn outcome(&mut self, delivery_id: u64, error: &str) -> Effects {
        let outcome = wire::DeliveryOutcome { delivery_id, error: error.into(), ..Default::default() };
        let frame = Some(wire::exchange_response::Frame::Outcome(outcome));
        self.put(Input::Gateway(wire::ExchangeResponse { frame }))
    }

    fn handled(&mut self, reports: &[wire::IncomingReport]) -> Effects {
        let handled = reports.iter().map(|report| report.report_id).collect();
        self.scheduler_sends(wire::ReportResponse { handled, ..Default::default() })
    }

    fn stop(&mut self, job: u32) -> Effects {
        let stop = wire::StopCommand {
            context_id: 1,
            flow_id: 3,
            runner_id: 1,
            job_key: key(job).to_string(),
            grace_secs: 5,
            ..Default::default()
        };
        self.scheduler_sends(wire::ReportResponse { stops: vec![stop], ..Default::default() })
    }

    fn pass(&mut self, time: Duration) -> Effects {
        self.now += time;
        self.wall = self.wall + time;
        self.put(Input::Due)
    }

    fn is_empty(&self) -> bool {
        let core = &self.core;
        core.messages.is_empty()
            && core.names.is_empty()
            && core.attempts.is_empty()
            && core.deliveries.is_empty()
            && core.reports.is_empty()
            && core.reconciler.is_empty()
            && !core.timers.iter().any(|(_, _, kind)| *kind == DeliveryTimerKind::Deadline)
    }
}

impl Effects {
    /// Reports for the only scheduler.
    fn reports(&self) -> Vec<wire::IncomingReport> {
        self.report.get(SCHEDULER).cloned().unwrap_or_default()
    }
}

fn accepted() -> ReportKind {
    ReportKind::Accepted { supervisor: "sup".into() }
}

fn started() -> ReportKind {
    ReportKind::Started { instance: "shell:default:1".into(), time: Timestamp::from_millis(7) }
}

fn ended(outcome: Outcome) -> ReportKind {
    ReportKind::Ended(Box::new(AttemptEnd {
        outcome,
        exit_code: None,
        reason: None,
        result: BTreeMap::new(),
        outputs: BTreeMap::new(),
        output_bytes: 0,
        ended: Vec::new(),
        instance: None,
        start_time: None,
        end_time: Timestamp::from_millis(8),
    }))
}

fn report(incoming: &wire::IncomingReport) -> NodeReport {
    serde_json::from_slice(&incoming.report_json).expect("a report")
}

#[test]
fn a_message_is_delivered_and_settled_once() {
    let mut bench = Bench::new();
    let sent = bench.held(vec![held(1, &[1, 2])]).deliver;
    assert_eq!((sent.len(), sent[0].nodes.len(), sent[0].address.as_str()), (1, 2, ADDRESS));
    assert_eq!(sent[0].timeout_millis, 10_000);
    let again = bench.held(vec![held(1, &[1, 2])]);
    assert!(again.deliver.is_empty() && again.settle.is_empty(), "it is in our care already");
    let settled = bench.outcome(sent[0].delivery_id, "").settle;
    assert_eq!(settled, [settlement(&(ContextId(1), "message:7:1".into()), String::new())]);
    assert!(bench.outcome(sent[0].delivery_id, "").settle.is_empty());
    assert!(bench.is_empty());
}

#[test]
fn a_failed_delivery_is_tried_again_until_its_time_is_over() {
    let mut bench = Bench::new();
    let mut sent = bench.held(vec![held(1, &[1])]).deliver;
    let begin = bench.now;
    let mut tries = 0;
    let late = loop {
        tries += 1;
        let after = bench.outcome(sent[0].delivery_id, "no answer");
        assert!(after.report.is_empty() && after.settle.is_empty());
        let due = bench.core.next_due().expect("a back-off, or the deadline");
        let next = bench.pass(due - bench.now);
        if next.deliver.is_empty() {
            break next;
        }
        sent = next.deliver;
    };
    assert_eq!((bench.now - begin, tries > 5), (Duration::from_secs(60), true));
    assert!(late.report.is_empty() && late.stop.is_empty(), "a try may have arrived");
    let query = &late.query[0];
    assert_eq!((query.address.as_str(), query.context_id, query.flow_id), (ADDRESS, 1, 3));
    assert_eq!(query.job_keys, [key(1).to_string()]);

    let unknown = bench.report(1, ReportKind::Unknown);
    assert_eq!(
        (unknown.handled.as_slice(), unknown.report.len()),
        ([1].as_slice(), 0),
        "not the scheduler's"
    );
    let stop = &unknown.stop[0];
    let fields = (stop.address.as_str(), stop.job_key.as_str(), stop.context_id, stop.flow_id);
    assert_eq!(fields, (ADDRESS, &*key(1).to_string(), 1, 3), "from now on it is refused");
    let given_up = bench.report(1, ended(Outcome::Stopped));
    assert_eq!(given_up.handled, [1]);
    let last = report(&given_up.reports()[0]);
    let ReportKind::Rejected { reason, lasting: false, counts: true } = last.kind else { panic!("{last:?}") };
    assert_eq!((reason.code, reason.detail.as_str()), (ReasonCode::TimeoutAck, "no answer"));
    assert!(given_up.settle.is_empty(), "not before a scheduler knows");
    let settled = bench.handled(&given_up.reports()).settle;
    assert_eq!(settled[0].error, "TIMEOUT_ACK: no answer");
    assert!(bench.is_empty());
}

fn timed_out(incoming: &wire::IncomingReport) -> bool {
    matches!(report(incoming).kind, ReportKind::Rejected { reason, .. } if reason.code == ReasonCode::TimeoutAck)
}

#[test]
fn a_settlement_that_was_lost_is_repeated() {
    let mut bench = Bench::new();
    let sent = bench.held(vec![held(1, &[1])]).deliver;
    let well = bench.outcome(sent[0].delivery_id, "").settle;
    bench.held(vec![wire::HeldMessage { runner_id: 9, ..held(2, &[2]) }]);
    let given_up = bench.pass(UNKNOWN_RUNNER_PATIENCE).reports();
    let badly = bench.handled(&given_up).settle;
    assert!(!badly[0].error.is_empty());

    let again = bench.held(vec![held(1, &[1]), held(2, &[2])]);
    assert_eq!((again.deliver.len(), again.report.len()), (0, 0));
    assert_eq!(again.settle, [well, badly].concat());
    assert!(bench.is_empty());
    let other = wire::HeldMessage { created_millis: 1_000_001, ..held(1, &[4]) };
    assert_eq!(bench.held(vec![other]).deliver.len(), 1, "another message of that name");
}

#[test]
fn a_dead_runner_is_waited_for_and_an_unknown_one_only_briefly() {
    let mut bench = Bench::new();
    bench.runner(1, false);
    let waits = bench.held(vec![held(1, &[1])]);
    assert!(waits.deliver.is_empty());
    assert!(bench.pass(Duration::from_secs(30)).report.is_empty());
    assert_eq!(bench.runner(1, true).deliver.len(), 1);

    bench.held(vec![wire::HeldMessage { runner_id: 9, ..held(2, &[2]) }]);
    let given_up = bench.pass(UNKNOWN_RUNNER_PATIENCE);
    let ReportKind::Rejected { reason, .. } = report(&given_up.reports()[0]).kind else { panic!("rejected") };
    assert_eq!(reason.to_string(), "UNDELIVERABLE: context 1 has no runner 9");
}

#[test]
fn a_lost_gateway_means_sending_again() {
    let mut bench = Bench::new();
    let first = bench.held(vec![held(1, &[1])]).deliver;
    let passed_on = bench.report(5, ReportKind::Returned).reports();
    bench.put(Input::GatewayDown);
    bench.put(Input::GatewayUp);
    assert!(bench.handled(&passed_on).handled.is_empty(), "the number means another report now");
    let again = bench.pass(Duration::from_secs(1)).deliver;
    assert_ne!(first[0].delivery_id, again[0].delivery_id);
    assert!(bench.outcome(first[0].delivery_id, "").settle.is_empty(), "nobody waits for that any more");
    assert_eq!(bench.outcome(again[0].delivery_id, "").settle.len(), 1);
}

#[test]
fn reports_are_repeated_until_a_scheduler_has_them() {
    let mut bench = Bench::new();
    let first: Vec<_> = [5, 6].into_iter().flat_map(|job| bench.report(job, started()).reports()).collect();
    assert_eq!(bench.handled(&first[..1]).handled, [5]);
    bench.put(Input::SchedulerDown(SCHEDULER.to_owned()));
    assert!(bench.report(7, started()).report.is_empty(), "nobody is there");
    let again = bench.put(Input::SchedulerUp(SCHEDULER.to_owned())).reports();
    assert_eq!((again.len(), &again[0]), (2, &first[1]));
    assert_eq!(bench.handled(&again).handled, [6, 7]);
    assert!(bench.handled(&again).handled.is_empty());
}

#[test]
fn reports_follow_their_flow_to_another_scheduler() {
    let mut bench = Bench::new();
    let first = bench.report(1, started()).reports();
    bench.put(Input::Schedulers(BTreeSet::new()));
    bench.put(Input::SchedulerDown(SCHEDULER.to_owned()));
    assert!(bench.report(2, started()).report.is_empty(), "there is no replica for a while");
    bench.put(Input::Schedulers(BTreeSet::from(["other".to_owned()])));
    let again = bench.put(Input::SchedulerUp("other".to_owned())).report.remove("other").expect("both");
    assert_eq!((again.len(), &again[0]), (2, &first[0]));
    assert_eq!(bench.handled(&again).handled, [1, 2]);
}

#[test]
fn a_report_that_cannot_be_read_is_answered() {
    let mut bench = Bench::new();
    let report_json = Bytes::from_static(b"{}");
    let answered = bench.reported(vec![wire::NumberedReport { report_id: 9, report_json }]);
    assert_eq!((answered.handled.as_slice(), answered.report.len()), ([9].as_slice(), 0));
    assert_eq!(bench.core.metrics.reports_unreadable.get(), 1);
}

#[test]
fn schedulers_ask_until_they_are_answered() {
    let mut bench = Bench::new();
    let queries = bench.query(&[1, 2]).query;
    assert_eq!((queries.len(), queries[0].address.as_str(), queries[0].job_keys.len()), (1, ADDRESS, 2));
    let answer = bench.report(1, ReportKind::Unknown).reports();
    assert_eq!(report(&answer[0]).kind, ReportKind::Unknown);
    // The gateway will not say it again: it is kept when its stream is lost.
    bench.put(Input::GatewayDown);
    let again = bench.put(Input::GatewayUp).query;
    assert_eq!(again[0].job_keys, [key(2).to_string()], "at once, and only what is not answered");
    assert!(bench.handled(&answer).handled.is_empty(), "the number means another report now");
    for _ in 2..QUERY_TRIES {
        assert_eq!(bench.pass(REPEAT_AFTER).query.len(), 1);
    }
    assert!(bench.pass(REPEAT_AFTER).query.is_empty(), "nobody answers: the scheduler has its own patience");
    assert!(bench.is_empty());

    let many: Vec<u32> = (0..1200).collect();
    let sizes: Vec<_> = bench.query(&many).query.iter().map(|query| query.job_keys.len()).collect();
    assert_eq!(sizes, [QUERY_ATTEMPTS_MAX, QUERY_ATTEMPTS_MAX, 200]);
}

#[test]
fn what_is_still_on_its_way_is_not_unknown() {
    let mut bench = Bench::new();
    bench.runner(1, false);
    bench.held(vec![held(1, &[1])]);
    bench.query(&[1]);
    let answer = bench.report(1, ReportKind::Unknown);
    assert_eq!((answer.handled.as_slice(), answer.report.len()), ([1].as_slice(), 0));
    assert_eq!(bench.runner(1, true).deliver.len(), 1);
}

#[test]
fn a_log_read_is_answered_to_the_scheduler_that_sent_the_query() {
    let mut bench = Bench::new();
    bench.put(Input::SchedulerUp("other".to_owned()));
    let query = |query_id, runner_id| wire::LogQuery {
        query_id,
        context_id: 1,
        runner_id,
        job_key: key(1).to_string(),
        offset: 5,
        limit: 9,
    };
    let ask = |bench: &mut Bench, name: &str, log_query| {
        let response = wire::ReportResponse { log_queries: vec![log_query], ..Default::default() };
        bench.put(Input::Scheduler(name.to_owned(), response))
    };
    let refusal = |mut effects: Effects| {
        let answer = effects.log_answers.remove(SCHEDULER).expect("at once").remove(0);
        match answer.reading.and_then(|reading| reading.result) {
            Some(wire::log_reading::Result::Refusal(refusal)) => (answer.query_id, refusal),
            other => panic!("{other:?}"),
        }
    };
    let (query_id, refused) = refusal(ask(&mut bench, SCHEDULER, query(8, 9)));
    assert_eq!((query_id, refused.reason()), (8, v1::LogGapReason::Unreachable));
    assert_eq!(refused.detail, "there is no runner 9 any more");

    // Also of one that is not alive, as far as is known.
    bench.runner(1, false);
    let mine = ask(&mut bench, SCHEDULER, query(7, 1)).read_log.remove(0);
    let theirs = ask(&mut bench, "other", query(7, 1)).read_log.remove(0);
    assert_eq!((mine.address.as_str(), mine.offset, mine.limit), (ADDRESS, 5, 9));
    bench.put(Input::GatewayDown);
    assert!(bench.put(Input::Due).read_log.is_empty());
    assert_eq!(bench.put(Input::GatewayUp).read_log, [mine.clone(), theirs.clone()]);
    let answered = |bench: &mut Bench, read_id| {
        let frame = wire::exchange_response::Frame::LogRead(wire::LogOutcome { read_id, reading: None });
        bench.put(Input::Gateway(wire::ExchangeResponse { frame: Some(frame) })).log_answers
    };
    let answer = wire::LogAnswer { query_id: 7, reading: None };
    assert_eq!(answered(&mut bench, theirs.read_id), BTreeMap::from([("other".to_owned(), vec![answer])]));
    assert!(answered(&mut bench, theirs.read_id).is_empty(), "once");
    bench.put(Input::SchedulerDown(SCHEDULER.to_owned()));
    assert!(answered(&mut bench, mine.read_id).is_empty(), "its stream is gone, and it asks again");
}

fn dropped(runner_id: u32) -> wire::ContextDropped {
    wire::ContextDropped { context_uid: key(0).context.to_string(), runner_id }
}

#[test]
fn contexts_are_dropped_through_the_gateway() {
    let mut bench = Bench::new();
    let request = wire::ContextDrop {
        context_id: 1,
        context_uid: key(0).context.to_string(),
        runner_id: 1,
        address: ADDRESS.into(),
        topic: "t".into(),
    };
    let drops = vec![request];
    let taken = Input::Taken(wire::TakeResponse { drops: drops.clone(), ..Default::default() });
    let sent = bench.put(taken).drop;
    assert_eq!((sent[0].address.as_str(), sent[0].topic.as_str()), (ADDRESS, "t"));
    let outcome = |drop_id, error: &str| {
        let outcome = wire::DropOutcome { drop_id, error: error.into() };
        let frame = Some(wire::exchange_response::Frame::Dropped(outcome));
        Input::Gateway(wire::ExchangeResponse { frame })
    };
    assert!(bench.put(outcome(sent[0].drop_id, "still running")).dropped.is_empty());
    bench.put(Input::GatewayDown);
    assert!(bench.pass(Duration::from_secs(1)).drop.is_empty() && bench.core.next_due().is_none());
    let sent = bench.put(Input::GatewayUp).drop;
    assert_eq!(bench.put(outcome(sent[0].drop_id, "")).dropped, [dropped(1)]);
    let again = bench.put(Input::Taken(wire::TakeResponse { drops, ..Default::default() }));
    assert_eq!((again.drop.len(), again.dropped), (0, vec![dropped(1)]), "the answer was lost");
    assert_eq!(bench.core.metrics.contexts_dropped.get(), 1);
}

#[test]
fn a_stop_overtakes_what_waits() {
    let mut bench = Bench::new();
    bench.runner(1, false);
    bench.held(vec![held(1, &[1, 2])]);
    let stopped = bench.stop(1);
    assert_eq!(stopped.stop.len(), 1, "the supervisor is told in any case");
    assert_eq!(bench.core.metrics.stops_overtook.get(), 1);
    let last_report = report(&stopped.reports()[0]);
    assert_eq!(last_report.job_key, key(1));
    assert!(matches!(last_report.kind, ReportKind::Ended(end) if end.outcome == Outcome::Stopped));
    let sent = bench.runner(1, true).deliver;
    assert_eq!(sent[0].nodes.len(), 1);
    assert!(bench.outcome(sent[0].delivery_id, "").settle.is_empty(), "a report is not acknowledged yet");
    assert_eq!(bench.handled(&stopped.reports()).settle.len(), 1);
    assert!(bench.is_empty());
}

#[test]
fn a_stop_of_what_may_have_arrived_is_the_supervisor_s_to_answer() {
    let mut bench = Bench::new();
    let sent = bench.held(vec![held(1, &[1])]).deliver;
    assert!(bench.stop(1).report.is_empty(), "it is under way");
    bench.outcome(sent[0].delivery_id, "no answer");
    let stopped = bench.stop(1);
    assert_eq!((stopped.stop.len(), stopped.report.len(), stopped.settle.len()), (1, 0, 1));
    assert!(bench.pass(Duration::from_secs(10)).deliver.is_empty());
    assert!(bench.is_empty());
}

#[test]
fn a_stop_of_what_an_earlier_life_may_have_sent_is_the_supervisor_s_to_answer() {
    let mut bench = Bench::started(999_000);
    bench.runner(1, false);
    bench.held(vec![held(1, &[1])]);
    let stopped = bench.stop(1);
    assert_eq!((stopped.stop.len(), stopped.report.len(), stopped.settle.len()), (1, 0, 1));
    assert_eq!((bench.core.metrics.stops_overtook.get(), bench.is_empty()), (0, true));
}

#[test]
fn a_stop_goes_where_the_report_came_from() {
    let mut bench = Bench::new();
    let stop = wire::StopCommand {
        context_id: 1,
        flow_id: 3,
        runner_id: 9,
        job_key: key(1).to_string(),
        address: "grpc://former:1".into(),
        topic: "former".into(),
        ..Default::default()
    };
    let stops = vec![stop];
    let sent = bench.scheduler_sends(wire::ReportResponse { stops, ..Default::default() }).stop;
    assert_eq!((sent[0].address.as_str(), sent[0].topic.as_str()), ("grpc://former:1", "former"));
}

#[test]
fn stops_wait_for_the_gateway() {
    let mut bench = Bench::new();
    bench.put(Input::GatewayDown);
    assert!(bench.stop(1).stop.is_empty());
    assert_eq!(bench.put(Input::GatewayUp).stop.len(), 1);
}

#[test]
fn logs_are_acknowledged_when_they_are_kept() {
    let mut bench = Bench::new();
    let log = wire::NumberedLog { report_id: 9, data: Bytes::from_static(b"x"), ..Default::default() };
    let frame = Some(wire::exchange_response::Frame::Logs(wire::Logs { logs: vec![log] }));
    let pieces = bench.put(Input::Gateway(wire::ExchangeResponse { frame })).logs;
    assert_eq!(pieces.len(), 1);
    let kept = vec![(pieces[0].0, 9), (pieces[0].0 + 1, 10)];
    assert_eq!(bench.put(Input::LogsKept(kept)).handled, [9]);
}

#[test]
fn a_message_beyond_the_size_goes_in_parts() {
    let mut bench = Bench::new();
    let long = "x".repeat(400 * 1024);
    let nodes = (1..=5).map(|job| {
        format!(r#"{{"job_key":"{}","context_id":1,"flow_id":1,"script":"{long}"}}"#, key(job)).into()
    });
    let sent = bench.held(vec![wire::HeldMessage { nodes: nodes.collect(), ..held(1, &[]) }]);
    let sizes: Vec<_> = sent.deliver.iter().map(|deliver| deliver.nodes.len()).collect();
    assert_eq!(sizes, [2, 2, 1]);
    assert!(bench.outcome(sent.deliver[0].delivery_id, "").settle.is_empty());
    assert!(bench.outcome(sent.deliver[1].delivery_id, "no").settle.is_empty());
    assert!(bench.outcome(sent.deliver[2].delivery_id, "").settle.is_empty());
    let again = bench.pass(Duration::from_secs(1)).deliver;
    assert_eq!((again.len(), again[0].nodes.len()), (1, 2), "only what failed");
    assert_eq!(bench.outcome(again[0].delivery_id, "").settle.len(), 1);
}

#[test]
fn what_is_no_execution_is_given_up_at_once() {
    let mut bench = Bench::new();
    let bad = wire::HeldMessage { nodes: vec![Bytes::from_static(b"{}")], ..held(1, &[]) };
    let settled = bench.held(vec![bad]).settle;
    assert!(settled[0].error.contains("cannot be read"));
    assert!(bench.is_empty());
}

#[test]
fn a_message_with_all_jobs_refused_is_settled_with_the_refusal() {
    let mut bench = Bench::new();
    let mut settle = |message: u32, jobs: &[u32], refused_count: u32| {
        let sent = bench.held(vec![held(message, jobs)]).deliver;
        let outcome = wire::DeliveryOutcome {
            delivery_id: sent[0].delivery_id,
            refused_count,
            refusal: "KEY_CONFLICT: it is another job".into(),
            ..Default::default()
        };
        let frame = Some(wire::exchange_response::Frame::Outcome(outcome));
        bench.put(Input::Gateway(wire::ExchangeResponse { frame })).settle[0].error.clone()
    };
    assert_eq!(settle(1, &[1, 2], 2), "KEY_CONFLICT: it is another job");
    assert_eq!(settle(2, &[3, 4], 1), "", "one of them was taken");
}
