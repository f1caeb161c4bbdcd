//! The owner of an effect's lane: takes commands into the ledger, and has each call made as its row says.
//!
//! Each open call has a task of its own, which alone changes its row. That a call is about to be made is committed before, what came
//! of it after it, together with the message that tells its saga.

mod call;
pub mod upstreams;
mod words;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::{CommandId, EffectName, TenantId};
use store::{Expect, Op, Outcome};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use workflow::cursor::Delivery;
use workflow::instance::encode;
use workflow::key::Table;
use workflow::ledger::{Answer, CallRow};
use workflow::message::Position;
use workflow::step::Letter;
use workflow::subject::{Source, Subject};
use workflow::word::{self, EffectWord, OfEffect, WordMessage};
use workflow::{Key, Lane};

use self::call::{Life, due_key, list_key};
use self::upstreams::Upstreams;
use self::words::{Back, CallAsking};
use crate::definitions::Definitions;
use crate::lane::relay::{Relay, ToRelay};
use crate::lane::rows::{Rows, row};
use crate::lane::source::{Brought, ReadWord, Reading, SourceState};
use crate::lane::{Ended, Surroundings, WORKFLOW_COMMANDS, drain};
use crate::metrics::{Census, Counted, LaneCensus};
use crate::providers::Provider;
use crate::sagas::{Came, LetterRow, RawMessage, census};

/// Words for one call that may wait.
const WORDS_MAX: usize = 8;

/// A word for a call.
#[derive(Debug)]
pub enum Word {
    /// Its saga does not want it any more.
    Cancel,
    /// Its answer came by another way.
    Answer(Answer),
    /// What runs for it lives.
    Beat,
    /// Somebody asks something, and waits for the answer.
    Ask(Box<CallAsking>),
}

/// Calls of a process that are open, by their commands. Cheap to clone.
#[derive(Clone, Default)]
pub struct OpenCalls(Arc<Mutex<HashMap<CommandId, mpsc::Sender<Word>>>>);

impl OpenCalls {
    /// Tells a call something; says whether it is open in this process.
    pub fn tell(&self, command: CommandId, word: Word) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(words) = all.get(&command) else { return false };
        // Another sign of life comes; it takes no room of words that come once.
        let is_dropped = matches!(word, Word::Beat) && words.capacity() < WORDS_MAX;
        is_dropped || words.try_send(word).is_ok()
    }

    fn sender(&self, command: CommandId) -> Option<mpsc::Sender<Word>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&command).cloned()
    }

    fn add(&self, command: CommandId) -> mpsc::Receiver<Word> {
        let (words, heard) = mpsc::channel(WORDS_MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(command, words);
        heard
    }

    fn remove(&self, command: CommandId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&command);
    }
}

/// An effect's lane that is to be owned.
pub struct EffectLane {
    /// Tenant that the lane belongs to.
    pub tenant: TenantId,
    /// Which effect.
    pub effect: EffectName,
    /// The tenant's share of turns.
    pub weight: u32,
    /// What is in force.
    pub definitions: Arc<Definitions>,
    /// The way to the outside world.
    pub provider: Arc<dyn Provider>,
    /// What upstreams allow.
    pub upstreams: Upstreams,
    /// Where words for calls come from.
    pub calls: OpenCalls,
    /// What it works with.
    pub around: Surroundings,
}

/// What every call of a lane is made with.
pub(crate) struct Shared {
    pub(crate) rows: Arc<Rows>,
    pub(crate) lane: EffectLane,
    pub(crate) relay: mpsc::UnboundedSender<ToRelay>,
    pub(crate) stop: CancellationToken,
    pub(crate) census: LaneCensus,
}

struct Owner {
    shared: Arc<Shared>,
    source: SourceState,
    brought: mpsc::Receiver<(usize, Brought)>,
    reader: mpsc::Sender<ReadWord>,
    tasks: JoinSet<Result<(), Ended>>,
    lives: JoinSet<Result<(), Ended>>,
    /// What became of what was asked of calls.
    backs: mpsc::UnboundedReceiver<Back>,
    backs_to: mpsc::UnboundedSender<Back>,
    /// Whether the source is read again from another place as soon as its cursor is gone.
    is_setting_back: bool,
    /// Where nobody answers commands of aggregates: effects order none.
    _commands: mpsc::UnboundedReceiver<(u64, crate::lane::relay::OutboxRow)>,
}

impl EffectLane {
    /// Takes the lane and owns it, until it is told to stop or another owner takes it. Gives why it was given up:
    /// [`Ended::Stopped`] when it was asked to. Cancel-safe as a crash is: the next owner goes on from what is committed.
    pub async fn own(self, stop: CancellationToken) -> Ended {
        let lane = Lane::Effect { tenant: self.tenant.clone(), effect: self.effect.clone() };
        let around = self.around.clone();
        let work = |rows| async move { Owner::start(self, rows, &stop).await?.run(&stop).await };
        crate::lane::own(lane, around, work).await
    }
}

