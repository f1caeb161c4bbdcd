//! What can go wrong here.

/// Why the gateway cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else listens to the topic of coordinators on that node.
    #[error("the bus cannot be listened to")]
    Bus(#[source] mycelium::BusError),
    /// What it signs with cannot be used.
    #[error("the gateway has nothing to sign with")]
    Signing(#[source] envelope::FilesError),
    /// A metric of the same name is there already.
    #[error("the metrics cannot be registered")]
    Metrics(#[source] prometheus::Error),
}

/// Why a supervisor cannot be spoken to.
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
        /// What the last attempt ran into.
        last_error: String,
    },
    /// Somebody else is there than the runner record means.
    #[error(
        "PINNED_KEY: {} at {address}, and its runner record names the signing key {pinned}",
        speaker(key)
    )]
    OtherKey {
        /// Where.
        address: String,
        /// The key that was heard; empty: none was.
        key: String,
        /// The one that the record names.
        pinned: String,
    },
    /// The secret that goes with its requests is missing.
    #[error(transparent)]
    Secret(#[from] crate::secrets::SecretError),
}

fn speaker(key: &str) -> String {
    if key.is_empty() { "nobody has signed anything".to_owned() } else { format!("{key} has signed") }
}
