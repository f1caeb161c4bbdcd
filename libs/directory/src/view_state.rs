//! State of a view: answers that were read and still hold. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use model::{ActorId, ContextId};
use rpc::{DirectorySubject, KnownActor, Membership};

/// Actors that are remembered.
const ACTORS_MAX: usize = 65_536;
/// Roles that are remembered.
const ROLES_MAX: usize = 262_144;
/// Subjects whose last change is remembered.
const CHANGED_MAX: usize = 4096;

/// Change after which earlier answers may not hold any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryInvalidation {
    /// Any answer; from now on every change is received.
    FeedRestored,
    /// Any answer, and no change is received until [`DirectoryInvalidation::FeedRestored`] comes.
    FeedLost,
    /// Answers about one actor.
    Actor(ActorId),
    /// Answers about one context.
    Context(ContextId),
}

/// Number of changes that were received before a question was sent to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ViewGeneration(u64);

/// The memory.
#[derive(Debug, Default)]
pub(crate) struct DirectoryViewState {
    /// True while changes are received.
    is_live: bool,
    generation: u64,
    /// Lowest generation of a request whose answer may be kept, whatever it is about.
    floor: u64,
    /// Generation of the last change of each subject since then.
    changed: HashMap<DirectorySubject, u64>,
    actors: HashMap<ActorId, Arc<KnownActor>>,
    roles: HashMap<ContextId, HashMap<ActorId, Membership>>,
    roles_count: usize,
}

impl DirectoryViewState {
    /// Applies a change. Returns whether earlier answers may not hold any more because of it. A repeated loss of the feed returns
    /// false: nothing was kept while the feed was lost.
    pub(crate) fn invalidate(&mut self, invalidation: DirectoryInvalidation) -> bool {
        if invalidation == DirectoryInvalidation::FeedLost && !self.is_live {
            return false;
        }
        self.generation += 1;
        match invalidation {
            DirectoryInvalidation::FeedRestored | DirectoryInvalidation::FeedLost => {
                self.is_live = invalidation == DirectoryInvalidation::FeedRestored;
                self.forget_when();
                self.actors.clear();
                self.forget_roles();
            }
            DirectoryInvalidation::Actor(id) => {
                self.actors.remove(&id);
                self.note(DirectorySubject::Actor(id));
            }
            DirectoryInvalidation::Context(id) => {
                self.roles_count -= self.roles.remove(&id).map_or(0, |roles| roles.len());
                self.note(DirectorySubject::Context(id));
            }
        }
        true
    }

    /// Remembers the generation of a subject's last change.
    fn note(&mut self, subject: DirectorySubject) {
        if self.changed.len() >= CHANGED_MAX {
            self.forget_when();
        }
        self.changed.insert(subject, self.generation);
    }

    fn forget_when(&mut self) {
        self.changed.clear();
        self.floor = self.generation;
    }

    /// Returns the generation to pass to `keep_*` with an answer; called before the source is read.
    pub(crate) const fn current_generation(&self) -> ViewGeneration {
        ViewGeneration(self.generation)
    }

    /// An actor that is remembered.
    pub(crate) fn actor(&self, id: ActorId) -> Option<Arc<KnownActor>> {
        self.actors.get(&id).cloned()
    }

    /// A role that is remembered.
    pub(crate) fn role(&self, context: ContextId, actor: ActorId) -> Option<Membership> {
        self.roles.get(&context)?.get(&actor).copied()
    }

    /// Remembers an actor, unless a change of it came meanwhile: what was read may be older than that change. That an actor does not
    /// exist is not remembered, so that one that was just registered is let in at once.
    pub(crate) fn keep_actor(&mut self, generation: ViewGeneration, id: ActorId, actor: &Arc<KnownActor>) {
        if !self.may_keep(generation, DirectorySubject::Actor(id)) {
            return;
        }
        if self.actors.len() >= ACTORS_MAX {
            self.actors.clear();
        }
        self.actors.insert(id, Arc::clone(actor));
    }

    /// Remembers a role, unless its context changed meanwhile. That there is none is not remembered.
    pub(crate) fn keep_role(
        &mut self,
        generation: ViewGeneration,
        context: ContextId,
        actor: ActorId,
        role: Membership,
    ) {
        if !self.may_keep(generation, DirectorySubject::Context(context)) || role.role.is_none() {
            return;
        }
        if self.roles_count >= ROLES_MAX {
            self.forget_roles();
        }
        let before = self.roles.entry(context).or_default().insert(actor, role);
        self.roles_count += usize::from(before.is_none());
    }

