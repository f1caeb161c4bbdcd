//! Landlock: the files that a script reaches, and whom it may signal.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, Scope,
};

use crate::confinement::{DEVICES, FileRules};

/// The newest version of Landlock that is made use of, where the kernel has it.
const ABI_MAX: ABI = ABI::V6;

/// The version of Landlock that the kernel has; 0 for none.
pub(crate) fn version() -> i32 {
    // SAFETY: asks for a number, and touches no memory.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, 1_u32) };
    i32::try_from(version).unwrap_or_default().max(0)
}

/// Opens everything that the rules name, in a set that [`restrict`] puts in force. It takes TCP away as well, where
/// the kernel can, with `network` only what binds ports: the filter of system calls comes first, this is behind it.
///
/// # Errors
/// When the kernel has no Landlock.
pub(crate) fn ruleset(rules: &FileRules, network: bool) -> io::Result<RulesetCreated> {
    if version() == 0 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel has no Landlock"));
    }
    let all = AccessFs::from_all(ABI_MAX);
    let read = AccessFs::from_read(ABI_MAX);
    let mut set = Ruleset::default()
        // Rights that the kernel does not know are not restricted; that it has Landlock at all was checked above.
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(|set| set.handle_access(ports(network)))
        .and_then(|set| set.scope(Scope::Signal | Scope::AbstractUnixSocket))
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    for path in &rules.read {
        set = add(set, path, read)?;
    }
    for path in &rules.write {
        set = add(set, path, all)?;
    }
    let devices = if rules.read.is_empty() && rules.write.is_empty() { &[] } else { DEVICES };
    for device in devices {
        set = add(set, Path::new(device), read | AccessFs::WriteFile | AccessFs::Truncate)?;
    }
    Ok(set)
}

/// Returns the TCP access that is taken away. A script never serves a port.
fn ports(network: bool) -> landlock::BitFlags<AccessNet> {
    if network { AccessNet::BindTcp.into() } else { AccessNet::from_all(ABI_MAX) }
}

fn add(set: RulesetCreated, path: &Path, access: landlock::BitFlags<AccessFs>) -> io::Result<RulesetCreated> {
    // A path that does not exist cannot be reached.
    let Ok(opened) = PathFd::new(path) else { return Ok(set) };
    let is_dir = rustix::fs::fstat(opened.as_fd())
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
    let access = if is_dir { access } else { access & AccessFs::from_file(ABI_MAX) };
    set.add_rule(PathBeneath::new(opened, access)).map_err(io::Error::other)
}

/// Puts a set in force for this process and all that it starts.
pub(crate) fn restrict(set: RulesetCreated) -> io::Result<()> {
    let status = set.restrict_self().map_err(io::Error::other)?;
    if status.ruleset == landlock::RulesetStatus::NotEnforced {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "Landlock is not in force"));
    }
    Ok(())
}

/// The descriptor of a set of rules, for a process that puts it in force by itself. It is one that was launched with
/// wider rules, so this is about files alone.
///
/// # Errors
/// When the kernel has no Landlock.
pub fn ruleset_descriptor(rules: &FileRules) -> io::Result<OwnedFd> {
    let set = ruleset(rules, true)?;
    Option::<OwnedFd>::from(set).ok_or_else(|| io::ErrorKind::Unsupported.into())
}
