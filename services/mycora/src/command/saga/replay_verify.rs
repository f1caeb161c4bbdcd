//! `mycora saga replay-verify`: a journal that is run again and compared byte by byte.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use workflow::replay::ReplayDifference;

use super::journal::ReplayableJournal;
use crate::failure::CliError;
use crate::output::{self, OutputFormat, labels};

/// Examples of the command.
pub const AFTER_HELP: &str = "\
Examples:
  mycora saga timeline order-fulfilment o-1 --journal > o-1.json
  mycora saga replay-verify o-1.json

Every input of the journal is applied to a new instance of the definition in the file, and every row is compared with the \
result: revision, time, fate, status, step, work and the hash over everything that happened until then. A difference means that \
program, definition or store have changed.

Exit codes: 0 the journal is the same; 1 a row differs, or the first rows are not kept any more; 2 the file is wrong.";

/// Arguments of `saga replay-verify`.
#[derive(Debug, Args)]
pub struct SagaReplayVerifyArgs {
    /// The journal, as `mycora saga timeline --journal` writes it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Answer for programs.
#[derive(Debug, Serialize)]
struct ReplayVerifyReport {
    same: bool,
    tenant_id: String,
    saga: String,
    correlation_id: String,
    rows: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
}

/// Runs the journal again; gives the exit code.
///
/// # Errors
/// The file is wrong, or the answer cannot be written.
pub fn run(args: &SagaReplayVerifyArgs, format: OutputFormat) -> Result<u8, CliError> {
    let name = args.file.display().to_string();
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| CliError::Invalid(format!("`{name}` cannot be read: {error}")))?;
    let journal =
        ReplayableJournal::read(&text).map_err(|why| CliError::Invalid(format!("{name}: {why}")))?;
    let verified = journal.verify();
    let document = ReplayVerifyReport {
        same: verified.is_ok(),
        tenant_id: journal.tenant_text().to_owned(),
        saga: journal.saga.to_string(),
        correlation_id: journal.correlation.to_string(),
        rows: journal.rows.len(),
        chain_hash: journal.rows.last().filter(|_| verified.is_ok()).map(|row| row.chain.to_string()),
        revision: verified.as_ref().err().map(|difference| match difference {
            ReplayDifference::Cut { first } => *first,
            ReplayDifference::NoDefinition { revision, .. } | ReplayDifference::Row { revision, .. } => {
                *revision
            }
        }),
        difference: verified.err().map(|difference| difference.to_string()),
    };
    output::answer(
        format,
        || &document,
        || {
            let ReplayVerifyReport { saga, correlation_id, rows, chain_hash, difference, .. } = &document;
            let rows = labels::count(*rows, "row", "rows");
            match (difference, chain_hash) {
                (Some(difference), _) => format!("{saga}/{correlation_id}: {difference}\n"),
                (None, chain) => {
                    let chain = chain.as_deref().unwrap_or("none");
                    format!("{saga}/{correlation_id}: the same, {rows}, chain {chain}\n")
                }
            }
        },
    )?;
    Ok(u8::from(!document.same))
}
