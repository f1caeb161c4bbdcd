//! Flows as they are submitted: the one place where a submission is parsed.

use std::collections::BTreeMap;

use model::flow::EnvVars;
use model::job::{BlobRef, check_env, check_files, check_outputs, check_script, check_signature};
use model::labels::check_labels;
use model::{
    BackoffPolicy, FlowDraft, FlowSpec, JobSpec, Name, NodeDraft, NodePolicy, NodeSpec, NodeTarget,
    Prerequisite, RunIf, RunnerId, ScriptSource, ScriptType, Violations, limits,
};

use crate::convert::{enums, job, node};
use crate::v1;

/// Parses a submission's flow. What needs the graph as a whole is checked by `flow::Plan`.
///
/// # Errors
/// Everything that is wrong with its fields, and what could be read all the same; `at` is the path of the flow in the request.
pub fn from_wire(mut flow: v1::FlowSpec, at: &str) -> Result<FlowSpec, FlowDraft> {
    let mut violations = Violations::new();
    let nodes = std::mem::take(&mut flow.nodes);
    let env_vars = flow.env_vars.clone();
    let header = header_from_wire(flow, at, &mut violations);
    if nodes.is_empty() {
        violations.add(format!("{at}.nodes"), "a flow needs at least one node");
    }
    if nodes.len() > limits::FLOW_NODES_MAX {
        let found = nodes.len();
        violations.add(
            format!("{at}.nodes"),
            format!("a flow has at most {} nodes, this one has {found}", limits::FLOW_NODES_MAX),
        );
        return Err(FlowDraft { violations, ..FlowDraft::default() });
    }
    let nodes: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|(i, node)| parse_node(node, &format!("{at}.nodes[{i}]"), &mut violations))
        .collect();
    match header {
        Some(header) if violations.is_empty() => {
            Ok(FlowSpec { nodes: nodes.into_iter().filter_map(Result::ok).collect(), ..header })
        }
        _ => {
            let nodes = nodes.into_iter().map(|node| node.map_or_else(|draft| *draft, NodeDraft::from));
            Err(FlowDraft { violations, env_vars, nodes: nodes.collect() })
        }
    }
}

/// Parses everything of a flow but its nodes, and notes the violations.
pub fn header_from_wire(flow: v1::FlowSpec, at: &str, violations: &mut Violations) -> Option<FlowSpec> {
    let v1::FlowSpec { name, env_vars, fail_fast, deadline_secs, cancel_timeout_secs, nodes: _ } = flow;
    let name = violations.take(&format!("{at}.name"), name.parse::<Name>());
    check_env(&env_vars, &format!("{at}.env_vars"), violations);
    check_secs(violations, &format!("{at}.deadline_secs"), deadline_secs);
    check_secs(violations, &format!("{at}.cancel_timeout_secs"), cancel_timeout_secs);
    Some(FlowSpec {
        name: name?,
        env_vars,
        fail_fast,
        deadline_secs: (deadline_secs != 0).then_some(deadline_secs),
        cancel_timeout_secs: if cancel_timeout_secs == 0 {
            limits::CANCEL_TIMEOUT_SECS
        } else {
            cancel_timeout_secs
        },
        nodes: Vec::new(),
    })
}

/// Header of a submitted flow, without its nodes.
#[must_use]
pub fn header_of(flow: &v1::FlowSpec) -> v1::FlowSpec {
    let v1::FlowSpec { name, env_vars, fail_fast, deadline_secs, cancel_timeout_secs, nodes: _ } = flow;
    v1::FlowSpec {
        name: name.clone(),
        env_vars: env_vars.clone(),
        fail_fast: *fail_fast,
        deadline_secs: *deadline_secs,
        cancel_timeout_secs: *cancel_timeout_secs,
        nodes: Vec::new(),
    }
}

