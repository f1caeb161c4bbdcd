//! JobService: jobs and blobs, for actors.

use ::rpc::{Caller, while_member};
use model::limits::{BLOB_CHUNK_BYTES, FILE_BYTES_MAX, SCRIPT_INLINE_BYTES_MAX};
use model::{ActorId, BlobHash, ContextId, FlowId, JobId, Role, ScriptSource, Timestamp};
use proto::convert;
use proto::convert::node::blob_to_wire;
use proto::v1::job_service_server::JobService;
use proto::{required, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::status::checked;
use super::{StorageResponseStream, StorageRpc, request_of, uploads};
use crate::error::Error;
use crate::flows::jobs::JobFilter;
use crate::pages::PageRequest;
use crate::record::job::StoredJob;
use crate::store::{RequestPrincipal, Store};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};

/// Pieces of a download that are read ahead.
const DOWNLOAD_AHEAD: usize = 2;

fn actor_of<T>(request: &Request<T>) -> Result<ActorId, Status> {
    let actor = Caller::of(request)?.actor();
    actor.ok_or_else(|| Error::NotAllowed("only actors have jobs and blobs".to_owned()).into())
}

/// Returns the named owner, or the calling actor if none is named.
fn owner(caller_id: u32, actor: ActorId) -> ActorId {
    if caller_id == 0 { actor } else { ActorId(caller_id) }
}

fn job_to_wire(kept: &StoredJob, spec: v1::JobSpec) -> v1::Job {
    let StoredJob { id, place, spec: _, status, result, created_at, updated_at } = kept;
    v1::Job {
        id: id.0,
        caller_id: place.caller.0,
        context_id: place.context.0,
        flow_id: place.flow.map_or(0, |flow| flow.0),
        spec: Some(spec),
        status: status.clone(),
        result_json: result.clone(),
        create_time: Some(convert::time::to_wire(*created_at)),
        update_time: Some(convert::time::to_wire(*updated_at)),
    }
}

fn whole(kept: &StoredJob) -> v1::Job {
    job_to_wire(kept, convert::job::spec_to_wire(&kept.spec))
}

#[tonic::async_trait]
impl JobService for StorageRpc {
    async fn create_job(
        &self,
        request: Request<v1::CreateJobRequest>,
    ) -> Result<Response<v1::CreateJobResponse>, Status> {
        let actor = actor_of(&request)?;
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = required::missing(&body);
        let repeatable = request_of(&request_id, &body, &mut violations);
        let v1::CreateJobRequest { request_id: _, context_id, caller_id, spec } = body;
        let spec = spec.unwrap_or_default();
        let spec = convert::flow_spec::job_from_wire(spec, "spec", &mut violations);
        let mut spec = violations.into_result(spec).map_err(Error::from)?;
        let (context, who) = (ContextId(context_id), (actor, owner(caller_id, actor)));
        let store = self.hub.store();
        if let ScriptSource::Inline(text) = &spec.script
            && text.len() > SCRIPT_INLINE_BYTES_MAX
        {
            let blob =
                store.keep_script(context, RequestPrincipal::Actor(actor), text, Timestamp::now()).await?;
            spec.script = ScriptSource::Blob(blob);
        }
        let kept = store.create_job(context, who, &spec, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(v1::CreateJobResponse { job: Some(whole(&kept)) }))
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let actor = actor_of(&request)?;
        let body = request.into_inner();
        required::check(&body).map_err(Error::from)?;
        let v1::GetJobRequest { context_id, caller_id, job_id } = body;
        let (context, caller) = (ContextId(context_id), owner(caller_id, actor));
        let store = self.hub.store();
        let kept = store.read_job(context, RequestPrincipal::Actor(actor), caller, JobId(job_id)).await?;
        Ok(Response::new(v1::GetJobResponse { job: Some(whole(&kept)) }))
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let actor = actor_of(&request)?;
        let body = request.into_inner();
        let mut violations = required::missing(&body);
        let v1::ListJobsRequest { context_id, page_size, page_token, flow_id, caller_id } = body;
        let page = PageRequest::parse(page_size, &page_token, &mut violations);
        let page = checked(violations, page)?;
        let filter = JobFilter {
            flow: (flow_id != 0).then_some(FlowId(flow_id)),
            caller: (caller_id != 0).then_some(ActorId(caller_id)),
        };
        let listed =
            self.hub.store().list_jobs(ContextId(context_id), RequestPrincipal::Actor(actor), filter, &page);
        let (jobs, next_page_token) = listed.await?;
        let jobs = jobs.iter().map(|kept| job_to_wire(kept, convert::job::listed_spec_to_wire(&kept.spec)));
        Ok(Response::new(v1::ListJobsResponse { jobs: jobs.collect(), next_page_token }))
    }

