//! Confirmations that answered changes are as durable as requested, obtained for many changes at once.
//!
//! A change goes over the shared connection and is answered at once. Then it waits for a round over another connection
//! to the same server: a small write, and a wait until that write is durable. All earlier writes are durable then, too. So a
//! round confirms every change that was answered before the round began, however many these are, and no other
//! command waits for it.
//!
//! That connection may lead to another process than the one that answered, or to the same one with another past: after a
//! failover, or a restart on the same port. Hence a round ends by reading whose [`ReplicationHistory`] it wrote to, and
//! confirms only changes whose process had the same history before they were made. No change is repeated: if a round
//! fails, the outcome of its changes is unknown.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::link::{KvLink, lock};
use crate::process::{RedisProcess, RedisSetup, ReplicationHistory};
use crate::server::KvServer;
use crate::slot;
use crate::value::Value;

/// How many rounds may be under way, each on a connection of its own.
const ROUNDS_MAX: usize = 12;
/// How long changes are gathered while a round is under way before the next begins beside it. A replica reports what is on its
/// disk once a second, to all rounds that wait: so a change waits little longer than for that, whenever it comes.
const GATHERING: Duration = Duration::from_millis(100);
/// The part of the patience, as its divisor, in which a replica has to receive a change before its disk is waited for.
const TAKING_UP: u32 = 5;

/// The first version in which a connection waits only for its own last write, and for nothing if it wrote nothing.
/// Earlier versions wait for all that was written when the connection sent its last command.
const MARKED_SINCE: (u32, u32) = (7, 2);
/// A write that is passed on to replicas and to the append-only file like any other, and leaves nothing behind. Who has no
/// memory left may still have deleted something, which is to be confirmed.
const MARK: &str = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], '') return redis.call('DEL', KEYS[1])";

/// Where a change has to be before it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PersistenceTarget {
    /// In the memory of a replica.
    Replica,
    /// On the disk of the server. From Redis 7.2 on.
    Disk,
    /// On the disks of the server and of a replica. From Redis 7.2 on.
    Disks,
}

/// Confirmation that a change waits for after it was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteConcern {
    /// Where it has to be.
    pub target: PersistenceTarget,
    /// How long that may take before its outcome counts as unknown.
    pub patience: Duration,
}

/// Choice of what a change waits for at a server with this setup: none, one, or why it should not be made there.
pub(crate) type WriteConcernPolicy<'a> =
    &'a (dyn Fn(&RedisSetup) -> std::result::Result<Option<WriteConcern>, String> + Send + Sync);

/// Why an answered change is not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConfirmationError {
    /// The change was not kept in time.
    Late(Duration),
    /// Something happened to the connection or the server.
    Broken(String),
}

/// An answered change.
pub(crate) struct UnconfirmedWrite {
    pub(crate) confirm: WriteConcern,
    /// Any key of the change: a node of a cluster takes only keys of its slots.
    pub(crate) key: String,
    /// The node does not serve the slot yet.
    pub(crate) is_asking: bool,
    /// The process that answered, as it was before.
    pub(crate) process: Arc<RedisProcess>,
}

/// The rounds with one server.
pub(crate) struct ConfirmationRounds {
    server: Arc<KvServer>,
    state: Mutex<ConfirmationQueue>,
    /// Wakes the rounds when a change waits for the next one.
    more: Notify,
}

#[derive(Default)]
struct ConfirmationQueue {
    waiting: Vec<ConfirmationWaiter>,
    /// Connections that no round uses.
    idle: Vec<Arc<KvLink>>,
    /// Rounds are under way, and the next will begin by itself.
    is_driven: bool,
}

struct ConfirmationWaiter {
    change: UnconfirmedWrite,
    result_sender: oneshot::Sender<std::result::Result<(), ConfirmationError>>,
}

/// Findings of a round.
#[derive(Debug)]
struct ConfirmationOutcome {
    /// Result of the write that makes something to wait for.
    marked: Result<()>,
    is_kept: Result<bool>,
    history: Result<ReplicationHistory>,
}

