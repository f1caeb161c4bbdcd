//! Who gets in, and as whom.

use rpc::{ErrorView, Retry};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::stage::{ACTOR, Authority, ROUTER, Running, SCHEDULER, call, text, who_am_i};

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
async fn a_certificate_of_another_authority_ends_the_handshake() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = Running::start(&authority).await;
    // Trusts the server, but shows what the server does not trust.
    let stranger = other.pki.issue(SCHEDULER, &identity::IssueOptions::from(std::time::SystemTime::now()));
    let stranger = stranger.unwrap();
    let files = rpc::TlsFiles::new(authority.pki.ca_file(), stranger.certificate, stranger.key);
    let refused = who_am_i(&server.channel(&files)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(matches!(Retry::of(&refused), Retry::Again { .. }));
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
async fn the_server_has_to_have_the_name_that_was_asked_for() {
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
async fn a_peer_that_says_nothing_holds_up_nobody() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(tokio::net::TcpStream::connect(server.address).await.unwrap());
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
