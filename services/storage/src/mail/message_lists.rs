//! Reading messages: one, those of a context, those of a flow, and those that will not arrive.

use std::sync::Arc;

use kv::{Cmd, Pipeline, Value};
use model::{Context, ContextId, FlowId, MessageKey, MessageStatus, MessageType, limits};

use crate::error::{Error, Result};
use crate::messages::message_holds::{message_key, parse_message_key};
use crate::pages::{PageRequest, PagedCollection};
use crate::record;
use crate::record::message_record::{MessageProjection, MessageRecord};
use crate::store::{RequestPrincipal, Store, TenantStore};
use crate::tenants::permission::{self, ContextAction};

/// Messages that are read at once: each may carry as much as a page of nodes.
const MESSAGES_READ: usize = 32;
/// Messages that are scanned for one page, when most of them do not match.
const MESSAGES_SCANNED_MAX: usize = 10_000;
/// Entries that one step of a scan of a flow's messages looks at.
const SCAN_COUNT: usize = 1000;

/// Which messages are listed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MessageFilter {
    /// Only messages that carried this flow's nodes; nothing: messages without nodes.
    pub(crate) flow: Option<FlowId>,
    /// Only messages of this type.
    pub(crate) message_type: Option<MessageType>,
    /// Only messages in this status.
    pub(crate) status: Option<MessageStatus>,
}

impl MessageFilter {
    fn matches(&self, message: &MessageRecord) -> bool {
        let Self { flow: _, message_type, status } = self;
        message_type.is_none_or(|wanted| message.message_type == wanted)
            && status.is_none_or(|wanted| message.status == wanted)
    }
}

/// A place in a list, newest first.
#[derive(Debug, Clone, PartialEq)]
struct MessageListPosition {
    score: f64,
    /// Member of the list, as it is stored in Redis.
    member: String,
}

impl MessageListPosition {
    fn parse(text: &str) -> Option<Self> {
        let (score, member) = text.split_once(' ')?;
        Some(Self { score: score.parse().ok()?, member: member.to_owned() })
    }

    fn text(&self) -> String {
        format!("{} {}", self.score, self.member)
    }

    /// Returns true if this position comes after `other` in a list that has the greatest first.
    fn is_after(&self, other: &Self) -> bool {
        self.score < other.score || (self.score.total_cmp(&other.score).is_eq() && self.member < other.member)
    }
}

impl Store {
    /// Reads a message that `asker` may see: as a reader of the context, or as its sender or recipient.
    pub(crate) async fn visible_message(
        &self,
        context: ContextId,
        key: MessageKey,
        asker: RequestPrincipal,
        extent: MessageProjection,
    ) -> Result<(Arc<TenantStore>, Context, MessageRecord)> {
        let (tenant, context, mut answers) = self
            .read(context, RequestPrincipal::Service, |tenant, pipeline| {
                let query = Cmd::new("HMGET").arg(&tenant.keys.message(key.caller, key.id));
                pipeline.cmd(query.args(record::message_record::fields(extent).iter().copied()));
            })
            .await?;
        let message = record::message_record::read(key, extent, answers.pop().unwrap_or(Value::Nil))?;
        if let RequestPrincipal::Actor(actor) = asker
            && !message.as_ref().is_some_and(|message| message.is_of(actor))
        {
            permission::allow(&context, actor, ContextAction::Read)?;
        }
        let message = message.ok_or_else(|| Error::NotFound(message_key(key)))?;
        Ok((tenant, context, message))
    }

    /// A page of messages, newest first, without their texts.
    pub(crate) async fn list_messages(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        filter: MessageFilter,
        page: &PageRequest,
    ) -> Result<(Vec<MessageRecord>, String)> {
        let bound =
            PageTokenScope { of: PagedCollection::Messages, to: format!("{context} {asker:?} {filter:?}") };
        let from = bound.place(self, page)?;
        let (tenant, ..) = self.read(context, asker, |_, _| {}).await?;
        let source = match filter.flow {
            None => MessageListSource::Index(tenant.letters.clone()),
            Some(flow) => MessageListSource::All(messages_of(&tenant, flow).await?),
        };
        self.page_of(&tenant, source, from, &|message| filter.matches(message), (&bound, page)).await
    }

