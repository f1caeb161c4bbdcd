//! `mycora attempt run`: what a machine does with a script, tried out.

use clap::Args;
use model::Isolation;
use proto::convert::enums;
use proto::v1;
use uuid::Uuid;

use super::{exit_code, interrupted, within};
use crate::command::CliSession;
use crate::command::job::ScriptSourceArgs;
use crate::failure::CliError;
use crate::output::{self, OutputFormat, attempt as shown, json, summary};

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
The machine treats it as a job of a coordinator: it waits in the same queues, and the machine's policy applies. No coordinator knows of it. Needs the admin's certificate.

Examples:
  mycora attempt run check.py --timeout 60 --as admin
  mycora attempt run --type shell --script 'nvidia-smi' --group gpu --detach --as admin

Exit codes: 0 it completed, or was started with --detach; 1 it did not, or not within --wait.";

/// Arguments of `attempt run`.
#[derive(Debug, Args)]
pub struct AttemptRunArgs {
    /// Script to run.
    #[command(flatten)]
    pub source: ScriptSourceArgs,
    /// Run time in seconds [default: 3600]
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
    /// Run it on instances of this group only
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub group: String,
    /// Run it on this instance of the group only
    #[arg(long, value_name = "N", requires = "group")]
    pub instance: Option<u32>,
    /// The isolation that it needs at least: basic, confined or contained [default: basic]
    #[arg(long, value_name = "LEVEL")]
    pub isolation: Option<Isolation>,
    /// Let it use the network
    #[arg(long)]
    pub network: bool,
    /// Wait at most this many seconds for its end [default: until it has ended]
    #[arg(long, value_name = "SECS")]
    pub wait: Option<u32>,
    /// Only start it
    #[arg(long, conflicts_with = "wait")]
    pub detach: bool,
    /// Makes it repeatable: the same id with the same script starts one attempt only
    #[arg(long, value_name = "UUID")]
    pub request_id: Option<Uuid>,
}

pub(super) async fn run(session: &CliSession, args: &AttemptRunArgs) -> Result<u8, CliError> {
    let started = session.clients.run_attempt(&request(args)?).await?;
    let attempt = started.attempt.clone().unwrap_or_default();
    let key = attempt.job_key;
    if args.detach {
        let text = || format!("attempt {key} is accepted; see `mycora attempt wait {key}`\n");
        return output::answer(session.global.output, || json::of(&started), text).map(|()| 0);
    }
    let both = async {
        let (answer, ()) = tokio::try_join!(session.clients.wait_attempt(&key), printed(session, &key))?;
        Ok(answer)
    };
    let Some(answer) = interrupted(within(args.wait, both), &key).await? else {
        let waited = args.wait.unwrap_or_default();
        output::note(&format!(
            "attempt {key} has not ended after {waited} s; see `mycora attempt wait {key}`"
        ));
        if session.global.output != OutputFormat::Table {
            let answer = session.clients.get_attempt(key).await?;
            output::answer(session.global.output, || json::of(&answer), String::new)?;
        }
        return Ok(1);
    };
    let attempt = answer.attempt.clone().unwrap_or_default();
    if session.global.output == OutputFormat::Table && !session.global.quiet {
        output::note(&shown::outcome(&attempt));
    }
    output::answer(session.global.output, || json::of(&answer), || summary::result(&attempt.result))?;
    Ok(exit_code(&attempt))
}

fn request(args: &AttemptRunArgs) -> Result<v1::RunAttemptRequest, CliError> {
    let (script, script_type) = args.source.read()?;
    let isolation = args.isolation.map_or(v1::Isolation::Unspecified, enums::isolation_to_wire);
    Ok(v1::RunAttemptRequest {
        request_id: args.request_id.unwrap_or_else(Uuid::new_v4).to_string(),
        script_type: enums::script_type_to_wire(script_type).into(),
        script,
        env_vars: args.source.env.iter().cloned().collect(),
        timeout_secs: args.timeout.unwrap_or_default(),
        group: args.group.clone(),
        instance: args.instance,
        isolation: isolation.into(),
        network: args.network,
    })
}

/// Shows what it prints until it has ended: beside the answer, where that is a document.
async fn printed(session: &CliSession, key: &str) -> Result<(), CliError> {
    if session.global.quiet && session.global.output != OutputFormat::Table {
        return Ok(());
    }
    let request = v1::StreamAttemptLogsRequest { job_key: key.to_owned(), offset: 0, follow: true };
    let mut pieces = session.clients.stream_attempt_logs(request).await?;
    while let Some(piece) = pieces.next().await? {
        match session.global.output {
            OutputFormat::Table => output::print_bytes(piece.text.as_bytes())?,
            OutputFormat::Json | OutputFormat::Yaml => output::note_bytes(piece.text.as_bytes()),
        }
    }
    Ok(())
}