    fn may_keep(&self, ViewGeneration(generation): ViewGeneration, subject: DirectorySubject) -> bool {
        self.is_live
            && generation >= self.floor
            && self.changed.get(&subject).is_none_or(|changed_at| *changed_at <= generation)
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

    fn full() -> DirectoryViewState {
        let mut view = DirectoryViewState::default();
        view.invalidate(DirectoryInvalidation::FeedRestored);
        for id in [ALICE, BOB] {
            view.keep_actor(view.current_generation(), id, &actor());
            for context in [HERE, THERE] {
                view.keep_role(view.current_generation(), context, id, reader());
            }
        }
        view
    }

    fn known(view: &DirectoryViewState) -> (usize, usize) {
        let roles = [HERE, THERE].into_iter().flat_map(|context| [ALICE, BOB].map(|id| (context, id)));
        let roles = roles.filter(|(context, id)| view.role(*context, *id).is_some()).count();
        assert_eq!(view.roles_count, roles);
        ([ALICE, BOB].into_iter().filter(|id| view.actor(*id).is_some()).count(), roles)
    }

    #[test]
    fn what_changes_is_forgotten_and_nothing_else() {
        let cases = [
            (DirectoryInvalidation::Actor(ALICE), (1, 4)),
            (DirectoryInvalidation::Context(HERE), (2, 2)),
            (DirectoryInvalidation::FeedRestored, (0, 0)),
            (DirectoryInvalidation::FeedLost, (0, 0)),
        ];
        for (invalidation, left) in cases {
            let mut view = full();
            assert_eq!(known(&view), (2, 4));
            assert!(view.invalidate(invalidation));
            assert_eq!(known(&view), left, "{invalidation:?}");
        }
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept() {
        let mut view = DirectoryViewState::default();
        view.invalidate(DirectoryInvalidation::FeedRestored);
        let generation = view.current_generation();
        view.invalidate(DirectoryInvalidation::Actor(BOB));
        view.invalidate(DirectoryInvalidation::Context(HERE));
        for id in [ALICE, BOB] {
            view.keep_actor(generation, id, &actor());
            view.keep_role(generation, HERE, id, reader());
            view.keep_role(generation, THERE, id, reader());
        }
        assert_eq!(known(&view), (1, 2), "changes of others do not matter");
        assert!(view.actor(ALICE).is_some() && view.role(THERE, BOB).is_some());
        // This answer was read after the change.
        view.keep_actor(view.current_generation(), BOB, &actor());
        assert_eq!(known(&view), (2, 2));
        let generation = view.current_generation();
        view.invalidate(DirectoryInvalidation::FeedRestored);
        view.keep_actor(generation, ALICE, &actor());
        assert_eq!(known(&view), (0, 0));
    }

    #[test]
    fn what_is_forgotten_of_changes_is_taken_for_one() {
        let mut view = DirectoryViewState::default();
        view.invalidate(DirectoryInvalidation::FeedRestored);
        let generation = view.current_generation();
        for id in 10..=10 + u32::try_from(CHANGED_MAX).expect("small") {
            view.invalidate(DirectoryInvalidation::Actor(ActorId(id)));
        }
        assert!(view.changed.len() <= CHANGED_MAX);
        view.keep_actor(generation, ActorId(10), &actor());
        view.keep_actor(generation, ALICE, &actor());
        assert_eq!((known(&view), view.actors.len()), ((0, 0), 0));
        view.keep_actor(view.current_generation(), ALICE, &actor());
        assert_eq!(known(&view), (1, 0));
    }

    #[test]
    fn a_lost_feed_invalidates_the_view_once() {
        let mut view = full();
        assert!(view.invalidate(DirectoryInvalidation::FeedLost));
        assert!(!view.invalidate(DirectoryInvalidation::FeedLost), "there is nothing that it could end");
        assert!(
            view.invalidate(DirectoryInvalidation::FeedRestored)
                && view.invalidate(DirectoryInvalidation::FeedRestored)
        );
    }

    #[test]
    fn nothing_is_kept_while_the_feed_is_lost() {
        let mut view = DirectoryViewState::default();
        view.keep_actor(view.current_generation(), ALICE, &actor());
        assert_eq!(known(&view), (0, 0), "before the first news");
        let mut view = full();
        view.invalidate(DirectoryInvalidation::FeedLost);
        view.keep_actor(view.current_generation(), ALICE, &actor());
        view.keep_role(view.current_generation(), HERE, ALICE, reader());
        assert_eq!(known(&view), (0, 0));
    }

    #[test]
    fn a_missing_role_is_not_remembered() {
        let mut view = DirectoryViewState::default();
        view.invalidate(DirectoryInvalidation::FeedRestored);
        view.keep_role(view.current_generation(), HERE, ALICE, Membership::default());
        assert_eq!(known(&view), (0, 0));
    }
}
