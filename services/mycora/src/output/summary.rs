//! Answers as tables.

use std::collections::BTreeMap;

use model::Timestamp;
use proto::convert::time as wire_time;
use proto::v1;

use super::{labels, progress, table, time};

/// A flow with more jobs shows those that matter most.
const NODES_SHOWN_MAX: usize = 100;

/// A flow, its jobs and its result.
#[must_use]
pub fn flow(flow: &v1::Flow, nodes: &[v1::FlowNode], now: Timestamp) -> String {
    let created = wire_time::required(flow.create_time);
    let until = if progress::is_ended(flow) { wire_time::required(flow.update_time) } else { now };
    let lasted = began(flow, nodes).map(|began| format!(" ({})", time::duration(until.since(began))));
    let mut status = labels::flow_status(flow.status()).to_owned();
    if !progress::is_ended(flow) && flow.cancel_requested_time.is_some() {
        status.push_str(", being cancelled");
    }
    status.push_str(&lasted.unwrap_or_default());
    let mut text = table::pairs(&[
        ("flow", format!("{} {}", flow.id, flow.name)),
        ("status", status),
        ("context", flow.context_id.to_string()),
        ("actor", flow.caller_id.to_string()),
        ("created", time::utc(created)),
    ]);
    if !nodes.is_empty() {
        text.push('\n');
        text.push_str(&some_nodes(flow, nodes, now));
    }
    if !flow.result.is_empty() {
        text.push('\n');
        text.push_str(&result(&flow.result));
    }
    if flow.result_truncated {
        text.push_str("the result is larger than what a flow keeps; read the jobs with --output json\n");
    }
    text
}

/// When the flow's generation began. The record of a rerun does not have it: there it is when the first
/// node became ready in it, if any did.
fn began(flow: &v1::Flow, nodes: &[v1::FlowNode]) -> Option<Timestamp> {
    if flow.generation <= 1 {
        return Some(wire_time::required(flow.create_time));
    }
    let of_rerun = nodes.iter().filter(|node| node.generation >= flow.generation);
    of_rerun.filter_map(|node| node.ready_time.or(node.start_time)).map(wire_time::from_wire).min()
}

/// A result, or nothing when there is none.
#[must_use]
pub fn result(result: &BTreeMap<String, String>) -> String {
    if result.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = result.iter().map(|(key, value)| vec![key.clone(), value.clone()]).collect();
    table::render(&["RESULT", "VALUE"], &rows)
}

/// A list of nodes.
#[must_use]
pub fn nodes(nodes: &[v1::FlowNode], now: Timestamp) -> String {
    let rows: Vec<_> = nodes.iter().map(|node| node_row(node, now)).collect();
    table::render(&["JOB", "STATE", "ATTEMPT", "TIME", "EXIT", "WHERE", "WHY"], &rows)
}

/// A list of nodes with the keys of their attempts, and where each was sent.
#[must_use]
pub fn keys(nodes: &[v1::FlowNode]) -> String {
    let rows: Vec<_> = nodes
        .iter()
        .map(|node| {
            let [runner, supervisor, key] = place(node).map(|text| text.unwrap_or_else(|| "-".to_owned()));
            vec![
                node.name.clone(),
                labels::node_state(node.state()).to_owned(),
                node.attempt.to_string(),
                runner,
                supervisor,
                key,
            ]
        })
        .collect();
    table::render_whole(&["JOB", "STATE", "ATTEMPT", "RUNNER", "SUPERVISOR", "KEY"], &rows)
}

/// Where an attempt was sent: the runner record, the supervisor's name and the key it knows the attempt by.
fn place(node: &v1::FlowNode) -> [Option<String>; 3] {
    let given = |text: &String| (!text.is_empty()).then(|| text.clone());
    let runner = (node.runner_id > 0).then(|| node.runner_id.to_string());
    [runner, given(&node.supervisor), given(&node.job_key)]
}

