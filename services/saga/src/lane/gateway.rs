//! Commands of aggregates: submitted to their gateway, in order within each correlation.
//!
//! The outbox row is the only record of a command: it stays until the answer is committed as an input of its instance. The gateway
//! recognises a command by its id, so one whose answer was lost is submitted again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use model::{CommandId, CorrelationId, TraceParent};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};
use workflow::Json;
use workflow::input::{CommandOutcome, CommandResult};

use super::in_flight::TENANT_COMMANDS_MAX;
use super::relay::OutboxRow;
use super::rows::LaneStore;
use crate::spans::{PendingSpan, SpanSubject};

/// Commands of a lane under way at a time, including those that wait for a turn of their tenant or for a retry.
const AT_ONCE: usize = TENANT_COMMANDS_MAX;

/// A command for an aggregate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AggregateCommand {
    /// The tenant; empty where there are none.
    pub tenant_id: String,
    /// Id of the command, by which repeats are recognised.
    pub command_id: CommandId,
    /// The type of the aggregate.
    pub aggregate_type: String,
    /// The aggregate.
    pub aggregate_id: String,
    /// The type of the command.
    pub command_type: String,
    /// Payload of the command: JSON.
    pub payload_json: String,
    /// The correlation of the instance that orders it.
    pub correlation_id: String,
    /// Trace that the command belongs to, as a W3C `traceparent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// Answer of a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayAnswer {
    /// Command is done, or was before.
    Done(Json),
    /// Command is refused permanently.
    Refused {
        /// Code that the saga decides by.
        code: String,
        /// Reason, as text for people.
        message: String,
    },
    /// Outcome is unknown: the command is submitted again.
    Unknown {
        /// Why.
        why: String,
    },
}

/// A gateway of aggregates.
#[async_trait]
pub trait Gateway: Send + Sync {
    /// Submits a command.
    async fn submit(&self, command: &AggregateCommand) -> GatewayAnswer;
}

/// A command that was answered: its row of the outbox, and its end.
#[derive(Debug)]
pub struct AnsweredCommand {
    /// The number of the row.
    pub number: u64,
    /// The correlation that ordered it.
    pub correlation: CorrelationId,
    /// Result of the command.
    pub result: CommandResult,
    /// Place of the command in its trace.
    pub cause: Option<TraceParent>,
}

/// Submits commands until their channel closes.
pub struct CommandSubmitter {
    /// Rows of the lane.
    pub rows: Arc<LaneStore>,
    /// The gateway.
    pub gateway: Arc<dyn Gateway>,
    /// Commands that were committed.
    pub ordered: mpsc::UnboundedReceiver<(u64, OutboxRow)>,
    /// Where answers go.
    pub answered: mpsc::UnboundedSender<AnsweredCommand>,
}

impl CommandSubmitter {
    /// Submits.
    pub async fn run(mut self) {
        let mut lines: HashMap<CorrelationId, VecDeque<(u64, OutboxRow)>> = HashMap::new();
        let mut ready: VecDeque<CorrelationId> = VecDeque::new();
        // Commands without an answer, each with the bytes of its body.
        let mut known: HashMap<u64, usize> = HashMap::new();
        let mut bytes = 0;
        let mut working = FuturesUnordered::new();
        let turns = self.rows.around().bounds.commands_of(self.rows.lane.tenant());
        loop {
            self.rows.backlog().note_for_gateway(known.len(), bytes);
            while working.len() < AT_ONCE
                && let Some(correlation) = ready.pop_front()
                && let Some((number, item)) = lines.get_mut(&correlation).and_then(VecDeque::pop_front)
            {
                let (gateway, turns) = (Arc::clone(&self.gateway), Arc::clone(&turns));
                working.push(submit(gateway, number, item, (turns, &self.rows)));
            }
            tokio::select! {
                Some(answered) = working.next(), if !working.is_empty() => {
                    let answered: AnsweredCommand = answered;
                    bytes -= known.remove(&answered.number).unwrap_or_default();
                    match lines.get(&answered.correlation) {
                        Some(line) if !line.is_empty() => ready.push_back(answered.correlation.clone()),
                        _ => drop(lines.remove(&answered.correlation)),
                    }
                    if self.answered.send(answered).is_err() {
                        return;
                    }
                }
                ordered = self.ordered.recv() => match ordered {
                    // The outbox was read again, and this command is known.
                    Some((number, _)) if known.contains_key(&number) => {}
                    Some((number, item)) => {
                        bytes += item.body.len();
                        known.insert(number, item.body.len());
                        let line = lines.entry(item.correlation.clone()).or_insert_with(|| {
                            ready.push_back(item.correlation.clone());
                            VecDeque::new()
                        });
                        line.push_back((number, item));
                    }
                    None => return,
                },
            }
        }
    }
}

/// Submits a command until it has an answer.
async fn submit(
    gateway: Arc<dyn Gateway>,
    number: u64,
    item: OutboxRow,
    (turns, rows): (Arc<Semaphore>, &LaneStore),
) -> AnsweredCommand {
    let OutboxRow { correlation, body, id, ordered_by, .. } = item;
    let command: Result<AggregateCommand, _> = serde_json::from_str(body.as_str());
    let (begun, health) = (PendingSpan::work(), &rows.around().health);
    let traceparent = command.as_ref().ok().and_then(|command| command.traceparent.clone());
    let result = match (command, id.parse()) {
        (Ok(command), Ok(id)) => {
            let (mut pauses, mut lack) = (super::backoff(), None);
            loop {
                // Lanes of a tenant take turns; a command in its pause holds none. The semaphore is never closed.
                let turn = turns.acquire().await;
                let answer = gateway.submit(&command).await;
                drop(turn);
                service::crash_point("command.sent");
                match answer {
                    GatewayAnswer::Done(payload) => break result(id, CommandOutcome::Succeeded, payload),
                    GatewayAnswer::Refused { code, message } => {
                        let payload =
                            Json::object([("code", Json::Text(code)), ("message", Json::Text(message))]);
                        break result(id, CommandOutcome::Failed, payload);
                    }
                    GatewayAnswer::Unknown { why } => {
                        tracing::warn!(command = %id, "a command is submitted again: {why}");
                        // The former guard lives until the new one exists, so that the impairment does not flicker.
                        let impairment = health.begin_impairment("gateway of aggregates", &why);
                        lack.replace(impairment);
                        tokio::time::sleep(pauses.next_pause()).await;
                    }
                }
            }
        }
        // No program writes such a row.
        (_, id) => {
            let id = id.unwrap_or(CommandId::from_bits(0));
            result(id, CommandOutcome::Failed, Json::object([("code", Json::text("damaged"))]))
        }
    };
    if let Some(about) = SpanSubject::of(rows, &correlation) {
        begun.work_sent(about, (result.command, None), traceparent.as_deref(), ordered_by);
    }
    let cause = traceparent.as_deref().and_then(TraceParent::read);
    AnsweredCommand { number, correlation, result, cause }
}

const fn result(command: CommandId, outcome: CommandOutcome, payload: Json) -> CommandResult {
    CommandResult { command, outcome, may_have_happened: false, payload }
}
