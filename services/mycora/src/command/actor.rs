//! `mycora actor`: identities and keys of actors, and where messages to them are delivered.

mod key;
mod rotation;

use clap::{Args, Subcommand};
use model::Address;
use proto::v1;
use uuid::Uuid;

pub use self::key::{ActorKeyFlags, ActorRegisterArgs};
pub use self::rotation::ActorRotateKeyArgs;
use super::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, OutputFormat, json, objects};

/// Commands about actors.
#[derive(Debug, Subcommand)]
pub enum ActorCommand {
    /// Register an actor with its Ed25519 key
    #[command(after_help = key::REGISTER_HELP)]
    Register(ActorRegisterArgs),
    /// List the actors you may see: yourself and the members of shared contexts; the admin sees all
    #[command(after_help = "Examples:\n  mycora actor list\n  mycora actor list --members --context 3")]
    List(ActorListArgs),
    /// Show the caller's own identity and roles, or an actor with its keys
    #[command(after_help = "Examples:\n  mycora actor show\n  mycora actor show 2 --as admin")]
    Show(ActorShowArgs),
    /// Change where messages to an actor are delivered. Fields that are not named stay as they are
    #[command(after_help = UPDATE_HELP)]
    Update(ActorUpdateArgs),
    /// Rotate an actor's key, and record the new one in the profile
    #[command(after_help = rotation::AFTER_HELP)]
    RotateKey(ActorRotateKeyArgs),
    /// Remove an actor permanently. Refused while it is the only admin of a context
    #[command(after_help = "Example:\n  mycora actor delete 5 --yes --as admin")]
    Delete(ActorDeleteArgs),
}

const UPDATE_HELP: &str = "\
Actors change themselves only, the admin all. Chat and mail that name no context land in the home context; without one they are refused.

Examples:
  mycora actor update 1 --home-context 1
  mycora actor update 1 --at grpc://site-b:7705 --at mycelium:[5a1:…]";

/// Arguments of `actor list`.
#[derive(Debug, Args)]
pub struct ActorListArgs {
    /// Only members of the context
    #[arg(long)]
    pub members: bool,
}

/// Arguments of `actor delete`.
#[derive(Debug, Args)]
pub struct ActorDeleteArgs {
    /// The actor's number, which is never assigned again
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Confirm the removal: its keys and certificates become invalid
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `actor show`.
#[derive(Debug, Args)]
pub struct ActorShowArgs {
    /// The actor's number [default: the actor that the certificate or token names]
    #[arg(value_parser = values::id)]
    pub id: Option<u32>,
}

/// Arguments of `actor update`.
#[derive(Debug, Args)]
pub struct ActorUpdateArgs {
    /// The actor's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Changes to the actor.
    #[command(flatten)]
    pub change: ActorChangeFlags,
}

/// Changes to an actor: at least one.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct ActorChangeFlags {
    /// New delivery address of its messages, replacing the former ones; may be repeated, and they are tried in this order
    #[arg(long = "at", value_name = "ADDRESS")]
    pub addresses: Vec<Address>,
    /// Deliver them here, at this coordinator
    #[arg(long, conflicts_with = "addresses")]
    pub here: bool,
    /// The context of chat and mail that name none
    #[arg(long, value_name = "ID", value_parser = values::id)]
    pub home_context: Option<u32>,
    /// Let it have no home context
    #[arg(long, conflicts_with = "home_context")]
    pub no_home_context: bool,
}

/// Runs the command.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &CliSession, command: &ActorCommand) -> Result<(), CliError> {
    match command {
        ActorCommand::Register(args) => key::register(session, args).await,
        ActorCommand::RotateKey(args) => rotation::run(session, args).await,
        ActorCommand::List(args) => list(session, args).await,
        ActorCommand::Delete(args) => delete(session, args).await,
        ActorCommand::Show(ActorShowArgs { id: None }) => {
            let answer = session.clients.who_am_i().await?;
            output::answer(session.global.output, || json::of(&answer), || objects::who_am_i(&answer))
        }
        ActorCommand::Show(ActorShowArgs { id: Some(id) }) => {
            let answer = session.clients.get_actor(*id).await?;
            let text = || objects::actor(&answer.actor.clone().unwrap_or_default());
            output::answer(session.global.output, || json::of(&answer), text)
        }
        ActorCommand::Update(args) => update(session, args).await,
    }
}

