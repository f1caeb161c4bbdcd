//! Owner of a saga's lane: gives inputs to instances, and commits what follows from them.
//!
//! Messages of a lane come in order, and wait in one queue per correlation. Each correlation has one input worked on at a time;
//! different correlations run concurrently. One commit has everything that follows from an input, and the position of its source too.

mod answer;
mod batch;
mod blocked;
pub(crate) mod census;
mod dead_letter_limit;
mod dead_letters;
mod input_decision;
mod input_task;
mod intake;
mod queued_input;
mod rewind;
mod schedule;
mod source_inputs;
mod starved;
mod summary;
mod timers;
mod transition_telemetry;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use model::{CorrelationId, SagaName, TenantId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use workflow::WorkflowLane;
use workflow::correlation_queues::{CorrelationQueues, LaneQueueCapacity};
use workflow::definition::Saga;
use workflow::input::{InstanceInput, InstanceInputKind};
use workflow::instance::CorrelationRecord;
use workflow::subject::ConsumerSource;

pub use self::answer::{OrderedWork, VerbAnswerRow, VerbOutcome};
pub use self::batch::{DeadLetterRow, HeldInput, HeldRow, InstanceListRow};
pub(crate) use self::batch::{KNOWN_MILLIS, TOMBSTONE_MILLIS};
use self::blocked::BlockedInputs;
use self::dead_letter_limit::DeadLetterLimit;
pub use self::dead_letter_limit::SAGA_DEAD_LETTERS_MAX;
pub(crate) use self::dead_letters::passed_on;
use self::input_task::{InputOutcome, InputTask};
use self::intake::InstanceAction;
pub use self::intake::{DeadMessage, RawMessage};
pub(crate) use self::intake::{NOBODY, SagaIncomingMessage};
pub(crate) use self::queued_input::QueuedInput;
use self::rewind::PendingRewind;
use self::starved::StarvedInputs;
pub use self::starved::StarvedRow;
pub use self::summary::InstanceSummary;
use self::timers::LaneTimers;
pub use self::timers::TimerRow;
use crate::definitions::Definitions;
use crate::lane::gateway::{AnsweredCommand, CommandSubmitter, Gateway};
use crate::lane::in_flight::InFlightBudget;
use crate::lane::relay::{Relay, RelayMessage};
use crate::lane::rows::LaneStore;
use crate::lane::source::{SourceEvent, SourceReader, SourceReaderCommand, SourceState};
use crate::lane::{AGGREGATE_EVENTS, LaneEnvironment, LaneExit, WORKFLOW_COMMANDS, WORKFLOW_EVENTS, drain};
use crate::metrics::LaneCensus;
use crate::quotas::LaneUsage;

/// Capacity of a lane's queues.
pub const ROOM: LaneQueueCapacity =
    LaneQueueCapacity { items: 256, bytes: 16 * 1024 * 1024, per_correlation: 64 };
/// Inputs that are worked on at a time, each of another correlation.
const AT_ONCE: usize = 64;
/// Number of rounds after which timers are looked at.
const TIMERS_EACH: u64 = 32;
/// Inputs that a lane begins at once, and inputs that it finishes, before other lanes get a turn.
const TURN: usize = 32;
/// Records that are kept in memory.
const CACHED_MAX: usize = 10_000;

/// A saga's lane that is to be owned.
pub struct SagaLane {
    /// Tenant that the lane belongs to.
    pub tenant: TenantId,
    /// Saga whose instances it runs.
    pub saga: SagaName,
    /// Number of the shard.
    pub shard: u8,
    /// Start of sources that were never read, in milliseconds since 1970.
    pub since: Option<u64>,
    /// Definitions in force.
    pub definitions: Arc<Definitions>,
    /// Limit of the saga's dead letters, over all its shards.
    pub letters_max: u64,
    /// Where commands of aggregates go.
    pub gateway: Arc<dyn Gateway>,
    /// Environment that the lane works in.
    pub around: LaneEnvironment,
}

/// A record that is in memory, with the revision of its row.
#[derive(Clone)]
pub(crate) struct CachedRecord {
    pub(crate) record: Option<CorrelationRecord>,
    pub(crate) revision: u64,
}

impl SagaLane {
    /// Takes the lane and owns it, until `stop` is cancelled or another owner takes the lane. Returns why the lane was given up:
    /// [`LaneExit::Stopped`] after `stop`. Dropping the future is as safe as a crash: the next owner resumes from the last commit.
    pub async fn own(self, stop: CancellationToken) -> LaneExit {
        let lane =
            WorkflowLane::Saga { tenant: self.tenant.clone(), saga: self.saga.clone(), shard: self.shard };
        let around = self.around.clone();
        let work = |rows| async move { SagaLaneOwner::start(self, rows, &stop).await?.run(&stop).await };
        crate::lane::own(lane, around, work).await
    }

