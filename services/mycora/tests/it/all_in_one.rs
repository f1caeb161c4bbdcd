//! `mycora up` when a part of it goes away.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mycora_cli::up::{self, Banner, Options, UpError};

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

/// Starts one whose data directory lies in a directory of this mode, looks at it, and ends it.
fn with_data_below(mode: u32, look: impl FnOnce(&Path, &Banner)) {
    let parent = tempfile::Builder::new().permissions(Permissions::from_mode(mode)).tempdir();
    let parent = parent.expect("a directory");
    let data = parent.path().join("data");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let launcher = sandbox::Launcher::at(env!("CARGO_BIN_EXE_mycora").into());
        let options = Options { launcher, ..Options::private(&data) };
        let running = up::start(options).await.expect("it starts");
        look(&data, running.banner());
        running.stop().await.expect("it ends");
    });
}

#[test]
fn scripts_have_users_of_their_own_where_others_may_pass() {
    let without_users =
        |banner: &Banner| banner.missing.iter().any(|missing| missing.starts_with("own-uid: "));
    let is_root = rustix::process::geteuid().is_root();
    with_data_below(0o711, |data, banner| {
        assert_eq!(without_users(banner), !is_root, "{:?}", banner.missing);
        for entry in std::fs::read_dir(data).expect("a directory").map(|entry| entry.expect("an entry")) {
            let open = ["work", "pki"].iter().any(|name| entry.file_name() == *name);
            let mode = entry.metadata().expect("its mode").permissions().mode();
            assert!(open || mode & 0o077 == 0, "{} has mode {mode:o}", entry.path().display());
        }
    });
    with_data_below(0o700, |data, banner| {
        let (said, parent) = (banner.text(), data.parent().expect("a parent").display());
        assert!(without_users(banner), "{said}");
        assert!(
            !is_root || said.contains(&format!("own-uid: other users cannot pass through {parent}\n")),
            "{said}"
        );
    });
}
