//! A `mycora up` of a test, and the command line against it.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use testkit::{TestProcess, free_port};

/// Long enough for a busy machine, short enough to notice.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A program of this workspace, as `make test` builds it beside the tests.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own file");
    let dir = test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>");
    let path = dir.join(name);
    assert!(path.exists(), "{} is not built: run `make test`, or `cargo build --bins`", path.display());
    path
}

/// A `mycora up` that runs.
pub(crate) struct Up {
    dir: PathBuf,
    /// User who starts the suite, when not the user who runs the tests.
    user: Option<u32>,
    /// Kept over a restart: others know it by this port.
    port: u16,
    arguments: Vec<String>,
    pub(crate) process: TestProcess,
}

impl Up {
    /// Starts one on a directory and a free port.
    pub(crate) fn start(dir: &Path, arguments: &[&str]) -> Self {
        Self::start_as(None, dir, arguments)
    }

    /// Starts a suite with these variables in its environment.
    pub(crate) fn start_with(dir: &Path, environment: &[(&str, &OsStr)]) -> Self {
        let port = free_port_pair();
        let mut command = Command::new(program("mycora"));
        command.envs(environment.iter().copied());
        let process = spawn_command(command, dir, port, &[]);
        let mut up = Self { dir: dir.to_owned(), user: None, port, arguments: Vec::new(), process };
        up.wait_ready();
        up
    }

    /// Starts a suite as another user than the one who runs the tests.
    pub(crate) fn start_as(user: Option<u32>, dir: &Path, arguments: &[&str]) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let port = free_port_pair();
        let process = spawn(user, dir, port, &arguments);
        let mut up = Self { dir: dir.to_owned(), user, port, arguments, process };
        up.wait_ready();
        up
    }

    /// Starts it again after its process has ended.
    pub(crate) fn restart(&mut self) {
        self.process = spawn(self.user, &self.dir, self.port, &self.arguments);
        self.wait_ready();
    }

    fn wait_ready(&mut self) {
        self.process.wait_for_line("mycora is ready", PATIENCE);
    }

    /// Ends it as Ctrl-C does and waits for the end.
    pub(crate) fn stop(mut self) {
        self.process.interrupt();
        let status = self.process.wait(PATIENCE);
        assert!(status.success(), "`mycora up` ended with {status}:\n{}", self.process.output());
    }

    /// The profile that its clients use.
    pub(crate) fn profile(&self) -> PathBuf {
        self.dir.join("client.toml")
    }

    /// Returns the data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the port on this machine.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The command line against it.
    pub(crate) fn mycora(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("`mycora` starts")
    }

    /// Returns a command for the caller to start, as the user of the suite: its keys are closed to others.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program_as(self.user);
        command.env("MYCORA_CONFIG", self.profile()).args(arguments);
        command
    }

    /// Answers of `redis-cli` in one database, as the line that `up` prints calls it.
    pub(crate) fn redis(&self, database: u32, arguments: &[&str]) -> String {
        let password =
            std::fs::read_to_string(self.dir.join("redis.password")).expect("`up` keeps the password");
        self.redis_with(password.trim(), database, arguments)
    }

    /// Runs `redis-cli` with another password.
    pub(crate) fn redis_with(&self, password: &str, database: u32, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .env("REDISCLI_AUTH", password)
            .arg("-s")
            .arg(self.dir.join("redis.sock"))
            .args(["-n", &database.to_string()])
            .args(arguments)
            .output()
            .expect("`redis-cli` starts");
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.process.kill9();
        end_servers_of(&self.dir);
    }
}

/// Ends the servers of a `mycora up` that was killed: they outlive that one, until the next start in the same directory finds them.
pub(crate) fn end_servers_of(dir: &Path) {
    for record in ["redis.pid", "nats.pid"] {
        let record = std::fs::read_to_string(dir.join(record)).unwrap_or_default();
        let mut fields = record.split_whitespace();
        let (Some(pid), Some(since)) = (fields.next(), fields.next()) else { continue };
        // Never a later process of the same number.
        if started_at(pid).as_deref() == Some(since) {
            let killed = Command::new("kill").args(["-KILL", pid]).status();
            assert!(killed.is_ok_and(|status| status.success()) || std::thread::panicking(), "{pid} goes on");
        }
    }
}

