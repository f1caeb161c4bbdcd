//! From a message to what is wanted of an instance.

use model::{CorrelationId, Timestamp};
use serde::{Deserialize, Serialize};
use workflow::InputId;
use workflow::input::{INPUT_BYTES_MAX, Input, What};
use workflow::instance::encode;
use workflow::lane::shard;
use workflow::message::{self, EffectResult, Position, ReplyAddress, Unreadable, VerbMessage};
use workflow::receive::Received;
use workflow::step::Origin;
use workflow::subject::{Source, Subject, token};
use workflow::word::{self, OfSaga, Passed, SagaWord, SetBack, WordMessage};

use super::Shared;
use super::schedule::Occurrence;
use crate::lane::Ended;

/// The correlation under which letters stand that are of none.
pub(crate) const NOBODY: &str = "-";
/// Of a message that cannot be kept whole so many bytes are kept.
const RAW_BYTES_MAX: usize = 64 * 1024;
/// A message is kept whole when it has at most so many bytes as a text of JSON: its row has to fit.
const WHOLE_BYTES_MAX: usize = 768 * 1024;

/// An input that is kept has at most so many bytes, as its row has them: numbers with fractions, which are texts here, grow.
const KEPT_BYTES_MAX: usize = INPUT_BYTES_MAX;
/// Code of a letter whose message is beyond that.
const TOO_LARGE: &str = "LIMIT";

/// What is wanted of an instance.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// It is given an input.
    Input {
        input: Box<Input>,
        origin: Origin,
        /// Who waits for an answer to a verb.
        asked: Option<Asked>,
    },
    /// It is given what was kept back under this number.
    Held(u64),
    /// A message is a dead letter.
    Dead(Box<DeadMessage>),
    /// A command of an aggregate was answered: its row of the outbox goes.
    Answered { number: u64, input: Box<Input> },
    /// An occurrence of the schedule is due.
    Occurrence(Box<Occurrence>),
    /// Something is asked about its letters.
    Word(Box<Asking>),
    /// What was kept back and may be applied is looked for.
    Resume,
    /// What is left of an instance goes, as was due then.
    Retire(Timestamp),
}

/// Message that nothing can be done with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadMessage {
    /// The kind of its reason.
    pub code: String,
    /// Why.
    pub why: String,
    /// Whether it parks its correlation.
    pub parks: bool,
    /// The message.
    pub raw: RawMessage,
}

/// Message as it came, as far as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawMessage {
    /// Its subject.
    pub subject: String,
    /// When it was stored.
    pub time: Timestamp,
    /// Where it stood: it is one letter, however often it comes.
    pub id: InputId,
    /// Its body.
    pub body: String,
    /// Whether something of its body is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// Who waits for an answer.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) reply_to: Option<ReplyAddress>,
    /// Whether nothing is to be changed.
    pub(crate) dry_run: bool,
    /// Revision that the instance has to have; 0 for any.
    pub(crate) expected_revision: u64,
    /// Hash of what was asked, and by whom.
    pub(crate) request_hash: String,
}

/// A word, and who said it.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) word: SagaWord,
    pub(crate) request: String,
    pub(crate) time: Timestamp,
    pub(crate) request_hash: String,
    pub(crate) reply_to: Option<ReplyAddress>,
}

/// Sources that are to be read again, and who said so.
#[derive(Debug)]
pub(crate) struct SettingBack {
    pub(crate) sources: Vec<SetBack>,
    pub(crate) request: String,
    pub(crate) time: Timestamp,
    pub(crate) request_hash: String,
    pub(crate) reply_to: Option<ReplyAddress>,
}

/// What a message is to a lane.
#[derive(Debug)]
pub(crate) enum Intake {
    /// Nothing.
    Nothing,
    /// Something for an instance.
    Of(CorrelationId, Wanted),
    /// Sources are to be read again.
    SetBack(SettingBack),
}

/// A message, as it came or as a letter has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Came<'a> {
    pub(crate) subject: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) time: Timestamp,
    pub(crate) at: Position,
}

