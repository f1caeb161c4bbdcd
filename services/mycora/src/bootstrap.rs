//! The first actor, the first context and its runners, made once.

use std::path::Path;

use identity::{SigningKey, SigningKeyError};
use model::{ActorId, Address, ContextId};
use proto::v1;
use proto::v1::actor_service_client::ActorServiceClient;
use proto::v1::context_service_client::ContextServiceClient;
use proto::v1::runner_service_client::RunnerServiceClient;
use proto::v1::watch_runners_response::Event;
use rpc::Channel;
use tonic::{Code, Status};

/// The actor that is made.
pub const ACTOR: ActorId = ActorId(1);
/// The context that is made.
pub const CONTEXT: ContextId = ContextId(1);

/// Why something cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The actor's key cannot be made or read.
    #[error("the key of actor 1 cannot be prepared")]
    Key(#[from] SigningKeyError),
    /// The coordinator refused.
    #[error("{what} cannot be made: {}", status.message())]
    Refused {
        /// Object that cannot be made.
        what: &'static str,
        /// Status with which the coordinator answered.
        status: Box<Status>,
    },
}

/// Registers actor 1, with the Ed25519 key in a file that is made when it is not
/// there, and makes context 1, the home of messages to it, unless they are there.
/// The channel has to carry the bootstrap identity.
///
/// # Errors
/// Names the object that cannot be made.
pub async fn create_actor_and_context(key_file: &Path, storage: Channel) -> Result<(), BootstrapError> {
    let key = SigningKey::load_or_make(key_file)?.verifying_key().to_string();
    let request = v1::RegisterActorRequest { id: ACTOR.0, pubkey: key, ..Default::default() };
    let registered = ActorServiceClient::new(storage.clone()).register_actor(request).await;
    unless_there("actor 1", registered)?;
    let request = v1::CreateContextRequest {
        id: CONTEXT.0,
        admins: vec![ACTOR.0],
        // Messages pushed to Redis are only as trustworthy as access to it: raw publishing stays off until an admin enables it.
        settings: Some(v1::ContextSettings { executors_may_submit: true, ..Default::default() }),
        ..Default::default()
    };
    unless_there("context 1", ContextServiceClient::new(storage.clone()).create_context(request).await)?;
    home_context(ActorServiceClient::new(storage)).await
}

/// Lets chat and mail to actor 1 land in context 1, unless they land somewhere else.
async fn home_context(mut actors: ActorServiceClient<Channel>) -> Result<(), BootstrapError> {
    let what = "the home context of actor 1";
    let found = actors.get_actor(v1::GetActorRequest { id: ACTOR.0 }).await;
    let actor = found.map_err(|status| refused(what, status))?.into_inner().actor.unwrap_or_default();
    if actor.home_context != 0 {
        return Ok(());
    }
    let request = v1::UpdateActorRequest {
        id: ACTOR.0,
        expected_revision: actor.revision,
        address: actor.address,
        home_context: CONTEXT.0,
        ..Default::default()
    };
    match actors.update_actor(request).await {
        Ok(_) => Ok(()),
        // Another caller is changing the actor right now; its value wins.
        Err(status) if status.code() == Code::Aborted => Ok(()),
        Err(status) => Err(refused(what, status)),
    }
}

/// Registers supervisors whose runners take jobs of context 1, unless they are;
/// `true` for one on this machine. The channel has to carry actor 1.
///
/// # Errors
/// Names the object that cannot be made.
pub async fn register_runners(
    registry: Channel,
    addresses: &[(Address, bool)],
) -> Result<(), BootstrapError> {
    let mut client = RunnerServiceClient::new(registry);
    let list = v1::ListRunnersRequest { context_id: CONTEXT.0, page_size: 1000, ..Default::default() };
    let known =
        client.list_runners(list).await.map_err(|status| refused("the runners", status))?.into_inner();
    for (address, local) in addresses {
        let address = address.to_string();
        if known.runners.iter().any(|runner| runner.address == address) {
            continue;
        }
        let request =
            v1::RegisterRunnerRequest { context_id: CONTEXT.0, address, local: *local, ..Default::default() };
        client.register_runner(request).await.map_err(|status| refused("a runner", status))?;
    }
    Ok(())
}

/// Waits until the registry has seen this many instances at the supervisor of this address: from then on jobs of context 1 are
/// sent there. Waits for nothing where that context has no such runner any more. The channel has to carry actor 1.
///
/// # Errors
/// As the registry's.
pub async fn wait_for_runner(
    registry: Channel,
    address: &Address,
    instances: usize,
) -> Result<(), BootstrapError> {
    let address = address.to_string();
    let watch = v1::WatchRunnersRequest { context_id: CONTEXT.0, ..Default::default() };
    let watching = |status| refused("a watch of the runners", status);
    let mut answers =
        RunnerServiceClient::new(registry).watch_runners(watch).await.map_err(watching)?.into_inner();
    let mut is_there = false;
    while let Some(answer) = answers.message().await.map_err(watching)? {
        match answer.event {
            Some(Event::Runner(runner)) if runner.address == address => {
                is_there = true;
                if runner.live && runner.instances.len() >= instances {
                    break;
                }
            }
            Some(Event::SnapshotEnd(_)) if !is_there => break,
            _ => {}
        }
    }
    Ok(())
}

fn unless_there<T>(what: &'static str, result: Result<T, Status>) -> Result<(), BootstrapError> {
    match result {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::AlreadyExists => Ok(()),
        Err(status) => Err(refused(what, status)),
    }
}

fn refused(what: &'static str, status: Status) -> BootstrapError {
    BootstrapError::Refused { what, status: Box::new(status) }
}
