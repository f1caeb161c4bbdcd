//! Child processes of a test.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::wait::wait_until_blocking;

/// How long a process's last output may take to arrive after its end.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// A child process whose output is kept, and shown when the test fails. Killed, by its own id, when
/// dropped.
#[derive(Debug)]
pub struct TestProcess {
    name: String,
    child: Child,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl TestProcess {
    /// Starts `command` under a name that failures are reported with.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn spawn(name: &str, command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let output = Arc::new(Mutex::new(String::new()));
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(collect(stdout, Arc::clone(&output)));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(collect(stderr, Arc::clone(&output)));
        }
        Self { name: name.to_owned(), child, output, readers }
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output so far, standard output and error mixed line by line.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it has written a line that contains `text`, and gives that line.
    ///
    /// # Panics
    /// When it does not for `timeout`, or ends before; shows its output.
    pub fn wait_for_line(&mut self, text: &str, timeout: Duration) -> String {
        let what = format!("{} writes `{text}`", self.name);
        wait_until_blocking(
            || {
                let found = self.output().lines().find(|line| line.contains(text)).map(str::to_owned);
                if found.is_none()
                    && let Ok(Some(status)) = self.child.try_wait()
                {
                    panic!("{} ended with {status} before it wrote `{text}`", self.name);
                }
                found
            },
            timeout,
            what,
        )
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        let status = wait_until_blocking(|| self.child.try_wait().ok().flatten(), timeout, what);
        // What it wrote last is still on its way here. A grandchild that holds the pipe must not hold us.
        let begin = Instant::now();
        while begin.elapsed() < OUTPUT_GRACE && !self.readers.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(1));
        }
        status
    }

    /// Returns true while the process has not ended.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it is gone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.expect("the pid of a child is positive");
        rustix::process::kill_process(pid, signal)
            .unwrap_or_else(|error| panic!("{} cannot be sent a signal: {error}", self.name));
    }

    /// Asks it to end, as Ctrl-C does.
    ///
    /// # Panics
    /// When it is gone.
    pub fn interrupt(&self) {
        self.signal(rustix::process::Signal::INT);
    }

    /// Asks it to end.
    ///
    /// # Panics
    /// When it is gone.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Asks it to read its files again.
    ///
    /// # Panics
    /// When it is gone.
    pub fn hang_up(&self) {
        self.signal(rustix::process::Signal::HUP);
    }

    /// Suspends it: it keeps its connections and reads nothing, until it is resumed or killed.
    ///
    /// # Panics
    /// When it is gone.
    pub fn suspend(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Has a suspended one go on.
    ///
    /// # Panics
    /// When it is gone.
    pub fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Kills it without a warning and waits until it is gone.
    pub fn kill9(&mut self) {
        // A failure means that it is dead already, as intended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(stream: impl Read + Send + 'static, output: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stream);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            output.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            line.clear();
        }
    })
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("--- output of {} ---\n{}--- end of {} ---", self.name, self.output(), self.name);
        }
    }
}