/// All nodes of a small flow; of a large one those that matter most.
fn some_nodes(flow: &v1::Flow, all: &[v1::FlowNode], now: Timestamp) -> String {
    if all.len() <= NODES_SHOWN_MAX {
        return nodes(all, now);
    }
    let mut order: Vec<&v1::FlowNode> = all.iter().collect();
    // Stable: those of the same importance stay in the order of the file.
    order.sort_by_key(|node| match node.state() {
        v1::NodeState::Failed => 0,
        v1::NodeState::Running => 1,
        v1::NodeState::Dispatched => 2,
        v1::NodeState::Ready => 3,
        v1::NodeState::Cancelled => 4,
        _ => 5,
    });
    let shown: Vec<v1::FlowNode> = order.into_iter().take(NODES_SHOWN_MAX).cloned().collect();
    let hidden = all.len() - shown.len();
    let v1::Flow { id, context_id, .. } = flow;
    format!(
        "{}… and {hidden} more; `mycora flow jobs {id} --context {context_id}` lists them\n",
        nodes(&shown, now)
    )
}

/// How one job ended, or where it stands, in one line.
#[must_use]
pub fn outcome(node: &v1::FlowNode) -> String {
    let mut text = format!("{}: {}", node.name, labels::node_state(node.state()));
    if let (Some(start), Some(end)) = (node.start_time, node.end_time) {
        let ran = wire_time::from_wire(end).since(wire_time::from_wire(start));
        text.push_str(&format!(" after {}", time::duration(ran)));
    }
    let why = why(node);
    if !why.is_empty() {
        text.push_str(&format!(": {why}"));
    }
    text
}

/// Describes a retry: which jobs run again, and which keep their results.
#[must_use]
pub fn retry(answer: &v1::RetryFlowResponse, dry_run: bool) -> String {
    let v1::RetryFlowResponse { flow, run_again_count, reused_count, run_again, reused } = answer;
    let flow = flow.as_ref();
    let (id, context, generation) =
        flow.map_or((0, 0, 0), |flow| (flow.id, flow.context_id, flow.generation));
    let named = |what: &str, count: u32, names: &[String]| {
        let more = (count as usize).saturating_sub(names.len());
        let more = if more == 0 { String::new() } else { format!(" … and {more} more") };
        if names.is_empty() { String::new() } else { format!("{what}: {}{more}\n", names.join(", ")) }
    };
    let run = labels::count(*run_again_count as usize, "job runs", "jobs run");
    let keep = labels::count(*reused_count as usize, "keeps what it has", "keep what they have");
    let counts = format!("{run} again, {keep}");
    if dry_run {
        let (again, kept) =
            (named("run again", *run_again_count, run_again), named("kept", *reused_count, reused));
        return format!("flow {id} would start generation {}: {counts}\n{again}{kept}", generation + 1);
    }
    format!(
        "flow {id} runs again, generation {generation}: {counts}; see `mycora flow watch {id} --context {context}`\n"
    )
}

/// Why a node is where it is.
#[must_use]
pub fn explanation(answer: &v1::ExplainNodeResponse) -> String {
    let rows: Vec<_> = answer
        .findings
        .iter()
        .map(|finding| {
            let blocks = if finding.blocks { "blocks" } else { "-" };
            vec![labels::finding(finding.kind()).to_owned(), blocks.to_owned(), finding.detail.clone()]
        })
        .collect();
    let mut text = format!("{}\n", table::shown_whole(&answer.summary));
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&table::render_whole(&["ABOUT", "", "FOUND"], &rows));
    }
    let [runner, supervisor, key] = answer.node.as_ref().map(place).unwrap_or_default();
    let place = [("runner", runner), ("supervisor", supervisor), ("job key", key)];
    let place: Vec<_> = place.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    if !place.is_empty() {
        text.push('\n');
        text.push_str(&table::pairs(&place));
    }
    text
}

/// Reason of a node's state, how many attempts it has lost, and whether its state is unconfirmed.
fn why(node: &v1::FlowNode) -> String {
    let reason = node.reason.as_ref().map(labels::reason);
    let unconfirmed = node.unconfirmed.then(|| labels::UNCONFIRMED.to_owned());
    // A reason already includes the losses, with their limit.
    let lost = reason.is_none().then(|| lost_attempts(node)).flatten();
    reason.into_iter().chain(lost).chain(unconfirmed).collect::<Vec<_>>().join(" ")
}

