//! Confinement of a script, as values.

use std::collections::BTreeMap;
use std::path::PathBuf;

use model::AddressRange;
use serde::{Deserialize, Serialize};

/// A program to run, and its confinement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRequest {
    /// Program to run.
    pub program: SandboxProgram,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// All that its environment has.
    pub env: BTreeMap<String, String>,
    /// Where it begins.
    pub dir: PathBuf,
    /// Confinement of the program.
    pub confinement: Confinement,
}

/// Program that a request runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxProgram {
    /// An executable.
    File(PathBuf),
    /// Part of the launcher's own program, by its name: nothing is executed.
    Builtin(String),
}

impl<T: Into<PathBuf>> From<T> for SandboxProgram {
    fn from(path: T) -> Self {
        Self::File(path.into())
    }
}

/// Part of a program that [`crate::launch_if_asked`] runs as a confined process. Its standard output is what the request
/// gave it; standard input is empty, and no other descriptor is open.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Name of the builtin in requests.
    pub name: &'static str,
    /// Runs in a process of its own, which has one thread; gives the exit code.
    pub run: fn() -> i32,
}

/// Confinement of a script, in addition to what always applies: a session of its own, closed descriptors, no core files, no
/// new privileges, no capabilities.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Bounds of each of its processes.
    pub limits: ProcessLimits,
    /// Control groups that it enters, as directories.
    pub cgroups: Vec<PathBuf>,
    /// The user and group that it runs as, when these are not the runner's.
    pub owner: Option<u32>,
    /// The files that it reaches; all that its user may reach when absent.
    pub files: Option<FileRules>,
    /// The system calls that it may use; all when absent.
    pub syscalls: Option<SyscallRules>,
    /// Calls that the script's init makes on its behalf.
    #[serde(default)]
    pub broker: BrokerRules,
}

/// Calls that a script does not make itself, because the kernel's own checks are too weak: its init inspects each such call, and
/// makes it in the script's place or refuses it. Nothing by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BrokerRules {
    /// Connections and datagrams to addresses. They reach no inner address (see [`addresses::is_inner`]) and none of this
    /// machine, but those that are listed here.
    pub addresses: Option<Vec<AddressRange>>,
    /// Modes, owners, times and extended attributes of files. They change only for files in these places.
    pub attributes: Option<Vec<PathBuf>>,
    /// How many processes and threads there are at once. What the script's process starts counts together.
    pub processes: Option<u32>,
    /// Each child of the script's process is a job of its own, counted by itself.
    #[serde(default)]
    pub jobs_below: bool,
}

impl BrokerRules {
    /// Returns whether there is nothing that the init does.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let Self { addresses, attributes, processes, jobs_below: _ } = self;
        addresses.is_none() && attributes.is_none() && processes.is_none()
    }
}

/// Bounds of one process, as `setrlimit` knows them. Absent: as the runner has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Seconds of processor time.
    pub cpu_secs: Option<u64>,
    /// Bytes of address space.
    pub address_space: Option<u64>,
    /// Open descriptors.
    pub open_files: Option<u64>,
    /// Bytes of the largest file.
    pub file_size: Option<u64>,
    /// Processes and threads of the same user on the whole machine.
    pub processes: Option<u64>,
}

/// Parts of the file system that can be reached. Paths that do not exist are skipped. Rules that name nothing leave nothing, not
/// even the devices that every script may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRules {
    /// Files, and directories with everything below them, that may be read and executed.
    pub read: Vec<PathBuf>,
    /// Files, and directories with everything below them, that may be written as well.
    pub write: Vec<PathBuf>,
}

/// Which system calls may be used: those that a script has no business with are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyscallRules {
    /// Sockets of IPv4 and IPv6 may be made. Otherwise none.
    pub network: bool,
}

/// The layers that are used where they stand. All of them, but in tests of what each of them is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IsolationLayers {
    /// Landlock.
    pub files: bool,
    /// Seccomp.
    pub syscalls: bool,
    /// Control groups.
    pub cgroup: bool,
    /// A user of its own for each context.
    pub owner: bool,
    /// The init that does what scripts may not do themselves.
    pub broker: bool,
}

impl Default for IsolationLayers {
    fn default() -> Self {
        Self { files: true, syscalls: true, cgroup: true, owner: true, broker: true }
    }
}

/// Returns the paths that every script may read and execute: programs, libraries, and the files these need. No secrets, nothing
/// of other users, nothing that runs.
#[must_use]
pub fn system_paths() -> Vec<PathBuf> {
    const PATHS: &[&str] = &[
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/etc/alternatives",
        "/etc/ca-certificates",
        "/etc/ca-certificates.conf",
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
        "/etc/ssl/certs",
        "/etc/ssl/openssl.cnf",
        "/etc/pki/tls/certs",
        "/etc/crypto-policies",
        "/etc/passwd",
        "/etc/group",
        "/etc/nsswitch.conf",
        "/etc/hosts",
        "/etc/host.conf",
        "/etc/resolv.conf",
        "/etc/gai.conf",
        "/etc/services",
        "/etc/protocols",
        "/etc/localtime",
        "/etc/timezone",
        "/etc/locale.alias",
        "/etc/mime.types",
        "/etc/os-release",
        // Programs that say where they run (pip, lsb_release) read all of these that there are, and some end when one cannot
        // be opened.
        "/etc/lsb-release",
        "/etc/debian_version",
        "/etc/system-release",
        "/etc/redhat-release",
        "/etc/fedora-release",
        "/etc/centos-release",
        "/etc/rocky-release",
        "/etc/almalinux-release",
        "/etc/oracle-release",
        "/etc/SuSE-release",
        "/etc/alpine-release",
        "/etc/arch-release",
        "/etc/gentoo-release",
        "/etc/terminfo",
        "/etc/python3",
        "/etc/python3.11",
        "/etc/python3.12",
        "/etc/python3.13",
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/stat",
        "/proc/loadavg",
        "/proc/uptime",
        "/proc/version",
        "/proc/filesystems",
        "/proc/sys/kernel/ngroups_max",
        "/proc/sys/kernel/cap_last_cap",
        "/proc/sys/vm/overcommit_memory",
        "/sys/devices/system/cpu",
        "/sys/kernel/mm/transparent_hugepage",
        "/dev/random",
        "/dev/urandom",
    ];
    PATHS.iter().map(PathBuf::from).collect()
}

/// Devices that every script may write.
pub(crate) const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full"];
