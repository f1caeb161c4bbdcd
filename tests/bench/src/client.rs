//! A client as any program would write it: generated stubs over mTLS.

use std::collections::BTreeMap;
use std::time::Duration;

use mycora_cli::profile::{ApiService, Profile};
use proto::convert::enums::script_type_to_wire;
use proto::v1::context_service_client::ContextServiceClient;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::runner_service_client::RunnerServiceClient;
use proto::v1::watch_flow_response::Event;
use proto::v1::{
    AddFlowNodesRequest, CreateContextRequest, CreateFlowRequest, Flow, FlowSpec, FlowStatus,
    GetContextUsageRequest, GetContextUsageResponse, GetRunnerRequest, JobSpec, ListFlowNodesRequest,
    ListFlowsRequest, ListRunnersRequest, NodeSpec, RegisterRunnerRequest, Script, SignalFlowRequest,
    StartFlowRequest, SubmitFlowRequest, WatchFlowRequest, WatchFlowsRequest, WatchFlowsResponse, script,
};
use testkit::wait_until;
use tonic::{Status, Streaming};

/// How long a runner may take to come alive.
const LIVE_TIMEOUT: Duration = Duration::from_secs(60);

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Submits flows and waits for their ends.
#[derive(Clone)]
pub(crate) struct Client {
    flows: FlowServiceClient<rpc::Channel>,
    runners: RunnerServiceClient<rpc::Channel>,
    context: u32,
}

impl Client {
    /// Connects with the profile.
    pub(crate) fn connect(profile: &Profile) -> Result<Self, Error> {
        let channel = profile.channel_to(ApiService::Scheduler)?;
        let runners = RunnerServiceClient::new(profile.channel_to(ApiService::RunnerRegistry)?);
        Ok(Self { flows: FlowServiceClient::new(channel), runners, context: profile.context })
    }

    /// Returns a client of a new context, whose jobs run where those of this context do.
    pub(crate) async fn in_a_new_context(&self, profile: &Profile) -> Result<Self, Error> {
        let mut contexts = ContextServiceClient::new(profile.channel_to(ApiService::Scheduler)?);
        let created = contexts.create_context(CreateContextRequest::default()).await?.into_inner();
        let context = created.context.ok_or("no context was answered")?.id;
        let list = ListRunnersRequest { context_id: self.context, ..Default::default() };
        for runner in self.runners.clone().list_runners(list).await?.into_inner().runners {
            let register = RegisterRunnerRequest {
                context_id: context,
                address: runner.address,
                script_types: runner.script_types,
                local: runner.local,
                ..Default::default()
            };
            self.runners.clone().register_runner(register).await?;
        }
        Ok(Self { context, ..self.clone() })
    }

    /// Submits a flow of no-op jobs.
    pub(crate) async fn submit(&self, name: &str, nodes: Vec<NodeSpec>) -> Result<Flow, Error> {
        let flow = FlowSpec { name: name.into(), nodes, ..FlowSpec::default() };
        let request = SubmitFlowRequest { context_id: self.context, flow: Some(flow), ..Default::default() };
        let answer = self.flows.clone().submit_flow(request).await?.into_inner();
        Ok(answer.flow.ok_or("no flow was answered")?)
    }

    /// Submits a flow of no-op jobs as this request, however often it is sent.
    pub(crate) async fn submit_as(
        &self,
        name: &str,
        nodes: Vec<NodeSpec>,
        request_id: &str,
    ) -> Result<Flow, Status> {
        let flow = FlowSpec { name: name.into(), nodes, ..FlowSpec::default() };
        let request_id = request_id.to_owned();
        let request = SubmitFlowRequest {
            request_id,
            context_id: self.context,
            flow: Some(flow),
            ..Default::default()
        };
        let answer = self.flows.clone().submit_flow(request).await?.into_inner();
        answer.flow.ok_or_else(|| Status::internal("no flow was answered"))
    }

    /// Submits a flow and waits for its end.
    pub(crate) async fn run(&self, name: &str, nodes: Vec<NodeSpec>) -> Result<(), Error> {
        let flow = self.submit(name, nodes).await?;
        self.wait(flow.id).await
    }

    /// Returns true if a live runner takes scripts of this type.
    pub(crate) async fn offers(&self, script_type: model::ScriptType) -> Result<bool, Error> {
        let request = ListRunnersRequest { context_id: self.context, ..Default::default() };
        let runners = self.runners.clone().list_runners(request).await?.into_inner().runners;
        let wanted = i32::from(script_type_to_wire(script_type));
        Ok(runners.iter().any(|runner| {
            runner.live && runner.instances.iter().any(|instance| instance.script_type == wanted)
        }))
    }

    /// Registers a supervisor; gives the record's id.
    pub(crate) async fn register(&self, address: &str) -> Result<u32, Error> {
        let request = RegisterRunnerRequest {
            context_id: self.context,
            address: address.to_owned(),
            ..Default::default()
        };
        let answer = self.runners.clone().register_runner(request).await?.into_inner();
        Ok(answer.runner.ok_or("no runner was answered")?.id)
    }

