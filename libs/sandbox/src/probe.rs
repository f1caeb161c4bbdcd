//! Finding out what stands on this machine: each layer is put around a small program that tries to break it.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use model::{AddressRange, AddressRangeError, Isolation};

use crate::cgroup::Cgroups;
use crate::child::{SandboxLauncher, SandboxedJob};
use crate::confinement::{
    BrokerRules, Confinement, FileRules, IsolationLayers, SandboxRequest, SyscallRules, system_paths,
};
use crate::files;
use crate::protocol::InitEvent;

/// Isolation that this machine supports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsolationSupport {
    /// Level that the layers add up to.
    pub level: Isolation,
    /// The layers by name.
    pub layers: Vec<String>,
    /// Files are kept apart.
    pub files: bool,
    /// System calls are refused.
    pub syscalls: bool,
    /// Control groups bound processes.
    pub cgroup: bool,
    /// Scripts run as users of their own.
    pub owner: bool,
    /// Connections reach no inner address that is not listed.
    pub network: bool,
    /// Modes, owners, times and attributes change only for files in a script's own places.
    pub attributes: bool,
    /// Processes are counted where no control group does.
    pub processes: bool,
    /// Layers that are missing.
    pub missing: Vec<MissingLayer>,
}

/// A layer that does not stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingLayer {
    /// Name of the layer.
    pub layer: &'static str,
    /// Why, for people.
    pub why: String,
}

/// Test of the isolation layers on this machine.
#[derive(Debug)]
pub struct IsolationProbe<'a> {
    /// Starts what tries.
    pub launcher: &'a SandboxLauncher,
    /// Layers that are wanted.
    pub layers: IsolationLayers,
    /// The control groups, or why there are none.
    pub cgroups: Result<&'a Cgroups, String>,
    /// A user that contexts get, or why they get none.
    pub owner: Result<u32, String>,
    /// A directory that is not a script's business, and can be written.
    pub dir: &'a Path,
}

/// Result of checking a layer: it held, or the reason why it did not.
type LayerCheck = Result<(), String>;

