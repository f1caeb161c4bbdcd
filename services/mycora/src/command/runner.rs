//! `mycora runner`: where jobs can run.

mod lifecycle;
mod watch;

use clap::{Args, Subcommand};
use identity::VerifyingKey;
use model::{Address, ScriptType, Timestamp};
use proto::convert::enums;
use proto::v1;
use uuid::Uuid;

use self::lifecycle::{DELETE_HELP, DRAIN_HELP, UPDATE_HELP};
pub use self::lifecycle::{RunnerDeleteArgs, RunnerDrainArgs, RunnerResumeArgs, RunnerUpdateArgs};
pub use self::watch::RunnerWatchArgs;
use super::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, OutputFormat, json, runners, summary};

/// The context that `mycora up` and `mycora bootstrap` make.
const FIRST_CONTEXT: u32 = 1;

/// Commands about runners.
#[derive(Debug, Subcommand)]
pub enum RunnerCommand {
    /// List the runners of a context, whether they are alive, and what they offer
    #[command(after_help = "Example:\n  mycora runner list --context 1")]
    List,
    /// Show a runner: which jobs it takes, how it is addressed, and its instances
    #[command(after_help = "Example:\n  mycora runner show 2 --context 1")]
    Show(RunnerShowArgs),
    /// Let jobs of a context run on a supervisor
    #[command(after_help = REGISTER_HELP)]
    Register(Box<RunnerRegisterArgs>),
    /// Change the registration of a runner
    #[command(after_help = UPDATE_HELP)]
    Update(Box<RunnerUpdateArgs>),
    /// Send a runner no new jobs of this context
    #[command(after_help = DRAIN_HELP)]
    Drain(RunnerDrainArgs),
    /// Send a runner jobs of this context again after a drain
    #[command(after_help = "Example:\n  mycora runner resume 2")]
    Resume(RunnerResumeArgs),
    /// Take a runner out of the context
    #[command(after_help = DELETE_HELP)]
    Delete(RunnerDeleteArgs),
    /// Follow the runners of a context
    #[command(after_help = watch::HELP)]
    Watch(RunnerWatchArgs),
}

const REGISTER_HELP: &str = "\
For admins of the context. Messages to a supervisor are signed, and so are its answers: with --signing-key only answers signed by this key are accepted, else by the first key that the supervisor presents. --plain is for supervisors without signatures, over a bus only; --secret names a file in the gateway's directory of secrets, whose content is sent with each request.

Examples:
  mycora runner register grpc://node7:7706 --group gpu --label zone=a
  mycora runner register mycelium:[5a1:…] --signing-key 7d4f…
  mycora runner register mycelium:[5a1:…] --plain --secret hero --script-type osis";

/// Arguments of `runner show`.
#[derive(Debug, Args)]
pub struct RunnerShowArgs {
    /// The runner's number
    #[arg(value_parser = values::id)]
    pub id: u32,
}

/// Arguments of `runner register`.
#[derive(Debug, Args)]
pub struct RunnerRegisterArgs {
    /// Where the supervisor is: mycelium:<key>, mycelium:[<ipv6>] or grpc://host:port
    #[arg(value_name = "ADDRESS")]
    pub supervisor: Address,
    /// The topic that requests travel under [default: supervisor.rpc]
    #[arg(long, default_value = "", hide_default_value = true)]
    pub topic: String,
    /// Send it only jobs of this type; may be repeated [default: whatever its instances offer]
    #[arg(long = "script-type", value_name = "TYPE")]
    pub script_types: Vec<ScriptType>,
    /// The group that jobs without one of their own go to
    #[arg(long, default_value = "", hide_default_value = true)]
    pub group: String,
    /// A label that jobs may ask for
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = values::entry)]
    pub labels: Vec<(String, String)>,
    /// The supervisor is on the coordinator's machine
    #[arg(long)]
    pub local: bool,
    /// The key that the supervisor signs with: 64 hex digits
    #[arg(long, value_name = "KEY")]
    pub signing_key: Option<VerifyingKey>,
    /// Send it plain JSON-RPC
    #[arg(long, conflicts_with = "signing_key")]
    pub plain: bool,
    /// Name, at the gateway, of the secret to send with each request
    #[arg(long, value_name = "NAME", requires = "plain")]
    pub secret: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &CliSession, command: &RunnerCommand) -> Result<(), CliError> {
    match command {
        RunnerCommand::List => list(session).await,
        RunnerCommand::Show(RunnerShowArgs { id }) => {
            let answer = session.clients.get_runner(session.context()?, *id).await?;
            let text = || runners::runner(&answer.runner.clone().unwrap_or_default(), Timestamp::now());
            output::answer(session.global.output, || json::of(&answer), text)
        }
        RunnerCommand::Register(args) => register(session, args).await,
        RunnerCommand::Update(args) => lifecycle::update(session, args).await,
        RunnerCommand::Drain(RunnerDrainArgs { id, resume }) => lifecycle::drain(session, *id, *resume).await,
        RunnerCommand::Resume(RunnerResumeArgs { id }) => lifecycle::drain(session, *id, true).await,
        RunnerCommand::Delete(args) => lifecycle::delete(session, args).await,
        RunnerCommand::Watch(args) => watch::run(session, args).await,
    }
}

async fn list(session: &CliSession) -> Result<(), CliError> {
    let context = session.context()?;
    let answer = session.clients.list_runners(context).await?;
    if session.global.output == OutputFormat::Table && answer.runners.is_empty() {
        output::note(&none(context));
        return Ok(());
    }
    output::answer(
        session.global.output,
        || json::of(&answer),
        || summary::runners(&answer.runners, Timestamp::now()),
    )
}

async fn register(session: &CliSession, args: &RunnerRegisterArgs) -> Result<(), CliError> {
    let RunnerRegisterArgs {
        supervisor,
        topic,
        script_types,
        group,
        labels,
        local,
        signing_key,
        plain,
        secret,
    } = args;
    let context_id = session.context()?;
    let envelope = if *plain { v1::EnvelopeForm::Plain } else { v1::EnvelopeForm::Signed };
    let request = v1::RegisterRunnerRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id,
        runner_id: 0,
        address: supervisor.to_string(),
        topic: topic.clone(),
        script_types: script_types.iter().map(|kind| enums::script_type_to_wire(*kind).into()).collect(),
        group: group.clone(),
        labels: labels.iter().cloned().collect(),
        local: *local,
        signing_key: signing_key.as_ref().map(ToString::to_string).unwrap_or_default(),
        envelope: envelope.into(),
        secret_ref: secret.clone().unwrap_or_default(),
    };
    let answer = session.clients.register_runner(&request).await?;
    let text = || {
        let id = answer.runner.as_ref().map_or(0, |runner| runner.id);
        format!(
            "runner {id} is registered; it takes jobs once its supervisor reports, see \
             `mycora runner show {id} --context {context_id}`\n"
        )
    };
    output::answer(session.global.output, || json::of(&answer), text)
}

/// Says that there are no runners, and who makes one: only the first context gets one by itself.
fn none(context: u32) -> String {
    let way = match context {
        FIRST_CONTEXT => "`mycora up` registers one, `mycora bootstrap --runner ADDRESS` others".to_owned(),
        _ => format!(
            "an admin of the context registers one with `mycora runner register ADDRESS --context {context}`"
        ),
    };
    format!("there are no runners in context {context}; {way}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_context_is_given_a_runner() {
        assert!(none(1).contains("`mycora up` registers one"));
        let text = none(2);
        assert!(
            text.starts_with("there are no runners in context 2;") && !text.contains("mycora up"),
            "{text}"
        );
    }
}
