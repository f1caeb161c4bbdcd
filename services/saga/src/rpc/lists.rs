//! Pages over rows of several lanes.
//!
//! A list goes through stretches: ranges of rows in lanes, one after the other. A page looks at a limited number of rows, whatever the
//! filter: it may have fewer entries than requested, or none, and still be followed by others.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use ::rpc::{Error, PageRequest};
use model::limits::PAGE_BYTES_MAX;
use model::{TenantId, Violations};
use prost::Message;
use store::VersionedValue;
use tonic::Status;
use workflow::{LaneRowKey, WorkflowLane};

use super::{SagaApi, SagaCaller};
use crate::reads::{RowReadError, RowReader};

/// Rows that one page looks at.
pub(crate) const LOOKED_AT_MAX: usize = 2000;
/// Reads of the store that one page makes: a tenant may have many empty lanes.
pub(crate) const SCANS_MAX: usize = 1000;
/// Largest and smallest number of rows that are read at once.
const CHUNK: usize = 200;
const CHUNK_MIN: usize = 16;
/// Seal that page tokens are bound to. Even a forged position leads only through the caller's own list.
const SEAL: &str = "sagas";

/// Kind of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SagaPageKind {
    /// Instances.
    Sagas,
    /// Inputs of an instance.
    Timeline,
    /// Timers.
    Timers,
    /// Calls of effects.
    Effects,
    /// Dead letters.
    Letters,
}

impl SagaApi {
    /// Returns the reader of rows.
    pub(crate) fn reads(&self) -> RowReader {
        RowReader::new(Arc::clone(&self.app.around().store), self.app.definitions())
    }
}

/// A requested page, and what its tokens are bound to.
#[derive(Debug, Clone)]
pub(crate) struct SagaPageRequest {
    page: PageRequest,
    of: SagaPageKind,
    bound_to: String,
}

impl SagaPageRequest {
    /// Makes the request of a page; `filter` is everything that decides what is listed.
    ///
    /// # Errors
    /// PERMISSION_DENIED for a caller that is no actor.
    pub(crate) fn new(
        page: PageRequest,
        of: SagaPageKind,
        caller: &SagaCaller,
        tenant: &TenantId,
        filter: &dyn std::fmt::Debug,
    ) -> Result<Self, Status> {
        let bound_to = format!("{} {tenant:?} {filter:?}", caller.actor()?.0);
        Ok(Self { page, of, bound_to })
    }

    /// Largest number of entries to return.
    pub(crate) const fn size(&self) -> usize {
        self.page.size
    }

    /// Place behind which the page begins; `None` for the first page.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a token of another list.
    pub(crate) fn place(&self) -> Result<Option<String>, Status> {
        Ok(self.page.place(SEAL, self.of, &self.bound_to).map_err(Error::from)?)
    }

    /// Token of the next page, behind a place; empty without one.
    pub(crate) fn token(&self, place: Option<&str>) -> String {
        self.page.token_at(SEAL, self.of, &self.bound_to, place)
    }
}

/// Rows that a list goes through.
#[derive(Debug, Clone)]
pub(crate) struct LaneRange {
    /// Their lane.
    pub(crate) lane: WorkflowLane,
    /// Their keys.
    pub(crate) range: Range<LaneRowKey>,
}

/// Place in a list: a stretch, by its number, and the last of its rows that was looked at; without one, its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SagaListPosition {
    stretch: usize,
    lane: String,
    key: Option<LaneRowKey>,
}

impl SagaListPosition {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (stretch, lane, key) = (parts.next()?.parse().ok()?, parts.next()?.to_owned(), parts.next()?);
        Some(Self { stretch, lane, key: (!key.is_empty()).then(|| LaneRowKey::of_store(key.to_owned())) })
    }

    fn text(&self) -> String {
        format!("{} {} {}", self.stretch, self.lane, self.key.as_ref().map_or("", LaneRowKey::as_str))
    }

    /// The stretch to continue with. Its number may have changed, if lanes came or went since.
    fn number(&self, stretches: &[LaneRange]) -> Option<usize> {
        let is_it = |stretch: &LaneRange| {
            let is_in = self.key.as_ref().is_none_or(|key| stretch.range.contains(key));
            stretch.lane.to_string() == self.lane && is_in
        };
        if stretches.get(self.stretch).is_some_and(is_it) {
            return Some(self.stretch);
        }
        stretches.iter().position(is_it)
    }
}

/// Makes entries of rows.
pub(crate) trait PageListing: Sync {
    /// Entry of an answer.
    type Entry: Message;

    /// Makes entries of some rows of a stretch, each at the place of its row; `None` for rows that do not match.
    fn entries(
        &self,
        lane: &WorkflowLane,
        rows: &[(LaneRowKey, VersionedValue)],
    ) -> impl Future<Output = Result<Vec<Option<Self::Entry>>, RowReadError>> + Send;
}

