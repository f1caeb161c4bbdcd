//! Files to which scripts append, and what they prove.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Mark that begins a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WitnessMark {
    /// The script began.
    Start,
    /// The script came to its end.
    End,
}

/// One execution as the witness saw it. Positions are line numbers, so that order means time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WitnessSpan {
    /// Name of the job, as the script gave it.
    pub job: String,
    /// Which try, as the script named it.
    pub attempt: String,
    /// The line that reported the start.
    pub start: usize,
    /// The line that reported the end; absent when it was killed.
    pub end: Option<usize>,
}

/// A file to which scripts append one line at their start and one at their end:
/// `start <job> <attempt>` and `end <job> <attempt>`. Appending a short line is atomic.
#[derive(Debug, Clone)]
pub struct Witness {
    path: PathBuf,
}

impl Witness {
    /// A witness in a directory that outlives the scripts.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join("witness") }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a shell script for node `job` that reports its start, does `body`, and reports its end.
    #[must_use]
    pub fn shell(&self, job: &str, body: &str) -> String {
        let path = self.path.display();
        format!(
            "echo \"start {job} $MYCORA_ATTEMPT\" >> '{path}'\n{body}\necho \"end {job} $MYCORA_ATTEMPT\" >> '{path}'\n"
        )
    }

    /// Every line so far.
    ///
    /// # Panics
    /// When a line is none that a script should write.
    #[must_use]
    pub fn lines(&self) -> Vec<(WitnessMark, String, String)> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let parse = |line: &str| {
            let mut words = line.split(' ');
            let mark = match words.next()? {
                "start" => WitnessMark::Start,
                "end" => WitnessMark::End,
                _ => return None,
            };
            let (job, attempt) = (words.next()?, words.next()?);
            words.next().is_none().then(|| (mark, job.to_owned(), attempt.to_owned()))
        };
        text.lines()
            .map(|line| parse(line).unwrap_or_else(|| panic!("not a witness's line: {line:?}")))
            .collect()
    }

    /// The executions so far, in the order they began.
    ///
    /// # Panics
    /// When an end has no start before it.
    #[must_use]
    pub fn spans(&self) -> Vec<WitnessSpan> {
        let mut spans: Vec<WitnessSpan> = Vec::new();
        for (at, (mark, job, attempt)) in self.lines().into_iter().enumerate() {
            match mark {
                WitnessMark::Start => spans.push(WitnessSpan { job, attempt, start: at, end: None }),
                WitnessMark::End => {
                    let open = spans
                        .iter_mut()
                        .rfind(|span| span.job == job && span.attempt == attempt && span.end.is_none());
                    match open {
                        Some(span) => span.end = Some(at),
                        None => panic!("{job} attempt {attempt} ended without a start"),
                    }
                }
            }
        }
        spans
    }

    /// Checks that each of `jobs` began exactly once and came to its end, and that nothing else ran.
    ///
    /// # Panics
    /// When not; lists the lines.
    pub fn assert_each_once(&self, jobs: &[&str]) {
        let spans = self.spans();
        let mut counts: BTreeMap<&str, (u32, u32)> = jobs.iter().map(|job| (*job, (0, 0))).collect();
        for span in &spans {
            let count = counts.entry(&span.job).or_default();
            count.0 += 1;
            count.1 += u32::from(span.end.is_some());
        }
        let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != (1, 1)).collect();
        assert!(
            wrong.is_empty() && counts.len() == jobs.len(),
            "not each once (starts, ends): {wrong:?} in {spans:?}"
        );
    }

    /// Checks that no two executions of one job overlap: a later one begins only after the one before
    /// it ended. One that was killed has no end; it counts as over when `killed` says so.
    ///
    /// # Panics
    /// When two overlap.
    pub fn assert_no_overlap(&self, killed: impl Fn(&WitnessSpan) -> bool) {
        let mut last: BTreeMap<String, WitnessSpan> = BTreeMap::new();
        for span in self.spans() {
            if let Some(before) = last.get(&span.job) {
                let over =
                    before.end.is_some_and(|end| end < span.start) || before.end.is_none() && killed(before);
                assert!(over, "{before:?} and {span:?} overlap");
            }
            last.insert(span.job.clone(), span);
        }
    }

    /// Checks that each of `jobs` came to its end exactly once, however often it began.
    ///
    /// # Panics
    /// When not.
    pub fn assert_one_end_each(&self, jobs: &[&str]) {
        let spans = self.spans();
        for job in jobs {
            let ends = spans.iter().filter(|span| span.job == *job && span.end.is_some()).count();
            assert_eq!(ends, 1, "{job} ended {ends} times: {spans:?}");
        }
    }
}
