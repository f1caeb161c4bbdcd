//! Messages of programs that bypass this service: they write the hash and push its key to `msg_out`.
//!
//! Such a message is as trustworthy as access to this Redis, so a context must allow it. Chat and mail become direct
//! messages, checked as if their caller had sent them; jobs become a flow, which a router submits to a scheduler.

pub(crate) mod jobs;

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use kv::Value;
use model::{
    ActorId, Context, ContextId, MessageFormat, MessageKey, MessageType, Timestamp, Violations, limits,
};

use crate::error::{Error, Result};
use crate::mail::outgoing::{DirectMessageRecipient, NewDirectMessage, direct_message_of, origin_of};
use crate::record::message_record::{DirectMessageMetadata, write_sent};
use crate::record::routed_message::{RawJobs, RoutedMessage, RoutedMessagePayload};
use crate::record::{FieldWriter, RecordFields};
use crate::scripts;
use crate::store::{Store, TenantStore};
use crate::tenants::permission::{self, ContextAction};

/// Router that holds a pushed message, and the context that it was pushed to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageHolder<'a> {
    /// Where it was pushed.
    pub(crate) tenant: &'a TenantStore,
    /// Settings of that context.
    pub(crate) context: &'a Context,
    /// The router.
    pub(crate) router: &'a str,
}

impl Store {
    /// Takes up a message that was pushed. Returns nothing when the router does not hold it any more.
    ///
    /// # Errors
    /// Errors for which [`refusal`] has a text are permanent.
    pub(crate) async fn take_up(
        &self,
        holder: MessageHolder<'_>,
        key: MessageKey,
        mut fields: RecordFields,
        now: Timestamp,
    ) -> Result<Option<RoutedMessage>> {
        if !holder.context.settings.raw_publish {
            return Err(Error::NotAllowed("raw_publish is off in this context".to_owned()));
        }
        // The message was taken up before and arrives again: after a restart, or since it is sent again.
        let is_known = fields.has("revision");
        let (mut body, written) = self.read_raw(holder.context, key, &mut fields, now).await?;
        if is_known {
            body.set_taken(fields.text("taken_revision"));
            return Ok(Some(body));
        }
        let MessageHolder { tenant, context, router } = holder;
        let message = tenant.keys.message(key.caller, key.id);
        let touched = scripts::TAKE_RAW.keys([
            ("held", &tenant.held),
            ("message", &message),
            ("letters", &tenant.letters),
            ("dead_letters", &tenant.dead_letters),
        ]);
        let change = tenant
            .begin(&scripts::TAKE_RAW, &touched, Some(context.uid), now)
            .named(kv::named![router: router, caller: key.caller.0, id: key.id.0])
            .args(written.args());
        let taken = tenant.call(change).await?;
        if taken == Value::Int(0) {
            return Ok(None);
        }
        body.set_taken(taken.text()?);
        Ok(Some(body))
    }

    async fn read_raw(
        &self,
        context: &Context,
        key: MessageKey,
        fields: &mut RecordFields,
        now: Timestamp,
    ) -> Result<(RoutedMessage, FieldWriter)> {
        let mut violations = Violations::new();
        check_place(context.id, key, fields, &mut violations);
        let message_type = parse(fields, "message_type", &mut violations).unwrap_or(MessageType::Job);
        let timeout_ack_secs = timeout_ack(fields, &mut violations);
        if message_type != MessageType::Job {
            let new = read_direct_message(fields, message_type, timeout_ack_secs, &mut violations);
            let new = violations.into_result(new)?;
            return self.direct_message(context, key, &new, now).await;
        }
        if timeout_ack_secs > limits::LETTER_TIMEOUT_SECS_MAX {
            let max = limits::LETTER_TIMEOUT_SECS_MAX;
            violations.add("timeout_ack", format!("at most {max}, not {timeout_ack_secs}"));
        }
        let created_at: Option<Timestamp> = parse(fields, "created_at", &mut violations);
        let expires_at: Option<Timestamp> = parse(fields, "expires_at", &mut violations);
        let flow = jobs::read(key, context.id, fields, &mut violations);
        let (flow, bytes) = violations.into_result(flow)?;
        let mut written = FieldWriter::default();
        written
            .text("context_id", context.id)
            .text("message_type", message_type)
            .text("created_at", created_at.unwrap_or(now));
        let kind = RoutedMessagePayload::Jobs(Box::new(RawJobs {
            caller: key.caller,
            flow,
            bytes,
            taken_revision: String::new(),
        }));
        // The timeout runs from the moment when a router took the message, or when it was sent again.
        let time = u64::from(timeout_ack_secs) * 1000;
        let since = match expires_at {
            Some(at) if fields.has("revision") => Timestamp::from_millis(at.as_millis().saturating_sub(time)),
            _ => now,
        };
        written.optional("expires_at", (time > 0).then(|| since + Duration::from_millis(time)));
        Ok((RoutedMessage { kind, timeout_ack_secs, created_at: since }, written))
    }