/// Attempts of this generation that ended with their instance or their machine; nothing when there are none.
fn lost_attempts(node: &v1::FlowNode) -> Option<String> {
    let counts = [(node.deaths, "death", "deaths"), (node.losses, "loss", "losses")];
    let shown: Vec<_> = counts
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, many)| labels::count(count as usize, one, many))
        .collect();
    (!shown.is_empty()).then(|| format!("({} before)", shown.join(", ")))
}

fn node_row(node: &v1::FlowNode, now: Timestamp) -> Vec<String> {
    let start = node.start_time.map(wire_time::from_wire);
    let end = node.end_time.map(wire_time::from_wire);
    let dash = || "-".to_owned();
    vec![
        node.name.clone(),
        labels::node_state(node.state()).to_owned(),
        node.attempt.to_string(),
        start.map_or_else(dash, |start| time::duration(end.unwrap_or(now).since(start))),
        node.exit_code.map_or_else(dash, |code| code.to_string()),
        if node.instance.is_empty() { dash() } else { node.instance.clone() },
        why(node),
    ]
}

/// A list of flows.
#[must_use]
pub fn flows(flows: &[v1::Flow], now: Timestamp) -> String {
    let rows: Vec<_> = flows
        .iter()
        .map(|flow| {
            vec![
                flow.id.to_string(),
                flow.name.clone(),
                labels::flow_status(flow.status()).to_owned(),
                flow.node_count.to_string(),
                flow.caller_id.to_string(),
                time::ago(now, flow.create_time.map(wire_time::from_wire)),
                time::ago(now, flow.update_time.map(wire_time::from_wire)),
            ]
        })
        .collect();
    table::render(&["ID", "NAME", "STATUS", "JOBS", "ACTOR", "CREATED", "CHANGED"], &rows)
}

/// A flow in one line, as it is when it changes.
#[must_use]
pub fn flow_line(flow: &v1::FlowSummary) -> String {
    let v1::FlowSummary { id, name, caller_id, generation, .. } = flow;
    let status = labels::flow_status(flow.status());
    let is_open = matches!(flow.status(), v1::FlowStatus::Created | v1::FlowStatus::Started);
    let cancel = if is_open && flow.cancel_requested_time.is_some() { ", being cancelled" } else { "" };
    let again = if *generation > 1 { format!(", run {generation}") } else { String::new() };
    let changed = time::utc(wire_time::required(flow.update_time));
    format!("{changed} flow {id} {name} of actor {caller_id}: {status}{cancel}{again}\n")
}

/// Returns whether a runner is there to take jobs.
pub(super) const fn live(runner: &v1::Runner) -> &'static str {
    match (runner.live, runner.draining || runner.drain_time.is_some()) {
        (false, _) => "no",
        (true, false) => "yes",
        (true, true) => "drained",
    }
}

/// A list of runners.
#[must_use]
pub fn runners(runners: &[v1::Runner], now: Timestamp) -> String {
    let rows: Vec<_> = runners
        .iter()
        .map(|runner| {
            let offers: Vec<_> = runner
                .instances
                .iter()
                .map(|i| {
                    format!(
                        "{}:{}:{} {}/{}",
                        labels::script_type(i.script_type()),
                        i.group,
                        i.number,
                        i.busy,
                        i.slots
                    )
                })
                .collect();
            vec![
                runner.id.to_string(),
                runner.address.clone(),
                live(runner).to_owned(),
                time::ago(now, runner.last_seen_time.map(wire_time::from_wire)),
                runner.queued.to_string(),
                if offers.is_empty() { "-".to_owned() } else { offers.join(", ") },
            ]
        })
        .collect();
    table::render(&["ID", "ADDRESS", "LIVE", "HEARD", "QUEUED", "INSTANCES (BUSY/SLOTS)"], &rows)
}

