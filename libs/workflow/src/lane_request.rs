//! Requests to the owner of a lane, about the lane, a dead letter or a call, beside the verbs of instances.
//!
//! Requests travel under the subjects of their targets, so that the owner handles them in order with everything else.
//! Subject and body both name the target, and must agree.

use model::{BlobHash, CommandId, CorrelationId};
use serde::{Deserialize, Serialize};

use crate::Json;
use crate::json;
use crate::message::{self, EffectCommand, MessageReadError, ReplyAddress, TenantMessage, VerbMessage};
use crate::provider::Effect;

/// Request, on its way to the owner of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRequestMessage<W> {
    /// The tenant; empty where there are none.
    #[serde(default)]
    pub tenant_id: String,
    /// The id of the request, under which it counts once.
    pub request_id: String,
    /// The lane, as it is written in keys.
    pub lane: String,
    /// Action that is requested.
    pub word: W,
    /// Hash of the request and its caller: the same id with another hash is another request.
    #[serde(default)]
    pub request_hash: String,
    /// Where the answer is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<ReplyAddress>,
}

/// Request to a lane of a saga.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SagaLaneRequest {
    /// Applies a dead letter, and then the inputs behind it.
    Redrive {
        /// The correlation under which it stands.
        correlation: CorrelationId,
        /// Number of the dead letter there.
        letter: u64,
        /// True if the letter is skipped, and only the inputs that wait behind it are applied.
        #[serde(default, skip_serializing_if = "crate::instance::is_false")]
        skip: bool,
        /// Data that replaces that of the letter.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Json>,
    },
    /// Removes a dead letter, and the inputs behind it.
    Purge {
        /// The correlation under which it stands.
        correlation: CorrelationId,
        /// Number of the dead letter there.
        letter: u64,
    },
    /// Gives an instance the message of a dead letter that had no correlation. Lane owners send it to each other.
    Take {
        /// The correlation.
        correlation: CorrelationId,
        /// The message that the letter has.
        message: Box<ForwardedDeadLetter>,
        /// Data that replaces that of the message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Json>,
    },
    /// Rereads sources.
    SetBack(Vec<SourceRewindSpec>),
}

/// A message that was a dead letter without a correlation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardedDeadLetter {
    /// Subject of the message.
    pub subject: String,
    /// Body of the message.
    pub body: String,
    /// When it was stored, in milliseconds since 1970.
    pub stored: u64,
    /// When its stream was made, in milliseconds since 1970.
    pub incarnation: u64,
    /// Sequence of the message in the stream.
    pub sequence: u64,
}

/// Request to a lane of an effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectLaneRequest {
    /// Applies a request to a call.
    Call {
        /// Command of the call.
        command: CommandId,
        /// Request to the call.
        asked: EffectCallRequest,
    },
    /// Processes the message of a dead letter again.
    Redrive {
        /// Number of the dead letter.
        letter: u64,
        /// True if the letter is skipped.
        #[serde(default, skip_serializing_if = "crate::instance::is_false")]
        skip: bool,
    },
    /// Removes a dead letter.
    Purge {
        /// Number of the dead letter.
        letter: u64,
    },
    /// Rereads sources.
    SetBack(Vec<SourceRewindSpec>),
}

/// Request to a call of an effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectCallRequest {
    /// Confirms that it happened, with this result.
    Happened {
        /// The result.
        result: Json,
    },
    /// Confirms that it did not happen, and will not.
    NotDone,
    /// Makes it again at once.
    Retry,
    /// Cancels it.
    Cancel,
    /// Ends it, by the token that came with it.
    Complete {
        /// Hash of the token.
        token: BlobHash,
        /// Outcome of the call.
        end: CallCompletion,
    },
}

impl EffectCallRequest {
    /// The result in the request, if it has one.
    pub const fn result_mut(&mut self) -> Option<&mut Json> {
        match self {
            Self::Happened { result }
            | Self::Complete {
                end: CallCompletion::Succeeded { result } | CallCompletion::Failed { result, .. },
                ..
            } => Some(result),
            Self::NotDone | Self::Retry | Self::Cancel => None,
        }
    }

    /// Removes the fields that the effect never stores from its result.
    pub fn redact(&mut self, effect: &Effect) {
        if let Some(result) = self.result_mut() {
            effect.redact("result", result);
        }
    }
}

