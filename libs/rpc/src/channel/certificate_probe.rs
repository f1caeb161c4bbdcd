//! Reads the certificate that a server shows, to diagnose faults.

use std::time::Duration;

use identity::{CertificateError, CertificateSummary};

use crate::channel::{ChannelError, any_address, connect, name_of, parse_address};
use crate::tls::{ClientTls, TlsFiles};

/// TCP and TLS together.
const PATIENCE: Duration = Duration::from_secs(5);

/// Shakes hands with the server at `https://host:port` as a [`crate::Channel`] does, says nothing, and gives the certificate
/// that it showed. Cancel safe.
///
/// # Errors
/// When there is no way to it, or it is not to be believed.
pub async fn server_certificate(
    address: &str,
    tls: &TlsFiles,
    server_name: Option<&str>,
) -> Result<CertificateSummary, CertificateProbeError> {
    let authority = parse_address(address)?;
    let name = name_of(&authority, server_name)?;
    let tls = ClientTls::load(tls).map_err(ChannelError::Tls)?;
    let unreachable =
        |message: String| CertificateProbeError::Unreachable { address: authority.to_string(), message };
    let connected = tokio::time::timeout(PATIENCE, connect(&authority, name, &tls, &any_address())).await;
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(unreachable(error.to_string())),
        Err(_) => return Err(unreachable(format!("no answer within {} s", PATIENCE.as_secs()))),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let leaf = shown.ok_or_else(|| unreachable("it showed no certificate".to_owned()))?;
    Ok(CertificateSummary::from_der(leaf)?)
}

/// Why a server did not introduce itself.
#[derive(Debug, thiserror::Error)]
pub enum CertificateProbeError {
    /// There is no way to it.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The server is not there, or its certificate is not to be believed.
    #[error("cannot reach {address}: {message}")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// Description of the failure.
        message: String,
    },
    /// The server's certificate cannot be read.
    #[error("its certificate cannot be read")]
    Certificate(#[from] CertificateError),
}