impl ConfirmationRounds {
    /// All connections are to `server`.
    pub(crate) fn new(server: Arc<KvServer>) -> Arc<Self> {
        Arc::new(Self { server, state: Mutex::default(), more: Notify::new() })
    }

    /// Waits until a change is kept. May be dropped.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        change: UnconfirmedWrite,
    ) -> std::result::Result<(), ConfirmationError> {
        let patience = change.confirm.patience;
        let (result_sender, outcome) = oneshot::channel();
        let begins = {
            let mut state = lock(&self.state);
            state.waiting.push(ConfirmationWaiter { change, result_sender });
            !std::mem::replace(&mut state.is_driven, true)
        };
        if begins {
            // The caller may be dropped, and others wait for the same round.
            tokio::spawn(Arc::clone(self).drive());
        } else {
            self.more.notify_one();
        }
        match tokio::time::timeout(patience, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(ConfirmationError::Broken("nobody waits for its confirmation".to_owned())),
            Err(_) => Err(ConfirmationError::Late(patience)),
        }
    }

    /// Runs rounds, one after the other or side by side, until no change waits.
    async fn drive(self: Arc<Self>) {
        let mut under_way = FuturesUnordered::new();
        let mut begun = Instant::now();
        loop {
            let may_begin =
                under_way.is_empty() || (under_way.len() < ROUNDS_MAX && begun.elapsed() >= GATHERING);
            if may_begin && let Some(batch) = self.take(under_way.is_empty()) {
                begun = Instant::now();
                under_way.push(self.round(batch));
            }
            if under_way.is_empty() {
                return;
            }
            let gathered = async {
                tokio::time::sleep_until(begun + GATHERING).await;
                self.more.notified().await;
            };
            tokio::select! {
                _ = under_way.next() => {}
                () = gathered, if under_way.len() < ROUNDS_MAX => {}
            }
        }
    }

    /// Takes the changes that wait for the same as the first of them. When none waits and no round is under way, the next
    /// change starts the driver again.
    fn take(&self, is_last: bool) -> Option<Vec<ConfirmationWaiter>> {
        let mut state = lock(&self.state);
        state.waiting.retain(|waiting| !waiting.result_sender.is_closed());
        let Some(first) = state.waiting.first() else {
            state.is_driven = !is_last;
            return None;
        };
        let kind = first.change.kind();
        let all = std::mem::take(&mut state.waiting);
        let (batch, others) = all.into_iter().partition(|waiting| waiting.change.kind() == kind);
        state.waiting = others;
        Some(batch)
    }

    async fn round(&self, batch: Vec<ConfirmationWaiter>) {
        let idle = lock(&self.state).idle.pop();
        let link = idle.unwrap_or_else(|| KvLink::new(Arc::clone(&self.server), 0));
        let Some(first) = batch.first() else { return };
        let mark = mark_of(&first.change.key);
        match first.change.round(&link, &mark).await {
            Ok(finding) => self.report_outcomes(batch, &finding, &mark, link),
            Err(error) => {
                for waiting in batch {
                    waiting.report(Err(ConfirmationError::Broken(error.to_string())));
                }
            }
        }
    }

    fn report_outcomes(
        &self,
        batch: Vec<ConfirmationWaiter>,
        finding: &ConfirmationOutcome,
        mark: &str,
        link: Arc<KvLink>,
    ) {
        let (mut again, mut is_sound) = (Vec::new(), true);
        for waiting in batch {
            if finding.is_of_slot() && mark_of(&waiting.change.key) != mark {
                again.push(waiting);
                continue;
            }
            let outcome = finding.outcome(&waiting.change);
            is_sound &= !matches!(outcome, Err(ConfirmationError::Broken(_)));
            waiting.report(outcome);
        }
        let mut state = lock(&self.state);
        state.waiting.splice(0..0, again);
        if is_sound {
            state.idle.push(link);
        } else {
            // They may all lead where they should not.
            state.idle.clear();
        }
    }
}

impl ConfirmationWaiter {
    fn report(self, outcome: std::result::Result<(), ConfirmationError>) {
        // A caller that does not wait any more has reported that the outcome is unknown.
        let _ = self.result_sender.send(outcome);
    }
}

