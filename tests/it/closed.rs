//! Access of other users of the machine to a suite: none, at any umask; and what they could change is
//! refused. Root's tests look at a suite of root and at one of an ordinary user.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testkit::{TestProcess, free_port};

use crate::suite::{PATIENCE, end_servers_of, get_with, program, stderr, stdout};

/// The ordinary user of root's tests.
const ORDINARY: u32 = 65_534;

/// A user, a place of that user, and the programs in it.
struct Home {
    user: Option<u32>,
    dir: tempfile::TempDir,
}

impl Home {
    /// One for the user who runs the tests, and one for an ordinary user if that is root.
    fn all() -> Vec<Self> {
        let mut homes = vec![Self::of(None)];
        if rustix::process::geteuid().is_root() {
            homes.push(Self::of(Some(ORDINARY)));
        }
        homes
    }

    fn of(user: Option<u32>) -> Self {
        let dir = tempfile::Builder::new().permissions(Permissions::from_mode(0o711)).tempdir();
        let dir = dir.expect("a directory");
        chown(dir.path(), user, user).expect("root may");
        // Where the programs lie others may not pass.
        let copy = dir.path().join("mycora");
        if std::fs::hard_link(program("mycora"), &copy).is_err() {
            std::fs::copy(program("mycora"), &copy).expect("a copy");
        }
        Self { user, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command line with this umask, as the user.
    fn mycora(&self, umask: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).arg(self.path("mycora"));
        command.args(arguments).current_dir("/").env("HOME", self.dir.path());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    fn output(&self, umask: &str, arguments: &[&str]) -> Output {
        self.mycora(umask, arguments).output().expect("it starts")
    }

    /// Starts a suite and waits until it serves; gives its operators' port as well.
    fn up(&self, umask: &str, more: &[&str]) -> (TestProcess, u16) {
        let port = ports();
        let (data, port_text) = (self.path("data"), port.to_string());
        let data = data.to_str().expect("a plain path");
        let arguments = [&["up", "--data", data, "--port", &port_text, "--no-supervisor"], more].concat();
        let mut up = TestProcess::spawn("mycora up", &mut self.mycora(umask, &arguments));
        up.wait_for_line("mycora is ready", PATIENCE);
        (up, port + 100)
    }

    /// Returns the error of a start that is refused.
    fn refused_up(&self) -> String {
        let data = self.path("data");
        let data = data.to_str().expect("a plain path");
        stderr(
            &self.output("022", &["up", "--data", data, "--port", &ports().to_string(), "--no-supervisor"]),
            3,
        )
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        end_servers_of(&self.path("data"));
    }
}

fn ports() -> u16 {
    let pair = |port: &u16| {
        port.checked_add(100).is_some_and(|ops| std::net::TcpListener::bind(("127.0.0.1", ops)).is_ok())
    };
    (0..100).map(|_| free_port()).find(pair).expect("two free ports, 100 apart")
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().expect("there").permissions().mode() & 0o7777
}

/// Everything in a directory that others can use.
fn open_in(dir: &Path) -> Vec<String> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if mode(&path) & 0o077 != 0 {
            open.push(format!("{} {:o}", path.display(), mode(&path)));
        }
        if path.is_dir() {
            open.extend(open_in(&path));
        }
    }
    open
}

#[test]
fn a_suite_is_closed_at_any_umask() {
    for home in Home::all() {
        let (mut up, _) = home.up("000", &[]);
        let data = home.path("data");
        assert_eq!(open_in(&data), Vec::<String>::new());
        assert_eq!(mode(&data), 0o711, "users of contexts pass through");
        up.terminate();
        assert!(up.wait(PATIENCE).success(), "{}", up.output());

        let pki = home.path("pki");
        let dir = pki.to_str().expect("a plain path");
        stdout(&home.output("000", &["pki", "init", "--dir", dir]), 0);
        stdout(&home.output("000", &["pki", "issue", "service/mycelium-gateway", "--dir", dir]), 0);
        assert_eq!(mode(&pki), 0o700);
        for entry in std::fs::read_dir(&pki).expect("a directory").flatten() {
            let (path, mode) = (entry.path(), mode(&entry.path()));
            let secret = path.extension().is_some_and(|extension| extension == "key");
            assert_eq!(mode, if secret { 0o600 } else { 0o644 }, "{}", path.display());
        }
    }
}

