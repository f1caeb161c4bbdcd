//! Commands to an instance.

use std::future::Future;
use std::time::Duration;

use keys::{ControlScope, InstanceRef};
use kv::{Blocking, Cmd, Result};
use model::JobKey;
use serde::{Deserialize, Serialize};

/// How long one pop waits before it is asked anew.
const BLOCK: Duration = Duration::from_secs(30);

/// What an instance is told to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub enum Command {
    /// End a job: ask it, wait, kill it.
    Stop {
        /// Which job.
        job_key: JobKey,
        /// How long it may take after it was asked.
        grace_secs: u32,
    },
    /// Take no more jobs, finish those that run, leave.
    Drain,
}

/// Waits for commands on a connection of its own.
///
/// A command whose answer is lost with the connection is gone; stops are told again by
/// [`crate::Instance::refresh`].
#[derive(Debug)]
pub struct Control {
    blocking: Blocking,
    list: String,
}

impl Control {
    pub(crate) fn new(blocking: Blocking, instance: &InstanceRef) -> Self {
        Self { blocking, list: ControlScope::Instance(instance.clone()).to_string() }
    }

    /// Waits for a command. Gives none when `cancel` was ready first, and now and then when there is none.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn next(&mut self, cancel: impl Future<Output = ()>) -> Result<Option<Command>> {
        let pop = Cmd::new("BLPOP").arg(&self.list).arg(BLOCK.as_secs());
        let answer = self.blocking.run(&pop, BLOCK, cancel).await?;
        if answer.is_nil() {
            return Ok(None);
        }
        let [_, command] = answer.tuple()?;
        let command = command.text()?;
        match serde_json::from_str(&command) {
            Ok(command) => Ok(Some(command)),
            Err(error) => {
                tracing::warn!(%command, %error, "a command that cannot be understood is dropped");
                Ok(None)
            }
        }
    }
}
