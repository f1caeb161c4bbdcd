//! The check of a context: all keys in pages by the cursor of Redis, then lists, blobs and counters.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use keys::ContextKey;
use kv::Script;
use model::{ActorId, BlobHash, Context, ContextId, FlowId, RunnerId, Timestamp};
use tokio::sync::mpsc;

use super::key_pages::{KeyPages, types_of};
use super::list_check::which_exist;
use super::{CHECKED_AT_ONCE, CheckFinding, CheckReport, FindingCode, FindingCollector, READ_AT_ONCE};
use crate::error::{Error, Result};
use crate::idempotency::hash_of;
use crate::scripts;
use crate::store::{PERMISSION_TRIES, Store, StoreChange, TenantStore};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::ContextAction;

/// First number of a message that was given here, less 1: programs that number their messages themselves count from 1.
pub(super) const GIVEN_MESSAGES_BEGIN: u32 = 1 << 30;

/// Check of a context under way.
pub(crate) struct ContextCheck {
    pub(super) tenant: Arc<TenantStore>,
    pub(super) context: Context,
    pub(super) repairs: bool,
    pub(super) found: FindingCollector,
    /// Messages that were seen to wait for a router.
    pub(super) waiting: HashSet<String>,
    /// Blobs that exist, or that jobs refer to.
    pub(super) blobs: HashSet<BlobHash>,
    /// Actors that have inboxes.
    pub(super) inboxes: BTreeSet<ActorId>,
    /// Greatest ids that were seen, by the counter that gives them.
    pub(super) given: BTreeMap<String, u32>,
}

/// Keys of a page, by what is checked of them.
#[derive(Default)]
struct CheckedPage {
    readable: Vec<ContextKey>,
    flows: Vec<FlowId>,
    messages: Vec<String>,
    runners: Vec<RunnerId>,
    lists: Vec<ContextKey>,
    /// Records of flows, each with the flow that it belongs to.
    parts: Vec<(FlowId, ContextKey)>,
}

impl Store {
    /// Begins the check of a context for the bootstrap identity. With `repairs`, what can be repaired is repaired.
    ///
    /// # Errors
    /// [`Error::NotFound`] where there is no such context; with `repairs` also when it takes no changes.
    pub(crate) async fn begin_check(
        &self,
        id: ContextId,
        repairs: bool,
        out: mpsc::Sender<CheckReport>,
        now: Timestamp,
    ) -> Result<ContextCheck> {
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context) = self.context(id).await?;
            if repairs {
                match tenant.audit_repair(&context, now).await {
                    Err(Error::ContextChanged(_)) => continue,
                    audited => audited?,
                }
            }
            return Ok(ContextCheck {
                tenant,
                context,
                repairs,
                found: FindingCollector::new(out),
                waiting: HashSet::new(),
                blobs: HashSet::new(),
                inboxes: BTreeSet::new(),
                given: BTreeMap::new(),
            });
        }
        Err(Error::ContextChanged(id))
    }
}

impl TenantStore {
    /// Writes the audit record of a repair.
    async fn audit_repair(&self, context: &Context, now: Timestamp) -> Result<()> {
        let object = format!("context {}", context.id);
        let audit_record = AuditRecord::of(None, ContextAction::RepairContext, object);
        let change = self
            .begin_by(Some(&audit_record), &scripts::AUTHORIZE, &[], Some(context.uid), now)
            .named(kv::named![
                context_revision: &context.revision.to_string(),
                request_hash: hash_of(None),
                request_secs: 0,
                room: "reserve",
            ]);
        self.call(change).await.map(drop)
    }
}

impl ContextCheck {
    /// Checks everything, and ends early when nobody reads any more.
    ///
    /// # Errors
    /// Fails when Redis does, and when the context takes no changes any more that a repair would make.
    pub(crate) async fn run(mut self) -> Result<()> {
        self.read_waiting().await?;
        let tenant = Arc::clone(&self.tenant);
        let mut pages = KeyPages::new(&tenant.connection, format!("{}*", tenant.keys.prefix()));
        while let Some(names) = pages.next().await? {
            if self.found.is_abandoned() {
                return Ok(());
            }
            self.check_page(&names).await?;
            self.found.send().await;
        }
        self.check_blobs().await?;
        self.check_given_ids().await?;
        self.check_counts().await?;
        self.found.finish().await;
        Ok(())
    }

    /// Begins a call of a script that checks.
    pub(super) fn begin(&self, script: &'static Script, keys: &[&str]) -> StoreChange {
        let change = self.tenant.begin(script, keys, Some(self.context.uid), Timestamp::now());
        change.arg(u8::from(self.repairs))
    }

    /// Runs a script that checks, and collects its findings.
    pub(super) async fn check(&mut self, change: StoreChange) -> Result<()> {
        let findings = self.tenant.check(change).await?;
        self.found.add(findings);
        Ok(())
    }

    /// Collects a finding that cannot be repaired.
    pub(super) fn note(&mut self, code: FindingCode, key: impl Into<String>, problem: impl AsRef<str>) {
        self.found.add([CheckFinding::named(code, key, problem)]);
    }

    /// Notes an id that was given.
    pub(super) fn note_given(&mut self, counter: String, id: u32) {
        let greatest = self.given.entry(counter).or_default();
        *greatest = id.max(*greatest);
    }

