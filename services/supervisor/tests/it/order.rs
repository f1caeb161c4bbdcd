//! Attempts wait in the order in which they were sent.

use std::collections::BTreeMap;

use model::job::BlobRef;
use model::supervision::method;
use model::{BlobHash, Execution, FileSource, Isolation};
use mycelium::JsonRpcCall;
use testkit::PATIENCE;
use tokio::time::Instant;

use crate::backlog::execution;
use crate::refusals::{uid, with_policy};
use crate::setup::Machine;

fn call(job: &Execution) -> JsonRpcCall {
    JsonRpcCall::new(method::JOB_RUN, job).expect("JSON")
}

#[tokio::test]
async fn a_small_message_does_not_overtake_a_large_one_of_its_flow() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    // Its coordinator is asked for a file, which it has not: that takes the whole message some time.
    let mut refused = execution(1, 1);
    let blob = BlobRef { sha256: BlobHash::of(b"nowhere"), size: 7 };
    refused.files = BTreeMap::from([("file".to_owned(), FileSource { blob, inline: None })]);
    let first = coordinator.peer.send_batch(vec![call(&refused), call(&execution(1, 2))]).await;
    let second = coordinator.peer.send_batch(vec![call(&execution(1, 3))]).await;
    let deadline = Instant::now() + PATIENCE;
    let taken_in: Vec<bool> = first.outcomes(deadline).await.iter().map(Result::is_ok).collect();
    assert_eq!(taken_in, [false, true]);
    assert!(second.outcomes(deadline).await.iter().all(Result::is_ok));

    let mut worker = machine.instance(1, Isolation::Basic).await;
    let mut order = Vec::new();
    for _ in 0..2 {
        let key = worker.take().await.execution.job_key;
        order.push(key.job.0);
        worker.finish(key, |_| {}).await;
    }
    assert_eq!(order, [2, 3]);
}

#[tokio::test]
async fn contexts_take_turns_by_the_weights_of_the_policy() {
    let machine = Machine::start(with_policy(&format!("[contexts.{}]\nweight = 3\n", uid(1)))).await;
    let coordinator = machine.coordinator().await;
    for (context, jobs) in [(2, 1..=3), (1, 1..=9)] {
        for job in jobs {
            assert_eq!(coordinator.run(&execution(context, job)).await, Ok(()));
        }
    }
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let mut light = 0_u32;
    for turn in 1..=12 {
        let key = worker.take().await.execution.job_key;
        light += u32::from(key.context == uid(2));
        worker.finish(key, |_| {}).await;
        assert!((4 * light).abs_diff(turn) <= 4, "{light} of {turn}");
    }
    assert_eq!(light, 3);
}
