//! Methods that read instances.

use std::collections::BTreeSet;

use ::rpc::{Error, PageRequest};
use model::{CorrelationId, SagaName, SagaStatus, StepName, TenantId, Timestamp, Violations};
use proto::convert::saga::{InstanceName, instance as instance_name, name, statuses, tenant};
use proto::convert::time;
use proto::required::missing;
use proto::v1::{
    GetSagaRequest, GetSagaResponse, GetSagaTimelineRequest, GetSagaTimelineResponse, ListSagasRequest,
    ListSagasResponse, Saga, SagaTimelineEntry,
};
use store::VersionedValue;
use tonic::Status;
use workflow::definition::{self, StepAction, WorkOrder};
use workflow::input::InstanceInput;
use workflow::instance::{CompensationEntry, CorrelationEntry, CorrelationRecord, SagaInstance};
use workflow::key::StoreTable;
use workflow::step::{JournalInput, JournalRow};
use workflow::{LaneRowKey, WorkflowLane};

use super::lists::{LaneRange, PageListing, SagaPageKind, SagaPageRequest, failed, page};
use super::wire;
use super::wire::saga::SagaInstanceRef;
use super::{SagaApi, SagaCaller};
use crate::lane::dead_letter_name::DeadLetterName;
use crate::reads::{RowReadError, RowReader, read};
use crate::sagas::{DeadLetterRow, InstanceListRow};

/// An instance that was found.
pub(super) struct FoundInstance {
    /// Name of the instance.
    pub(super) name: InstanceName,
    /// Lane of the instance.
    pub(super) lane: WorkflowLane,
    /// Record of the instance, or of what is left of it.
    pub(super) record: CorrelationRecord,
}

impl FoundInstance {
    pub(super) const fn whose(&self) -> SagaInstanceRef<'_> {
        SagaInstanceRef {
            tenant: &self.name.tenant,
            saga: &self.name.saga,
            correlation: &self.name.correlation,
        }
    }
}

/// NOT_FOUND of an instance.
pub(super) fn no_instance(saga: &SagaName, correlation: &CorrelationId) -> Status {
    // The correlation is foreign text, so it is quoted without control characters.
    Error::not_found(format!("the instance {:?} of the saga {saga}", correlation.as_str())).into()
}

impl SagaApi {
    /// Parses the name of an instance, checks that the caller may read, and finds it.
    pub(super) async fn instance(
        &self,
        caller: &SagaCaller,
        name: Option<InstanceName>,
        violations: Violations,
    ) -> Result<FoundInstance, Status> {
        let name = violations.into_result(name).map_err(Error::from)?;
        self.read(caller, &name.tenant).await?;
        self.reads().instance(name).await
    }
}

impl RowReader {
    /// Finds an instance.
    pub(super) async fn instance(&self, name: InstanceName) -> Result<FoundInstance, Status> {
        let InstanceName { tenant, saga, correlation } = &name;
        let gone = || no_instance(saga, correlation);
        let lane = self.lane_of(tenant, saga, correlation).ok_or_else(gone)?;
        let record = self.record(&lane, correlation).await.map_err(failed)?;
        let record =
            record.filter(|record| !matches!(record.entry, CorrelationEntry::Awaited(_))).ok_or_else(gone)?;
        Ok(FoundInstance { name, lane, record })
    }
}

