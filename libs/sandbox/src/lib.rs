//! Confines other people's scripts, and ends everything that they start.
//!
//! ```text
//! runner ══ socket ══ init ── fork ─► the script's process: session, limits, control groups, user,
//!   ▲ events             │            capabilities, Landlock, seccomp, then the script
//!   │ orders             └─ waits for everything below, kills it on command, or when the runner is gone
//! ```
//!
//! - [`SandboxedJob`]: a job's processes as the runner holds them; [`protocol`]: the messages over the socket.
//! - [`Confinement`]: the confinement of a script, as values; [`IsolationProbe`]: which of it works on this machine.
//! - [`BrokerRules`]: what a script's init does in its place: connections, modes and times of files, forks.
//! - [`Cgroups`], [`UserIdRange`]: bounds for everything together, and a user for each context.
//! - [`processes`], [`records`]: finding and ending processes that were left behind.
//! - [`tree`], [`open_files`]: measuring what scripts hold on the disk, and removing their directories.
//! - [`disk_space`]: what is free on a disk, and the floors of that.
//!
//! Linux only.

mod broker;
mod cgroup;
mod child;
mod confine;
mod confinement;
pub mod disk_space;
mod files;
mod init;
mod missing_layers;
pub mod open_files;
mod probe;
pub mod processes;
pub mod protocol;
pub mod records;
mod syscalls;
pub mod tree;
mod user_ids;

pub use cgroup::{CgroupSlot, Cgroups, members};
pub use child::{SandboxLauncher, SandboxedJob};
pub use confinement::{
    BrokerRules, Builtin, Confinement, FileRules, IsolationLayers, ProcessLimits, SandboxProgram,
    SandboxRequest, SyscallRules, system_paths,
};
pub use files::ruleset_descriptor;
pub use init::launch_if_asked;
pub use probe::{IsolationProbe, IsolationSupport, MissingLayer};
pub use protocol::{InitCommand, InitEvent};
pub use user_ids::{UserIdRange, reachable};
