//! Reader of scenario files: every problem is found at once.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use model::{CorrelationId, SagaName, SagaNameError, TenantId, Timestamp};
use workflow::Json;
use workflow::catalog::{Catalog, LoadedManifest};
use workflow::definition::{Saga, StepAction, WorkOrder};
use workflow::manifest::{self, ManifestDefinition};
use yaml::{
    MappingKeys, Problem, Problems, SourcePosition, YamlEntry, YamlFields, YamlNode, YamlValue, did_you_mean,
};

use super::{FILE_BYTES_MAX, ITEMS_MAX, SCENARIOS_MAX, Scenario, ScriptedAnswer};

/// Keys of a scenario file.
pub const FILE_KEYS: &[&str] =
    &["kind", "manifests", "earlier", "saga", "tenant", "begin", "answers", "scenarios"];
/// Keys of a scenario.
pub const SCENARIO_KEYS: &[&str] =
    &["name", "correlation", "starts_on", "given", "answers", "until", "expect", "exhaustive"];
/// Keys of an input.
pub const GIVEN_KEYS: &[&str] = &[
    "at",
    "event",
    "event_id",
    "aggregate",
    "aggregate_id",
    "version",
    "schema_version",
    "data",
    "metadata",
    "verb",
    "type",
    "reason",
    "result",
    "refused",
];
/// Keys of an answer.
pub const ANSWER_KEYS: &[&str] = &[
    "effect",
    "command",
    "when",
    "occurrence",
    "succeed",
    "fail",
    "time_out",
    "unknown",
    "never",
    "may_have_happened",
    "after",
    "despite_cancel",
];
/// Keys of the expectations.
pub const EXPECT_KEYS: &[&str] =
    &["status", "step", "reason", "state", "work", "compensations", "timers", "letters", "ignored", "paused"];
/// Keys of a piece of work that is expected.
pub const WORK_KEYS: &[&str] = &["effect", "command", "cancel", "input", "payload", "aggregate", "id"];
/// Verbs that a scenario may give.
pub const VERBS: [&str; 10] =
    ["start", "send", "pause", "resume", "cancel", "kill", "retry-step", "skip-step", "complete", "migrate"];

/// Name of the file in messages.
const KIND: &str = "a scenario file";
/// 2026-01-01T00:00:00Z.
const BEGIN: Timestamp = Timestamp::from_millis(1_767_225_600_000);
const TENANT: &str = "test";
const CORRELATION: &str = "test-1";

/// A scenario file whose manifests are not read yet.
#[derive(Debug)]
pub struct ScenarioFile {
    name: String,
    tree: YamlNode,
    /// Manifests that are in force, then those of earlier versions.
    manifests: Vec<(SourcePosition, String)>,
    /// Manifests that are in force.
    in_force: usize,
}

impl ScenarioFile {
    /// Reads the file itself; `name` is what messages call it.
    ///
    /// # Errors
    /// The file is no YAML, or does not name its manifests.
    pub fn read(name: &str, text: &str) -> Result<Self, Problems> {
        let refused = |problem: Problem| Problems::new(name, vec![problem]);
        if text.len() > FILE_BYTES_MAX {
            let message =
                format!("a scenario file has at most {FILE_BYTES_MAX} bytes, this one has {}", text.len());
            return Err(refused(Problem { place: None, message }));
        }
        let tree = yaml::parse(text, KIND).map_err(refused)?;
        let mut yaml = yaml::YamlReader::default();
        let fields = yaml.fields(&tree, KIND, MappingKeys::of(FILE_KEYS));
        match fields.get("kind").map(|entry| (entry, entry.value.value.as_text())) {
            Some((_, Some("SagaTest"))) => {}
            Some((entry, _)) => yaml.wrong_kind(entry, "`SagaTest`"),
            None => yaml.problem(tree.place, "a scenario file begins with `kind: SagaTest`"),
        }
        let mut paths = |key: &str| -> Vec<_> {
            let texts = fields.get(key).map(|entry| yaml.texts(entry)).unwrap_or_default();
            texts.into_iter().map(|(place, text)| (place, text.to_owned())).collect()
        };
        let (mut manifests, earlier) = (paths("manifests"), paths("earlier"));
        let in_force = manifests.len();
        manifests.extend(earlier);
        if in_force == 0 && yaml.count() == 0 {
            yaml.problem(tree.place, "a scenario file names its manifests; write `manifests: [order.yaml]`");
        }
        drop(fields);
        match yaml.into_problems() {
            problems if problems.is_empty() => Ok(Self { name: name.to_owned(), tree, manifests, in_force }),
            problems => Err(Problems::new(name, problems)),
        }
    }

