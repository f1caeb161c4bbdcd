//! Journals run again and compared with what is kept: one instance at a time, as of one of its revisions.

use std::collections::HashMap;
use std::sync::Arc;

use ::rpc::{Error, WatchEnded};
use model::{BlobHash, CorrelationId, SagaName, TenantId, Violations};
use prometheus::IntCounter;
use proto::v1::replay_lane_response::Event;
use proto::v1::{SagaReplayDifference, SagaReplayDone, SagaReplayProgress};
use tonic::Status;
use workflow::definition::Saga;
use workflow::instance::Record;
use workflow::key::Table;
use workflow::replay::{self, Difference};
use workflow::step::{Row, Whose};
use workflow::{Key, Lane, lane};

use super::super::Api;
use super::super::instances::no_instance;
use super::super::lists::failed;
use super::Answers;
use crate::definitions::DefinitionError;
use crate::reads::{ReadError, Reads, read};
use crate::sagas::ListedRow;

/// Instances that one read lists, and rows of a journal that one read brings.
const ROWS: usize = 100;
/// Differences that are told.
const TOLD_MAX: u64 = 1000;
/// Definitions that are remembered from one instance to the next.
const DEFINITIONS_MAX: usize = 64;

/// Comparison of a lane.
pub(super) struct Verify {
    reads: Reads,
    lane: Lane,
    tenant: TenantId,
    only: Option<CorrelationId>,
    answers: Answers,
    differences: IntCounter,
    definitions: HashMap<BlobHash, Arc<Saga>>,
    incomplete: u64,
    different: u64,
}

/// What comparing an instance came to.
#[derive(Debug, PartialEq, Eq)]
enum Compared {
    /// It is as its journal says.
    Same,
    /// It differs from this revision on.
    Differs { revision: u64, detail: String },
    /// The first rows of its journal are gone.
    Incomplete,
    /// There is no instance.
    Nothing,
}

/// An instance with its journal, or why there is nothing to run again.
enum Found {
    Whole(Box<Record>, Vec<Row>),
    Not(Compared),
}

