//! Converts the jobs of a pushed message into a flow.
//!
//! The jobs are in one of the fields `job` and `jobs` (a list of jobs, or one) and `nodes` (a list of nodes, each with its
//! `job`). A job is identified by its `id`, a node by its `name` or the `id` of its job; `depends`, which older programs
//! call `dependends`, names its predecessors within the message.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use model::job::BlobRef;
use model::{
    BlobHash, ContextId, FlowSpec, JobSpec, MessageKey, Name, NodePolicy, NodeSpec, NodeTarget, Prerequisite,
    RunIf, ScriptSource, ScriptType, Violations, limits,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::parse;
use crate::record::RecordFields;

/// Where jobs may stand.
const FIELDS: [&str; 3] = ["nodes", "job", "jobs"];
/// Job fields that older programs write and that are ignored.
const UNREAD: [&str; 4] = ["result", "status", "created_at", "updated_at"];

/// Dependency of a node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum RawDependency {
    /// The job of this number.
    Id(u32),
    /// The node of this name.
    Name(Name),
}

/// A node, and what it depends on before that is looked up.
#[derive(Debug)]
struct RawNodeDraft {
    at: String,
    id: Option<u32>,
    depends: Vec<RawDependency>,
    spec: NodeSpec,
}

/// Caller and context that the jobs must belong to.
#[derive(Debug, Clone, Copy)]
struct RawJobScope {
    caller: u32,
    context: u32,
}

/// Reads a message's jobs as a flow, with their size in bytes. Adds violations for wrong fields; whether the jobs form a valid
/// graph is checked when the flow is created.
pub(crate) fn read(
    key: MessageKey,
    context: ContextId,
    fields: &mut RecordFields,
    violations: &mut Violations,
) -> Option<(FlowSpec, usize)> {
    let deadline_secs = parse(fields, "timeout_result", violations).filter(|secs| *secs != 0);
    let texts = FIELDS.map(|field| (field, fields.text(field)));
    let mut given = texts.iter().filter(|(_, text)| !matches!(text.as_str(), "" | "[]"));
    let (Some((field, text)), None) = (given.next(), given.next()) else {
        violations.add("job", "the jobs of a message stand in one of `job`, `jobs` and `nodes`");
        return None;
    };
    if text.len() > 2 * limits::PAGE_BYTES_MAX {
        let (max, found) = (2 * limits::PAGE_BYTES_MAX, text.len());
        violations.add(*field, format!("the jobs of a message have at most {max} bytes, not {found}"));
        return None;
    }
    let list = match violations.take(field, serde_json::from_str(text))? {
        Value::Array(list) => list,
        one => vec![one],
    };
    if list.len() > limits::RAW_JOBS_MAX {
        let (max, found) = (limits::RAW_JOBS_MAX, list.len());
        violations.add(*field, format!("a message has at most {max} jobs, not {found}"));
        return None;
    }
    let place = RawJobScope { caller: key.caller.0, context: context.0 };
    let drafts: Vec<Option<RawNodeDraft>> = list
        .into_iter()
        .enumerate()
        .map(|(i, value)| draft(format!("{field}[{i}]"), value, *field == "nodes", place, violations))
        .collect();
    // If one job cannot be read, jobs that depend on it would be reported as wrong without being so.
    let drafts: Vec<RawNodeDraft> = drafts.into_iter().collect::<Option<_>>()?;
    let name = violations.take("id", format!("message-{}-{}", key.caller, key.id).parse())?;
    let flow = FlowSpec { deadline_secs, nodes: link(drafts, violations), ..FlowSpec::new(name) };
    Some((flow, text.len()))
}

/// An object that is being read.
struct RawObjectReader<'v> {
    at: String,
    map: Map<String, Value>,
    violations: &'v mut Violations,
}

impl<'v> RawObjectReader<'v> {
    fn of(at: String, value: Value, violations: &'v mut Violations) -> Option<Self> {
        match value {
            Value::Object(map) => Some(Self { at, map, violations }),
            _ => {
                violations.add(at, "an object is expected");
                None
            }
        }
    }

