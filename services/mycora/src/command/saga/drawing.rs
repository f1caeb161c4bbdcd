//! `mycora saga graph`.

use clap::{Args, ValueEnum};
use proto::v1;

use super::scope::{self, Scope};
use crate::failure::Failure;
use crate::output::saga::graph;
use crate::output::{self, json};

pub(super) const AFTER_HELP: &str = "\
With a correlation the definition of that instance is drawn, and its place in it.

Examples:
  mycora saga graph order-fulfilment
  mycora saga graph order-fulfilment order-7 --format dot | dot -Tsvg > order-7.svg";

/// What `saga graph` takes.
#[derive(Debug, Args)]
pub struct GraphArgs {
    /// Name of the saga
    #[arg(value_parser = scope::saga)]
    pub saga: String,
    /// Correlation of an instance whose place is shown
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
    /// How it is drawn
    #[arg(long, value_enum, default_value_t)]
    pub format: Drawing,
}

/// A way to draw, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Drawing {
    /// Steps and their ways on, as text.
    #[default]
    Text,
    /// For Graphviz.
    Dot,
    /// For Mermaid, as Markdown pages show it.
    Mermaid,
}

pub(super) async fn run(scope: &Scope<'_>, args: GraphArgs) -> Result<(), Failure> {
    let GraphArgs { saga, correlation, hash, format } = args;
    let request = v1::GetSagaGraphRequest {
        tenant_id: scope.tenant_id.clone(),
        saga,
        correlation_id: correlation.unwrap_or_default(),
        definition_hash: hash,
    };
    let answer = scope.clients().get_saga_graph(&request).await?;
    let text = || match format {
        Drawing::Text => graph::text(&answer),
        Drawing::Dot => graph::dot(&answer),
        Drawing::Mermaid => graph::mermaid(&answer),
    };
    output::answer(scope.format(), || json::of(&answer), text)
}