impl Verify {
    /// Begins with a lane, or with one instance of it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a lane of an effect or a correlation of another lane, NOT_FOUND for an instance that is not there.
    pub(super) async fn begin(
        api: &Api,
        lane: Lane,
        only: Option<CorrelationId>,
        answers: Answers,
    ) -> Result<Self, Status> {
        let reads = api.reads();
        let mut violations = Violations::new();
        match (&lane, &only) {
            (Lane::Effect { .. }, _) => violations.add("verify", "is only for the lane of a saga"),
            (Lane::Saga { tenant, saga, shard }, Some(only)) => {
                if !is_of(&reads, tenant, saga, only, *shard) {
                    violations.add("verify.correlation_id", "belongs to another lane");
                }
            }
            (Lane::Saga { .. }, None) => {}
        }
        violations.into_result(Some(())).map_err(Error::from)?;
        if let (Lane::Saga { saga, .. }, Some(only)) = (&lane, &only) {
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
        let mut range = Table::By.range();
        loop {
            let (reads, lane) = (self.reads.clone(), self.lane.clone());
            let page = self.answers.while_told(reads.scan(&lane, &range, ROWS)).await?.map_err(failed)?;
            for (key, row) in &page.rows {
                let listed: ListedRow = read(&lane, key, row).map_err(failed)?;
                self.one(&listed.correlation).await?;
            }
            match page.rest() {
                Some(rest) => range.start = rest,
                None => return Ok(()),
            }
        }
    }

    /// Compares an instance, and tells if it differs.
    async fn one(&mut self, correlation: &CorrelationId) -> Result<(), WatchEnded> {
        let definitions = std::mem::take(&mut self.definitions);
        let mut journals = Journals {
            reads: self.reads.clone(),
            lane: self.lane.clone(),
            tenant: self.tenant.clone(),
            definitions,
        };
        let compared = self.answers.while_told(journals.compare(correlation)).await?;
        self.definitions = journals.definitions;
        match compared.map_err(failed)? {
            Compared::Nothing => {}
            Compared::Incomplete => self.incomplete += 1,
            Compared::Same => self.answers.compared += 1,
            Compared::Differs { revision, detail } => {
                self.answers.compared += 1;
                self.different += 1;
                self.differences.inc();
                tracing::warn!(lane = %self.lane, revision, "an instance is not as its journal says: {detail}");
                if self.different <= TOLD_MAX {
                    let correlation_id = correlation.to_string();
                    let difference = SagaReplayDifference { correlation_id, revision, detail };
                    self.answers.send(Event::Difference(difference)).await?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a correlation is one of a shard.
fn is_of(reads: &Reads, tenant: &TenantId, saga: &SagaName, correlation: &CorrelationId, shard: u8) -> bool {
    let versions = reads.definitions().versions(tenant, saga);
    versions.first().is_some_and(|saga| lane::shard(tenant, correlation, saga.shards) == shard)
}

/// Whether a row is there that cannot be read: a difference, and no reason to end.
const fn is_damaged(error: &ReadError) -> bool {
    matches!(error, ReadError::Damaged { .. })
}

/// Journals of a lane.
struct Journals {
    reads: Reads,
    lane: Lane,
    tenant: TenantId,
    definitions: HashMap<BlobHash, Arc<Saga>>,
}

impl Journals {
    async fn compare(&mut self, correlation: &CorrelationId) -> Result<Compared, ReadError> {
        let (record, rows) = match self.find(correlation).await? {
            Found::Whole(record, rows) => (record, rows),
            Found::Not(compared) => return Ok(compared),
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
                // The row that names it differs then.
                Err(ReadError::Definition(DefinitionError::Unreadable { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        let whose = Whose { tenant: &self.tenant, correlation };
        Ok(compared(replay::replay(|hash| self.definitions.get(&hash).cloned(), whose, &rows), &record))
    }

    /// Reads an instance with its journal up to its revision. Rows of a journal do not change, so that what comes meanwhile makes no
    /// difference; only what goes does.
    async fn find(&self, correlation: &CorrelationId) -> Result<Found, ReadError> {
        let record = match self.reads.record(&self.lane, correlation).await {
            Ok(record) => record,
            Err(error) if is_damaged(&error) => return Ok(Found::Not(unreadable(0, &error))),
            Err(error) => return Err(error),
        };
        let Some((record, (last, _))) =
            record.and_then(|record| replay::chain(&record).map(|at| (record, at)))
        else {
            return Ok(Found::Not(Compared::Nothing));
        };
        let mut rows: Vec<Row> = Vec::new();
        let mut range = Key::journal(correlation, 0)..Key::journal(correlation, last).behind();
        loop {
            let page = self.reads.scan(&self.lane, &range, ROWS).await?;
            for (key, row) in &page.rows {
                let expected = rows.last().map_or(1, |row| row.revision + 1);
                match read::<Row>(&self.lane, key, row) {
                    Ok(row) => rows.push(row),
                    Err(error) => return Ok(Found::Not(unreadable(expected, &error))),
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
        let Some((revision, _)) = missing else { return Ok(Found::Whole(Box::new(record), rows)) };
        // The first rows may have gone while the others were read.
        let first = self.reads.journal(&self.lane, correlation, 1).await;
        if matches!(first, Ok(None)) {
            return Ok(Found::Not(Compared::Incomplete));
        }
        first?;
        let detail = format!("the row of revision {revision} is missing from the journal");
        Ok(Found::Not(Compared::Differs { revision, detail }))
    }
}

fn unreadable(revision: u64, error: &ReadError) -> Compared {
    Compared::Differs { revision, detail: error.to_string() }
}

/// Compares what a journal gives with what is kept.
fn compared(again: Result<Option<Record>, Difference>, kept: &Record) -> Compared {
    let again = match again {
        Ok(again) => again,
        Err(Difference::Cut { .. }) => return Compared::Incomplete,
        Err(difference) => {
            let (Difference::NoDefinition { revision, .. } | Difference::Row { revision, .. }) = difference
            else {
                return Compared::Incomplete;
            };
            return Compared::Differs { revision, detail: difference.to_string() };
        }
    };
    let (last, chain) = replay::chain(kept).unzip();
    let revision = last.unwrap_or_default();
    let differs = |detail: &str| Compared::Differs { revision, detail: detail.to_owned() };
    match &again {
        Some(again) if replay::chain(again).map(|(_, chain)| chain) != chain => {
            differs("the chain hash of the instance is not that of its journal")
        }
        Some(again) if again.entry != kept.entry => differs("the instance is not what its journal gives"),
        Some(_) => Compared::Same,
        None => differs("the journal gives no instance"),
    }
}
