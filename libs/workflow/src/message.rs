//! Messages as they travel: events of aggregates, commands and results of effects, verbs, facts.
//!
//! All of them are JSON. This crate's own reader reads incoming messages, and refuses everything that two readers might
//! interpret differently.

use std::collections::BTreeMap;

use model::{CommandId, CorrelationId, EffectName, SagaName, StepName, TenantId};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::input::{CommandOutcome, CommandResult, DomainEvent, INPUT_BYTES_MAX, Verb};
use crate::instance::{is_false, is_zero};
use crate::json::{self, JsonError};
use crate::{InputId, Json};

/// Header with the id by which a broker drops repeats.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";
/// Header with the saga that a message is of.
pub const SAGA: &str = "Mycora-Saga";
/// Header with the correlation that a message is of.
pub const CORRELATION: &str = "Mycora-Correlation";
/// Prefix of inbox subjects.
const INBOX: &str = "_INBOX.";
/// The subject of an inbox, in bytes.
const INBOX_BYTES_MAX: usize = 256;

/// Why a message cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageReadError {
    /// The body is not JSON as it is read here.
    #[error("the body cannot be read: {0}")]
    Json(#[from] JsonError),
    /// A field is missing, or of another kind.
    #[error("`{field}` is {wanted} in every such message, here is {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// Kind that the field must have.
        wanted: &'static str,
        /// Kind that was found.
        found: &'static str,
    },
    /// The body names another tenant than the subject.
    #[error("the body names the tenant `{named}`, its subject another one")]
    Tenant {
        /// The tenant of the body, shortened to 64 characters.
        named: String,
    },
    /// The message has a form that this program does not know.
    #[error("the body is no {kind}: {why}")]
    Form {
        /// Kind of message that was expected.
        kind: &'static str,
        /// Description of the difference.
        why: String,
    },
}

impl MessageReadError {
    /// The kind, for lists and metrics.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Json(_) => "JSON",
            Self::Field { .. } | Self::Form { .. } => "ENVELOPE",
            Self::Tenant { .. } => "TENANT",
        }
    }
}

/// Where a message stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessagePosition {
    /// When its stream was made, in milliseconds since 1970.
    pub incarnation: u64,
    /// Sequence of the message in the stream.
    pub sequence: u64,
}

/// An event of an aggregate, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventMessage {
    /// The event.
    pub event: DomainEvent,
    /// The version of its schema.
    pub schema_version: u32,
}

/// Reads an event of an aggregate. `aggregate` is the type and the id from its subject.
///
/// # Errors
/// The problem of the message.
pub fn read_event(
    body: &[u8],
    tenant: &TenantId,
    aggregate: (&str, &str),
    position: MessagePosition,
) -> Result<EventMessage, MessageReadError> {
    let mut body = BodyFields::read(body)?;
    body.check_tenant(tenant)?;
    let kind = body.text_of(&["type", "event_type"], "type")?;
    let id = match body.take(&["event_id"]) {
        Json::Text(id) if !id.is_empty() => InputId::Event(id),
        Json::Int(id) => InputId::Event(id.to_string()),
        _ => InputId::Message { incarnation: position.incarnation, sequence: position.sequence },
    };
    let named = |value: Json, subject: &str| match value {
        Json::Text(text) if !text.is_empty() => text,
        Json::Int(number) => number.to_string(),
        _ => subject.to_owned(),
    };
    let aggregate_type = named(body.take(&["aggregate_type"]), aggregate.0);
    let aggregate_id = named(body.take(&["aggregate_id"]), aggregate.1);
    let version = match body.take(&["version"]) {
        Json::Int(version) => u64::try_from(version).ok(),
        _ => None,
    };
    let schema_version = match body.take(&["schema_version"]) {
        Json::Null => 1,
        Json::Int(version @ 1..=0xffff_ffff) => u32::try_from(version).unwrap_or(u32::MAX),
        other => {
            let wanted = "a whole number from 1 on, or nothing";
            return Err(MessageReadError::Field { field: "schema_version", wanted, found: other.kind() });
        }
    };
    let data = body.take(&["data", "payload"]);
    let metadata = match body.take(&["metadata"]) {
        Json::Null => Json::object([]),
        metadata => metadata,
    };
    let shown = Json::object([
        ("id", if let InputId::Event(id) = &id { Json::text(id) } else { Json::Null }),
        ("type", Json::text(&kind)),
        ("aggregate_type", Json::text(&aggregate_type)),
        ("aggregate_id", Json::text(&aggregate_id)),
        ("version", version.map_or(Json::Null, Json::number)),
        ("data", data),
        ("metadata", metadata),
    ]);
    let version = version.map(|version| (format!("{aggregate_type}/{aggregate_id}"), version));
    Ok(EventMessage { event: DomainEvent { id, kind, body: shown, version }, schema_version })
}

