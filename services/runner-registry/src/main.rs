//! The registry's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::run::<runner_registry::App>()
}
