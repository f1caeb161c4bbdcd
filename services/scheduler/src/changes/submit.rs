//! From a submission to a flow that runs.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use flow::Plan;
use flow::engine::{Engine, StoredNode};
use model::{
    ActorId, BlobHash, ContextId, Epoch, FlowId, FlowNode, FlowSpec, FlowUid, JobId, Name, ScriptSource,
    SignalName, Timestamp, Violations,
};
use proto::convert;
use proto::internal::v1 as internal;
use proto::required;
use proto::v1::{Flow, FlowStatus, NodeSpec, RunJobRequest, SubmitFlowRequest};
use tokio::sync::oneshot;
use tonic::{Code, Status};

use crate::changes::repeat::{self, Repeatable, hash_without};
use crate::changes::signatures::{self, Place};
use crate::changes::{created, job, scripts};
use crate::clients::FlowStoreClient;
use crate::commit;
use crate::driver::{Begun, Event, Handle, Stored};
use crate::error::bad_store;
use crate::loader::StartedFlow;
use crate::replica::{Active, Identity};
use crate::run::STEP_NODES_MAX;

/// Nodes are added in parts of at most this many bytes.
pub(crate) const PART_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Nodes and bytes of scripts of a flow whose first step is stored by the change that creates it.
const FIRST_STEP_NODES_MAX: usize = 64;
const FIRST_STEP_BYTES_MAX: usize = 256 * 1024;
/// How often a uid is drawn to find one that makes the flow our own.
const UID_DRAWS_MAX: usize = 256;

/// What a look at a submission has shown.
enum Checked {
    /// A flow that can be made.
    New(FlowSpec, Plan),
    /// The one that the same request made before.
    Made(Box<Flow>),
}

/// Makes flows and starts them.
#[derive(Clone)]
pub struct Submitter {
    pub(crate) store: FlowStoreClient,
    driver: Handle,
    me: Identity,
}

impl Submitter {
    /// Flows are kept by `store`; those that this replica owns go to `driver`.
    #[must_use]
    pub const fn new(store: FlowStoreClient, driver: Handle, me: Identity) -> Self {
        Self { store, driver, me }
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

    /// The same for one job.
    ///
    /// # Errors
    /// As [`Submitter::submit`], with fields as they are called there.
    pub async fn submit_job(self, actor: ActorId, request: RunJobRequest) -> Result<Flow, Status> {
        let (request, noted) = job::submission(request);
        self.submit_all(actor, request, String::new(), Some(noted)).await
    }

    /// The same for what came as a message, whose status follows the flow's from then on. `message_key` is
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

    /// `of_job` is what was wrong with the call that runs one job, when that is what is submitted.
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
        let asked = Repeatable::parse(&request_id, request_hash, &mut violations);
        let mut wire = flow.unwrap_or_default();
        let nodes = std::mem::take(&mut wire.nodes);
        let header = wire.clone();
        wire.nodes = nodes;
        let caller = if caller_id == 0 { actor } else { ActorId(caller_id) };
        let place = (actor, context_id, caller);
        if context_id == 0 {
            return Err(without_context(wire, violations, is_job).into());
        }
        // What has its flow needs none of the jobs that it names: they may be gone by now.
        if created::any(&wire.nodes)
            && let Some(flow) = self.made_before(actor, context_id, &asked).await?
        {
            return Ok(flow);
        }
        created::take_up(&mut self.store, place, &mut wire.nodes).await?;
        let checked = self.check(wire, place, &asked, violations).await?;
        let (mut spec, plan) =
            match checked.map_err(|found| if is_job { job::as_of_job(&found) } else { found }) {
                Ok(Checked::New(spec, plan)) => (spec, plan),
                Ok(Checked::Made(flow)) => return Ok(*flow),
                Err(found) => return Err(rpc::Error::invalid(found).into()),
            };
        scripts::keep(&mut self.store, (actor, context_id), &mut spec.nodes).await?;
        let (uid, blobs) = (self.own_uid(), blobs_of(&spec));
        let goes_first = spec.nodes.iter().any(|node| node.policy.goes_first());
        let is_ours = self.owns(&self.driver.replicas(), uid);
        let unstored = is_ours.then(|| self.unstored(uid, (context_id, caller), &spec));
        let mut nodes = stored_nodes(spec);
        let mut begun = match unstored {
            Some(flow) => self.begin(flow, plan, &nodes).await,
            None => None,
        };
        let first_step = begun.as_mut().map(|begun| begun.take_step()).transpose().map_err(bad_store)?;
        let beginning = if is_ours && begun.is_none() { all_of(&nodes)? } else { Vec::new() };
        let create = internal::CreateFlowRequest {
            request_id: asked.id,
            request_hash: asked.hash,
            context_id,
            flow_id,
            caller_id: caller.0,
            on_behalf_of: actor.0,
            flow: Some(header),
            node_count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            flow_uid: uid.to_string(),
            blobs,
            message_key,
            nodes: beginning,
            owner: self.me.owner.to_string(),
            goes_first,
            first_step,
        };
        let created = self.store.create_flow(create).await.map(tonic::Response::into_inner);
        let is_driven = match begun {
            Some(begun) => self.begun(begun, created.as_ref().ok(), &nodes).await?,
            None => false,
        };
        let created = created?;
        let record = created.flow.ok_or_else(|| bad_store("a new flow without its record"))?;
        let flow = record.flow.clone().ok_or_else(|| bad_store("a new flow without its record"))?;
        if is_driven {
            log_start(&flow);
            return Ok(flow);
        }
        if flow.status() != FlowStatus::Created && !created.is_new {
            // The same request has come before. Whoever began it may not have got to driving the flow.
            self.touch(&flow).await?;
            return Ok(flow);
        }
        nodes.iter_mut().for_each(|stored| stored.node.renumber(created.first_job_id.saturating_sub(1)));
        if flow.status() != FlowStatus::Created {
            return self.drive(record, nodes, BTreeSet::new()).await;
        }
        let starting = async {
            self.add_nodes(&flow, &nodes, None, None).await?;
            self.start(&flow, nodes, None, None).await
        };
        match starting.await {
            // The same request, which came at the same time, was faster.
            Err(status) if status.code() == Code::FailedPrecondition => {
                self.started_meanwhile(actor, &flow).await?.ok_or(status)
            }
            started => started,
        }
    }