/// Recipient of a result, set by the orderer of the effect. Believed only if its instance has the command open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultRecipient {
    /// The saga.
    pub saga: SagaName,
    /// The correlation.
    pub correlation: CorrelationId,
    /// Which of its runs.
    pub run: u64,
    /// The step that ordered it.
    pub step: StepName,
}

/// A command for an effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectCommand {
    /// The tenant; empty where there are none.
    #[serde(default)]
    pub tenant_id: String,
    /// The command, which is the key under which it counts once.
    pub command_id: CommandId,
    /// The effect.
    pub effect_name: EffectName,
    /// Input of the effect; nothing for a cancellation.
    #[serde(default = "nothing")]
    pub payload: Json,
    /// True if the message cancels the command.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancel: bool,
    /// Recipient of the result.
    pub reply_to: ResultRecipient,
    /// `correlation_id`, `causation_id`, `traceparent`.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// The result of a command of an effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectResult {
    /// The tenant; empty where there are none.
    #[serde(default)]
    pub tenant_id: String,
    /// The command.
    pub command_id: CommandId,
    /// The effect.
    pub effect_name: EffectName,
    /// How it ended.
    pub result_type: CommandOutcome,
    /// True if the effect may have happened although it did not succeed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub may_have_happened: bool,
    /// Payload that the provider returned.
    #[serde(default = "nothing")]
    pub payload: Json,
    /// When it ended, in milliseconds since 1970.
    pub timestamp: u64,
    /// Recipient of the result.
    pub reply_to: ResultRecipient,
    /// `correlation_id`, `causation_id`, `traceparent`.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

impl EffectResult {
    /// The end of the command that it tells.
    #[must_use]
    pub fn into_result(self) -> CommandResult {
        CommandResult {
            command: self.command_id,
            outcome: self.result_type,
            may_have_happened: self.may_have_happened || self.result_type == CommandOutcome::Unknown,
            payload: self.payload,
        }
    }
}

/// Request to an instance, on its way to the owner of the instance's lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbMessage {
    /// The tenant; empty where there are none.
    #[serde(default)]
    pub tenant_id: String,
    /// The id of the request.
    pub request_id: String,
    /// The correlation.
    pub correlation: CorrelationId,
    /// Verb that is requested.
    pub verb: Verb,
    /// True if nothing is changed, and the answer only describes what would happen.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Revision that the caller saw when it decided, and that the instance must still have; 0 for any.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expected_revision: u64,
    /// Hash of the request and its caller: the same id with another hash is another request.
    #[serde(default)]
    pub request_hash: String,
    /// Where the answer is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<ReplyAddress>,
}

/// Address at which the answer to a request is waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyAddress {
    /// Subject of the inbox, which may be shared. Only inbox subjects are accepted: an answer to any other would become a
    /// message of a stream.
    #[serde(deserialize_with = "inbox")]
    pub subject: String,
    /// Name of the request there.
    pub token: String,
}

/// Answer to a request, on its way to the inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerMessage<T> {
    /// Name of the request, as in its reply address.
    pub token: String,
    /// The answer; `None` where it is too large for a message and has to be read from its row.
    pub answer: Option<T>,
}

/// Something that happened to an instance, for projections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactMessage {
    /// The tenant; empty where there are none.
    #[serde(default)]
    pub tenant_id: String,
    /// The saga.
    pub saga: SagaName,
    /// The correlation.
    pub correlation: CorrelationId,
    /// Which of its runs.
    pub run: u64,
    /// The revision that the instance has since.
    pub revision: u64,
    /// Kind of the fact: `started`, `step`, the new status; `paused`, `resumed`, `parked`, `unparked`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The step that it is at.
    pub step: StepName,
    /// Why, where there is a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When, in milliseconds since 1970.
    pub timestamp: u64,
}

/// Writes a message.
pub fn write<T: Serialize>(message: &T) -> Vec<u8> {
    let written = serde_json::to_vec(message);
    debug_assert!(written.is_ok(), "{written:?}");
    // Keys are texts, and no part of it fails to serialize.
    written.unwrap_or_default()
}

