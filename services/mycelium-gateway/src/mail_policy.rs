//! Policy for mail of other coordinators: whose letters are taken, and how many.
//!
//! Anyone can make up a root key and be a coordinator. So mail is accepted from the coordinators that the operator lists. From
//! strangers it is accepted only if the operator allows it, and only signed by its senders unless the operator waives that. Rate
//! limits apply per signing root and per recipient, separately for listed coordinators and for strangers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use identity::VerifyingKey;
use model::DirectMessage;
use mycelium::JsonRpcError;
use rpc::Rates;
use tokio::time::Instant;

/// Letters that one listed coordinator may bring in a minute.
pub const LISTED_MESSAGES_PER_MINUTE_MAX: u32 = 600;
/// Letters that one coordinator that is not listed may bring in a minute.
pub const STRANGER_MESSAGES_PER_MINUTE_MAX: u32 = 30;
/// Letters that all coordinators that are not listed may bring in a minute, together.
pub const STRANGERS_MESSAGES_PER_MINUTE_MAX: u32 = 300;
/// Letters for one recipient in a minute: of listed coordinators, and again as many of the others.
pub const RECIPIENT_MESSAGES_PER_MINUTE_MAX: u32 = 120;

const MINUTE: Duration = Duration::from_secs(60);

/// Letters of coordinators that are not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum StrangerMailPolicy {
    /// Refused.
    #[default]
    Refused,
    /// Taken when their senders have signed them.
    Signed,
    /// Taken, and marked as what they are.
    Any,
}

/// The operator's policy on mail from other coordinators.
#[derive(Debug, Clone, PartialEq, Eq, Default, clap::Args)]
pub struct MailPolicy {
    /// Root keys of other coordinators whose mail is accepted, separated by commas; `mycora gateway show` prints a coordinator's own
    #[arg(long = "mail-from", env = "MYCORA_MAIL_FROM", value_name = "KEY", value_delimiter = ',')]
    pub listed: Vec<VerifyingKey>,
    /// Mail from coordinators that are not listed
    #[arg(
        long = "mail-from-strangers",
        env = "MYCORA_MAIL_FROM_STRANGERS",
        value_name = "WHICH",
        value_enum,
        default_value_t
    )]
    pub strangers: StrangerMailPolicy,
}

/// Why a letter is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MailAdmissionError {
    #[error("this coordinator accepts mail only from coordinators that it lists")]
    Stranger,
    #[error("mail from coordinators that are not listed here is accepted only if its sender has signed it")]
    Unsigned,
    #[error("{limit}: more than {max} messages in a minute; send it again in {} s", wait.as_secs() + 1)]
    TooFast { limit: &'static str, max: u32, wait: Duration },
}

impl MailAdmissionError {
    /// The answer in JSON-RPC.
    pub(crate) fn refusal(&self) -> JsonRpcError {
        let (reason, lasting) = match self {
            Self::Stranger => ("STRANGER", true),
            Self::Unsigned => ("UNVERIFIED", true),
            Self::TooFast { .. } => ("TOO_MANY_LETTERS", false),
        };
        JsonRpcError::refused(reason, lasting, self.to_string())
    }
}

/// Admits or refuses incoming mail, and counts it for the rate limits.
#[derive(Debug)]
pub(crate) struct MailAdmissionControl {
    policy: MailPolicy,
    rates: Mutex<MailRates>,
}

#[derive(Debug, Default)]
struct MailRates {
    strangers: Rates<()>,
    by_root: Rates<[u8; 32]>,
    by_recipient: Rates<(bool, String)>,
}

impl MailAdmissionControl {
    pub(crate) fn new(policy: MailPolicy) -> Self {
        Self { policy, rates: Mutex::default() }
    }

    /// Returns true when the coordinator with this root is a stranger.
    fn is_stranger(&self, root: VerifyingKey) -> bool {
        !self.policy.listed.contains(&root)
    }

    /// Admits or refuses a coordinator before its message is read.
    pub(crate) fn admit_root(&self, root: VerifyingKey) -> Result<(), MailAdmissionError> {
        let is_refused = self.policy.strangers == StrangerMailPolicy::Refused && self.is_stranger(root);
        if is_refused { Err(MailAdmissionError::Stranger) } else { Ok(()) }
    }

