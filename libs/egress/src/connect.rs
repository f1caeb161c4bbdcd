//! Connections to addresses that were checked: no second lookup decides where a name leads.

use std::net::IpAddr;

use tokio::net::TcpStream;

use crate::HostAllowlist;

/// There is no connection. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A rule is against it; the host was not contacted.
    #[error(transparent)]
    Denied(DeniedHost),
    /// The name cannot be resolved, or no server answers there.
    #[error("{0}")]
    Failed(String),
}

/// A host that may not be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct DeniedHost {
    /// The host, as the caller gave it.
    pub host: String,
    /// Port of the host.
    pub port: u16,
    /// Rule that is against it.
    pub reason: HostDenialReason,
}

/// Why a host may not be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostDenialReason {
    /// The list does not have the host, or not with this port.
    NotListed,
    /// The host's name resolves only to addresses that are not public, or are this machine's.
    NotPublic {
        /// The first of them.
        address: IpAddr,
    },
}

impl DeniedHost {
    fn message(&self) -> String {
        let host = &self.host;
        match self.reason {
            HostDenialReason::NotListed => format!("the host {host} is not among those that are allowed"),
            HostDenialReason::NotPublic { address } => {
                format!(
                    "{host} has no address that may be reached ({address}): private ones have to be allowed"
                )
            }
        }
    }
}

/// Connects to a host, if these hosts are allowed, at an address that may be reached.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(hosts: &HostAllowlist, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let denied = |rule| ConnectError::Denied(DeniedHost { host: host.to_owned(), port, reason: rule });
    if !hosts.permits_host(host, port) {
        return Err(denied(HostDenialReason::NotListed));
    }
    let found = hosts.resolver().resolve(bare(host), port).await;
    let found = found.map_err(|error| ConnectError::Failed(format!("{host}: {error}")))?;
    let mut error = match found.first() {
        None => ConnectError::Failed(format!("{host} has no address")),
        Some(address) => denied(HostDenialReason::NotPublic { address: address.ip() }),
    };
    for address in found.into_iter().filter(|address| hosts.permits_address(address.ip(), port)) {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(why) => error = ConnectError::Failed(format!("{address}: {why}")),
        }
    }
    Err(error)
}

/// A host without the brackets of an IPv6 address.
pub(crate) fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
