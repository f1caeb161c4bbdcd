//! From a message to what is wanted of an instance.

use model::{CorrelationId, Timestamp};
use serde::{Deserialize, Serialize};
use workflow::InputId;
use workflow::input::{INPUT_BYTES_MAX, InstanceInput, InstanceInputKind};
use workflow::instance::encode;
use workflow::lane::shard;
use workflow::lane_request::{
    self, ForwardedDeadLetter, LaneRequestMessage, SagaLaneMessage, SagaLaneRequest, SourceRewindSpec,
};
use workflow::message::{self, EffectResult, MessagePosition, MessageReadError, ReplyAddress, VerbMessage};
use workflow::receive::EventDisposition;
use workflow::step::InputOrigin;
use workflow::subject::{ConsumerSource, MessageSubject, token};

use super::SagaLaneContext;
use super::schedule::Occurrence;
use crate::lane::LaneExit;

/// The correlation under which letters stand that are of none.
pub(crate) const NOBODY: &str = "-";
/// Bytes that are kept of a message that cannot be kept whole.
const RAW_BYTES_MAX: usize = 64 * 1024;
/// A message is kept whole when it has at most so many bytes as a text of JSON: its row has to fit.
const WHOLE_BYTES_MAX: usize = 768 * 1024;

/// An input that is kept has at most so many bytes, as its row has them: numbers with fractions, which are texts here, grow.
const KEPT_BYTES_MAX: usize = INPUT_BYTES_MAX;
/// Code of a dead letter whose message exceeds that limit.
const TOO_LARGE: &str = "LIMIT";

/// Action on an instance.
#[derive(Debug)]
pub(crate) enum InstanceAction {
    /// Input that the instance is given.
    Input {
        input: Box<InstanceInput>,
        origin: InputOrigin,
        /// Context of the verb that waits for an answer.
        verb_context: Option<VerbContext>,
    },
    /// Input that was held back under this number.
    Held(u64),
    /// Message that becomes a dead letter.
    Dead(Box<DeadMessage>),
    /// Answer to a command of an aggregate, whose outbox row is removed.
    Answered { number: u64, input: Box<InstanceInput> },
    /// Occurrence of the schedule that is due.
    Occurrence(Box<Occurrence>),
    /// Request about a dead letter.
    DeadLetterRequest(Box<DeadLetterOperation>),
    /// Search for an input that was held back and may be applied.
    Resume,
    /// Removal of what is left of an instance, due at this time.
    Retire(Timestamp),
}

/// Message that cannot be processed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadMessage {
    /// Code of the reason.
    pub code: String,
    /// Why.
    pub why: String,
    /// True if it parks its correlation.
    pub parks: bool,
    /// The message.
    pub raw: RawMessage,
}

/// Message as it came, as far as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawMessage {
    /// Subject of the message.
    pub subject: String,
    /// When it was stored.
    pub time: Timestamp,
    /// Position of the message: it makes one letter, however often it is delivered.
    pub id: InputId,
    /// Body of the message.
    pub body: String,
    /// True if part of the body is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// Context of a verb that waits for an answer.
#[derive(Debug, Clone)]
pub(crate) struct VerbContext {
    pub(crate) reply_to: Option<ReplyAddress>,
    /// True if nothing is to be changed.
    pub(crate) dry_run: bool,
    /// Revision that the instance has to have; 0 for any.
    pub(crate) expected_revision: u64,
    /// Hash of the request and its caller.
    pub(crate) request_hash: String,
}

/// Request about dead letters, and the address for the answer.
#[derive(Debug)]
pub(crate) struct DeadLetterOperation {
    pub(crate) lane_request: SagaLaneRequest,
    pub(crate) request: String,
    pub(crate) time: Timestamp,
    pub(crate) request_hash: String,
    pub(crate) reply_to: Option<ReplyAddress>,
}

/// Request to read sources again.
#[derive(Debug)]
pub(crate) struct SourceRewind {
    pub(crate) sources: Vec<SourceRewindSpec>,
    pub(crate) request: String,
    pub(crate) time: Timestamp,
    pub(crate) request_hash: String,
    pub(crate) reply_to: Option<ReplyAddress>,
}

/// Meaning of a message for a lane.
#[derive(Debug)]
pub(crate) enum SagaRoutedMessage {
    /// Nothing.
    Nothing,
    /// Something for an instance.
    Of(CorrelationId, InstanceAction),
    /// Sources are to be read again.
    SetBack(SourceRewind),
}

/// A message, as it came or as a dead letter keeps it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SagaIncomingMessage<'a> {
    pub(crate) subject: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) time: Timestamp,
    pub(crate) at: MessagePosition,
}

