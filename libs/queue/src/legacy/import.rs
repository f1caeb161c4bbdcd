//! Jobs that only old dispatchers know, taken in and run by our instances.

use std::collections::BTreeMap;

use keys::supervisor as k;
use keys::{LegacyJob, LegacyQueue, WorkQueue};
use kv::{Pipeline, Result, ScriptCall, Value};
use model::id::Uid;
use model::limits::{
    ENV_BYTES_MAX, ENV_ENTRIES_MAX, SCRIPT_BYTES_MAX, TIMEOUT_SECS_DEFAULT, TIMEOUT_SECS_MAX,
};
use model::{
    ActorId, Attempt, ContextUid, Execution, FlowUid, Grants, JobId, JobKey, Name, ScriptSource, ScriptType,
};

use crate::job::fields;
use crate::legacy::end::any_text;
use crate::script::{IMPORT, LOOK_AT_OLD, REFUSE_OLD};
use crate::supervisor::SupervisorQueues;

/// How many are taken in with one script: each brings its script along.
const BATCH: usize = 50;
/// The flow that such a job belongs to, by name.
const FLOW_NAME: &str = "legacy";

/// Runs the jobs of an old queue in a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PopBinding {
    /// Queue that legacy dispatchers push to.
    pub queue: LegacyQueue,
    /// Script type of the jobs; a job of another type is refused.
    pub script_type: ScriptType,
    /// Context that the jobs run in.
    pub context: ContextUid,
}

/// Numbers of jobs that were imported or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobImportCounts {
    /// Jobs that wait for an instance now.
    pub taken: u64,
    /// Jobs that cannot be run; their dispatchers got the reason.
    pub refused: u64,
}

/// Where a job that only others know stands, and as what it would run.
pub(crate) struct JobImportEntry {
    /// The list that it is taken out of.
    pub(crate) list: String,
    /// Raw entry of that list, whatever its content.
    pub(crate) entry: Vec<u8>,
    /// The list that it was pushed to, and what it was there.
    pub(crate) pushed: (String, String),
    /// Legacy job that the pushed entry names, if it names one.
    pub(crate) job: Option<LegacyJob>,
    /// Script type that the job must have.
    pub(crate) script_type: ScriptType,
    /// Context that the job would run in.
    pub(crate) context: ContextUid,
    /// Where it would wait, if nothing is demanded.
    pub(crate) queue: WorkQueue,
}

/// Candidate for import, found at the head of a legacy queue.
pub(crate) struct JobImportCandidate {
    at: JobImportEntry,
    /// Attempt to run with its grants, or the reason why it cannot run.
    pub(crate) work: std::result::Result<(Execution, Grants), String>,
}

impl SupervisorQueues {
    /// Imports the jobs that wait in a legacy queue, as long as fewer than `waiting_max` jobs wait for the instances of
    /// the type. `grant` says what each is given, or why it may not run. How each ends is written where a legacy
    /// worker would write it, and reported nowhere else.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn import(
        &self,
        from: &PopBinding,
        grant: impl Fn(&Execution) -> std::result::Result<Grants, String>,
        waiting_max: usize,
    ) -> Result<JobImportCounts> {
        let mut imported = JobImportCounts::default();
        loop {
            let look = LOOK_AT_OLD.call(&[from.queue.to_string()]).named(kv::named![
                count: BATCH,
                script_bytes_max: SCRIPT_BYTES_MAX,
                variables_bytes_max: ENV_BYTES_MAX,
            ]);
            let found = self.db().call(look).await?.array()?;
            let found = found
                .into_iter()
                .map(|value| JobImportCandidate::from_value(from, value, &grant))
                .collect::<Result<Vec<_>>>()?;
            let mut pipeline = Pipeline::new();
            let (fits, wrong): (Vec<_>, Vec<_>) = found.iter().partition(|found| found.work.is_ok());
            for found in &wrong {
                let entry = &found.at.pushed.1;
                tracing::warn!(queue = %from.queue, %entry, why = found.why(), "a job of an old dispatcher is refused");
                pipeline.call(found.refuse_call(found.why()));
            }
            for found in &fits {
                if let Some(call) = found.import_call(waiting_max)? {
                    pipeline.call(call);
                }
            }
            let mut answers = self.db().pipeline(&pipeline).await?.into_iter();
            for answer in answers.by_ref().take(wrong.len()) {
                imported.refused += answer?.uint()?;
            }
            let mut full = false;
            for answer in answers {
                match answer?.text()?.as_str() {
                    "taken" => imported.taken += 1,
                    "full" => full = true,
                    _ => {}
                }
            }
            if full || found.len() < BATCH {
                return Ok(imported);
            }
        }
    }
}

impl JobImportCandidate {
    pub(crate) fn from_value(
        from: &PopBinding,
        value: Value,
        grant: impl Fn(&Execution) -> std::result::Result<Grants, String>,
    ) -> Result<Self> {
        let at = |entry: Vec<u8>| {
            let shown = String::from_utf8_lossy(&entry).into_owned();
            JobImportEntry {
                list: from.queue.to_string(),
                job: LegacyJob::parse(&from.queue, &shown),
                pushed: (from.queue.to_string(), shown),
                entry,
                script_type: from.script_type,
                context: from.context,
                queue: WorkQueue::shared(from.script_type),
            }
        };
        Self::read(value, at, grant)
    }

