//! Flow files: what people write, parsed into the request that submits it.
//!
//! Everything that is wrong is found at once and has a line and a column. The
//! checks of meaning are those of the server, made here first: the request is
//! parsed and planned as the scheduler will do it, and what is refused is led
//! back to its place in the file.

mod files;
mod places;
mod problem;
mod reader;
mod tree;

use std::io::{self, Read};
use std::path::Path;

use model::{Violation, Violations};
use prost::Message;
use proto::convert::flow_spec;
use proto::v1;

pub use files::{FileError, Files, Upload, UploadError};
pub use problem::{Place, Problem, Problems};
use reader::Reader;

/// What a flow file may have, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// What one submission may have, in bytes.
pub const SUBMIT_BYTES_MAX: usize = 3 * 1024 * 1024;
/// When a submission would be too large, scripts longer than this travel as blobs.
const SCRIPT_BYTES_WHEN_CROWDED: usize = 200;

/// A flow file as it was read, before it is understood.
#[derive(Debug, Clone)]
pub struct Source {
    /// What messages call it.
    pub name: String,
    /// What it says.
    pub text: String,
    /// What the paths in it mean.
    pub files: Files,
}

/// A flow file that nothing is wrong with.
#[derive(Debug, Clone)]
pub struct FlowFile {
    /// What to run.
    pub spec: v1::FlowSpec,
    /// The context that the file names.
    pub context: Option<u32>,
    /// What has to be at the coordinator before.
    pub uploads: Vec<Upload>,
    /// Where the uploads come from.
    pub files: Files,
    name: String,
    places: places::Places,
}

impl Source {
    /// Reads a file, or standard input when it is called `-`.
    ///
    /// # Errors
    /// When it cannot be read, is no text, or is too large.
    pub fn open(path: &str) -> Result<Self, Problems> {
        let (name, files) = match path {
            "-" => ("stdin", Files::Directory(".".into())),
            path => (path, Files::Directory(Path::new(path).parent().unwrap_or(Path::new("")).to_owned())),
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
    /// Understands a source. `env` overrides the flow's variables.
    ///
    /// # Errors
    /// Everything that is wrong with it, with lines and columns.
    pub fn parse(source: Source, env: &[(String, String)]) -> Result<Self, Problems> {
        let Source { name, text, files } = source;
        let tree = tree::parse(&text).map_err(|problem| Problems::new(&name, vec![problem]))?;
        let mut reader = Reader {
            files: &files,
            problems: Vec::new(),
            places: places::Places::default(),
            uploads: files::Uploads::default(),
        };
        let (mut spec, context) = reader.flow(&tree);
        for (variable, value) in env {
            reader.places.add_outside(format!("flow.env_vars[{variable}]"), format!("--env {variable}"));
            spec.env_vars.insert(variable.clone(), value.clone());
        }
        let Reader { mut problems, places, mut uploads, .. } = reader;
        for violation in check(&spec).as_slice() {
            let found = places.locate(violation);
            // What was read wrongly is often missed later as well; the first message is the better one.
            if found.place.is_none() || problems.iter().all(|problem| problem.place != found.place) {
                problems.push(found);
            }
        }
        if problems.is_empty() {
            make_room(&mut spec, &mut uploads);
            let bytes = spec.encoded_len();
            if bytes > SUBMIT_BYTES_MAX {
                problems.push(Problem::at(
                    Place::START,
                    format!(
                        "the flow has {bytes} bytes, at most {SUBMIT_BYTES_MAX} can be submitted at once; split it"
                    ),
                ));
            }
        }
        if !problems.is_empty() {
            return Err(Problems::new(&name, problems));
        }
        Ok(Self { spec, context, uploads: uploads.into_list(), files, name, places })
    }

    /// What a server refused, at its places in the file.
    #[must_use]
    pub fn locate(&self, violations: &[Violation]) -> Problems {
        let list = violations.iter().map(|violation| self.places.locate(violation)).collect();
        Problems::new(&self.name, list)
    }
}

/// What the server will check, checked here.
fn check(spec: &v1::FlowSpec) -> Violations {
    let parsed = match flow_spec::from_wire(spec.clone(), "flow") {
        Ok(parsed) => parsed,
        Err(violations) => return violations,
    };
    let mut located = Violations::new();
    if let Err(violations) = flow::Plan::of_specs(&parsed.env_vars, &parsed.nodes) {
        for Violation { field, description } in violations.as_slice() {
            located.add(format!("flow.{field}"), description);
        }
    }
    located
}

/// Makes blobs of scripts when the request would be too large with them in it.
fn make_room(spec: &mut v1::FlowSpec, uploads: &mut files::Uploads) {
    if spec.encoded_len() <= SUBMIT_BYTES_MAX {
        return;
    }
    for node in &mut spec.nodes {
        let Some(script) = node.job.as_mut().and_then(|job| job.script.as_mut()) else { continue };
        if let Some(v1::script::Source::Text(text)) = &mut script.source
            && text.len() > SCRIPT_BYTES_WHEN_CROWDED
        {
            let blob = uploads.text(&format!("script of {}", node.name), std::mem::take(text));
            script.source = Some(v1::script::Source::Blob(reader::blob_to_wire(blob)));
        }
    }
}

#[cfg(test)]
mod tests;