/// Meaning of a message, whichever lane it is for.
pub(super) enum SagaParsedMessage {
    Nothing,
    Input(CorrelationId, Box<InstanceInput>, Option<VerbContext>),
    Dead { correlation: Option<CorrelationId>, code: &'static str, why: String },
    Request(LaneRequestMessage<SagaLaneRequest>),
}

impl SagaLaneContext {
    /// Reads a message: its correlation, and the action that it asks for.
    ///
    /// # Errors
    /// [`LaneExit::Foreign`] for a message that the filter does not let through.
    pub(crate) fn intake(
        &self,
        source: &ConsumerSource,
        came: SagaIncomingMessage<'_>,
    ) -> Result<SagaRoutedMessage, LaneExit> {
        let of = |correlation, wanted| Ok(SagaRoutedMessage::Of(correlation, wanted));
        match self.read(source, came)? {
            SagaParsedMessage::Nothing => Ok(SagaRoutedMessage::Nothing),
            SagaParsedMessage::Input(correlation, input, verb_context) if self.is_mine(&correlation) => {
                let Some((why, raw)) = unkept(&input, came) else {
                    return of(
                        correlation,
                        InstanceAction::Input { input, origin: InputOrigin::Fresh, verb_context },
                    );
                };
                let code = TOO_LARGE.to_owned();
                of(correlation, InstanceAction::Dead(Box::new(DeadMessage { code, why, parks: true, raw })))
            }
            SagaParsedMessage::Dead { correlation, code, why } => {
                let parks = correlation.is_some();
                let correlation = match correlation {
                    Some(correlation) => Some(correlation).filter(|correlation| self.is_mine(correlation)),
                    None => self.nobody(),
                };
                let Some(correlation) = correlation else { return Ok(SagaRoutedMessage::Nothing) };
                let raw = RawMessage::of(came);
                of(
                    correlation,
                    InstanceAction::Dead(Box::new(DeadMessage { code: code.to_owned(), why, parks, raw })),
                )
            }
            SagaParsedMessage::Request(request) if request.lane == self.rows.lane.to_string() => {
                Ok(self.route_request(request, came.time))
            }
            SagaParsedMessage::Input(..) | SagaParsedMessage::Request(_) => Ok(SagaRoutedMessage::Nothing),
        }
    }

    /// Parses a message.
    ///
    /// # Errors
    /// [`LaneExit::Foreign`] for a message that the filter does not let through.
    pub(super) fn read(
        &self,
        source: &ConsumerSource,
        came: SagaIncomingMessage<'_>,
    ) -> Result<SagaParsedMessage, LaneExit> {
        let foreign =
            || LaneExit::Foreign { lane: self.rows.lane.to_string(), subject: came.subject.to_owned() };
        let (tenant, subject) =
            MessageSubject::read(came.subject, self.rows.around().has_tenants).ok_or_else(foreign)?;
        if tenant != self.tenant {
            return Err(foreign());
        }
        let read = match (source, subject) {
            (ConsumerSource::Aggregate(wanted), MessageSubject::Aggregate { kind, id })
                if kind == *wanted =>
            {
                message::read_event(came.payload, &self.tenant, (&kind, &id), came.at)
                    .map(|event| self.receive(&event, came.time))
            }
            (ConsumerSource::Results(wanted), MessageSubject::EffectResult { effect, command })
                if effect == *wanted =>
            {
                message::read::<EffectResult>(came.payload, &self.tenant).and_then(|result| {
                    if result.command_id == command {
                        return Ok(self.result(result, came.time));
                    }
                    let why = "the body names another command than its subject".to_owned();
                    Err(MessageReadError::Form { kind: "result of an effect", why })
                })
            }
            (ConsumerSource::Verbs(_), MessageSubject::Workflow { saga, correlation })
                if saga == self.saga =>
            {
                lane_request::read_saga_lane_message(came.payload, &self.tenant)
                    .and_then(|message| parse_lane_message(message, &correlation, came.time))
            }
            _ => return Err(foreign()),
        };
        Ok(read.unwrap_or_else(|error| SagaParsedMessage::Dead {
            correlation: None,
            code: error.code(),
            why: error.to_string(),
        }))
    }

    pub(super) fn is_mine(&self, correlation: &CorrelationId) -> bool {
        shard(&self.tenant, correlation, self.definitions.shards(&self.tenant, &self.saga)) == self.shard
    }

    /// Correlation of dead letters that have none; only the first shard writes them.
    fn nobody(&self) -> Option<CorrelationId> {
        NOBODY.parse().ok().filter(|_| self.shard == 0)
    }

    fn receive(&self, event: &message::EventMessage, time: Timestamp) -> SagaParsedMessage {
        let versions = self.definitions.versions(&self.tenant, &self.saga);
        // An event that the newest version ignores may be awaited by an instance of an older one.
        let received = versions.iter().map(|saga| saga.receive(event.clone(), time));
        match received.into_iter().find(|received| !matches!(received, EventDisposition::Ignored(_))) {
            None | Some(EventDisposition::Ignored(_)) => SagaParsedMessage::Nothing,
            Some(EventDisposition::Input(correlation, input)) => {
                SagaParsedMessage::Input(correlation, input, None)
            }
            Some(EventDisposition::DeadLetter { correlation, code, why }) => {
                SagaParsedMessage::Dead { correlation, code, why }
            }
        }
    }

