//! The document of a saga.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use model::{BlobHash, SagaName, StepName};
use yaml::{YamlEntry, YamlFields, YamlNode, YamlValue, did_you_mean};

use super::fields::{ManifestReader, event_variable};
use super::graph;
use crate::definition::{
    EventSource, HISTORY_MAX, IgnoredEventTypes, Migration, MissingInstancePolicy, STATE_BYTES_MAX, Saga,
    SagaLimits, SagaStart, StateField, StateFieldKind, UnknownVersionPolicy, WORK_MAX, WorkOrder,
};
use crate::formula::{Formula, Variable};
use crate::schedule::{CatchUpPolicy, Schedule};

/// Keys of a saga.
pub(super) const SAGA_KEYS: &[&str] = &[
    "kind",
    "name",
    "version",
    "tenants",
    "shards",
    "state",
    "sources",
    "correlate",
    "on_missing",
    "start",
    "timers",
    "steps",
    "compensated",
    "ignore",
    "migrate",
    "limits",
];
/// Keys of a source.
pub(super) const SOURCE_KEYS: &[&str] = &["aggregate", "versions", "upcast", "on_version"];
/// Keys of an upcast.
pub(super) const UPCAST_KEYS: &[&str] = &["set"];
/// Keys of `start`.
pub(super) const START_KEYS: &[&str] = &["on", "when", "schedule", "catch_up", "set", "goto"];
/// Keys of `migrate`.
pub(super) const MIGRATE_KEYS: &[&str] = &["from", "steps", "set"];
/// Keys of `limits`.
pub(super) const LIMIT_KEYS: &[&str] = &["history", "work_items", "state_bytes"];

const SHARDS_MAX: u8 = 16;
/// Stands for the name of a saga whose name is wrong.
const UNNAMED: &str = "unnamed";

impl ManifestReader {
    /// Reads a saga; `None` where a part that everything else depends on is missing.
    pub(super) fn saga(&mut self, tree: &YamlNode, hash: BlobHash) -> Option<Saga> {
        let fields = self.fields(tree, "a saga", SAGA_KEYS);
        self.state = self.state(fields.get("state").copied());
        let name: Option<SagaName> = self.required(tree, &fields, "a saga", "name", "order-fulfilment");
        let version = self.version(tree, &fields);
        let sources = self.sources(fields.get("sources").copied());
        let correlate = self.correlate(tree, &fields);
        let (on_missing, on_missing_default) = self.on_missing(fields.get("on_missing").copied());
        let start = self.start(tree, &fields);
        let known = self.known(&[]);
        let timers = fields.get("timers").map(|entry| self.timers(entry, &known)).unwrap_or_default();
        let steps = self.steps(tree, &fields);
        let compensated = fields.get("compensated").and_then(|entry| self.compensated(entry));
        let ignore = fields.get("ignore").map(|entry| self.ignore(entry)).unwrap_or_default();
        let migrate = fields.get("migrate").and_then(|entry| self.migrate(entry));
        let tenants = self.tenants(fields.get("tenants").copied());
        let shards = self.shards(fields.get("shards").copied());
        let limits = fields.get("limits").map(|entry| self.limits(entry)).unwrap_or_default();
        let mut saga = Saga {
            // A saga with an invalid name is refused, but its steps are still checked.
            name: name.or_else(|| UNNAMED.parse().ok())?,
            version,
            hash,
            tenants,
            shards,
            state: self.state.clone(),
            sources,
            correlate: correlate.or_else(|| Formula::read("event.id", &[event_variable()]).ok())?,
            on_missing,
            on_missing_default,
            start: start?,
            timers,
            steps: BTreeMap::new(),
            compensated,
            ignore,
            migrate,
            limits,
            upcoming_events: BTreeMap::new(),
            is_retired: false,
        };
        let places = steps.iter().map(|(name, (place, _))| (name.clone(), *place)).collect();
        let targets = std::mem::take(&mut self.targets);
        saga.steps = steps.into_iter().map(|(name, (_, step))| (name, step)).collect();
        saga.upcoming_events = graph::types_ahead(&saga);
        let written = graph::SagaSourceMap { steps: places, targets, fields: &fields };
        graph::check(&saga, &written, &mut self.yaml);
        Some(saga)
    }

