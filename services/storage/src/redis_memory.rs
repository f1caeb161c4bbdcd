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
use crate::retention::RELIEF_PERCENT;
use crate::store::Store;

/// How often the free memory is read.
const LOOKS_APART: Duration = Duration::from_secs(1);
/// Bytes that anything new is assumed to need at least: its record, its events, its audit entry.
const NEW_BYTES: u64 = 4096;
/// Divisor of Redis' memory that gives the part reserved for what exists already: from 80 % on nothing new is accepted.
const RESERVE: u64 = 5;

impl Store {
    /// Looks again and again, until `stop`.
    pub(crate) async fn watch_free_memory(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            // A Redis that does not answer cannot be written to either.
            if let Ok(memory) = self.fullest_server().await {
                let room = memory.room();
                self.metrics().redis_used_bytes.set(i64::try_from(memory.used).unwrap_or(i64::MAX));
                self.metrics().redis_max_bytes.set(i64::try_from(memory.max).unwrap_or(i64::MAX));
                self.excess_bytes().store(memory.excess(), Ordering::Relaxed);
                if memory.excess() > 0 {
                    self.has_ended_flows().notify_one();
                }
                let before = self.room().swap(room, Ordering::Relaxed);
                if room == 0 && before > 0 {
                    tracing::error!("Redis is nearly full: nothing new is taken until there is room");
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
            .map_err(|_| {
                self.metrics().refused_full.inc();
                Error::StoreFull
            })
            .map(drop)
    }

    /// Memory of the server that has the least room.
    async fn fullest_server(&self) -> Result<ServerMemory> {
        let servers = self.kv().primaries().await?;
        let mut fullest = ServerMemory::default();
        for server in &servers {
            let memory = ServerMemory::of(server).await?;
            if memory.room() <= fullest.room() {
                fullest = ServerMemory { is_only: servers.len() == 1, ..memory };
            }
        }
        Ok(fullest)
    }
}

/// Memory of a Redis server, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ServerMemory {
    used: u64,
    /// 0 without a bound.
    max: u64,
    /// The coordinator has no other server.
    is_only: bool,
}

impl ServerMemory {
    async fn of(server: &KvConnection) -> Result<Self> {
        let info = server.cmd(Cmd::new("INFO").arg("memory")).await?.text()?;
        Ok(Self::parse(&info))
    }

    fn parse(info: &str) -> Self {
        let number = |name: &str| -> Option<u64> {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
        };
        let (used, max) =
            (number("used_memory").unwrap_or_default(), number("maxmemory").unwrap_or_default());
        Self { used, max, is_only: false }
    }

    /// Bytes that anything new may take.
    const fn room(self) -> u64 {
        if self.max == 0 { u64::MAX } else { (self.max - self.max / RESERVE).saturating_sub(self.used) }
    }

    /// Bytes of ended flows that should go. None of a cluster's: the flows of one context are on one of its servers, and
    /// removing those of another helps nothing.
    const fn excess(self) -> u64 {
        if self.max == 0 || !self.is_only {
            return 0;
        }
        self.used.saturating_sub(self.max / 100 * RELIEF_PERCENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_is_kept_for_what_exists() {
        let memory = |used: u64, max: u64| {
            let info =
                format!("# Memory\r\nused_memory:{used}\r\nused_memory_human:x\r\nmaxmemory:{max}\r\n");
            ServerMemory { is_only: true, ..ServerMemory::parse(&info) }
        };
        assert_eq!((memory(700, 1000).room(), memory(700, 1000).excess()), (100, 0));
        assert_eq!((memory(750, 1000).room(), memory(750, 1000).excess()), (50, 50));
        assert_eq!(memory(801, 1000).room(), 0);
        assert_eq!((memory(u64::MAX, 0).room(), memory(u64::MAX, 0).excess()), (u64::MAX, 0), "no bound");
        assert_eq!(ServerMemory::parse("").room(), u64::MAX);
        assert_eq!(ServerMemory { is_only: false, ..memory(900, 1000) }.excess(), 0, "a cluster");
    }
}
