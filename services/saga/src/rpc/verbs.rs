//! Verbs of instances: messages to the owner of the lane, which answers them.
//!
//! A verb is published where the instance's own lane reads, so that the replica that owns the lane applies it once, in order with
//! events.

use std::time::Duration;

use ::rpc::{Error, ErrorKind, RpcReason};
use model::{ActorId, BlobHash, SagaName, TenantId, Violations};
use prost::Message;
use proto::convert::saga::{InstanceName, instance};
use proto::internal::v1::SagaPermission;
use proto::required::{self, Required};
use proto::v1::{
    CancelSagaRequest, CancelSagaResponse, CompleteSagaRequest, CompleteSagaResponse, KillSagaRequest,
    KillSagaResponse, MigrateSagaRequest, MigrateSagaResponse, PauseSagaRequest, PauseSagaResponse,
    ResumeSagaRequest, ResumeSagaResponse, RetrySagaStepRequest, RetrySagaStepResponse, SagaChange,
    SagaInputFate, SendSagaEventRequest, SendSagaEventResponse, SkipSagaStepRequest, SkipSagaStepResponse,
    StartSagaRequest, StartSagaResponse,
};
use tonic::Status;
use workflow::input::Verb;
use workflow::instance::REASON_CHARS_MAX;
use workflow::lane::shard;
use workflow::message::{self, ReplyAddress, VerbMessage};
use workflow::step::{HELD_BYTES_MAX, HELD_MAX, RequestRefusal};
use workflow::{InputId, Json, LaneRowKey, MessageSubject, WorkflowLane, json};

use super::access::{SagaChangeRequest, SagaIdempotencyKey, hash_of};
use super::owner_client::LaneOwnerRequest;
use super::{SagaApi, SagaCaller, convert};
use crate::sagas::{VerbAnswerRow, VerbOutcome};

/// Data of a request, in bytes.
pub(crate) const DATA_BYTES_MAX: usize = 512 * 1024;
/// When to retry a request for which the tenant's quota has no room.
const QUOTA_RETRY: Duration = Duration::from_secs(1);
/// Type of an event, in characters.
const EVENT_TYPE_CHARS_MAX: usize = 128;

/// Fields that requests of verbs have in common.
struct VerbRequestHead<'a> {
    tenant_id: &'a str,
    saga: &'a str,
    correlation_id: &'a str,
    expected_revision: u64,
    dry_run: bool,
}

/// Request of a verb.
trait VerbRequest: Message + Required {
    /// Name of the method.
    const METHOD: &'static str;
    /// Permission that the caller needs.
    const PERMISSION: SagaPermission;

    /// Takes the id out of the request, so that the rest is equal for repeats.
    fn take_id(&mut self) -> String;

    fn head(&self) -> VerbRequestHead<'_>;
}

macro_rules! verb_requests {
    ($($request:ident $method:literal $permission:ident ($revision:expr, $dry_run:expr);)+) => {
        $(impl VerbRequest for $request {
            const METHOD: &'static str = $method;
            const PERMISSION: SagaPermission = SagaPermission::$permission;

            fn take_id(&mut self) -> String {
                std::mem::take(&mut self.request_id)
            }

            fn head(&self) -> VerbRequestHead<'_> {
                let (revision, dry_run): (fn(&Self) -> u64, fn(&Self) -> bool) = ($revision, $dry_run);
                VerbRequestHead {
                    tenant_id: &self.tenant_id,
                    saga: &self.saga,
                    correlation_id: &self.correlation_id,
                    expected_revision: revision(self),
                    dry_run: dry_run(self),
                }
            }
        })+
    };
}

verb_requests! {
    StartSagaRequest "StartSaga" Start (|_| 0, |_| false);
    SendSagaEventRequest "SendSagaEvent" Start (|_| 0, |_| false);
    PauseSagaRequest "PauseSaga" Operate (|request| request.expected_revision, |request| request.dry_run);
    ResumeSagaRequest "ResumeSaga" Operate (|request| request.expected_revision, |request| request.dry_run);
    CancelSagaRequest "CancelSaga" Operate (|request| request.expected_revision, |request| request.dry_run);
    KillSagaRequest "KillSaga" Operate (|request| request.expected_revision, |request| request.dry_run);
    RetrySagaStepRequest "RetrySagaStep" Operate (|request| request.expected_revision, |request| request.dry_run);
    SkipSagaStepRequest "SkipSagaStep" Operate (|request| request.expected_revision, |request| request.dry_run);
    CompleteSagaRequest "CompleteSaga" Operate (|request| request.expected_revision, |request| request.dry_run);
    MigrateSagaRequest "MigrateSaga" Operate (|request| request.expected_revision, |request| request.dry_run);
}

