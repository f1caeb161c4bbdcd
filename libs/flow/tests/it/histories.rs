//! Random flows under random histories: reports late, twice, out of order and of closed attempts;
//! refusals, timeouts, cancels, signals, other flows, places and supervisors that go and come, commits
//! that never arrive, stores that go back, owners that die after any step, and flows that are run again.
//! The world checks the invariants after each step.

use std::collections::BTreeSet;

use flow::transition::{flow_table, node_table};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::case::{Case, case};
use crate::fate::Fate;
use crate::reference;
use crate::world::World;

/// Runs a case, and again as often as it says; each end is as the reference says.
fn friendly(case: &Case) {
    let mut fate = Fate::new(case, false);
    for (generation, (states, status)) in reference::interpret(case).into_iter().enumerate() {
        if generation > 0 {
            fate.run_again(case.reruns[generation - 1].clone());
        }
        fate.run();
        for (spec, expected) in case.specs.iter().zip(states) {
            let name = spec.name.as_str();
            assert_eq!(
                fate.world.state(name),
                expected,
                "{name} in {generation}: {:?}",
                fate.world.node(name)
            );
        }
        assert_eq!(fate.world.status(), status);
    }
}

/// Runs a case under any trouble; it ends, and as its nodes say.
fn hostile(case: &Case) -> World {
    let mut fate = Fate::new(case, true);
    fate.run();
    assert_eq!(fate.world.status(), fate.expected_status());
    for rerun in &case.reruns {
        fate.run_again(rerun.clone());
        fate.run();
        assert_eq!(fate.world.status(), fate.expected_status());
    }
    fate.world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_history_ends_as_in_the_reference(case in case()) {
        friendly(&case);
    }

    #[test]
    fn every_hostile_history_ends(case in case()) {
        hostile(&case);
    }
}

/// Every legal transition occurs in the histories; the tests beside the table show that every other pair is refused.
#[test]
fn every_legal_transition_is_taken_by_some_history() {
    let mut runner = TestRunner::deterministic();
    let mut taken = BTreeSet::new();
    let (mut found, mut quarantined) = (0, 0);
    for _ in 0..150 {
        let case = case().new_tree(&mut runner).unwrap().current();
        let world = hostile(&case);
        taken.extend(world.taken);
        found += world.found;
        quarantined += world.quarantined;
    }
    let nodes = node_table().map(|(from, event, _)| (format!("node {from}"), event.to_string()));
    let flows = flow_table().map(|(from, event, _)| (format!("flow {from}"), event.to_string()));
    let legal: BTreeSet<_> = nodes.chain(flows).collect();
    let missing: Vec<_> = legal.difference(&taken).collect();
    assert!(missing.is_empty(), "no history takes {missing:?}");
    assert_eq!(taken, legal);
    assert!(found > 0, "no history has found an attempt that the store had lost");
    assert!(quarantined > 0, "no history has quarantined a node");
}
