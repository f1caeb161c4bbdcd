//! gRPC methods: authorize the caller, ask the lane's owner or the store, convert the answer.
//!
//! - [`access`]: tenants, contexts and roles; every method begins here.
//! - [`owner_client`]: requests to owners of lanes, and their answers.
//! - [`convert`], [`wire`]: conversion of rows to messages; [`lists`]: pages of them.
//! - [`instances`], [`timers`], [`watch`], [`explain`], [`graph`]: reads of instances.
//! - [`definitions`], [`verbs`], [`effects`], [`dead_letters`], [`lanes`], [`process`], [`server`]: other methods, by topic.
//!
//! A method is a function of the service, the caller and the request's body, which returns the body of the answer.

mod access;
mod convert;
mod dead_letters;
mod definitions;
mod effects;
mod explain;
mod graph;
mod instances;
mod lanes;
mod lists;
mod owner_client;
mod owner_requests;
mod placement;
mod process;
mod server;
mod timers;
mod verbs;
mod watch;
pub mod wire;

use std::sync::Arc;

use ::rpc::{Allow, MethodPolicy, MountBuilder, PolicyTable};
use model::limits::GRPC_MESSAGE_BYTES_MAX;
use proto::v1;
use proto::v1::saga_service_server::{SagaService, SagaServiceServer};
use service::Shutdown;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

pub(crate) use self::access::SagaCaller;
pub(crate) use self::lists::{LOOKED_AT_MAX, SCANS_MAX};
use self::owner_client::LaneOwnerClient;
pub(crate) use self::verbs::DATA_BYTES_MAX;
use crate::app::App;
use crate::facts::FactHub;
use crate::reads::RowReader;

/// Policy of methods: those that actors may call, and those that only operators may call.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[
    ("/mycora.v1.SagaService/*", &[Allow::AnyActor]),
    ("/mycora.v1.SagaService/GetSagaServer", &[Allow::Admin]),
    ("/mycora.v1.SagaService/Drain", &[Allow::Admin]),
    ("/mycora.v1.SagaService/Reload", &[Allow::Admin]),
    ("/mycora.v1.SagaService/MoveLane", &[Allow::Admin]),
];

/// Policy of all methods of this service.
///
/// # Panics
/// Never: the table is well-formed, which a test checks.
#[must_use]
pub fn policy() -> MethodPolicy {
    MethodPolicy::new(&[PUBLIC_POLICY]).expect("the table is well-formed")
}

/// State that the methods work with.
pub(crate) struct SagaApi {
    /// The service.
    pub(crate) app: Arc<App>,
    /// Client for requests to owners of lanes.
    pub(crate) asker: LaneOwnerClient,
    /// Facts about instances.
    pub(crate) facts: FactHub,
    /// Shutdown of the process, or of this service within it.
    pub(crate) shutdown: Shutdown,
}

/// Server of `SagaService`.
#[derive(Clone)]
pub(crate) struct SagaRpc(Arc<SagaApi>);

impl SagaRpc {
    pub(crate) fn new(app: Arc<App>, shutdown: Shutdown) -> Self {
        let asker = LaneOwnerClient::new(app.around().clone());
        let (store, broker) = (Arc::clone(&app.around().store), Arc::clone(&app.around().broker));
        let reads = RowReader::new(store, app.definitions());
        let facts = FactHub::new(broker, reads, rand::random());
        Self(Arc::new(SagaApi { app, asker, facts, shutdown }))
    }

    pub(crate) fn mount_public(self, mount: MountBuilder) -> MountBuilder {
        let server = SagaServiceServer::new(self)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
        mount.service(server)
    }
}

macro_rules! saga_service {
    (
        answers { $($method:ident($request:ident) -> $response:ident = $handler:path;)+ }
        streams { $($stream:ident $streaming:ident($stream_request:ident) -> $part:ident = $source:path;)+ }
    ) => {
        #[tonic::async_trait]
        impl SagaService for SagaRpc {
            $(async fn $method(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                let caller = SagaCaller::of(&request)?;
                $handler(&self.0, &caller, request.into_inner()).await.map(Response::new)
            })+

            $(type $stream = BoxStream<v1::$part>;

            async fn $streaming(
                &self,
                request: Request<v1::$stream_request>,
            ) -> Result<Response<Self::$stream>, Status> {
                let caller = SagaCaller::of(&request)?;
                $source(&self.0, &caller, request.into_inner()).await.map(Response::new)
            })+
        }
    };
}

