//! Reading messages: one, those of a context, those of a flow, and those that will not arrive.

use std::sync::Arc;

use kv::{Cmd, Pipeline, Value};
use model::{Context, ContextId, FlowId, MessageKey, MessageStatus, MessageType, limits};

use crate::error::{Error, Result};
use crate::messages::held::{message_key, parse_message_key};
use crate::pages::{Page, PageOf};
use crate::record;
use crate::record::letter::{Extent, KeptMessage};
use crate::store::{Asker, Store, Tenant};
use crate::tenants::permission::{self, Action};

/// Messages that are read at once: each may carry as much as a page of nodes.
const MESSAGES_READ: usize = 32;
/// Messages that are looked at for one page, when most of them are others than those that are asked for.
const MESSAGES_SCANNED_MAX: usize = 10_000;
/// Entries that one step of a scan of a flow's messages looks at.
const SCAN_COUNT: usize = 1000;

/// Which messages are listed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MessageFilter {
    /// Only those that carried this flow's nodes; nothing: those that carried none.
    pub(crate) flow: Option<FlowId>,
    /// Only of this type.
    pub(crate) message_type: Option<MessageType>,
    /// Only those that stand here.
    pub(crate) status: Option<MessageStatus>,
}

impl MessageFilter {
    fn matches(&self, message: &KeptMessage) -> bool {
        let Self { flow: _, message_type, status } = self;
        message_type.is_none_or(|wanted| message.message_type == wanted)
            && status.is_none_or(|wanted| message.status == wanted)
    }
}

/// A place in a list, newest first.
#[derive(Debug, Clone, PartialEq)]
struct Place {
    score: f64,
    /// As it stands in Redis.
    member: String,
}

impl Place {
    fn parse(text: &str) -> Option<Self> {
        let (score, member) = text.split_once(' ')?;
        Some(Self { score: score.parse().ok()?, member: member.to_owned() })
    }

    fn text(&self) -> String {
        format!("{} {}", self.score, self.member)
    }

    /// Whether it comes after `other` in a list that has the greatest first.
    fn is_after(&self, other: &Self) -> bool {
        self.score < other.score || (self.score.total_cmp(&other.score).is_eq() && self.member < other.member)
    }
}

impl Store {
    /// A message that `asker` may see: a reader, and in any case who sent or received it.
    pub(crate) async fn visible_message(
        &self,
        context: ContextId,
        key: MessageKey,
        asker: Asker,
        extent: Extent,
    ) -> Result<(Arc<Tenant>, Context, KeptMessage)> {
        let (tenant, context, mut answers) = self
            .read(context, Asker::Service, |tenant, pipeline| {
                let ask = Cmd::new("HMGET").arg(&tenant.keys.message(key.caller, key.id));
                pipeline.cmd(ask.args(record::letter::fields(extent).iter().copied()));
            })
            .await?;
        let message = record::letter::read(key, extent, answers.pop().unwrap_or(Value::Nil))?;
        if let Asker::Actor(actor) = asker
            && !message.as_ref().is_some_and(|message| message.is_of(actor))
        {
            permission::allow(&context, actor, Action::Read)?;
        }
        let message = message.ok_or_else(|| Error::NotFound(message_key(key)))?;
        Ok((tenant, context, message))
    }

    /// A page of messages, newest first, without their texts.
    pub(crate) async fn list_messages(
        &self,
        context: ContextId,
        asker: Asker,
        filter: MessageFilter,
        page: &Page,
    ) -> Result<(Vec<KeptMessage>, String)> {
        let bound = Bound { of: PageOf::Messages, to: format!("{context} {asker:?} {filter:?}") };
        let from = bound.place(self, page)?;
        let (tenant, ..) = self.read(context, asker, |_, _| {}).await?;
        let source = match filter.flow {
            None => Source::Index(tenant.letters.clone()),
            Some(flow) => Source::All(messages_of(&tenant, flow).await?),
        };
        self.page_of(&tenant, source, from, &|message| filter.matches(message), (&bound, page)).await
    }

    /// A page of messages that will not arrive, newest first, without their texts.
    pub(crate) async fn list_dead_letters(
        &self,
        context: ContextId,
        asker: Asker,
        page: &Page,
    ) -> Result<(Vec<KeptMessage>, String)> {
        let bound = Bound { of: PageOf::DeadLetters, to: format!("{context} {asker:?}") };
        let from = bound.place(self, page)?;
        let (tenant, ..) = self.read(context, asker, |_, _| {}).await?;
        let source = Source::Index(tenant.dead_letters.clone());
        self.page_of(&tenant, source, from, &|_| true, (&bound, page)).await
    }

