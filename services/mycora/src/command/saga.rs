//! `mycora saga`: sagas, their definitions and their effects.

mod journal;
pub mod replay_verify;
pub mod test;

use clap::Subcommand;

pub use self::replay_verify::ReplayVerifyArgs;
pub use self::test::TestArgs;
use crate::failure::Failure;
use crate::output::Format;

/// Commands about sagas.
#[derive(Debug, Subcommand)]
pub enum SagaCommand {
    /// Play scenarios of a saga in virtual time, without any server, and everything that can go wrong in them
    #[command(after_help = test::AFTER_HELP)]
    Test(TestArgs),
    /// Run a journal again and compare every byte of it, without any server
    #[command(after_help = replay_verify::AFTER_HELP)]
    ReplayVerify(ReplayVerifyArgs),
}

/// Runs a command that needs no server; gives the exit code.
///
/// # Errors
/// A file is wrong, or the answer cannot be written.
pub fn run_alone(command: &SagaCommand, format: Format) -> Result<u8, Failure> {
    match command {
        SagaCommand::Test(args) => test::run(args, format),
        SagaCommand::ReplayVerify(args) => replay_verify::run(args, format),
    }
}
