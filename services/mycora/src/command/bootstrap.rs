//! `mycora bootstrap`: the first actor, context and runners of a suite of separate processes.

use std::path::PathBuf;

use clap::Args;
use model::Address;

use crate::bootstrap::{self, BootstrapError};
use crate::command::CliSession;
use crate::failure::{CliError, error_chain};
use crate::output;
use crate::profile::ApiService;

/// Arguments of `bootstrap`.
#[derive(Debug, Args)]
pub struct BootstrapArgs {
    /// Certificate of the bootstrap identity, as `mycora pki init` makes it; its key is the .key file beside it
    #[arg(long, value_name = "FILE")]
    pub admin: PathBuf,
    /// Ed25519 key of actor 1; made when it is not there [default: actor-1.ed25519 beside the certificate]
    #[arg(long, value_name = "FILE")]
    pub actor_key: Option<PathBuf>,
    /// A supervisor whose runners take jobs of context 1, as grpc://host:port; may be repeated
    #[arg(long = "runner", value_name = "ADDRESS")]
    pub runners: Vec<Address>,
}

/// Makes what is missing; what is there stays as it is.
///
/// # Errors
/// When the coordinator cannot be reached, or refuses.
pub async fn run(args: &BootstrapArgs, session: &CliSession) -> Result<u8, CliError> {
    let mut admin = session.profile().clone();
    admin.cert = Some(args.admin.clone());
    admin.key = Some(args.admin.with_extension("key"));
    let key = args.actor_key.clone().unwrap_or_else(|| args.admin.with_file_name("actor-1.ed25519"));
    bootstrap::create_actor_and_context(&key, admin.channel_to(ApiService::Storage)?)
        .await
        .map_err(failed)?;
    let addresses: Vec<_> = args.runners.iter().map(|address| (address.clone(), false)).collect();
    let registry = session.profile().channel_to(ApiService::RunnerRegistry)?;
    bootstrap::register_runners(registry, &addresses).await.map_err(failed)?;
    output::note("actor 1, context 1 and its runners are there");
    Ok(0)
}

fn failed(error: BootstrapError) -> CliError {
    match error {
        BootstrapError::Refused { status, .. } => crate::failure::ApiCallError::from(*status).into(),
        BootstrapError::Key(_) => CliError::Failed(error_chain(&error)),
    }
}
