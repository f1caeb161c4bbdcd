//! Processing of one input by the core.

use workflow::Json;
use workflow::input::{InstanceInput, InstanceInputKind, Verb};
use workflow::instance::{CommandPurpose, CorrelationEntry, CorrelationRecord};
use workflow::message::{self, MessagePosition};
use workflow::receive::EventDisposition;
use workflow::step::{self, InputDisposition, InputOrigin, SagaTransition, WorkItem, WorkPayload};

use super::{RunInput, RunInputKey, RunTimelineEntry, RunWork, ScenarioPlayer, display};
use crate::scenario::Stimulus;

impl ScenarioPlayer<'_> {
    /// Receives an event, as it stands in its stream.
    pub(super) fn event(
        &mut self,
        key: RunInputKey,
        kind: &str,
        aggregate: &(String, String),
        body: &Json,
        number: usize,
    ) {
        let position = MessagePosition {
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
            EventDisposition::Input(correlation, input) if correlation == self.scenario.correlation => {
                self.feed(key, *input);
            }
            EventDisposition::Input(correlation, _) => {
                let own = &self.scenario.correlation;
                let problem = format!(
                    "the event `{kind}` is of the correlation `{correlation}`, the scenario of `{own}`"
                );
                self.run.problems.push(problem);
            }
            EventDisposition::Ignored(why) => {
                self.run.ignored.push(kind.to_owned());
                self.note(&format!("event {kind}"), format!("ignored: {why}"), Vec::new());
            }
            EventDisposition::DeadLetter { correlation, code, why } => {
                let parks = correlation.is_some();
                let change = step::dead_letter(self.record.as_ref(), code, &why, parks, InputOrigin::Fresh);
                // Behind held inputs the message waits for its turn, but is reported already: it will become a dead letter.
                if matches!(change.fate, InputDisposition::DeadLetter(_)) {
                    self.record = change.record;
                }
                self.letter(code, &why);
                self.note(&format!("event {kind}"), format!("dead letter {code}: {why}"), Vec::new());
            }
        }
    }

    /// Gives an input that has not been seen yet, and the inputs that it releases.
    pub(super) fn take(&mut self, key: &RunInputKey, input: &InstanceInput) {
        let shown = display::input(&input.what, &self.run.work);
        let is_event = matches!(input.what, InstanceInputKind::Event(_));
        let digest = input.id().digest();
        if is_event && self.seen.contains(&digest) {
            self.note(&shown, "known already".to_owned(), Vec::new());
            return;
        }
        self.run.inputs.push(RunInput { key: key.clone(), shown: shown.clone(), is_event });
        let fate = self.apply(key, input, InputOrigin::Fresh, &shown);
        match &fate {
            InputDisposition::Later(_) => {
                if let InstanceInputKind::Timer { name, generation } = &input.what {
                    self.later.insert((name.clone(), *generation));
                }
                return;
            }
            InputDisposition::NoRoom => self.run.problems.push(format!("there is no room for {shown}")),
            _ => {}
        }
        if is_event && fate != InputDisposition::NoRoom {
            self.seen.insert(digest);
        }
        self.check_refusal(key, &shown, &fate);
        self.later.clear();
        self.drain(key);
    }

    /// Gives the held inputs, once nothing holds them back any more.
    fn drain(&mut self, key: &RunInputKey) {
        while let Some(record) = &self.record
            && !record.holds_back()
            && !record.held.is_empty()
            && record.instance().is_some()
        {
            let number = record.held.first;
            let Some(input) = self.held.get(&number).cloned() else { return };
            let shown = format!("{} (was held back)", display::input(&input.what, &self.run.work));
            self.apply(key, &input, InputOrigin::Held(number), &shown);
            if self.held.contains_key(&number) {
                return;
            }
        }
    }

    fn apply(
        &mut self,
        key: &RunInputKey,
        input: &InstanceInput,
        origin: InputOrigin,
        shown: &str,
    ) -> InputDisposition {
        let change = self.change(input, origin);
        let before = self.saga();
        if matches!(
            (&input.what, &change.fate),
            (InstanceInputKind::Verb { verb: Verb::Migrate, .. }, InputDisposition::Applied)
        ) {
            let way = change.journal.iter().filter_map(|row| self.scenario.version(row.definition?));
            way.for_each(|saga| self.laws.rename_steps(saga));
        }
        let after = change.record.as_ref().and_then(CorrelationRecord::definition);
        let saga = after.and_then(|hash| self.scenario.version(hash)).map_or(before, |saga| saga);
        self.laws.observe(saga, self.record.as_ref(), input, &change);
        let before = self.record.take();
        self.keep(input, origin, before.as_ref(), &change);
        for (name, timer) in change.timers(before.as_ref()).set {
            self.run.timers.push((name.to_owned(), timer.generation, key.clone()));
        }
        self.record.clone_from(&change.record);
        self.run.journal.extend(change.journal.iter().cloned());
        if let (InputDisposition::Ignored(_), InstanceInputKind::Event(event)) = (&change.fate, &input.what) {
            self.run.ignored.push(event.kind.clone());
        }
        let mut works = Vec::new();
        for item in &change.work {
            let work = self.work(item, key);
            works.push(display::work(&work));
            let number = self.run.work.len();
            self.run.work.push(work.clone());
            match &item.what {
                WorkPayload::Cancel { of, .. } => self.call_off(number, *of),
                WorkPayload::Effect { .. } | WorkPayload::Command { .. } => self.answer(number, &work),
            }
        }
        self.note(shown, display::fate(&change.fate), works);
        change.fate
    }

    /// Computes the change that an input causes.
    fn change(&self, input: &InstanceInput, origin: InputOrigin) -> SagaTransition {
        match (&input.what, &self.record) {
            (InstanceInputKind::Verb { verb: Verb::Migrate, .. }, Some(record)) => {
                step::migrate(&self.scenario.versions, self.identity(), record, input, &self.kept)
            }
            (_, record) => {
                step::apply(self.saga(), self.identity(), record.as_ref(), input, origin, &self.kept)
            }
        }
    }

    /// Keeps what a store keeps besides the record.
    fn keep(
        &mut self,
        input: &InstanceInput,
        origin: InputOrigin,
        before: Option<&CorrelationRecord>,
        change: &SagaTransition,
    ) {
        for number in &change.removed {
            self.kept.remove(number);
        }
        self.kept.extend(change.deferred.iter().cloned());
        if let InputOrigin::Held(number) = origin
            && change.record.as_ref().is_none_or(|record| record.held.first > number)
        {
            self.held.remove(&number);
        }
        if let InputDisposition::Held(number) = &change.fate {
            self.held.insert(*number, input.clone());
        }
        if let InputDisposition::DeadLetter(letter) = &change.fate {
            self.letter(&letter.code, &letter.why);
        }
        for (letter, _) in &change.dead_letters {
            self.letter(&letter.code, &letter.why);
        }
        let has_ended = |record: &CorrelationRecord| matches!(record.entry, CorrelationEntry::Ended(_));
        if change.record.as_ref().is_some_and(has_ended) && !before.is_some_and(has_ended) {
            self.held.clear();
        }
    }

    fn letter(&mut self, code: &str, why: &str) {
        self.run.dead_letters.push((code.to_owned(), why.to_owned()));
    }

    fn work(&self, item: &WorkItem, cause: &RunInputKey) -> RunWork {
        let open = self.record.as_ref().and_then(CorrelationRecord::instance);
        let open = open.and_then(|instance| instance.open.get(&item.command));
        let (name, is_effect, input, aggregate) = match &item.what {
            WorkPayload::Effect { effect, input } => (effect.to_string(), true, input.clone(), None),
            WorkPayload::Cancel { effect, .. } => (effect.to_string(), true, Json::Null, None),
            WorkPayload::Command { aggregate, id, kind, payload } => {
                (kind.clone(), false, payload.clone(), Some((aggregate.clone(), id.clone())))
            }
        };
        RunWork {
            command: item.command,
            name,
            is_cancel: matches!(item.what, WorkPayload::Cancel { .. }),
            is_effect,
            input,
            aggregate,
            purpose: open.map_or(CommandPurpose::Forward, |open| open.purpose),
            cause: cause.clone(),
        }
    }

    /// Compares the outcome of a verb with the scenario's expectation.
    fn check_refusal(&mut self, key: &RunInputKey, shown: &str, fate: &InputDisposition) {
        let RunInputKey::Given(number) = key else { return };
        let given = self.scenario.stimuli.get(*number);
        let Some(Stimulus::Verb { refused, .. }) = given.map(|given| &given.what) else { return };
        match (refused, fate) {
            (None, InputDisposition::Refused(found)) => {
                self.run.problems.push(format!("{shown} is refused: {}: {found}", found.reason));
            }
            (Some(expected), InputDisposition::Refused(found)) if *expected != found.reason => {
                let found = &found.reason;
                self.run.problems.push(format!("{shown}: expected the refusal {expected}, found {found}"));
            }
            (Some(expected), fate) if !matches!(fate, InputDisposition::Refused(_)) => {
                let fate = display::fate(fate);
                self.run.problems.push(format!("{shown}: expected the refusal {expected}, found {fate}"));
            }
            _ => {}
        }
    }

    pub(super) fn note(&mut self, input: &str, fate: String, work: Vec<String>) {
        let (status, step) = display::place(self.record.as_ref());
        let at_ms = self.elapsed();
        self.run.timeline.push(RunTimelineEntry { at_ms, input: input.to_owned(), fate, status, step, work });
    }
}
