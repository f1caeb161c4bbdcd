//! Callers that get in, and their identities.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use identity::IssueOptions;
use prometheus::Registry;
use rpc::{ErrorView, RetryAdvice};
use rustls::version::TLS13;
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::stage::{ACTOR, Authority, ROUTER, Running, SCHEDULER, call, text, who_am_i};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_certificate_is_who_calls() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    for identity in [SCHEDULER, ROUTER, ACTOR] {
        let channel = server.channel(&authority.issue(identity));
        assert_eq!(who_am_i(&channel).await.unwrap(), identity.to_string());
    }
}

#[tokio::test]
async fn without_a_certificate_only_open_methods_answer() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let channel = server.channel(&authority.anonymous());
    let refused = who_am_i(&channel).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let view = ErrorView::from(&refused);
    assert_eq!(view.reason, "IDENTITY_REQUIRED");
    assert!(view.message.contains("client certificate"), "{view}");
    let mut health = HealthClient::new(channel);
    health.check(HealthCheckRequest::default()).await.unwrap();
}

#[tokio::test]
async fn an_identity_that_the_policy_does_not_name_is_denied() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let channel = server.channel(&authority.issue(ROUTER));
    let denied = call(&channel, "Never", tonic::Request::new(text(""))).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    assert!(denied.message().contains("service/router"), "{denied}");
    assert!(denied.message().contains("/test.Echo/Never"), "{denied}");
    assert_eq!(ErrorView::from(&denied).reason, "METHOD_NOT_ALLOWED");
}

#[tokio::test]
async fn a_certificate_that_does_not_count_ends_the_handshake() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = Running::start(&authority).await;
    let registry = Registry::new();
    server.mount.metrics().register(&registry).unwrap();
    let options = IssueOptions::from(SystemTime::now());
    let before = IssueOptions { validity: HOUR, ..IssueOptions::from(SystemTime::now() - 2 * HOUR) };
    for (pki, options, alert) in [
        (&other.pki, options, AlertDescription::UnknownCA),
        (&authority.pki, before, AlertDescription::CertificateExpired),
    ] {
        // Trusts the server, but shows what the server does not trust.
        let shown = pki.issue(SCHEDULER, &options).unwrap();
        let ca = authority.pki.ca_file();
        let counted = refused_so_far(&registry);
        assert_eq!(alert_of(&server, &ca, &shown.certificate, &shown.key).await, alert);
        while refused_so_far(&registry) <= counted {
            // The server is not done with it yet.
            tokio::task::yield_now().await;
        }
        let files = rpc::TlsFiles::new(ca, shown.certificate, shown.key);
        let refused = who_am_i(&server.channel(&files)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(matches!(RetryAdvice::of(&refused), RetryAdvice::Again { .. }));
    }
}

/// How a server ends the handshake. Nothing is sent after it: what a server has not read when it closes makes its last
/// words go lost.
async fn alert_of(server: &Running, ca: &Path, certificate: &Path, key: &Path) -> AlertDescription {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let chain: Result<_, _> = CertificateDer::pem_file_iter(certificate).unwrap().collect();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = builder.with_client_auth_cert(chain.unwrap(), PrivateKeyDer::from_pem_file(key).unwrap());
    let connector = TlsConnector::from(Arc::new(config.unwrap()));
    let socket = TcpStream::connect(server.address).await.unwrap();
    // In TLS 1.3 a client is done before the server has looked at its certificate.
    let mut stream = connector.connect("localhost".try_into().unwrap(), socket).await.unwrap();
    let error = stream.read(&mut [0]).await.unwrap_err();
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(rustls::Error::AlertReceived(alert)) => *alert,
        _ => panic!("no alert, but {error:?}"),
    }
}

pub(crate) fn refused_so_far(registry: &Registry) -> f64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == "mycora_connections_refused_total");
    family.unwrap().get_metric()[0].get_counter().get_value()
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_believed() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = Running::start(&authority).await;
    let refused = who_am_i(&server.channel(&other.issue(SCHEDULER))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("UnknownIssuer"), "{refused}");
    assert!(refused.message().contains(&server.address.to_string()), "{refused}");
}

#[tokio::test]
async fn the_server_certificate_must_have_the_requested_name() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let files = authority.issue(SCHEDULER);
    let address = format!("https://{}", server.address);
    for (name, good) in [("storage", true), ("localhost", true), ("scheduler", false)] {
        let channel = rpc::Channel::remote(&address, &files, Some(name)).unwrap();
        assert_eq!(who_am_i(&channel).await.is_ok(), good, "{name}");
    }
}

#[tokio::test]
async fn a_silent_peer_holds_up_no_other() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let channel = server.channel(&authority.issue(SCHEDULER));
    assert_eq!(who_am_i(&channel).await.unwrap(), "service/scheduler");
    drop(silent);
}

#[tokio::test]
async fn changed_certificates_count_for_new_connections() {
    let (authority, next) = (Authority::new(), Authority::new());
    let server = Running::start(&authority).await;
    let before = server.channel(&authority.issue(SCHEDULER));
    who_am_i(&before).await.unwrap();
    // The other authority takes over the server's files.
    let _issued = next.issue(identity::Identity::Service(identity::ServiceName::Storage));
    for file in ["storage.key", "storage.pem", "ca.pem"] {
        let draft = authority.dir.path().join("draft");
        std::fs::copy(next.dir.path().join(file), &draft).unwrap();
        std::fs::rename(&draft, authority.dir.path().join(file)).unwrap();
    }
    who_am_i(&before).await.expect("an open connection goes on");
    who_am_i(&server.channel(&next.issue(SCHEDULER))).await.expect("the new authority counts");
}

#[tokio::test]
async fn unusable_files_do_not_replace_good_ones() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let files = authority.issue(SCHEDULER);
    std::fs::write(authority.dir.path().join("storage.pem"), "half a certi").unwrap();
    who_am_i(&server.channel(&files)).await.expect("the former certificate stays in force");
}
