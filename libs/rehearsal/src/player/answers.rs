//! Providers and aggregates, as a scenario has them answer.

use std::time::Duration;

use model::CommandId;
use workflow::Json;
use workflow::formula::VariableScope;
use workflow::input::CommandOutcome;

use super::{RunInputKey, RunWork, ScenarioPlayer, ScheduledInputKind, result};
use crate::scenario::{AnswerTarget, ScriptedAnswer, ScriptedReply};
use crate::variation::Variation;

impl ScenarioPlayer<'_> {
    /// Has a piece of work answered.
    pub(super) fn answer(&mut self, number: usize, work: &RunWork) {
        let counted = format!("{}:{}", u8::from(work.is_effect), work.name);
        let count = self.counts.entry(counted).or_default();
        *count += 1;
        let occurrence = *count;
        let answer = self.find(work, occurrence);
        let (after, despite_cancel) =
            answer.as_ref().map_or((Duration::ZERO, false), |answer| (answer.after, answer.despite_cancel));
        let reply = match (self.variation.end_of(number), answer) {
            (Some(reply), _) => reply,
            (None, Some(answer)) => answer.reply,
            (None, None) => self.unanswered(work),
        };
        self.open.insert(work.command, !despite_cancel);
        let ScriptedReply::End { outcome, payload, may_have_happened } = reply else { return };
        let end = result(work.command, outcome, payload, may_have_happened);
        let at = self.now + u64::try_from(after.as_millis()).unwrap_or(u64::MAX / 2);
        self.put(at, 0, RunInputKey::Result(number), ScheduledInputKind::Result(end));
    }

    /// Cancels an effect, unless its end is known or comes nevertheless.
    pub(super) fn call_off(&mut self, number: usize, of: CommandId) {
        let is_late = matches!(self.variation, Variation::CancelTooLate { work } if *work == number);
        if is_late || self.open.get(&of) != Some(&true) {
            return;
        }
        let Some(called_off) = self.run.work.iter().position(|work| work.command == of) else { return };
        self.pending
            .retain(|pending| !matches!(&pending.what, ScheduledInputKind::Result(end) if end.command == of));
        let payload = Json::object([("code", Json::text(CommandOutcome::Cancelled.code()))]);
        let end = result(of, CommandOutcome::Cancelled, payload, false);
        self.put(self.now, 0, RunInputKey::Result(called_off), ScheduledInputKind::Result(end));
    }

    /// Finds the answer to a piece of work. In a variation, answers of other scenarios may be used too.
    fn find(&mut self, work: &RunWork, occurrence: usize) -> Option<ScriptedAnswer> {
        let scenario = self.scenario;
        let spare: &[ScriptedAnswer] =
            if self.variation.is_none() { &[] } else { &scenario.fallback_answers };
        let own = scenario.answers.iter().map(|answer| (answer, true));
        for (answer, is_own) in own.chain(spare.iter().map(|answer| (answer, false))) {
            let is_to = match &answer.to {
                AnswerTarget::Effect(effect) => work.is_effect && effect.as_str() == work.name,
                AnswerTarget::Command(kind) => !work.is_effect && *kind == work.name,
            };
            if !is_to || (is_own && answer.occurrence.is_some_and(|number| number != occurrence)) {
                continue;
            }
            let holds = answer
                .when
                .as_ref()
                .map(|when| when.is_true(&VariableScope::new().with("input", &work.input)));
            match holds {
                None | Some(Ok(true)) => return Some(answer.clone()),
                Some(Ok(false)) => {}
                Some(Err(error)) if is_own => {
                    self.run.problems.push(format!("an answer to `{}`: {error}", work.name));
                }
                Some(Err(_)) => {}
            }
        }
        None
    }

    /// Decides on a reply to work without an answer.
    fn unanswered(&mut self, work: &RunWork) -> ScriptedReply {
        if work.is_effect && self.variation.is_none() {
            let (name, input) = (&work.name, &work.input);
            self.run.problems.push(format!("nothing answers the effect `{name}`, which is given {input}"));
            return ScriptedReply::Never;
        }
        if work.is_effect {
            self.run.guessed.insert(work.name.clone());
        }
        ScriptedReply::End {
            outcome: CommandOutcome::Succeeded,
            payload: Json::object([]),
            may_have_happened: false,
        }
    }
}