/// What a message says, whichever lane it is for.
pub(super) enum Said {
    Nothing,
    Input(CorrelationId, Box<Input>, Option<Asked>),
    Dead { correlation: Option<CorrelationId>, code: &'static str, why: String },
    Word(WordMessage<SagaWord>),
}

impl Shared {
    /// Reads a message: whose it is, and what it wants.
    ///
    /// # Errors
    /// [`Ended::Foreign`] for a message that the filter does not let through.
    pub(crate) fn intake(&self, source: &Source, came: Came<'_>) -> Result<Intake, Ended> {
        let of = |correlation, wanted| Ok(Intake::Of(correlation, wanted));
        match self.read(source, came)? {
            Said::Nothing => Ok(Intake::Nothing),
            Said::Input(correlation, input, asked) if self.is_mine(&correlation) => {
                let Some((why, raw)) = unkept(&input, came) else {
                    return of(correlation, Wanted::Input { input, origin: Origin::Fresh, asked });
                };
                let code = TOO_LARGE.to_owned();
                of(correlation, Wanted::Dead(Box::new(DeadMessage { code, why, parks: true, raw })))
            }
            Said::Dead { correlation, code, why } => {
                let parks = correlation.is_some();
                let correlation = match correlation {
                    Some(correlation) => Some(correlation).filter(|correlation| self.is_mine(correlation)),
                    None => self.nobody(),
                };
                let Some(correlation) = correlation else { return Ok(Intake::Nothing) };
                let raw = RawMessage::of(came);
                of(
                    correlation,
                    Wanted::Dead(Box::new(DeadMessage { code: code.to_owned(), why, parks, raw })),
                )
            }
            Said::Word(word) if word.lane == self.rows.lane.to_string() => Ok(self.word(word, came.time)),
            Said::Input(..) | Said::Word(_) => Ok(Intake::Nothing),
        }
    }

    /// Reads what a message says.
    ///
    /// # Errors
    /// [`Ended::Foreign`] for a message that the filter does not let through.
    pub(super) fn read(&self, source: &Source, came: Came<'_>) -> Result<Said, Ended> {
        let foreign =
            || Ended::Foreign { lane: self.rows.lane.to_string(), subject: came.subject.to_owned() };
        let (tenant, subject) =
            Subject::read(came.subject, self.rows.around().has_tenants).ok_or_else(foreign)?;
        if tenant != self.tenant {
            return Err(foreign());
        }
        let read = match (source, subject) {
            (Source::Aggregate(wanted), Subject::Aggregate { kind, id }) if kind == *wanted => {
                message::read_event(came.payload, &self.tenant, (&kind, &id), came.at)
                    .map(|event| self.receive(&event, came.time))
            }
            (Source::Results(wanted), Subject::EffectResult { effect, command }) if effect == *wanted => {
                message::read::<EffectResult>(came.payload, &self.tenant).and_then(|result| {
                    if result.command_id == command {
                        return Ok(self.result(result, came.time));
                    }
                    let why = "the body names another command than its subject".to_owned();
                    Err(Unreadable::Form { kind: "result of an effect", why })
                })
            }
            (Source::Verbs(_), Subject::Workflow { saga, correlation }) if saga == self.saga => {
                word::read_of_saga(came.payload, &self.tenant)
                    .and_then(|said| asked_of(said, &correlation, came.time))
            }
            _ => return Err(foreign()),
        };
        Ok(read.unwrap_or_else(|error| Said::Dead {
            correlation: None,
            code: error.code(),
            why: error.to_string(),
        }))
    }

    pub(super) fn is_mine(&self, correlation: &CorrelationId) -> bool {
        shard(&self.tenant, correlation, self.definitions.shards(&self.tenant, &self.saga)) == self.shard
    }

    /// Letters of nobody are written by the first shard alone.
    fn nobody(&self) -> Option<CorrelationId> {
        NOBODY.parse().ok().filter(|_| self.shard == 0)
    }

    fn receive(&self, event: &message::EventMessage, time: Timestamp) -> Said {
        let versions = self.definitions.versions(&self.tenant, &self.saga);
        // What the newest version does not hear may be waited for by an instance of an older one.
        let received = versions.iter().map(|saga| saga.receive(event.clone(), time));
        match received.into_iter().find(|received| !matches!(received, Received::Ignored(_))) {
            None | Some(Received::Ignored(_)) => Said::Nothing,
            Some(Received::Input(correlation, input)) => Said::Input(correlation, input, None),
            Some(Received::Dead { correlation, code, why }) => Said::Dead { correlation, code, why },
        }
    }

    fn result(&self, result: EffectResult, time: Timestamp) -> Said {
        if result.reply_to.saga != self.saga {
            return Said::Nothing;
        }
        let correlation = result.reply_to.correlation.clone();
        let input = Box::new(Input { time, what: What::Result(result.into_result()) });
        Said::Input(correlation, input, None)
    }