/// Starts an instance.
pub(super) async fn start(
    api: &SagaApi,
    caller: &SagaCaller,
    request: StartSagaRequest,
) -> Result<StartSagaResponse, Status> {
    let verb = |request: &StartSagaRequest, violations: &mut Violations| {
        Some(Verb::Start { data: json_of("data_json", &request.data_json, violations)? })
    };
    let change = Some(ask(api, caller, request, verb).await?);
    Ok(StartSagaResponse { change })
}

/// Sends an event to an instance.
pub(super) async fn send(
    api: &SagaApi,
    caller: &SagaCaller,
    request: SendSagaEventRequest,
) -> Result<SendSagaEventResponse, Status> {
    let verb = |request: &SendSagaEventRequest, violations: &mut Violations| {
        let kind = request.event_type.clone();
        if kind.chars().count() > EVENT_TYPE_CHARS_MAX || kind.chars().any(char::is_control) {
            let wanted = format!("1 to {EVENT_TYPE_CHARS_MAX} characters, none of them a control character");
            violations.add("event_type", wanted);
        }
        Some(Verb::Send { kind, data: json_of("data_json", &request.data_json, violations)? })
    };
    let change = Some(ask(api, caller, request, verb).await?);
    Ok(SendSagaEventResponse { change })
}

/// Pauses an instance: its inputs are held.
pub(super) async fn pause(
    api: &SagaApi,
    caller: &SagaCaller,
    request: PauseSagaRequest,
) -> Result<PauseSagaResponse, Status> {
    let change = Some(ask(api, caller, request, |_, _| Some(Verb::Pause)).await?);
    Ok(PauseSagaResponse { change })
}

/// Resumes an instance: its held inputs are applied.
pub(super) async fn resume(
    api: &SagaApi,
    caller: &SagaCaller,
    request: ResumeSagaRequest,
) -> Result<ResumeSagaResponse, Status> {
    let change = Some(ask(api, caller, request, |_, _| Some(Verb::Resume)).await?);
    Ok(ResumeSagaResponse { change })
}

/// Undoes what an instance has done.
pub(super) async fn cancel(
    api: &SagaApi,
    caller: &SagaCaller,
    request: CancelSagaRequest,
) -> Result<CancelSagaResponse, Status> {
    let verb = |request: &CancelSagaRequest, violations: &mut Violations| {
        Some(Verb::Cancel { reason: reason_of(&request.reason, violations) })
    };
    let change = Some(ask(api, caller, request, verb).await?);
    Ok(CancelSagaResponse { change })
}

/// Ends an instance where it stands.
pub(super) async fn kill(
    api: &SagaApi,
    caller: &SagaCaller,
    request: KillSagaRequest,
) -> Result<KillSagaResponse, Status> {
    let verb = |request: &KillSagaRequest, violations: &mut Violations| {
        Some(Verb::Kill { reason: reason_of(&request.reason, violations) })
    };
    let change = Some(ask(api, caller, request, verb).await?);
    Ok(KillSagaResponse { change })
}

/// Retries the step at which an instance is stuck.
pub(super) async fn retry_step(
    api: &SagaApi,
    caller: &SagaCaller,
    request: RetrySagaStepRequest,
) -> Result<RetrySagaStepResponse, Status> {
    let change = Some(ask(api, caller, request, |_, _| Some(Verb::RetryStep)).await?);
    Ok(RetrySagaStepResponse { change })
}

/// Skips the step at which an instance is stuck.
pub(super) async fn skip_step(
    api: &SagaApi,
    caller: &SagaCaller,
    request: SkipSagaStepRequest,
) -> Result<SkipSagaStepResponse, Status> {
    let verb = |request: &SkipSagaStepRequest, violations: &mut Violations| {
        Some(Verb::SkipStep { result: json_of("result_json", &request.result_json, violations)? })
    };
    let change = Some(ask(api, caller, request, verb).await?);
    Ok(SkipSagaStepResponse { change })
}

