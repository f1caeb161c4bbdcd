//! `mycora saga letters`: inputs that could not be processed.

use clap::{Args, Subcommand};
use proto::v1;

use super::scope::{SagaCommandScope, SagaDataFlags, SagaInstanceFilter, SagaRequestIdFlag};
use crate::failure::CliError;
use crate::output::saga::dead_letter;
use crate::output::{self, PageSummary, json};

/// So many keys one call names.
const KEYS_MAX: usize = 1000;

const REDRIVE_HELP: &str = "\
Needs the role admin. Each letter is applied, then the inputs that wait behind it, in order. A letter that fails again stays, with everything behind it, and the exit code is then 1.

Examples:
  mycora saga letters redrive KEY
  mycora saga letters redrive KEY --data '{\"amount_cents\": 990}'
  mycora saga letters redrive KEY --skip";

const PURGE_HELP: &str = "\
Needs the role admin. The inputs that wait behind a letter are removed with it; `mycora saga letters redrive KEY --skip` drops only the letter.

Example:
  mycora saga letters purge KEY --yes";

/// Commands about dead letters.
#[derive(Debug, Subcommand)]
pub enum SagaDeadLetterCommand {
    /// List dead letters, without their content
    #[command(after_help = "Example:\n  mycora saga letters list order-fulfilment order-7")]
    List(SagaDeadLetterListArgs),
    /// Show a dead letter with its input
    #[command(after_help = "Example:\n  mycora saga letters show KEY")]
    Show(SagaDeadLetterKeyArg),
    /// Apply dead letters again: unchanged, with other data, or skipping the letter itself
    #[command(after_help = REDRIVE_HELP)]
    Redrive(SagaDeadLetterRedriveArgs),
    /// Remove dead letters permanently
    #[command(after_help = PURGE_HELP)]
    Purge(SagaDeadLetterPurgeArgs),
}

/// Arguments of `saga letters list`.
#[derive(Debug, Args)]
pub struct SagaDeadLetterListArgs {
    /// Saga or instance whose letters are listed.
    #[command(flatten)]
    pub instance: SagaInstanceFilter,
    /// Only letters with this code, such as FORMULA
    #[arg(long, default_value = "", hide_default_value = true)]
    pub code: String,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Key of one letter.
#[derive(Debug, Args)]
pub struct SagaDeadLetterKeyArg {
    /// Key of the letter, as lists give it
    pub letter: String,
}

/// Arguments of `saga letters redrive`.
#[derive(Debug, Args)]
pub struct SagaDeadLetterRedriveArgs {
    /// Keys of the letters, as lists give them
    #[arg(value_name = "LETTER", required = true)]
    pub letters: Vec<String>,
    /// Leave the letters out, and apply only what waits behind them
    #[arg(long, conflicts_with_all = ["data", "data_file"])]
    pub skip: bool,
    /// Data that replaces the letter's; with one letter only.
    #[command(flatten)]
    pub data: SagaDataFlags,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

/// Arguments of `saga letters purge`.
#[derive(Debug, Args)]
pub struct SagaDeadLetterPurgeArgs {
    /// Keys of the letters, as lists give them
    #[arg(value_name = "LETTER", required = true)]
    pub letters: Vec<String>,
    /// Confirm the removal: the content of the letters and of the inputs behind them is lost
    #[arg(long)]
    pub yes: bool,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

pub(super) async fn run(
    scope: &SagaCommandScope<'_>,
    command: SagaDeadLetterCommand,
) -> Result<u8, CliError> {
    match command {
        SagaDeadLetterCommand::List(args) => list(scope, args).await.map(|()| 0),
        SagaDeadLetterCommand::Show(args) => show(scope, args).await.map(|()| 0),
        SagaDeadLetterCommand::Redrive(args) => redrive(scope, args).await,
        SagaDeadLetterCommand::Purge(args) => purge(scope, args).await.map(|()| 0),
    }
}

async fn list(scope: &SagaCommandScope<'_>, args: SagaDeadLetterListArgs) -> Result<(), CliError> {
    let SagaDeadLetterListArgs { instance: SagaInstanceFilter { saga, correlation }, code, limit } = args;
    let request = v1::ListSagaDeadLettersRequest {
        tenant_id: scope.tenant_id.clone(),
        saga: saga.unwrap_or_default(),
        correlation_id: correlation.unwrap_or_default(),
        code,
        ..Default::default()
    };
    let answer = scope.clients().list_saga_dead_letters(request, limit).await?;
    let v1::ListSagaDeadLettersResponse { dead_letters, next_page_token } = &answer;
    let none = "there are no such dead letters";
    let listed = PageSummary { count: dead_letters.len(), limit, next_page_token, none };
    output::list(scope.format(), listed, || json::of(&answer), || dead_letter::list(dead_letters))
}

async fn show(scope: &SagaCommandScope<'_>, args: SagaDeadLetterKeyArg) -> Result<(), CliError> {
    let request = v1::GetSagaDeadLetterRequest { tenant_id: scope.tenant_id.clone(), key: args.letter };
    let answer = scope.clients().get_saga_dead_letter(&request).await?;
    let text = || dead_letter::whole(&answer.dead_letter.clone().unwrap_or_default());
    output::answer(scope.format(), || json::of(&answer), text)
}

/// Checks how many letters were named.
fn keys(letters: Vec<String>) -> Result<Vec<String>, CliError> {
    if letters.len() > KEYS_MAX {
        return Err(CliError::Invalid(format!(
            "at most {KEYS_MAX} letters can be named at once, these are {}",
            letters.len()
        )));
    }
    Ok(letters)
}

async fn redrive(scope: &SagaCommandScope<'_>, args: SagaDeadLetterRedriveArgs) -> Result<u8, CliError> {
    let SagaDeadLetterRedriveArgs { letters, skip, data, repeat } = args;
    let data_json = data.read()?;
    if letters.len() > 1 && !data_json.is_empty() {
        return Err(CliError::Invalid("other data can be given to one letter at a time".to_owned()));
    }
    let request = v1::RedriveSagaDeadLettersRequest {
        request_id: repeat.id(),
        tenant_id: scope.tenant_id.clone(),
        keys: keys(letters)?,
        skip,
        data_json,
    };
    let id = &request.request_id;
    let answer = scope.clients().redrive_saga_dead_letters(&request).await?;
    let text = || dead_letter::redrives(&answer.redrives, id);
    output::answer(scope.format(), || json::of(&answer), text)?;
    let stays = answer.redrives.iter().any(|redrive| !redrive.dead_letter_key.is_empty());
    Ok(u8::from(stays))
}

async fn purge(scope: &SagaCommandScope<'_>, args: SagaDeadLetterPurgeArgs) -> Result<(), CliError> {
    let SagaDeadLetterPurgeArgs { letters, yes, repeat } = args;
    if !yes {
        return Err(CliError::Invalid(
            "this removes the letters permanently, with the inputs that wait behind them; confirm with --yes"
                .to_owned(),
        ));
    }
    let request = v1::PurgeSagaDeadLettersRequest {
        request_id: repeat.id(),
        tenant_id: scope.tenant_id.clone(),
        keys: keys(letters)?,
    };
    let id = &request.request_id;
    let answer = scope.clients().purge_saga_dead_letters(&request).await?;
    output::answer(scope.format(), || json::of(&answer), || dead_letter::purged(&answer, id))
}