impl Owner {
    async fn start(lane: EffectLane, rows: Arc<Rows>, stop: &CancellationToken) -> Result<Self, Ended> {
        let (relay, words) = mpsc::unbounded_channel();
        let (commands, ordered) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let outgoing = Relay { rows: Arc::clone(&rows), words, commands };
        tasks.spawn(outgoing.run());
        let source = Source::Commands(lane.effect.clone());
        let (to, brought) = mpsc::channel(64);
        let (reader, asked) = mpsc::channel(4);
        let reading = Reading {
            rows: Arc::clone(&rows),
            source: source.clone(),
            stream: WORKFLOW_COMMANDS.to_owned(),
            number: 0,
            since: None,
            to,
            words: asked,
            stop: stop.clone(),
        };
        tasks.spawn(reading.run());
        let source = SourceState::new(source, WORKFLOW_COMMANDS, &rows.lane, &rows.around().metrics.readings);
        let census = rows.around().metrics.census.lane(&census::take_letters(&rows).await?);
        let shared = Arc::new(Shared { rows, lane, relay, stop: stop.clone(), census });
        let (backs_to, backs) = mpsc::unbounded_channel();
        let mut owner = Self {
            backs,
            backs_to,
            is_setting_back: false,
            shared,
            source,
            brought,
            reader,
            tasks,
            lives: JoinSet::new(),
            _commands: ordered,
        };
        owner.adopt().await?;
        Ok(owner)
    }

    /// Goes on with the calls that are open.
    async fn adopt(&mut self) -> Result<(), Ended> {
        let open: Vec<(Key, CommandId)> = self.shared.rows.all(Table::EffectDue.range()).await?;
        for (_, command) in open {
            self.begin(command);
        }
        Ok(())
    }

    /// Has a call live until its end.
    fn begin(&mut self, command: CommandId) {
        let words = self.shared.lane.calls.add(command);
        let life = Life::new(Arc::clone(&self.shared), command, words);
        let EffectLane { definitions, tenant, .. } = &self.shared.lane;
        let open = definitions.usage().open_effect(tenant);
        self.lives.spawn(async move {
            let ended = life.run().await;
            drop(open);
            ended
        });
    }

    async fn run(mut self, stop: &CancellationToken) -> Result<(), Ended> {
        if let Err(ended) = self.turns(stop).await {
            self.lives.abort_all();
            self.tasks.abort_all();
            return Err(ended);
        }
        // Calls that are under way have their time; whoever comes next goes on with the others.
        while let Some(ended) = self.lives.join_next().await {
            if let Ok(Err(ended)) = ended {
                return Err(ended);
            }
        }
        if let Some(note) = self.source.note() {
            self.shared.rows.commit(Vec::new(), vec![note]).await?;
        }
        // The relay ends when nobody is left who could have something sent.
        let Self { shared, mut tasks, .. } = self;
        let cut = shared.rows.around().cut.clone();
        drop(shared);
        drain(&mut tasks, &cut).await;
        Ok(())
    }