/// Ends a stuck instance as completed.
pub(super) async fn complete(
    api: &SagaApi,
    caller: &SagaCaller,
    request: CompleteSagaRequest,
) -> Result<CompleteSagaResponse, Status> {
    let verb = |request: &CompleteSagaRequest, violations: &mut Violations| {
        Some(Verb::Complete { reason: reason_of(&request.reason, violations) })
    };
    let change = Some(ask(api, caller, request, verb).await?);
    Ok(CompleteSagaResponse { change })
}

/// Migrates an instance to the definition in force.
pub(super) async fn migrate(
    api: &SagaApi,
    caller: &SagaCaller,
    request: MigrateSagaRequest,
) -> Result<MigrateSagaResponse, Status> {
    let change = Some(ask(api, caller, request, |_, _| Some(Verb::Migrate)).await?);
    Ok(MigrateSagaResponse { change })
}

/// Parses JSON that a request carries; `null` where it is empty.
pub(super) fn json_of(field: &str, text: &str, violations: &mut Violations) -> Option<Json> {
    if text.is_empty() {
        return Some(Json::Null);
    }
    if text.len() > DATA_BYTES_MAX {
        violations.add(field, format!("{} bytes, at most {DATA_BYTES_MAX} are allowed", text.len()));
        return None;
    }
    violations.take(field, json::read(text.as_bytes(), DATA_BYTES_MAX))
}

/// Parses a reason; [`required`] notes an empty one where it is mandatory.
fn reason_of(text: &str, violations: &mut Violations) -> String {
    if text.chars().count() > REASON_CHARS_MAX {
        violations.add("reason", format!("at most {REASON_CHARS_MAX} characters are allowed"));
    }
    text.to_owned()
}

/// Verb on its way to the owner of the lane.
struct ParsedVerbRequest {
    name: InstanceName,
    request: Option<SagaIdempotencyKey>,
    hash: BlobHash,
    verb: Verb,
    expected_revision: u64,
    dry_run: bool,
}

impl ParsedVerbRequest {
    /// Parses a request.
    fn parse<R: VerbRequest>(
        api: &SagaApi,
        mut request: R,
        verb: impl FnOnce(&R, &mut Violations) -> Option<Verb>,
    ) -> Result<Self, Status> {
        let mut violations = required::missing(&request);
        let id = request.take_id();
        let hash = hash_of(R::METHOD, &request);
        let repeatable = SagaIdempotencyKey::parse(&id, hash, &mut violations);
        let VerbRequestHead { tenant_id, saga, correlation_id, expected_revision, dry_run } = request.head();
        let name = instance((tenant_id, saga, correlation_id), api.has_tenants(), &mut violations);
        let parsed = verb(&request, &mut violations);
        let parsed = violations.into_result(name.zip(parsed)).map_err(Error::from)?;
        let (name, verb) = parsed;
        Ok(Self { name, request: repeatable, hash, verb, expected_revision, dry_run })
    }
}

/// Sends a verb to the owner of the lane, and returns the resulting change.
async fn ask<R: VerbRequest>(
    api: &SagaApi,
    caller: &SagaCaller,
    request: R,
    verb: impl FnOnce(&R, &mut Violations) -> Option<Verb>,
) -> Result<SagaChange, Status> {
    let parsed = ParsedVerbRequest::parse(api, request, verb)?;
    let InstanceName { tenant, saga, correlation } = &parsed.name;
    let change = SagaChangeRequest {
        permission: R::PERMISSION,
        method: R::METHOD,
        resource: &format!("{saga}/{correlation}"),
        request: parsed.request.as_ref(),
        dry_run: parsed.dry_run,
    };
    let actor = api.authorize(caller, tenant, change).await?;
    api.check_running(tenant)?;
    let shards = shards_of(api, tenant, saga, matches!(parsed.verb, Verb::Start { .. }))?;
    let id = parsed
        .request
        .as_ref()
        .map_or_else(|| format!("{:032x}", rand::random::<u128>()), |request| request.id.to_string());
    let request_hash =
        BlobHash::of(&[&actor.0.to_be_bytes()[..], parsed.hash.as_bytes()].concat()).to_string();
    let body = |reply_to: Option<ReplyAddress>| {
        message::write(&VerbMessage {
            tenant_id: tenant.to_string(),
            request_id: id.clone(),
            correlation: correlation.clone(),
            verb: parsed.verb.clone(),
            dry_run: parsed.dry_run,
            expected_revision: parsed.expected_revision,
            request_hash: request_hash.clone(),
            reply_to,
        })
    };
    check_size(&body(None), tenant)?;
    let lane = WorkflowLane::Saga {
        tenant: tenant.clone(),
        saga: saga.clone(),
        shard: shard(tenant, correlation, shards),
    };
    let question = LaneOwnerRequest {
        subject: MessageSubject::workflow(saga, correlation).of(tenant),
        message_id: message_id(actor, &parsed.name, &id, parsed.dry_run),
        body: &|to| body(Some(to)),
        stored: (!parsed.dry_run).then(|| (&lane, LaneRowKey::request(&id))),
    };
    let answer =
        api.asker.ask(&question, |answer: &VerbAnswerRow| answer.request_hash == request_hash).await?;
    change_of(&parsed.name, &answer)
}

