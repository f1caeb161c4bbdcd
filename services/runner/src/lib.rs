//! Executes scripts: takes jobs from a supervisor's queues, runs each in a fresh directory, reports
//! its output and its end.
//!
//! ```text
//! worker ── taken ──► attempt ── prepare ─► runtime (shell, python, rhai) ─► collect ─► finish
//!   ▲ commands, presence          workspace      process, engine, interrupt    result, outputs
//! ```
//!
//! [`queue::work_dir`] describes the layout of the work directory; [`isolation`], how jobs are isolated.

mod app;
mod attempt;
mod attempt_journal;
mod capabilities;
mod config;
mod disk_eviction;
mod disk_quota;
mod engine;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inputs;
mod interrupt;
mod isolation;
mod job_usage;
mod output;
mod process;
mod process_wait;
mod results;
mod run_span;
mod runtime;
mod runtimes;
mod wire;
mod work_dir;
mod worker;
mod workspace;

pub use app::{RunnerApp, RunnerHandle, RunnerStartError, start};
pub use capabilities::{MachineCapabilities, probe_capabilities};
pub use config::{Config, RunnerSettings, ScriptFlags};
pub use engine::ENGINE;
pub use runtime::available;
pub use work_dir::sweep;

use std::time::Duration;

/// How long a script may take to end after it was asked to because of its time limit.
pub const TERMINATE_GRACE: Duration = Duration::from_secs(2);
/// How long output is still read after the script has ended, in case something holds its pipes.
pub const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// How long printed text is gathered before it is reported.
pub const LOG_INTERVAL: Duration = Duration::from_millis(500);
/// How much printed text is gathered before it is reported.
pub const LOG_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of a result file; a longer one is not read.
pub const RESULT_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Steps that a rhai script may take.
pub const RHAI_OPERATIONS_MAX: u64 = 2_000_000_000;
/// The longest text that a rhai script may make.
pub const RHAI_STRING_BYTES_MAX: usize = model::limits::FILE_BYTES_MAX;
/// The longest list, and the largest map, that a rhai script may make, with everything in it.
pub const RHAI_COLLECTION_LEN_MAX: usize = 200_000;
/// How many variables a rhai script may have in sight.
pub const RHAI_VARIABLES_MAX: usize = 1000;
/// How many functions a rhai script may define.
pub const RHAI_FUNCTIONS_MAX: usize = 1000;
/// Bytes that a rhai script may hold in memory, unless its grants say less.
pub const RHAI_MEMORY_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Bytes that the object store of a context may take on the disk.
pub const OSIS_STORE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Bytes that the compiled scripts of a context may take on the disk before the least recently used go.
pub const RUST_CACHE_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Search path for programs of scripts, unless their environment says otherwise.
pub const SCRIPT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How many files a process of a script may have open.
pub const OPEN_FILES_MAX: u64 = 4096;
/// Interval at which the size of a job's directory is measured while its script runs.
pub const QUOTA_INTERVAL: Duration = Duration::from_secs(2);
