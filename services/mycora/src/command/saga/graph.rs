//! `mycora saga graph`.

use clap::{Args, ValueEnum};
use proto::v1;

use super::scope::{self, SagaCommandScope};
use crate::failure::CliError;
use crate::output::saga::graph;
use crate::output::{self, json};

pub(super) const AFTER_HELP: &str = "\
With a correlation it draws the definition of that instance, and marks the instance's position.

Examples:
  mycora saga graph order-fulfilment
  mycora saga graph order-fulfilment order-7 --format dot | dot -Tsvg > order-7.svg";

/// Arguments of `saga graph`.
#[derive(Debug, Args)]
pub struct SagaGraphArgs {
    /// Name of the saga
    #[arg(value_parser = scope::saga)]
    pub saga: String,
    /// Correlation of an instance whose position is shown
    #[arg(value_parser = scope::correlation)]
    pub correlation: Option<String>,
    /// Hash of the definition: 64 hex digits [default: that of the instance, or the one in force]
    #[arg(
        long,
        value_name = "HASH",
        default_value = "",
        hide_default_value = true,
        conflicts_with = "correlation"
    )]
    pub hash: String,
    /// Output format of the drawing
    #[arg(long, value_enum, default_value_t)]
    pub format: SagaGraphFormat,
}

/// A way to draw, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum SagaGraphFormat {
    /// Steps and their ways on, as text.
    #[default]
    Text,
    /// For Graphviz.
    Dot,
    /// For Mermaid, as Markdown pages show it.
    Mermaid,
}

pub(super) async fn run(scope: &SagaCommandScope<'_>, args: SagaGraphArgs) -> Result<(), CliError> {
    let SagaGraphArgs { saga, correlation, hash, format } = args;
    let request = v1::GetSagaGraphRequest {
        tenant_id: scope.tenant_id.clone(),
        saga,
        correlation_id: correlation.unwrap_or_default(),
        definition_hash: hash,
    };
    let answer = scope.clients().get_saga_graph(&request).await?;
    let text = || match format {
        SagaGraphFormat::Text => graph::text(&answer),
        SagaGraphFormat::Dot => graph::dot(&answer),
        SagaGraphFormat::Mermaid => graph::mermaid(&answer),
    };
    output::answer(scope.format(), || json::of(&answer), text)
}