    /// Has the driver make the first step of a flow. Nothing when it is to be made once the flow is stored: of a large one, so that no script
    /// is long, and where a condition may ask for the number that the flow does not have yet.
    async fn begin(&self, flow: model::Flow, plan: Plan, nodes: &[StoredNode]) -> Option<Box<Begun>> {
        if nodes.len() > FIRST_STEP_NODES_MAX || nodes.iter().any(|stored| stored.node.when.is_some()) {
            return None;
        }
        let script_bytes = |stored: &StoredNode| match &stored.job.script {
            ScriptSource::Inline(text) => text.len(),
            ScriptSource::Blob(_) => 0,
        };
        let bytes: usize = nodes.iter().map(script_bytes).sum();
        if bytes > FIRST_STEP_BYTES_MAX {
            return None;
        }
        let engine = Box::new(Engine::unstored(flow, plan, nodes.to_vec()));
        let (answer, begun) = oneshot::channel();
        self.driver.send(Event::Begin(engine, answer)).await;
        begun.await.ok().flatten()
    }

    /// A flow of our own as it will be stored, but for its numbers.
    fn unstored(&self, uid: FlowUid, (context, caller): (u32, ActorId), spec: &FlowSpec) -> model::Flow {
        let now = Timestamp::now();
        model::Flow {
            env_vars: spec.env_vars.clone(),
            fail_fast: spec.fail_fast,
            cancel_timeout_secs: spec.cancel_timeout_secs,
            status: model::FlowStatus::Started,
            owner: Some(self.me.owner),
            epoch: Epoch(1),
            deadline: spec.deadline_secs.map(|secs| now + Duration::from_secs(secs.into())),
            ..model::Flow::new(FlowId(0), uid, spec.name.clone(), ContextId(context), caller, now)
        }
    }

    /// Tells the driver what became of a flow whose first step it has made, and gives whether it is driven from there on.
    async fn begun(
        &self,
        begun: Box<Begun>,
        created: Option<&internal::CreateFlowResponse>,
        nodes: &[StoredNode],
    ) -> Result<bool, Status> {
        let stored = created.map_or(Ok(None), |created| stored_as(created, nodes));
        let (stored, failed) = match stored {
            Ok(stored) => (stored, None),
            Err(status) => (None, Some(status)),
        };
        let is_driven = stored.is_some();
        // Whatever was answered, the driver has to know.
        self.driver.send(Event::Begun(begun, stored)).await;
        failed.map_or(Ok(is_driven), Err)
    }

