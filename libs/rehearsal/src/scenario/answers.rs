//! Answers to the work of a saga, as scenarios write them.

use std::time::Duration;

use workflow::Json;
use workflow::formula::{Formula, Variable};
use workflow::input::Outcome;
use yaml::{Entry, Fields, Keys, Tree, Value};

use super::read::{ANSWER_KEYS, Reader};
use super::{Answer, Asked, Reply};

/// Ways to answer.
const REPLIES: [&str; 5] = ["succeed", "fail", "time_out", "unknown", "never"];

impl Reader<'_> {
    pub(super) fn answers(&mut self, entry: &Entry) -> Vec<Answer> {
        let items = self.items(entry, "a list, such as [{ effect: reserve, succeed: { id: r-1 } }]");
        items.iter().filter_map(|item| self.answer(item)).collect()
    }

    fn answer(&mut self, tree: &Tree) -> Option<Answer> {
        let fields = self.yaml.fields(tree, "an answer", Keys::of(ANSWER_KEYS));
        let to = self.asked(tree, &fields);
        let when = match fields.get("when") {
            Some(entry) => {
                let text = self.yaml.text(entry)?;
                let read = Formula::read(text, &[Variable::open("input")]);
                read.map_err(|error| self.problem(entry.value.place, error.to_string())).ok()
            }
            None => None,
        };
        let occurrence = fields.get("occurrence").and_then(|entry| {
            let wanted = "a whole number from 1 on";
            let number = self.yaml.whole::<usize>(entry, wanted)?;
            if number == 0 {
                self.yaml.wrong_kind(entry, wanted);
            }
            Some(number)
        });
        let truth = |reader: &mut Self, key: &str| fields.get(key).and_then(|entry| reader.yaml.truth(entry));
        let despite_cancel = truth(self, "despite_cancel").unwrap_or(false);
        let in_doubt = truth(self, "may_have_happened");
        Some(Answer {
            to: to?,
            when,
            occurrence,
            reply: self.reply(tree, &fields, in_doubt)?,
            after: fields.get("after").and_then(|entry| self.length(entry)).unwrap_or(Duration::ZERO),
            despite_cancel,
        })
    }

    fn asked(&mut self, tree: &Tree, fields: &Fields<'_>) -> Option<Asked> {
        match (fields.get("effect"), fields.get("command")) {
            (Some(entry), None) => {
                let name = self.yaml.text(entry)?.to_owned();
                let known = self.known.effects.clone();
                self.check_name(entry.value.place, "effect", &name, &known);
                name.parse().ok().map(Asked::Effect)
            }
            (None, Some(entry)) => {
                let name = self.yaml.text(entry)?.to_owned();
                let known = self.known.commands.clone();
                self.check_name(entry.value.place, "command", &name, &known);
                Some(Asked::Command(name))
            }
            _ => {
                self.problem(tree.place, "an answer has one of `effect` and `command`");
                None
            }
        }
    }

    fn reply(&mut self, tree: &Tree, fields: &Fields<'_>, in_doubt: Option<bool>) -> Option<Reply> {
        let said: Vec<_> = REPLIES.into_iter().filter_map(|key| fields.get(key)).collect();
        let [entry] = said.as_slice() else {
            self.problem(tree.place, format!("an answer has one of {}", REPLIES.join(", ")));
            return None;
        };
        let (outcome, is_uncertain) = match entry.key.as_str() {
            "succeed" => (Outcome::Succeeded, false),
            "fail" => (Outcome::Failed, in_doubt.unwrap_or(false)),
            "time_out" => (Outcome::TimedOut, in_doubt.unwrap_or(true)),
            "unknown" => (Outcome::Unknown, true),
            _ => {
                if self.yaml.truth(entry) == Some(false) {
                    self.yaml.wrong_kind(entry, "true");
                }
                return Some(Reply::Never);
            }
        };
        if in_doubt.is_some() && matches!(outcome, Outcome::Succeeded | Outcome::Unknown) {
            let message = "`may_have_happened` is said of `fail` and `time_out`";
            self.problem(entry.place, message);
        }
        // The code of a failure may stand alone.
        let payload = match &entry.value.value {
            Value::Text(code) if outcome == Outcome::Failed => Json::object([("code", Json::text(code))]),
            _ => self.object(entry),
        };
        Some(Reply::End { outcome, payload, may_have_happened: is_uncertain })
    }
}
