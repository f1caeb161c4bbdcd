//! Keeps free space on the disk of the scripts above its floor: below it, the job that holds the most on the machine is ended, one
//! job at a time until there is room.
//!
//! Each runner watches the same file system, measures its own jobs when space is low, and reports the usage of the largest. The
//! runner of the largest job takes the lock of the work directory, ends the job, and releases the lock when the job is gone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use model::{Reason, ReasonCode};
use queue::work_dir::{held_dir, instances_dir, relief_path};
use sandbox::disk_space::{DiskShortage, DiskSpaceStatus, FileSystemSpace};
use service::FileLock;

use crate::QUOTA_INTERVAL;
use crate::disk_quota::{DiskQuotas, REPORT_VALIDITY};

/// Shortest pause between checks of the free space, close to the floor.
const LOOK_MIN: Duration = Duration::from_millis(50);
/// Longest pause below the floor, while no job can be ended.
const LOW_LOOK_MAX: Duration = Duration::from_millis(500);
/// Write rate of a disk in bytes per second, unless a faster one is measured: sets how often free space is checked.
const BYTES_PER_SEC: u64 = 2 << 30;
/// Fraction of the floor (one over this number) that a job must hold to be worth ending: a smaller job did not fill the disk.
const WORTH_PART: u64 = 64;
/// Upper bound of that size, for large floors.
const WORTH_BYTES_MAX: u64 = 16 << 20;
/// How long other runners have to report their jobs.
const REPORT_WAIT: Duration = Duration::from_millis(300);
/// Maximum lag of file timestamps behind the clock.
const CLOCK: Duration = Duration::from_millis(20);
/// How long an ended job may take to be gone before the next one is ended.
const GONE_WAIT: Duration = Duration::from_secs(10);
/// Name of the file in which a runner reports the usage of its largest job.
const LARGEST: &str = "largest";

/// A job that may have to end. The greatest goes first: jobs that hide their usage, then by bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct EvictionCandidate {
    /// True for a job that holds something that cannot be inspected.
    pub(crate) unseen: bool,
    /// Bytes that the job is seen to hold.
    pub(crate) bytes: u64,
}

impl EvictionCandidate {
    fn is_worth(self, bytes: u64) -> bool {
        self.unseen || self.bytes >= bytes
    }
}

/// How soon the floor may be reached.
#[derive(Debug, Default)]
struct FreeSpaceTrend(Option<(Instant, u64)>);

impl FreeSpaceTrend {
    /// Returns the pause before the next check, with this much free space above the floor now.
    fn pause(&mut self, above: u64, now: Instant) -> Duration {
        let seen = self.0.replace((now, above)).map_or(0, |(then, before)| {
            let millis = u64::try_from(now.duration_since(then).as_millis()).unwrap_or(u64::MAX).max(1);
            before.saturating_sub(above).saturating_mul(1000) / millis
        });
        // Assumes twice the measured rate: the writing may have only just begun.
        let rate = seen.saturating_mul(2).max(BYTES_PER_SEC);
        let millis = above.saturating_mul(1000) / rate;
        Duration::from_millis(millis).clamp(LOOK_MIN, QUOTA_INTERVAL)
    }
}

/// Outcome of an attempt to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EvictionOutcome {
    /// A job has ended.
    Ended,
    /// No job of this runner had to end, or none is large enough.
    Nothing,
}

