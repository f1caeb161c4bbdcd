//! `mycora supervisor`: one machine that runs jobs.

use std::time::Duration;

use clap::{Args, Subcommand};
use identity::VerifyingKey;
use proto::v1;

use super::CliSession;
use super::attempt::{self, AttemptLogsArgs};
use crate::failure::CliError;
use crate::output::{self, OutputFormat, json, labels, summary, table};

/// Between two looks at how far a drain is.
const WAIT: Duration = Duration::from_secs(1);

/// Commands about a supervisor: that at `supervisor` below `[addresses]` of the profile, else at its `address`.
#[derive(Debug, Subcommand)]
pub enum SupervisorCommand {
    /// Show whether it accepts jobs, and how many wait and run
    #[command(after_help = "Example:\n  mycora supervisor show --address https://node7:7706")]
    Show,
    /// List its instances, with the isolation of their scripts
    #[command(after_help = "Example:\n  mycora supervisor instances --output json")]
    Instances,
    /// Drain the machine: accept no new jobs, hand back those that wait, end each instance when its scripts have ended
    #[command(after_help = DRAIN_HELP)]
    Drain(SupervisorDrainArgs),
    /// Accept jobs again after a drain
    #[command(
        after_help = "Instances that have ended are not started by this command and must be started separately. Needs the admin's certificate.\n\n\
                      Example:\n  mycora supervisor resume --as admin"
    )]
    Resume,
    /// Print the kept output of an attempt, as `mycora attempt logs` does
    #[command(after_help = attempt::LOGS_HELP)]
    Logs(AttemptLogsArgs),
    /// Replace a coordinator's root key by another, without the signature of the old one
    #[command(after_help = SUCCEED_HELP)]
    Succeed(Box<SupervisorSucceedArgs>),
}

const SUCCEED_HELP: &str = "\
For a root key that is lost or compromised; `mycora pki change-root` makes a new one that the old one signs. From now on contexts and jobs of OLD belong to NEW, and OLD is refused. If the supervisor's policy names OLD among its coordinators, add NEW there first; `--coordinator OLD` then accepts NEW as well. May be repeated. Needs the admin's certificate.

Example:
  mycora supervisor succeed 3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c \\
    fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025 --as admin";

const DRAIN_HELP: &str = "\
The drain lasts until `mycora supervisor resume`, also across restarts. Instances end with it; when their operator starts them again, they wait for the resume. Without --deadline jobs have the drain time of their instance: 10 s in `mycora up`, 18 s by default at a `mycora-runner`. A repetition can shorten the deadline of jobs that run, and cannot extend it. Needs the admin's certificate.

Example:
  mycora supervisor drain --deadline 300 --wait --as admin";

/// Arguments of `supervisor drain`.
#[derive(Debug, Args)]
pub struct SupervisorDrainArgs {
    /// End what still runs after this time, and report it as lost [default: each instance's own drain time, seconds]
    #[arg(long, value_name = "SECS")]
    pub deadline: Option<u32>,
    /// Return when nothing waits or runs any more
    #[arg(long)]
    pub wait: bool,
}

/// Arguments of `supervisor succeed`.
#[derive(Debug, Args)]
pub struct SupervisorSucceedArgs {
    /// The root key that is not to be believed any more: 64 hex digits
    pub old: VerifyingKey,
    /// The root key from now on
    pub new: VerifyingKey,
}

/// Runs the command.
///
/// # Errors
/// When the supervisor cannot be reached or refuses.
pub async fn run(session: &CliSession, command: &SupervisorCommand) -> Result<(), CliError> {
    match command {
        SupervisorCommand::Show => show(session, &session.clients.get_supervisor().await?),
        SupervisorCommand::Instances => instances(session).await,
        SupervisorCommand::Drain(args) => drain(session, args).await,
        SupervisorCommand::Resume => {
            session.clients.resume().await?;
            show(session, &session.clients.get_supervisor().await?)
        }
        SupervisorCommand::Logs(args) => attempt::logs(session, args).await,
        SupervisorCommand::Succeed(args) => succeed(session, args).await,
    }
}

fn show(session: &CliSession, supervisor: &v1::GetSupervisorResponse) -> Result<(), CliError> {
    output::answer(session.global.output, || json::of(supervisor), || summary::supervisor(supervisor))
}

async fn instances(session: &CliSession) -> Result<(), CliError> {
    let answer = session.clients.list_instances().await?;
    if session.global.output == OutputFormat::Table && answer.instances.is_empty() {
        output::note("there are no instances; `mycora-runner` starts some");
        return Ok(());
    }
    output::answer(session.global.output, || json::of(&answer), || summary::instances(&answer.instances))?;
    if session.global.output == OutputFormat::Table && answer.left_out > 0 {
        output::note(&format!("… and {} more", answer.left_out));
    }
    Ok(())
}

async fn drain(session: &CliSession, args: &SupervisorDrainArgs) -> Result<(), CliError> {
    session.clients.drain(args.deadline).await?;
    let supervisor = if args.wait {
        tokio::select! {
            drained = drained(session) => drained?,
            pressed = tokio::signal::ctrl_c() => return Err(match pressed {
                Ok(()) => CliError::Interrupted(
                    "the drain continues; see its progress with `mycora supervisor show`".to_owned()
                ),
                Err(error) => CliError::Failed(format!("cannot wait for signals: {error}")),
            }),
        }
    } else {
        session.clients.get_supervisor().await?
    };
    show(session, &supervisor)
}

/// Waits until nothing waits or runs.
async fn drained(session: &CliSession) -> Result<v1::GetSupervisorResponse, CliError> {
    let mut last_left = None;
    loop {
        let supervisor = session.clients.get_supervisor().await?;
        if !supervisor.draining {
            return Err(CliError::Failed("the drain was ended by `mycora supervisor resume`".to_owned()));
        }
        let left = supervisor.queued + supervisor.running;
        if left == 0 {
            return Ok(supervisor);
        }
        if last_left != Some(left) && !session.global.quiet {
            let count = usize::try_from(left).unwrap_or(usize::MAX);
            output::note(&format!("{} left", labels::count(count, "job is", "jobs are")));
        }
        last_left = Some(left);
        tokio::time::sleep(WAIT).await;
    }
}

async fn succeed(session: &CliSession, args: &SupervisorSucceedArgs) -> Result<(), CliError> {
    let request = v1::SucceedCoordinatorRequest {
        old_coordinator: args.old.to_string(),
        new_coordinator: args.new.to_string(),
    };
    let passed = session.clients.succeed_coordinator(request).await?;
    let text = || {
        let counts = [("contexts", passed.contexts), ("jobs", passed.jobs)];
        table::pairs(&counts.map(|(name, count)| (name, count.to_string())))
    };
    output::answer(session.global.output, || json::of(&passed), text)
}