    /// Checks the keys of a page.
    async fn check_page(&mut self, names: &[Vec<u8>]) -> Result<()> {
        let types = types_of(&self.tenant.connection, names).await?;
        let mut page = CheckedPage::default();
        for (name, found) in names.iter().zip(types) {
            self.found.keys += 1;
            // A key that is gone by now needs no check.
            if found != "none" {
                self.sort_in(name, &found, &mut page);
            }
        }
        self.check_records(&page.readable).await?;
        self.check_flows(&page.flows).await?;
        self.check_messages(&page.messages).await?;
        for list in page.lists {
            self.check_list(&list).await?;
        }
        for runners in page.runners.chunks(READ_AT_ONCE) {
            self.check_runners(runners).await?;
        }
        self.check_parts(&page.parts).await
    }

    /// Finds keys that are none, or have a wrong type, and sorts the others by what is checked of them.
    fn sort_in(&mut self, name: &[u8], found: &str, page: &mut CheckedPage) {
        let prefix = self.tenant.keys.prefix().as_bytes();
        let shown = String::from_utf8_lossy(name.strip_prefix(prefix).unwrap_or(name)).into_owned();
        let parsed = std::str::from_utf8(name).ok().and_then(|name| self.tenant.keys.parse(name));
        let Some(key) = parsed else {
            return self.note(FindingCode::KeyUnknown, &shown, "the key is none of a context");
        };
        if matches!(key, ContextKey::Context(id) if id != self.context.id) {
            return self.note(FindingCode::KeyUnknown, &shown, "the key is that of another context");
        }
        let expected = key.redis_type().name();
        if found != expected {
            let problem = format!("the key has the type {found} instead of {expected}");
            return self.note(FindingCode::KeyType, &shown, problem);
        }
        match key {
            ContextKey::Flow(id) => page.flows.push(id),
            ContextKey::Message(_) => page.messages.extend(String::from_utf8(name.to_vec()).ok()),
            ContextKey::Blob(hash) | ContextKey::BlobRefs(hash) => drop(self.blobs.insert(hash)),
            ContextKey::Runner(id) => {
                page.runners.push(id);
                page.readable.push(key);
            }
            ContextKey::Job(..) | ContextKey::Context(_) => page.readable.push(key),
            ContextKey::FlowNodes(flow)
            | ContextKey::FlowSignals(flow)
            | ContextKey::FlowInputs(flow)
            | ContextKey::FlowWaiters(flow)
            | ContextKey::Log(flow, ..) => page.parts.push((flow, key)),
            ContextKey::FlowMessages(flow) => {
                page.parts.push((flow, key.clone()));
                page.lists.push(key);
            }
            _ => page.lists.push(key),
        }
    }

    /// Checks runner records against the set of all of them.
    pub(super) async fn check_runners(&mut self, ids: &[RunnerId]) -> Result<()> {
        let runners = self.tenant.keys.runners();
        let touched = scripts::CHECK_RUNNERS.keys([("runners", &runners)]);
        let change = self.begin(&scripts::CHECK_RUNNERS, &touched).args(ids.iter().map(|id| id.0));
        self.check(change).await
    }

    /// Checks that flows exist to which records belong.
    pub(super) async fn check_parts(&mut self, parts: &[(FlowId, ContextKey)]) -> Result<()> {
        for part in parts.chunks(READ_AT_ONCE) {
            let flows: Vec<String> = part.iter().map(|(flow, _)| self.tenant.keys.flow(*flow)).collect();
            let exist = which_exist(&self.tenant, &flows).await?;
            let suspects = part.iter().zip(exist).filter(|(_, exists)| !exists);
            let suspects: Vec<_> = suspects.map(|((flow, key), _)| (*flow, key)).collect();
            for suspects in suspects.chunks(CHECKED_AT_ONCE) {
                self.check_orphans(suspects).await?;
            }
        }
        Ok(())
    }

    async fn check_orphans(&mut self, suspects: &[(FlowId, &ContextKey)]) -> Result<()> {
        let tenant = Arc::clone(&self.tenant);
        let touched = scripts::CHECK_ORPHANS.keys([
            ("held", &tenant.held),
            ("dead_letters", &tenant.dead_letters),
            ("blob_idle", &tenant.blob_idle),
            ("flows_active", &tenant.flows_active),
        ]);
        let texts = suspects.iter().flat_map(|(flow, key)| [flow.to_string(), key.to_string()]);
        let texts: Vec<String> = texts.collect();
        let call = || self.begin(&scripts::CHECK_ORPHANS, &touched).args(&texts);
        let first = self.tenant.check(call()).await?;
        // Messages of a flow are removed some at a time.
        let is_left = |findings: &[CheckFinding]| {
            findings.iter().any(|finding| finding.is_repaired && finding.key.ends_with(":messages"))
        };
        let mut goes_on = is_left(&first);
        while goes_on {
            goes_on = is_left(&self.tenant.check(call()).await?);
        }
        self.found.add(first);
        Ok(())
    }
}

/// Name of the counter that gives an actor's ids of this kind.
pub(super) fn counter_of(kind: &str, actor: ActorId) -> String {
    format!("{kind}:{actor}")
}
