//! Stored jobs: those that belong to no flow yet, and those that are nodes of a flow.

use std::collections::BTreeSet;

use kv::{Cmd, Pipeline, Value};
use model::{ActorId, BlobHash, ContextId, FlowId, JobId, JobSpec, Timestamp, limits};

use crate::error::{Error, Result};
use crate::idempotency::{IdempotencyKey, hash_of, was_carried_out};
use crate::mail::message_lists::scored_texts;
use crate::pages::{PageRequest, PagedCollection};
use crate::record::job::{JobScope, StoredJob};
use crate::record::{self, RecordFields};
use crate::scripts;
use crate::store::{PERMISSION_TRIES, RequestPrincipal, Store, TenantStore};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};
use crate::tenants::quotas::Quota;

/// Jobs that are scanned for one page, when most of them belong to other callers.
const JOBS_SCANNED_MAX: usize = 10_000;
/// Jobs that are read in one round trip.
const JOBS_READ: usize = 200;

/// Which jobs are listed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobFilter {
    /// Those of this flow; nothing: those that belong to none.
    pub(crate) flow: Option<FlowId>,
    /// Only of this caller.
    pub(crate) caller: Option<ActorId>,
}

impl Store {
    /// Stores a job that belongs to no flow, or returns the one that the same request created before.
    pub(crate) async fn create_job(
        &self,
        context: ContextId,
        (actor, caller): (ActorId, ActorId),
        spec: &JobSpec,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<StoredJob> {
        self.reserve_memory(0)?;
        let blobs: BTreeSet<BlobHash> = spec.blobs().map(|blob| blob.sha256).collect();
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context) = self.context(context).await?;
            permission::allow_for(&context, actor, ContextAction::CreateJob, caller)?;
            let mut touched = vec![tenant.keys.jobs(), tenant.blob_idle.clone()];
            touched.extend(
                blobs.iter().flat_map(|hash| [tenant.keys.blob(*hash), tenant.keys.blob_refs(*hash)]),
            );
            touched.extend(request.map(|request| tenant.keys.request(actor, &request.id)));
            let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
            let audit_record =
                AuditRecord::of(Some(actor), ContextAction::CreateJob, format_args!("job of actor {caller}"))
                    .with_request_id(request);
            let place = JobScope { caller, context: context.id, flow: None };
            let change = tenant
                .begin_by(Some(&audit_record), &scripts::CREATE_JOB, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: context.revision.0,
                    caller: caller.0,
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    blobs: blobs.len(),
                    jobs_max: tenant.quotas.of(Quota::ContextJobsKept),
                ])
                .args(record::job::write_alone(place, spec, now).args());
            let read = |value: Value| {
                let [id, revision] = value.tuple()?;
                let (id, revision) = (id.uint()?, revision.uint()?);
                Ok(((revision > 0).then_some(revision), JobId(u32::try_from(id).unwrap_or_default())))
            };
            match tenant.apply(change, read).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(id) => return job_at(&tenant, caller, id).await,
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// Reads a job.
    pub(crate) async fn read_job(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        caller: ActorId,
        job: JobId,
    ) -> Result<StoredJob> {
        let (_, _, mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HGETALL").arg(&tenant.keys.job(caller, job)));
            })
            .await
            .map_err(|error| error.at_record(format_args!("job {caller}:{job}")))?;
        kept_job(caller, job, Ok(answers.pop().unwrap_or(Value::Nil)))?
            .ok_or_else(|| Error::not_found("job", format_args!("{caller}:{job}")))
    }

    /// Reads the first of these jobs, in their order, as many as fit into an answer, but at least one.
    pub(crate) async fn read_jobs(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        caller: ActorId,
        jobs: &[JobId],
    ) -> Result<Vec<StoredJob>> {
        let (tenant, ..) = self.read(context, asker, |_, _| {}).await?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        for part in jobs.chunks(JOBS_READ) {
            let keys: Vec<_> = part.iter().map(|job| (caller, *job)).collect();
            for ((_, job), kept) in keys.iter().zip(jobs_at(&tenant, &keys).await?) {
                let kept = kept?.ok_or_else(|| Error::not_found("job", format_args!("{caller}:{job}")))?;
                let size = kept.bytes();
                if !found.is_empty() && bytes + size > limits::PAGE_BYTES_MAX {
                    return Ok(found);
                }
                bytes += size;
                found.push(kept);
            }
        }
        Ok(found)
    }

    /// A page of jobs: those of a flow by their numbers, others the newest first.
    pub(crate) async fn list_jobs(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        filter: JobFilter,
        page: &PageRequest,
    ) -> Result<(Vec<StoredJob>, String)> {
        let bound_to = format!("{context} {asker:?} {filter:?}");
        let mut cursor = page.cursor(self.coordinator(), PagedCollection::Jobs, &bound_to)?;
        let (tenant, ..) = self.read(context, asker, |_, _| {}).await?;
        let token = |cursor| page.token(self.coordinator(), PagedCollection::Jobs, &bound_to, cursor);
        let (mut found, mut bytes, mut scanned) = (Vec::new(), 0, 0);
        loop {
            let places = self.job_places(&tenant, filter.flow, cursor).await?;
            let is_last = places.len() < JOBS_READ;
            scanned += places.len();
            let keys: Vec<_> = places.iter().map(|(key, _)| *key).collect();
            for ((_, place), kept) in places.iter().zip(jobs_at(&tenant, &keys).await?) {
                let kept = record::listed(kept)?;
                let kept = kept.filter(|kept| filter.caller.is_none_or(|caller| kept.place.caller == caller));
                let size = kept.as_ref().map_or(0, StoredJob::listed_bytes);
                if found.len() >= page.size || (!found.is_empty() && bytes + size > limits::PAGE_BYTES_MAX) {
                    return Ok((found, token(cursor)));
                }
                cursor = Some(*place);
                bytes += size;
                found.extend(kept);
            }
            if is_last {
                return Ok((found, String::new()));
            }
            if scanned >= JOBS_SCANNED_MAX {
                return Ok((found, token(cursor)));
            }
        }
    }

    /// The next jobs of a listing, each with its place in it.
    async fn job_places(
        &self,
        tenant: &TenantStore,
        flow: Option<FlowId>,
        after: Option<u64>,
    ) -> Result<Vec<((ActorId, JobId), u64)>> {
        if let Some(flow) = flow {
            let stored = self.stored_flow(tenant, flow).await?;
            let is_before = |job: &JobId| after.is_some_and(|after| u64::from(job.0) <= after);
            let jobs = stored.jobs().skip_while(is_before).take(JOBS_READ);
            return Ok(jobs.map(|job| ((stored.flow.caller_id, job), u64::from(job.0))).collect());
        }
        let newest = after.map_or_else(|| "+inf".to_owned(), |after| format!("({after}"));
        let query = Cmd::new("ZREVRANGEBYSCORE").arg(&tenant.keys.jobs()).arg(&newest).arg("-inf");
        let query = query.arg("WITHSCORES").arg("LIMIT").arg(0).arg(JOBS_READ);
        let mut places = Vec::new();
        for (member, score) in scored_texts(tenant.connection.cmd(query).await?)? {
            let bad = || kv::Error::Protocol(format!("`{member}` at {score} in `jobs`"));
            let (caller, id) = member.split_once(':').ok_or_else(bad)?;
            let (caller, id) = (caller.parse().map_err(|_| bad())?, id.parse().map_err(|_| bad())?);
            let score: f64 = score.parse().map_err(|_| bad())?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "revisions are exact in an f64"
            )]
            places.push(((caller, id), score as u64));
        }
        Ok(places)
    }

    /// Removes a job that belongs to no flow.
    pub(crate) async fn delete_job(
        &self,
        context: ContextId,
        (actor, caller): (ActorId, ActorId),
        job: JobId,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<()> {
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context) = self.context(context).await?;
            permission::allow_for(&context, actor, ContextAction::DeleteJob, caller)?;
            let key = request.map(|request| tenant.keys.request(actor, &request.id));
            let found = job_at(&tenant, caller, job).await;
            // Read after the job, since a removal records the request in the same change.
            if was_carried_out(&tenant.connection, key.as_deref(), request).await? {
                return Ok(());
            }
            let kept = found?;
            let blobs: BTreeSet<BlobHash> = kept.spec.blobs().map(|blob| blob.sha256).collect();
            let (record, jobs) = (tenant.keys.job(caller, job), tenant.keys.jobs());
            let refs: Vec<String> = blobs.iter().map(|hash| tenant.keys.blob_refs(*hash)).collect();
            let mut touched = scripts::DELETE_JOB
                .keys([("job", &record), ("jobs", &jobs), ("blob_idle", &tenant.blob_idle)])
                .to_vec();
            touched.extend(refs.iter().map(String::as_str));
            touched.extend(key.as_deref());
            let name = format!("{caller}:{job}");
            let audit_record =
                AuditRecord::of(Some(actor), ContextAction::DeleteJob, format_args!("job {name}"))
                    .with_request_id(request);
            let change = tenant
                .begin_by(Some(&audit_record), &scripts::DELETE_JOB, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: context.revision.0,
                    job: &name,
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    blobs: blobs.len(),
                ]);
            match tenant.apply_revision(change).await {
                Err(Error::ContextChanged(_)) => {}
                // Perhaps the same request has removed it meanwhile.
                Err(Error::NotFound(_)) if request.is_some() => {}
                result => return result.map(drop),
            }
        }
        Err(Error::ContextChanged(context))
    }
}

