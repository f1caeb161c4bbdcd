//! Protection of a process's own files and memory: it closes them to other users.

use std::io;
use std::path::Path;

use identity::exposure;
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use zeroize::Zeroizing;

/// Closes every file and directory that this process makes from now on to other users. To be called before anything
/// else, since the umask holds for the whole process. Files for others get their mode explicitly.
pub fn close_new_files() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Keeps the memory of this process, in which keys and secrets are, out of core files and away from other processes
/// of the same user: no debugger attaches, and `/proc/PID/{mem,environ,fd}` belong to root.
///
/// # Errors
/// When the kernel refuses.
pub fn close_memory() -> io::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Reads a secret from a file that is closed to others, without the end of its line. It is wiped when it is dropped.
///
/// # Errors
/// When it cannot be read, or others can read or change it.
pub fn read_secret(path: &Path) -> io::Result<Zeroizing<String>> {
    exposure::check_secret(path)?;
    let text = Zeroizing::new(std::fs::read_to_string(path)?);
    Ok(Zeroizing::new(text.trim_end_matches(['\n', '\r']).to_owned()))
}
