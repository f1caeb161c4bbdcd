//! What nobody needs any more goes at a quiet pace: blobs without references, old events, old entries of the audit.
//!
//! Every storage does it. Each script looks again, so that no blob goes that somebody has come to need.

use std::time::Duration;

use kv::Cmd;
use model::{Timestamp, limits};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::letter_lists::scored_texts;
use crate::scripts;
use crate::store::{Store, Tenant};

/// The longest and the shortest pause between two sweeps.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
const PAUSE_MIN: Duration = Duration::from_secs(60);
/// How long a blob is kept that nobody refers to.
const BLOB_IDLE: Duration = Duration::from_secs(limits::BLOB_IDLE_SECS as u64);
/// How long events are kept.
const EVENTS_KEEP: Duration = Duration::from_secs(limits::EVENTS_KEEP_SECS as u64);
/// How long it is remembered who did what.
const AUDIT_KEEP: Duration = Duration::from_secs(limits::AUDIT_KEEP_SECS as u64);
/// How far marks in the stream of events are apart.
const MARKS_APART: Duration = Duration::from_secs(3600);
/// Blobs that one script removes: each has up to 32 chunks, and three records besides.
const BLOBS_MAX: usize = 25;

/// What a sweep came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// How many blobs went.
    pub blobs: u64,
    /// How many events went.
    pub events: u64,
    /// When the next blob comes of age, as far as is known.
    pub next: Option<Timestamp>,
}

impl Store {
    /// Sweeps until `stop`.
    pub(crate) async fn sweep_always(self, stop: CancellationToken) {
        let mut pause = PAUSE_MIN;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let now = Timestamp::now();
            pause = match self.sweep(now).await {
                Ok(swept) => {
                    let age = swept.next.map_or(PAUSE_MAX, |next| next.since(now));
                    age.clamp(PAUSE_MIN, PAUSE_MAX)
                }
                Err(error) => {
                    tracing::warn!(%error, "sweeping failed; the next sweep goes on with it");
                    PAUSE_MAX
                }
            };
        }
    }

    /// Removes everything that is old enough at this moment, in all contexts.
    pub(crate) async fn sweep(&self, now: Timestamp) -> Result<Swept> {
        let mut all = Swept { events: self.trim(now).await?, ..Swept::default() };
        for tenant in self.tenants().await? {
            let swept = match tenant.sweep(now).await {
                // It is removed with everything in it.
                Err(Error::NotFound(_) | Error::ContextDeleting) => continue,
                swept => swept?,
            };
            all.blobs += swept.blobs;
            all.events += swept.events;
            all.next = all.next.into_iter().chain(swept.next).min();
        }
        if all.blobs + all.events > 0 {
            tracing::info!(blobs = all.blobs, events = all.events, "swept");
        }
        Ok(all)
    }

    /// The same for what belongs to no context.
    async fn trim(&self, now: Timestamp) -> Result<u64> {
        let (marks, audit) = (self.keys().event_marks(), self.keys().audit());
        let change = self
            .begin_global(&scripts::TRIM_GLOBAL, &[&marks, &audit], now)
            .arg(&before(now, EVENTS_KEEP).to_string())
            .arg(before(now, AUDIT_KEEP).as_millis())
            .arg(&before(now, MARKS_APART).to_string());
        Ok(self.call_global(change).await?.uint()?)
    }
}

impl Tenant {
    async fn sweep(&self, now: Timestamp) -> Result<Swept> {
        let marks = self.keys.event_marks();
        let change = self
            .begin(&scripts::TRIM, &[&marks], None, now)
            .arg(&before(now, EVENTS_KEEP).to_string())
            .arg(before(now, AUDIT_KEEP).as_millis())
            .arg(&before(now, MARKS_APART).to_string());
        let events = self.call(change).await?.uint()?;
        let mut blobs = 0;
        loop {
            let idle = self.idle_blobs(before(now, BLOB_IDLE)).await?;
            if idle.is_empty() {
                break;
            }
            let change = self
                .begin(&scripts::COLLECT_BLOBS, &[&self.blob_idle], None, now)
                .arg(&before(now, BLOB_IDLE).to_string())
                .args(&idle);
            blobs += self.call(change).await?.uint()?;
        }
        Ok(Swept { blobs, events, next: self.next_idle().await? })
    }

    /// Some of the blobs that were idle at this moment already.
    async fn idle_blobs(&self, since: Timestamp) -> Result<Vec<String>> {
        let ask = Cmd::new("ZRANGEBYSCORE").arg(&self.blob_idle).arg("-inf").arg(&since.to_string());
        Ok(self.connection.cmd(ask.arg("LIMIT").arg(0).arg(BLOBS_MAX)).await?.texts()?)
    }

    /// When the blob that is idle for longest comes of age.
    async fn next_idle(&self) -> Result<Option<Timestamp>> {
        let ask = Cmd::new("ZRANGE").arg(&self.blob_idle).arg(0).arg(0).arg("WITHSCORES");
        let oldest = scored_texts(self.connection.cmd(ask).await?)?;
        let Some((_, since)) = oldest.first() else { return Ok(None) };
        let since: f64 = since.parse().unwrap_or_default();
        Ok(Duration::try_from_secs_f64(since).ok().map(|since| Timestamp::default() + since + BLOB_IDLE))
    }
}

fn before(now: Timestamp, earlier: Duration) -> Timestamp {
    let millis = u64::try_from(earlier.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(millis))
}
