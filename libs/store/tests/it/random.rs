//! Whatever is asked of a store, it answers as the model does.

use bytes::Bytes;
use proptest::prelude::*;
use store::{
    CommitOutcome, KvStore, LaneKey, MemoryStore, RowBatch, RowCondition, RowKey, RowOperation, SharedStore,
};

use crate::shared::{in_a_cluster, in_redis};
use crate::{TestClock, embedded};

/// Action that the test performs next. Rows and lanes are few, so that they meet.
#[derive(Debug, Clone)]
enum StoreAction {
    Take(u8),
    Commit { lane: u8, late: bool, expect: Vec<(u8, Option<u64>)>, ops: Vec<RowChange> },
    Read(u8),
    Scan(u8, u8, u8, usize),
    Wait(u64),
}

#[derive(Debug, Clone)]
enum RowChange {
    Put(u8, u8),
    PutUntil(u8, u64),
    Delete(u8),
    Raise(u8, u64),
}

fn turn() -> impl Strategy<Value = StoreAction> {
    let change = prop_oneof![
        (0_u8..4, any::<u8>()).prop_map(|(row, value)| RowChange::Put(row, value)),
        (0_u8..4, 0_u64..60).prop_map(|(row, after)| RowChange::PutUntil(row, after)),
        (0_u8..4).prop_map(RowChange::Delete),
        // Rows of their own: what is raised is a number.
        (4_u8..6, 0_u64..9).prop_map(|(row, to)| RowChange::Raise(row, to)),
    ];
    let expect = (0_u8..6, proptest::option::of(0_u64..6));
    prop_oneof![
        1 => (0_u8..2).prop_map(StoreAction::Take),
        6 => (0_u8..2, proptest::bool::weighted(0.1), proptest::collection::vec(expect, 0..3), proptest::collection::vec(change, 0..5))
            .prop_map(|(lane, late, expect, ops)| StoreAction::Commit { lane, late, expect, ops }),
        2 => (0_u8..2).prop_map(StoreAction::Read),
        2 => (0_u8..2, 0_u8..6, 0_u8..7, 0_usize..5).prop_map(|(lane, from, to, limit)| StoreAction::Scan(lane, from, to, limit)),
        1 => (0_u64..40).prop_map(StoreAction::Wait),
    ]
}

/// Lanes of one case: `salt` tells them from those of others.
fn lane(salt: u64, number: u8) -> LaneKey {
    LaneKey::new(&format!("s:t{salt}:saga:{number}"))
}

fn key(number: u8) -> RowKey {
    RowKey::new(&format!("row:{number}"))
}

/// An end that no test lives to see, in milliseconds since 1970.
const FAR: u64 = 10_000_000_000_000;

/// `now` is nothing where tests do not move the clock.
fn op(change: &RowChange, now: Option<u64>) -> RowOperation {
    match change {
        RowChange::Put(row, value) => RowOperation::Put(key(*row), Bytes::copy_from_slice(&[*value])),
        RowChange::PutUntil(row, after) => {
            let end = now.map_or(FAR, |now| now + after);
            RowOperation::PutUntil(key(*row), Bytes::from_static(b"u"), end)
        }
        RowChange::Delete(row) => RowOperation::Delete(key(*row)),
        RowChange::Raise(row, to) => RowOperation::Raise(key(*row), *to),
    }
}

/// Everything that a store answers, as texts. Epochs are told by whether they are the last one: each store has its own.
async fn answers(
    store: &dyn KvStore,
    salt: u64,
    clock: Option<&TestClock>,
    turns: &[StoreAction],
) -> Vec<String> {
    let lane = |number: u8| lane(salt, number);
    let mut epochs = [0; 2];
    let mut answers = Vec::new();
    for turn in turns {
        let now = clock.map(store::Clock::now);
        answers.push(match turn {
            StoreAction::Take(number) => {
                let epoch = store.acquire_lane(&lane(*number)).await.expect("taken");
                let before = std::mem::replace(&mut epochs[usize::from(*number)], epoch);
                format!("taken {}", epoch > before)
            }
            StoreAction::Commit { lane: number, late, expect, ops } => {
                let epoch = epochs[usize::from(*number)];
                let expect = expect.iter().map(|(row, revision)| match revision {
                    None => RowCondition::Absent(key(*row)),
                    Some(revision) => RowCondition::Revision(key(*row), *revision),
                });
                let batch = RowBatch {
                    lane: lane(*number),
                    epoch: if *late { epoch.saturating_sub(1) } else { epoch },
                    conditions: expect.collect(),
                    ops: ops.iter().map(|change| op(change, now)).collect(),
                };
                match store.commit(batch).await {
                    Ok(CommitOutcome::Fenced { epoch: other }) => format!("fenced {}", other == epoch),
                    other => format!("{other:?}"),
                }
            }
            StoreAction::Read(number) => {
                let keys: Vec<_> = (0..6).map(key).collect();
                format!("{:?}", store.read(&lane(*number), &keys).await)
            }
            StoreAction::Scan(number, from, to, limit) => {
                format!("{:?}", store.scan(&lane(*number), key(*from)..key(*to), *limit).await)
            }
            StoreAction::Wait(millis) => {
                if let Some(clock) = clock {
                    clock.advance(*millis);
                }
                String::new()
            }
        });
    }
    answers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_directory_answers_as_the_model_does(turns in proptest::collection::vec(turn(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let clock = TestClock::new();
            let expected = answers(&MemoryStore::new(clock.clone()), 0, Some(&clock), &turns).await;
            let clock = TestClock::new();
            let (_dir, store) = embedded(clock.clone());
            let found = answers(&store, 0, Some(&clock), &turns).await;
            prop_assert_eq!(found, expected);
            Ok(())
        })?;
    }
}

/// Lets a shared store answer cases as the model does, each on lanes of its own.
async fn answers_as_the_model_does(store: SharedStore, cases: u32) {
    let store = std::sync::Arc::new(store);
    let handle = tokio::runtime::Handle::current();
    let cases = move || {
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(cases));
        let salt = std::cell::Cell::new(0);
        runner.run(&proptest::collection::vec(turn(), 1..80), |turns| {
            salt.set(salt.get() + 1);
            handle.block_on(async {
                let model = MemoryStore::new(TestClock::new());
                let expected = answers(&model, salt.get(), None, &turns).await;
                let found = answers(&*store, salt.get(), None, &turns).await;
                prop_assert_eq!(found, expected);
                Ok(())
            })
        })
    };
    tokio::task::spawn_blocking(cases).await.expect("it ran").expect("every case holds");
}

#[tokio::test]
async fn redis_answers_as_the_model_does() {
    let (_redis, store) = in_redis().await;
    answers_as_the_model_does(store, 100).await;
}

#[tokio::test]
async fn a_cluster_answers_as_the_model_does() {
    let (_cluster, store) = in_a_cluster().await;
    answers_as_the_model_does(store, 50).await;
}
