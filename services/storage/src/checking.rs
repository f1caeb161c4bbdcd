//! Checks of records: which break an invariant, and repair of those that can be repaired.
//!
//! The context stays in use meanwhile. Whatever one script has not seen in one go is only a suspicion, since a change may have come
//! between two reads: scripts confirm, and repair in the same go.
//!
//! - `context_check`: the check of a context as a whole; `global_check`: that of what belongs to no context;
//! - `key_pages`: names of keys and their types; `record_check`: each record by its reader;
//! - `node_check`: nodes of flows; `list_check`: lists and what they name; `blob_check`: content of blobs; `count_check`: counters.

pub(crate) mod context_check;
pub(crate) mod global_check;

mod blob_check;
mod count_check;
mod key_pages;
mod list_check;
mod node_check;
mod record_check;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use kv::Value;
use tokio::sync::mpsc;

use crate::error::{Error, Result};
use crate::store::{StoreChange, TenantStore};

/// Findings in one report.
const REPORT_FINDINGS_MAX: usize = 500;
/// Longest time without a report while a check goes on.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Findings that are sent; further ones are only counted.
pub(crate) const FINDINGS_MAX: usize = 10_000;
/// Parts of a finding in the answer of a script.
const FINDING_PARTS: usize = 5;
/// Characters of a text that repeats what a record says.
const PROBLEM_CHARS_MAX: usize = 300;
/// Subjects of one call of a script.
const CHECKED_AT_ONCE: usize = 50;
/// Records or entries that are read at once.
const READ_AT_ONCE: usize = 100;

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal;)+) => {
        /// Invariant that a record breaks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum FindingCode {
            $($(#[$doc])* $code),+
        }

        impl FindingCode {
            /// All of them.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$code),+];

            /// Name of the code, as scripts give it.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$code => $name),+ }
            }
        }
    };
}

codes! {
    /// A key is none of a context.
    KeyUnknown = "KEY_UNKNOWN";
    /// A key has another type than it should.
    KeyType = "KEY_TYPE";
    /// A record cannot be read.
    RecordUnreadable = "RECORD_UNREADABLE";
    /// Lists name a flow that does not exist.
    FlowGone = "FLOW_GONE";
    /// A flow is not among all flows.
    FlowNotListed = "FLOW_NOT_LISTED";
    /// A flow is not in exactly the list of its status.
    FlowStatusList = "FLOW_STATUS_LIST";
    /// A flow that is over would never be removed.
    FlowNeverExpires = "FLOW_NEVER_EXPIRES";
    /// A flow has something to do, and no scheduler would go on with it.
    FlowAsleep = "FLOW_ASLEEP";
    /// A record belongs to a flow that does not exist.
    FlowPartOrphaned = "FLOW_PART_ORPHANED";
    /// A flow is to be looked at later that is over or does not exist.
    DueStale = "DUE_STALE";
    /// A flow has another number of nodes than it says.
    NodeCount = "NODE_COUNT";
    /// A node has not ended although its flow has.
    NodeNotEnded = "NODE_NOT_ENDED";
    /// A node is under way although one before it has not ended.
    NodeTooEarly = "NODE_TOO_EARLY";
    /// A node has no job.
    JobMissing = "JOB_MISSING";
    /// The status of a job is not that of its node.
    JobStatus = "JOB_STATUS";
    /// A message on its way is in neither of the lists of such messages.
    MessageLost = "MESSAGE_LOST";
    /// A message on its way is in both of them.
    MessageTwice = "MESSAGE_TWICE";
    /// No list names a message.
    MessageNotListed = "MESSAGE_NOT_LISTED";
    /// A list names a record that does not exist.
    EntryStale = "ENTRY_STALE";
    /// A blob does not exist to which jobs refer.
    BlobMissing = "BLOB_MISSING";
    /// A chunk of a blob does not exist.
    BlobChunkMissing = "BLOB_CHUNK_MISSING";
    /// The content of a blob has another hash than its name.
    BlobContent = "BLOB_CONTENT";
    /// A job that does not exist refers to a blob.
    BlobReferenceStale = "BLOB_REFERENCE_STALE";
    /// A blob without references would never be removed.
    BlobNeverExpires = "BLOB_NEVER_EXPIRES";
    /// The set of runner records is not that of those which exist.
    RunnerList = "RUNNER_LIST";
    /// A counter of what there is differs from it.
    CounterWrong = "COUNTER_WRONG";
    /// A counter of ids is behind ids that were given.
    IdCounterBehind = "ID_COUNTER_BEHIND";
    /// The set of actors is not that of those which exist.
    ActorList = "ACTOR_LIST";
    /// The key of an actor does not lead to it.
    ActorKey = "ACTOR_KEY";
    /// A context is listed that has no record.
    ContextMissing = "CONTEXT_MISSING";
}

