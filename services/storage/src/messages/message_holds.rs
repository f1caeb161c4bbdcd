//! Messages on their way. At every moment each is in exactly one place: out, held by a router, or settled.

use std::slice::from_ref;
use std::time::Duration;

use kv::{Cmd, Value};
use model::{ContextId, ContextUid, FlowId, MessageKey, Timestamp, limits};

use crate::error::{Error, Result};
use crate::messages::raw::{self, MessageHolder};
use crate::messages::routers::StorageRouters;
use crate::record;
use crate::record::routed_message::{ParsedMessageRecord, RoutedMessage};
use crate::scripts;
use crate::store::{Store, TenantStore};

/// How long a router's hold lasts unless it is renewed.
pub(crate) const HOLD: Duration = Duration::from_secs(30);
/// Messages that are moved or settled by one script.
pub(crate) const MESSAGES_MAX: usize = 100;

/// Bytes of messages that one script reads. A single message with more than that could not be delivered.
const TAKEN_BYTES_MAX: usize = 2 * limits::COMMIT_BYTES_MAX;
/// Bytes of the text that says why a message will not arrive.
const PROBLEM_BYTES_MAX: usize = 8 * 1024;

/// Error of a message whose attempts had all ended before a router received it.
const OVER: &str = "its attempts had ended before it was sent";

/// Entry of a list of messages, where programs may have put anything.
#[derive(Debug)]
struct MessageListEntry {
    bytes: Vec<u8>,
    /// Message of this context that the entry names, and its key as text; nothing for any other entry.
    message: Option<(MessageKey, String)>,
}

impl MessageListEntry {
    fn list(tenant: &TenantStore, answer: Value) -> Result<Vec<Self>> {
        let mut entries = Vec::new();
        for value in answer.array()? {
            let bytes = value.bytes()?;
            let message =
                std::str::from_utf8(&bytes).ok().and_then(|text| match tenant.keys.parse(text)? {
                    keys::ContextKey::Message(key) => Some((key, text.to_owned())),
                    _ => None,
                });
            entries.push(Self { bytes, message });
        }
        Ok(entries)
    }
}

/// A message that a router holds.
#[derive(Debug, Clone)]
pub(crate) struct RouterHeldMessage {
    /// Where it belongs.
    pub(crate) context: ContextId,
    /// The context's uid.
    pub(crate) context_uid: ContextUid,
    /// Which one.
    pub(crate) key: MessageKey,
    /// Content of the message.
    pub(crate) body: RoutedMessage,
}

/// How the care for a message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// Which one.
    pub(crate) key: MessageKey,
    /// Why it will not arrive; empty when the receiver acknowledged it.
    pub(crate) error: String,
    /// The flow that was made of it.
    pub(crate) flow: Option<FlowId>,
}

/// A message's key as it stands in a record: without the tag of its context.
pub(crate) fn message_key(key: MessageKey) -> String {
    keys::ContextKey::Message(key).to_string()
}

/// Undoes [`message_key`].
pub(crate) fn parse_message_key(text: &str) -> Option<MessageKey> {
    match keys::ContextKey::parse(text) {
        Some(keys::ContextKey::Message(key)) => Some(key),
        _ => None,
    }
}

impl Store {
    /// Moves waiting messages of a context into the hold of `router`, at most [`MESSAGES_MAX`]; returns whether
    /// there may be more. Messages that cannot be delivered are settled with an error.
    pub(crate) async fn take_out(
        &self,
        tenant: &TenantStore,
        router: &str,
        now: Timestamp,
    ) -> Result<(Vec<RouterHeldMessage>, bool)> {
        let query =
            Cmd::new("LRANGE").arg(&tenant.msg_out).arg(-i64::try_from(MESSAGES_MAX).unwrap_or(1)).arg(-1);
        let mut seen = MessageListEntry::list(tenant, tenant.connection.cmd(query).await?)?;
        if seen.is_empty() {
            return Ok((Vec::new(), false));
        }
        seen.reverse();
        let mut touched = scripts::TAKE_OUT
            .keys([
                ("out", &tenant.msg_out),
                ("held", &tenant.held),
                ("letters", &tenant.letters),
                ("dead_letters", &tenant.dead_letters),
            ])
            .to_vec();
        // An entry that does not name a message of this context is never touched.
        touched
            .extend(seen.iter().map(|entry| entry.message.as_ref().map_or(&*tenant.msg_out, |(_, key)| key)));
        let call = tenant
            .begin(&scripts::TAKE_OUT, &touched, None, now)
            .named(kv::named![
                router: router,
                hold_end: &(now + HOLD).to_string(),
                bytes_max: TAKEN_BYTES_MAX,
            ])
            .args(seen.iter().map(|entry| &entry.bytes))
            .args(record::routed_message::READ);
        let taken = tenant.call(call).await?.array()?;
        let more = !taken.is_empty() && (taken.len() >= MESSAGES_MAX || taken.len() < seen.len());
        for entry in seen.iter().take(taken.len()).filter(|entry| entry.message.is_none()) {
            let found = String::from_utf8_lossy(&entry.bytes[..entry.bytes.len().min(200)]);
            tracing::warn!(
                context = %tenant.id, %found,
                "a pushed entry is not the key of a message of its context"
            );
        }
        Ok((self.read_taken((tenant, router), &seen, (taken, OVER), now).await?, more))
    }

