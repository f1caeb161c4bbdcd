//! `mycora message send`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use backoff::ExponentialBackoff;
use clap::Args;
use envelope::actor::{DirectMessageTerms, sign_direct_message};
use identity::{SigningKey, VerifyingKey};
use model::limits::{LETTER_TIMEOUT_SECS_MAX, MESSAGE_TEXT_BYTES_MAX};
use model::{Address, ContextId, MessageFormat, MessageType, Timestamp};
use proto::convert::enums;
use proto::v1;
use uuid::Uuid;

use crate::command::{CliSession, values};
use crate::failure::{CliError, error_chain};
use crate::output::{self, json};

/// The waits between two looks at what became of a message.
const LOOKS: ExponentialBackoff =
    ExponentialBackoff::between(Duration::from_millis(100), Duration::from_secs(1));

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
An actor of this coordinator is named by its id, any other by its public key and an address of its coordinator. Without --to the message goes to the admins of the context, a copy to each. The message is kept and resent until it arrives or its time is over; with --wait the exit code is 0 when it has arrived, and 1 when it will not.

A signature proves the author to the recipient; without one, the recipient has to trust the sending coordinator. The signature covers the recipient's context, if one is given, and the recipient's key, which the coordinator discloses only to its owner: with --signing-key write KEY@ADDRESS, unless you send to yourself. A signature is valid for 6 days, so that the message can be resent.

Examples:
  mycora message send 'May I have a larger machine?'
  mycora message send --to 2 'The report is ready' --wait
  mycora message send --to 7d4f…@mycelium:[5a1:…] --mail --topic Report --format md --file report.md
  mycora message send --to 7d4f…@grpc://site-b:7705 --signing-key actor-1.ed25519 'It is really me'";

/// Arguments of `message send`.
#[derive(Debug, Args)]
pub struct MessageSendArgs {
    /// The text, unless a file has it
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub text: Option<String>,
    /// Recipient: the id of an actor of this coordinator, or its public key and address [default: the context's admins]
    #[arg(long, value_name = "ACTOR|KEY@ADDRESS")]
    pub to: Option<RecipientArg>,
    /// The file with the text; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub file: Option<String>,
    /// The topic of the message
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub topic: String,
    /// How the text is written: text, html or md
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: MessageFormat,
    /// Send it as mail instead of chat
    #[arg(long)]
    pub mail: bool,
    /// The context at the recipient's coordinator [default: the recipient's home context]
    #[arg(long, value_name = "ID", value_parser = values::id, requires = "to")]
    pub target_context: Option<u32>,
    /// Seconds until it must have arrived [default: 3600]
    #[arg(long, value_name = "SECS",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(LETTER_TIMEOUT_SECS_MAX)))]
    pub timeout: Option<u32>,
    /// Sign it with the key in this file, your registered key
    #[arg(long, value_name = "FILE", requires = "to")]
    pub signing_key: Option<PathBuf>,
    /// Wait until it has arrived, or will not
    #[arg(long)]
    pub wait: bool,
}

/// For whom a message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecipientArg {
    /// An actor of this coordinator.
    Actor(u32),
    /// The owner of this key, at an address.
    Remote(Box<VerifyingKey>, Address),
}

impl FromStr for RecipientArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((key, address)) = text.split_once('@') else {
            return values::id(text).map(Self::Actor).map_err(|_| {
                "write the id of an actor of this coordinator, or KEY@ADDRESS with its public key".to_owned()
            });
        };
        let key: VerifyingKey = key.parse().map_err(|error: identity::BadVerifyingKey| error.to_string())?;
        let address: Address =
            address.parse().map_err(|error: model::address::AddressError| error.to_string())?;
        Ok(Self::Remote(Box::new(key), address))
    }
}

impl fmt::Display for RecipientArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Actor(id) => write!(f, "{id}"),
            Self::Remote(key, address) => write!(f, "{key}@{address}"),
        }
    }
}

impl MessageSendArgs {
    const fn message_type(&self) -> MessageType {
        if self.mail { MessageType::Mail } else { MessageType::Chat }
    }
}

pub(super) async fn run(session: &CliSession, args: &MessageSendArgs) -> Result<u8, CliError> {
    let context_id = session.context()?;
    let text = text(args)?;
    let signature = match (&args.signing_key, &args.to) {
        (Some(path), Some(to)) => signature(session, args, to, &text, path).await?,
        _ => String::new(),
    };
    let request = v1::SendMessageRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id,
        // The actor of the certificate: no call signs, reads or acknowledges for another actor by accident.
        caller_id: 0,
        to: args.to.as_ref().map(RecipientArg::to_string).unwrap_or_default(),
        target_context: args.target_context.unwrap_or_default(),
        message_type: enums::message_type_to_wire(args.message_type()).into(),
        format: enums::message_format_to_wire(args.format).into(),
        topic: args.topic.clone(),
        text,
        timeout_ack_secs: args.timeout.unwrap_or_default(),
        signature,
    };
    let mut answer = session.clients.send_message(&request).await?;
    if args.wait {
        let key = answer.message.take().unwrap_or_default().key;
        // As in the answer to a call that did not wait.
        let settled = v1::Message { text: String::new(), ..settled(session, context_id, &key).await? };
        answer.message = Some(settled);
    }
    let message = answer.message.clone().unwrap_or_default();
    output::answer(session.global.output, || json::of(&answer), || outcome_text(&message))?;
    Ok(u8::from(message.status() == v1::MessageStatus::Error))
}

