//! Command line: the commands and flags, and how arguments become a command.

use std::process::ExitCode;

use clap::{Args as _, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use service::CommandTrace;

use crate::clients::trace_calls;
use crate::command::actor::ActorCommand;
use crate::command::attempt::AttemptCommand;
use crate::command::bootstrap::BootstrapArgs;
use crate::command::completions::CompletionsArgs;
use crate::command::context::ContextCommand;
use crate::command::demo::DemoArgs;
use crate::command::doctor::DoctorArgs;
use crate::command::down::DownArgs;
use crate::command::flow::FlowCommand;
use crate::command::gateway::GatewayCommand;
use crate::command::job::JobCommand;
use crate::command::message::MessageCommand;
use crate::command::pki::PkiCommand;
use crate::command::runner::RunnerCommand;
use crate::command::saga::SagaArgs;
use crate::command::supervisor::SupervisorCommand;
use crate::command::token::TokenArgs;
use crate::command::up::UpArgs;
use crate::command::{
    CliSession, GlobalFlags, actor, attempt, bootstrap, completions, connection, context, demo, doctor, down,
    flow, gateway, job, message, pki, runner, saga, schema, supervisor, token, up, validate,
};
use crate::failure::{CliError, error_chain};
use crate::output;

const ABOUT: &str = "Run flows of scripts: one binary for every service and for the command line";

const AFTER_HELP: &str = "\
Examples:
  mycora demo
  mycora up --data ./data --detach
  mycora flow validate flow.yaml
  mycora flow submit flow.yaml --env LANG=C.UTF-8 --watch
  mycora flow logs 3 --follow
  mycora flow explain 3 merge
  mycora flow retry 3 --env YEAR=2015 --watch
  mycora job run convert.py --file in.csv=data/in.csv
  mycora message send --to 2 'The report is ready' --wait
  mycora --output json flow get 3

Configuration: flags, then MYCORA_* in the environment, then the profile, a file that `mycora up` writes. `mycora help connection` \
lists the options that select the coordinator and your identity (--config, --as, --context, --address and so on).

Exit codes: 0 done, or the flow finished; 1 the flow failed, was cancelled or did not end in time, or the \
request was refused or names something that does not exist; 2 wrong usage or invalid input; 3 the coordinator cannot be \
reached or started, or this identity is not allowed; 130 interrupted, which leaves the flow running.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "mycora", version = service::version(), about = ABOUT, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Cli {
    /// Flags that every command understands.
    #[command(flatten)]
    pub global: GlobalFlags,
    /// Command to run.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// Commands of `mycora`.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run every service in one process, on a data directory
    #[command(
        after_help = "Examples:\n  mycora up --data ./data --port 7700\n  mycora up --data ./data --detach"
    )]
    Up(Box<UpArgs>),
    /// Stop what `mycora up` started, and wait until it has ended
    #[command(after_help = down::AFTER_HELP)]
    Down(DownArgs),
    /// Show a real flow running through every service, and leave nothing behind
    #[command(after_help = "Example:\n  mycora demo --data ./demo")]
    Demo(DemoArgs),
    /// Check, submit, watch, inspect, cancel and retry flows
    #[command(subcommand)]
    Flow(FlowCommand),
    /// Run one job without a flow file; store jobs for use in flows
    #[command(subcommand)]
    Job(JobCommand),
    /// Put sagas in force; start, watch, inspect and control their instances
    Saga(Box<SagaArgs>),
    /// Create and change contexts; show roles and the audit log
    #[command(subcommand)]
    Context(ContextCommand),
    /// Send, read and receive chat and mail; list undeliverable messages
    #[command(subcommand)]
    Message(MessageCommand),
    /// Register actors and their keys; show an actor's identity and where its messages are delivered
    #[command(subcommand)]
    Actor(ActorCommand),
    /// Show how the gateway reaches other machines, and ping one of them
    #[command(subcommand)]
    Gateway(GatewayCommand),
    /// Show and register where jobs can run
    #[command(subcommand)]
    Runner(RunnerCommand),
    /// Operate a machine that runs jobs: status, drain, full logs
    #[command(subcommand)]
    Supervisor(SupervisorCommand),
    /// Run, watch and stop single attempts directly on a machine, without a coordinator
    #[command(subcommand)]
    Attempt(AttemptCommand),
    /// Create the first actor, context and runners of a suite of separate processes
    #[command(
        after_help = "Example:\n  mycora bootstrap --admin pki/admin.pem --runner grpc://127.0.0.1:7706"
    )]
    Bootstrap(BootstrapArgs),
    /// Create certificates for development
    #[command(subcommand)]
    Pki(PkiCommand),
    /// Diagnose this installation, and say how to fix what is wrong
    #[command(after_help = doctor::AFTER_HELP)]
    Doctor(DoctorArgs),
    /// Create a bearer token, for grpcurl and other programs
    #[command(after_help = token::AFTER_HELP)]
    Token(TokenArgs),
    /// Show how the coordinator is reached, and as whom
    #[command(after_help = connection::AFTER_HELP)]
    Connection,
    /// Print the completion script of a shell
    #[command(after_help = completions::AFTER_HELP)]
    Completions(CompletionsArgs),
}

