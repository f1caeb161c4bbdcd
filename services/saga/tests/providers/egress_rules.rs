//! Hosts that are not for effects are never connected to.

use saga::providers::Provider as _;

use crate::stage::{Stage, call, failure, provider};
use crate::upstream::{Upstream, answer};

#[tokio::test]
async fn what_is_not_allowed_is_never_connected_to() {
    let stage = Stage::new();
    // Without TLS, so that a connection is all it takes.
    let upstream = Upstream::start(None, |_| answer(200, &[], "{}")).await;
    let port = upstream.port;
    let other = port ^ 1;
    for (base, hosts, is_private, rule) in [
        // Another name, another port, the port of the scheme.
        ("localhost", "[pay.test]".to_owned(), true, "allow_hosts"),
        ("localhost", format!("[\"localhost:{other}\"]"), true, "allow_hosts"),
        ("localhost", "[localhost]".to_owned(), true, "allow_hosts"),
        ("127.0.0.1", format!("[\"localhost:{port}\"]"), true, "allow_hosts"),
        ("localhost.evil.test", format!("[\"localhost:{port}\"]"), true, "allow_hosts"),
        // Listed, but they lead to this machine and its neighbors.
        ("localhost", format!("[\"localhost:{port}\"]"), false, "private"),
        ("LOCALHOST", format!("[\"localhost:{port}\"]"), false, "private"),
        ("127.0.0.1", format!("[\"127.0.0.1:{port}\"]"), false, "private"),
        ("2130706433", format!("[\"2130706433:{port}\"]"), false, "private"),
        ("[::ffff:127.0.0.1]", format!("[\"[::ffff:127.0.0.1]:{port}\"]"), false, "private"),
        ("169.254.169.254", format!("[\"169.254.169.254:{port}\"]"), false, "private"),
        ("10.0.0.1", format!("[\"10.0.0.1:{port}\"]"), false, "private"),
        ("0.0.0.0", format!("[\"0.0.0.0:{port}\"]"), false, "private"),
    ] {
        let definition = provider(&format!(
            "transport: http\nhttp: {{ base_url: \"http://{base}:{port}\", allow_hosts: {hosts}, private: {is_private} }}\n\
             effects:\n  e: {{ request: {{ method: POST, path: /x }} }}\n"
        ));
        let call = call(&definition, "{}");
        let answer = stage.http(&definition).call(&call).await;
        let (code, payload) = failure(&answer);
        assert_eq!(code, "egress", "{base}");
        assert!(payload.contains(&format!("\"host\":\"{base}:{port}\"")), "{payload}");
        assert!(payload.contains(&format!("\"rule\":\"{rule}\"")), "{base}: {payload}");
        assert!(!call.sent.is_raised());
    }
    assert_eq!(upstream.connections().await, 0);
}

#[tokio::test]
async fn what_is_allowed_is_reached() {
    let stage = Stage::new();
    let upstream = Upstream::start(None, |_| answer(200, &[], "{}")).await;
    let port = upstream.port;
    for host in ["localhost", "127.0.0.1"] {
        let definition = provider(&format!(
            "transport: http\nhttp: {{ base_url: \"http://{host}:{port}\", allow_hosts: [\"{host}:{port}\"], private: true }}\n\
             effects:\n  e: {{ request: {{ method: POST, path: /x }} }}\n"
        ));
        stage.http(&definition).call(&call(&definition, "{}")).await;
    }
    assert_eq!(upstream.asked().len(), 2);
}

#[tokio::test]
async fn a_question_goes_by_the_same_rules() {
    let stage = Stage::new();
    let upstream = Upstream::start(None, |_| answer(200, &[], "{}")).await;
    let port = upstream.port;
    let definition = provider(&format!(
        "transport: http\nhttp: {{ base_url: \"http://localhost:{port}\", allow_hosts: [\"localhost:{port}\"] }}\n\
         effects:\n  e: {{ request: {{ method: POST, path: /x }}, \
         unknown_outcome: {{ query: {{ path: /x, absent: status == 404 }} }} }}\n"
    ));
    assert_eq!(stage.http(&definition).ask(&call(&definition, "{}")).await, None);
    assert_eq!(upstream.connections().await, 0);
}
