//! A script as the command line describes it.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use flow_file::{FileRoot, Uploads};
use model::ScriptType;
use model::limits::{SCRIPT_BYTES_MAX, SCRIPT_INLINE_BYTES_MAX};
use proto::convert::enums;
use proto::v1;

use crate::command::values;
use crate::failure::CliError;

/// File name extensions of scripts, and their script types.
const ENDINGS: [(&str, ScriptType); 6] = [
    ("py", ScriptType::Python),
    ("sh", ScriptType::Shell),
    ("v", ScriptType::V),
    ("vsh", ScriptType::V),
    ("rs", ScriptType::Rust),
    ("rhai", ScriptType::Rhai),
];

/// A script, what it is given, and who executes it.
#[derive(Debug, Args)]
pub struct ScriptArgs {
    /// Script to run.
    #[command(flatten)]
    pub source: ScriptSourceArgs,
    /// Put a file into its working directory under this name
    #[arg(long = "file", value_name = "NAME=PATH", value_parser = values::entry)]
    pub files: Vec<(String, String)>,
}

/// A script and its variables, and who executes it.
#[derive(Debug, Args)]
pub struct ScriptSourceArgs {
    /// The script's file; `-` for standard input
    #[arg(required_unless_present = "script", conflicts_with = "script")]
    pub script_file: Option<String>,
    /// The script itself
    #[arg(long, value_name = "TEXT")]
    pub script: Option<String>,
    /// The language of the script: python, shell, v, rust, rhai, osis or sal [default: by the file name extension]
    #[arg(long = "type", value_name = "TYPE")]
    pub script_type: Option<ScriptType>,
    /// Set a variable
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::entry)]
    pub env: Vec<(String, String)>,
}

impl ScriptArgs {
    /// Builds the job's specification; adds to `uploads` what the coordinator needs before it.
    pub(super) fn job(&self, uploads: &mut Uploads) -> Result<v1::JobSpec, CliError> {
        let (script, script_type) = self.source.read()?;
        let source = if script.len() > SCRIPT_INLINE_BYTES_MAX {
            v1::script::Source::Blob(wire(uploads.text("the script", script)))
        } else {
            v1::script::Source::Text(script)
        };
        let mut files = BTreeMap::new();
        for (name, path) in &self.files {
            let blob = uploads
                .file(&FileRoot::WorkingDirectory, path)
                .map_err(|error| CliError::Invalid(format!("--file {name}: {error}")))?;
            files.insert(name.clone(), wire(blob));
        }
        Ok(v1::JobSpec {
            script_type: enums::script_type_to_wire(script_type).into(),
            script: Some(v1::Script { source: Some(source) }),
            env_vars: self.source.env.iter().cloned().collect(),
            files,
            outputs: Vec::new(),
            signature: String::new(),
        })
    }

    /// Fields of the request, and the flags that they come from.
    pub(super) fn labels(&self) -> Vec<(String, String)> {
        let mut labels: Vec<(String, String)> = [
            ("flow.nodes[0].job.script_type", "--type"),
            ("flow.nodes[0].job.script", "the script"),
            ("flow.nodes[0].job.env_vars", "--env"),
            ("flow.nodes[0].job.files", "--file"),
        ]
        .map(|(field, flag)| (field.to_owned(), flag.to_owned()))
        .into();
        let env = self.source.env.iter().map(|(name, _)| ("env_vars", "--env", name));
        let files = self.files.iter().map(|(name, _)| ("files", "--file", name));
        labels.extend(env.chain(files).map(|(field, flag, name)| {
            (format!("flow.nodes[0].job.{field}[{name}]"), format!("{flag} {name}"))
        }));
        labels
    }
}

impl ScriptSourceArgs {
    /// The script, and who executes it.
    pub(in crate::command) fn read(&self) -> Result<(String, ScriptType), CliError> {
        let (script, ending) = self.text()?;
        let known = || ScriptType::ALL.map(ScriptType::as_str).join(", ");
        let script_type = self.script_type.or(ending).ok_or_else(|| {
            CliError::Invalid(format!("the script's type is not known; give --type, one of {}", known()))
        })?;
        Ok((script, script_type))
    }

    /// The script, and what its file's name tells.
    fn text(&self) -> Result<(String, Option<ScriptType>), CliError> {
        let path = match (&self.script, self.script_file.as_deref()) {
            (Some(text), _) => return Ok((text.clone(), None)),
            (None, path) => path.unwrap_or("-"),
        };
        let text = values::text_of(path, SCRIPT_BYTES_MAX, "a script")?;
        let ending = Path::new(path).extension().and_then(|ending| ending.to_str());
        let ending_type =
            ENDINGS.iter().find(|(known, _)| Some(*known) == ending).map(|(_, script_type)| *script_type);
        Ok((text, ending_type))
    }
}

fn wire(blob: model::job::BlobRef) -> v1::BlobRef {
    v1::BlobRef { sha256: blob.sha256.to_string(), size: blob.size }
}