    /// A flow that was in CREATED, when it has got further.
    async fn started_meanwhile(&mut self, actor: ActorId, flow: &Flow) -> Result<Option<Flow>, Status> {
        let answered = internal::FindRequestResponse {
            flow_id: flow.id,
            flow_uid: flow.uid.clone(),
            ..internal::FindRequestResponse::default()
        };
        let flow = repeat::flow_of(&mut self.store, actor, flow.context_id, &answered).await?;
        Ok(Some(flow).filter(|flow| flow.status() != FlowStatus::Created))
    }

    /// The flow that the same request made before, when it has got beyond its making.
    async fn made_before(
        &mut self,
        actor: ActorId,
        context_id: u32,
        asked: &Repeatable,
    ) -> Result<Option<Flow>, Status> {
        let Some(answered) = asked.find(&mut self.store, actor, context_id).await? else {
            return Ok(None);
        };
        let flow = repeat::flow_of(&mut self.store, actor, context_id, &answered).await?;
        if flow.status() == FlowStatus::Created {
            return Ok(None);
        }
        self.touch(&flow).await?;
        Ok(Some(flow))
    }

    /// Adds to what is wrong with a request everything that is wrong with its flow: its fields, its graph, and signatures that
    /// do not fit or are not its caller's. What was signed over fields that have to change is not looked at: it has to be
    /// signed anew.
    ///
    /// A request that comes again has its flow, though a signature may be over by now, or the key behind it be another. That
    /// is only looked up where a signature would be refused: all others are found by whoever makes the flow.
    async fn check(
        &mut self,
        wire: proto::v1::FlowSpec,
        place: (ActorId, u32, ActorId),
        asked: &Repeatable,
        mut violations: Violations,
    ) -> Result<Result<Checked, Violations>, Status> {
        let parsed = convert::flow_spec::from_wire(wire, "flow");
        let of_signatures = match &parsed {
            Ok(spec) => self.check_signatures(spec, place).await?,
            Err(_) => Violations::new(),
        };
        let spec = violations.absorb(flow::check_request(parsed, "flow"));
        if violations.is_empty()
            && !of_signatures.is_empty()
            && let Some(flow) = self.made_before(place.0, place.1, asked).await?
        {
            return Ok(Ok(Checked::Made(Box::new(flow))));
        }
        violations.absorb::<()>(Err(of_signatures));
        Ok(violations.into_result(spec.map(|(spec, plan)| Checked::New(spec, plan))))
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
        let place = Place { context_uid, caller, keys: &keys, env_vars: &spec.env_vars };
        Ok(signatures::check_specs(&spec.nodes, place, true, "flow.", Timestamp::now()))
    }

    /// A uid that makes a flow our own: whoever makes a flow has it in memory already.
    pub(crate) fn own_uid(&self) -> FlowUid {
        let replicas = self.driver.replicas();
        let mut uids = (0..UID_DRAWS_MAX).map(|_| FlowUid::random());
        uids.find(|uid| self.owns(&replicas, *uid)).unwrap_or_else(FlowUid::random)
    }

    fn owns(&self, replicas: &[String], uid: FlowUid) -> bool {
        let owner = model::placement::owner_of(replicas.iter().map(String::as_str), uid);
        owner == Some(self.me.name.as_str())
    }

