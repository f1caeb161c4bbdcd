//! Errors of the gateway.

/// Why the gateway cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the gateway's topics has a listener already on that node.
    #[error("the gateway cannot listen on the bus")]
    Bus(#[source] mycelium::BusError),
    /// The signing files cannot be used.
    #[error("the gateway cannot use its signing files")]
    Signing(#[source] envelope::SigningFilesError),
    /// A metric of the same name is registered already.
    #[error("the metrics cannot be registered")]
    Metrics(#[source] prometheus::Error),
}

/// Why a supervisor cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The text is no address.
    #[error(transparent)]
    Address(#[from] model::address::AddressError),
    /// The supervisor was not connected within the given time.
    #[error("{address} is not connected: {last_error}")]
    NotConnected {
        /// Address of the supervisor.
        address: String,
        /// Error of the last attempt.
        last_error: String,
    },
    /// The runner record names another signing key than the one at the address.
    #[error(
        "PINNED_KEY: {} at {address}, and its runner record names the signing key {pinned}",
        speaker(key)
    )]
    OtherKey {
        /// Address of the supervisor.
        address: String,
        /// The key that has signed there; empty: nothing was signed.
        key: String,
        /// Key that the record names.
        pinned: String,
    },
    /// The secret that goes with its requests is missing.
    #[error(transparent)]
    Secret(#[from] crate::secrets::SupervisorSecretError),
}

fn speaker(key: &str) -> String {
    if key.is_empty() { "nobody has signed anything".to_owned() } else { format!("{key} has signed") }
}
