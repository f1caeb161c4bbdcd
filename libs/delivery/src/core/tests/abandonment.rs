//! Messages whose time is over.

use super::*;

#[test]
fn attempts_from_before_a_restart_are_queried_before_they_are_abandoned() {
    // Made before this router started, and late when it comes: who knows what became of it.
    let mut bench = Bench::started(990_000);
    let old = wire::HeldMessage { created_millis: 900_000, ..held(1, &[1, 2]) };
    let late = bench.held(vec![old.clone()]);
    assert_eq!((late.deliver.len(), late.report.len(), late.query[0].job_keys.len()), (0, 0, 2));
    let runs = bench.report(1, started());
    assert_eq!((runs.reports().len(), runs.stop.len()), (1, 0), "it goes on");
    bench.handled(&runs.reports());
    assert_eq!(bench.report(2, ReportKind::Unknown).stop.len(), 1);
    let given_up = bench.report(2, ended(Outcome::Stopped)).reports();
    assert!(given_up.len() == 1 && timed_out(&given_up[0]) && report(&given_up[0]).job_key == key(2));
    assert!(bench.handled(&given_up).settle[0].error.starts_with("TIMEOUT_ACK"));
    assert!(bench.is_empty());

    // A supervisor that is dead cannot be asked about an attempt.
    bench.runner(1, false);
    let late = bench.held(vec![wire::HeldMessage { message_key: "message:7:2".into(), ..old }]);
    assert_eq!((late.report.len(), late.stop.len(), late.query.len()), (1, 2, 0));
    assert!(late.reports().iter().all(timed_out));
    bench.handled(&late.reports());
    assert!(bench.is_empty());
}

#[test]
fn what_is_to_be_given_up_and_has_arrived_is_not() {
    for kind in [accepted(), started(), ended(Outcome::Succeeded), ReportKind::Returned] {
        let mut bench = Bench::new();
        assert_eq!(bench.doubt(1, &[1]).query.len(), 1);
        let effects = bench.report(1, kind.clone());
        assert_eq!(report(&effects.reports()[0]).kind, kind);
        assert_eq!((effects.settle[0].error.as_str(), effects.stop.len()), ("", 0), "{kind:?}");
        assert_eq!(bench.handled(&effects.reports()).handled, [1]);
        assert!(bench.is_empty());
    }
}

#[test]
fn unresolved_attempts_are_queried_until_the_supervisor_answers_or_is_dead() {
    let mut bench = Bench::new();
    bench.doubt(1, &[1]);
    for _ in 0..3 {
        assert_eq!(bench.pass(REPEAT_AFTER).query.len(), 1);
    }
    bench.report(1, ReportKind::Unknown);
    for _ in 0..3 {
        let again = bench.pass(REPEAT_AFTER);
        assert_eq!((again.stop.len(), again.query.len(), again.report.len()), (1, 0, 0));
    }
    assert_eq!(bench.report(1, started()).handled, [1], "it had been on its way; it is being stopped");
    bench.put(Input::GatewayDown);
    assert!(bench.core.next_due().is_none(), "nobody can be asked");
    assert_eq!(bench.put(Input::GatewayUp).stop.len(), 1, "at once");
    let dead = bench.runner(1, false);
    assert!(dead.report.is_empty());
    let given_up = bench.pass(REPEAT_AFTER).reports();
    assert!(timed_out(&given_up[0]));
    bench.handled(&given_up);
    assert!(bench.is_empty());

    // Alive and mute for ever.
    let mut bench = Bench::new();
    bench.doubt(1, &[1]);
    let begin = bench.now;
    let given_up = loop {
        let passed = bench.pass(REPEAT_AFTER);
        if !passed.report.is_empty() {
            break passed;
        }
    };
    assert_eq!((bench.now - begin, given_up.stop.len()), (LOST_AFTER, 1));
}

