//! Fields without which a request has no object: numbers and names of what it is about.
//!
//! proto3 cannot distinguish a number that was left out from 0, which no object of ours has. A caller that leaves one out gets
//! the field's name, with all other violations, instead of "there is no such object".

use model::Violations;

use crate::v1;

/// A request that has fields that have to be given.
pub trait Required {
    /// The names of these fields.
    const FIELDS: &'static [&'static str];

    /// Notes those that are not given.
    fn note_missing(&self, violations: &mut Violations);
}

/// Test for a field with the value that stands for none.
trait Unset {
    fn is_unset(&self) -> bool;
}

impl Unset for u32 {
    fn is_unset(&self) -> bool {
        *self == 0
    }
}

impl Unset for String {
    fn is_unset(&self) -> bool {
        self.is_empty()
    }
}

impl<T> Unset for Vec<T> {
    fn is_unset(&self) -> bool {
        self.is_empty()
    }
}

impl<T> Unset for Option<T> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }
}

/// Starts the violations of a request with the fields that it lacks.
#[must_use]
pub fn missing<R: Required>(request: &R) -> Violations {
    let mut violations = Violations::new();
    request.note_missing(&mut violations);
    violations
}

/// Checks a request of which nothing else has to be checked.
///
/// # Errors
/// The fields that it lacks.
pub fn check<R: Required>(request: &R) -> Result<(), Violations> {
    missing(request).into_result(Some(()))
}

macro_rules! required {
    ($($request:ident: $($field:ident),+;)+) => {
        $(impl Required for v1::$request {
            const FIELDS: &'static [&'static str] = &[$(stringify!($field)),+];

            fn note_missing(&self, violations: &mut Violations) {
                $(if self.$field.is_unset() {
                    violations.add(stringify!($field), "is missing: it has to be given");
                })+
            }
        })+

        /// Every request that has such fields, with them.
        #[cfg(test)]
        const ALL: &[(&str, &[&str])] = &[$((stringify!($request), v1::$request::FIELDS)),+];
    };
}

