//! `mycora flow validate`, and reading flow files for other commands.

use clap::Args;
use flow_file::{FlowFile, FlowFileSource};
use yaml::Warnings;

use super::values;
use crate::failure::CliError;
use crate::output::{self, OutputFormat, json, labels};

/// Arguments of `flow validate`.
#[derive(Debug, Args)]
pub struct FlowValidateArgs {
    /// The flow file, YAML or JSON; `-` for standard input
    pub file: String,
    /// Set a variable of the flow, as `submit` would
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::entry)]
    pub env: Vec<(String, String)>,
}

/// Checks a file; needs no coordinator.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn run(args: &FlowValidateArgs, format: OutputFormat) -> Result<(), CliError> {
    let file = read(&args.file, &args.env)?;
    output::answer(
        format,
        || json::of(&file.spec),
        || {
            let jobs = file.spec.nodes.len();
            let edges: usize = file.spec.nodes.iter().map(|node| node.depends.len()).sum();
            let uploads: u64 = file.uploads.iter().map(|upload| upload.blob.size).sum();
            let jobs = labels::count(jobs, "job", "jobs");
            let edges = labels::count(edges, "dependency", "dependencies");
            format!(
                "{}: the flow `{}` is good: {jobs}, {edges}, {uploads} bytes to upload\n",
                args.file, file.spec.name
            )
        },
    )
}

/// Reads and understands a flow file. Warnings go to standard error.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn read(path: &str, env: &[(String, String)]) -> Result<FlowFile, CliError> {
    let file = FlowFileSource::open(path)
        .and_then(|source| FlowFile::parse(source, env))
        .map_err(|problems| CliError::Invalid(problems.to_string()))?;
    warn(&file);
    Ok(file)
}

/// Warns, on standard error, of settings that probably do not do what was meant.
pub(super) fn warn(file: &FlowFile) {
    if let Some(warnings) = file.warnings() {
        output::note(&Warnings(&warnings).to_string());
    }
}
