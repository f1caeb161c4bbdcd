//! Compilers of other ages than the one that builds this.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use kv::Kv;
use model::ScriptType;
use model::execution::{AttemptEnd, Outcome as Kind};
use queue::{JobOffer, QueueEventKind, SupervisorQueues};
use tempfile::TempDir;
use testkit::{PATIENCE, RedisServer, TestProcess};

use crate::setup::job;

/// A runner as a process, which finds its compiler by a search path of its own.
struct CompilerTestRunner {
    supervisor: SupervisorQueues,
    runner: TestProcess,
    _redis: RedisServer,
    _dir: TempDir,
}

impl CompilerTestRunner {
    fn start(script_type: ScriptType, path: &str, reads: &[PathBuf]) -> Self {
        let redis = RedisServer::start();
        // Closed to other users, so that scripts run as this one: a compiler may be where only its owner gets to.
        let closed = Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(closed).tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mycora-runner"));
        command
            .args([
                "--redis-url",
                &redis.url(),
                "--types",
                script_type.as_str(),
                "--ops-listen",
                "127.0.0.1:0",
            ])
            .arg("--work-dir")
            .arg(dir.path().join("work"))
            .env("PATH", path);
        for read in reads {
            command.arg("--allow-read").arg(read);
        }
        let mut runner = TestProcess::spawn("runner", &mut command);
        let _ = runner.wait_for_line("take jobs", PATIENCE);
        let supervisor = SupervisorQueues::new(Kv::new(redis.url().parse().expect("a url")), 0);
        Self { supervisor, runner, _redis: redis, _dir: dir }
    }

    /// How a script ends, and what it and its compiler print.
    async fn run(&self, script_type: ScriptType, script: &str) -> (AttemptEnd, String) {
        let execution = job(script_type, script);
        let offer = JobOffer {
            grants: model::Grants::default(),
            execution,
            coordinator: "c".into(),
            condition: queue::AcceptCondition::None,
            weight: std::num::NonZeroU32::MIN,
        };
        let (key, mut reader) = (offer.execution.job_key, self.supervisor.events());
        self.supervisor.accept(offer).await.expect("an accepted job");
        let mut log = String::new();
        loop {
            let events = reader.next(std::future::pending()).await.expect("events");
            for event in events.iter().filter(|event| event.job_key == key) {
                match &event.kind {
                    QueueEventKind::Log(piece) => log.push_str(&piece.text),
                    QueueEventKind::Ended(end) => return ((**end).clone(), log),
                    QueueEventKind::Started { .. } | QueueEventKind::Returned => {}
                }
            }
        }
    }

    async fn prints(&self, script_type: ScriptType, script: &str) -> String {
        let (end, log) = self.run(script_type, script).await;
        assert_eq!(end.outcome, Kind::Succeeded, "{script}: {end:?}: {log}: {}", self.runner.output());
        log
    }
}

/// Real compilers make a directory at home before they say their version, and end where they cannot.
#[tokio::test]
async fn a_v_that_needs_a_home_is_offered() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("v");
    let text = "#!/bin/sh\nmkdir -p \"$HOME/.vmodules\" || exit 1\ncase \"$1\" in\n  version) echo 'V 0.2.4 fca699a' ;;\n  \
                run) echo \"runs $(basename \"$2\")\" ;;\nesac\n";
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its mode");
    let path = format!("{}:/usr/bin:/bin", root.path().display());
    let compiling = CompilerTestRunner::start(ScriptType::V, &path, &[]);
    assert_eq!(compiling.prints(ScriptType::V, "println('hi')").await, "runs script.v\n");
}

/// Runs with the first `v` of the search path, when there is one.
#[tokio::test]
async fn scripts_compile_with_a_real_v() {
    let path = std::env::var("PATH").expect("a search path");
    let probe = Command::new("v").arg("version").output();
    let Some(version) = probe.ok().filter(|probe| probe.status.success()) else {
        println!("left out: there is no v; vlang.io says how to install it");
        return;
    };
    let compiling = CompilerTestRunner::start(ScriptType::V, &path, &[]);
    let script = "import os\nlist := [1, 2].map(it + 1)\nprintln(list)\n\
                  os.write_file(os.getenv('MYCORA_RESULT'), 'a=1') or { panic(err) }";
    let (end, log) = compiling.run(ScriptType::V, script).await;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    assert_eq!((end.outcome, log.as_str()), (Kind::Succeeded, "[2, 3]\n"), "{version}: {end:?}");
    assert_eq!(end.result.get("a").map(String::as_str), Some("1"));
}