    /// A page of messages that will not arrive, newest first, without their texts.
    pub(crate) async fn list_dead_letters(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        page: &PageRequest,
    ) -> Result<(Vec<MessageRecord>, String)> {
        let bound = PageTokenScope { of: PagedCollection::DeadLetters, to: format!("{context} {asker:?}") };
        let from = bound.place(self, page)?;
        let (tenant, ..) = self.read(context, asker, |_, _| {}).await?;
        let source = MessageListSource::Index(tenant.dead_letters.clone());
        self.page_of(&tenant, source, from, &|_| true, (&bound, page)).await
    }

    async fn page_of(
        &self,
        tenant: &TenantStore,
        source: MessageListSource,
        from: Option<MessageListPosition>,
        is_wanted: &(dyn Fn(&MessageRecord) -> bool + Sync),
        (bound, page): (&PageTokenScope, &PageRequest),
    ) -> Result<(Vec<MessageRecord>, String)> {
        let (mut found, mut bytes, mut scanned, mut at) = (Vec::new(), 0, 0, from);
        let token = |at: &Option<MessageListPosition>| {
            let place = at.as_ref().map(MessageListPosition::text);
            page.token_at(self.coordinator(), bound.of, &bound.to, place.as_deref())
        };
        loop {
            let places = source.after(tenant, at.as_ref(), MESSAGES_READ).await?;
            let is_last = places.len() < MESSAGES_READ;
            scanned += places.len();
            for (message, place) in messages_at(tenant, &places).await?.into_iter().zip(places) {
                let size = message.as_ref().map_or(0, bytes_of);
                if found.len() >= page.size || (!found.is_empty() && bytes + size > limits::PAGE_BYTES_MAX) {
                    return Ok((found, token(&at)));
                }
                at = Some(place);
                if let Some(message) = message.filter(is_wanted) {
                    bytes += size;
                    found.push(message);
                }
            }
            if is_last {
                return Ok((found, String::new()));
            }
            if scanned >= MESSAGES_SCANNED_MAX {
                return Ok((found, token(&at)));
            }
        }
    }
}

/// Collection and parameters that a page token is valid for.
struct PageTokenScope {
    of: PagedCollection,
    to: String,
}

impl PageTokenScope {
    fn place(&self, store: &Store, page: &PageRequest) -> Result<Option<MessageListPosition>> {
        let place = page.place(store.coordinator(), self.of, &self.to)?;
        Ok(place.as_deref().and_then(MessageListPosition::parse))
    }
}

/// Where the members of a list come from.
enum MessageListSource {
    /// A sorted set.
    Index(String),
    /// These, in their order.
    All(Vec<MessageListPosition>),
}

impl MessageListSource {
    /// Up to `count` members that come after `at`.
    async fn after(
        &self,
        tenant: &TenantStore,
        at: Option<&MessageListPosition>,
        count: usize,
    ) -> Result<Vec<MessageListPosition>> {
        let is_after = |place: &MessageListPosition| at.is_none_or(|at| place.is_after(at));
        let index = match self {
            Self::All(places) => {
                return Ok(places.iter().filter(|place| is_after(place)).take(count).cloned().collect());
            }
            Self::Index(index) => index,
        };
        let max = at.map_or_else(|| "+inf".to_owned(), |at| at.score.to_string());
        let (mut found, mut offset) = (Vec::new(), 0);
        loop {
            let query = Cmd::new("ZREVRANGEBYSCORE").arg(index).arg(&max).arg("-inf").arg("WITHSCORES");
            let members = scored(tenant.connection.cmd(query.arg("LIMIT").arg(offset).arg(count)).await?)?;
            offset += members.len();
            let is_last = members.len() < count;
            // Messages of one change have the same score.
            found.extend(members.into_iter().filter(is_after));
            if is_last || found.len() >= count {
                found.truncate(count);
                return Ok(found);
            }
        }
    }
}

