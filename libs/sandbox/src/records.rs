//! Records of running jobs, for the process that has to end them when their runner is gone.
//!
//! A job's first process ends everything by itself when its runner is gone. A record is for the case that it could
//! not: that it was killed together with the runner, or that the runner hangs and is taken for lost.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use model::EndedProcess;
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::processes::{self, ProcessSnapshot};
use crate::tree;

/// One running job, as its file describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SandboxRecord {
    /// Name of the record: a job key, or the name of something else that was started.
    job: String,
    /// Process id of the first process.
    pid: u32,
    /// When that started, in clock ticks since boot.
    start_ticks: u64,
    /// Which start of the machine that was.
    boot: String,
    /// Directory of the job, which is removed with the record.
    dir: PathBuf,
    /// Control groups of the job.
    cgroups: Vec<PathBuf>,
}

/// Digits that the number of a process (10) and its start (20) have at most, beyond the one of a zero each.
const PROCESS_DIGITS: usize = 28;

/// A record that goes with what it is about.
#[derive(Debug)]
pub struct SandboxRecordGuard {
    path: PathBuf,
}

impl Drop for SandboxRecordGuard {
    fn drop(&mut self) {
        // A record that stays behind is about processes that are gone, which its reader notices.
        let _ = fs::remove_file(&self.path);
    }
}

/// A process that was ended, and what it belonged to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweptProcess {
    /// The process.
    pub ended: EndedProcess,
    /// The job, when it is known.
    pub job: Option<String>,
}

impl fmt::Display for SweptProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ended: EndedProcess { pid, name }, job } = self;
        match job {
            Some(job) => write!(f, "process {pid} ({name}) of attempt {job}"),
            None => write!(f, "process {pid} ({name})"),
        }
    }
}

/// Record of a job whose first process has not been started. It has room for that process: a full disk is noticed before the
/// script begins. Processes of the job are found by its directory and its control groups meanwhile.
#[derive(Debug)]
pub struct PendingSandboxRecord {
    file: fs::File,
    record: SandboxRecord,
    /// Length of the file.
    bytes: usize,
    guard: SandboxRecordGuard,
}

impl PendingSandboxRecord {
    /// Records the first process.
    ///
    /// # Errors
    /// When the record cannot be written, though it has its place on the disk.
    pub fn started(mut self, pid: u32) -> io::Result<SandboxRecordGuard> {
        self.record.pid = pid;
        // One that has ended already is recorded without a start, which no process matches.
        self.record.start_ticks = processes::observe(pid).map_or(0, |observed| observed.start_ticks);
        let mut text = serde_json::to_vec(&self.record)?;
        text.resize(self.bytes, b' ');
        self.file.write_all_at(&text, 0)?;
        Ok(self.guard)
    }
}

/// Records in `running` that a process of `job` is about to be started in `dir`.
///
/// # Errors
/// When the record cannot be written.
pub fn prepare(
    running: &Path,
    job: &str,
    dir: PathBuf,
    cgroups: Vec<PathBuf>,
) -> io::Result<PendingSandboxRecord> {
    // A job may start several, one after another or at once; and a record of an earlier runner may still be there.
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let boot = processes::boot_id()?;
    let record = SandboxRecord { job: job.to_owned(), pid: 0, start_ticks: 0, boot, dir, cgroups };
    let guard = SandboxRecordGuard { path: running.join(format!("{job}.{}-{number}", std::process::id())) };
    let mut text = serde_json::to_vec(&record)?;
    text.resize(text.len() + PROCESS_DIGITS, b' ');
    let file = fs::File::create(&guard.path)?;
    file.write_all_at(&text, 0)?;
    Ok(PendingSandboxRecord { file, record, bytes: text.len(), guard })
}

/// Records in `running` that `job` runs in `dir`, below its first process `pid`.
///
/// # Errors
/// When the record cannot be written.
pub fn write(
    running: &Path,
    job: &str,
    pid: u32,
    dir: PathBuf,
    cgroups: Vec<PathBuf>,
) -> io::Result<SandboxRecordGuard> {
    prepare(running, job, dir, cgroups)?.started(pid)
}

/// Ends everything that the records in `running` name, and removes the directories of those jobs and the
/// records. A process is ended when it descends from a job's first process, is in its control group, or
/// has the job's directory in the environment that it was started with. Blocks while it works.
///
/// # Errors
/// When `/proc` or the records cannot be read, or something does not end although it was killed.
pub fn end_recorded(running: &Path) -> io::Result<Vec<SweptProcess>> {
    end_recorded_of(running, |_| true)
}

