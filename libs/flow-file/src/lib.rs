//! Flow files: what people write, parsed into the request that submits it.
//!
//! Every problem is found at once and has a line and a column. The server's semantic checks run here first: the request is
//! parsed and planned as the scheduler will do it, and each violation is mapped back to its place in the file.

mod files;
mod key_hints;
mod keys;
mod lints;
mod node_batches;
mod reader;
mod schema;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::path::Path;

use model::{BlobHash, Violation, Violations};
use prost::Message;
use proto::convert::flow_spec;
use proto::v1;
use yaml::{Problem, Problems, SourceMap};

pub use files::{FileError, FileRoot, Upload, UploadError, Uploads};
use lints::FlowFileLinter;
pub use node_batches::{PART_BYTES_MAX, node_batches};
use reader::FlowFileReader;
pub use schema::schema;

/// Maximum size of a flow file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum size in bytes of a flow submitted with one call; a larger one is created, filled and started.
pub const SUBMIT_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Name of a file of this kind in messages.
const KIND: &str = "a flow file";
/// Scripts longer than this that several jobs share travel once, as a blob, when the flow is too large for one call.
const SCRIPT_BYTES_SHARED: usize = 200;

/// A flow file as it was read, before it is understood.
#[derive(Debug, Clone)]
pub struct FlowFileSource {
    /// Name of the file in messages.
    pub name: String,
    /// Text of the file.
    pub text: String,
    /// Meaning of the paths in the file.
    pub files: FileRoot,
}

/// A flow file that nothing is wrong with.
#[derive(Debug, Clone)]
pub struct FlowFile {
    /// Flow to run.
    pub spec: v1::FlowSpec,
    /// The context that the file names.
    pub context: Option<u32>,
    /// Blobs that the coordinator must have before.
    pub uploads: Vec<Upload>,
    /// Where the uploads come from.
    pub files: FileRoot,
    name: String,
    origin: FlowFileOrigin,
}

/// Origin of a flow, from which the places of its fields are found when they are needed: for a
/// large flow they take more memory than the flow.
#[derive(Debug, Clone)]
enum FlowFileOrigin {
    /// A text, and the variables that came from elsewhere.
    File { text: String, env: Vec<String> },
    /// The command line.
    Flags(SourceMap),
}

impl FlowFileOrigin {
    /// Variables that the command line sets, with their fields.
    fn outside<'a>(&'a self, spec: &'a v1::FlowSpec) -> Vec<(&'a str, String)> {
        match self {
            Self::File { env, .. } => {
                env.iter().map(|name| (name.as_str(), format!("flow.env_vars[{name}]"))).collect()
            }
            Self::Flags(_) => {
                let jobs = spec.nodes.first().and_then(|node| node.job.as_ref());
                let names = jobs.into_iter().flat_map(|job| job.env_vars.keys());
                names.map(|name| (name.as_str(), format!("flow.nodes[0].job.env_vars[{name}]"))).collect()
            }
        }
    }

    fn places(&self, files: &FileRoot) -> Cow<'_, SourceMap> {
        match self {
            Self::Flags(places) => Cow::Borrowed(places),
            Self::File { text, env } => {
                let mut reader = FlowFileReader::new(files, SourceMap::recording());
                // The text was parsed before, so there is a tree.
                if let Ok(tree) = yaml::parse(text, KIND) {
                    reader.flow(&tree);
                }
                for variable in env {
                    reader
                        .places
                        .add_external(format!("flow.env_vars[{variable}]"), format!("--env {variable}"));
                }
                Cow::Owned(reader.places)
            }
        }
    }
}

