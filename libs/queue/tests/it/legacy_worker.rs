//! A worker of the old world: plain Redis commands, old keys, the hash only, no claim.

use kv::{BlockingConnection, Cmd, Kv, KvConnection, Value};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// How it pops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PopSide {
    Left,
    Right,
}

pub(crate) struct LegacyTestWorker {
    db: KvConnection,
    blocking: BlockingConnection,
    list: String,
    side: PopSide,
}

/// Job that the worker popped, and the fields it read.
#[derive(Debug, Clone)]
pub(crate) struct LegacyTestTask {
    pub(crate) entry: String,
    hash: String,
    pub(crate) fields: BTreeMap<String, String>,
}

impl LegacyTestWorker {
    pub(crate) fn new(kv: &Kv, list: &str, side: PopSide) -> Self {
        Self { db: kv.database(15), blocking: kv.blocking(15), list: list.to_owned(), side }
    }

    /// Pops what is there now.
    pub(crate) async fn pop(&self) -> Option<LegacyTestTask> {
        let pop = Cmd::new(if self.side == PopSide::Left { "LPOP" } else { "RPOP" });
        let entry =
            self.db.cmd(pop.arg(&self.list)).await.expect("a list").optional_text().expect("a text")?;
        Some(self.read(entry).await)
    }

    /// Waits for an entry; none when `cancel` was ready first.
    pub(crate) async fn wait(&mut self, cancel: impl Future<Output = ()>) -> Option<LegacyTestTask> {
        let pop =
            Cmd::new(if self.side == PopSide::Left { "BLPOP" } else { "BRPOP" }).arg(&self.list).arg(30);
        let answer = self.blocking.run(&pop, Duration::from_secs(30), cancel).await.expect("an answer");
        if answer.is_nil() {
            return None;
        }
        let [_, entry]: [Value; 2] = answer.tuple().expect("list and entry");
        Some(self.read(entry.text().expect("a text")).await)
    }

    async fn read(&self, entry: String) -> LegacyTestTask {
        let hash = if self.list.starts_with("queue:") { entry.clone() } else { format!("hero:job:{entry}") };
        let fields =
            self.db.cmd(Cmd::new("HGETALL").arg(&hash)).await.expect("a hash").hash().expect("fields");
        LegacyTestTask { entry, hash, fields }
    }

    pub(crate) async fn write(&self, task: &LegacyTestTask, fields: &[(&str, &str)]) {
        let set =
            Cmd::new("HSET").arg(&task.hash).args(fields.iter().flat_map(|(name, value)| [*name, *value]));
        self.db.cmd(set).await.expect("written");
    }
}
