//! Free memory of Redis, which decides whether anything new is accepted.
//!
//! A Redis with `maxmemory` and no eviction refuses every script whose first write may take memory when it is full. Scripts that free
//! memory or end something begin with a write that takes none (`use_reserve`), so they still work, while running flows have to wait.
//! To avoid that, nothing new is accepted already while there is still some room.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kv::{Cmd, KvConnection};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::store::Store;

/// How often the free memory is read.
const LOOKS_APART: Duration = Duration::from_secs(1);
/// Bytes that anything new is assumed to need at least: its record, its events, its audit entry.
const NEW_BYTES: u64 = 4096;
/// Divisor of Redis' memory that gives the part reserved for what exists already.
const RESERVE: u64 = 8;

impl Store {
    /// Looks again and again, until `stop`.
    pub(crate) async fn watch_free_memory(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            // A Redis that does not answer cannot be written to either.
            if let Ok(room) = self.look_for_room().await {
                let before = self.room().swap(room, Ordering::Relaxed);
                if room == 0 && before > 0 {
                    tracing::error!("Redis is nearly full: nothing new is taken until something is deleted");
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(LOOKS_APART) => {}
            }
        }
    }

    /// Reserves room for something new of about `bytes` bytes; fails when there is none. Reservations since the last look count, so that
    /// Redis cannot fill up between two looks.
    pub(crate) fn reserve_memory(&self, bytes: u64) -> Result<()> {
        let less = |room: u64| room.checked_sub(bytes.max(NEW_BYTES));
        self.room()
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .map_or(Err(Error::StoreFull), |_| Ok(()))
    }

    /// The least room that any server has.
    async fn look_for_room(&self) -> Result<u64> {
        let mut least = u64::MAX;
        for server in self.kv().primaries().await? {
            least = least.min(room_of(&server).await?);
        }
        Ok(least)
    }
}

async fn room_of(server: &KvConnection) -> Result<u64> {
    let info = server.cmd(Cmd::new("INFO").arg("memory")).await?.text()?;
    Ok(room_in(&info))
}

fn room_in(info: &str) -> u64 {
    let number = |name: &str| -> Option<u64> {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
    };
    match (number("used_memory"), number("maxmemory")) {
        (Some(used), Some(max)) if max > 0 => (max - max / RESERVE).saturating_sub(used),
        _ => u64::MAX,
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
        assert_eq!(room_in(&info(800, 1000)), 75);
        assert_eq!(room_in(&info(876, 1000)), 0);
        assert_eq!(room_in(&info(u64::MAX, 0)), u64::MAX, "no bound");
        assert_eq!(room_in(""), u64::MAX);
    }
}
