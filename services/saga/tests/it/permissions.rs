//! Every method of `SagaService`, called by everybody: the answers are those of `specs/permissions.md`.

use std::collections::BTreeMap;

use identity::{Identity, ServiceName};
use model::ActorId;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use proto::v1;
use proto::v1::saga_service_client::SagaServiceClient;
use rpc::{Channel, ErrorView};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Status};

use crate::served::{ACME, ADMIN, ELSEWHERE, EXECUTOR, ORDER, OTHER, READER, STRANGER, Served};

/// Heading of the table.
const HEADING: &str = "## Methods of sagas";
const OK: &str = "OK";
const NONE: Header = Header(None);
const COMMAND: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
const LETTER: &str = "s:order:0:o-1:00000000000000000007";
const LANE: &str = "s:acme:order:0";

type Client = SagaServiceClient<InterceptedService<Channel, Header>>;

/// Metadata that name a tenant, or none.
#[derive(Clone, Copy)]
struct Header(Option<&'static str>);

impl Interceptor for Header {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(tenant) = self.0 {
            request.metadata_mut().insert("x-tenant-id", tenant.parse().expect("ASCII"));
        }
        Ok(request)
    }
}

fn client(served: &Served, identity: Identity, header: Header) -> Client {
    SagaServiceClient::with_interceptor(served.suite.channel(served.address, identity), header)
}

/// Fills the tenant of a request in, and fields of its own.
macro_rules! of {
    ($request:ident $(, $field:ident: $value:expr)*) => {
        v1::$request { tenant_id: ACME.to_owned(), $($field: $value.into(),)* ..Default::default() }
    };
}

/// Makes a request about one instance.
macro_rules! one {
    ($request:ident $(, $field:ident: $value:expr)*) => {
        of!($request, saga: "order", correlation_id: "nobody" $(, $field: $value)*)
    };
}

/// Calls methods by their names.
macro_rules! calls {
    ($client:ident, $name:ident, { $($method:literal $function:ident($request:expr);)+ }) => {
        match $name {
            $($method => $client.$function($request).await.map(drop),)+
            other => panic!("{other} has no request: write one, and its row in specs/permissions.md"),
        }
    };
}

