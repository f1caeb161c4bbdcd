//! The scheduler's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::run::<scheduler::App>()
}
