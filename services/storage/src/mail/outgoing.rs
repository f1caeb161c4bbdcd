//! Chat and mail that actors of this coordinator send.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use envelope::Refusal;
use envelope::actor::SignedDirectMessage;
use kv::{Cmd, Value};
use model::actor::is_key;
use model::address::AddressError;
use model::id::Uid;
use model::mail::TO_ADMINS;
use model::{
    Actor, ActorId, Address, Context, ContextId, ContextUid, DirectMessage, DirectMessageOrigin,
    MessageFormat, MessageId, MessageKey, MessageType, Timestamp, Violations, limits,
};

use crate::error::{Error, Result};
use crate::idempotency::{IdempotencyKey, hash_of};
use crate::messages::message_holds::{HOLD, RouterHeldMessage, message_key};
use crate::messages::routers::StorageRouters;
use crate::record;
use crate::record::message_record::{DirectMessageMetadata, MessageProjection, MessageRecord};
use crate::record::routed_message::RoutedMessage;
use crate::scripts;
use crate::store::{PERMISSION_TRIES, RequestPrincipal, Store, TenantStore};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};

/// Recipient of a direct message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DirectMessageRecipient {
    /// An actor of this coordinator.
    Actor(ActorId),
    /// The admins of the context in which it is sent.
    Admins,
    /// Holder of this key, at an address.
    Elsewhere {
        /// 64 lower-case hex digits.
        key: String,
        /// Where.
        address: Address,
    },
}

impl fmt::Display for DirectMessageRecipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Actor(id) => write!(f, "{id}"),
            Self::Admins => f.write_str(TO_ADMINS),
            Self::Elsewhere { key, address } => write!(f, "{key}@{address}"),
        }
    }
}

impl FromStr for DirectMessageRecipient {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some((key, address)) = text.split_once('@') {
            let address = address.parse().map_err(|error: AddressError| error.to_string())?;
            return if is_key(key) {
                Ok(Self::Elsewhere { key: key.to_owned(), address })
            } else {
                Err("a public key is written as 64 lower-case hex digits".to_owned())
            };
        }
        if text == TO_ADMINS {
            return Ok(Self::Admins);
        }
        let id: Option<u32> = text.parse().ok().filter(|id: &u32| *id > 0 && id.to_string() == text);
        id.map(|id| Self::Actor(ActorId(id))).ok_or_else(|| {
            "write the id of an actor of this coordinator, <public key>@<address>, or nothing for the context's admins"
                .to_owned()
        })
    }
}

impl DirectMessageRecipient {
    /// The recipient that a message names. The admins, where it names none.
    pub(crate) fn of_message(to: &str) -> std::result::Result<Self, String> {
        if to.is_empty() { Ok(Self::Admins) } else { to.parse() }
    }
}

/// A direct message to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewDirectMessage {
    /// Recipient.
    pub(crate) to: DirectMessageRecipient,
    /// The context at the recipient's coordinator; nothing for its home context.
    pub(crate) target_context: Option<ContextId>,
    /// Chat or mail.
    pub(crate) message_type: MessageType,
    /// How the text is written.
    pub(crate) format: MessageFormat,
    /// Topic of the message.
    pub(crate) topic: String,
    /// The text.
    pub(crate) text: String,
    /// Seconds until it must have arrived; 0 for the default.
    pub(crate) timeout_ack_secs: u32,
    /// The sender's signature.
    pub(crate) signature: Option<String>,
}

impl NewDirectMessage {
    /// Builds a direct message from its parts, some of which could not be parsed. Collects violations of the others under the API's
    /// field names.
    pub(crate) fn of_parts(
        (to, message_type): (Option<DirectMessageRecipient>, Option<MessageType>),
        (target_context, format): (Option<ContextId>, MessageFormat),
        (topic, text): (String, String),
        timeout_ack_secs: u32,
        signature: String,
        violations: &mut Violations,
    ) -> Option<Self> {
        if message_type == Some(MessageType::Job) {
            violations.add("message_type", "chat or mail: jobs are submitted as a flow");
        }
        let chars = topic.chars().count();
        if chars > limits::MESSAGE_TOPIC_CHARS_MAX {
            let max = limits::MESSAGE_TOPIC_CHARS_MAX;
            violations.add("topic", format!("a topic has at most {max} characters, not {chars}"));
        } else if let Err(hidden) = model::printable::check_line(&topic) {
            violations.add("topic", hidden);
        }
        if text.len() > limits::MESSAGE_TEXT_BYTES_MAX {
            let (max, size) = (limits::MESSAGE_TEXT_BYTES_MAX, text.len());
            violations.add("text", format!("a text has at most {max} bytes, not {size}"));
        }
        if timeout_ack_secs > limits::LETTER_TIMEOUT_SECS_MAX {
            let max = limits::LETTER_TIMEOUT_SECS_MAX;
            violations.add("timeout_ack_secs", format!("at most {max}, not {timeout_ack_secs}"));
        }
        if signature.len() > limits::SIGNATURE_BYTES_MAX {
            let max = limits::SIGNATURE_BYTES_MAX;
            violations.add("signature", format!("a signature has at most {max} bytes"));
        }
        let signature = Some(signature).filter(|signature| !signature.is_empty());
        if to == Some(DirectMessageRecipient::Admins) && signature.is_some() {
            violations.add("signature", "what is signed names its recipient's key: give `to`");
        }
        let (to, message_type) = (to?, message_type?);
        Some(Self { to, target_context, message_type, format, topic, text, timeout_ack_secs, signature })
    }