saga_service! {
    answers {
        validate_saga(ValidateSagaRequest) -> ValidateSagaResponse = definitions::validate;
        apply_saga(ApplySagaRequest) -> ApplySagaResponse = definitions::apply;
        retire_saga(RetireSagaRequest) -> RetireSagaResponse = definitions::retire;
        get_saga_definition(GetSagaDefinitionRequest) -> GetSagaDefinitionResponse = definitions::get;
        list_saga_definitions(ListSagaDefinitionsRequest) -> ListSagaDefinitionsResponse = definitions::list;

        start_saga(StartSagaRequest) -> StartSagaResponse = verbs::start;
        send_saga_event(SendSagaEventRequest) -> SendSagaEventResponse = verbs::send;
        pause_saga(PauseSagaRequest) -> PauseSagaResponse = verbs::pause;
        resume_saga(ResumeSagaRequest) -> ResumeSagaResponse = verbs::resume;
        cancel_saga(CancelSagaRequest) -> CancelSagaResponse = verbs::cancel;
        kill_saga(KillSagaRequest) -> KillSagaResponse = verbs::kill;
        retry_saga_step(RetrySagaStepRequest) -> RetrySagaStepResponse = verbs::retry_step;
        skip_saga_step(SkipSagaStepRequest) -> SkipSagaStepResponse = verbs::skip_step;
        complete_saga(CompleteSagaRequest) -> CompleteSagaResponse = verbs::complete;
        migrate_saga(MigrateSagaRequest) -> MigrateSagaResponse = verbs::migrate;

        get_saga(GetSagaRequest) -> GetSagaResponse = instances::get;
        list_sagas(ListSagasRequest) -> ListSagasResponse = instances::list;
        get_saga_timeline(GetSagaTimelineRequest) -> GetSagaTimelineResponse = instances::timeline;
        list_saga_timers(ListSagaTimersRequest) -> ListSagaTimersResponse = timers::list;
        explain_saga(ExplainSagaRequest) -> ExplainSagaResponse = explain::explain;
        get_saga_graph(GetSagaGraphRequest) -> GetSagaGraphResponse = graph::graph;

        get_effect(GetEffectRequest) -> GetEffectResponse = effects::get;
        list_effects(ListEffectsRequest) -> ListEffectsResponse = effects::list;
        complete_effect(CompleteEffectRequest) -> CompleteEffectResponse = effects::complete;
        resolve_effect(ResolveEffectRequest) -> ResolveEffectResponse = effects::resolve;
        retry_effect(RetryEffectRequest) -> RetryEffectResponse = effects::retry;
        cancel_effect(CancelEffectRequest) -> CancelEffectResponse = effects::cancel;

        list_saga_dead_letters(ListSagaDeadLettersRequest) -> ListSagaDeadLettersResponse = dead_letters::list;
        get_saga_dead_letter(GetSagaDeadLetterRequest) -> GetSagaDeadLetterResponse = dead_letters::get;
        redrive_saga_dead_letters(RedriveSagaDeadLettersRequest) -> RedriveSagaDeadLettersResponse = dead_letters::redrive;
        purge_saga_dead_letters(PurgeSagaDeadLettersRequest) -> PurgeSagaDeadLettersResponse = dead_letters::purge;

        pause_tenant(PauseTenantRequest) -> PauseTenantResponse = placement::pause_tenant;
        resume_tenant(ResumeTenantRequest) -> ResumeTenantResponse = placement::resume_tenant;
        list_lanes(ListLanesRequest) -> ListLanesResponse = placement::list;
        move_lane(MoveLaneRequest) -> MoveLaneResponse = placement::move_lane;

        get_saga_server(GetSagaServerRequest) -> GetSagaServerResponse = server::get_server;
        drain(SagaServiceDrainRequest) -> SagaServiceDrainResponse = server::drain;
        reload(SagaServiceReloadRequest) -> SagaServiceReloadResponse = process::reload;
    }
    streams {
        WatchSagasStream watch_sagas(WatchSagasRequest) -> WatchSagasResponse = watch::watch;
        ReplayLaneStream replay_lane(ReplayLaneRequest) -> ReplayLaneResponse = lanes::replay;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_makes_a_policy() {
        drop(policy());
    }
}