    /// Adds nodes to a flow, in the name of an actor or in our own, for a request or for none.
    pub(crate) async fn add_nodes(
        &mut self,
        flow: &Flow,
        nodes: &[StoredNode],
        actor: Option<ActorId>,
        request: Option<&Repeatable>,
    ) -> Result<(), Status> {
        let first_job = nodes.first().map_or(0, |stored| stored.node.job_id.0);
        let mut part = Vec::new();
        let mut bytes = 0;
        for (i, stored) in nodes.iter().enumerate() {
            let wire = to_wire(stored)?;
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
        request: Option<&Repeatable>,
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
                // It may be started all the same, with an answer that was lost.
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
    async fn drive(
        &self,
        record: internal::FlowRecord,
        nodes: Vec<StoredNode>,
        signals: BTreeSet<SignalName>,
    ) -> Result<Flow, Status> {
        let answer = record.flow.clone().unwrap_or_default();
        log_start(&answer);
        let convert::flow::Record { mut flow, context_uid, last_commit, .. } =
            convert::flow::from_record(record).map_err(bad_store)?;
        flow.jobs = nodes.iter().map(|stored| stored.node.job_id).collect();
        let inputs = Vec::new();
        let started =
            StartedFlow { context_uid, flow, nodes, last_commit, signals, inputs, taken_over: false };
        self.driver.send(Event::Started(Box::new(started))).await;
        Ok(answer)
    }

    /// Has the driver look at a flow, if it is our own.
    async fn touch(&self, flow: &Flow) -> Result<(), Status> {
        let active = Active {
            key: (ContextId(flow.context_id), FlowId(flow.id)),
            uid: flow.uid.parse().map_err(bad_store)?,
            due: None,
        };
        self.driver.send(Event::Touched(active)).await;
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

/// Everything that the request itself shows to be wrong when it names no context: nothing can be looked up there.
fn without_context(flow: proto::v1::FlowSpec, mut violations: Violations, is_job: bool) -> rpc::Error {
    // What jobs say that were created before is not known.
    if !created::any(&flow.nodes) {
        let parsed = convert::flow_spec::from_wire(flow, "flow");
        violations.absorb(flow::check_request(parsed, "flow"));
    }
    rpc::Error::invalid(if is_job { job::as_of_job(&violations) } else { violations })
}

/// What does not count when two submissions are compared: signed anew one is the same.
fn passing(request: &mut SubmitFlowRequest) -> Vec<&mut String> {
    let nodes = request.flow.iter_mut().flat_map(|flow| signatures_of(&mut flow.nodes));
    std::iter::once(&mut request.request_id).chain(nodes).collect()
}

/// The signatures of nodes.
pub(crate) fn signatures_of(nodes: &mut [NodeSpec]) -> impl Iterator<Item = &mut String> {
    nodes.iter_mut().filter_map(|node| node.job.as_mut()).map(|job| &mut job.signature)
}

/// Every blob that the jobs refer to, once.
fn blobs_of(spec: &FlowSpec) -> Vec<String> {
    let blobs: BTreeSet<BlobHash> =
        spec.nodes.iter().flat_map(|node| node.job.blobs()).map(|blob| blob.sha256).collect();
    blobs.iter().map(BlobHash::to_string).collect()
}

/// The nodes of a flow, whose jobs are numbered from 1 on.
fn stored_nodes(spec: FlowSpec) -> Vec<StoredNode> {
    let ids: HashMap<Name, JobId> =
        spec.nodes.iter().map(|node| node.name.clone()).zip((1..).map(JobId)).collect();
    let stored = |node: model::NodeSpec| {
        let depends = node.depends.iter().map(|name| ids[name]).collect();
        StoredNode { node: FlowNode::new(ids[&node.name], &node, depends), job: Arc::new(node.job) }
    };
    spec.nodes.into_iter().map(stored).collect()
}

/// All nodes of a flow, for the change that creates it; none when they are more than it takes.
fn all_of(nodes: &[StoredNode]) -> Result<Vec<internal::StoredNode>, Status> {
    if nodes.len() > STEP_NODES_MAX {
        return Ok(Vec::new());
    }
    let (mut all, mut bytes) = (Vec::with_capacity(nodes.len()), 0);
    for stored in nodes {
        let wire = to_wire(stored)?;
        bytes += wire.node_json.len() + wire.job_json.len();
        if bytes >= PART_BYTES_MAX {
            return Ok(Vec::new());
        }
        all.push(wire);
    }
    Ok(all)
}

fn to_wire(stored: &StoredNode) -> Result<internal::StoredNode, Status> {
    commit::stored_node(&stored.node, &stored.job).map_err(bad_store)
}

/// As what a flow was stored by this call together with its first step; nothing when it was not.
fn stored_as(
    created: &internal::CreateFlowResponse,
    nodes: &[StoredNode],
) -> Result<Option<Box<Stored>>, Status> {
    let record = created.flow.clone().ok_or_else(|| bad_store("a new flow without its record"))?;
    let by = created.first_job_id.saturating_sub(1);
    let convert::flow::Record { mut flow, context_uid, last_commit, .. } =
        convert::flow::from_record(record).map_err(bad_store)?;
    if !created.is_new || flow.status != model::FlowStatus::Started {
        return Ok(None);
    }
    flow.jobs = nodes.iter().map(|stored| JobId(stored.node.job_id.0.saturating_add(by))).collect();
    Ok(Some(Box::new(Stored { context_uid, flow, last_commit, by })))
}
