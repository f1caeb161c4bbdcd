//! Blobs and contexts.

use proto::v1;
use proto::v1::context_service_server::ContextService;
use proto::v1::job_service_server::JobService;
use tonic::{Request, Response, Status, Streaming};

use super::{Answers, ScriptedServices};

/// The uid of context 1.
pub(crate) const CONTEXT_UID: &str = "0123456789abcdef0123456789abcdef";

fn job(id: u32, spec: Option<v1::JobSpec>) -> v1::Job {
    let status = "created".to_owned();
    v1::Job { id, caller_id: 1, context_id: 1, spec, status, ..Default::default() }
}

/// The switches that are on.
fn switches(settings: v1::ContextSettings) -> String {
    let v1::ContextSettings { executors_may_submit, raw_publish, require_signed_messages, retention: _ } =
        settings;
    format!("submit={executors_may_submit} raw={raw_publish} signed={require_signed_messages}")
}

#[tonic::async_trait]
impl JobService for ScriptedServices {
    async fn create_job(
        &self,
        request: Request<v1::CreateJobRequest>,
    ) -> Result<Response<v1::CreateJobResponse>, Status> {
        let v1::CreateJobRequest { request_id: _, context_id, caller_id, spec } = request.into_inner();
        self.look_for_uploads()?;
        let named = spec.clone().unwrap_or_default();
        let (env, files, outputs) = (named.env_vars, named.files.into_keys(), named.outputs);
        let files: Vec<_> = files.collect();
        self.call(&format!("create job {context_id} {caller_id} {env:?} {files:?} {outputs:?}"));
        Ok(Response::new(v1::CreateJobResponse { job: Some(job(7, spec)) }))
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let v1::GetJobRequest { context_id: _, caller_id, job_id } = request.into_inner();
        match (caller_id, job_id) {
            (0 | 2, 7) => Ok(Response::new(v1::GetJobResponse { job: Some(job(7, None)) })),
            _ => Err(Status::not_found(format!("job {job_id} was not found"))),
        }
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let v1::ListJobsRequest { context_id, page_size, page_token: _, flow_id, caller_id } =
            request.into_inner();
        self.call(&format!("jobs {context_id} {page_size} {flow_id} {caller_id}"));
        Ok(Response::new(v1::ListJobsResponse { jobs: vec![job(7, None)], ..Default::default() }))
    }

    async fn delete_job(
        &self,
        request: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        let v1::DeleteJobRequest { request_id: _, context_id, caller_id, job_id } = request.into_inner();
        self.call(&format!("delete job {context_id} {caller_id} {job_id}"));
        Ok(Response::new(v1::DeleteJobResponse {}))
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
        self.note(|recorded| recorded.uploaded.push(bytes));
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
impl ContextService for ScriptedServices {
    async fn create_context(
        &self,
        request: Request<v1::CreateContextRequest>,
    ) -> Result<Response<v1::CreateContextResponse>, Status> {
        let v1::CreateContextRequest { request_id: _, id, admins, readers, executors, settings } =
            request.into_inner();
        let settings = settings.map(switches).unwrap_or_default();
        self.call(&format!("create context {id} {admins:?} {executors:?} {readers:?} {settings}"));
        let context = Some(v1::Context { id: 3, admins, readers, executors, ..Default::default() });
        Ok(Response::new(v1::CreateContextResponse { context }))
    }

    async fn list_contexts(
        &self,
        _: Request<v1::ListContextsRequest>,
    ) -> Result<Response<v1::ListContextsResponse>, Status> {
        let context = v1::Context { id: 1, admins: vec![1, 2], state: 1, ..Default::default() };
        Ok(Response::new(v1::ListContextsResponse { contexts: vec![context], ..Default::default() }))
    }

    async fn update_context(
        &self,
        request: Request<v1::UpdateContextRequest>,
    ) -> Result<Response<v1::UpdateContextResponse>, Status> {
        let v1::UpdateContextRequest {
            request_id: _,
            context_id,
            expected_revision,
            admins,
            readers,
            executors,
            settings,
        } = request.into_inner();
        let list = |list: Option<v1::ActorList>| list.map(|list| list.ids);
        self.call(&format!(
            "update context {context_id} {expected_revision} {:?} {:?} {:?} {}",
            list(admins),
            list(executors),
            list(readers),
            settings.map(switches).unwrap_or_default(),
        ));
        let context = Some(v1::Context { id: context_id, ..Default::default() });
        Ok(Response::new(v1::UpdateContextResponse { context }))
    }

    async fn list_audit_entries(
        &self,
        request: Request<v1::ListAuditEntriesRequest>,
    ) -> Result<Response<v1::ListAuditEntriesResponse>, Status> {
        let v1::ListAuditEntriesRequest {
            context_id,
            page_size,
            page_token: _,
            actor_id,
            action_prefix,
            since_time,
        } = request.into_inner();
        let since = since_time.map(|time| time.seconds).unwrap_or_default();
        self.call(&format!("audit {context_id} {page_size} {actor_id} {action_prefix} {since}"));
        let entry = v1::AuditEntry {
            identity: "actor/7".into(),
            action: "flow.create".into(),
            object: "flow 7".into(),
            ..Default::default()
        };
        let entries = vec![entry; page_size.min(2) as usize];
        Ok(Response::new(v1::ListAuditEntriesResponse { entries, next_page_token: "more".into() }))
    }

    async fn get_context(
        &self,
        request: Request<v1::GetContextRequest>,
    ) -> Result<Response<v1::GetContextResponse>, Status> {
        match request.into_inner().id {
            id @ 1 => {
                let settings = v1::ContextSettings { executors_may_submit: true, ..Default::default() };
                let context = v1::Context {
                    id,
                    uid: CONTEXT_UID.to_owned(),
                    admins: vec![1],
                    readers: vec![4, 5],
                    settings: Some(settings),
                    revision: 9,
                    ..Default::default()
                };
                Ok(Response::new(v1::GetContextResponse { context: Some(context) }))
            }
            id => Err(Status::not_found(format!("context {id} was not found"))),
        }
    }

    /// The first call breaks off, the second finds nothing any more.
    async fn get_context_usage(
        &self,
        request: Request<v1::GetContextUsageRequest>,
    ) -> Result<Response<v1::GetContextUsageResponse>, Status> {
        self.call(&format!("usage {}", request.into_inner().context_id));
        let entry = v1::ContextUsageEntry {
            kind: v1::ContextUsageKind::FlowsEnded.into(),
            count: 12,
            count_max: 100_000,
            bytes: 98_304,
            bytes_max: 1 << 30,
            is_estimated: false,
        };
        let retention = v1::ContextRetention { ended_flow_keep_secs: 2_592_000, ..Default::default() };
        Ok(Response::new(v1::GetContextUsageResponse {
            entries: vec![entry],
            bytes: 98_304,
            bytes_max: 1 << 30,
            retention: Some(retention),
        }))
    }

    async fn delete_context(
        &self,
        request: Request<v1::DeleteContextRequest>,
    ) -> Result<Response<v1::DeleteContextResponse>, Status> {
        let id = request.into_inner().context_id;
        match (id, self.call(&format!("delete context {id}"))) {
            (3, 1) => {
                let reason = rpc::RpcReason::PeerUnavailable;
                Err(rpc::Error::unavailable(reason, "runner 1 of context 3 does not answer").into())
            }
            _ => Err(Status::not_found(format!("context {id} was not found"))),
        }
    }
}