/// Writes a flow as it was submitted, with its nodes.
#[must_use]
pub fn to_wire(flow: FlowSpec) -> v1::FlowSpec {
    let FlowSpec { name, env_vars, fail_fast, deadline_secs, cancel_timeout_secs, nodes } = flow;
    v1::FlowSpec {
        name: name.to_string(),
        env_vars,
        fail_fast,
        deadline_secs: deadline_secs.unwrap_or_default(),
        cancel_timeout_secs,
        nodes: nodes.into_iter().map(node_to_wire).collect(),
    }
}

fn node_to_wire(node: NodeSpec) -> v1::NodeSpec {
    let NodeSpec { name, depends, run_if, allow_failure, target, policy, prerequisites, when, job } = node;
    v1::NodeSpec {
        name: name.to_string(),
        depends: depends.iter().map(ToString::to_string).collect(),
        run_if: enums::run_if_to_wire(run_if).into(),
        allow_failure,
        target: Some(node::target_to_wire(&target)),
        policy: Some(node::policy_to_wire(&policy)),
        job: Some(job::spec_to_wire(&job)),
        prerequisites: prerequisites.iter().map(ToString::to_string).collect(),
        when: when.unwrap_or_default(),
        created_job_id: 0,
    }
}

/// Parses one node of a submission; notes the violations. `at` is its path in the request.
pub fn node_from_wire(node: v1::NodeSpec, at: &str, violations: &mut Violations) -> Option<NodeSpec> {
    parse_node(node, at, violations).ok()
}

/// The node, or what could be read of it.
fn parse_node(node: v1::NodeSpec, at: &str, violations: &mut Violations) -> Result<NodeSpec, Box<NodeDraft>> {
    let v1::NodeSpec {
        name,
        depends,
        run_if,
        allow_failure,
        target,
        policy,
        job,
        prerequisites,
        when,
        created_job_id,
    } = node;
    // The scheduler has put the created job itself in the place of this id before.
    if created_job_id != 0 {
        let wrong = match job {
            Some(_) => "a node has one job: give it here, or name one",
            None => "a job that was created before cannot be named here",
        };
        violations.add(format!("{at}.created_job_id"), wrong);
    }
    let name = violations.take(&format!("{at}.name"), name.parse::<Name>());
    let depends: Vec<Option<Name>> = depends
        .iter()
        .enumerate()
        .map(|(i, name)| violations.take(&format!("{at}.depends[{i}]"), name.parse()))
        .collect();
    let run_if = match run_if {
        0 => Some(RunIf::default()),
        number => {
            violations.take(&format!("{at}.run_if"), enums::run_if_from_wire(number).ok_or("unknown value"))
        }
    };
    let prerequisites = prerequisites_from_wire(&prerequisites, &format!("{at}.prerequisites"), violations);
    let when = when_from_wire(when, &format!("{at}.when"), violations);
    let target = target_from_wire(target.unwrap_or_default(), &format!("{at}.target"), violations);
    let policy = policy_from_wire(policy.unwrap_or_default(), &format!("{at}.policy"), violations);
    if job.is_none() && created_job_id == 0 {
        violations.add(format!("{at}.job"), "a node needs a job");
    }
    let job = job.map(|job| parts_from_wire(job, &format!("{at}.job"), violations)).unwrap_or_default();
    let JobParts { what, env_vars, files, outputs, signature } = job;
    match (NodeDraft { name, depends, run_if, when, env_vars, files, outputs }, what, target) {
        (
            NodeDraft { name: Some(name), depends, run_if: Some(run_if), when, env_vars, files, outputs },
            Some((script_type, script)),
            Some(target),
        ) if depends.iter().all(Option::is_some) => Ok(NodeSpec {
            name,
            depends: depends.into_iter().flatten().collect(),
            run_if,
            allow_failure,
            target,
            policy,
            prerequisites,
            when,
            job: JobSpec { script_type, script, env_vars, files, outputs, signature },
        }),
        (draft, ..) => Err(Box::new(draft)),
    }
}

/// A condition; absent when there is none, or one that is too long to look at.
fn when_from_wire(when: String, at: &str, violations: &mut Violations) -> Option<String> {
    if when.len() > limits::WHEN_BYTES_MAX {
        let (max, found) = (limits::WHEN_BYTES_MAX, when.len());
        violations.add(at, format!("an expression has at most {max} bytes, not {found}"));
        return None;
    }
    (!when.is_empty()).then_some(when)
}

