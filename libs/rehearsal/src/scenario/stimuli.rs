//! Inputs that a scenario gives its instance.

use std::collections::BTreeMap;
use std::time::Duration;

use model::CorrelationId;
use workflow::Json;
use workflow::input::Verb;
use yaml::{MappingKeys, YamlEntry, YamlFields, YamlNode, did_you_mean};

use super::reader::{GIVEN_KEYS, ScenarioReader, VERBS};
use super::{Stimulus, TimedStimulus};

/// Keys of events alone.
const OF_EVENTS: [&str; 6] =
    ["event_id", "aggregate", "aggregate_id", "version", "schema_version", "metadata"];
/// Keys of verbs alone.
const OF_VERBS: [&str; 4] = ["type", "reason", "result", "refused"];

impl ScenarioReader<'_> {
    pub(super) fn given(&mut self, entry: &YamlEntry, correlation: &CorrelationId) -> Vec<TimedStimulus> {
        let items = self.items(entry, "a list, such as [{ at: 10m, event: PaymentCaptured }]");
        if items.is_empty() {
            self.problem(entry.value.place, "`given` has at least one event or verb");
        }
        let read = items.iter().enumerate().filter_map(|(at, item)| self.one(item, at, correlation));
        read.collect()
    }

    fn one(&mut self, tree: &YamlNode, number: usize, correlation: &CorrelationId) -> Option<TimedStimulus> {
        let fields = self.yaml.fields(tree, "an input", MappingKeys::of(GIVEN_KEYS));
        let at = fields.get("at").and_then(|entry| self.length(entry)).unwrap_or(Duration::ZERO);
        let what = match (fields.get("event"), fields.get("verb")) {
            (Some(kind), None) => {
                self.refuse_keys(&fields, &OF_VERBS, "an event");
                self.event(tree, &fields, kind, number, correlation)
            }
            (None, Some(verb)) => {
                self.refuse_keys(&fields, &OF_EVENTS, "a verb");
                self.verb(tree, &fields, verb)
            }
            _ => {
                self.problem(tree.place, "an input has one of `event` and `verb`");
                None
            }
        };
        Some(TimedStimulus { at, what: what? })
    }

    fn refuse_keys(&mut self, fields: &YamlFields<'_>, keys: &[&str], what: &str) {
        for key in keys {
            if let Some(entry) = fields.get(key) {
                self.problem(entry.place, format!("{what} has no `{key}`"));
            }
        }
    }

    fn event(
        &mut self,
        tree: &YamlNode,
        fields: &YamlFields<'_>,
        kind: &YamlEntry,
        number: usize,
        correlation: &CorrelationId,
    ) -> Option<Stimulus> {
        let name = self.yaml.text(kind)?.to_owned();
        let known = self.known.events.clone();
        self.check_name(kind.value.place, "event", &name, &known);
        let aggregates = self.known.aggregates.clone();
        let aggregate = match (fields.get("aggregate"), aggregates.as_slice()) {
            (Some(entry), known) => {
                let aggregate = self.yaml.text(entry)?.to_owned();
                self.check_name(entry.value.place, "source", &aggregate, known);
                aggregate
            }
            (None, [only]) => only.clone(),
            (None, known) => {
                let message = format!("the event needs `aggregate`; there are {}", known.join(", "));
                self.problem(tree.place, message);
                return None;
            }
        };
        let text = |reader: &mut Self, key: &str, default: String| match fields.get(key) {
            Some(entry) => reader.yaml.text(entry).map_or(default, str::to_owned),
            None => default,
        };
        let id = text(self, "aggregate_id", correlation.to_string());
        let event_id = text(self, "event_id", format!("event-{}", number + 1));
        let metadata = match fields.get("metadata") {
            Some(entry) => self.object(entry),
            None => Json::object([("correlation_id", Json::text(correlation))]),
        };
        let mut body: BTreeMap<String, Json> = BTreeMap::from([
            ("type".to_owned(), Json::text(&name)),
            ("event_id".to_owned(), Json::text(event_id)),
            ("aggregate_type".to_owned(), Json::text(&aggregate)),
            ("aggregate_id".to_owned(), Json::text(&id)),
            ("metadata".to_owned(), metadata),
            ("data".to_owned(), self.data(fields)),
        ]);
        for key in ["version", "schema_version"] {
            if let Some(entry) = fields.get(key)
                && let Some(number) = self.yaml.whole::<u32>(entry, "a whole number from 1 on")
            {
                if number == 0 {
                    self.yaml.wrong_kind(entry, "a whole number from 1 on");
                }
                body.insert(key.to_owned(), Json::number(number.into()));
            }
        }
        Some(Stimulus::Event { kind: name, aggregate: (aggregate, id), body: Json::Map(body) })
    }

    fn data(&mut self, fields: &YamlFields<'_>) -> Json {
        fields.get("data").map_or_else(|| Json::object([]), |entry| self.object(entry))
    }

    fn verb(&mut self, tree: &YamlNode, fields: &YamlFields<'_>, entry: &YamlEntry) -> Option<Stimulus> {
        let name = self.yaml.text(entry)?;
        let reason = match fields.get("reason") {
            Some(entry) => self.yaml.text(entry)?.to_owned(),
            None => "asked for by the scenario".to_owned(),
        };
        let verb = match name {
            "start" => Verb::Start { data: self.data(fields) },
            "send" => {
                let Some(entry) = fields.get("type") else {
                    self.problem(tree.place, "`send` needs `type`, that of the event");
                    return None;
                };
                let kind = self.yaml.text(entry)?.to_owned();
                let known = self.known.events.clone();
                self.check_name(entry.value.place, "event", &kind, &known);
                Verb::Send { kind, data: self.data(fields) }
            }
            "pause" => Verb::Pause,
            "resume" => Verb::Resume,
            "cancel" => Verb::Cancel { reason },
            "kill" => Verb::Kill { reason },
            "retry-step" => Verb::RetryStep,
            "skip-step" => Verb::SkipStep {
                result: fields
                    .get("result")
                    .map_or_else(|| Json::object([]), |entry| self.json(&entry.value)),
            },
            "complete" => Verb::Complete { reason },
            "migrate" => Verb::Migrate,
            _ => {
                let hint = match did_you_mean(name, &VERBS) {
                    hint if hint.is_empty() => format!("; there are {}", VERBS.join(", ")),
                    hint => hint,
                };
                self.problem(entry.value.place, format!("a scenario has no verb `{name}`{hint}"));
                return None;
            }
        };
        let refused = match fields.get("refused") {
            Some(entry) => Some(self.yaml.text(entry)?.to_owned()),
            None => None,
        };
        Some(Stimulus::Verb { verb, refused })
    }
}
