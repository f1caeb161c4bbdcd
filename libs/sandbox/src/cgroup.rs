//! Control groups: bounds of everything that a job starts, together. Version 2 where it is ours to use, else 1.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::EndedProcess;
use rustix::fs::FlockOperation;

use crate::processes;

/// How often a group that is locked is tried, and with what pause.
const CLAIMS_MAX: u32 = 20;
const CLAIM_PAUSE: Duration = Duration::from_millis(1);
/// How the names of all groups of ours begin.
const PREFIX: &str = "mycora-";
/// Where we are ourselves, in a group that is ours to divide.
const ASIDE: &str = "mycora-self";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CgroupVersion {
    One,
    Two,
}

/// A group of ours, below the one that this process is in, with a place for each job that runs at once.
#[derive(Debug, Clone)]
pub struct Cgroups(Arc<CgroupParent>);

#[derive(Debug)]
struct CgroupParent {
    version: CgroupVersion,
    /// One for each hierarchy.
    dirs: Vec<PathBuf>,
    /// The directories again, locked while in use: a process that was killed leaves them behind unlocked.
    _in_use: Vec<File>,
}

impl CgroupParent {
    fn new(version: CgroupVersion, dirs: Vec<PathBuf>) -> io::Result<Self> {
        let mut in_use = Vec::new();
        for dir in &dirs {
            in_use.push(claim(dir)?);
            remove_unused(dir);
        }
        Ok(Self { version, dirs, _in_use: in_use })
    }
}

impl Drop for CgroupParent {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // A group in use stays, and is taken over by the next runner of this name.
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Control group for one job at a time. Its processes are killed, and it is removed, when this is dropped.
#[derive(Debug)]
pub struct CgroupSlot {
    parent: Arc<CgroupParent>,
    dirs: Vec<PathBuf>,
    /// The bounds in force: memory in bytes, processes.
    bounds: Mutex<Option<(u64, u32)>>,
}

impl Cgroups {
    /// Makes the group `name`, which begins with `mycora-`, below our own, in version 2 or else in version 1, with bounds on memory and
    /// processes.
    ///
    /// # Errors
    /// Says why there is none.
    pub fn make(name: &str) -> io::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        make_v2(name, &own, &mounts).or_else(|two| {
            make_v1(name, &own, &mounts)
                .map_err(|one| io::Error::new(one.kind(), format!("version 2: {two}; version 1: {one}")))
        })
    }

    /// Returns the name that the cgroups have among the layers.
    #[must_use]
    pub fn layer(&self) -> &'static str {
        match self.0.version {
            CgroupVersion::One => "cgroup-v1",
            CgroupVersion::Two => "cgroup-v2",
        }
    }

    /// Kills what a dead runner of this name left, and removes its places.
    fn remove_leftovers(&self) -> io::Result<()> {
        let mut names = HashSet::new();
        for dir in &self.0.dirs {
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    names.insert(entry.file_name());
                }
            }
        }
        for name in names {
            let dirs = self.0.dirs.iter().map(|dir| dir.join(&name)).collect();
            // Removed with everything in it when it is dropped.
            drop(CgroupSlot { parent: Arc::clone(&self.0), dirs, bounds: Mutex::new(None) });
        }
        Ok(())
    }

    /// Makes the slot of this name. Processes that a dead runner left in it are killed.
    ///
    /// # Errors
    /// When it cannot be made, or what is in it does not end.
    pub fn slot(&self, name: &str) -> io::Result<CgroupSlot> {
        let dirs: Vec<PathBuf> = self.0.dirs.iter().map(|dir| dir.join(name)).collect();
        let slot = CgroupSlot { parent: Arc::clone(&self.0), dirs, bounds: Mutex::new(None) };
        for dir in &slot.dirs {
            make_dir(dir)?;
        }
        slot.kill_all()?;
        Ok(slot)
    }
}

impl CgroupSlot {
    /// Returns the cgroups that a process enters, one directory for each hierarchy.
    pub fn dirs(&self) -> impl Iterator<Item = &PathBuf> {
        self.dirs.iter()
    }