fn prerequisites_from_wire(texts: &[String], at: &str, violations: &mut Violations) -> Vec<Prerequisite> {
    if texts.len() > limits::PREREQUISITES_MAX {
        let (max, found) = (limits::PREREQUISITES_MAX, texts.len());
        violations.add(at, format!("a node has at most {max} prerequisites, not {found}"));
        return Vec::new();
    }
    let mut prerequisites = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        let Some(prerequisite) = violations.take(&format!("{at}[{i}]"), text.parse()) else { continue };
        if prerequisites.contains(&prerequisite) {
            violations.add(format!("{at}[{i}]"), format!("`{prerequisite}` is named twice"));
        } else {
            prerequisites.push(prerequisite);
        }
    }
    prerequisites
}

fn target_from_wire(target: v1::Target, at: &str, violations: &mut Violations) -> Option<NodeTarget> {
    let v1::Target { runner_id, group, instance, labels } = target;
    let group = match group.as_str() {
        "" => None,
        text => Some(violations.take(&format!("{at}.group"), text.parse())?),
    };
    if instance.is_some() && group.is_none() {
        violations
            .add(format!("{at}.instance"), "an instance is a number within a group: name the group as well");
        return None;
    }
    check_labels(&labels, &format!("{at}.labels"), violations);
    Some(NodeTarget { runner: (runner_id != 0).then_some(RunnerId(runner_id)), group, instance, labels })
}

fn policy_from_wire(policy: v1::NodePolicy, at: &str, violations: &mut Violations) -> NodePolicy {
    let v1::NodePolicy {
        retries,
        backoff,
        no_retry_exit_codes,
        timeout_secs,
        timeout_queue_secs,
        timeout_ack_secs,
        timeout_result_secs,
        priority,
        isolation,
        network,
        losses,
        loss_backoff,
        idempotent,
    } = policy;
    let defaults = NodePolicy::default();
    let losses = losses.unwrap_or(defaults.losses);
    for (field, max, found) in
        [("retries", limits::RETRIES_MAX, retries), ("losses", limits::LOSSES_MAX, losses)]
    {
        if found > max {
            violations.add(format!("{at}.{field}"), format!("at most {max} are allowed, not {found}"));
        }
    }
    if no_retry_exit_codes.len() > limits::NO_RETRY_EXIT_CODES_MAX {
        let (max, found) = (limits::NO_RETRY_EXIT_CODES_MAX, no_retry_exit_codes.len());
        let wrong = format!("at most {max} exit codes are allowed, these are {found}");
        violations.add(format!("{at}.no_retry_exit_codes"), wrong);
    }
    for (field, secs) in [
        ("timeout_secs", timeout_secs.unwrap_or_default()),
        ("timeout_queue_secs", timeout_queue_secs),
        ("timeout_ack_secs", timeout_ack_secs.unwrap_or_default()),
        ("timeout_result_secs", timeout_result_secs),
    ] {
        check_secs(violations, &format!("{at}.{field}"), secs);
    }
    let priority = match priority {
        None => defaults.priority,
        Some(level @ 0..=2) => u8::try_from(level).unwrap_or(defaults.priority),
        Some(level) => {
            violations.add(format!("{at}.priority"), format!("a priority is 0 (first), 1 or 2, not {level}"));
            defaults.priority
        }
    };
    let isolation = match v1::Isolation::try_from(isolation) {
        Ok(v1::Isolation::Unspecified) => defaults.isolation,
        _ => enums::isolation_from_wire(isolation).unwrap_or_else(|| {
            violations.add(format!("{at}.isolation"), format!("{isolation} is no isolation level"));
            defaults.isolation
        }),
    };
    NodePolicy {
        retries,
        backoff: backoff_from_wire(backoff.unwrap_or_default(), &format!("{at}.backoff"), violations),
        no_retry_exit_codes,
        timeout: timeout_secs.unwrap_or(defaults.timeout),
        timeout_queue: timeout_queue_secs,
        timeout_ack: timeout_ack_secs.unwrap_or(defaults.timeout_ack),
        timeout_result: timeout_result_secs,
        priority,
        isolation,
        network,
        losses,
        loss_backoff: backoff_from_wire(
            loss_backoff.unwrap_or_default(),
            &format!("{at}.loss_backoff"),
            violations,
        ),
        idempotent: idempotent.unwrap_or(defaults.idempotent),
    }
}