/// Outcome of a call, as the holder of its token reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallCompletion {
    /// The call was carried out.
    Succeeded {
        /// Result of the call.
        result: Json,
    },
    /// The call was not carried out and never will be.
    Failed {
        /// Code by which the saga decides.
        code: String,
        /// More of the result.
        result: Json,
    },
}

/// A source that is to be read again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRewindSpec {
    /// The source, as checkpoints call it.
    pub source: String,
    /// From where on.
    pub to: RewindTarget,
}

/// A place in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewindTarget {
    /// A sequence.
    Sequence(u64),
    /// A moment at which messages were stored, in milliseconds since 1970.
    Time(u64),
}

impl SagaLaneRequest {
    /// The correlation in whose queue it waits; `None` where it is about the lane.
    #[must_use]
    pub const fn correlation(&self) -> Option<&CorrelationId> {
        match self {
            Self::Redrive { correlation, .. }
            | Self::Purge { correlation, .. }
            | Self::Take { correlation, .. } => Some(correlation),
            Self::SetBack(_) => None,
        }
    }
}

impl<W> TenantMessage for LaneRequestMessage<W> {
    const KIND: &'static str = "word to a lane";
    fn tenant(&self) -> &str {
        &self.tenant_id
    }
}

/// Message that came under a subject of instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SagaLaneMessage {
    /// A verb.
    Verb(VerbMessage),
    /// A request to the lane.
    Request(LaneRequestMessage<SagaLaneRequest>),
}

/// Message that came under a subject of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectLaneMessage {
    /// A command.
    Command(EffectCommand),
    /// A request to the lane.
    Request(LaneRequestMessage<EffectLaneRequest>),
}

/// Reads a message that came under a tenant's subject of instances.
///
/// # Errors
/// The problem of the message.
pub fn read_saga_lane_message(
    body: &[u8],
    tenant: &model::TenantId,
) -> Result<SagaLaneMessage, MessageReadError> {
    let value = json::read(body, crate::input::INPUT_BYTES_MAX)?;
    if is_request(&value) {
        return message::take(&value, tenant).map(SagaLaneMessage::Request);
    }
    message::take(&value, tenant).map(SagaLaneMessage::Verb)
}

/// Reads a message that came under a tenant's subject of calls.
///
/// # Errors
/// The problem of the message.
pub fn read_effect_lane_message(
    body: &[u8],
    tenant: &model::TenantId,
) -> Result<EffectLaneMessage, MessageReadError> {
    let value = json::read(body, crate::input::INPUT_BYTES_MAX)?;
    if is_request(&value) {
        return message::take(&value, tenant).map(EffectLaneMessage::Request);
    }
    message::take(&value, tenant).map(EffectLaneMessage::Command)
}

fn is_request(value: &Json) -> bool {
    value.get("word").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_requests_are_distinguished_from_verbs_and_commands() {
        let tenant: model::TenantId = "acme".parse().expect("a tenant");
        let request = LaneRequestMessage {
            tenant_id: "acme".to_owned(),
            request_id: "r-1".to_owned(),
            lane: "s:acme:order:0".to_owned(),
            word: SagaLaneRequest::Redrive {
                correlation: "c".parse().expect("a correlation"),
                letter: 3,
                skip: false,
                data: Some(Json::object([("n", Json::Int(1))])),
            },
            request_hash: String::new(),
            reply_to: None,
        };
        let read = read_saga_lane_message(&message::write(&request), &tenant).expect("good");
        assert_eq!(read, SagaLaneMessage::Request(request));
        let of_call = LaneRequestMessage {
            tenant_id: "acme".to_owned(),
            request_id: "r-2".to_owned(),
            lane: "e:acme:pay:0".to_owned(),
            word: EffectLaneRequest::Call {
                command: CommandId::from_bits(7),
                asked: EffectCallRequest::Retry,
            },
            request_hash: "h".to_owned(),
            reply_to: Some(ReplyAddress { subject: "_INBOX.1".to_owned(), token: "t".to_owned() }),
        };
        let read = read_effect_lane_message(&message::write(&of_call), &tenant).expect("good");
        assert_eq!(read, EffectLaneMessage::Request(of_call.clone()));
        let foreign = "globex".parse().expect("a tenant");
        let refused = read_effect_lane_message(&message::write(&of_call), &foreign).expect_err("foreign");
        assert_eq!(refused.code(), "TENANT");
        assert_eq!(read_saga_lane_message(b"{\"word\":7}", &tenant).expect_err("no word").code(), "ENVELOPE");
    }
}
