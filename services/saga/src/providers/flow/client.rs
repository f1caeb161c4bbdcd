//! Client of scheduler and storage, which signs a token with the actor's key for each call. No other provider code makes gRPC requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flow_file::FlowFile;
use futures_util::stream;
use identity::token::TOKEN_LIFETIME_MAX;
use identity::{SigningKey, Token, TrustDomain};
use model::limits::BLOB_CHUNK_BYTES;
use model::{ActorId, CommandId, ContextId, FlowId, TenantId, Timestamp};
use proto::convert::enums;
use proto::v1;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::job_service_client::JobServiceClient;
use proto::v1::watch_flows_response::Event;
use rpc::{Channel, ErrorView, RetryAdvice, RpcReason, code_name};
use service::error_chain;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status, Streaming};
use workflow::provider::SecretName;

use super::end::{EffectFlow, FAILED_NODES_MAX, FailedNode};
use crate::secrets::Secrets;

/// Time limit for one answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence of a watch after which it counts as broken; the scheduler sends heartbeats more often.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Flows and nodes of one page.
const PAGE_SIZE: u32 = 1000;

/// Why a call to the suite gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum EffectFlowError {
    /// No token could be signed, and nothing was sent.
    #[error("the key of actor {actor} cannot be used: {why}")]
    Unsigned { actor: ActorId, why: String },
    /// Request was refused for now, and changed nothing.
    #[error("{why}")]
    Busy { why: String, after: Option<Duration> },
    /// Outcome is unknown: the request may have changed something.
    #[error("{0}")]
    Away(String),
    /// The position of a watch is gone.
    #[error("the position to resume from is gone")]
    PositionGone,
    /// Request was refused. `code` is for programs.
    #[error("{why}")]
    Refused { code: String, why: String },
}

impl EffectFlowError {
    fn is_of(&self, reason: RpcReason) -> bool {
        matches!(self, Self::Refused { code, .. } if code == reason.as_str())
    }

    /// Returns true if the request id was used before, with another flow file or other variables.
    pub(super) fn is_other_body(&self) -> bool {
        self.is_of(RpcReason::RequestIdReused)
    }
}

impl From<Status> for EffectFlowError {
    fn from(status: Status) -> Self {
        let view = ErrorView::from(&status);
        let why = format!("{}: {view}", code_name(view.code));
        match (view.code, RetryAdvice::of(&status)) {
            (Code::OutOfRange, _) => Self::PositionGone,
            (Code::ResourceExhausted, RetryAdvice::Again { after }) => Self::Busy { why, after },
            (_, RetryAdvice::Again { .. }) | (Code::Internal | Code::Unknown, _) => Self::Away(why),
            (_, RetryAdvice::Reread) => Self::Busy { why, after: None },
            (code, RetryAdvice::Never) if view.reason.is_empty() => {
                Self::Refused { code: code_name(code).to_owned(), why }
            }
            (_, RetryAdvice::Never) => Self::Refused { code: view.reason, why },
        }
    }
}

/// Tenant on whose behalf a call is made, and its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EffectFlowScope {
    /// The tenant, whose key signs.
    pub(super) tenant: TenantId,
    /// Context of the tenant.
    pub(super) context: ContextId,
}

/// A flow to submit.
pub(super) struct EffectFlowSubmission<'a> {
    pub(super) command: CommandId,
    pub(super) name: String,
    pub(super) file: &'a FlowFile,
    pub(super) variables: BTreeMap<String, String>,
    pub(super) traceparent: Option<&'a str>,
}

/// Event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EffectFlowEvent {
    /// State of a flow.
    Flow { id: FlowId, name: String, is_end: bool },
    /// A flow was deleted.
    Removed(FlowId),
    /// The snapshot is whole.
    SnapshotEnd,
    /// A heartbeat of the watch.
    Life,
}

/// A watch of the flows of a context.
pub(super) struct EffectFlowStream(Streaming<v1::WatchFlowsResponse>);

/// Client of scheduler and storage, as one actor. Cheap to clone.
#[derive(Clone)]
pub(super) struct FlowClient {
    flows: FlowServiceClient<Channel>,
    jobs: JobServiceClient<Channel>,
    actor: ActorId,
    signing_key: SecretName,
    trust_domain: TrustDomain,
    secrets: Arc<Secrets>,
}

