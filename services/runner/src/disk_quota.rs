//! Disk usage of each context on this machine, over all of its jobs, and the quota on that.
//!
//! Jobs are not measured again for this: their regular measurements are noted here. Every
//! [`QUOTA_INTERVAL`], while a context has jobs, the rest is measured: the bytes that it keeps between its jobs, and those that
//! the other runners of the machine hold for it, which each reports in its part of the work directory.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::{ContextUid, JobKey, Reason, ReasonCode};
use queue::work_dir::{context_dir, held_dir, instances_dir, jobs_dir};
use sandbox::disk_space::DiskFloors;
use sandbox::open_files::FileScope;
use tokio::sync::{Notify, watch};
use tokio::time::MissedTickBehavior;

use crate::QUOTA_INTERVAL;
use crate::disk_eviction::EvictionCandidate;
use crate::job_usage::{JobUsage, JobUsageProbe, ProcessListCache};
use crate::workspace::size_of_tree;

/// How long a context is measured after its last job is gone.
const LINGER: Duration = Duration::from_secs(60);
/// Time for which a runner's report counts: each measurement renews it.
pub(crate) const REPORT_VALIDITY: Duration = Duration::from_secs(6);

/// Disk usage of all contexts that have jobs here. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct DiskQuotas(Arc<DiskQuotasInner>);

#[derive(Debug)]
struct DiskQuotasInner {
    root: PathBuf,
    /// Directory of this runner's reports to others.
    report_dir: PathBuf,
    areas: Mutex<HashMap<ContextUid, ContextDiskUsage>>,
    /// Notified when a context has jobs again.
    wanted: Notify,
    /// Number of jobs that use the disk now.
    jobs: watch::Sender<usize>,
    /// Floors of the space that has to stay free.
    floors: DiskFloors,
    process_list: ProcessListCache,
}

/// Known disk usage of one context.
#[derive(Debug)]
struct ContextDiskUsage {
    jobs: HashMap<JobKey, JobQuotaEntry>,
    /// Bytes that the context holds outside the jobs of this runner.
    other_bytes: u64,
    used: Instant,
}

/// Disk usage of one job's directory, when it was last measured.
#[derive(Debug)]
struct JobQuotaEntry {
    bytes: u64,
    /// True for a job with a process that can be ended.
    can_end: bool,
    /// Probe of its usage, while it has processes.
    look: Option<JobUsageProbe>,
    /// Sender of the reason why it has to end.
    end: Arc<watch::Sender<Option<Reason>>>,
}

impl ContextDiskUsage {
    fn own(&self) -> u64 {
        self.jobs.values().fold(0, |sum, held| sum.saturating_add(held.bytes))
    }

    fn bytes(&self) -> u64 {
        self.own().saturating_add(self.other_bytes)
    }
}

impl DiskQuotas {
    /// Creates the quotas of a work directory, whose file system has these floors; `held` is the directory of this runner's reports.
    pub(crate) fn new(root: &Path, held: &Path, floors: DiskFloors) -> Self {
        Self(Arc::new(DiskQuotasInner {
            root: root.to_owned(),
            report_dir: held.to_owned(),
            areas: Mutex::default(),
            wanted: Notify::new(),
            jobs: watch::Sender::new(0),
            floors,
            process_list: ProcessListCache::default(),
        }))
    }

    /// Creates the share of a job whose context may hold `bytes_max`.
    pub(crate) fn share(&self, key: JobKey, bytes_max: u64) -> JobDiskQuota {
        JobDiskQuota { areas: self.clone(), key, bytes_max, end: Arc::new(watch::Sender::new(None)) }
    }

    /// Returns the work directory.
    pub(crate) fn root(&self) -> &Path {
        &self.0.root
    }

    /// Returns the directory of this runner's reports.
    pub(crate) fn report_dir(&self) -> &Path {
        &self.0.report_dir
    }

    /// Returns the floors of the space that has to stay free there.
    pub(crate) fn floors(&self) -> &DiskFloors {
        &self.0.floors
    }

