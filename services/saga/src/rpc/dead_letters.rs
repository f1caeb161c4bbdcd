//! Methods about dead letters: list, get, redrive, purge.

use ::rpc::{Error, PageRequest};
use std::collections::BTreeSet;

use model::{BlobHash, CommandId, CorrelationId, SagaName, TenantId, Violations};
use proto::convert::saga::{name, tenant};
use proto::internal::v1::SagaPermission;
use proto::required::missing;
use proto::v1::{
    GetSagaDeadLetterRequest, GetSagaDeadLetterResponse, ListSagaDeadLettersRequest,
    ListSagaDeadLettersResponse, PurgeSagaDeadLettersRequest, PurgeSagaDeadLettersResponse,
    RedriveSagaDeadLettersRequest, RedriveSagaDeadLettersResponse, SagaDeadLetter, SagaInputFate,
    SagaRedrive,
};
use store::VersionedValue;
use tonic::Status;
use workflow::key::StoreTable;
use workflow::lane_request::{EffectLaneRequest, SagaLaneRequest};
use workflow::{LaneRowKey, MessageSubject, WorkflowLane};

use super::access::{SagaChangeRequest, SagaIdempotencyKey, hash_of};
use super::lists::{LaneRange, PageListing, SagaPageKind, SagaPageRequest, failed, page};
use super::owner_requests::OperatorRequest;
use super::verbs::json_of;
use super::wire;
use super::{SagaApi, SagaCaller};
use crate::lane::answers::{LaneRequestAnswer, LaneRequestOutcome};
use crate::lane::dead_letter_name::DeadLetterName;
use crate::reads::{DeadLetterEntry, RowReadError, RowReader, read};
use crate::sagas::{DeadLetterRow, NOBODY};

/// Code of a reason in a filter, in bytes.
const CODE_BYTES_MAX: usize = 64;
/// Letters of one request.
const KEYS_MAX: usize = 1000;

/// NOT_FOUND of a letter.
pub(super) fn no_letter(key: &str) -> Status {
    // The caller may have sent any text, so it is quoted and cut.
    Error::not_found(format!("the dead letter {:?}", key.chars().take(200).collect::<String>())).into()
}

/// Filter of the letters that are listed.
#[derive(Debug)]
struct DeadLetterFilter {
    saga: Option<SagaName>,
    correlation: Option<CorrelationId>,
    /// Empty for all codes.
    code: String,
}

/// Letters in lists.
struct DeadLetterListing<'a> {
    reads: &'a RowReader,
    tenant: &'a TenantId,
    filter: &'a DeadLetterFilter,
}

impl DeadLetterListing<'_> {
    fn matches(&self, row: &DeadLetterRow) -> bool {
        let DeadLetterFilter { correlation, code, .. } = self.filter;
        (code.is_empty() || *code == row.letter.code)
            && correlation.as_ref().is_none_or(|wanted| row.correlation.as_ref() == Some(wanted))
    }
}

impl PageListing for DeadLetterListing<'_> {
    type Entry = SagaDeadLetter;

    async fn entries(
        &self,
        lane: &WorkflowLane,
        rows: &[(LaneRowKey, VersionedValue)],
    ) -> Result<Vec<Option<SagaDeadLetter>>, RowReadError> {
        let letters: Vec<DeadLetterRow> =
            rows.iter().map(|(key, row)| read(lane, key, row)).collect::<Result<_, RowReadError>>()?;
        let behind = self.reads.behind(lane, &letters).await?;
        let shown = rows.iter().zip(letters).zip(behind).map(|(((key, _), row), behind)| {
            let name = DeadLetterName { lane: lane.clone(), key: key.clone() };
            let is_wanted = self.matches(&row);
            is_wanted.then(|| {
                wire::dead_letter::letter(self.tenant, &DeadLetterEntry { name, row, behind }, false)
            })
        });
        Ok(shown.collect())
    }
}

