//! The runner as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::run::<runner::RunnerApp>()
}