impl UnconfirmedWrite {
    /// Only changes of one kind are confirmed by one round.
    fn kind(&self) -> (WriteConcern, bool) {
        (self.confirm, self.is_marked())
    }

    /// Returns true when a write has to be made for the round to wait for.
    fn is_marked(&self) -> bool {
        self.process.setup.version >= MARKED_SINCE
    }

    /// One round over this connection, for this change and others like it.
    async fn round(&self, link: &Arc<KvLink>, mark: &str) -> Result<ConfirmationOutcome> {
        let packed = self.commands(mark);
        let answers = link.send_all(&packed, 0, packed.len()).await?;
        let answers: Vec<_> =
            answers.into_iter().map(|answer| Value::from_redis(&link.server.shown, answer)).collect();
        ConfirmationOutcome::read(self.confirm.target, answers, usize::from(self.is_asking))
    }

    fn commands(&self, mark: &str) -> redis::Pipeline {
        let WriteConcern { target: keeper, patience } = self.confirm;
        let mut packed = redis::Pipeline::with_capacity(5);
        packed.ignore_errors();
        if self.is_asking {
            packed.add_command(redis::cmd("ASKING"));
        }
        if self.is_marked() {
            packed.cmd("EVAL").arg(MARK).arg(1).arg(mark);
        } else {
            packed.cmd("PING");
        }
        let millis = |patience: Duration| u64::try_from(patience.as_millis()).unwrap_or(u64::MAX).max(1);
        match keeper {
            PersistenceTarget::Replica => packed.cmd("WAIT").arg(1).arg(millis(patience)),
            PersistenceTarget::Disk => packed.cmd("WAITAOF").arg(1).arg(0).arg(millis(patience)),
            // `WAITAOF` at a replica reports what was on its disk before the question, and then nothing
            // for a second. So it is sent once the replica has received the change: with `appendfsync always`, the change is on
            // its disk then.
            PersistenceTarget::Disks => packed
                .cmd("WAIT")
                .arg(1)
                .arg(millis(patience / TAKING_UP))
                .cmd("WAITAOF")
                .arg(1)
                .arg(1)
                .arg(millis(patience)),
        };
        packed.add_command(ReplicationHistory::question());
        packed
    }
}

impl ConfirmationOutcome {
    /// From the answers to a round, of which the mark's is the one at `place`.
    fn read(keeper: PersistenceTarget, mut answers: Vec<Result<Value>>, place: usize) -> Result<Self> {
        let (Some(info), Some(kept)) = (answers.pop(), answers.pop()) else {
            return Err(Error::Protocol("fewer answers than commands".to_owned()));
        };
        let marked = answers.into_iter().nth(place);
        let marked = marked.unwrap_or_else(|| Err(Error::Protocol("no answer to a mark".to_owned())));
        let is_kept = kept.and_then(|kept| match keeper {
            PersistenceTarget::Replica => Ok(kept.uint()? >= 1),
            PersistenceTarget::Disk => Ok(kept.tuple::<2>()?[0].uint()? >= 1),
            PersistenceTarget::Disks => {
                let [here, replicas] = kept.tuple()?;
                Ok(here.uint()? >= 1 && replicas.uint()? >= 1)
            }
        });
        let history = info.and_then(Value::text).and_then(|info| ReplicationHistory::read(&info));
        Ok(Self { marked: marked.map(drop), is_kept, history })
    }

    /// Returns true when nothing was marked since the mark's slot is not served here, which says nothing about others.
    fn is_of_slot(&self) -> bool {
        self.marked.as_ref().is_err_and(|error| matches!(error.code(), Some("MOVED" | "ASK")))
    }

    /// Returns the outcome for a change that was answered before the round began.
    fn outcome(&self, change: &UnconfirmedWrite) -> std::result::Result<(), ConfirmationError> {
        let broken = |error: &Error| ConfirmationError::Broken(error.to_string());
        if self.history.as_ref().map_err(broken)? != &change.process.history {
            let reason = "it was made by another server than the one that answers now, or before that one changed its role";
            return Err(ConfirmationError::Broken(reason.to_owned()));
        }
        self.marked.as_ref().map_err(broken)?;
        match self.is_kept.as_ref().map_err(broken)? {
            true => Ok(()),
            false => Err(ConfirmationError::Late(change.confirm.patience)),
        }
    }
}

