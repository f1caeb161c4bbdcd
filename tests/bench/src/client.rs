//! A client as any program would write it: generated stubs over mTLS.

use std::collections::BTreeMap;

use mycora_cli::profile::{Host, Profile};
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::watch_flow_response::Event;
use proto::v1::{
    AddFlowNodesRequest, CreateFlowRequest, Flow, FlowSpec, FlowStatus, JobSpec, ListFlowNodesRequest,
    NodeSpec, Script, ScriptType, SignalFlowRequest, StartFlowRequest, SubmitFlowRequest, WatchFlowRequest,
    script,
};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Submits flows and waits for their ends.
#[derive(Clone)]
pub(crate) struct Client {
    flows: FlowServiceClient<rpc::Channel>,
    context: u32,
}

impl Client {
    /// Connects as the profile says.
    pub(crate) fn connect(profile: &Profile) -> Result<Self, Error> {
        let channel = profile.channel_to(Host::Scheduler)?;
        Ok(Self { flows: FlowServiceClient::new(channel), context: profile.context })
    }

    /// Submits a flow of no-op jobs.
    pub(crate) async fn submit(&self, name: &str, nodes: Vec<NodeSpec>) -> Result<Flow, Error> {
        let flow = FlowSpec { name: name.into(), nodes, ..FlowSpec::default() };
        let request = SubmitFlowRequest { context_id: self.context, flow: Some(flow), ..Default::default() };
        let answer = self.flows.clone().submit_flow(request).await?.into_inner();
        Ok(answer.flow.ok_or("no flow was answered")?)
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
        let request = AddFlowNodesRequest { context_id: self.context, flow_id, first_index, nodes };
        self.flows.clone().add_flow_nodes(request).await?;
        Ok(())
    }

    /// Starts it.
    pub(crate) async fn start(&self, flow_id: u32) -> Result<(), Error> {
        self.flows.clone().start_flow(StartFlowRequest { context_id: self.context, flow_id }).await?;
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
    let job = JobSpec {
        script_type: ScriptType::Rhai.into(),
        script: Some(Script { source: Some(script::Source::Text("()".into())) }),
        env_vars: BTreeMap::new(),
        files: BTreeMap::new(),
        outputs: Vec::new(),
    };
    NodeSpec { name, depends, job: Some(job), ..NodeSpec::default() }
}