#[test]
fn what_others_could_have_changed_is_refused() {
    for home in Home::all() {
        let (mut up, _) = home.up("022", &[]);
        up.terminate();
        assert!(up.wait(PATIENCE).success(), "{}", up.output());
        let data = home.path("data");
        for (name, open, advice) in [
            ("pki/ca.pem", 0o666, "chmod go-w"),
            ("pki/ca.key", 0o644, "chmod o="),
            ("pki/mycelium-gateway.signing.key", 0o604, "chmod o="),
            ("pki/actor-1.pem", 0o646, "chmod go-w"),
            ("pki", 0o777, "chmod go-w"),
            ("actor-1.ed25519", 0o644, "chmod o="),
            ("ops.token", 0o644, "chmod o="),
            ("", 0o777, "chmod go-w"),
            ("..", 0o777, "chmod go-w"),
        ] {
            let path = data.join(name);
            let path = path.canonicalize().expect("there");
            let before = mode(&path);
            set_permissions(&path, Permissions::from_mode(open)).expect("it is there");
            let printed = home.refused_up();
            set_permissions(&path, Permissions::from_mode(before)).expect("it is there");
            let named = format!("{advice} {}`", path.display());
            assert!(
                printed.contains(&named) && printed.contains(&format!("{open:04o}")),
                "{name}: {printed}"
            );
        }
    }
}

#[test]
fn a_client_refuses_a_key_that_others_read() {
    for home in Home::all() {
        let (mut up, _) = home.up("022", &[]);
        let profile = home.path("data/client.toml");
        let profile = profile.to_str().expect("a plain path");
        let list = || home.output("022", &["--config", profile, "flow", "list"]);
        stdout(&list(), 0);
        for (name, open, advice) in [
            ("data/pki/actor-1.key", 0o604, "chmod o="),
            ("data/pki/ca.pem", 0o606, "chmod go-w"),
            ("data/client.toml", 0o602, "chmod go-w"),
        ] {
            let path = home.path(name);
            let before = mode(&path);
            set_permissions(&path, Permissions::from_mode(open)).expect("it is there");
            let printed = stderr(&list(), 2);
            set_permissions(&path, Permissions::from_mode(before)).expect("it is there");
            assert!(printed.contains(advice) && printed.contains(name), "{printed}");
        }
        stdout(&list(), 0);
        up.terminate();
        assert!(up.wait(PATIENCE).success(), "{}", up.output());
    }
}

/// Looks at the suite as a user who is not root: the memory of a process that is not dumpable is root's.
#[test]
fn a_suite_leaves_no_core_and_shows_no_memory() {
    for home in Home::all() {
        let (mut up, _) = home.up("022", &[]);
        let about = |file: &str| Path::new("/proc").join(up.pid().to_string()).join(file);
        let limits = std::fs::read_to_string(about("limits")).expect("it lives");
        let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("a line");
        assert_eq!(core.split_whitespace().take(2).collect::<Vec<_>>(), ["0", "0"]);
        let owner = std::os::unix::fs::MetadataExt::uid(&about("mem").metadata().expect("it lives"));
        assert_eq!(owner, 0, "it is not dumpable");
        up.signal(rustix::process::Signal::ABORT);
        let status = up.wait(PATIENCE);
        assert!(!std::os::unix::process::ExitStatusExt::core_dumped(&status), "{status}");
        // What it left running is found and ended by the next start.
        let (mut up, _) = home.up("022", &["--allow-core"]);
        let owner = std::os::unix::fs::MetadataExt::uid(
            &Path::new("/proc").join(up.pid().to_string()).join("mem").metadata().expect("it lives"),
        );
        assert_eq!(owner, home.user.unwrap_or_else(|| rustix::process::geteuid().as_raw()));
        up.terminate();
        assert!(up.wait(PATIENCE).success(), "{}", up.output());
    }
}

#[test]
fn the_operators_port_shows_strangers_only_whether_it_is_well() {
    let home = Home::of(None);
    let (mut up, ops) = home.up("022", &[]);
    for (header, known) in [
        (String::new(), false),
        (format!("Authorization: Bearer {}\r\n", "0".repeat(64)), false),
        (
            format!(
                "Authorization: Bearer {}\r\n",
                std::fs::read_to_string(home.path("data/ops.token")).expect("it is there").trim()
            ),
            true,
        ),
    ] {
        for path in ["/metrics", "/info"] {
            let answer = get_with(&header, ops, path);
            let status = if known { "HTTP/1.1 200" } else { "HTTP/1.1 401" };
            assert!(answer.starts_with(status) && answer.contains("mycora") == known, "{path}: {answer}");
        }
        // What may be lost is for the same readers.
        let answer = get_with(&header, ops, "/info");
        let promise =
            "\"durability\": \"fast: an answered change survives the end of every process, Redis too;";
        assert_eq!(answer.contains(promise), known, "{answer}");
        for path in ["/livez", "/readyz", "/ready", "/health"] {
            assert!(get_with(&header, ops, path).starts_with("HTTP/1.1 200"), "{path}");
        }
    }
    up.terminate();
    assert!(up.wait(PATIENCE).success(), "{}", up.output());
}
