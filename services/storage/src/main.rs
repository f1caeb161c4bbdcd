//! The storage service's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::run::<storage::App>()
}
