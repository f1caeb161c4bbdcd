//! Handler of supervisors' calls.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use envelope::{Conversation, EnvelopeSigner, OnRefusal};
use futures_util::future::{BoxFuture, join_all};
use model::runner::PresenceError;
use model::supervision::{BlobGet, BlobPiece, BlobPut, EmptyResult, JobEvent, JobOutput, method};
use model::{ContextId, NodeReport, Presence, RunnerId, Timestamp};
use mycelium::json_rpc::{INTERNAL_ERROR, METHOD_NOT_FOUND, answer};
use mycelium::{
    JsonRpcError, JsonRpcHandler, JsonRpcPeer, JsonRpcRequest, JsonRpcResult, PayloadForm, PublicKey,
};
use proto::internal::v1 as wire;

use crate::clients::{BlobStoreClient, read_blob, write_blob};
use crate::error::PeerError;
use crate::metrics::Metrics;
use crate::peers::SupervisorPeers;
use crate::plain::SentAttempts;
use crate::presence::SupervisorPresences;
use crate::routers::{ConnectedRouters, RouterAck, UnnumberedEvent};
use crate::secrets::{SupervisorSecret, SupervisorSecretError, SupervisorSecrets};
use crate::signing::CoordinatorIdentityWatch;

/// How long a router may take to acknowledge; supervisors give up at about the same time.
const HANDLED_TIMEOUT: Duration = Duration::from_secs(30);

/// Shared state for answering supervisors. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GatewayState {
    /// Supervisors, and what each may speak of.
    pub peers: SupervisorPeers,
    /// Routers that events go to.
    pub routers: ConnectedRouters,
    /// Last presences of supervisors.
    pub presences: SupervisorPresences,
    /// Client of the blob store.
    pub store: BlobStoreClient,
    /// Signer of what the gateway sends.
    pub signer: Arc<EnvelopeSigner>,
    /// Identity of the coordinator.
    pub identity: CoordinatorIdentityWatch,
    /// Secrets that plain supervisors ask for.
    pub secrets: SupervisorSecrets,
    /// Attempts that plain supervisors were sent.
    pub sent: SentAttempts,
    /// Metrics of the gateway.
    pub metrics: Metrics,
}

/// Identification of the supervisor at the other end.
#[derive(Debug, Clone)]
pub enum SupervisorRef {
    /// By the address that it was called under.
    Address(String),
    /// By its node on the bus.
    Node(PublicKey),
}

/// Answers one supervisor.
#[derive(Debug)]
pub struct SupervisorHandler {
    /// Shared state.
    pub state: GatewayState,
    /// Supervisor that is answered.
    pub supervisor: SupervisorRef,
}

impl JsonRpcHandler for SupervisorHandler {
    fn handle(
        &self,
        _: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
        let address = match &self.supervisor {
            SupervisorRef::Address(address) => Some(address.clone()),
            SupervisorRef::Node(key) => self.state.peers.address_of(*key),
        };
        let Some(address) = address else {
            let stranger = JsonRpcError::refused("UNKNOWN_PEER", false, "no runner record names this node");
            return Box::pin(async move { requests.iter().map(|_| Err(stranger.clone())).collect() });
        };
        // Events go to their routers here, in the order of arrival; their acknowledgements are awaited later.
        let begun: Vec<_> = requests.into_iter().map(|request| self.state.begin(&address, request)).collect();
        Box::pin(join_all(begun.into_iter().map(PendingSupervisorReply::finish)))
    }
}

/// A request whose answer has been begun.
enum PendingSupervisorReply {
    /// The answer.
    Ready(JsonRpcResult),
    /// The answer is empty once a router has acknowledged the event.
    AwaitingRouter(RouterAck),
    /// The answer needs further work.
    Work(BoxFuture<'static, JsonRpcResult>),
}

impl PendingSupervisorReply {
    async fn finish(self) -> JsonRpcResult {
        match self {
            Self::Ready(answer) => answer,
            Self::Work(work) => work.await,
            Self::AwaitingRouter(handled) => match tokio::time::timeout(HANDLED_TIMEOUT, handled).await {
                Ok(Ok(())) => answer(&EmptyResult {}),
                Ok(Err(_)) => Err(JsonRpcError::refused("NO_ROUTER", false, "the router is gone")),
                Err(_) => {
                    Err(JsonRpcError::refused("TIMEOUT", false, "the router did not acknowledge it in time"))
                }
            },
        }
    }
}

impl GatewayState {
    fn begin(&self, address: &str, request: JsonRpcRequest) -> PendingSupervisorReply {
        let begun = match request.method.as_str() {
            method::JOB_EVENT => self.event(address, &request),
            method::SUPERVISOR_PRESENCE => {
                self.presence(address, &request).map(PendingSupervisorReply::Ready)
            }
            method::BLOB_GET | method::BLOB_PUT => {
                let (state, address) = (self.clone(), address.to_owned());
                Ok(PendingSupervisorReply::Work(Box::pin(
                    async move { state.blob(&address, &request).await },
                )))
            }
            other => {
                Err(JsonRpcError::of_protocol(METHOD_NOT_FOUND, format!("there is no method `{other}`")))
            }
        };
        begun.unwrap_or_else(|error| PendingSupervisorReply::Ready(Err(error)))
    }