/// Script that compiles up to edition 2021 and no further.
const OF_2021: &str = "fn main() { let gen = [1, 2].map(|n| n + 1); println!(\"{gen:?}\"); }";
/// Script that compiles with edition 2015 alone.
const OF_2015: &str = "// edition: 2015\nfn main() { let async = 7; println!(\"{}\", async); }";

/// Puts a compiler into `root` that knows editions up to 2021, as that of Debian 12 does, and gives what it needs to read.
fn stand_in(root: &Path) -> PathBuf {
    let probe =
        Command::new("rustc").args(["--print", "sysroot"]).output().expect("what builds this is there");
    let real = PathBuf::from(String::from_utf8(probe.stdout).expect("text").trim());
    let bin = root.join("bin");
    fs::create_dir_all(&bin).expect("directories");
    let text = format!(
        "#!/bin/sh\nfor arg in \"$@\"; do\n  case \"$arg\" in\n    --edition=2024)\n      echo 'error: the crate requires \
         edition 2024, but the latest edition supported by this Rust version is 2021' >&2; exit 1 ;;\n    \
         --help) echo '        --edition 2015|2018|2021|2024'; exit ;;\n    sysroot) echo '{root}'; exit ;;\n    \
         -vV) echo 'rustc 1.63.0'; exit ;;\n  esac\ndone\nexec '{real}/bin/rustc' \"$@\"\n",
        root = root.display(),
        real = real.display(),
    );
    let path = bin.join("rustc");
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its mode");
    real
}

/// Runs what tells editions apart with a compiler that knows 2021 at the newest.
async fn assert_knows_2021(compiling: &CompilerTestRunner) {
    let rust = ScriptType::Rust;
    assert_eq!(compiling.prints(rust, OF_2021).await, "[2, 3]\n");
    assert_eq!(compiling.prints(rust, OF_2015).await, "7\n");
    let (end, _) = compiling.run(rust, &format!("// edition: 2024\n{OF_2021}")).await;
    let reason = end.reason.map(|reason| reason.to_string()).unwrap_or_default();
    assert!(reason.contains("names edition `2024`") && reason.contains("knows 2021, 2018, 2015"), "{reason}");
    let (end, log) = compiling.run(rust, "fn main() { let x: u8 = \"no\"; }").await;
    let reason = end.reason.map(|reason| reason.to_string()).unwrap_or_default();
    assert!(
        reason.contains("rustc 1.") && reason.contains(", edition 2021 exited with 1"),
        "{reason}: {log}"
    );
}

#[tokio::test]
async fn scripts_compile_with_the_newest_edition_that_an_old_compiler_knows() {
    let root = tempfile::tempdir().expect("a directory");
    let real = stand_in(root.path());
    let path = format!("{}:/usr/bin:/bin", root.path().join("bin").display());
    let compiling = CompilerTestRunner::start(ScriptType::Rust, &path, &[real]);
    assert_knows_2021(&compiling).await;
}

/// With `apt-get install rustc gcc`, as `mycora doctor` says.
#[tokio::test]
async fn scripts_compile_with_the_compiler_of_the_distribution() {
    let probe = Command::new("/usr/bin/rustc").arg("-V").output();
    let Some(version) = probe.ok().filter(|probe| probe.status.success()) else {
        println!("left out: there is no /usr/bin/rustc; `apt-get install rustc gcc` installs it");
        return;
    };
    let compiling = CompilerTestRunner::start(ScriptType::Rust, "/usr/bin:/bin", &[]);
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if version.starts_with("rustc 1.63.") {
        assert_knows_2021(&compiling).await;
    }
    let rust = ScriptType::Rust;
    assert_eq!(compiling.prints(rust, "fn main() { println!(\"{}\", 6 * 7); }").await, "42\n", "{version}");
    assert_eq!(compiling.prints(rust, OF_2015).await, "7\n", "{version}");
}
