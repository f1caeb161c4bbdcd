//! Verification of a lane: journals are run again and compared with the stored instances, one at a time.

use std::collections::HashMap;
use std::sync::Arc;

use ::rpc::{Error, WatchEnded};
use model::{BlobHash, CorrelationId, SagaName, TenantId, Violations};
use prometheus::IntCounter;
use proto::v1::replay_lane_response::Event;
use proto::v1::{SagaReplayDifference, SagaReplayDone, SagaReplayProgress};
use tonic::Status;
use workflow::definition::Saga;
use workflow::instance::CorrelationRecord;
use workflow::key::StoreTable;
use workflow::replay::{self, ReplayDifference};
use workflow::step::{InstanceIdentity, JournalRow};
use workflow::{LaneRowKey, WorkflowLane, lane};

use super::super::SagaApi;
use super::super::instances::no_instance;
use super::super::lists::failed;
use super::LaneReplayAnswers;
use crate::definitions::DefinitionError;
use crate::reads::{RowReadError, RowReader, read};
use crate::sagas::InstanceListRow;

/// Rows that one read brings, of lists and of journals.
const ROWS: usize = 100;
/// Largest number of differences that are sent.
const DIFFERENCES_MAX: u64 = 1000;
/// Definitions that are remembered from one instance to the next.
const DEFINITIONS_MAX: usize = 64;

/// Comparison of a lane.
pub(super) struct LaneVerification {
    reads: RowReader,
    lane: WorkflowLane,
    tenant: TenantId,
    only: Option<CorrelationId>,
    answers: LaneReplayAnswers,
    differences: IntCounter,
    definitions: HashMap<BlobHash, Arc<Saga>>,
    incomplete: u64,
    different: u64,
}

/// Result of comparing an instance with its journal.
#[derive(Debug, PartialEq, Eq)]
enum JournalComparison {
    /// Instance is as its journal says.
    Same,
    /// Instance differs from this revision on.
    Differs { revision: u64, detail: String },
    /// The first rows of its journal are gone.
    Incomplete,
    /// There is no instance.
    Nothing,
}

/// An instance with its journal, or the reason why there is nothing to run again.
enum JournalLookup {
    Whole(Box<CorrelationRecord>, Vec<JournalRow>),
    Not(JournalComparison),
}