impl DiskQuotas {
    /// Watches the free space for ever, while there are jobs. The caller drops the future to end it.
    pub(crate) async fn watch_free_space(self) {
        let (mut pace, mut low_pause) = (FreeSpaceTrend::default(), LOOK_MIN);
        // Creates the lock's file while there is room for it.
        drop(self.lock_relief());
        loop {
            if !self.has_jobs() {
                self.remove_report();
                self.some_jobs().await;
                self.report_largest(EvictionCandidate::default());
            }
            let pause = match self.floors().check() {
                Ok(DiskSpaceStatus::Enough(above)) => {
                    low_pause = LOOK_MIN;
                    pace.pause(above, Instant::now())
                }
                Ok(DiskSpaceStatus::Low(shortage) | DiskSpaceStatus::Out(shortage)) => {
                    low_pause = match self.relieve(shortage).await {
                        EvictionOutcome::Ended => LOOK_MIN,
                        EvictionOutcome::Nothing => (low_pause * 2).min(LOW_LOOK_MAX),
                    };
                    low_pause
                }
                Err(error) => {
                    tracing::warn!(%error, "the free space on the disk of the scripts cannot be read");
                    QUOTA_INTERVAL
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Ends the job that holds the most on the machine, if it is a job of this runner.
    async fn relieve(&self, shortage: DiskShortage) -> EvictionOutcome {
        let (areas, began) = (self.clone(), SystemTime::now());
        let measured = tokio::task::spawn_blocking(move || areas.measure()).await;
        let largest = measured.ok().flatten();
        self.report_largest(largest.map_or_else(EvictionCandidate::default, |(candidate, _)| candidate));
        let worth =
            FileSystemSpace::of(self.root()).map_or(0, |space| self.floors().bytes(space) / WORTH_PART);
        let Some((candidate, key)) =
            largest.filter(|(candidate, _)| candidate.is_worth(worth.min(WORTH_BYTES_MAX)))
        else {
            return EvictionOutcome::Nothing;
        };
        // The holder of the lock is making room already.
        let Some(_lock) = self.lock_relief() else { return EvictionOutcome::Nothing };
        if !self.is_largest_of_all(candidate, began).await {
            return EvictionOutcome::Nothing;
        }
        // That may have taken a while; another job may have ended meanwhile.
        if matches!(self.floors().check(), Ok(DiskSpaceStatus::Enough(_))) {
            return EvictionOutcome::Nothing;
        }
        let detail = format!("{shortage}, and it held the most: {}", shown(candidate));
        tracing::warn!(%key, detail, "a job is ended to make room");
        self.end(key, Reason::new(ReasonCode::QuotaExceeded, detail));
        let begin = Instant::now();
        while self.has(key) && begin.elapsed() < GONE_WAIT {
            tokio::time::sleep(LOOK_MIN).await;
        }
        EvictionOutcome::Ended
    }

    /// Returns the lock of the work directory, unless another runner holds it, or it cannot be had.
    fn lock_relief(&self) -> Option<FileLock> {
        let locked = rewritable(&relief_path(self.root())).and_then(FileLock::try_take);
        match locked {
            Ok(locked) => locked.ok(),
            Err(error) => {
                tracing::warn!(%error, "the lock cannot be taken: no job is ended to make room");
                None
            }
        }
    }

    /// Reports the largest job to the other runners of this machine, which wait for the report when the disk is low.
    fn report_largest(&self, largest: EvictionCandidate) {
        // Overwritten in place, and always of the same length, so that it works on a full disk.
        let text = format!("{} {:020}", u8::from(largest.unseen), largest.bytes);
        let written = rewritable(&self.report_dir().join(LARGEST))
            .and_then(|file| file.write_all_at(text.as_bytes(), 0));
        if let Err(error) = written {
            tracing::warn!(%error, "the largest job cannot be reported to other runners");
        }
    }

    /// Removes the report while there are no jobs, so that other runners do not wait for it.
    fn remove_report(&self) {
        match fs::remove_file(self.report_dir().join(LARGEST)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "the report on the largest job cannot be removed");
            }
            _ => {}
        }
    }

    /// Returns true if no other runner reports a larger job now.
    async fn is_largest_of_all(&self, own: EvictionCandidate, began: SystemTime) -> bool {
        let begin = Instant::now();
        loop {
            let others: Vec<_> = others(self.root(), self.report_dir()).collect();
            // Ties are broken by name, so that all runners agree.
            let is_larger = |(held, report): &(PathBuf, PeerUsageReport)| {
                (report.largest, held.as_path()) > (own, self.report_dir())
            };
            if others.iter().any(is_larger) {
                return false;
            }
            if others.iter().all(|(_, report)| report.at + CLOCK >= began) || begin.elapsed() >= REPORT_WAIT {
                return true;
            }
            tokio::time::sleep(LOOK_MIN).await;
        }
    }
}

/// Opens a file for overwriting without truncating it; creates it if necessary.
fn rewritable(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// Report of another runner on its largest job.
#[derive(Debug)]
struct PeerUsageReport {
    at: SystemTime,
    largest: EvictionCandidate,
}

/// Returns the reports of other runners that have jobs, by their directories.
fn others(root: &Path, own: &Path) -> impl Iterator<Item = (PathBuf, PeerUsageReport)> {
    let instances = fs::read_dir(instances_dir(root)).into_iter().flatten().flatten();
    let held = instances.map(|instance| held_dir(&instance.path())).filter(move |held| held != own);
    held.filter_map(|held| {
        let path = held.join(LARGEST);
        let at = fs::metadata(&path).and_then(|file| file.modified()).ok()?;
        let largest = fs::read_to_string(path).ok().and_then(|text| read(&text))?;
        // An old report does not count; its runner may be gone.
        let is_over = at.elapsed().is_ok_and(|age| age > REPORT_VALIDITY);
        Some((
            held,
            PeerUsageReport { at, largest: if is_over { EvictionCandidate::default() } else { largest } },
        ))
    })
}

fn read(text: &str) -> Option<EvictionCandidate> {
    let (unseen, bytes) = text.split_once(' ')?;
    Some(EvictionCandidate { unseen: unseen == "1", bytes: bytes.parse().ok()? })
}

fn shown(candidate: EvictionCandidate) -> String {
    match candidate {
        EvictionCandidate { unseen: false, bytes } => format!("{bytes} bytes"),
        EvictionCandidate { unseen: true, bytes } => {
            format!("{bytes} bytes, and files that cannot be inspected")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_floor_is_watched_more_closely_the_sooner_it_can_be_reached() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut pace = FreeSpaceTrend::default();
        assert_eq!(pace.pause(100 * GIB, at(0)), QUOTA_INTERVAL);
        assert_eq!(pace.pause(99 * GIB, at(1000)), QUOTA_INTERVAL);
        assert_eq!(pace.pause(3 * GIB, at(200_000)), Duration::from_millis(1500));
        assert_eq!(pace.pause(GIB / 10, at(210_000)), LOOK_MIN);
        // A writer faster than the assumed rate: half of the remaining time.
        let mut pace = FreeSpaceTrend::default();
        assert_eq!(pace.pause(50 * GIB, at(0)), QUOTA_INTERVAL);
        assert_eq!(pace.pause(30 * GIB, at(2000)), Duration::from_millis(1500));
        assert_eq!(pace.pause(30 * GIB, at(2000)), QUOTA_INTERVAL, "nobody writes any more");
    }

    #[test]
    fn who_hides_goes_first_and_then_who_holds_the_most() {
        let candidate = |unseen, bytes| EvictionCandidate { unseen, bytes };
        assert!(candidate(true, 0) > candidate(false, 9) && candidate(false, 9) > candidate(false, 8));
        assert!(candidate(true, 0).is_worth(5) && !candidate(false, 4).is_worth(5));
        assert_eq!(read("1 00000000000000000042"), Some(candidate(true, 42)));
        assert_eq!(read("0 7"), Some(candidate(false, 7)));
        assert_eq!(["", "1", "1 x"].map(read), [None; 3]);
    }

    #[test]
    fn others_count_while_they_have_jobs_and_with_their_recent_reports() {
        let root = tempfile::tempdir().expect("a directory");
        let dirs = [1, 2, 3].map(|number| {
            let own = queue::work_dir::instance_dir(root.path(), &"g".parse().expect("a name"), number);
            let held = held_dir(&own);
            fs::create_dir_all(&held).expect("a directory");
            held
        });
        let reported = |own: &Path| -> Vec<_> {
            others(root.path(), own).map(|(_, reported)| reported.largest.bytes).collect()
        };
        assert_eq!(reported(&dirs[0]), [0; 0]);
        for held in &dirs[..2] {
            fs::write(held.join(LARGEST), "0 00000000000000000042").expect("a file");
        }
        assert_eq!((reported(&dirs[0]), reported(&dirs[2])), (vec![42], vec![42, 42]));
        let before = SystemTime::now() - 2 * REPORT_VALIDITY;
        File::open(dirs[1].join(LARGEST)).and_then(|file| file.set_modified(before)).expect("an older file");
        assert_eq!(reported(&dirs[0]), [0], "it has jobs, and is asked again");
    }
}