    async fn direct_message(
        &self,
        context: &Context,
        key: MessageKey,
        new: &NewDirectMessage,
        now: Timestamp,
    ) -> Result<(RoutedMessage, FieldWriter)> {
        permission::allow(context, key.caller, ContextAction::SendMessage)?;
        let addressed = self.address(context, key.caller, new, now).await?;
        let mut origin = origin_of(context.uid, key.caller);
        origin.message_id = key.id;
        let message = direct_message_of(new, &addressed, origin, now);
        let to = new.to.to_string();
        let posting = DirectMessageMetadata {
            context: context.id,
            to: &to,
            addresses: &addressed.addresses,
            timeout_ack_secs: new.timeout_secs(),
            verified: addressed.verified,
        };
        let written = write_sent(&message, &posting, now);
        Ok((RoutedMessage::direct_message(&message, addressed.addresses), written))
    }
}

/// Why a message that was pushed is not taken, for people; nothing when that may change.
pub(crate) fn refusal(error: &Error) -> Option<String> {
    Some(match error {
        Error::NotAllowed(why) => format!("RAW_PUBLISH_OFF: {why}"),
        Error::Invalid(violations) => format!("INVALID_MESSAGE: {violations}"),
        Error::Denied(denied) => format!("PERMISSION_DENIED: {denied}"),
        Error::NotFound(_) => format!("NOT_FOUND: {error}"),
        Error::Broken(broken) => format!("INVALID_MESSAGE: {broken}"),
        _ => return None,
    })
}

/// Parses a field; nothing when it is missing, empty, or wrong. A wrong value adds a violation.
fn parse<T: FromStr<Err: Display>>(
    fields: &mut RecordFields,
    field: &str,
    violations: &mut Violations,
) -> Option<T> {
    let text = fields.text(field);
    if text.is_empty() { None } else { violations.take(field, text.parse()) }
}

/// Checks that the message names the same caller, id and context as its key and its place.
fn check_place(context: ContextId, key: MessageKey, fields: &mut RecordFields, violations: &mut Violations) {
    if key.caller == ActorId(0) {
        violations.add("caller_id", "0 stands for senders elsewhere: name the actor that sends the message");
    }
    for (field, expected) in [("caller_id", key.caller.0), ("id", key.id.0), ("context_id", context.0)] {
        match parse::<u32>(fields, field, violations) {
            Some(found) if found != expected => {
                violations.add(
                    field,
                    format!("is {found}, but the key and the context of the message say {expected}"),
                );
            }
            _ => {}
        }
    }
}

/// Reads the seconds until the message must be accepted; 0 if not given. `timeout` is the older name.
fn timeout_ack(fields: &mut RecordFields, violations: &mut Violations) -> u32 {
    let older = parse(fields, "timeout", violations).unwrap_or_default();
    match parse(fields, "timeout_ack", violations).unwrap_or_default() {
        0 => older,
        secs => secs,
    }
}

fn read_direct_message(
    fields: &mut RecordFields,
    message_type: MessageType,
    timeout_ack_secs: u32,
    violations: &mut Violations,
) -> Option<NewDirectMessage> {
    let to: Option<DirectMessageRecipient> =
        violations.take("to", DirectMessageRecipient::of_message(&fields.text("to")));
    let target_context = parse(fields, "target_context", violations).filter(|id| *id != ContextId(0));
    let format = parse(fields, "message_format_type", violations).unwrap_or(MessageFormat::Text);
    let content = (fields.text("topic"), fields.text("message"));
    let (whom, how) = ((to, Some(message_type)), (target_context, format));
    NewDirectMessage::of_parts(whom, how, content, timeout_ack_secs, fields.text("signature"), violations)
}
