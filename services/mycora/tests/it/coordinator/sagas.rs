//! A saga service that has one instance, which goes from step to step and completes.

use std::fmt::Debug;

use proto::v1;
use proto::v1::saga_service_server::SagaService;
use proto::v1::watch_sagas_response::Event;
use tonic::{Request, Response, Status};

use super::{Answers, CoordinatorScript, ScriptedServices, answers, refused};

/// The hash of the only definition.
pub(crate) const DEFINITION: &str = "abababababababababababababababababababababababababababababababab";

impl ScriptedServices {
    /// Notes a call without its request id, which is another one each time; refuses tenants where there are none.
    fn saga_call(&self, method: &str, request: &impl Debug, tenant: &str) -> Result<usize, Status> {
        let mut text = format!("{request:?}");
        if let Some((before, rest)) = text.split_once("request_id: \"") {
            let (id, after) = rest.split_once("\", ").expect("more fields follow");
            let id = id.to_owned();
            text = format!("{before}{after}");
            self.note(|recorded| recorded.request_ids.push(id));
        }
        if self.script == CoordinatorScript::NoTenants && !tenant.is_empty() {
            let mut violations = model::Violations::new();
            violations.add("tenant_id", "this server has no tenants: leave it empty");
            return Err(rpc::Error::from(violations.into_result(Some(())).expect_err("one")).into());
        }
        Ok(self.call(&format!("{method} {text}")))
    }
}

fn saga(status: v1::SagaStatus, step: &str, revision: u64) -> v1::Saga {
    let mut saga = v1::Saga {
        tenant_id: "1".into(),
        saga: "order".into(),
        correlation_id: "o-1".into(),
        step: step.into(),
        revision,
        ..Default::default()
    };
    saga.set_status(status);
    saga
}

fn change() -> Option<v1::SagaChange> {
    let mut change =
        v1::SagaChange { saga: Some(saga(v1::SagaStatus::Running, "reserve", 1)), ..Default::default() };
    change.set_fate(v1::SagaInputFate::Applied);
    Some(change)
}

fn watched(saga: v1::Saga, position: &str) -> Result<v1::WatchSagasResponse, Status> {
    Ok(v1::WatchSagasResponse { event: Some(Event::Saga(saga)), resume_position: position.into() })
}

fn row(revision: u64, definition: &str) -> v1::SagaTimelineEntry {
    v1::SagaTimelineEntry { revision, definition_hash: definition.into(), ..Default::default() }
}

type Answer<T> = Result<T, Status>;

/// The first page of a timeline, then the second.
fn timeline(request: &v1::GetSagaTimelineRequest) -> v1::GetSagaTimelineResponse {
    let (entries, next) = match request.page_token.as_str() {
        "" => (vec![row(1, DEFINITION)], "2"),
        _ => (vec![row(2, "")], ""),
    };
    v1::GetSagaTimelineResponse { entries, next_page_token: next.into(), first_revision: 1 }
}

fn redrive(key: &str) -> v1::SagaRedrive {
    let fails = key == "bad";
    let fate = if fails { v1::SagaInputFate::DeadLetter } else { v1::SagaInputFate::Applied };
    let front = if fails { key } else { "" };
    v1::SagaRedrive {
        key: key.into(),
        fate: fate.into(),
        dead_letter_key: front.into(),
        ..Default::default()
    }
}

impl ScriptedServices {
    fn started(&self, request: &v1::StartSagaRequest, times: usize) -> Answer<v1::StartSagaResponse> {
        match request.correlation_id.as_str() {
            "late" => Err(Status::deadline_exceeded("the owner of the lane does not answer")),
            "lost" if times == 1 => {
                Err(rpc::Error::unavailable(rpc::RpcReason::StoreUnavailable, "lost").into())
            }
            "there" => {
                let kind = rpc::ErrorKind::AlreadyExists;
                Err(rpc::Error::new(kind, rpc::RpcReason::SagaExists, "the instance there of order runs")
                    .into())
            }
            _ => Ok(v1::StartSagaResponse { change: change() }),
        }
    }

