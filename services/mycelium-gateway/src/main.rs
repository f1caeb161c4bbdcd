//! The gateway's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::run::<mycelium_gateway::App>()
}
