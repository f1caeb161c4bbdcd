//! Whether Redis has room for anything new.
//!
//! A Redis with `maxmemory` and no eviction refuses every script that writes when it is full, those that delete among them: a
//! deletion writes events and counters. So nothing new is taken while there is still some room, which flows that run and deletions use.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kv::{Cmd, Connection};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::store::Store;

/// How often Redis is asked.
const LOOKS_APART: Duration = Duration::from_secs(1);
/// Which part of its memory is kept for what is there already.
const RESERVE: u64 = 8;

impl Store {
    /// Looks again and again, until `stop`.
    pub(crate) async fn watch_room(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            // Whoever cannot be asked cannot be written to either.
            if let Ok(is_full) = self.is_nearly_full().await {
                let was_full = self.full().swap(is_full, Ordering::Relaxed);
                if is_full && !was_full {
                    tracing::error!("Redis is nearly full: nothing new is taken until something is deleted");
                } else if was_full && !is_full {
                    tracing::warn!("Redis has room again");
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(LOOKS_APART) => {}
            }
        }
    }

    /// Fails when nothing new can be taken.
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.full().load(Ordering::Relaxed) { Err(Error::StoreFull) } else { Ok(()) }
    }

    async fn is_nearly_full(&self) -> Result<bool> {
        for server in self.kv().primaries().await? {
            if is_nearly_full(&server).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

async fn is_nearly_full(server: &Connection) -> Result<bool> {
    let info = server.cmd(Cmd::new("INFO").arg("memory")).await?.text()?;
    Ok(leaves_no_room(&info))
}

fn leaves_no_room(info: &str) -> bool {
    let number = |name: &str| -> Option<u64> {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
    };
    match (number("used_memory"), number("maxmemory")) {
        (Some(used), Some(max)) if max > 0 => used > max - max / RESERVE,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_is_kept() {
        let info = |used: u64, max: u64| {
            format!("# Memory\r\nused_memory:{used}\r\nused_memory_human:x\r\nmaxmemory:{max}\r\n")
        };
        assert!(!leaves_no_room(&info(875, 1000)));
        assert!(leaves_no_room(&info(876, 1000)));
        assert!(!leaves_no_room(&info(u64::MAX, 0)), "no bound");
        assert!(!leaves_no_room(""));
    }
}
