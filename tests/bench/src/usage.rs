//! Resource use of a load: processor time by process, and counters of Redis.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::processes::Stat;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A Redis whose counters can be read.
#[derive(Debug, Clone)]
pub(crate) struct Redis {
    pub(crate) socket: PathBuf,
    /// The file with its password, if it has one.
    pub(crate) password: Option<PathBuf>,
}

/// Counters that Redis reports about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Counts {
    /// Scripts that were called.
    pub(crate) scripts: u64,
    /// Commands, those within scripts too.
    pub(crate) commands: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) bytes_in: u64,
    /// Bytes of its data.
    pub(crate) bytes_kept: u64,
}

impl Redis {
    /// Reads its counters so far. Reading them is one more command.
    pub(crate) fn counts(&self) -> Result<Counts, Error> {
        let mut command = Command::new("redis-cli");
        command.arg("-s").arg(&self.socket).args(["info", "everything"]);
        if let Some(file) = &self.password {
            command.env("REDISCLI_AUTH", std::fs::read_to_string(file)?.trim());
        }
        let info = String::from_utf8(command.output()?.stdout)?;
        let field = |name: &str| -> Result<u64, Error> {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            Ok(line.ok_or_else(|| format!("Redis does not tell {name}"))?.trim().parse()?)
        };
        let calls = |line: &str| -> Option<(String, u64)> {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), figures.split(',').next()?.parse().ok()?))
        };
        let calls: Vec<_> = info.lines().filter_map(calls).collect();
        let is_script = |name: &str| ["eval", "evalsha", "fcall"].contains(&name);
        Ok(Counts {
            scripts: calls.iter().filter(|(name, _)| is_script(name)).map(|(_, calls)| calls).sum(),
            commands: calls.iter().map(|(_, calls)| calls).sum(),
            reads: field("total_reads_processed")?,
            writes: field("total_writes_processed")?,
            bytes_in: field("total_net_input_bytes")?,
            bytes_kept: field("used_memory")?,
        })
    }
}

impl Counts {
    /// Returns the difference to an earlier count.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            scripts: self.scripts.saturating_sub(before.scripts),
            commands: self.commands.saturating_sub(before.commands),
            reads: self.reads.saturating_sub(before.reads),
            writes: self.writes.saturating_sub(before.writes),
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            bytes_kept: self.bytes_kept.saturating_sub(before.bytes_kept),
        }
    }
}

/// Processor time that processes have used, each with everything that it has started but for the others of them. Time of an
/// ended child counts once its parent has waited for it.
pub(crate) fn processor_times(pids: &[u32]) -> Result<Vec<Duration>, Error> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut spent: HashMap<u32, Duration> = HashMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may have ended meanwhile.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some(stat) = Stat::parse(&stat) else { return Err(format!("not understood: {stat}").into()) };
        children.entry(stat.parent).or_default().push(pid);
        spent.insert(pid, stat.own + stat.of_ended);
    }
    let of = |root: &u32| {
        let (mut sum, mut open) = (Duration::ZERO, vec![*root]);
        while let Some(pid) = open.pop() {
            sum += spent.get(&pid).copied().unwrap_or_default();
            let below = children.get(&pid).into_iter().flatten();
            open.extend(below.filter(|child| !pids.contains(child)));
        }
        sum
    };
    Ok(pids.iter().map(of).collect())
}

/// Sums of what a load used.
#[derive(Debug, Clone, Default)]
pub(crate) struct Used {
    /// By what the processes are called; the client of the load is `client`.
    pub(crate) processor: BTreeMap<String, Duration>,
    pub(crate) redis: Counts,
}

/// Reads what is used around a load.
pub(crate) struct Meter {
    names: Vec<String>,
    pids: Vec<u32>,
    redis: Redis,
}

/// Counters at the start of a load.
pub(crate) struct Begun {
    processor: Vec<Duration>,
    counts: Counts,
}

impl Meter {
    /// For these processes, by their names, and a Redis, whose process is among them.
    pub(crate) fn new(processes: Vec<(String, u32)>, redis: Redis) -> Self {
        let (names, pids) = processes.into_iter().unzip();
        Self { names, pids, redis }
    }

    pub(crate) fn begin(&self) -> Result<Begun, Error> {
        Ok(Begun { counts: self.redis.counts()?, processor: processor_times(&self.pids)? })
    }

    pub(crate) fn end(&self, begun: &Begun) -> Result<Used, Error> {
        let now = processor_times(&self.pids)?;
        let spent = now.into_iter().zip(&begun.processor).map(|(now, before)| now.saturating_sub(*before));
        let mut processor = BTreeMap::new();
        for (name, spent) in self.names.iter().zip(spent) {
            *processor.entry(name.clone()).or_default() += spent;
        }
        Ok(Used { processor, redis: self.redis.counts()?.since(begun.counts) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_with_what_it_starts() {
        let me = std::process::id();
        let before = processor_times(&[me]).expect("there is a /proc");
        let counting = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let ended = Command::new("sh").args(["-c", counting]).status().expect("there is a shell");
        assert!(ended.success());
        let after = processor_times(&[me]).expect("there is a /proc");
        assert!(after > before, "{before:?}, {after:?}");
        let mut other = Command::new("sleep").arg("60").spawn().expect("there is a sleep");
        let both = processor_times(&[me, other.id()]).expect("there is a /proc");
        other.kill().expect("it runs");
        other.wait().expect("it has ended");
        assert!(both[0] >= after[0] && both[1] < Duration::from_millis(50), "{both:?}");
    }
}
