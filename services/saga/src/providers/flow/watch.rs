//! Ends of flows that calls wait for: one watch for each context, and a look at each flow that may have ended.
//!
//! A call is noted before its flow is submitted, so no end is missed. A watch that lost its position begins with a snapshot of running
//! flows; every other flow that a call waits for is read. The answer comes from the flow itself, since the watch has no results.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backoff::ExponentialBackoff;
use model::{CommandId, ContextId, FlowId, FlowStatus, TenantId};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use workflow::ledger::ProviderAnswer;

use super::CallNotifier;
use super::client::{EffectFlowError, EffectFlowEvent, EffectFlowScope, EffectFlowStream, FlowClient};
use super::end::{self, EffectFlow};
use crate::effects::CallMessage;
use crate::providers::ProviderCall;

/// Name prefix of flows that run for calls; the command's id follows.
const PREFIX: &str = "saga-";
/// Calls of one tenant that may wait for their flows.
pub(crate) const WAITING_MAX: usize = 10_000;
/// Flows that are read at a time.
const LOOKS_MAX: usize = 16;
/// Longest pauses before the suite is asked again.
const PAUSE_AWAY_MAX: Duration = rpc::RECONNECT_MAX;
const PAUSE_REFUSED_MAX: Duration = Duration::from_secs(10);
/// Pauses before an end is delivered again to a call that did not take it.
const NOTIFY_AGAIN: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(200), Duration::from_secs(2)];

/// Least time between heartbeats to all calls.
const BEAT_EACH: Duration = Duration::from_secs(5);

/// The name of the flow that runs for a command.
pub(super) fn flow_name(command: CommandId) -> String {
    format!("{PREFIX}{command}")
}

fn command_of(name: &str) -> Option<CommandId> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// The answer of a flow to its call; `None` while it runs.
pub(super) async fn answer_of(
    client: &FlowClient,
    place: &EffectFlowScope,
    flow: &EffectFlow,
) -> Result<Option<ProviderAnswer>, EffectFlowError> {
    let failed = match flow.status {
        FlowStatus::Error => client.failed_nodes(place, flow.id).await?,
        _ => Vec::new(),
    };
    Ok(end::answer(flow, &failed))
}

/// Pauses that double.
struct FlowCallBackoff(ExponentialBackoff);

impl FlowCallBackoff {
    const fn new() -> Self {
        Self(ExponentialBackoff::up_to(PAUSE_REFUSED_MAX))
    }

    async fn after(&mut self, trouble: &EffectFlowError) {
        let (longest, least) = match trouble {
            EffectFlowError::Away(_) | EffectFlowError::PositionGone => (PAUSE_AWAY_MAX, None),
            EffectFlowError::Busy { after, .. } => (PAUSE_REFUSED_MAX, *after),
            EffectFlowError::Unsigned { .. } | EffectFlowError::Refused { .. } => (PAUSE_REFUSED_MAX, None),
        };
        let pause = self.0.next_pause().min(longest).max(least.unwrap_or_default().min(PAUSE_REFUSED_MAX));
        tokio::time::sleep(pause).await;
    }
}

/// A call that waits for its flow.
struct WaitingCall {
    tenant: TenantId,
    /// `None` while the flow is being submitted.
    flow: Option<FlowId>,
    /// True if the call expects heartbeats.
    has_heartbeat: bool,
    /// Distinguishes this note from an earlier one of the same call.
    number: u64,
    /// Number of reasons to read the flow so far.
    reasons: u64,
    is_looked_at: bool,
}

#[derive(Default)]
struct WaitingCalls {
    waiting: HashMap<CommandId, WaitingCall>,
    /// Tenants of the context, which take turns in watching it.
    tenants: Vec<TenantId>,
    turn: usize,
    noted: u64,
}

impl WaitingCalls {
    fn of(&mut self, command: CommandId, number: u64) -> Option<&mut WaitingCall> {
        self.waiting.get_mut(&command).filter(|waiting| waiting.number == number)
    }
}

/// State of a context's watch.
#[derive(Debug, Clone)]
enum ContextWatchState {
    Opening,
    Stands,
    Broken(String),
}

/// State that the tasks of a watch share.
struct ContextWatchShared {
    client: FlowClient,
    context: ContextId,
    notify: CallNotifier,
    calls: Mutex<WaitingCalls>,
    looks: Semaphore,
    stop: CancellationToken,
}

