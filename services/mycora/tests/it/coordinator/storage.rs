//! Blobs and contexts.

use archive::{ArchiveFrame, ArchiveManifest, ArchivePlace, ArchiveRecord, ArchiveValue};
use model::{ContextId, Timestamp};
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

/// Frames of the export of context 3.
pub(crate) fn export_frames() -> Vec<Vec<u8>> {
    let record = |key: &str| ArchiveRecord {
        key: key.to_owned(),
        continued: false,
        expires_in_millis: None,
        value: ArchiveValue::Text(b"x".to_vec()),
    };
    let manifest = ArchiveManifest {
        coordinator: "0".repeat(32),
        context: ContextId(3),
        uid: CONTEXT_UID.parse().expect("a uid"),
        snapshot: "1".repeat(32),
        time: Timestamp::from_millis(1_700_000_000_000),
        revision: 9,
        without_secrets: false,
    };
    let records = |key, position: &str| ArchiveFrame::Records {
        records: vec![record(key)],
        position: position.to_owned(),
    };
    let all = [
        ArchiveFrame::Manifest(manifest),
        records("a", "behind a"),
        records("b", "behind b"),
        ArchiveFrame::End { frames: 3 },
    ];
    let (mut frames, mut place) = (Vec::new(), ArchivePlace::start());
    for frame in all {
        let (bytes, after) = archive::encode(place, frame).expect("a small frame");
        frames.push(bytes);
        place = after;
    }
    frames
}

/// The file of that export.
pub(crate) fn export_file() -> Vec<u8> {
    [archive::HEADER, &export_frames().concat()].concat()
}

fn away() -> Status {
    rpc::Error::unavailable(rpc::RpcReason::Draining, "storage is ending").into()
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

    type ExportContextStream = Answers<v1::ExportContextResponse>;

    /// The first call breaks off within the third frame, the second goes on behind the second.
    async fn export_context(
        &self,
        request: Request<v1::ExportContextRequest>,
    ) -> Result<Response<Self::ExportContextStream>, Status> {
        let v1::ExportContextRequest { context_id, without_secrets, resume } = request.into_inner();
        let resume = resume.unwrap_or_default();
        let told = format!("export {context_id} {without_secrets} {} `{}`", resume.frames, resume.position);
        let times = self.call(&told);
        let file = export_file();
        let [first, second, third, last] = &export_frames()[..] else { panic!("four frames") };
        let before_break = archive::HEADER.len() + first.len() + second.len();
        let answers: Vec<Result<Vec<u8>, Status>> = match (context_id, resume.frames) {
            (4, _) => vec![Ok(file[..before_break].to_vec())],
            (_, 0) if times == 1 => vec![Ok(file[..before_break + third.len() / 2].to_vec()), Err(away())],
            (_, 0) => vec![Ok(file)],
            _ => vec![Ok(third.clone()), Ok(last.clone())],
        };
        let answers = answers
            .into_iter()
            .map(|answer| answer.map(|data| v1::ExportContextResponse { data: data.into() }));
        Ok(Response::new(Box::pin(tokio_stream::iter(answers.collect::<Vec<_>>()))))
    }

    type ImportContextStream = Answers<v1::ImportContextResponse>;

    /// The first call breaks off behind the second frame, the second has the third one already.
    async fn import_context(
        &self,
        request: Request<Streaming<v1::ImportContextRequest>>,
    ) -> Result<Response<Self::ImportContextStream>, Status> {
        let mut pieces = request.into_inner();
        let first = pieces.message().await?.ok_or_else(|| Status::invalid_argument("nothing"))?;
        let v1::ImportStart { running, accepted_actors, abandon_context_id } =
            first.start.unwrap_or_default();
        let times = self.call(&format!("import {running} {accepted_actors:?} {abandon_context_id}"));
        let answer = |frames| v1::ImportContextResponse { frames, ..Default::default() };
        if abandon_context_id != 0 {
            return Ok(Response::new(Box::pin(tokio_stream::empty())));
        }
        if times == 1 {
            let broken = vec![Ok(answer(1)), Ok(answer(2)), Err(away())];
            return Ok(Response::new(Box::pin(tokio_stream::iter(broken))));
        }
        let recorded = self.clone();
        let (answers, queue) = tokio::sync::mpsc::channel(4);
        tokio::spawn(async move {
            answers.send(Ok(answer(3))).await.expect("it is read");
            let mut rest = Vec::new();
            while rest.len() < export_frames()[3].len()
                && let Ok(Some(piece)) = pieces.message().await
            {
                rest.extend_from_slice(&piece.data);
            }
            recorded.note(|recorded| recorded.uploaded.push(rest));
            let context = Some(v1::Context { id: 3, ..Default::default() });
            let last = v1::ImportContextResponse { context, cancelled_flows: 2, ..answer(4) };
            answers.send(Ok(last)).await.expect("it is read");
        });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(queue))))
    }

    type CheckContextStream = Answers<v1::CheckContextResponse>;

    /// A flow of context 1 is asleep until it is repaired; a blob of context 5 is broken, context 6 keeps changing, context 7 is not for
    /// this caller.
    async fn check_context(
        &self,
        request: Request<v1::CheckContextRequest>,
    ) -> Result<Response<Self::CheckContextStream>, Status> {
        let v1::CheckContextRequest { context_id, repair } = request.into_inner();
        self.call(&format!("check {context_id} {repair}"));
        if context_id == 7 {
            let reason = rpc::RpcReason::MethodNotAllowed;
            return Err(rpc::Error::new(rpc::ErrorKind::PermissionDenied, reason, "not for actors").into());
        }
        let was_repaired = self.note(|recorded| recorded.calls.iter().any(|call| call == "check 1 true"));
        let mut findings = Vec::new();
        if context_id == 1 && (repair || !was_repaired) {
            findings.push(v1::ContextFinding {
                code: v1::ContextFindingCode::FlowAsleep.into(),
                key: "flow:7".to_owned(),
                problem: "inputs wait, and the flow is not in flows_active".to_owned(),
                can_be_repaired: true,
                is_repaired: repair,
                repair: "a scheduler is told to go on with it".to_owned(),
            });
        }
        if context_id == 5 {
            findings.push(v1::ContextFinding {
                code: v1::ContextFindingCode::BlobContent.into(),
                key: "blob:ab".to_owned(),
                problem: "other bytes".to_owned(),
                ..Default::default()
            });
        }
        let totals = v1::ContextCheckTotals {
            findings: findings.len() as u64,
            repairable: findings.iter().filter(|finding| finding.can_be_repaired).count() as u64,
            repaired: findings.iter().filter(|finding| finding.is_repaired).count() as u64,
            uncounted: if context_id == 6 { vec!["flows_open".to_owned()] } else { Vec::new() },
        };
        let answers = vec![
            Ok(v1::CheckContextResponse { keys: 20, ..Default::default() }),
            Ok(v1::CheckContextResponse { keys: 30, findings, totals: Some(totals) }),
        ];
        Ok(Response::new(Box::pin(tokio_stream::iter(answers))))
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
