//! Common parts of saga lanes and effect lanes: an owner by epoch, rows, sources, and outgoing messages.

pub mod answers;
pub mod backlog;
pub mod checkpoint;
pub mod dead_letter_name;
pub mod gateway;
pub mod in_flight;
pub mod relay;
pub mod rows;
pub mod source;

use std::sync::Arc;
use std::time::Duration;

use backoff::ExponentialBackoff;
use broker::{HEADER_BYTES_MAX, MessageBroker, StreamSpec};
use store::KvStore;
use tokio::sync::{Notify, SetOnce};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use workflow::WorkflowLane;
use workflow::input::INPUT_BYTES_MAX;

use self::in_flight::InFlightLimits;
use self::rows::LaneStore;
use crate::health::SagaHealth;
use crate::metrics::Metrics;

/// The streams of this suite with their subjects; without tenants, subjects have no tenant in front.
#[must_use]
pub fn streams(has_tenants: bool) -> [StreamSpec; 2] {
    let (day, start) = (Duration::from_secs(24 * 3600), if has_tenants { "tenant.*." } else { "" });
    let ours = |name: &str, subjects: [&str; 2], days: u32| {
        let subjects = subjects.map(|subject| format!("{start}{subject}"));
        StreamSpec::managed(name, &subjects.each_ref().map(String::as_str), day * days)
    };
    [
        ours(WORKFLOW_COMMANDS, ["effect.*.*", "workflow.*.*"], 7),
        ours(WORKFLOW_EVENTS, ["effect_result.*.*", "workflow_event.*.*"], 14),
    ]
}

/// Stream of events of aggregates, which this service does not create.
pub const AGGREGATE_EVENTS: &str = "AGGREGATE_EVENTS";
/// Stream of commands for effects, and of verbs.
pub const WORKFLOW_COMMANDS: &str = "WORKFLOW_COMMANDS";
/// Stream of results of effects, and of facts about instances.
pub const WORKFLOW_EVENTS: &str = "WORKFLOW_EVENTS";

/// Largest message of a lane with its headers, in bytes: what a server has to take.
pub const MESSAGE_BYTES_MAX: usize = INPUT_BYTES_MAX + HEADER_BYTES_MAX;

/// Tables whose rows are never scanned.
pub const UNSCANNED: [&str; 6] = ["saga", "dedupe", "effect", "request", "checkpoint", "owner"];

/// The first pause after the store or the broker did not answer, and the longest.
pub(crate) const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Environment that the owner of a lane works in.
#[derive(Clone)]
pub struct LaneEnvironment {
    /// Where rows are kept.
    pub store: Arc<dyn KvStore>,
    /// Where messages come from and go to.
    pub broker: Arc<dyn MessageBroker>,
    /// Metrics of the service.
    pub metrics: Arc<Metrics>,
    /// Current impairments.
    pub health: SagaHealth,
    /// Limits that lanes of the process share.
    pub bounds: InFlightLimits,
    /// Number of outbox rows at which a lane takes in nothing new.
    pub outbox_rows_max: usize,
    /// How long the broker waits before it redelivers an unacknowledged message: [`source::ACK_WAIT`], or less in tests.
    pub ack_wait: Duration,
    /// Set once this service's streams exist: nothing is read before.
    pub streams_made: Arc<SetOnce<()>>,
    /// True if subjects name tenants.
    pub has_tenants: bool,
    /// Name of this replica among those that share the store.
    pub replica: Arc<str>,
    /// Cancelled to end the remaining work of lanes that take too long to stop.
    pub cut: CancellationToken,
    /// Notified, by tests, when the store's clock may have been moved.
    pub wake: Arc<Notify>,
}

/// Reason why an owner gives up its lane. The lane is taken again afterwards, by the replica that it is assigned to then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaneExit {
    /// Another owner has taken it since.
    #[error("the lane {lane} was taken by another owner, in epoch {epoch}")]
    Fenced {
        /// The lane.
        lane: String,
        /// The epoch of the other owner.
        epoch: u64,
    },
    /// A message came that the lane's filter should not let through: the broker does not keep tenants apart.
    #[error(
        "the lane {lane} was given a message of the subject `{subject}`, which its filter does not let through"
    )]
    Foreign {
        /// The lane.
        lane: String,
        /// The subject of the message.
        subject: String,
    },
    /// A row cannot be read.
    #[error("a row of the lane {lane} cannot be read: {why}")]
    Damaged {
        /// The lane.
        lane: String,
        /// Fault of the row.
        why: String,
    },
    /// A commit exceeds a limit of the store: a defect of this program.
    #[error("a commit of the lane {lane} does not fit: {why}")]
    TooLarge {
        /// The lane.
        lane: String,
        /// Part that does not fit.
        why: String,
    },
    /// Lane was asked to stop.
    #[error("the lane {lane} was given up")]
    Stopped {
        /// The lane.
        lane: String,
    },
}

/// Takes a lane and works in it until the work ends; after a requested stop it releases the lane, so that the next owner need not wait.
pub(crate) async fn own<W>(
    lane: WorkflowLane,
    around: LaneEnvironment,
    work: impl FnOnce(Arc<LaneStore>) -> W,
) -> LaneExit
where
    W: Future<Output = Result<(), LaneExit>>,
{
    let rows = match LaneStore::take(lane, around).await {
        Ok(rows) => Arc::new(rows),
        Err(ended) => return ended,
    };
    let (metrics, lane) = (&rows.around().metrics, rows.lane.to_string());
    metrics.lanes_owned.inc();
    let ended = match work(Arc::clone(&rows)).await {
        Ok(()) => {
            rows.give_up().await;
            LaneExit::Stopped { lane: lane.clone() }
        }
        Err(ended) => ended,
    };
    metrics.lanes_owned.dec();
    tracing::info!(lane, "{ended}");
    ended
}

/// Waits until the tasks of a lane have ended by themselves, or aborts them when they are `cut`.
pub(crate) async fn drain(tasks: &mut JoinSet<Result<(), LaneExit>>, cut: &CancellationToken) {
    tokio::select! {
        () = cut.cancelled() => tasks.abort_all(),
        () = async { while tasks.join_next().await.is_some() {} } => {}
    }
}

impl LaneExit {
    pub(crate) fn damaged(lane: &WorkflowLane, why: impl std::fmt::Display) -> Self {
        Self::Damaged { lane: lane.to_string(), why: format!("{why}") }
    }
}

/// Returns the pauses of a lane after its store or broker did not answer.
pub(crate) const fn backoff() -> ExponentialBackoff {
    ExponentialBackoff::between(PAUSES.0, PAUSES.1)
}
