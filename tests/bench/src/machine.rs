//! Description of the machine on which the figures were measured.

use std::process::Command;

/// One line: processor, cores, kernel, Redis.
pub(crate) fn describe() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name.to_owned()))
        .unwrap_or_else(|| "unknown processor".into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let redis = Command::new("redis-server").arg("--version").output().ok();
    let redis = redis.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let redis =
        redis.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("unknown").to_owned();
    format!("{model}, {cores} cores, Linux {}, Redis {redis}", kernel.trim())
}
