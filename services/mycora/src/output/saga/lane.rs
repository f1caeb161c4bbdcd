//! Lanes, and the reports of their replays.

use proto::v1;

use super::{moment, or_dash};
use crate::output::{labels, table};

/// A list of lanes, with a row for each source.
#[must_use]
pub fn list(lanes: &[v1::SagaLane]) -> String {
    let mut rows = Vec::new();
    for lane in lanes {
        let owner = match (lane.owner.as_str(), lane.wanted_owner.as_str()) {
            (owner, wanted) if wanted.is_empty() || wanted == owner => or_dash(owner),
            (owner, wanted) => format!("{}, going to {wanted}", or_dash(owner)),
        };
        let first = [lane.name.clone(), owner, lane.epoch.to_string()];
        for source in &lane.sources {
            let row = [first.to_vec(), source_row(source), vec![lane.problem.clone()]].concat();
            rows.push(row);
        }
        if lane.sources.is_empty() {
            let nothing = vec!["-".to_owned(); 4];
            rows.push([first.to_vec(), nothing, vec![lane.problem.clone()]].concat());
        }
    }
    let heading = ["LANE", "OWNER", "EPOCH", "SOURCE", "READ UP TO", "STORED", "PENDING", "PROBLEM"];
    table::render(&heading, &rows)
}

fn source_row(source: &v1::SagaLaneSource) -> Vec<String> {
    let pending = source.pending_count.map(|count| count.to_string());
    vec![
        source.name.clone(),
        source.sequence.to_string(),
        or_dash(&moment(source.stored_time)),
        or_dash(&pending.unwrap_or_default()),
    ]
}

/// Where a lane goes.
#[must_use]
pub fn moved(lane: &v1::SagaLane, request_id: &str) -> String {
    let v1::SagaLane { name, owner, wanted_owner, .. } = lane;
    let goes = match wanted_owner.as_str() {
        "" => "goes where its place comes to".to_owned(),
        wanted if wanted == owner => format!("is owned by {wanted}"),
        wanted => format!("goes to {wanted}; its owner is {} still", or_dash(owner)),
    };
    format!("{} (request {request_id})\n", table::shown_whole(&format!("the lane {name} {goes}")))
}

/// How far a replay is.
#[must_use]
pub fn progress(progress: &v1::SagaReplayProgress) -> String {
    format!("{} compared so far", instances(progress.compared_count))
}

/// A journal whose replay differs from its rows.
#[must_use]
pub fn difference(difference: &v1::SagaReplayDifference) -> String {
    let v1::SagaReplayDifference { correlation_id, revision, detail } = difference;
    format!("{}\n", table::shown_whole(&format!("{correlation_id} differs at revision {revision}: {detail}")))
}

/// The end of a replay.
#[must_use]
pub fn done(done: &v1::SagaReplayDone) -> String {
    if done.sources.is_empty() {
        let v1::SagaReplayDone { compared_count, incomplete_count, different_count, .. } = done;
        let compared = instances(*compared_count);
        return format!(
            "{compared} compared: {different_count} differ, {incomplete_count} cannot be compared, since their first rows are \
             gone\n"
        );
    }
    let rows: Vec<_> = done.sources.iter().map(source_row).collect();
    format!("read again from here:\n{}", table::render(&["SOURCE", "READ UP TO", "STORED", "PENDING"], &rows))
}

fn instances(count: u64) -> String {
    labels::count(usize::try_from(count).unwrap_or(usize::MAX), "instance", "instances")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_has_a_row_for_each_source() {
        let source = |name: &str, pending| v1::SagaLaneSource {
            name: name.into(),
            sequence: 7,
            pending_count: pending,
            ..Default::default()
        };
        let lanes = [
            v1::SagaLane {
                name: "s:acme:order:0".into(),
                owner: "a".into(),
                wanted_owner: "b".into(),
                epoch: 3,
                sources: vec![source("aggregate.Order", Some(2)), source("verbs.order", None)],
                ..Default::default()
            },
            v1::SagaLane { name: "e:acme:mail:0".into(), problem: "stopped".into(), ..Default::default() },
        ];
        let text = list(&lanes);
        assert!(
            text.contains("s:acme:order:0  a, going to b  3      aggregate.Order  7           -       2\n"),
            "{text}"
        );
        assert!(text.contains("verbs.order      7           -       -\n"), "{text}");
        assert!(text.ends_with("e:acme:mail:0   -              0      -                -           -       -        stopped\n"), "{text}");
        assert_eq!(
            moved(&lanes[0], "5b"),
            "the lane s:acme:order:0 goes to b; its owner is a still (request 5b)\n"
        );
    }

    #[test]
    fn a_replay_shows_its_differences_and_a_summary() {
        let compared = v1::SagaReplayDone { compared_count: 1, different_count: 1, ..Default::default() };
        assert!(done(&compared).starts_with("1 instance compared: 1 differ"));
        let sources = vec![v1::SagaLaneSource { name: "aggregate.Order".into(), ..Default::default() }];
        assert!(done(&v1::SagaReplayDone { sources, ..Default::default() }).contains("aggregate.Order"));
        let found =
            v1::SagaReplayDifference { correlation_id: "o\n1".into(), revision: 3, detail: "state".into() };
        assert_eq!(difference(&found), "o\\n1 differs at revision 3: state\n");
    }
}