impl FlowClient {
    pub(super) fn new(
        (scheduler, storage): (Channel, Channel),
        (actor, signing_key): (ActorId, SecretName),
        trust_domain: TrustDomain,
        secrets: Arc<Secrets>,
    ) -> Self {
        let (flows, jobs) = (FlowServiceClient::new(scheduler), JobServiceClient::new(storage));
        Self { flows, jobs, actor, signing_key, trust_domain, secrets }
    }

    /// Signs a new token.
    fn token(&self, tenant: &TenantId) -> Result<MetadataValue<Ascii>, EffectFlowError> {
        let unsigned = |why| EffectFlowError::Unsigned { actor: self.actor, why };
        let secret = self.secrets.read(tenant, &self.signing_key);
        let secret = secret.map_err(|error| unsigned(error_chain(&error)))?;
        let key = SigningKey::from_pem(secret.expose().as_bytes());
        let key = key.map_err(|error| unsigned(format!("`{}` holds {error}", self.signing_key)))?;
        let token = Token::sign(&key, &self.trust_domain, self.actor, Timestamp::now(), TOKEN_LIFETIME_MAX);
        let value = MetadataValue::try_from(format!("Bearer {token}"));
        let mut value = value.map_err(|error| unsigned(error.to_string()))?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn signed<T>(&self, tenant: &TenantId, message: T) -> Result<Request<T>, EffectFlowError> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.token(tenant)?);
        Ok(request)
    }

    fn timed<T>(&self, tenant: &TenantId, message: T) -> Result<Request<T>, EffectFlowError> {
        let mut request = self.signed(tenant, message)?;
        request.set_timeout(CALL_TIMEOUT);
        Ok(request)
    }

    /// Submits a flow. A repeat within 24 hours gets the flow of the first submission.
    pub(super) async fn submit(
        &self,
        place: &EffectFlowScope,
        wanted: &EffectFlowSubmission<'_>,
    ) -> Result<EffectFlow, EffectFlowError> {
        match self.submit_once(place, wanted).await {
            Err(trouble) if trouble.is_of(RpcReason::BlobMissing) && !wanted.file.uploads.is_empty() => {
                self.upload(place, wanted.file).await?;
                self.submit_once(place, wanted).await
            }
            submitted => submitted,
        }
    }

    async fn submit_once(
        &self,
        place: &EffectFlowScope,
        wanted: &EffectFlowSubmission<'_>,
    ) -> Result<EffectFlow, EffectFlowError> {
        let mut spec = wanted.file.spec.clone();
        spec.name.clone_from(&wanted.name);
        spec.env_vars.extend(wanted.variables.clone());
        let message = v1::SubmitFlowRequest {
            request_id: wanted.command.to_string(),
            context_id: place.context.0,
            flow: Some(spec),
            ..v1::SubmitFlowRequest::default()
        };
        let mut request = self.timed(&place.tenant, message)?;
        if let Some(trace) = wanted.traceparent.and_then(|trace| MetadataValue::try_from(trace).ok()) {
            request.metadata_mut().insert("traceparent", trace);
        }
        let answer = self.flows.clone().submit_flow(request).await?.into_inner();
        read(answer.flow)
    }

    /// Uploads the files of a flow.
    async fn upload(&self, place: &EffectFlowScope, file: &FlowFile) -> Result<(), EffectFlowError> {
        for upload in &file.uploads {
            let bytes = upload.bytes(&file.files);
            let bytes =
                bytes.map_err(|error| EffectFlowError::Busy { why: error.to_string(), after: None })?;
            let pieces = pieces(place.context, upload.blob.sha256.to_string(), bytes.into());
            let request = self.timed(&place.tenant, stream::iter(pieces))?;
            self.jobs.clone().put_blob(request).await?;
        }
        Ok(())
    }

    /// Reads a flow; `None` where there is none of that number.
    pub(super) async fn flow(
        &self,
        place: &EffectFlowScope,
        flow: FlowId,
    ) -> Result<Option<EffectFlow>, EffectFlowError> {
        let message = v1::GetFlowRequest { context_id: place.context.0, flow_id: flow.0 };
        match self.flows.clone().get_flow(self.timed(&place.tenant, message)?).await {
            Ok(answer) => read(answer.into_inner().flow).map(Some),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    /// Looks a flow of the actor up by its name. Reads all flows of the context in the worst case.
    pub(super) async fn find(
        &self,
        place: &EffectFlowScope,
        name: &str,
    ) -> Result<Option<EffectFlow>, EffectFlowError> {
        let mut message = v1::ListFlowsRequest {
            context_id: place.context.0,
            page_size: PAGE_SIZE,
            caller_id: self.actor.0,
            name_prefix: name.to_owned(),
            ..v1::ListFlowsRequest::default()
        };
        loop {
            let request = self.timed(&place.tenant, message.clone())?;
            let page = self.flows.clone().list_flows(request).await?.into_inner();
            if let Some(found) = page.flows.into_iter().find(|flow| flow.name == name) {
                return read(Some(found)).map(Some);
            }
            if page.next_page_token.is_empty() {
                return Ok(None);
            }
            message.page_token = page.next_page_token;
        }
    }

    /// Lists the nodes that made a flow fail: the failed ones, or the cancelled ones where none failed.
    pub(super) async fn failed_nodes(
        &self,
        place: &EffectFlowScope,
        flow: FlowId,
    ) -> Result<Vec<FailedNode>, EffectFlowError> {
        for state in [v1::NodeState::Failed, v1::NodeState::Cancelled] {
            let mut message = v1::ListFlowNodesRequest {
                context_id: place.context.0,
                flow_id: flow.0,
                page_size: PAGE_SIZE,
                states: vec![state.into()],
                ..v1::ListFlowNodesRequest::default()
            };
            let mut failed = Vec::new();
            loop {
                let request = self.timed(&place.tenant, message.clone())?;
                let page = self.flows.clone().list_flow_nodes(request).await?.into_inner();
                failed.extend(page.nodes.into_iter().filter(|node| !node.allow_failure).map(failed_node));
                if page.next_page_token.is_empty() || failed.len() >= FAILED_NODES_MAX {
                    break;
                }
                message.page_token = page.next_page_token;
            }
            failed.truncate(FAILED_NODES_MAX);
            if !failed.is_empty() {
                return Ok(failed);
            }
        }
        Ok(Vec::new())
    }

    /// Cancels a flow. One that has ended, or is gone, is not changed.
    pub(super) async fn cancel(&self, place: &EffectFlowScope, flow: FlowId) -> Result<(), EffectFlowError> {
        let message = v1::CancelFlowRequest {
            context_id: place.context.0,
            flow_id: flow.0,
            ..v1::CancelFlowRequest::default()
        };
        match self.flows.clone().cancel_flow(self.timed(&place.tenant, message)?).await {
            Err(status) if status.code() != Code::NotFound => Err(status.into()),
            _ => Ok(()),
        }
    }

    /// Watches the actor's flows with this name prefix: from a position on, or with a snapshot of those that have not ended.
    pub(super) async fn watch(
        &self,
        place: &EffectFlowScope,
        prefix: &str,
        position: &str,
    ) -> Result<EffectFlowStream, EffectFlowError> {
        let message = v1::WatchFlowsRequest {
            context_id: place.context.0,
            caller_id: self.actor.0,
            name_prefix: prefix.to_owned(),
            snapshot: v1::FlowSnapshot::Open.into(),
            resume_position: position.to_owned(),
        };
        // Without a timeout, which would limit the stream as a whole.
        let request = self.signed(&place.tenant, message)?;
        let mut flows = self.flows.clone();
        let answers = tokio::time::timeout(CALL_TIMEOUT, flows.watch_flows(request)).await;
        let answers = answers.map_err(|_| EffectFlowError::Away(format!("no answer in {CALL_TIMEOUT:?}")))?;
        Ok(EffectFlowStream(answers?.into_inner()))
    }
}

impl EffectFlowStream {
    /// Reads the next answer, and the position behind it; the position is empty within a snapshot.
    pub(super) async fn next(&mut self) -> Result<(EffectFlowEvent, String), EffectFlowError> {
        let answer = tokio::time::timeout(SILENCE_MAX, self.0.message()).await;
        let answer =
            answer.map_err(|_| EffectFlowError::Away(format!("the watch was silent for {SILENCE_MAX:?}")))?;
        let Some(v1::WatchFlowsResponse { event, resume_position }) = answer? else {
            return Err(EffectFlowError::Away("the watch ended".to_owned()));
        };
        let event = match event {
            Some(Event::Flow(flow)) => {
                let status = enums::flow_status_from_wire(flow.status);
                let is_end = status.is_some_and(|status| status.is_end());
                EffectFlowEvent::Flow { id: FlowId(flow.id), name: flow.name, is_end }
            }
            Some(Event::Removed(v1::RemovedFlow { flow_id })) => EffectFlowEvent::Removed(FlowId(flow_id)),
            Some(Event::SnapshotEnd(_)) => EffectFlowEvent::SnapshotEnd,
            Some(Event::Heartbeat(_)) | None => EffectFlowEvent::Life,
        };
        Ok((event, resume_position))
    }
}

/// Reads the parts of a flow that calls need.
fn read(flow: Option<v1::Flow>) -> Result<EffectFlow, EffectFlowError> {
    let nothing = || EffectFlowError::Away("the answer has no flow that can be read".to_owned());
    let flow = flow.ok_or_else(nothing)?;
    let status = enums::flow_status_from_wire(flow.status).ok_or_else(nothing)?;
    Ok(EffectFlow {
        id: FlowId(flow.id),
        name: flow.name,
        status,
        result: flow.result.into_iter().collect(),
        is_cut: flow.result_truncated,
    })
}

fn failed_node(node: v1::FlowNode) -> FailedNode {
    let v1::Reason { code, detail } = node.reason.unwrap_or_default();
    FailedNode { name: node.name, reason: code, detail, exit_code: node.exit_code }
}

/// The first piece names context and hash; an empty blob is one piece as well.
fn pieces(context: ContextId, sha256: String, mut bytes: Bytes) -> Vec<v1::PutBlobRequest> {
    let data = bytes.split_to(bytes.len().min(BLOB_CHUNK_BYTES));
    let mut pieces = vec![v1::PutBlobRequest { context_id: context.0, sha256, data }];
    while !bytes.is_empty() {
        let data = bytes.split_to(bytes.len().min(BLOB_CHUNK_BYTES));
        pieces.push(v1::PutBlobRequest { data, ..v1::PutBlobRequest::default() });
    }
    pieces
}

#[cfg(test)]
mod tests {
    use rpc::{Error, ErrorKind};

    use super::*;

    #[test]
    fn only_what_surely_changed_nothing_is_made_again_as_such() {
        let status = |kind, reason| Error::new(kind, reason, "no").into_status();
        let away = EffectFlowError::from(Status::unavailable("broken off"));
        assert!(matches!(away, EffectFlowError::Away(_)), "{away:?}");
        for defect in [Status::internal("defect"), Status::unknown("?"), Status::deadline_exceeded("late")] {
            assert!(matches!(EffectFlowError::from(defect), EffectFlowError::Away(_)));
        }
        let overloaded = Error::new(ErrorKind::ResourceExhausted, RpcReason::Overloaded, "full");
        let overloaded = EffectFlowError::from(overloaded.retry_after(Duration::from_secs(3)).into_status());
        assert!(
            matches!(overloaded, EffectFlowError::Busy { after: Some(after), .. } if after.as_secs() == 3)
        );
        let gone = EffectFlowError::from(status(ErrorKind::OutOfRange, RpcReason::PositionGone));
        assert!(matches!(gone, EffectFlowError::PositionGone));
        let reused = EffectFlowError::from(status(ErrorKind::AlreadyExists, RpcReason::RequestIdReused));
        assert!(reused.is_other_body());
        let denied = EffectFlowError::from(status(ErrorKind::PermissionDenied, RpcReason::RoleInsufficient));
        let EffectFlowError::Refused { code, why } = denied else { panic!("it lasts") };
        assert_eq!((code.as_str(), why.as_str()), ("ROLE_INSUFFICIENT", "PERMISSION_DENIED: no"));
    }

    #[test]
    fn blobs_travel_in_pieces() {
        for (size, lengths) in [(0, vec![0]), (BLOB_CHUNK_BYTES + 1, vec![BLOB_CHUNK_BYTES, 1])] {
            let pieces = pieces(ContextId(7), "ab".to_owned(), vec![1; size].into());
            assert_eq!(pieces.iter().map(|piece| piece.data.len()).collect::<Vec<_>>(), lengths);
            assert_eq!(pieces.iter().filter(|piece| piece.context_id == 7).count(), 1);
        }
    }
}
