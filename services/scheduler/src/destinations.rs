//! Where nodes can run: the registry's view, and the choice among live runners.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use model::{ContextId, Isolation, Name, NodeTarget, RunnerId, RunnerView, ScriptType, Timestamp};

/// Runners that a sentence names.
const NAMED_MAX: usize = 5;

/// Last view of all runners of all contexts, from the registry.
#[derive(Debug, Default)]
pub struct RunnerTable {
    contexts: HashMap<ContextId, BTreeMap<RunnerId, RunnerView>>,
}

impl RunnerTable {
    /// Adds or updates a runner. Returns whether jobs that had no runner before
    /// may have one now.
    pub fn update(&mut self, context: ContextId, view: RunnerView) -> bool {
        let runners = self.contexts.entry(context).or_default();
        let opens = view.live
            && view.runner.takes_jobs()
            && runners.get(&view.runner.id).is_none_or(|before| {
                !before.live || offered(before) != offered(&view) || before.runner != view.runner
            });
        runners.insert(view.runner.id, view);
        opens
    }

    /// Removes a runner whose record was removed.
    pub fn remove(&mut self, (context, runner): (ContextId, RunnerId)) {
        if let Some(runners) = self.contexts.get_mut(&context) {
            runners.remove(&runner);
        }
    }

    /// Returns the keys of all runners.
    pub fn keys(&self) -> impl Iterator<Item = (ContextId, RunnerId)> + '_ {
        self.contexts.iter().flat_map(|(context, runners)| runners.keys().map(|runner| (*context, *runner)))
    }

    /// Returns the registry's last view of a runner; nothing when there was none.
    #[must_use]
    pub fn get(&self, (context, runner): (ContextId, RunnerId)) -> Option<&RunnerView> {
        self.contexts.get(&context)?.get(&runner)
    }

    /// The runners of a context, for one step of one of its flows.
    #[must_use]
    pub fn of<'a>(&'a self, context: ContextId, load: &'a mut RunnerLoad) -> ContextRunners<'a> {
        ContextRunners { context, runners: self.contexts.get(&context), load }
    }
}

fn offered(view: &RunnerView) -> Vec<(ScriptType, &Name, u32)> {
    // A drained machine offers nothing until it takes jobs again.
    let open = view.presence.iter().filter(|presence| !presence.draining);
    let instances = open.flat_map(|presence| &presence.instances);
    instances.map(|instance| (instance.script_type, &instance.group, instance.number)).collect()
}

/// Attempts that this scheduler has under way at each runner.
#[derive(Debug, Default)]
pub struct RunnerLoad(HashMap<(ContextId, RunnerId), u64>);

impl RunnerLoad {
    /// An attempt goes there.
    pub fn add(&mut self, context: ContextId, runner: RunnerId) {
        *self.0.entry((context, runner)).or_default() += 1;
    }

    /// An attempt there has ended.
    pub fn remove(&mut self, context: ContextId, runner: RunnerId) {
        if let Entry::Occupied(mut count) = self.0.entry((context, runner)) {
            *count.get_mut() = count.get().saturating_sub(1);
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn of(&self, context: ContextId, runner: RunnerId) -> u64 {
        self.0.get(&(context, runner)).copied().unwrap_or_default()
    }
}

/// Candidates among the runners that a target names.
#[derive(Debug, Default)]
struct RunnerCandidates {
    any_named: bool,
    /// A runner that is sent no new jobs, and since when.
    drained: Option<(RunnerId, Timestamp)>,
    /// Runners that may be sent jobs and are not alive.
    dead: Vec<RunnerId>,
    any_live: bool,
}

/// The runners of one context, and how busy they are.
#[derive(Debug)]
pub struct ContextRunners<'a> {
    context: ContextId,
    runners: Option<&'a BTreeMap<RunnerId, RunnerView>>,
    load: &'a mut RunnerLoad,
}

impl ContextRunners<'_> {
    /// Selects the least loaded live runner that takes such a job, preferring runners that give the isolation
    /// that it demands. Where none gives it, the job goes to a runner that refuses it with that reason.
    ///
    /// # Errors
    /// Explains in one sentence why there is none; people see it beside the waiting node.
    pub fn select_runner(
        &mut self,
        script_type: ScriptType,
        target: &NodeTarget,
        isolation: Isolation,
    ) -> Result<RunnerId, String> {
        let group = target.group.as_ref().map(Name::as_str);
        let empty = BTreeMap::new();
        let named = self.runners.unwrap_or(&empty).values().filter(|view| {
            target.runner.is_none_or(|id| id == view.runner.id)
                && target.labels.iter().all(|label| view.runner.labels.get(label.0) == Some(label.1))
        });
        let mut seen = RunnerCandidates::default();
        let mut best: Option<(bool, u64, RunnerId)> = None;
        for view in named {
            if view.runner.deleted_at.is_some() {
                continue;
            }
            seen.any_named = true;
            if let Some(since) = view.runner.drained_at {
                seen.drained = Some((view.runner.id, since));
                continue;
            }
            match view.live {
                true => seen.any_live = true,
                false => seen.dead.push(view.runner.id),
            }
            let allowed =
                view.runner.script_types.is_empty() || view.runner.script_types.contains(&script_type);
            let group = group.or(view.runner.group.as_ref().map(Name::as_str));
            let offers = |isolation| {
                let presence = view.presence.as_ref();
                presence.is_some_and(|seen| seen.offers(script_type, group, target.instance, isolation))
            };
            if view.live && allowed && offers(Isolation::Basic) {
                let candidate =
                    (!offers(isolation), self.load.of(self.context, view.runner.id), view.runner.id);
                if best.is_none_or(|(lax, load, _)| (candidate.0, candidate.1) < (lax, load)) {
                    best = Some(candidate);
                }
            }
        }
        let Some((_, _, chosen)) = best else {
            return Err(self.why(script_type, target, &seen));
        };
        self.load.add(self.context, chosen);
        Ok(chosen)
    }