    fn instance(&self, request: &v1::GetSagaRequest) -> Answer<v1::GetSagaResponse> {
        if request.correlation_id == "none" {
            return Err(rpc::Error::not_found("the instance none of order").into());
        }
        let saga = match request.correlation_id.as_str() {
            "o-2" => saga(v1::SagaStatus::Compensated, "reserve", 9),
            _ => saga(v1::SagaStatus::Completed, "receipt", 7),
        };
        Ok(v1::GetSagaResponse { saga: Some(saga), state_json: r#"{"a":1}"#.into(), ..Default::default() })
    }

    /// Breaks off once within a watch of one instance, and ends when the instance has.
    fn watch(&self, request: &v1::WatchSagasRequest) -> Answers<v1::WatchSagasResponse> {
        self.note(|recorded| recorded.resumed_from.push(request.resume_position.clone()));
        let ended = if request.correlation_id == "o-2" {
            saga(v1::SagaStatus::Compensated, "reserve", 9)
        } else {
            saga(v1::SagaStatus::Completed, "receipt", 7)
        };
        match (request.correlation_id.as_str(), request.resume_position.as_str()) {
            ("", _) => answers([
                watched(saga(v1::SagaStatus::Running, "ship", 4), ""),
                Ok(v1::WatchSagasResponse {
                    event: Some(Event::SnapshotEnd(v1::SnapshotEnd {})),
                    resume_position: "s".into(),
                }),
            ]),
            (_, "") => answers([
                watched(saga(v1::SagaStatus::Running, "ship", 4), "4"),
                Err(Status::unavailable("the connection broke")),
            ]),
            _ => answers([watched(ended, "7"), watched(saga(v1::SagaStatus::Running, "never", 8), "8")]),
        }
    }

    fn replay(request: &v1::ReplayLaneRequest) -> Answers<v1::ReplayLaneResponse> {
        use v1::replay_lane_response::Event as Replayed;
        let answer = |event| Ok(v1::ReplayLaneResponse { event: Some(event) });
        let differs = request.lane.ends_with(":1");
        let found = v1::SagaReplayDifference {
            correlation_id: "o-1".into(),
            revision: 3,
            detail: "another state".into(),
        };
        let done = v1::SagaReplayDone {
            compared_count: 2,
            different_count: u64::from(differs),
            ..Default::default()
        };
        let mut all = vec![answer(Replayed::Progress(v1::SagaReplayProgress { compared_count: 1 }))];
        all.extend(differs.then(|| answer(Replayed::Difference(found))));
        all.push(answer(Replayed::Done(done)));
        answers(all)
    }
}

macro_rules! scripted {
    (
        answers { $($method:ident($request:ident) -> $response:ident: |$this:ident, $body:ident, $times:ident| $answer:expr;)+ }
        server { $($of_server:ident($server_request:ident) -> $server_response:ident: $server_answer:expr;)+ }
        streams { $($stream:ident $streaming:ident($stream_request:ident) -> $part:ident: |$watched:ident, $with:ident| $parts:expr;)+ }
    ) => {
        #[tonic::async_trait]
        impl SagaService for ScriptedServices {
            $(async fn $method(&self, request: Request<v1::$request>) -> Answer<Response<v1::$response>> {
                let ($this, $body) = (self, request.into_inner());
                let $times = self.saga_call(stringify!($method), &$body, &$body.tenant_id)?;
                let _ = ($this, $times);
                let answer: Answer<v1::$response> = $answer;
                answer.map(Response::new)
            })+

            $(async fn $of_server(&self, request: Request<v1::$server_request>) -> Answer<Response<v1::$server_response>> {
                let _ = self.saga_call(stringify!($of_server), &request.into_inner(), "")?;
                Ok(Response::new($server_answer))
            })+

            $(type $stream = Answers<v1::$part>;
            async fn $streaming(&self, request: Request<v1::$stream_request>) -> Answer<Response<Self::$stream>> {
                let ($watched, $with) = (self, request.into_inner());
                let _ = self.saga_call(stringify!($streaming), &$with, &$with.tenant_id)?;
                let _ = $watched;
                Ok(Response::new($parts))
            })+
        }
    };
}

scripted! {
    answers {
        validate_saga(ValidateSagaRequest) -> ValidateSagaResponse: |_this, body, _times| {
            let file = body.file.clone().unwrap_or_default().name;
            let message = "the effect `mail` is not for this tenant".into();
            let problems = vec![v1::ManifestProblem { file, line: 3, column: 7, message }];
            Ok(v1::ValidateSagaResponse { problems, definitions: vec![] })
        };
        apply_saga(ApplySagaRequest) -> ApplySagaResponse: |_this, _body, _times| {
            let definition = v1::SagaDefinition { saga: "order".into(), version: 1, ..Default::default() };
            Ok(v1::ApplySagaResponse { definitions: vec![definition] })
        };
        retire_saga(RetireSagaRequest) -> RetireSagaResponse: |_this, _body, _times| Ok(Default::default());
        get_saga_definition(GetSagaDefinitionRequest) -> GetSagaDefinitionResponse: |_this, body, _times| {
            let manifest = format!("{{\"kind\": \"Saga\", \"name\": \"{}\"}}", body.saga);
            Ok(v1::GetSagaDefinitionResponse { definition: Some(v1::SagaDefinition::default()), manifest })
        };
        list_saga_definitions(ListSagaDefinitionsRequest) -> ListSagaDefinitionsResponse: |_this, _body, _times| Ok(Default::default());
        start_saga(StartSagaRequest) -> StartSagaResponse: |this, body, times| this.started(&body, times);
        send_saga_event(SendSagaEventRequest) -> SendSagaEventResponse: |_this, _body, _times| Ok(v1::SendSagaEventResponse { change: change() });
        pause_saga(PauseSagaRequest) -> PauseSagaResponse: |_this, _body, _times| Ok(v1::PauseSagaResponse { change: change() });
        resume_saga(ResumeSagaRequest) -> ResumeSagaResponse: |_this, _body, _times| {
            Err(refused(rpc::RpcReason::SagaNotPaused, "the instance o-1 of order is not paused"))
        };
        cancel_saga(CancelSagaRequest) -> CancelSagaResponse: |_this, _body, _times| Ok(v1::CancelSagaResponse { change: change() });
        kill_saga(KillSagaRequest) -> KillSagaResponse: |_this, _body, _times| Ok(v1::KillSagaResponse { change: change() });
        retry_saga_step(RetrySagaStepRequest) -> RetrySagaStepResponse: |_this, _body, _times| {
            Err(refused(rpc::RpcReason::SagaParked, "a dead letter stands in front of o-1 of order"))
        };
        skip_saga_step(SkipSagaStepRequest) -> SkipSagaStepResponse: |_this, _body, _times| Ok(v1::SkipSagaStepResponse { change: change() });
        complete_saga(CompleteSagaRequest) -> CompleteSagaResponse: |_this, _body, _times| Ok(v1::CompleteSagaResponse { change: change() });
        migrate_saga(MigrateSagaRequest) -> MigrateSagaResponse: |_this, _body, _times| Ok(v1::MigrateSagaResponse { change: change() });
        get_saga(GetSagaRequest) -> GetSagaResponse: |this, body, _times| this.instance(&body);
        list_sagas(ListSagasRequest) -> ListSagasResponse: |_this, body, _times| {
            // Pages may be empty and be followed by others.
            let (sagas, next) = match body.page_token.as_str() {
                "" => (vec![], "2"),
                "2" => (vec![saga(v1::SagaStatus::Running, "ship", 4)], "3"),
                _ => (vec![saga(v1::SagaStatus::Stuck, "ship", 5)], ""),
            };
            Ok(v1::ListSagasResponse { sagas, next_page_token: next.into() })
        };
        get_saga_timeline(GetSagaTimelineRequest) -> GetSagaTimelineResponse: |_this, body, _times| Ok(timeline(&body));
        list_saga_timers(ListSagaTimersRequest) -> ListSagaTimersResponse: |_this, _body, _times| Ok(Default::default());
        explain_saga(ExplainSagaRequest) -> ExplainSagaResponse: |_this, _body, _times| {
            Ok(v1::ExplainSagaResponse { summary: "o-1 waits".into(), ..Default::default() })
        };
        get_saga_graph(GetSagaGraphRequest) -> GetSagaGraphResponse: |_this, _body, _times| {
            let node = v1::SagaGraphNode { name: ":start".into(), ..Default::default() };
            Ok(v1::GetSagaGraphResponse { nodes: vec![node], ..Default::default() })
        };
        get_effect(GetEffectRequest) -> GetEffectResponse: |_this, _body, _times| Ok(Default::default());
        list_effects(ListEffectsRequest) -> ListEffectsResponse: |_this, _body, _times| Ok(Default::default());
        complete_effect(CompleteEffectRequest) -> CompleteEffectResponse: |_this, _body, _times| {
            let refused = rpc::Error::new(rpc::ErrorKind::PermissionDenied, rpc::RpcReason::TokenRefused, "not its token");
            Err(refused.into())
        };
        resolve_effect(ResolveEffectRequest) -> ResolveEffectResponse: |_this, _body, _times| Ok(Default::default());
        retry_effect(RetryEffectRequest) -> RetryEffectResponse: |_this, _body, _times| Ok(Default::default());
        cancel_effect(CancelEffectRequest) -> CancelEffectResponse: |_this, _body, _times| Ok(Default::default());
        list_saga_dead_letters(ListSagaDeadLettersRequest) -> ListSagaDeadLettersResponse: |_this, _body, _times| Ok(Default::default());
        get_saga_dead_letter(GetSagaDeadLetterRequest) -> GetSagaDeadLetterResponse: |_this, _body, _times| Ok(Default::default());
        redrive_saga_dead_letters(RedriveSagaDeadLettersRequest) -> RedriveSagaDeadLettersResponse: |_this, body, _times| {
            Ok(v1::RedriveSagaDeadLettersResponse { redrives: body.keys.iter().map(|key| redrive(key)).collect() })
        };
        purge_saga_dead_letters(PurgeSagaDeadLettersRequest) -> PurgeSagaDeadLettersResponse: |_this, body, _times| {
            let letter_count = u32::try_from(body.keys.len()).unwrap_or(u32::MAX);
            Ok(v1::PurgeSagaDeadLettersResponse { letter_count, held_count: 2 })
        };
        pause_tenant(PauseTenantRequest) -> PauseTenantResponse: |_this, _body, _times| Ok(Default::default());
        resume_tenant(ResumeTenantRequest) -> ResumeTenantResponse: |_this, _body, _times| Ok(Default::default());
        list_lanes(ListLanesRequest) -> ListLanesResponse: |_this, _body, _times| Ok(Default::default());
        move_lane(MoveLaneRequest) -> MoveLaneResponse: |_this, _body, _times| Ok(Default::default());
        drain(SagaServiceDrainRequest) -> SagaServiceDrainResponse: |_this, _body, _times| Ok(Default::default());
        reload(SagaServiceReloadRequest) -> SagaServiceReloadResponse: |_this, body, _times| {
            if !body.dry_run && body.tenant_id == "broken" {
                return Err(refused(rpc::RpcReason::ManifestsRefused, "nothing was changed: a.yaml: cannot be read"));
            }
            let problem = v1::ManifestProblem { file: "a.yaml".into(), message: "cannot be read".into(), ..Default::default() };
            let problems = if body.dry_run { vec![problem] } else { vec![] };
            Ok(v1::SagaServiceReloadResponse { changes: vec![], problems })
        };
    }
    server {
        get_saga_server(GetSagaServerRequest) -> GetSagaServerResponse: v1::GetSagaServerResponse { replica: "saga-1".into(), ..Default::default() };
    }
    streams {
        WatchSagasStream watch_sagas(WatchSagasRequest) -> WatchSagasResponse: |this, body| this.watch(&body);
        ReplayLaneStream replay_lane(ReplayLaneRequest) -> ReplayLaneResponse: |_this, body| Self::replay(&body);
    }
}