    /// Reads what stands in a list, and decides whether it is run.
    pub(crate) fn read(
        value: Value,
        at: impl FnOnce(Vec<u8>) -> JobImportEntry,
        grant: impl Fn(&Execution) -> std::result::Result<Grants, String>,
    ) -> Result<Self> {
        let [entry, what, script_type, timeout, caller, hash, script, env_vars] = value.tuple()?;
        let at = at(entry.bytes()?);
        let (script_type, timeout) = (any_text(script_type)?, any_text(timeout)?);
        let read = || {
            match what.text().as_deref() {
                Ok("job") if at.job.is_some() => {}
                Ok("large") => return Err("its script or its variables are too long".to_owned()),
                _ => return Err("the job has no record".to_owned()),
            }
            // Who pushes into the queue of a type need not say it.
            if !script_type.is_empty() && script_type.parse() != Ok(at.script_type) {
                return Err(format!("its type is `{script_type}`, and this queue is for {}", at.script_type));
            }
            let timeout_secs = match timeout.as_str() {
                "" => TIMEOUT_SECS_DEFAULT,
                secs => secs
                    .parse()
                    .ok()
                    .filter(|secs| *secs <= TIMEOUT_SECS_MAX)
                    .ok_or("its timeout is no number of seconds")?,
            };
            let script = script.text().map_err(|_| "its script is no text")?;
            let env_vars = variables(&env_vars.text().map_err(|_| "its variables are no text")?)?;
            let caller_id =
                ActorId(caller.text().ok().and_then(|text| text.parse().ok()).unwrap_or_default());
            let job = JobImportSpec { timeout_secs, script, env_vars, caller_id }.into_execution(&at);
            let grants = grant(&job)?;
            Ok((job, grants))
        };
        let work =
            if any_text(hash)?.is_empty() { read() } else { Err("it is no job of an old dispatcher".into()) };
        Ok(Self { at, work })
    }

    /// Where it stands.
    pub(crate) const fn at(&self) -> &JobImportEntry {
        &self.at
    }

    /// Why it is not run; empty for one that is.
    pub(crate) fn why(&self) -> &str {
        self.work.as_ref().err().map_or("", String::as_str)
    }

    /// Ends the job, and writes the reason for its dispatcher.
    pub(crate) fn refuse_call(&self, why: &str) -> ScriptCall {
        // An unknown job has no record to write to.
        let known = self.at.job.as_ref();
        let old_hash = known.map(LegacyJob::hash).unwrap_or_default();
        let old_id = known.map(LegacyJob::id).unwrap_or_default();
        REFUSE_OLD.call(&[&self.at.list]).named(kv::named![
            entry: &self.at.entry,
            old_hash: &old_hash,
            old_id: &old_id,
            why: why,
        ])
    }

    /// Takes it in; nothing for one that is not run.
    pub(crate) fn import_call(&self, waiting_max: usize) -> Result<Option<ScriptCall>> {
        let (Some(job), Ok((execution, grants))) = (&self.at.job, &self.work) else { return Ok(None) };
        let key = execution.job_key;
        let queue = self.at.queue.clone().with_isolation(execution.isolation.max(grants.isolation));
        let (queue, jobs) = (queue.to_string(), k::context_jobs(self.at.context));
        let keys = IMPORT.keys([("list", &self.at.list), ("queue", &queue), ("jobs", &jobs)]);
        let (hash, fields) = fields(execution.clone(), grants)?;
        let mut call = IMPORT.call(&keys).named(kv::named![
            entry: &self.at.entry,
            old_hash: &job.hash(),
            old_id: &job.id(),
            key: &key.to_string(),
            hash: &hash.to_string(),
            queue_max: waiting_max,
            old_queue: &self.at.pushed.0,
            old_entry: &self.at.pushed.1,
        ]);
        for (name, value) in fields {
            call = call.arg(name).arg(&value);
        }
        Ok(Some(call))
    }
}

/// Content of a legacy job.
struct JobImportSpec {
    timeout_secs: u32,
    script: String,
    env_vars: BTreeMap<String, String>,
    caller_id: ActorId,
}

impl JobImportSpec {
    fn into_execution(self, at: &JobImportEntry) -> Execution {
        Execution {
            caller_id: self.caller_id,
            env_vars: self.env_vars,
            timeout_secs: self.timeout_secs,
            priority: at.queue.priority(),
            group: at.queue.for_group().cloned(),
            instance: at.queue.for_instance(),
            isolation: at.queue.isolation(),
            ..Execution::of_script(
                JobKey {
                    context: at.context,
                    flow: FlowUid(Uid::random()),
                    job: JobId(1),
                    attempt: Attempt(1),
                },
                name_of(FLOW_NAME),
                name_of(&at.pushed.1),
                at.script_type,
                ScriptSource::Inline(self.script),
            )
        }
    }
}

/// The nearest name to an old one.
fn name_of(text: &str) -> Name {
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).take(128).collect();
    name.parse().unwrap_or_else(|_| FLOW_NAME.parse().expect("a constant that is a name"))
}

/// Variables as an old dispatcher writes them: nothing, or a JSON object.
fn variables(text: &str) -> std::result::Result<BTreeMap<String, String>, String> {
    if text.trim().is_empty() {
        return Ok(BTreeMap::new());
    }
    let values: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|_| "its variables are no JSON object")?;
    if values.len() > ENV_ENTRIES_MAX {
        return Err(format!("it has more than {ENV_ENTRIES_MAX} variables"));
    }
    let text = |value| match value {
        serde_json::Value::String(text) => text,
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    };
    Ok(values.into_iter().map(|(name, value)| (name, text(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_each_form() {
        assert_eq!(variables(" ").map(|all| all.len()), Ok(0));
        let all = variables(r#"{"A":"x","B":1,"C":null,"D":true}"#).expect("variables");
        let shown: Vec<_> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(shown, ["A=x", "B=1", "C=", "D=true"]);
        assert!(variables("[]").is_err());
    }

    #[test]
    fn names_are_made_of_anything() {
        assert_eq!(name_of("job:1:2").as_str(), "job_1_2");
        assert_eq!(name_of("").as_str(), FLOW_NAME);
    }
}
