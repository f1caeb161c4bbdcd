//! The first actor, the first context and its runners.

use identity::{ActorKeyPair, Identity};
use model::Address;
use proto::v1;
use proto::v1::actor_service_client::ActorServiceClient;
use proto::v1::context_service_client::ContextServiceClient;
use proto::v1::runner_service_client::RunnerServiceClient;
use rpc::{Channel, LocalHandle};
use tonic::{Code, Status};

use super::UpError;
use super::certificates::{ACTOR, CONTEXT};
use super::directory::DataDir;

const ACTOR_KEY: &str = "actor-1.ed25519";

/// Registers actor 1 and makes context 1, unless they are there.
pub(super) async fn actor_and_context(dir: &DataDir, storage: LocalHandle) -> Result<(), UpError> {
    let path = dir.join(ACTOR_KEY);
    if !path.exists() {
        ActorKeyPair::generate()?.write(&path)?;
    }
    let key = ActorKeyPair::load(&path)?;
    let admin = Channel::local(storage, Identity::Admin);
    let request = v1::RegisterActorRequest { id: ACTOR.0, pubkey: key.public_hex(), ..Default::default() };
    let registered = ActorServiceClient::new(admin.clone()).register_actor(request).await;
    unless_there("actor 1", registered)?;
    let request = v1::CreateContextRequest {
        id: CONTEXT.0,
        admins: vec![ACTOR.0],
        settings: Some(v1::ContextSettings { executors_may_submit: true, raw_publish: true }),
        ..Default::default()
    };
    unless_there("context 1", ContextServiceClient::new(admin).create_context(request).await)
}

/// Registers the supervisors whose runners take jobs of context 1, unless they are.
pub(super) async fn runners(registry: LocalHandle, addresses: &[(Address, bool)]) -> Result<(), UpError> {
    let actor = Channel::local(registry, Identity::Actor(ACTOR));
    let mut client = RunnerServiceClient::new(actor);
    let list = v1::ListRunnersRequest { context_id: CONTEXT.0, page_size: 1000, ..Default::default() };
    let known =
        client.list_runners(list).await.map_err(|status| failed("the runners", &status))?.into_inner();
    for (address, local) in addresses {
        let address = address.to_string();
        if known.runners.iter().any(|runner| runner.address == address) {
            continue;
        }
        let request =
            v1::RegisterRunnerRequest { context_id: CONTEXT.0, address, local: *local, ..Default::default() };
        client.register_runner(request).await.map_err(|status| failed("a runner", &status))?;
    }
    Ok(())
}

fn unless_there<T>(what: &'static str, result: Result<T, Status>) -> Result<(), UpError> {
    match result {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::AlreadyExists => Ok(()),
        Err(status) => Err(failed(what, &status)),
    }
}

fn failed(what: &'static str, status: &Status) -> UpError {
    UpError::Bootstrap { what, message: status.message().to_owned() }
}
