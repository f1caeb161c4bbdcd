//! `mycora up` when a part of it goes away.

use std::process::Command;
use std::time::Duration;

use mycora_cli::up::{self, Options, UpError};

/// Longer than an end without Redis may take.
const END_WITHIN: Duration = Duration::from_secs(30);

#[test]
fn without_its_redis_it_ends_and_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ended = runtime.block_on(async {
        let launcher = sandbox::Launcher::at(env!("CARGO_BIN_EXE_mycora").into());
        let options = Options { launcher, ..Options::private(dir.path()) };
        let running = up::start(options).await.expect("it starts");
        let record = std::fs::read_to_string(dir.path().join("redis.pid")).expect("a record");
        let pid = record.split(' ').next().expect("a process id");
        let killed = Command::new("kill").args(["-KILL", pid]).status();
        assert!(killed.expect("`kill` starts").success());
        tokio::time::timeout(END_WITHIN, running.wait()).await.expect("in time")
    });
    let said = ended.expect_err("not as asked");
    assert!(matches!(said, UpError::RedisEnded { .. }), "{said}");
    assert!(said.to_string().contains("start again to go on"), "{said}");
}