/// Watch of the flows of one context, which ends on drop.
pub(super) struct ContextWatch {
    shared: Arc<ContextWatchShared>,
    state: watch::Receiver<ContextWatchState>,
    _stop: DropGuard,
}

/// A call whose flow is being submitted. Its note is removed on drop, unless the call waits for the flow.
pub(super) struct FlowSubmissionGuard {
    shared: Arc<ContextWatchShared>,
    command: CommandId,
    number: u64,
    is_kept: bool,
}

impl Drop for FlowSubmissionGuard {
    fn drop(&mut self) {
        if !self.is_kept {
            self.shared.forget(self.command, self.number);
        }
    }
}

impl FlowSubmissionGuard {
    /// Keeps the note, so that the end of this flow is reported.
    pub(super) fn wait_for(mut self, flow: FlowId) {
        self.is_kept = true;
        if let Some(waiting) = self.shared.calls().of(self.command, self.number) {
            waiting.flow = Some(flow);
        }
    }
}

impl ContextWatch {
    /// Begins to watch.
    pub(super) fn new(client: FlowClient, place: &EffectFlowScope, notify: CallNotifier) -> Self {
        let stop = CancellationToken::new();
        let calls = WaitingCalls { tenants: vec![place.tenant.clone()], ..WaitingCalls::default() };
        let shared = Arc::new(ContextWatchShared {
            client,
            context: place.context,
            notify,
            calls: Mutex::new(calls),
            looks: Semaphore::new(LOOKS_MAX),
            stop: stop.clone(),
        });
        let (to, state) = watch::channel(ContextWatchState::Opening);
        shared.spawn(Arc::clone(&shared).run(to));
        Self { shared, state, _stop: stop.drop_guard() }
    }

    /// Waits until the watch stands.
    ///
    /// # Errors
    /// Reason why it does not.
    pub(super) async fn stands(&self) -> Result<(), String> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, ContextWatchState::Opening)).await;
        match settled.as_deref() {
            Ok(ContextWatchState::Broken(why)) => Err(format!("flows cannot be watched: {why}")),
            Ok(_) => Ok(()),
            Err(_) => Err("flows are not watched any more".to_owned()),
        }
    }

    /// Notes a call whose flow is about to be submitted.
    ///
    /// # Errors
    /// The tenant waits for too many flows already.
    pub(super) fn note(&self, call: &ProviderCall) -> Result<FlowSubmissionGuard, String> {
        let (tenant, command) = (&call.tenant, call.command);
        let mut calls = self.shared.calls();
        if calls.waiting.values().filter(|waiting| waiting.tenant == *tenant).count() >= WAITING_MAX {
            return Err(format!("the tenant waits for {WAITING_MAX} flows already"));
        }
        let number = ContextWatchShared::add(&mut calls, call, None);
        Ok(FlowSubmissionGuard { shared: Arc::clone(&self.shared), command, number, is_kept: false })
    }

    /// Notes a call whose flow was submitted before, and checks whether the flow has ended.
    pub(super) fn adopt(&self, call: &ProviderCall, flow: Option<FlowId>) {
        ContextWatchShared::add(&mut self.shared.calls(), call, flow);
        self.shared.look(call.command);
    }

    /// Cancels a flow, however long that takes. Its end is reported like any other.
    pub(super) fn cancel(&self, place: EffectFlowScope, command: CommandId, flow: FlowId) {
        self.shared.spawn(Arc::clone(&self.shared).cancel(place, command, flow));
    }
}