impl FlowFileSource {
    /// Reads a file, or standard input when it is called `-`.
    ///
    /// # Errors
    /// When it cannot be read, is no text, or is too large.
    pub fn open(path: &str) -> Result<Self, Problems> {
        let (name, files) = match path {
            "-" => ("stdin", FileRoot::Directory(".".into())),
            path => (path, FileRoot::Directory(Path::new(path).parent().unwrap_or(Path::new("")).to_owned())),
        };
        let refused = |message: String| Problems::new(name, vec![Problem { place: None, message }]);
        let bytes = read(path).map_err(|error| refused(format!("cannot be read: {error}")))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(refused(format!("a flow file has at most {FILE_BYTES_MAX} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            refused(format!("is not a text in UTF-8: byte {} is wrong", error.utf8_error().valid_up_to()))
        })?;
        Ok(Self { name: name.to_owned(), text, files })
    }
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match path {
        "-" => io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?,
        path => std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

impl FlowFile {
    /// Returns whether it asks for the same as another one, however that is written.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let uploads = |file: &Self| file.uploads.iter().map(|upload| upload.blob.sha256).collect::<Vec<_>>();
        (&self.spec, self.context) == (&other.spec, other.context) && uploads(self) == uploads(other)
    }

    /// Understands a source. `env` overrides the flow's variables.
    ///
    /// # Errors
    /// Everything that is wrong with it, with lines and columns.
    pub fn parse(source: FlowFileSource, env: &[(String, String)]) -> Result<Self, Problems> {
        let FlowFileSource { name, text, files } = source;
        let tree = yaml::parse(&text, KIND).map_err(|problem| Problems::new(&name, vec![problem]))?;
        let mut reader = FlowFileReader::new(&files, SourceMap::discarding());
        let (mut spec, context) = reader.flow(&tree);
        // A large flow has a large tree.
        drop(tree);
        spec.env_vars.extend(env.iter().cloned());
        let FlowFileReader { yaml, mut uploads, .. } = reader;
        let mut problems = yaml.into_problems();
        let origin =
            FlowFileOrigin::File { text, env: env.iter().map(|(variable, _)| variable.clone()).collect() };
        let violations = check(&spec);
        if !violations.is_empty() {
            let places = origin.places(&files);
            // Both lists may be as long as the file has lines.
            let mut known: HashSet<_> = problems.iter().map(|problem| problem.place).collect();
            for violation in violations.as_slice() {
                let found = locate(&places, violation);
                // A value that was read wrongly is often reported as missing later; the first message is the better one.
                if found.place.is_none() || known.insert(found.place) {
                    problems.push(found);
                }
            }
        }
        if problems.is_empty() && spec.encoded_len() > SUBMIT_BYTES_MAX {
            share_scripts(&mut spec, &mut uploads);
            let violations = jobs_too_large(&spec);
            if !violations.is_empty() {
                let places = origin.places(&files);
                problems.extend(violations.as_slice().iter().map(|violation| locate(&places, violation)));
            }
        }
        if !problems.is_empty() {
            return Err(Problems::new(&name, problems));
        }
        Ok(Self { spec, context, uploads: uploads.into_list(), files, name, origin })
    }

    /// A flow of one job that the command line describes, as messages call it; `labels` are its fields and what
    /// people call them.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn of_job(
        name: &str,
        node: v1::NodeSpec,
        uploads: Uploads,
        labels: &[(String, String)],
    ) -> Result<Self, Problems> {
        let mut places = SourceMap::recording();
        for (field, label) in labels {
            places.add_external(field, label);
        }
        let spec = v1::FlowSpec { name: node.name.clone(), nodes: vec![node], ..Default::default() };
        let problems: Vec<_> = check(&spec).as_slice().iter().map(|found| locate(&places, found)).collect();
        if !problems.is_empty() {
            return Err(Problems::new(name, problems));
        }
        let files = FileRoot::Directory("".into());
        let (name, origin) = (name.to_owned(), FlowFileOrigin::Flags(places));
        Ok(Self { spec, context: None, uploads: uploads.into_list(), files, name, origin })
    }

    /// Returns warnings: parts that are well formed but unlikely to do what their author meant. `None` when there are none.
    #[must_use]
    pub fn warnings(&self) -> Option<Problems> {
        let Self { spec, uploads, files, origin, .. } = self;
        let warnings = FlowFileLinter::new(spec, uploads, files, origin.outside(spec)).warnings();
        (!warnings.is_empty()).then(|| self.locate(&warnings))
    }

    /// Returns true if one call can submit the flow.
    #[must_use]
    pub fn fits_one_call(&self) -> bool {
        self.spec.encoded_len() <= SUBMIT_BYTES_MAX
    }

    /// Reports `description` for every job that is kept at the coordinator, at its place in the file; `None` when there is
    /// no such job.
    #[must_use]
    pub fn created_job_problems(&self, description: &str) -> Option<Problems> {
        let kept = self.spec.nodes.iter().enumerate().filter(|(_, node)| is_kept(node));
        let of_each = |(i, _)| Violation {
            field: format!("flow.nodes[{i}].created_job_id"),
            description: description.to_owned(),
        };
        let violations: Vec<_> = kept.map(of_each).collect();
        (!violations.is_empty()).then(|| self.locate(&violations))
    }

    /// Locates a server's violations in the file.
    #[must_use]
    pub fn locate(&self, violations: &[Violation]) -> Problems {
        let places = self.origin.places(&self.files);
        let list = violations.iter().map(|violation| locate(&places, violation)).collect();
        Problems::new(&self.name, list)
    }
}

/// Places a violation at the position of its field.
fn locate(places: &SourceMap, violation: &Violation) -> Problem {
    places.locate(&violation.field, &violation.description)
}

/// Runs the server's checks in advance.
fn check(spec: &v1::FlowSpec) -> Violations {
    let mut spec = spec.clone();
    // Only the coordinator knows the content of kept jobs.
    spec.nodes.iter_mut().filter(|node| is_kept(node)).for_each(stand_in);
    flow::check_request(flow_spec::from_wire(spec, "flow"), "flow").err().unwrap_or_default()
}

/// Returns true for a job that is kept at the coordinator.
const fn is_kept(node: &v1::NodeSpec) -> bool {
    node.created_job_id != 0 && node.job.is_none()
}

/// Lets a job execute nothing in particular.
fn stand_in(node: &mut v1::NodeSpec) {
    let source = Some(v1::script::Source::Text("true".to_owned()));
    let script_type = v1::ScriptType::Shell.into();
    node.job = Some(v1::JobSpec { script_type, script: Some(v1::Script { source }), ..Default::default() });
    node.created_job_id = 0;
}

/// Makes blobs of scripts that several jobs share.
fn share_scripts(spec: &mut v1::FlowSpec, uploads: &mut Uploads) {
    let mut known = HashMap::<BlobHash, u32>::new();
    for text in spec.nodes.iter_mut().filter_map(long_script) {
        *known.entry(BlobHash::of(text.as_bytes())).or_default() += 1;
    }
    for node in &mut spec.nodes {
        let label = format!("script of {}", node.name);
        let Some(text) = long_script(node) else { continue };
        if known.get(&BlobHash::of(text.as_bytes())).is_some_and(|jobs| *jobs > 1) {
            let blob = uploads.text(&label, std::mem::take(text));
            let script = node.job.as_mut().and_then(|job| job.script.as_mut());
            script.expect("it was just read").source =
                Some(v1::script::Source::Blob(reader::blob_to_wire(blob)));
        }
    }
}

fn long_script(node: &mut v1::NodeSpec) -> Option<&mut String> {
    match node.job.as_mut()?.script.as_mut()?.source.as_mut()? {
        v1::script::Source::Text(text) => Some(text).filter(|text| text.len() > SCRIPT_BYTES_SHARED),
        v1::script::Source::Blob(_) => None,
    }
}

/// Every job has to fit into one call.
fn jobs_too_large(spec: &v1::FlowSpec) -> Violations {
    let mut violations = Violations::new();
    for (i, node) in spec.nodes.iter().enumerate() {
        let bytes = node.encoded_len();
        if bytes > SUBMIT_BYTES_MAX {
            violations.add(
                format!("flow.nodes[{i}]"),
                format!("the job has {bytes} bytes with the names it depends on, at most {SUBMIT_BYTES_MAX} are allowed"),
            );
        }
    }
    violations
}

#[cfg(test)]
mod tests;
