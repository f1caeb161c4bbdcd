//! A suite of real processes with links that can be broken.

mod all_in_one;
mod processes;
mod program;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mycora_cli::profile::Profile;
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::{FaultProxy, RedisServer, SmallDisk, Witness};

use self::program::{Program, redis_of};
use crate::schedule::{Fault, Kind, Targets};

/// Room for everything that a run writes, and little enough to be filled in no time.
const DISK_MIB: u32 = 256;

/// From here on a slow link holds everything back and passes it on at the end.
const LONG: Duration = Duration::from_secs(2);

/// How a suite is made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `mycora up`: everything in one process.
    AllInOne,
    /// Ten processes, three of them schedulers, over one Redis.
    Processes,
}

impl Form {
    /// Returns the name of the form in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllInOne => "up",
            Self::Processes => "processes",
        }
    }
}

/// Identity of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Actor 1, admin of context 1.
    Admin,
    /// Actor 2, which is not registered.
    Stranger,
}

/// A suite that runs. Everything of it ends with it.
#[derive(Debug)]
pub struct Suite {
    form: Form,
    // Processes end before what they work in goes.
    programs: BTreeMap<String, Program>,
    links: BTreeMap<String, FaultProxy>,
    redis: Option<RedisServer>,
    /// Links over which a process holds a lease that others wait for.
    leases: Vec<String>,
    /// Links over which a process is given what others may take as well.
    shares: Vec<String>,
    /// Where clients reach it, through links.
    doors: Vec<String>,
    data: PathBuf,
    slots: usize,
    disk: Option<SmallDisk>,
    dir: TempDir,
}