/// Describes the message's fate so far, and how to see more.
fn outcome_text(message: &v1::Message) -> String {
    let v1::Message { key, context_id, error, .. } = message;
    match message.status() {
        v1::MessageStatus::Error => format!(
            "{key} will not arrive: {}\nsend it again with `mycora message resend {key} --context {context_id}`\n",
            output::table::shown_whole(error)
        ),
        v1::MessageStatus::Acknowledged => format!("{key} has arrived\n"),
        v1::MessageStatus::Processed => format!("{key} has arrived and was read\n"),
        v1::MessageStatus::Dispatched | v1::MessageStatus::Unspecified => {
            format!("{key} is on its way; see `mycora message get {key} --context {context_id}`\n")
        }
    }
}

/// Waits until a message has arrived, or will not.
async fn settled(session: &CliSession, context: u32, key: &str) -> Result<v1::Message, CliError> {
    let looking = async {
        let mut looks = LOOKS;
        loop {
            let message = session.clients.get_message(context, key).await?.message.unwrap_or_default();
            if message.status() != v1::MessageStatus::Dispatched {
                return Ok(message);
            }
            looks.pause().await;
        }
    };
    let goes_on = || {
        format!(
            "{key} is on its way; see what becomes of it with `mycora message get {key} --context {context}`"
        )
    };
    tokio::select! {
        settled = looking => settled.map_err(|failure| match failure {
            CliError::Unreachable(text) | CliError::Closed(text) => {
                CliError::Unreachable(format!("{text}\n{}", goes_on()))
            }
            other => other,
        }),
        pressed = tokio::signal::ctrl_c() => Err(match pressed {
            Ok(()) => CliError::Interrupted(goes_on()),
            Err(error) => CliError::Failed(format!("cannot wait for signals: {error}")),
        }),
    }
}

/// The text, as it was typed or stands in a file.
fn text(args: &MessageSendArgs) -> Result<String, CliError> {
    let path = match (&args.text, args.file.as_deref()) {
        (Some(text), _) => return Ok(text.clone()),
        (None, path) => path.unwrap_or("-"),
    };
    values::text_of(path, MESSAGE_TEXT_BYTES_MAX, "a message")
}

async fn signature(
    session: &CliSession,
    args: &MessageSendArgs,
    to: &RecipientArg,
    text: &str,
    path: &Path,
) -> Result<String, CliError> {
    let key = SigningKey::load(path).map_err(|error| CliError::Invalid(error_chain(&error)))?;
    let to = match to {
        RecipientArg::Remote(key, _) => key.to_string(),
        RecipientArg::Actor(id) => own_key(session, *id).await?,
    };
    let terms = DirectMessageTerms {
        to: &to,
        target_context: args.target_context.map(ContextId),
        message_type: args.message_type(),
        format: args.format,
        topic: &args.topic,
        text,
    };
    let expires = Timestamp::now() + Duration::from_secs(LETTER_TIMEOUT_SECS_MAX.into());
    Ok(sign_direct_message(&terms, &key, expires))
}

/// Our key, when we are that actor: keys of others are not disclosed.
async fn own_key(session: &CliSession, id: u32) -> Result<String, CliError> {
    match session.clients.who_am_i().await?.actor {
        Some(actor) if actor.id == id => Ok(actor.pubkey),
        _ => Err(CliError::Invalid(format!(
            "a signature covers the recipient's key, and the coordinator does not disclose that of actor {id}; \
             write --to KEY@ADDRESS with the key that the actor gave you (`mycora actor show` shows it), or leave \
             --signing-key away"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipients_are_numbers_or_keys_with_an_address() {
        let key = SigningKey::generate().verifying_key();
        assert_eq!("2".parse(), Ok(RecipientArg::Actor(2)));
        let text = format!("{key}@grpc://site-b:7705");
        let there: RecipientArg = text.parse().expect("a recipient");
        assert_eq!(there.to_string(), text);
        for (wrong, expected) in [
            ("0", "the id of an actor"),
            ("anna", "KEY@ADDRESS"),
            ("ab@grpc://h:1", "64 lower-case hex digits"),
            (&format!("{key}@h:1"), "write mycelium:<64 hex digits>"),
        ] {
            let error = wrong.parse::<RecipientArg>().expect_err(wrong);
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_outcome_of_a_message_is_shown_with_the_next_command() {
        let mut message = v1::Message {
            key: "message:1:7".into(),
            context_id: 2,
            error: "nobody is there".into(),
            ..Default::default()
        };
        message.set_status(v1::MessageStatus::Error);
        assert_eq!(
            outcome_text(&message),
            "message:1:7 will not arrive: nobody is there\n\
             send it again with `mycora message resend message:1:7 --context 2`\n"
        );
        message.set_status(v1::MessageStatus::Dispatched);
        assert!(outcome_text(&message).contains("`mycora message get message:1:7 --context 2`"));
        message.set_status(v1::MessageStatus::Processed);
        assert_eq!(outcome_text(&message), "message:1:7 has arrived and was read\n");
    }
}
