//! From a submission to a flow that runs.

use std::collections::BTreeSet;

use flow::Plan;
use flow::engine::StoredNode;
use model::{ActorId, ContextId, FlowId, FlowSpec, FlowUid, SignalName, Timestamp, Violations};
use proto::convert;
use proto::internal::v1 as internal;
use proto::required;
use proto::v1::{Flow, FlowStatus, NodeSpec, RunJobRequest, SubmitFlowRequest};
use tonic::Status;

use crate::changes::creation::CheckedSubmission;
use crate::changes::idempotency::{self, RequestFingerprint, hash_without};
use crate::changes::signatures::{self, JobSigningContext};
use crate::changes::submit_permissions::SubmitPermissionCache;
use crate::changes::{created_jobs, job, script_blobs};
use crate::clients::FlowStoreClient;
use crate::commit;
use crate::driver::{Handle, SchedulerEvent};
use crate::error::bad_store;
use crate::loaded_flow::STEP_NODES_MAX;
use crate::loader::StartedFlow;
use crate::replica::{DueFlow, SchedulerIdentity};

/// Nodes are added in parts of at most this many bytes.
pub(crate) const PART_BYTES_MAX: usize = 2 * 1024 * 1024;
/// How often a uid is drawn to find one that makes the flow our own.
const UID_DRAWS_MAX: usize = 256;

/// Result of checking a submission.
enum SubmissionCheck {
    /// Flow that can be made.
    New(Box<(FlowSpec, Plan)>),
    /// Flow that the same request made before.
    Made(Box<Flow>),
}

/// Makes flows and starts them.
#[derive(Clone)]
pub struct Submitter {
    pub(crate) store: FlowStoreClient,
    pub(crate) driver: Handle,
    pub(crate) me: SchedulerIdentity,
    /// Where something is done before storage has decided.
    pub(crate) granted: SubmitPermissionCache,
}

impl Submitter {
    /// Flows are kept by `store`; those that this replica owns go to `driver`.
    #[must_use]
    pub fn new(store: FlowStoreClient, driver: Handle, me: SchedulerIdentity) -> Self {
        Self { store, driver, me, granted: SubmitPermissionCache::default() }
    }

    /// Checks a submission, stores it and starts it.
    ///
    /// Not cancel safe: run it in a task of its own, so that a caller that goes
    /// away leaves no flow half made. (One that a crash leaves in CREATED is
    /// completed by the same `request_id`.)
    ///
    /// # Errors
    /// INVALID_ARGUMENT with everything that is wrong, else what storage answers.
    pub async fn submit(self, actor: ActorId, request: SubmitFlowRequest) -> Result<Flow, Status> {
        self.submit_for(actor, request, String::new()).await
    }

    /// Submits one job as a flow.
    ///
    /// # Errors
    /// As [`Submitter::submit`], with fields as they are called there.
    pub async fn submit_job(self, actor: ActorId, request: RunJobRequest) -> Result<Flow, Status> {
        let (request, noted) = job::submission(request);
        self.submit_all(actor, request, String::new(), Some(noted)).await
    }

    /// Submits a flow that came as a message, whose status follows the flow's from then on. `message_key` is
    /// empty when none asks for it.
    ///
    /// # Errors
    /// As [`Submitter::submit`].
    pub async fn submit_for(
        self,
        actor: ActorId,
        request: SubmitFlowRequest,
        message_key: String,
    ) -> Result<Flow, Status> {
        self.submit_all(actor, request, message_key, None).await
    }

    /// `of_job`: violations found so far in a call that runs one job; absent for any other submission.
    async fn submit_all(
        mut self,
        actor: ActorId,
        mut request: SubmitFlowRequest,
        message_key: String,
        of_job: Option<Violations>,
    ) -> Result<Flow, Status> {
        let request_hash = hash_without(&mut request, passing);
        let is_job = of_job.is_some();
        let mut violations = of_job.unwrap_or_else(|| required::missing(&request));
        let SubmitFlowRequest { request_id, context_id, flow_id, caller_id, flow } = request;
        let fingerprint = RequestFingerprint::parse(&request_id, request_hash, &mut violations);
        let mut wire = flow.unwrap_or_default();
        let header = convert::flow_spec::header_of(&wire);
        let caller = if caller_id == 0 { actor } else { ActorId(caller_id) };
        let place = (actor, context_id, caller);
        if context_id == 0 {
            return Err(without_context(wire, violations, is_job).into());
        }
        // A repeated request that has its flow does not need the jobs that it names; they may be gone by now.
        if created_jobs::any(&wire.nodes)
            && let Some(flow) = self.made_before(actor, context_id, &fingerprint).await?
        {
            return Ok(flow);
        }
        created_jobs::resolve_jobs(&mut self.store, place, &mut wire.nodes).await?;
        let checked = self.check(wire, place, &fingerprint, violations).await?;
        let (mut spec, plan) =
            match checked.map_err(|found| if is_job { job::as_of_job(&found) } else { found }) {
                Ok(SubmissionCheck::New(checked)) => *checked,
                Ok(SubmissionCheck::Made(flow)) => return Ok(*flow),
                Err(found) => return Err(rpc::Error::invalid(found).into()),
            };
        script_blobs::keep(&mut self.store, (actor, context_id), &mut spec.nodes).await?;
        let new = CheckedSubmission { fingerprint, place, flow_id, header, message_key };
        self.create_whole(new, spec, plan).await
    }

