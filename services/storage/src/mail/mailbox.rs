//! Direct messages that arrive, are read, are removed, or are sent again.

use std::time::Duration;

use kv::{Cmd, Value};
use model::actor::is_key;
use model::mail::TO_ADMINS;
use model::{
    Actor, ActorId, BlobHash, Context, ContextId, ContextState, DirectMessage, DirectMessageOrigin,
    MessageKey, MessageType, Timestamp, limits,
};

use crate::error::{Error, Result};
use crate::idempotency::{IdempotencyKey, hash_of};
use crate::mail::outgoing::{DirectMessageRecipient, no_admins};
use crate::messages::message_holds::message_key;
use crate::record;
use crate::record::message_record::{DirectMessageMetadata, MessageProjection, MessageRecord};
use crate::scripts;
use crate::store::{PERMISSION_TRIES, RequestPrincipal, Store, TenantStore};
use crate::tenants::actors::BOOTSTRAP;
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};

/// Messages that one script takes out of an inbox.
const ACKNOWLEDGED_MAX: usize = 500;

/// Outcome for a direct message that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MailAcceptance {
    /// The message is kept under this key, `message:0:<id>`.
    Kept {
        /// The key.
        key: String,
        /// The message had been accepted before.
        duplicate: bool,
    },
    /// The message is refused.
    Refused {
        /// Reason of the refusal.
        reason: MailRefusalReason,
        /// Description of the reason, for people.
        detail: String,
    },
}

impl MailAcceptance {
    fn refused(reason: MailRefusalReason, detail: impl std::fmt::Display) -> Self {
        Self::Refused { reason, detail: detail.to_string() }
    }

    fn unknown_recipient() -> Self {
        Self::refused(
            MailRefusalReason::UnknownRecipient,
            "no actor with that key can receive messages there",
        )
    }
}

/// Reason why a direct message is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MailRefusalReason {
    /// No actor has that key, or it has no role in the target context.
    UnknownRecipient,
    /// The message is for the admins of a context, and none of them is an actor.
    NoAdmins,
    /// The message names no context, and its recipient has no home context.
    NoHomeContext,
    /// The context accepts only messages that their sender signed.
    Unverified,
    /// The signature does not fit.
    BadSignature,
    /// The message has expired.
    Expired,
    /// The inbox is full.
    InboxFull,
    /// The text, the topic or the signature is too long.
    TooLarge,
    /// Another coordinator names an actor of this one as the sender, but that actor has not signed the message.
    ForgedSender,
}

impl MailRefusalReason {
    /// Name of the reason on the wire.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownRecipient => "UNKNOWN_RECIPIENT",
            Self::NoAdmins => "NO_ADMINS",
            Self::NoHomeContext => "NO_HOME_CONTEXT",
            Self::Unverified => "UNVERIFIED",
            Self::BadSignature => "BAD_SIGNATURE",
            Self::Expired => "EXPIRED",
            Self::InboxFull => "INBOX_FULL",
            Self::TooLarge => "TOO_LARGE",
            Self::ForgedSender => "FORGED_SENDER",
        }
    }

    /// Returns true if a retry cannot help.
    pub(crate) const fn is_lasting(self) -> bool {
        !matches!(self, Self::InboxFull)
    }
}

/// A direct message that arrived.
#[derive(Debug)]
pub(crate) struct IncomingDirectMessage {
    /// The message.
    pub(crate) message: DirectMessage,
    /// The sender's signature was checked and fits.
    pub(crate) verified: bool,
    /// Another coordinator has brought it.
    pub(crate) foreign: bool,
}

/// Delivery of a direct message into inboxes, unless it is refused.
struct InboxDelivery<'a> {
    message: &'a DirectMessage,
    /// Another coordinator has brought it.
    foreign: bool,
    /// Key that signed the message, and which of the signer's messages it is.
    signed: Option<(String, String)>,
    /// Owners of the inboxes that it goes to: one actor, or the context's admins.
    recipients: &'a [ActorId],
    /// Reason of the refusal, which does not apply to a repeated message.
    refusal: Option<(MailRefusalReason, String)>,
}

