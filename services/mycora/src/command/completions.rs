//! `mycora completions`: what shells complete.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::CliError;
use crate::output;

/// Shown below the options.
pub const AFTER_HELP: &str = "\
Examples:
  mycora completions bash > ~/.local/share/bash-completion/completions/mycora
  mycora completions zsh > \"${fpath[1]}/_mycora\"
  mycora completions fish > ~/.config/fish/completions/mycora.fish";

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// For which shell
    pub shell: Shell,
}

/// Writes the script to standard output.
///
/// # Errors
/// When it cannot be written.
pub fn run(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "mycora", &mut script);
    output::print_bytes(&script)
}