/// Lists dead letters.
pub(super) async fn list(
    api: &SagaApi,
    caller: &SagaCaller,
    request: ListSagaDeadLettersRequest,
) -> Result<ListSagaDeadLettersResponse, Status> {
    let mut violations = Violations::new();
    let ListSagaDeadLettersRequest { tenant_id, saga, correlation_id, code, page_size, page_token } = request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    if saga.is_empty() && !correlation_id.is_empty() {
        violations.add("saga", "is missing: a correlation is one within a saga");
    }
    if code.len() > CODE_BYTES_MAX {
        violations.add("code", format!("has at most {CODE_BYTES_MAX} bytes"));
    }
    let filter = DeadLetterFilter {
        saga: name("saga", &saga, &mut violations),
        correlation: name("correlation_id", &correlation_id, &mut violations),
        code,
    };
    let page_request = PageRequest::parse(page_size, &page_token, &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    let reads = api.reads();
    let page_request = SagaPageRequest::new(page_request, SagaPageKind::Letters, caller, &tenant, &filter)?;
    let range = filter.correlation.as_ref().map_or_else(|| StoreTable::Dead.range(), LaneRowKey::dead_of);
    let lanes = match (&filter.saga, &filter.correlation) {
        (Some(saga), Some(correlation)) => reads.lane_of(&tenant, saga, correlation).into_iter().collect(),
        (Some(saga), None) => reads.saga_lanes(&tenant, Some(saga)),
        (None, _) => [reads.saga_lanes(&tenant, None), reads.effect_lanes(&tenant, None)].concat(),
    };
    let stretches: Vec<_> = lanes.into_iter().map(|lane| LaneRange { lane, range: range.clone() }).collect();
    let listed = DeadLetterListing { reads: &reads, tenant: &tenant, filter: &filter };
    let (dead_letters, next_page_token) = page(&reads, &page_request, &stretches, &listed).await?;
    Ok(ListSagaDeadLettersResponse { dead_letters, next_page_token })
}

/// Reads a dead letter.
pub(super) async fn get(
    api: &SagaApi,
    caller: &SagaCaller,
    request: GetSagaDeadLetterRequest,
) -> Result<GetSagaDeadLetterResponse, Status> {
    let mut violations = missing(&request);
    let GetSagaDeadLetterRequest { tenant_id, key } = request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    // An invalid name is the name of no letter.
    let name = DeadLetterName::parse(&key, &tenant).ok_or_else(|| no_letter(&key))?;
    let letter = api.reads().letter(&name).await.map_err(failed)?.ok_or_else(|| no_letter(&key))?;
    Ok(GetSagaDeadLetterResponse { dead_letter: Some(wire::dead_letter::letter(&tenant, &letter, true)) })
}

/// Letters that a request names, and the request to their owners.
struct DeadLetterSelection {
    letters: Vec<(DeadLetterName, Option<DeadLetterRow>)>,
    operator_request: OperatorRequest,
}

/// Fields that requests about letters have in common.
struct DeadLetterRequestHead<'a> {
    method: &'static str,
    tenant_id: &'a str,
    keys: &'a [String],
    request_id: &'a str,
    /// Hash of the request without its id.
    hash: BlobHash,
}

/// Authorizes a request, and finds its letters.
async fn named(
    api: &SagaApi,
    caller: &SagaCaller,
    head: DeadLetterRequestHead<'_>,
    mut violations: Violations,
) -> Result<DeadLetterSelection, Status> {
    let DeadLetterRequestHead { method, tenant_id, keys, request_id, hash } = head;
    let request = SagaIdempotencyKey::parse(request_id, hash, &mut violations);
    let tenant = tenant(tenant_id, api.has_tenants(), &mut violations);
    if !(1..=KEYS_MAX).contains(&keys.len()) {
        violations.add("keys", format!("1 to {KEYS_MAX} keys, here are {}", keys.len()));
    }
    if keys.iter().collect::<BTreeSet<_>>().len() < keys.len() {
        violations.add("keys", "each key stands there once");
    }
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    let resource = keys.first().map_or("", String::as_str);
    let change = SagaChangeRequest {
        permission: SagaPermission::Operate,
        method,
        resource,
        request: request.as_ref(),
        dry_run: false,
    };
    let actor = api.authorize(caller, &tenant, change).await?;
    let reads = api.reads();
    let mut letters = Vec::with_capacity(keys.len());
    for key in keys {
        let name = DeadLetterName::parse(key, &tenant).ok_or_else(|| no_letter(key))?;
        let row = reads.row(&name.lane, name.key.clone()).await.map_err(failed)?;
        letters.push((name, row));
    }
    Ok(DeadLetterSelection {
        letters,
        operator_request: OperatorRequest::new(actor, &tenant, request.as_ref(), hash),
    })
}

