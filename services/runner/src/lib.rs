//! Executes scripts: takes jobs from a supervisor's queues, runs each in a fresh directory, reports
//! what it printed and how it ended.
//!
//! ```text
//! worker ── taken ──► attempt ── prepare ─► runtime (shell, python, rhai) ─► collect ─► finish
//!   ▲ commands, presence          workspace      process, interrupt            result, outputs
//! ```
//!
//! The directories below the work directory:
//! - `<context uid>/<job key>/`: where one attempt runs; removed with its end;
//! - `blobs/<context uid>/<sha256>`: files by their hash. The supervisor puts here, before it queues
//!   a job, what the job needs and does not carry inline; the runner puts here the outputs that it
//!   collected, for the supervisor to push. Whoever writes one does so under another name and renames it;
//! - `running/<pid>`: one record for each script that runs, for [`sweep`];
//! - `runtimes/<version>/`: what interpreters need of ours.

mod app;
mod attempt;
mod config;
mod inputs;
mod interrupt;
mod output;
mod process;
mod processes;
mod results;
mod runtime;
mod runtimes;
mod spawner;
mod sweep;
mod worker;
mod workspace;

pub use app::{RunnerApp, Running, StartError, start};
pub use config::{Config, Settings};
pub use runtime::available;
pub use sweep::{Swept, sweep};
pub use workspace::blob_path;

use std::time::Duration;

/// How long a script may take to end after it was asked to because of its time limit.
pub const TERMINATE_GRACE: Duration = Duration::from_secs(2);
/// How long output is still read after the script has ended, in case something holds its pipes.
pub const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// How long printed text is gathered before it is reported.
pub const LOG_INTERVAL: Duration = Duration::from_millis(500);
/// How much printed text is gathered before it is reported.
pub const LOG_BYTES_MAX: usize = 64 * 1024;
/// A result file that is longer than this is not even read.
pub const RESULT_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Steps that a rhai script may take.
pub const RHAI_OPERATIONS_MAX: u64 = 2_000_000_000;
/// The longest text that a rhai script may make.
pub const RHAI_STRING_BYTES_MAX: usize = model::limits::FILE_BYTES_MAX;
/// The longest list, and the largest map, that a rhai script may make.
pub const RHAI_COLLECTION_LEN_MAX: usize = 1_000_000;
/// What scripts find programs by, unless their environment says otherwise.
pub const SCRIPT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How scripts are kept apart so far: own session, limits, clean environment, closed descriptors.
pub const ISOLATION: &str = "basic";
