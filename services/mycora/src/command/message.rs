//! `mycora message`: chat and mail between actors.

mod list;
mod receive;
mod send;

use clap::{Args, Subcommand};
use proto::v1;
use uuid::Uuid;

use self::list::{MessageDeadLettersArgs, MessageListArgs};
use self::receive::MessageReceiveArgs;
use self::send::MessageSendArgs;
use super::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, json, labels, message};

/// So many keys one call names.
const KEYS_MAX: usize = 1000;

/// Commands about messages.
#[derive(Debug, Subcommand)]
pub enum MessageCommand {
    /// Send chat or mail to an actor, here or elsewhere
    #[command(after_help = send::AFTER_HELP)]
    Send(Box<MessageSendArgs>),
    /// List messages, newest first: chat and mail, or what carried a flow's jobs
    #[command(after_help = "Examples:\n  mycora message list --status error\n  mycora message list --flow 3")]
    List(MessageListArgs),
    /// Show a message: its delivery and its text
    #[command(after_help = "Example:\n  mycora message get message:1:7")]
    Get(MessageKeyArgs),
    /// Print what was received and not acknowledged, oldest first
    #[command(after_help = receive::AFTER_HELP)]
    Receive(MessageReceiveArgs),
    /// Acknowledge received messages: they are not handed out again
    #[command(after_help = "Example:\n  mycora message acknowledge message:0:3 message:0:4")]
    Acknowledge(MessageAcknowledgeArgs),
    /// List messages that will not arrive, and why
    #[command(after_help = "Example:\n  mycora message dead-letters --output json")]
    DeadLetters(MessageDeadLettersArgs),
    /// Resend an undeliverable message. It is not handed out twice, should it have arrived after all
    #[command(after_help = "Example:\n  mycora message resend message:1:7")]
    Resend(MessageKeyArgs),
    /// Remove a message that is not in transit
    #[command(after_help = "Example:\n  mycora message delete message:1:7")]
    Delete(MessageKeyArgs),
}

/// Key of one message.
#[derive(Debug, Args)]
pub struct MessageKeyArgs {
    /// The message's key, as in message:1:7
    #[arg(value_parser = values::message_key, value_name = "KEY")]
    pub message: String,
}

/// Keys of messages.
#[derive(Debug, Args)]
pub struct MessageAcknowledgeArgs {
    /// The messages' keys, as in message:0:3
    #[arg(value_parser = values::message_key, value_name = "KEY", required = true)]
    pub keys: Vec<String>,
}

/// Runs the command; gives the exit code.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &CliSession, command: &MessageCommand) -> Result<u8, CliError> {
    match command {
        MessageCommand::Send(args) => return send::run(session, args).await,
        MessageCommand::List(args) => list::run(session, args).await?,
        MessageCommand::Get(args) => get(session, &args.message).await?,
        MessageCommand::Receive(args) => receive::run(session, args).await?,
        MessageCommand::Acknowledge(args) => acknowledge(session, &args.keys).await?,
        MessageCommand::DeadLetters(args) => list::dead_letters(session, args).await?,
        MessageCommand::Resend(args) => resend(session, &args.message).await?,
        MessageCommand::Delete(args) => delete(session, &args.message).await?,
    }
    Ok(0)
}

async fn get(session: &CliSession, key: &str) -> Result<(), CliError> {
    let answer = session.clients.get_message(session.context()?, key).await?;
    let text = || message::whole(&answer.message.clone().unwrap_or_default());
    output::answer(session.global.output, || json::of(&answer), text)
}

async fn acknowledge(session: &CliSession, keys: &[String]) -> Result<(), CliError> {
    let context_id = session.context()?;
    let mut answer = v1::AcknowledgeMessageResponse::default();
    for keys in keys.chunks(KEYS_MAX) {
        let request = v1::AcknowledgeMessageRequest { context_id, keys: keys.to_vec(), ..Default::default() };
        answer.acknowledged_count +=
            session.clients.acknowledge_messages(&request).await??.acknowledged_count;
    }
    let text = || {
        let count = answer.acknowledged_count as usize;
        let rest = keys.len().saturating_sub(count);
        let rest = if rest == 0 { String::new() } else { format!("; {rest} did not wait here any more") };
        format!("{} acknowledged{rest}\n", labels::count(count, "message is", "messages are"))
    };
    output::answer(session.global.output, || json::of(&answer), text)
}

async fn resend(session: &CliSession, key: &str) -> Result<(), CliError> {
    let context_id = session.context()?;
    let request_id = Uuid::new_v4().to_string();
    let request = v1::ResendMessageRequest { request_id, context_id, key: key.to_owned() };
    let answer = session.clients.resend_message(&request).await?;
    let text =
        || format!("{key} is on its way again; see `mycora message get {key} --context {context_id}`\n");
    output::answer(session.global.output, || json::of(&answer), text)
}

async fn delete(session: &CliSession, key: &str) -> Result<(), CliError> {
    let answer = session.clients.delete_message(session.context()?, key).await?;
    output::answer(session.global.output, || json::of(&answer), || format!("{key} is deleted\n"))
}
