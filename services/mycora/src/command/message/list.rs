//! `mycora message list` and `mycora message dead-letters`.

use clap::{Args, ValueEnum};
use model::Timestamp;
use proto::v1;

use crate::command::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, PageSummary, json, message};

/// Arguments of `message list`.
#[derive(Debug, Args)]
pub struct MessageListArgs {
    /// Those that carried the jobs of this flow, instead of chat and mail
    #[arg(long, value_name = "ID", value_parser = values::id)]
    pub flow: Option<u32>,
    /// Only messages in this state
    #[arg(long, value_enum)]
    pub status: Option<MessageStatusFilter>,
    /// Only messages of this type
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub message_type: Option<MessageTypeFilter>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Arguments of `message dead-letters`.
#[derive(Debug, Args)]
pub struct MessageDeadLettersArgs {
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// A status as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MessageStatusFilter {
    /// On its way.
    Dispatched,
    /// The receiver has it.
    Acknowledged,
    /// Read, or all its jobs have ended.
    Processed,
    /// The message will not arrive.
    Error,
}

impl From<MessageStatusFilter> for v1::MessageStatus {
    fn from(filter: MessageStatusFilter) -> Self {
        match filter {
            MessageStatusFilter::Dispatched => Self::Dispatched,
            MessageStatusFilter::Acknowledged => Self::Acknowledged,
            MessageStatusFilter::Processed => Self::Processed,
            MessageStatusFilter::Error => Self::Error,
        }
    }
}

/// A type as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MessageTypeFilter {
    /// Jobs.
    Job,
    /// Chat.
    Chat,
    /// Mail.
    Mail,
}

impl From<MessageTypeFilter> for v1::MessageType {
    fn from(filter: MessageTypeFilter) -> Self {
        match filter {
            MessageTypeFilter::Job => Self::Job,
            MessageTypeFilter::Chat => Self::Chat,
            MessageTypeFilter::Mail => Self::Mail,
        }
    }
}

pub(super) async fn run(session: &CliSession, args: &MessageListArgs) -> Result<(), CliError> {
    let request = v1::ListMessagesRequest {
        context_id: session.context()?,
        flow_id: args.flow.unwrap_or_default(),
        message_type: args.message_type.map_or(v1::MessageType::Unspecified, v1::MessageType::from).into(),
        status: args.status.map_or(v1::MessageStatus::Unspecified, v1::MessageStatus::from).into(),
        ..Default::default()
    };
    let answer = session.clients.list_messages(request, args.limit).await?;
    let v1::ListMessagesResponse { messages, next_page_token } = &answer;
    let none = "there are no such messages";
    let listed = PageSummary { count: messages.len(), limit: args.limit, next_page_token, none };
    let text = || message::list(messages, Timestamp::now());
    output::list(session.global.output, listed, || json::of(&answer), text)
}

pub(super) async fn dead_letters(
    session: &CliSession,
    args: &MessageDeadLettersArgs,
) -> Result<(), CliError> {
    let context = session.context()?;
    let answer = session.clients.list_dead_letters(context, args.limit).await?;
    let v1::ListDeadLettersResponse { messages, next_page_token } = &answer;
    let none = format!("every message of context {context} arrived, or still may");
    let listed = PageSummary { count: messages.len(), limit: args.limit, next_page_token, none: &none };
    let text = || message::dead_letters(messages, Timestamp::now());
    output::list(session.global.output, listed, || json::of(&answer), text)
}
