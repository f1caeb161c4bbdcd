//! The runner as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandbox::launch_if_asked(&[runner::ENGINE]);
    service::run::<runner::RunnerApp>()
}
