//! Reports and settlements that are not urgent are held back and merged.

use super::*;

#[test]
fn that_a_job_was_accepted_waits_for_something_better() {
    let mut bench = Bench::with_patience(PATIENCE, 0);
    let began = bench.now;
    let (first, second) = (bench.report(1, accepted()), bench.report(2, accepted()));
    assert!(first.report.is_empty() && second.report.is_empty());
    let ended = bench.report(1, ReportKind::Returned);
    assert_eq!(ended.handled, [1], "the gateway need not keep it");
    assert_eq!(ended.report[SCHEDULER].len(), 1);
    assert_eq!(bench.core.next_due(), Some(began + PATIENCE));
    bench.now = began + PATIENCE;
    let effects = bench.put(Input::Due);
    assert_eq!(effects.report[SCHEDULER].len(), 1, "nothing else was heard of the other");
    assert_eq!(bench.handled(&effects.report[SCHEDULER]).handled, [2]);

    // The gateway says it again after its stream was lost.
    bench.report(3, accepted());
    bench.put(Input::GatewayDown);
    bench.now += PATIENCE;
    assert!(bench.put(Input::Due).report.is_empty());
    bench.put(Input::GatewayUp);
    bench.report(3, accepted());
    bench.now += PATIENCE;
    assert_eq!(bench.put(Input::Due).report[SCHEDULER].len(), 1);
}

#[test]
fn messages_that_have_arrived_are_settled_together_and_others_at_once() {
    let mut bench = Bench::with_patience(PATIENCE, 0);
    let began = bench.now;
    let sent = bench.held((1..=3).map(|message| held(message, &[message])).collect()).deliver;
    assert!(bench.outcome(sent[0].delivery_id, "").settle.is_empty());
    bench.now += PATIENCE / 2;
    assert!(bench.outcome(sent[1].delivery_id, "").settle.is_empty());
    assert_eq!(bench.core.next_due(), Some(began + PATIENCE));
    bench.now = began + PATIENCE;
    let settled: Vec<_> = bench.put(Input::Due).settle.into_iter().map(|one| one.message_key).collect();
    assert_eq!(settled, ["message:7:1", "message:7:2"]);
    assert!(bench.outcome(sent[2].delivery_id, "").settle.is_empty(), "the next ones wait anew");

    // Storage assigns a message again before it knows the settlement. The message is settled again and not sent.
    let again = bench.held(vec![held(3, &[3])]);
    assert_eq!((again.deliver.len(), again.settle.len()), (0, 1));
    let many = u32::try_from(SETTLE_TOGETHER_MAX).expect("few");
    let (mut sent, mut settled) =
        (bench.held((10..10 + many).map(|message| held(message, &[message])).collect()).deliver, 0);
    while let Some(delivery) = sent.pop() {
        let effects = bench.outcome(delivery.delivery_id, "");
        sent.extend(effects.deliver);
        settled += effects.settle.len();
    }
    assert_eq!(settled, SETTLE_TOGETHER_MAX, "as many as are told of at once");
}
