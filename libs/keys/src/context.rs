//! The coordinator's keys: those of a context, and those that are global.

mod key;

pub use key::{ContextKey, GlobalKey, RedisType};

use model::{ActorId, ContextId, MessageId, MessageKey};

use crate::Layout;

/// Builds and parses the keys of one context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextKeys {
    layout: Layout,
    context: ContextId,
    prefix: String,
}

impl ContextKeys {
    /// The keys of `context`.
    #[must_use]
    pub fn new(layout: Layout, context: ContextId) -> Self {
        Self { layout, context, prefix: layout.prefix(context) }
    }

    /// Returns the context that the keys belong to.
    #[must_use]
    pub const fn context_id(&self) -> ContextId {
        self.context
    }

    /// The database they are in.
    #[must_use]
    pub const fn database(&self) -> u32 {
        self.layout.database(self.context)
    }

    /// The tag of all of them, as in [`Layout::tag`].
    #[must_use]
    pub fn tag(&self) -> String {
        self.layout.tag(self.context)
    }

    /// Returns the beginning of every key: the tag, or nothing. For scripts that derive keys.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The channel on which changes of this context are hinted at.
    #[must_use]
    pub fn hint_channel(&self) -> String {
        self.layout.hint_channel(self.context)
    }

    /// The key as it stands in Redis.
    #[must_use]
    pub fn key(&self, key: &ContextKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Parses the key `text`; nothing when it is no key of this context.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<ContextKey> {
        ContextKey::parse(text.strip_prefix(self.prefix.as_str())?)
    }

    /// Hash: the context itself.
    #[must_use]
    pub fn context(&self) -> String {
        self.key(&ContextKey::Context(self.context))
    }

    /// Hash: a message.
    #[must_use]
    pub fn message(&self, caller: ActorId, id: MessageId) -> String {
        self.key(&ContextKey::Message(MessageKey { caller, id }))
    }

    /// Hash: the answer to a request that was made.
    #[must_use]
    pub fn request(&self, caller: ActorId, request_id: &str) -> String {
        self.key(&ContextKey::Request(caller, request_id.to_owned()))
    }
}

/// Builds and parses the keys that belong to no context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalKeys {
    layout: Layout,
    prefix: String,
}

impl GlobalKeys {
    /// The keys in `layout`.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self { layout, prefix: layout.prefix(ContextId(0)) }
    }

    /// The database they are in.
    #[must_use]
    pub const fn database(&self) -> u32 {
        0
    }

    /// The tag of all of them, as in [`Layout::tag`].
    #[must_use]
    pub fn tag(&self) -> String {
        self.layout.tag(ContextId(0))
    }

    /// Returns the beginning of every key: the tag, or nothing. For scripts that derive keys.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key as it stands in Redis.
    #[must_use]
    pub fn key(&self, key: &GlobalKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Parses the key `text`; nothing when it is no global key.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<GlobalKey> {
        GlobalKey::parse(text.strip_prefix(self.prefix.as_str())?)
    }

    /// Hash: the answer to a request that was made.
    #[must_use]
    pub fn request(&self, caller: ActorId, request_id: &str) -> String {
        self.key(&GlobalKey::Request(caller, request_id.to_owned()))
    }

    /// String: a token of an actor that was used up.
    #[must_use]
    pub fn token(&self, actor: ActorId, token_id: &str) -> String {
        self.key(&GlobalKey::Token(actor, token_id.to_owned()))
    }
}

#[cfg(test)]
mod tests;