/// Last line of the help of every command that calls a coordinator.
const CONNECTION_HELP: &str = "Connection options: mycora help connection";
/// Commands that ask none.
const ALONE: [&str; 6] = ["up", "down", "demo", "pki", "completions", "connection"];

/// The command line as it is typed. Every command takes the connection options, but only one help page lists them.
#[must_use]
pub fn command() -> clap::Command {
    let is_of_connection = |arg: &clap::Arg| arg.get_help_heading() == Some("Connection");
    let command = Cli::command()
        .mut_subcommand("connection", with_connection)
        .mut_args(|arg| if is_of_connection(&arg) { arg.hide(true) } else { arg });
    let asking = |command: &clap::Command| !ALONE.contains(&command.get_name());
    command.mut_subcommands(|command| if asking(&command) { with_reference(command) } else { command })
}

/// Adds the connection options to the help of this command, and keeps its description.
fn with_connection(command: clap::Command) -> clap::Command {
    let about = command.get_about().cloned().unwrap_or_default();
    GlobalFlags::augment_args(command).about(about)
}

fn with_reference(command: clap::Command) -> clap::Command {
    let before = command.get_after_help().map(|help| format!("{help}\n\n")).unwrap_or_default();
    let command = command.after_help(format!("{before}{CONNECTION_HELP}"));
    command.mut_subcommands(with_reference)
}

/// Reads the arguments of the process, does what they say, and gives the exit code.
///
/// Invalid arguments, `--help` and `--version` end the process here.
#[must_use]
pub fn main() -> ExitCode {
    let typed = command().get_matches();
    let Cli { global, command } = match Cli::from_arg_matches(&typed) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if matches!(command, CliCommand::Up(_) | CliCommand::Demo(_)) {
        // These commands serve. A command that only calls others reports a panic and ends with it.
        service::abort_on_panic();
    }
    if global.raw {
        output::terminal::let_raw_through();
    }
    if let Err(failure) = close_up(&command) {
        output::note(&failure.to_string());
        return failure.exit_code().into();
    }
    let result = tokio::runtime::Runtime::new()
        .map_err(|error| CliError::Failed(format!("cannot start: {error}")))
        .and_then(|runtime| runtime.block_on(run_traced(&typed, global, command)));
    let code = match result {
        Ok(code) => code,
        Err(failure) => {
            output::note(&failure.to_string());
            failure.exit_code()
        }
    };
    output::finish();
    code.into()
}

/// Closes files and memory of a process that is to be a whole suite, and has it give back what it frees, before it has threads.
fn close_up(command: &CliCommand) -> Result<(), CliError> {
    let allow_core = match command {
        CliCommand::Up(args) => args.allow_core,
        CliCommand::Demo(_) => false,
        _ => return Ok(()),
    };
    service::close_new_files();
    if allow_core {
        return Ok(());
    }
    service::close_memory()
        .map_err(|error| CliError::Failed(format!("its memory cannot be closed to others: {error}")))
}

/// Does what the arguments say, in the trace of the program that started this one. A command that asks a coordinator has a span of
/// its own where the environment names a collector.
async fn run_traced(
    typed: &clap::ArgMatches,
    global: GlobalFlags,
    command: CliCommand,
) -> Result<u8, CliError> {
    if typed.subcommand_name().is_none_or(|name| ALONE.contains(&name)) {
        return Box::pin(run(global, command)).await;
    }
    let trace = CommandTrace::begin(name_of(typed)).unwrap_or_else(|error| {
        output::note(&format!("no trace is sent: {}", error_chain(&error)));
        CommandTrace::unrecorded()
    });
    trace_calls(trace.at());
    let result = Box::pin(run(global, command)).await;
    let code = result.as_ref().map_or_else(CliError::exit_code, |code| *code);
    trace.end(code).await;
    result
}

/// Returns the name of a command as it is typed, without arguments: `mycora flow submit`.
fn name_of(typed: &clap::ArgMatches) -> String {
    let chosen = std::iter::successors(typed.subcommand(), |(_, below)| below.subcommand());
    chosen.fold("mycora".to_owned(), |name, (command, _)| format!("{name} {command}"))
}