/// Suffix of the request id for one of the letters.
fn part(number: usize) -> String {
    format!("/{number}")
}

/// The correlation under which a letter is stored.
fn correlation_of(row: &DeadLetterRow) -> Result<CorrelationId, Status> {
    match &row.correlation {
        Some(correlation) => Ok(correlation.clone()),
        None => NOBODY.parse().map_err(|error| Error::internal(error).into()),
    }
}

/// The subject of a request about a dead letter, or about its lane.
pub(super) fn subject_of(lane: &WorkflowLane, correlation: &CorrelationId) -> MessageSubject {
    match lane {
        WorkflowLane::Saga { saga, .. } => MessageSubject::workflow(saga, correlation),
        // The request is about no call.
        WorkflowLane::Effect { effect, .. } => {
            MessageSubject::Effect { effect: effect.clone(), command: CommandId::from_bits(0) }
        }
    }
}

/// Applies dead letters.
pub(super) async fn redrive(
    api: &SagaApi,
    caller: &SagaCaller,
    mut request: RedriveSagaDeadLettersRequest,
) -> Result<RedriveSagaDeadLettersResponse, Status> {
    let mut violations = missing(&request);
    let request_id = std::mem::take(&mut request.request_id);
    let data = (!request.data_json.is_empty())
        .then(|| json_of("data_json", &request.data_json, &mut violations))
        .flatten();
    if !request.data_json.is_empty() && (request.skip || request.keys.len() != 1) {
        violations.add("data_json", "is only for one key, and not for one that is left out");
    }
    let head = DeadLetterRequestHead {
        method: "RedriveSagaDeadLetters",
        tenant_id: &request.tenant_id,
        keys: &request.keys,
        request_id: &request_id,
        hash: hash_of("RedriveSagaDeadLetters", &request),
    };
    let DeadLetterSelection { letters, operator_request } = named(api, caller, head, violations).await?;
    let reads = api.reads();
    // A letter that is gone must have been handled by an earlier try of this request; otherwise nothing is done.
    let mut known: Vec<Option<LaneRequestAnswer>> = Vec::with_capacity(letters.len());
    for (number, (name, row)) in letters.iter().enumerate() {
        let key = LaneRequestAnswer::key(&format!("{}{}", operator_request.request, part(number)));
        let answer: Option<LaneRequestAnswer> = reads.row(&name.lane, key).await.map_err(failed)?;
        let answer = answer.filter(|answer| operator_request.is_answer(answer));
        if row.is_none() && answer.is_none() {
            return Err(no_letter(&name.to_string()));
        }
        known.push(answer);
    }
    let mut redrives = Vec::with_capacity(letters.len());
    for (number, ((name, row), known)) in letters.iter().zip(known).enumerate() {
        let answer = match (known, row) {
            (Some(answer), _) => answer,
            (None, Some(row)) => {
                let correlation = correlation_of(row)?;
                let subject = subject_of(&name.lane, &correlation);
                let (to, part) = ((&name.lane, subject), part(number));
                let letter = name.number().unwrap_or_default();
                match &name.lane {
                    WorkflowLane::Saga { .. } => {
                        let data = data.clone();
                        let lane_request =
                            SagaLaneRequest::Redrive { correlation, letter, skip: request.skip, data };
                        api.send_request(&operator_request, &part, to, lane_request).await?
                    }
                    WorkflowLane::Effect { .. } => {
                        let lane_request = EffectLaneRequest::Redrive { letter, skip: request.skip };
                        api.send_request(&operator_request, &part, to, lane_request).await?
                    }
                }
            }
            (None, None) => return Err(no_letter(&name.to_string())),
        };
        let answer = passed_on(api, name, &operator_request, number, answer).await?;
        redrives.push(redriven(name, &answer));
    }
    Ok(RedriveSagaDeadLettersResponse { redrives })
}

