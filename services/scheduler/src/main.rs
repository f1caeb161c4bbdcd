//! The scheduler's process.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: service::Allocator = service::Allocator;

fn main() -> ExitCode {
    service::run::<scheduler::App>()
}
