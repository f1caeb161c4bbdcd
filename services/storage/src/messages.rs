//! Messages on their way. At every moment each is in exactly one place: out, held by a router, or settled.

use std::time::Duration;

use kv::{Cmd, Pipeline, Value};
use model::{ContextId, ContextUid, MessageKey, Timestamp};

use crate::error::{Error, Result};
use crate::record;
use crate::record::message::Body;
use crate::scripts;
use crate::store::{Store, Tenant};

/// How long a router's hold lasts unless it is renewed.
pub(crate) const HOLD: Duration = Duration::from_secs(30);
/// Messages that are moved or settled by one script.
pub(crate) const MESSAGES_MAX: usize = 100;

/// A message that a router holds.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    /// Where it belongs.
    pub(crate) context: ContextId,
    /// The context's uid.
    pub(crate) context_uid: ContextUid,
    /// Which one.
    pub(crate) key: MessageKey,
    /// What it says.
    pub(crate) body: Body,
}

/// How the care for a message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// Which one.
    pub(crate) key: MessageKey,
    /// Why it will not arrive; empty when the receiver acknowledged it.
    pub(crate) error: String,
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
    /// Takes what is out in a context into the hold of `router`, at most [`MESSAGES_MAX`], and says whether
    /// there may be more. What nobody can deliver is settled with an error.
    pub(crate) async fn take_out(
        &self,
        tenant: &Tenant,
        router: &str,
        now: Timestamp,
    ) -> Result<(Vec<Held>, bool)> {
        let ask =
            Cmd::new("LRANGE").arg(&tenant.msg_out).arg(-i64::try_from(MESSAGES_MAX).unwrap_or(1)).arg(-1);
        let mut seen = tenant.connection.cmd(ask).await?.texts()?;
        if seen.is_empty() {
            return Ok((Vec::new(), false));
        }
        seen.reverse();
        let mut touched = vec![tenant.msg_out.as_str(), &tenant.held];
        touched.extend(seen.iter().map(String::as_str));
        let call =
            tenant.begin(&scripts::TAKE_OUT, &touched, None, now).arg(router).arg(&(now + HOLD).to_string());
        let taken = tenant.call(call).await?.array()?;
        let more = taken.len() >= MESSAGES_MAX;
        Ok((self.read_taken(tenant, &seen, taken, now).await?, more))
    }

    /// Takes what others hold and do not care for any more into the hold of `router`.
    pub(crate) async fn take_expired(
        &self,
        tenant: &Tenant,
        router: &str,
        now: Timestamp,
    ) -> Result<Vec<Held>> {
        let ask = Cmd::new("ZRANGEBYSCORE").arg(&tenant.held).arg("-inf").arg(&now.to_string());
        let seen = tenant.connection.cmd(ask.arg("LIMIT").arg(0).arg(MESSAGES_MAX)).await?.texts()?;
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        let mut touched = vec![tenant.held.as_str()];
        touched.extend(seen.iter().map(String::as_str));
        let call = tenant
            .begin(&scripts::TAKE_EXPIRED, &touched, None, now)
            .arg(router)
            .arg(&(now + HOLD).to_string())
            .arg(&now.to_string());
        let taken = tenant.call(call).await?.array()?;
        self.read_taken(tenant, &seen, taken, now).await
    }

    /// Reads what `router` holds in a context and prolongs it.
    pub(crate) async fn held_by(&self, tenant: &Tenant, router: &str, now: Timestamp) -> Result<Vec<Held>> {
        let all =
            tenant.connection.cmd(Cmd::new("ZRANGE").arg(&tenant.held).arg(0).arg(-1)).await?.texts()?;
        let mut held = Vec::new();
        for seen in all.chunks(MESSAGES_MAX) {
            let mine = self.renew_keys(tenant, router, seen, now).await?;
            let mut pipeline = Pipeline::new();
            for key in &mine {
                pipeline.cmd(Cmd::new("HMGET").arg(key).args(record::message::READ));
            }
            let values =
                tenant.connection.pipeline(&pipeline).await?.into_iter().collect::<kv::Result<_>>()?;
            held.extend(self.read_taken(tenant, &mine, values, now).await?);
        }
        Ok(held)
    }

    /// Prolongs what `router` holds, and gives what it does not hold any more.
    pub(crate) async fn renew(
        &self,
        tenant: &Tenant,
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

    /// Prolongs those of `keys` that `router` holds, and gives them.
    async fn renew_keys(
        &self,
        tenant: &Tenant,
        router: &str,
        keys: &[String],
        now: Timestamp,
    ) -> Result<Vec<String>> {
        let mut touched = vec![tenant.held.as_str()];
        touched.extend(keys.iter().map(String::as_str));
        let call = tenant
            .begin(&scripts::RENEW_HOLDS, &touched, None, now)
            .arg(router)
            .arg(&(now + HOLD).to_string());
        let mut is_mine = vec![true; keys.len()];
        for place in tenant.call(call).await?.array()? {
            let place = usize::try_from(place.uint()?).unwrap_or_default();
            if let Some(entry) = place.checked_sub(1).and_then(|place| is_mine.get_mut(place)) {
                *entry = false;
            }
        }
        Ok(keys.iter().zip(is_mine).filter(|(_, is_mine)| *is_mine).map(|(key, _)| key.clone()).collect())
    }

    /// Ends the care for messages of one context.
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
            let errors: Vec<&str> = settled.iter().map(|one| one.error.as_str()).collect();
            settle_keys(&tenant, &keys, &errors, now).await?;
        }
        crash_point!("storage.settle.after");
        Ok(())
    }

    async fn read_taken(
        &self,
        tenant: &Tenant,
        seen: &[String],
        taken: Vec<Value>,
        now: Timestamp,
    ) -> Result<Vec<Held>> {
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let (_, context) = self.context(tenant.id).await?;
        let mut held = Vec::with_capacity(taken.len());
        for (text, value) in seen.iter().zip(taken) {
            let body = match record::message::read(text, value) {
                Ok(None) => continue,
                Ok(Some(body)) => Ok(body),
                Err(Error::Broken(error)) => Err(error.to_string()),
                Err(error) => return Err(error),
            };
            let key = match tenant.keys.parse(text) {
                Some(keys::ContextKey::Message(key)) => Ok(key),
                _ => Err(format!("`{text}` is no key of a message")),
            };
            match (key, body) {
                (Ok(key), Ok(body)) => {
                    held.push(Held { context: tenant.id, context_uid: context.uid, key, body });
                }
                (Err(problem), _) | (_, Err(problem)) => {
                    tracing::warn!(context = %tenant.id, key = text, problem, "a message cannot be delivered");
                    settle_keys(tenant, std::slice::from_ref(text), &[&problem], now).await?;
                }
            }
        }
        Ok(held)
    }
}

async fn settle_keys(tenant: &Tenant, keys: &[String], errors: &[&str], now: Timestamp) -> Result<()> {
    let mut touched = vec![tenant.held.as_str()];
    touched.extend(keys.iter().map(String::as_str));
    let call = tenant.begin(&scripts::SETTLE, &touched, None, now).args(errors.iter().copied());
    tenant.call(call).await?;
    Ok(())
}
