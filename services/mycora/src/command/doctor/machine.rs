//! Checks of this machine: which jobs can run here, and how scripts would be isolated.

use std::path::PathBuf;
use std::process::Stdio;

use model::{Isolation, ScriptType};
use runner::MachineCapabilities;
use tokio::process::Command;

use super::finding::Finding;
use crate::failure::error_chain;
use crate::up::{NatsProgram, UpError};

/// Advice on what a script type needs, where its jobs cannot run here.
const NEEDS: [(ScriptType, &str); 4] = [
    (ScriptType::Shell, "install /bin/sh"),
    (ScriptType::Python, "install CPython 3.8 or later, on Debian or Ubuntu with `apt-get install python3`"),
    (
        ScriptType::V,
        "install the V compiler (vlang.io) where every user may execute it, such as /usr/local/bin/v; jobs were tried with V 0.2.4",
    ),
    (
        ScriptType::Rust,
        "install `rustc` and `cc` where every user may execute them, on Debian or Ubuntu with `apt-get install rustc gcc`",
    ),
];

/// Tools, languages and isolation.
pub(super) async fn look() -> Vec<Finding> {
    let mut findings = vec![redis_server().await, nats_server()];
    match survey().await {
        Ok(survey) => {
            findings.extend(languages(&survey));
            findings.push(isolation(&survey));
            findings.extend(name_servers(&survey));
        }
        Err(why) => {
            let advice = "no runner can start here; `mycora up --no-supervisor` does without";
            findings.push(Finding::fail("scripts", why, advice));
        }
    }
    findings
}

/// Tries in a directory of its own what a runner would.
async fn survey() -> Result<MachineCapabilities, String> {
    let passable = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    let dir = tempfile::Builder::new().prefix("mycora-doctor-").permissions(passable).tempdir();
    let dir = dir.map_err(|error| format!("no directory can be made to try scripts in: {error}"))?;
    let defaults = runner::RunnerSettings::new(dir.path().to_owned());
    let scripts = runner::ScriptFlags { warm: false, ..defaults.scripts };
    let settings = runner::RunnerSettings { scripts, ..defaults };
    runner::probe_capabilities(&settings).await.map_err(|error| error_chain(&error))
}

fn languages(survey: &MachineCapabilities) -> Vec<Finding> {
    let names: Vec<_> = survey.types.iter().map(|kind| kind.as_str()).collect();
    let mut findings = vec![Finding::ok("scripts", format!("run here: {}", names.join(", ")))];
    let missing = NEEDS.iter().filter(|(kind, _)| !survey.types.contains(kind));
    findings.extend(missing.map(|(kind, advice)| {
        let found = format!("{} jobs cannot run here", kind.as_str());
        Finding::warn(format!("tool {}", kind.as_str()), found, *advice)
    }));
    findings
}

/// Reports the isolation of scripts as `mycora up` shows it.
fn isolation(survey: &MachineCapabilities) -> Finding {
    const CHECK: &str = "isolation";
    let support = &survey.isolation_support;
    let found = format!("{}, by {}", support.level, support.layers.join(", "));
    let missing: Vec<_> = support.gaps().into_iter().map(|gap| format!("without {gap}")).collect();
    match (support.level, missing.is_empty()) {
        (_, true) => Finding::ok(CHECK, found),
        (Isolation::Contained, false) => Finding::ok(CHECK, format!("{found}; {}", missing.join("; "))),
        (Isolation::Basic | Isolation::Confined, false) => Finding::warn(
            CHECK,
            format!("{found}; {}", missing.join("; ")),
            "run no scripts of people whom you do not trust; Linux 5.13 or later has Landlock, and control groups or \
             root bound what scripts use",
        ),
    }
}

/// Warns when jobs with the network cannot resolve names.
fn name_servers(survey: &MachineCapabilities) -> Option<Finding> {
    let found = survey.isolation_support.unreached_name_servers()?;
    Some(Finding::warn(
        "name servers",
        found,
        "list them in the supervisor's policy when jobs are to resolve names",
    ))
}

/// Looks for the `redis-server` that `mycora up` starts.
async fn redis_server() -> Finding {
    const CHECK: &str = "tool redis-server";
    let version = Command::new("redis-server").arg("--version").stdin(Stdio::null()).output().await;
    match version {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let version = text.split(' ').find_map(|word| word.strip_prefix("v="));
            let path = on_path("redis-server").unwrap_or_default();
            Finding::ok(CHECK, format!("{} {}", path.display(), version.unwrap_or("of an unknown version")))
        }
        Ok(output) => Finding::fail(CHECK, format!("does not work: {}", output.status), "install it anew"),
        Err(_) => Finding::warn(
            CHECK,
            "is not on the search path; only `mycora up` and `mycora demo` need it",
            "install it, on Debian or Ubuntu with `apt-get install redis-server`",
        ),
    }
}

/// Looks for the `nats-server` that `mycora up --saga` starts as well.
fn nats_server() -> Finding {
    const CHECK: &str = "tool nats-server";
    match NatsProgram::find(std::env::var_os("MYCORA_NATS_SERVER").map(PathBuf::from).as_deref()) {
        Ok(program) => Finding::ok(CHECK, format!("{} {}", program.path().display(), program.version())),
        Err(UpError::NoNats) => Finding::warn(
            CHECK,
            "is not on the search path; only `mycora up --saga` and `mycora demo --saga` need it",
            "install it, on Debian or Ubuntu with `apt-get install nats-server`",
        ),
        Err(error) => Finding::warn(CHECK, error.to_string(), "name another one in MYCORA_NATS_SERVER"),
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}
