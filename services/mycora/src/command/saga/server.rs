//! The service and its tenants: `mycora saga pause-tenant`, `resume-tenant`, `drain`, `reload` and `server`.

use std::path::PathBuf;

use clap::Args;
use proto::v1;
use saga::tenants::TenantRegistry;

use super::scope::{SagaCommandScope, SagaRequestIdFlag};
use super::validate::problems_text;
use crate::command::{CliSession, values};
use crate::failure::CliError;
use crate::output::saga::server;
use crate::output::{self, OutputFormat, json};

pub(super) const DRAIN_HELP: &str = "\
Needs the admin's certificate. Work in progress ends, or is given up at the deadline; then the process ends. With --tenant only the lanes of that tenant are given up, other replicas take them at once, and the service continues.

Examples:
  mycora saga drain --deadline 60 --as admin
  mycora saga drain --tenant acme --as admin";

pub(super) const RELOAD_HELP: &str = "\
Needs the admin's certificate. Everything takes effect, or nothing does; other replicas follow within a second. Each problem is reported as file:line:column: message, and the exit code is then 2. With --dry-run nothing is changed either way. With --tenant only the part of that tenant is read.

Examples:
  mycora saga reload --dry-run --as admin
  mycora saga reload --as admin";

/// Arguments of `saga pause-tenant` and `saga resume-tenant`.
#[derive(Debug, Args)]
pub struct SagaTenantArgs {
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

/// Arguments of `saga drain`.
#[derive(Debug, Args)]
pub struct SagaDrainArgs {
    /// Give up what is still under way after this time: seconds, up to 3600, or as 5m [default: as the service was set up for]
    #[arg(long, value_name = "SECS", value_parser = values::secs)]
    pub deadline: Option<u32>,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

pub(super) const SERVER_HELP: &str = "\
Needs the admin's certificate. With --nats-permissions no server is called: the users that a NATS server needs are printed in the syntax of its configuration, the service's and one for the publishers of each tenant of --tenants, with the subjects that each may publish and subscribe to. Passwords are variables of the server's environment. Without --tenants it is for a service without tenants.

Examples:
  mycora saga server --as admin
  mycora saga server --nats-permissions --tenants tenants.yaml > saga-users.conf";

/// Arguments of `saga server`.
#[derive(Debug, Args)]
pub struct SagaServerArgs {
    /// Print the permissions that a NATS server has to grant, without calling a server
    #[arg(long)]
    pub nats_permissions: bool,
    /// File of tenants, as the service reads it
    #[arg(long, value_name = "FILE", requires = "nats_permissions")]
    pub tenants: Option<PathBuf>,
}

/// Arguments of `saga reload`.
#[derive(Debug, Args)]
pub struct SagaReloadArgs {
    /// Only show what would change, and all problems
    #[arg(long)]
    pub dry_run: bool,
    /// Request id that makes the change repeatable.
    #[command(flatten)]
    pub repeat: SagaRequestIdFlag,
}

pub(super) async fn pause_tenant(scope: &SagaCommandScope<'_>, args: SagaTenantArgs) -> Result<(), CliError> {
    let (request_id, tenant_id) = (args.repeat.id(), scope.tenant_id.clone());
    let request = v1::PauseTenantRequest { request_id, tenant_id };
    let answer = scope.clients().pause_tenant(&request).await?;
    let text = || server::tenant(&answer.tenant.clone().unwrap_or_default(), &request.request_id);
    output::answer(scope.format(), || json::of(&answer), text)
}

pub(super) async fn resume_tenant(
    scope: &SagaCommandScope<'_>,
    args: SagaTenantArgs,
) -> Result<(), CliError> {
    let (request_id, tenant_id) = (args.repeat.id(), scope.tenant_id.clone());
    let request = v1::ResumeTenantRequest { request_id, tenant_id };
    let answer = scope.clients().resume_tenant(&request).await?;
    let text = || server::tenant(&answer.tenant.clone().unwrap_or_default(), &request.request_id);
    output::answer(scope.format(), || json::of(&answer), text)
}

pub(super) async fn drain(
    session: &CliSession,
    tenant: Option<String>,
    args: SagaDrainArgs,
) -> Result<u8, CliError> {
    let SagaDrainArgs { deadline, repeat } = args;
    let tenant_id = tenant.unwrap_or_default();
    if deadline.is_some() && !tenant_id.is_empty() {
        let text = "--deadline is for the whole service; the lanes of one tenant are given up at once";
        return Err(CliError::Invalid(text.to_owned()));
    }
    let request = v1::SagaServiceDrainRequest { request_id: repeat.id(), tenant_id, deadline_secs: deadline };
    let answer = session.clients.drain_sagas(&request).await?;
    let text = || server::drained(&answer, &request.tenant_id, &request.request_id);
    output::answer(session.global.output, || json::of(&answer), text).map(|()| 0)
}

pub(super) async fn reload(
    session: &CliSession,
    tenant: Option<String>,
    args: SagaReloadArgs,
) -> Result<u8, CliError> {
    let SagaReloadArgs { dry_run, repeat } = args;
    let tenant_id = tenant.unwrap_or_default();
    let request = v1::SagaServiceReloadRequest { request_id: repeat.id(), tenant_id, dry_run };
    let answer = session.clients.reload_sagas(&request).await?;
    let format = session.global.output;
    if format == OutputFormat::Table && !answer.problems.is_empty() {
        return Err(CliError::Invalid(problems_text(&answer.problems).trim_end().to_owned()));
    }
    let text = || server::reloaded(&answer, dry_run, &request.request_id);
    output::answer(format, || json::of(&answer), text)?;
    Ok(if answer.problems.is_empty() { 0 } else { 2 })
}

/// Prints what a NATS server has to allow; gives the exit code.
///
/// # Errors
/// The file of tenants is wrong or cannot be read.
pub(super) fn nats_permissions(args: &SagaServerArgs, format: OutputFormat) -> Result<u8, CliError> {
    let tenants = args.tenants.as_deref().map(|file| {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file)
            .map_err(|error| CliError::Invalid(format!("`{name}` cannot be read: {error}")))?;
        TenantRegistry::read(&name, &text).map_err(|problems| CliError::Invalid(problems.to_string()))
    });
    let tenants = tenants.transpose()?.map(|tenants| tenants.ids());
    let text = saga::nats_permissions::nats_permissions(tenants.as_deref());
    output::answer(format, || serde_json::json!({ "nats_permissions": text }), || text.clone()).map(|()| 0)
}

pub(super) async fn show(session: &CliSession) -> Result<u8, CliError> {
    let answer = session.clients.get_saga_server(&v1::GetSagaServerRequest {}).await?;
    output::answer(session.global.output, || json::of(&answer), || server::whole(&answer)).map(|()| 0)
}