    fn event(&self, address: &str, request: &JsonRpcRequest) -> Result<PendingSupervisorReply, JsonRpcError> {
        let event: JobEvent = request.read()?;
        let (job, number, origin) = (event.job_key, event.seq, event.origin);
        let runner = self.check(address, origin.context_id)?;
        self.metrics.events.inc();
        let unnumbered = match event.into_report() {
            Ok(report) => {
                let source = self.peers.source(&self.peers.address_for(address, origin.context_id));
                let report = NodeReport { source: Some(source), ..report };
                let json = serde_json::to_vec(&report)
                    .map_err(|error| JsonRpcError::of_protocol(INTERNAL_ERROR, error.to_string()))?;
                UnnumberedEvent::Report(json.into())
            }
            Err(JobOutput { offset, text, time }) => UnnumberedEvent::Log(wire::NumberedLog {
                report_id: 0,
                job_key: job.to_string(),
                context_id: origin.context_id.0,
                flow_id: origin.flow_id.0,
                offset,
                data: Bytes::from(text),
                runner_id: runner.0,
                print_millis: time.map_or(0, Timestamp::as_millis),
            }),
        };
        self.routers.send(job, number, unnumbered).map(PendingSupervisorReply::AwaitingRouter).map_err(
            |not_taken| {
                self.metrics.events_refused.inc();
                JsonRpcError::refused("BUSY", false, not_taken.to_string())
            },
        )
    }

    fn presence(&self, address: &str, request: &JsonRpcRequest) -> Result<JsonRpcResult, JsonRpcError> {
        let presence: Presence = request.read()?;
        let noted = self.note_presence(address, presence);
        noted.map_err(|error| JsonRpcError::refused("INVALID_REQUEST", true, error.to_string()))?;
        Ok(answer(&EmptyResult {}))
    }

    /// Notes a supervisor's presence, under each of its addresses. Of more instances than may
    /// be reported, the first ones count.
    pub(crate) fn note_presence(&self, address: &str, mut presence: Presence) -> Result<(), PresenceError> {
        let left_out = presence.truncate();
        if left_out > 0 {
            tracing::warn!(
                address,
                left_out,
                "a supervisor reports more instances than allowed; the excess is ignored"
            );
        }
        presence.check()?;
        self.peers.note_name(address, &presence.supervisor);
        for spelling in self.peers.spellings(address) {
            self.presences.record(&spelling, &presence);
        }
        Ok(())
    }

    async fn blob(&self, address: &str, request: &JsonRpcRequest) -> JsonRpcResult {
        if request.method == method::BLOB_GET {
            let BlobGet { job_key, context_id, sha256, offset } = request.read()?;
            self.check(address, context_id)?;
            let place = (context_id, job_key.context);
            let (data, size) = read_blob(&self.store, place, sha256, offset).await?;
            self.metrics.blob_bytes_out.inc_by(data.len() as u64);
            return answer(&BlobPiece { data: BASE64_STANDARD.encode(data), size });
        }
        let BlobPut { job_key, context_id, sha256, size, offset, data } = request.read()?;
        self.check(address, context_id)?;
        let data = BASE64_STANDARD
            .decode(data)
            .map_err(|_| JsonRpcError::refused("INVALID_REQUEST", true, "`data` is no base64"))?;
        self.metrics.blob_bytes_in.inc_by(data.len() as u64);
        let put = wire::WriteBlobRequest {
            context_uid: job_key.context.to_string(),
            context_id: context_id.0,
            sha256: sha256.to_string(),
            size,
            offset,
            data: data.into(),
        };
        write_blob(&self.store, put).await?;
        answer(&EmptyResult {})
    }

    /// Checks that a record of the context names the supervisor, and returns the record. The record may merely not be
    /// known here yet, so the refusal is transient.
    fn check(&self, address: &str, context: ContextId) -> Result<RunnerId, JsonRpcError> {
        self.peers.record_of(address, context).ok_or_else(|| {
            let message = format!("no runner record of context {context} names {address}");
            JsonRpcError::refused("UNKNOWN_PEER", false, message)
        })
    }

    /// Returns the conversation with a supervisor. Waits a limited time for it to be connected.
    ///
    /// # Errors
    /// Any [`PeerError`].
    pub async fn connected(
        &self,
        address: &str,
        topic: &str,
        context: Option<ContextId>,
        wait: Duration,
    ) -> Result<JsonRpcPeer, PeerError> {
        // Checked first: without its secret the call could not be sent, and the failure would end the calls of others as well.
        self.secret(address, context).map_err(PeerError::Secret)?;
        self.peers.connected(address, topic, wait).await
    }

    /// Returns the secret for requests of a context to a plain supervisor, if the context's records name one. For a request without
    /// a context it is the first readable secret that any record names, or none where a record needs none.
    ///
    /// # Errors
    /// [`SupervisorSecretError`]
    pub fn secret(
        &self,
        address: &str,
        context: Option<ContextId>,
    ) -> Result<Option<SupervisorSecret>, SupervisorSecretError> {
        if self.peers.form(address) == PayloadForm::Framed {
            return Ok(None);
        }
        let (mut missing, mut needless) = (None, false);
        for (of, name) in self.peers.secrets(address, context) {
            if name.is_empty() {
                needless |= context.is_none();
                continue;
            }
            match self.secrets.read(of, &name) {
                Ok(secret) => return Ok(Some(secret)),
                Err(error) => missing = missing.or(Some(error)),
            }
        }
        missing.filter(|_| !needless).map_or(Ok(None), Err)
    }

    /// Creates a conversation with a supervisor; `name`, its key as hex digits, is the destination of envelopes to it.
    #[must_use]
    pub fn conversation(&self, name: String) -> Conversation {
        let metrics = self.metrics.clone();
        let on_refusal: OnRefusal = Arc::new(move |refusal| metrics.envelope_refused(refusal.code()));
        Conversation::new(Arc::clone(&self.signer), on_refusal).with_name(name)
    }

    /// Creates the handler for one supervisor.
    #[must_use]
    pub fn supervisor_handler(&self, who: SupervisorRef) -> Arc<dyn JsonRpcHandler> {
        Arc::new(SupervisorHandler { state: self.clone(), supervisor: who })
    }
}