    /// The runner that is reached at this address, under this topic.
    #[must_use]
    pub fn runner_at(&self, address: &str, topic: &str) -> Option<RunnerId> {
        let mut views = self.runners?.values();
        let at = |view: &&RunnerView| {
            view.runner.deleted_at.is_none()
                && view.runner.topic == topic
                && view.runner.address.to_string() == address
        };
        views.find(at).map(|view| view.runner.id)
    }

    fn why(&self, script_type: ScriptType, target: &NodeTarget, seen: &RunnerCandidates) -> String {
        let context = self.context;
        if !seen.any_named {
            return match target.runner {
                Some(id) => format!("context {context} has no runner {id}"),
                None if target.labels.is_empty() => format!("context {context} has no runner"),
                None => format!("no runner of context {context} carries the labels asked for"),
            };
        }
        if let Some((runner, since)) = seen.drained.filter(|_| !seen.any_live && seen.dead.is_empty()) {
            let since = since.rfc3339();
            return match target.runner {
                Some(_) => format!("runner {runner} of context {context} is drained since {since}"),
                None => format!(
                    "runners of context {context} that may be meant are drained, runner {runner} since {since}"
                ),
            };
        }
        if !seen.any_live {
            return match target.runner {
                Some(id) => format!("runner {id} of context {context}, which it is meant for, is not alive"),
                None if target.labels.is_empty() => {
                    format!(
                        "no runner of context {context} that takes jobs is alive; there are {}",
                        listed(&seen.dead)
                    )
                }
                None => format!(
                    "no runner of context {context} that carries the labels asked for is alive; there are {}",
                    listed(&seen.dead)
                ),
            };
        }
        let place = match (&target.group, target.instance) {
            (Some(group), Some(number)) => format!(" in instance {number} of group {group}"),
            (Some(group), None) => format!(" in group {group}"),
            _ => String::new(),
        };
        match target.runner {
            Some(id) => format!(
                "runner {id} of context {context}, which it is meant for, offers no {script_type}{place}"
            ),
            None => format!("no live runner of context {context} offers {script_type}{place}"),
        }
    }
}