fn backoff_from_wire(backoff: v1::Backoff, at: &str, violations: &mut Violations) -> BackoffPolicy {
    let v1::Backoff { initial_secs, multiplier, max_secs } = backoff;
    let defaults = BackoffPolicy::default();
    let or = |value: f64, default: f64| if value == 0.0 { default } else { value };
    let backoff = BackoffPolicy {
        initial_secs: or(initial_secs, defaults.initial_secs),
        multiplier: or(multiplier, defaults.multiplier),
        max_secs: or(max_secs, defaults.max_secs),
    };
    let bound = f64::from(limits::TIMEOUT_SECS_MAX);
    for (field, secs) in [("initial_secs", backoff.initial_secs), ("max_secs", backoff.max_secs)] {
        if !(0.0..=bound).contains(&secs) {
            violations.add(format!("{at}.{field}"), format!("0 to {bound} seconds are allowed, not {secs}"));
        }
    }
    if !(1.0..=1000.0).contains(&backoff.multiplier) {
        violations
            .add(format!("{at}.multiplier"), format!("1 to 1000 is allowed, not {}", backoff.multiplier));
    }
    backoff
}

fn check_secs(violations: &mut Violations, field: &str, secs: u32) {
    if secs > limits::TIMEOUT_SECS_MAX {
        violations.add(
            field,
            format!("at most {} seconds (30 days) are allowed, not {secs}", limits::TIMEOUT_SECS_MAX),
        );
    }
}

/// Parses what a node executes; notes the violations. `at` is its path in the request.
pub fn job_from_wire(job: v1::JobSpec, at: &str, violations: &mut Violations) -> Option<JobSpec> {
    let JobParts { what, env_vars, files, outputs, signature } = parts_from_wire(job, at, violations);
    let (script_type, script) = what?;
    Some(JobSpec { script_type, script, env_vars, files, outputs, signature })
}

/// Readable parts of a job.
#[derive(Default)]
struct JobParts {
    what: Option<(ScriptType, ScriptSource)>,
    env_vars: EnvVars,
    files: BTreeMap<String, BlobRef>,
    outputs: Vec<String>,
    signature: Option<String>,
}

fn parts_from_wire(job: v1::JobSpec, at: &str, violations: &mut Violations) -> JobParts {
    let v1::JobSpec { script_type, script, env_vars, files, outputs, signature } = job;
    let script_type = violations.take(
        &format!("{at}.script_type"),
        enums::script_type_from_wire(script_type)
            .ok_or("give one of python, shell, v, rust, rhai, osis and sal"),
    );
    let script = match script.and_then(|script| script.source) {
        Some(v1::script::Source::Text(text)) => Some(ScriptSource::Inline(text)),
        Some(v1::script::Source::Blob(blob)) => {
            blob_from_wire(&blob, &format!("{at}.script.blob"), violations).map(ScriptSource::Blob)
        }
        None => {
            violations.add(format!("{at}.script"), "a job needs a script");
            None
        }
    };
    let files: BTreeMap<_, _> = files
        .into_iter()
        .filter_map(|(name, blob)| {
            let blob = blob_from_wire(&blob, &format!("{at}.files[{name}]"), violations)?;
            Some((name, blob))
        })
        .collect();
    let signature = (!signature.is_empty()).then_some(signature);
    if let Some(script) = &script {
        check_script(script, at, violations);
    }
    check_env(&env_vars, &format!("{at}.env_vars"), violations);
    check_files(&files, at, violations);
    check_outputs(&outputs, at, violations);
    check_signature(signature.as_deref(), at, violations);
    JobParts { what: script_type.zip(script), env_vars, files, outputs, signature }
}

