//! From a message to what is wanted of an instance.

use broker::Delivered;
use model::{CorrelationId, Timestamp};
use workflow::InputId;
use workflow::input::{Input, What};
use workflow::lane::shard;
use workflow::message::{self, EffectResult, Position, ReplyAddress, Unreadable, VerbMessage};
use workflow::receive::Received;
use workflow::step::Origin;
use workflow::subject::{Source, Subject, token};

use super::Shared;
use super::schedule::Occurrence;
use crate::lane::Ended;

/// The correlation under which letters stand that are of none.
pub(crate) const NOBODY: &str = "-";
/// Of a message that cannot be read so many bytes are kept.
const RAW_BYTES_MAX: usize = 64 * 1024;

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
    Dead {
        code: &'static str,
        why: String,
        /// The message, as far as it is kept.
        raw: String,
        time: Timestamp,
        /// Where it stood: it is one letter, however often it comes.
        id: InputId,
        /// Whether it parks its correlation.
        parks: bool,
    },
    /// A command of an aggregate was answered: its row of the outbox goes.
    Answered { number: u64, input: Box<Input> },
    /// An occurrence of the schedule is due.
    Occurrence(Box<Occurrence>),
    /// What is left of an instance goes.
    Retire,
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

impl Shared {
    /// Reads a message: whose it is, and what it wants. Nothing where it is nothing to this lane.
    ///
    /// # Errors
    /// [`Ended::Foreign`] for a message that the filter does not let through.
    pub(crate) fn intake(
        &self,
        source: &Source,
        incarnation: u64,
        message: &Delivered,
    ) -> Result<Option<(CorrelationId, Wanted)>, Ended> {
        let foreign =
            || Ended::Foreign { lane: self.rows.lane.to_string(), subject: message.subject.clone() };
        let (tenant, subject) =
            Subject::read(&message.subject, self.rows.around().has_tenants).ok_or_else(foreign)?;
        if tenant != self.tenant {
            return Err(foreign());
        }
        let time = Timestamp::from_millis(message.stored_millis);
        let at = Position { incarnation, sequence: message.sequence };
        match (source, subject) {
            (Source::Aggregate(wanted), Subject::Aggregate { kind, id }) if kind == *wanted => {
                let read = message::read_event(&message.payload, &self.tenant, (&kind, &id), at);
                match read {
                    Ok(event) => Ok(self.receive(&event, time, message, at)),
                    Err(error) => Ok(self.unreadable(&error, message, at)),
                }
            }
            (Source::Results(wanted), Subject::EffectResult { effect, command }) if effect == *wanted => {
                match message::read::<EffectResult>(&message.payload, &self.tenant) {
                    Ok(result) if result.command_id != command => {
                        let why = "the body names another command than its subject".to_owned();
                        Ok(self.unreadable(
                            &Unreadable::Form { kind: "result of an effect", why },
                            message,
                            at,
                        ))
                    }
                    Ok(result) => Ok(self.result(result, time)),
                    Err(error) => Ok(self.unreadable(&error, message, at)),
                }
            }
            (Source::Verbs(_), Subject::Workflow { saga, correlation }) if saga == self.saga => {
                match message::read::<VerbMessage>(&message.payload, &self.tenant) {
                    Ok(verb) if token(verb.correlation.as_str()) != correlation => {
                        let why = "the body names another correlation than its subject".to_owned();
                        Ok(self.unreadable(&Unreadable::Form { kind: "verb", why }, message, at))
                    }
                    Ok(verb) => Ok(self.verb(verb, time)),
                    Err(error) => Ok(self.unreadable(&error, message, at)),
                }
            }
            _ => Err(foreign()),
        }
    }

    pub(super) fn is_mine(&self, correlation: &CorrelationId) -> bool {
        let shards =
            self.definitions.versions(&self.tenant, &self.saga).first().map_or(1, |saga| saga.shards);
        shard(&self.tenant, correlation, shards) == self.shard
    }

    /// Letters of nobody are written by the first shard alone.
    fn nobody(&self) -> Option<CorrelationId> {
        NOBODY.parse().ok().filter(|_| self.shard == 0)
    }

    fn receive(
        &self,
        event: &message::EventMessage,
        time: Timestamp,
        message: &Delivered,
        at: Position,
    ) -> Option<(CorrelationId, Wanted)> {
        let versions = self.definitions.versions(&self.tenant, &self.saga);
        // What the newest version does not hear may be waited for by an instance of an older one.
        let received = versions.iter().map(|saga| saga.receive(event.clone(), time));
        let received = received.into_iter().find(|received| !matches!(received, Received::Ignored(_)))?;
        match received {
            Received::Ignored(_) => None,
            Received::Input(correlation, input) => {
                let wanted = Wanted::Input { input, origin: Origin::Fresh, asked: None };
                self.is_mine(&correlation).then_some((correlation, wanted))
            }
            Received::Dead { correlation, code, why } => {
                let parks = correlation.is_some();
                let correlation = match correlation {
                    Some(correlation) => self.is_mine(&correlation).then_some(correlation)?,
                    None => self.nobody()?,
                };
                Some((correlation, Wanted::Dead { code, why, raw: raw(message), time, id: id_of(at), parks }))
            }
        }
    }

    fn unreadable(
        &self,
        error: &Unreadable,
        message: &Delivered,
        at: Position,
    ) -> Option<(CorrelationId, Wanted)> {
        let time = Timestamp::from_millis(message.stored_millis);
        let (code, why, raw) = (error.code(), error.to_string(), raw(message));
        Some((self.nobody()?, Wanted::Dead { code, why, raw, time, id: id_of(at), parks: false }))
    }

    fn result(&self, result: EffectResult, time: Timestamp) -> Option<(CorrelationId, Wanted)> {
        let correlation = result.reply_to.correlation.clone();
        if result.reply_to.saga != self.saga || !self.is_mine(&correlation) {
            return None;
        }
        let input = Box::new(Input { time, what: What::Result(result.into_result()) });
        Some((correlation, Wanted::Input { input, origin: Origin::Fresh, asked: None }))
    }

    fn verb(&self, message: VerbMessage, time: Timestamp) -> Option<(CorrelationId, Wanted)> {
        let VerbMessage {
            tenant_id: _,
            request_id: request,
            correlation,
            verb,
            dry_run,
            expected_revision,
            request_hash,
            reply_to,
        } = message;
        if !self.is_mine(&correlation) {
            return None;
        }
        let asked = Some(Asked { reply_to, dry_run, expected_revision, request_hash });
        let input = Box::new(Input { time, what: What::Verb { request, verb } });
        Some((correlation, Wanted::Input { input, origin: Origin::Fresh, asked }))
    }
}

const fn id_of(at: Position) -> InputId {
    InputId::Message { incarnation: at.incarnation, sequence: at.sequence }
}

/// What is kept of a message that cannot be read.
fn raw(message: &Delivered) -> String {
    let bytes = message.payload.get(..RAW_BYTES_MAX).unwrap_or(&message.payload);
    String::from_utf8_lossy(bytes).into_owned()
}
