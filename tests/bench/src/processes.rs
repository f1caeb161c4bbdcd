//! Suites that are measured from outside: what their processes use.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mycora_cli::profile::Profile;
use testkit::wait_until_blocking;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long a suite may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Every service as a process of its own, as `deploy/local/up.sh` starts them.
pub(crate) struct Separate {
    dir: PathBuf,
}

impl Separate {
    /// Starts them in `dir`, with the programs beside this one.
    pub(crate) fn start(dir: &Path) -> Result<Self, Error> {
        let suite = Self { dir: dir.to_owned() };
        suite.script("up.sh")?;
        Ok(suite)
    }

    pub(crate) fn profile(&self) -> Result<Profile, Error> {
        Ok(Profile::load(&self.dir.join("client.toml"))?)
    }

    /// The process of a service, or of Redis.
    pub(crate) fn pid(&self, service: &str) -> Result<u32, Error> {
        let record = std::fs::read_to_string(self.dir.join("run").join(format!("{service}.pid")))?;
        Ok(record.split_whitespace().next().ok_or("an empty record")?.parse()?)
    }

    /// What `redis-cli info memory` says is used, in bytes.
    pub(crate) fn redis_bytes(&self) -> Result<u64, Error> {
        let socket = self.dir.join("redis.sock");
        let out = Command::new("redis-cli").arg("-s").arg(socket).args(["info", "memory"]).output()?;
        let text = String::from_utf8(out.stdout)?;
        let used = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
        Ok(used.ok_or("no used_memory")?.trim().parse()?)
    }

    fn script(&self, name: &str) -> Result<(), Error> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/local").join(name);
        let programs = std::env::current_exe()?.parent().ok_or("a program lies in a folder")?.to_owned();
        // Ports of their own, so that a suite that runs on this machine is left alone.
        let done = Command::new(script)
            .arg(&self.dir)
            .env("MYCORA_BIN", programs)
            .env("MYCORA_PORT_BASE", "17700")
            .stdout(Stdio::null())
            .status()?;
        if done.success() { Ok(()) } else { Err(format!("{name} ended with {done}").into()) }
    }
}

impl Drop for Separate {
    fn drop(&mut self) {
        if let Err(error) = self.script("down.sh") {
            eprintln!("the suite in {} could not be ended: {error}", self.dir.display());
        }
    }
}

/// A `mycora up` as a process of its own.
pub(crate) struct AllInOne {
    child: Child,
    dir: PathBuf,
}

impl AllInOne {
    /// Starts one in `dir` and waits until it is ready.
    pub(crate) fn start(dir: &Path) -> Result<Self, Error> {
        let program = std::env::current_exe()?.with_file_name("mycora");
        let log = std::fs::File::create(dir.join("up.log"))?;
        let child = Command::new(program)
            .args(["up", "--port", "17500", "--data"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let suite = Self { child, dir: dir.to_owned() };
        let log = dir.join("up.log");
        let is_ready = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            text.contains("mycora is ready").then_some(())
        };
        wait_until_blocking(is_ready, START_TIMEOUT, "`mycora up` is ready");
        Ok(suite)
    }

    pub(crate) fn profile(&self) -> Result<Profile, Error> {
        Ok(Profile::load(&self.dir.join("client.toml"))?)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process of its Redis.
    pub(crate) fn redis_pid(&self) -> Result<u32, Error> {
        let record = std::fs::read_to_string(self.dir.join("redis.pid"))?;
        Ok(record.split_whitespace().next().ok_or("an empty record")?.parse()?)
    }
}

impl Drop for AllInOne {
    fn drop(&mut self) {
        // As Ctrl-C does, so that its Redis ends with it.
        let asked = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        if asked.is_ok_and(|status| status.success()) {
            let _ = self.child.wait();
        }
    }
}

/// The most memory that a process ever had, in bytes.
pub(crate) fn peak_bytes(pid: u32) -> Result<u64, Error> {
    status_bytes(pid, "VmHWM:")
}

/// The memory that a process has now, in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64, Error> {
    status_bytes(pid, "VmRSS:")
}

/// The memory that a process has of its own, in bytes: without the pages of files that it looks into.
pub(crate) fn own_bytes(pid: u32) -> Result<u64, Error> {
    status_bytes(pid, "RssAnon:")
}

fn status_bytes(pid: u32, field: &str) -> Result<u64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
    let kib: u64 = line.split_whitespace().next().ok_or("an empty field")?.parse()?;
    Ok(kib * 1024)
}

/// The processor time that a process has used, of all its threads.
pub(crate) fn processor_time(pid: u32) -> Result<Duration, Error> {
    /// Clock ticks per second, as Linux shows them to programs.
    const TICKS: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in brackets may hold blanks: what counts comes behind it.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| -> Result<u64, Error> { Ok(fields.get(at).ok_or("a short stat")?.parse()?) };
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / TICKS))
}