    /// Moves messages whose hold by another router has ended into the hold of `router`.
    pub(crate) async fn take_expired(
        &self,
        tenant: &TenantStore,
        router: &str,
        now: Timestamp,
    ) -> Result<Vec<RouterHeldMessage>> {
        let query = Cmd::new("ZRANGEBYSCORE").arg(&tenant.held).arg("-inf").arg(&now.to_string());
        let seen = tenant.connection.cmd(query.arg("LIMIT").arg(0).arg(MESSAGES_MAX)).await?;
        self.take_held((tenant, router), &MessageListEntry::list(tenant, seen)?, Some(now), now).await
    }

    /// Reads the messages that `router` holds in a context and renews their holds.
    pub(crate) async fn held_by(
        &self,
        tenant: &TenantStore,
        router: &str,
        now: Timestamp,
    ) -> Result<Vec<RouterHeldMessage>> {
        let all = tenant.connection.cmd(Cmd::new("ZRANGE").arg(&tenant.held).arg(0).arg(-1)).await?;
        self.take_held((tenant, router), &MessageListEntry::list(tenant, all)?, None, now).await
    }

    /// Sends each of `routers` those of these messages that it holds, unless it has received them already.
    pub(crate) async fn send_held(
        &self,
        tenant: &TenantStore,
        routers: &StorageRouters,
        keys: &[MessageKey],
        now: Timestamp,
    ) -> Result<()> {
        let entry = |key: &MessageKey| {
            let text = tenant.keys.message(key.caller, key.id);
            MessageListEntry { bytes: text.clone().into_bytes(), message: Some((*key, text)) }
        };
        let seen: Vec<MessageListEntry> = keys.iter().map(entry).collect();
        for router in routers.all() {
            let held = self.take_held((tenant, router.name()), &seen, None, now).await?;
            held.into_iter().for_each(|message| router.send(message));
        }
        Ok(())
    }

