//! Watching instances: a snapshot of those that match, then each change of one of them.
//!
//! The subscription to facts begins before rows are read, so that no change is missed. A change is sent as its row says at that time:
//! an instance never goes back to an earlier state.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ::rpc::{ANSWERS_MAX, AnswerSender, AnswerStream, Error, RpcReason, WatchEnded, while_member};
use futures_util::StreamExt as _;
use model::{ContextId, CorrelationId, Role, SagaName, SagaStatus, TenantId, Violations};
use proto::convert::saga::{name, tenant};
use proto::v1::watch_sagas_response::Event;
use proto::v1::{Heartbeat, Saga, SagaSnapshot, SnapshotEnd, WatchSagasRequest, WatchSagasResponse};
use tokio::sync::mpsc;
use tonic::codegen::BoxStream;
use tonic::{Code, Status};
use workflow::instance::CorrelationRecord;

use super::access::no_tenant;
use super::instances::{InstanceFilter, InstanceListing};
use super::lists::{PageListing as _, failed};
use super::wire;
use super::wire::saga::SagaInstanceRef;
use super::{SagaApi, SagaCaller};
use crate::app::App;
use crate::facts::{Fact, FactPosition, FactSubscription, FactsError, InstanceChange};
use crate::reads::RowReader;

/// Rows of a snapshot that are read at once.
const ROWS: usize = 200;
/// Instances whose last sent state is remembered.
const REMEMBERED_MAX: usize = 1024;

/// Filter of a watch.
struct SagaWatchFilter {
    tenant: TenantId,
    saga: Option<SagaName>,
    correlation: Option<CorrelationId>,
}

/// Watches instances.
pub(super) async fn watch(
    api: &SagaApi,
    caller: &SagaCaller,
    request: WatchSagasRequest,
) -> Result<BoxStream<WatchSagasResponse>, Status> {
    let mut violations = Violations::new();
    let WatchSagasRequest { tenant_id, saga, correlation_id, snapshot, resume_position } = request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    if saga.is_empty() && !correlation_id.is_empty() {
        violations.add("saga", "is missing: a correlation is one within a saga");
    }
    let saga = name("saga", &saga, &mut violations);
    let correlation = name("correlation_id", &correlation_id, &mut violations);
    let snapshot = violations.take("snapshot", SagaSnapshot::try_from(snapshot).map_err(|_| "unknown"));
    let from: Option<FactPosition> = match resume_position.as_str() {
        "" => None,
        text => violations.take("resume_position", text.parse()),
    };
    let parsed = violations.into_result(tenant.zip(snapshot)).map_err(Error::from)?;
    let (tenant, snapshot) = parsed;
    let (context, actor) = api.read(caller, &tenant).await?;
    let following = api.facts.follow(&tenant, from).await.map_err(lost)?;
    let (answers, stream) = mpsc::channel(ANSWERS_MAX);
    let watch = SagaWatcher {
        answers: AnswerSender::new(answers.clone(), api.app.around().metrics.slow_watchers.clone()),
        app: Arc::clone(&api.app),
        reads: api.reads(),
        context,
        wanted: SagaWatchFilter { tenant: tenant.clone(), saga, correlation },
        following,
        last_sent: HashMap::new(),
    };
    let stop = api.shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = watch.run(snapshot, from.is_some()) => {}
            () = answers.closed() => {}
            () = stop.begun() => {
                let ending = Error::unavailable(RpcReason::Draining, "the server is ending; resume elsewhere");
                // A watcher that does not read does not need the reason.
                let _ = answers.try_send(Err(ending.into()));
            }
        }
    });
    let directory = api.directory()?;
    let stream = while_member(AnswerStream::new(stream), directory, context, actor, Role::Reader);
    // A caller that loses its role gets the same answer as a stranger.
    let status_of =
        move |status: Status| if status.code() == Code::NotFound { no_tenant(&tenant) } else { status };
    Ok(Box::pin(stream.map(move |answer| answer.map_err(&status_of))))
}

/// Returns the status that a watcher gets when its subscription to facts ends.
fn lost(error: FactsError) -> Status {
    match error {
        FactsError::Gone => {
            Error::new(::rpc::ErrorKind::OutOfRange, RpcReason::PositionGone, error.to_string()).into()
        }
        FactsError::Away(why) => {
            Error::unavailable(RpcReason::PeerUnavailable, "the broker does not answer; resume")
                .with_cause(why)
                .into()
        }
        FactsError::Read(error) => failed(error),
    }
}

/// One watcher.
struct SagaWatcher {
    answers: AnswerSender<WatchSagasResponse>,
    app: Arc<App>,
    reads: RowReader,
    context: ContextId,
    wanted: SagaWatchFilter,
    following: FactSubscription,
    /// State that was last sent of each instance that changed.
    last_sent: HashMap<(SagaName, CorrelationId), Saga>,
}