impl ContextWatchShared {
    fn calls(&self) -> MutexGuard<'_, WaitingCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task until it ends, or until the watch is dropped.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        tokio::spawn(async move { stop.run_until_cancelled(task).await });
    }

    fn add(calls: &mut WaitingCalls, call: &ProviderCall, flow: Option<FlowId>) -> u64 {
        calls.noted += 1;
        if !calls.tenants.contains(&call.tenant) {
            calls.tenants.push(call.tenant.clone());
        }
        let (tenant, number) = (call.tenant.clone(), calls.noted);
        let has_heartbeat = call.effect.timeouts.heartbeat.is_some();
        let waiting = WaitingCall { tenant, flow, has_heartbeat, number, reasons: 0, is_looked_at: false };
        calls.waiting.insert(call.command, waiting);
        number
    }

    fn forget(&self, command: CommandId, number: u64) {
        let mut calls = self.calls();
        if calls.of(command, number).is_some() {
            calls.waiting.remove(&command);
        }
    }

    /// Scope for the next try to watch: tenants take turns, since the key of one may be unusable.
    fn place(&self) -> EffectFlowScope {
        let mut calls = self.calls();
        calls.turn = (calls.turn + 1) % calls.tenants.len();
        EffectFlowScope { tenant: calls.tenants[calls.turn].clone(), context: self.context }
    }

    /// Watches for ever.
    async fn run(self: Arc<Self>, state: watch::Sender<ContextWatchState>) {
        let (mut position, mut pause) = (String::new(), FlowCallBackoff::new());
        loop {
            let Err(trouble) = self.follow(&mut position, &state, &mut pause).await;
            let stood = matches!(*state.borrow(), ContextWatchState::Stands);
            tracing::info!(context = %self.context, stood, "the watch of flows broke off: {trouble}");
            if stood {
                // The next watch may stand at once.
                state.send_replace(ContextWatchState::Opening);
            } else {
                state.send_replace(ContextWatchState::Broken(trouble.to_string()));
            }
            if matches!(trouble, EffectFlowError::PositionGone) && !std::mem::take(&mut position).is_empty() {
                continue;
            }
            pause.after(&trouble).await;
        }
    }

    /// Follows one stream until it breaks off.
    async fn follow(
        self: &Arc<Self>,
        position: &mut String,
        state: &watch::Sender<ContextWatchState>,
        pause: &mut FlowCallBackoff,
    ) -> Result<std::convert::Infallible, EffectFlowError> {
        let mut watched: EffectFlowStream = self.client.watch(&self.place(), PREFIX, position).await?;
        let (mut running, mut in_snapshot) = (HashSet::new(), position.is_empty());
        if !in_snapshot {
            state.send_replace(ContextWatchState::Stands);
        }
        let mut beaten = Instant::now();
        loop {
            let (event, behind) = watched.next().await?;
            *pause = FlowCallBackoff::new();
            // Any event shows that the suite lives, and with it the flows: the end of one that has ended is on its way.
            if !in_snapshot && beaten.elapsed() >= BEAT_EACH {
                beaten = Instant::now();
                self.beat_all();
            }
            match event {
                EffectFlowEvent::Flow { id, name, is_end } => {
                    if let Some(command) = command_of(&name) {
                        if is_end {
                            running.remove(&command);
                        } else if in_snapshot {
                            running.insert(command);
                        }
                        self.stands_now(command, id, is_end);
                    }
                }
                EffectFlowEvent::Removed(flow) => self.look_at_all(|_, waiting| waiting.flow == Some(flow)),
                EffectFlowEvent::SnapshotEnd => {
                    in_snapshot = false;
                    self.look_at_all(|command, _| !running.contains(command));
                    running = HashSet::new();
                    state.send_replace(ContextWatchState::Stands);
                }
                EffectFlowEvent::Life => {}
            }
            if !behind.is_empty() {
                *position = behind;
            }
        }
    }

    /// Processes the reported state of a flow.
    fn stands_now(self: &Arc<Self>, command: CommandId, flow: FlowId, is_end: bool) {
        let has_heartbeat = self.calls().waiting.get_mut(&command).is_some_and(|waiting| {
            waiting.flow = Some(flow);
            waiting.has_heartbeat
        });
        match is_end {
            true => self.look(command),
            false if has_heartbeat => drop((self.notify)(command, CallMessage::Beat)),
            false => {}
        }
    }

    /// Sends a heartbeat to every call that expects one.
    fn beat_all(&self) {
        let beating: Vec<_> = {
            let calls = self.calls();
            let beating =
                calls.waiting.iter().filter(|(_, waiting)| waiting.has_heartbeat && waiting.flow.is_some());
            beating.map(|(command, _)| *command).collect()
        };
        for command in beating {
            (self.notify)(command, CallMessage::Beat);
        }
    }

    fn look_at_all(self: &Arc<Self>, is_meant: impl Fn(&CommandId, &WaitingCall) -> bool) {
        let meant: Vec<_> = {
            let calls = self.calls();
            calls
                .waiting
                .iter()
                .filter(|(command, waiting)| is_meant(command, waiting))
                .map(|(c, _)| *c)
                .collect()
        };
        for command in meant {
            self.look(command);
        }
    }

    /// Has a flow read; if that is under way, it is read once more, since the flow may have ended meanwhile.
    fn look(self: &Arc<Self>, command: CommandId) {
        let mut calls = self.calls();
        let Some(waiting) = calls.waiting.get_mut(&command) else { return };
        waiting.reasons += 1;
        if !std::mem::replace(&mut waiting.is_looked_at, true) {
            self.spawn(Arc::clone(self).settle(command, waiting.number));
        }
    }

    /// Reads a flow until its end was delivered, or until there is no further reason to read it.
    async fn settle(self: Arc<Self>, command: CommandId, number: u64) {
        let mut pause = FlowCallBackoff::new();
        loop {
            let Some((place, flow, reasons)) = self.looked_at(command, number) else { return };
            match self.read(&place, command, flow).await {
                Ok(Some(answer)) => {
                    self.hand_over(command, answer).await;
                    return self.forget(command, number);
                }
                Ok(None) if self.is_settled(command, number, reasons) => return,
                Ok(None) => {}
                Err(trouble) => {
                    tracing::debug!(%command, "its flow cannot be read: {trouble}");
                    pause.after(&trouble).await;
                }
            }
        }
    }

    fn looked_at(&self, command: CommandId, number: u64) -> Option<(EffectFlowScope, Option<FlowId>, u64)> {
        let mut calls = self.calls();
        let waiting = calls.of(command, number)?;
        let place = EffectFlowScope { tenant: waiting.tenant.clone(), context: self.context };
        Some((place, waiting.flow, waiting.reasons))
    }

    /// Ends the reads of a running flow, unless another reason came meanwhile.
    fn is_settled(&self, command: CommandId, number: u64, reasons: u64) -> bool {
        let mut calls = self.calls();
        calls.of(command, number).is_none_or(|waiting| {
            waiting.is_looked_at = waiting.reasons != reasons;
            !waiting.is_looked_at
        })
    }

    /// Reads the answer to a call; `None` while its flow runs, or was not submitted yet.
    async fn read(
        &self,
        place: &EffectFlowScope,
        command: CommandId,
        flow: Option<FlowId>,
    ) -> Result<Option<ProviderAnswer>, EffectFlowError> {
        let Ok(_turn) = self.looks.acquire().await else { return Ok(None) };
        let name = flow_name(command);
        let found = match flow {
            // Another flow may have the number by now.
            Some(flow) => self.client.flow(place, flow).await?.filter(|flow| flow.name == name),
            None => None,
        };
        // For an actor without a role, reading by number finds no flow either; this look-up by name fails for it.
        let found = match found {
            None => self.client.find(place, &name).await?,
            found => found,
        };
        match (found, flow) {
            (Some(found), _) => answer_of(&self.client, place, &found).await,
            (None, Some(flow)) => {
                let why = format!("the flow {flow} was deleted before its end could be read");
                Ok(Some(ProviderAnswer::Unknown { why }))
            }
            (None, None) => Ok(None),
        }
    }

    /// Delivers the end to a call. A call that is not open here does not need it: the next owner checks the flow itself.
    async fn hand_over(&self, command: CommandId, answer: ProviderAnswer) {
        for pause in NOTIFY_AGAIN {
            if (self.notify)(command, CallMessage::Answer(answer.clone())) {
                return;
            }
            tokio::time::sleep(pause).await;
        }
        if !(self.notify)(command, CallMessage::Answer(answer)) {
            tracing::info!(%command, "the end of its flow was not delivered: the call is not open here");
        }
    }

    async fn cancel(self: Arc<Self>, place: EffectFlowScope, command: CommandId, flow: FlowId) {
        let mut pause = FlowCallBackoff::new();
        loop {
            match self.client.cancel(&place, flow).await {
                Ok(()) => return self.look(command),
                Err(trouble @ EffectFlowError::Refused { .. }) => {
                    tracing::warn!(%command, %flow, "the flow cannot be cancelled: {trouble}");
                    return;
                }
                Err(trouble) => pause.after(&trouble).await,
            }
        }
    }
}
