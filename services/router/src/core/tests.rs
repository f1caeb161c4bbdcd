//! The core, step by step.

use super::*;
use model::id::Uid;
use model::{Attempt, ContextUid, FlowUid, JobId};
use proto::v1;

struct Bench {
    core: Core,
    now: Instant,
    wall: Timestamp,
}

const ADDRESS: &str = "grpc://host-a:7706";

fn key(job: u32) -> JobKey {
    JobKey {
        context: ContextUid(Uid::from_bits(1)),
        flow: FlowUid(Uid::from_bits(2)),
        job: JobId(job),
        attempt: Attempt(1),
    }
}

fn held(message: u32, jobs: &[u32]) -> wire::HeldMessage {
    let nodes = jobs.iter().map(|job| format!(r#"{{"job_key":"{}","more":[1]}}"#, key(*job)).into());
    wire::HeldMessage {
        context_id: 1,
        context_uid: key(0).context.to_string(),
        message_key: format!("message:7:{message}"),
        flow_id: 3,
        runner_id: 1,
        timeout_ack_secs: 60,
        nodes: nodes.collect(),
        created_millis: 1_000_000,
    }
}

impl Bench {
    /// Everything stands, and runner 1 is alive.
    fn new() -> Self {
        let metrics = Metrics::new(&prometheus::Registry::new()).expect("nothing registered twice");
        let core = Core::new(metrics, Box::new(|| 0.5));
        let mut bench = Self { core, now: Instant::now(), wall: Timestamp::from_millis(1_000_000) };
        bench.runner(1, true);
        bench.put(Input::GatewayUp);
        bench.put(Input::SchedulerUp);
        bench
    }

    fn put(&mut self, input: Input) -> Effects {
        self.core.handle(self.now, self.wall, input);
        self.core.effects(self.now)
    }

    fn runner(&mut self, id: u32, live: bool) -> Effects {
        let runner = v1::Runner { id, live, address: ADDRESS.into(), ..Default::default() };
        let viewed = wire::ViewedRunner { context_id: 1, runner: Some(runner) };
        self.put(Input::Runners(wire::WatchResponse { runners: vec![viewed], snapshot_end: true }))
    }

    fn outcome(&mut self, delivery_id: u64, error: &str) -> Effects {
        let outcome = wire::DeliveryOutcome { delivery_id, error: error.into() };
        let frame = Some(wire::exchange_response::Frame::Outcome(outcome));
        self.put(Input::Gateway(wire::ExchangeResponse { frame }))
    }

    fn handled(&mut self, reports: &[wire::IncomingReport]) -> Effects {
        let handled = reports.iter().map(|report| report.report_id).collect();
        self.put(Input::Scheduler(wire::ReportResponse { handled, ..Default::default() }))
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
        self.put(Input::Scheduler(wire::ReportResponse { stops: vec![stop], ..Default::default() }))
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
            && !core.timers.iter().any(|(_, _, kind)| *kind == TimerKind::Deadline)
    }
}

fn report(incoming: &wire::IncomingReport) -> NodeReport {
    serde_json::from_slice(&incoming.report_json).expect("a report")
}

#[test]
fn a_message_is_delivered_and_settled_once() {
    let mut bench = Bench::new();
    let sent = bench.put(Input::Held(vec![held(1, &[1, 2])])).deliver;
    assert_eq!((sent.len(), sent[0].nodes.len(), sent[0].address.as_str()), (1, 2, ADDRESS));
    assert_eq!(sent[0].timeout_millis, 10_000);
    let again = bench.put(Input::Held(vec![held(1, &[1, 2])]));
    assert!(again.deliver.is_empty() && again.settle.is_empty(), "it is in our care already");
    let settled = bench.outcome(sent[0].delivery_id, "").settle;
    assert_eq!(settled, [settlement(&(model::ContextId(1), "message:7:1".into()), String::new())]);
    assert!(bench.outcome(sent[0].delivery_id, "").settle.is_empty());
    assert!(bench.is_empty());
}

#[test]
fn a_failed_delivery_is_tried_again_until_its_time_is_over() {
    let mut bench = Bench::new();
    let mut sent = bench.put(Input::Held(vec![held(1, &[1])])).deliver;
    let begin = bench.now;
    let mut tries = 0;
    let ended = loop {
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
    let stop = &ended.stop[0];
    let told = (stop.address.as_str(), stop.job_key.as_str(), stop.context_id, stop.flow_id);
    assert_eq!(told, (ADDRESS, &*key(1).to_string(), 1, 3), "an earlier try may have arrived");
    let told = report(&ended.report[0]);
    let ReportKind::Rejected { reason, lasting: false, counts: true } = told.kind else { panic!("{told:?}") };
    assert_eq!((reason.code, reason.detail.as_str()), (ReasonCode::TimeoutAck, "no answer"));
    assert!(ended.settle.is_empty(), "not before a scheduler knows");
    let settled = bench.handled(&ended.report).settle;
    assert_eq!(settled[0].error, "TIMEOUT_ACK: no answer");
    assert!(bench.is_empty());
}

fn timed_out(incoming: &wire::IncomingReport) -> bool {
    matches!(report(incoming).kind, ReportKind::Rejected { reason, .. } if reason.code == ReasonCode::TimeoutAck)
}

#[test]
fn a_message_past_its_time_is_not_sent() {
    let mut bench = Bench::new();
    let late =
        bench.put(Input::Held(vec![wire::HeldMessage { created_millis: 900_000, ..held(1, &[1, 2]) }]));
    assert_eq!((late.deliver.len(), late.stop.len(), late.report.len()), (0, 0, 2));
    assert!(late.report.iter().all(timed_out));
    assert!(bench.handled(&late.report).settle[0].error.starts_with("TIMEOUT_ACK"));
    assert!(bench.is_empty());

    // The way becomes free in the very moment in which the time is over.
    bench.runner(1, false);
    bench.put(Input::Held(vec![held(2, &[3])]));
    bench.now += Duration::from_secs(60);
    bench.wall = bench.wall + Duration::from_secs(60);
    let late = bench.runner(1, true);
    assert_eq!((late.deliver.len(), late.stop.len(), late.report.len()), (0, 0, 1));
    assert_eq!(bench.handled(&late.report).settle.len(), 1);
    assert!(bench.is_empty());
}

#[test]
fn what_is_given_up_is_stopped_where_it_was_sent_unless_it_runs() {
    let mut bench = Bench::new();
    let sent = bench.put(Input::Held(vec![held(1, &[1, 2]), held(2, &[3])])).deliver;
    for job in [1, 3] {
        let kind = ReportKind::Started { instance: "shell:default:1".into(), time: bench.wall };
        let started = NodeReport {
            job_key: key(job),
            context_id: model::ContextId(1),
            flow_id: model::FlowId(3),
            source: None,
            kind,
        };
        let report_json = serde_json::to_vec(&started).expect("JSON").into();
        let reports = vec![wire::NumberedReport { report_id: job.into(), report_json }];
        let frame = Some(wire::exchange_response::Frame::Reports(wire::Reports { reports }));
        let passed_on = bench.put(Input::Gateway(wire::ExchangeResponse { frame })).report;
        bench.handled(&passed_on);
    }
    bench.now += Duration::from_secs(60);
    bench.wall = bench.wall + Duration::from_secs(60);
    // No stop is lost with the gateway.
    let ended = bench.put(Input::GatewayDown);
    assert_eq!((ended.deliver.len(), ended.stop.len(), ended.report.len()), (0, 0, 1));
    assert_eq!(report(&ended.report[0]).job_key, key(2));
    assert_eq!((ended.settle.len(), ended.settle[0].error.as_str()), (1, ""), "all of it runs");
    let stops = bench.put(Input::GatewayUp).stop;
    assert_eq!((stops.len(), stops[0].job_key.as_str()), (1, &*key(2).to_string()));
    assert!(bench.handled(&ended.report).settle[0].error.starts_with("TIMEOUT_ACK"));
    assert!(bench.outcome(sent[0].delivery_id, "").settle.is_empty() && bench.is_empty());
}

#[test]
fn a_settlement_that_was_lost_is_repeated() {
    let mut bench = Bench::new();
    let sent = bench.put(Input::Held(vec![held(1, &[1])])).deliver;
    let well = bench.outcome(sent[0].delivery_id, "").settle;
    bench.put(Input::Held(vec![wire::HeldMessage { runner_id: 9, ..held(2, &[2]) }]));
    let given_up = bench.pass(UNKNOWN_RUNNER_PATIENCE).report;
    let badly = bench.handled(&given_up).settle;
    assert!(!badly[0].error.is_empty());

    let again = bench.put(Input::Held(vec![held(1, &[1]), held(2, &[2])]));
    assert_eq!((again.deliver.len(), again.report.len()), (0, 0));
    assert_eq!(again.settle, [well, badly].concat());
    assert!(bench.is_empty());
    let other = wire::HeldMessage { created_millis: 1_000_001, ..held(1, &[4]) };
    assert_eq!(bench.put(Input::Held(vec![other])).deliver.len(), 1, "another message of that name");
}

#[test]
fn a_dead_runner_is_waited_for_and_an_unknown_one_only_briefly() {
    let mut bench = Bench::new();
    bench.runner(1, false);
    let waits = bench.put(Input::Held(vec![held(1, &[1])]));
    assert!(waits.deliver.is_empty());
    assert!(bench.pass(Duration::from_secs(30)).report.is_empty());
    assert_eq!(bench.runner(1, true).deliver.len(), 1);

    bench.put(Input::Held(vec![wire::HeldMessage { runner_id: 9, ..held(2, &[2]) }]));
    let given_up = bench.pass(UNKNOWN_RUNNER_PATIENCE);
    let ReportKind::Rejected { reason, .. } = report(&given_up.report[0]).kind else { panic!("rejected") };
    assert_eq!(reason.to_string(), "UNDELIVERABLE: context 1 has no runner 9");
}

#[test]
fn a_lost_gateway_means_sending_again() {
    let mut bench = Bench::new();
    let first = bench.put(Input::Held(vec![held(1, &[1])])).deliver;
    let reports = wire::Reports {
        reports: vec![wire::NumberedReport { report_id: 5, report_json: Bytes::from_static(b"{}") }],
    };
    let frame = Some(wire::exchange_response::Frame::Reports(reports));
    let passed_on = bench.put(Input::Gateway(wire::ExchangeResponse { frame })).report;
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
    let reports = (5..7)
        .map(|report_id| wire::NumberedReport { report_id, report_json: Bytes::from_static(b"{}") })
        .collect();
    let frame = Some(wire::exchange_response::Frame::Reports(wire::Reports { reports }));
    let first = bench.put(Input::Gateway(wire::ExchangeResponse { frame })).report;
    assert_eq!(bench.handled(&first[..1]).handled, [5]);
    let again = bench.put(Input::SchedulerUp).report;
    assert_eq!(again, first[1..]);
    assert_eq!(bench.handled(&again).handled, [6]);
    assert!(bench.handled(&again).handled.is_empty());
}

#[test]
fn a_stop_overtakes_what_waits() {
    let mut bench = Bench::new();
    bench.runner(1, false);
    bench.put(Input::Held(vec![held(1, &[1, 2])]));
    let stopped = bench.stop(1);
    assert_eq!(stopped.stop.len(), 1, "the supervisor is told in any case");
    let told = report(&stopped.report[0]);
    assert_eq!(told.job_key, key(1));
    assert!(matches!(told.kind, ReportKind::Ended(end) if end.outcome == Outcome::Stopped));
    let sent = bench.runner(1, true).deliver;
    assert_eq!(sent[0].nodes.len(), 1);
    assert!(bench.outcome(sent[0].delivery_id, "").settle.is_empty(), "a report is not acknowledged yet");
    assert_eq!(bench.handled(&stopped.report).settle.len(), 1);
    assert!(bench.is_empty());
}

#[test]
fn a_stop_of_what_may_have_arrived_is_the_supervisor_s_to_answer() {
    let mut bench = Bench::new();
    let sent = bench.put(Input::Held(vec![held(1, &[1])])).deliver;
    assert!(bench.stop(1).report.is_empty(), "it is under way");
    bench.outcome(sent[0].delivery_id, "no answer");
    let stopped = bench.stop(1);
    assert_eq!((stopped.stop.len(), stopped.report.len(), stopped.settle.len()), (1, 0, 1));
    assert!(bench.pass(Duration::from_secs(10)).deliver.is_empty());
    assert!(bench.is_empty());
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
    let nodes = (1..=5).map(|job| format!(r#"{{"job_key":"{}","script":"{long}"}}"#, key(job)).into());
    let sent = bench.put(Input::Held(vec![wire::HeldMessage { nodes: nodes.collect(), ..held(1, &[]) }]));
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
    let settled = bench.put(Input::Held(vec![bad])).settle;
    assert!(settled[0].error.contains("cannot be read"));
    assert!(bench.is_empty());
}