    /// Takes a value; nothing when it is missing or wrong. A wrong value adds a violation.
    fn take<T: DeserializeOwned>(&mut self, field: &str) -> Option<T> {
        match self.map.remove(field) {
            None | Some(Value::Null) => None,
            Some(value) => {
                self.violations.take(&format!("{}.{field}", self.at), serde_json::from_value(value))
            }
        }
    }

    fn add(&mut self, field: &str, problem: impl std::fmt::Display) {
        self.violations.add(format!("{}.{field}", self.at), problem);
    }

    /// A list under its name or the older one.
    fn depends(&mut self) -> Vec<RawDependency> {
        let mut depends: Vec<RawDependency> = self.take("depends").unwrap_or_default();
        depends.extend(self.take::<Vec<RawDependency>>("dependends").unwrap_or_default());
        depends
    }

    fn prerequisites(&mut self) -> Vec<Prerequisite> {
        let texts: Vec<String> = self.take("prerequisites").unwrap_or_default();
        let at = format!("{}.prerequisites", self.at);
        let texts = texts.iter().enumerate();
        texts.filter_map(|(i, text)| self.violations.take(&format!("{at}[{i}]"), text.parse())).collect()
    }

    /// Adds a violation for every field that was not taken.
    fn end(self) {
        for field in self.map.keys() {
            self.violations.add(format!("{}.{field}", self.at), "there is no such field");
        }
    }
}

/// A job as it stands in a message.
struct RawJob {
    id: Option<u32>,
    depends: Vec<RawDependency>,
    prerequisites: Vec<Prerequisite>,
    timeout: Option<u32>,
    retries: Option<u32>,
    spec: Option<JobSpec>,
}

fn draft(
    at: String,
    value: Value,
    is_node: bool,
    place: RawJobScope,
    violations: &mut Violations,
) -> Option<RawNodeDraft> {
    let mut node = Map::new();
    let (job_at, job) = if is_node {
        let mut object = RawObjectReader::of(at.clone(), value, violations)?.map;
        let job = object.remove("job").unwrap_or(Value::Null);
        node = object;
        (format!("{at}.job"), job)
    } else {
        (at.clone(), value)
    };
    let job = read_job(RawObjectReader::of(job_at, job, violations)?, place);
    let mut node = RawObjectReader { at: at.clone(), map: node, violations };
    let name = node.take::<Name>("name").or_else(|| format!("job-{}", job.id?).parse().ok());
    if name.is_none() {
        node.add(if is_node { "name" } else { "id" }, "is missing: it identifies the job in the message");
    }
    let mut depends = node.depends();
    depends.extend(job.depends);
    let mut prerequisites = node.prerequisites();
    prerequisites.extend(job.prerequisites);
    let mut policy: NodePolicy = node.take("policy").unwrap_or_default();
    policy.timeout = job.timeout.unwrap_or(policy.timeout);
    policy.retries = job.retries.unwrap_or(policy.retries);
    let run_if: RunIf = node.take("run_if").unwrap_or_default();
    let allow_failure = node.take("allow_failure").unwrap_or_default();
    let target: NodeTarget = node.take("target").unwrap_or_default();
    let when: Option<String> = node.take("when");
    check(&mut node, &policy, &prerequisites, when.as_deref());
    node.end();
    let spec = NodeSpec {
        name: name?,
        depends: Vec::new(),
        run_if,
        allow_failure,
        target,
        policy,
        prerequisites,
        when,
        job: job.spec?,
    };
    Some(RawNodeDraft { at, id: job.id, depends, spec })
}

/// Limits that are not the job's own.
fn check(
    node: &mut RawObjectReader<'_>,
    policy: &NodePolicy,
    prerequisites: &[Prerequisite],
    when: Option<&str>,
) {
    for (field, max, found) in [
        ("retries", limits::RETRIES_MAX, policy.retries),
        ("losses", limits::LOSSES_MAX, policy.losses),
        ("timeout", limits::TIMEOUT_SECS_MAX, policy.timeout),
    ] {
        if found > max {
            node.add(field, format!("at most {max}, not {found}"));
        }
    }
    if prerequisites.len() > limits::PREREQUISITES_MAX {
        let (max, found) = (limits::PREREQUISITES_MAX, prerequisites.len());
        node.add("prerequisites", format!("at most {max}, not {found}"));
    }
    if when.is_some_and(|when| when.len() > limits::WHEN_BYTES_MAX) {
        node.add("when", format!("an expression has at most {} bytes", limits::WHEN_BYTES_MAX));
    }
}