    async fn page_of(
        &self,
        tenant: &Tenant,
        source: Source,
        from: Option<Place>,
        is_wanted: &(dyn Fn(&KeptMessage) -> bool + Sync),
        (bound, page): (&Bound, &Page),
    ) -> Result<(Vec<KeptMessage>, String)> {
        let (mut found, mut bytes, mut scanned, mut at) = (Vec::new(), 0, 0, from);
        let token = |at: &Option<Place>| {
            let place = at.as_ref().map(Place::text);
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

/// What a page's token is for.
struct Bound {
    of: PageOf,
    to: String,
}

impl Bound {
    fn place(&self, store: &Store, page: &Page) -> Result<Option<Place>> {
        let place = page.place(store.coordinator(), self.of, &self.to)?;
        Ok(place.as_deref().and_then(Place::parse))
    }
}

/// Where the members of a list come from.
enum Source {
    /// A sorted set.
    Index(String),
    /// These, in their order.
    All(Vec<Place>),
}

impl Source {
    /// Up to `count` members that come after `at`.
    async fn after(&self, tenant: &Tenant, at: Option<&Place>, count: usize) -> Result<Vec<Place>> {
        let is_after = |place: &Place| at.is_none_or(|at| place.is_after(at));
        let index = match self {
            Self::All(places) => {
                return Ok(places.iter().filter(|place| is_after(place)).take(count).cloned().collect());
            }
            Self::Index(index) => index,
        };
        let max = at.map_or_else(|| "+inf".to_owned(), |at| at.score.to_string());
        let (mut found, mut offset) = (Vec::new(), 0);
        loop {
            let ask = Cmd::new("ZREVRANGEBYSCORE").arg(index).arg(&max).arg("-inf").arg("WITHSCORES");
            let members = scored(tenant.connection.cmd(ask.arg("LIMIT").arg(offset).arg(count)).await?)?;
            offset += members.len();
            let is_last = members.len() < count;
            // Those of one change have the same score.
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

fn scored(answer: Value) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    for (member, score) in scored_texts(answer)? {
        let score = score.parse().map_err(|error| kv::Error::Protocol(format!("a score: {error}")))?;
        places.push(Place { score, member });
    }
    Ok(places)
}

/// Those that carried a flow's nodes, by their numbers: all are its caller's.
async fn messages_of(tenant: &Tenant, flow: FlowId) -> Result<Vec<Place>> {
    let index = tenant.keys.flow_messages(flow);
    let (mut places, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let ask = Cmd::new("SSCAN").arg(&index).arg(&cursor).arg("COUNT").arg(SCAN_COUNT);
        let [next, members] = tenant.connection.cmd(ask).await?.tuple()?;
        for member in members.texts()? {
            if let Some(key) = key_of(tenant, &member) {
                places.push(Place { score: key.id.0.into(), member });
            }
        }
        cursor = next.text()?;
        if cursor == "0" {
            break;
        }
    }
    places.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then_with(|| b.member.cmp(&a.member)));
    // A scan may give one twice.
    places.dedup();
    Ok(places)
}

/// The message that a list or an inbox names; nothing for what is no message of this context.
pub(crate) fn key_of(tenant: &Tenant, member: &str) -> Option<MessageKey> {
    parse_message_key(member.strip_prefix(tenant.keys.prefix())?)
}

async fn messages_at(tenant: &Tenant, places: &[Place]) -> Result<Vec<Option<KeptMessage>>> {
    let members: Vec<&str> = places.iter().map(|place| place.member.as_str()).collect();
    read_messages(tenant, &members, Extent::WithoutText).await
}

/// Messages by their keys as they stand in Redis; nothing in the places of those that are gone.
pub(crate) async fn read_messages(
    tenant: &Tenant,
    members: &[&str],
    extent: Extent,
) -> Result<Vec<Option<KeptMessage>>> {
    let mut pipeline = Pipeline::new();
    for member in members {
        pipeline.cmd(Cmd::new("HMGET").arg(*member).args(record::letter::fields(extent).iter().copied()));
    }
    let answers = tenant.connection.pipeline(&pipeline).await?;
    let mut messages = Vec::with_capacity(members.len());
    for (member, answer) in members.iter().zip(answers) {
        let Some(key) = key_of(tenant, member) else {
            messages.push(None);
            continue;
        };
        messages.push(match answer {
            // Others may have named what is no message.
            Err(kv::Error::Refused { code, .. }) if code == "WRONGTYPE" => None,
            answer => record::letter::read(key, extent, answer?)?,
        });
    }
    Ok(messages)
}

/// About how large it is on the wire.
pub(crate) fn bytes_of(message: &KeptMessage) -> usize {
    let logs: usize = message.logs.iter().map(|entry| entry.text.len() + 16).sum();
    let jobs: usize = message.job_keys.iter().map(|key| key.len() + 4).sum();
    512 + message.text.len() + message.topic.len() + message.to.len() + message.error.len() + logs + jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_order_and_have_a_text() {
        let place = |score, member: &str| Place { score, member: member.to_owned() };
        let newest_first = [place(12.0, "b"), place(12.0, "a"), place(11.5, "c"), place(2.0, "d e")];
        for pair in newest_first.windows(2) {
            assert!(pair[1].is_after(&pair[0]) && !pair[0].is_after(&pair[1]) && !pair[0].is_after(&pair[0]));
        }
        for place in newest_first {
            assert_eq!(Place::parse(&place.text()), Some(place));
        }
    }
}
