//! Flows as they are asked for: the one place where a submission is parsed.

use std::collections::BTreeMap;

use model::job::{BlobRef, check_env};
use model::{
    Backoff, FlowSpec, JobSpec, Name, NodePolicy, NodeSpec, Prerequisite, RunIf, RunnerId, ScriptSource,
    Target, Violations, limits,
};

use crate::convert::enums;
use crate::v1;

/// Parses a submission's flow. What needs the graph as a whole is checked by `flow::Plan`.
///
/// # Errors
/// Everything that is wrong with it; `at` is the path of the flow in the request.
pub fn from_wire(mut flow: v1::FlowSpec, at: &str) -> Result<FlowSpec, Violations> {
    let mut violations = Violations::new();
    let nodes = std::mem::take(&mut flow.nodes);
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
        return Err(violations);
    }
    let nodes: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .filter_map(|(i, node)| node_from_wire(node, &format!("{at}.nodes[{i}]"), &mut violations))
        .collect();
    violations.into_result(header.map(|header| FlowSpec { nodes, ..header }))
}

/// Parses everything of a flow but its nodes, and notes what is wrong with it.
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

/// Parses one node of a submission; notes what is wrong with it. `at` is its path in the request.
pub fn node_from_wire(node: v1::NodeSpec, at: &str, violations: &mut Violations) -> Option<NodeSpec> {
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
    // Whoever can read jobs has put the job itself in its place by now.
    if created_job_id != 0 {
        violations.add(format!("{at}.created_job_id"), "a job that was created before cannot be named here");
    }
    let name = violations.take(&format!("{at}.name"), name.parse::<Name>());
    let depends = depends
        .iter()
        .enumerate()
        .filter_map(|(i, name)| violations.take(&format!("{at}.depends[{i}]"), name.parse()))
        .collect();
    let run_if = match run_if {
        0 => Some(RunIf::default()),
        number => {
            violations.take(&format!("{at}.run_if"), enums::run_if_from_wire(number).ok_or("unknown value"))
        }
    };
    let prerequisites = prerequisites_from_wire(&prerequisites, &format!("{at}.prerequisites"), violations);
    if when.len() > limits::WHEN_BYTES_MAX {
        let (max, found) = (limits::WHEN_BYTES_MAX, when.len());
        violations.add(format!("{at}.when"), format!("an expression has at most {max} bytes, not {found}"));
    }
    let target = target_from_wire(target.unwrap_or_default(), &format!("{at}.target"), violations);
    let policy = policy_from_wire(policy.unwrap_or_default(), &format!("{at}.policy"), violations);
    let job = match job {
        Some(job) => job_from_wire(job, &format!("{at}.job"), violations),
        None if created_job_id != 0 => None,
        None => {
            violations.add(format!("{at}.job"), "a node needs a job");
            None
        }
    };
    Some(NodeSpec {
        name: name?,
        depends,
        run_if: run_if?,
        allow_failure,
        target: target?,
        policy,
        prerequisites,
        when: (!when.is_empty()).then_some(when),
        job: job?,
    })
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

fn target_from_wire(target: v1::Target, at: &str, violations: &mut Violations) -> Option<Target> {
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
    Some(Target { runner: (runner_id != 0).then_some(RunnerId(runner_id)), group, instance, labels })
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
    } = policy;
    let defaults = NodePolicy::default();
    if retries > limits::RETRIES_MAX {
        violations.add(
            format!("{at}.retries"),
            format!("at most {} are allowed, not {retries}", limits::RETRIES_MAX),
        );
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
    }
}

fn backoff_from_wire(backoff: v1::Backoff, at: &str, violations: &mut Violations) -> Backoff {
    let v1::Backoff { initial_secs, multiplier, max_secs } = backoff;
    let defaults = Backoff::default();
    let or = |value: f64, default: f64| if value == 0.0 { default } else { value };
    let backoff = Backoff {
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

/// Parses what a node executes; notes what is wrong with it. `at` is its path in the request.
pub fn job_from_wire(job: v1::JobSpec, at: &str, violations: &mut Violations) -> Option<JobSpec> {
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
    let spec = JobSpec { script_type: script_type?, script: script?, env_vars, files, outputs, signature };
    spec.check(at, violations);
    Some(spec)
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
        bad.policy = Some(v1::NodePolicy { retries: 101, priority: Some(3), ..Default::default() });
        bad.job.get_or_insert_default().script_type = 99;
        bad.target = Some(v1::Target { instance: Some(1), ..Default::default() });
        let flow = v1::FlowSpec { name: String::new(), nodes: vec![bad], ..Default::default() };
        let violations = from_wire(flow, "flow").expect_err("nothing is right");
        let fields: Vec<_> = violations.as_slice().iter().map(|v| v.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "flow.name",
                "flow.nodes[0].name",
                "flow.nodes[0].target.instance",
                "flow.nodes[0].policy.retries",
                "flow.nodes[0].policy.priority",
                "flow.nodes[0].job.script_type",
            ]
        );
    }
}
