//! Blobs and contexts.

use proto::v1;
use proto::v1::context_service_server::ContextService;
use proto::v1::job_service_server::JobService;
use tonic::{Request, Response, Status, Streaming};

use super::{Answers, Scripted};

/// The uid of context 1.
pub(crate) const CONTEXT_UID: &str = "0123456789abcdef0123456789abcdef";

#[tonic::async_trait]
impl JobService for Scripted {
    async fn create_job(
        &self,
        _: Request<v1::CreateJobRequest>,
    ) -> Result<Response<v1::CreateJobResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }

    async fn get_job(
        &self,
        _: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }

    async fn list_jobs(
        &self,
        _: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }

    async fn delete_job(
        &self,
        _: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }

    async fn put_blob(
        &self,
        request: Request<Streaming<v1::PutBlobRequest>>,
    ) -> Result<Response<v1::PutBlobResponse>, Status> {
        let mut pieces = request.into_inner();
        let mut bytes = Vec::new();
        let mut sha256 = String::new();
        while let Some(piece) = pieces.message().await? {
            bytes.extend(&piece.data);
            sha256.push_str(&piece.sha256);
        }
        let size = bytes.len() as u64;
        self.note(|asked| asked.uploaded.push(bytes));
        Ok(Response::new(v1::PutBlobResponse { blob: Some(v1::BlobRef { sha256, size }) }))
    }

    type GetBlobStream = Answers<v1::GetBlobResponse>;

    async fn get_blob(
        &self,
        _: Request<v1::GetBlobRequest>,
    ) -> Result<Response<Self::GetBlobStream>, Status> {
        Err(Status::not_found("there are no blobs here"))
    }
}

#[tonic::async_trait]
impl ContextService for Scripted {
    async fn update_context(
        &self,
        _: Request<v1::UpdateContextRequest>,
    ) -> Result<Response<v1::UpdateContextResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }

    async fn list_contexts(
        &self,
        _: Request<v1::ListContextsRequest>,
    ) -> Result<Response<v1::ListContextsResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }

    async fn list_audit_entries(
        &self,
        _: Request<v1::ListAuditEntriesRequest>,
    ) -> Result<Response<v1::ListAuditEntriesResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }

    async fn create_context(
        &self,
        _: Request<v1::CreateContextRequest>,
    ) -> Result<Response<v1::CreateContextResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }

    async fn get_context(
        &self,
        request: Request<v1::GetContextRequest>,
    ) -> Result<Response<v1::GetContextResponse>, Status> {
        match request.into_inner().id {
            id @ 1 => {
                let context = v1::Context { id, uid: CONTEXT_UID.to_owned(), ..Default::default() };
                Ok(Response::new(v1::GetContextResponse { context: Some(context) }))
            }
            id => Err(Status::not_found(format!("context {id} was not found"))),
        }
    }

    /// The first call breaks off, the second finds nothing any more.
    async fn delete_context(
        &self,
        request: Request<v1::DeleteContextRequest>,
    ) -> Result<Response<v1::DeleteContextResponse>, Status> {
        let id = request.into_inner().context_id;
        match (id, self.call(&format!("delete context {id}"))) {
            (3, 1) => {
                let reason = rpc::Reason::PeerUnavailable;
                Err(rpc::Error::unavailable(reason, "runner 1 of context 3 does not answer").into())
            }
            _ => Err(Status::not_found(format!("context {id} was not found"))),
        }
    }
}
