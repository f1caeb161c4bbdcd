//! Proto JSON: what `--output json` and `yaml` give, as protobuf defines it.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use proto::v1;
use serde::{Serialize, Serializer};

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(proto::DESCRIPTORS).expect("the build checks the descriptor set")
});

/// A message of the public API whose full name is known.
pub trait ApiMessage: Message {
    /// Full name of the message, such as `mycora.v1.Flow`.
    const NAME: &'static str;
}

macro_rules! named {
    ($($message:ident),+ $(,)?) => {
        $(impl ApiMessage for v1::$message {
            const NAME: &'static str = concat!("mycora.v1.", stringify!($message));
        })+
        #[cfg(test)]
        const NAMES: &[&str] = &[$(<v1::$message as ApiMessage>::NAME),+];
    };
}

named! {
    AcknowledgeMessageResponse,
    ApplySagaResponse,
    CancelEffectResponse,
    CancelFlowResponse,
    CancelNodeResponse,
    CancelSagaResponse,
    CompleteEffectResponse,
    CompleteSagaResponse,
    CreateContextResponse,
    CreateJobResponse,
    DeleteActorResponse,
    DeleteContextResponse,
    DeleteJobResponse,
    DeleteMessageResponse,
    DeleteRunnerResponse,
    DrainRunnerResponse,
    ExplainNodeResponse,
    ExplainSagaResponse,
    Flow,
    FlowNode,
    FlowSpec,
    GetActorResponse,
    GetAttemptResponse,
    GetContextResponse,
    GetContextUsageResponse,
    GetEffectResponse,
    GetFlowGraphResponse,
    GetGatewayResponse,
    GetJobResponse,
    GetMessageResponse,
    GetRunnerResponse,
    GetSagaDeadLetterResponse,
    GetSagaDefinitionResponse,
    GetSagaGraphResponse,
    GetSagaResponse,
    GetSagaServerResponse,
    GetSagaTimelineResponse,
    GetSupervisorResponse,
    KillSagaResponse,
    ListActorsResponse,
    ListAuditEntriesResponse,
    ListContextsResponse,
    ListDeadLettersResponse,
    ListEffectsResponse,
    ListFlowsResponse,
    ListInstancesResponse,
    ListJobsResponse,
    ListLanesResponse,
    ListMessagesResponse,
    ListRunnersResponse,
    ListSagaDeadLettersResponse,
    ListSagaDefinitionsResponse,
    ListSagaTimersResponse,
    ListSagasResponse,
    Message,
    MigrateSagaResponse,
    MoveLaneResponse,
    PauseSagaResponse,
    PauseTenantResponse,
    PingPeerResponse,
    PurgeSagaDeadLettersResponse,
    RedriveSagaDeadLettersResponse,
    RegisterActorResponse,
    RegisterRunnerResponse,
    ReplayLaneResponse,
    ResendMessageResponse,
    ResolveEffectResponse,
    ResumeSagaResponse,
    ResumeTenantResponse,
    RetireSagaResponse,
    RetryEffectResponse,
    RetryFlowResponse,
    RetrySagaStepResponse,
    RotateActorKeyResponse,
    RunAttemptResponse,
    RunJobResponse,
    SagaServiceDrainResponse,
    SagaServiceReloadResponse,
    SagaTimelineEntry,
    SendMessageResponse,
    SendSagaEventResponse,
    SignalFlowResponse,
    SkipSagaStepResponse,
    StartSagaResponse,
    StopAttemptResponse,
    StreamAttemptLogsResponse,
    StreamFlowLogsResponse,
    SubmitFlowResponse,
    SucceedCoordinatorResponse,
    UpdateActorResponse,
    UpdateContextResponse,
    UpdateNodeStatusResponse,
    UpdateRunnerResponse,
    ValidateSagaResponse,
    WaitAttemptResponse,
    WatchFlowsResponse,
    WatchRunnersResponse,
    WatchSagasResponse,
    WhoAmIResponse,
}

/// The message in the form that serializes as proto JSON: fields in their
/// order, defaults left out, 64 bit numbers as texts, bytes in base64.
#[must_use]
pub fn of<M: ApiMessage>(message: &M) -> DynamicMessage {
    let descriptor = POOL.get_message_by_name(M::NAME).expect("every named message is in the set");
    let mut dynamic = DynamicMessage::new(descriptor);
    dynamic.transcode_from(message).expect("both sides were made from the same definition");
    dynamic
}

/// Reads a message from its proto JSON.
///
/// # Errors
/// The reason why it is no such message, for people.
pub fn read<M: ApiMessage + Default>(value: serde_json::Value) -> Result<M, String> {
    let descriptor = POOL.get_message_by_name(M::NAME).ok_or_else(|| format!("there is no {}", M::NAME))?;
    let dynamic = DynamicMessage::deserialize(descriptor, value).map_err(|error| error.to_string())?;
    dynamic.transcode_to().map_err(|error| error.to_string())
}

/// Document that `flow get`, `flow watch` and `flow submit --watch` print.
#[derive(Debug, Serialize)]
pub struct FlowDocument<'a> {
    flow: DynamicMessage,
    #[serde(serialize_with = "each")]
    nodes: &'a [v1::FlowNode],
}

impl<'a> FlowDocument<'a> {
    /// Pairs a flow with its nodes.
    #[must_use]
    pub fn new(flow: &v1::Flow, nodes: &'a [v1::FlowNode]) -> Self {
        Self { flow: of(flow), nodes }
    }
}

/// Document that `flow nodes` prints: a `ListFlowNodesResponse` of all pages.
#[derive(Debug, Serialize)]
pub struct NodesDocument<'a> {
    /// The nodes by job id.
    #[serde(serialize_with = "each")]
    pub nodes: &'a [v1::FlowNode],
}

/// One after the other: the dynamic forms of 100,000 nodes at once would need a gigabyte.
fn each<S: Serializer>(nodes: &[v1::FlowNode], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nodes.iter().map(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_message_is_in_the_descriptor_set() {
        for name in NAMES {
            assert!(POOL.get_message_by_name(name).is_some(), "{name}");
        }
    }

    #[test]
    fn a_flow_is_proto_json() {
        let flow = v1::Flow {
            id: 3,
            name: "f".into(),
            status: v1::FlowStatus::Finished.into(),
            result: [("report.total".to_owned(), "42".to_owned())].into(),
            create_time: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 500_000_000 }),
            revision: 1 << 60,
            ..Default::default()
        };
        let node = v1::FlowNode { name: "a".into(), exit_code: Some(0), ..Default::default() };
        let text = serde_json::to_string(&FlowDocument::new(&flow, &[node])).expect("JSON");
        assert_eq!(
            text,
            r#"{"flow":{"id":3,"name":"f","result":{"report.total":"42"},"createTime":"2027-01-15T08:00:00.500Z","status":"FLOW_STATUS_FINISHED","revision":"1152921504606846976"},"nodes":[{"name":"a","exitCode":0}]}"#
        );
    }
}
