//! An actor's signature over a job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use identity::{SigningKey, VerifyingKey};
use model::flow::EnvVars;
use model::id::Uid;
use model::{
    ActorId, BlobHash, ContextUid, Execution, Isolation, JobSpec, NodePolicy, ScriptSource, ScriptType,
    Timestamp, limits,
};
use serde::{Deserialize, Serialize};

use super::{check_expiry, open, same, sign};
use crate::{Refusal, cut};

/// Payload type of an envelope with a job's terms.
pub const JOB_TYPE: &str = "application/vnd.mycora.job+json";

/// Terms of a job, as its actor states them: all that decides what runs. Data that is filled in later (results, times, where it
/// runs) is not part of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTerms {
    /// The context that it runs in.
    pub context_uid: ContextUid,
    /// Actor whose flow it is, by the actor's number at its coordinator.
    pub caller_id: ActorId,
    /// Type of the script, which decides what executes it.
    pub script_type: ScriptType,
    /// The script.
    pub script_sha256: BlobHash,
    /// The job's own files, by path.
    pub files: BTreeMap<String, BlobHash>,
    /// Paths of the files that its dependencies make. Nothing else may lie in its directory: a script runs what it finds
    /// there.
    pub received: BTreeSet<String>,
    /// The flow's and the job's variables, before rendering.
    pub env_vars: EnvVars,
    /// Files it makes that are kept.
    pub outputs: Vec<String>,
    /// Run time in seconds, 0 for no limit.
    pub timeout: u32,
    /// True when the job may use the network.
    pub network: bool,
    /// The isolation that it needs at least.
    pub isolation: Isolation,
}

impl JobTerms {
    /// Those of a job as it is submitted, in a flow with these variables. `received` are the outputs of the jobs that it
    /// depends on.
    #[must_use]
    pub fn of_job(
        job: &JobSpec,
        policy: &NodePolicy,
        flow_env_vars: &EnvVars,
        received: BTreeSet<String>,
        (context_uid, caller_id): (ContextUid, ActorId),
    ) -> Self {
        let mut env_vars = flow_env_vars.clone();
        env_vars.extend(job.env_vars.iter().map(|(name, value)| (name.clone(), value.clone())));
        Self {
            context_uid,
            caller_id,
            script_type: job.script_type,
            script_sha256: hash(&job.script),
            files: job.files.iter().map(|(path, blob)| (path.clone(), blob.sha256)).collect(),
            received,
            env_vars,
            outputs: job.outputs.clone(),
            timeout: policy.timeout,
            network: policy.network,
            isolation: policy.isolation,
        }
    }

    /// Those of an attempt, in whose directory the files of the job and those that it received look alike.
    fn of_execution(job: &Execution) -> Self {
        Self {
            context_uid: job.job_key.context,
            caller_id: job.caller_id,
            script_type: job.script_type,
            script_sha256: hash(&job.script),
            files: job.files.iter().map(|(path, file)| (path.clone(), file.blob.sha256)).collect(),
            received: BTreeSet::new(),
            env_vars: job.env_vars.clone(),
            outputs: job.outputs.clone(),
            timeout: job.timeout_secs,
            network: job.network,
            isolation: job.isolation,
        }
    }

    /// Refuses terms that differ from the signed ones.
    fn cover(&self, here: &Self) -> Result<(), Refusal> {
        let Self {
            context_uid,
            caller_id,
            script_type,
            script_sha256,
            files,
            received,
            env_vars,
            outputs,
            timeout,
            network,
            isolation,
        } = self;
        same("context_uid", context_uid, &here.context_uid)?;
        same("caller_id", caller_id, &here.caller_id)?;
        same("script_type", script_type, &here.script_type)?;
        same("script", script_sha256, &here.script_sha256)?;
        same("env_vars", env_vars, &here.env_vars)?;
        same("outputs", outputs, &here.outputs)?;
        same("timeout", timeout, &here.timeout)?;
        same("network", network, &here.network)?;
        same("isolation", isolation, &here.isolation)?;
        for (path, hash) in files {
            same(&format!("files[{path}]"), &Some(hash), &here.files.get(path))?;
        }
        let unknown = |path: &&String| !files.contains_key(*path) && !received.contains(*path);
        match here.files.keys().chain(&here.received).find(unknown) {
            Some(path) => Err(Refusal::OtherContent(cut(&format!("files[{path}]")))),
            None => Ok(()),
        }
    }
}

fn hash(script: &ScriptSource) -> BlobHash {
    match script {
        ScriptSource::Inline(text) => BlobHash::of(text.as_bytes()),
        ScriptSource::Blob(blob) => blob.sha256,
    }
}

/// Statement that is signed: the terms, and which signature it is.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobStatement {
    job: JobTerms,
    /// 32 hex digits: belongs to the first job that uses it.
    nonce: String,
    /// Until when attempts may be accepted, in milliseconds since 1970.
    expires: u64,
}

/// Signer of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedJob {
    /// The key. Whose it is, and whether it may have anything run, is for the caller to find out.
    pub signer: VerifyingKey,
    /// Belongs to the first job that uses it: with another one it is a repetition.
    pub nonce: Uid,
    /// No attempt is accepted from this moment on.
    pub expires: Timestamp,
}

/// Signs a job, of which attempts may be accepted until `expires`: at most [`limits::JOB_SIGNATURE_SECS_MAX`] from now.
#[must_use]
pub fn sign_job(job: &JobTerms, key: &SigningKey, expires: Timestamp) -> String {
    let statement =
        JobStatement { job: job.clone(), nonce: Uid::random().to_string(), expires: expires.as_millis() };
    sign(JOB_TYPE, &statement, key)
}

/// Checks the signature over what an attempt is to run and returns its signer; none, when there is no signature.
///
/// # Errors
/// [`Refusal::Malformed`], [`Refusal::OtherType`], [`Refusal::BadSignature`], [`Refusal::OtherContent`],
/// [`Refusal::Expired`], [`Refusal::BadTimes`].
pub fn check_job(job: &Execution, now: Timestamp) -> Result<Option<SignedJob>, Refusal> {
    let Some(signature) = &job.signature else { return Ok(None) };
    check_terms(signature, &JobTerms::of_execution(job), now).map(Some)
}

/// Checks the signature over these terms and returns its signer.
///
/// # Errors
/// As [`check_job`].
pub fn check_terms(signature: &str, job: &JobTerms, now: Timestamp) -> Result<SignedJob, Refusal> {
    let (signer, JobStatement { job: signed, nonce, expires }) = open(JOB_TYPE, signature)?;
    signed.cover(job)?;
    let expires = Timestamp::from_millis(expires);
    check_expiry(expires, Duration::from_secs(limits::JOB_SIGNATURE_SECS_MAX.into()), now)?;
    let nonce = nonce.parse().map_err(|_| Refusal::Malformed("`nonce` is not 32 hex digits".to_owned()))?;
    Ok(SignedJob { signer, nonce, expires })
}