async fn job_at(tenant: &TenantStore, caller: ActorId, job: JobId) -> Result<StoredJob> {
    let value = tenant.connection.cmd(Cmd::new("HGETALL").arg(&tenant.keys.job(caller, job))).await;
    kept_job(caller, job, value)?.ok_or_else(|| Error::not_found("job", format_args!("{caller}:{job}")))
}

/// Reads jobs; nothing in place of each one that is gone.
async fn jobs_at(tenant: &TenantStore, keys: &[(ActorId, JobId)]) -> Result<Vec<Result<Option<StoredJob>>>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = Pipeline::new();
    for (caller, job) in keys {
        pipeline.cmd(Cmd::new("HGETALL").arg(&tenant.keys.job(*caller, *job)));
    }
    let answers = tenant.connection.pipeline(&pipeline).await?;
    Ok(keys.iter().zip(answers).map(|((caller, job), answer)| kept_job(*caller, *job, answer)).collect())
}

/// The job in the answer to `HGETALL`.
fn kept_job(caller: ActorId, job: JobId, answer: kv::Result<Value>) -> Result<Option<StoredJob>> {
    let what = format!("job {caller}:{job}");
    let answer = answer.map_err(|error| Error::of_record(error, &what))?;
    let fields = RecordFields::of_hash(what, answer)?;
    Ok(fields.map(record::job::read_stored).transpose()?)
}
