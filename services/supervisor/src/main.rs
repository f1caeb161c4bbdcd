//! The supervisor's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::run::<supervisor::App>()
}
