//! Each planted violation is found, and nothing else is.

use model::NodeState;

use super::check;
use crate::history::{
    Answer, Change, FinalFlow, FinalNode, History, Line, PlannedFlow, PlannedJob, Ran, StrangerCall,
    Submission, Watch,
};

fn job(name: &str, depends: &[usize]) -> PlannedJob {
    PlannedJob {
        name: name.into(),
        token: format!("t-{name}"),
        millis: 0,
        depends: depends.to_vec(),
        retries: 1,
        wait_millis: 0,
        fails: false,
    }
}

fn ran(job: &str, attempt: u32) -> Ran {
    Ran { job: job.into(), token: format!("t-{job}"), attempt }
}

fn start(job: &str, attempt: u32) -> Line {
    Line::Start(ran(job, attempt))
}

fn end(job: &str, attempt: u32) -> Line {
    Line::End(ran(job, attempt))
}

fn changes(steps: &[(u32, NodeState, u32)]) -> Vec<Change> {
    let change = |(at, (job_id, state, attempt)): (usize, &(u32, NodeState, u32))| Change {
        position: format!("{at}-0.1"),
        job_id: *job_id,
        state: *state,
        attempt: *attempt,
        reason: String::new(),
    };
    steps.iter().enumerate().map(change).collect()
}

fn node(job_id: u32, name: &str, attempt: u32) -> FinalNode {
    FinalNode { job_id, name: name.into(), state: NodeState::Completed, attempt, reason: String::new() }
}

/// Two jobs, of which the second lost its first attempt to a kill; an answer was lost, and a watcher cut off.
fn kept() -> History {
    let reported = changes(&[
        (1, NodeState::Ready, 1),
        (1, NodeState::Dispatched, 1),
        (1, NodeState::Running, 1),
        (1, NodeState::Completed, 1),
        (2, NodeState::Ready, 1),
        (2, NodeState::Dispatched, 1),
        (2, NodeState::Running, 1),
        (2, NodeState::Ready, 2),
        (2, NodeState::Dispatched, 2),
        (2, NodeState::Running, 2),
        (2, NodeState::Completed, 2),
    ]);
    let answer = |answer| Submission { flow: "f".into(), answer };
    let watch = |watcher: &str, reported: &[Change]| Watch {
        flow: 7,
        watcher: watcher.into(),
        from: "0-0".into(),
        snapshot: vec![(1, NodeState::Pending, 1), (2, NodeState::Pending, 1)],
        reported: reported.to_vec(),
        replayed: reported.to_vec(),
        resumed: 2,
        breaks: Vec::new(),
        status: Some("FINISHED".into()),
        refused: None,
    };
    History {
        planned: [("f".into(), PlannedFlow { jobs: vec![job("a", &[]), job("b", &[0])] })].into(),
        submissions: vec![answer(Answer::Unknown("cut".into())), answer(Answer::Taken(7))],
        watches: vec![watch("one", &reported), watch("two", &reported[3..])],
        strangers: vec![StrangerCall { method: "ListFlows".into(), allowed: false }],
        witness: vec![start("a", 1), end("a", 1), start("b", 1), Line::Killed, start("b", 2), end("b", 2)],
        flows: vec![FinalFlow {
            id: 7,
            name: "f".into(),
            status: "FINISHED".into(),
            has_ended: true,
            nodes: vec![node(1, "a", 1), node(2, "b", 2)],
        }],
        messages_left: Some(0),
        slots: 1,
    }
}

#[test]
fn what_kept_every_promise_is_not_accused() {
    assert_eq!(check(&kept()), []);
}

#[test]
fn what_was_not_looked_at_was_not_kept() {
    planted(&[5], "the messages on their way cannot be counted", |history| history.messages_left = None);
}

#[test]
fn an_unknown_answer_may_have_had_its_effect_or_not() {
    let mut history = kept();
    history.submissions.pop();
    assert_eq!(check(&history), [], "it had");
    history.flows.clear();
    history.watches.clear();
    history.witness.clear();
    assert_eq!(check(&history), [], "it had not");
}

/// Breaks a history in one way, and lists the invariants that may then be named: the first one must be.
fn planted(invariants: &[u8], what: &str, plant: impl FnOnce(&mut History)) {
    let mut history = kept();
    plant(&mut history);
    let found = check(&history);
    let named = |invariant: u8| found.iter().any(|violation| violation.invariant == invariant);
    assert!(named(invariants[0]), "{what}: I{} is not named in {found:?}", invariants[0]);
    let beside = found.iter().find(|violation| !invariants.contains(&violation.invariant));
    assert_eq!(beside, None, "{what}");
}