    async fn delete_job(
        &self,
        request: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        let actor = actor_of(&request)?;
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = required::missing(&body);
        let repeatable = request_of(&request_id, &body, &mut violations);
        violations.into_result(Some(())).map_err(Error::from)?;
        let v1::DeleteJobRequest { request_id: _, context_id, caller_id, job_id } = body;
        let (context, who) = (ContextId(context_id), (actor, owner(caller_id, actor)));
        let store = self.hub.store();
        store.delete_job(context, who, JobId(job_id), repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(v1::DeleteJobResponse {}))
    }

    async fn put_blob(
        &self,
        request: Request<Streaming<v1::PutBlobRequest>>,
    ) -> Result<Response<v1::PutBlobResponse>, Status> {
        let actor = actor_of(&request)?;
        let mut pieces = request.into_inner();
        let first = uploads::first(&mut pieces).await?;
        let first = first.ok_or_else(|| Error::field("context_id", "the first piece names the context"))?;
        let mut violations = required::missing(&first);
        let expected = match first.sha256.as_str() {
            "" => None,
            text => violations.take("sha256", text.parse::<BlobHash>()),
        };
        let (context, expected) = checked(violations, (ContextId(first.context_id), expected))?;
        let store = self.hub.store();
        permission::allow(&store.context(context).await?.1, actor, ContextAction::PutBlob)?;
        let upload = self.uploads.acquire(context, actor)?;
        // Only later pieces are cut off: the permission was checked with the first piece.
        let directory = self.identities.directory();
        let mut pieces = while_member(pieces, directory, context, actor, Role::Executor);
        let mut bytes = Vec::new();
        let mut next = Some(first);
        while let Some(piece) = next {
            let size = bytes.len() + piece.data.len();
            if piece.data.len() > BLOB_CHUNK_BYTES {
                let requested = piece.data.len() as u64;
                let max = BLOB_CHUNK_BYTES as u64;
                return Err(Error::Limit { limit: "bytes of a piece", max, requested }.into());
            }
            if size > FILE_BYTES_MAX {
                let max = FILE_BYTES_MAX as u64;
                return Err(Error::Limit { limit: "bytes of a blob", max, requested: size as u64 }.into());
            }
            bytes.extend_from_slice(&piece.data);
            next = upload.next(&mut pieces).await?;
        }
        if expected.is_some_and(|expected| expected != BlobHash::of(&bytes)) {
            return Err(Error::field("sha256", "the bytes have another hash").into());
        }
        let object = format!("blob {}", BlobHash::of(&bytes));
        let audit_record = AuditRecord::of(Some(actor), ContextAction::PutBlob, object);
        let blob = store.put_blob(context, &bytes, &audit_record, Timestamp::now()).await?;
        Ok(Response::new(v1::PutBlobResponse { blob: Some(blob_to_wire(&blob)) }))
    }

    type GetBlobStream = StorageResponseStream<v1::GetBlobResponse>;

    async fn get_blob(
        &self,
        request: Request<v1::GetBlobRequest>,
    ) -> Result<Response<Self::GetBlobStream>, Status> {
        let actor = actor_of(&request)?;
        let body = request.into_inner();
        let mut violations = required::missing(&body);
        let hash = violations.take("sha256", body.sha256.parse::<BlobHash>());
        let hash = violations.into_result(hash).map_err(Error::from)?;
        let context = ContextId(body.context_id);
        let store = self.hub.store().clone();
        let (size, uid) = store.blob_size(context, RequestPrincipal::Actor(actor), hash).await?;
        let (sender, pieces) = mpsc::channel(DOWNLOAD_AHEAD);
        tokio::spawn(async move {
            let read =
                |store: Store, offset| async move { store.read_piece(context, uid, hash, offset).await };
            for offset in (0..size.max(1)).step_by(BLOB_CHUNK_BYTES) {
                let piece = read(store.clone(), offset).await.map_err(Status::from);
                let failed = piece.is_err();
                let answer = piece.map(|(data, _)| v1::GetBlobResponse { data: data.into() });
                if sender.send(answer).await.is_err() || failed {
                    return;
                }
            }
        });
        let pieces = ReceiverStream::new(pieces);
        let directory = self.identities.directory();
        Ok(Response::new(self.until_stop(while_member(pieces, directory, context, actor, Role::Reader))))
    }
}