/// Counts the lanes of a saga that a tenant has.
fn shards_of(api: &SagaApi, tenant: &TenantId, saga: &SagaName, is_start: bool) -> Result<u8, Status> {
    let in_force = api.app.definitions().in_force();
    let known = in_force.without_instance(tenant, saga);
    match known.filter(|known| !is_start || !known.is_retired) {
        Some(known) => Ok(known.shards),
        None => Err(Error::not_found(format!("saga {saga}")).into()),
    }
}

/// Checks that the owner of a lane can read a message: within it, the data of a request may be too long or too deep.
fn check_size(body: &[u8], tenant: &TenantId) -> Result<(), Status> {
    match message::read::<VerbMessage>(body, tenant) {
        Ok(_) => Ok(()),
        Err(error) => {
            let mut violations = Violations::new();
            violations.add("data_json", error);
            Err(Error::from(violations).into())
        }
    }
}

/// Id by which the broker recognises repeats of a request: scoped to the actor, and new for each dry run, whose answer is not stored.
fn message_id(actor: ActorId, name: &InstanceName, request: &str, dry_run: bool) -> String {
    let InstanceName { tenant, saga, .. } = name;
    let nonce = if dry_run { rand::random::<u128>() } else { 0 };
    let id = InputId::Event(format!("verb\n{tenant}\n{saga}\n{}\n{request}\n{nonce}", actor.0));
    hex::encode(id.digest())
}

/// Converts the answer to a verb into the change that callers get.
fn change_of(name: &InstanceName, answer: &VerbAnswerRow) -> Result<SagaChange, Status> {
    let (fate, ignored_reason) = match &answer.outcome {
        VerbOutcome::Applied => (SagaInputFate::Applied, ""),
        VerbOutcome::Held => (SagaInputFate::Held, ""),
        VerbOutcome::Kept => (SagaInputFate::Kept, ""),
        VerbOutcome::DeadLetter => (SagaInputFate::DeadLetter, ""),
        VerbOutcome::Ignored(why) => (SagaInputFate::Ignored, why.as_str()),
        VerbOutcome::Refused(refusal) => return Err(refused(name, refusal)),
    };
    Ok(SagaChange {
        saga: answer.instance.as_ref().map(|instance| convert::saga(name, instance)),
        fate: fate.into(),
        ignored_reason: ignored_reason.to_owned(),
        commands: answer.work.iter().map(convert::command).collect(),
    })
}