    fn sources(&self) -> Vec<(ConsumerSource, &'static str)> {
        sources(&self.saga, &self.definitions.versions(&self.tenant, &self.saga))
    }
}

/// Sources of the lanes of a saga, each with its stream: aggregates, results of the effects that it orders, verbs.
#[must_use]
pub fn sources(saga: &SagaName, versions: &[Arc<Saga>]) -> Vec<(ConsumerSource, &'static str)> {
    let mut aggregates: Vec<_> =
        versions.iter().flat_map(|saga| saga.sources.iter().map(|source| &source.aggregate)).collect();
    aggregates.sort();
    aggregates.dedup();
    let mut effects: Vec<_> = versions.iter().flat_map(|saga| saga.effects()).collect();
    effects.sort();
    effects.dedup();
    let aggregates =
        aggregates.into_iter().map(|kind| (ConsumerSource::Aggregate(kind.clone()), AGGREGATE_EVENTS));
    let results =
        effects.into_iter().map(|effect| (ConsumerSource::Results(effect.clone()), WORKFLOW_EVENTS));
    let verbs = std::iter::once((ConsumerSource::Verbs(saga.clone()), WORKFLOW_COMMANDS));
    aggregates.chain(results).chain(verbs).collect()
}

/// An owned lane.
struct SagaLaneOwner {
    shared: Arc<SagaLaneContext>,
    sources: Vec<SourceState>,
    readers: Vec<mpsc::Sender<SourceReaderCommand>>,
    /// Budgets for bytes in flight, of all sources but that of verbs.
    shares: Vec<InFlightBudget>,
    /// How many inputs of each source are worked on.
    working_of: Vec<usize>,
    /// Sources whose cursors were lost, and which wait for new ones.
    is_lost: Vec<bool>,
    brought: mpsc::Receiver<(usize, SourceEvent)>,
    /// Verbs, which are taken in even without room for events: one of them may make room.
    verbs: mpsc::Receiver<(usize, SourceEvent)>,
    answered: mpsc::UnboundedReceiver<AnsweredCommand>,
    queues: CorrelationQueues<QueuedInput>,
    cache: HashMap<CorrelationId, CachedRecord>,
    timers: LaneTimers,
    working: FuturesUnordered<futures_util::future::BoxFuture<'static, Result<InputOutcome, LaneExit>>>,
    /// Inputs for which there was no room in their queues, in order.
    stalled: VecDeque<(CorrelationId, QueuedInput, usize)>,
    /// Inputs for which there was no room behind a dead letter or a pause.
    blocked: BlockedInputs,
    /// Starts for which the tenant has no room.
    starved: StarvedInputs,
    /// Correlations whose inputs were held back when the lane was taken.
    held: mpsc::Receiver<CorrelationId>,
    /// Requests to read sources again, in order.
    setting_back: VecDeque<PendingRewind>,
    tasks: JoinSet<Result<(), LaneExit>>,
    relay: mpsc::UnboundedSender<RelayMessage>,
}

/// Context that all inputs of a lane share.
pub(crate) struct SagaLaneContext {
    pub(crate) tenant: TenantId,
    pub(crate) saga: SagaName,
    pub(crate) shard: u8,
    pub(crate) rows: Arc<LaneStore>,
    pub(crate) definitions: Arc<Definitions>,
    pub(crate) usage: LaneUsage,
    pub(crate) census: LaneCensus,
    letters: DeadLetterLimit,
}

impl SagaLaneOwner {
    async fn start(lane: SagaLane, rows: Arc<LaneStore>, stop: &CancellationToken) -> Result<Self, LaneExit> {
        let (to, brought) = mpsc::channel(64);
        let (to_verbs, verbs) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        let (relay, messages) = mpsc::unbounded_channel();
        let (commands, ordered) = mpsc::unbounded_channel();
        let (answers, answered) = mpsc::unbounded_channel();
        let outgoing = Relay { rows: Arc::clone(&rows), messages, commands };
        tasks.spawn(outgoing.run());
        let (gateway, of_lane) = (Arc::clone(&lane.gateway), Arc::clone(&rows));
        let commands = CommandSubmitter { rows: of_lane, gateway, ordered, answered: answers };
        tasks.spawn(async move {
            commands.run().await;
            Ok(())
        });
        let (mut sources, mut readers, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        let in_force = lane.definitions.in_force();
        for (number, (source, stream)) in lane.sources().into_iter().enumerate() {
            let label = in_force.source_label(&lane.tenant, &lane.saga, &source);
            let reading = rows.around().metrics.readings.source(label.0, &label.1);
            sources.push(SourceState::new(source.clone(), stream, &rows.lane, reading));
            let (reader, commands) = mpsc::channel(4);
            readers.push(reader);
            // Only aggregates need a start: results and verbs from before this lane existed belong to none of its instances.
            let since = lane.since.filter(|_| matches!(source, ConsumerSource::Aggregate(_)));
            let is_of_verbs = matches!(source, ConsumerSource::Verbs(_));
            let share = rows.around().bounds.share();
            shares.extend((!is_of_verbs).then(|| share.clone()));
            let reading = SourceReader {
                rows: Arc::clone(&rows),
                source,
                stream: stream.to_owned(),
                number,
                since,
                to: if is_of_verbs { to_verbs.clone() } else { to.clone() },
                share,
                commands,
                stop: stop.clone(),
            };
            tasks.spawn(reading.run());
        }
        let saga = lane.definitions.saga(&lane.tenant, &lane.saga);
        let wanted = saga.as_ref().and_then(|saga| saga.start.schedule.as_ref());
        schedule::prepare(&rows, &lane.saga, wanted).await?;
        starved::forget(&rows).await?;
        let census = census::take(&rows).await?;
        let usage = starved::usage(&lane, &census);
        let census = rows.around().metrics.census.lane(&lane.tenant, &census);
        let shards = saga.as_ref().map_or(1, |saga| u64::from(saga.shards));
        let letters = DeadLetterLimit::new(lane.letters_max / shards, &rows.around().metrics);
        let freed = usage.freed();
        let (to_held, held) = mpsc::channel(64);
        tasks.spawn(rewind::find_held(Arc::clone(&rows), to_held));
        let timers = LaneTimers::load(&rows).await?;
        let SagaLane { tenant, saga, shard, definitions, .. } = lane;
        let shared = SagaLaneContext { tenant, saga, shard, rows, definitions, usage, census, letters };
        Ok(Self {
            shared: Arc::new(shared),
            working_of: vec![0; sources.len()],
            is_lost: vec![false; sources.len()],
            sources,
            readers,
            shares,
            brought,
            verbs,
            answered,
            queues: CorrelationQueues::new(ROOM),
            cache: HashMap::new(),
            timers,
            working: FuturesUnordered::new(),
            stalled: VecDeque::new(),
            blocked: BlockedInputs::default(),
            starved: StarvedInputs::new(freed),
            held,
            setting_back: VecDeque::new(),
            tasks,
            relay,
        })
    }

    async fn run(mut self, stop: &CancellationToken) -> Result<(), LaneExit> {
        if let Err(ended) = self.turns(stop).await {
            self.tasks.abort_all();
            return Err(ended);
        }
        // Inputs under way finish, and committed messages are sent.
        let finished = self.finish().await;
        // Dropping these ends of the channels lets the relay and the search for held inputs end.
        drop((self.relay, self.held));
        drain(&mut self.tasks, &self.shared.rows.around().cut).await;
        finished
    }

    /// Works through inputs and timers until `stop` is cancelled.
    async fn turns(&mut self, stop: &CancellationToken) -> Result<(), LaneExit> {
        let wake = Arc::clone(&self.shared.rows.around().wake);
        let mut since_turn = 0;
        for round in 0_u64.. {
            if since_turn >= TURN {
                since_turn = 0;
                tokio::task::yield_now().await;
            }
            self.unstall();
            if !self.setting_back.is_empty() {
                self.set_back().await?;
            }
            // Timers fire even if other work never pauses.
            if round.is_multiple_of(TIMERS_EACH) && self.timers.next_wait().is_zero() {
                self.fire().await?;
            }
            let most = AT_ONCE.min(self.working.len() + TURN);
            while self.working.len() < most
                && let Some((correlation, item)) = self.queues.take()
            {
                self.begin(correlation, item);
            }
            let rests = !self.blocked.is_empty() || self.shared.rows.backlog().is_full();
            self.shares.iter().for_each(|share| share.rest(rests));
            let (next_timer, next_note) = (self.timers.next_wait(), self.next_note());
            let next_report = self.starved.next_report();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(done) = self.working.next() => {
                    since_turn += 1;
                    self.done(done?)?;
                }
                Some(answered) = self.answered.recv() => self.command_answered(answered),
                Some((number, brought)) = self.verbs.recv() => self.take_in(number, brought)?,
                Some(correlation) = self.held.recv(), if self.may_drain() => {
                    self.push(correlation, QueuedInput::of(InstanceAction::Resume), 0);
                }
                Some((number, brought)) = self.brought.recv(), if self.has_room() => {
                    self.take_in(number, brought)?;
                }
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(ended) => ended?,
                    Err(error) => return Err(LaneExit::damaged(&self.shared.rows.lane, error)),
                },
                () = self.starved.retry_due() => self.retry_starved(),
                () = self.shared.rows.backlog().eased() => self.timers.look(),
                () = tokio::time::sleep(next_report.unwrap_or_default()), if next_report.is_some() => {
                    self.publish_starvation().await?;
                }
                () = wake.notified() => self.timers.look(),
                () = tokio::time::sleep(next_timer) => self.fire().await?,
                () = tokio::time::sleep(next_note.unwrap_or_default()), if next_note.is_some() => {
                    self.note_positions().await?;
                }
            }
        }
        Ok(())
    }

