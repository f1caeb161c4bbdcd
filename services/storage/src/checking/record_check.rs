//! Records are read by their readers; flows and messages are compared with the lists that name them.

use std::sync::Arc;

use keys::ContextKey;
use kv::{Cmd, Pipeline, Value};
use model::{FlowId, MessageKey};

use super::context_check::{ContextCheck, GIVEN_MESSAGES_BEGIN, counter_of};
use super::{CHECKED_AT_ONCE, FindingCode, READ_AT_ONCE};
use crate::error::{Error, Result};
use crate::record::flow::StoredFlow;
use crate::record::{self, RecordFields};
use crate::scripts;

/// Whole records that are read at once: jobs may have large scripts.
const RECORDS_READ: usize = 20;
/// Numbers beyond are left by programs that number their messages themselves, which raises no counter.
const GIVEN_MESSAGES_END: u32 = u32::MAX / 2;
/// Fields of a message that tell where it belongs.
const MESSAGE_FIELDS: [&str; 4] = ["revision", "status", "message_type", "taken_revision"];

impl ContextCheck {
    /// Reads jobs, runner records and the context itself, and notes the ids of jobs in flows.
    pub(super) async fn check_records(&mut self, keys: &[ContextKey]) -> Result<()> {
        let mut parts = Vec::new();
        for some in keys.chunks(RECORDS_READ) {
            for (key, answer) in some.iter().zip(self.read_whole(some).await?) {
                match flow_of(key, answer) {
                    Ok(flow) => parts.extend(flow.map(|flow| (flow, key.clone()))),
                    Err(Error::Broken(problem)) => {
                        self.note(FindingCode::RecordUnreadable, key.to_string(), problem.to_string());
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        for (_, key) in &parts {
            if let ContextKey::Job(caller, id) = key {
                self.note_given(counter_of("job", *caller), id.0);
            }
        }
        self.check_parts(&parts).await
    }

    /// Reads flows with their nodes, and compares them with the lists.
    pub(super) async fn check_flows(&mut self, ids: &[FlowId]) -> Result<()> {
        for some in ids.chunks(RECORDS_READ) {
            let mut checked = Vec::new();
            let keys: Vec<ContextKey> = some.iter().map(|id| ContextKey::Flow(*id)).collect();
            for (id, answer) in some.iter().zip(self.read_whole(&keys).await?) {
                match read_flow(*id, answer) {
                    Ok(None) => {}
                    Ok(Some(flow)) => checked.push((*id, self.check_nodes(&flow).await?)),
                    Err(Error::Broken(problem)) => {
                        self.note(
                            FindingCode::RecordUnreadable,
                            ContextKey::Flow(*id).to_string(),
                            problem.to_string(),
                        );
                    }
                    Err(error) => return Err(error),
                }
            }
            self.check_flow_lists(&checked).await?;
        }
        Ok(())
    }

    /// Compares flows with the lists that name them. Each comes with the jobs of nodes that were seen to have something to do.
    pub(super) async fn check_flow_lists(&mut self, flows: &[(FlowId, String)]) -> Result<()> {
        let tenant = Arc::clone(&self.tenant);
        let (ended, unmeasured) = (tenant.keys.flows_ended(), tenant.keys.flows_unmeasured());
        let touched = scripts::CHECK_FLOWS.keys([
            ("flows", &tenant.flows),
            ("flows_active", &tenant.flows_active),
            ("flows_ended", &ended),
            ("flows_unmeasured", &unmeasured),
        ]);
        for some in flows.chunks(CHECKED_AT_ONCE) {
            let texts = some.iter().flat_map(|(id, jobs)| [id.to_string(), jobs.clone()]);
            let texts: Vec<String> = texts.collect();
            let change = self.begin(&scripts::CHECK_FLOWS, &touched).args(&texts);
            self.check(change).await?;
        }
        Ok(())
    }

    /// Reads whole hashes.
    async fn read_whole(&self, keys: &[ContextKey]) -> Result<Vec<Value>> {
        let mut pipeline = Pipeline::new();
        for key in keys {
            pipeline.cmd(Cmd::new("HGETALL").arg(&self.tenant.keys.key(key)));
        }
        let answers = self.tenant.connection.pipeline(&pipeline).await?;
        Ok(answers.into_iter().collect::<kv::Result<Vec<_>>>()?)
    }

    /// Reads which messages wait for a router.
    pub(super) async fn read_waiting(&mut self) -> Result<()> {
        let mut from = 0;
        loop {
            let query = Cmd::new("LRANGE").arg(&self.tenant.msg_out).arg(from).arg(from + READ_AT_ONCE - 1);
            let page = match self.tenant.connection.cmd(query).await {
                // The key is a finding of its own.
                Err(error) if error.code() == Some("WRONGTYPE") => return Ok(()),
                page => page?.array()?,
            };
            if page.is_empty() {
                return Ok(());
            }
            from += page.len();
            self.waiting.extend(page.into_iter().filter_map(|message| message.text().ok()));
        }
    }

    /// Checks that messages of ours are in the lists where they belong, and notes their ids.
    pub(super) async fn check_messages(&mut self, keys: &[String]) -> Result<()> {
        for some in keys.chunks(READ_AT_ONCE) {
            let suspects = self.suspect_messages(some).await?;
            for suspects in suspects.chunks(CHECKED_AT_ONCE) {
                self.confirm_messages(suspects).await?;
            }
        }
        Ok(())
    }

    async fn suspect_messages<'a>(&mut self, keys: &'a [String]) -> Result<Vec<&'a String>> {
        let tenant = Arc::clone(&self.tenant);
        let mut pipeline = Pipeline::new();
        for key in keys {
            pipeline.cmd(Cmd::new("HMGET").arg(key).args(MESSAGE_FIELDS));
            pipeline.cmd(Cmd::new("ZSCORE").arg(&tenant.held).arg(key));
            pipeline.cmd(Cmd::new("ZSCORE").arg(&tenant.letters).arg(key));
        }
        let answers = tenant.connection.pipeline(&pipeline).await?;
        let mut suspects = Vec::new();
        for (key, answers) in keys.iter().zip(answers.chunks(3)) {
            let [Ok(fields), held, listed] = answers else { continue };
            let mut fields = RecordFields::of_readable(key, &MESSAGE_FIELDS, fields.clone())?;
            let Ok(Some(_)) = fields.optional::<u64>("revision") else { continue };
            if !fields.has("taken_revision") {
                self.note_given_message(key);
            }
            let (is_held, is_listed) = (is_there(held), is_there(listed));
            let is_direct = matches!(fields.text("message_type").as_str(), "chat" | "mail");
            let is_misplaced = fields.text("status") == "dispatched" && is_held == self.waiting.contains(key);
            if is_misplaced || (is_direct && !is_listed) {
                suspects.push(key);
            }
        }
        Ok(suspects)
    }

    fn note_given_message(&mut self, key: &str) {
        let Some(ContextKey::Message(MessageKey { caller, id })) = self.tenant.keys.parse(key) else {
            return;
        };
        if id.0 <= GIVEN_MESSAGES_END && (caller.0 == 0 || id.0 > GIVEN_MESSAGES_BEGIN) {
            self.note_given(counter_of("message", caller), id.0);
        }
    }

    async fn confirm_messages(&mut self, suspects: &[&String]) -> Result<()> {
        let tenant = Arc::clone(&self.tenant);
        let done = tenant.keys.letters_done();
        let touched = scripts::CHECK_MESSAGES.keys([
            ("msg_out", &tenant.msg_out),
            ("held", &tenant.held),
            ("letters", &tenant.letters),
            ("dead_letters", &tenant.dead_letters),
            ("letters_done", &done),
        ]);
        let change = self.begin(&scripts::CHECK_MESSAGES, &touched).args(suspects.iter().copied());
        self.check(change).await
    }

    /// Checks that counters of ids are not behind ids that were given.
    pub(super) async fn check_given_ids(&mut self) -> Result<()> {
        let given: Vec<_> = std::mem::take(&mut self.given).into_iter().collect();
        for some in given.chunks(CHECKED_AT_ONCE) {
            let texts = some.iter().flat_map(|(counter, id)| [counter.clone(), id.to_string()]);
            let texts: Vec<String> = texts.collect();
            let change = self.begin(&scripts::CHECK_GIVEN_IDS, &[]).args(&texts);
            self.check(change).await?;
        }
        Ok(())
    }
}

fn is_there(answer: &kv::Result<Value>) -> bool {
    matches!(answer, Ok(value) if !value.is_nil())
}

/// A flow that a check has read.
pub(super) struct CheckedFlow {
    pub(super) stored: StoredFlow,
    /// The flow is being removed.
    pub(super) is_deleting: bool,
}

fn read_flow(id: FlowId, answer: Value) -> Result<Option<CheckedFlow>> {
    let what = format!("flow {id}");
    let Some(mut fields) = RecordFields::of_hash(&what, answer)? else { return Ok(None) };
    let is_deleting = fields.has("deleting");
    let stored = record::flow::read_any(&mut fields)?;
    record::check_id(&what, stored.flow.id, id)?;
    Ok(Some(CheckedFlow { stored, is_deleting }))
}

/// Reads a record. Returns the flow to which it belongs, if any.
fn flow_of(key: &ContextKey, answer: Value) -> Result<Option<FlowId>> {
    let Some(fields) = RecordFields::of_hash(key, answer)? else { return Ok(None) };
    match key {
        ContextKey::Job(_, id) => {
            let job = record::job::read_stored(fields)?;
            record::check_id(key, job.id, *id)?;
            return Ok(job.place.flow);
        }
        ContextKey::Runner(id) => record::check_id(key, record::runner::read(fields)?.id, *id)?,
        ContextKey::Context(id) => record::check_id(key, record::context::read(&fields)?.id, *id)?,
        _ => {}
    }
    Ok(None)
}