impl IsolationProbe<'_> {
    /// Tries everything.
    ///
    /// # Errors
    /// When the launcher starts nothing, confined or not.
    pub async fn run(&self) -> io::Result<IsolationSupport> {
        let secret = self.dir.join(format!("probe-{}", std::process::id()));
        std::fs::write(&secret, "not for scripts\n")?;
        let tried = self.tried(&secret).await;
        std::fs::remove_file(&secret)?;
        tried
    }

    async fn tried(&self, secret: &Path) -> io::Result<IsolationSupport> {
        if self.shell(&read(secret), Confinement::default()).await? != Some(0) {
            return Err(io::Error::other("a script that is confined by nothing does not run"));
        }
        let (files, scopes, syscalls, cgroup, owner) =
            tokio::join!(self.files(secret), self.scopes(), self.syscalls(), self.cgroup(), self.owner(),);
        // The init looks into processes of the user that scripts run as.
        let user = self.owner.as_ref().ok().copied().filter(|_| owner.is_ok());
        let (network, attributes, processes) =
            tokio::join!(self.network(user), self.attributes(secret), self.processes(user));
        let mut support = IsolationSupport {
            level: Isolation::Basic,
            layers: vec!["session".to_owned()],
            files: files.is_ok(),
            syscalls: syscalls.is_ok(),
            cgroup: cgroup.is_ok(),
            owner: owner.is_ok(),
            network: network.is_ok(),
            attributes: attributes.is_ok(),
            processes: processes.is_ok(),
            missing: Vec::new(),
        };
        let group = self.cgroups.as_ref().map_or("cgroup", |groups| groups.layer());
        let bounded = cgroup.is_ok() || owner.is_ok();
        for (layer, name, held) in [
            ("landlock", format!("landlock-{}", files::version()), files),
            ("scopes", "scopes".to_owned(), scopes),
            ("seccomp", "seccomp".to_owned(), syscalls),
            ("cgroup", group.to_owned(), cgroup),
            ("own-uid", "own-uid".to_owned(), owner),
            ("network", "network".to_owned(), network),
            ("attributes", "attributes".to_owned(), attributes),
            ("processes", "processes".to_owned(), processes),
        ] {
            match held {
                Ok(()) => support.layers.push(name),
                Err(why) => support.missing.push(MissingLayer { layer, why }),
            }
        }
        // What belongs to a user is its own to change in ways that Landlock does not know: modes, owners and times.
        let keeps_attributes = support.owner || support.attributes;
        if support.files && support.syscalls && keeps_attributes {
            support.level = if bounded { Isolation::Contained } else { Isolation::Confined };
        }
        Ok(support)
    }

    async fn files(&self, secret: &Path) -> LayerCheck {
        wanted(self.layers.files)?;
        let confinement = Confinement { files: Some(rules()), ..Confinement::default() };
        // A file that is allowed must be readable, else the check failed for another reason.
        let attack = format!(
            "{} || exit 8; {} && exit; exit {WITHSTOOD}",
            read(Path::new("/proc/version")),
            read(secret)
        );
        withstood(self.shell(&attack, confinement).await, "a file that is not allowed can be read")
    }

    async fn scopes(&self) -> LayerCheck {
        wanted(self.layers.files)?;
        let confinement = Confinement { files: Some(rules()), ..Confinement::default() };
        let attack = format!("kill -0 $$ || exit 8; kill -0 $PPID && exit; exit {WITHSTOOD}");
        withstood(self.shell(&attack, confinement).await, "processes outside can be signalled")
    }

    async fn syscalls(&self) -> LayerCheck {
        wanted(self.layers.syscalls)?;
        let syscalls = Some(SyscallRules { network: false });
        let confinement = Confinement { syscalls, ..Confinement::default() };
        let status = self.start(OWN_PROGRAM.into(), vec![TRY_SOCKET.to_owned()], confinement).await;
        withstood(status, "a socket can be made")
    }

    async fn cgroup(&self) -> LayerCheck {
        wanted(self.layers.cgroup)?;
        let groups = self.cgroups.as_ref().map_err(Clone::clone)?;
        let slot = groups.slot("probe").map_err(|error| error.to_string())?;
        let within = |memory_bytes, processes, attack| {
            let set = slot.set_limits(memory_bytes, processes);
            let cgroups = slot.dirs().cloned().collect();
            async move {
                set?;
                self.shell(attack, Confinement { cgroups, ..Confinement::default() }).await
            }
        };
        match within(PLENTY_BYTES, 20, FORK).await {
            Ok(Some(0)) => {}
            other => return Err(format!("nothing runs in it: {other:?}")),
        }
        withstood(within(PLENTY_BYTES, 1, FORK).await, "more processes can be started than are allowed")?;
        let kills = slot.oom_kills();
        let swell =
            within(LITTLE_BYTES, 20, "x=01234567; while [ ${#x} -lt 33554432 ]; do x=$x$x; done").await;
        match swell.map_err(|error| error.to_string())? {
            None if slot.oom_kills() > kills => Ok(()),
            _ => Err("more memory can be used than is allowed".to_owned()),
        }
    }

    async fn owner(&self) -> LayerCheck {
        wanted(self.layers.owner)?;
        let owner = self.owner.clone()?;
        let confinement = Confinement { owner: Some(owner), ..Confinement::default() };
        let script = format!("[ \"$(id -u)\" = {owner} ]");
        match self.shell(&script, confinement).await {
            Ok(Some(0)) => Ok(()),
            Ok(_) => Err("scripts do not run as another user".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn network(&self, owner: Option<u32>) -> LayerCheck {
        wanted(self.layers.broker)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let connect = async |addresses: Vec<AddressRange>| {
            let broker = BrokerRules { addresses: Some(addresses), ..BrokerRules::default() };
            let args = vec![TRY_CONNECT.to_owned(), port.to_string()];
            let confinement = Confinement { owner, broker, ..Confinement::default() };
            self.start(OWN_PROGRAM.into(), args, confinement).await
        };
        let listed =
            format!("127.0.0.1:{port}").parse().map_err(|error: AddressRangeError| error.to_string())?;
        match connect(vec![listed]).await {
            Ok(Some(0)) => {}
            Ok(other) => return Err(format!("what is listed is not reached either: {other:?}")),
            Err(error) => return Err(error.to_string()),
        }
        withstood(connect(Vec::new()).await, "ports of this machine can be reached")
    }

    async fn attributes(&self, secret: &Path) -> LayerCheck {
        wanted(self.layers.broker)?;
        let own = secret.with_extension("own");
        std::fs::write(&own, "").map_err(|error| error.to_string())?;
        let broker = BrokerRules { attributes: Some(vec![own.clone()]), ..BrokerRules::default() };
        let attack = format!(
            "chmod 640 '{}' || exit 8; chmod 640 '{}' && exit; exit {WITHSTOOD}",
            own.display(),
            secret.display()
        );
        let status = self.shell(&attack, Confinement { broker, ..Confinement::default() }).await;
        std::fs::remove_file(&own).map_err(|error| error.to_string())?;
        withstood(status, "the mode of a file that is not its own can be changed")
    }

    async fn processes(&self, owner: Option<u32>) -> LayerCheck {
        wanted(self.layers.broker)?;
        let within = |processes| {
            let broker = BrokerRules { processes: Some(processes), ..BrokerRules::default() };
            self.shell(FORK, Confinement { owner, broker, ..Confinement::default() })
        };
        match within(20).await {
            Ok(Some(0)) => {}
            other => return Err(format!("nothing runs in it: {other:?}")),
        }
        withstood(within(1).await, "more processes can be started than are allowed")
    }

    async fn shell(&self, script: &str, confinement: Confinement) -> io::Result<Option<i32>> {
        self.start("/bin/sh".into(), vec!["-c".to_owned(), script.to_owned()], confinement).await
    }

    /// Runs a program confined, and returns its exit code; none when a signal ended it.
    async fn start(
        &self,
        program: PathBuf,
        args: Vec<String>,
        confinement: Confinement,
    ) -> io::Result<Option<i32>> {
        let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
        let request = SandboxRequest { program: program.into(), args, env, dir: "/".into(), confinement };
        let mut child = SandboxedJob::start(self.launcher, &request, Stdio::null(), Stdio::null())?;
        let mut status = None;
        while let Some(event) = child.next().await? {
            match event {
                InitEvent::Refused { layer, detail } => {
                    return Err(io::Error::other(format!("{layer}: {detail}")));
                }
                InitEvent::Exited { code, .. } => status = Some(code),
                InitEvent::Started { .. } | InitEvent::Signalled { .. } | InitEvent::Over { .. } => {}
            }
        }
        Ok(status)
    }
}

fn read(path: &Path) -> String {
    format!("read line < '{}'", path.display())
}

fn rules() -> FileRules {
    FileRules { read: system_paths(), write: Vec::new() }
}

fn wanted(wanted: bool) -> LayerCheck {
    if wanted { Ok(()) } else { Err("it is switched off".to_owned()) }
}

/// The launcher's own program, wherever it lies: the user of scripts may be kept from the directories that lead to it.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// A shell that cannot start another process ends at once, and exits with [`WITHSTOOD`].
const FORK: &str = "trap 'exit 7' EXIT; /bin/true & wait $!; trap - EXIT";
/// Exit code of an attack that failed as it should. An attack that exits with another code has proved nothing.
const WITHSTOOD: i32 = 7;
/// Memory that is enough for a shell, and less than the one needs that swells: 32 MiB.
const PLENTY_BYTES: u64 = 256 * 1024 * 1024;
const LITTLE_BYTES: u64 = 16 * 1024 * 1024;

fn withstood(status: io::Result<Option<i32>>, otherwise: &str) -> LayerCheck {
    match status {
        Ok(Some(WITHSTOOD)) => Ok(()),
        Ok(Some(0)) => Err(otherwise.to_owned()),
        Ok(Some(code)) => Err(format!("what tries it exited with {code}")),
        Ok(None) => Err("what tries it was ended by a signal".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The argument by which a program knows that it is to try to make a socket.
pub(crate) const TRY_SOCKET: &str = "sandbox-try-socket";

/// Tries to make a socket; 0 when that works.
pub(crate) fn try_socket() -> i32 {
    use rustix::net::{AddressFamily, SocketType, socket};
    match socket(AddressFamily::INET, SocketType::STREAM, None) {
        Ok(_) => 0,
        Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => WITHSTOOD,
        Err(_) => 1,
    }
}

/// The argument by which a program knows that it is to try to connect to a port of this machine.
pub(crate) const TRY_CONNECT: &str = "sandbox-try-connect";

/// Tries to connect to a port with a listener; 0 when that works.
pub(crate) fn try_connect() -> i32 {
    let port = std::env::args().nth(2).and_then(|port| port.parse::<u16>().ok());
    let Some(port) = port else { return 1 };
    match std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => 0,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => WITHSTOOD,
        Err(_) => 1,
    }
}
