//! Answers to the work of a saga, as scenarios write them.

use std::time::Duration;

use workflow::Json;
use workflow::formula::{Formula, Variable};
use workflow::input::CommandOutcome;
use yaml::{MappingKeys, YamlEntry, YamlFields, YamlNode, YamlValue};

use super::reader::{ANSWER_KEYS, ScenarioReader};
use super::{AnswerTarget, ScriptedAnswer, ScriptedReply};

/// Ways to answer.
const REPLIES: [&str; 5] = ["succeed", "fail", "time_out", "unknown", "never"];

impl ScenarioReader<'_> {
    pub(super) fn answers(&mut self, entry: &YamlEntry) -> Vec<ScriptedAnswer> {
        let items = self.items(entry, "a list, such as [{ effect: reserve, succeed: { id: r-1 } }]");
        items.iter().filter_map(|item| self.answer(item)).collect()
    }

    fn answer(&mut self, tree: &YamlNode) -> Option<ScriptedAnswer> {
        let fields = self.yaml.fields(tree, "an answer", MappingKeys::of(ANSWER_KEYS));
        let to = self.answer_target(tree, &fields);
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
        let truth =
            |reader: &mut Self, key: &str| fields.get(key).and_then(|entry| reader.yaml.boolean(entry));
        let despite_cancel = truth(self, "despite_cancel").unwrap_or(false);
        let in_doubt = truth(self, "may_have_happened");
        Some(ScriptedAnswer {
            to: to?,
            when,
            occurrence,
            reply: self.reply(tree, &fields, in_doubt)?,
            after: fields.get("after").and_then(|entry| self.length(entry)).unwrap_or(Duration::ZERO),
            despite_cancel,
        })
    }

    fn answer_target(&mut self, tree: &YamlNode, fields: &YamlFields<'_>) -> Option<AnswerTarget> {
        match (fields.get("effect"), fields.get("command")) {
            (Some(entry), None) => {
                let name = self.yaml.text(entry)?.to_owned();
                let known = self.known.effects.clone();
                self.check_name(entry.value.place, "effect", &name, &known);
                name.parse().ok().map(AnswerTarget::Effect)
            }
            (None, Some(entry)) => {
                let name = self.yaml.text(entry)?.to_owned();
                let known = self.known.commands.clone();
                self.check_name(entry.value.place, "command", &name, &known);
                Some(AnswerTarget::Command(name))
            }
            _ => {
                self.problem(tree.place, "an answer has one of `effect` and `command`");
                None
            }
        }
    }

    fn reply(
        &mut self,
        tree: &YamlNode,
        fields: &YamlFields<'_>,
        in_doubt: Option<bool>,
    ) -> Option<ScriptedReply> {
        let keys: Vec<_> = REPLIES.into_iter().filter_map(|key| fields.get(key)).collect();
        let [entry] = keys.as_slice() else {
            self.problem(tree.place, format!("an answer has one of {}", REPLIES.join(", ")));
            return None;
        };
        let (outcome, is_uncertain) = match entry.key.as_str() {
            "succeed" => (CommandOutcome::Succeeded, false),
            "fail" => (CommandOutcome::Failed, in_doubt.unwrap_or(false)),
            "time_out" => (CommandOutcome::TimedOut, in_doubt.unwrap_or(true)),
            "unknown" => (CommandOutcome::Unknown, true),
            _ => {
                if self.yaml.boolean(entry) == Some(false) {
                    self.yaml.wrong_kind(entry, "true");
                }
                return Some(ScriptedReply::Never);
            }
        };
        if in_doubt.is_some() && matches!(outcome, CommandOutcome::Succeeded | CommandOutcome::Unknown) {
            let message = "`may_have_happened` is said of `fail` and `time_out`";
            self.problem(entry.place, message);
        }
        // The code of a failure may stand alone.
        let payload = match &entry.value.value {
            YamlValue::Text(code) if outcome == CommandOutcome::Failed => {
                Json::object([("code", Json::text(code))])
            }
            _ => self.object(entry),
        };
        Some(ScriptedReply::End { outcome, payload, may_have_happened: is_uncertain })
    }
}
