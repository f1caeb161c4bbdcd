//! Timers that are set, of all lanes in one order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use ::rpc::{Error, PageRequest};
use futures_util::{StreamExt as _, TryStreamExt as _};
use model::{CorrelationId, SagaName, TenantId, Timestamp, Violations};
use proto::convert::saga::{name, tenant};
use proto::convert::time;
use proto::v1::{ListSagaTimersRequest, ListSagaTimersResponse, SagaTimer};
use tonic::Status;
use workflow::instance::{CorrelationRecord, SagaInstance, Timer};
use workflow::key::StoreTable;
use workflow::{LaneRowKey, WorkflowLane};

use super::lists::LOOKED_AT_MAX;
use super::lists::{SagaPageKind, SagaPageRequest, failed, foreign};
use super::wire;
use super::wire::saga::SagaInstanceRef;
use super::{SagaApi, SagaCaller};
use crate::reads::{RowReadError, RowReader, read};
use crate::sagas::TimerRow;

/// Rows of a lane that are read at once.
const CHUNK: usize = 100;
/// Lanes that are read at a time.
const LANES_AT_ONCE: usize = 8;

/// Filter of the timers that are listed.
#[derive(Debug)]
struct SagaTimerFilter {
    saga: Option<SagaName>,
    correlation: Option<CorrelationId>,
    due_before: Option<Timestamp>,
}

/// Lists timers.
pub(super) async fn list(
    api: &SagaApi,
    caller: &SagaCaller,
    request: ListSagaTimersRequest,
) -> Result<ListSagaTimersResponse, Status> {
    let mut violations = Violations::new();
    let ListSagaTimersRequest { tenant_id, saga, correlation_id, due_before, page_size, page_token } =
        request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    if saga.is_empty() && !correlation_id.is_empty() {
        violations.add("saga", "is missing: a correlation is one within a saga");
    }
    let filter = SagaTimerFilter {
        saga: name("saga", &saga, &mut violations),
        correlation: name("correlation_id", &correlation_id, &mut violations),
        due_before: due_before.map(time::from_wire),
    };
    let page_request = PageRequest::parse(page_size, &page_token, &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    let reads = api.reads();
    let page_request = SagaPageRequest::new(page_request, SagaPageKind::Timers, caller, &tenant, &filter)?;
    let place = page_request
        .place()?
        .map(|place| SagaTimerPosition::parse(&place).ok_or_else(foreign))
        .transpose()?;
    let page = match (&filter.saga, &filter.correlation) {
        (Some(saga), Some(correlation)) => {
            let whose = SagaInstanceRef { tenant: &tenant, saga, correlation };
            of_instance(&reads, whose, filter.due_before, place.as_ref(), page_request.size()).await
        }
        _ => of_lanes(&reads, &tenant, &filter, place, page_request.size()).await,
    };
    let (timers, last) = page.map_err(failed)?;
    let place = last.map(|place| place.text());
    Ok(ListSagaTimersResponse { timers, next_page_token: page_request.token(place.as_deref()) })
}

/// Place in the list: the last row that was looked at. Rows with the same key are ordered by lane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SagaTimerPosition {
    key: LaneRowKey,
    lane: String,
}

impl SagaTimerPosition {
    fn parse(text: &str) -> Option<Self> {
        let (key, lane) = text.split_once(' ')?;
        Some(Self { key: LaneRowKey::of_store(key.to_owned()), lane: lane.to_owned() })
    }

    fn text(&self) -> String {
        format!("{} {}", self.key, self.lane)
    }
}

/// Timers of a page, and its last place if others follow.
type SagaTimerPage = (Vec<SagaTimer>, Option<SagaTimerPosition>);

/// Timers of one instance: its record has all of them.
async fn of_instance(
    reads: &RowReader,
    whose: SagaInstanceRef<'_>,
    due_before: Option<Timestamp>,
    behind: Option<&SagaTimerPosition>,
    size: usize,
) -> Result<SagaTimerPage, RowReadError> {
    let Some(lane) = reads.lane_of(whose.tenant, whose.saga, whose.correlation) else {
        return Ok((Vec::new(), None));
    };
    let record = reads.record(&lane, whose.correlation).await?;
    let timers = record.as_ref().and_then(CorrelationRecord::instance).map(|instance| &instance.timers);
    let mut all: Vec<_> = timers
        .into_iter()
        .flatten()
        .filter(|(_, timer)| due_before.is_none_or(|before| timer.due < before))
        .map(|(name, timer)| {
            let key = LaneRowKey::due(timer.due, whose.correlation, name.as_str());
            (
                SagaTimerPosition { key, lane: lane.to_string() },
                wire::saga::timer(whose, name.as_str(), timer),
            )
        })
        .filter(|(place, _)| behind.is_none_or(|behind| place > behind))
        .collect();
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    let has_more = all.len() > size;
    all.truncate(size);
    let last = all.last().map(|(place, _)| place.clone()).filter(|_| has_more);
    Ok((all.into_iter().map(|(_, timer)| timer).collect(), last))
}

