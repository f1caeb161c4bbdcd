//! A worker of the old world: plain Redis commands, old keys, the hash only, no claim.

use kv::{Blocking, Cmd, Connection, Kv, Value};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// How it pops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

pub(crate) struct OldWorker {
    db: Connection,
    blocking: Blocking,
    list: String,
    side: Side,
}

/// What it popped, and read.
#[derive(Debug, Clone)]
pub(crate) struct OldTask {
    pub(crate) entry: String,
    hash: String,
    pub(crate) fields: BTreeMap<String, String>,
}

impl OldWorker {
    pub(crate) fn new(kv: &Kv, list: &str, side: Side) -> Self {
        Self { db: kv.database(15), blocking: kv.blocking(15), list: list.to_owned(), side }
    }

    /// Pops what is there now.
    pub(crate) async fn pop(&self) -> Option<OldTask> {
        let pop = Cmd::new(if self.side == Side::Left { "LPOP" } else { "RPOP" });
        let entry =
            self.db.cmd(pop.arg(&self.list)).await.expect("a list").optional_text().expect("a text")?;
        Some(self.read(entry).await)
    }

    /// Waits for an entry; none when `cancel` was ready first.
    pub(crate) async fn wait(&mut self, cancel: impl Future<Output = ()>) -> Option<OldTask> {
        let pop = Cmd::new(if self.side == Side::Left { "BLPOP" } else { "BRPOP" }).arg(&self.list).arg(30);
        let answer = self.blocking.run(&pop, Duration::from_secs(30), cancel).await.expect("an answer");
        if answer.is_nil() {
            return None;
        }
        let [_, entry]: [Value; 2] = answer.tuple().expect("list and entry");
        Some(self.read(entry.text().expect("a text")).await)
    }

    async fn read(&self, entry: String) -> OldTask {
        let hash = if self.list.starts_with("queue:") { entry.clone() } else { format!("hero:job:{entry}") };
        let fields =
            self.db.cmd(Cmd::new("HGETALL").arg(&hash)).await.expect("a hash").hash().expect("fields");
        OldTask { entry, hash, fields }
    }

    pub(crate) async fn write(&self, task: &OldTask, fields: &[(&str, &str)]) {
        let set =
            Cmd::new("HSET").arg(&task.hash).args(fields.iter().flat_map(|(name, value)| [*name, *value]));
        self.db.cmd(set).await.expect("written");
    }
}