#[test]
fn losses_and_hangs_are_found() {
    planted(&[1], "a flow is gone", |history| history.flows.clear());
    planted(&[1], "a flow hangs", |history| {
        history.flows[0].has_ended = false;
        history.flows[0].status = "STARTED".into();
    });
    planted(&[1, 8], "a node hangs in a flow that ended", |history| {
        history.flows[0].nodes[1].state = NodeState::Running;
    });
    planted(&[1], "a node is gone", |history| {
        history.flows[0].nodes.pop();
    });
    planted(&[1], "a node came twice", |history| history.flows[0].nodes.push(node(3, "b", 1)));
    planted(&[1], "it completed, and its script never ended", |history| {
        history.witness.pop();
    });
    planted(&[1], "it failed for no reason of its own", |history| {
        let node = &mut history.flows[0].nodes[1];
        (node.state, node.reason) = (NodeState::Failed, "RUNTIME_ERROR".into());
        history.flows[0].status = "ERROR".into();
        history.watches.clear();
    });
    planted(&[1], "a watcher was told another end", |history| {
        history.watches[0].status = Some("ERROR".into());
    });
    planted(&[5], "a message is left", |history| history.messages_left = Some(1));
}

#[test]
fn a_turn_that_was_not_given_is_found() {
    planted(&[1], "it was skipped, and everything before it completed", |history| {
        history.flows[0].nodes[1].state = NodeState::Skipped;
        history.flows[0].status = "ERROR".into();
        history.watches.clear();
    });
    planted(&[1], "it was cancelled, and nobody asked for it", |history| {
        history.flows[0].nodes[1].state = NodeState::Cancelled;
        history.flows[0].status = "CANCELLED".into();
        history.watches.clear();
    });
}

#[test]
fn a_loss_is_a_reason_to_fail() {
    let mut history = kept();
    let node = &mut history.flows[0].nodes[1];
    (node.state, node.attempt, node.reason) = (NodeState::Failed, 3, "QUARANTINED".into());
    history.flows[0].status = "ERROR".into();
    history.watches.clear();
    assert_eq!(check(&history), []);
    planted(&[1], "it was given up after one loss", |history| {
        let node = &mut history.flows[0].nodes[1];
        (node.state, node.reason) = (NodeState::Failed, "INSTANCE_LOST".into());
        history.flows[0].status = "ERROR".into();
        history.watches.clear();
    });
}

#[test]
fn double_runs_are_found() {
    planted(&[4], "an attempt ran twice", |history| {
        history.witness.extend([start("b", 2), end("b", 2)]);
    });
    planted(&[2], "an end without a start", |history| history.witness.push(end("b", 2)));
    planted(&[3], "a closed attempt began late", |history| {
        history.planned.get_mut("f").expect("there").jobs.push(job("c", &[]));
        history.flows[0].nodes.push(node(3, "c", 2));
        history.witness.extend([start("c", 2), end("c", 2), start("c", 1)]);
    });
    planted(&[4], "it began before what it depends on had ended", |history| history.witness.swap(1, 2));
    planted(&[11], "attempts overlap", |history| {
        history.witness.retain(|line| *line != Line::Killed);
        history.slots = 2;
        history.witness.push(end("b", 1));
    });
    planted(&[10], "more at once than there are places", |history| {
        history.planned.get_mut("f").expect("there").jobs.push(job("c", &[]));
        history.flows[0].nodes.push(node(3, "c", 1));
        history.witness.insert(1, start("c", 1));
        history.witness.push(end("c", 1));
    });
    planted(&[10], "it was tried too often", |history| {
        let job = &mut history.planned.get_mut("f").expect("there").jobs[1];
        job.fails = true;
        let node = &mut history.flows[0].nodes[1];
        node.state = NodeState::Failed;
        history.flows[0].status = "ERROR".into();
        history.watches.clear();
        history.witness.extend((3..12).flat_map(|attempt| [start("b", attempt), end("b", attempt)]));
    });
    planted(&[10], "it was not tried as often as it may be", |history| {
        let job = &mut history.planned.get_mut("f").expect("there").jobs[1];
        (job.fails, job.retries) = (true, 2);
        let node = &mut history.flows[0].nodes[1];
        node.state = NodeState::Failed;
        history.flows[0].status = "ERROR".into();
        history.watches.clear();
    });
    planted(&[12], "another script ran under its name", |history| {
        history.witness.push(Line::Start(Ran { token: "other".into(), ..ran("a", 1) }));
    });
    planted(&[12], "a script that nobody submitted ran", |history| history.witness.push(start("z", 1)));
}