    /// Sets what everything in it may use together: bytes of memory, and processes and threads.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn set_limits(&self, memory_bytes: u64, processes: u32) -> io::Result<()> {
        let mut bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        if *bounds == Some((memory_bytes, processes)) {
            return Ok(());
        }
        *bounds = None;
        match self.parent.version {
            CgroupVersion::Two => {
                self.write("memory.max", &memory_bytes.to_string())?;
                // Not there where the kernel does not count it.
                let _ = self.write("memory.swap.max", "0");
            }
            CgroupVersion::One => {
                // The second bound is never below the first, so it goes out of the way first.
                let _ = self.write("memory.memsw.limit_in_bytes", "-1");
                self.write("memory.limit_in_bytes", &memory_bytes.to_string())?;
                let _ = self.write("memory.memsw.limit_in_bytes", &memory_bytes.to_string());
            }
        }
        self.write("pids.max", &processes.to_string())?;
        *bounds = Some((memory_bytes, processes));
        Ok(())
    }

    /// Puts a process into it.
    ///
    /// # Errors
    /// When it is gone, or the kernel does not let it.
    pub fn add_process(&self, pid: u32) -> io::Result<()> {
        self.dirs.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), pid.to_string()))
    }

    /// How often something in it was killed for using more memory than it may.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let file = match self.parent.version {
            CgroupVersion::Two => "memory.events",
            CgroupVersion::One => "memory.oom_control",
        };
        let texts = self.dirs.iter().filter_map(|dir| fs::read_to_string(dir.join(file)).ok());
        texts.filter_map(|text| number_after(&text, "oom_kill ")).sum()
    }

    /// Forbids new processes in it, until the bounds are set again: processes that keep starting new ones would
    /// be hard to end.
    pub fn close(&self) {
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = self.write("pids.max", "0");
    }

    /// Kills everything in it until nothing is left, and gives what it was. Blocks for some milliseconds when
    /// there is anything.
    ///
    /// # Errors
    /// When something does not end although it was killed.
    pub fn kill_all(&self) -> io::Result<Vec<EndedProcess>> {
        let ended = processes::end_all(|| {
            let members = members(&self.dirs);
            if members.is_empty() {
                return Ok(None);
            }
            self.close();
            let seen = members.into_iter().filter_map(|pid| processes::observe(pid).ok());
            Ok(Some(seen.map(|process| (process, ())).collect()))
        })?;
        Ok(ended.into_iter().map(|(ended, ())| ended).collect())
    }

    /// Writes to the file of this name, in whichever hierarchy has it.
    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let path = self.dirs.iter().map(|dir| dir.join(file)).find(|path| path.exists());
        let path = path.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, file.to_owned()))?;
        fs::write(&path, text)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}

impl Drop for CgroupSlot {
    fn drop(&mut self) {
        if let Err(error) = self.kill_all() {
            tracing::warn!(%error, "a control group cannot be emptied");
        }
        for dir in &self.dirs {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Everything that is in one of these groups.
pub fn members(dirs: &[PathBuf]) -> HashSet<u32> {
    let texts = dirs.iter().filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok());
    texts.flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>()).collect()
}

fn make_v2(name: &str, own: &str, mounts: &str) -> io::Result<Cgroups> {
    let unsupported = |why: &str| io::Error::new(io::ErrorKind::Unsupported, why.to_owned());
    let place = own.lines().find_map(|line| line.strip_prefix("0::")).ok_or_else(|| unsupported("none"))?;
    let mount = mounts.lines().find_map(|line| CgroupMount::read(line, "cgroup2", None));
    let mount = mount.ok_or_else(|| unsupported("not mounted"))?;
    // Another runner of the same group may have moved us aside with itself.
    let place = match place.strip_suffix(ASIDE).and_then(|place| place.strip_suffix('/')) {
        Some("") => "/",
        Some(above) => above,
        None => place,
    };
    let own = mount.dir_of(place).ok_or_else(|| unsupported("our own group cannot be seen"))?;
    let controllers = fs::read_to_string(own.join("cgroup.controllers"))?;
    for wanted in ["memory", "pids"] {
        if !controllers.split_ascii_whitespace().any(|controller| controller == wanted) {
            return Err(unsupported(&format!("no controller for {wanted}")));
        }
    }
    let dir = own.join(name);
    match fs::write(own.join("cgroup.subtree_control"), "+memory +pids") {
        // A group with processes of its own has none below it that are bounded.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            move_aside(&own)?;
            fs::write(own.join("cgroup.subtree_control"), "+memory +pids")?;
        }
        other => other?,
    }
    let groups = Cgroups(Arc::new(CgroupParent::new(CgroupVersion::Two, vec![dir])?));
    groups.remove_leftovers()?;
    fs::write(groups.0.dirs[0].join("cgroup.subtree_control"), "+memory +pids")?;
    Ok(groups)
}