impl SagaWatcher {
    async fn run(mut self, snapshot: SagaSnapshot, is_resumed: bool) {
        if let Err(ended) = self.watch(snapshot, is_resumed).await {
            self.answers.end(ended);
        }
    }

    async fn watch(&mut self, snapshot: SagaSnapshot, is_resumed: bool) -> Result<(), WatchEnded> {
        if !is_resumed {
            let open = [SagaStatus::Running, SagaStatus::Compensating, SagaStatus::Stuck];
            match snapshot {
                SagaSnapshot::Unspecified => self.snapshot(BTreeSet::new()).await?,
                SagaSnapshot::Open => self.snapshot(open.into()).await?,
                SagaSnapshot::None => {}
            }
            self.following.has_read();
            self.send(Event::SnapshotEnd(SnapshotEnd {}), true).await?;
        }
        loop {
            match self.answers.heartbeat.or_due(self.following.next()).await {
                Some(changed) => self.change(changed.map_err(lost)?).await?,
                None => {
                    self.check_tenant()?;
                    self.send(Event::Heartbeat(Heartbeat {}), true).await?;
                }
            }
        }
    }

    /// Ends the watch if the tenant was removed from the operator's file.
    fn check_tenant(&self) -> Result<(), WatchEnded> {
        let is_there = self.app.context_of(&self.wanted.tenant) == Some(self.context);
        if is_there { Ok(()) } else { Err(no_tenant(&self.wanted.tenant).into()) }
    }

    /// Sends the instances that match as they are now.
    async fn snapshot(&mut self, statuses: BTreeSet<SagaStatus>) -> Result<(), WatchEnded> {
        let SagaWatchFilter { tenant, saga, correlation } = &self.wanted;
        let (tenant, saga) = (tenant.clone(), saga.clone());
        let filter = InstanceFilter { saga: saga.clone(), statuses, ..InstanceFilter::default() };
        if let (Some(saga), Some(correlation)) = (saga, correlation.clone()) {
            let Some(lane) = self.reads.lane_of(&tenant, &saga, &correlation) else { return Ok(()) };
            let record = self.reads.record(&lane, &correlation).await.map_err(failed)?;
            let whose = SagaInstanceRef { tenant: &tenant, saga: &saga, correlation: &correlation };
            if let Some(shown) = record
                .filter(|record| filter.matches(record))
                .and_then(|record| wire::saga::saga(whose, &record))
            {
                self.send(Event::Saga(shown), false).await?;
            }
            return Ok(());
        }
        let reads = self.reads.clone();
        let listed = InstanceListing { reads: &reads, tenant: &tenant, filter: &filter };
        for mut stretch in filter.stretches(reads.saga_lanes(&tenant, filter.saga.as_ref())) {
            loop {
                let read = async {
                    let found = reads.scan(&stretch.lane, &stretch.range, ROWS).await?;
                    let shown = listed.entries(&stretch.lane, &found.rows).await?;
                    Ok((found, shown))
                };
                let Some(read) = self.answers.heartbeat.or_due(read).await else {
                    self.send(Event::Heartbeat(Heartbeat {}), false).await?;
                    continue;
                };
                let (found, shown) = read.map_err(failed)?;
                for saga in shown.into_iter().flatten() {
                    self.send(Event::Saga(saga), false).await?;
                }
                match found.rest() {
                    Some(rest) => stretch.range.start = rest,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Sends a changed instance, if it is watched and differs from the state that was last sent.
    async fn change(&mut self, changed: InstanceChange) -> Result<(), WatchEnded> {
        let InstanceChange { fact, record } = changed;
        let Some(saga) = record.and_then(|record| self.wanted.shown(&fact, &record)) else { return Ok(()) };
        let key = (fact.saga.clone(), fact.correlation.clone());
        if self.last_sent.get(&key) == Some(&saga) {
            return Ok(());
        }
        if self.last_sent.len() >= REMEMBERED_MAX {
            self.last_sent.clear();
        }
        self.last_sent.insert(key, saga.clone());
        self.check_tenant()?;
        self.send(Event::Saga(saga), true).await
    }

    async fn send(&mut self, event: Event, has_position: bool) -> Result<(), WatchEnded> {
        let place = if has_position { self.following.position().to_string() } else { String::new() };
        let answer = |resume_position| WatchSagasResponse { event: Some(event), resume_position };
        self.answers.send(place, answer, false).await
    }
}

impl SagaWatchFilter {
    /// The instance, if it is watched.
    fn shown(&self, fact: &Fact, record: &CorrelationRecord) -> Option<Saga> {
        let is_wanted = self.saga.as_ref().is_none_or(|saga| *saga == fact.saga)
            && self.correlation.as_ref().is_none_or(|correlation| *correlation == fact.correlation);
        let whose =
            SagaInstanceRef { tenant: &self.tenant, saga: &fact.saga, correlation: &fact.correlation };
        if is_wanted { wire::saga::saga(whose, record) } else { None }
    }
}