    /// Returns true while any job holds space on the disk.
    pub(crate) fn has_jobs(&self) -> bool {
        *self.0.jobs.borrow() > 0
    }

    /// Waits until there are jobs.
    pub(crate) async fn some_jobs(&self) {
        // The sender is here: it cannot be gone.
        let _ = self.0.jobs.subscribe().wait_for(|count| *count > 0).await;
    }

    /// Returns true while the job is registered here.
    pub(crate) fn has(&self, key: JobKey) -> bool {
        self.lock().get(&key.context).is_some_and(|area| area.jobs.contains_key(&key))
    }

    /// Tells a job to end.
    pub(crate) fn end(&self, key: JobKey, reason: Reason) {
        if let Some(held) = self.lock().get(&key.context).and_then(|area| area.jobs.get(&key)) {
            held.end.send_replace(Some(reason));
        }
    }

    /// Measures every job that has processes, and gives the one that holds the most. Blocks.
    pub(crate) fn measure(&self) -> Option<(EvictionCandidate, JobKey)> {
        let looks: Vec<_> = {
            let areas = self.lock();
            let jobs = areas.values().flat_map(|area| &area.jobs);
            jobs.filter_map(|(key, held)| Some((*key, held.look.clone()?))).collect()
        };
        let measured = looks.into_iter().map(|(key, look)| {
            let JobUsage { bytes, unseen, .. } = look.take(u64::MAX);
            if let Some(area) = self.lock().get_mut(&key.context)
                && let Some(held) = area.jobs.get_mut(&key)
            {
                held.bytes = bytes;
            }
            (EvictionCandidate { unseen, bytes }, key)
        });
        measured.max_by_key(|(candidate, _)| *candidate)
    }