/// The key of the write of a round, in the slot of `key`.
fn mark_of(key: &str) -> String {
    format!("{{{}}}:confirm", slot::tag(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(version: (u32, u32), run_id: &str) -> UnconfirmedWrite {
        let history = ReplicationHistory::read(&info(run_id, "bb")).expect("a history");
        let setup = RedisSetup {
            product: "Redis".to_owned(),
            version,
            replicas: 1,
            append_only: None,
            append_fsync: None,
            waitaof_is_early: false,
        };
        let confirm = WriteConcern { target: PersistenceTarget::Disks, patience: Duration::from_secs(5) };
        let process = Arc::new(RedisProcess { history, setup });
        UnconfirmedWrite { confirm, key: "{5}:x".to_owned(), is_asking: false, process }
    }

    fn info(run_id: &str, replication_id: &str) -> String {
        format!("run_id:{run_id}\r\nrole:master\r\nmaster_replid:{replication_id}\r\n")
    }

    fn found(mark: Result<Value>, kept: [i64; 2], info: &str) -> ConfirmationOutcome {
        let kept = Value::Array(kept.map(Value::Int).to_vec());
        let answers = vec![mark, Ok(Value::Int(1)), Ok(kept), Ok(Value::Bytes(info.as_bytes().to_vec()))];
        ConfirmationOutcome::read(PersistenceTarget::Disks, answers, 0).expect("a finding")
    }

    fn refused(code: &str) -> Result<Value> {
        Err(Error::Refused { code: code.to_owned(), message: String::new() })
    }

    #[test]
    fn only_what_was_kept_by_the_same_process_is_confirmed() {
        let change = answered((7, 4), "aa");
        let ours = info("aa", "bb");
        assert_eq!(found(Ok(Value::Int(1)), [1, 1], &ours).outcome(&change), Ok(()));
        for kept in [[0, 0], [1, 0], [0, 1]] {
            let late = Err(ConfirmationError::Late(Duration::from_secs(5)));
            assert_eq!(found(Ok(Value::Int(1)), kept, &ours).outcome(&change), late);
        }
        for (mark, info) in [
            (Ok(Value::Int(1)), info("ab", "bb")),
            (Ok(Value::Int(1)), info("aa", "bc")),
            (Ok(Value::Int(1)), ours.replace("master\r\n", "slave\r\n")),
            (Ok(Value::Int(1)), String::new()),
            (refused("OOM"), ours.clone()),
            (refused("MOVED"), ours.clone()),
        ] {
            let outcome = found(mark, [1, 1], &info).outcome(&change);
            assert!(matches!(outcome, Err(ConfirmationError::Broken(_))), "{outcome:?} of {info}");
        }
        assert!(found(refused("ASK"), [1, 1], &ours).is_of_slot());
        assert!(!found(refused("NOREPLICAS"), [1, 1], &ours).is_of_slot());
    }

    /// From 7.2 on a wait of a connection that has written nothing says nothing.
    #[test]
    fn a_round_writes_where_only_its_own_writes_are_waited_for() {
        let mark = mark_of("{5}:x");
        let sent = |version| {
            let change = answered(version, "aa");
            String::from_utf8_lossy(&change.commands(&mark).get_packed_pipeline()).into_owned()
        };
        assert!(sent((7, 2)).contains("EVAL") && sent((8, 0)).contains("{5}:confirm"));
        assert!(!sent((7, 0)).contains("EVAL"));
        assert_ne!(answered((7, 0), "aa").kind(), answered((7, 2), "aa").kind());
    }

    #[test]
    fn the_mark_is_in_the_slot_of_what_is_confirmed() {
        for key in ["{5}:context", "context:5", "a{b}c{d}"] {
            assert_eq!(slot::of_name(&mark_of(key)), slot::of_name(key), "{key}");
        }
    }
}