    /// Finishes the inputs under way.
    async fn finish(&mut self) -> Result<(), LaneExit> {
        while let Some(done) = self.working.next().await {
            self.done(done?)?;
        }
        self.note_positions().await
    }

    /// How long to wait before noting source positions that no input's commit carries: messages that mean nothing to this lane lead to
    /// no commit. `None` where there are no such positions.
    fn next_note(&self) -> Option<Duration> {
        self.sources.iter().filter_map(SourceState::next_note).min()
    }

    /// Commits how far sources were read.
    async fn note_positions(&mut self) -> Result<(), LaneExit> {
        let ops: Vec<_> = self.sources.iter_mut().filter_map(SourceState::note).collect();
        if !ops.is_empty() {
            self.shared.rows.commit(Vec::new(), ops).await?;
        }
        Ok(())
    }

    /// Returns whether more inputs may be taken in.
    fn has_room(&self) -> bool {
        self.blocked.is_empty() && self.may_drain()
    }

    /// Returns whether held inputs may be applied; applying them makes room for blocked ones.
    fn may_drain(&self) -> bool {
        self.stalled.is_empty() && !self.shared.rows.backlog().is_full()
    }

    /// Takes in the answer to a command of an aggregate.
    fn command_answered(&mut self, answered: AnsweredCommand) {
        let AnsweredCommand { number, correlation, result, cause } = answered;
        // The result is not earlier than the transition that ordered the command: the instance sees to that.
        let time = result.command.time();
        let input = Box::new(InstanceInput { time, what: InstanceInputKind::Result(result) });
        let item = QueuedInput { cause, ..QueuedInput::of(InstanceAction::Answered { number, input }) };
        self.push(correlation, item, 0);
    }