    fn result(&self, result: EffectResult, time: Timestamp) -> SagaParsedMessage {
        if result.reply_to.saga != self.saga {
            return SagaParsedMessage::Nothing;
        }
        let correlation = result.reply_to.correlation.clone();
        let input = Box::new(InstanceInput { time, what: InstanceInputKind::Result(result.into_result()) });
        SagaParsedMessage::Input(correlation, input, None)
    }

    fn route_request(
        &self,
        message: LaneRequestMessage<SagaLaneRequest>,
        time: Timestamp,
    ) -> SagaRoutedMessage {
        let LaneRequestMessage {
            tenant_id: _,
            request_id: request,
            lane: _,
            word: lane_request,
            request_hash,
            reply_to,
        } = message;
        match lane_request {
            SagaLaneRequest::SetBack(sources) => {
                SagaRoutedMessage::SetBack(SourceRewind { sources, request, time, request_hash, reply_to })
            }
            lane_request => {
                let Some(correlation) = lane_request.correlation().cloned() else {
                    return SagaRoutedMessage::Nothing;
                };
                let operation = DeadLetterOperation { lane_request, request, time, request_hash, reply_to };
                SagaRoutedMessage::Of(correlation, InstanceAction::DeadLetterRequest(Box::new(operation)))
            }
        }
    }
}

/// Parses a verb or a request, if its subject agrees with it.
fn parse_lane_message(
    message: SagaLaneMessage,
    subject: &str,
    time: Timestamp,
) -> Result<SagaParsedMessage, MessageReadError> {
    let check = |correlation: &CorrelationId| {
        if token(correlation.as_str()) == subject {
            return Ok(());
        }
        let why = "the body names another correlation than its subject".to_owned();
        Err(MessageReadError::Form { kind: "verb", why })
    };
    match message {
        SagaLaneMessage::Verb(verb) => {
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
            let verb_context = Some(VerbContext { reply_to, dry_run, expected_revision, request_hash });
            Ok(SagaParsedMessage::Input(
                correlation,
                Box::new(InstanceInput { time, what: InstanceInputKind::Verb { request, verb } }),
                verb_context,
            ))
        }
        SagaLaneMessage::Request(request) => {
            request.word.correlation().map_or(Ok(()), check)?;
            Ok(SagaParsedMessage::Request(request))
        }
    }
}

/// Reason why an input is too large for a row, with its message; `None` if it fits.
fn unkept(input: &InstanceInput, came: SagaIncomingMessage<'_>) -> Option<(String, RawMessage)> {
    // Encoding the input again grows it to at most three bytes for two.
    if came.payload.len() <= KEPT_BYTES_MAX / 2 {
        return None;
    }
    let found = encode(input).len();
    (found > KEPT_BYTES_MAX).then(|| {
        let why =
            format!("the input has {found} bytes as it is stored; at most {KEPT_BYTES_MAX} are allowed");
        (why, RawMessage::of(came))
    })
}

impl RawMessage {
    /// Returns the part of a message that is kept.
    pub(crate) fn of(came: SagaIncomingMessage<'_>) -> Self {
        let MessagePosition { incarnation, sequence } = came.at;
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

    /// The message of a dead letter that another lane passed on.
    pub(super) fn of_passed(passed: &ForwardedDeadLetter) -> Self {
        let ForwardedDeadLetter { subject, body, stored, incarnation, sequence } = passed;
        Self {
            subject: subject.clone(),
            time: Timestamp::from_millis(*stored),
            id: InputId::Message { incarnation: *incarnation, sequence: *sequence },
            body: body.clone(),
            is_cut: false,
        }
    }

    /// The message, to be passed on to another lane; `None` where it is not whole.
    pub(super) fn passed(&self) -> Option<ForwardedDeadLetter> {
        let SagaIncomingMessage { subject, time, at, .. } = self.came()?;
        let MessagePosition { incarnation, sequence } = at;
        let (subject, body) = (subject.to_owned(), self.body.clone());
        Some(ForwardedDeadLetter { subject, body, stored: time.as_millis(), incarnation, sequence })
    }

    /// The message, to be parsed again; `None` where it is not whole.
    pub(crate) fn came(&self) -> Option<SagaIncomingMessage<'_>> {
        let InputId::Message { incarnation, sequence } = self.id else { return None };
        let at = MessagePosition { incarnation, sequence };
        (!self.is_cut).then_some(SagaIncomingMessage {
            subject: &self.subject,
            payload: self.body.as_bytes(),
            time: self.time,
            at,
        })
    }
}

/// Upper bound of a text's bytes as a JSON string.
fn written(text: &str) -> usize {
    let of_byte = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(of_byte).sum()
}
