//! The `mycora` binary: the command line, and every service in one process.
//!
//! - [`bootstrap`]: the first actor, context and runners.
//! - [`cli`]: what can be typed, and the way from arguments to a command.
//! - [`command`]: one file for each group of commands.
//! - [`output`]: answers and progress, for people and for programs.
//! - [`profile`]: where the coordinator is and who we are.
//! - [`clients`]: calls to the services.
//! - [`demo`]: the demonstration flow, compiled in.
//! - [`token`]: how an actor shows who it is without a certificate.
//! - [`up`]: the all-in-one.
//! - [`failure`]: why a command failed, and with which exit code.

pub mod bootstrap;
pub mod cli;
pub mod clients;
pub mod command;
pub mod demo;
pub mod failure;
pub mod output;
pub mod profile;
pub mod token;
pub mod up;
