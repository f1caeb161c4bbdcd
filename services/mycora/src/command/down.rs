//! `mycora down`: ends what `mycora up` started.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use crate::command::GlobalFlags;
use crate::failure::{CliError, error_chain};
use crate::output::{self, time};
use crate::profile::default_data_dir;
use crate::up::{self, DataDirOwner, UpError};

/// Longer than an end takes: jobs, calls and Redis have ten seconds each.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shown below the options.
pub const AFTER_HELP: &str = "\
Running jobs have 10 s to end; flows continue with the next `mycora up`. While it stops, a second `mycora down` stops it at \
once.

Example:
  mycora down --data ./data";

/// Arguments of `down`.
#[derive(Debug, Args)]
pub struct DownArgs {
    /// The directory it was started with [default: $XDG_DATA_HOME/mycora, or ~/.local/share/mycora]
    #[arg(long, value_name = "DIR", env = "MYCORA_DATA")]
    pub data: Option<PathBuf>,
}

/// Ends the all-in-one that has the directory, and waits until it has ended. That none has it is no failure.
///
/// # Errors
/// When the directory is none of `mycora up`, its owner cannot be identified, or the owner does not end.
pub async fn run(args: &DownArgs, global: &GlobalFlags) -> Result<u8, CliError> {
    let dir = match &args.data {
        Some(dir) => dir.clone(),
        None => default_data_dir()?,
    };
    let shown = dir.display();
    let document = |pid: Option<u32>| json!({ "data": &dir, "ended": pid.is_some(), "pid": pid });
    let process = match up::owner(&dir).map_err(|error| failed(&error))? {
        DataDirOwner::Process(process) => process,
        DataDirOwner::None => {
            output::answer(global.output, || document(None), || format!("nothing runs on {shown}\n"))?;
            return Ok(0);
        }
        DataDirOwner::Unknown => {
            return Err(CliError::Failed(format!(
                "{shown} is in use by a process that cannot be identified: it is just starting, or it runs in another container or as an \
                 older version; try again, or end it where it was started"
            )));
        }
    };
    let pid = process.pid;
    if !global.quiet {
        output::note(&format!("ending process {pid}; jobs that run have 10 s to end"));
    }
    let began = Instant::now();
    process.finish(PATIENCE).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::TimedOut => CliError::Failed(format!(
            "process {pid} has not ended within {} s; its log says why, {shown}/{} if it has no terminal. Another `mycora down` ends \
             it at once",
            PATIENCE.as_secs(),
            up::LOG,
        )),
        _ => CliError::Failed(format!("process {pid} cannot be ended: {error}")),
    })?;
    let took = time::duration(began.elapsed());
    output::answer(
        global.output,
        || document(Some(pid)),
        || format!("ended after {took}; {shown} is kept\n"),
    )?;
    Ok(0)
}

fn failed(error: &UpError) -> CliError {
    match error {
        UpError::NoDirectory { .. } => CliError::Invalid(error.to_string()),
        _ => CliError::Failed(error_chain(error)),
    }
}
