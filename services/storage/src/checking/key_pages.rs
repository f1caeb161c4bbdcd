//! Names of keys in pages, with their types.

use std::collections::VecDeque;

use kv::{Cmd, KvConnection, Pipeline, Value};

use crate::error::Result;

/// Keys that a page looks at.
const PAGE_KEYS: usize = 200;
/// Times that the keys are read from the beginning because another server has taken over.
const RESTARTS_MAX: u32 = 10;

/// Reader of the names of keys by the server's cursor. Keys that exist all the time come at least once.
pub(super) struct KeyPages<'a> {
    connection: &'a KvConnection,
    pattern: String,
    server: String,
    cursor: Option<String>,
    restarts: u32,
}

impl<'a> KeyPages<'a> {
    /// Pages of the keys that match a pattern.
    pub(super) fn new(connection: &'a KvConnection, pattern: String) -> Self {
        Self { connection, pattern, server: String::new(), cursor: Some("0".to_owned()), restarts: 0 }
    }

    /// Reads the next page of names; nothing behind the last.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let scan = Cmd::new("SCAN").arg(&cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(PAGE_KEYS);
        let mut pipeline = Pipeline::new();
        pipeline.cmd(scan).cmd(Cmd::new("INFO").arg("server"));
        let mut answers: VecDeque<_> = self.connection.pipeline(&pipeline).await?.into();
        let mut next = || answers.pop_front().unwrap_or(Ok(Value::Nil));
        let [following, names] = next()?.tuple()?;
        let info = next()?.text()?;
        let server = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default().trim();
        let is_other = !self.server.is_empty() && server != self.server;
        self.server = server.to_owned();
        if is_other && self.restarts < RESTARTS_MAX {
            // Another server numbers its keys in another way.
            self.restarts += 1;
            self.cursor = Some("0".to_owned());
            return Ok(Some(Vec::new()));
        }
        let following = following.text()?;
        self.cursor = (following != "0").then_some(following);
        let names = names.array()?.into_iter().map(Value::bytes).collect::<kv::Result<Vec<_>>>()?;
        Ok(Some(names))
    }
}

/// Reads the types of keys; `none` for one that is gone.
pub(super) async fn types_of(connection: &KvConnection, names: &[Vec<u8>]) -> Result<Vec<String>> {
    let mut pipeline = Pipeline::new();
    for name in names {
        pipeline.cmd(Cmd::new("TYPE").arg(name));
    }
    let answers = connection.pipeline(&pipeline).await?;
    Ok(answers.into_iter().map(|answer| answer?.text()).collect::<kv::Result<_>>()?)
}
