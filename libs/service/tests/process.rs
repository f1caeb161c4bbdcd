//! A real process: `run`, signals and exit status. Started with a first argument
//! that is a flag of the service, this program is that service.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStderr, Command, ExitCode, Stdio};

use serde_json::{Value, json};
use service::{
    AdminHandlers, AdminMethods, AdminScope, App, DrainError, Failure, InfoScope, ReloadError, ServiceHost,
    ServiceLimits, Shutdown, UnknownTenant,
};

/// The user that a service of root's tests runs as.
const ORDINARY: u32 = 65_534;

struct Small;

#[derive(Debug, clap::Args)]
struct Config {
    /// Do not end when told to
    #[arg(long)]
    hang: bool,
}

impl App for Small {
    const NAME: &'static str = "small";
    const ABOUT: &'static str = "A service for tests";
    const GRPC_PORT: Option<u16> = None;
    const OPS_PORT: u16 = 7998;
    const ADMIN: Option<AdminMethods> = Some(AdminMethods { drain: "Small/Drain", reload: "Small/Reload" });
    type Config = Config;

    fn limits(_: &Config) -> ServiceLimits {
        ServiceLimits::new()
    }

    async fn start(config: Config, host: ServiceHost) -> Result<(), Failure> {
        let shutdown = host.shutdown.clone();
        host.admin.ok_or("no admin routes")?.handle_with(Handlers(shutdown.clone()));
        host.tasks.spawn("only", async move {
            if config.hang {
                std::future::pending::<()>().await;
            }
            shutdown.begun().await;
            Ok(())
        });
        Ok(())
    }
}

struct Handlers(Shutdown);

impl AdminHandlers for Handlers {
    async fn drain(&self, _: AdminScope) -> Result<Value, DrainError> {
        self.0.begin();
        // Everything else of the process ends before this answers.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        Ok(json!({"in_flight": 0}))
    }

    async fn reload(&self, _: AdminScope) -> Result<Value, ReloadError> {
        Err(ReloadError::Problems("nothing to reload".to_owned()))
    }

    fn info(&self, _: &InfoScope) -> Result<Value, UnknownTenant> {
        Ok(Value::Null)
    }
}

/// The service as a child process, started completely.
struct Running {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    /// Where its ops port is.
    ops: String,
}

impl Running {
    fn start(flags: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        Self::of(command.args(["--ops-listen", "127.0.0.1:0", "--log-format", "json"]).args(flags))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("started");
        let log = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut running = Self { child, log, ops: String::new() };
        let bound = running.wait_for_log("--ops-listen is bound");
        bound["address"].as_str().expect("an address").clone_into(&mut running.ops);
        running.wait_for_log("small started");
        running
    }

    fn wait_for_log(&mut self, text: &str) -> Value {
        let found = self.log.by_ref().map_while(Result::ok).find_map(|line| {
            let entry = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
            line.contains(text).then_some(entry)
        });
        found.unwrap_or_else(|| panic!("the log ended without `{text}`"))
    }

    /// Sends a request without a body to its ops port.
    fn post(&self, path: &str, secret: &str) -> String {
        let mut stream = TcpStream::connect(&self.ops).expect("it listens");
        let headers = format!("Host: ops\r\nAuthorization: Bearer {secret}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(format!("POST {path} HTTP/1.1\r\n{headers}").as_bytes()).expect("sent");
        let mut head = String::new();
        BufReader::new(stream).read_line(&mut head).expect("an answer");
        head.trim_end().to_owned()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -s {name}");
    }

    fn status(mut self) -> Option<i32> {
        self.child.wait().expect("ended").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Does nothing to a process that was waited for; a failed test must not leave one behind.
        let _ = self.child.kill();
    }
}

fn the_first_signal_ends_it_in_order(name: &str) {
    // There is no listener at the collector's port; that must not hold up the end.
    let mut running = Running::start(&["--otlp-endpoint", "http://127.0.0.1:1"]);
    running.signal(name);
    running.wait_for_log("small ended");
    assert_eq!(running.status(), Some(0));
}

fn a_requested_drain_is_answered_and_ends_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("admin.secret");
    let secret = "0123456789abcdef";
    std::fs::write(&file, format!("{secret}\n")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its owner");
    let mut running = Running::start(&["--admin-secret-file", file.to_str().expect("a plain path")]);
    assert_eq!(running.post("/admin/drain", "another"), "HTTP/1.1 403 Forbidden");
    assert_eq!(running.post("/admin/reload", secret), "HTTP/1.1 409 Conflict");
    assert_eq!(running.post("/admin/drain", secret), "HTTP/1.1 202 Accepted");
    running.wait_for_log("small ended");
    assert_eq!(running.status(), Some(0));
}

fn a_secret_that_others_read_stops_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("admin.secret");
    std::fs::write(&file, "0123456789abcdef").expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("its owner");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--ops-listen", "127.0.0.1:0", "--admin-secret-file"]).arg(&file);
    let output = command.output().expect("ran");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("secret of the admin routes"), "{errors}");
}

