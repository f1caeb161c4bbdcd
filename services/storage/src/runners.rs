//! Runner records.

use kv::{Cmd, Pipeline};
use model::{Address, ContextId, Revision, Runner, RunnerId, Timestamp, limits};
use proto::convert::runner::NewRunner;

use crate::audit::Deed;
use crate::error::{Error, Result};
use crate::permission::{self, Action};
use crate::record::{self, Fields, Written};
use crate::requests::{Request, hash_of};
use crate::scripts;
use crate::store::{Asker, ID_TRIES, PERMISSION_TRIES, Store, Tenant};

impl Store {
    /// Keeps a new record, or gives the one that the same request made before.
    pub(crate) async fn put_runner(
        &self,
        context: ContextId,
        new: &NewRunner,
        asker: Asker,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<Runner> {
        let actor = asker.actor()?;
        let mut changes = 0;
        for _ in 0..ID_TRIES {
            let (tenant, context) = self.context(context).await?;
            permission::allow(&context, actor, Action::RegisterRunner)?;
            let id = match new.id {
                Some(id) => id,
                None => RunnerId(tenant.next_runner_id().await?),
            };
            let mut runner = fresh_runner(id, new, now);
            let mut touched = vec![tenant.keys.runner(id), tenant.keys.runners()];
            touched.extend(request.map(|request| tenant.keys.request(actor, &request.id)));
            let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
            let deed =
                Deed::of(Some(actor), Action::RegisterRunner, format_args!("runner {id}")).asked(request);
            let call = tenant
                .begin_by(Some(&deed), &scripts::PUT_RUNNER, &touched, Some(context.uid), now)
                .arg(context.revision.0)
                .arg(id.0)
                .arg(hash_of(request))
                .arg(limits::REQUEST_ID_KEEP_SECS)
                .arg(new.id.is_none())
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
        Err(Error::Exhausted("no free runner id was found; name one".to_owned()))
    }

    /// Changes a record. What the same request did before is not done again.
    pub(crate) async fn change_runner(
        &self,
        (context, id): (ContextId, RunnerId),
        expected: Option<Revision>,
        change: &RunnerChange,
        asker: Asker,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<Runner> {
        let actor = asker.actor()?;
        let mut changes = 0;
        loop {
            let (tenant, context) = self.context(context).await?;
            permission::allow(&context, actor, change.action())?;
            let mut touched =
                vec![tenant.keys.runner(id), tenant.keys.runners(), tenant.keys.runners_deleted()];
            touched.extend(request.map(|request| tenant.keys.request(actor, &request.id)));
            let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
            let values = change.values(id, now);
            let deed = Deed::of(Some(actor), change.action(), format_args!("runner {id}")).asked(request);
            let call = tenant
                .begin_by(Some(&deed), &scripts::CHANGE_RUNNER, &touched, Some(context.uid), now)
                .arg(context.revision.0)
                .arg(id.0)
                .arg(&expected.map(|revision| revision.to_string()).unwrap_or_default())
                .arg(hash_of(request))
                .arg(limits::REQUEST_ID_KEEP_SECS)
                .arg(change.name())
                .arg(limits::DELETED_RUNNER_KEEP_SECS)
                .args(values.args());
            match tenant.apply_revision(call).await {
                Ok(_) => return self.runner(&tenant, id).await,
                Err(Error::ContextChanged(_)) if changes < PERMISSION_TRIES => changes += 1,
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) async fn runner(&self, tenant: &Tenant, id: RunnerId) -> Result<Runner> {
        let key = tenant.keys.runner(id);
        let value = tenant.connection.cmd(Cmd::new("HGETALL").arg(&key)).await?;
        let fields = Fields::of_hash(&key, value)?.ok_or_else(|| Error::not_found("runner", id))?;
        Ok(record::runner::read(fields)?)
    }

    /// All records of a context that `asker` may read, by id.
    pub(crate) async fn read_runners(&self, context: ContextId, asker: Asker) -> Result<Vec<Runner>> {
        let (tenant, _, _) = self.read(context, asker, |_, _| {}).await?;
        self.runners_of(&tenant, false).await
    }

    /// All records of a context, by id; with those that were deleted and are still kept, or without.
    pub(crate) async fn runners_of(&self, tenant: &Tenant, with_deleted: bool) -> Result<Vec<Runner>> {
        let mut asked = Pipeline::new();
        asked.cmd(Cmd::new("SMEMBERS").arg(&tenant.keys.runners()));
        if with_deleted {
            asked.cmd(Cmd::new("ZRANGE").arg(&tenant.keys.runners_deleted()).arg(0).arg(-1));
        }
        let mut ids: Vec<RunnerId> = Vec::new();
        for answer in tenant.connection.pipeline(&asked).await? {
            ids.extend(answer?.texts()?.iter().filter_map(|id| id.parse::<RunnerId>().ok()));
        }
        ids.sort_unstable();
        ids.dedup();
        let mut pipeline = Pipeline::new();
        for id in &ids {
            pipeline.cmd(Cmd::new("HGETALL").arg(&tenant.keys.runner(*id)));
        }
        let mut runners = Vec::with_capacity(ids.len());
        for (id, answer) in ids.iter().zip(tenant.connection.pipeline(&pipeline).await?) {
            if let Some(fields) = Fields::of_hash(format_args!("runner {id}"), answer?)? {
                runners.push(record::runner::read(fields)?);
            }
        }
        Ok(runners)
    }
}

/// What may become of a runner record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunnerChange {
    /// Something else is said of it.
    Update(Box<NewRunner>),
    /// It is sent no new jobs.
    Drain,
    /// It is sent jobs again.
    Resume,
    /// It is not there any more.
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

    const fn action(&self) -> Action {
        match self {
            Self::Update(_) => Action::UpdateRunner,
            Self::Drain => Action::DrainRunner,
            Self::Resume => Action::ResumeRunner,
            Self::Delete => Action::DeleteRunner,
        }
    }

    /// The fields that are written beside those that the change itself is about.
    fn values(&self, id: RunnerId, now: Timestamp) -> Written {
        match self {
            Self::Update(values) => record::runner::write_values(&fresh_runner(id, values, now)),
            Self::Drain | Self::Resume | Self::Delete => Written::default(),
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
