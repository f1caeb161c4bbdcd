//! A disk that is slow, and the private Redis killed meanwhile.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::wait_until_blocking;

use crate::scene::{Scene, redis_pid};
use crate::suite::{PATIENCE, flow_file, stdout};

/// Holds every access to the disk, as long as there is a pipe at `MYCORA_TEST_GATE` and nothing is written into it.
const SHIM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void hold(void) {
  const char *gate = getenv("MYCORA_TEST_GATE");
  char held[4096], byte;
  struct stat found;
  if (!gate || stat(gate, &found) != 0) return;
  snprintf(held, sizeof held, "%s.held", gate);
  close(open(held, O_CREAT | O_WRONLY, 0600));
  int pipe = open(gate, O_RDONLY);
  if (pipe < 0) return;
  while (read(pipe, &byte, 1) > 0) {}
  close(pipe);
}

int fdatasync(int fd) { hold(); return syscall(SYS_fdatasync, fd); }
int fsync(int fd) { hold(); return syscall(SYS_fsync, fd); }
"#;

/// Builds the shim, and gives where it is.
fn shim(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("slow.c"), dir.join("slow.so"));
    std::fs::write(&source, SHIM).expect("written");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.expect("`cc`, which links this test as well").success());
    library
}

/// Where the disk is held up.
struct Gate(PathBuf);

impl Gate {
    fn close(&self) {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &self.0,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .expect("a pipe");
        let held = self.0.with_extension("held");
        wait_until_blocking(|| held.exists().then_some(()), PATIENCE, "somebody waits for the disk");
    }

    fn open(&self) {
        // Threads that opened the pipe before its removal still wait in it.
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a flag");
        let pipe = std::fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(&self.0);
        std::fs::remove_file(&self.0).expect("it was made");
        // Without a reader no thread waits.
        if let Ok(mut pipe) = pipe {
            pipe.write_all(b".").expect("somebody reads");
        }
    }
}

#[test]
fn what_was_answered_outlives_redis_while_the_disk_is_slow() {
    let dir = tempfile::tempdir().expect("a directory");
    let (shim, gate) = (shim(dir.path()), Gate(dir.path().join("gate")));
    let environment = [("LD_PRELOAD", shim.as_os_str()), ("MYCORA_TEST_GATE", gate.0.as_os_str())];
    let scene = Scene::with_environment(dir, &environment);
    let file = flow_file(scene.path(), "name: one\njobs:\n  only: { script_type: shell, script: 'true' }\n");
    gate.close();
    let flows: Vec<u64> = (0..3)
        .map(|_| {
            let answer = stdout(&scene.up.mycora(&["--output", "json", "flow", "submit", &file]), 0);
            let document: Value = serde_json::from_str(&answer).expect("one document");
            document["flow"]["id"].as_u64().expect("an id")
        })
        .collect();
    let redis = redis_pid(&scene).expect("it runs");
    assert!(Command::new("kill").args(["-KILL", &redis]).status().expect("`kill` starts").success());
    gate.open();
    let again = || redis_pid(&scene).filter(|now| *now != redis);
    wait_until_blocking(again, PATIENCE, "Redis is started again");
    for flow in flows {
        let ended = || {
            let output = scene.up.mycora(&["--output", "json", "flow", "get", &flow.to_string()]);
            let document: Value = serde_json::from_slice(&output.stdout).ok()?;
            (document["flow"]["status"] == "FLOW_STATUS_FINISHED").then_some(())
        };
        wait_until_blocking(ended, PATIENCE, format!("flow {flow}, which was answered, ends"));
    }
    scene.close();
}