fn a_hangup_ends_nothing() {
    let mut running = Running::start(&[]);
    running.signal("HUP");
    running.wait_for_log("read again");
    running.signal("TERM");
    running.wait_for_log("small ended");
    assert_eq!(running.status(), Some(0));
}

fn the_second_signal_ends_it_at_once() {
    let mut running = Running::start(&["--hang", "--drain-secs", "600"]);
    running.signal("TERM");
    running.wait_for_log("shutdown begins");
    running.signal("INT");
    assert_eq!(running.status(), Some(130));
}

/// A service of an ordinary user: root looks into everything.
struct Owned {
    running: Running,
    user: u32,
}

impl Owned {
    /// Starts it with core files allowed by its parent, in a directory that others pass.
    fn start(dir: &std::path::Path, flags: &[&str]) -> Self {
        let own = rustix::process::geteuid();
        let user = if own.is_root() { ORDINARY } else { own.as_raw() };
        let program = dir.join("small");
        std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("a copy");
        let mut command = Command::new("sh");
        command.args(["-c", "umask 000; ulimit -c \"$(ulimit -H -c)\"; exec \"$@\"", "sh"]).arg(program);
        command.args(["--ops-listen", "127.0.0.1:0", "--log-format", "json"]).args(flags);
        if own.is_root() {
            command.uid(user).gid(user);
        }
        Self { running: Running::of(&mut command), user }
    }

    fn proc(&self, file: &str) -> std::path::PathBuf {
        std::path::Path::new("/proc").join(self.running.child.id().to_string()).join(file)
    }

    /// Soft and hard limit of core files.
    fn core_limits(&self) -> Vec<String> {
        let limits = std::fs::read_to_string(self.proc("limits")).expect("it lives");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("a line");
        line.split_whitespace().take(2).map(str::to_owned).collect()
    }

    /// To whom the kernel gives its memory: to root when it is not dumpable.
    fn memory_owner(&self) -> u32 {
        self.proc("mem").metadata().expect("it lives").uid()
    }

    fn umask(&self) -> String {
        let status = std::fs::read_to_string(self.proc("status")).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).expect("a line");
        line.trim().to_owned()
    }
}

fn its_memory_and_its_files_are_closed() {
    let dir = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir();
    let dir = dir.expect("a directory");
    let closed = Owned::start(dir.path(), &[]);
    assert_eq!((closed.core_limits().join(" ").as_str(), closed.memory_owner()), ("0 0", 0));
    assert_eq!(closed.umask(), "0077");
    closed.running.signal("ABRT");
    let mut running = closed.running;
    let status = running.child.wait().expect("ended");
    assert!(!status.core_dumped() && status.signal() == Some(6), "{status}");
    std::fs::remove_file(dir.path().join("small")).expect("there");
    let open = Owned::start(dir.path(), &["--allow-core"]);
    assert_eq!(open.memory_owner(), open.user);
    assert_eq!(open.umask(), "0077");
}

fn wrong_flags_are_a_usage_error() {
    for flags in [["--no-such-flag", ""], ["--log-level", "a=b=c"], ["--listen", "nowhere"]] {
        let program = std::env::current_exe().expect("this program");
        let output = Command::new(program).arg("--log-format=text").args(flags).output().expect("ran");
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {output:?}");
        assert!(!output.stderr.is_empty(), "{flags:?}");
    }
}

fn main() -> ExitCode {
    let service_flags = ["--ops-listen", "--log-format=text"];
    if std::env::args().nth(1).is_some_and(|first| service_flags.contains(&first.as_str())) {
        return service::run::<Small>();
    }
    the_first_signal_ends_it_in_order("TERM");
    the_first_signal_ends_it_in_order("INT");
    a_requested_drain_is_answered_and_ends_the_process();
    a_secret_that_others_read_stops_the_start();
    a_hangup_ends_nothing();
    the_second_signal_ends_it_at_once();
    its_memory_and_its_files_are_closed();
    wrong_flags_are_a_usage_error();
    println!("process: 8 tests passed");
    ExitCode::SUCCESS
}
