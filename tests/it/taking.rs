//! A runner that dies wherever it takes jobs and ends them.

use testkit::wait_until_blocking;

use crate::local::Processes;
use crate::suite::{PATIENCE, command, flow_file, stdout};

/// More than it has slots, so that some are handed to it, some wait for its pops, and some follow others in their slots.
const JOBS: usize = 12;
/// Where it dies, and when it comes there for which time. Each of its five instances takes once when it begins.
const PLACES: [&str; 5] =
    ["queue.fetched", "queue.popped", "queue.taken:6", "queue.before_finish:3", "queue.finished_and_taken:2"];

/// The database of its queues.
const QUEUES: u32 = 63;

#[test]
fn a_runner_dies_wherever_it_takes_and_ends_and_every_job_is_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut processes = Processes::start(&dir.path().join("suite"), &[]);
    let jobs: String =
        (0..JOBS).map(|n| format!("  job-{n}: {{ script_type: rhai, script: '{n}' }}\n")).collect();
    let file = flow_file(dir.path(), &format!("name: many\njobs:\n{jobs}"));
    for place in PLACES {
        processes.kill9("runner");
        processes.set("MYCORA_CRASH_AT", place);
        processes.script("up.sh");
        processes.unset("MYCORA_CRASH_AT");
        let mut watch = command(&processes.profile(), &["flow", "submit", &file, "--watch"]);
        let watch = watch.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let watch = watch.spawn().expect("it starts");
        wait_until_blocking(|| (!processes.runs("runner")).then_some(()), PATIENCE, place);
        processes.script("up.sh");
        let printed = stdout(&watch.wait_with_output().expect("it ends"), 0);
        assert!(printed.contains("completed") && !printed.contains("failed"), "{place}: {printed}");
    }
    let left = |pattern: &str| processes.redis(QUEUES, &["KEYS", pattern]);
    for pattern in ["hero:claims:*", "hero:handed:*", "hero:unclaimed:*"] {
        assert_eq!(left(pattern).trim(), "", "{pattern}");
    }
}
