//! A coordinator has another root.

use model::id::Uid;
use model::{ContextUid, Execution, JobKey};
use queue::{
    JobAcceptError, JobOffer, RootTransferCounts, RotationAuthority, RotationStartOutcome, SupervisorQueues,
};

use crate::setup::{COORDINATOR, QueueTestBench, execution, offer};

const NEW: &str = "decaf";
const OTHER: &str = "beef";

fn within(context: u128, job: u32) -> Execution {
    let mut execution = execution(job);
    execution.job_key.context = ContextUid(Uid::from_bits(context));
    execution
}

fn of(coordinator: &str, execution: Execution) -> JobOffer {
    JobOffer { coordinator: coordinator.to_owned(), ..offer(execution) }
}

async fn code(supervisor: &SupervisorQueues, offered: JobOffer) -> &'static str {
    supervisor.accept(offered).await.err().map_or("accepted", |refusal| refusal.code())
}

async fn coordinator(bench: &QueueTestBench, job: JobKey) -> String {
    bench.supervisor.origin(job).await.expect("an answer").expect("known").0
}

#[tokio::test]
async fn everything_of_a_root_goes_to_the_one_after_it() {
    let bench = QueueTestBench::new();
    let supervisor = &bench.supervisor;
    // More contexts, and more jobs of one, than one script looks at.
    let many = (0..450).map(|job| offer(within(1, job)));
    let wide = (2..=300).map(|context| offer(within(context, 1)));
    let accepted = supervisor.accept_all_through(many.chain(wide).collect(), Some("a node")).await;
    assert!(accepted.iter().all(Result::is_ok));
    supervisor.accept(of(OTHER, within(999, 1))).await.expect("theirs");

    assert_eq!(
        supervisor.begin_root_rotation(COORDINATOR, NEW, RotationAuthority::Root).await,
        Ok(RotationStartOutcome::Noted)
    );
    // Nothing was passed on yet, and who it is has changed already.
    assert_eq!(code(supervisor, offer(within(1, 500))).await, "ROOT_SUCCEEDED");
    assert_eq!(code(supervisor, offer(within(1000, 1))).await, "ROOT_SUCCEEDED", "whatever context it is");
    assert_eq!(code(supervisor, of(OTHER, within(1, 500))).await, "CONTEXT_CLAIMED");
    assert!(!supervisor.accept(of(NEW, within(1, 1))).await.expect("its own").is_new);
    assert!(supervisor.accept(of(NEW, within(1, 501))).await.expect("its own").is_new);

    let passed = supervisor.transfer_bindings(COORDINATOR, NEW).await;
    assert_eq!(passed, Ok(RootTransferCounts { contexts: 300, jobs: 749 }));
    assert_eq!(
        supervisor.transfer_bindings(COORDINATOR, NEW).await,
        Ok(RootTransferCounts::default()),
        "again"
    );
    let again = supervisor.begin_root_rotation(COORDINATOR, NEW, RotationAuthority::Root).await;
    assert_eq!(again, Ok(RotationStartOutcome::Known));
    for context in [1, 150, 300] {
        let job = within(context, 1).job_key;
        assert_eq!(coordinator(&bench, job).await, NEW);
        assert_eq!(supervisor.coordinator_of(job.context).await, Ok(Some(NEW.to_owned())));
    }
    assert_eq!(coordinator(&bench, within(999, 1).job_key).await, OTHER);
    assert_eq!(supervisor.nodes().await.expect("an answer").get(NEW).map(String::as_str), Some("a node"));
    assert_eq!(bench.keys("hero:contexts:c0ffee"), "*0\r\n");
}

#[tokio::test]
async fn a_root_that_was_succeeded_comes_back_by_the_operator_only() {
    let bench = QueueTestBench::new();
    let supervisor = &bench.supervisor;
    let begin = |old, new, by| supervisor.begin_root_rotation(old, new, by);
    let refused = async |old, new, by| {
        let refused = begin(old, new, by).await.expect_err("refused");
        assert_eq!(refused.code(), Some("ROOT_SUCCEEDED"), "{old} {new}");
    };
    assert_eq!(begin(COORDINATOR, NEW, RotationAuthority::Root).await, Ok(RotationStartOutcome::Unknown));
    assert_eq!(bench.keys("hero:*"), "*0\r\n", "nothing is kept of strangers");

    let job = bench.accept(1).await;
    for (old, new) in [(COORDINATOR, NEW), (NEW, OTHER)] {
        assert_eq!(begin(old, new, RotationAuthority::Root).await, Ok(RotationStartOutcome::Noted));
        supervisor.transfer_bindings(old, new).await.expect("an answer");
    }
    refused(COORDINATOR, NEW, RotationAuthority::Root).await;
    refused(COORDINATOR, "face", RotationAuthority::Operator).await;
    refused(OTHER, COORDINATOR, RotationAuthority::Root).await;
    assert!(supervisor.transfer_bindings(COORDINATOR, NEW).await.is_err(), "it is not what was noted");
    let after: Vec<_> = supervisor.successors().await.expect("an answer").into_iter().collect();
    let to_last = |root: &str| (root.to_owned(), OTHER.to_owned());
    assert_eq!(after, [to_last(COORDINATOR), to_last(NEW)], "each leads to the last");

    assert_eq!(begin(OTHER, COORDINATOR, RotationAuthority::Operator).await, Ok(RotationStartOutcome::Noted));
    supervisor.transfer_bindings(OTHER, COORDINATOR).await.expect("an answer");
    assert_eq!(coordinator(&bench, job).await, COORDINATOR);
    assert!(!supervisor.accept(offer(execution(1))).await.expect("it is back").is_new);
    assert_eq!(code(supervisor, of(OTHER, within(7, 1))).await, "ROOT_SUCCEEDED");
}