/// Members and scores: RESP2 gives them in turn, RESP3 in pairs.
pub(crate) fn scored_texts(answer: Value) -> Result<Vec<(String, String)>> {
    let mut values = Vec::new();
    for value in answer.array()? {
        match value {
            Value::Array(pair) => values.extend(pair),
            single => values.push(single),
        }
    }
    let (mut pairs, mut values) = (Vec::with_capacity(values.len() / 2), values.into_iter());
    while let (Some(member), Some(score)) = (values.next(), values.next()) {
        pairs.push((member.text()?, score.text()?));
    }
    Ok(pairs)
}

fn scored(answer: Value) -> Result<Vec<MessageListPosition>> {
    let mut places = Vec::new();
    for (member, score) in scored_texts(answer)? {
        let score = score.parse().map_err(|error| kv::Error::Protocol(format!("a score: {error}")))?;
        places.push(MessageListPosition { score, member });
    }
    Ok(places)
}

/// Messages that carried a flow's nodes, by their numbers: all belong to its caller.
async fn messages_of(tenant: &TenantStore, flow: FlowId) -> Result<Vec<MessageListPosition>> {
    let index = tenant.keys.flow_messages(flow);
    let (mut places, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let query = Cmd::new("SSCAN").arg(&index).arg(&cursor).arg("COUNT").arg(SCAN_COUNT);
        let [next, members] = tenant.connection.cmd(query).await?.tuple()?;
        for member in members.texts()? {
            if let Some(key) = key_of(tenant, &member) {
                places.push(MessageListPosition { score: key.id.0.into(), member });
            }
        }
        cursor = next.text()?;
        if cursor == "0" {
            break;
        }
    }
    places.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then_with(|| b.member.cmp(&a.member)));
    // A scan may return an entry twice.
    places.dedup();
    Ok(places)
}

/// Parses the message key in a list or an inbox; nothing for anything but a message of this context.
pub(crate) fn key_of(tenant: &TenantStore, member: &str) -> Option<MessageKey> {
    parse_message_key(member.strip_prefix(tenant.keys.prefix())?)
}

async fn messages_at(
    tenant: &TenantStore,
    places: &[MessageListPosition],
) -> Result<Vec<Option<MessageRecord>>> {
    let members: Vec<&str> = places.iter().map(|place| place.member.as_str()).collect();
    read_messages(tenant, &members, MessageProjection::WithoutText).await
}

/// Reads messages by their Redis keys; nothing in place of each one that is gone.
pub(crate) async fn read_messages(
    tenant: &TenantStore,
    members: &[&str],
    extent: MessageProjection,
) -> Result<Vec<Option<MessageRecord>>> {
    let mut pipeline = Pipeline::new();
    for member in members {
        pipeline
            .cmd(Cmd::new("HMGET").arg(*member).args(record::message_record::fields(extent).iter().copied()));
    }
    let answers = tenant.connection.pipeline(&pipeline).await?;
    let mut messages = Vec::with_capacity(members.len());
    for (member, answer) in members.iter().zip(answers) {
        let Some(key) = key_of(tenant, member) else {
            messages.push(None);
            continue;
        };
        messages.push(match answer {
            // Other programs may have listed a key that is not a message.
            Err(kv::Error::Refused { code, .. }) if code == "WRONGTYPE" => None,
            answer => record::message_record::read(key, extent, answer?)?,
        });
    }
    Ok(messages)
}

/// Approximate size of a message on the wire, in bytes.
pub(crate) fn bytes_of(message: &MessageRecord) -> usize {
    let logs: usize = message.logs.iter().map(|entry| entry.text.len() + 16).sum();
    let jobs: usize = message.job_keys.iter().map(|key| key.len() + 4).sum();
    512 + message.text.len() + message.topic.len() + message.to.len() + message.error.len() + logs + jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_order_and_have_a_text() {
        let place = |score, member: &str| MessageListPosition { score, member: member.to_owned() };
        let newest_first = [place(12.0, "b"), place(12.0, "a"), place(11.5, "c"), place(2.0, "d e")];
        for pair in newest_first.windows(2) {
            assert!(pair[1].is_after(&pair[0]) && !pair[0].is_after(&pair[1]) && !pair[0].is_after(&pair[0]));
        }
        for place in newest_first {
            assert_eq!(MessageListPosition::parse(&place.text()), Some(place));
        }
    }
}
