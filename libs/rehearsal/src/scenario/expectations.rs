//! Expectations of a scenario.

use std::collections::BTreeMap;

use model::SagaStatus;
use yaml::{MappingKeys, YamlEntry, YamlNode, YamlValue, did_you_mean};

use super::reader::{EXPECT_KEYS, ScenarioReader, WORK_KEYS};
use super::{ExpectedStatus, ExpectedWork, ScenarioExpectations};

impl ScenarioReader<'_> {
    pub(super) fn expected(&mut self, entry: &YamlEntry) -> ScenarioExpectations {
        let fields = self.yaml.fields(&entry.value, "`expect`", MappingKeys::of(EXPECT_KEYS));
        if fields.is_empty() {
            self.problem(entry.value.place, "`expect` expects nothing; write { status: completed } at least");
        }
        let work = |reader: &mut Self, key: &str| fields.get(key).map(|entry| reader.works(entry));
        let texts = |reader: &mut Self, key: &str| {
            fields.get(key).map(|entry| {
                let texts = reader.yaml.texts(entry);
                texts.into_iter().map(|(_, text)| text.to_owned()).collect::<Vec<_>>()
            })
        };
        ScenarioExpectations {
            status: fields.get("status").and_then(|entry| self.status(entry)),
            step: fields.get("step").and_then(|entry| {
                let name = self.yaml.text(entry)?.to_owned();
                let known = self.known.steps.clone();
                self.check_name(entry.value.place, "step", &name, &known);
                name.parse().ok()
            }),
            reason: fields.get("reason").and_then(|entry| self.yaml.text(entry)).map(str::to_owned),
            state: fields.get("state").map(|entry| self.state(entry)).unwrap_or_default(),
            work: work(self, "work"),
            compensations: work(self, "compensations"),
            timers: fields.get("timers").map(|entry| self.timers(entry)),
            letters: texts(self, "letters").unwrap_or_default(),
            ignored: texts(self, "ignored"),
            is_paused: fields.get("paused").and_then(|entry| self.yaml.boolean(entry)),
        }
    }

    fn status(&mut self, entry: &YamlEntry) -> Option<ExpectedStatus> {
        let text = self.yaml.text(entry)?;
        if text == "none" {
            return Some(ExpectedStatus::None);
        }
        if let Ok(status) = text.parse() {
            return Some(ExpectedStatus::Status(status));
        }
        let mut known = SagaStatus::ALL.map(SagaStatus::as_str).to_vec();
        known.push("none");
        let hint = match did_you_mean(text, &known) {
            hint if hint.is_empty() => format!("; there are {}", known.join(", ")),
            hint => hint,
        };
        self.problem(entry.value.place, format!("there is no status `{text}`{hint}"));
        None
    }

    fn state(&mut self, entry: &YamlEntry) -> BTreeMap<String, workflow::Json> {
        let mut state = BTreeMap::new();
        for entry in self.yaml.entries(entry, "a mapping from fields of the state to values") {
            let known = self.known.fields.clone();
            self.check_name(entry.place, "field of its state", &entry.key, &known);
            let value = self.json(&entry.value);
            state.insert(entry.key.clone(), value);
        }
        state
    }

    fn timers(&mut self, entry: &YamlEntry) -> BTreeMap<String, std::time::Duration> {
        let wanted = "a mapping from timers to when they fire, such as { pay-by: 30m }";
        let mut timers = BTreeMap::new();
        for entry in self.yaml.entries(entry, wanted) {
            let known = self.known.timers.clone();
            self.check_name(entry.place, "timer", &entry.key, &known);
            if let Some(length) = self.length(entry) {
                timers.insert(entry.key.clone(), length);
            }
        }
        timers
    }

    fn works(&mut self, entry: &YamlEntry) -> Vec<ExpectedWork> {
        let items =
            self.items(entry, "a list of work, such as [reserve, { effect: ship, input: { id: o-1 } }]");
        items.iter().filter_map(|item| self.work(item)).collect()
    }

    fn work(&mut self, tree: &YamlNode) -> Option<ExpectedWork> {
        let short = |name: &str, is_cancel| {
            let name = name.to_owned();
            ExpectedWork { name, is_cancel, input: None, aggregate: (None, None) }
        };
        if let Some(name) = tree.value.as_text() {
            let known: Vec<_> = self.known.effects.iter().chain(&self.known.commands).cloned().collect();
            self.check_name(tree.place, "effect or command", name, &known);
            return Some(short(name, false));
        }
        let fields = self.yaml.fields(tree, "a piece of work", MappingKeys::of(WORK_KEYS));
        let keys: Vec<_> = ["effect", "command", "cancel"].iter().filter_map(|key| fields.get(key)).collect();
        let [named] = keys.as_slice() else {
            if matches!(tree.value, YamlValue::Map(_)) {
                self.problem(tree.place, "a piece of work has one of `effect`, `command` and `cancel`");
            }
            return None;
        };
        let name = self.yaml.text(named)?.to_owned();
        let (what, known) = match named.key.as_str() {
            "command" => ("command", self.known.commands.clone()),
            _ => ("effect", self.known.effects.clone()),
        };
        self.check_name(named.value.place, what, &name, &known);
        let mut work = short(&name, named.key == "cancel");
        let allowed: &[&str] = match named.key.as_str() {
            "command" => &["payload", "aggregate", "id"],
            "effect" => &["input"],
            _ => &[],
        };
        for key in ["input", "payload", "aggregate", "id"] {
            let Some(entry) = fields.get(key) else { continue };
            if !allowed.contains(&key) {
                self.problem(entry.place, format!("`{}` has no `{key}`", named.key));
                continue;
            }
            match key {
                "aggregate" => work.aggregate.0 = self.yaml.text(entry).map(str::to_owned),
                "id" => work.aggregate.1 = self.yaml.text(entry).map(str::to_owned),
                _ => work.input = Some(self.json(&entry.value)),
            }
        }
        Some(work)
    }
}