/// Fills a page from the stretches; also returns the token of the next page.
///
/// # Errors
/// INVALID_ARGUMENT for a foreign token, and as [`failed`].
pub(crate) async fn page<L: PageListing>(
    reads: &RowReader,
    page_request: &SagaPageRequest,
    stretches: &[LaneRange],
    listed: &L,
) -> Result<(Vec<L::Entry>, String), Status> {
    let from = page_request.place()?;
    let from = from.as_deref().map(|place| SagaListPosition::parse(place).ok_or_else(foreign)).transpose()?;
    let begin = match &from {
        Some(place) => place.number(stretches).ok_or_else(foreign)?,
        None => 0,
    };
    let mut behind = from.and_then(|place| place.key);
    let mut filled =
        SagaPageBuilder { entries: Vec::new(), bytes: 0, looked_at: 0, scans: 0, size: page_request.size() };
    for (number, stretch) in stretches.iter().enumerate().skip(begin) {
        let at = |key: Option<LaneRowKey>| {
            SagaListPosition { stretch: number, lane: stretch.lane.to_string(), key }.text()
        };
        loop {
            if filled.is_full() {
                return Ok((filled.entries, page_request.token(Some(&at(behind)))));
            }
            let start = behind.as_ref().map_or_else(|| stretch.range.start.clone(), LaneRowKey::behind);
            let range = start..stretch.range.end.clone();
            let found = reads.scan(&stretch.lane, &range, filled.room()).await.map_err(failed)?;
            filled.scans += 1;
            let entries = listed.entries(&stretch.lane, &found.rows).await.map_err(failed)?;
            for ((key, _), entry) in found.rows.into_iter().zip(entries) {
                if !filled.take(entry) {
                    return Ok((filled.entries, page_request.token(Some(&at(behind)))));
                }
                behind = Some(key);
            }
            if !found.has_more {
                break;
            }
        }
        behind = None;
    }
    Ok((filled.entries, String::new()))
}

/// A page that is being filled.
struct SagaPageBuilder<T> {
    entries: Vec<T>,
    bytes: usize,
    looked_at: usize,
    scans: usize,
    size: usize,
}

impl<T: Message> SagaPageBuilder<T> {
    const fn is_full(&self) -> bool {
        self.entries.len() >= self.size || self.looked_at >= LOOKED_AT_MAX || self.scans >= SCANS_MAX
    }

    /// Number of rows to read next.
    fn room(&self) -> usize {
        let wanted = (self.size - self.entries.len()).max(CHUNK_MIN);
        wanted.min(CHUNK).min(LOOKED_AT_MAX - self.looked_at)
    }

    /// Takes in the entry of a row; returns whether there was room.
    fn take(&mut self, entry: Option<T>) -> bool {
        let Some(entry) = entry else {
            self.looked_at += 1;
            return true;
        };
        let bytes = entry.encoded_len();
        let is_full = self.entries.len() >= self.size
            || (!self.entries.is_empty() && self.bytes + bytes > PAGE_BYTES_MAX);
        if !is_full {
            self.looked_at += 1;
            self.bytes += bytes;
            self.entries.push(entry);
        }
        !is_full
    }
}

/// INVALID_ARGUMENT for a token of another list.
pub(crate) fn foreign() -> Status {
    let mut violations = Violations::new();
    violations.add("page_token", "the token is not one that was given for this caller and filter");
    Error::from(violations).into()
}

/// Maps a failed read to the status that callers get: UNAVAILABLE while the store does not answer, INTERNAL for a row that cannot
/// be read.
pub(crate) fn failed(error: RowReadError) -> Status {
    use ::rpc::RpcReason;

    use crate::definitions::DefinitionError;

    match error {
        RowReadError::Store(error) | RowReadError::Definition(DefinitionError::Store(error)) => {
            Error::unavailable(RpcReason::StoreUnavailable, "the store does not answer")
                .with_cause(error)
                .into()
        }
        error @ (RowReadError::Definition(_) | RowReadError::Damaged { .. }) => Error::internal(error).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_again_where_lanes_came() {
        let lane = |shard| WorkflowLane::Saga {
            tenant: TenantId::single(),
            saga: "order".parse().expect("a name"),
            shard,
        };
        let range = workflow::key::StoreTable::By.range();
        let stretch = |shard| LaneRange { lane: lane(shard), range: range.clone() };
        let key = LaneRowKey::by("running", "reserve", &"a b:%".parse().expect("a correlation"));
        let place = SagaListPosition { stretch: 1, lane: lane(1).to_string(), key: Some(key) };
        assert_eq!(SagaListPosition::parse(&place.text()), Some(place.clone()));
        assert_eq!(place.number(&[stretch(0), stretch(1)]), Some(1));
        assert_eq!(place.number(&[stretch(1), stretch(2)]), Some(0));
        assert_eq!(place.number(&[stretch(0)]), None);
        let other = SagaListPosition { key: Some(LaneRowKey::fence()), ..place };
        assert_eq!(other.number(&[stretch(0), stretch(1)]), None);
        for text in ["", "x", "1 s:%:order:0", "x s:%:order:0 k"] {
            assert_eq!(SagaListPosition::parse(text), None, "{text}");
        }
    }
}