    pub(crate) fn timeout_secs(&self) -> u32 {
        match self.timeout_ack_secs {
            0 => limits::LETTER_TIMEOUT_SECS_DEFAULT,
            secs => secs,
        }
    }
}

/// Sender of a direct message, key of its recipient, and addresses to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageAddressing {
    /// The sender's key.
    pub(crate) from: String,
    /// The recipient's.
    pub(crate) recipient: String,
    /// Where the recipient is reached, tried in this order; empty: here.
    pub(crate) addresses: Vec<String>,
    /// The context there; nothing for the recipient's home context.
    pub(crate) target_context: Option<ContextId>,
    /// When its time is over.
    pub(crate) expires_at: Timestamp,
    /// The sender signed it.
    pub(crate) verified: bool,
}

/// Context and sender of a direct message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectMessageSender {
    /// Context that the message is sent from.
    pub(crate) context: ContextId,
    /// Principal that makes the request.
    pub(crate) asker: RequestPrincipal,
    /// Actor that the message is from; the principal itself if not given.
    pub(crate) caller: Option<ActorId>,
}

impl Store {
    /// Looks up the sender and the recipient of a direct message, and checks the sender's signature against the keys valid now. The
    /// message is from the key that signed it, or without a signature from the key in force.
    pub(crate) async fn address(
        &self,
        context: &Context,
        caller: ActorId,
        new: &NewDirectMessage,
        now: Timestamp,
    ) -> Result<MessageAddressing> {
        let sender = self.actor(caller).await.map_err(|error| match error {
            Error::NotFound(_) => Error::field("caller_id", format!("actor {caller} is not registered")),
            error => error,
        })?;
        let mut target_context = new.target_context;
        let (recipient, addresses) = match &new.to {
            DirectMessageRecipient::Admins => {
                if target_context.is_some_and(|there| there != context.id) {
                    let what = "without `to` it goes to the admins of the context that it is sent in";
                    return Err(Error::field("target_context", what));
                }
                if self.registered_admins(context).await?.is_empty() {
                    return Err(Error::field("to", no_admins(context.id)));
                }
                target_context = Some(context.id);
                (TO_ADMINS.to_owned(), Vec::new())
            }
            DirectMessageRecipient::Actor(id) => {
                let actor = self.actor(*id).await?;
                (actor.pubkey, actor.address.iter().map(ToString::to_string).collect())
            }
            DirectMessageRecipient::Elsewhere { key, address } => (key.clone(), vec![address.to_string()]),
        };
        let expires_at = now + Duration::from_secs(new.timeout_secs().into());
        let from = sender.pubkey.clone();
        let addressed =
            MessageAddressing { from, recipient, addresses, target_context, expires_at, verified: false };
        match new.signature {
            Some(_) => signed(&sender, new, addressed, now).map_err(|error| Error::field("signature", error)),
            None => Ok(addressed),
        }
    }