#[test]
fn an_overlap_is_excused_only_by_a_kill_in_between() {
    let mut history = kept();
    history.slots = 2;
    history.witness.push(end("b", 1));
    assert_eq!(check(&history), []);
}

#[test]
fn repeated_effects_are_found() {
    planted(&[9, 1], "one request id, two flows", |history| {
        history.submissions.push(Submission { flow: "f".into(), answer: Answer::Taken(8) });
    });
    planted(&[9], "two flows of one name", |history| {
        let second = FinalFlow { id: 8, ..history.flows[0].clone() };
        history.flows.push(second);
    });
    planted(&[9], "one flow for two submissions", |history| {
        history.planned.insert("g".into(), PlannedFlow { jobs: Vec::new() });
        history.submissions.push(Submission { flow: "g".into(), answer: Answer::Taken(7) });
    });
    planted(&[9], "what was refused is there", |history| {
        for submission in &mut history.submissions {
            submission.answer = Answer::Refused("OVERLOADED".into());
        }
    });
    planted(&[9, 1], "what is right was refused", |history| {
        history.submissions[0].answer = Answer::Refused("INVALID_ARGUMENT".into());
    });
    planted(&[9], "nobody submitted it", |history| {
        let other = FinalFlow { id: 9, name: "x".into(), ..history.flows[0].clone() };
        history.flows.push(other);
    });
}

#[test]
fn gaps_and_duplicates_of_watches_are_found() {
    planted(&[8], "a change is missing", |history| {
        history.watches[0].reported.remove(5);
    });
    planted(&[8], "the first changes are missing, and the snapshot does not show them", |history| {
        history.watches[0].reported.drain(..4);
    });
    planted(&[8], "the last changes are missing", |history| history.watches[0].reported.truncate(9));
    planted(&[8], "a change came twice", |history| {
        let change = history.watches[0].reported[5].clone();
        history.watches[0].reported.insert(6, change);
    });
    planted(&[8], "changes came in another order", |history| history.watches[0].reported.swap(2, 3));
    planted(&[8], "a position was refused", |history| {
        history.watches[0].refused = Some("OUT_OF_RANGE".into());
    });
    planted(&[8], "a watcher is never told of the end", |history| history.watches[0].status = None);
    planted(&[8], "what is kept is not what was told", |history| {
        for watch in &mut history.watches {
            watch.reported.pop();
            watch.replayed.pop();
        }
    });
    planted(&[8], "two watchers were told different things", |history| {
        let other = &mut history.watches[1];
        other.reported[2].state = NodeState::Running;
        other.replayed = other.reported.clone();
    });
}

#[test]
fn changes_that_the_snapshot_shows_need_not_be_reported() {
    let mut history = kept();
    let watch = &mut history.watches[0];
    watch.snapshot[0] = (1, NodeState::Running, 1);
    watch.reported.drain(..3);
    assert_eq!(check(&history), []);
}

#[test]
fn a_watch_that_was_still_open_has_no_gap_at_its_end() {
    let mut history = kept();
    let watch = &mut history.watches[0];
    (watch.status, watch.reported) = (None, watch.reported[..6].to_vec());
    let found = check(&history);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].what.ends_with("was not told of its end"), "{found:?}");
}

/// Replaces the reports to both watchers by the first one's changes with one more.
fn with_one_more_change(history: &mut History, job_id: u32, state: NodeState, attempt: u32) {
    let watch = &mut history.watches[0];
    watch.reported.push(Change { position: "99-0.1".into(), job_id, state, attempt, reason: String::new() });
    watch.replayed = watch.reported.clone();
    history.watches.truncate(1);
}

#[test]
fn what_a_former_owner_would_commit_is_found() {
    planted(&[6, 8], "an attempt begins again", |history| {
        with_one_more_change(history, 1, NodeState::Running, 1)
    });
    planted(&[6, 8], "the next attempt of what has ended", |history| {
        with_one_more_change(history, 1, NodeState::Ready, 2)
    });
    planted(&[2, 8], "a second end", |history| with_one_more_change(history, 2, NodeState::Failed, 2));
    planted(&[6, 8], "an earlier attempt", |history| {
        let (one, two) = (NodeState::Dispatched, NodeState::Completed);
        history.watches[0].reported = changes(&[(2, one, 2), (2, one, 1), (2, two, 2)]);
        history.watches[0].replayed = history.watches[0].reported.clone();
        history.watches.truncate(1);
    });
}

#[test]
fn strangers_that_are_answered_are_found() {
    planted(&[7], "a stranger lists flows", |history| history.strangers[0].allowed = true);
}