    /// Reads the name of something, which has to be there.
    pub(super) fn required<N: std::str::FromStr<Err = model::SagaNameError>>(
        &mut self,
        tree: &YamlNode,
        fields: &YamlFields<'_>,
        what: &str,
        key: &str,
        example: &str,
    ) -> Option<N> {
        let Some(entry) = fields.get(key) else {
            self.missing(tree.place, what, key, example);
            return None;
        };
        self.name(entry)
    }

    fn version(&mut self, tree: &YamlNode, fields: &YamlFields<'_>) -> u32 {
        let Some(entry) = fields.get("version") else {
            self.missing(tree.place, "a saga", "version", "1");
            return 1;
        };
        let version = self.yaml.whole(entry, "a whole number from 1 on").unwrap_or(1);
        if version == 0 {
            self.problem(entry.value.place, "`version` is a whole number from 1 on, not 0");
        }
        version
    }

    fn shards(&mut self, entry: Option<&YamlEntry>) -> u8 {
        let Some(entry) = entry else { return 1 };
        let wanted = format!("a whole number from 1 to {SHARDS_MAX}");
        match self.yaml.whole(entry, &wanted) {
            Some(shards @ 1..=SHARDS_MAX) => shards,
            Some(_) => {
                self.yaml.wrong_kind(entry, &wanted);
                1
            }
            None => 1,
        }
    }

    fn state(&mut self, entry: Option<&YamlEntry>) -> BTreeMap<String, StateField> {
        let wanted = "a mapping from names to kinds, such as { order_id: text }";
        let entries = entry.map_or(&[][..], |entry| self.yaml.entries(entry, wanted));
        let kinds = StateFieldKind::ALL.map(StateFieldKind::as_str);
        let mut state = BTreeMap::new();
        for entry in entries {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let starts = entry.key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            if !starts || !entry.key.chars().all(is_word) || entry.key.len() > 64 {
                let message = "a field of the state is a letter, then letters, digits and _";
                self.problem(entry.place, message);
            }
            let Some(text) = self.yaml.text(entry) else { continue };
            let (is_optional, kind) = match text.strip_prefix("optional ") {
                Some(kind) => (true, kind.trim()),
                None => (false, text),
            };
            match StateFieldKind::ALL.into_iter().find(|known| known.as_str() == kind) {
                Some(kind) => {
                    state.insert(entry.key.clone(), StateField { kind, is_optional });
                }
                None => {
                    let (hint, known) = (did_you_mean(kind, &kinds), kinds.join(", "));
                    let message = format!(
                        "`{kind}` is no kind of a field{hint}; there are {known}, each with `optional` before it or not"
                    );
                    self.problem(entry.value.place, message);
                }
            }
        }
        state
    }

    fn sources(&mut self, entry: Option<&YamlEntry>) -> Vec<EventSource> {
        let wanted = "a list of aggregates, such as [{ aggregate: Order }]";
        let items = entry.map_or(&[][..], |entry| self.yaml.items(entry, wanted));
        let mut sources: Vec<EventSource> = Vec::with_capacity(items.len());
        for item in items {
            let fields = self.fields(item, "a source", SOURCE_KEYS);
            let Some(named) = fields.get("aggregate") else {
                self.missing(item.place, "a source", "aggregate", "Order");
                continue;
            };
            let Some(text) = self.yaml.text(named) else { continue };
            let aggregate = self.type_name(text, named.value.place, "the type of an aggregate");
            if sources.iter().any(|source| source.aggregate == aggregate) {
                self.problem(named.value.place, format!("the source `{aggregate}` is named twice"));
            }
            sources.push(EventSource {
                aggregate,
                versions: fields.get("versions").map_or(1..=1, |entry| self.versions(entry)),
                upcast: fields.get("upcast").map(|entry| self.upcast(entry)).unwrap_or_default(),
                on_version: fields
                    .get("on_version")
                    .map_or(UnknownVersionPolicy::DeadLetter, |entry| self.on_version(entry)),
            });
        }
        sources
    }

