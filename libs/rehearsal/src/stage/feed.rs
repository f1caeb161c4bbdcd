//! One input on its way through the core.

use workflow::Json;
use workflow::input::{Input, Verb, What};
use workflow::instance::{Entry, Purpose, Record};
use workflow::message::{self, Position};
use workflow::receive::Received;
use workflow::step::{self, Change, Fate, Ordered, Origin, WorkItem};

use super::{Fed, Key, Moment, Stage, Work, show};
use crate::scenario::Stimulus;

impl Stage<'_> {
    /// Receives an event, as it stands in its stream.
    pub(super) fn event(
        &mut self,
        key: Key,
        kind: &str,
        aggregate: &(String, String),
        body: &Json,
        number: usize,
    ) {
        let position = Position {
            incarnation: self.scenario.begin.as_millis(),
            sequence: u64::try_from(number).unwrap_or(u64::MAX).saturating_add(1),
        };
        let (tenant, text) = (&self.scenario.tenant, body.to_string());
        let aggregate = (aggregate.0.as_str(), aggregate.1.as_str());
        let message = match message::read_event(text.as_bytes(), tenant, aggregate, position) {
            Ok(message) => message,
            Err(why) => {
                self.run.problems.push(format!("the event `{kind}` cannot be read: {why}"));
                return;
            }
        };
        match self.saga().receive(message, model::Timestamp::from_millis(self.now)) {
            Received::Input(correlation, input) if correlation == self.scenario.correlation => {
                self.feed(key, *input);
            }
            Received::Input(correlation, _) => {
                let own = &self.scenario.correlation;
                let problem = format!(
                    "the event `{kind}` is of the correlation `{correlation}`, the scenario of `{own}`"
                );
                self.run.problems.push(problem);
            }
            Received::Ignored(why) => {
                self.run.ignored.push(kind.to_owned());
                self.note(&format!("event {kind}"), format!("ignored: {why}"), Vec::new());
            }
            Received::Dead { correlation, code, why } => {
                let parks = correlation.is_some();
                let change = step::bury(self.record.as_ref(), code, &why, parks, Origin::Fresh);
                // Behind others it waits for its turn, and is told all the same: it will be one.
                if matches!(change.fate, Fate::Dead(_)) {
                    self.record = change.record;
                }
                self.letter(code, &why);
                self.note(&format!("event {kind}"), format!("dead letter {code}: {why}"), Vec::new());
            }
        }
    }

    /// Gives an input, as far as it has not been seen, and what it lets through.
    pub(super) fn take(&mut self, key: &Key, input: &Input) {
        let shown = show::input(&input.what, &self.run.work);
        let is_event = matches!(input.what, What::Event(_));
        let digest = input.id().digest();
        if is_event && self.seen.contains(&digest) {
            self.note(&shown, "known already".to_owned(), Vec::new());
            return;
        }
        self.run.fed.push(Fed { key: key.clone(), shown: shown.clone(), is_event });
        let fate = self.apply(key, input, Origin::Fresh, &shown);
        match &fate {
            Fate::Later(_) => {
                if let What::Timer { name, generation } = &input.what {
                    self.later.insert((name.clone(), *generation));
                }
                return;
            }
            Fate::NoRoom => self.run.problems.push(format!("there is no room for {shown}")),
            _ => {}
        }
        if is_event && fate != Fate::NoRoom {
            self.seen.insert(digest);
        }
        self.check_refusal(key, &shown, &fate);
        self.later.clear();
        self.drain(key);
    }

    /// Gives what was held back, once nothing holds it back any more.
    fn drain(&mut self, key: &Key) {
        while let Some(record) = &self.record
            && !record.holds_back()
            && !record.held.is_empty()
            && record.instance().is_some()
        {
            let number = record.held.first;
            let Some(input) = self.held.get(&number).cloned() else { return };
            let shown = format!("{} (was held back)", show::input(&input.what, &self.run.work));
            self.apply(key, &input, Origin::Held(number), &shown);
            if self.held.contains_key(&number) {
                return;
            }
        }
    }

    fn apply(&mut self, key: &Key, input: &Input, origin: Origin, shown: &str) -> Fate {
        let change = self.change(input, origin);
        let before = self.saga();
        if matches!((&input.what, &change.fate), (What::Verb { verb: Verb::Migrate, .. }, Fate::Applied)) {
            let way = change.journal.iter().filter_map(|row| self.scenario.version(row.definition?));
            way.for_each(|saga| self.laws.migrated(saga));
        }
        let after = change.record.as_ref().and_then(Record::definition);
        let saga = after.and_then(|hash| self.scenario.version(hash)).map_or(before, |saga| saga);
        self.laws.observe(saga, self.record.as_ref(), input, &change);
        let before = self.record.take();
        self.keep(input, origin, before.as_ref(), &change);
        for (name, timer) in change.timers(before.as_ref()).set {
            self.run.timers.push((name.to_owned(), timer.generation, key.clone()));
        }
        self.record.clone_from(&change.record);
        self.run.journal.extend(change.journal.iter().cloned());
        if let (Fate::Ignored(_), What::Event(event)) = (&change.fate, &input.what) {
            self.run.ignored.push(event.kind.clone());
        }
        let mut works = Vec::new();
        for item in &change.work {
            let work = self.work(item, key);
            works.push(show::work(&work));
            let number = self.run.work.len();
            self.run.work.push(work.clone());
            match &item.what {
                Ordered::Cancel { of, .. } => self.call_off(number, *of),
                Ordered::Effect { .. } | Ordered::Command { .. } => self.answer(number, &work),
            }
        }
        self.note(shown, show::fate(&change.fate), works);
        change.fate
    }

    /// Computes what follows from an input.
    fn change(&self, input: &Input, origin: Origin) -> Change {
        match (&input.what, &self.record) {
            (What::Verb { verb: Verb::Migrate, .. }, Some(record)) => {
                step::migrate(&self.scenario.versions, self.whose(), record, input, &self.kept)
            }
            (_, record) => step::apply(self.saga(), self.whose(), record.as_ref(), input, origin, &self.kept),
        }
    }

    /// Keeps what a store keeps beside the record.
    fn keep(&mut self, input: &Input, origin: Origin, before: Option<&Record>, change: &Change) {
        for number in &change.taken {
            self.kept.remove(number);
        }
        self.kept.extend(change.kept.iter().cloned());
        if let Origin::Held(number) = origin
            && change.record.as_ref().is_none_or(|record| record.held.first > number)
        {
            self.held.remove(&number);
        }
        if let Fate::Held(number) = &change.fate {
            self.held.insert(*number, input.clone());
        }
        if let Fate::Dead(letter) = &change.fate {
            self.letter(&letter.code, &letter.why);
        }
        for (letter, _) in &change.letters {
            self.letter(&letter.code, &letter.why);
        }
        let has_ended = |record: &Record| matches!(record.entry, Entry::Ended(_));
        if change.record.as_ref().is_some_and(has_ended) && !before.is_some_and(has_ended) {
            self.held.clear();
        }
    }

    fn letter(&mut self, code: &str, why: &str) {
        self.run.letters.push((code.to_owned(), why.to_owned()));
    }

    fn work(&self, item: &WorkItem, cause: &Key) -> Work {
        let open = self.record.as_ref().and_then(Record::instance);
        let open = open.and_then(|instance| instance.open.get(&item.command));
        let (name, is_effect, input, aggregate) = match &item.what {
            Ordered::Effect { effect, input } => (effect.to_string(), true, input.clone(), None),
            Ordered::Cancel { effect, .. } => (effect.to_string(), true, Json::Null, None),
            Ordered::Command { aggregate, id, kind, payload } => {
                (kind.clone(), false, payload.clone(), Some((aggregate.clone(), id.clone())))
            }
        };
        Work {
            command: item.command,
            name,
            is_cancel: matches!(item.what, Ordered::Cancel { .. }),
            is_effect,
            input,
            aggregate,
            purpose: open.map_or(Purpose::Forward, |open| open.purpose),
            cause: cause.clone(),
        }
    }

    /// Compares how a verb ended with what the scenario says of it.
    fn check_refusal(&mut self, key: &Key, shown: &str, fate: &Fate) {
        let Key::Given(number) = key else { return };
        let given = self.scenario.given.get(*number);
        let Some(Stimulus::Verb { refused, .. }) = given.map(|given| &given.what) else { return };
        match (refused, fate) {
            (None, Fate::Refused(found)) => {
                self.run.problems.push(format!("{shown} is refused: {}: {found}", found.reason));
            }
            (Some(expected), Fate::Refused(found)) if *expected != found.reason => {
                let found = &found.reason;
                self.run.problems.push(format!("{shown}: expected the refusal {expected}, found {found}"));
            }
            (Some(expected), fate) if !matches!(fate, Fate::Refused(_)) => {
                let fate = show::fate(fate);
                self.run.problems.push(format!("{shown}: expected the refusal {expected}, found {fate}"));
            }
            _ => {}
        }
    }

    pub(super) fn note(&mut self, input: &str, fate: String, work: Vec<String>) {
        let (status, step) = show::place(self.record.as_ref());
        let at_ms = self.elapsed();
        self.run.timeline.push(Moment { at_ms, input: input.to_owned(), fate, status, step, work });
    }
}