impl LaneVerification {
    /// Begins with a lane, or with one instance of it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a lane of an effect or a correlation of another lane, NOT_FOUND for an instance that is not there.
    pub(super) async fn begin(
        api: &SagaApi,
        lane: WorkflowLane,
        only: Option<CorrelationId>,
        answers: LaneReplayAnswers,
    ) -> Result<Self, Status> {
        let reads = api.reads();
        let mut violations = Violations::new();
        match (&lane, &only) {
            (WorkflowLane::Effect { .. }, _) => violations.add("verify", "is only for the lane of a saga"),
            (WorkflowLane::Saga { tenant, saga, shard }, Some(only)) => {
                if !is_of(&reads, tenant, saga, only, *shard) {
                    violations.add("verify.correlation_id", "belongs to another lane");
                }
            }
            (WorkflowLane::Saga { .. }, None) => {}
        }
        violations.into_result(Some(())).map_err(Error::from)?;
        if let (WorkflowLane::Saga { saga, .. }, Some(only)) = (&lane, &only) {
            match reads.record(&lane, only).await {
                Ok(None) => return Err(no_instance(saga, only)),
                Err(error) if !is_damaged(&error) => return Err(failed(error)),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        Ok(Self {
            tenant: lane.tenant().clone(),
            differences: api.app.around().metrics.replay_differences.clone(),
            reads,
            lane,
            only,
            answers,
            definitions: HashMap::new(),
            incomplete: 0,
            different: 0,
        })
    }

    pub(super) async fn run(mut self) {
        if let Err(ended) = self.verify().await {
            self.answers.sender.end(ended);
        }
    }

    async fn verify(&mut self) -> Result<(), WatchEnded> {
        self.answers.send(Event::Progress(SagaReplayProgress::default())).await?;
        match self.only.clone() {
            Some(only) => self.one(&only).await?,
            None => self.all().await?,
        }
        let done = SagaReplayDone {
            compared_count: self.answers.compared,
            incomplete_count: self.incomplete,
            different_count: self.different,
            sources: Vec::new(),
        };
        self.answers.send(Event::Done(done)).await
    }

    async fn all(&mut self) -> Result<(), WatchEnded> {
        let mut range = StoreTable::By.range();
        loop {
            let (reads, lane) = (self.reads.clone(), self.lane.clone());
            let page = self.answers.with_progress(reads.scan(&lane, &range, ROWS)).await?.map_err(failed)?;
            for (key, row) in &page.rows {
                let listed: InstanceListRow = read(&lane, key, row).map_err(failed)?;
                self.one(&listed.correlation).await?;
            }
            match page.rest() {
                Some(rest) => range.start = rest,
                None => return Ok(()),
            }
        }
    }

    /// Compares an instance, and reports a difference.
    async fn one(&mut self, correlation: &CorrelationId) -> Result<(), WatchEnded> {
        let definitions = std::mem::take(&mut self.definitions);
        let mut journals = LaneJournals {
            reads: self.reads.clone(),
            lane: self.lane.clone(),
            tenant: self.tenant.clone(),
            definitions,
        };
        let compared = self.answers.with_progress(journals.compare(correlation)).await?;
        self.definitions = journals.definitions;
        match compared.map_err(failed)? {
            JournalComparison::Nothing => {}
            JournalComparison::Incomplete => self.incomplete += 1,
            JournalComparison::Same => self.answers.compared += 1,
            JournalComparison::Differs { revision, detail } => {
                self.answers.compared += 1;
                self.different += 1;
                self.differences.inc();
                tracing::warn!(lane = %self.lane, revision, "an instance is not as its journal says: {detail}");
                if self.different <= DIFFERENCES_MAX {
                    let correlation_id = correlation.to_string();
                    let difference = SagaReplayDifference { correlation_id, revision, detail };
                    self.answers.send(Event::Difference(difference)).await?;
                }
            }
        }
        Ok(())
    }
}

/// Returns true if a correlation belongs to a shard.
fn is_of(
    reads: &RowReader,
    tenant: &TenantId,
    saga: &SagaName,
    correlation: &CorrelationId,
    shard: u8,
) -> bool {
    let versions = reads.definitions().versions(tenant, saga);
    versions.first().is_some_and(|saga| lane::shard(tenant, correlation, saga.shards) == shard)
}

/// Returns true for a row that cannot be read, which is a difference and no reason to end.
const fn is_damaged(error: &RowReadError) -> bool {
    matches!(error, RowReadError::Damaged { .. })
}

/// Journals of a lane.
struct LaneJournals {
    reads: RowReader,
    lane: WorkflowLane,
    tenant: TenantId,
    definitions: HashMap<BlobHash, Arc<Saga>>,
}

impl LaneJournals {
    async fn compare(&mut self, correlation: &CorrelationId) -> Result<JournalComparison, RowReadError> {
        let (record, rows) = match self.find(correlation).await? {
            JournalLookup::Whole(record, rows) => (record, rows),
            JournalLookup::Not(compared) => return Ok(compared),
        };
        if self.definitions.len() > DEFINITIONS_MAX {
            self.definitions.clear();
        }
        for hash in rows.iter().filter_map(|row| row.definition) {
            if self.definitions.contains_key(&hash) {
                continue;
            }
            match self.reads.definition(hash).await {
                Ok(saga) => drop(self.definitions.insert(hash, saga)),
                // The journal row that names it is then reported as a difference.
                Err(RowReadError::Definition(DefinitionError::Unreadable { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        let whose = InstanceIdentity { tenant: &self.tenant, correlation };
        Ok(compared(replay::replay(|hash| self.definitions.get(&hash).cloned(), whose, &rows), &record))
    }

    /// Reads an instance with its journal up to its revision. Rows of a journal do not change, so new rows do not matter; only removed
    /// ones do.
    async fn find(&self, correlation: &CorrelationId) -> Result<JournalLookup, RowReadError> {
        let record = match self.reads.record(&self.lane, correlation).await {
            Ok(record) => record,
            Err(error) if is_damaged(&error) => return Ok(JournalLookup::Not(unreadable(0, &error))),
            Err(error) => return Err(error),
        };
        let Some((record, (last, _))) =
            record.and_then(|record| replay::chain(&record).map(|at| (record, at)))
        else {
            return Ok(JournalLookup::Not(JournalComparison::Nothing));
        };
        let mut rows: Vec<JournalRow> = Vec::new();
        let mut range = LaneRowKey::journal(correlation, 0)..LaneRowKey::journal(correlation, last).behind();
        loop {
            let page = self.reads.scan(&self.lane, &range, ROWS).await?;
            for (key, row) in &page.rows {
                let expected = rows.last().map_or(1, |row| row.revision + 1);
                match read::<JournalRow>(&self.lane, key, row) {
                    Ok(row) => rows.push(row),
                    Err(error) => return Ok(JournalLookup::Not(unreadable(expected, &error))),
                }
            }
            match page.rest() {
                Some(rest) => range.start = rest,
                None => break,
            }
        }
        let expected =
            (1..=last).zip(rows.iter().map(|row| Some(row.revision)).chain(std::iter::repeat(None)));
        let missing = expected.into_iter().find(|(expected, found)| *found != Some(*expected));
        let Some((revision, _)) = missing else { return Ok(JournalLookup::Whole(Box::new(record), rows)) };
        // The first rows may have been removed while the others were read.
        let first = self.reads.journal(&self.lane, correlation, 1).await;
        if matches!(first, Ok(None)) {
            return Ok(JournalLookup::Not(JournalComparison::Incomplete));
        }
        first?;
        let detail = format!("the row of revision {revision} is missing from the journal");
        Ok(JournalLookup::Not(JournalComparison::Differs { revision, detail }))
    }
}

fn unreadable(revision: u64, error: &RowReadError) -> JournalComparison {
    JournalComparison::Differs { revision, detail: error.to_string() }
}

/// Compares the result of a journal with the stored instance.
fn compared(
    again: Result<Option<CorrelationRecord>, ReplayDifference>,
    kept: &CorrelationRecord,
) -> JournalComparison {
    let again = match again {
        Ok(again) => again,
        Err(ReplayDifference::Cut { .. }) => return JournalComparison::Incomplete,
        Err(difference) => {
            let (ReplayDifference::NoDefinition { revision, .. } | ReplayDifference::Row { revision, .. }) =
                difference
            else {
                return JournalComparison::Incomplete;
            };
            return JournalComparison::Differs { revision, detail: difference.to_string() };
        }
    };
    let (last, chain) = replay::chain(kept).unzip();
    let revision = last.unwrap_or_default();
    let differs = |detail: &str| JournalComparison::Differs { revision, detail: detail.to_owned() };
    match &again {
        Some(again) if replay::chain(again).map(|(_, chain)| chain) != chain => {
            differs("the chain hash of the instance is not that of its journal")
        }
        Some(again) if again.entry != kept.entry => differs("the instance is not what its journal gives"),
        Some(_) => JournalComparison::Same,
        None => differs("the journal gives no instance"),
    }
}