/// Record that breaks an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckFinding {
    /// Invariant.
    pub(crate) code: FindingCode,
    /// Key of the record, without what the layout adds.
    pub(crate) key: String,
    /// Description of the problem.
    pub(crate) problem: String,
    /// Description of the repair; empty where there is none.
    pub(crate) repair: String,
    /// The repair was made.
    pub(crate) is_repaired: bool,
}

impl CheckFinding {
    /// Finding that cannot be repaired here.
    fn named(code: FindingCode, key: impl Into<String>, problem: impl AsRef<str>) -> Self {
        Self {
            code,
            key: key.into().chars().take(PROBLEM_CHARS_MAX).collect(),
            problem: problem.as_ref().chars().take(PROBLEM_CHARS_MAX).collect(),
            repair: String::new(),
            is_repaired: false,
        }
    }

    /// Parses the answer of a script.
    fn of_answer(answer: Value) -> kv::Result<Vec<Self>> {
        let texts = answer.array()?.into_iter().map(lossy_text).collect::<kv::Result<Vec<_>>>()?;
        let of_parts = |parts: &[String]| {
            let [code, key, problem, repair, repaired] = parts else { return None };
            let code = *FindingCode::ALL.iter().find(|known| known.name() == code)?;
            let repair = repair.clone();
            Some(Self { repair, is_repaired: repaired == "1", ..Self::named(code, key, problem) })
        };
        let parts = texts.chunks(FINDING_PARTS);
        parts
            .map(|parts| of_parts(parts).ok_or_else(|| kv::Error::Protocol("a finding".to_owned())))
            .collect()
    }
}

/// Text that may repeat what a program has written.
fn lossy_text(value: Value) -> kv::Result<String> {
    Ok(String::from_utf8_lossy(&value.bytes()?).into_owned())
}

/// Numbers of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CheckTotals {
    /// Findings.
    pub(crate) findings: u64,
    /// Findings that a repair mends.
    pub(crate) repairable: u64,
    /// Findings that were repaired.
    pub(crate) repaired: u64,
    /// Counters that were not compared, since what they count kept changing.
    pub(crate) uncounted: Vec<String>,
}

/// Progress of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CheckReport {
    /// Keys that were read so far.
    pub(crate) keys: u64,
    /// Findings since the last report.
    pub(crate) findings: Vec<CheckFinding>,
    /// Numbers of the whole check, with the last report.
    pub(crate) totals: Option<CheckTotals>,
}

/// Collects what a check finds, and passes it on.
#[derive(Debug)]
struct FindingCollector {
    out: mpsc::Sender<CheckReport>,
    keys: u64,
    findings: Vec<CheckFinding>,
    totals: CheckTotals,
    /// Hashes of what was found, so that a key which the cursor of Redis gives twice is found once.
    seen: HashSet<u64>,
    sent: Instant,
}

impl FindingCollector {
    fn new(out: mpsc::Sender<CheckReport>) -> Self {
        let (findings, totals) = (Vec::new(), CheckTotals::default());
        Self { out, keys: 0, findings, totals, seen: HashSet::new(), sent: Instant::now() }
    }

    /// Returns true when nobody reads any more.
    fn is_abandoned(&self) -> bool {
        self.out.is_closed()
    }

    fn add(&mut self, findings: impl IntoIterator<Item = CheckFinding>) {
        for finding in findings {
            let mut hasher = DefaultHasher::new();
            (finding.code, &finding.key, &finding.problem).hash(&mut hasher);
            let hash = hasher.finish();
            if self.seen.contains(&hash) {
                continue;
            }
            // Beyond what is sent, a key that comes twice may count twice.
            if self.seen.len() < FINDINGS_MAX {
                self.seen.insert(hash);
            }
            self.totals.findings += 1;
            self.totals.repairable += u64::from(!finding.repair.is_empty());
            self.totals.repaired += u64::from(finding.is_repaired);
            if self.totals.findings <= FINDINGS_MAX as u64 {
                self.findings.push(finding);
            }
        }
    }