    fn word(&self, message: WordMessage<SagaWord>, time: Timestamp) -> Intake {
        let WordMessage { tenant_id: _, request_id: request, lane: _, word, request_hash, reply_to } =
            message;
        match word {
            SagaWord::SetBack(sources) => {
                Intake::SetBack(SettingBack { sources, request, time, request_hash, reply_to })
            }
            word => {
                let Some(correlation) = word.correlation().cloned() else { return Intake::Nothing };
                let asking = Asking { word, request, time, request_hash, reply_to };
                Intake::Of(correlation, Wanted::Word(Box::new(asking)))
            }
        }
    }
}

/// What a verb or a word says, if its subject says the same.
fn asked_of(said: OfSaga, subject: &str, time: Timestamp) -> Result<Said, Unreadable> {
    let check = |correlation: &CorrelationId| {
        if token(correlation.as_str()) == subject {
            return Ok(());
        }
        let why = "the body names another correlation than its subject".to_owned();
        Err(Unreadable::Form { kind: "verb", why })
    };
    match said {
        OfSaga::Verb(verb) => {
            check(&verb.correlation)?;
            let VerbMessage {
                tenant_id: _,
                request_id: request,
                correlation,
                verb,
                dry_run,
                expected_revision,
                request_hash,
                reply_to,
            } = verb;
            let asked = Some(Asked { reply_to, dry_run, expected_revision, request_hash });
            Ok(Said::Input(correlation, Box::new(Input { time, what: What::Verb { request, verb } }), asked))
        }
        OfSaga::Word(word) => {
            word.word.correlation().map_or(Ok(()), check)?;
            Ok(Said::Word(word))
        }
    }
}

/// Why an input is beyond what a row can keep, with its message, where it is.
fn unkept(input: &Input, came: Came<'_>) -> Option<(String, RawMessage)> {
    // Written anew it has at most three bytes for two.
    if came.payload.len() <= KEPT_BYTES_MAX / 2 {
        return None;
    }
    let found = encode(input).len();
    (found > KEPT_BYTES_MAX).then(|| {
        let why =
            format!("what it says has {found} bytes as it is kept, at most {KEPT_BYTES_MAX} are allowed");
        (why, RawMessage::of(came))
    })
}

impl RawMessage {
    /// What is kept of a message.
    pub(crate) fn of(came: Came<'_>) -> Self {
        let Position { incarnation, sequence } = came.at;
        let is_whole = std::str::from_utf8(came.payload).is_ok_and(|text| written(text) <= WHOLE_BYTES_MAX);
        let most = if is_whole { came.payload.len() } else { RAW_BYTES_MAX };
        let bytes = came.payload.get(..most).unwrap_or(came.payload);
        Self {
            subject: came.subject.to_owned(),
            time: came.time,
            id: InputId::Message { incarnation, sequence },
            body: String::from_utf8_lossy(bytes).into_owned(),
            is_cut: !is_whole,
        }
    }

    /// The message of a letter that another lane had.
    pub(super) fn of_passed(passed: &Passed) -> Self {
        let Passed { subject, body, stored, incarnation, sequence } = passed;
        Self {
            subject: subject.clone(),
            time: Timestamp::from_millis(*stored),
            id: InputId::Message { incarnation: *incarnation, sequence: *sequence },
            body: body.clone(),
            is_cut: false,
        }
    }

    /// The message, for another lane; nothing where it is not whole.
    pub(super) fn passed(&self) -> Option<Passed> {
        let Came { subject, time, at, .. } = self.came()?;
        let Position { incarnation, sequence } = at;
        let (subject, body) = (subject.to_owned(), self.body.clone());
        Some(Passed { subject, body, stored: time.as_millis(), incarnation, sequence })
    }

    /// The message, to be read once more; nothing where it is not whole.
    pub(crate) fn came(&self) -> Option<Came<'_>> {
        let InputId::Message { incarnation, sequence } = self.id else { return None };
        let at = Position { incarnation, sequence };
        (!self.is_cut).then_some(Came {
            subject: &self.subject,
            payload: self.body.as_bytes(),
            time: self.time,
            at,
        })
    }
}

/// Bytes that a text has in JSON, at most.
fn written(text: &str) -> usize {
    let of_byte = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(of_byte).sum()
}