/// Ends and removes, as [`end_recorded`] does, only the jobs that `meant` selects.
///
/// # Errors
/// As [`end_recorded`].
pub fn end_recorded_of(running: &Path, meant: impl Fn(&str) -> bool) -> io::Result<Vec<SweptProcess>> {
    let (records, files) = read(running, meant)?;
    let boot = processes::boot_id()?;
    let live: Vec<&SandboxRecord> = records.iter().filter(|record| record.boot == boot).collect();
    let swept = end(&live)?;
    for record in &records {
        match tree::remove(&record.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    for file in files {
        match fs::remove_file(file) {
            // Its runner lives, and was faster.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(swept)
}

/// Ends every process that was started with the job's directory in its environment.
///
/// # Errors
/// As [`end_recorded`].
pub fn end_marked(dir: &Path) -> io::Result<Vec<EndedProcess>> {
    let record = SandboxRecord {
        job: String::new(),
        pid: 0,
        start_ticks: 0,
        boot: String::new(),
        dir: dir.to_owned(),
        cgroups: Vec::new(),
    };
    Ok(end(&[&record])?.into_iter().map(|swept| swept.ended).collect())
}

/// The records of jobs that are meant, and their files. One that was being written when its runner died is short,
/// and is of no job.
fn read(running: &Path, meant: impl Fn(&str) -> bool) -> io::Result<(Vec<SandboxRecord>, Vec<PathBuf>)> {
    let (mut records, mut files) = (Vec::new(), Vec::new());
    let entries = match fs::read_dir(running) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((records, files)),
        other => other?,
    };
    for entry in entries {
        let path = entry?.path();
        let text = match fs::read(&path) {
            // Its runner lives, and was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        let record = serde_json::from_slice::<SandboxRecord>(&text).ok();
        if meant(record.as_ref().map_or("", |record| &record.job)) {
            records.extend(record);
            files.push(path);
        }
    }
    Ok((records, files))
}

fn end(records: &[&SandboxRecord]) -> io::Result<Vec<SweptProcess>> {
    if records.is_empty() {
        return Ok(Vec::new());
    }
    let ended = processes::end_all(|| find(records))?;
    let swept = |(ended, job): (_, String)| SweptProcess { ended, job: (!job.is_empty()).then_some(job) };
    Ok(ended.into_iter().map(swept).collect())
}

/// The processes that belong to one of the records, each with its job; nothing when there are none.
fn find(records: &[&SandboxRecord]) -> io::Result<Option<Vec<(ProcessSnapshot, String)>>> {
    let all = processes::all()?;
    let mut jobs: HashMap<u32, &str> = HashMap::new();
    for record in records {
        let mark = mark(&record.dir);
        let grouped: HashSet<u32> = cgroup::members(&record.cgroups);
        for process in &all {
            let first = process.pid == record.pid && process.start_ticks == record.start_ticks;
            if first || grouped.contains(&process.pid) || processes::environ_has(process.pid, &mark) {
                jobs.insert(process.pid, &record.job);
            }
        }
    }
    // What descends from them, however far.
    let mut grown = true;
    while std::mem::take(&mut grown) {
        for process in &all {
            if !jobs.contains_key(&process.pid)
                && let Some(job) = jobs.get(&process.parent).copied()
            {
                jobs.insert(process.pid, job);
                grown = true;
            }
        }
    }
    let own = std::process::id();
    jobs.remove(&own);
    let ours = all.iter().filter_map(|process| Some((*process, (*jobs.get(&process.pid)?).to_owned())));
    let found: Vec<_> = ours.collect();
    Ok((!found.is_empty()).then_some(found))
}

/// Returns the beginning of an environment entry that every process of a job in `dir` has.
fn mark(dir: &Path) -> Vec<u8> {
    let mut mark = b"MYCORA_RESULT=".to_vec();
    mark.extend_from_slice(OsStr::as_encoded_bytes(dir.as_os_str()));
    mark.push(b'/');
    mark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_size_before_the_start_and_names_the_job_already() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let (running, dir) = (place.path().join("running"), place.path().join("job"));
        for dir in [&running, &dir] {
            fs::create_dir(dir).expect("a directory");
        }
        let pending = prepare(&running, "job", dir.clone(), Vec::new()).expect("a record");
        let file = pending.guard.path.clone();
        let before = fs::metadata(&file).expect("a file").len();
        let guard = pending.started(std::process::id()).expect("recorded");
        assert_eq!(fs::metadata(&file).expect("a file").len(), before);
        let (records, _) = read(&running, |job| job == "job").expect("read");
        assert!(records[0].pid == std::process::id() && records[0].start_ticks > 0, "{records:?}");
        drop(guard);
        assert!(!file.exists());
        // The runner dies before the first process is recorded.
        std::mem::forget(prepare(&running, "job", dir.clone(), Vec::new()).expect("a record").guard);
        assert_eq!(end_recorded_of(&running, |job| job == "job").expect("an end"), []);
        assert!(!dir.exists() && fs::read_dir(&running).expect("a directory").next().is_none());
    }

    #[test]
    fn records_are_about_one_process_of_one_start() {
        let running = tempfile::tempdir().expect("a temporary directory");
        let dir = running.path().join("job");
        // This very process, as if its number had been used again.
        let own = std::process::id();
        let record = SandboxRecord {
            job: "job".into(),
            pid: own + 1,
            start_ticks: 1,
            boot: processes::boot_id().expect("a boot id"),
            dir: dir.clone(),
            cgroups: Vec::new(),
        };
        let file = running.path().join("running").join("job");
        fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
        fs::create_dir(&dir).expect("a directory");
        fs::write(&file, serde_json::to_vec(&record).expect("JSON")).expect("a record");
        fs::write(running.path().join("running").join("short"), "{\"job\":").expect("half a record");
        let swept = end_recorded(&running.path().join("running")).expect("an end");
        assert_eq!(swept, []);
        assert!(!file.exists() && !dir.exists());
        assert!(end_recorded(&running.path().join("absent")).is_ok_and(|swept| swept.is_empty()));
    }
}