/// Rows of one lane, in their order.
struct LaneTimerScan {
    lane: WorkflowLane,
    rest: Range<LaneRowKey>,
    rows: VecDeque<(LaneRowKey, TimerRow)>,
    has_more: bool,
}

impl LaneTimerScan {
    /// Reads more rows, if all former ones are used up.
    async fn fill(mut self, reads: &RowReader, most: usize) -> Result<Self, RowReadError> {
        if self.rows.is_empty() && self.has_more {
            let found = reads.scan(&self.lane, &self.rest, most).await?;
            self.has_more = found.has_more;
            for (key, row) in found.rows {
                self.rest.start = key.behind();
                let due = read(&self.lane, &key, &row)?;
                self.rows.push_back((key, due));
            }
        }
        Ok(self)
    }
}

/// Timers of several lanes, the first to fire first.
async fn of_lanes(
    reads: &RowReader,
    tenant: &TenantId,
    filter: &SagaTimerFilter,
    behind: Option<SagaTimerPosition>,
    size: usize,
) -> Result<SagaTimerPage, RowReadError> {
    let all = StoreTable::Due.range();
    let end = filter.due_before.map_or(all.end, LaneRowKey::due_from);
    let line = |lane: WorkflowLane| {
        let start = match &behind {
            None => all.start.clone(),
            Some(SagaTimerPosition { key, lane: last }) if lane.to_string() <= *last => key.behind(),
            Some(SagaTimerPosition { key, .. }) => key.clone(),
        };
        LaneTimerScan { lane, rest: start..end.clone(), rows: VecDeque::new(), has_more: true }
    };
    let chunk = size.saturating_add(1).min(CHUNK);
    let lines = reads.saga_lanes(tenant, filter.saga.as_ref()).into_iter().map(line);
    let filled = lines.map(|line| line.fill(reads, chunk));
    let filled = futures_util::stream::iter(filled).buffered(LANES_AT_ONCE);
    let mut lines: Vec<LaneTimerScan> = filled.try_collect().await?;
    let first = |line: &LaneTimerScan, number: usize| {
        line.rows.front().map(|(key, _)| Reverse((key.clone(), line.lane.to_string(), number)))
    };
    let mut firsts: BinaryHeap<_> =
        lines.iter().enumerate().filter_map(|(number, line)| first(line, number)).collect();
    let (mut timers, mut last, mut looked_at) = (Vec::new(), behind.clone(), 0);
    while let Some(Reverse((key, lane, number))) = firsts.pop() {
        if timers.len() >= size || looked_at >= LOOKED_AT_MAX {
            return Ok((timers, last));
        }
        looked_at += 1;
        if let Some((_, due)) = lines[number].rows.pop_front() {
            timers.extend(timer(reads, tenant, &lines[number].lane, &due).await?);
        }
        let line = lines.swap_remove(number).fill(reads, chunk).await?;
        lines.push(line);
        let end = lines.len() - 1;
        lines.swap(number, end);
        firsts.extend(first(&lines[number], number));
        last = Some(SagaTimerPosition { key, lane });
    }
    Ok((timers, None))
}

/// The timer of a row; `None` for one that is not the saga's, or no longer set.
async fn timer(
    reads: &RowReader,
    tenant: &TenantId,
    lane: &WorkflowLane,
    row: &TimerRow,
) -> Result<Option<SagaTimer>, RowReadError> {
    let WorkflowLane::Saga { saga, .. } = lane else { return Ok(None) };
    if row.is_ours() {
        return Ok(None);
    }
    let record = reads.record(lane, &row.correlation).await?;
    let set = record.as_ref().and_then(CorrelationRecord::instance).and_then(|instance| set(instance, row));
    let whose = SagaInstanceRef { tenant, saga, correlation: &row.correlation };
    Ok(set.map(|set| wire::saga::timer(whose, &row.name, set)))
}

fn set<'a>(instance: &'a SagaInstance, row: &TimerRow) -> Option<&'a Timer> {
    let found = instance.timers.iter().find(|(name, _)| name.as_str() == row.name)?.1;
    (found.generation == row.generation).then_some(found)
}
