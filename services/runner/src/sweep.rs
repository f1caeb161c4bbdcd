//! Ending what a runner that died left running.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::processes::{self, Observed};

/// One script that runs, as its record in `running/<pid>` tells: `<pid> <start> <boot> <job key>`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    leader: Observed,
    boot: String,
    job: String,
}

/// A record that goes with the script it is about.
#[derive(Debug)]
pub(crate) struct RunningRecord {
    path: PathBuf,
}

impl RunningRecord {
    /// Records that process `pid`, which leads a session of its own, runs `job`.
    pub(crate) fn write(root: &Path, pid: u32, boot: &str, job: &str) -> io::Result<Self> {
        let path = root.join("running").join(pid.to_string());
        // One that has ended already is recorded without a start, which no process matches.
        let start_ticks = processes::observe(pid).map_or(0, |observed| observed.start_ticks);
        fs::write(&path, format!("{pid} {start_ticks} {boot} {job}\n"))?;
        Ok(Self { path })
    }
}

impl Drop for RunningRecord {
    fn drop(&mut self) {
        // One that stays behind is about a process that is gone, which the next sweep sees.
        let _ = fs::remove_file(&self.path);
    }
}

/// A process that [`sweep`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    /// Its number.
    pub pid: u32,
    /// The attempt it belonged to, when that is known.
    pub job: Option<String>,
}

impl fmt::Display for Swept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.job {
            Some(job) => write!(f, "process {} of attempt {job}", self.pid),
            None => write!(f, "process {}", self.pid),
        }
    }
}

/// Ends every process that an earlier runner with this work directory left running, and removes the
/// directories of their attempts. Nothing else is touched: a process is ended when its environment names
/// this work directory, or when it is of a recorded session whose leader is still the one that was
/// recorded. Must not be called while a runner works there.
///
/// Blocks while it works.
///
/// # Errors
/// When `/proc` or the records cannot be read, or something does not end although it was killed.
pub fn sweep(work_dir: &Path) -> io::Result<Vec<Swept>> {
    let Ok(root) = work_dir.canonicalize() else {
        return Ok(Vec::new());
    };
    let running = root.join("running");
    let (records, files) = read_records(&running)?;
    let mark = processes::mark_below(&root);
    let leaders: Vec<_> = records
        .iter()
        .filter(|record| {
            processes::observe(record.leader.pid)
                .is_ok_and(|now| now.start_ticks == record.leader.start_ticks)
        })
        .collect();
    let is_ours = |process: &Observed| {
        leaders.iter().any(|record| {
            record.leader.pid == process.session && record.leader.start_ticks <= process.start_ticks
        }) || processes::environ_has(process.pid, &mark)
    };
    let killed = processes::kill_all(is_ours)?;
    let swept = killed
        .into_iter()
        .map(|process| {
            let record = records.iter().find(|record| record.leader.pid == process.session);
            Swept { pid: process.pid, job: record.map(|record| record.job.clone()) }
        })
        .collect();
    for file in files {
        fs::remove_file(file)?;
    }
    remove_attempts(&root)?;
    Ok(swept)
}

/// Records of this start of the machine, and all their files.
fn read_records(running: &Path) -> io::Result<(Vec<Record>, Vec<PathBuf>)> {
    let mut records = Vec::new();
    let mut files = Vec::new();
    let entries = match fs::read_dir(running) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((records, files)),
        other => other?,
    };
    let boot = processes::boot_id()?;
    for entry in entries {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        records.extend(parse(&text).filter(|record| record.boot == boot && record.leader.start_ticks > 0));
        files.push(path);
    }
    Ok((records, files))
}

/// A record that was being written when its runner died is short, and is no record.
fn parse(text: &str) -> Option<Record> {
    let mut words = text.strip_suffix('\n')?.split(' ');
    let pid = words.next()?.parse().ok()?;
    let start_ticks = words.next()?.parse().ok()?;
    let (boot, job) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(Record { leader: Observed { pid, session: pid, start_ticks }, boot, job })
}

/// Directories of attempts, told by their names: `<context uid>/<job key>`.
fn remove_attempts(root: &Path) -> io::Result<()> {
    for context in fs::read_dir(root)? {
        let context = context?;
        let is_context =
            context.file_name().to_str().is_some_and(|name| name.parse::<model::ContextUid>().is_ok());
        if is_context && context.file_type()?.is_dir() {
            for attempt in fs::read_dir(context.path())? {
                let attempt = attempt?;
                if attempt.file_name().to_str().is_some_and(|name| name.parse::<model::JobKey>().is_ok()) {
                    fs::remove_dir_all(attempt.path())?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_whole_or_not_at_all() {
        let record = parse("12 34 boot job-1\n").expect("a record");
        assert_eq!((record.leader.pid, record.leader.start_ticks, record.job.as_str()), (12, 34, "job-1"));
        for bad in ["", "12 34 boot job-1", "12 34\n", "x 34 boot job\n"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn nothing_to_sweep() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert!(sweep(&dir.path().join("absent")).is_ok_and(|swept| swept.is_empty()));
        assert!(sweep(dir.path()).is_ok_and(|swept| swept.is_empty()));
        // A record of this very process, as if its number had been used again.
        let running = dir.path().join("running");
        fs::create_dir(&running).expect("a directory");
        let boot = processes::boot_id().expect("a boot id");
        fs::write(running.join("1"), format!("{} 1 {boot} job\n", std::process::id())).expect("a record");
        assert!(sweep(dir.path()).is_ok_and(|swept| swept.is_empty()));
        assert!(!running.join("1").exists());
    }
}