    /// Admins of a context to whom a message without a recipient goes: registered actors, a bounded number.
    pub(crate) async fn registered_admins(&self, context: &Context) -> Result<Vec<ActorId>> {
        let mut there = Vec::new();
        for admin in &context.admins {
            match self.actor(*admin).await {
                Ok(_) => there.push(*admin),
                Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
            if there.len() == limits::LETTER_ADMINS_MAX {
                break;
            }
        }
        Ok(there)
    }

    /// Stores a direct message and hands it to a router; or returns the one that the same request created before.
    pub(crate) async fn publish(
        &self,
        sender: DirectMessageSender,
        new: &NewDirectMessage,
        request: Option<&IdempotencyKey>,
        routers: &StorageRouters,
        now: Timestamp,
    ) -> Result<MessageRecord> {
        self.reserve_memory(new.text.len() as u64)?;
        let DirectMessageSender { context, asker, caller } = sender;
        let actor = asker.actor()?;
        let caller = caller.unwrap_or(actor);
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context, then) = self.sent_before(context, actor, request).await?;
            permission::allow_for(&context, actor, ContextAction::SendMessage, caller)?;
            if let Some(then) = then {
                return self.message_record(&tenant, then, MessageProjection::WithoutText).await;
            }
            let addressed = self.address(&context, caller, new, now).await?;
            let post = DirectMessageWrite { actor, request, caller, new, addressed };
            match post.write(&tenant, &context, routers, now).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(id) => {
                    let key = MessageKey { caller, id };
                    return self.message_record(&tenant, key, MessageProjection::WithoutText).await;
                }
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// A context, and which message the same request made before.
    async fn sent_before(
        &self,
        context: ContextId,
        actor: ActorId,
        request: Option<&IdempotencyKey>,
    ) -> Result<(Arc<TenantStore>, Context, Option<MessageKey>)> {
        let (tenant, context, answers) = self
            .read(context, RequestPrincipal::Actor(actor), |tenant, pipeline| {
                if let Some(request) = request {
                    let key = tenant.keys.request(actor, &request.id);
                    let query = Cmd::new("HMGET").arg(&key).arg("hash").arg("caller_id").arg("message_id");
                    pipeline.cmd(query);
                }
            })
            .await?;
        let Some(made) = answers.into_iter().next() else { return Ok((tenant, context, None)) };
        let [hash, caller, id] = made.tuple()?;
        let Some(hash) = hash.optional_text()? else { return Ok((tenant, context, None)) };
        if hash != hash_of(request) || id.is_nil() {
            return Err(Error::RequestIdReused);
        }
        let key = MessageKey { caller: ActorId(number(&caller)?), id: MessageId(number(&id)?) };
        Ok((tenant, context, Some(key)))
    }

    /// Reads a message without checking permissions.
    pub(crate) async fn message_record(
        &self,
        tenant: &TenantStore,
        key: MessageKey,
        extent: MessageProjection,
    ) -> Result<MessageRecord> {
        let query = Cmd::new("HMGET").arg(&tenant.keys.message(key.caller, key.id));
        let value =
            tenant.connection.cmd(query.args(record::message_record::fields(extent).iter().copied())).await?;
        record::message_record::read(key, extent, value)?.ok_or_else(|| Error::NotFound(message_key(key)))
    }
}

/// Describes why a message without a recipient cannot be sent: its context has no registered admin.
pub(crate) fn no_admins(context: ContextId) -> String {
    format!("no admin of context {context} is registered: name the recipient")
}

/// Checks that a valid key of the sender has signed the message; returns its addressing with that key.
fn signed(
    sender: &Actor,
    new: &NewDirectMessage,
    addressed: MessageAddressing,
    now: Timestamp,
) -> std::result::Result<MessageAddressing, Refusal> {
    // The signature does not cover the sending context.
    let nowhere = ContextUid(Uid::from_bits(0));
    let check = |from: &str| {
        let message = DirectMessage {
            from: from.to_owned(),
            ..direct_message_of(new, &addressed, origin_of(nowhere, sender.id), now)
        };
        envelope::actor::check_direct_message(&message, now)
    };
    let former = sender.keys_at(now).into_iter().filter(|key| **key != addressed.from);
    let mut checked = check(&addressed.from);
    for key in former {
        if !matches!(checked, Err(Refusal::OtherActor { .. })) {
            break;
        }
        // A refusal names the key in force.
        checked = check(key).map_err(|refusal| match refusal {
            Refusal::OtherActor { signer, .. } => {
                Refusal::OtherActor { signer, claimed: addressed.from.clone() }
            }
            other => other,
        });
    }
    Ok(match checked? {
        // Recipients refuse the message after the time for which it is signed, which may be shorter.
        Some(SignedDirectMessage { signer, expires, .. }) => MessageAddressing {
            from: signer.to_string(),
            expires_at: addressed.expires_at.min(expires),
            verified: true,
            ..addressed
        },
        None => addressed,
    })
}

pub(crate) fn origin_of(context_uid: ContextUid, caller: ActorId) -> DirectMessageOrigin {
    // The gateway that sends it names the coordinator, by the root key that only gateways know.
    DirectMessageOrigin {
        coordinator: String::new(),
        context_uid,
        caller_id: caller,
        message_id: MessageId(0),
    }
}

pub(crate) fn direct_message_of(
    new: &NewDirectMessage,
    addressed: &MessageAddressing,
    origin: DirectMessageOrigin,
    now: Timestamp,
) -> DirectMessage {
    DirectMessage {
        origin,
        from: addressed.from.clone(),
        to: addressed.recipient.clone(),
        target_context: addressed.target_context,
        message_type: new.message_type,
        format: new.format,
        topic: new.topic.clone(),
        text: new.text.clone(),
        created_at: now,
        expires_at: addressed.expires_at,
        signature: new.signature.clone(),
    }
}

/// A direct message that is about to be written.
struct DirectMessageWrite<'a> {
    /// Actor that makes the request.
    actor: ActorId,
    request: Option<&'a IdempotencyKey>,
    /// Actor that the message is from.
    caller: ActorId,
    new: &'a NewDirectMessage,
    addressed: MessageAddressing,
}

