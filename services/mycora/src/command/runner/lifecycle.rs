//! `mycora runner update`, `drain`, `resume` and `delete`.

use clap::Args;
use identity::VerifyingKey;
use model::{Address, ScriptType, Timestamp};
use proto::convert::enums;
use proto::v1;
use uuid::Uuid;

use crate::command::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, json, runners};

pub(super) const UPDATE_HELP: &str = "\
For admins of the context. What is not named stays as it is. Running jobs continue; after a change of address they are reported only if the same supervisor answers there.

Examples:
  mycora runner update 2 --label zone=b --no-label gpu
  mycora runner update 2 --at grpc://node8:7706 --any-script-type";

pub(super) const DRAIN_HELP: &str = "\
For admins of the context. The supervisor finishes the jobs it has accepted; those not sent yet go to other runners where they may. `mycora supervisor drain` drains a whole machine, for all contexts and coordinators.

Examples:
  mycora runner drain 2
  mycora runner resume 2";

pub(super) const DELETE_HELP: &str = "\
For admins of the context. The supervisor finishes the jobs it has accepted, and its reports are accepted until then. Jobs that ask for this runner wait. Its number is free again after 7 days.

Example:
  mycora runner delete 2 --context 1";

/// Arguments of `runner update`.
#[derive(Debug, Args)]
pub struct RunnerUpdateArgs {
    /// The runner's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Changes to the runner.
    #[command(flatten)]
    pub change: RunnerChangeFlags,
}

/// Changes to a runner: at least one.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct RunnerChangeFlags {
    /// Where the supervisor is: mycelium:<key>, mycelium:[<ipv6>] or grpc://host:port
    #[arg(id = "at", long = "at", value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// The topic that requests travel under
    #[arg(long)]
    pub topic: Option<String>,
    /// Send it only jobs of this type, instead of those before; may be repeated
    #[arg(long = "script-type", value_name = "TYPE")]
    pub script_types: Vec<ScriptType>,
    /// Send it whatever its instances offer
    #[arg(long, conflicts_with = "script_types")]
    pub any_script_type: bool,
    /// The group that jobs without one of their own go to
    #[arg(long)]
    pub group: Option<String>,
    /// Send jobs without a group to the types' shared queues
    #[arg(long, conflicts_with = "group")]
    pub no_group: bool,
    /// A label that jobs may ask for, besides those they could before
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = values::entry)]
    pub labels: Vec<(String, String)>,
    /// A label that jobs may not ask for any more
    #[arg(long = "no-label", value_name = "NAME")]
    pub no_labels: Vec<String>,
    /// The key that the supervisor signs with: 64 hex digits
    #[arg(long, value_name = "KEY")]
    pub signing_key: Option<VerifyingKey>,
    /// Trust the first key that the supervisor presents
    #[arg(long, conflicts_with = "signing_key")]
    pub any_signing_key: bool,
    /// Send it plain JSON-RPC
    #[arg(long, conflicts_with = "signing_key")]
    pub plain: bool,
    /// Send it signed envelopes
    #[arg(long, conflicts_with_all = ["plain", "secret"])]
    pub signed: bool,
    /// Name, at the gateway, of the secret to send with each plain request
    #[arg(long, value_name = "NAME")]
    pub secret: Option<String>,
}

/// Arguments of `runner drain`.
#[derive(Debug, Args)]
pub struct RunnerDrainArgs {
    /// The runner's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Same as `runner resume`.
    #[arg(long, hide = true)]
    pub resume: bool,
}

/// Arguments of `runner resume`.
#[derive(Debug, Args)]
pub struct RunnerResumeArgs {
    /// The runner's number
    #[arg(value_parser = values::id)]
    pub id: u32,
}

/// Arguments of `runner delete`.
#[derive(Debug, Args)]
pub struct RunnerDeleteArgs {
    /// The runner's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Accepted as with every `delete`; only those of actors and contexts need it
    #[arg(long)]
    pub yes: bool,
}

pub(super) async fn update(session: &CliSession, args: &RunnerUpdateArgs) -> Result<(), CliError> {
    let context_id = session.context()?;
    let now = session.clients.get_runner(context_id, args.id).await?.runner.unwrap_or_default();
    let answer = session.clients.update_runner(&changed(context_id, &args.change, now)).await?;
    let text = || runners::runner(&answer.runner.clone().unwrap_or_default(), Timestamp::now());
    output::answer(session.global.output, || json::of(&answer), text)
}

/// Builds the update request: the requested changes on top of the runner as it is now.
fn changed(context_id: u32, change: &RunnerChangeFlags, now: v1::Runner) -> v1::UpdateRunnerRequest {
    let mut labels = now.labels;
    labels.retain(|name, _| !change.no_labels.contains(name));
    labels.extend(change.labels.iter().cloned());
    let script_types = match (change.any_script_type, change.script_types.as_slice()) {
        (true, _) => Vec::new(),
        (false, []) => now.script_types,
        (false, new) => new.iter().map(|kind| enums::script_type_to_wire(*kind).into()).collect(),
    };
    let (envelope, secret_ref, known_key) = if change.plain {
        (v1::EnvelopeForm::Plain.into(), now.secret_ref, String::new())
    } else if change.signed {
        (v1::EnvelopeForm::Signed.into(), String::new(), now.signing_key)
    } else {
        (now.envelope, now.secret_ref, now.signing_key)
    };
    let signing_key = match &change.signing_key {
        Some(key) => key.to_string(),
        None if change.any_signing_key => String::new(),
        None => known_key,
    };
    v1::UpdateRunnerRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id,
        runner_id: now.id,
        expected_revision: now.revision,
        address: change.address.as_ref().map_or(now.address, ToString::to_string),
        topic: change.topic.clone().unwrap_or(now.topic),
        script_types,
        group: if change.no_group { String::new() } else { change.group.clone().unwrap_or(now.group) },
        labels,
        local: now.local,
        signing_key,
        envelope,
        secret_ref: change.secret.clone().unwrap_or(secret_ref),
    }
}

pub(super) async fn drain(session: &CliSession, id: u32, resume: bool) -> Result<(), CliError> {
    let request = v1::DrainRunnerRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: session.context()?,
        runner_id: id,
        expected_revision: 0,
        resume,
    };
    let answer = session.clients.drain_runner(&request).await?;
    let text = || match resume {
        true => format!("runner {id} is sent jobs again\n"),
        false => format!("runner {id} is sent no new jobs; what it has accepted ends there\n"),
    };
    output::answer(session.global.output, || json::of(&answer), text)
}

pub(super) async fn delete(session: &CliSession, args: &RunnerDeleteArgs) -> Result<(), CliError> {
    let request = v1::DeleteRunnerRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: session.context()?,
        runner_id: args.id,
        expected_revision: 0,
    };
    let answer = session.clients.delete_runner(&request).await?;
    let text = || format!("runner {} is deleted; what it has accepted ends there\n", args.id);
    output::answer(session.global.output, || json::of(&answer), text)
}
