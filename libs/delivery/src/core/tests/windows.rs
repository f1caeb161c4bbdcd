//! Windows of routes, and metrics of what is under way and what waits.

use super::*;
use crate::send_queue::LANE_MESSAGES_MAX;

/// Messages with attempts that are under way, and routes whose window holds back others.
fn under_way(bench: &Bench) -> (i64, i64) {
    let metrics = &bench.core.metrics;
    (metrics.under_way.get(), metrics.windows_full.get())
}

/// Number of deliveries that were measured, and how many seconds they took together.
fn measured(bench: &Bench) -> (u64, f64) {
    let families = bench.registry.gather();
    let family = families.iter().find(|family| family.name() == "mycora_router_delivery_seconds");
    let histogram = family.expect("it is registered").get_metric()[0].get_histogram();
    (histogram.get_sample_count(), histogram.get_sample_sum())
}

#[test]
fn a_context_with_very_much_to_send_delays_another_by_one_window_at_most() {
    const QUEUED: u32 = 10_000;
    let mut bench = Bench::new();
    let viewed = wire::ViewedRunner {
        context_id: 2,
        runner: Some(v1::Runner { id: 1, live: true, address: ADDRESS.into(), ..Default::default() }),
    };
    bench.put(Input::Runners(wire::WatchResponse {
        runners: vec![viewed],
        snapshot_end: false,
        gone: Vec::new(),
    }));
    let first = bench.held((1..=QUEUED).map(|i| held(i, &[i])).collect()).deliver;
    assert_eq!(first.len(), LANE_MESSAGES_MAX, "a window of the busy context is under way");
    let single = wire::HeldMessage { context_id: 2, ..held(QUEUED + 1, &[QUEUED + 1]) };
    let next = bench.held(vec![single]).deliver;
    let contexts: Vec<u32> = next.iter().map(|delivery| delivery.context_id).collect();
    assert_eq!(contexts, [2], "at once, beside the window that is under way");
}

#[test]
fn what_is_under_way_and_what_waits_is_shown() {
    let window = i64::try_from(LANE_MESSAGES_MAX).expect("few");
    let mut bench = Bench::new();
    assert_eq!(bench.core.metrics.oldest_message.get(), 0, "there is none");
    let messages = (1..=20).map(|i| held(i, &[i])).collect();
    let mut sent = bench.held(messages).deliver;
    assert_eq!(under_way(&bench), (window, 1));
    assert_eq!((bench.core.metrics.held.get(), bench.core.metrics.oldest_message.get()), (20, 1000));
    while let Some(delivery) = sent.pop() {
        sent.extend(bench.outcome(delivery.delivery_id, "").deliver);
    }
    assert_eq!((under_way(&bench), bench.core.metrics.oldest_message.get()), ((0, 0), 0));
    assert_eq!(measured(&bench).0, 20);
}

#[test]
fn a_delivery_is_measured_from_the_commit_to_the_supervisors_answer() {
    let mut bench = Bench::new();
    // Made three seconds ago, and on its way for two more: the first try fails.
    bench.wall = bench.wall + Duration::from_secs(3);
    let sent = bench.held(vec![held(1, &[1])]).deliver;
    bench.outcome(sent[0].delivery_id, "no answer");
    assert_eq!(measured(&bench), (0, 0.0), "a failed delivery is tried again");
    let again = bench.pass(Duration::from_secs(2)).deliver;
    bench.outcome(again[0].delivery_id, "");
    let (count, seconds) = measured(&bench);
    assert_eq!(count, 1);
    assert!((4.99..5.01).contains(&seconds), "{seconds}");
}