/// The answer of the lane that a letter was passed on to, as it is stored there; otherwise the given answer.
async fn passed_on(
    api: &SagaApi,
    name: &DeadLetterName,
    operator_request: &OperatorRequest,
    number: usize,
    answer: LaneRequestAnswer,
) -> Result<LaneRequestAnswer, Status> {
    let (LaneRequestOutcome::PassedOn(to), WorkflowLane::Saga { tenant, saga, .. }) =
        (&answer.outcome, &name.lane)
    else {
        return Ok(answer);
    };
    let reads = api.reads();
    let Some(lane) = reads.lane_of(tenant, saga, to) else { return Ok(answer) };
    let request = crate::sagas::passed_on(&format!("{}{}", operator_request.request, part(number)));
    let there = reads.row(&lane, LaneRequestAnswer::key(&request)).await.map_err(failed)?;
    Ok(there.unwrap_or(answer))
}

fn redriven(name: &DeadLetterName, answer: &LaneRequestAnswer) -> SagaRedrive {
    let (fate, detail) = match &answer.outcome {
        LaneRequestOutcome::Done | LaneRequestOutcome::Refused(_) => {
            (SagaInputFate::Unspecified, String::new())
        }
        LaneRequestOutcome::Applied => (SagaInputFate::Applied, String::new()),
        LaneRequestOutcome::Held => (SagaInputFate::Held, String::new()),
        LaneRequestOutcome::Kept => (SagaInputFate::Kept, String::new()),
        LaneRequestOutcome::Dead(why) => (SagaInputFate::DeadLetter, why.clone()),
        LaneRequestOutcome::Ignored(why) => (SagaInputFate::Ignored, why.clone()),
        LaneRequestOutcome::PassedOn(to) => (SagaInputFate::Held, format!("it was passed on to {to}")),
    };
    let dead_letter_key = match (answer.front, &answer.correlation) {
        (Some(front), Some(correlation)) => {
            DeadLetterName { lane: name.lane.clone(), key: LaneRowKey::dead(correlation, front) }.to_string()
        }
        _ if fate == SagaInputFate::DeadLetter => name.to_string(),
        _ => String::new(),
    };
    SagaRedrive {
        key: name.to_string(),
        fate: fate.into(),
        detail,
        dead_letter_key,
        held_count: u32::try_from(answer.held).unwrap_or(u32::MAX),
    }
}

/// Removes dead letters.
pub(super) async fn purge(
    api: &SagaApi,
    caller: &SagaCaller,
    mut request: PurgeSagaDeadLettersRequest,
) -> Result<PurgeSagaDeadLettersResponse, Status> {
    let violations = missing(&request);
    let request_id = std::mem::take(&mut request.request_id);
    let head = DeadLetterRequestHead {
        method: "PurgeSagaDeadLetters",
        tenant_id: &request.tenant_id,
        keys: &request.keys,
        request_id: &request_id,
        hash: hash_of("PurgeSagaDeadLetters", &request),
    };
    let DeadLetterSelection { letters, operator_request } = named(api, caller, head, violations).await?;
    let reads = api.reads();
    let mut held = 0_u64;
    for (number, (name, row)) in letters.iter().enumerate() {
        let part = part(number);
        let Some(row) = row else {
            // The letter is gone, perhaps by an earlier try of this request.
            let key = LaneRequestAnswer::key(&format!("{}{part}", operator_request.request));
            let known: Option<LaneRequestAnswer> = reads.row(&name.lane, key).await.map_err(failed)?;
            held += known.filter(|known| operator_request.is_answer(known)).map_or(0, |known| known.removed);
            continue;
        };
        let correlation = correlation_of(row)?;
        let to = (&name.lane, subject_of(&name.lane, &correlation));
        let letter = name.number().unwrap_or_default();
        let answer = match &name.lane {
            WorkflowLane::Saga { .. } => {
                api.send_request(&operator_request, &part, to, SagaLaneRequest::Purge { correlation, letter })
                    .await?
            }
            WorkflowLane::Effect { .. } => {
                api.send_request(&operator_request, &part, to, EffectLaneRequest::Purge { letter }).await?
            }
        };
        held += answer.removed;
    }
    Ok(PurgeSagaDeadLettersResponse {
        letter_count: u32::try_from(letters.len()).unwrap_or(u32::MAX),
        held_count: u32::try_from(held).unwrap_or(u32::MAX),
    })
}
