//! Imports: frames are written into a context that nobody sees until the last one.
//!
//! First the number is marked, so that no other context gets it. Then each frame is checked, and written by one script together with
//! its number and digest, so that an import that broke off continues behind the last frame that was written. Then the context is put
//! in use and published. Then flows that run are cancelled, if that is asked. At last the mark goes. Each step can be repeated.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use archive::frame::ReadFrame;
use archive::{ArchiveFrame, ArchiveManifest, ArchivePlace, ArchiveRecord};
use kv::Cmd;
use model::{ActorId, Context, ContextId, ContextUid, FlowId, FlowStatus, Timestamp};

use super::ImportRefusal;
use super::records::{ArchivedContext, ImportedRecord};
use crate::error::{Error, Result};
use crate::scripts;
use crate::store::{Store, TenantStore};
use crate::sweeps::before;
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::ContextAction;

/// A reservation of a context's number whose maker did not write the context within this time lapses.
const RESERVATION: Duration = Duration::from_secs(60);

/// How an import is made.
#[derive(Debug, Clone, Default)]
pub(crate) struct ImportOptions {
    /// Flows that run are cancelled.
    pub(crate) cancels: bool,
    /// Actors here that count as those of the same numbers in the file.
    pub(crate) accepted: BTreeSet<ActorId>,
}

/// An import that has begun.
#[derive(Debug)]
pub(crate) struct ContextImport {
    store: Store,
    tenant: Arc<TenantStore>,
    context: ArchivedContext,
    options: ImportOptions,
    place: ArchivePlace,
    records: u64,
    /// The context is in use already: only the last steps are left.
    is_written: bool,
}

/// Result of an import.
#[derive(Debug, Clone)]
pub(crate) struct ImportedContext {
    pub(crate) context: Context,
    pub(crate) cancelled_flows: u64,
}

impl Store {
    /// Begins the import of a context, or continues one, by the frame with its manifest.
    ///
    /// # Errors
    /// [`Error::Import`] when the number or the uid is taken, or another file of the context is being imported.
    pub(crate) async fn begin_import(
        &self,
        manifest: &ArchiveManifest,
        place: ArchivePlace,
        options: ImportOptions,
        now: Timestamp,
    ) -> Result<ContextImport> {
        self.reserve_memory(0)?;
        let context = ArchivedContext { id: manifest.context, uid: manifest.uid };
        if let Some(problem) = self.refuses_id(context.id) {
            return Err(ImportRefusal::ContextExists(format!(
                "context {} cannot be stored here: {problem}",
                context.id
            ))
            .into());
        }
        self.mark_import(context, now).await?;
        let tenant = self.tenant_unchecked(context.id);
        let change = tenant
            .begin(&scripts::BEGIN_IMPORT, &[], Some(context.uid), now)
            .named(kv::named![context: context.id.0, digest: &place.digest.to_string()]);
        let answer = tenant.call(change).await.map_err(|error| refusal_of(error, context.id))?;
        let [frames, digest] = answer.tuple()?;
        let (frames, digest) = (frames.uint()?, digest.text()?);
        let is_written = frames == 0;
        let bad = |error| kv::Error::Protocol(format!("the digest of an import: {error}"));
        let place =
            if is_written { place } else { ArchivePlace { frames, digest: digest.parse().map_err(bad)? } };
        Ok(ContextImport { store: self.clone(), tenant, context, options, place, records: 0, is_written })
    }

    /// Marks the number for the context, whose uid must be free.
    async fn mark_import(&self, context: ArchivedContext, now: Timestamp) -> Result<()> {
        let contexts = self.keys().contexts();
        let change = self.begin_global(&scripts::RESERVE_IMPORT, &[&contexts], now).named(kv::named![
            context: context.id.0,
            context_uid: &context.uid.to_string(),
            reserved_from: &before(now, RESERVATION).to_string(),
        ]);
        let marked = self.call_global(change).await;
        let is_new = marked.map_err(|error| refusal_of(error.into(), context.id))?.int()? == 1;
        if !is_new {
            return Ok(());
        }
        match self.holder_of(context.uid).await? {
            None => Ok(()),
            Some(holder) => {
                self.forget_import(context.id, context.uid).await?;
                let message = format!("context {holder} here has the uid {} already", context.uid);
                Err(ImportRefusal::ContextExists(message).into())
            }
        }
    }