/// Maps the refusal of a verb to a status.
fn refused(name: &InstanceName, refusal: &RequestRefusal) -> Status {
    let InstanceName { saga, correlation, .. } = name;
    let message = format!("instance {correlation} of saga {saga}: {}", refusal.message);
    let (kind, reason) = match refusal.reason.as_str() {
        "SAGA_NOT_FOUND" => {
            return Error::not_found(format!("instance {correlation} of saga {saga}")).into();
        }
        "REVISION_MISMATCH" => (ErrorKind::Aborted, RpcReason::RevisionMismatch),
        "REQUEST_ID_REUSED" => (ErrorKind::AlreadyExists, RpcReason::RequestIdReused),
        "SAGA_EXISTS" => (ErrorKind::AlreadyExists, RpcReason::SagaExists),
        held @ ("LIMIT_EXCEEDED" | "BYTES_EXCEEDED") => {
            let (limit, max) = match held {
                "LIMIT_EXCEEDED" => ("saga_inputs_held_max", HELD_MAX),
                _ => ("saga_input_bytes_held_max", HELD_BYTES_MAX),
            };
            let error = Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, message);
            return error.with("limit", limit).with("max", max).into();
        }
        "QUOTA_EXCEEDED" => {
            let error = Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, message);
            return error.with("limit", "tenant_quota").retry_after(QUOTA_RETRY).into();
        }
        text => {
            let known = RpcReason::ALL.iter().find(|reason| reason.as_str() == text);
            match known.filter(|reason| *reason.codes() == [tonic::Code::FailedPrecondition]) {
                Some(reason) => (ErrorKind::FailedPrecondition, *reason),
                None => return Error::internal(format!("no such reason of a refusal: {refusal:?}")).into(),
            }
        }
    };
    Error::new(kind, reason, message).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> InstanceName {
        InstanceName {
            tenant: "acme".parse().expect("a tenant"),
            saga: "order".parse().expect("a name"),
            correlation: "o-1".parse().expect("a correlation"),
        }
    }

    #[test]
    fn every_refusal_has_a_status() {
        for (reason, code) in [
            ("SAGA_NOT_FOUND", tonic::Code::NotFound),
            ("REVISION_MISMATCH", tonic::Code::Aborted),
            ("REQUEST_ID_REUSED", tonic::Code::AlreadyExists),
            ("SAGA_EXISTS", tonic::Code::AlreadyExists),
            ("LIMIT_EXCEEDED", tonic::Code::ResourceExhausted),
            ("BYTES_EXCEEDED", tonic::Code::ResourceExhausted),
            ("QUOTA_EXCEEDED", tonic::Code::ResourceExhausted),
            ("SAGA_ENDED", tonic::Code::FailedPrecondition),
            ("SAGA_FAULT", tonic::Code::FailedPrecondition),
            ("PAST_PIVOT", tonic::Code::FailedPrecondition),
            ("SAGA_PAUSED", tonic::Code::FailedPrecondition),
            ("SAGA_NOT_PAUSED", tonic::Code::FailedPrecondition),
            ("SAGA_STUCK", tonic::Code::FailedPrecondition),
            ("SAGA_NOT_STUCK", tonic::Code::FailedPrecondition),
            ("SAGA_PARKED", tonic::Code::FailedPrecondition),
            ("SAGA_NOT_RUNNING", tonic::Code::FailedPrecondition),
            ("SAGA_NOT_MIGRATABLE", tonic::Code::FailedPrecondition),
            ("OTHER", tonic::Code::Internal),
        ] {
            let refusal = RequestRefusal { reason: reason.to_owned(), message: "why".to_owned() };
            assert_eq!(refused(&name(), &refusal).code(), code, "{reason}");
        }
    }

    #[test]
    fn a_message_is_one_request_of_one_actor_at_one_tenant() {
        let of = |actor, tenant: &str, request, dry_run| {
            let name = InstanceName { tenant: tenant.parse().expect("a tenant"), ..name() };
            message_id(ActorId(actor), &name, request, dry_run)
        };
        assert_eq!(of(1, "acme", "r", false), of(1, "acme", "r", false));
        assert_ne!(of(1, "acme", "r", false), of(2, "acme", "r", false));
        assert_ne!(of(1, "acme", "r", false), of(1, "b", "r", false));
        assert_ne!(of(1, "acme", "r", true), of(1, "acme", "r", true));
    }

    #[test]
    fn data_is_bounded_and_read_as_json() {
        let mut violations = Violations::new();
        assert_eq!(json_of("data_json", "", &mut violations), Some(Json::Null));
        assert_eq!(json_of("data_json", "[1]", &mut violations), Some(Json::List(vec![Json::Int(1)])));
        assert!(violations.is_empty());
        let long = format!("\"{}\"", "x".repeat(DATA_BYTES_MAX - 1));
        for wrong in ["{", "{\"a\":1,\"a\":2}", &long] {
            let mut violations = Violations::new();
            assert_eq!(json_of("data_json", wrong, &mut violations), None);
            assert_eq!(violations.as_slice().len(), 1);
        }
    }
}
