//! Keys of a flow file. The reader accepts these and no others, and the JSON Schema is made from them.

use std::sync::LazyLock;

use model::limits::{
    ENV_ENTRIES_MAX, JOB_FILES_MAX, LABELS_MAX, LOSSES_MAX, NO_RETRY_EXIT_CODES_MAX, PREREQUISITES_MAX,
    RETRIES_MAX, TIMEOUT_SECS_MAX,
};
use model::{Isolation, RunIf, ScriptType};

/// Kind of the value under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// A text; a number or a truth value is the text that was written.
    Text,
    /// Name of a flow, a job or a group.
    Name,
    /// One of a few words.
    Word(&'static [&'static str]),
    /// A whole number between two bounds.
    Whole(u32, u32),
    /// A number of seconds, or a time with its unit; this many seconds at most.
    Time(u32),
    /// A number, also with a fraction.
    Number,
    /// True or false.
    Truth,
    /// A list with at most so many texts.
    Texts(usize),
    /// A mapping from at most so many names to texts.
    TextsByName(usize),
    /// A list of at most so many exit codes.
    ExitCodes(usize),
    /// A mapping with these keys.
    Mapping(&'static [FlowFileKey]),
    /// A mapping from names to jobs.
    Jobs,
}

/// A key of a mapping, and the value that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowFileKey {
    /// The key.
    pub(super) name: &'static str,
    /// Kind of its value.
    pub(super) kind: ValueKind,
    /// Description for editors; `specs/flow-file.md` has more.
    pub(super) about: &'static str,
}

const fn key(name: &'static str, kind: ValueKind, about: &'static str) -> FlowFileKey {
    FlowFileKey { name, kind, about }
}

/// Words of an enumeration, as files have them.
macro_rules! words {
    ($kind:ty) => {{
        let mut words = [""; <$kind>::ALL.len()];
        let mut at = 0;
        while at < words.len() {
            words[at] = <$kind>::ALL[at].as_str();
            at += 1;
        }
        words
    }};
}

const SCRIPT_TYPES: [&str; ScriptType::ALL.len()] = words!(ScriptType);
const RUN_IFS: [&str; RunIf::ALL.len()] = words!(RunIf);
const ISOLATIONS: [&str; Isolation::ALL.len()] = words!(Isolation);

const TIME: ValueKind = ValueKind::Time(TIMEOUT_SECS_MAX);
const ENV: ValueKind = ValueKind::TextsByName(ENV_ENTRIES_MAX);

/// Keys of a flow.
pub(super) const FLOW_KEYS: &[FlowFileKey] = &[
    key("name", ValueKind::Name, "Name of the flow"),
    key("context", ValueKind::Whole(1, u32::MAX), "Number of the context that the flow runs in"),
    key("env", ENV, "Variables of every job; a job's own win"),
    key("fail_fast", ValueKind::Truth, "Whether the first failure that counts cancels the remaining jobs"),
    key("deadline", TIME, "Time from the start of the flow after which the remaining jobs fail"),
    key("cancel_timeout", TIME, "How long a cancelled job may stay unconfirmed"),
    key("jobs", ValueKind::Jobs, "The jobs by their names, in any order"),
];
/// Keys of a job.
pub(super) const JOB_KEYS: &[FlowFileKey] = &[
    key("script_type", ValueKind::Word(&SCRIPT_TYPES), "Type of the script"),
    key("script", ValueKind::Text, "The script"),
    key("script_file", ValueKind::Text, "Path of the script's file, relative to the flow file"),
    key("created_job", ValueKind::Whole(1, u32::MAX), "Number of a stored job, in place of a script"),
    key(
        "files",
        ValueKind::TextsByName(JOB_FILES_MAX),
        "Files placed into the job's directory: name and path",
    ),
    key("outputs", ValueKind::Texts(JOB_FILES_MAX), "Files that the job creates for its dependents"),
    key("depends", ValueKind::Texts(usize::MAX), "Jobs of this flow that must end first"),
    key("run_if", ValueKind::Word(&RUN_IFS), "Condition on the outcomes of the dependencies"),
    key("when", ValueKind::Text, "Condition on results of earlier jobs, such as results.split.rows > 0"),
    key(
        "prerequisites",
        ValueKind::Texts(PREREQUISITES_MAX),
        "Conditions outside the flow: signal:NAME, after:TIME or flow:ID",
    ),
    key("allow_failure", ValueKind::Truth, "Whether the flow may succeed although this job fails"),
    key("timeout", TIME, "Longest time that the script may run; 0: no limit"),
    key("timeout_queue", TIME, "Longest time from ready to started; 0: no limit"),
    key("timeout_ack", TIME, "Longest time from dispatched to accepted by a supervisor; 0: no limit"),
    key("timeout_result", TIME, "Longest time from dispatched to ended; 0: no limit"),
    key("retries", ValueKind::Whole(0, RETRIES_MAX), "Further tries after a failure or a timeout"),
    key("backoff", ValueKind::Mapping(BACKOFF_KEYS), "The wait between tries"),
    key(
        "no_retry_exit_codes",
        ValueKind::ExitCodes(NO_RETRY_EXIT_CODES_MAX),
        "Exit codes after which the job is not retried",
    ),
    key("losses", ValueKind::Whole(0, LOSSES_MAX), "Lost attempts that are followed by another one"),
    key("loss_backoff", ValueKind::Mapping(BACKOFF_KEYS), "The wait after a lost attempt"),
    key(
        "idempotent",
        ValueKind::Truth,
        "False: the script must not run twice, and its first loss fails the job",
    ),
    key(
        "priority",
        ValueKind::Whole(0, 2),
        "Order among waiting jobs of the context: 0 goes first, 1 is usual",
    ),
    key("isolation", ValueKind::Word(&ISOLATIONS), "Least isolation that the job runs with"),
    key("network", ValueKind::Truth, "Whether the job may use the network"),
    key("env", ENV, "Variables of the job; ${{ results.JOB.KEY }} is replaced where it runs"),
    key("target", ValueKind::Mapping(TARGET_KEYS), "Where the job is to run"),
];
/// Older spellings of keys of a job, which are read as well.
pub(super) const OLDER_JOB_KEYS: &[FlowFileKey] =
    &[key("dependends", ValueKind::Texts(usize::MAX), "An older spelling of depends")];
/// Keys of `backoff` and `loss_backoff`.
pub(super) const BACKOFF_KEYS: &[FlowFileKey] = &[
    key("initial", ValueKind::Number, "Seconds before the first repetition"),
    key("multiplier", ValueKind::Number, "Factor from one wait to the next"),
    key("max", ValueKind::Number, "Longest wait, in seconds"),
];
/// Keys of `target`.
pub(super) const TARGET_KEYS: &[FlowFileKey] = &[
    key("runner", ValueKind::Whole(1, u32::MAX), "Number of a runner"),
    key("group", ValueKind::Name, "Group of instances"),
    key("instance", ValueKind::Whole(0, u32::MAX), "Number of an instance in its group"),
    key("labels", ValueKind::TextsByName(LABELS_MAX), "Labels that a runner has to have"),
];
/// Keys of a job that its stored job has already.
pub(super) const STORED_JOB_KEYS: [&str; 6] =
    ["script_type", "script", "script_file", "files", "outputs", "env"];

/// Names of the keys of a job: a flow may have 100,000 jobs.
pub(super) static JOB_KEY_NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| names(JOB_KEYS));
/// Names of the older spellings.
pub(super) static OLDER_JOB_KEY_NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| names(OLDER_JOB_KEYS));

/// Names of keys.
pub(super) fn names(keys: &[FlowFileKey]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}