    /// Passes on what was found since the last time, and from time to time how far the check is.
    async fn send(&mut self) {
        if !self.findings.is_empty() || self.sent.elapsed() >= REPORT_EVERY {
            self.send_with(None).await;
        }
    }

    /// Passes on the last findings, and the numbers of the whole check.
    async fn finish(mut self) {
        let totals = self.totals.clone();
        self.send_with(Some(totals)).await;
    }

    async fn send_with(&mut self, totals: Option<CheckTotals>) {
        self.sent = Instant::now();
        let mut findings = std::mem::take(&mut self.findings);
        while findings.len() > REPORT_FINDINGS_MAX {
            let later = findings.split_off(REPORT_FINDINGS_MAX);
            self.pass_on(findings, None).await;
            findings = later;
        }
        self.pass_on(findings, totals).await;
    }

    async fn pass_on(&self, findings: Vec<CheckFinding>, totals: Option<CheckTotals>) {
        // Without a reader the check ends with its next page.
        let _ = self.out.send(CheckReport { keys: self.keys, findings, totals }).await;
    }
}

impl TenantStore {
    /// Runs a script that checks, and parses its findings.
    async fn check(&self, change: StoreChange) -> Result<Vec<CheckFinding>> {
        Ok(CheckFinding::of_answer(checked(self.call(change).await)?)?)
    }
}

/// Answer of a script that checks. One that met a value of another type has found nothing: that key is a finding itself.
fn checked(answer: Result<Value>) -> Result<Value> {
    match answer {
        Err(Error::Store(kv::Error::Refused { code, message })) if is_type_error(&code, &message) => {
            tracing::warn!(
                message,
                "a record could not be checked, since a key has another type than it should"
            );
            Ok(Value::Array(Vec::new()))
        }
        answer => answer,
    }
}

fn is_type_error(code: &str, message: &str) -> bool {
    code == "WRONGTYPE" || message.contains("WRONGTYPE")
}

#[cfg(test)]
mod tests {
    use model::NodeState;

    use super::*;

    #[test]
    fn scripts_know_the_codes_and_no_others() {
        let scripts = [
            include_str!("scripts/check_flows.lua"),
            include_str!("scripts/check_due.lua"),
            include_str!("scripts/check_orphans.lua"),
            include_str!("scripts/check_nodes.lua"),
            include_str!("scripts/check_messages.lua"),
            include_str!("scripts/check_entries.lua"),
            include_str!("scripts/check_blob.lua"),
            include_str!("scripts/check_runners.lua"),
            include_str!("scripts/check_count.lua"),
            include_str!("scripts/check_given_ids.lua"),
            include_str!("scripts/check_actors.lua"),
        ];
        let mut seen = 0;
        for script in scripts {
            for call in script.split("report('").skip(1) {
                let code = call.split('\'').next().expect("a text has a first part");
                assert!(FindingCode::ALL.iter().any(|known| known.name() == code), "{code}");
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn the_script_for_nodes_knows_the_statuses_of_jobs() {
        let script = include_str!("scripts/check_nodes.lua");
        for state in NodeState::ALL {
            let entry = format!("{} = '{}'", state.as_str(), state.job_status());
            assert!(script.contains(&entry), "{entry}");
            let ended = format!("{} = true", state.as_str());
            assert_eq!(script.contains(&ended), state.is_end(), "{ended}");
        }
    }

    #[tokio::test]
    async fn findings_are_counted_once_and_sent_up_to_a_number() {
        let (out, mut reports) = mpsc::channel(2 * FINDINGS_MAX / REPORT_FINDINGS_MAX);
        let mut found = FindingCollector::new(out);
        let finding = |n: usize| CheckFinding::named(FindingCode::KeyUnknown, format!("x:{n}"), "no key");
        found.add((0..FINDINGS_MAX).map(finding));
        found.add([finding(0)]);
        found.send().await;
        found.add([finding(FINDINGS_MAX)]);
        found.finish().await;
        let (mut sent, mut last) = (0, None);
        while let Some(report) = reports.recv().await {
            assert!(last.is_none() && report.findings.len() <= REPORT_FINDINGS_MAX);
            sent += report.findings.len();
            last = report.totals;
        }
        let totals = last.expect("the last one has them");
        assert_eq!((sent, totals.findings), (FINDINGS_MAX, FINDINGS_MAX as u64 + 1));
    }
}
