//! How often something may happen, for each of many keys.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Keys that are remembered before those are looked for that have been quiet.
const KEYS_KEPT: usize = 1024;

/// Rates by key. Each event uses up time, and a key may be ahead of the clock by a burst's worth (GCRA, the leaky bucket as a
/// meter of ITU-T I.371).
#[derive(Debug)]
pub struct Rates<K> {
    /// Until when the events of a key have used up the time; none for one that is not ahead of it.
    used_until: HashMap<K, Instant>,
}

impl<K> Default for Rates<K> {
    fn default() -> Self {
        Self { used_until: HashMap::new() }
    }
}

impl<K: Eq + Hash> Rates<K> {
    /// Counts one event of a key, which takes `interval` of the time and may be `ahead` of it.
    ///
    /// # Errors
    /// Gives how long it is until there is room for it; nothing was counted.
    pub fn take(
        &mut self,
        key: K,
        interval: Duration,
        ahead: Duration,
        now: Instant,
    ) -> Result<(), Duration> {
        let until = self.used_until.get(&key).copied().unwrap_or(now).max(now) + interval;
        let over = until.saturating_duration_since(now).saturating_sub(ahead);
        if over > Duration::ZERO {
            return Err(over);
        }
        if self.used_until.len() >= KEYS_KEPT && !self.used_until.contains_key(&key) {
            self.used_until.retain(|_, until| *until > now);
        }
        self.used_until.insert(key, until);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_returns_the_time_to_wait_and_forgets_old_keys() {
        const SECOND: Duration = Duration::from_secs(1);
        let (mut rates, now) = (Rates::default(), Instant::now());
        let mut take = |key: usize, now| rates.take(key, SECOND, 60 * SECOND, now);
        for _ in 0..60 {
            take(0, now).expect("a minute's worth");
        }
        assert_eq!(take(0, now), Err(SECOND));
        take(0, now + SECOND).expect("room for one");
        for key in 0..2 * KEYS_KEPT {
            take(key, now + 60 * SECOND * u32::try_from(key + 2).expect("small")).expect("another");
        }
        assert!(rates.used_until.len() <= KEYS_KEPT);
    }
}
