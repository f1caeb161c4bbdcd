//! What was read and still holds. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use model::{ActorId, ContextId};
use rpc::{KnownActor, Membership};

/// Actors that are remembered.
const ACTORS_MAX: usize = 65_536;
/// Roles that are remembered.
const ROLES_MAX: usize = 262_144;

/// What may not hold any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Anything; from now on every change is heard.
    Everything,
    /// Anything, and nothing is heard until [`News::Everything`] comes.
    Silence,
    /// What was said of this actor.
    Actor(ActorId),
    /// What was said of this context.
    Context(ContextId),
}

/// How often something was heard before an answer was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked(u64);

/// The memory.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// Whether changes are heard.
    stands: bool,
    heard: u64,
    actors: HashMap<ActorId, Arc<KnownActor>>,
    roles: HashMap<ContextId, HashMap<ActorId, Membership>>,
    roles_count: usize,
}

impl View {
    /// Takes note of a change.
    pub(crate) fn hear(&mut self, news: News) {
        self.heard += 1;
        match news {
            News::Everything | News::Silence => {
                self.stands = news == News::Everything;
                self.actors.clear();
                self.forget_roles();
            }
            News::Actor(id) => drop(self.actors.remove(&id)),
            News::Context(id) => {
                self.roles_count -= self.roles.remove(&id).map_or(0, |roles| roles.len());
            }
        }
    }

    /// Before something is read elsewhere.
    pub(crate) const fn ask(&self) -> Asked {
        Asked(self.heard)
    }

    /// An actor that is remembered.
    pub(crate) fn actor(&self, id: ActorId) -> Option<Arc<KnownActor>> {
        self.actors.get(&id).cloned()
    }

    /// A role that is remembered.
    pub(crate) fn role(&self, context: ContextId, actor: ActorId) -> Option<Membership> {
        self.roles.get(&context)?.get(&actor).copied()
    }

    /// Remembers an actor, unless something was heard meanwhile: that may have been about it. That there is none is not
    /// remembered: whoever was just registered is let in at once.
    pub(crate) fn keep_actor(&mut self, asked: Asked, id: ActorId, actor: &Arc<KnownActor>) {
        if !self.may_keep(asked) {
            return;
        }
        if self.actors.len() >= ACTORS_MAX {
            self.actors.clear();
        }
        self.actors.insert(id, Arc::clone(actor));
    }

    /// The same for a role.
    pub(crate) fn keep_role(&mut self, asked: Asked, context: ContextId, actor: ActorId, role: Membership) {
        if !self.may_keep(asked) || role.role.is_none() {
            return;
        }
        if self.roles_count >= ROLES_MAX {
            self.forget_roles();
        }
        let before = self.roles.entry(context).or_default().insert(actor, role);
        self.roles_count += usize::from(before.is_none());
    }

    fn may_keep(&self, asked: Asked) -> bool {
        self.stands && asked == self.ask()
    }

    fn forget_roles(&mut self) {
        self.roles.clear();
        self.roles_count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Role;

    const ALICE: ActorId = ActorId(1);
    const BOB: ActorId = ActorId(2);
    const HERE: ContextId = ContextId(1);
    const THERE: ContextId = ContextId(2);

    fn actor() -> Arc<KnownActor> {
        Arc::new(KnownActor { keys: Vec::new(), certificates_not_before: None })
    }

    fn reader() -> Membership {
        Membership { role: Some(Role::Reader), is_deleting: false }
    }

    fn full() -> View {
        let mut view = View::default();
        view.hear(News::Everything);
        for id in [ALICE, BOB] {
            view.keep_actor(view.ask(), id, &actor());
            for context in [HERE, THERE] {
                view.keep_role(view.ask(), context, id, reader());
            }
        }
        view
    }

    fn known(view: &View) -> (usize, usize) {
        let roles = [HERE, THERE].into_iter().flat_map(|context| [ALICE, BOB].map(|id| (context, id)));
        let roles = roles.filter(|(context, id)| view.role(*context, *id).is_some()).count();
        assert_eq!(view.roles_count, roles);
        ([ALICE, BOB].into_iter().filter(|id| view.actor(*id).is_some()).count(), roles)
    }

    #[test]
    fn what_changes_is_forgotten_and_nothing_else() {
        let cases = [
            (News::Actor(ALICE), (1, 4)),
            (News::Context(HERE), (2, 2)),
            (News::Everything, (0, 0)),
            (News::Silence, (0, 0)),
        ];
        for (news, left) in cases {
            let mut view = full();
            assert_eq!(known(&view), (2, 4));
            view.hear(news);
            assert_eq!(known(&view), left, "{news:?}");
        }
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept() {
        let mut view = View::default();
        view.hear(News::Everything);
        let asked = view.ask();
        view.hear(News::Actor(BOB));
        view.keep_actor(asked, ALICE, &actor());
        view.keep_role(asked, HERE, ALICE, reader());
        assert_eq!(known(&view), (0, 0));
    }

    #[test]
    fn nothing_is_kept_while_nothing_is_heard() {
        let mut view = View::default();
        view.keep_actor(view.ask(), ALICE, &actor());
        assert_eq!(known(&view), (0, 0), "before the first news");
        let mut view = full();
        view.hear(News::Silence);
        view.keep_actor(view.ask(), ALICE, &actor());
        view.keep_role(view.ask(), HERE, ALICE, reader());
        assert_eq!(known(&view), (0, 0));
    }

    #[test]
    fn nobody_is_not_remembered() {
        let mut view = View::default();
        view.hear(News::Everything);
        view.keep_role(view.ask(), HERE, ALICE, Membership::default());
        assert_eq!(known(&view), (0, 0));
    }
}