/// Reads an instance with its state.
pub(super) async fn get(
    api: &SagaApi,
    caller: &SagaCaller,
    request: GetSagaRequest,
) -> Result<GetSagaResponse, Status> {
    let mut violations = missing(&request);
    let GetSagaRequest { tenant_id, saga, correlation_id } = request;
    let name = instance_name((&tenant_id, &saga, &correlation_id), api.has_tenants(), &mut violations);
    let mut found = api.instance(caller, name, violations).await?;
    let reads = api.reads();
    let letter = found.record.parked_by.map(|number| {
        let key = LaneRowKey::dead(&found.name.correlation, number);
        DeadLetterName { lane: found.lane.clone(), key }
    });
    let mut state = None;
    match &mut found.record.entry {
        CorrelationEntry::Live(instance) => redact(&reads, &found.name.tenant, instance).await?,
        CorrelationEntry::Ended(tombstone) => {
            let (correlation, revision) = (&found.name.correlation, tombstone.revision);
            let last = reads.journal(&found.lane, correlation, revision).await.map_err(failed)?;
            state = last.filter(|row| row.chain == tombstone.chain).and_then(|row| row.state);
        }
        CorrelationEntry::Awaited(_) => {}
    }
    let answer = wire::saga::detailed(found.whose(), &found.record, letter.as_ref());
    let mut answer = answer.ok_or_else(|| no_instance(&found.name.saga, &found.name.correlation))?;
    if let Some(state) = state {
        answer.state_json = state.to_string();
    }
    Ok(answer)
}

/// Redacts the inputs of work that may have to be undone, as the providers require. Results are stored redacted.
async fn redact(reads: &RowReader, tenant: &TenantId, instance: &mut SagaInstance) -> Result<(), Status> {
    if instance.stack.iter().all(|done| done.input.is_none()) {
        return Ok(());
    }
    let definition = reads.definition(instance.definition).await.map_err(failed)?;
    let catalog = reads.definitions().catalog();
    for done in &mut instance.stack {
        let Some(WorkOrder::Effect { effect, .. }) = order_of(&definition, done) else { continue };
        let effect = catalog.effect(effect, tenant).map(|(_, effect)| effect);
        done.input = done.input.as_ref().and_then(|input| Some(effect?.redacted("input", input)));
    }
    Ok(())
}

/// Returns the order of the step and branch that a compensation entry names.
fn order_of<'a>(saga: &'a definition::Saga, done: &CompensationEntry) -> Option<&'a WorkOrder> {
    match &saga.steps.get(&done.step)?.action {
        StepAction::Work(work) => {
            work.branches.iter().find(|branch| branch.name == done.branch).map(|branch| &branch.order)
        }
        StepAction::Wait(_) => None,
    }
}

/// Filter of the instances that are listed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct InstanceFilter {
    pub(super) saga: Option<SagaName>,
    /// Empty for all.
    pub(super) statuses: BTreeSet<SagaStatus>,
    pub(super) step: Option<StepName>,
    pub(super) started_from: Option<Timestamp>,
    pub(super) started_before: Option<Timestamp>,
    pub(super) step_before: Option<Timestamp>,
    pub(super) is_blocked: bool,
}

impl InstanceFilter {
    /// Statuses that match, of those that have a list.
    fn statuses(&self) -> impl Iterator<Item = SagaStatus> {
        let is_wanted = |status: &SagaStatus| self.statuses.is_empty() || self.statuses.contains(status);
        SagaStatus::ALL.into_iter().filter(is_wanted)
    }

    /// Ranges of rows that have the matching instances.
    pub(super) fn stretches(&self, lanes: Vec<WorkflowLane>) -> Vec<LaneRange> {
        let at = |status: SagaStatus| match &self.step {
            Some(step) => LaneRowKey::by_step(status.as_str(), step.as_str()),
            None => LaneRowKey::by_status(status.as_str()),
        };
        let ranges: Vec<_> = if self.is_blocked {
            let stuck = self.statuses().filter(|status| *status == SagaStatus::Stuck).map(at);
            stuck.chain([StoreTable::Dead.range()]).collect()
        } else if self.statuses.is_empty() && self.step.is_none() {
            vec![StoreTable::By.range()]
        } else {
            self.statuses().map(at).collect()
        };
        let of_lane = |lane: WorkflowLane| {
            ranges.iter().map(move |range| LaneRange { lane: lane.clone(), range: range.clone() })
        };
        lanes.into_iter().flat_map(of_lane).collect()
    }

