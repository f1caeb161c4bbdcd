//! The runner as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandbox::launch_if_asked();
    service::run::<runner::RunnerApp>()
}
