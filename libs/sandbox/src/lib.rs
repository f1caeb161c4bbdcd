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
//! - [`Cgroups`], [`Owners`]: bounds for everything together, and a user for each context.
//! - [`processes`], [`records`]: finding and ending what was left behind.
//! - [`tree`]: measuring and removing the directories of scripts.
//!
//! Linux only.

mod cgroup;
mod child;
mod confine;
mod confinement;
mod files;
mod init;
mod owners;
mod probe;
pub mod processes;
pub mod protocol;
pub mod records;
mod syscalls;
pub mod tree;

pub use cgroup::{Cgroups, Slot};
pub use child::{Child, Launcher};
pub use confinement::{Confinement, FileRules, Layers, Limits, Request, Syscalls, system_paths};
pub use files::ruleset_descriptor;
pub use init::launch_if_asked;
pub use owners::{Owners, reachable};
pub use probe::{Missing, Probe, Standing};
pub use protocol::{Event, Order};