    /// Measures for ever what contexts hold beside their jobs. The caller drops the future to end it.
    pub(crate) async fn watch_usage(self) {
        loop {
            self.0.wanted.notified().await;
            let mut looks = tokio::time::interval(QUOTA_INTERVAL);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !self.lock().is_empty() {
                looks.tick().await;
                let areas = self.clone();
                if let Err(error) = tokio::task::spawn_blocking(move || areas.look()).await {
                    tracing::warn!(%error, "the disk usage of contexts could not be measured");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContextUid, ContextDiskUsage>> {
        self.0.areas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) {
        let known: Vec<_> = {
            let mut areas = self.lock();
            areas.retain(|_, area| !area.jobs.is_empty() || area.used.elapsed() < LINGER);
            areas.iter().map(|(context, area)| (*context, area.own())).collect()
        };
        for (context, own) in known {
            if let Err(error) = self.report(context, own) {
                tracing::warn!(
                    %context, %error,
                    "the disk usage of a context cannot be reported to other runners"
                );
            }
            let beside = self.kept(context).saturating_add(self.elsewhere(context));
            if let Some(area) = self.lock().get_mut(&context) {
                area.other_bytes = beside;
            }
        }
    }

    /// Reports to other runners what this one holds.
    fn report(&self, context: ContextUid, own: u64) -> io::Result<()> {
        let path = self.0.report_dir.join(context.to_string());
        if own == 0 {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let fresh = path.with_extension("new");
        fs::write(&fresh, own.to_string())?;
        fs::rename(fresh, path)
    }

    /// Sums the bytes that the other runners of this machine have reported lately.
    fn elsewhere(&self, context: ContextUid) -> u64 {
        let Ok(instances) = fs::read_dir(instances_dir(&self.0.root)) else { return 0 };
        let held_dirs = instances
            .flatten()
            .map(|instance| held_dir(&instance.path()))
            .filter(|held| *held != self.0.report_dir);
        held_dirs
            .filter_map(|held| reported_usage(&held.join(context.to_string())))
            .fold(0, u64::saturating_add)
    }

    /// Measures the bytes that the context keeps between its jobs.
    fn kept(&self, context: ContextUid) -> u64 {
        let jobs = jobs_dir(&self.0.root, context);
        let Ok(parts) = fs::read_dir(context_dir(&self.0.root, context)) else { return 0 };
        let parts = parts.flatten().map(|part| part.path()).filter(|path| *path != jobs);
        parts.map(|path| size_of_tree(&path, u64::MAX)).fold(0, u64::saturating_add)
    }
}

fn reported_usage(path: &Path) -> Option<u64> {
    let modified_at = fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
    // After the clock was set back, a report only counts for too long.
    if modified_at.elapsed().is_ok_and(|age| age > REPORT_VALIDITY) {
        return None;
    }
    fs::read_to_string(path).ok()?.parse().ok()
}

/// One job's part of its context's area, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct JobDiskQuota {
    areas: DiskQuotas,
    key: JobKey,
    bytes_max: u64,
    end: Arc<watch::Sender<Option<Reason>>>,
}

impl JobDiskQuota {
    /// Registers the job, which begins to use the disk.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED` when its context has no room left, `DISK_FULL` when the disk has none.
    pub(crate) fn enter(&self) -> Result<(), Reason> {
        if let Some(shortage) = self.areas.floors().shortage() {
            return Err(Reason::new(ReasonCode::DiskFull, shortage.to_string()));
        }
        let mut areas = self.areas.lock();
        if areas.is_empty() {
            self.areas.0.wanted.notify_one();
        }
        let fresh = || ContextDiskUsage { jobs: HashMap::new(), other_bytes: 0, used: Instant::now() };
        let area = areas.entry(self.key.context).or_insert_with(fresh);
        area.used = Instant::now();
        if area.bytes() >= self.bytes_max {
            return Err(self.exceeded());
        }
        if area.jobs.insert(self.key, self.nothing()).is_none() {
            self.areas.0.jobs.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    fn nothing(&self) -> JobQuotaEntry {
        JobQuotaEntry { bytes: 0, can_end: false, look: None, end: Arc::clone(&self.end) }
    }

    /// Notes that the job has processes below `init`, in these control groups, which work in the directory of the scope. Returns
    /// the probe of their usage.
    pub(crate) fn watch(&self, init: u32, cgroups: Vec<PathBuf>, scope: FileScope) -> JobUsageProbe {
        let look = JobUsageProbe { scope, init, cgroups, process_list: self.areas.0.process_list.clone() };
        if let Some(area) = self.areas.lock().get_mut(&self.key.context)
            && let Some(held) = area.jobs.get_mut(&self.key)
        {
            held.look = Some(look.clone());
        }
        look
    }

    /// Waits until the job has to end because the disk is nearly full, and returns the reason.
    pub(crate) async fn end_requested(&self) -> Reason {
        let mut end_reason = self.end.subscribe();
        let reason = end_reason.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            // The sender is here: it cannot be gone.
            None => std::future::pending().await,
        }
    }

    /// Notes the measured usage of the job, which is a process. Returns the reason if it has to end: in a context
    /// that holds too much, that is the job that holds the most.
    pub(crate) fn note(&self, bytes: u64) -> Option<Reason> {
        let mut areas = self.areas.lock();
        let area = areas.get_mut(&self.key.context)?;
        let held = area.jobs.entry(self.key).or_insert_with(|| self.nothing());
        (held.bytes, held.can_end) = (bytes, true);
        let is_beyond = area.bytes() > self.bytes_max;
        let most = area.jobs.values().filter(|held| held.can_end).map(|held| held.bytes).max();
        (is_beyond && most == Some(bytes)).then(|| self.exceeded())
    }

    /// Reserves room for `more` beside the current usage of the directory.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn take(&self, bytes: u64, more: u64) -> Result<(), String> {
        let mut areas = self.areas.lock();
        let Some(area) = areas.get_mut(&self.key.context) else { return Ok(()) };
        area.jobs.entry(self.key).or_insert_with(|| self.nothing()).bytes = bytes;
        if area.bytes().saturating_add(more) > self.bytes_max {
            return Err(self.exceeded().to_string());
        }
        area.jobs.entry(self.key).or_insert_with(|| self.nothing()).bytes = bytes.saturating_add(more);
        Ok(())
    }

    fn exceeded(&self) -> Reason {
        let detail = format!("its context may hold {} bytes on this machine", self.bytes_max);
        Reason::new(ReasonCode::QuotaExceeded, detail)
    }
}

impl Drop for JobDiskQuota {
    fn drop(&mut self) {
        if let Some(area) = self.areas.lock().get_mut(&self.key.context) {
            if area.jobs.remove(&self.key).is_some() {
                self.areas.0.jobs.send_modify(|count| *count = count.saturating_sub(1));
            }
            area.used = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use model::id::Uid;
    use model::{Attempt, FlowUid, JobId};

    use super::*;

    const MAX: u64 = 100_000;

    fn runner(root: &Path, number: u32) -> DiskQuotas {
        let own = queue::work_dir::instance_dir(root, &"g".parse().expect("a name"), number);
        fs::create_dir_all(held_dir(&own)).expect("a directory");
        DiskQuotas::new(root, &held_dir(&own), DiskFloors::new(root.to_owned(), Some(0)))
    }

    fn key(job: u32) -> JobKey {
        let (context, flow) = (ContextUid(Uid::from_bits(1)), FlowUid(Uid::from_bits(2)));
        JobKey { context, flow, job: JobId(job), attempt: Attempt(1) }
    }

    fn entered(areas: &DiskQuotas, job: u32) -> JobDiskQuota {
        let share = areas.share(key(job), MAX);
        share.enter().expect("there is room");
        share
    }

    #[test]
    fn the_one_that_holds_the_most_has_to_end() {
        let root = tempfile::tempdir().expect("a directory");
        let areas = runner(root.path(), 1);
        let (small, large, inside) = (entered(&areas, 1), entered(&areas, 2), entered(&areas, 3));
        assert_eq!(small.note(20_000), None);
        assert_eq!(large.note(40_000), None);
        assert_eq!(inside.take(0, 40_000), Ok(()));
        let refused = inside.take(40_000, 1).expect_err("there is no room");
        assert_eq!(refused, "QUOTA_EXCEEDED: its context may hold 100000 bytes on this machine");
        assert_eq!(small.note(30_000), None, "another one holds more");
        let reason = large.note(40_000).expect("it holds the most that can be ended");
        assert_eq!(reason.code, ReasonCode::QuotaExceeded);
        let late = areas.share(key(4), MAX);
        assert_eq!(late.enter().map_err(|reason| reason.code), Err(ReasonCode::QuotaExceeded));
        drop(large);
        assert_eq!(small.note(30_000), None);
        assert_eq!(late.enter(), Ok(()));
        let other = areas.share(JobKey { context: ContextUid(Uid::from_bits(9)), ..key(1) }, MAX);
        assert_eq!(other.enter(), Ok(()), "contexts have nothing to do with each other");
    }

    #[test]
    fn what_is_kept_and_what_other_runners_hold_counts() {
        let root = tempfile::tempdir().expect("a directory");
        let (one, two) = (runner(root.path(), 1), runner(root.path(), 2));
        let context = context_dir(root.path(), key(1).context);
        for part in ["store", "jobs"] {
            fs::create_dir_all(context.join(part)).expect("a directory");
            fs::write(context.join(part).join("file"), vec![1; 30_000]).expect("a file");
        }
        let (first, second) = (entered(&one, 1), entered(&two, 2));
        assert_eq!(first.note(50_000), None);
        one.look();
        two.look();
        assert_eq!(second.note(10_000), None, "50,000 there, what is kept, and this");
        assert!(second.note(30_000).is_some());
        // A runner that is gone does not renew its report.
        let report = one.0.report_dir.join(key(1).context.to_string());
        let before = std::time::SystemTime::now() - 2 * REPORT_VALIDITY;
        File::open(&report).and_then(|file| file.set_modified(before)).expect("an older file");
        two.look();
        assert_eq!(second.note(30_000), None);
        drop(first);
        one.look();
        assert!(!report.exists(), "it holds nothing");
    }
}
