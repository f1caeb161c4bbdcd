//! Confines other people's scripts, and ends everything that they start.
//!
//! ```text
//! runner ══ socket ══ init ── fork ─► the script's process: session, limits, control groups, user,
//!   ▲ events             │            capabilities, Landlock, seccomp, then the script
//!   │ orders             └─ waits for everything below, kills it when told, or when the runner is gone
//! ```
//!
//! - [`Child`]: a job's processes as the runner holds them; [`protocol`]: what is said over the socket.
//! - [`Confinement`]: what is put around a script, as values; [`Probe`]: what of it stands on this machine.
//! - [`Broker`]: what a script does not do itself, but has its init do: connections, modes and times of files, forks.
//! - [`Cgroups`], [`Owners`]: bounds for everything together, and a user for each context.
//! - [`processes`], [`records`]: finding and ending what was left behind.
//! - [`tree`], [`open_files`]: measuring what scripts hold on the disk, and removing their directories.
//! - [`room`]: what is free on a disk, and the floors of that.
//!
//! Linux only.

mod broker;
mod cgroup;
mod child;
mod confine;
mod confinement;
mod files;
mod gaps;
mod init;
pub mod open_files;
mod owners;
mod probe;
pub mod processes;
pub mod protocol;
pub mod records;
pub mod room;
mod syscalls;
pub mod tree;

pub use cgroup::{Cgroups, Slot, members};
pub use child::{Child, Launcher};
pub use confinement::{
    Broker, Builtin, Confinement, FileRules, Layers, Limits, Program, Request, Syscalls, system_paths,
};
pub use files::ruleset_descriptor;
pub use init::launch_if_asked;
pub use owners::{Owners, reachable};
pub use probe::{Missing, Probe, Standing};
pub use protocol::{Event, Order};