fn blob_from_wire(blob: &v1::BlobRef, at: &str, violations: &mut Violations) -> Option<BlobRef> {
    let sha256 = violations.take(&format!("{at}.sha256"), blob.sha256.parse())?;
    Some(BlobRef { sha256, size: blob.size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> v1::NodeSpec {
        v1::NodeSpec {
            name: name.into(),
            job: Some(v1::JobSpec {
                script_type: v1::ScriptType::Shell.into(),
                script: Some(v1::Script { source: Some(v1::script::Source::Text("true".into())) }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn defaults_are_the_specifications() {
        let flow = v1::FlowSpec { name: "f".into(), nodes: vec![node("a")], ..Default::default() };
        let spec = from_wire(flow, "flow").expect("a small flow");
        assert_eq!(spec.nodes[0].policy, NodePolicy::default());
        assert_eq!(spec.nodes[0].policy.timeout, 3600);
        assert_eq!(spec.cancel_timeout_secs, 30);
    }

    #[test]
    fn all_violations_come_at_once() {
        let mut bad = node("a b");
        let policy =
            v1::NodePolicy { retries: 101, losses: Some(101), priority: Some(3), ..Default::default() };
        bad.policy = Some(policy);
        bad.job.get_or_insert_default().script_type = 99;
        bad.target = Some(v1::Target { instance: Some(1), ..Default::default() });
        let mut long = node("b");
        let labels = BTreeMap::from([("k".to_owned(), "v".repeat(limits::LABEL_VALUE_BYTES_MAX + 1))]);
        long.target = Some(v1::Target { labels, ..Default::default() });
        let no_retry_exit_codes = vec![1; limits::NO_RETRY_EXIT_CODES_MAX + 1];
        long.policy = Some(v1::NodePolicy { no_retry_exit_codes, ..Default::default() });
        let flow = v1::FlowSpec { name: String::new(), nodes: vec![bad, long], ..Default::default() };
        let draft = from_wire(flow, "flow").expect_err("nothing is right");
        let fields: Vec<_> = draft.violations.as_slice().iter().map(|v| v.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "flow.name",
                "flow.nodes[0].name",
                "flow.nodes[0].target.instance",
                "flow.nodes[0].policy.retries",
                "flow.nodes[0].policy.losses",
                "flow.nodes[0].policy.priority",
                "flow.nodes[0].job.script_type",
                "flow.nodes[1].target.labels[k]",
                "flow.nodes[1].policy.no_retry_exit_codes",
            ]
        );
    }

    #[test]
    fn what_can_be_read_of_a_bad_flow_is_kept() {
        let mut bad = node("b");
        bad.depends = vec!["a b".into(), "a".into()];
        bad.when = "results.a.k > 0".into();
        bad.run_if = 99;
        let job = bad.job.get_or_insert_default();
        (job.script_type, job.outputs) = (99, vec!["x".into(), "x".into()]);
        let flow = v1::FlowSpec { name: "f".into(), nodes: vec![node("a"), bad], ..Default::default() };
        let draft = from_wire(flow, "flow").expect_err("some of it is wrong");
        let fields: Vec<_> = draft.violations.as_slice().iter().map(|v| v.field.as_str()).collect();
        let expected = ["depends[0]", "run_if", "job.script_type", "job.outputs[1]"];
        assert_eq!(fields, expected.map(|field| format!("flow.nodes[1].{field}")));
        let name = |text: &str| text.parse::<Name>().ok();
        let [good, bad] = &draft.nodes[..] else { panic!("{draft:?}") };
        assert_eq!(
            *good,
            NodeDraft { name: name("a"), run_if: Some(RunIf::default()), ..NodeDraft::default() }
        );
        assert_eq!((&bad.name, &bad.depends[..], bad.run_if), (&name("b"), &[None, name("a")][..], None));
        assert_eq!((bad.when.as_deref(), bad.outputs.len()), (Some("results.a.k > 0"), 2));
    }
}