async fn list(session: &CliSession, args: &ActorListArgs) -> Result<(), CliError> {
    let context = if args.members { session.context()? } else { 0 };
    let answer = session.clients.list_actors(context).await?;
    if session.global.output == OutputFormat::Table && answer.actors.is_empty() {
        output::note(
            "there are no actors that you may see; the admin registers some with `mycora actor register`",
        );
        return Ok(());
    }
    output::answer(session.global.output, || json::of(&answer), || objects::actors(&answer.actors))
}

async fn delete(session: &CliSession, ActorDeleteArgs { id, yes }: &ActorDeleteArgs) -> Result<(), CliError> {
    if !yes {
        return Err(CliError::Invalid(format!(
            "this removes actor {id} permanently and invalidates its keys and certificates; confirm with --yes"
        )));
    }
    let request =
        v1::DeleteActorRequest { request_id: Uuid::new_v4().to_string(), id: *id, ..Default::default() };
    let answer = session.clients.delete_actor(&request).await?;
    output::answer(session.global.output, || json::of(&answer), || format!("actor {id} is deleted\n"))
}

/// Reads the actor first, since the change replaces everything; the revision keeps concurrent changes from being lost.
async fn update(session: &CliSession, args: &ActorUpdateArgs) -> Result<(), CliError> {
    let now = session.clients.get_actor(args.id).await?.actor.unwrap_or_default();
    let answer = session.clients.update_actor(&change(args, now)).await?;
    let text = || objects::actor(&answer.actor.clone().unwrap_or_default());
    output::answer(session.global.output, || json::of(&answer), text)
}

/// Builds the update request: the requested changes on top of the actor as it is now.
fn change(args: &ActorUpdateArgs, now: v1::Actor) -> v1::UpdateActorRequest {
    let ActorUpdateArgs { id, change: ActorChangeFlags { addresses, here, home_context, no_home_context } } =
        args;
    v1::UpdateActorRequest {
        request_id: Uuid::new_v4().to_string(),
        id: *id,
        expected_revision: now.revision,
        address: match (here, addresses.as_slice()) {
            (true, _) => Vec::new(),
            (false, []) => now.address,
            (false, new) => new.iter().map(ToString::to_string).collect(),
        },
        home_context: if *no_home_context { 0 } else { home_context.unwrap_or(now.home_context) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct ActorUpdateLine {
        #[command(flatten)]
        args: ActorUpdateArgs,
    }

    #[test]
    fn what_is_not_named_stays() {
        let changed = |flags: &[&str]| {
            let args =
                ActorUpdateLine::try_parse_from([&["update", "3"], flags].concat()).expect("good flags").args;
            let now = v1::Actor {
                id: 3,
                address: vec!["grpc://a:1".into()],
                home_context: 5,
                revision: 9,
                ..Default::default()
            };
            let v1::UpdateActorRequest { id, expected_revision, address, home_context, .. } =
                change(&args, now);
            assert_eq!((id, expected_revision), (3, 9));
            (address.join(" "), home_context)
        };
        assert_eq!(changed(&["--home-context", "7"]), ("grpc://a:1".into(), 7));
        assert_eq!(changed(&["--no-home-context"]), ("grpc://a:1".into(), 0));
        assert_eq!(changed(&["--here"]), (String::new(), 5));
        assert_eq!(
            changed(&["--at", "grpc://b:2", "--at", "grpc://c:3"]),
            ("grpc://b:2 grpc://c:3".into(), 5)
        );
        for wrong in [&["update", "3"][..], &["update", "3", "--here", "--at", "grpc://b:2"]] {
            assert!(ActorUpdateLine::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
