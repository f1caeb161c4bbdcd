//! Who is told when something that was said may not hold any more.

use std::collections::HashMap;

use rpc::{Hearing, Subject};
use tokio::sync::watch;

use crate::view::News;

/// Subjects that are kept before those are looked for that nobody listens to any more.
const SWEPT_FROM: usize = 64;

/// Those who lean on what was said, each told of what concerns it and of nothing else: there may be thousands of streams,
/// and somebody may change all the time.
#[derive(Debug)]
pub(crate) struct Listeners {
    hearing: Hearing,
    by_subject: HashMap<Subject, watch::Sender<Hearing>>,
    /// How many subjects there are when the next search is due.
    sweep_at: usize,
}

impl Default for Listeners {
    fn default() -> Self {
        Self { hearing: Hearing::Silence, by_subject: HashMap::new(), sweep_at: SWEPT_FROM }
    }
}

impl Listeners {
    /// Changes when this was said to have changed, or may have.
    pub(crate) fn listen(&mut self, subject: Subject) -> watch::Receiver<Hearing> {
        if self.by_subject.len() >= self.sweep_at {
            self.sweep();
        }
        let hearing = self.hearing;
        self.by_subject.entry(subject).or_insert_with(|| watch::Sender::new(hearing)).subscribe()
    }

    /// Wakes those whom it concerns.
    pub(crate) fn tell(&mut self, news: News) {
        match news {
            News::Everything => self.tell_all(Hearing::Changes),
            News::Silence => self.tell_all(Hearing::Silence),
            News::Actor(id) => self.tell_of(Subject::Actor(id)),
            News::Context(id) => self.tell_of(Subject::Context(id)),
        }
    }

    fn tell_of(&self, subject: Subject) {
        if let Some(listeners) = self.by_subject.get(&subject) {
            listeners.send_replace(self.hearing);
        }
    }

    fn tell_all(&mut self, hearing: Hearing) {
        self.hearing = hearing;
        self.sweep();
        for listeners in self.by_subject.values() {
            listeners.send_replace(hearing);
        }
    }

    /// Forgets subjects that nobody listens to. Twice as many may come before the next time, so that it costs nothing to speak
    /// of.
    fn sweep(&mut self) {
        self.by_subject.retain(|_, listeners| listeners.receiver_count() > 0);
        self.sweep_at = SWEPT_FROM.max(2 * self.by_subject.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ActorId, ContextId};

    #[test]
    fn only_those_whom_it_concerns_are_told() {
        let mut listeners = Listeners::default();
        let mut alice = listeners.listen(Subject::Actor(ActorId(1)));
        let mut bob = listeners.listen(Subject::Actor(ActorId(2)));
        let mut here = listeners.listen(Subject::Context(ContextId(1)));
        let mut told = |listeners: &mut Listeners, news| {
            listeners.tell(news);
            [&mut alice, &mut bob, &mut here].map(|listener| {
                let told = listener.has_changed().expect("the sender is there");
                told.then(|| *listener.borrow_and_update())
            })
        };
        let all = |hearing| [Some(hearing); 3];
        assert_eq!(told(&mut listeners, News::Everything), all(Hearing::Changes));
        assert_eq!(told(&mut listeners, News::Actor(ActorId(2))), [None, Some(Hearing::Changes), None]);
        assert_eq!(told(&mut listeners, News::Context(ContextId(1))), [None, None, Some(Hearing::Changes)]);
        assert_eq!(told(&mut listeners, News::Actor(ActorId(3))), [None; 3]);
        assert_eq!(told(&mut listeners, News::Silence), all(Hearing::Silence));
    }

    #[test]
    fn subjects_that_nobody_listens_to_are_forgotten() {
        let mut listeners = Listeners::default();
        let kept = listeners.listen(Subject::Actor(ActorId(0)));
        for id in 1..100_000 {
            drop(listeners.listen(Subject::Actor(ActorId(id))));
            assert!(listeners.by_subject.len() <= SWEPT_FROM);
        }
        listeners.tell(News::Everything);
        assert_eq!(listeners.by_subject.len(), 1);
        assert_eq!(*kept.borrow(), Hearing::Changes);
    }
}