    /// Returns whether an instance matches.
    pub(super) fn matches(&self, record: &CorrelationRecord) -> bool {
        let (status, step, started) = match &record.entry {
            CorrelationEntry::Awaited(_) => return false,
            CorrelationEntry::Live(instance) => (instance.status, &instance.step, instance.started),
            CorrelationEntry::Ended(tombstone) => (tombstone.status, &tombstone.step, tombstone.started),
        };
        let since = wire::saga::place_since(record);
        let is_blocked = status == SagaStatus::Stuck || record.parked_by.is_some();
        (self.statuses.is_empty() || self.statuses.contains(&status))
            && self.step.as_ref().is_none_or(|wanted| wanted == step)
            && self.started_from.is_none_or(|from| started >= from)
            && self.started_before.is_none_or(|before| started < before)
            && self.step_before.is_none_or(|before| since.is_some_and(|since| since < before))
            && (!self.is_blocked || is_blocked)
    }
}

/// Instances in lists.
pub(super) struct InstanceListing<'a> {
    pub(super) reads: &'a RowReader,
    pub(super) tenant: &'a TenantId,
    pub(super) filter: &'a InstanceFilter,
}

impl InstanceListing<'_> {
    /// The correlation that a row lists; `None` for a letter that parks none.
    fn correlation(
        lane: &WorkflowLane,
        key: &LaneRowKey,
        row: &VersionedValue,
    ) -> Result<Option<CorrelationId>, RowReadError> {
        if !StoreTable::Dead.range().contains(key) {
            return Ok(Some(read::<InstanceListRow>(lane, key, row)?.correlation));
        }
        let letter: DeadLetterRow = read(lane, key, row)?;
        Ok(letter.correlation.filter(|_| letter.letter.parks))
    }

    /// Returns whether this row lists the record, and not another row of the same list.
    fn is_listed_here(
        &self,
        key: &LaneRowKey,
        correlation: &CorrelationId,
        record: &CorrelationRecord,
    ) -> bool {
        if !StoreTable::Dead.range().contains(key) {
            return true;
        }
        let is_front = record.parked_by.is_some_and(|number| LaneRowKey::dead(correlation, number) == *key);
        let is_stuck = record.instance().is_some_and(|instance| instance.status == SagaStatus::Stuck);
        is_front && !is_stuck
    }
}

impl PageListing for InstanceListing<'_> {
    type Entry = Saga;

    async fn entries(
        &self,
        lane: &WorkflowLane,
        rows: &[(LaneRowKey, VersionedValue)],
    ) -> Result<Vec<Option<Saga>>, RowReadError> {
        let WorkflowLane::Saga { saga, .. } = lane else { return Ok(rows.iter().map(|_| None).collect()) };
        let correlations: Vec<_> = rows
            .iter()
            .map(|(key, row)| Self::correlation(lane, key, row))
            .collect::<Result<_, RowReadError>>()?;
        let keys: Vec<_> = correlations.iter().flatten().map(LaneRowKey::saga).collect();
        let mut records = if keys.is_empty() {
            Vec::new()
        } else {
            self.reads.rows::<CorrelationRecord>(lane, &keys).await?
        }
        .into_iter();
        let entries = rows.iter().zip(&correlations).map(|((key, _), correlation)| {
            let correlation = correlation.as_ref()?;
            let record = records.next().flatten()?;
            if !self.filter.matches(&record) || !self.is_listed_here(key, correlation, &record) {
                return None;
            }
            wire::saga::saga(SagaInstanceRef { tenant: self.tenant, saga, correlation }, &record)
        });
        Ok(entries.collect())
    }
}