/// Moves this process, and what it has started, into a group below the one that they are in: that one has been given to us to
/// divide, as systemd does with `Delegate=yes`.
fn move_aside(own: &Path) -> io::Result<()> {
    let dirs = [own.to_owned()];
    let mut ours: HashSet<u32> =
        processes::below(std::process::id())?.iter().map(|process| process.pid).collect();
    ours.insert(std::process::id());
    if members(&dirs).iter().any(|pid| !ours.contains(pid)) {
        let why = "other processes are in our group: start it in one of its own (systemd-run --scope -p Delegate=yes, with \
                   --user as an ordinary user)";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let aside = own.join(ASIDE);
    make_dir(&aside)?;
    // What they start meanwhile is found by the next look.
    for _ in 0..CLAIMS_MAX {
        let left = members(&dirs);
        if left.is_empty() {
            return Ok(());
        }
        for pid in left {
            match fs::write(aside.join("cgroup.procs"), pid.to_string()) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                other => other?,
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "what is in our group does not leave it"))
}

fn make_v1(name: &str, own: &str, mounts: &str) -> io::Result<Cgroups> {
    let mut dirs = Vec::new();
    for wanted in ["memory", "pids"] {
        let missing = || io::Error::new(io::ErrorKind::Unsupported, format!("no hierarchy for {wanted}"));
        let place = own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, place) = rest.split_once(':')?;
            controllers.split(',').any(|controller| controller == wanted).then_some(place)
        });
        let mount = mounts.lines().find_map(|line| CgroupMount::read(line, "cgroup", Some(wanted)));
        let own = mount.ok_or_else(missing)?.dir_of(place.ok_or_else(missing)?).ok_or_else(missing)?;
        dirs.push(own.join(name));
    }
    // Both may be in one hierarchy.
    dirs.dedup();
    let groups = Cgroups(Arc::new(CgroupParent::new(CgroupVersion::One, dirs)?));
    groups.remove_leftovers()?;
    Ok(groups)
}

/// A hierarchy, or the part of it that a container sees.
#[derive(Debug, PartialEq, Eq)]
struct CgroupMount<'a> {
    /// The group that is mounted.
    root: &'a Path,
    /// Where.
    point: &'a Path,
}

impl<'a> CgroupMount<'a> {
    /// Reads a line of `mountinfo`, when it is about a file system of this kind, with this option.
    fn read(line: &'a str, kind: &str, option: Option<&str>) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let is_kind = after.next() == Some(kind);
        let options = after.nth(1).unwrap_or_default();
        let has_option = option.is_none_or(|wanted| options.split(',').any(|option| option == wanted));
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        (is_kind && has_option).then(|| Self { root: Path::new(root), point: Path::new(point) })
    }

    /// The directory of a group, when it can be seen from here.
    fn dir_of(&self, group: &str) -> Option<PathBuf> {
        let below = Path::new(group).strip_prefix(self.root).ok()?;
        // Nothing is joined as nothing: a path that ends with `/` is another text.
        Some(if below.as_os_str().is_empty() { self.point.to_owned() } else { self.point.join(below) })
    }
}

/// Makes a group and locks it; tries again, for a while, when another runner removes it as unused before that.
fn claim(dir: &Path) -> io::Result<File> {
    for _ in 0..CLAIMS_MAX {
        make_dir(dir)?;
        let opened = match File::open(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let locked = rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive);
        match (locked, fs::metadata(dir)) {
            (Ok(()), Ok(now)) if now.ino() == opened.metadata()?.ino() => return Ok(opened),
            _ => std::thread::sleep(CLAIM_PAUSE),
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, format!("{} is in use", dir.display())))
}