    /// Admits or refuses a message from the coordinator with this root, and counts it.
    pub(crate) fn admit(
        &self,
        message: &DirectMessage,
        root: VerifyingKey,
        is_signed: bool,
        now: Instant,
    ) -> Result<(), MailAdmissionError> {
        self.admit_root(root)?;
        let is_stranger = self.is_stranger(root);
        if is_stranger && !is_signed && self.policy.strangers != StrangerMailPolicy::Any {
            return Err(MailAdmissionError::Unsigned);
        }
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let MailRates { strangers, by_root, by_recipient } = &mut *rates;
        let too_fast = |limit, max| move |wait| MailAdmissionError::TooFast { limit, max, wait };
        let (limit, max) = if is_stranger {
            ("stranger_letters_per_minute_max", STRANGER_MESSAGES_PER_MINUTE_MAX)
        } else {
            ("listed_letters_per_minute_max", LISTED_MESSAGES_PER_MINUTE_MAX)
        };
        by_root.take(*root.as_bytes(), MINUTE / max, MINUTE, now).map_err(too_fast(limit, max))?;
        if is_stranger {
            let (limit, max) = ("strangers_letters_per_minute_max", STRANGERS_MESSAGES_PER_MINUTE_MAX);
            strangers.take((), MINUTE / max, MINUTE, now).map_err(too_fast(limit, max))?;
        }
        let (limit, max) = ("recipient_letters_per_minute_max", RECIPIENT_MESSAGES_PER_MINUTE_MAX);
        by_recipient
            .take((is_stranger, message.to.clone()), MINUTE / max, MINUTE, now)
            .map_err(too_fast(limit, max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::SigningKey;
    use model::id::Uid;
    use model::{ActorId, ContextUid, DirectMessageOrigin, MessageFormat, MessageId, MessageType, Timestamp};

    fn root() -> VerifyingKey {
        SigningKey::generate().verifying_key()
    }

    fn message_to(to: &str) -> DirectMessage {
        DirectMessage {
            origin: DirectMessageOrigin {
                coordinator: String::new(),
                context_uid: ContextUid(Uid::from_bits(1)),
                caller_id: ActorId(1),
                message_id: MessageId(1),
            },
            from: String::new(),
            to: to.to_owned(),
            target_context: None,
            message_type: MessageType::Chat,
            format: MessageFormat::Text,
            topic: String::new(),
            text: String::new(),
            created_at: Timestamp::default(),
            expires_at: Timestamp::default(),
            signature: None,
        }
    }

    #[test]
    fn strangers_are_refused_unless_allowed_and_have_to_sign() {
        let (listed, stranger, now) = (root(), root(), Instant::now());
        for (strangers, signed, unsigned) in [
            (
                StrangerMailPolicy::Refused,
                Err(MailAdmissionError::Stranger),
                Err(MailAdmissionError::Stranger),
            ),
            (StrangerMailPolicy::Signed, Ok(()), Err(MailAdmissionError::Unsigned)),
            (StrangerMailPolicy::Any, Ok(()), Ok(())),
        ] {
            let gate = MailAdmissionControl::new(MailPolicy { listed: vec![listed], strangers });
            assert_eq!(gate.admit(&message_to("a"), stranger, true, now), signed, "{strangers:?}");
            assert_eq!(gate.admit(&message_to("a"), stranger, false, now), unsigned, "{strangers:?}");
            assert_eq!(gate.admit(&message_to("a"), listed, false, now), Ok(()), "{strangers:?}");
        }
        assert_eq!(MailPolicy::default().strangers, StrangerMailPolicy::Refused);
    }

    #[test]
    fn each_root_and_each_recipient_has_its_rate() {
        let gate =
            MailAdmissionControl::new(MailPolicy { listed: Vec::new(), strangers: StrangerMailPolicy::Any });
        let (one, now) = (root(), Instant::now());
        let limit = |refused: Result<(), MailAdmissionError>| match refused {
            Err(MailAdmissionError::TooFast { limit, .. }) => limit,
            other => panic!("{other:?}"),
        };
        for _ in 0..STRANGER_MESSAGES_PER_MINUTE_MAX {
            gate.admit(&message_to("a"), one, true, now).expect("within its rate");
        }
        assert_eq!(limit(gate.admit(&message_to("b"), one, true, now)), "stranger_letters_per_minute_max");
        // Made-up roots share the limit of a recipient.
        for _ in STRANGER_MESSAGES_PER_MINUTE_MAX..RECIPIENT_MESSAGES_PER_MINUTE_MAX {
            gate.admit(&message_to("a"), root(), true, now).expect("another root");
        }
        assert_eq!(
            limit(gate.admit(&message_to("a"), root(), true, now)),
            "recipient_letters_per_minute_max"
        );
        // They also share the limit of all strangers.
        for n in RECIPIENT_MESSAGES_PER_MINUTE_MAX + 1..STRANGERS_MESSAGES_PER_MINUTE_MAX {
            gate.admit(&message_to(&n.to_string()), root(), true, now).expect("another recipient");
        }
        assert_eq!(
            limit(gate.admit(&message_to("c"), root(), true, now)),
            "strangers_letters_per_minute_max"
        );
        gate.admit(&message_to("a"), one, true, now + MINUTE).expect("a minute later");
    }
}