/// Lists instances.
pub(super) async fn list(
    api: &SagaApi,
    caller: &SagaCaller,
    request: ListSagasRequest,
) -> Result<ListSagasResponse, Status> {
    let mut violations = Violations::new();
    let ListSagasRequest {
        tenant_id,
        saga,
        statuses: wanted,
        step,
        started_from,
        started_before,
        step_before,
        blocked,
        page_size,
        page_token,
    } = request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    let filter = InstanceFilter {
        saga: name("saga", &saga, &mut violations),
        statuses: statuses("statuses", &wanted, &mut violations),
        step: name("step", &step, &mut violations),
        started_from: started_from.map(time::from_wire),
        started_before: started_before.map(time::from_wire),
        step_before: step_before.map(time::from_wire),
        is_blocked: blocked,
    };
    let page_request = PageRequest::parse(page_size, &page_token, &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    let reads = api.reads();
    let page_request = SagaPageRequest::new(page_request, SagaPageKind::Sagas, caller, &tenant, &filter)?;
    let stretches = filter.stretches(reads.saga_lanes(&tenant, filter.saga.as_ref()));
    let listed = InstanceListing { reads: &reads, tenant: &tenant, filter: &filter };
    let (sagas, next_page_token) = page(&reads, &page_request, &stretches, &listed).await?;
    Ok(ListSagasResponse { sagas, next_page_token })
}

/// Rows of a journal.
struct TimelineListing<'a> {
    reads: &'a RowReader,
    correlation: &'a CorrelationId,
    with_payloads: bool,
}

impl PageListing for TimelineListing<'_> {
    type Entry = SagaTimelineEntry;

    async fn entries(
        &self,
        lane: &WorkflowLane,
        rows: &[(LaneRowKey, VersionedValue)],
    ) -> Result<Vec<Option<SagaTimelineEntry>>, RowReadError> {
        let rows: Vec<JournalRow> =
            rows.iter().map(|(key, row)| read(lane, key, row)).collect::<Result<_, RowReadError>>()?;
        let kept: Vec<_> = rows.iter().filter_map(kept_at).collect();
        let keys: Vec<_> = kept.iter().map(|at| LaneRowKey::journal(self.correlation, *at)).collect();
        let mut inputs =
            if keys.is_empty() { Vec::new() } else { self.reads.rows::<JournalRow>(lane, &keys).await? }
                .into_iter();
        let entries = rows.iter().map(|row| {
            let input = kept_at(row).and_then(|_| inputs.next().flatten()).and_then(|row| came(row.input));
            Some(wire::input::entry(row, input.as_ref(), self.with_payloads))
        });
        Ok(entries.collect())
    }
}

/// The revision at which the input of a row was kept.
const fn kept_at(row: &JournalRow) -> Option<u64> {
    match row.input {
        JournalInput::Kept(at) => Some(at),
        JournalInput::Came(_) => None,
    }
}

fn came(input: JournalInput) -> Option<InstanceInput> {
    match input {
        JournalInput::Came(input) => Some(*input),
        JournalInput::Kept(_) => None,
    }
}

/// Lists the inputs of an instance.
pub(super) async fn timeline(
    api: &SagaApi,
    caller: &SagaCaller,
    request: GetSagaTimelineRequest,
) -> Result<GetSagaTimelineResponse, Status> {
    let mut violations = missing(&request);
    let GetSagaTimelineRequest { tenant_id, saga, correlation_id, with_payloads, page_size, page_token } =
        request;
    let name = instance_name((&tenant_id, &saga, &correlation_id), api.has_tenants(), &mut violations);
    let page_request = PageRequest::parse(page_size, &page_token, &mut violations);
    let found = api.instance(caller, name, violations).await?;
    let reads = api.reads();
    let InstanceName { tenant, saga, correlation } = &found.name;
    let page_request =
        SagaPageRequest::new(page_request, SagaPageKind::Timeline, caller, tenant, &(saga, correlation))?;
    let range = LaneRowKey::journal_of(correlation);
    let first = reads.scan(&found.lane, &range, 1).await.map_err(failed)?;
    let first = first.rows.first().map(|(key, row)| read::<JournalRow>(&found.lane, key, row)).transpose();
    let stretches = [LaneRange { lane: found.lane.clone(), range }];
    let listed = TimelineListing { reads: &reads, correlation, with_payloads };
    let first_revision = first.map_err(failed)?.map_or(0, |row| row.revision);
    let (entries, next_page_token) = page(&reads, &page_request, &stretches, &listed).await?;
    Ok(GetSagaTimelineResponse { entries, next_page_token, first_revision })
}
