//! Conversion of the tree to the request. The reader notes every problem and continues with a harmless value, so that later
//! checks report only their own findings.

mod created_job;

use std::collections::BTreeMap;

use model::limits::{SCRIPT_BYTES_MAX, SCRIPT_INLINE_BYTES_MAX};
use model::{Isolation, RunIf, ScriptType};
use proto::{convert, v1};

use yaml::{
    MappingKeys, SourceMap, SourcePosition, YamlEntry, YamlFields, YamlNode, YamlValue, did_you_mean,
};

use super::files::{FileRoot, Uploads};
use super::key_hints::key_hint;
use super::keys::{
    BACKOFF_KEYS, FLOW_KEYS, FlowFileKey, JOB_KEY_NAMES, OLDER_JOB_KEY_NAMES, TARGET_KEYS, names,
};

/// Reader of a flow file, which collects its contents and its problems.
pub(super) struct FlowFileReader<'a> {
    pub(super) files: &'a FileRoot,
    pub(super) yaml: yaml::YamlReader,
    pub(super) places: SourceMap,
    pub(super) uploads: Uploads,
}

/// A field of the request and what the file calls it.
#[derive(Clone, Copy)]
struct FlowFieldPath<'a> {
    path: &'a str,
    label: &'a str,
}

impl FlowFieldPath<'_> {
    fn path(self, rest: &str) -> String {
        format!("{}.{rest}", self.path)
    }

    fn label(self, key: &str) -> String {
        if self.label.is_empty() { key.to_owned() } else { format!("{}.{key}", self.label) }
    }
}

impl<'a> FlowFileReader<'a> {
    pub(super) fn new(files: &'a FileRoot, places: SourceMap) -> Self {
        Self { files, yaml: yaml::YamlReader::default(), places, uploads: Uploads::default() }
    }
}