/// Calls a method with a request that is well-formed.
#[allow(
    clippy::needless_update,
    reason = "requests are made by one macro, whether all of their fields are given or not"
)]
async fn call(mut client: Client, name: &str) -> Result<(), Status> {
    let file = || {
        let text = ORDER.replace("name: order", "name: mine");
        Some(v1::ManifestFile { name: "mine.yaml".to_owned(), text })
    };
    let verify = v1::SagaReplayVerify::default();
    let completed = v1::complete_effect_request::Outcome::Succeeded(v1::EffectSuccess::default());
    let resolved = v1::resolve_effect_request::Outcome::Succeeded(v1::EffectSuccess::default());
    calls!(client, name, {
        "ValidateSaga" validate_saga(of!(ValidateSagaRequest, file: file()));
        "ApplySaga" apply_saga(of!(ApplySagaRequest, file: file()));
        "RetireSaga" retire_saga(of!(RetireSagaRequest, saga: "mine"));
        "GetSagaDefinition" get_saga_definition(of!(GetSagaDefinitionRequest, saga: "order"));
        "ListSagaDefinitions" list_saga_definitions(of!(ListSagaDefinitionsRequest));
        "StartSaga" start_saga(one!(StartSagaRequest, data_json: r#"{"id":7}"#));
        "SendSagaEvent" send_saga_event(one!(SendSagaEventRequest, event_type: "Unheard"));
        "GetSaga" get_saga(one!(GetSagaRequest));
        "ListSagas" list_sagas(of!(ListSagasRequest));
        "WatchSagas" watch_sagas(of!(WatchSagasRequest));
        "GetSagaTimeline" get_saga_timeline(one!(GetSagaTimelineRequest));
        "ListSagaTimers" list_saga_timers(of!(ListSagaTimersRequest));
        "ExplainSaga" explain_saga(one!(ExplainSagaRequest));
        "GetSagaGraph" get_saga_graph(of!(GetSagaGraphRequest, saga: "order"));
        "PauseSaga" pause_saga(one!(PauseSagaRequest));
        "ResumeSaga" resume_saga(one!(ResumeSagaRequest));
        "CancelSaga" cancel_saga(one!(CancelSagaRequest, reason: "why"));
        "KillSaga" kill_saga(one!(KillSagaRequest, reason: "why"));
        "RetrySagaStep" retry_saga_step(one!(RetrySagaStepRequest));
        "SkipSagaStep" skip_saga_step(one!(SkipSagaStepRequest));
        "CompleteSaga" complete_saga(one!(CompleteSagaRequest));
        "MigrateSaga" migrate_saga(one!(MigrateSagaRequest));
        "GetEffect" get_effect(of!(GetEffectRequest, command_id: COMMAND));
        "ListEffects" list_effects(of!(ListEffectsRequest));
        "CompleteEffect" complete_effect(
            of!(CompleteEffectRequest, command_id: COMMAND, token: "0".repeat(32), outcome: completed)
        );
        "ResolveEffect" resolve_effect(
            of!(ResolveEffectRequest, command_id: COMMAND, outcome: resolved)
        );
        "RetryEffect" retry_effect(of!(RetryEffectRequest, command_id: COMMAND));
        "CancelEffect" cancel_effect(of!(CancelEffectRequest, command_id: COMMAND));
        "ListSagaDeadLetters" list_saga_dead_letters(of!(ListSagaDeadLettersRequest));
        "GetSagaDeadLetter" get_saga_dead_letter(of!(GetSagaDeadLetterRequest, key: LETTER));
        "RedriveSagaDeadLetters" redrive_saga_dead_letters(
            of!(RedriveSagaDeadLettersRequest, keys: [LETTER.to_owned()])
        );
        "PurgeSagaDeadLetters" purge_saga_dead_letters(
            of!(PurgeSagaDeadLettersRequest, keys: [LETTER.to_owned()])
        );
        "PauseTenant" pause_tenant(of!(PauseTenantRequest));
        "ResumeTenant" resume_tenant(of!(ResumeTenantRequest));
        "ListLanes" list_lanes(of!(ListLanesRequest));
        "ReplayLane" replay_lane(
            of!(ReplayLaneRequest, lane: LANE, confirm: LANE, replay: v1::replay_lane_request::Replay::Verify(verify))
        );
        "GetSagaServer" get_saga_server(v1::GetSagaServerRequest {});
        "Drain" drain(v1::SagaServiceDrainRequest::default());
        "Reload" reload(v1::SagaServiceReloadRequest::default());
        "MoveLane" move_lane(of!(MoveLaneRequest, lane: LANE));
    })
}

/// Returns the reason of a refusal: `OK` where the caller was allowed, whatever the outcome.
async fn refusal_reason(client: Client, name: &str) -> String {
    let Err(status) = call(client, name).await else { return OK.to_owned() };
    let ErrorView { code, reason, message, .. } = ErrorView::from(&status);
    let is_of_caller = ["METHOD_NOT_ALLOWED", "ROLE_INSUFFICIENT", "IDENTITY_REQUIRED"]
        .contains(&reason.as_str())
        || (code == Code::NotFound && message.starts_with("tenant "))
        || [Code::Unimplemented, Code::InvalidArgument, Code::Internal, Code::Unknown].contains(&code);
    if is_of_caller { reason } else { OK.to_owned() }
}

/// Rows of the table: the method, and what is told by column.
fn written() -> BTreeMap<String, Vec<String>> {
    let page = testkit::pages::read("specs/permissions.md");
    let (_, behind) = page.split_once(HEADING).expect("the heading");
    let section = behind.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `SagaService/"));
    rows.map(|row| {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
        (cells.next().expect("a method"), cells.filter(|cell| !cell.is_empty()).collect())
    })
    .collect()
}

/// Methods of the service, those of the operator last: one of them drains it.
fn methods() -> Vec<String> {
    let set = FileDescriptorSet::decode(proto::DESCRIPTORS).expect("a good set");
    let mut services = set.file.iter().flat_map(|file| &file.service);
    let service = services.find(|service| service.name() == "SagaService").expect("the service");
    service.method.iter().map(|method| method.name().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_answers_everybody_as_written() {
    let served = Served::start().await;
    let (written, methods) = (written(), methods());
    let actor = |id| Identity::Actor(ActorId(id));
    let callers = [
        ("without a role", 0, actor(STRANGER)),
        ("admin of another context", 0, actor(ELSEWHERE)),
        ("reader", 1, actor(READER)),
        ("executor", 2, actor(EXECUTOR)),
        ("admin", 3, actor(ADMIN)),
        ("bootstrap", 4, Identity::Admin),
    ];
    let mut wrong = Vec::new();
    for name in &methods {
        let Some(row) = written.get(name) else {
            wrong.push(format!("{name} has no row in specs/permissions.md"));
            continue;
        };
        for (caller, column, identity) in callers {
            let reason = refusal_reason(client(&served, identity, NONE), name).await;
            if reason != row[column] {
                wrong.push(format!("{name}, {caller}: {reason}, not {}", row[column]));
            }
        }
        for service in ServiceName::ALL {
            let reason = refusal_reason(client(&served, Identity::Service(*service), NONE), name).await;
            if reason != "METHOD_NOT_ALLOWED" {
                wrong.push(format!("{name}, {service}: {reason}"));
            }
        }
        let reason =
            refusal_reason(SagaServiceClient::with_interceptor(served.anonymous(), NONE), name).await;
        if reason != "IDENTITY_REQUIRED" {
            wrong.push(format!("{name}, without a certificate: {reason}"));
        }
    }
    wrong.extend(
        written.keys().filter(|name| !methods.contains(name)).map(|name| format!("there is no {name}")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Methods of the operator; all others are of actors with a role.
const OF_OPERATOR: [&str; 4] = ["GetSagaServer", "Drain", "Reload", "MoveLane"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_refuses_metadata_that_name_another_tenant_and_counts_it() {
    let served = Served::start().await;
    let mut refused = 0.0;
    // The server itself is no tenant's.
    for name in methods().iter().filter(|name| *name != "GetSagaServer") {
        let is_of_operator = OF_OPERATOR.contains(&name.as_str());
        let identity = if is_of_operator { Identity::Admin } else { Identity::Actor(ActorId(ADMIN)) };
        // Of the whole server no tenant is the one that is meant.
        let empty = (!is_of_operator).then_some("");
        for header in [OTHER, "ACME", "acme,other", "acme."].into_iter().chain(empty) {
            let status = call(client(&served, identity, Header(Some(header))), name).await.expect_err(name);
            let ErrorView { code, reason, message, .. } = ErrorView::from(&status);
            let what = format!("{name}, {header:?}: {message}");
            assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "TENANT_MISMATCH"), "{what}");
            assert!(header.is_empty() || !message.contains(&format!("`{header}`")), "{what}");
            refused += 1.0;
            assert_eq!(served.metric("tenant_mismatches_total"), refused, "{what}");
        }
        if !is_of_operator {
            let reason = refusal_reason(client(&served, identity, Header(Some(ACME))), name).await;
            assert_eq!(reason, OK, "{name} where the header agrees");
        }
    }
    assert_eq!(served.metric("tenant_mismatches_total"), refused);
    assert!(!served.drained.has_begun(), "nothing was drained");
}
