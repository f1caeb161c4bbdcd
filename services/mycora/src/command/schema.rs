//! `mycora flow schema`: the JSON Schema of flow files.

use crate::failure::CliError;
use crate::output;

/// Shown below the options.
pub const AFTER_HELP: &str = "\
Example:
  mycora flow schema > flow.schema.json

Editors complete and check flow files by it. Those that use yaml-language-server take it by the first line of a flow file:
  # yaml-language-server: $schema=flow.schema.json

It describes keys and their values; `mycora flow validate` checks all the rest.";

/// Writes the schema to standard output; needs no coordinator.
///
/// # Errors
/// When it cannot be written.
pub fn run() -> Result<(), CliError> {
    output::print_bytes(format!("{:#}\n", flow_file::schema()).as_bytes())
}
