//! Connections to addresses that actors gave.

use std::net::SocketAddr;
use std::sync::Arc;

use ::rpc::{Channel, ChannelError, TlsFiles};
use model::address_rules::AddressRules;

/// Dials a host and a port, and gives the channel.
pub type Dial = Arc<dyn Fn(&str, u16) -> Result<Channel, ChannelError> + Send + Sync>;

/// Dials with these certificates the addresses that the rules allow. Each connection checks the addresses that a name resolves to,
/// and connects only to an address that was checked.
#[must_use]
pub fn dial(tls: TlsFiles, rules: AddressRules) -> Dial {
    let rules = Arc::new(rules);
    Arc::new(move |host, port| {
        let (rules, named) = (Arc::clone(&rules), host.to_owned());
        let check = move |address: SocketAddr| {
            rules.check_resolved(&named, address).map_err(|refused| format!("ADDRESS_REFUSED: {refused}"))
        };
        Channel::remote_where(&format!("{host}:{port}"), &tls, None, Arc::new(check))
    })
}
