//! A real process: `run`, signals and exit status. Started with a first argument
//! that is a flag of the service, this program is that service.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStderr, Command, ExitCode, Stdio};

use service::{App, Failure, Host, Limits};

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
    type Config = Config;

    fn limits(_: &Config) -> Limits {
        Limits::new()
    }

    async fn start(config: Config, host: Host) -> Result<(), Failure> {
        let shutdown = host.shutdown.clone();
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

/// The service as a child process, started completely.
struct Running {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Running {
    fn start(flags: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["--ops-listen", "127.0.0.1:0", "--log-format", "json"])
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let log = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut running = Self { child, log };
        running.wait_for_log("small started");
        running
    }

    fn wait_for_log(&mut self, text: &str) {
        let found = self.log.by_ref().map_while(Result::ok).any(|line| {
            assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "no JSON: {line}");
            line.contains(text)
        });
        assert!(found, "the log ended without `{text}`");
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
    // Nobody listens at the collector's port; that must not hold up the end.
    let mut running = Running::start(&["--otlp-endpoint", "http://127.0.0.1:1"]);
    running.signal(name);
    running.wait_for_log("small ended");
    assert_eq!(running.status(), Some(0));
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
    a_hangup_ends_nothing();
    the_second_signal_ends_it_at_once();
    wrong_flags_are_a_usage_error();
    println!("process: 5 tests passed");
    ExitCode::SUCCESS
}