    /// Reads `2`, or `1..3`.
    fn versions(&mut self, entry: &YamlEntry) -> RangeInclusive<u32> {
        let text = entry.value.value.as_text().unwrap_or_default();
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first @ 1..), Ok(last)) if first <= last => first..=last,
            _ => {
                self.yaml.wrong_kind(entry, "a version or a range of them, such as 1..3");
                1..=1
            }
        }
    }

    fn upcast(&mut self, entry: &YamlEntry) -> BTreeMap<u32, Vec<crate::definition::StateAssignment>> {
        let wanted =
            "a mapping from versions to what has to be set, such as { 1: { set: { currency: EUR } } }";
        let mut upcast = BTreeMap::new();
        for version in self.yaml.entries(entry, wanted) {
            let Ok(number) = version.key.parse::<u32>() else {
                self.problem(version.place, format!("`{}` is no version of a schema", version.key));
                continue;
            };
            let fields = self.fields(&version.value, "an upcast", UPCAST_KEYS);
            let known = [event_variable()];
            let set = self.templates(
                fields.get("set").copied(),
                "a mapping from fields of the event's data to values",
                &known,
            );
            let set =
                set.into_iter().map(|(field, value)| crate::definition::StateAssignment { field, value });
            upcast.insert(number, set.collect());
        }
        upcast
    }

    fn on_version(&mut self, entry: &YamlEntry) -> UnknownVersionPolicy {
        match self.yaml.text(entry) {
            Some("ignore") => UnknownVersionPolicy::Ignore,
            Some("compensate") => UnknownVersionPolicy::Compensate,
            Some("dead_letter") | None => UnknownVersionPolicy::DeadLetter,
            Some(_) => {
                self.yaml.wrong_kind(entry, "dead_letter, ignore or compensate");
                UnknownVersionPolicy::DeadLetter
            }
        }
    }

    fn correlate(&mut self, tree: &YamlNode, fields: &YamlFields<'_>) -> Option<Formula> {
        let known = [event_variable()];
        match fields.get("correlate") {
            Some(entry) => self.formula(entry, &known),
            None => Formula::read("event.metadata.correlation_id", &known)
                .map_err(|error| self.problem(tree.place, error.to_string()))
                .ok(),
        }
    }

    fn on_missing(
        &mut self,
        entry: Option<&YamlEntry>,
    ) -> (BTreeMap<String, MissingInstancePolicy>, MissingInstancePolicy) {
        let wanted = "a mapping from types of events to ignore, dead_letter or { park: 10m }";
        let entries = entry.map_or(&[][..], |entry| self.yaml.entries(entry, wanted));
        let (mut by_type, mut default) = (BTreeMap::new(), MissingInstancePolicy::Ignore);
        for entry in entries {
            let Some(missing) = self.missing_of(entry) else { continue };
            if entry.key == "default" {
                default = missing;
            } else {
                let kind = self.type_name(&entry.key, entry.place, "the type of an event");
                by_type.insert(kind, missing);
            }
        }
        (by_type, default)
    }

    fn missing_of(&mut self, entry: &YamlEntry) -> Option<MissingInstancePolicy> {
        if matches!(entry.value.value, YamlValue::Map(_)) {
            let fields = self.fields(&entry.value, "what becomes of an event without an instance", &["park"]);
            return fields.get("park").and_then(|park| self.duration(park)).map(MissingInstancePolicy::Park);
        }
        match self.yaml.text(entry)? {
            "ignore" => Some(MissingInstancePolicy::Ignore),
            "dead_letter" => Some(MissingInstancePolicy::DeadLetter),
            "start" => {
                self.problem(entry.value.place, "an event that starts a saga is named by `start.on`");
                None
            }
            _ => {
                self.yaml.wrong_kind(entry, "ignore, dead_letter or { park: 10m }");
                None
            }
        }
    }

    fn start(&mut self, tree: &YamlNode, fields: &YamlFields<'_>) -> Option<SagaStart> {
        let Some(entry) = fields.get("start") else {
            self.missing(tree.place, "a saga", "start", "{ on: OrderPlaced, goto: first-step }");
            return None;
        };
        let fields = self.fields(&entry.value, "`start`", START_KEYS);
        let known = start_variables();
        let on = fields.get("on").map(|entry| self.types(entry, "the type of an event")).unwrap_or_default();
        let schedule = self.schedule(&fields);
        let goto = self.required::<StepName>(&entry.value, &fields, "`start`", "goto", "first-step");
        if let (Some(goto), Some(entry)) = (&goto, fields.get("goto")) {
            self.targets.push((goto.clone(), entry.value.place));
        }
        Some(SagaStart {
            on,
            when: fields.get("when").and_then(|entry| self.formula(entry, &known)),
            schedule,
            set: self.assignments(fields.get("set").copied(), &known),
            goto: goto?,
        })
    }

    fn schedule(&mut self, fields: &YamlFields<'_>) -> Option<Schedule> {
        if let Some(entry) = fields.get("catch_up")
            && !fields.contains_key("schedule")
        {
            self.problem(entry.place, "`catch_up` is about a `schedule`, and there is none");
        }
        let catch_up = match fields.get("catch_up").map(|entry| (entry, self.yaml.text(entry))) {
            Some((_, Some("all"))) => CatchUpPolicy::All,
            Some((_, Some("none"))) => CatchUpPolicy::None,
            None | Some((_, Some("last") | None)) => CatchUpPolicy::Last,
            Some((entry, Some(_))) => {
                self.yaml.wrong_kind(entry, "last, all or none");
                CatchUpPolicy::Last
            }
        };
        let entry = fields.get("schedule")?;
        let cron = self.yaml.text(entry)?;
        match Schedule::read(cron, catch_up) {
            Ok(schedule) => Some(schedule),
            Err(why) => {
                let message = format!(
                    "`schedule` has to be five fields as cron has them, in UTC, such as \"0 3 * * *\": {why}"
                );
                self.problem(entry.value.place, message);
                None
            }
        }
    }

    fn compensated(&mut self, entry: &YamlEntry) -> Option<WorkOrder> {
        let fields = self.fields(&entry.value, "`compensated`", &["effect", "input", "command"]);
        let known = self.known(&[]);
        self.order(entry, &fields, &known)
    }

    fn ignore(&mut self, entry: &YamlEntry) -> BTreeMap<StepName, IgnoredEventTypes> {
        let wanted = "a mapping from steps to types of events, such as { ship: [PaymentCaptured] }";
        let mut ignore = BTreeMap::new();
        for entry in self.yaml.entries(entry, wanted) {
            let Some(step) = self.parsed::<StepName>(&entry.key, entry.place) else { continue };
            let kinds = match entry.value.value.as_text() {
                Some("*") => IgnoredEventTypes::All,
                _ => IgnoredEventTypes::Listed(self.types(entry, "the type of an event")),
            };
            ignore.insert(step, kinds);
        }
        ignore
    }

    fn migrate(&mut self, entry: &YamlEntry) -> Option<Migration> {
        let fields = self.fields(&entry.value, "`migrate`", MIGRATE_KEYS);
        let Some(from) = fields.get("from") else {
            self.missing(entry.value.place, "`migrate`", "from", "2");
            return None;
        };
        let from = self.yaml.whole(from, "the version that instances are of")?;
        let mut steps = BTreeMap::new();
        if let Some(entry) = fields.get("steps") {
            let wanted = "a mapping from steps of that version to steps of this one";
            for entry in self.yaml.entries(entry, wanted) {
                let theirs = self.parsed::<StepName>(&entry.key, entry.place);
                if let (Some(theirs), Some(ours)) = (theirs, self.name::<StepName>(entry)) {
                    steps.insert(theirs, ours);
                }
            }
        }
        // The old version's state has other fields, which are not known here.
        let known = [Variable::open("state"), Variable::with("saga", super::fields::SAGA_FIELDS)];
        Some(Migration { from, steps, set: self.assignments(fields.get("set").copied(), &known) })
    }

    fn limits(&mut self, entry: &YamlEntry) -> SagaLimits {
        let fields = self.fields(&entry.value, "`limits`", LIMIT_KEYS);
        let mut limit = |key: &str, default: usize, most: usize| {
            let Some(entry) = fields.get(key) else { return default };
            let wanted = format!("a whole number from 1 to {most}");
            let number: usize = self.yaml.whole(entry, &wanted).unwrap_or(default);
            if number == 0 || number > most {
                self.yaml.wrong_kind(entry, &wanted);
            }
            number
        };
        let SagaLimits { history, work_items, state_bytes } = SagaLimits::default();
        SagaLimits {
            history: limit("history", history, HISTORY_MAX),
            work_items: limit("work_items", work_items, WORK_MAX),
            state_bytes: limit("state_bytes", state_bytes, STATE_BYTES_MAX),
        }
    }
}

/// Returns the variables that are known before there is an instance.
fn start_variables() -> Vec<Variable> {
    let saga: BTreeSet<_> = ["name", "version", "correlation", "run"].into();
    vec![event_variable(), Variable::with("saga", saga), Variable::with("now", Vec::<String>::new())]
}
