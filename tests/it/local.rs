//! A suite of separate processes, as `deploy/local/up.sh` starts it.

use std::path::{Path, PathBuf};
use std::process::Command;

use identity::ServiceName;
use testkit::{free_port, wait_until_blocking};

use crate::suite::{PATIENCE, metric, place_of_scripts, program, started_at, stdout};

/// Replicas of the scheduler, and of the runner, that a suite may have: as many ports are kept free.
const REPLICAS_MAX: u16 = 4;

/// Suite that `deploy/local/up.sh` started; `down.sh` ends it.
pub(crate) struct Processes {
    dir: PathBuf,
    port_base: u16,
    settings: Vec<(String, String)>,
}

impl Processes {
    /// Starts them all on free ports; `settings` are the script's own variables.
    pub(crate) fn start(dir: &Path, settings: &[(&str, &str)]) -> Self {
        let mut processes = Self::prepare(dir);
        for (name, value) in settings {
            processes.set(name, value);
        }
        processes.script("up.sh");
        processes
    }

    /// Chooses the ports and starts nothing yet.
    pub(crate) fn prepare(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), port_base: free_port_base(), settings: Vec::new() }
    }

    /// Sets a variable of the script.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Removes the variable from the environment of services that are started from now on.
    pub(crate) fn unset(&mut self, name: &str) {
        self.settings.retain(|(known, _)| known != name);
    }

    /// Returns true if a service runs.
    pub(crate) fn runs(&self, service: &str) -> bool {
        self.living(service).is_some()
    }

    /// Runs `up.sh`, which starts what does not run, or `down.sh`.
    pub(crate) fn script(&self, name: &str) {
        stdout(&self.run(name), 0);
    }

    /// Starts what does not run, as far as it goes: what is started may be killed meanwhile.
    pub(crate) fn revive(&self) {
        self.run("up.sh");
    }

    fn run(&self, name: &str) -> std::process::Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/local").join(name);
        let bin = program("mycora");
        Command::new(script)
            .arg(&self.dir)
            .env("MYCORA_BIN", bin.parent().expect("target/<profile>"))
            .env("MYCORA_PORT_BASE", self.port_base.to_string())
            .env("MYCORA_ALLOW_WRITE", place_of_scripts(&self.dir))
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .output()
            .expect("the script starts")
    }

    /// Where all of it lies.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The profile that its clients use.
    pub(crate) fn profile(&self) -> PathBuf {
        self.dir.join("client.toml")
    }

    /// A profile whose client talks to the scheduler replica of this number, from 1 on.
    pub(crate) fn profile_of(&self, replica: u16) -> PathBuf {
        let text = std::fs::read_to_string(self.profile()).expect("a profile");
        let first = format!("https://127.0.0.1:{}", self.scheduler_port(1));
        let other = format!("https://127.0.0.1:{}", self.scheduler_port(replica));
        let path = self.dir.join(format!("client-{replica}.toml"));
        std::fs::write(&path, text.replace(&first, &other)).expect("a profile");
        path
    }

    /// Where a service listens: the first one, where it has replicas.
    pub(crate) fn port_of(&self, service: ServiceName) -> u16 {
        let number = match service {
            ServiceName::Scheduler => 2,
            ServiceName::Router => 3,
            ServiceName::RunnerRegistry => 4,
            ServiceName::MyceliumGateway => 5,
            ServiceName::Supervisor => 6,
            _ => 1,
        };
        self.port_base + number
    }

    /// Where storage listens.
    pub(crate) const fn storage_port(&self) -> u16 {
        self.port_base + 1
    }

    const fn scheduler_port(&self, replica: u16) -> u16 {
        self.port_base + 2 + 10 * (replica - 1)
    }

    /// Kills a process without a warning. It is gone when this returns: `up.sh` leaves alone what is not dead yet.
    pub(crate) fn kill9(&self, service: &str) {
        self.signal(service, "-KILL");
        let gone = || (!self.runs(service)).then_some(());
        wait_until_blocking(gone, PATIENCE, format!("{service} is dead"));
    }

    /// Kills a service that may not run; returns true if it did.
    pub(crate) fn try_kill9(&self, service: &str) -> bool {
        let killed = |pid: String| Command::new("kill").args(["-KILL", &pid]).status();
        self.living(service).is_some_and(|pid| killed(pid).is_ok_and(|status| status.success()))
    }

    /// A service's process id, while it lives.
    fn living(&self, service: &str) -> Option<String> {
        let record = std::fs::read_to_string(self.dir.join("run").join(format!("{service}.pid"))).ok()?;
        let (pid, since) = record.trim().split_once(' ')?;
        // Not a later process with its number, and not one that is dead already.
        (started_at(pid).as_deref() == Some(since)).then(|| pid.to_owned())
    }

    /// How many flows of context 1 have ended, however.
    pub(crate) fn flows_ended(&self) -> usize {
        let ended = |line: &str| {
            line.contains(r#""kind":"flow""#)
                && ["finished", "error", "cancelled"]
                    .iter()
                    .any(|end| line.contains(&format!(r#""status":"{end}""#)))
        };
        self.redis(1, &["XRANGE", "events", "-", "+"]).lines().filter(|line| ended(line)).count()
    }

    /// How many jobs were put back since an instance that had popped them died, by the supervisor's log.
    pub(crate) fn put_back(&self) -> usize {
        let log = std::fs::read_to_string(self.dir.join("log/supervisor.log")).unwrap_or_default();
        log.lines().filter(|line| line.contains("put back")).count()
    }

    /// Sends a process a signal.
    pub(crate) fn signal(&self, service: &str, signal: &str) {
        let record =
            std::fs::read_to_string(self.dir.join("run").join(format!("{service}.pid"))).expect("it runs");
        let pid = record.split_whitespace().next().expect("a process id");
        let sent = Command::new("kill").args([signal, pid]).status().expect("kill starts");
        assert!(sent.success(), "{service} was not running");
    }

    /// One of a scheduler replica's metrics, as it stands now.
    pub(crate) fn scheduler_metric(&self, replica: u16, name: &str) -> f64 {
        metric(&self.dir, self.scheduler_port(replica) + 100, name)
    }

    /// Answers of `redis-cli` in one database.
    pub(crate) fn redis(&self, database: u32, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .arg("-s")
            .arg(self.dir.join("redis.sock"))
            .args(["-n", &database.to_string()])
            .args(arguments)
            .output()
            .expect("`redis-cli` starts");
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/local/down.sh");
        let ended = Command::new(script).arg(&self.dir).output();
        assert!(ended.is_ok_and(|out| out.status.success()) || std::thread::panicking(), "down.sh failed");
    }
}

/// The services listen on base + 1 to 7, scheduler replicas on + 12 and + 22, and all of them for
/// operators 100 above.
fn free_port_base() -> u16 {
    let offsets: Vec<u16> = (1..=7)
        .chain((1..REPLICAS_MAX).flat_map(|replica| [2 + 10 * replica, 7 + 10 * replica]))
        .flat_map(|offset| [offset, offset + 100])
        .collect();
    let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    (0..100)
        .map(|_| free_port())
        .filter(|base| base.checked_add(200).is_some())
        .find(|base| offsets.iter().all(|offset| is_free(base + offset)))
        .expect("free ports in a row")
}
