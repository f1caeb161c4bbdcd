//! Jobs: what to execute. Pure data without a state.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::flow::EnvVars;
use crate::id::{ActorId, BlobHash, ContextId, FlowId, JobId};
use crate::limits;
use crate::printable::check_line;
use crate::script_type::ScriptType;
use crate::time::Timestamp;
use crate::violation::Violations;

/// A script's text, or the blob that holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptSource {
    /// The text itself.
    Inline(String),
    /// The blob with the text.
    Blob(BlobRef),
}

/// Bytes kept once per context under their hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// The SHA-256 of the bytes.
    pub sha256: BlobHash,
    /// How many there are.
    pub size: u64,
}

/// Script to execute, with its variables and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Type of the script, which selects its executor.
    pub script_type: ScriptType,
    /// Text of the script, or its blob.
    pub script: ScriptSource,
    /// Variables of its own, before rendering. They override the flow's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: EnvVars,
    /// Files laid into its directory, by relative path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, BlobRef>,
    /// Files it makes that are kept and handed to its dependants, by relative path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// The actor's signature over the job, if it made one: an envelope as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl JobSpec {
    /// A script, and nothing beside it.
    #[must_use]
    pub fn inline(script_type: ScriptType, script: impl Into<String>) -> Self {
        Self {
            script_type,
            script: ScriptSource::Inline(script.into()),
            env_vars: EnvVars::new(),
            files: BTreeMap::new(),
            outputs: Vec::new(),
            signature: None,
        }
    }

    /// Every blob that it refers to, some of them perhaps twice.
    pub fn blobs(&self) -> impl Iterator<Item = &BlobRef> {
        let script = match &self.script {
            ScriptSource::Blob(blob) => Some(blob),
            ScriptSource::Inline(_) => None,
        };
        script.into_iter().chain(self.files.values())
    }

    /// Notes everything about this job that is beyond a limit or malformed;
    /// `at` is the path of the job in the request.
    pub fn check(&self, at: &str, violations: &mut Violations) {
        check_script(&self.script, at, violations);
        check_env(&self.env_vars, &format!("{at}.env_vars"), violations);
        check_files(&self.files, at, violations);
        check_outputs(&self.outputs, at, violations);
        check_signature(self.signature.as_deref(), at, violations);
    }
}

/// Checks a job's script, and notes violations; `at` is the path of the job, here and below.
pub fn check_script(script: &ScriptSource, at: &str, violations: &mut Violations) {
    match script {
        ScriptSource::Inline(text) if text.is_empty() => {
            violations.add(format!("{at}.script"), "a job needs a script");
        }
        ScriptSource::Inline(text) => check_script_size(text.len() as u64, at, violations),
        ScriptSource::Blob(blob) => check_script_size(blob.size, at, violations),
    }
}

/// Checks a job's files, and notes violations.
pub fn check_files(files: &BTreeMap<String, BlobRef>, at: &str, violations: &mut Violations) {
    let mut total: u64 = 0;
    for (name, blob) in files {
        let field = format!("{at}.files[{name}]");
        if let Err(error) = check_relative_path(name) {
            violations.add(&field, error);
        }
        if blob.size > limits::FILE_BYTES_MAX as u64 {
            let (max, size) = (limits::FILE_BYTES_MAX, blob.size);
            violations.add(field, format!("a file has at most {max} bytes, this one has {size}"));
        }
        total = total.saturating_add(blob.size);
    }
    if total > limits::JOB_FILES_BYTES_MAX as u64 {
        let max = limits::JOB_FILES_BYTES_MAX;
        violations.add(
            format!("{at}.files"),
            format!("a job's files have at most {max} bytes together, these have {total}"),
        );
    }
    check_count(files.len(), &format!("{at}.files"), violations);
}

/// Checks the names of a job's outputs, and notes violations.
pub fn check_outputs(outputs: &[String], at: &str, violations: &mut Violations) {
    check_count(outputs.len(), &format!("{at}.outputs"), violations);
    let mut known = HashSet::new();
    for (i, name) in outputs.iter().enumerate() {
        if let Some(why) = not_one_file(name) {
            violations.add(format!("{at}.outputs[{i}]"), why);
        } else if let Err(error) = check_relative_path(name) {
            violations.add(format!("{at}.outputs[{i}]"), error);
        }
        if !known.insert(name) {
            violations.add(format!("{at}.outputs[{i}]"), format!("`{name}` is named twice"));
        }
    }
}

/// Explains why an output may name more than one file. The files that a job receives are fixed before it runs, and may be
/// signed, so neither patterns nor directories can stand for names that are not known yet.
fn not_one_file(name: &str) -> Option<String> {
    let (what, stem) = if name.contains(['*', '?']) {
        ("a pattern", "outputs")
    } else {
        ("a directory", name.strip_suffix('/').filter(|dir| !dir.is_empty())?)
    };
    Some(format!(
        "`{name}` is {what}, and each output is one file: name its files, or let the script pack them \
         (`tar cf {stem}.tar {name}`) and name `{stem}.tar`"
    ))
}

/// Notes a signature that is too long to check.
pub fn check_signature(signature: Option<&str>, at: &str, violations: &mut Violations) {
    let (max, len) = (limits::SIGNATURE_BYTES_MAX, signature.map_or(0, str::len));
    if len > max {
        let text = format!("a signature has at most {max} bytes, this one has {len}");
        violations.add(format!("{at}.signature"), text);
    }
}

