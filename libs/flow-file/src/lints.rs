//! Warnings about parts of a flow file that are well formed but unlikely to do what their author meant. Warnings refuse
//! nothing.

use std::collections::HashMap;

use model::{ScriptType, Violation};
use proto::convert::enums;
use proto::v1;

use super::files::{FileRoot, Upload};

/// Variables that programs read without being named in any script.
const READ_BY_PROGRAMS: &[&str] =
    &["HOME", "LANG", "LANGUAGE", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"];
/// Prefixes of such names.
const READ_BY_PROGRAMS_FROM: &[&str] = &["LC_", "LD_", "GIT_", "PYTHON", "RUST", "SSL_", "SOURCE_DATE_"];
/// Variables that the interpreter of a python job is started with in any case, or still reads itself.
const PYTHON_AS_MEANT: &[&str] =
    &["PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "PYTHONIOENCODING"];

/// A flow that is about to be submitted, with all that belongs to it.
pub(super) struct FlowFileLinter<'a> {
    spec: &'a v1::FlowSpec,
    uploads: HashMap<String, &'a Upload>,
    files: &'a FileRoot,
    /// Variables that the command line sets, with their fields.
    env: Vec<(&'a str, String)>,
}

impl<'a> FlowFileLinter<'a> {
    pub(super) fn new(
        spec: &'a v1::FlowSpec,
        uploads: &'a [Upload],
        files: &'a FileRoot,
        env: Vec<(&'a str, String)>,
    ) -> Self {
        let uploads = uploads.iter().map(|upload| (upload.blob.sha256.to_string(), upload)).collect();
        Self { spec, uploads, files, env }
    }

    /// Everything that deserves a warning, at fields of the flow.
    pub(super) fn warnings(&self) -> Vec<Violation> {
        let mut warnings = Vec::new();
        for (i, node) in self.spec.nodes.iter().enumerate() {
            let Some(job) = &node.job else { continue };
            let at = format!("flow.nodes[{i}].job");
            warnings.extend(self.references(job, &at));
            warnings.extend(python_variables(job, &at));
        }
        warnings.extend(self.env.iter().filter_map(|(name, field)| self.unread(name, field)));
        warnings
    }

    /// The text of a job's script, also of one that travels beside the flow.
    fn script<'s>(&'s self, job: &'s v1::JobSpec) -> Option<&'s str> {
        match job.script.as_ref()?.source.as_ref()? {
            v1::script::Source::Text(text) => Some(text),
            v1::script::Source::Blob(blob) => self.uploads.get(&blob.sha256)?.text(),
        }
    }

    /// References where they are not replaced: in the script, and in names of files.
    fn references(&self, job: &v1::JobSpec, at: &str) -> Vec<Violation> {
        let script = self.script(job).unwrap_or_default();
        let in_script = reference(script).map(|(begin, found)| {
            let line = script[..begin].matches('\n').count() + 1;
            let description = format!(
                "line {line} of the script has `{found}`, and references are replaced in `env` alone: write \
                 `env: {{ VALUE: \"{found}\" }}` and read the variable VALUE in the script"
            );
            Violation { field: format!("{at}.script"), description }
        });
        let outputs = job.outputs.iter().enumerate().map(|(i, name)| (format!("{at}.outputs[{i}]"), name));
        let files = job.files.keys().map(|name| (format!("{at}.files[{name}]"), name));
        let in_names = outputs.chain(files).filter_map(|(field, name)| {
            let (_, found) = reference(name)?;
            let description = format!(
                "names of files are taken as they are written, and `{found}` is replaced in `env` alone"
            );
            Some(Violation { field, description })
        });
        in_script.into_iter().chain(in_names).collect()
    }

    /// Explains why a variable that the command line sets reaches no script.
    fn unread(&self, name: &str, field: &str) -> Option<Violation> {
        let jobs: Vec<_> = self.spec.nodes.iter().map(|node| node.job.as_ref()).collect();
        // Only the coordinator knows which variables a kept job reads.
        if is_read_by_programs(name) || jobs.iter().any(Option::is_none) {
            return None;
        }
        let field = field.to_owned();
        let mentions: Vec<_> = jobs.into_iter().flatten().filter(|job| self.mentions(job, name)).collect();
        if mentions.is_empty() {
            let description = format!(
                "no script or file of the flow mentions `{name}`; a program that a script starts may read it all the same"
            );
            return Some(Violation { field, description });
        }
        let is_of_the_flow = field.starts_with("flow.env_vars");
        if is_of_the_flow && mentions.iter().all(|job| job.env_vars.contains_key(name)) {
            let description =
                format!("every job that mentions `{name}` sets it itself, and a job's own `env` wins");
            return Some(Violation { field, description });
        }
        None
    }

    fn mentions(&self, job: &v1::JobSpec, name: &str) -> bool {
        if self.script(job).is_none_or(|script| has_word(script.as_bytes(), name)) {
            return true;
        }
        // A file that can no longer be read is reported when it is sent.
        let bytes = |blob: &v1::BlobRef| self.uploads.get(&blob.sha256)?.bytes(self.files).ok();
        job.files.values().any(|blob| bytes(blob).is_none_or(|bytes| has_word(&bytes, name)))
    }
}

/// The first reference in a text that means something in `env`, and where it begins; scripts may have others of their own.
fn reference(text: &str) -> Option<(usize, &str)> {
    text.match_indices("${{").find_map(|(at, open)| {
        let inner = &text[at + open.len()..];
        let inner = &inner[..inner.find(['}', '\n'])?];
        let is_closed = text[at + open.len() + inner.len()..].starts_with("}}");
        let means_something =
            ["results.", "results[", "flow."].iter().any(|start| inner.trim().starts_with(start));
        (is_closed && means_something).then(|| (at, &text[at..at + open.len() + inner.len() + 2]))
    })
}

/// Variables by which an interpreter is set up before it runs, and which a python job's own never sees.
fn python_variables(job: &v1::JobSpec, at: &str) -> Vec<Violation> {
    if job.script_type() != enums::script_type_to_wire(ScriptType::Python) {
        return Vec::new();
    }
    let ignored = job
        .env_vars
        .keys()
        .filter(|name| name.starts_with("PYTHON") && !PYTHON_AS_MEANT.contains(&name.as_str()));
    ignored
        .map(|name| Violation {
            field: format!("{at}.env_vars[{name}]"),
            description: "the interpreter of a python job is started before its variables are known: this one \
                          counts for programs that the script starts. `script_type: shell` with `exec python3 …` obeys it"
                .to_owned(),
        })
        .collect()
}

fn is_read_by_programs(name: &str) -> bool {
    READ_BY_PROGRAMS.contains(&name)
        || READ_BY_PROGRAMS_FROM.iter().any(|start| name.starts_with(start))
        || name.to_ascii_lowercase().ends_with("_proxy")
}

/// Returns whether a name occurs in a text as a separate word.
fn has_word(text: &[u8], name: &str) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut words = text.split(|byte| !is_word(byte));
    words.any(|word| word == name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_those_that_mean_something_elsewhere() {
        for (text, found) in [
            ("echo ${{ results.a.rows }}", Some("${{ results.a.rows }}")),
            ("${{x}} ${{results[\"a-b\"].c}}", Some("${{results[\"a-b\"].c}}")),
            ("${{ flow.id }} ${{ flow.name }}", Some("${{ flow.id }}")),
            ("f\"${{amount}}\"", None),
            ("${{ results.a", None),
            ("${{${{ results.a.b }}", Some("${{ results.a.b }}")),
        ] {
            assert_eq!(reference(text).map(|(_, found)| found), found, "{text}");
        }
    }

    #[test]
    fn a_word_is_whole() {
        for (text, has) in [("echo $GREETING", true), ("${GREETING}x", true), ("GREETINGS _GREETING", false)]
        {
            assert_eq!(has_word(text.as_bytes(), "GREETING"), has, "{text}");
        }
    }
}
