//! Errors of the gateway.

/// Why the gateway cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The topic of coordinators has a listener already on that node.
    #[error("the bus cannot be listened to")]
    Bus(#[source] mycelium::BusError),
    /// The signing files cannot be used.
    #[error("the gateway has nothing to sign with")]
    Signing(#[source] envelope::SigningFilesError),
    /// A metric of the same name is there already.
    #[error("the metrics cannot be registered")]
    Metrics(#[source] prometheus::Error),
}

/// Why a supervisor cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The text is no address.
    #[error(transparent)]
    Address(#[from] model::address::AddressError),
    /// No conversation stands within the time that was given.
    #[error("{address} is not connected: {last_error}")]
    NotConnected {
        /// Where it should be.
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
        /// The key that was heard; empty: none was.
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