#[test]
fn what_is_in_doubt_may_be_stopped() {
    let mut bench = Bench::new();
    bench.doubt(1, &[1]);
    let stopped = bench.stop(1);
    assert_eq!((stopped.stop.len(), stopped.report.len(), stopped.settle.len()), (1, 0, 1));
    let reports = bench.report(1, ended(Outcome::Stopped)).reports();
    assert!(matches!(report(&reports[0]).kind, ReportKind::Ended(_)), "the supervisor tells the end");
    bench.handled(&reports);
    assert!(bench.is_empty());
}

#[test]
fn a_job_with_a_report_counts_as_arrived() {
    let mut bench = Bench::new();
    let sent = bench.held(vec![held(1, &[1, 2]), held(2, &[3])]).deliver;
    for (job, kind) in [(1, started()), (3, accepted())] {
        let passed_on = bench.report(job, kind).reports();
        bench.handled(&passed_on);
    }
    bench.now += Duration::from_secs(60);
    bench.wall = bench.wall + Duration::from_secs(60);
    let late = bench.put(Input::GatewayDown);
    assert_eq!((late.deliver.len(), late.stop.len(), late.report.len()), (0, 0, 0));
    assert_eq!((late.settle.len(), late.settle[0].error.as_str()), (1, ""), "all of it has arrived");
    let queries = bench.put(Input::GatewayUp).query;
    assert_eq!(queries[0].job_keys, [key(2).to_string()]);
    bench.report(2, ReportKind::Unknown);
    let given_up = bench.report(2, ended(Outcome::Stopped)).reports();
    assert!(bench.handled(&given_up).settle[0].error.starts_with("TIMEOUT_ACK"));
    assert!(bench.outcome(sent[0].delivery_id, "").settle.is_empty() && bench.is_empty());
}

#[test]
fn a_message_past_its_time_is_not_sent() {
    // The way becomes free in the very moment in which the time is over.
    let mut bench = Bench::new();
    bench.runner(1, false);
    bench.held(vec![held(2, &[3])]);
    bench.now += Duration::from_secs(60);
    bench.wall = bench.wall + Duration::from_secs(60);
    let late = bench.runner(1, true);
    assert_eq!((late.deliver.len(), late.stop.len(), late.query.len()), (0, 0, 0), "nobody has sent it");
    assert!(timed_out(&late.reports()[0]));
    assert_eq!(bench.handled(&late.reports()).settle.len(), 1);
    assert!(bench.is_empty());
}

#[test]
fn what_was_not_sent_to_a_runner_that_is_closed_is_handed_back() {
    let mut bench = Bench::new();
    bench.runner(1, false);
    assert!(bench.held(vec![held(1, &[1, 2])]).deliver.is_empty(), "nobody is there");
    let drain_time = Some(proto::convert::time::to_wire(Timestamp::from_millis(7)));
    let closed = |live, drain_time| v1::Runner {
        id: 1,
        live,
        address: ADDRESS.into(),
        drain_time,
        ..Default::default()
    };
    let back = bench.view(closed(true, drain_time)).reports();
    assert!(back.len() == 2 && back.iter().all(|back| report(back).kind == ReportKind::Returned), "{back:?}");
    assert!(bench.handled(&back).settle[0].error.contains("no new jobs"));
    assert!(bench.is_empty());

    // A message that comes now is handed back as well; one under way is not, unless its delivery fails.
    let back = bench.held(vec![held(2, &[3])]).reports();
    bench.handled(&back);
    bench.view(closed(true, None));
    let sent = bench.held(vec![held(3, &[4])]).deliver;
    assert!(bench.view(closed(true, drain_time)).report.is_empty());
    bench.outcome(sent[0].delivery_id, "no answer");
    let effects = bench.pass(Duration::from_secs(10));
    assert_eq!((effects.deliver.len(), effects.query.len()), (0, 1), "it may have arrived");
    assert_eq!(bench.report(4, ReportKind::Unknown).stop.len(), 1);
    let back = bench.report(4, ended(Outcome::Stopped)).reports();
    assert_eq!(report(&back[0]).kind, ReportKind::Returned);
    bench.handled(&back);
    assert!(bench.is_empty());
}