    /// The context here that has a uid.
    async fn holder_of(&self, uid: ContextUid) -> Result<Option<ContextId>> {
        let uid = uid.to_string();
        for tenant in self.tenants().await? {
            let known = tenant.connection.cmd(Cmd::new("HGET").arg(&tenant.context).arg("uid")).await?;
            if known.optional_text()?.as_deref() == Some(uid.as_str()) {
                return Ok(Some(tenant.id));
            }
        }
        Ok(None)
    }

    /// Removes the mark of an import that is complete, or of which nothing is left.
    pub(crate) async fn forget_import(&self, id: ContextId, uid: ContextUid) -> Result<()> {
        let change = self
            .begin_global(&scripts::FORGET_IMPORT, &[], Timestamp::now())
            .named(kv::named![context: id.0, context_uid: &uid.to_string()]);
        Ok(self.call_global(change).await.map(drop)?)
    }

    /// Gives up the unfinished import of a context. What it has written is removed from now on. Returns the context's uid, by which the
    /// caller waits for the end of the removal, and then has the import forgotten. Until then it can be given up again.
    ///
    /// # Errors
    /// [`Error::NotFound`] when no context of this number is being imported.
    pub(crate) async fn abandon_import(
        &self,
        id: ContextId,
        now: Timestamp,
    ) -> Result<(Arc<TenantStore>, ContextUid)> {
        let mark = Cmd::new("HGET").arg(&self.keys().ids()).arg(&format!("importing:{id}"));
        let mark = self.connection().cmd(mark).await?.optional_text()?;
        let uid: ContextUid = mark
            .and_then(|mark| mark.parse().ok())
            .ok_or_else(|| Error::not_found("an unfinished import of context", id))?;
        let tenant = self.tenant_unchecked(id);
        let change = tenant.begin(&scripts::ABANDON_IMPORT, &[], Some(uid), now);
        tenant.call(change).await.map_err(|error| refusal_of(error, id))?;
        Ok((tenant, uid))
    }
}

impl ContextImport {
    /// Place behind the last frame that is written.
    pub(crate) const fn place(&self) -> ArchivePlace {
        self.place
    }

    /// Number of records that this import has written since it began or continued.
    pub(crate) const fn records(&self) -> u64 {
        self.records
    }

    /// Returns true if no frame is missing.
    pub(crate) const fn is_written(&self) -> bool {
        self.is_written
    }

    /// Checks a frame and writes it. Afterwards [`Self::is_written`] tells whether it was the last.
    ///
    /// # Errors
    /// [`Error::Import`] when the frame is not one of this context.
    pub(crate) async fn take(&mut self, frame: ReadFrame, now: Timestamp) -> Result<()> {
        let ReadFrame { content, place, bytes: _ } = frame;
        let records = match content {
            ArchiveFrame::Manifest(_) => return Ok(()),
            ArchiveFrame::Actors { actors, position: _ } => {
                for actor in actors {
                    self.store.import_actor(actor, &self.options.accepted, now).await?;
                }
                Vec::new()
            }
            ArchiveFrame::Records { records, position: _ } => records,
            ArchiveFrame::End { frames: _ } => {
                self.end(now).await?;
                self.place = place;
                return Ok(());
            }
        };
        self.store.reserve_memory(records.iter().map(ArchiveRecord::bytes).sum::<usize>() as u64)?;
        let parse = |record| ImportedRecord::parse(&self.tenant.keys, self.context, record);
        let records: Vec<ImportedRecord> = records
            .into_iter()
            .map(parse)
            .collect::<std::result::Result<_, _>>()
            .map_err(|problem| archive::ArchiveError::Malformed { frame: place.frames, problem })?;
        let count = records.len() as u64;
        let mut change = self
            .tenant
            .begin(&scripts::IMPORT_RECORDS, &[], Some(self.context.uid), now)
            .named(kv::named![frame: place.frames, digest: &place.digest.to_string()]);
        for record in records {
            change = change.args(&record.args());
        }
        let written = self.tenant.call(change).await.map_err(|error| refusal_of(error, self.context.id))?;
        if written.uint()? != place.frames {
            let message = "another call has gone on with it".to_owned();
            return Err(ImportRefusal::Gone(message).into());
        }
        service::crash_point("storage.import.frame");
        (self.place, self.records) = (place, self.records + count);
        Ok(())
    }

