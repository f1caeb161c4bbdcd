//! `mycora gateway`: how other machines are reached.

use clap::{Args, Subcommand};
use model::Address;

use super::CliSession;
use crate::failure::CliError;
use crate::output::{self, json, runners};

/// Commands about the gateway.
#[derive(Debug, Subcommand)]
pub enum GatewayCommand {
    /// Show the coordinator's key and address, its bus, and the supervisors it is connected to
    #[command(
        after_help = "Needs the admin's certificate, which `mycora pki issue admin --dir DATA/pki` makes.\n\n\
                      Example:\n  mycora gateway show --as admin"
    )]
    Show,
    /// Ping the supervisor or coordinator at an address, and measure the round trip
    #[command(
        after_help = "The gateway sends the ping, since only it is connected to other machines. Needs the admin's certificate, which `mycora pki issue admin --dir DATA/pki` makes.\n\n\
                      Example:\n  mycora gateway ping grpc://site-b:7706 --as admin"
    )]
    Ping(GatewayPingArgs),
}

/// Arguments of `gateway ping`.
#[derive(Debug, Args)]
pub struct GatewayPingArgs {
    /// mycelium:<key>, mycelium:[<ipv6>] or grpc://host:port
    #[arg(value_name = "ADDRESS")]
    pub peer: Address,
}

/// Runs the command.
///
/// # Errors
/// When the coordinator cannot be reached or refuses, and when the address does not answer.
pub async fn run(session: &CliSession, command: &GatewayCommand) -> Result<(), CliError> {
    match command {
        GatewayCommand::Show => {
            let answer = session.clients.get_gateway().await?;
            output::answer(session.global.output, || json::of(&answer), || runners::gateway(&answer))
        }
        GatewayCommand::Ping(GatewayPingArgs { peer }) => {
            let peer = peer.to_string();
            let answer = session.clients.ping_peer(peer.clone()).await?;
            output::answer(session.global.output, || json::of(&answer), || runners::pong(&peer, &answer))
        }
    }
}