    /// Begins to work on an input.
    fn begin(&mut self, correlation: CorrelationId, item: QueuedInput) {
        if self.starved.has(&correlation)
            && let Some(timer) = timers::timer_of(&correlation, &item.what)
        {
            // Other inputs of the correlation must not wait behind the timer: some of them make room.
            self.timers.hold(&correlation, timer);
            self.queues.done(&correlation);
            return;
        }
        let item = self.blocked.behind(&correlation, item);
        let Some(item) = item.and_then(|item| self.starved.behind(&correlation, item)) else {
            self.queues.done(&correlation);
            return;
        };
        let note = item.from.and_then(|(number, sequence)| self.sources.get_mut(number)?.note_with(sequence));
        if let Some((number, _)) = item.from {
            self.working_of[number] += 1;
        }
        let cached = self.cache.get(&correlation).cloned();
        let work = InputTask { shared: Arc::clone(&self.shared), correlation, item, cached, note };
        let metrics = Arc::clone(&self.shared.rows.around().metrics);
        self.working.push(Box::pin(async move {
            let begin = Instant::now();
            let done = work.run().await;
            metrics.transition_took(begin.elapsed());
            done
        }));
    }

    /// Processes the outcome of an input.
    fn done(&mut self, done: InputOutcome) -> Result<(), LaneExit> {
        let InputOutcome {
            correlation,
            item,
            cached,
            timers,
            outgoing,
            follows,
            is_blocked,
            starved,
            is_committed,
        } = done;
        self.queues.done(&correlation);
        if let Some((number, _)) = item.from {
            self.working_of[number] -= 1;
            self.open_again(number);
        }
        if let Some(short) = starved {
            self.starve(correlation, item.set_aside(), &short);
            return Ok(());
        }
        if is_blocked {
            if let Some(what) = follows {
                // Applying a held input makes room.
                self.queues.push_first(&correlation, QueuedInput::of(what));
            }
            // Quoted: a correlation may be any text, with line breaks.
            let text = self.shared.rows.around().metrics.seeing.correlation(&correlation);
            tracing::warn!(lane = %self.shared.rows.lane, "no room to hold another input of {text:?}; nothing is read until there is");
            self.blocked.push(correlation, item);
            return Ok(());
        }
        // Ahead of everything that came since.
        for item in self.blocked.take(&correlation).into_iter().rev() {
            self.queues.push_first(&correlation, item);
        }
        if let Some((number, sequence)) = item.from {
            self.settle(number, sequence, is_committed);
        }
        if let Some(receipt) = &item.receipt {
            receipt.ack();
            service::crash_point("event.acked");
        }
        if self.shared.rows.was_uncertain() {
            let _ = self.relay.send(RelayMessage::LookAgain);
        }
        if !outgoing.is_empty() {
            // The relay ends with its owner only, so the send cannot fail.
            let _ = self.relay.send(RelayMessage::Rows(outgoing));
        }
        self.timers.done(&correlation, &item.what, timers);
        if self.cache.len() >= CACHED_MAX {
            // An evicted record is read again when needed, so it does not matter which one goes.
            let oldest = self.cache.keys().next().cloned();
            oldest.map(|oldest| self.cache.remove(&oldest));
        }
        match cached {
            Some(cached) => drop(self.cache.insert(correlation.clone(), cached)),
            None => drop(self.cache.remove(&correlation)),
        }
        if let Some(what) = follows {
            // Ahead of everything that came since.
            self.queues.push_first(&correlation, QueuedInput::of(what));
        }
        Ok(())
    }
}