    async fn turns(&mut self, stop: &CancellationToken) -> Result<(), Ended> {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(ended) = self.lives.join_next() => match ended {
                    Ok(ended) => ended?,
                    Err(error) => return Err(Ended::damaged(&self.shared.rows.lane, error)),
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(ended) => ended?,
                    Err(error) => return Err(Ended::damaged(&self.shared.rows.lane, error)),
                },
                Some(back) = self.backs.recv() => self.back(back).await?,
                Some((_, brought)) = self.brought.recv() => self.take_in(brought).await?,
            }
        }
    }

    async fn take_in(&mut self, brought: Brought) -> Result<(), Ended> {
        match brought {
            // Of the cursor before nothing is to be noted any more.
            Brought::Opened(_) | Brought::Message(_) if self.is_setting_back => {}
            Brought::Opened(checkpoint) => self.source.opened(checkpoint),
            Brought::Lost(_) => {
                self.is_setting_back = false;
                self.source.lost();
                // Nothing of it is under way: commands are taken in one after the other.
                let _ = self.reader.try_send(ReadWord::Open);
            }
            Brought::Message(message) => match self.source.deliver(&message) {
                None => {}
                Some(Delivery::InFlight) => message.receipt.progress(),
                Some(Delivery::Anew(_)) => {
                    self.source.lost();
                    let _ = self.reader.try_send(ReadWord::Drop);
                }
                Some(Delivery::Next) => {
                    service::crash_point("effect.pulled");
                    if self.accept(&message).await? {
                        self.source.settle(message.sequence, true);
                        self.source.tidy();
                        message.receipt.ack();
                    }
                }
            },
        }
        Ok(())
    }

    /// Takes a command into the ledger, or hears a word; says whether its message is settled by that.
    async fn accept(&mut self, delivered: &broker::Delivered) -> Result<bool, Ended> {
        let rows = Arc::clone(&self.shared.rows);
        let note = self.source.note_with(delivered.sequence);
        let command = match self.read(delivered)? {
            Ok(OfEffect::Command(command)) => command,
            Ok(OfEffect::Word(word)) => return self.hear(word, delivered).await,
            Err((code, why)) => {
                self.bury(delivered, code, &why, note).await?;
                return Ok(true);
            }
        };
        let key = Key::effect(command.command_id);
        let known = rows.get(&key).await?;
        if let Some(known) = known {
            if !command.cancel {
                rows.around().metrics.dedupe_hit("ledger");
            }
            let known: CallRow = rows.decode(&known)?;
            if !known.is_same(&command) {
                let why = format!("the command {} has another payload than before", command.command_id);
                self.bury(delivered, "KEY_CONFLICT", &why, note).await?;
                return Ok(true);
            }
            let mut ops: Vec<_> = note.into_iter().collect();
            if command.cancel && !known.state.is_end() {
                // It stands there before the command counts as read: whoever makes the call may be busy, or gone.
                let key = Key::unwanted(command.command_id);
                ops.push(Op::Put(row(&key), encode(&command.command_id).into()));
            }
            self.note(ops).await?;
            if command.cancel {
                self.shared.lane.calls.tell(command.command_id, Word::Cancel);
            }
            return Ok(true);
        }
        if command.cancel {
            self.note(note.into_iter().collect()).await?;
            return Ok(true);
        }
        let id = command.command_id;
        let call = CallRow::accept(command, model::Timestamp::from_millis(rows.now().await?));
        let mut ops = accepted(&call);
        ops.extend(note);
        if let Outcome::Committed(_) = rows.commit(vec![Expect::Absent(row(&key))], ops).await? {
            service::crash_point("effect.accepted");
        }
        self.begin(id);
        Ok(true)
    }

    /// Commits what is to be noted, if there is anything.
    async fn note(&self, ops: Vec<Op>) -> Result<(), Ended> {
        if !ops.is_empty() {
            self.shared.rows.commit(Vec::new(), ops).await?;
        }
        Ok(())
    }

    /// Reads a command; gives why it is none.
    fn read(&self, delivered: &broker::Delivered) -> Result<Result<OfEffect, (&'static str, String)>, Ended> {
        let EffectLane { tenant, effect, .. } = &self.shared.lane;
        let has_tenants = self.shared.rows.around().has_tenants;
        let subject = Subject::read(&delivered.subject, has_tenants);
        let Some((_, Subject::Effect { command, .. })) = subject.filter(|(found, subject)| {
            found == tenant && matches!(subject, Subject::Effect { effect: found, .. } if found == effect)
        }) else {
            self.shared.rows.around().metrics.foreign_messages.inc();
            let (lane, subject) = (self.shared.rows.lane.to_string(), delivered.subject.clone());
            return Err(Ended::Foreign { lane, subject });
        };
        let read = match word::read_of_effect(&delivered.payload, tenant) {
            Ok(read) => read,
            Err(error) => return Ok(Err((error.code(), error.to_string()))),
        };
        let is_same = match &read {
            OfEffect::Command(read) => read.command_id == command && read.effect_name == *effect,
            OfEffect::Word(WordMessage { word: EffectWord::Call { command: read, .. }, .. }) => {
                *read == command
            }
            OfEffect::Word(_) => true,
        };
        if !is_same {
            return Ok(Err(("ENVELOPE", "the body names another command than its subject".to_owned())));
        }
        Ok(Ok(read))
    }

    /// Makes a dead letter of a message.
    async fn bury(
        &self,
        delivered: &broker::Delivered,
        code: &str,
        why: &str,
        note: Option<Op>,
    ) -> Result<(), Ended> {
        let rows = &self.shared.rows;
        let Ok(nobody) = crate::sagas::NOBODY.parse() else { return Ok(()) };
        let came = Came {
            subject: &delivered.subject,
            payload: &delivered.payload,
            time: model::Timestamp::from_millis(delivered.stored_millis),
            at: Position { incarnation: self.source.incarnation(), sequence: delivered.sequence },
        };
        let letter = LetterRow {
            letter: Letter {
                number: delivered.sequence,
                code: code.to_owned(),
                why: why.to_owned(),
                parks: false,
            },
            input: None,
            raw: Some(RawMessage::of(came)),
            time: came.time,
            correlation: None,
        };
        let key = Key::dead(&nobody, delivered.sequence);
        // It was one before where its source was set back.
        let is_new = rows.get(&key).await?.is_none();
        let mut ops = vec![Op::Put(row(&key), encode(&letter).into())];
        ops.extend(note);
        rows.commit(Vec::new(), ops).await?;
        rows.around().metrics.letters.inc();
        let mut census = Census::default();
        census.add(Counted::Letters, usize::from(is_new));
        self.shared.census.change(&census);
        tracing::warn!(lane = %rows.lane, code, "a command is a dead letter: {why}");
        Ok(())
    }
}

/// The rows of a call whose command was taken.
fn accepted(call: &CallRow) -> Vec<Op> {
    let id = call.command;
    vec![
        Op::Put(row(&Key::effect(id)), encode(call).into()),
        Op::Put(row(&due_key(call)), encode(&id).into()),
        Op::Put(row(&list_key(call)), encode(&id).into()),
    ]
}
