//! One process of a suite.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use testkit::TestProcess;

/// How long a requested stop may take.
const END_WITHIN: Duration = Duration::from_secs(60);

/// A program with its settings, which can be started any number of times.
#[derive(Debug)]
pub(super) struct Program {
    name: String,
    file: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    process: TestProcess,
    /// Output of earlier lives.
    before: String,
}

impl Program {
    /// Starts it for the first time.
    pub(super) fn start(
        name: &str,
        program: &str,
        arguments: Vec<String>,
        environment: Vec<(String, String)>,
    ) -> Self {
        let file = built(program);
        let process = spawn(name, &file, &arguments, &environment);
        Self { name: name.to_owned(), file, arguments, environment, process, before: String::new() }
    }

    /// Starts it again. What is left of its former life is killed.
    pub(super) fn spawn(&mut self) {
        self.process.kill9();
        self.before.push_str(&self.process.output());
        self.before.push_str("--- started again ---\n");
        self.process = spawn(&self.name, &self.file, &self.arguments, &self.environment);
    }

    /// Kills the process; returns true if it was running.
    pub(super) fn kill(&mut self) -> bool {
        let is_running = self.process.is_running();
        self.process.kill9();
        is_running
    }

    /// Asks it to end and waits until it has; returns whether it was running.
    pub(super) fn terminate(&mut self) -> bool {
        let is_running = self.signal(Signal::TERM);
        if is_running {
            self.process.wait(END_WITHIN);
        }
        is_running
    }

    /// Signals the process; returns true if it was running.
    pub(super) fn signal(&mut self, signal: Signal) -> bool {
        let is_running = self.process.is_running();
        if is_running {
            self.process.signal(signal);
        }
        is_running
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    pub(super) fn wait_for_line(&mut self, text: &str) {
        self.process.wait_for_line(text, END_WITHIN);
    }

    /// Returns the output of all lives of the process.
    pub(super) fn output(&self) -> String {
        format!("{}{}", self.before, self.process.output())
    }
}

fn spawn(name: &str, file: &Path, arguments: &[String], environment: &[(String, String)]) -> TestProcess {
    let mut command = Command::new(file);
    command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
    TestProcess::spawn(name, &mut command)
}

/// A program of this workspace, as it was built beside this one.
pub(super) fn built(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a program knows its own file");
    // Tests lie one folder deeper.
    let found = here.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not built beside {}: `cargo build --bins`", here.display()))
}

/// Runs a program of this workspace to its end, and gives what it wrote.
pub(super) fn run(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(built(name)).args(arguments).output().expect("it starts");
    let error_text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?} ended with {}: {error_text}", output.status);
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The private Redis of an all-in-one, by the record that it keeps. A later process of the same number is not taken for it.
pub(super) fn redis_of(data: &Path) -> Option<Pid> {
    let record = std::fs::read_to_string(data.join("redis.pid")).ok()?;
    let mut fields = record.split_whitespace();
    let (pid, since) = (fields.next()?, fields.next()?);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let is_same = stat.rsplit(')').next()?.split_ascii_whitespace().nth(19) == Some(since);
    is_same.then(|| Pid::from_raw(pid.parse().ok()?))?
}
