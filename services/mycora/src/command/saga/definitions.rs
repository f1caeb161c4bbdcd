//! `mycora saga apply`, `definitions`, `definition` and `retire`.

use clap::Args;
use proto::v1;

use super::scope::{self, SagaCommandScope, SagaRequestIdFlag};
use super::validate;
use crate::failure::CliError;
use crate::output::saga::definition;
use crate::output::{self, PageSummary, json};

pub(super) const APPLY_HELP: &str = "\
Needs the role admin. The sagas are in force for this tenant only. Running instances keep the definition that they started with; `mycora saga migrate` changes it. A manifest identical to the one in force changes nothing. Providers of effects belong to the operator, and are refused here.

Examples:
  mycora saga apply order-fulfilment.yaml
  cat order-fulfilment.yaml | mycora saga apply - --tenant acme";

pub(super) const DEFINITION_HELP: &str = "\
The manifest is shown in the canonical form that is hashed: JSON, which is also YAML, and which `saga apply` accepts.

Examples:
  mycora saga definition order-fulfilment
  mycora saga definition order-fulfilment --manifest > in-force.yaml";

/// Arguments of `saga apply`.
#[derive(Debug, Args)]
pub struct SagaApplyArgs {
    /// The manifest, YAML; `-` for standard input
    pub file: String,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

/// Arguments of `saga definitions`.
#[derive(Debug, Args)]
pub struct SagaDefinitionListArgs {
    /// Only of this saga
    #[arg(value_parser = scope::saga)]
    pub saga: Option<String>,
    /// Only those in force, without those that instances still run on
    #[arg(long)]
    pub in_force: bool,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Arguments of `saga definition`.
#[derive(Debug, Args)]
pub struct SagaDefinitionShowArgs {
    /// Name of the saga
    #[arg(value_parser = scope::saga)]
    pub saga: String,
    /// Hash of the definition: 64 hex digits [default: the one in force]
    #[arg(long, value_name = "HASH", default_value = "", hide_default_value = true)]
    pub hash: String,
    /// Nothing but the manifest
    #[arg(long)]
    pub manifest: bool,
}

/// Arguments of `saga retire`.
#[derive(Debug, Args)]
pub struct SagaRetireArgs {
    /// Name of the saga
    #[arg(value_parser = scope::saga)]
    pub saga: String,
    /// Only while this version is in force
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u32).range(1..))]
    pub expect_version: Option<u32>,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

pub(super) async fn apply(scope: &SagaCommandScope<'_>, args: &SagaApplyArgs) -> Result<(), CliError> {
    let request = v1::ApplySagaRequest {
        request_id: args.repeat.id(),
        tenant_id: scope.tenant_id.clone(),
        file: Some(validate::read(&args.file)?),
    };
    let id = &request.request_id;
    let answer = scope.clients().apply_saga(&request).await?;
    let text = || definition::applied(&answer.definitions, id);
    output::answer(scope.format(), || json::of(&answer), text)
}

pub(super) async fn list(scope: &SagaCommandScope<'_>, args: SagaDefinitionListArgs) -> Result<(), CliError> {
    let SagaDefinitionListArgs { saga, in_force, limit } = args;
    let request = v1::ListSagaDefinitionsRequest {
        tenant_id: scope.tenant_id.clone(),
        saga: saga.unwrap_or_default(),
        in_force,
        ..Default::default()
    };
    let answer = scope.clients().list_saga_definitions(request, limit).await?;
    let v1::ListSagaDefinitionsResponse { definitions, next_page_token } = &answer;
    let none = "there are no such definitions; `mycora saga apply FILE` puts some in force";
    let listed = PageSummary { count: definitions.len(), limit, next_page_token, none };
    output::list(scope.format(), listed, || json::of(&answer), || definition::list(definitions))
}

pub(super) async fn show(scope: &SagaCommandScope<'_>, args: SagaDefinitionShowArgs) -> Result<(), CliError> {
    let SagaDefinitionShowArgs { saga, hash, manifest } = args;
    let answer = read(scope, saga, hash).await?;
    if manifest {
        return output::print(&format!("{}\n", answer.manifest.trim_end()));
    }
    let text = || definition::whole(&answer.definition.clone().unwrap_or_default(), &answer.manifest);
    output::answer(scope.format(), || json::of(&answer), text)
}

/// Reads a definition; the one in force without a hash.
pub(super) async fn read(
    scope: &SagaCommandScope<'_>,
    saga: String,
    definition_hash: String,
) -> Result<v1::GetSagaDefinitionResponse, CliError> {
    let tenant_id = scope.tenant_id.clone();
    let request = v1::GetSagaDefinitionRequest { tenant_id, saga, definition_hash };
    scope.clients().get_saga_definition(&request).await
}

pub(super) async fn retire(scope: &SagaCommandScope<'_>, args: SagaRetireArgs) -> Result<(), CliError> {
    let request = v1::RetireSagaRequest {
        request_id: args.repeat.id(),
        tenant_id: scope.tenant_id.clone(),
        saga: args.saga,
        expected_version: args.expect_version.unwrap_or_default(),
    };
    let answer = scope.clients().retire_saga(&request).await?;
    let text = || {
        let v1::SagaDefinition { saga, version, .. } = answer.definition.clone().unwrap_or_default();
        let id = &request.request_id;
        format!("the saga `{saga}`, version {version}, starts no instances any more (request {id})\n")
    };
    output::answer(scope.format(), || json::of(&answer), text)
}