#[tokio::test]
async fn contexts_that_are_dropped_stay_so_under_the_next_root() {
    let bench = QueueTestBench::new();
    let supervisor = &bench.supervisor;
    let dropped = bench.accept(1).await.context;
    bench.accept_as(within(2, 1)).await;
    assert_eq!(supervisor.note_node(COORDINATOR, "a node").await, Ok(true));
    assert_eq!(supervisor.drop_context(dropped, COORDINATOR).await, Ok(0));
    assert_eq!(
        supervisor.begin_root_rotation(COORDINATOR, NEW, RotationAuthority::Root).await,
        Ok(RotationStartOutcome::Noted)
    );
    let late = supervisor.accept(of(NEW, execution(2))).await;
    assert!(matches!(late, Err(JobAcceptError::ContextDropped(_))), "{late:?}");
    // Before it was passed on.
    assert_eq!(supervisor.drop_context(within(2, 1).job_key.context, NEW).await, Ok(0));
    supervisor.transfer_bindings(COORDINATOR, NEW).await.expect("an answer");
    assert_eq!(bench.keys("hero:contexts:*"), "*0\r\n");
    assert!(supervisor.nodes().await.expect("an answer").is_empty(), "nothing is bound to it");
}

#[tokio::test]
async fn nothing_is_kept_of_a_coordinator_without_a_job_here() {
    let bench = QueueTestBench::new();
    let supervisor = &bench.supervisor;
    assert_eq!(supervisor.note_node("stranger", "a node").await, Ok(false));
    assert_eq!(bench.keys("hero:*"), "*0\r\n");
    let through = |node| supervisor.accept_all_through(vec![offer(execution(1))], Some(node));
    assert!(through("a node").await[0].as_ref().is_ok_and(|accepted| accepted.is_new));
    assert!(through("its next").await[0].as_ref().is_ok_and(|accepted| !accepted.is_new));
    let known = |node: &str| [(COORDINATOR.to_owned(), node.to_owned())].into();
    assert_eq!(supervisor.nodes().await, Ok(known("its next")));
    assert_eq!(supervisor.note_node(COORDINATOR, "its last").await, Ok(true));
    assert_eq!(supervisor.nodes().await, Ok(known("its last")));
    // Another takes over the node.
    supervisor.accept(of(OTHER, within(5, 1))).await.expect("theirs");
    assert_eq!(supervisor.note_node(OTHER, "its last").await, Ok(true));
    assert_eq!(supervisor.nodes().await, Ok([(OTHER.to_owned(), "its last".to_owned())].into()));
}

#[tokio::test]
async fn what_earlier_versions_bound_is_found() {
    let bench = QueueTestBench::new();
    let supervisor = &bench.supervisor;
    for context in 1..=1200_u128 {
        let binding = format!("hero:uid:{}", ContextUid(Uid::from_bits(context)));
        let bound = bench.redis.raw(15, &["HSET", &binding, "coordinator", COORDINATOR, "since", "1"]);
        assert_eq!(bound, ":2\r\n");
    }
    for root in [COORDINATOR, "stranger"] {
        let noted = bench.redis.raw(15, &["HSET", "hero:supervisor", &format!("node:{root}"), root]);
        assert_eq!(noted, ":1\r\n");
    }
    for _ in 0..2 {
        supervisor.index_contexts().await.expect("an answer");
    }
    assert_eq!(supervisor.nodes().await, Ok([(COORDINATOR.to_owned(), COORDINATOR.to_owned())].into()));
    assert_eq!(
        supervisor.begin_root_rotation(COORDINATOR, NEW, RotationAuthority::Root).await,
        Ok(RotationStartOutcome::Noted)
    );
    let passed = supervisor.transfer_bindings(COORDINATOR, NEW).await;
    assert_eq!(passed, Ok(RootTransferCounts { contexts: 1200, jobs: 0 }));
}