    /// The flow that the same request made before, when it has got beyond its making.
    async fn made_before(
        &mut self,
        actor: ActorId,
        context_id: u32,
        fingerprint: &RequestFingerprint,
    ) -> Result<Option<Flow>, Status> {
        let Some(answered) = fingerprint.find(&mut self.store, actor, context_id).await? else {
            return Ok(None);
        };
        let flow = idempotency::flow_of(&mut self.store, actor, context_id, &answered).await?;
        if flow.status() == FlowStatus::Created {
            return Ok(None);
        }
        self.touch(&flow).await?;
        Ok(Some(flow))
    }

    /// Adds to the violations of a request everything that is wrong with its flow: its fields, its graph, and signatures that
    /// do not fit or are not its caller's. A signature over fields that must change is not checked, since it must be
    /// made again.
    ///
    /// A repeated request already has its flow, even if a signature has expired since or the caller's key has changed. That
    /// is looked up only where a signature would be refused; other repeated requests are found when the flow is created.
    async fn check(
        &mut self,
        wire: proto::v1::FlowSpec,
        place: (ActorId, u32, ActorId),
        fingerprint: &RequestFingerprint,
        mut violations: Violations,
    ) -> Result<Result<SubmissionCheck, Violations>, Status> {
        let parsed = convert::flow_spec::from_wire(wire, "flow");
        let of_signatures = match &parsed {
            Ok(spec) => self.check_signatures(spec, place).await?,
            Err(_) => Violations::new(),
        };
        let spec = violations.absorb(flow::check_request(parsed, "flow"));
        if violations.is_empty()
            && !of_signatures.is_empty()
            && let Some(flow) = self.made_before(place.0, place.1, fingerprint).await?
        {
            return Ok(Ok(SubmissionCheck::Made(Box::new(flow))));
        }
        violations.absorb::<()>(Err(of_signatures));
        Ok(violations.into_result(spec.map(|checked| SubmissionCheck::New(Box::new(checked)))))
    }

    async fn check_signatures(
        &mut self,
        spec: &FlowSpec,
        (actor, context_id, caller): (ActorId, u32, ActorId),
    ) -> Result<Violations, Status> {
        if !signatures::any(&spec.nodes) {
            return Ok(Violations::new());
        }
        let (context_uid, keys) = signatures::signer(&mut self.store, actor, context_id, caller).await?;
        let place = JobSigningContext { context_uid, caller, keys: &keys, env_vars: &spec.env_vars };
        Ok(signatures::check_specs(&spec.nodes, place, true, "flow.", Timestamp::now()))
    }

    /// Draws a uid that makes a flow our own: its maker has it in memory already.
    pub(crate) fn own_uid(&self) -> FlowUid {
        let replicas = self.driver.replicas();
        let mut uids = (0..UID_DRAWS_MAX).map(|_| FlowUid::random());
        uids.find(|uid| self.owns(&replicas, *uid)).unwrap_or_else(FlowUid::random)
    }

    pub(crate) fn owns(&self, replicas: &[String], uid: FlowUid) -> bool {
        let owner = model::placement::owner_of(replicas.iter().map(String::as_str), uid);
        owner == Some(self.me.name.as_str())
    }

    /// Adds nodes to a flow, in the name of an actor or in our own, for a request or for none.
    pub(crate) async fn add_nodes(
        &mut self,
        flow: &Flow,
        nodes: &[StoredNode],
        actor: Option<ActorId>,
        request: Option<&RequestFingerprint>,
    ) -> Result<(), Status> {
        let first_job = nodes.first().map_or(0, |stored| stored.node.job_id.0);
        let mut part = Vec::new();
        let mut bytes = 0;
        for (i, stored) in nodes.iter().enumerate() {
            let wire = commit::stored_node(&stored.node, &stored.job);
            bytes += wire.node_json.len() + wire.job_json.len();
            part.push(wire);
            let ends = i + 1 == nodes.len();
            if ends || part.len() == STEP_NODES_MAX || bytes >= PART_BYTES_MAX {
                let request = internal::AddNodesRequest {
                    context_id: flow.context_id,
                    flow_id: flow.id,
                    flow_uid: flow.uid.clone(),
                    nodes: std::mem::take(&mut part),
                    on_behalf_of: actor.map_or(0, |actor| actor.0),
                    request_id: request.map(|request| request.id.clone()).unwrap_or_default(),
                    request_hash: request.map(|request| request.hash.clone()).unwrap_or_default(),
                    request_ends: ends,
                    request_first_job_id: first_job,
                };
                self.store.add_nodes(request).await?;
                bytes = 0;
            }
        }
        Ok(())
    }