/// A supervisor, and how far its drain is.
#[must_use]
pub fn supervisor(supervisor: &v1::GetSupervisorResponse) -> String {
    let state = match supervisor.drain_time.map(wire_time::from_wire) {
        None if !supervisor.intake_problem.is_empty() => supervisor.intake_problem.clone(),
        None => "takes jobs".to_owned(),
        Some(since) => {
            let deadline = supervisor.drain_deadline_time.map(wire_time::from_wire);
            let until = deadline.map(|at| format!(", what runs is ended at {}", time::utc(at)));
            format!("draining since {}{}", time::utc(since), until.unwrap_or_default())
        }
    };
    let mut pairs = vec![
        ("supervisor", supervisor.supervisor.clone()),
        ("version", supervisor.version.clone()),
        ("state", state),
        ("queued", supervisor.queued.to_string()),
        ("running", supervisor.running.to_string()),
        ("coordinators", supervisor.attached.to_string()),
        ("signs with", supervisor.key.clone()),
    ];
    if !supervisor.mycelium_address.is_empty() {
        pairs.push(("address", supervisor.mycelium_address.clone()));
    }
    if !supervisor.mycelium_problem.is_empty() {
        pairs.push(("Mycelium", supervisor.mycelium_problem.clone()));
    }
    table::pairs(&pairs)
}

