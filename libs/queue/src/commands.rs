//! Commands to an instance.

use std::future::Future;
use std::time::Duration;

use keys::{ControlScope, InstanceRef};
use kv::{BlockingConnection, Cmd, Result, Value};
use model::{JobKey, ScriptType};
use serde::{Deserialize, Serialize};

/// How long one pop waits before it is repeated.
const BLOCK: Duration = Duration::from_secs(30);

/// Command that the supervisor sends to an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub enum InstanceCommand {
    /// End a job: ask it, wait, kill it.
    Stop {
        /// Which job.
        job_key: JobKey,
        /// How long the job may take to end after the request, in seconds.
        grace_secs: u32,
    },
    /// Take no more jobs, finish those that run, leave.
    Drain {
        /// How long those that run may take; absent: as long as the instance was set up for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_secs: Option<u32>,
    },
}

/// Waits for commands on a connection of its own.
///
/// A command whose answer is lost with the connection is gone; stops are repeated by
/// [`crate::InstanceSession::refresh`].
#[derive(Debug)]
pub struct InstanceCommandReader {
    blocking: BlockingConnection,
    list: String,
}

impl InstanceCommandReader {
    pub(crate) fn new(blocking: BlockingConnection, instance: &InstanceRef) -> Self {
        Self { blocking, list: ControlScope::Instance(instance.clone()).to_string() }
    }

    /// Waits for a command. Gives none when `cancel` was ready first, and now and then when there is none.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn next(&mut self, cancel: impl Future<Output = ()>) -> Result<Option<InstanceCommand>> {
        let pop = Cmd::new("BLPOP").arg(&self.list).arg(BLOCK.as_secs());
        let answer = self.blocking.run(&pop, BLOCK, cancel).await?;
        if answer.is_nil() {
            return Ok(None);
        }
        let [_, command] = answer.tuple()?;
        Ok(parse_command(command))
    }
}

/// Waits for commands to all instances of a type, which anybody may push.
///
/// A command whose answer is lost with the connection is gone, as with [`InstanceCommandReader`].
#[derive(Debug)]
pub struct TypeCommandReader {
    blocking: BlockingConnection,
}

impl TypeCommandReader {
    pub(crate) const fn new(blocking: BlockingConnection) -> Self {
        Self { blocking }
    }

    /// Waits for a command, to be passed on with [`crate::SupervisorQueues::command`]. Gives none when `cancel` was
    /// ready first, and now and then when there is none.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn next(
        &mut self,
        cancel: impl Future<Output = ()>,
    ) -> Result<Option<(ControlScope, InstanceCommand)>> {
        let lists = ScriptType::ALL.map(|script_type| ControlScope::Type(script_type).to_string());
        let pop = Cmd::new("BLPOP").args(lists.iter()).arg(BLOCK.as_secs());
        let answer = self.blocking.run(&pop, BLOCK, cancel).await?;
        if answer.is_nil() {
            return Ok(None);
        }
        let [list, command] = answer.tuple()?;
        let scope = ControlScope::parse(&list.text()?);
        Ok(scope.and_then(|scope| Some((scope, parse_command(command)?))))
    }
}

pub(crate) fn parse_command(command: Value) -> Option<InstanceCommand> {
    let command = String::from_utf8_lossy(&command.bytes().ok()?).into_owned();
    match serde_json::from_str(&command) {
        Ok(command) => Some(command),
        Err(error) => {
            let command: String = command.chars().take(200).collect();
            tracing::warn!(command, %error, "a command that cannot be understood is dropped");
            None
        }
    }
}