    /// Starts a flow that has all its nodes. It is driven here when it is our own, and by the
    /// replica that owns it otherwise.
    pub(crate) async fn start(
        &mut self,
        flow: &Flow,
        nodes: Vec<StoredNode>,
        actor: Option<ActorId>,
        request: Option<&RequestFingerprint>,
    ) -> Result<Flow, Status> {
        let uid: FlowUid = flow.uid.parse().map_err(bad_store)?;
        let is_ours = self.owns(&self.driver.replicas(), uid);
        let request = internal::StartFlowRequest {
            context_id: flow.context_id,
            flow_id: flow.id,
            flow_uid: flow.uid.clone(),
            owner: if is_ours { self.me.owner.to_string() } else { String::new() },
            on_behalf_of: actor.map_or(0, |actor| actor.0),
            request_id: request.map(|request| request.id.clone()).unwrap_or_default(),
            request_hash: request.map(|request| request.hash.clone()).unwrap_or_default(),
        };
        let started = match self.store.start_flow(request).await {
            Ok(started) => started.into_inner(),
            Err(status) => {
                // The flow may have been started nevertheless, and only the response was lost.
                self.touch(flow).await?;
                return Err(status);
            }
        };
        let signals = started.signals.iter().map(|name| name.parse().map_err(bad_store));
        let signals = signals.collect::<Result<BTreeSet<_>, Status>>()?;
        let record = started.flow.ok_or_else(|| bad_store("a started flow without its record"))?;
        if is_ours {
            return self.drive(record, nodes, signals).await;
        }
        let answer = record.flow.unwrap_or_default();
        log_start(&answer);
        Ok(answer)
    }

    /// Drives a flow of our own from its start on.
    pub(crate) async fn drive(
        &self,
        record: internal::FlowRecord,
        nodes: Vec<StoredNode>,
        signals: BTreeSet<SignalName>,
    ) -> Result<Flow, Status> {
        let answer = record.flow.clone().unwrap_or_default();
        log_start(&answer);
        let convert::flow::OwnedFlowRecord { mut flow, context_uid, last_commit, .. } =
            convert::flow::from_record(record).map_err(bad_store)?;
        flow.jobs = nodes.iter().map(|stored| stored.node.job_id).collect();
        let inputs = Vec::new();
        let started =
            StartedFlow { context_uid, flow, nodes, last_commit, signals, inputs, taken_over: false };
        self.driver.send(SchedulerEvent::Started(Box::new(started))).await;
        Ok(answer)
    }

    /// Makes the driver look at a flow, if this replica owns it.
    pub(crate) async fn touch(&self, flow: &Flow) -> Result<(), Status> {
        let active = DueFlow {
            key: (ContextId(flow.context_id), FlowId(flow.id)),
            uid: flow.uid.parse().map_err(bad_store)?,
            due: None,
        };
        self.driver.send(SchedulerEvent::Touched(active)).await;
        Ok(())
    }
}

/// Logs that a flow runs from now on.
pub(crate) fn log_start(flow: &Flow) {
    let Flow { id, context_id, name, caller_id, generation, node_count, .. } = flow;
    tracing::info!(
        flow = id,
        context = context_id,
        name,
        actor = caller_id,
        generation,
        jobs = node_count,
        "a flow has started"
    );
}

/// Builds the error for a request that names no context: all violations that the request itself shows, without any look-up.
fn without_context(flow: proto::v1::FlowSpec, mut violations: Violations, is_job: bool) -> rpc::Error {
    // Without a context, the specifications of jobs that were created before cannot be read.
    if !created_jobs::any(&flow.nodes) {
        let parsed = convert::flow_spec::from_wire(flow, "flow");
        violations.absorb(flow::check_request(parsed, "flow"));
    }
    rpc::Error::invalid(if is_job { job::as_of_job(&violations) } else { violations })
}

/// Returns the texts that do not count when two submissions are compared: a new signature changes nothing.
fn passing(request: &mut SubmitFlowRequest) -> Vec<&mut String> {
    let nodes = request.flow.iter_mut().flat_map(|flow| signatures_of(&mut flow.nodes));
    std::iter::once(&mut request.request_id).chain(nodes).collect()
}

/// The signatures of nodes.
pub(crate) fn signatures_of(nodes: &mut [NodeSpec]) -> impl Iterator<Item = &mut String> {
    nodes.iter_mut().filter_map(|node| node.job.as_mut()).map(|job| &mut job.signature)
}