fn read_job(mut object: RawObjectReader<'_>, place: RawJobScope) -> RawJob {
    for field in UNREAD {
        object.map.remove(field);
    }
    for (field, expected) in [("caller_id", place.caller), ("context_id", place.context)] {
        // Programs that leave it to the message write 0.
        let found = object.take::<u32>(field).filter(|found| *found != 0);
        if let Some(found) = found.filter(|found| *found != expected) {
            object.add(field, format!("is {found}, but the message has {expected}"));
        }
    }
    let id = object.take("id");
    let depends = object.depends();
    let prerequisites = object.prerequisites();
    let (timeout, retries) = (object.take("timeout"), object.take("retries"));
    let is_typed = object.map.get("script_type").is_some_and(|value| !value.is_null());
    let script_type: Option<ScriptType> = object.take("script_type");
    let script = read_script(&mut object);
    let env_vars = object.take("env_vars").unwrap_or_default();
    let files: BTreeMap<String, BlobRef> = object.take("files").unwrap_or_default();
    let outputs = object.take("outputs").unwrap_or_default();
    let signature = object.take("signature").filter(|signature: &String| !signature.is_empty());
    let spec = script_type.zip(script).map(|(script_type, script)| {
        let spec = JobSpec { script_type, script, env_vars, files, outputs, signature };
        spec.check(&object.at, object.violations);
        spec
    });
    // A wrong type has its violation already.
    if !is_typed {
        let mut types = String::new();
        for (i, known) in ScriptType::ALL.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(types, "{comma}{known}").expect("a text takes everything");
        }
        object.add("script_type", format!("give one of {types}"));
    }
    object.end();
    RawJob { id, depends, prerequisites, timeout, retries, spec }
}

/// A script's text, or `sha256:` and the hash of a blob with `script_size`, as in a job's hash.
fn read_script(object: &mut RawObjectReader<'_>) -> Option<ScriptSource> {
    let text: String = object.take("script").unwrap_or_default();
    match object.take::<u64>("script_size") {
        None => Some(ScriptSource::Inline(text)),
        Some(size) => {
            let hash = text.strip_prefix("sha256:").unwrap_or_default();
            let at = format!("{}.script", object.at);
            let sha256: BlobHash = object.violations.take(&at, hash.parse())?;
            Some(ScriptSource::Blob(BlobRef { sha256, size }))
        }
    }
}

/// Resolves the dependencies of every node to names.
fn link(drafts: Vec<RawNodeDraft>, violations: &mut Violations) -> Vec<NodeSpec> {
    let (mut ids, mut names) = (BTreeMap::new(), BTreeSet::new());
    for RawNodeDraft { at, id, spec, .. } in &drafts {
        if let Some(id) = id
            && ids.insert(*id, spec.name.clone()).is_some()
        {
            violations.add(format!("{at}.id"), format!("{id} is used twice"));
        }
        if !names.insert(spec.name.clone()) {
            violations.add(format!("{at}.name"), format!("{} is used twice", spec.name));
        }
    }
    let mut nodes = Vec::with_capacity(drafts.len());
    for RawNodeDraft { at, depends, mut spec, .. } in drafts {
        for (i, before) in depends.into_iter().enumerate() {
            let found = match &before {
                RawDependency::Id(id) => ids.get(id),
                RawDependency::Name(name) => names.get(name),
            };
            match found {
                Some(name) => spec.depends.push(name.clone()),
                None => {
                    let before = match before {
                        RawDependency::Id(id) => id.to_string(),
                        RawDependency::Name(name) => name.to_string(),
                    };
                    violations.add(format!("{at}.depends[{i}]"), format!("{before} is not in this message"));
                }
            }
        }
        nodes.push(spec);
    }
    nodes
}