required! {
    GetActorRequest: id;
    UpdateActorRequest: id;
    RotateActorKeyRequest: id;
    DeleteActorRequest: id;

    GetContextRequest: id;
    GetContextUsageRequest: context_id;
    UpdateContextRequest: context_id;
    DeleteContextRequest: context_id;
    ExportContextRequest: context_id;

    SubmitFlowRequest: context_id;
    CreateFlowRequest: context_id;
    AddFlowNodesRequest: context_id, flow_id;
    StartFlowRequest: context_id, flow_id;
    RunJobRequest: context_id;
    GetFlowRequest: context_id, flow_id;
    ListFlowsRequest: context_id;
    ListFlowNodesRequest: context_id, flow_id;
    WatchFlowRequest: context_id, flow_id;
    WatchFlowsRequest: context_id;
    SignalFlowRequest: context_id, flow_id;
    CancelFlowRequest: context_id, flow_id;
    CancelNodeRequest: context_id, flow_id, node;
    UpdateNodeStatusRequest: context_id, flow_id, node;
    RetryFlowRequest: context_id, flow_id;
    ExplainNodeRequest: context_id, flow_id, node;
    GetFlowGraphRequest: context_id, flow_id;
    DeleteFlowRequest: context_id, flow_id;
    StreamFlowLogsRequest: context_id, flow_id;

    CreateJobRequest: context_id;
    GetJobRequest: context_id, job_id;
    ListJobsRequest: context_id;
    DeleteJobRequest: context_id, job_id;
    PutBlobRequest: context_id;
    GetBlobRequest: context_id;

    SendMessageRequest: context_id;
    GetMessageRequest: context_id, key;
    ListMessagesRequest: context_id;
    DeleteMessageRequest: context_id, key;
    ReceiveMessagesRequest: context_id;
    AcknowledgeMessageRequest: context_id;
    ListDeadLettersRequest: context_id;
    ResendMessageRequest: context_id, key;

    RegisterRunnerRequest: context_id;
    GetRunnerRequest: context_id, runner_id;
    ListRunnersRequest: context_id;
    UpdateRunnerRequest: context_id, runner_id;
    DrainRunnerRequest: context_id, runner_id;
    DeleteRunnerRequest: context_id, runner_id;
    WatchRunnersRequest: context_id;

    ValidateSagaRequest: file;
    ApplySagaRequest: file;
    RetireSagaRequest: saga;
    GetSagaDefinitionRequest: saga;

    StartSagaRequest: saga, correlation_id;
    SendSagaEventRequest: saga, correlation_id, event_type;
    GetSagaRequest: saga, correlation_id;
    GetSagaTimelineRequest: saga, correlation_id;
    ExplainSagaRequest: saga, correlation_id;
    GetSagaGraphRequest: saga;

    PauseSagaRequest: saga, correlation_id;
    ResumeSagaRequest: saga, correlation_id;
    CancelSagaRequest: saga, correlation_id, reason;
    KillSagaRequest: saga, correlation_id, reason;
    RetrySagaStepRequest: saga, correlation_id;
    SkipSagaStepRequest: saga, correlation_id;
    CompleteSagaRequest: saga, correlation_id;
    MigrateSagaRequest: saga, correlation_id;

    GetEffectRequest: command_id;
    CompleteEffectRequest: command_id, token, outcome;
    ResolveEffectRequest: command_id, outcome;
    RetryEffectRequest: command_id;
    CancelEffectRequest: command_id;

    GetSagaDeadLetterRequest: key;
    RedriveSagaDeadLettersRequest: keys;
    PurgeSagaDeadLettersRequest: keys;

    ReplayLaneRequest: lane, confirm, replay;
    MoveLaneRequest: lane;
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    /// In which 0 stands for something: every context, or what belongs to none.
    const OPTIONAL: [&str; 3] = ["ListActorsRequest", "ListAuditEntriesRequest", "CheckContextRequest"];

    #[test]
    fn every_request_about_a_context_has_to_name_it() {
        let set = FileDescriptorSet::decode(crate::DESCRIPTORS).expect("a good set");
        let public = set.file.iter().filter(|file| file.package() == "mycora.v1");
        let with_context = public.flat_map(|file| &file.message_type).filter(|message| {
            message.name().ends_with("Request")
                && message.field.iter().any(|field| field.name() == "context_id")
        });
        let with_context: Vec<_> = with_context.map(prost_types::DescriptorProto::name).collect();
        assert!(with_context.len() > 30, "{with_context:?}");
        for name in with_context {
            let fields = ALL.iter().find(|(request, _)| *request == name).map(|(_, fields)| *fields);
            let is_required = fields.is_some_and(|fields| fields.contains(&"context_id"));
            assert_ne!(is_required, OPTIONAL.contains(&name), "{name}: {fields:?}");
        }
    }

    /// Requests of sagas that are about the server, with all its tenants.
    const OF_THE_SERVER: [&str; 1] = ["GetSagaServerRequest"];
    /// In which a saga or a correlation that is not named stands for all, or for none.
    const FILTERS: [&str; 7] = [
        "ListSagaDefinitionsRequest",
        "ListSagasRequest",
        "WatchSagasRequest",
        "ListSagaTimersRequest",
        "ListEffectsRequest",
        "ListSagaDeadLettersRequest",
        "ListLanesRequest",
    ];

    /// The server alone knows whether the tenant may be left out, since it has tenants or none.
    #[test]
    fn every_request_about_sagas_has_a_tenant_and_names_what_it_is_about() {
        let set = FileDescriptorSet::decode(crate::DESCRIPTORS).expect("a good set");
        let file =
            set.file.iter().find(|file| file.name() == "mycora/v1/saga_service.proto").expect("the file");
        let requests = file.message_type.iter().filter(|message| message.name().ends_with("Request"));
        let requests: Vec<_> = requests.collect();
        assert_eq!(requests.len(), file.service[0].method.len());
        for message in requests {
            let name = message.name();
            let has = |field: &str| message.field.iter().any(|known| known.name() == field);
            assert_ne!(has("tenant_id"), OF_THE_SERVER.contains(&name), "{name}");
            let required =
                ALL.iter().find(|(request, _)| *request == name).map_or(&[][..], |(_, fields)| fields);
            for field in ["saga", "command_id", "key", "keys", "lane", "file"] {
                let is_required = required.contains(&field);
                assert_eq!(is_required, has(field) && !FILTERS.contains(&name), "{name}: {field}");
            }
            let is_about_one = has("saga") && has("correlation_id") && !FILTERS.contains(&name);
            let is_required = required.contains(&"correlation_id");
            assert_eq!(is_required, is_about_one && name != "GetSagaGraphRequest", "{name}: correlation_id");
        }
    }

    #[test]
    fn what_is_missing_is_named_field_by_field() {
        let request = v1::CancelNodeRequest { flow_id: 3, ..Default::default() };
        let found = missing(&request);
        let fields: Vec<_> = found.as_slice().iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["context_id", "node"]);
        assert_eq!(check(&v1::ListFlowsRequest { context_id: 1, ..Default::default() }), Ok(()));
        let found = missing(&v1::CompleteEffectRequest::default());
        let fields: Vec<_> = found.as_slice().iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["command_id", "token", "outcome"]);
        let keys = vec!["order/4711/0".to_owned()];
        assert_eq!(check(&v1::PurgeSagaDeadLettersRequest { keys, ..Default::default() }), Ok(()));
    }
}
