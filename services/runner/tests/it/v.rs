//! Scripts for the `v` compiler, which few machines have.

use model::ScriptType;
use runner::RunnerSettings;
use service::Shutdown;

use crate::setup::{RunnerTestBench, place, settings};

/// Returns true if a `v` works for the current user.
fn is_installed() -> bool {
    let version = std::process::Command::new("v").arg("version").output();
    version.is_ok_and(|output| output.status.success() && output.stdout.starts_with(b"V "))
}

#[tokio::test]
async fn v_is_offered_where_it_works_and_missed_where_not() {
    let bench = RunnerTestBench::new().await;
    let offered = bench.runner.instances().iter().any(|instance| instance.script_type == ScriptType::V);
    assert!(!offered || is_installed());
    if is_installed() {
        return;
    }
    let dir = place();
    let wanted = RunnerSettings { types: vec![ScriptType::V], ..settings(dir.path()) };
    let refused = runner::start(wanted, &bench.kv, 0, &Shutdown::new()).await.expect_err("no such runtime");
    assert!(refused.to_string().contains("executes v scripts"), "{refused}");
}
