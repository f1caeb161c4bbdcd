//! `mycora saga timeline`.

use std::collections::BTreeSet;

use clap::Args;
use prost_reflect::DynamicMessage;
use proto::v1;
use serde::Serialize;

use super::definitions;
use super::scope::{SagaCommandScope, SagaInstanceArg};
use crate::failure::CliError;
use crate::output::saga::timeline;
use crate::output::{self, OutputFormat, PageSummary, json};

pub(super) const AFTER_HELP: &str = "\
Each row is an input and its effects. With --journal it is one document of all rows with their payloads and of the manifests that they ran on, which `mycora saga replay-verify` runs again: {saga, correlation_id, tenant_id, definition, entries}. Several definitions of an instance that was migrated stand in `definition` one after the other, as YAML has several documents.

Examples:
  mycora saga timeline order-fulfilment order-7
  mycora saga timeline order-fulfilment order-7 --with-payloads --output json
  mycora saga timeline order-fulfilment order-7 --journal > order-7.json";

/// Arguments of `saga timeline`.
#[derive(Debug, Args)]
pub struct SagaTimelineArgs {
    /// Instance whose timeline is shown.
    #[command(flatten)]
    pub instance: SagaInstanceArg,
    /// Show events, results, data and the last state as well
    #[arg(long)]
    pub with_payloads: bool,
    /// All rows with their payloads, and the manifests that they ran on, as one document
    #[arg(long, conflicts_with_all = ["with_payloads", "limit"])]
    pub journal: bool,
    /// At most this many rows
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Everything that it takes to run an instance again.
#[derive(Debug, Serialize)]
struct JournalExport {
    saga: String,
    correlation_id: String,
    tenant_id: String,
    /// Manifests of all definitions that entries name, each a document of YAML.
    definition: String,
    entries: Vec<DynamicMessage>,
}

pub(super) async fn run(scope: &SagaCommandScope<'_>, args: SagaTimelineArgs) -> Result<(), CliError> {
    let SagaTimelineArgs { instance, with_payloads, journal, limit } = args;
    let SagaInstanceArg { saga, correlation } = &instance;
    let request = v1::GetSagaTimelineRequest {
        tenant_id: scope.tenant_id.clone(),
        saga: saga.clone(),
        correlation_id: correlation.clone(),
        with_payloads: with_payloads || journal,
        ..Default::default()
    };
    let limit = if journal { u32::MAX } else { limit };
    let answer = scope.clients().get_saga_timeline(request, limit).await?;
    if journal {
        let journal = whole(scope, instance, &answer).await?;
        let format = if scope.format() == OutputFormat::Table { OutputFormat::Json } else { scope.format() };
        return output::answer(format, || journal, String::new);
    }
    let v1::GetSagaTimelineResponse { entries, next_page_token, first_revision } = &answer;
    let none = "no row of its timeline is kept";
    let listed = PageSummary { count: entries.len(), limit, next_page_token, none };
    let text = || timeline::text(entries, with_payloads);
    output::list(scope.format(), listed, || json::of(&answer), text)?;
    if scope.format() == OutputFormat::Table && *first_revision > 1 {
        output::note(&format!("rows before revision {first_revision} are not kept any more"));
    }
    Ok(())
}

/// The rows with the manifests that they ran on.
async fn whole(
    scope: &SagaCommandScope<'_>,
    instance: SagaInstanceArg,
    answer: &v1::GetSagaTimelineResponse,
) -> Result<JournalExport, CliError> {
    let SagaInstanceArg { saga, correlation } = instance;
    let (mut seen, mut manifests) = (BTreeSet::new(), Vec::new());
    for hash in answer.entries.iter().map(|entry| &entry.definition_hash) {
        if !hash.is_empty() && seen.insert(hash) {
            let definition = definitions::read(scope, saga.clone(), hash.clone()).await?;
            manifests.push(definition.manifest);
        }
    }
    Ok(JournalExport {
        saga,
        correlation_id: correlation,
        tenant_id: scope.tenant_id.clone(),
        definition: manifests.join("\n---\n"),
        entries: answer.entries.iter().map(json::of).collect(),
    })
}