impl FlowFileReader<'_> {
    /// Reads a whole file: the flow, and the context when it names one.
    pub(super) fn flow(&mut self, tree: &YamlNode) -> (v1::FlowSpec, Option<u32>) {
        let at = FlowFieldPath { path: "flow", label: "" };
        self.places.add("flow", tree.place, "");
        let fields = self.fields(tree, "a flow", FLOW_KEYS);
        let mut flow = v1::FlowSpec { name: "unnamed".into(), ..Default::default() };
        if !matches!(tree.value, YamlValue::Map(_)) {
            return (flow, None);
        }
        match fields.get("name") {
            Some(entry) => {
                if let Some(name) = self.text(entry, at, "name") {
                    flow.name = name;
                }
            }
            None => self.problem(tree.place, "a flow needs a name; write `name: my-flow`"),
        }
        let context = fields.get("context").and_then(|entry| self.number(entry, at, "context"));
        if let (Some(0), Some(entry)) = (context, fields.get("context")) {
            self.problem(entry.value.place, "`context` is the number of a context, from 1 on, not 0");
        }
        flow.env_vars = self.texts(fields.get("env").copied(), at, "env", "env_vars");
        flow.fail_fast =
            fields.get("fail_fast").and_then(|entry| self.truth(entry, at, "fail_fast")).unwrap_or_default();
        flow.deadline_secs = fields
            .get("deadline")
            .and_then(|entry| self.secs(entry, at, "deadline_secs"))
            .unwrap_or_default();
        flow.cancel_timeout_secs = fields
            .get("cancel_timeout")
            .and_then(|entry| self.secs(entry, at, "cancel_timeout_secs"))
            .unwrap_or_default();
        match fields.get("jobs") {
            Some(entry) => flow.nodes = self.jobs(entry),
            None => {
                self.places.add("flow.nodes", tree.place, "");
                self.problem(
                    tree.place,
                    "a flow needs jobs; write `jobs:` and below it one entry for each job",
                );
            }
        }
        (flow, context)
    }

    fn jobs(&mut self, jobs: &YamlEntry) -> Vec<v1::NodeSpec> {
        self.places.add("flow.nodes", jobs.value.place, "jobs");
        let YamlValue::Map(entries) = &jobs.value.value else {
            let kind = jobs.value.value.kind();
            self.problem(
                jobs.value.place,
                format!("`jobs` maps the name of each job to the job, it is not {kind}"),
            );
            return Vec::new();
        };
        entries.iter().enumerate().map(|(i, entry)| self.job(i, entry)).collect()
    }

    fn job(&mut self, index: usize, entry: &YamlEntry) -> v1::NodeSpec {
        let (path, label) = (format!("flow.nodes[{index}]"), format!("jobs.{}", entry.key));
        let at = FlowFieldPath { path: &path, label: &label };
        self.places.add(&path, entry.place, &label);
        self.places.add(at.path("name"), entry.place, &label);
        let keys = MappingKeys { known: &JOB_KEY_NAMES, older: &OLDER_JOB_KEY_NAMES, hint: key_hint };
        let fields = self.yaml.fields(&entry.value, &format!("the job `{}`", entry.key), keys);
        let created_job = self.created_job(entry, &fields, at);
        v1::NodeSpec {
            name: entry.key.clone(),
            depends: self.depends(&fields, at),
            run_if: self.run_if(&fields, at).into(),
            allow_failure: fields
                .get("allow_failure")
                .and_then(|entry| self.truth(entry, at, "allow_failure"))
                .unwrap_or_default(),
            target: fields.get("target").map(|entry| self.target(entry, at)),
            policy: Some(self.policy(&fields, at)),
            prerequisites: self.prerequisites(&fields, at),
            when: fields.get("when").and_then(|entry| self.text(entry, at, "when")).unwrap_or_default(),
            job: created_job.is_none().then(|| self.job_spec(entry, &fields, at)),
            created_job_id: created_job.unwrap_or_default(),
        }
    }

    fn depends(&mut self, fields: &YamlFields<'_>, at: FlowFieldPath<'_>) -> Vec<String> {
        let entry = match (fields.get("depends"), fields.get("dependends")) {
            (Some(_), Some(second)) => {
                self.problem(
                    second.place,
                    "`dependends` is an older spelling of `depends`; keep one of them",
                );
                return Vec::new();
            }
            (Some(entry), None) | (None, Some(entry)) => entry,
            (None, None) => return Vec::new(),
        };
        self.list(entry, at, "depends", "depends")
    }

    fn prerequisites(&mut self, fields: &YamlFields<'_>, at: FlowFieldPath<'_>) -> Vec<String> {
        let Some(entry) = fields.get("prerequisites") else { return Vec::new() };
        if let YamlValue::List(items) = &entry.value.value {
            // YAML reads `signal: go` as a mapping; the author meant `signal:go`.
            let spaced = items.iter().find_map(|item| match &item.value {
                YamlValue::Map(entries) => Some((item.place, entries.first()?)),
                _ => None,
            });
            if let Some((place, YamlEntry { key, value, .. })) = spaced {
                let value = value.value.as_text().unwrap_or_default();
                self.problem(place, format!("write `{key}:{value}`, without a space"));
                return Vec::new();
            }
        }
        self.list(entry, at, "prerequisites", "prerequisites")
    }

    fn run_if(&mut self, fields: &YamlFields<'_>, at: FlowFieldPath<'_>) -> v1::RunIf {
        let Some(entry) = fields.get("run_if") else { return v1::RunIf::Unspecified };
        let Some(text) = self.text(entry, at, "run_if") else { return v1::RunIf::Unspecified };
        let known = RunIf::ALL.map(RunIf::as_str);
        match RunIf::ALL.into_iter().find(|run_if| run_if.as_str() == text) {
            Some(run_if) => convert::enums::run_if_to_wire(run_if),
            None => {
                let hint = did_you_mean(&text.to_uppercase(), &known);
                let known = known.join(", ");
                self.problem(
                    entry.value.place,
                    format!("`{text}` is no condition for run_if{hint}; there are {known}"),
                );
                v1::RunIf::Unspecified
            }
        }
    }

    fn target(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>) -> v1::Target {
        let (path, label) = (at.path("target"), at.label("target"));
        self.places.add(&path, entry.place, &label);
        let at = FlowFieldPath { path: &path, label: &label };
        let fields = self.fields(&entry.value, "a target", TARGET_KEYS);
        v1::Target {
            runner_id: fields
                .get("runner")
                .and_then(|entry| self.number(entry, at, "runner_id"))
                .unwrap_or_default(),
            group: fields.get("group").and_then(|entry| self.text(entry, at, "group")).unwrap_or_default(),
            instance: fields.get("instance").and_then(|entry| self.number(entry, at, "instance")),
            labels: self.texts(fields.get("labels").copied(), at, "labels", "labels"),
        }
    }

    fn policy(&mut self, fields: &YamlFields<'_>, at: FlowFieldPath<'_>) -> v1::NodePolicy {
        let path = at.path("policy");
        let at = FlowFieldPath { path: &path, label: at.label };
        let mut number =
            |key: &str, field: &str| fields.get(key).and_then(|entry| self.number(entry, at, field));
        let mut policy = v1::NodePolicy {
            retries: number("retries", "retries").unwrap_or_default(),
            losses: number("losses", "losses"),
            ..Default::default()
        };
        let mut secs = |key: &str, field: &str| fields.get(key).and_then(|entry| self.secs(entry, at, field));
        policy.timeout_secs = secs("timeout", "timeout_secs");
        policy.timeout_queue_secs = secs("timeout_queue", "timeout_queue_secs").unwrap_or_default();
        policy.timeout_ack_secs = secs("timeout_ack", "timeout_ack_secs");
        policy.timeout_result_secs = secs("timeout_result", "timeout_result_secs").unwrap_or_default();
        policy.priority = fields.get("priority").and_then(|entry| {
            self.number_of(entry, at, "priority", "0, 1 or 2, where 0 goes first and 1 is usual")
        });
        policy.isolation = self.isolation(fields, at).into();
        policy.network =
            fields.get("network").and_then(|entry| self.truth(entry, at, "network")).unwrap_or_default();
        policy.idempotent = fields.get("idempotent").and_then(|entry| self.truth(entry, at, "idempotent"));
        policy.backoff = fields.get("backoff").map(|entry| self.backoff(entry, at));
        policy.loss_backoff = fields.get("loss_backoff").map(|entry| self.backoff(entry, at));
        if let Some(entry) = fields.get("no_retry_exit_codes") {
            self.places.add(at.path("no_retry_exit_codes"), entry.place, at.label(&entry.key));
            policy.no_retry_exit_codes = self.exit_codes(entry);
        }
        policy
    }

    fn isolation(&mut self, fields: &YamlFields<'_>, at: FlowFieldPath<'_>) -> v1::Isolation {
        let Some(entry) = fields.get("isolation") else { return v1::Isolation::Unspecified };
        let Some(text) = self.text(entry, at, "isolation") else { return v1::Isolation::Unspecified };
        match text.parse() {
            Ok(level) => convert::enums::isolation_to_wire(level),
            Err(error) => {
                let hint = did_you_mean(&text, &Isolation::ALL.map(Isolation::as_str));
                self.problem(entry.value.place, format!("{error}{hint}"));
                v1::Isolation::Unspecified
            }
        }
    }

    fn backoff(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>) -> v1::Backoff {
        let (path, label) = (at.path(&entry.key), at.label(&entry.key));
        self.places.add(&path, entry.place, &label);
        let at = FlowFieldPath { path: &path, label: &label };
        let fields = self.fields(&entry.value, "a backoff", BACKOFF_KEYS);
        let mut fraction =
            |key: &str, field: &str| fields.get(key).and_then(|entry| self.fraction(entry, at, field));
        v1::Backoff {
            initial_secs: fraction("initial", "initial_secs").unwrap_or_default(),
            multiplier: fraction("multiplier", "multiplier").unwrap_or_default(),
            max_secs: fraction("max", "max_secs").unwrap_or_default(),
        }
    }

    fn exit_codes(&mut self, entry: &YamlEntry) -> Vec<i32> {
        let YamlValue::List(items) = &entry.value.value else {
            self.wrong_kind(entry, "a list of numbers, such as [2, 64]");
            return Vec::new();
        };
        let mut codes = Vec::with_capacity(items.len());
        for item in items {
            match &item.value {
                YamlValue::Int(code @ 0..=255, _) => codes.extend(i32::try_from(*code)),
                other => {
                    let written = other.as_text().unwrap_or_else(|| other.kind());
                    self.problem(
                        item.place,
                        format!("an exit code is a number from 0 to 255, not {written}"),
                    );
                }
            }
        }
        codes
    }

    fn job_spec(&mut self, job: &YamlEntry, fields: &YamlFields<'_>, at: FlowFieldPath<'_>) -> v1::JobSpec {
        let path = at.path("job");
        self.places.add(&path, job.place, at.label);
        let at = FlowFieldPath { path: &path, label: at.label };
        let script = self.script(job, fields, at);
        let files = fields.get("files").map(|entry| self.job_files(entry, at)).unwrap_or_default();
        let outputs = match fields.get("outputs") {
            Some(entry) => self.list(entry, at, "outputs", "outputs"),
            None => Vec::new(),
        };
        v1::JobSpec {
            script_type: self.script_type(job, fields, at).into(),
            script: Some(v1::Script { source: Some(script) }),
            env_vars: self.texts(fields.get("env").copied(), at, "env", "env_vars"),
            files,
            outputs,
            // The submitter signs the job, if it is signed at all.
            signature: String::new(),
        }
    }

    fn script_type(
        &mut self,
        job: &YamlEntry,
        fields: &YamlFields<'_>,
        at: FlowFieldPath<'_>,
    ) -> v1::ScriptType {
        let known = ScriptType::ALL.map(ScriptType::as_str);
        let Some(entry) = fields.get("script_type") else {
            let known = known.join(", ");
            self.problem(job.place, format!("the job `{}` needs a script_type: one of {known}", job.key));
            return v1::ScriptType::Shell;
        };
        let Some(text) = self.text(entry, at, "script_type") else { return v1::ScriptType::Shell };
        match text.parse::<ScriptType>() {
            Ok(script_type) => convert::enums::script_type_to_wire(script_type),
            Err(error) => {
                let hint = did_you_mean(&text, &known);
                self.problem(entry.value.place, format!("{error}{hint}"));
                v1::ScriptType::Shell
            }
        }
    }

    fn script(
        &mut self,
        job: &YamlEntry,
        fields: &YamlFields<'_>,
        at: FlowFieldPath<'_>,
    ) -> v1::script::Source {
        let nothing = || v1::script::Source::Text("true".into());
        let text = match (fields.get("script"), fields.get("script_file")) {
            (Some(_), Some(second)) => {
                let message =
                    format!("the job `{}` has both `script` and `script_file`; keep one of them", job.key);
                self.problem(second.place, message);
                return nothing();
            }
            (None, None) => {
                self.problem(
                    job.place,
                    format!("the job `{}` needs a `script`, a `script_file` or a `created_job`", job.key),
                );
                return nothing();
            }
            (Some(entry), None) => self.text(entry, at, "script"),
            (None, Some(entry)) => self.script_file(entry, at),
        };
        match text {
            None => nothing(),
            Some(text) if text.len() > SCRIPT_INLINE_BYTES_MAX => {
                let blob = self.uploads.text(&format!("script of {}", job.key), text);
                v1::script::Source::Blob(blob_to_wire(blob))
            }
            Some(text) => v1::script::Source::Text(text),
        }
    }

    fn script_file(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>) -> Option<String> {
        let path = self.text(entry, at, "script")?;
        let problem = match self.files.read(&path) {
            Ok(bytes) if bytes.len() > SCRIPT_BYTES_MAX => {
                format!("`{path}` has {} bytes; a script has at most {SCRIPT_BYTES_MAX}", bytes.len())
            }
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => return Some(text),
                Err(_) => format!("`{path}` is not a text in UTF-8"),
            },
            Err(error) => error.to_string(),
        };
        self.problem(entry.value.place, problem);
        None
    }

    fn job_files(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>) -> BTreeMap<String, v1::BlobRef> {
        self.places.add(at.path("files"), entry.place, at.label("files"));
        let YamlValue::Map(entries) = &entry.value.value else {
            self.wrong_kind(entry, "a mapping from names to paths, such as { book.txt: ../data/book.txt }");
            return BTreeMap::new();
        };
        let mut files = BTreeMap::new();
        for file in entries {
            let field = format!("{}.files[{}]", at.path, file.key);
            self.places.add(field, file.place, format!("{}.files.{}", at.label, file.key));
            let Some(path) = file.value.value.as_text() else {
                self.wrong_kind(file, "the path of a file");
                continue;
            };
            match self.uploads.file(self.files, path) {
                Ok(blob) => {
                    files.insert(file.key.clone(), blob_to_wire(blob));
                }
                Err(error) => self.problem(file.value.place, error.to_string()),
            }
        }
        files
    }

    /// The entries of a mapping by their keys, unknown ones reported.
    fn fields<'t>(&mut self, tree: &'t YamlNode, what: &str, known: &[FlowFileKey]) -> YamlFields<'t> {
        self.yaml.fields(tree, what, MappingKeys { known: &names(known), older: &[], hint: key_hint })
    }

    /// A text; a number or a truth value is the text that was written.
    fn text(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>, field: &str) -> Option<String> {
        self.places.add(at.path(field), entry.value.place, at.label(&entry.key));
        self.yaml.text(entry).map(str::to_owned)
    }

    fn number(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>, field: &str) -> Option<u32> {
        self.number_of(entry, at, field, "a whole number from 0 on")
    }

    fn number_of(
        &mut self,
        entry: &YamlEntry,
        at: FlowFieldPath<'_>,
        field: &str,
        wanted: &str,
    ) -> Option<u32> {
        self.places.add(at.path(field), entry.value.place, at.label(&entry.key));
        self.yaml.whole(entry, wanted)
    }

    /// Seconds, as a number or as in `5m`.
    fn secs(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>, field: &str) -> Option<u32> {
        self.places.add(at.path(field), entry.value.place, at.label(&entry.key));
        let secs = match &entry.value.value {
            YamlValue::Int(number, _) => u32::try_from(*number).ok(),
            value => {
                value.as_text().and_then(yaml::duration).and_then(|length| length.as_secs().try_into().ok())
            }
        };
        if secs.is_none() {
            self.wrong_kind(entry, "seconds, or a time as 90s, 5m, 2h or 7d");
        }
        secs
    }

    fn fraction(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>, field: &str) -> Option<f64> {
        self.places.add(at.path(field), entry.value.place, at.label(&entry.key));
        match &entry.value.value {
            YamlValue::Int(number, _) => i32::try_from(*number).ok().map(f64::from),
            YamlValue::Float(number, _) => Some(*number),
            _ => {
                self.wrong_kind(entry, "a number");
                None
            }
        }
    }

    fn truth(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>, field: &str) -> Option<bool> {
        self.places.add(at.path(field), entry.value.place, at.label(&entry.key));
        self.yaml.boolean(entry)
    }

    fn list(&mut self, entry: &YamlEntry, at: FlowFieldPath<'_>, key: &str, field: &str) -> Vec<String> {
        self.places.add(at.path(field), entry.place, at.label(key));
        let texts = self.yaml.texts(entry);
        for (index, (place, _)) in texts.iter().enumerate() {
            if self.places.is_recording() {
                self.places.add(format!("{}.{field}[{index}]", at.path), *place, at.label(key));
            }
        }
        texts.into_iter().map(|(_, text)| text.to_owned()).collect()
    }

    fn texts(
        &mut self,
        entry: Option<&YamlEntry>,
        at: FlowFieldPath<'_>,
        key: &str,
        field: &str,
    ) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        let Some(entry) = entry else { return texts };
        self.places.add(at.path(field), entry.place, at.label(key));
        let YamlValue::Map(entries) = &entry.value.value else {
            self.wrong_kind(entry, "a mapping from names to texts, such as { LANG: C.UTF-8 }");
            return texts;
        };
        for item in entries {
            let label = format!("{}.{}", at.label(key), item.key);
            self.places.add(format!("{}.{field}[{}]", at.path, item.key), item.place, label);
            match item.value.value.as_text() {
                Some(text) => {
                    texts.insert(item.key.clone(), text.to_owned());
                }
                None => self.wrong_kind(item, "a text (write \"\" for an empty one)"),
            }
        }
        texts
    }

    fn wrong_kind(&mut self, entry: &YamlEntry, wanted: &str) {
        self.yaml.wrong_kind(entry, wanted);
    }

    fn problem(&mut self, place: SourcePosition, message: impl Into<String>) {
        self.yaml.problem(place, message);
    }
}

pub(super) fn blob_to_wire(blob: model::job::BlobRef) -> v1::BlobRef {
    v1::BlobRef { sha256: blob.sha256.to_string(), size: blob.size }
}
