//! The port where the sidecar of a mesh comes in: who reaches it without one can be any service.

use std::net::IpAddr;

use rpc::{Channel, TlsFiles};

use super::finding::Finding;
use crate::clients::health;
use crate::failure::{CliError, error_chain};
use crate::profile::ApiService;

const CHECK: &str = "mesh port";

/// Checks whether the port is reachable from here, where a caller could pass as any service.
pub(super) async fn look(address: &str) -> Finding {
    let channel = match Channel::remote(address, &TlsFiles::none(), None) {
        Ok(channel) => channel,
        Err(error) => return Finding::fail(CHECK, error_chain(&error), "write it as http://host:port"),
    };
    // Any service answers for its health, also for one that it does not offer.
    match health::probe(channel, ApiService::Scheduler).await {
        Ok(_) if is_of_this_machine(address) => {
            Finding::ok(CHECK, format!("{address} answers on this machine, where its sidecar is"))
        }
        Ok(_) => Finding::warn(
            CHECK,
            format!("{address} answers from here, and believes a header that says who calls"),
            "unless a sidecar carried this call: whoever reaches it can be any service. A network policy, or the mesh \
             itself, has to leave it to the sidecar",
        ),
        Err(error) => {
            let why = CliError::from(error).to_string();
            let why = why.lines().next().unwrap_or_default().to_owned();
            Finding::ok(CHECK, format!("not reached from here, as nobody but its sidecar should: {why}"))
        }
    }
}

fn is_of_this_machine(address: &str) -> bool {
    let authority = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_address() {
        for (address, here) in [
            ("http://127.0.0.1:7790", true),
            ("http://[::1]:7790", true),
            ("http://localhost:7790", true),
            ("http://10.0.0.7:7790", false),
            ("http://host:7790", false),
        ] {
            assert_eq!(is_of_this_machine(address), here, "{address}");
        }
    }
}
