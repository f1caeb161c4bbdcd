//! Messages: the envelope that travels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::execution::Execution;
use crate::id::{ActorId, ContextId, FlowId, MessageId, ParseIdError, RunnerId};
use crate::time::Timestamp;

macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident, $kind:literal, { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the text as stored in Redis.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL
                    .iter()
                    .copied()
                    .find(|known| known.as_str() == text)
                    .ok_or_else(|| ParseIdError { kind: $kind, text: text.chars().take(80).collect() })
            }
        }
    };
}

text_enum!(
    /// Type of a message, by its content.
    MessageType, "message type", {
        /// Nodes to execute.
        Job = "job",
        /// A line of conversation.
        Chat = "chat",
        /// A mail.
        Mail = "mail",
    }
);
text_enum!(
    /// How a message's text is written.
    MessageFormat, "message format", {
        /// HTML.
        Html = "html",
        /// Plain text.
        Text = "text",
        /// Markdown.
        Md = "md",
    }
);
text_enum!(
    /// Where a message stands for those who sent it.
    MessageStatus, "message status", {
        /// On its way.
        Dispatched = "dispatched",
        /// The receiver has it.
        Acknowledged = "acknowledged",
        /// All its nodes have ended.
        Processed = "processed",
        /// The message will not arrive; the field `error` has the reason.
        Error = "error",
    }
);
text_enum!(
    /// Where a message stands on the wire.
    TransportStatus, "transport status", {
        /// Not sent yet.
        Queued = "queued",
        /// Handed to the transport.
        Sent = "sent",
        /// Arrived at the other machine.
        Delivered = "delivered",
        /// Taken by its program.
        Read = "read",
        /// Could not be sent.
        Failed = "failed",
    }
);

/// Names a message within its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey {
    /// Actor that owns the message; 0 for one that came from elsewhere.
    pub caller: ActorId,
    /// Number of the message within the caller.
    pub id: MessageId,
}

impl fmt::Display for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.caller, self.id)
    }
}

/// A message as it is kept and carried.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Which one.
    pub key: MessageKey,
    /// Where it belongs.
    pub context_id: ContextId,
    /// The flow whose nodes it carries.
    pub flow_id: Option<FlowId>,
    /// The runner record it is for.
    pub to: RunnerId,
    /// Type of the message.
    pub message_type: MessageType,
    /// The nodes to execute.
    pub nodes: Vec<Execution>,
    /// Seconds until it must be accepted.
    pub timeout_ack_secs: u32,
    /// When it was committed.
    pub created_at: Timestamp,
}