/// Does what the arguments say; gives the exit code.
///
/// # Errors
/// When it cannot be done.
pub async fn run(global: GlobalFlags, command: CliCommand) -> Result<u8, CliError> {
    match command {
        CliCommand::Up(args) => Box::pin(up::run(*args, &global)).await,
        CliCommand::Down(args) => down::run(&args, &global).await,
        CliCommand::Demo(args) => Box::pin(demo::run(&args, global)).await,
        CliCommand::Pki(command) => pki::run(&command, global.output).map(|()| 0),
        CliCommand::Doctor(args) => doctor::run(&args, &global).await,
        CliCommand::Token(args) => token::run(&args, &global).map(|()| 0),
        CliCommand::Connection => connection::run(&global).map(|()| 0),
        CliCommand::Completions(args) => completions::run(&args).map(|()| 0),
        CliCommand::Flow(FlowCommand::Validate(args)) => validate::run(&args, global.output).map(|()| 0),
        CliCommand::Flow(FlowCommand::Schema) => schema::run().map(|()| 0),
        CliCommand::Bootstrap(args) => {
            in_session(global, async |session| bootstrap::run(&args, session).await).await
        }
        CliCommand::Flow(command) => {
            in_session(global, async |session| flow::run(session, command).await).await
        }
        CliCommand::Job(command) => {
            in_session(global, async |session| job::run(session, &command).await).await
        }
        CliCommand::Saga(args) if args.is_alone() => saga::run_alone(&args, global.output),
        CliCommand::Saga(args) => in_session(global, async |session| saga::run(session, *args).await).await,
        CliCommand::Context(command) => {
            in_session(global, async |session| context::run(session, &command).await.map(|()| 0)).await
        }
        CliCommand::Message(command) => {
            in_session(global, async |session| message::run(session, &command).await).await
        }
        CliCommand::Actor(command) => {
            in_session(global, async |session| actor::run(session, &command).await.map(|()| 0)).await
        }
        CliCommand::Gateway(command) => {
            in_session(global, async |session| gateway::run(session, &command).await.map(|()| 0)).await
        }
        CliCommand::Runner(command) => {
            in_session(global, async |session| runner::run(session, &command).await.map(|()| 0)).await
        }
        CliCommand::Supervisor(command) => {
            in_session(global, async |session| supervisor::run(session, &command).await.map(|()| 0)).await
        }
        CliCommand::Attempt(command) => {
            in_session(global, async |session| attempt::run(session, &command).await).await
        }
    }
}

/// Does what needs a coordinator.
async fn in_session(
    global: GlobalFlags,
    run: impl AsyncFnOnce(&CliSession) -> Result<u8, CliError>,
) -> Result<u8, CliError> {
    let session = CliSession::open(global)?;
    let result = run(&session).await;
    result.map_err(|failure| failure.with_certificate(session.profile().cert.as_deref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = command.has_subcommands() || help.contains("Example");
            assert!(example, "`{}` has no example", command.get_name());
        }
    }

    /// A command with an argument named like a global flag would panic when it is used.
    #[test]
    fn no_command_takes_the_name_of_a_flag_of_all() {
        let cli = Cli::command();
        let of_all: Vec<_> = cli.get_arguments().map(|argument| argument.get_id().clone()).collect();
        let mut commands: Vec<_> = cli.get_subcommands().cloned().collect();
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            for argument in command.get_arguments() {
                let (command, argument) = (command.get_name(), argument.get_id());
                assert!(!of_all.contains(argument), "`{command}` has a `{argument}` of its own");
            }
        }
    }

    #[test]
    fn connection_options_are_listed_by_one_command_and_accepted_by_all() {
        let help = |path: &[&str]| {
            let mut all = command();
            all.build();
            let found = path.iter().try_fold(&mut all, |command, name| command.find_subcommand_mut(name));
            found.expect("a command").render_long_help().to_string()
        };
        let connection = help(&["connection"]);
        for path in [&[][..], &["flow"], &["flow", "submit"], &["runner", "list"]] {
            let help = help(path);
            assert!(
                !help.contains("--token-key") && help.contains("mycora help connection"),
                "{path:?}: {help}"
            );
        }
        for flag in ["--as", "--context", "--config", "--address", "--ca", "--token-key", "--server-name"] {
            assert!(connection.contains(&format!("{flag} <")), "{connection}");
            // The flag is accepted at any position, also by the command that lists it.
            let value = if flag == "--context" { "7" } else { "x" };
            for arguments in [["flow", "list", flag, value], ["flow", flag, value, "list"]] {
                let matches = command().try_get_matches_from([&["mycora"][..], &arguments].concat());
                Cli::from_arg_matches(&matches.expect("it is taken")).expect("it is understood");
            }
            let shown = command().try_get_matches_from(["mycora", "connection", flag, value]);
            let cli = Cli::from_arg_matches(&shown.expect("it is taken")).expect("it is understood");
            assert!(
                format!("{:?}", cli.global).contains(&format!("Some(\"{value}\")")) || flag == "--context"
            );
        }
    }

    #[test]
    fn flags_may_stand_anywhere() {
        for arguments in [
            ["mycora", "--output", "json", "flow", "get", "3"],
            ["mycora", "flow", "--output", "json", "get", "3"],
            ["mycora", "flow", "get", "3", "--output", "json"],
        ] {
            let cli = Cli::try_parse_from(arguments).expect("good arguments");
            assert_eq!(cli.global.output, crate::output::OutputFormat::Json);
        }
    }
}