    /// Paths of its manifests, followed by those of earlier versions, relative to the file's folder, and where they are
    /// named.
    #[must_use]
    pub fn manifests(&self) -> &[(SourcePosition, String)] {
        &self.manifests
    }

    /// Reports that one of its manifests cannot be read.
    #[must_use]
    pub fn unreadable(&self, place: SourcePosition, why: &str) -> Problems {
        Problems::new(&self.name, vec![Problem::at(place, why)])
    }

    /// Reads the scenarios; `manifests` are the texts of all manifests, each with what messages call it.
    ///
    /// # Errors
    /// Everything that is wrong with the file or with its manifests, by file.
    pub fn scenarios(&self, manifests: &[(String, String)]) -> Result<Vec<Scenario>, Vec<Problems>> {
        let (in_force, earlier) = manifests.split_at(self.in_force.min(manifests.len()));
        let (sagas, earlier) = (sagas(in_force)?, earlier_sagas(earlier)?);
        let mut yaml = yaml::YamlReader::default();
        let scenarios = self.with_sagas(&sagas, &earlier, &mut yaml);
        match (scenarios, yaml.into_problems()) {
            (Some(scenarios), problems) if problems.is_empty() => Ok(scenarios),
            (_, problems) => Err(vec![Problems::new(&self.name, problems)]),
        }
    }

    fn with_sagas(
        &self,
        sagas: &[Arc<Saga>],
        earlier: &[Arc<Saga>],
        yaml: &mut yaml::YamlReader,
    ) -> Option<Vec<Scenario>> {
        let fields = yaml.fields(&self.tree, KIND, MappingKeys::of(FILE_KEYS));
        let saga = self.saga(sagas, &fields, yaml)?;
        let place = fields.get("earlier").map_or(self.tree.place, |entry| entry.value.place);
        let versions = versions(&saga, earlier, place, yaml);
        let mut reader = ScenarioReader { known: KnownSagaNames::of_all(&versions), saga, versions, yaml };
        let tenant = fields.get("tenant").and_then(|entry| reader.name::<TenantId>(entry));
        let tenant = tenant.or_else(|| TENANT.parse().ok())?;
        let begin = fields.get("begin").and_then(|entry| reader.moment(entry)).unwrap_or(BEGIN);
        let shared = fields.get("answers").map(|entry| reader.answers(entry)).unwrap_or_default();
        let Some(entry) = fields.get("scenarios") else {
            reader.problem(
                self.tree.place,
                "a scenario file needs `scenarios`, each with what is given and expected",
            );
            return None;
        };
        let items = reader.yaml.items(entry, "a list of scenarios");
        if items.is_empty() || items.len() > SCENARIOS_MAX {
            reader.problem(entry.value.place, format!("a file has 1 to {SCENARIOS_MAX} scenarios"));
        }
        let mut scenarios: Vec<Scenario> = Vec::new();
        let mut own: Vec<Vec<ScriptedAnswer>> = Vec::new();
        let mut names = BTreeSet::new();
        for item in items.iter().take(SCENARIOS_MAX) {
            let Some(mut scenario) = reader.scenario(item, &tenant, begin) else { continue };
            if !names.insert(scenario.name.clone()) {
                reader.problem(item.place, format!("the scenario `{}` stands twice", scenario.name));
            }
            own.push(scenario.answers.clone());
            scenario.answers.extend(shared.iter().cloned());
            scenarios.push(scenario);
        }
        for (at, scenario) in scenarios.iter_mut().enumerate() {
            let others = own.iter().enumerate().filter(|(other, _)| *other != at);
            scenario.fallback_answers = others.flat_map(|(_, answers)| answers.iter().cloned()).collect();
        }
        Some(scenarios)
    }

