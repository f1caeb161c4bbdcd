//! Runner records.

use kv::{Cmd, Pipeline, Value};
use model::{Address, ContextId, Revision, Runner, RunnerId, RunnerView, Timestamp, limits};
use proto::convert::runner::{NewRunner, wire_bytes};

use crate::error::{Error, Result};
use crate::idempotency::{IdempotencyKey, hash_of};
use crate::pages::{PageRequest, PagedCollection};
use crate::record::{self, FieldWriter, RecordFields};
use crate::scripts;
use crate::store::{ID_TRIES, PERMISSION_TRIES, RequestPrincipal, Store, TenantStore};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};
use crate::tenants::quotas::Quota;

/// Records that are read in one round trip.
pub(crate) const RUNNERS_READ: usize = 128;

impl Store {
    /// Stores a new record, or returns the one that the same request created before.
    pub(crate) async fn put_runner(
        &self,
        context: ContextId,
        new: &NewRunner,
        asker: RequestPrincipal,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Runner> {
        self.reserve_memory(0)?;
        let actor = asker.actor()?;
        let mut changes = 0;
        for _ in 0..ID_TRIES {
            let (tenant, context) = self.context(context).await?;
            permission::allow(&context, actor, ContextAction::RegisterRunner)?;
            let id = match new.id {
                Some(id) => id,
                None => RunnerId(tenant.next_runner_id().await?),
            };
            let mut runner = fresh_runner(id, new, now);
            let mut touched = vec![tenant.keys.runner(id), tenant.keys.runners()];
            touched.extend(request.map(|request| tenant.keys.request(actor, &request.id)));
            let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
            let audit_record =
                AuditRecord::of(Some(actor), ContextAction::RegisterRunner, format_args!("runner {id}"))
                    .with_request_id(request);
            let call = tenant
                .begin_by(Some(&audit_record), &scripts::PUT_RUNNER, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: context.revision.0,
                    runner: id.0,
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    is_our_id: new.id.is_none(),
                    runners_max: tenant.quotas.of(Quota::ContextRunners),
                    runners_deleted_max: tenant.quotas.of(Quota::ContextRunnersDeleted),
                ])
                .args(record::runner::write(&runner).args());
            match tenant.call(call).await {
                Ok(answer) => {
                    let [made, value] = answer.tuple()?;
                    if made.int()? == 1 {
                        runner.revision = Revision(value.uint()?);
                        return Ok(runner);
                    }
                    let id = RunnerId(u32::try_from(value.uint()?).unwrap_or_default());
                    return self.runner(&tenant, id).await;
                }
                Err(Error::ContextChanged(_)) if changes < PERMISSION_TRIES => changes += 1,
                Err(Error::Store(kv::Error::Refused { code, message })) if code == "RUNNER_EXISTS" => {
                    if new.id.is_some() {
                        return Err(Error::Exists(format!("runner {id}")));
                    }
                    tenant.skip_runner_ids(message.parse().unwrap_or_default());
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::no_free_id("runner"))
    }

    /// Changes a record. A repeated request does not change it again.
    pub(crate) async fn change_runner(
        &self,
        (context, id): (ContextId, RunnerId),
        expected: Option<Revision>,
        change: &RunnerChange,
        asker: RequestPrincipal,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Runner> {
        let actor = asker.actor()?;
        let mut changes = 0;
        loop {
            let (tenant, context) = self.context(context).await?;
            permission::allow(&context, actor, change.action())?;
            let (runner, runners) = (tenant.keys.runner(id), tenant.keys.runners());
            let deleted = tenant.keys.runners_deleted();
            let request_key = request.map(|request| tenant.keys.request(actor, &request.id));
            let mut touched = scripts::CHANGE_RUNNER
                .keys([("runner", &runner), ("runners", &runners), ("runners_deleted", &deleted)])
                .to_vec();
            touched.extend(request_key.as_deref());
            let values = change.values(id, now);
            let audit_record = AuditRecord::of(Some(actor), change.action(), format_args!("runner {id}"))
                .with_request_id(request);
            let call = tenant
                .begin_by(Some(&audit_record), &scripts::CHANGE_RUNNER, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: context.revision.0,
                    runner: id.0,
                    expected_revision: &expected.map(|revision| revision.to_string()).unwrap_or_default(),
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    action: change.name(),
                    keep_secs: limits::DELETED_RUNNER_KEEP_SECS,
                ])
                .args(values.args());
            match tenant.apply_revision(call).await {
                Ok(_) => return self.runner(&tenant, id).await,
                Err(Error::ContextChanged(_)) if changes < PERMISSION_TRIES => changes += 1,
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) async fn runner(&self, tenant: &TenantStore, id: RunnerId) -> Result<Runner> {
        let key = tenant.keys.runner(id);
        let value = tenant.connection.cmd(Cmd::new("HGETALL").arg(&key)).await;
        runner_of(id, value)?.ok_or_else(|| Error::not_found("runner", id))
    }

    /// Reads a record that `asker` may read. A deleted record is not found.
    pub(crate) async fn read_runner(
        &self,
        context: ContextId,
        id: RunnerId,
        asker: RequestPrincipal,
    ) -> Result<Runner> {
        let read = self.read(context, asker, |tenant, pipeline| {
            pipeline.cmd(Cmd::new("HGETALL").arg(&tenant.keys.runner(id)));
        });
        let (_, _, mut answers) = read.await.map_err(|error| error.at_record(format_args!("runner {id}")))?;
        let runner = runner_of(id, Ok(answers.pop().unwrap_or(Value::Nil)))?;
        runner.filter(|runner| runner.deleted_at.is_none()).ok_or_else(|| Error::not_found("runner", id))
    }

    /// A page of the records of a context that `asker` may read, by id.
    pub(crate) async fn read_runners(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        page: &PageRequest,
    ) -> Result<(Vec<Runner>, String)> {
        let bound_to = format!("{context} {asker:?}");
        let after = page.cursor(self.coordinator(), PagedCollection::Runners, &bound_to)?.unwrap_or_default();
        let (tenant, _, _) = self.read(context, asker, |_, _| {}).await?;
        let ids = self.runner_ids(&tenant, false).await?;
        let ids: Vec<RunnerId> = ids.into_iter().filter(|id| u64::from(id.0) > after).collect();
        let (mut runners, mut bytes) = (Vec::new(), 0);
        for ids in ids.chunks(RUNNERS_READ.min(page.size + 1)) {
            for runner in self.runners_at(&tenant, ids).await? {
                let view = RunnerView::from(runner);
                let size = wire_bytes(&view);
                let is_full = runners.len() >= page.size || bytes + size > limits::PAGE_BYTES_MAX;
                if let Some(last) = runners.last().filter(|_| is_full).map(|last: &Runner| last.id) {
                    let last = Some(u64::from(last.0));
                    return Ok((
                        runners,
                        page.token(self.coordinator(), PagedCollection::Runners, &bound_to, last),
                    ));
                }
                bytes += size;
                runners.push(view.runner);
            }
        }
        Ok((runners, String::new()))
    }

    /// The runners of a context, in order; with those that were deleted and may still be kept, or without.
    pub(crate) async fn runner_ids(&self, tenant: &TenantStore, with_deleted: bool) -> Result<Vec<RunnerId>> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd(Cmd::new("SMEMBERS").arg(&tenant.keys.runners()));
        if with_deleted {
            pipeline.cmd(Cmd::new("ZRANGE").arg(&tenant.keys.runners_deleted()).arg(0).arg(-1));
        }
        let mut ids: Vec<RunnerId> = Vec::new();
        for answer in tenant.connection.pipeline(&pipeline).await? {
            ids.extend(answer?.texts()?.iter().filter_map(|id| id.parse::<RunnerId>().ok()));
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// These records, as far as they are there; at most a few hundred.
    pub(crate) async fn runners_at(&self, tenant: &TenantStore, ids: &[RunnerId]) -> Result<Vec<Runner>> {
        let mut pipeline = Pipeline::new();
        for id in ids {
            pipeline.cmd(Cmd::new("HGETALL").arg(&tenant.keys.runner(*id)));
        }
        let mut runners = Vec::with_capacity(ids.len());
        for (id, answer) in ids.iter().zip(tenant.connection.pipeline(&pipeline).await?) {
            runners.extend(record::listed(runner_of(*id, answer))?);
        }
        Ok(runners)
    }
}

/// The record in the answer to `HGETALL`.
fn runner_of(id: RunnerId, answer: kv::Result<Value>) -> Result<Option<Runner>> {
    let what = format!("runner {id}");
    let answer = answer.map_err(|error| Error::of_record(error, &what))?;
    let Some(fields) = RecordFields::of_hash(&what, answer)? else { return Ok(None) };
    let runner = record::runner::read(fields)?;
    record::check_id(what, runner.id, id)?;
    Ok(Some(runner))
}

/// Change of a runner record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunnerChange {
    /// The record gets other values.
    Update(Box<NewRunner>),
    /// The runner is sent no new jobs.
    Drain,
    /// The runner is sent jobs again.
    Resume,
    /// The runner is deleted.
    Delete,
}

impl RunnerChange {
    const fn name(&self) -> &'static str {
        match self {
            Self::Update(_) => "update",
            Self::Drain => "drain",
            Self::Resume => "resume",
            Self::Delete => "delete",
        }
    }

    const fn action(&self) -> ContextAction {
        match self {
            Self::Update(_) => ContextAction::UpdateRunner,
            Self::Drain => ContextAction::DrainRunner,
            Self::Resume => ContextAction::ResumeRunner,
            Self::Delete => ContextAction::DeleteRunner,
        }
    }

    /// Builds the fields that are written in addition to those of the change itself.
    fn values(&self, id: RunnerId, now: Timestamp) -> FieldWriter {
        match self {
            Self::Update(values) => record::runner::write_values(&fresh_runner(id, values, now)),
            Self::Drain | Self::Resume | Self::Delete => FieldWriter::default(),
        }
    }
}

fn fresh_runner(id: RunnerId, new: &NewRunner, now: Timestamp) -> Runner {
    let NewRunner {
        id: _,
        address,
        topic,
        script_types,
        group,
        labels,
        local,
        signing_key,
        envelope,
        secret_ref,
    } = new.clone();
    let pubkey = match &address {
        Address::MyceliumKey(key) => key.clone(),
        Address::MyceliumIp(_) | Address::Grpc { .. } => String::new(),
    };
    Runner {
        id,
        pubkey,
        address,
        topic,
        signing_key,
        script_types,
        group,
        labels,
        local,
        envelope,
        secret_ref,
        created_at: now,
        updated_at: now,
        drained_at: None,
        deleted_at: None,
        revision: Revision(0),
    }
}
