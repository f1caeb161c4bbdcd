//! Configuration of a runner.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use model::{Isolation, Name, ScriptType};
use sandbox::{IsolationLayers, SandboxLauncher};

/// The runner's own flags.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// The supervisor's Redis: redis://host:port/database or unix:///socket?db=database
    #[arg(
        long,
        env = "MYCORA_REDIS_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379",
        value_parser = queue::parse_endpoint
    )]
    pub redis_url: kv::KvEndpoint,
    /// File with the password for Redis, so that the password is in no URL
    #[arg(long, env = "MYCORA_REDIS_PASSWORD_FILE", value_name = "FILE")]
    pub redis_password_file: Option<PathBuf>,
    /// User for Redis, used together with the password file
    #[arg(long, env = "MYCORA_REDIS_USER", value_name = "NAME", requires = "redis_password_file")]
    pub redis_user: Option<String>,
    /// Script types to execute [default: all types that the machine has the tools for]
    #[arg(long = "types", env = "MYCORA_TYPES", value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<ScriptType>,
    /// The group of this instance
    #[arg(long, env = "MYCORA_GROUP", value_name = "NAME", default_value = "default")]
    pub group: Name,
    /// The number of this instance within its group
    #[arg(long, env = "MYCORA_INSTANCE", value_name = "NUMBER", default_value_t = 1)]
    pub instance: u32,
    /// How many jobs of each type to run at once
    #[arg(long, env = "MYCORA_SLOTS", value_name = "COUNT", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub slots: u32,
    /// Where jobs get their directories, shared with the supervisor of this machine
    #[arg(long, env = "MYCORA_WORK_DIR", value_name = "DIR", default_value = "/var/lib/mycora/work")]
    pub work_dir: PathBuf,
    /// How scripts are run.
    #[command(flatten)]
    pub scripts: ScriptFlags,
}

/// Flags on how scripts are run, shared by all programs that start a runner.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ScriptFlags {
    /// Isolation that this machine must support, or the start fails: basic, confined or contained
    #[arg(long, env = "MYCORA_ISOLATION", value_name = "LEVEL", default_value = "basic")]
    pub isolation: Isolation,
    /// Let scripts read this directory; may be repeated
    #[arg(long, env = "MYCORA_ALLOW_READ", value_name = "DIR", value_delimiter = ',')]
    pub allow_read: Vec<PathBuf>,
    /// Let scripts read and write this directory; may be repeated
    #[arg(long, env = "MYCORA_ALLOW_WRITE", value_name = "DIR", value_delimiter = ',')]
    pub allow_write: Vec<PathBuf>,
    /// The first of 65,536 user ids that the scripts of contexts run as, one each, where the runner is root
    /// [default: chosen once for each work directory]
    #[arg(long, env = "MYCORA_UID_BASE", value_name = "UID",
          value_parser = clap::value_parser!(u32).range(1000..=4_294_000_000))]
    pub uid_base: Option<u32>,
    /// Free bytes of the work directory's file system below which the job that holds the most is ended; below a quarter of them
    /// no job starts; 0 turns both off [default: 1 GiB, or 5 % of a file system where that is less]
    #[arg(long, env = "MYCORA_DISK_FLOOR", value_name = "BYTES")]
    pub disk_floor: Option<u64>,
    /// Keep python warm for each context, which takes some memory and saves most of the time of short jobs
    #[arg(long, env = "MYCORA_WARM", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub warm: bool,
}

impl Default for ScriptFlags {
    fn default() -> Self {
        Self {
            isolation: Isolation::Basic,
            allow_read: Vec::new(),
            allow_write: Vec::new(),
            uid_base: None,
            disk_floor: None,
            warm: true,
        }
    }
}

/// Settings of [`crate::start`], wherever they come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerSettings {
    /// Script types to execute; empty for everything that the machine has the tools for.
    pub types: Vec<ScriptType>,
    /// The group of the instances.
    pub group: Name,
    /// Their number within the group.
    pub instance: u32,
    /// How many jobs of each type to run at once.
    pub slots: u32,
    /// Where jobs get their directories.
    pub work_dir: PathBuf,
    /// How long jobs may go on after the shutdown began, before they are killed.
    pub drain_deadline: Duration,
    /// How scripts are run.
    pub scripts: ScriptFlags,
    /// Launcher that starts processes.
    pub launcher: SandboxLauncher,
    /// The layers of isolation to use where the machine supports them. Tests leave some out.
    pub layers: IsolationLayers,
}

impl RunnerSettings {
    /// Creates settings with this work directory and defaults for everything else.
    #[must_use]
    pub fn new(work_dir: PathBuf) -> Self {
        Self {
            types: Vec::new(),
            group: "default".parse().expect("the default group is a name"),
            instance: 1,
            slots: 4,
            work_dir,
            drain_deadline: Duration::from_secs(20),
            scripts: ScriptFlags::default(),
            launcher: SandboxLauncher::this_program(),
            layers: IsolationLayers::default(),
        }
    }
}

impl Config {
    /// The settings, with the part that every service has.
    #[must_use]
    pub fn settings(&self, drain_deadline: Duration) -> RunnerSettings {
        RunnerSettings {
            types: self.types.clone(),
            group: self.group.clone(),
            instance: self.instance,
            slots: self.slots,
            work_dir: self.work_dir.clone(),
            drain_deadline,
            scripts: self.scripts.clone(),
            launcher: SandboxLauncher::this_program(),
            layers: IsolationLayers::default(),
        }
    }

    /// The Redis with its credentials.
    ///
    /// # Errors
    /// When the password file cannot be read, or others can read or change it.
    pub fn endpoint(&self) -> std::io::Result<kv::KvEndpoint> {
        match &self.redis_password_file {
            None => Ok(self.redis_url.clone()),
            Some(path) => {
                let password = service::read_secret(path)?;
                Ok(self.redis_url.clone().with_credentials(self.redis_user.clone(), password.as_str()))
            }
        }
    }
}
