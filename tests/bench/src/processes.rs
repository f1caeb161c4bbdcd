//! Suites that are measured from outside: what their processes use.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mycora_cli::profile::Profile;
use testkit::wait_until_blocking;

use crate::usage::Redis;

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

    /// Returns the memory that Redis uses by `redis-cli info memory`, in bytes.
    pub(crate) fn redis_bytes(&self) -> Result<u64, Error> {
        Ok(self.redis().counts()?.bytes_kept)
    }

    /// Returns the Redis of the suite, to read its counters.
    pub(crate) fn redis(&self) -> Redis {
        Redis { socket: self.dir.join("redis.sock"), password: None }
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

/// Lines of the log of a suite that ended by itself.
const LOG_LINES: usize = 20;

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
            // One client stands for many.
            .env("MYCORA_ACTOR_CALLS_PER_SEC", "100000")
            .env("MYCORA_ACTOR_CALLS_BURST", "100000")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut suite = Self { child, dir: dir.to_owned() };
        let log = dir.join("up.log");
        let ended_or_ready = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let is_ready = text.contains("mycora is ready");
            let ended = suite.child.try_wait().ok().flatten();
            if is_ready { Some(Ok(())) } else { ended.map(|status| Err((status, text))) }
        };
        match wait_until_blocking(ended_or_ready, START_TIMEOUT, "`mycora up` is ready") {
            Ok(()) => Ok(suite),
            // Another that holds its port, perhaps.
            Err((status, text)) => Err(format!("`mycora up` has ended with {status}:\n{text}").into()),
        }
    }

    pub(crate) fn profile(&self) -> Result<Profile, Error> {
        Ok(Profile::load(&self.dir.join("client.toml"))?)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its Redis, to read its counters.
    pub(crate) fn redis(&self) -> Redis {
        Redis { socket: self.dir.join("redis.sock"), password: Some(self.dir.join("redis.password")) }
    }

    /// The process of its Redis.
    pub(crate) fn redis_pid(&self) -> Result<u32, Error> {
        let record = std::fs::read_to_string(self.dir.join("redis.pid"))?;
        Ok(record.split_whitespace().next().ok_or("an empty record")?.parse()?)
    }
}

impl Drop for AllInOne {
    fn drop(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            let log = std::fs::read_to_string(self.dir.join("up.log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(LOG_LINES).collect();
            eprintln!("`mycora up` has ended with {status}; the end of its log:");
            lines.iter().rev().for_each(|line| eprintln!("{line}"));
            return;
        }
        // As Ctrl-C does, so that its Redis ends with it.
        let interrupt = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        if interrupt.is_ok_and(|status| status.success()) {
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
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(Stat::parse(&stat).ok_or("a short stat")?.own)
}

/// Fields of a process's `stat` in `/proc`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) parent: u32,
    /// Processor time of all its threads.
    pub(crate) own: Duration,
    /// Processor time of those that it started and has waited for.
    pub(crate) of_ended: Duration,
}

impl Stat {
    /// Reads such a line; nothing where it is too short.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        /// Clock ticks per second, as Linux shows them to programs.
        const TICKS: u64 = 100;
        // The name in brackets may hold blanks: what counts comes behind it.
        let fields: Vec<&str> = line.rsplit(") ").next()?.split(' ').collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let time = |at: usize| Some(Duration::from_millis((ticks(at)? + ticks(at + 1)?) * 1000 / TICKS));
        Some(Self { parent: fields.get(1)?.parse().ok()?, own: time(11)?, of_ended: time(13)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_what_it_likes() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 0 0 0 0 0 10 20 300 4000 20 0 1 0 5 6 7";
        let (own, of_ended) = (Duration::from_millis(300), Duration::from_secs(43));
        assert_eq!(Stat::parse(line), Some(Stat { parent: 3, own, of_ended }));
        assert_eq!(Stat::parse("7 (short) S 3"), None);
    }
}
