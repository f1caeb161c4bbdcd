//! `mycora message receive`: each message once, also when the stream breaks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Args;
use proto::v1;
use rpc::RetryAdvice;
use tonic::Code;

use super::KEYS_MAX;
use crate::clients::Clients;
use crate::command::outage_notice::OutageNotice;
use crate::command::{CliSession, watch};
use crate::failure::{ApiCallError, CliError};
use crate::output::{self, OutputFormat, json, message};

/// Waits between streams that broke.
const WAIT: Duration = Duration::from_millis(500);
/// A coordinator that did answer and is away for longer is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
Every call hands out a message again until it is acknowledged: with --acknowledge once it was printed, or later with `mycora message acknowledge`.

With --output json or yaml the answer is one document, a list of messages; with --follow each message is a document of its own (JSON: a line), so that it can be read at once.

Examples:
  mycora message receive
  mycora message receive --follow --acknowledge --output json";

/// Arguments of `message receive`.
#[derive(Debug, Args)]
pub struct MessageReceiveArgs {
    /// Follow new messages, until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
    /// Acknowledge each message once it was printed: it is not handed out again
    #[arg(long)]
    pub acknowledge: bool,
}

pub(super) async fn run(session: &CliSession, args: &MessageReceiveArgs) -> Result<(), CliError> {
    let context_id = session.context()?;
    let format = session.global.output;
    let mut receiver = MessageReceiveLoop {
        clients: &session.clients,
        request: v1::ReceiveMessagesRequest { context_id, actor_id: 0, only_present: !args.follow },
        acknowledge: args.acknowledge,
        printer: match format {
            OutputFormat::Table => MessagePrinter::Text,
            format if args.follow => MessagePrinter::Documents(format),
            format => MessagePrinter::Document { format, first: true },
        },
        printed: BTreeSet::new(),
        some: false,
        last_response: Instant::now(),
        connected: false,
        absence: (!session.global.quiet).then(OutageNotice::default),
    };
    let result = tokio::select! {
        result = receiver.until_end() => result,
        pressed = tokio::signal::ctrl_c() => Err(match pressed {
            Ok(()) => CliError::Interrupted(format!(
                "what was not acknowledged is handed out again by `mycora message receive --context {context_id}`"
            )),
            Err(error) => CliError::Failed(format!("cannot wait for signals: {error}")),
        }),
    };
    let MessageReceiveLoop { printer, some, .. } = receiver;
    // Also what was begun is ended, so that a program can read it.
    printer.end()?;
    result?;
    if !some && format == OutputFormat::Table {
        output::note(&format!("no message waits in context {context_id}"));
    }
    Ok(())
}

/// Reads what was received, over as many streams as it takes.
struct MessageReceiveLoop<'a> {
    clients: &'a Clients,
    request: v1::ReceiveMessagesRequest,
    acknowledge: bool,
    printer: MessagePrinter,
    /// Keys of messages that were printed and may be handed out again.
    printed: BTreeSet<String>,
    /// Something was printed.
    some: bool,
    /// When the coordinator last answered.
    last_response: Instant,
    /// True once the coordinator has answered at all.
    connected: bool,
    /// `None` if outages are not reported.
    absence: Option<OutageNotice>,
}

impl MessageReceiveLoop<'_> {
    /// Prints until there is no more, or for ever. Cancel safe: what was printed is whole.
    async fn until_end(&mut self) -> Result<(), CliError> {
        loop {
            let follow = !self.request.only_present;
            match self.one_stream().await? {
                Ok(()) if !follow => return Ok(()),
                // The server ends, as it does before a restart.
                Ok(()) => {}
                Err(error) => {
                    let again = matches!(error.retry, RetryAdvice::Again { .. } | RetryAdvice::Reread)
                        || error.view.code == Code::ResourceExhausted;
                    let patience = if self.connected { PATIENCE } else { watch::PATIENCE_FIRST };
                    if !again || !follow || self.last_response.elapsed() >= patience {
                        return Err(error.into());
                    }
                    let away = self.absence.as_mut().filter(|_| self.connected);
                    if let Some(line) = away.and_then(|absence| absence.on_failure(&error, PATIENCE)) {
                        output::note(&line);
                    }
                }
            }
            tokio::time::sleep(WAIT).await;
        }
    }

    /// Prints one stream. The outer failure is that of printing.
    async fn one_stream(&mut self) -> Result<Result<(), ApiCallError>, CliError> {
        let mut answers = match self.clients.receive_messages(self.request).await? {
            Ok(answers) => answers,
            Err(error) => return Ok(Err(error)),
        };
        (self.last_response, self.connected) = (Instant::now(), true);
        loop {
            let messages = match answers.next().await {
                Ok(Some(answer)) => answer.messages,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            };
            self.last_response = Instant::now();
            if let Some(line) = self.absence.as_mut().and_then(OutageNotice::on_response) {
                output::note(line);
            }
            for message in &messages {
                if self.printed.insert(message.key.clone()) {
                    self.printer.message(message)?;
                    self.some = true;
                }
            }
            if self.acknowledge
                && let Err(error) = self.acknowledge(messages).await?
            {
                return Ok(Err(error));
            }
        }
    }

    /// Acknowledges what was printed, which then need not be remembered: it is not handed out again.
    async fn acknowledge(
        &mut self,
        messages: Vec<v1::Message>,
    ) -> Result<Result<(), ApiCallError>, CliError> {
        let keys: Vec<String> = messages.into_iter().map(|message| message.key).collect();
        let v1::ReceiveMessagesRequest { context_id, actor_id, .. } = self.request;
        for keys in keys.chunks(KEYS_MAX) {
            let request = v1::AcknowledgeMessageRequest {
                context_id,
                actor_id,
                keys: keys.to_vec(),
                ..Default::default()
            };
            if let Err(error) = self.clients.acknowledge_messages(&request).await? {
                return Ok(Err(error));
            }
            for key in keys {
                self.printed.remove(key);
            }
        }
        Ok(Ok(()))
    }
}

/// In which form messages are printed.
enum MessagePrinter {
    /// For people.
    Text,
    /// One document: a list of messages.
    Document { format: OutputFormat, first: bool },
    /// A document for each message.
    Documents(OutputFormat),
}

impl MessagePrinter {
    /// Prints a message whole, or fails: it may be acknowledged then.
    fn message(&mut self, message: &v1::Message) -> Result<(), CliError> {
        let text = match self {
            Self::Text => message::received(message),
            Self::Document { format, first } => {
                output::list_item(*format, std::mem::take(first), &json::of(message))?
            }
            Self::Documents(format) => output::stream_item(*format, &json::of(message))?,
        };
        output::print_or_fail(&text)
    }

    /// Ends what was begun.
    fn end(self) -> Result<(), CliError> {
        match self {
            Self::Text | Self::Documents(_) => Ok(()),
            Self::Document { format, first } => output::end_items(format, first),
        }
    }
}