/// A message that says whose it is.
pub trait TenantMessage {
    /// Name of the kind in error messages.
    const KIND: &'static str;
    /// The tenant that it names.
    fn tenant(&self) -> &str;
}

macro_rules! of_tenant {
    ($($name:ident $kind:literal),*) => {$(
        impl TenantMessage for $name {
            const KIND: &'static str = $kind;
            fn tenant(&self) -> &str {
                &self.tenant_id
            }
        }
    )*};
}

of_tenant!(
    EffectCommand "command of an effect",
    EffectResult "result of an effect",
    VerbMessage "verb",
    FactMessage "fact"
);

/// Reads a message of this suite that came under a tenant's subject.
///
/// # Errors
/// The problem of the message.
pub fn read<T: TenantMessage + for<'a> Deserialize<'a>>(
    body: &[u8],
    tenant: &TenantId,
) -> Result<T, MessageReadError> {
    // Read by this crate's own reader first: ambiguous JSON is refused before anything else reads it.
    take(&json::read(body, INPUT_BYTES_MAX)?, tenant)
}

/// Reads a message of this suite from its body.
pub(crate) fn take<T: TenantMessage + for<'a> Deserialize<'a>>(
    value: &Json,
    tenant: &TenantId,
) -> Result<T, MessageReadError> {
    let form = |why: serde_json::Error| MessageReadError::Form { kind: T::KIND, why: why.to_string() };
    let message: T = serde_json::from_str(&value.to_string()).map_err(form)?;
    if message.tenant() != tenant.as_str() {
        return Err(MessageReadError::tenant(message.tenant()));
    }
    Ok(message)
}

impl MessageReadError {
    fn tenant(named: &str) -> Self {
        Self::Tenant { named: named.chars().take(64).collect() }
    }
}

/// The fields of a body.
struct BodyFields(BTreeMap<String, Json>);

impl BodyFields {
    fn read(body: &[u8]) -> Result<Self, MessageReadError> {
        match json::read(body, INPUT_BYTES_MAX)? {
            Json::Map(fields) => Ok(Self(fields)),
            other => {
                Err(MessageReadError::Field { field: "the body", wanted: "an object", found: other.kind() })
            }
        }
    }

    /// Takes the first of these fields that is there.
    fn take(&mut self, names: &[&str]) -> Json {
        names.iter().find_map(|name| self.0.remove(*name)).unwrap_or(Json::Null)
    }

    fn text_of(&mut self, names: &[&str], field: &'static str) -> Result<String, MessageReadError> {
        match self.take(names) {
            Json::Text(text) if !text.is_empty() => Ok(text),
            other => Err(MessageReadError::Field { field, wanted: "a text", found: other.kind() }),
        }
    }

    fn check_tenant(&mut self, tenant: &TenantId) -> Result<(), MessageReadError> {
        match self.take(&["tenant_id"]) {
            Json::Null => Ok(()),
            Json::Text(named) if named == tenant.as_str() => Ok(()),
            other => Err(MessageReadError::tenant(other.as_text().unwrap_or(other.kind()))),
        }
    }
}

/// Reads the subject of an inbox.
fn inbox<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let subject = String::deserialize(from)?;
    let is_token = |token: &str| {
        !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    match subject.strip_prefix(INBOX) {
        Some(rest) if subject.len() <= INBOX_BYTES_MAX && rest.split('.').all(is_token) => Ok(subject),
        _ => Err(D::Error::custom(format_args!("an answer goes to an inbox (`{INBOX}…`), and nowhere else"))),
    }
}