impl Store {
    /// Puts a direct message into its recipient's inbox, once; a message for a context's admins goes into each of their inboxes.
    pub(crate) async fn accept_direct_message(
        &self,
        arrival: &IncomingDirectMessage,
        now: Timestamp,
    ) -> Result<MailAcceptance> {
        let IncomingDirectMessage { message, verified, foreign } = arrival;
        check_form(message, *foreign)?;
        if let Some(detail) = too_large(message) {
            return Ok(MailAcceptance::refused(MailRefusalReason::TooLarge, detail));
        }
        self.reserve_memory(message.text.len() as u64)?;
        let signed = match envelope::actor::check_direct_message(message, now) {
            _ if !verified => None,
            Err(refusal) => return Ok(MailAcceptance::refused(MailRefusalReason::BadSignature, refusal)),
            Ok(signed) => signed.map(|signed| (signed.signer.to_string(), signed.id.to_string())),
        };
        if *foreign && signed.is_none() && self.is_of_an_actor(&message.from).await? {
            let detail = "its sender is an actor of this coordinator, and has not signed it";
            return Ok(MailAcceptance::refused(MailRefusalReason::ForgedSender, detail));
        }
        let actor = match message.to.as_str() {
            TO_ADMINS => None,
            key => match self.actor_by_key(key).await? {
                Some(actor) => Some(actor),
                None => return Ok(MailAcceptance::unknown_recipient()),
            },
        };
        let home = actor.as_ref().and_then(|actor| actor.home_context);
        let Some(context) = message.target_context.or(home) else {
            let detail = "the recipient has no home context, and the message names none";
            return Ok(MailAcceptance::refused(MailRefusalReason::NoHomeContext, detail));
        };
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context) = match self.context(context).await {
                Ok(found) => found,
                Err(Error::NotFound(_)) => return Ok(MailAcceptance::unknown_recipient()),
                Err(error) => return Err(error),
            };
            let has_role = actor.as_ref().is_none_or(|actor| context.role_of(actor.id).is_some());
            if !has_role || context.state != ContextState::Active {
                return Ok(MailAcceptance::unknown_recipient());
            }
            let recipients = match &actor {
                Some(actor) => vec![actor.id],
                None => self.registered_admins(&context).await?,
            };
            if recipients.is_empty() {
                return Ok(MailAcceptance::refused(MailRefusalReason::NoAdmins, no_admins(context.id)));
            }
            let refusal = refusal_of(message, &context, signed.is_some(), now);
            let (foreign, signed) = (*foreign, signed.clone());
            let delivery = InboxDelivery { message, foreign, signed, recipients: &recipients, refusal };
            match deliver(&tenant, &context, delivery, now).await {
                Err(Error::ContextChanged(_)) => {}
                Err(Error::NotFound(_) | Error::ContextDeleting) => {
                    return Ok(MailAcceptance::unknown_recipient());
                }
                answer => return answer,
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// Returns true if an actor has, or had, this public key.
    async fn is_of_an_actor(&self, key: &str) -> Result<bool> {
        let query = Cmd::new("HEXISTS").arg(&self.keys().actor_keys()).arg(key);
        Ok(self.connection().cmd(query).await?.int()? == 1)
    }

    /// The actor with this public key.
    async fn actor_by_key(&self, key: &str) -> Result<Option<Actor>> {
        let query = Cmd::new("HGET").arg(&self.keys().actor_keys()).arg(key);
        let id = self.connection().cmd(query).await?;
        if id.is_nil() {
            return Ok(None);
        }
        let id = ActorId(u32::try_from(id.uint()?).unwrap_or_default());
        match self.actor(id).await {
            Ok(actor) => Ok(Some(actor)),
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes messages out of the inbox of `actor`, by default the principal's own; returns how many of them were in it.
    pub(crate) async fn acknowledge(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        actor: Option<ActorId>,
        keys: &[MessageKey],
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<u32> {
        // The permission is checked even for an empty request.
        let (mut count, nothing) = (0, keys.is_empty().then_some(keys));
        for (part, keys) in nothing.into_iter().chain(keys.chunks(ACKNOWLEDGED_MAX)).enumerate() {
            count += self.acknowledge_some(context, (asker, actor), (part, keys), request, now).await?;
        }
        Ok(count)
    }

    async fn acknowledge_some(
        &self,
        context: ContextId,
        (asker, actor): (RequestPrincipal, Option<ActorId>),
        (part, keys): (usize, &[MessageKey]),
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<u32> {
        let principal = asker.actor()?;
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context, _) = self.read(context, asker, |_, _| {}).await?;
            let owner = inbox_owner(&context, asker, actor, ContextAction::AcknowledgeMessages)?;
            let mut touched = vec![tenant.keys.inbox(owner)];
            touched.extend(request.map(|request| tenant.keys.request(principal, &request.id)));
            touched.extend(keys.iter().map(|key| tenant.keys.message(key.caller, key.id)));
            let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
            let object = format!("inbox of actor {owner}");
            let audit_record = AuditRecord::of(Some(principal), ContextAction::AcknowledgeMessages, object)
                .with_request_id(request);
            let change = tenant
                .begin_by(Some(&audit_record), &scripts::ACKNOWLEDGE, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: context.revision.0,
                    actor: owner.0,
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    part: part,
                ]);
            let read = |value: Value| {
                let [count, revision] = value.tuple()?;
                let revision = revision.uint()?;
                Ok(((revision > 0).then_some(revision), u32::try_from(count.uint()?).unwrap_or(u32::MAX)))
            };
            match tenant.apply(change, read).await {
                Err(Error::ContextChanged(_)) => {}
                answer => return answer,
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// Removes a message that is not on its way any more.
    pub(crate) async fn remove_message(
        &self,
        context: ContextId,
        key: MessageKey,
        asker: RequestPrincipal,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<()> {
        match self.remove_message_once(context, key, asker, request, now).await {
            // The same request may have removed it before.
            Err(Error::NotFound(what)) => match request {
                Some(request) if self.find_request(context, asker, request).await?.is_some() => Ok(()),
                _ => Err(Error::NotFound(what)),
            },
            result => result,
        }
    }

    async fn remove_message_once(
        &self,
        context: ContextId,
        key: MessageKey,
        asker: RequestPrincipal,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<()> {
        let actor = asker.actor()?;
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context, message) =
                self.visible_message(context, key, asker, MessageProjection::WithoutText).await?;
            // Its sender's and its recipient's alike.
            let owner = if message.is_owned_by(actor) { actor } else { BOOTSTRAP };
            permission::allow_for(&context, actor, ContextAction::DeleteMessage, owner)?;
            // A message that no actor here received has no recipient: 0 names an inbox that does not exist.
            let owner = message.recipient().unwrap_or_default();
            let record = tenant.keys.message(key.caller, key.id);
            let (msg_in, inbox) = (tenant.keys.msg_in(), tenant.keys.inbox(owner));
            let letters_done = tenant.keys.letters_done();
            let request_key = request.map(|request| tenant.keys.request(actor, &request.id));
            let mut touched = scripts::REMOVE_MESSAGE
                .keys([
                    ("message", &record),
                    ("letters", &tenant.letters),
                    ("dead_letters", &tenant.dead_letters),
                    ("msg_in", &msg_in),
                    ("inbox", &inbox),
                    ("letters_done", &letters_done),
                ])
                .to_vec();
            touched.extend(request_key.as_deref());
            let audit_record = AuditRecord::of(Some(actor), ContextAction::DeleteMessage, message_key(key))
                .with_request_id(request);
            let change = tenant
                .begin_by(Some(&audit_record), &scripts::REMOVE_MESSAGE, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: context.revision.0,
                    message: &message_key(key),
                    actor: owner.0,
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                ]);
            match tenant.apply_revision(change).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(()),
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// Hands a dead letter to a router again, under the same key.
    pub(crate) async fn resend(
        &self,
        context: ContextId,
        key: MessageKey,
        asker: RequestPrincipal,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<MessageRecord> {
        let actor = asker.actor()?;
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context, message) =
                self.visible_message(context, key, asker, MessageProjection::WithoutText).await?;
            permission::allow_for(&context, actor, ContextAction::ResendMessage, key.caller)?;
            let addresses = self.addresses_now(&message).await?;
            let (from, refusal) = match self.sender_now(&message, now).await? {
                Ok(from) => (from, ""),
                Err(why) => (String::new(), why),
            };
            let record = tenant.keys.message(key.caller, key.id);
            let request_key = request.map(|request| tenant.keys.request(actor, &request.id));
            let mut touched = scripts::RESEND
                .keys([
                    ("message", &record),
                    ("letters", &tenant.letters),
                    ("dead_letters", &tenant.dead_letters),
                    ("out", &tenant.msg_out),
                ])
                .to_vec();
            touched.extend(request_key.as_deref());
            let audit_record = AuditRecord::of(Some(actor), ContextAction::ResendMessage, message_key(key))
                .with_request_id(request);
            let change = tenant
                .begin_by(Some(&audit_record), &scripts::RESEND, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: context.revision.0,
                    message: &message_key(key),
                    made_from: &before(now, LONGEST).to_string(),
                    expires_at: &expiry_again(&message, now).to_string(),
                    addresses: &addresses,
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    public_key: &from,
                    refusal: refusal,
                ]);
            match tenant.apply_revision(change).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(_) => return self.message_record(&tenant, key, MessageProjection::WithoutText).await,
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// Sender key of a direct message that is sent now: the key that signed it, if still valid, or without a signature the key
    /// in force. Empty if no actor here sent the message. Otherwise the reason why it is not sent.
    async fn sender_now(
        &self,
        message: &MessageRecord,
        now: Timestamp,
    ) -> Result<std::result::Result<String, &'static str>> {
        if message.message_type == MessageType::Job || message.key.caller == BOOTSTRAP {
            return Ok(Ok(String::new()));
        }
        let sender = match self.actor(message.key.caller).await {
            Ok(sender) => sender,
            Err(Error::NotFound(_)) => return Ok(Err("is from an actor that was removed")),
            Err(error) => return Err(error),
        };
        let keys = sender.keys_at(now);
        let from = match message.verified {
            true => keys.iter().find(|key| ***key == message.from_pubkey),
            false => keys.first(),
        };
        Ok(from
            .map(|from| (*from).to_owned())
            .ok_or("is from a key that is no longer valid: send a new message"))
    }

    /// Current addresses of the local actor that a message is for, in stored form; empty if there is no such actor.
    async fn addresses_now(&self, message: &MessageRecord) -> Result<String> {
        let Ok(DirectMessageRecipient::Actor(id)) = message.to.parse() else { return Ok(String::new()) };
        if message.recipient().is_none() {
            return Ok(String::new());
        }
        match self.actor(id).await {
            Ok(actor) => Ok(serde_json::to_string(&actor.address).expect("a list of texts is JSON")),
            Err(Error::NotFound(_)) => Ok(String::new()),
            Err(error) => Err(error),
        }
    }
}

/// Longest time after its creation for which a direct message may be in transit.
const LONGEST: Duration = Duration::from_secs(limits::LETTER_TIMEOUT_SECS_MAX as u64);

fn before(now: Timestamp, earlier: Duration) -> Timestamp {
    let millis = u64::try_from(earlier.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(millis))
}

/// Expiry of a direct message that is sent again. It has its whole time again, but not beyond the time for which recipients
/// recognize a repeat.
fn expiry_again(message: &MessageRecord, now: Timestamp) -> Timestamp {
    let secs = match message.timeout_ack_secs {
        0 => limits::LETTER_TIMEOUT_SECS_DEFAULT,
        secs => secs,
    };
    (now + Duration::from_secs(secs.into())).min(message.created_at + LONGEST)
}

/// Returns the owner of the requested inbox: the principal by default; admins may name any actor.
pub(crate) fn inbox_owner(
    context: &Context,
    asker: RequestPrincipal,
    actor: Option<ActorId>,
    action: ContextAction,
) -> Result<ActorId> {
    let principal = asker.actor()?;
    let owner = actor.unwrap_or(principal);
    permission::allow_for(context, principal, action, owner)?;
    Ok(owner)
}

/// Checks the form of a direct message; without it there is no message at all. The recipient `TO_ADMINS` is
/// accepted only for messages from here: other coordinators name a key.
fn check_form(message: &DirectMessage, foreign: bool) -> Result<()> {
    let mut violations = model::Violations::new();
    let keys =
        [("origin.coordinator", &message.origin.coordinator), ("from", &message.from), ("to", &message.to)];
    for (field, key) in keys {
        let is_for_admins = field == "to" && !foreign && key == TO_ADMINS;
        if !is_for_admins && !is_key(key) {
            violations.add(format!("letter_json.{field}"), "a key is written as 64 lower-case hex digits");
        }
    }
    if message.message_type == MessageType::Job {
        violations.add("letter_json.type", "chat or mail");
    }
    if let Err(hidden) = model::printable::check_line(&message.topic) {
        violations.add("letter_json.topic", hidden);
    }
    Ok(violations.into_result(Some(()))?)
}

fn too_large(message: &DirectMessage) -> Option<String> {
    let (bytes, chars) = (message.text.len(), message.topic.chars().count());
    let signature = message.signature.as_ref().map_or(0, String::len);
    for (what, max, count) in [
        ("a text has at most {} bytes", limits::MESSAGE_TEXT_BYTES_MAX, bytes),
        ("a topic has at most {} characters", limits::MESSAGE_TOPIC_CHARS_MAX, chars),
        ("a signature has at most {} bytes", limits::SIGNATURE_BYTES_MAX, signature),
    ] {
        if count > max {
            return Some(format!("{}, not {count}", what.replace("{}", &max.to_string())));
        }
    }
    None
}

fn refusal_of(
    message: &DirectMessage,
    context: &Context,
    is_signed: bool,
    now: Timestamp,
) -> Option<(MailRefusalReason, String)> {
    if message.expires_at <= now {
        let detail = format!("it had to arrive until {}", message.expires_at.rfc3339());
        return Some((MailRefusalReason::Expired, detail));
    }
    if context.settings.require_signed_messages && !is_signed {
        let detail = "the context takes only what its sender has signed".to_owned();
        return Some((MailRefusalReason::Unverified, detail));
    }
    None
}

async fn deliver(
    tenant: &TenantStore,
    context: &Context,
    delivery: InboxDelivery<'_>,
    now: Timestamp,
) -> Result<MailAcceptance> {
    let InboxDelivery { message, foreign, signed, recipients, refusal } = delivery;
    let keys = &tenant.keys;
    let mut touched = vec![keys.msg_in(), tenant.letters.clone(), keys.seen(mark_of(&message.origin))];
    let verified = signed.is_some();
    // The same signed text is the same message, whichever coordinator sends it.
    touched.extend(signed.map(|(signer, id)| keys.seen(BlobHash::of(format!("{signer} {id}").as_bytes()))));
    let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
    let inboxes: Vec<String> = recipients.iter().map(ToString::to_string).collect();
    // Each copy is addressed to the owner of its inbox.
    let posting =
        DirectMessageMetadata { context: context.id, to: "", addresses: &[], timeout_ack_secs: 0, verified };
    let written = record::message_record::write_received(message, &posting, foreign, now);
    let change = tenant
        .begin(&scripts::ACCEPT_LETTER, &touched, Some(context.uid), now)
        .named(kv::named![
            context_revision: context.revision.0,
            recipients: &inboxes.join(" "),
            refusal: refusal.as_ref().map_or("", |(reason, _)| reason.as_str()),
            prefix: keys.prefix(),
            bytes: message.text.len()
                + message.topic.len()
                + message.signature.as_ref().map_or(0, String::len),
            msg_in_max: limits::MSG_IN_MAX,
            seen_secs: limits::LETTER_SEEN_SECS,
        ])
        .args(written.args());
    let read = |value: Value| {
        let [outcome, key, revision] = value.tuple()?;
        let revision = revision.uint()?;
        Ok(((revision > 0).then_some(revision), (outcome.int()?, key.text()?)))
    };
    service::crash_point("storage.accept.before");
    let (outcome, key) = tenant.apply(change, read).await?;
    service::crash_point("storage.accept.after");
    Ok(match (outcome, refusal) {
        (1, _) => MailAcceptance::Kept { key, duplicate: false },
        (2, _) => MailAcceptance::Kept { key, duplicate: true },
        (3, Some((reason, detail))) => MailAcceptance::refused(reason, detail),
        _ => {
            let (max, bytes) = (limits::INBOX_MAX, limits::INBOX_BYTES_MAX);
            let detail =
                format!("as many messages wait to be read as there may: {max}, or {bytes} bytes of text");
            MailAcceptance::refused(MailRefusalReason::InboxFull, detail)
        }
    })
}

/// Hash that identifies a direct message, however often it arrives.
fn mark_of(origin: &DirectMessageOrigin) -> BlobHash {
    let DirectMessageOrigin { coordinator, context_uid, caller_id, message_id } = origin;
    BlobHash::of(format!("{coordinator} {context_uid} {caller_id} {message_id}").as_bytes())
}
