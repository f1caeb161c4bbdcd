//! `mycora flow delete`.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;

use super::{CliSession, values};
use crate::failure::CliError;
use crate::output;

/// Arguments of `flow delete`.
#[derive(Debug, Args)]
pub struct FlowDeleteArgs {
    /// The flows' numbers
    #[arg(value_parser = values::id, value_name = "ID", required = true)]
    pub ids: Vec<u32>,
    /// Accepted as with every `delete`; only those of actors and contexts need it
    #[arg(long)]
    pub yes: bool,
}

/// Outcome for each flow, for programs.
#[derive(Debug, Default, Serialize)]
struct FlowDeletions {
    deleted: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<u32>,
}

/// One that is refused does not keep the others; the exit code is that of the first refusal.
pub(super) async fn run(session: &CliSession, args: &FlowDeleteArgs) -> Result<u8, CliError> {
    let context = session.context()?;
    let mut document = FlowDeletions::default();
    let mut exit_code = 0;
    let mut seen = BTreeSet::new();
    for id in args.ids.iter().filter(|id| seen.insert(**id)) {
        match session.clients.delete_flow(context, *id).await {
            Ok(_) => document.deleted.push(*id),
            Err(error) => {
                let failure = CliError::from(error);
                if args.ids.len() == 1 {
                    return Err(failure);
                }
                output::note(&format!("flow {id}: {failure}"));
                document.refused.push(*id);
                if exit_code == 0 {
                    exit_code = failure.exit_code();
                }
            }
        }
    }
    output::answer(
        session.global.output,
        || &document,
        || document.deleted.iter().map(|id| format!("flow {id} is deleted\n")).collect(),
    )?;
    Ok(exit_code)
}
