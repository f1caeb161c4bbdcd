//! The saga service's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::run::<saga::App>()
}
