//! Connections that never come about.

use std::sync::Arc;

use identity::{Identity, ServiceName};
use model::ActorId;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use testkit::wait_until;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{AlertDescription, ClientConfig, Error, RootCertStore, crypto, version};

use super::stage::{EXECUTOR, Issued, Stage};
use crate::suite::metric;

const REFUSED: &str = "mycora_connections_refused_total";

/// Every service sends the client the reason of the refusal, and counts it.
pub(crate) async fn ends_with_the_alert_for_the_reason(stage: &Stage) {
    let executor = Identity::Actor(ActorId(EXECUTOR));
    let refused = [
        (stage.foreign(executor), AlertDescription::UnknownCA),
        (stage.expired(executor), AlertDescription::CertificateExpired),
    ];
    for host in [
        ServiceName::Storage,
        ServiceName::Scheduler,
        ServiceName::Router,
        ServiceName::RunnerRegistry,
        ServiceName::MyceliumGateway,
        ServiceName::Supervisor,
    ] {
        let port = stage.port_of(host);
        for (issued, alert) in &refused {
            let before = metric(stage.dir(), port + 100, REFUSED);
            assert_eq!(alert_of(stage, port, issued).await, *alert, "{host}");
            let counted = || async { (metric(stage.dir(), port + 100, REFUSED) > before).then_some(()) };
            wait_until(counted, testkit::PATIENCE, "the connection is counted").await;
        }
    }
}

/// Returns the alert of a server at the end of a handshake with this certificate. Nothing is sent after it: what a
/// server has not read when it closes makes its last words go lost.
async fn alert_of(stage: &Stage, port: u16, issued: &Issued) -> AlertDescription {
    let socket = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
    let name = ServerName::try_from("127.0.0.1").expect("an address");
    let connector = TlsConnector::from(Arc::new(config(stage, issued)));
    // In TLS 1.3 a client is done before the server has looked at its certificate.
    let mut stream = connector.connect(name, socket).await.expect("the server is believed");
    let error = stream.read(&mut [0]).await.expect_err("it is not let in");
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(Error::AlertReceived(alert)) => *alert,
        _ => panic!("no alert, but {error:?}"),
    }
}

fn config(stage: &Stage, issued: &Issued) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(stage.ca_file()).expect("read") {
        roots.add(authority.expect("a certificate")).expect("an authority");
    }
    let chain = CertificateDer::pem_file_iter(&issued.certificate).expect("read");
    let chain = chain.collect::<Result<_, _>>().expect("certificates");
    let key = PrivateKeyDer::from_pem_file(&issued.key).expect("a key");
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&version::TLS13]).expect("TLS 1.3");
    builder.with_root_certificates(roots).with_client_auth_cert(chain, key).expect("a configuration")
}