    /// Waits until a runner is alive and offers something.
    pub(crate) async fn wait_live(&self, runner_id: u32) {
        let context_id = self.context;
        let lives = || async move {
            let request = GetRunnerRequest { context_id, runner_id };
            let runner = self.runners.clone().get_runner(request).await.ok()?.into_inner().runner?;
            (runner.live && !runner.instances.is_empty()).then_some(())
        };
        wait_until(lives, LIVE_TIMEOUT, format!("runner {runner_id} is alive")).await;
    }

    /// Creates a flow that is filled later.
    pub(crate) async fn create(&self, name: &str, node_count: u32) -> Result<Flow, Error> {
        let flow = Some(FlowSpec { name: name.into(), ..FlowSpec::default() });
        let request = CreateFlowRequest { context_id: self.context, flow, node_count, ..Default::default() };
        let answer = self.flows.clone().create_flow(request).await?.into_inner();
        Ok(answer.flow.ok_or("no flow was answered")?)
    }

    /// Adds nodes to it.
    pub(crate) async fn add(
        &self,
        flow_id: u32,
        first_index: u32,
        nodes: Vec<NodeSpec>,
    ) -> Result<(), Error> {
        let request = AddFlowNodesRequest {
            context_id: self.context,
            flow_id,
            first_index,
            nodes,
            ..AddFlowNodesRequest::default()
        };
        self.flows.clone().add_flow_nodes(request).await?;
        Ok(())
    }

    /// Starts it.
    pub(crate) async fn start(&self, flow_id: u32) -> Result<(), Error> {
        let start = StartFlowRequest { context_id: self.context, flow_id, ..StartFlowRequest::default() };
        self.flows.clone().start_flow(start).await?;
        Ok(())
    }

    /// Gives a signal to a flow.
    pub(crate) async fn signal(&self, flow_id: u32, name: &str) -> Result<(), Error> {
        let context_id = self.context;
        let request = SignalFlowRequest { context_id, flow_id, name: name.into(), ..Default::default() };
        self.flows.clone().signal_flow(request).await?;
        Ok(())
    }

    /// Waits until a flow has ended; any other end than FINISHED is an error.
    pub(crate) async fn wait(&self, flow_id: u32) -> Result<(), Error> {
        let request = WatchFlowRequest { context_id: self.context, flow_id, ..Default::default() };
        let mut events = self.flows.clone().watch_flow(request).await?.into_inner();
        let mut status = FlowStatus::Unspecified;
        while let Some(answer) = events.message().await? {
            if let Some(Event::Flow(flow)) = answer.event {
                status = flow.status();
            }
        }
        if status == FlowStatus::Finished {
            Ok(())
        } else {
            Err(format!("flow {flow_id} ended as {status:?}").into())
        }
    }

    /// Watches the flows of the context.
    pub(crate) async fn watch_all(
        &self,
        request: WatchFlowsRequest,
    ) -> Result<Streaming<WatchFlowsResponse>, Error> {
        let request = WatchFlowsRequest { context_id: self.context, ..request };
        Ok(self.flows.clone().watch_flows(request).await?.into_inner())
    }

    /// Asks for the first page of flows, newest first, of this status if one is specified.
    pub(crate) async fn list(&self, status: FlowStatus) -> Result<(), Error> {
        let request = ListFlowsRequest {
            context_id: self.context,
            status: status.into(),
            ..ListFlowsRequest::default()
        };
        self.flows.clone().list_flows(request).await?;
        Ok(())
    }

    /// How much the context has.
    pub(crate) async fn usage(&self, profile: &Profile) -> Result<GetContextUsageResponse, Error> {
        let mut contexts = ContextServiceClient::new(profile.channel_to(ApiService::Storage)?);
        let request = GetContextUsageRequest { context_id: self.context };
        Ok(contexts.get_context_usage(request).await?.into_inner())
    }

    /// When the first node of a flow started, in milliseconds since 1970.
    pub(crate) async fn first_start_millis(&self, flow_id: u32) -> Result<u64, Error> {
        let request = ListFlowNodesRequest { context_id: self.context, flow_id, ..Default::default() };
        let nodes = self.flows.clone().list_flow_nodes(request).await?.into_inner().nodes;
        let time = nodes.first().and_then(|node| node.start_time).ok_or("the node has no start")?;
        Ok(u64::try_from(time.seconds)? * 1000 + u64::try_from(time.nanos)? / 1_000_000)
    }
}

/// A node that does nothing.
pub(crate) fn no_op(name: String, depends: Vec<String>) -> NodeSpec {
    node(name, depends, model::ScriptType::Rhai, "()")
}

/// A node with a script.
pub(crate) fn node(
    name: String,
    depends: Vec<String>,
    script_type: model::ScriptType,
    script: &str,
) -> NodeSpec {
    let job = JobSpec {
        script_type: script_type_to_wire(script_type).into(),
        script: Some(Script { source: Some(script::Source::Text(script.into())) }),
        env_vars: BTreeMap::new(),
        files: BTreeMap::new(),
        outputs: Vec::new(),
        signature: String::new(),
    };
    NodeSpec { name, depends, job: Some(job), ..NodeSpec::default() }
}