fn nothing() -> Json {
    Json::Null
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: MessagePosition = MessagePosition { incarnation: 5, sequence: 9 };

    fn tenant() -> TenantId {
        "acme".parse().expect("a tenant")
    }

    fn event(body: &str) -> Result<EventMessage, MessageReadError> {
        read_event(body.as_bytes(), &tenant(), ("Order", "o-1"), AT)
    }

    #[test]
    fn events_are_read_with_the_field_names_of_several_senders() {
        let full = event(
            r#"{"event_id":"e-1","type":"OrderPlaced","aggregate_type":"Order","aggregate_id":"o-1","version":3,
                "tenant_id":"acme","data":{"n":1},"metadata":{"correlation_id":"c"},"schema_version":2}"#,
        )
        .expect("good");
        assert_eq!(
            (full.event.id, full.event.kind.as_str()),
            (InputId::Event("e-1".to_owned()), "OrderPlaced")
        );
        assert_eq!((full.schema_version, full.event.version), (2, Some(("Order/o-1".to_owned(), 3))));
        assert_eq!(
            full.event.body.to_string(),
            r#"{"aggregate_id":"o-1","aggregate_type":"Order","data":{"n":1},"id":"e-1","metadata":{"correlation_id":"c"},"type":"OrderPlaced","version":3}"#
        );
        let short = event(r#"{"event_type":"X","payload":7}"#).expect("good");
        assert_eq!(short.event.id, InputId::Message { incarnation: 5, sequence: 9 });
        assert_eq!((short.schema_version, short.event.version), (1, None));
        assert_eq!(short.event.body.get("data"), Some(&Json::Int(7)));
        assert_eq!(short.event.body.get("aggregate_id"), Some(&Json::text("o-1")));
    }

    #[test]
    fn an_unreadable_event_is_refused_with_the_reason() {
        for (body, code, why) in [
            ("", "JSON", "expected a value"),
            ("[]", "ENVELOPE", "`the body` is an object"),
            ("{\"type\":\"A\",\"type\":\"B\"}", "JSON", "occurs twice"),
            ("{}", "ENVELOPE", "`type` is a text in every such message, here is nothing"),
            ("{\"type\":7}", "ENVELOPE", "here is a number"),
            ("{\"type\":\"A\",\"tenant_id\":\"acme-b\"}", "TENANT", "the body names the tenant `acme-b`"),
            ("{\"type\":\"A\",\"schema_version\":0}", "ENVELOPE", "`schema_version`"),
            ("{\"type\":\"A\",\"schema_version\":\"2\"}", "ENVELOPE", "`schema_version`"),
        ] {
            let refused = event(body).expect_err(body);
            assert!(refused.to_string().contains(why) && refused.code() == code, "{body}: {refused}");
        }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let reply_to = ResultRecipient {
            saga: "order".parse().expect("a name"),
            correlation: "c:*\0".parse().expect("a correlation"),
            run: 0,
            step: "ship".parse().expect("a step"),
        };
        let command = EffectCommand {
            tenant_id: "acme".to_owned(),
            command_id: CommandId::from_bits(7),
            effect_name: "pay".parse().expect("a name"),
            payload: Json::object([("n", Json::Int(-1))]),
            cancel: false,
            reply_to: reply_to.clone(),
            metadata: BTreeMap::new(),
        };
        assert_eq!(read::<EffectCommand>(&write(&command), &tenant()), Ok(command.clone()));
        let other = "acme-b".parse().expect("a tenant");
        assert!(matches!(
            read::<EffectCommand>(&write(&command), &other),
            Err(MessageReadError::Tenant { .. })
        ));
        let result = EffectResult {
            tenant_id: "acme".to_owned(),
            command_id: CommandId::from_bits(7),
            effect_name: "pay".parse().expect("a name"),
            result_type: CommandOutcome::Unknown,
            may_have_happened: false,
            payload: Json::Null,
            timestamp: 5,
            reply_to,
            metadata: BTreeMap::new(),
        };
        assert_eq!(read::<EffectResult>(&write(&result), &tenant()), Ok(result.clone()));
        assert!(result.into_result().may_have_happened);
        let verb = VerbMessage {
            tenant_id: "acme".to_owned(),
            request_id: "r".to_owned(),
            correlation: "c".parse().expect("a correlation"),
            verb: Verb::Cancel { reason: "enough".to_owned() },
            dry_run: true,
            expected_revision: 0,
            request_hash: String::new(),
            reply_to: Some(ReplyAddress { subject: "_INBOX.x".to_owned(), token: "t".to_owned() }),
        };
        assert_eq!(read::<VerbMessage>(&write(&verb), &tenant()), Ok(verb.clone()));
        for subject in
            ["tenant.b.aggregate.Order.x", "_INBOX", "_INBOX.", "_INBOX.a..b", "_INBOX.>", "_inbox.a"]
        {
            let forged = String::from_utf8(write(&verb)).expect("JSON").replace("_INBOX.x", subject);
            let refused = read::<VerbMessage>(forged.as_bytes(), &tenant()).expect_err(subject);
            assert!(refused.code() == "ENVELOPE" && refused.to_string().contains("to an inbox"), "{refused}");
        }
        let refused = read::<VerbMessage>(b"{\"tenant_id\":\"acme\"}", &tenant()).expect_err("not whole");
        assert!(refused.to_string().starts_with("the body is no verb: missing field"), "{refused}");
        let refused = read::<VerbMessage>(b"{\"a\":1,\"a\":2}", &tenant()).expect_err("twice");
        assert_eq!(refused.code(), "JSON");
    }
}