/// Removes the groups beside this one that runners of other work directories have left. A group with a process in it
/// stays: its owner is unknown.
fn remove_unused(dir: &Path) {
    let beside = dir.parent().and_then(|parent| fs::read_dir(parent).ok());
    for other in beside.into_iter().flatten().flatten() {
        let path = other.path();
        if path == dir || !other.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let Ok(opened) = File::open(&path) else { continue };
        if rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive).is_ok() {
            for slot in fs::read_dir(&path).into_iter().flatten().flatten() {
                // Fails for the files in it, and for a group that is not empty.
                let _ = fs::remove_dir(slot.path());
            }
            let _ = fs::remove_dir(&path);
        }
    }
}

fn make_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()))),
    }
}

fn number_after(text: &str, label: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(label))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_where_a_container_sees_it() {
        let host = "36 32 0:31 / /sys/fs/cgroup/pids rw,relatime shared:14 - cgroup cgroup rw,pids";
        let mount = CgroupMount::read(host, "cgroup", Some("pids")).expect("the hierarchy of pids");
        assert_eq!(mount.dir_of("/"), Some("/sys/fs/cgroup/pids".into()));
        assert_eq!(mount.dir_of("/a/b"), Some("/sys/fs/cgroup/pids/a/b".into()));
        assert_eq!(CgroupMount::read(host, "cgroup", Some("memory")), None);
        assert_eq!(CgroupMount::read(host, "cgroup2", None), None);
        // A container may see its own group as the root of the mount, and elsewhere under its full name.
        let inside = "714 705 0:31 /docker/1f /sys/fs/cgroup/pids ro,nosuid - cgroup cgroup rw,pids";
        let mount = CgroupMount::read(inside, "cgroup", Some("pids")).expect("the hierarchy of pids");
        assert_eq!(mount.dir_of("/docker/1f/x"), Some("/sys/fs/cgroup/pids/x".into()));
        assert_eq!(mount.dir_of("/docker/2e"), None, "somebody else's");
    }

    /// In a hierarchy that needs no controllers, so that it can be tried wherever one is mounted.
    #[test]
    fn only_what_is_ours_is_moved_aside() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let Some(mount) = mounts.lines().find_map(|line| CgroupMount::read(line, "cgroup2", None)) else {
            return;
        };
        let own = mount.point.join(format!("mycora-test-{}-aside", std::process::id()));
        if fs::create_dir(&own).is_err() {
            // Not ours to divide.
            return;
        }
        let place = |pid: u32| fs::write(own.join("cgroup.procs"), pid.to_string()).expect("placed");
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a child");
        place(child.id());
        move_aside(&own).expect("moved");
        assert_eq!(members(&[own.join(ASIDE)]), HashSet::from([child.id()]));
        // A process of another owner: its parent has ended.
        let script = "sleep 600 > /dev/null 2>&1 & echo $!";
        let other = std::process::Command::new("sh").args(["-c", script]).output().expect("a shell");
        let other: u32 = String::from_utf8_lossy(&other.stdout).trim().parse().expect("a number");
        place(other);
        let refused = move_aside(&own).expect_err("not ours");
        assert!(refused.to_string().contains("Delegate=yes"), "{refused}");
        assert_eq!(members(std::slice::from_ref(&own)), HashSet::from([other]), "it stays where it is");
        assert!(processes::kill(processes::observe(other).expect("it runs")));
        child.kill().expect("killed");
        child.wait().expect("ended");
        let is_removed = || {
            let _ = fs::remove_dir(own.join(ASIDE));
            fs::remove_dir(&own).ok()
        };
        testkit::wait_until_blocking(is_removed, testkit::PATIENCE, "nothing is left in it");
    }

    #[test]
    fn kills_are_read_from_either_version() {
        assert_eq!(number_after("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill "), Some(3));
        assert_eq!(number_after("low 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n", "oom_kill "), Some(1));
        assert_eq!(number_after("max 7\n", "oom_kill "), None);
    }
}