    /// Finds the saga that the file is about.
    fn saga(
        &self,
        sagas: &[Arc<Saga>],
        fields: &YamlFields<'_>,
        yaml: &mut yaml::YamlReader,
    ) -> Option<Arc<Saga>> {
        let names: Vec<_> = sagas.iter().map(|saga| saga.name.as_str()).collect();
        let Some(entry) = fields.get("saga") else {
            if let [saga] = sagas {
                return Some(Arc::clone(saga));
            }
            let message =
                format!("the manifests have {} sagas; say which one with `saga: NAME`", sagas.len());
            yaml.problem(self.tree.place, message);
            return None;
        };
        let name = yaml.text(entry)?;
        let found = sagas.iter().find(|saga| name.parse::<SagaName>().is_ok_and(|name| saga.name == name));
        if found.is_none() {
            let hint = did_you_mean(name, &names);
            let message = format!("the manifests have no saga `{name}`{hint}");
            yaml.problem(entry.value.place, message);
        }
        found.cloned()
    }
}

/// Reads manifests. Providers are checked if there are any: those of the operator may be elsewhere.
fn sagas(manifests: &[(String, String)]) -> Result<Vec<Arc<Saga>>, Vec<Problems>> {
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    for (name, text) in manifests {
        match manifest::read(name, text) {
            Ok(documents) => files.push(LoadedManifest { name: name.clone(), documents }),
            Err(found) => problems.push(found),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let definitions = || files.iter().flat_map(|file| &file.documents).map(|document| &document.definition);
    let has_providers = definitions().any(|definition| matches!(definition, ManifestDefinition::Provider(_)));
    let sagas = definitions().filter_map(|definition| match definition {
        ManifestDefinition::Saga(saga) => Some(Arc::clone(saga)),
        ManifestDefinition::Provider(_) => None,
    });
    let sagas = sagas.collect();
    if has_providers {
        Catalog::new(&files, &Catalog::default(), &[])?;
    }
    Ok(sagas)
}

/// Reads manifests of earlier versions. Their providers are no longer in force, and are not checked.
fn earlier_sagas(manifests: &[(String, String)]) -> Result<Vec<Arc<Saga>>, Vec<Problems>> {
    let (mut sagas, mut problems) = (Vec::new(), Vec::new());
    for (name, text) in manifests {
        match manifest::read(name, text) {
            Ok(documents) => {
                sagas.extend(documents.into_iter().filter_map(|document| match document.definition {
                    ManifestDefinition::Saga(saga) => Some(saga),
                    ManifestDefinition::Provider(_) => None,
                }))
            }
            Err(found) => problems.push(found),
        }
    }
    if problems.is_empty() { Ok(sagas) } else { Err(problems) }
}

/// Puts all versions of a saga in order, the newest first.
fn versions(
    saga: &Arc<Saga>,
    earlier: &[Arc<Saga>],
    place: SourcePosition,
    yaml: &mut yaml::YamlReader,
) -> Vec<Arc<Saga>> {
    let mut versions = vec![Arc::clone(saga)];
    for other in earlier.iter().filter(|other| other.name == saga.name) {
        if versions.iter().any(|known| known.version == other.version) || other.version > saga.version {
            let (version, last) = (other.version, saga.version);
            let message = format!("version {version} stands twice, or is not before version {last}");
            yaml.problem(place, message);
        }
        versions.push(Arc::clone(other));
    }
    versions.sort_by_key(|saga| std::cmp::Reverse(saga.version));
    versions
}

/// Names that a saga has, for hints.
#[derive(Debug, Default)]
pub(super) struct KnownSagaNames {
    pub(super) events: Vec<String>,
    pub(super) effects: Vec<String>,
    pub(super) commands: Vec<String>,
    pub(super) steps: Vec<String>,
    pub(super) timers: Vec<String>,
    pub(super) fields: Vec<String>,
    pub(super) aggregates: Vec<String>,
}

impl KnownSagaNames {
    /// Names of all versions.
    fn of_all(versions: &[Arc<Saga>]) -> Self {
        let mut all = Self::default();
        for Self { events, effects, commands, steps, timers, fields, aggregates } in
            versions.iter().map(|saga| Self::of(saga))
        {
            for (known, more) in [
                (&mut all.events, events),
                (&mut all.effects, effects),
                (&mut all.commands, commands),
                (&mut all.steps, steps),
                (&mut all.timers, timers),
                (&mut all.fields, fields),
                (&mut all.aggregates, aggregates),
            ] {
                let new: Vec<_> = more.into_iter().filter(|name| !known.contains(name)).collect();
                known.extend(new);
            }
        }
        all
    }

    fn of(saga: &Saga) -> Self {
        let mut events: BTreeSet<String> = saga.start.on.clone();
        let mut commands = BTreeSet::new();
        let mut timers: BTreeSet<String> = saga.timers.iter().map(|timer| timer.name.to_string()).collect();
        let mut order = |order: &WorkOrder| {
            if let WorkOrder::Command { kind, .. } = order {
                commands.insert(kind.clone());
            }
        };
        saga.compensated.iter().for_each(&mut order);
        for step in saga.steps.values() {
            match &step.action {
                StepAction::Work(work) => {
                    for branch in &work.branches {
                        order(&branch.order);
                        branch.compensate.iter().for_each(&mut order);
                    }
                }
                StepAction::Wait(wait) => {
                    events.extend(wait.on.keys().cloned());
                    timers.extend(wait.timers.iter().map(|timer| timer.name.to_string()));
                }
            }
        }
        Self {
            events: events.into_iter().collect(),
            effects: saga.effects().into_iter().map(ToString::to_string).collect(),
            commands: commands.into_iter().collect(),
            steps: saga.steps.keys().map(ToString::to_string).collect(),
            timers: timers.into_iter().collect(),
            fields: saga.state.keys().cloned().collect(),
            aggregates: saga.sources.iter().map(|source| source.aggregate.clone()).collect(),
        }
    }
}

/// Reads the parts of a scenario file.
pub(super) struct ScenarioReader<'a> {
    pub(super) yaml: &'a mut yaml::YamlReader,
    /// The version that is in force.
    pub(super) saga: Arc<Saga>,
    pub(super) versions: Vec<Arc<Saga>>,
    pub(super) known: KnownSagaNames,
}

impl ScenarioReader<'_> {
    pub(super) fn problem(&mut self, place: SourcePosition, message: impl Into<String>) {
        self.yaml.problem(place, message);
    }

    /// Notes a name that the saga has not.
    pub(super) fn check_name(&mut self, place: SourcePosition, what: &str, name: &str, known: &[String]) {
        if known.iter().any(|known| known == name) {
            return;
        }
        let known: Vec<_> = known.iter().map(String::as_str).collect();
        let hint = match did_you_mean(name, &known) {
            hint if hint.is_empty() && known.is_empty() => "; it has none".to_owned(),
            hint if hint.is_empty() => format!("; there are {}", known.join(", ")),
            hint => hint,
        };
        let saga = self.saga.name.clone();
        self.problem(place, format!("the saga `{saga}` has no {what} `{name}`{hint}"));
    }

    /// Reads a name.
    pub(super) fn name<N: FromStr<Err = SagaNameError>>(&mut self, entry: &YamlEntry) -> Option<N> {
        let parsed = self.yaml.text(entry)?.parse();
        parsed.map_err(|error: SagaNameError| self.problem(entry.value.place, error.to_string())).ok()
    }

    /// Reads a moment of the calendar.
    fn moment(&mut self, entry: &YamlEntry) -> Option<Timestamp> {
        let moment = entry.value.value.as_text().and_then(Timestamp::from_rfc3339);
        if moment.is_none() {
            self.yaml.wrong_kind(entry, "a moment, as \"2026-01-01T00:00:00Z\"");
        }
        moment
    }

    /// Reads a length of time.
    pub(super) fn length(&mut self, entry: &YamlEntry) -> Option<Duration> {
        let length = entry.value.value.as_text().and_then(yaml::short_duration);
        if length.is_none() {
            self.yaml.wrong_kind(entry, "a length of time, as 500ms, 90s, 30m, 2h or 7d");
        }
        length
    }

    /// Reads a value.
    pub(super) fn json(&mut self, tree: &YamlNode) -> Json {
        match &tree.value {
            YamlValue::Null => Json::Null,
            YamlValue::Bool(truth, _) => Json::Bool(*truth),
            YamlValue::Int(number, _) => Json::Int(*number),
            YamlValue::Float(_, written) => {
                let message = format!("numbers are whole here; write \"{written}\" for the text of one");
                self.problem(tree.place, message);
                Json::Null
            }
            YamlValue::Text(text) => Json::Text(text.clone()),
            YamlValue::List(items) => Json::List(items.iter().map(|item| self.json(item)).collect()),
            YamlValue::Map(entries) => {
                Json::Map(entries.iter().map(|entry| (entry.key.clone(), self.json(&entry.value))).collect())
            }
        }
    }

    /// Reads an object.
    pub(super) fn object(&mut self, entry: &YamlEntry) -> Json {
        if !matches!(entry.value.value, YamlValue::Map(_)) {
            self.yaml.wrong_kind(entry, "an object");
        }
        self.json(&entry.value)
    }

    /// Returns the items of a list, up to the maximum number.
    pub(super) fn items<'t>(&mut self, entry: &'t YamlEntry, wanted: &str) -> &'t [YamlNode] {
        let items = self.yaml.items(entry, wanted);
        if items.len() > ITEMS_MAX {
            self.problem(entry.value.place, format!("`{}` has at most {ITEMS_MAX} items", entry.key));
        }
        &items[..items.len().min(ITEMS_MAX)]
    }

    /// Reads the version that an instance starts on.
    fn version(&mut self, entry: &YamlEntry) -> Option<Arc<Saga>> {
        let version: u32 = self.yaml.whole(entry, "a version of the saga")?;
        let found = self.versions.iter().find(|saga| saga.version == version).cloned();
        if found.is_none() {
            let there: Vec<_> = self.versions.iter().map(|saga| saga.version.to_string()).collect();
            let there = there.join(", ");
            let message = format!(
                "no manifest has version {version}; there are {there}. Name its manifest in `earlier`"
            );
            self.problem(entry.value.place, message);
        }
        found
    }

    fn scenario(&mut self, tree: &YamlNode, tenant: &TenantId, begin: Timestamp) -> Option<Scenario> {
        let fields = self.yaml.fields(tree, "a scenario", MappingKeys::of(SCENARIO_KEYS));
        let name = match fields.get("name") {
            Some(entry) => self.yaml.text(entry).map(str::to_owned),
            None => {
                self.problem(tree.place, "a scenario needs `name`, which reports call it");
                None
            }
        };
        let own: Option<CorrelationId> = fields.get("correlation").and_then(|entry| self.name(entry));
        let correlation = own.or_else(|| CORRELATION.parse().ok())?;
        let saga = fields.get("starts_on").and_then(|entry| self.version(entry));
        let saga = saga.unwrap_or_else(|| Arc::clone(&self.saga));
        let given = match fields.get("given") {
            Some(entry) => self.given(entry, &correlation),
            None => {
                self.problem(tree.place, "a scenario needs `given`: events and verbs");
                Vec::new()
            }
        };
        let expected = match fields.get("expect") {
            Some(entry) => self.expected(entry),
            None => {
                self.problem(tree.place, "a scenario needs `expect`, such as { status: completed }");
                super::ScenarioExpectations::default()
            }
        };
        Some(Scenario {
            name: name?,
            versions: self.versions.clone(),
            saga,
            tenant: tenant.clone(),
            correlation,
            begin,
            stimuli: given,
            answers: fields.get("answers").map(|entry| self.answers(entry)).unwrap_or_default(),
            fallback_answers: Vec::new(),
            until: fields.get("until").and_then(|entry| self.length(entry)),
            expectations: expected,
            is_exhaustive: fields
                .get("exhaustive")
                .and_then(|entry| self.yaml.boolean(entry))
                .unwrap_or(true),
        })
    }
}