fn check_count(count: usize, field: &str, violations: &mut Violations) {
    let max = limits::JOB_FILES_MAX;
    if count > max {
        violations.add(field, format!("at most {max} are allowed, these are {count}"));
    }
}

fn check_script_size(size: u64, at: &str, violations: &mut Violations) {
    if size > limits::SCRIPT_BYTES_MAX as u64 {
        violations.add(
            format!("{at}.script"),
            format!("a script has at most {} bytes, this one has {size}", limits::SCRIPT_BYTES_MAX),
        );
    }
}

/// Checks an environment, and notes violations of names, count and size.
pub fn check_env(env: &EnvVars, at: &str, violations: &mut Violations) {
    if env.len() > limits::ENV_ENTRIES_MAX {
        violations.add(
            at,
            format!("at most {} variables are allowed, these are {}", limits::ENV_ENTRIES_MAX, env.len()),
        );
    }
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits::ENV_BYTES_MAX {
        violations.add(
            at,
            format!("an environment has at most {} bytes, this one has {bytes}", limits::ENV_BYTES_MAX),
        );
    }
    for (name, value) in env {
        let field = format!("{at}[{name}]");
        let first_ok = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        if !first_ok || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            violations.add(&field, "a variable's name is a letter or _, then letters, digits and _");
        } else if name.starts_with("MYCORA_") || name == "TRACEPARENT" {
            violations
                .add(&field, "names that begin with MYCORA_, and TRACEPARENT, are set by Mycora itself");
        }
        if value.contains('\0') {
            violations.add(field, "a value must not contain a zero byte");
        }
    }
}

/// A file's place is a path inside the job's directory.
///
/// # Errors
/// Describes why the path could lead outside, or is not a name.
pub fn check_relative_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() || path.len() > 255 {
        return Err("a file's path has 1 to 255 bytes");
    }
    if path.contains(['\0', '\\']) {
        return Err("a file's path has no zero bytes and no backslashes");
    }
    if check_line(path).is_err() {
        return Err("a file's path has no control characters, and none that cannot be seen");
    }
    if path.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err("a file's path is relative and has no empty, `.` or `..` parts");
    }
    if path.split('/').next().is_some_and(|part| part.starts_with(".mycora")) {
        return Err("paths that begin with .mycora are Mycora's own");
    }
    Ok(())
}

/// A job record, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// Number of the job within its caller.
    pub id: JobId,
    /// Actor that owns the job.
    pub caller_id: ActorId,
    /// Where it runs.
    pub context_id: ContextId,
    /// The flow it belongs to.
    pub flow_id: Option<FlowId>,
    /// Script to execute.
    pub spec: JobSpec,
    /// Run time limit, 0 for none.
    pub timeout_secs: u32,
    /// How often it may be tried again.
    pub retries: u32,
    /// Conditions outside the flow.
    pub prerequisites: Vec<String>,
    /// Jobs that come before it.
    pub depends: Vec<JobId>,
    /// When it was made.
    pub created_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for good in ["a", "a/b.txt", "..a", "a..b/c"] {
            assert_eq!(check_relative_path(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/a",
            "a/",
            "../a",
            "a/../b",
            "./a",
            "a//b",
            "a\0",
            "a\\b",
            ".mycora/x",
            "a\u{1b}[2J",
            "a\nb",
            "a\u{202e}b",
        ] {
            assert!(check_relative_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_output_is_one_file() {
        for (name, violation) in [
            (
                "*.csv",
                "`*.csv` is a pattern, and each output is one file: name its files, or let the script pack them \
                       (`tar cf outputs.tar *.csv`) and name `outputs.tar`",
            ),
            ("part-?.csv", "is a pattern"),
            ("out/", "(`tar cf out.tar out/`) and name `out.tar`"),
            ("/", "is relative"),
        ] {
            let mut violations = Violations::new();
            check_outputs(&[name.to_owned()], "job", &mut violations);
            let described: Vec<_> = violations.as_slice().iter().map(|v| v.description.as_str()).collect();
            assert!(matches!(described[..], [one] if one.contains(violation)), "{name}: {described:?}");
        }
        let mut violations = Violations::new();
        check_outputs(&["a[1].csv".to_owned(), "{a}".to_owned()], "job", &mut violations);
        assert!(violations.is_empty(), "{violations:?}");
    }

    #[test]
    fn every_violation_is_listed() {
        let spec = JobSpec {
            script_type: ScriptType::Shell,
            script: ScriptSource::Inline(String::new()),
            env_vars: [("MYCORA_X".to_owned(), "1".to_owned()), ("1a".to_owned(), String::new())].into(),
            files: [("../x".to_owned(), BlobRef { sha256: BlobHash::of(b""), size: 17 * 1024 * 1024 })]
                .into(),
            outputs: vec!["o".into(), "o".into()],
            signature: Some("x".repeat(limits::SIGNATURE_BYTES_MAX + 1)),
        };
        let mut violations = Violations::new();
        spec.check("nodes[0].job", &mut violations);
        let fields: Vec<_> = violations.as_slice().iter().map(|v| v.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "nodes[0].job.script",
                "nodes[0].job.env_vars[1a]",
                "nodes[0].job.env_vars[MYCORA_X]",
                "nodes[0].job.files[../x]",
                "nodes[0].job.files[../x]",
                "nodes[0].job.outputs[1]",
                "nodes[0].job.signature",
            ]
        );
    }
}