impl Suite {
    /// Starts one and waits until it serves. Needs a runtime.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(form: Form) -> Self {
        let dir = tempfile::Builder::new().prefix("mycora-faults-").tempdir().expect("a temporary directory");
        // Sticky, as /tmp is: scripts of other users write to the witness.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).expect("it is ours");
        let disk = SmallDisk::new(DISK_MIB);
        match form {
            Form::AllInOne => all_in_one::start(dir, disk).await,
            Form::Processes => processes::start(dir, disk).await,
        }
    }

    /// How it is made up.
    #[must_use]
    pub const fn form(&self) -> Form {
        self.form
    }

    /// Where scripts report what they do.
    #[must_use]
    pub fn witness(&self) -> Witness {
        Witness::new(self.dir.path())
    }

    /// How many scripts may run at once.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the parts of this suite that faults can hit.
    #[must_use]
    pub fn targets(&self) -> Targets {
        Targets {
            programs: self.programs.keys().cloned().collect(),
            links: self.links.keys().cloned().collect(),
            leases: self.leases.clone(),
            shares: self.shares.clone(),
            disk: self.disk.is_some(),
            redis: true,
            redis_stop: true,
        }
    }

    /// Profiles of a client, one for each way in.
    ///
    /// # Panics
    /// When the suite has none.
    #[must_use]
    pub fn profiles(&self, who: Who) -> Vec<Profile> {
        let mut profile = Profile::load(&self.data.join("client.toml")).expect("the suite writes one");
        if who == Who::Stranger {
            let file = |extension: &str| Some(self.data.join("pki/actor-2").with_extension(extension));
            (profile.cert, profile.key) = (file("pem"), file("key"));
        }
        let through = |address: &String| {
            let mut profile = profile.clone();
            profile.address = Some(address.clone());
            profile.addresses.scheduler = None;
            profile
        };
        self.doors.iter().map(through).collect()
    }

    /// Returns true if the suite itself has to mend the effect of a fault.
    #[must_use]
    pub fn mends(&self, fault: &Fault) -> bool {
        self.redis.is_none() && fault.kind == Kind::RedisKill
    }

    /// Makes a fault begin; returns whether it did: what is about to be started again cannot be broken now.
    ///
    /// # Panics
    /// When its target cannot be broken.
    #[must_use]
    pub fn begin(&mut self, fault: &Fault) -> bool {
        match fault.kind {
            Kind::Kill => return self.program(fault).kill(),
            Kind::Terminate => return self.program(fault).terminate(),
            Kind::Stop => return self.program(fault).signal(Signal::STOP),
            Kind::Cut => self.link(fault).set(testkit::ProxyFault::Cut),
            // Each piece a little, or all of it until what waited for it is over.
            Kind::Delay if fault.lasts < LONG => {
                self.link(fault).set(testkit::ProxyFault::Delay(fault.lasts / 10))
            }
            Kind::Delay | Kind::Hold => self.link(fault).set(testkit::ProxyFault::Hold),
            Kind::HoldAnswers => self.link(fault).set(testkit::ProxyFault::HoldAnswers),
            Kind::Swallow => self.link(fault).set(testkit::ProxyFault::BlackHole),
            Kind::SwallowAnswers => self.link(fault).set(testkit::ProxyFault::SwallowAnswers),
            Kind::DiskFull => self.disk.as_ref().expect("a disk").fill_up("filler", 0),
            Kind::RedisKill => match &mut self.redis {
                Some(redis) => redis.kill9(),
                None => return self.signal_redis(Signal::KILL),
            },
            Kind::RedisStop => return self.signal_redis(Signal::STOP),
        }
        true
    }

    /// Makes it end: what was killed is started again, and not waited for.
    ///
    /// # Panics
    /// When something cannot be started again.
    pub fn lift(&mut self, fault: &Fault) {
        match fault.kind {
            Kind::Kill | Kind::Terminate => self.program(fault).spawn(),
            Kind::Stop => {
                self.program(fault).signal(Signal::CONT);
            }
            // What was swallowed is gone: a connection that lost a part of what it carried is none any more.
            Kind::Swallow | Kind::SwallowAnswers => self.link(fault).cut_once(),
            Kind::Cut | Kind::Delay | Kind::Hold | Kind::HoldAnswers => self.link(fault).restore(),
            Kind::DiskFull => {
                self.disk.as_ref().expect("a disk").empty("filler");
                self.revive();
            }
            Kind::RedisKill => {
                if let Some(redis) = &mut self.redis {
                    redis.restart();
                }
            }
            Kind::RedisStop => {
                self.signal_redis(Signal::CONT);
            }
        }
    }

    /// Returns true if a fault ends scripts: the process that runs them, or one that vouches for them, dies or hangs.
    #[must_use]
    pub fn ends_scripts(&self, fault: &Fault) -> bool {
        let runs =
            |name: &str| ["up", "runner", "supervisor"].iter().any(|program| name.starts_with(program));
        matches!(fault.kind, Kind::Kill | Kind::Terminate | Kind::Stop) && runs(&fault.target)
            || matches!(fault.kind, Kind::RedisKill | Kind::RedisStop | Kind::DiskFull)
            || fault.target.strip_suffix("-redis").is_some_and(runs)
    }

    /// Starts again what has ended by itself, as whatever watches over services does, and names it.
    pub fn revive(&mut self) -> Vec<String> {
        let mut ended = Vec::new();
        if let Some(redis) = &mut self.redis
            && !redis.is_running()
        {
            redis.restart();
            ended.push("redis".to_owned());
        }
        for (name, program) in &mut self.programs {
            if !program.is_running() {
                program.spawn();
                ended.push(name.clone());
            }
        }
        ended
    }

    /// Messages of context 1 that have not been settled; `None` when Redis does not answer.
    #[must_use]
    pub fn messages_left(&self) -> Option<u64> {
        Some(self.ask_redis(&["ZCARD", "msg_out_coordinator"])? + self.ask_redis(&["LLEN", "msg_out"])?)
    }

    /// Returns the output of the suite's processes, by their names.
    #[must_use]
    pub fn outputs(&self) -> Vec<(String, String)> {
        self.programs.iter().map(|(name, program)| (name.clone(), program.output())).collect()
    }

    fn program(&mut self, fault: &Fault) -> &mut Program {
        self.programs.get_mut(&fault.target).expect("a program of this suite")
    }

    fn link(&self, fault: &Fault) -> &FaultProxy {
        self.links.get(&fault.target).expect("a link of this suite")
    }

    /// Signals Redis; returns false if there was none to be signalled.
    fn signal_redis(&self, signal: Signal) -> bool {
        match (&self.redis, signal) {
            (Some(redis), Signal::STOP) => redis.pause(),
            (Some(redis), _) => redis.resume(),
            // Gone means that the suite is about to start another one.
            (None, _) => {
                return redis_of(&self.data)
                    .is_some_and(|pid| rustix::process::kill_process(pid, signal).is_ok());
            }
        }
        true
    }

    fn ask_redis(&self, arguments: &[&str]) -> Option<u64> {
        let mut command = std::process::Command::new("redis-cli");
        match &self.redis {
            Some(redis) => command.arg("-s").arg(redis.socket()),
            None => {
                let password = std::fs::read_to_string(self.data.join("redis.password")).ok()?;
                command.env("REDISCLI_AUTH", password.trim()).arg("-s").arg(self.data.join("redis.sock"))
            }
        };
        let output = command.args(["-n", "1"]).args(arguments).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        self.programs.clear();
        if self.redis.is_none()
            && let Some(pid) = redis_of(&self.data)
        {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// The place that a suite works in: the small disk, where there is one.
fn place(dir: &TempDir, disk: Option<&SmallDisk>) -> PathBuf {
    disk.map_or(dir.path(), SmallDisk::path).to_owned()
}

/// Issues a certificate to an identity that is not registered.
fn issue_stranger(pki: &Path) {
    program::run("mycora", &["pki", "issue", "actor/2", "--dir", text(pki)]);
}

/// A path as an argument.
fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}