/// Some of these runners, by their numbers.
fn listed(runners: &[RunnerId]) -> String {
    let named: Vec<String> = runners.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let named = named.join(", ");
    match runners.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use model::{EnvelopeForm, InstanceInfo, Presence, Revision, Runner};

    pub(crate) fn view(id: u32, live: bool, types: &[ScriptType]) -> RunnerView {
        let group: Name = "default".parse().expect("a name");
        RunnerView {
            runner: Runner {
                id: RunnerId(id),
                pubkey: String::new(),
                address: "grpc://127.0.0.1:1".parse().expect("an address"),
                topic: "supervisor.rpc".into(),
                signing_key: String::new(),
                script_types: Vec::new(),
                group: None,
                labels: BTreeMap::new(),
                local: false,
                envelope: EnvelopeForm::Signed,
                secret_ref: String::new(),
                created_at: Timestamp::default(),
                updated_at: Timestamp::default(),
                drained_at: None,
                deleted_at: None,
                revision: Revision(1),
            },
            presence: Some(Presence {
                supervisor: "s".into(),
                version: "0".into(),
                instances: types
                    .iter()
                    .map(|script_type| InstanceInfo {
                        script_type: *script_type,
                        group: group.clone(),
                        number: 1,
                        slots: 1,
                        busy: 0,
                        isolation: model::Isolation::Basic,
                        layers: Vec::new(),
                        version: "0".into(),
                    })
                    .collect(),
                queued: 0,
                draining: false,
            }),
            last_seen: None,
            live,
        }
    }

    #[test]
    fn a_runner_with_nothing_to_do_is_forgotten() {
        let mut load = RunnerLoad::default();
        for runner in (1..=3).map(RunnerId) {
            load.add(ContextId(1), runner);
            load.add(ContextId(1), runner);
            load.remove(ContextId(1), runner);
            assert_eq!(load.of(ContextId(1), runner), 1);
            load.remove(ContextId(1), runner);
            load.remove(ContextId(1), runner);
        }
        assert!(load.is_empty());
    }

    #[test]
    fn the_least_loaded_live_runner_is_chosen() {
        let mut table = RunnerTable::default();
        assert!(table.update(ContextId(1), view(1, true, &[ScriptType::Shell])));
        assert!(table.update(ContextId(1), view(2, true, &[ScriptType::Shell])));
        assert!(!table.update(ContextId(1), view(2, true, &[ScriptType::Shell])), "nothing new is offered");
        table.update(ContextId(1), view(3, false, &[ScriptType::Shell, ScriptType::Rhai]));
        let mut load = RunnerLoad::default();
        let mut runners = table.of(ContextId(1), &mut load);
        let target = NodeTarget::default();
        let chosen: Vec<_> =
            (0..4).map(|_| runners.select_runner(ScriptType::Shell, &target, Isolation::Basic)).collect();
        assert_eq!(chosen, [Ok(RunnerId(1)), Ok(RunnerId(2)), Ok(RunnerId(1)), Ok(RunnerId(2))]);
        let why = runners
            .select_runner(ScriptType::Rhai, &target, Isolation::Basic)
            .expect_err("its only runner is dead");
        assert_eq!(why, "no live runner of context 1 offers rhai");
        let meant = |id| NodeTarget { runner: Some(RunnerId(id)), ..NodeTarget::default() };
        assert_eq!(
            runners.select_runner(ScriptType::Shell, &meant(3), Isolation::Basic),
            Err("runner 3 of context 1, which it is meant for, is not alive".into())
        );
        assert_eq!(
            runners.select_runner(ScriptType::Rhai, &meant(2), Isolation::Basic),
            Err("runner 2 of context 1, which it is meant for, offers no rhai".into())
        );
        let mut all_dead = RunnerTable::default();
        for id in 1..=7 {
            all_dead.update(ContextId(1), view(id, false, &[ScriptType::Shell]));
        }
        assert_eq!(
            all_dead.of(ContextId(1), &mut RunnerLoad::default()).select_runner(
                ScriptType::Shell,
                &target,
                Isolation::Basic
            ),
            Err("no runner of context 1 that takes jobs is alive; there are 1, 2, 3, 4, 5 and 2 more".into())
        );
        let elsewhere = NodeTarget { runner: Some(RunnerId(9)), ..NodeTarget::default() };
        assert_eq!(
            runners.select_runner(ScriptType::Shell, &elsewhere, Isolation::Basic),
            Err("context 1 has no runner 9".into())
        );
        let why =
            table.of(ContextId(2), &mut load).select_runner(ScriptType::Shell, &target, Isolation::Basic);
        assert_eq!(why, Err("context 2 has no runner".into()));
    }

    #[test]
    fn a_runner_that_is_drained_or_deleted_is_sent_nothing_new() {
        let mut table = RunnerTable::default();
        let at = |drained_at, deleted_at| {
            let mut view = view(1, true, &[ScriptType::Shell]);
            (view.runner.drained_at, view.runner.deleted_at) = (drained_at, deleted_at);
            view
        };
        let place = |table: &RunnerTable, runner| {
            let target = NodeTarget { runner, ..NodeTarget::default() };
            table.of(ContextId(1), &mut RunnerLoad::default()).select_runner(
                ScriptType::Shell,
                &target,
                Isolation::Basic,
            )
        };
        let (one, then) = (Some(RunnerId(1)), Some(Timestamp::from_millis(0)));
        assert!(!table.update(ContextId(1), at(then, None)));
        let why = "runner 1 of context 1 is drained since 1970-01-01T00:00:00Z";
        assert_eq!(place(&table, one), Err(why.into()));
        assert!(place(&table, None).expect_err("it is the only one").contains("runner 1 since 1970"));
        table.update(ContextId(1), view(2, true, &[ScriptType::Shell]));
        assert_eq!((place(&table, None), place(&table, one)), (Ok(RunnerId(2)), Err(why.into())));
        assert!(table.update(ContextId(1), at(None, None)), "those that wait are looked at again");
        assert_eq!(place(&table, one), Ok(RunnerId(1)));
        table.update(ContextId(1), at(None, then));
        assert_eq!(place(&table, one), Err("context 1 has no runner 1".into()));
    }

    #[test]
    fn a_drained_machine_offers_nothing_until_it_takes_jobs_again() {
        let mut table = RunnerTable::default();
        let drained = |draining| {
            let mut view = view(1, true, &[ScriptType::Shell]);
            view.presence.as_mut().expect("it was heard").draining = draining;
            view
        };
        assert!(table.update(ContextId(1), drained(false)));
        table.update(ContextId(1), drained(true));
        let mut load = RunnerLoad::default();
        let mut place = |table: &RunnerTable| {
            table.of(ContextId(1), &mut load).select_runner(
                ScriptType::Shell,
                &NodeTarget::default(),
                Isolation::Basic,
            )
        };
        assert_eq!(place(&table), Err("no live runner of context 1 offers shell".into()));
        assert!(table.update(ContextId(1), drained(false)), "those that wait are looked at again");
        assert_eq!(place(&table), Ok(RunnerId(1)));
    }
}