/// Instances of one supervisor.
#[must_use]
pub fn instances(instances: &[v1::Instance]) -> String {
    let rows: Vec<_> = instances
        .iter()
        .map(|instance| {
            vec![
                labels::script_type(instance.script_type()).to_string(),
                instance.group.clone(),
                instance.number.to_string(),
                format!("{}/{}", instance.busy, instance.slots),
                instance.version.clone(),
                instance.isolation.clone(),
                instance.layers.join(" "),
            ]
        })
        .collect();
    table::render(&["TYPE", "GROUP", "NUMBER", "BUSY/SLOTS", "VERSION", "ISOLATION", "LAYERS"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_changes_is_a_line() {
        let flow = v1::FlowSummary {
            id: 3,
            name: "night".into(),
            caller_id: 2,
            status: v1::FlowStatus::Started.into(),
            generation: 1,
            update_time: Some(prost_types::Timestamp { seconds: 1_763_690_000, nanos: 0 }),
            ..Default::default()
        };
        assert_eq!(flow_line(&flow), "2025-11-21 01:53:20 UTC flow 3 night of actor 2: running\n");
        let cancelled = v1::FlowSummary { cancel_requested_time: flow.update_time, generation: 2, ..flow };
        assert!(flow_line(&cancelled).ends_with(": running, being cancelled, run 2\n"));
        let ended = v1::FlowSummary { status: v1::FlowStatus::Cancelled.into(), ..cancelled };
        assert!(flow_line(&ended).ends_with(": cancelled, run 2\n"));
    }

    #[test]
    fn a_large_flow_shows_what_matters() {
        let node = |name: String, state: v1::NodeState| v1::FlowNode {
            name,
            state: state.into(),
            ..Default::default()
        };
        let mut nodes: Vec<_> = (0..150).map(|i| node(format!("j{i}"), v1::NodeState::Completed)).collect();
        nodes.push(node("bad".into(), v1::NodeState::Failed));
        let text =
            flow(&v1::Flow { id: 3, context_id: 2, ..Default::default() }, &nodes, Timestamp::from_millis(0));
        let jobs: Vec<_> = text.lines().skip_while(|line| !line.starts_with("JOB")).collect();
        assert!(jobs[1].starts_with("bad") && jobs[2].starts_with("j0"), "{text}");
        assert_eq!(jobs.last(), Some(&"… and 51 more; `mycora flow jobs 3 --context 2` lists them"));
    }

    #[test]
    fn lost_attempts_are_shown() {
        let mut node = v1::FlowNode {
            name: "a".into(),
            state: v1::NodeState::Running.into(),
            attempt: 4,
            deaths: 2,
            losses: 1,
            ..Default::default()
        };
        assert!(nodes(&[node.clone()], Timestamp::default()).contains("(2 deaths, 1 loss before)"));
        let detail = "INSTANCE_LOST: instance shell:default:1 vanished, death 2 of 3";
        node.reason = Some(v1::Reason { code: "BACKING_OFF".into(), detail: detail.into() });
        let text = why(&node);
        assert!(text.contains("death 2 of 3") && !text.contains("before)"), "{text}");
    }

    #[test]
    fn an_attempt_is_shown_with_its_place() {
        let sent = v1::FlowNode {
            name: "a".into(),
            state: v1::NodeState::Running.into(),
            attempt: 2,
            runner_id: 4,
            supervisor: "node7".into(),
            job_key: "01-02-3-2".into(),
            ..Default::default()
        };
        let waits = v1::FlowNode { name: "b".into(), attempt: 1, ..Default::default() };
        let answer = |node| v1::ExplainNodeResponse { node: Some(node), ..Default::default() };
        assert_eq!(
            explanation(&answer(sent.clone())),
            "\n\nrunner      4\nsupervisor  node7\njob key     01-02-3-2\n"
        );
        assert_eq!(explanation(&answer(waits.clone())), "\n");
        let listed = keys(&[sent, waits]);
        let rows: Vec<Vec<_>> =
            listed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["a", "running", "2", "4", "node7", "01-02-3-2"]);
        assert_eq!(rows[1][2..], ["1", "-", "-", "-"]);
    }

    #[test]
    fn an_unconfirmed_end_is_shown_as_such() {
        let node = v1::FlowNode {
            name: "a".into(),
            state: v1::NodeState::Cancelled.into(),
            reason: Some(v1::Reason {
                code: "NODE_CANCELLED".into(),
                detail: "not confirmed to have stopped".into(),
            }),
            unconfirmed: true,
            ..Default::default()
        };
        let expected =
            "it was cancelled (not confirmed to have stopped) (unconfirmed: it may still be running)";
        assert_eq!(outcome(&node), format!("a: cancelled: {expected}"));
        assert!(nodes(&[node], Timestamp::from_millis(0)).contains(expected));
    }

    #[test]
    fn the_time_of_a_rerun_counts_from_its_own_start() {
        let at = |millis| Some(wire_time::to_wire(Timestamp::from_millis(millis)));
        let rerun = v1::Flow {
            status: v1::FlowStatus::Finished.into(),
            generation: 2,
            create_time: at(1_000),
            update_time: at(103_000),
            ..Default::default()
        };
        let node =
            |generation, start| v1::FlowNode { generation, start_time: at(start), ..Default::default() };
        let text = flow(&rerun, &[node(1, 1_100), node(2, 101_000)], Timestamp::from_millis(200_000));
        assert!(text.contains("status   completed (2.0 s)\n"), "{text}");
        let text = flow(&rerun, &[node(1, 1_100)], Timestamp::from_millis(200_000));
        assert!(text.contains("status   completed\n"), "nothing ran: {text}");
    }

    #[test]
    fn a_flow_shows_jobs_and_result() {
        let at = |millis| Some(wire_time::to_wire(Timestamp::from_millis(millis)));
        let ended = v1::Flow {
            id: 3,
            name: "f".into(),
            status: v1::FlowStatus::Finished.into(),
            context_id: 1,
            caller_id: 1,
            create_time: at(1_800_000_000_000),
            update_time: at(1_800_000_003_200),
            result: [("a.total".to_owned(), "42".to_owned())].into(),
            ..Default::default()
        };
        let node = v1::FlowNode {
            name: "a".into(),
            state: v1::NodeState::Completed.into(),
            attempt: 1,
            start_time: at(1_800_000_000_100),
            end_time: at(1_800_000_000_400),
            exit_code: Some(0),
            instance: "shell:default:0".into(),
            ..Default::default()
        };
        assert_eq!(
            flow(&ended, &[node], Timestamp::from_millis(1_900_000_000_000)),
            "flow     3 f\nstatus   completed (3.2 s)\ncontext  1\nactor    1\ncreated  2027-01-15 08:00:00 UTC\n\
             \n\
             JOB  STATE      ATTEMPT  TIME    EXIT  WHERE            WHY\n\
             a    completed  1        300 ms  0     shell:default:0\n\
             \n\
             RESULT   VALUE\na.total  42\n"
        );
    }
}