    /// Takes messages whose hold has ended at `until`; without `until`, those that `router` holds already.
    async fn take_held(
        &self,
        (tenant, router): (&TenantStore, &str),
        seen: &[MessageListEntry],
        until: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Vec<RouterHeldMessage>> {
        let (mut held, mut rest) = (Vec::new(), seen);
        while !rest.is_empty() {
            let part = &rest[..rest.len().min(MESSAGES_MAX)];
            let mut touched = vec![tenant.held.as_str(), &tenant.letters];
            // An entry that names no message has no key; the key of `held` takes its place, which the script leaves alone.
            touched.extend(
                part.iter().map(|entry| entry.message.as_ref().map_or(&*tenant.held, |(_, key)| key)),
            );
            let call = tenant
                .begin(&scripts::TAKE_HELD, &touched, None, now)
                .named(kv::named![
                    router: router,
                    hold_end: &(now + HOLD).to_string(),
                    ended_until: &until.map(|until| until.to_string()).unwrap_or_default(),
                    bytes_max: TAKEN_BYTES_MAX,
                ])
                .args(record::routed_message::READ);
            let taken = tenant.call(call).await?.array()?;
            let (done, left) = part.split_at(taken.len().clamp(1, part.len()));
            // The router that held a message before may have sent it and lost the settlement.
            held.extend(self.read_taken((tenant, router), done, (taken, ""), now).await?);
            rest = &rest[rest.len().min(MESSAGES_MAX) - left.len()..];
        }
        Ok(held)
    }

    /// Renews the holds of `router`; returns the messages that it no longer holds.
    pub(crate) async fn renew(
        &self,
        tenant: &TenantStore,
        router: &str,
        held: &[MessageKey],
        now: Timestamp,
    ) -> Result<Vec<MessageKey>> {
        let mut lost = Vec::new();
        for held in held.chunks(MESSAGES_MAX) {
            let keys: Vec<String> = held.iter().map(|key| tenant.keys.message(key.caller, key.id)).collect();
            let mine = self.renew_keys(tenant, router, &keys, now).await?;
            let is_lost = |(key, _): &(&String, &MessageKey)| !mine.contains(key);
            lost.extend(keys.iter().zip(held).filter(is_lost).map(|(_, key)| *key));
        }
        Ok(lost)
    }

    /// Renews the holds of `router` on `keys`; returns the keys that it holds.
    async fn renew_keys(
        &self,
        tenant: &TenantStore,
        router: &str,
        keys: &[String],
        now: Timestamp,
    ) -> Result<Vec<String>> {
        let mut touched = vec![tenant.held.as_str()];
        touched.extend(keys.iter().map(String::as_str));
        let call = tenant
            .begin(&scripts::RENEW_HOLDS, &touched, None, now)
            .named(kv::named![router: router, hold_end: &(now + HOLD).to_string()]);
        let mut is_mine = vec![true; keys.len()];
        for place in tenant.call(call).await?.array()? {
            let place = usize::try_from(place.uint()?).unwrap_or_default();
            if let Some(entry) = place.checked_sub(1).and_then(|place| is_mine.get_mut(place)) {
                *entry = false;
            }
        }
        Ok(keys.iter().zip(is_mine).filter(|(_, is_mine)| *is_mine).map(|(key, _)| key.clone()).collect())
    }

    /// Settles messages of one context, which ends their holds.
    pub(crate) async fn settle(
        &self,
        context: ContextId,
        settled: &[Settlement],
        now: Timestamp,
    ) -> Result<()> {
        let tenant = self.tenant(context).await?;
        for settled in settled.chunks(MESSAGES_MAX) {
            let keys =
                settled.iter().map(|one| tenant.keys.message(one.key.caller, one.key.id)).collect::<Vec<_>>();
            let outcomes = settled.iter().map(|one| (one.error.as_str(), one.flow));
            settle_keys(&tenant, &keys, outcomes, now).await?;
        }
        service::crash_point("storage.settle.after");
        Ok(())
    }

    /// Reads the messages that a router is to deliver. One without open attempts is settled, with the error `over`.
    async fn read_taken(
        &self,
        (tenant, router): (&TenantStore, &str),
        seen: &[MessageListEntry],
        (taken, over): (Vec<Value>, &str),
        now: Timestamp,
    ) -> Result<Vec<RouterHeldMessage>> {
        if taken.iter().all(|value| *value == Value::Int(0)) {
            return Ok(Vec::new());
        }
        let (_, context) = self.context(tenant.id).await?;
        let holder = MessageHolder { tenant, context: &context, router };
        let mut held = Vec::with_capacity(taken.len());
        for (entry, value) in seen.iter().zip(taken) {
            let Some((key, text)) = &entry.message else { continue };
            let body = match value {
                Value::Int(1) => Err(too_large()),
                value => self.body_of(holder, *key, value, now).await,
            };
            let settled = match body {
                Ok(None) => continue,
                Ok(Some(body)) if body.is_over() => {
                    settle_keys(tenant, from_ref(text), [(over, None)], now).await
                }
                Ok(Some(body)) => {
                    held.push(RouterHeldMessage {
                        context: tenant.id,
                        context_uid: context.uid,
                        key: *key,
                        body,
                    });
                    continue;
                }
                Err(error) => match raw::refusal(&error) {
                    Some(problem) => refuse(tenant, text, &problem, now).await,
                    None => Err(error),
                },
            };
            // The message stays held and is retried when the hold ends. It must not affect the other messages.
            if let Err(error) = settled {
                tracing::warn!(context = %tenant.id, key = text, %error, "a message cannot be read now");
                if matches!(&error, Error::Store(cause) if cause.is_connection_trouble()) {
                    break;
                }
            }
        }
        Ok(held)
    }

    /// Reads the message that a router is to deliver; `None` when there is nothing to do.
    async fn body_of(
        &self,
        holder: MessageHolder<'_>,
        key: MessageKey,
        value: Value,
        now: Timestamp,
    ) -> Result<Option<RoutedMessage>> {
        let found = record::routed_message::read(&message_key(key), key, holder.context.uid, value)?;
        match found {
            None => Ok(None),
            Some(ParsedMessageRecord::Body(body)) => Ok(Some(body)),
            Some(ParsedMessageRecord::Raw(fields)) => self.take_up(holder, key, fields, now).await,
        }
    }
}

fn too_large() -> Error {
    Error::field("message", format!("a message that was pushed has at most {TAKEN_BYTES_MAX} bytes"))
}

/// Settles a message that cannot be delivered.
async fn refuse(tenant: &TenantStore, key: &String, problem: &str, now: Timestamp) -> Result<()> {
    let problem = record::cut(problem, PROBLEM_BYTES_MAX);
    tracing::warn!(context = %tenant.id, key, problem, "a message cannot be delivered");
    settle_keys(tenant, from_ref(key), [(problem, None)], now).await
}

async fn settle_keys(
    tenant: &TenantStore,
    keys: &[String],
    outcomes: impl IntoIterator<Item = (&str, Option<FlowId>)>,
    now: Timestamp,
) -> Result<()> {
    let mut touched = scripts::SETTLE
        .keys([("held", &tenant.held), ("dead_letters", &tenant.dead_letters), ("letters", &tenant.letters)])
        .to_vec();
    touched.extend(keys.iter().map(String::as_str));
    let mut call = tenant.begin(&scripts::SETTLE, &touched, None, now);
    for (error, flow) in outcomes {
        call = call.arg(record::cut(error, PROBLEM_BYTES_MAX)).arg(flow.map_or(0, |flow| flow.0));
    }
    tenant.call(call).await?;
    Ok(())
}
