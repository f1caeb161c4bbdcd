//! Messages between a job's init and its runner: one JSON object in each datagram.
//!
//! The launcher's init uses it, and so do the forks of a warm interpreter.

use model::EndedProcess;
use serde::{Deserialize, Serialize};

/// The longest datagram.
pub const DATAGRAM_BYTES_MAX: usize = 64 * 1024;
/// How many ended processes one datagram names.
pub(crate) const ENDED_MAX: usize = 64;

/// Message from an init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InitEvent {
    /// A layer could not be put around the script, so that it does not run.
    Refused {
        /// Which.
        layer: String,
        /// Why.
        detail: String,
    },
    /// The script runs.
    Started {
        /// Process id of the script's own process, which leads its session.
        pid: u32,
    },
    /// The script's own process has ended by itself.
    Exited {
        /// Exit code of the process.
        code: i32,
        /// Something that it started lives on.
        left: bool,
    },
    /// The script's own process was ended by a signal.
    Signalled {
        /// Which.
        signal: i32,
        /// Something that it started lives on.
        left: bool,
    },
    /// Nothing is left. The last event.
    Over {
        /// Processes that had to be killed.
        ended: Vec<EndedProcess>,
    },
}

/// Message from a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InitCommand {
    /// Begin: everything around the job is in place.
    Go,
    /// Ask the script, and what is in its group, to end.
    Terminate,
    /// Kill everything that the job has started.
    Kill,
}
