//! Jobs that are taken in only if something holds.

use model::id::Uid;
use model::{Attempt, ContextUid, Execution, FlowUid, Timestamp};
use queue::{AcceptCondition, ActorNonce, JobAcceptError, JobOffer};

use crate::setup::{COORDINATOR, QueueTestBench, execution, offer};

const EXPIRES: Timestamp = Timestamp::from_millis(4_000_000_000_000);

fn nonce() -> ActorNonce {
    ActorNonce { signer: "0f".repeat(32), nonce: Uid::from_bits(5) }
}

fn signed(execution: Execution) -> JobOffer {
    JobOffer { condition: AcceptCondition::Signed { nonce: nonce(), expires: EXPIRES }, ..offer(execution) }
}

fn attempt(job: u32, attempt: u32) -> Execution {
    let mut execution = execution(job);
    execution.job_key.attempt = Attempt(attempt);
    execution
}

#[tokio::test]
async fn a_signature_is_for_one_job_and_all_its_attempts() {
    let bench = QueueTestBench::new();
    let accept = |offer| bench.supervisor.accept(offer);
    assert!(accept(signed(attempt(1, 1))).await.expect("its first").is_new);
    assert!(!accept(signed(attempt(1, 1))).await.expect("the same").is_new);
    assert!(accept(signed(attempt(1, 2))).await.expect("another attempt").is_new);
    let mut elsewhere = attempt(1, 3);
    elsewhere.job_key.flow = FlowUid(Uid::from_bits(3));
    let answers = bench.supervisor.accept_all(vec![signed(attempt(2, 1)), signed(elsewhere)]).await;
    for answer in answers {
        let refusal = answer.expect_err("another job");
        assert_eq!((refusal.code(), refusal.is_permanent()), ("SIGNATURE_REFUSED", true));
    }
    assert_eq!(bench.supervisor.status(attempt(2, 1).job_key).await, Ok(None));
    let key = format!("hero:nonce:{}", nonce());
    let until = format!(":{}\r\n", EXPIRES.as_millis());
    assert_eq!(bench.redis.raw(15, &["PEXPIRETIME", &key]), until, "as long as the signature");
}

#[tokio::test]
async fn a_signature_outlives_its_context() {
    let bench = QueueTestBench::new();
    let context = attempt(1, 1).job_key.context;
    assert!(bench.supervisor.accept(signed(attempt(1, 1))).await.is_ok());
    assert_eq!(bench.supervisor.drop_context(context, COORDINATOR).await, Ok(0));
    let mut theirs = JobOffer { coordinator: "another".into(), ..signed(attempt(2, 1)) };
    let refused = bench.supervisor.accept(theirs.clone()).await;
    assert!(matches!(refused, Err(JobAcceptError::SignatureRefused(_))), "whoever has the context now");
    theirs.execution.job_key.context = ContextUid(Uid::from_bits(9));
    let refused = bench.supervisor.accept(theirs).await;
    assert!(matches!(refused, Err(JobAcceptError::SignatureRefused(_))), "and under any other name");
}

#[tokio::test]
async fn a_signature_that_ends_on_the_way_is_over() {
    let bench = QueueTestBench::new();
    let late = |execution| {
        let condition = AcceptCondition::Signed { nonce: nonce(), expires: Timestamp::from_millis(1_000) };
        JobOffer { condition, ..offer(execution) }
    };
    let refusal = bench.supervisor.accept(late(attempt(1, 1))).await.expect_err("whose it was is forgotten");
    assert_eq!((refusal.code(), refusal.is_permanent()), ("SIGNATURE_REFUSED", true));
    assert_eq!(bench.supervisor.status(attempt(1, 1).job_key).await, Ok(None));
    assert!(bench.supervisor.accept(signed(attempt(1, 1))).await.expect("in time").is_new);
    assert!(!bench.supervisor.accept(late(attempt(1, 1))).await.expect("it is known").is_new);
}

#[tokio::test]
async fn what_has_to_be_known_is_taken_only_then() {
    let bench = QueueTestBench::new();
    let known = || JobOffer { condition: AcceptCondition::Known, ..offer(execution(1)) };
    let refusal = bench.supervisor.accept(known()).await.expect_err("it is not");
    assert_eq!((refusal.code(), refusal.is_permanent()), ("UNAVAILABLE", false));
    bench.accept(1).await;
    assert!(!bench.supervisor.accept(known()).await.expect("it is").is_new);
}

#[tokio::test]
async fn what_was_signed_is_not_kept_with_the_job() {
    let bench = QueueTestBench::new();
    let mut execution = execution(1);
    execution.signature = Some("{\"payloadType\":\"secret\"}".to_owned());
    let key = execution.job_key;
    assert!(bench.supervisor.accept(offer(execution)).await.is_ok());
    let record = bench.redis.raw(15, &["HGETALL", &format!("hero:job:{key}")]);
    assert!(!record.contains("payloadType"), "{record}");
}
