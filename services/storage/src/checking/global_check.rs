//! The check of what belongs to no context: actors, contexts, and the counter of ids.

use keys::{ContextKey, GlobalKey};
use kv::{Cmd, Pipeline, Value};
use model::{ActorId, ContextId, Timestamp};
use tokio::sync::mpsc;

use super::key_pages::{KeyPages, types_of};
use super::list_check::members_of;
use super::{CHECKED_AT_ONCE, CheckFinding, CheckReport, FindingCode, FindingCollector, READ_AT_ONCE};
use crate::error::{Error, Result};
use crate::record::{self, RecordFields};
use crate::scripts;
use crate::store::Store;
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::ContextAction;

/// Check of what belongs to no context under way.
pub(crate) struct GlobalCheck {
    store: Store,
    repairs: bool,
    found: FindingCollector,
}

impl Store {
    /// Begins the check of what belongs to no context, for the bootstrap identity.
    ///
    /// # Errors
    /// Fails when Redis does.
    pub(crate) async fn begin_global_check(
        &self,
        repairs: bool,
        out: mpsc::Sender<CheckReport>,
        now: Timestamp,
    ) -> Result<GlobalCheck> {
        if repairs {
            let audit_record = AuditRecord::of(None, ContextAction::RepairContext, "actors and contexts");
            let change = self.begin_global_by(Some(&audit_record), &scripts::NOTE_REPAIR, &[], now);
            self.call_global(change).await?;
        }
        Ok(GlobalCheck { store: self.clone(), repairs, found: FindingCollector::new(out) })
    }
}

impl GlobalCheck {
    /// Checks everything, and ends early when nobody reads any more.
    ///
    /// # Errors
    /// Fails when Redis does.
    pub(crate) async fn run(mut self) -> Result<()> {
        let store = self.store.clone();
        let mut pages = KeyPages::new(store.connection(), format!("{}*", store.keys().prefix()));
        while let Some(names) = pages.next().await? {
            if self.found.is_abandoned() {
                return Ok(());
            }
            self.check_page(&names).await?;
            self.found.send().await;
        }
        self.found.finish().await;
        Ok(())
    }

    async fn check_page(&mut self, names: &[Vec<u8>]) -> Result<()> {
        let types = types_of(self.store.connection(), names).await?;
        let (mut actors, mut lists) = (Vec::new(), Vec::new());
        for (name, found) in names.iter().zip(types) {
            self.found.keys += 1;
            match self.key_of(name, &found) {
                Some(GlobalKey::Actor(id)) => actors.push(id),
                Some(list @ (GlobalKey::Actors | GlobalKey::Contexts)) => lists.push(list),
                _ => {}
            }
        }
        for some in actors.chunks(READ_AT_ONCE) {
            self.read_actors(some).await?;
            self.check_actors(some).await?;
        }
        for list in lists {
            self.check_list(&list).await?;
        }
        Ok(())
    }

    /// Parses a key, and notes one of a wrong type. Keys of other programs are let be: the database is not ours alone.
    fn key_of(&mut self, name: &[u8], found: &str) -> Option<GlobalKey> {
        let key = self.store.keys().parse(std::str::from_utf8(name).ok()?)?;
        let expected = key.redis_type().name();
        if found == expected {
            return Some(key);
        }
        if found != "none" {
            let problem = format!("the key has the type {found} instead of {expected}");
            self.note(FindingCode::KeyType, key.to_string(), problem);
        }
        None
    }

    fn note(&mut self, code: FindingCode, key: String, problem: impl AsRef<str>) {
        self.found.add([CheckFinding::named(code, key, problem)]);
    }

    async fn read_actors(&mut self, ids: &[ActorId]) -> Result<()> {
        let keys: Vec<String> = ids.iter().map(|id| self.store.keys().actor(*id)).collect();
        let mut pipeline = Pipeline::new();
        for key in &keys {
            pipeline.cmd(Cmd::new("HGETALL").arg(key));
        }
        for (id, answer) in ids.iter().zip(self.store.connection().pipeline(&pipeline).await?) {
            match read_actor(*id, answer?) {
                Ok(()) => {}
                Err(Error::Broken(problem)) => {
                    self.note(
                        FindingCode::RecordUnreadable,
                        GlobalKey::Actor(*id).to_string(),
                        problem.to_string(),
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn check_actors(&mut self, ids: &[ActorId]) -> Result<()> {
        let (actors, actor_keys) = (self.store.keys().actors(), self.store.keys().actor_keys());
        let touched = scripts::CHECK_ACTORS.keys([("actors", &actors), ("actor_keys", &actor_keys)]);
        for some in ids.chunks(CHECKED_AT_ONCE) {
            let change = self
                .store
                .begin_global(&scripts::CHECK_ACTORS, &touched, Timestamp::now())
                .arg(u8::from(self.repairs))
                .args(some.iter().map(|id| id.0));
            let answer = super::checked(self.store.call_global(change).await.map_err(Error::from))?;
            self.found.add(CheckFinding::of_answer(answer)?);
        }
        Ok(())
    }

    /// Checks that the actors or contexts of a set exist.
    async fn check_list(&mut self, list: &GlobalKey) -> Result<()> {
        let (name, mut cursor) = (self.store.keys().key(list), "0".to_owned());
        loop {
            let query = Cmd::new("SSCAN").arg(&name).arg(&cursor).arg("COUNT").arg(READ_AT_ONCE);
            let [next, entries] = self.store.connection().cmd(query).await?.tuple()?;
            let mut numbers = Vec::new();
            for entry in members_of("SSCAN", entries)? {
                let shown = String::from_utf8_lossy(&entry);
                match shown.parse::<u32>() {
                    Ok(number) => numbers.push(number),
                    Err(_) => {
                        let problem = format!("entry {shown} is no id");
                        self.note(FindingCode::RecordUnreadable, list.to_string(), problem);
                    }
                }
            }
            if *list == GlobalKey::Actors {
                self.check_actors(&numbers.into_iter().map(ActorId).collect::<Vec<_>>()).await?;
            } else {
                for number in numbers {
                    self.check_context(ContextId(number)).await?;
                }
            }
            cursor = next.text()?;
            if cursor == "0" {
                return Ok(());
            }
        }
    }

    /// Checks that a listed context has a record. The record is elsewhere: a context that is being removed leaves the set first.
    async fn check_context(&mut self, id: ContextId) -> Result<()> {
        if self.store.refuses_id(id).is_none() {
            let tenant = self.store.tenant_unchecked(id);
            if tenant.connection.cmd(Cmd::new("EXISTS").arg(&tenant.context)).await?.int()? == 1 {
                return Ok(());
            }
        }
        let query = Cmd::new("SISMEMBER").arg(&self.store.keys().contexts()).arg(id.0);
        if self.store.connection().cmd(query).await?.int()? == 1 {
            let key = ContextKey::Context(id).to_string();
            self.note(FindingCode::ContextMissing, key, "the context is listed, and has no record");
        }
        Ok(())
    }
}

fn read_actor(id: ActorId, answer: Value) -> Result<()> {
    let what = format!("actor {id}");
    let Some(fields) = RecordFields::of_hash(&what, answer)? else { return Ok(()) };
    record::check_id(&what, record::actor::read(fields)?.id, id)?;
    Ok(())
}
