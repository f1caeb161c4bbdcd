//! Values of manifests: names, times, formulas and templates.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use model::{EffectName, SagaNameError, StepName, TenantId};
use yaml::{MappingKeys, Problem, SourcePosition, YamlEntry, YamlFields, YamlNode, YamlValue};

use crate::Json;
use crate::definition::{StateAssignment, StateField, TenantSet};
use crate::formula::{Formula, FormulaError, ValueTemplate, Variable};

/// Reads one document.
#[derive(Debug, Default)]
pub(super) struct ManifestReader {
    pub(super) yaml: yaml::YamlReader,
    /// Fields of the saga's state.
    pub(super) state: BTreeMap<String, StateField>,
    /// Effects that are ordered, and where.
    pub(super) orders: Vec<(EffectName, SourcePosition)>,
    /// Steps that are named as targets, and where.
    pub(super) targets: Vec<(StepName, SourcePosition)>,
}

/// Fields of the variable `saga`.
pub(super) const SAGA_FIELDS: [&str; 7] =
    ["name", "version", "correlation", "run", "reason", "step", "started_at"];
/// Fields of the variable `event`.
pub(super) const EVENT_FIELDS: [&str; 7] =
    ["id", "type", "aggregate_type", "aggregate_id", "version", "data", "metadata"];

impl ManifestReader {
    /// Returns the problems, and the effects that are ordered.
    pub(super) fn finish(self) -> (Vec<Problem>, Vec<(EffectName, SourcePosition)>) {
        (self.yaml.into_problems(), self.orders)
    }

    pub(super) fn problem(&mut self, place: SourcePosition, message: impl Into<String>) {
        self.yaml.problem(place, message);
    }