impl DirectMessageWrite<'_> {
    /// Writes the message and hands it to a connected router. Returns its number, or that of the same request before.
    async fn write(
        self,
        tenant: &TenantStore,
        context: &Context,
        routers: &StorageRouters,
        now: Timestamp,
    ) -> Result<MessageId> {
        let Self { actor, request, caller, new, addressed } = self;
        let mut message = direct_message_of(new, &addressed, origin_of(context.uid, caller), now);
        let router = routers.pick_for_direct_message(context.id);
        let request_key = request.map(|request| tenant.keys.request(actor, &request.id));
        let mut touched = scripts::PUBLISH_LETTER
            .keys([("letters", &tenant.letters), ("out", &tenant.msg_out), ("held", &tenant.held)])
            .to_vec();
        touched.extend(request_key.as_deref());
        let posting = DirectMessageMetadata {
            context: context.id,
            to: &new.to.to_string(),
            addresses: &addressed.addresses,
            timeout_ack_secs: new.timeout_secs(),
            verified: addressed.verified,
        };
        let audit_record = AuditRecord::of(
            Some(actor),
            ContextAction::SendMessage,
            format_args!("message of actor {caller}"),
        );
        let audit_record = audit_record.with_request_id(request);
        let change = tenant
            .begin_by(Some(&audit_record), &scripts::PUBLISH_LETTER, &touched, Some(context.uid), now)
            .named(kv::named![
                context_revision: context.revision.0,
                caller: caller.0,
                router: router.as_ref().map(|router| router.name()).unwrap_or_default(),
                hold_end: &(now + HOLD).to_string(),
                prefix: tenant.keys.prefix(),
                request_hash: hash_of(request),
                request_secs: limits::REQUEST_ID_KEEP_SECS,
            ])
            .args(record::message_record::write_sent(&message, &posting, now).args());
        let read = |value: Value| {
            let [id, revision] = value.tuple()?;
            let revision = revision.uint()?;
            Ok(((revision > 0).then_some(revision), (number(&id)?, revision > 0)))
        };
        service::crash_point("storage.publish.before");
        let (id, is_new) = tenant.apply(change, read).await?;
        service::crash_point("storage.publish.after");
        let id = MessageId(id);
        if let Some(router) = router.filter(|_| is_new) {
            message.origin.message_id = id;
            let body = RoutedMessage::direct_message(&message, addressed.addresses);
            let key = MessageKey { caller, id };
            routers.hand(
                &router,
                RouterHeldMessage { context: context.id, context_uid: context.uid, key, body },
            );
        }
        Ok(id)
    }
}

fn number(value: &Value) -> kv::Result<u32> {
    u32::try_from(value.uint()?).map_err(|_| kv::Error::Protocol("a number beyond 32 bits".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipient_has_one_spelling() {
        let key = "ab".repeat(32);
        for text in [
            "7".to_owned(),
            "admins".to_owned(),
            format!("{key}@grpc://h:1"),
            format!("{key}@mycelium:{key}"),
        ] {
            assert_eq!(text.parse::<DirectMessageRecipient>().expect("well-formed").to_string(), text);
        }
        for bad in ["", "0", "07", "+7", "x", "@grpc://h:1", "7@grpc://h:1", &format!("{key}@h"), &key] {
            assert!(bad.parse::<DirectMessageRecipient>().is_err(), "{bad}");
        }
        assert_eq!(DirectMessageRecipient::of_message(""), Ok(DirectMessageRecipient::Admins));
        assert!(DirectMessageRecipient::of_message("0").is_err());
    }
}