    /// Puts the context in use.
    async fn end(&mut self, now: Timestamp) -> Result<()> {
        let object = format!("context {}", self.context.id);
        let audit_record = AuditRecord::of(None, ContextAction::ImportContext, object);
        let change =
            self.tenant.begin_by(Some(&audit_record), &scripts::END_IMPORT, &[], Some(self.context.uid), now);
        let ended = self.tenant.apply_revision(change).await;
        ended.map_err(|error| refusal_of(error, self.context.id))?;
        service::crash_point("storage.import.ended");
        self.is_written = true;
        Ok(())
    }

    /// Publishes the context, and cancels flows that run if that is asked.
    ///
    /// # Errors
    /// When Redis fails: the import can be continued.
    pub(crate) async fn publish(self, now: Timestamp) -> Result<ImportedContext> {
        let ArchivedContext { id, uid } = self.context;
        let object = format!("context {id}");
        let audit_record = AuditRecord::of(None, ContextAction::ImportContext, object);
        self.store.publish_context(id, Some(uid), Some(&audit_record), now).await?;
        service::crash_point("storage.import.published");
        self.store.record_blob_bytes(id, self.tenant.blob_bytes().await?).await?;
        let cancelled_flows = if self.options.cancels { self.cancel_flows(now).await? } else { 0 };
        self.store.forget_import(id, uid).await?;
        // Schedulers, routers and the registry look at what they find.
        for kind in ["active", "out", "runner"] {
            self.tenant.announce(kind).await?;
        }
        let context = self.store.context(id).await?.1;
        tracing::info!(context = %id, %uid, "a context was imported");
        Ok(ImportedContext { context, cancelled_flows })
    }

    /// Has the flows cancelled that run. Returns how many there are.
    async fn cancel_flows(&self, now: Timestamp) -> Result<u64> {
        let key = self.tenant.keys.flows_of(FlowStatus::Started);
        let flows = self.tenant.connection.cmd(Cmd::new("ZRANGE").arg(&key).arg(0).arg(-1)).await?.texts()?;
        let mut cancelled = 0;
        for flow in flows.iter().filter_map(|id| id.parse::<FlowId>().ok()) {
            match self.store.cancel_interrupted(&self.tenant, flow, now).await {
                Ok(()) => cancelled += 1,
                // The flow has ended meanwhile.
                Err(Error::NotFound(_) | Error::WrongState { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(cancelled)
    }
}

/// Gives refusals of the scripts of imports a meaning.
fn refusal_of(error: Error, context: ContextId) -> Error {
    let Error::Store(kv::Error::Refused { code, message }) = &error else { return error };
    let refusal = match code.as_str() {
        "CONTEXT_EXISTS" => ImportRefusal::ContextExists(message.clone()),
        "IMPORT_UNDER_WAY" => ImportRefusal::UnderWay(format!("context {context}")),
        "IMPORT_GONE" => ImportRefusal::Gone(message.clone()),
        _ => return error,
    };
    refusal.into()
}