    /// Gives the entries of a mapping by their keys.
    pub(super) fn fields<'t>(&mut self, tree: &'t YamlNode, what: &str, known: &[&str]) -> YamlFields<'t> {
        self.yaml.fields(tree, what, MappingKeys { known, older: &[], hint: way_out })
    }

    /// Notes that a key is missing.
    pub(super) fn missing(&mut self, place: SourcePosition, what: &str, key: &str, example: &str) {
        self.problem(place, format!("{what} needs `{key}`; write `{key}: {example}`"));
    }

    /// Reads a name, such as that of an effect.
    pub(super) fn name<N: FromStr<Err = SagaNameError>>(&mut self, entry: &YamlEntry) -> Option<N> {
        let text = self.yaml.text(entry)?;
        self.parsed(text, entry.value.place)
    }

    /// Reads a text that is a name, such as the key of a step.
    pub(super) fn parsed<N: FromStr<Err = SagaNameError>>(
        &mut self,
        text: &str,
        place: SourcePosition,
    ) -> Option<N> {
        match text.parse() {
            Ok(name) => Some(name),
            Err(error) => {
                self.problem(place, error.to_string());
                None
            }
        }
    }

    /// Reads the type of an event, of an aggregate or of a command: 1 to 128 characters of `[A-Za-z0-9_-]`.
    pub(super) fn type_name(&mut self, text: &str, place: SourcePosition, what: &str) -> String {
        if !is_type_name(text) {
            let found = text.chars().take(40).collect::<String>();
            self.problem(
                place,
                format!("{what} is 1 to 128 characters of A-Z a-z 0-9 _ and -, not `{found}`"),
            );
        }
        text.to_owned()
    }

    /// Reads a length of time: `500ms`, `90s`, `30m`, `2h`, `7d`.
    pub(super) fn duration(&mut self, entry: &YamlEntry) -> Option<Duration> {
        let length = entry.value.value.as_text().and_then(yaml::short_duration);
        if length.is_none() {
            self.yaml.wrong_kind(entry, "a length of time, as 500ms, 90s, 30m, 2h or 7d");
        }
        length
    }

    /// Reads the tenants to whom something is given: `all`, or a list.
    pub(super) fn tenants(&mut self, entry: Option<&YamlEntry>) -> TenantSet {
        let Some(entry) = entry else { return TenantSet::All };
        if entry.value.value.as_text() == Some("all") {
            return TenantSet::All;
        }
        if !matches!(entry.value.value, YamlValue::List(_)) {
            self.yaml.wrong_kind(entry, "`all` or a list of tenants, such as [acme-corp]");
            return TenantSet::All;
        }
        let texts = self.yaml.texts(entry);
        let tenants = texts.into_iter().filter_map(|(place, text)| self.parsed::<TenantId>(text, place));
        TenantSet::Listed(tenants.collect())
    }

    /// Reads an expression.
    pub(super) fn formula(&mut self, entry: &YamlEntry, known: &[Variable]) -> Option<Formula> {
        let text = self.yaml.text(entry)?;
        match Formula::read(text, known) {
            Ok(formula) => Some(formula),
            Err(error) => {
                self.wrong_formula(entry.value.place, &error);
                None
            }
        }
    }

    fn wrong_formula(&mut self, place: SourcePosition, error: &FormulaError) {
        self.problem(place, error.to_string());
    }

    /// Reads a value with formulas in it.
    pub(super) fn template(&mut self, tree: &YamlNode, known: &[Variable]) -> ValueTemplate {
        match &tree.value {
            YamlValue::Null => ValueTemplate::Literal(Json::Null),
            YamlValue::Bool(truth, _) => ValueTemplate::Literal(Json::Bool(*truth)),
            YamlValue::Int(number, _) => ValueTemplate::Literal(Json::Int(*number)),
            YamlValue::Float(_, written) => {
                self.problem(
                    tree.place,
                    format!("numbers are whole here; write \"{written}\" for the text of one"),
                );
                ValueTemplate::Literal(Json::Null)
            }
            YamlValue::Text(text) => self.text_template(text, tree.place, known),
            YamlValue::List(items) => {
                ValueTemplate::List(items.iter().map(|item| self.template(item, known)).collect())
            }
            YamlValue::Map(entries) => {
                let entries =
                    entries.iter().map(|entry| (entry.key.clone(), self.template(&entry.value, known)));
                ValueTemplate::Map(entries.collect())
            }
        }
    }

    fn text_template(&mut self, text: &str, place: SourcePosition, known: &[Variable]) -> ValueTemplate {
        match ValueTemplate::read_text(text, known) {
            Ok(template) => template,
            Err(errors) => {
                for error in &errors {
                    self.wrong_formula(place, error);
                }
                ValueTemplate::Literal(Json::Null)
            }
        }
    }

    /// Reads a text with formulas in it, for people or for the wire.
    pub(super) fn text_with_formulas(
        &mut self,
        entry: &YamlEntry,
        known: &[Variable],
    ) -> Option<ValueTemplate> {
        let text = self.yaml.text(entry)?;
        Some(self.text_template(text, entry.value.place, known))
    }

    /// Reads values with formulas in them, by names of their own.
    pub(super) fn templates(
        &mut self,
        entry: Option<&YamlEntry>,
        wanted: &str,
        known: &[Variable],
    ) -> BTreeMap<String, ValueTemplate> {
        let entries = entry.map_or(&[][..], |entry| self.yaml.entries(entry, wanted));
        entries.iter().map(|entry| (entry.key.clone(), self.template(&entry.value, known))).collect()
    }

    /// Reads values for fields of the state.
    pub(super) fn assignments(
        &mut self,
        entry: Option<&YamlEntry>,
        known: &[Variable],
    ) -> Vec<StateAssignment> {
        let wanted = "a mapping from fields of the state to values";
        let entries = entry.map_or(&[][..], |entry| self.yaml.entries(entry, wanted));
        let mut assignments = Vec::with_capacity(entries.len());
        for entry in entries {
            let value = self.template(&entry.value, known);
            self.check_assignment(entry, &value);
            assignments.push(StateAssignment { field: entry.key.clone(), value });
        }
        assignments
    }

    fn check_assignment(&mut self, entry: &YamlEntry, value: &ValueTemplate) {
        let Some(field) = self.state.get(&entry.key).copied() else {
            let fields: Vec<_> = self.state.keys().map(String::as_str).collect();
            let hint = yaml::did_you_mean(&entry.key, &fields);
            self.problem(entry.place, format!("`state` has no field `{}`{hint}", entry.key));
            return;
        };
        let fits = match value {
            ValueTemplate::Literal(Json::Null) => field.is_optional,
            ValueTemplate::Literal(value) => field.kind.holds(value),
            ValueTemplate::Text(_) => field.kind.holds(&Json::Text(String::new())),
            ValueTemplate::List(_) => field.kind.holds(&Json::List(Vec::new())),
            ValueTemplate::Map(_) => field.kind.holds(&Json::Map(BTreeMap::new())),
            ValueTemplate::Formula(_) => true,
        };
        if !fits {
            let optional = if field.is_optional { "optional " } else { "" };
            self.problem(
                entry.value.place,
                format!("`state.{}` is {optional}{}, this is another kind", entry.key, field.kind.as_str()),
            );
        }
    }

    /// The variables of a place, `state` and `saga` among them.
    pub(super) fn known(&self, more: &[&'static str]) -> Vec<Variable> {
        let mut known = vec![
            Variable::with("state", self.state.keys()),
            Variable::with("saga", SAGA_FIELDS),
            Variable::with("now", Vec::<String>::new()),
        ];
        known.extend(more.iter().map(|name| match *name {
            "event" => event_variable(),
            name => Variable::open(name),
        }));
        known
    }

    /// Reads a list of types, or one.
    pub(super) fn types(&mut self, entry: &YamlEntry, what: &str) -> BTreeSet<String> {
        let texts = match entry.value.value.as_text() {
            Some(text) => vec![(entry.value.place, text)],
            None => self.yaml.texts(entry),
        };
        texts.into_iter().map(|(place, text)| self.type_name(text, place, what)).collect()
    }
}

/// The variable `event`.
pub(super) fn event_variable() -> Variable {
    Variable::with("event", EVENT_FIELDS)
}

/// Returns whether a text may be the type of an event: a safe token.
fn is_type_name(text: &str) -> bool {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (1..=128).contains(&text.len()) && text.chars().all(is_safe)
}

/// Suggests a replacement for a key that other workflow products use.
fn way_out(key: &str, known: &[&str]) -> Option<String> {
    let is_step = known.contains(&"on_success");
    let way = match key {
        "retry" | "retries" | "backoff" if is_step => {
            "; a retry around a retry: the provider of the effect retries it"
        }
        "timeout" | "timeouts" if is_step => {
            "; the provider of the effect has its times, and a step that waits has `timers`"
        }
        "saga" if is_step => "; a step cannot start another saga yet",
        "next" | "transition" if known.contains(&"goto") => "; write `goto`",
        "if" | "condition" if known.contains(&"when") => "; write `when`",
        "compensation" | "undo" if known.contains(&"compensate") => "; write `compensate`",
        "password" | "token" | "secret" => "; name a secret where one is taken, as `secret:name`",
        _ => return None,
    };
    Some(way.to_owned())
}