/// When a living process began, in clock ticks since the start of the machine.
pub(crate) fn started_at(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_ascii_whitespace().collect();
    fields
        .first()
        .is_some_and(|state| *state != "Z")
        .then(|| fields.get(19).map(|since| (*since).to_owned()))?
}

/// The command line with a profile.
pub(crate) fn command(profile: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("mycora"));
    command.env("MYCORA_CONFIG", profile).args(arguments);
    command
}

/// `mycora`, to be started by this user.
fn program_as(user: Option<u32>) -> Command {
    let Some(user) = user else { return Command::new(program("mycora")) };
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "--regid"].iter().flat_map(|flag| [(*flag).to_owned(), user.to_string()]));
    command.arg("--clear-groups").arg(program("mycora"));
    command
}

fn spawn(user: Option<u32>, dir: &Path, port: u16, arguments: &[String]) -> TestProcess {
    spawn_command(program_as(user), dir, port, arguments)
}

fn spawn_command(mut command: Command, dir: &Path, port: u16, arguments: &[String]) -> TestProcess {
    command.arg("up").arg("--data").arg(dir).args(["--port", &port.to_string()]).args(arguments);
    let place = place_of_scripts(dir);
    if !arguments.iter().any(|argument| argument == "--allow-write") {
        command.arg("--allow-write").arg(place);
    }
    TestProcess::spawn("mycora up", &mut command)
}

/// Directory in which scripts record what they do: beside a suite's directory, whatever user they run as.
pub(crate) fn place_of_scripts(dir: &Path) -> &Path {
    let place = dir.parent().expect("a suite's directory lies in another");
    // Sticky, as /tmp is: scripts do not exchange the suite beside them.
    std::fs::set_permissions(place, Permissions::from_mode(0o1777)).expect("it is ours");
    place
}

/// A port that is free together with its ops port.
pub(crate) fn free_port_pair() -> u16 {
    (0..100)
        .map(|_| free_port())
        .find(|port| {
            port.checked_add(100).is_some_and(|ops| std::net::TcpListener::bind(("127.0.0.1", ops)).is_ok())
        })
        .expect("two free ports, 100 apart")
}

/// Returns the standard output of a command, which must have ended with `code`.
pub(crate) fn stdout(output: &Output, code: i32) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "standard output:\n{out}\nstandard error:\n{err}");
    out.into_owned()
}

/// Returns the standard error of a command, which must have ended with `code`.
pub(crate) fn stderr(output: &Output, code: i32) -> String {
    stdout(output, code);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes a file that only its owner reads.
pub(crate) fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("it is ours");
}

/// Writes a flow file and gives its path as text.
pub(crate) fn flow_file(dir: &Path, text: &str) -> String {
    let path = dir.join("flow.yaml");
    std::fs::write(&path, text).expect("a flow file");
    path.to_str().expect("a plain path").to_owned()
}

/// Processes whose arguments or working directory lie in `dir`.
pub(crate) fn processes_in(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().expect("a plain path");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let arguments = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        let cwd = std::fs::read_link(path.join("cwd")).unwrap_or_default();
        if arguments.contains(dir) || cwd.starts_with(dir) {
            found.push(format!("{} {arguments} (in {})", entry.file_name().to_string_lossy(), cwd.display()));
        }
    }
    found
}

/// Returns the answer of an operators' port to a request with the token of the suite in `dir`, as it comes.
pub(crate) fn get(dir: &Path, port: u16, path: &str) -> String {
    let token = std::fs::read_to_string(dir.join("ops.token")).expect("the token of the operators' port");
    get_with(&format!("Authorization: Bearer {}\r\n", token.trim()), port, path)
}

/// Returns the answer of an operators' port to a request with this header.
pub(crate) fn get_with(header: &str, port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the operators' port");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    text
}

/// A metric as an operators' port reports it now.
pub(crate) fn metric(dir: &Path, port: u16, name: &str) -> f64 {
    let text = get(dir, port, "/metrics");
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no metric {name} in:\n{text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

/// The memory of a process, in KiB: `VmRSS` as it is, `VmHWM` at its peak.
pub(crate) fn memory_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let of_field = |line: &str| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned());
    let value = status.lines().find_map(of_field).expect("such a field");
    value.split(' ').next().and_then(|kib| kib.parse().ok()).expect("a number")
}
