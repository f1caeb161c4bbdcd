//! Where names lead.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;

/// Resolver of names. Believed about where a name leads, and not about whether that may be reached.
#[async_trait]
pub trait HostResolver: fmt::Debug + Send + Sync {
    /// Looks up the addresses of a host, which is a name or an address without brackets. Called again for each connection.
    ///
    /// # Errors
    /// The name is not known, or no name server answered.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// Resolver of the system.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

#[async_trait]
impl HostResolver for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}
